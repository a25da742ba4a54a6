"""Rules of thumb, each with its source: sizes of models, and settings by the size of the corpus."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Size:
    """A model with the settings of training that suit its size."""

    name: str
    arch: str
    model: dict[str, int | str] = field(default_factory=dict)
    """Keys of the section ``model`` beside the name of the architecture."""
    optimizer: str = "adam"
    """Optimizer that learns more than the others in the same time."""
    lr: float
    """Peak learning rate."""
    warmup_updates: int
    """Longest warm-up; a short training has a shorter one."""
    most_tokens: int
    """Largest number of target tokens of an update."""
    needs: float
    """Target tokens that the model must see before it is better than the next smaller one."""
    source: str


SIZES = (
    Size(
        name="tiny",
        arch="transformer_tiny",
        model={
            "encoder_layers": 2,
            "decoder_layers": 2,
            "d_ff": 512,
            "positions": "rotary",
        },
        optimizer="muon",
        lr=0.006,
        warmup_updates=400,
        most_tokens=4000,
        needs=0,
        source="examples/quickstart, docs/systems.md",
    ),
    Size(
        name="small",
        arch="transformer_base",
        model={
            "encoder_layers": 3,
            "decoder_layers": 3,
            "d_model": 256,
            "d_ff": 1024,
            "heads": 4,
            "positions": "rotary",
        },
        lr=0.0014,
        warmup_updates=400,
        most_tokens=4000,
        needs=5e6,
        source="examples/multi30k",
    ),
    Size(
        name="medium",
        arch="transformer_iwslt_de_en",
        model={"tied_embeddings": "all"},
        lr=0.0007,
        warmup_updates=4000,
        most_tokens=8000,
        needs=2e7,
        source="fairseq's recipe for IWSLT14",
    ),
    Size(
        name="base",
        arch="transformer_base",
        lr=0.0007,
        warmup_updates=4000,
        most_tokens=25_000,
        needs=2e8,
        source="Vaswani et al. 2017",
    ),
    Size(
        name="big",
        arch="transformer_big",
        lr=0.0005,
        warmup_updates=4000,
        most_tokens=25_000,
        needs=2e9,
        source="Vaswani et al. 2017",
    ),
)
"""Models, from the smallest."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Settings for corpora of less than a number of distinct pairs."""

    below: float
    largest: str
    """Name of the largest model."""
    vocab_size: int
    epochs: int
    """Epochs of a training without a limit of time."""
    patience: int | None
    """Validations without a better score after which such a training ends."""


SCALES = (
    Scale(below=20_000, largest="small", vocab_size=2000, epochs=100, patience=8),
    Scale(below=100_000, largest="small", vocab_size=8000, epochs=60, patience=8),
    Scale(below=1_000_000, largest="medium", vocab_size=10_000, epochs=50, patience=8),
    Scale(below=10_000_000, largest="base", vocab_size=32_000, epochs=20, patience=None),
    Scale(below=math.inf, largest="big", vocab_size=32_000, epochs=8, patience=None),
)
"""Small corpora take small models, few subwords and strong regularisation: Sennrich and Zhang 2019,
Araabi and Monz 2020 (both on subsets of IWSLT14), and Wu et al. 2021 for Multi30k, where the base
model is worse than the tiny one; large ones the models of Vaswani et al. 2017."""


def scale(pairs: int) -> Scale:
    """Return the settings for a number of distinct pairs."""
    return next(scale for scale in SCALES if pairs < scale.below)


def candidates(pairs: int) -> list[Size]:
    """Return the models for a number of distinct pairs, the largest first."""
    names = [size.name for size in SIZES]
    largest = names.index(scale(pairs).largest)
    return [*reversed(SIZES[: largest + 1])]


def dropout(pairs: int, epochs: float) -> float:
    """Return the dropout for a corpus that is seen so many times.

    A model that sees a text a few times cannot learn it by heart (docs/guides/small-data.md).
    """
    if epochs < 15:
        return 0.1
    if pairs >= 1_000_000:
        return 0.1
    return 0.2 if epochs < 30 else 0.3


SAMPLED_EPOCHS = 30
"""Epochs from which on BPE-dropout helps a small corpus (Provilkov et al. 2020)."""
SAMPLED_PAIRS = 100_000
"""Pairs below which a corpus is small enough for BPE-dropout."""


def subword_sampling(pairs: int, epochs: float = math.inf) -> float | None:
    """Return the share of merges that BPE-dropout leaves out; None for no BPE-dropout.

    Args:
        pairs: distinct pairs of the corpus.
        epochs: of the training; infinite where they are not known yet.
    """
    return 0.1 if epochs >= SAMPLED_EPOCHS and pairs < SAMPLED_PAIRS else None
