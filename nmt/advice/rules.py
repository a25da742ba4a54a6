"""Rules of thumb, each with its source, and the choice of a recipe by these rules.

The choice is a pure function of the facts about corpus, machine and time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from nmt.messages import duration
from nmt.subwords.learning import vocab_size_for


@dataclass(frozen=True, kw_only=True)
class Size:
    """A model with the settings of training that suit its size."""

    name: str
    arch: str
    model: dict[str, int | str] = field(default_factory=dict)
    """Keys of the section ``model``, in addition to the name of the architecture."""
    optimizer: str = "adam"
    """Optimizer that learns most in the same time."""
    lr: float
    """Peak learning rate."""
    warmup_updates: int
    """Longest warm-up; a short training has a shorter warm-up."""
    most_tokens: int
    """Largest number of target tokens of an update."""
    needs: float
    """Target tokens that the model must see before it is better than the next smaller model."""
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
    """Settings for corpora up to a number of distinct pairs."""

    below: float
    largest: str
    """Name of the largest model."""
    epochs: int
    """Epochs of a training without a limit of time."""
    patience: int | None
    """Validations without a better score after which such a training ends."""


SCALES = (
    Scale(below=20_000, largest="small", epochs=100, patience=8),
    Scale(below=100_000, largest="small", epochs=60, patience=8),
    Scale(below=1_000_000, largest="medium", epochs=50, patience=8),
    Scale(below=10_000_000, largest="base", epochs=20, patience=None),
    Scale(below=math.inf, largest="big", epochs=8, patience=None),
)
"""Small corpora take small models, few subwords and strong regularisation: Sennrich and Zhang 2019,
Araabi and Monz 2020 (both on subsets of IWSLT14), and Wu et al. 2021 for Multi30k, where the base
model is worse than the tiny model. Large corpora take the models of Vaswani et al. 2017."""


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
    if epochs < 3:
        return 0.0
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


UPDATES = 5000
"""Updates that a short training should have, unless its updates would become too small."""

LEAST_TOKENS = {"cpu": 1000, "cuda": 4000}
"""Smallest number of target tokens of an update, by device; smaller updates are not faster."""

WARMUP = 0.25
"""Share of a short training that is warm-up."""

VALIDATIONS = 5
"""Validations during a training with a limit of time; they take time, too."""

LONG_VALIDATIONS = 40
"""Validations during a training without a limit of time, for its patience."""

SAVES = 10
"""Least number of checkpoints during a training, so that a kill costs at most a tenth of it."""

LONGEST_LOSS = 1800.0
"""Seconds of a long training that a kill costs at most."""

SMALL_VALID = 100
"""On a validation set with fewer pairs, loss is a better measure than BLEU."""

CLEANING: tuple[tuple[str | dict[str, Any], str], ...] = (
    ("unicode", "one spelling for each character"),
    ("control_characters", "replaced by spaces"),
    ("spaces", "one between words"),
    ({"name": "length", "max": 250, "max_ratio": 9}, "longer pairs are seldom translations"),
    ("held_out", "drops pairs that are also in valid or test"),
    ("duplicates", "{repeated} of the pairs"),
)
"""Steps that clean the training text, each with its reason."""

COMPATIBILITY = 0.01
"""Share of replaced characters from which on a translation must keep them."""

POSITIONS = "learns sooner (docs/systems.md); does not export to Marian and Hugging Face"
"""Reason for rotary positions."""

DECAY = "falling to 0 by the end (docs/guides/small-data.md)"
"""Reason for a learning rate that falls to 0 where time is limited."""

OPTIMIZER = "learns more in the same time (docs/systems.md)"
"""Reason for another optimizer than Adam."""


@dataclass(frozen=True, kw_only=True)
class CorpusFacts:
    """The facts about a corpus that the recipe depends on."""

    source_lang: str
    target_lang: str
    train: tuple[str, ...]
    valid: str
    test: str | None
    pairs: int
    distinct: int
    """Number of distinct pairs."""
    is_counted: bool = True
    """Whether `distinct` is exact."""
    target_tokens: float
    """Mean number of tokens of a target, with the end of sentence."""
    valid_pairs: int
    vocab_size: int
    """Number of subwords by the rule, or the most that the text allows."""
    byte_fallback: bool
    compatibility: float = 0.0
    """Share of the target's characters that Unicode's form NFKC replaces."""

    @property
    def distinct_pairs(self) -> str:
        """The number of distinct pairs in words."""
        if self.is_counted:
            return f"{self.distinct:,} distinct pairs"
        return f"about {_rounded(self.distinct):,} distinct pairs"

    @property
    def repeated(self) -> str:
        """The number of repeated pairs, if counted, and their share."""
        share = f"{1 - self.distinct / self.pairs:.1%}"
        return f"{self.pairs - self.distinct:,} ({share})" if self.is_counted else f"about {share}"


@dataclass(frozen=True)
class RecipeValue:
    """One value of a recipe, with its reason."""

    key: str
    """Dotted key."""
    value: Any
    reason: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A model, and a training that ends in time."""

    size: Size
    speed: float
    """Target tokens per second."""
    minutes: float | None
    """Limit of the training, if there is one."""
    tokens_per_update: int
    updates: int
    warmup_updates: int
    epochs: float

    @property
    def ema_decay(self) -> float:
        """Decay of the average of weights: of about the last twentieth of the updates."""
        return round(min(0.9998, max(0.9, 1 - 20 / self.updates)), 4)

    def seconds(self, updates: int) -> float:
        """Return the seconds that so many updates take."""
        return updates * self.tokens_per_update / self.speed


