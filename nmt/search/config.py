"""The recipe's section ``search``."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from nmt.errors import NmtError
from nmt.evaluation.metrics import Metric
from nmt.io.lines import OnInvalidUtf8
from nmt.search import Constraint, Strategy, strategies

MAX_RATIO = 1_000_000
"""Largest ratio of the lengths of a translation and its source."""

BATCH_TOKENS = {"cpu": 16_384, "cuda": 131_072}
"""Values of `batch_tokens` for "auto", by device: a GPU is busy with 1,024 sentences and a beam of
4."""


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """The recipe's section ``search``. Lengths are in tokens and include EOS."""

    strategy: Strategy = strategies["beam"]
    """Search strategy. The default is the paper's beam of 4 with the length penalty of GNMT, but
    stops as CTranslate2 does."""

    constraints: tuple[Constraint, ...] = ()
    """Constraints on the tokens of a translation; a list of names, or of mappings with a name and
    its settings."""

    mbr: Metric | None = None
    """Minimum Bayes risk: ranks hypotheses, such as samples, by their mean agreement with the other
    hypotheses under a sentence-level metric, such as chrf or bleu. The mean is the score, in per
    cent, and negative for an error rate."""

    mbr_pruning: int | None = None
    """Number of hypotheses of `mbr` to compare with all other hypotheses, chosen by their agreement
    with the average n-grams of all (Vamvas and Sennrich 2024); for bleu and chrf. With 100 samples,
    10 make nearly the same choices in a tenth of the time. null for all."""

    coverage_penalty: float = 0.0
    """beta of GNMT's coverage penalty (Wu et al. 2016 use 0.2): hypotheses that leave parts of the
    source unattended rank lower. With the stop `all_finished`, a beam finds more hypotheses to
    choose from."""

    ensemble: Literal["probability", "log_probability"] = "probability"
    """Whether an ensemble averages the probabilities of its members, or their logarithms."""

    weights: tuple[float, ...] = ()
    """Weights of the members of an ensemble; only proportions matter. Equal by default."""

    max_length_ratio: float = 1.0
    """Maximum length of a translation relative to the length of the source, before the offset is
    added."""

    max_length_offset: int = 50
    """Tokens by which a translation may be longer than its source times `max_length_ratio`; 50 is
    the paper's."""

    max_source_length: int = 1024
    """Maximum length of a source; longer sources are cut or split, and counted."""

    split_sentences: bool = False
    """Whether to translate each sentence of a line by itself. A line with a prefix, phrases or
    terminology stays whole, as do the lines of a model of documents."""

    on_long_line: Literal["cut", "split"] = "cut"
    """Treatment of a source longer than `max_source_length`: `cut` drops the rest; `split` divides
    the line at the ends of sentences, else of clauses, else of words, and joins the translations of
    the parts."""

    on_invalid_utf8: OnInvalidUtf8 = "error"
    """Treatment of bytes that are not UTF-8: an error, or replace them by U+FFFD."""

    placeholders: tuple[str, ...] = ()
    """Regular expressions of placeholders that markup keeps unchanged, besides the families of
    docs/guides/markup.md."""

    batch_tokens: Literal["auto"] | int = "auto"
    """Maximum number of source tokens in a batch, including padding, times the rows of the search
    (beam size or samples), or auto: 16,384 on a CPU, 131,072 on a GPU. A sentence of fewer than 16
    tokens counts as 16. A batch that does not fit the memory of a GPU is divided. With a shortlist
    on a CPU, PyTorch's batches have at most 4,096 source tokens."""

    window: int = 4096
    """Number of lines sorted by length at once, so that batches contain little padding. PyTorch
    reads so many lines ahead, and CTranslate2 twice as many."""

    def __post_init__(self) -> None:
        if not self.max_length_ratio >= 0:
            raise ValueError(f"max_length_ratio must be at least 0, not {self.max_length_ratio:g}")
        if self.max_length_ratio > MAX_RATIO:
            raise ValueError(
                f"max_length_ratio must be at most {MAX_RATIO:,}, not {self.max_length_ratio:g}"
            )
        if self.max_source_length < 2:
            raise ValueError(f"max_source_length must be at least 2, not {self.max_source_length}")
        if not self.coverage_penalty >= 0:
            raise ValueError(f"coverage_penalty must be at least 0, not {self.coverage_penalty:g}")
        for key in ("max_length_offset", "batch_tokens", "window"):
            if (value := getattr(self, key)) != "auto" and value < 1:
                raise ValueError(f"{key} must be at least 1, not {value}")
        for pattern in self.placeholders:
            try:
                groups = re.compile(f"(?:{pattern})").groups
            except re.error as error:
                raise ValueError(
                    f"placeholders: no regular expression: {pattern!r}: {error}"
                ) from None
            if groups:
                raise ValueError(f"placeholders: use (?:...) instead of (...) in {pattern!r}")
        if self.mbr_pruning is not None:
            self._check_pruning(self.mbr_pruning)
        if self.mbr is not None and self.mbr.needs_source:
            raise ValueError(f"mbr: {self.mbr.name} needs the source; choose chrf or bleu")

    def batch_limit(self, device: str) -> int:
        """Return `batch_tokens` as a number on a kind of device, "cpu" or "cuda"."""
        return BATCH_TOKENS[device] if self.batch_tokens == "auto" else self.batch_tokens

    def _check_pruning(self, kept: int) -> None:
        if kept < 1:
            raise ValueError(f"mbr_pruning must be at least 1, not {kept}")
        if self.mbr is None:
            raise ValueError("mbr_pruning prunes nothing without mbr; set mbr, such as chrf, too")
        if not self.mbr.has_average:
            raise ValueError(f"mbr_pruning: {self.mbr.name} has no average; choose bleu or chrf")

    def for_language(self, target_lang: str) -> SearchConfig:
        """Return the configuration with "auto" settings resolved for a target language."""
        if self.mbr is None:
            return self
        return replace(self, mbr=self.mbr.for_language(target_lang).for_sentences())

    def check_count(self, count: int) -> None:
        """Check that the strategy can find `count` translations of a line.

        Raises:
            NmtError: the strategy never finds so many, or `count` is below 1.
        """
        if count < 1:
            raise NmtError(f"{count} translations of a line: ask for at least 1")
        if self.mbr is not None and self.mbr_pruning is not None and count > self.mbr_pruning:
            raise NmtError(
                f"{count} translations of a line: search.mbr_pruning leaves {self.mbr_pruning}; "
                "ask for fewer, or raise it"
            )
        if count > (most := self.strategy.max_hypotheses):
            key = self.strategy.count_key
            beam = {"name": "beam", "beam": count}
            way = (
                f"raise search.strategy.{key} to at least {count}"
                if key
                else f"use --strategy beam --beam {count} (in Python strategy={beam})"
            )
            raise NmtError(
                f"{count} translations of a line: {self.strategy.name} finds at most {most}; "
                f"ask for fewer, or {way}"
            )

    def max_length(self, source_length: int) -> int:
        """Return the maximum length of the translation of a source; both lengths include EOS."""
        return int(self.max_length_ratio * source_length) + self.max_length_offset
