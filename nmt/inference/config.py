"""The recipe's section ``search``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from nmt.errors import NmtError
from nmt.evaluation.metrics import Metric
from nmt.io.lines import OnInvalidUtf8
from nmt.models.base import Model
from nmt.models.ensemble import Average, Ensemble
from nmt.search import Constraint, Strategy, strategies

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """The recipe's section ``search``. Lengths are in pieces and include EOS."""

    strategy: Strategy = strategies["beam"]
    """How to search; the default is the paper's beam of 4 with the length penalty of GNMT."""

    constraints: tuple[Constraint, ...] = ()
    """What may not appear in a translation, or not yet; a list of names, or of mappings with a name
    and its settings."""

    mbr: Metric | None = None
    """Minimum Bayes risk: of all that the strategy finds, such as samples, the best is the one that
    agrees most with the others by a sentence-level metric, such as chrf or bleu; that mean, in per
    cent and negative for an error rate, is the score."""

    coverage_penalty: float = 0.0
    """beta of GNMT's coverage penalty (Wu et al. 2016; they have 0.2): of all that the strategy
    finds, outputs that leave parts of the source unattended rank lower. A beam that is to find
    more to choose from stops at `all_finished`."""

    ensemble: Average = "probability"
    """What is averaged where several models vote: their probabilities, or their logarithms."""

    weights: tuple[float, ...] = ()
    """Of the models of an ensemble; only their proportions matter. Equal by default."""

    max_length_ratio: float = 1.0
    """A translation has at most this times its source's length, plus the offset."""

    max_length_offset: int = 50
    """Pieces that a translation may be longer than the ratio allows; 50 is the paper's."""

    max_source_length: int = 1024
    """Longer sources are cut to this length or split, and counted."""

    on_long_line: Literal["cut", "split"] = "cut"
    """What becomes of a longer source: it is cut, or split at the ends of sentences, else of
    clauses, else of words, and the translations of the parts are put together."""

    on_invalid_utf8: OnInvalidUtf8 = "error"
    """What to do with bytes that are not UTF-8; "replace" puts U+FFFD in their place."""

    batch_tokens: int = 16384
    """The most source tokens in a batch, padding included, times the rows of the search; a sentence
    of fewer than 16 counts as 16. More is faster on a GPU until its memory is full."""

    window: int = 4096
    """Lines that are read ahead to be sorted by length, so that batches hold little padding."""

    def __post_init__(self) -> None:
        if not self.max_length_ratio >= 0:
            raise ValueError(f"max_length_ratio must be at least 0, not {self.max_length_ratio:g}")
        if self.max_source_length < 2:
            raise ValueError(f"max_source_length must be at least 2, not {self.max_source_length}")
        if not self.coverage_penalty >= 0:
            raise ValueError(f"coverage_penalty must be at least 0, not {self.coverage_penalty:g}")
        for key in ("max_length_offset", "batch_tokens", "window"):
            if (value := getattr(self, key)) < 1:
                raise ValueError(f"{key} must be at least 1, not {value}")
        if self.mbr is not None and self.mbr.needs_source:
            raise ValueError(f"mbr: {self.mbr.name} needs the source; choose chrf or bleu")

    def for_language(self, target_lang: str) -> SearchConfig:
        """Return the settings for a target language wherever they are "auto"."""
        if self.mbr is None:
            return self
        return replace(self, mbr=self.mbr.for_language(target_lang).for_sentences())

    def check_count(self, count: int) -> None:
        """Raises an NmtError where the strategy never finds so many translations of a line."""
        if count > (most := self.strategy.max_hypotheses):
            key = self.strategy.count_key
            way = (
                f"raise search.strategy.{key} to at least" if key else "use --strategy beam --beam"
            )
            raise NmtError(
                f"{count} translations of a line: {self.strategy.name} finds at most {most}; "
                f"ask for fewer, or {way} {count}"
            )

    def one_of(self, models: Sequence[Model]) -> Model:
        """The one model, or the ensemble that several are."""
        if len(models) == 1:
            return models[0]
        try:
            return Ensemble(models, self.weights or [1.0] * len(models), self.ensemble)
        except ValueError as error:
            raise NmtError(f"search.weights: {error}") from None

    def max_length(self, source_length: int) -> int:
        """The greatest length of the translation of a source of that length, both with EOS."""
        return int(self.max_length_ratio * source_length) + self.max_length_offset