def seen_in(minutes: float, speed: float) -> float:
    """Return the target tokens that a training of so many minutes sees."""
    return 60 * minutes * speed


def fits(size: Size, speed: float, minutes: float | None) -> bool:
    """Return whether a model of this size sees enough text in the time at hand."""
    return minutes is None or seen_in(minutes, speed) >= size.needs


def plan(
    corpus: CorpusFacts, speeds: Mapping[str, float], device: str, minutes: float | None
) -> Plan:
    """Return the plan for the largest model that fits.

    Args:
        corpus: facts about the corpus.
        speeds: target tokens per second, by names of sizes; sizes that were not timed are left out.
        device: cpu or cuda.
        minutes: limit of the training; None to choose the time by the size of the corpus.
    """
    timed = [size for size in candidates(corpus.distinct) if size.name in speeds]
    size = next((size for size in timed if fits(size, speeds[size.name], minutes)), timed[-1])
    speed = speeds[size.name]
    epoch = corpus.distinct * corpus.target_tokens
    seen = scale(corpus.distinct).epochs * epoch if minutes is None else seen_in(minutes, speed)
    wanted = max(seen / UPDATES, LEAST_TOKENS[device])
    tokens = _rounded(min(wanted, size.most_tokens))
    updates = max(1, _rounded(seen / tokens) if minutes is None else int(seen / tokens))
    return Plan(
        size=size,
        speed=speed,
        minutes=minutes,
        tokens_per_update=tokens,
        updates=updates,
        warmup_updates=max(1, min(size.warmup_updates, int(WARMUP * updates))),
        epochs=updates * tokens / epoch,
    )


def _rounded(value: float) -> int:
    """Return a number rounded to two digits."""
    unit = int(10 ** max(0, math.floor(math.log10(max(1.0, value))) - 1))
    return max(1, round(value / unit) * unit)


def choices(corpus: CorpusFacts, plan: Plan, device: str) -> Iterator[RecipeValue]:
    """Yield the values of the recipe, section by section."""
    yield from _preprocess(corpus)
    yield from _model(corpus, plan)
    yield from _train(corpus, plan, device)
    yield from _search(plan)


def _preprocess(corpus: CorpusFacts) -> Iterator[RecipeValue]:
    yield RecipeValue("preprocess.source_lang", corpus.source_lang, "")
    yield RecipeValue("preprocess.target_lang", corpus.target_lang, "")
    yield RecipeValue("preprocess.train", list(corpus.train), f"{corpus.pairs:,} pairs")
    yield RecipeValue("preprocess.valid", corpus.valid, f"{corpus.valid_pairs:,} pairs")
    if corpus.test:
        yield RecipeValue("preprocess.test", corpus.test, "only for the final score")
    by_rule = vocab_size_for(corpus.distinct)
    reason = f"for {corpus.distinct_pairs}: rare subwords are never learned"
    if corpus.vocab_size < by_rule:
        reason = f"the text is too small for {by_rule:,}"
    elif corpus.vocab_size > by_rule:
        reason = f"the text has too many characters for {by_rule:,}"
    elif corpus.distinct >= 1_000_000:
        reason = f"for {corpus.distinct_pairs}, as in the paper"
    yield RecipeValue("preprocess.vocab_size", corpus.vocab_size, reason)
    if not corpus.byte_fallback:
        yield RecipeValue("preprocess.byte_fallback", False, "its 256 pieces would be most of them")
    if corpus.compatibility >= COMPATIBILITY:
        share = f"{corpus.compatibility:.1%} of the target's characters"
        why = f"NFKC would replace {share}, such as ， by , (docs/guides/small-data.md)"
        yield RecipeValue("preprocess.normalization", "identity", why)
    for number, (step, why) in enumerate(CLEANING):
        reason = why.format(repeated=corpus.repeated)
        yield RecipeValue(f"preprocess.clean.{number}", step, reason)


def _model(corpus: CorpusFacts, plan: Plan) -> Iterator[RecipeValue]:
    size = plan.size
    largest = candidates(corpus.distinct)[0]
    reason = f"{size.name}, for {corpus.distinct_pairs} ({size.source})"
    if size is not largest:
        reason = (
            f"{size.name} ({size.source}); the {largest.name} model would see too little text in "
            f"{duration(plan.seconds(plan.updates))}"
        )
    yield RecipeValue("model.arch", size.arch, reason)
    for key, value in size.model.items():
        yield RecipeValue(f"model.{key}", value, POSITIONS if key == "positions" else "")
    rate = dropout(corpus.distinct, plan.epochs)
    yield RecipeValue("model.dropout", rate, f"the text is seen {times(plan.epochs)}")


