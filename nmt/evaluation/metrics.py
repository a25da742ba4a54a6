"""Corpus metrics, computed by sacreBLEU (Post 2018, *A Call for Clarity in Reporting BLEU Scores*).

A number without its signature says nothing: tokenisation alone moves BLEU by more than a point.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from sacrebleu.metrics.bleu import BLEU, BLEUScore
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from nmt.errors import NmtError
from nmt.registry import Registry, unknown


@dataclass(frozen=True, kw_only=True)
class Score:
    """The value of a metric on a test set, and everything needed to compare it with another."""

    metric: str
    """The registered name of the metric."""
    value: float
    """In the metric's own units; for all that come with nmt, per cent."""
    details: str
    """What the value is made of, for BLEU the four precisions, brevity penalty and lengths."""
    signature: str
    """Settings and versions; values may be compared if and only if their signatures agree."""
    higher_is_better: bool
    """False for error rates."""

    def __str__(self) -> str:
        return f"{self.metric} = {self.value:.2f} {self.details} {self.signature}"


@dataclass(frozen=True, kw_only=True)
class Metric(ABC):
    """Scores the translations of a whole test set; the mean of sentence scores is not its score."""

    registry: ClassVar[Registry[Metric]]
    higher_is_better: ClassVar[bool] = True

    name: str = ""
    """Which metric: see the registry."""

    def score(self, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
        """The score of the hypotheses, each against the reference of the same line.

        Raises:
            NmtError: there is nothing to score, or not one reference for every hypothesis.
        """
        if len(hypotheses) != len(references):
            raise NmtError(
                f"{len(hypotheses)} hypotheses but {len(references)} references; "
                "line n of one must translate as line n of the other"
            )
        if not references:
            raise NmtError("nothing to score: no hypotheses and no references")
        return self.compute(hypotheses, references)

    @abstractmethod
    def compute(self, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
        """The score of at least one hypothesis, with as many references."""


metrics: Registry[Metric] = Registry("metric")
Metric.registry = metrics


@metrics.register("bleu")
@dataclass(frozen=True, kw_only=True)
class Bleu(Metric):
    """BLEU (Papineni et al. 2002) of detokenised text, as sacreBLEU reports it."""

    tokenize: str = "13a"
    """sacreBLEU's tokeniser: 13a (WMT's), intl, char, zh, ja-mecab, ko-mecab, flores200, none."""
    lowercase: bool = False
    """Whether case is ignored."""
    smoothing: Literal["exp", "floor", "add-k", "none"] = "exp"
    """What stands for an n-gram precision of zero (Chen and Cherry 2014)."""

    def __post_init__(self) -> None:
        if self.tokenize not in BLEU.TOKENIZERS:
            raise ValueError(unknown("tokenizer", self.tokenize, BLEU.TOKENIZERS))

    def compute(self, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
        """BLEU in per cent."""
        try:
            bleu = BLEU(
                tokenize=self.tokenize,
                lowercase=self.lowercase,
                smooth_method=self.smoothing,
                force=self.tokenize == "none",  # where tokenised text is no mistake to warn about
            )
        except (ImportError, RuntimeError) as error:  # a tokenizer with a package of its own
            raise NmtError(f"{self.name}: {' '.join(str(error).split())}") from None
        result = bleu.corpus_score(hypotheses, [references])
        return Score(
            metric=self.name,
            value=result.score,
            details=bleu_details(result),
            signature=str(bleu.get_signature()),
            higher_is_better=self.higher_is_better,
        )


metrics.add("tokenized_bleu", Bleu(tokenize="none", smoothing="none"))  # what multi-bleu.perl gives


@dataclass(frozen=True, kw_only=True)
class Chrf(Metric):
    """The F-score of character n-grams, chrF (Popović 2015), and of words too, chrF++ (2017)."""

    char_order: int = 6
    """Longest n-gram of characters."""
    word_order: int = 0
    """Longest n-gram of words; 2 makes it chrF++."""
    beta: int = 2
    """How many times recall counts as much as precision."""
    lowercase: bool = False
    """Whether case is ignored."""

    def __post_init__(self) -> None:
        if self.char_order < 1:
            raise ValueError(f"char_order must be at least 1, not {self.char_order}")
        if self.word_order < 0:
            raise ValueError(f"word_order must be at least 0, not {self.word_order}")
        if self.beta < 1:
            raise ValueError(f"beta must be at least 1, not {self.beta}")

    def compute(self, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
        """The F-score in per cent."""
        chrf = CHRF(
            char_order=self.char_order,
            word_order=self.word_order,
            beta=self.beta,
            lowercase=self.lowercase,
        )
        result = chrf.corpus_score(hypotheses, [references])
        return Score(
            metric=self.name,
            value=result.score,
            details=f"({result.name})",
            signature=f"beta:{self.beta}|{chrf.get_signature()}",  # which sacreBLEU leaves out
            higher_is_better=self.higher_is_better,
        )


metrics.add("chrf", Chrf())
metrics.add("chrf++", Chrf(word_order=2))


@metrics.register("ter")
@dataclass(frozen=True, kw_only=True)
class Ter(Metric):
    """Translation edit rate (Snover et al. 2006): edits and shifts per reference word."""

    higher_is_better: ClassVar[bool] = False

    lowercase: bool = True
    """Whether case is ignored."""
    normalize: bool = False
    """Whether Tercom's tokenisation separates punctuation from words."""
    asian: bool = False
    """Whether the tokenisation splits Chinese and Japanese into characters."""

    def compute(self, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
        """TER in per cent, above 100 where a hypothesis needs more edits than it has words."""
        ter = TER(
            case_sensitive=not self.lowercase,
            normalized=self.normalize,
            asian_support=self.asian,
        )
        result = ter.corpus_score(hypotheses, [references])
        return Score(
            metric=self.name,
            value=result.score,
            details=f"(edits = {result.num_edits} ref_len = {result.ref_length:.0f})",
            signature=str(ter.get_signature()),
            higher_is_better=self.higher_is_better,
        )


@dataclass(frozen=True, kw_only=True)
class ScoreConfig:
    """The recipe's section ``score``."""

    metrics: tuple[Metric, ...] = (metrics["bleu"], metrics["chrf"])
    """What is computed, in this order; a name, or a mapping with the name and its settings."""

    def __post_init__(self) -> None:
        if not self.metrics:
            raise ValueError(f"metrics must name at least one of {', '.join(Metric.registry)}")


def bleu_details(result: BLEUScore) -> str:
    """Precisions, brevity penalty and lengths, as sacreBLEU and multi-bleu.perl print them."""
    precisions = "/".join(f"{precision:.1f}" for precision in result.precisions)
    return (
        f"{precisions} (BP = {result.bp:.3f} ratio = {result.ratio:.3f} "
        f"hyp_len = {result.sys_len} ref_len = {result.ref_len})"
    )
