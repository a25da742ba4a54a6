"""Measure a machine: its memory, and the speed at which it trains a model on a corpus."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from nmt.advice.facts import Pair
from nmt.data.dataset import Dataset
from nmt.data.loader import prefetch
from nmt.errors import UnfinishedError
from nmt.models import ModelConfig
from nmt.preprocess.binarize import preprocess
from nmt.preprocess.config import PreprocessConfig
from nmt.recipe.config import build
from nmt.runs import Run
from nmt.runs.building import build_new
from nmt.runtime.distributed import World
from nmt.runtime.machine import host_memory
from nmt.runtime.precision import pick_precision
from nmt.runtime.processes import available_cores
from nmt.subwords.learning import VocabSizeError
from nmt.subwords.subwords import Subwords
from nmt.training.config import TrainConfig
from nmt.training.trainer import Trainer

SECONDS = 4.0
"""Seconds for which the updates of one model are timed."""
WARM_UPDATES = 2
"""Updates before the timed updates; the first updates compile kernels."""
LEAST_UPDATES = 3
"""Smallest number of updates that are timed, however slow they are."""

BUSY = 0.5
"""A machine counts as busy if the demand exceeds its cores by this many."""

SMALLEST_WITH_BYTES = 600
"""Smallest vocabulary with the 256 pieces for bytes."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The properties of a machine that training depends on."""

    device: str
    """cpu or cuda."""
    name: str
    """Name of the device for people."""
    memory: int
    """Bytes of memory of the device."""
    precision: str
    """Precision that training chooses."""
    is_busy: bool = False
    """Whether other programs have used the cores of this process in the last minute."""

    @classmethod
    def here(cls, device: torch.device) -> Machine:
        """Return the machine of this process."""
        name, memory, busy = f"{available_cores()} CPU cores", host_memory(), _is_busy()
        if device.type == "cuda":
            gpu = torch.cuda.get_device_properties(device)
            name, memory, busy = gpu.name, gpu.total_memory, False
        precision = pick_precision("auto", device)
        return cls(device=device.type, name=name, memory=memory, precision=precision, is_busy=busy)


def _is_busy() -> bool:
    """Return whether the load average leaves fewer cores than this process may use."""
    with suppress(OSError):  # a system may not tell its load
        others = max(0.0, os.getloadavg()[0] - 1)  # this process has read the corpus on one core
        return others + available_cores() > (os.cpu_count() or 1) + BUSY
    return False


@dataclass(frozen=True)
class Trial:
    """A sample of the corpus as a dataset, on which models are timed."""

    dataset: Dataset
    vocab_size: int
    """Number of subwords wanted; halved until the sample has enough text, or raised once to twice
    as many as the characters need."""
    byte_fallback: bool

    @property
    def mean_lengths(self) -> tuple[float, float]:
        """Mean numbers of tokens of a source and of a target, with the end of sentence."""
        train = self.dataset.manifest.splits["train"]
        return train.source_tokens / train.pairs, train.target_tokens / train.pairs


def make_trial(
    directory: Path, pairs: Sequence[Pair], preprocess_section: Mapping[str, Any]
) -> Trial:
    """Make a dataset of a sample.

    Args:
        directory: an empty directory for the files.
        pairs: the sample.
        preprocess_section: values of the recipe's section; the paths in it are ignored.

    Raises:
        NmtError: no subwords can be learned from the text.
    """
    languages = preprocess_section["source_lang"], preprocess_section["target_lang"]
    sides = [pair.source for pair in pairs], [pair.target for pair in pairs]
    for language, lines in zip(languages, sides, strict=True):
        (directory / f"train.{language}").write_text(
            "".join(f"{line}\n" for line in lines), "utf-8"
        )
        # A single line, because a trial never validates.
        (directory / f"valid.{language}").write_text(f"{lines[0]}\n", "utf-8")
    values = dict(preprocess_section) | {
        "train": [str(directory / "train")],
        "valid": str(directory / "valid"),
        "output_dir": str(directory / "data-bin"),
        "clean": [],
        # Processes would take longer to start than the sample takes.
        "workers": 1,
    }
    values.pop("test", None)
    config = build(PreprocessConfig, values, "preprocess")
    is_raised = False
    while True:
        config = replace(config, byte_fallback=config.vocab_size >= SMALLEST_WITH_BYTES)
        try:
            preprocess(config, warns=False)
        except UnfinishedError as error:  # fewer subwords are no remedy for a full disk
            raise (error.__cause__ or error) from None
        except VocabSizeError as error:
            if error.possible > config.vocab_size and not is_raised:
                is_raised = True
                config = replace(config, vocab_size=2 * error.possible)
            elif error.possible > config.vocab_size or config.vocab_size < 20:
                raise
            else:
                config = replace(config, vocab_size=config.vocab_size // 2)
        else:
            dataset = Dataset.open(Path(config.output_dir))
            return Trial(dataset, config.vocab_size, config.byte_fallback)


def target_tokens_per_second(
    trial: Trial,
    model_section: Mapping[str, Any],
    train_section: Mapping[str, Any],
    vocab_size: int,
    directory: Path,
    world: World,
) -> float:
    """Train a model for some seconds, and return its speed on this machine.

    Args:
        trial: the sample to train on.
        model_section: values of the recipe's section.
        train_section: values of the recipe's section on which the speed depends.
        vocab_size: size of the vocabulary; may be larger than the sample's.
        directory: where the files of a run are made.
        world: this process and its device.
    """
    config = build(ModelConfig, model_section, "model").resolved()  # type: ignore[type-abstract]
    torch.manual_seed(1)
    size = max(vocab_size, trial.dataset.manifest.source_vocabulary)
    model = build_new(lambda: config.build(size, size, True)).to(world.device)
    manifest = trial.dataset.manifest
    run = Run.create(
        directory,
        languages=(manifest.source_lang, manifest.target_lang),
        identity="trial",
        data=manifest.fingerprint,
        recipe={},
        subwords=Subwords.from_dataset(trial.dataset),
    )
    train = build(TrainConfig, train_section, "train")
    trainer = Trainer(run, train, model, trial.dataset.split("train"), world)
    model.train()
    tokens, start = 0, time.perf_counter()
    with closing(prefetch(trainer.loader.updates(1))) as updates:
        for update in updates:
            # So low that no model can diverge while it is timed.
            trainer.step(update, rate=1e-6)
            # Kernels are launched asynchronously: without waiting only the launches would be timed.
            if world.device.type == "cuda":
                torch.cuda.synchronize()
            tokens += update.target_tokens
            seconds = time.perf_counter() - start
            if update.number == WARM_UPDATES:
                tokens, start = 0, time.perf_counter()
            elif update.number >= WARM_UPDATES + LEAST_UPDATES and seconds >= SECONDS:
                break
    return tokens / seconds