def _train(corpus: CorpusFacts, plan: Plan, device: str) -> Iterator[RecipeValue]:
    unit = "a GPU needs some work at once" if device == "cuda" else "small updates, but many"
    yield RecipeValue("train.tokens_per_update", plan.tokens_per_update, unit)
    if device == "cuda":
        yield RecipeValue("train.max_tokens", "auto", "the largest micro-batch that fits")
    speed = f"at {plan.speed:,.0f} target tokens/s"
    end = f"{duration(plan.seconds(plan.updates))} {speed}; the text {times(plan.epochs)}"
    yield RecipeValue("train.max_updates", plan.updates, end)
    name, reason = "inverse_sqrt", f"{duration(plan.seconds(plan.warmup_updates))} of warm-up"
    if plan.minutes is not None:
        name, reason = "linear", f"{reason}; {DECAY}"
        slower = "the end, where the machine is slower than it was"
        yield RecipeValue("train.max_minutes", _plain(2 * plan.minutes), slower)
    schedule = {"name": name, "lr": plan.size.lr, "warmup_updates": plan.warmup_updates}
    if plan.size.optimizer != "adam":
        yield RecipeValue("train.optimizer", plan.size.optimizer, OPTIMIZER)
    yield RecipeValue("train.schedule", schedule, reason)
    mean = "translations use the mean of the last weights, which is better than any one of them"
    yield RecipeValue("train.ema_decay", plan.ema_decay, mean)
    if sampling := subword_sampling(corpus.distinct, plan.epochs):
        why = "new random subwords in each epoch (Provilkov et al. 2020)"
        yield RecipeValue("train.subword_sampling", sampling, why)
    yield from _validation(corpus, plan)


def _validation(corpus: CorpusFacts, plan: Plan) -> Iterator[RecipeValue]:
    count = VALIDATIONS if plan.minutes is not None else LONG_VALIDATIONS
    every = _rounded(max(1, plan.updates // count))
    yield RecipeValue("train.valid_every", every, f"every {duration(plan.seconds(every))}")
    lost = min(plan.seconds(plan.updates) / SAVES, LONGEST_LOSS)
    save_every = _rounded(min(every, int(lost / plan.seconds(1))))
    resumes = f"every {duration(plan.seconds(save_every))}: a kill costs no more"
    yield RecipeValue("train.save_every", save_every, resumes)
    yield RecipeValue("train.log_every", max(1, min(100, every)), "")
    if corpus.valid_pairs < SMALL_VALID:
        few = f"BLEU of {corpus.valid_pairs} pairs is mostly chance"
        yield RecipeValue("train.best_metric", "loss", few)
    patience = scale(corpus.distinct).patience
    if plan.minutes is None and patience:
        yield RecipeValue("train.patience", patience, "stops when validation no longer improves")


def _search(plan: Plan) -> Iterator[RecipeValue]:
    penalty, reason = {"name": "gnmt", "alpha": 0.6}, "beam and penalty of the paper"
    if plan.size.name in ("tiny", "small"):
        penalty = {"name": "power", "alpha": 1.0}
        reason = "small models stop early (docs/guides/small-data.md)"
    reason += "; nmt translate --precision int8 is 1.3 times as fast, for some 0.1 BLEU"
    yield RecipeValue(
        "search.strategy", {"name": "beam", "beam": 4, "length_penalty": penalty}, reason
    )
    yield RecipeValue("score.metrics", ["bleu", "chrf"], "")


def _plain(value: float) -> float:
    """Return a whole number as an int, which a recipe shows without a point."""
    return int(value) if value == int(value) else value


def times(epochs: float) -> str:
    """Return a number of epochs in words."""
    return f"{epochs:.1f} times" if epochs < 10 else f"{epochs:,.0f} times"


def as_text(values: list[RecipeValue], head: list[str]) -> str:
    """Return the recipe as YAML, with the reasons as comments."""
    lines = [f"# {line}".rstrip() for line in head]
    section = ""
    for choice in values:
        name, *keys = choice.key.split(".")
        if name != section:
            lines += ["", f"{name}:"]
            section = name
        shown = (
            yaml.safe_dump(
                choice.value,
                default_flow_style=True,
                # On one line, because the reason follows as a comment.
                width=math.inf,
                allow_unicode=True,
                sort_keys=False,
            )
            # YAML marks the end of a lone scalar so.
            .removesuffix("\n...\n")
            .strip()
        )
        if len(keys) == 2:
            if keys[1] == "0":
                lines.append(f"  {keys[0]}:")
            line = f"    - {shown}"
        else:
            line = f"  {keys[0]}: {shown}"
        lines.append(f"{line:<34}  # {choice.reason}" if choice.reason else line)
    return "\n".join(lines) + "\n"
