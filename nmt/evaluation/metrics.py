"""Corpus metrics, computed by sacreBLEU (Post 2018, *A Call for Clarity in Reporting BLEU Scores*).

Report a score with its signature: tokenisation alone changes BLEU by more than a point.
"""

from __future__ import annotations

import logging
import re
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from nmt import languages
from nmt.errors import NmtError
from nmt.evaluation.testsets import References, reference_rows
from nmt.evaluation.tokenizers import AUTO, bleu, check_tokenizer, tokenizer_for
from nmt.io.lines import refuse_one_string
from nmt.recipe.registry import Registry

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric as SacreBleuMetric
    from sacrebleu.metrics.bleu import BLEU, BLEUScore
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER, TERScore

NOT_FOR_SENTENCES = (
    "{}: a BLEU that is not smoothed says nothing about one sentence; choose bleu or chrf"
)

Counts = list[list[float]]
"""Numbers of each sentence, equally many for all sentences, that can be summed over sentences."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """The value of a metric on a test set, with the signature needed to compare values."""

    metric: str
    """The registered name of the metric."""
    value: float
    """The score in the metric's unit; per cent for all metrics of nmt."""
    details: str
    """Parts of the value: for BLEU the four precisions, brevity penalty and lengths."""
    signature: str
    """Settings and versions; values are comparable if and only if their signatures agree."""
    higher_is_better: bool
    """False for error rates."""

    def __str__(self) -> str:
        return f"{self.metric} = {self.value:.2f} {self.details} {self.signature}"


@dataclass(frozen=True, kw_only=True)
class Metric(ABC):
    """A metric: counts for each sentence, and a value computed from the sums of the counts.

    The same code scores a test set, one sentence and any sample of sentences. In general, the mean
    of sentence scores is not the score of the test set.
    """

    registry: ClassVar[Registry[Metric]]
    higher_is_better: ClassVar[bool] = True
    needs_source: ClassVar[bool] = False
    """Whether the metric needs the source sentences."""
    several_references: ClassVar[bool] = False
    """Whether a sentence may have several references."""
    has_average: ClassVar[bool] = False
    """Whether references have an average: the average of their n-grams."""

    name: str = ""
    """Registered name of the metric."""

    def score(
        self,
        hypotheses: Sequence[str],
        references: References,
        sources: Sequence[str] | None = None,
    ) -> Score:
        """Return the score of a test set; arguments and errors as in `checked_counts`."""
        return self.total(self.checked_counts(hypotheses, references, sources), references)

    def checked_counts(
        self,
        hypotheses: Sequence[str],
        references: References,
        sources: Sequence[str] | None = None,
    ) -> Counts:
        """Check the arguments, and return the counts of each hypothesis.

        Args:
            hypotheses: detokenised translations.
            references: for each hypothesis, in the same order, one reference or several.
            sources: the source sentences; None if they are not known.

        Raises:
            NmtError: there is nothing to score, the numbers of lines differ, a sentence has no
                reference or more than the metric takes, or the metric needs sources and there are
                none; or its counts are not equally many for each sentence.
            TypeError: one string was given.
        """
        refuse_one_string(hypotheses, "hypotheses")
        refuse_one_string(references, "references")
        refuse_one_string(sources, "sources")
        if len(hypotheses) != len(references):
            raise NmtError(
                f"{len(hypotheses)} hypotheses but {len(references)} references; "
                "line n of both must belong to the same sentence"
            )
        if not references:
            raise NmtError("nothing to score: no hypotheses and no references")
        if sources is None:
            if self.needs_source:
                raise NmtError(f"{self.name} needs the text that was translated; give --source")
        elif len(sources) != len(references):
            raise NmtError(
                f"{len(sources)} source lines but {len(references)} references; "
                "line n of both must belong to the same sentence"
            )
        rows = reference_rows(references)
        if [] in rows:
            raise NmtError(f"sentence {rows.index([]) + 1} has no reference; give one or more")
        is_single = all(len(row) == 1 for row in rows)
        if not (is_single or self.several_references):
            raise NmtError(
                f"{self.name} takes one reference for each sentence; give one, or choose another "
                "metric, such as bleu or chrf"
            )
        given = [row[0] for row in rows] if is_single else rows
        counts = self.counts(hypotheses, given, sources or ())
        if not _fit(counts, len(hypotheses)):
            raise NmtError(
                f"the metric {self.name} must count equally many numbers for each of "
                f"{len(hypotheses)} sentences, in a list for each; correct its method counts"
            )
        return counts

    def total(self, counts: Counts, references: References = ("",)) -> Score:
        """Return the score of one or more sentences from their counts.

        Args:
            counts: the counts of the sentences.
            references: the references of the test set, whose number is part of the signature.
        """
        value, details = self.compute(counts)
        numbers = {len(row) for row in reference_rows(references)}
        nrefs = f"nrefs:{numbers.pop() if len(numbers) == 1 else 'var'}"
        return Score(
            metric=self.name,
            value=float(value),  # a plugin may compute with numpy
            details=details,
            signature=re.sub(r"\bnrefs:1\b", nrefs, self.signature()),
            higher_is_better=self.higher_is_better,
        )

    def for_language(self, target_lang: str) -> Metric:
        """Return the metric with the settings of a target language for "auto"."""
        return self

    def for_sentences(self) -> Metric:
        """Return the metric with settings that suit single sentences.

        Raises:
            NmtError: the metric cannot score single sentences.
        """
        return self

    def counts_against_average(self, texts: Sequence[str], weights: Sequence[int]) -> Counts:
        """Return the counts of each text, with the average of all texts as its reference.

        Args:
            texts: detokenised text.
            weights: how often each text occurs.

        Raises:
            NmtError: the metric is not made of n-grams (see :attr:`has_average`).
        """
        raise NmtError(f"{self.name} has no average of references; choose bleu or chrf")

    @abstractmethod
    def counts(
        self, hypotheses: Sequence[str], references: Sequence[Any], sources: Sequence[str]
    ) -> Counts:
        """Return the counts of each sentence.

        Args:
            hypotheses: the translations.
            references: a string for each sentence; if a sentence has several references, a list of
                strings for each sentence.
            sources: empty if the source is not known.
        """

    @abstractmethod
    def compute(self, counts: Counts) -> tuple[float, str]:
        """Return the value for one or more sentences, and its parts as text."""

    @abstractmethod
    def signature(self) -> str:
        """Return all settings and versions that influence the value.

        For several references, `total` replaces ``nrefs:1``.
        """


def _fit(counts: Counts, sentences: int) -> bool:
    """Return whether counts are equally many for each sentence."""
    try:
        return len(counts) == sentences and len({len(row) for row in counts}) == 1
    except TypeError:  # they are no lists
        return False


metrics: Registry[Metric] = Registry("metric")

Metric.registry = metrics


@dataclass(frozen=True, kw_only=True)
class SacreMetric(Metric):
    """A metric that sacreBLEU counts and computes."""

    several_references: ClassVar[bool] = True

    @abstractmethod
    def scorer(self) -> SacreBleuMetric:
        """Return sacreBLEU's metric with these settings."""

    def details(self, result: Any) -> str:
        """Return the parts of the scorer's result as text."""
        return f"({result.name})"

    @cached_property
    def _scorer(self) -> SacreBleuMetric:
        try:
            scorer = self.scorer()
        except NmtError as error:  # the package of a tokeniser is missing
            raise NmtError(f"{self.name}: {error}") from None
        return scorer

    def counts(
        self, hypotheses: Sequence[str], references: Sequence[Any], sources: Sequence[str]
    ) -> Counts:
        """Return sacreBLEU's statistics, which its significance tests resample."""
        streams: Any = [*zip_longest(*reference_rows(references))]  # None where there are fewer
        counted: Counts = self._scorer._extract_corpus_statistics(hypotheses, streams)
        return counted

    def counts_against_average(self, texts: Sequence[str], weights: Sequence[int]) -> Counts:
        """Return sacreBLEU's statistics against the average n-grams."""
        if not self.has_average:
            return super().counts_against_average(texts, weights)
        return counts_against_average(self._scorer, texts, weights)

    def compute(self, counts: Counts) -> tuple[float, str]:
        """Return the value in per cent, and its parts."""
        result = self._scorer._aggregate_and_compute(counts)
        return result.score, self.details(result)

    def signature(self) -> str:
        """Return sacreBLEU's signature for one reference."""
        # Otherwise sacreBLEU gives a signature only after a score.
        self._scorer.num_refs = 1
        return str(self._scorer.get_signature())


@metrics.register("bleu")
@dataclass(frozen=True, kw_only=True)
class Bleu(SacreMetric):
    """BLEU (Papineni et al. 2002) of detokenised text, as sacreBLEU reports it."""

    has_average: ClassVar[bool] = True

    tokenize: str = AUTO
    """sacreBLEU's tokeniser: 13a (WMT's), intl, char, zh, ja-mecab, ko-mecab, flores200, none;
    "auto" is the tokeniser of the target language: zh for Chinese, ja-mecab and ko-mecab for
    Japanese and Korean (without their packages char), char for Thai, Lao, Khmer and Burmese, 13a
    for all other languages."""
    lowercase: bool = False
    """Whether case is ignored."""
    smoothing: Literal["exp", "floor", "add-k", "none"] = "exp"
    """Method of smoothing an n-gram precision of zero (Chen and Cherry 2014)."""
    effective_order: bool = False
    """Whether n-grams longer than all hypotheses are left out, as for single sentences."""

    def __post_init__(self) -> None:
        check_tokenizer(self.tokenize)

    def for_language(self, target_lang: str) -> Bleu:
        """Return the metric with the tokeniser of the language."""
        if self.tokenize != AUTO:
            return self
        return replace(self, tokenize=tokenizer_for(target_lang))

    def scorer(self) -> BLEU:
        """Return sacreBLEU's metric with these settings."""
        return bleu(
            self.tokenize,
            lowercase=self.lowercase,
            smooth_method=self.smoothing,
            effective_order=self.effective_order,
            force=self.tokenize == "none",  # no warning about tokenised text
        )

    def details(self, result: BLEUScore) -> str:
        """Return precisions, brevity penalty and lengths."""
        return bleu_details(result)

    def for_sentences(self) -> Bleu:
        """Return the metric with the effective order, as sacreBLEU scores sentences."""
        if self.smoothing == "none":
            raise NmtError(NOT_FOR_SENTENCES.format(self.name))
        return replace(self, effective_order=True)


metrics.add("tokenized_bleu", Bleu(tokenize="none", smoothing="none"))  # as multi-bleu.perl


@dataclass(frozen=True, kw_only=True)
class Chrf(SacreMetric):
    """F-score of character n-grams, chrF (Popović 2015); with word n-grams, chrF++ (2017)."""

    has_average: ClassVar[bool] = True

    char_order: int = 6
    """Longest n-gram of characters."""
    word_order: int = 0
    """Longest n-gram of words; 2 makes it chrF++."""
    beta: int = 2
    """Weight of recall, as a multiple of the weight of precision."""
    lowercase: bool = False
    """Whether case is ignored."""

    def __post_init__(self) -> None:
        if self.char_order < 1:
            raise ValueError(f"char_order must be at least 1, not {self.char_order}")
        if self.word_order < 0:
            raise ValueError(f"word_order must be at least 0, not {self.word_order}")
        if self.beta < 1:
            raise ValueError(f"beta must be at least 1, not {self.beta}")

    def scorer(self) -> CHRF:
        """Return sacreBLEU's metric with these settings."""
        from sacrebleu.metrics.chrf import CHRF

        return CHRF(
            char_order=self.char_order,
            word_order=self.word_order,
            beta=self.beta,
            lowercase=self.lowercase,
        )

    def signature(self) -> str:
        """Return sacreBLEU's signature with beta, which sacreBLEU omits."""
        return f"beta:{self.beta}|{super().signature()}"


metrics.add("chrf", Chrf())

metrics.add("chrf++", Chrf(word_order=2))


@metrics.register("ter")
@dataclass(frozen=True, kw_only=True)
class Ter(SacreMetric):
    """Translation edit rate (Snover et al. 2006): edits and shifts per reference word.

    In per cent; above 100 if a hypothesis needs more edits than the reference has words.
    """

    higher_is_better: ClassVar[bool] = False

    lowercase: bool = True
    """Whether case is ignored."""
    normalize: Literal["auto"] | bool = AUTO
    """Whether Tercom's tokenisation separates punctuation from words; "auto" is true for Chinese
    and Japanese."""
    asian: Literal["auto"] | bool = AUTO
    """Whether Tercom's tokenisation also splits Chinese and Japanese (Han into characters, but no
    run of kana); "auto" is true for Chinese and Japanese. Tercom cannot split Thai, Lao, Khmer and
    Burmese."""

    def for_language(self, target_lang: str) -> Ter:
        """Return the metric with the tokenisation of the language."""
        splits = languages.scripts(target_lang)[0] in ("Hani", "Hans", "Hant", "Jpan")
        return replace(
            self,
            normalize=splits if self.normalize == AUTO else self.normalize,
            asian=splits if self.asian == AUTO else self.asian,
        )

    def scorer(self) -> TER:
        """Return sacreBLEU's metric with these settings."""
        from sacrebleu.metrics.ter import TER

        return TER(
            case_sensitive=not self.lowercase,
            normalized=self.normalize is True,
            asian_support=self.asian is True,
        )

    def details(self, result: TERScore) -> str:
        """Return the numbers of edits and of reference words."""
        return f"(edits = {result.num_edits} ref_len = {result.ref_length:.0f})"


@dataclass(frozen=True, kw_only=True)
class ScoreConfig:
    """The recipe's section ``score``."""

    metrics: tuple[Metric, ...] = (metrics["bleu"], metrics["chrf"])
    """Metrics to compute, in this order. In a recipe each is a name, or a mapping with a name and
    its settings."""

    def __post_init__(self) -> None:
        if not self.metrics:
            raise ValueError(f"metrics must name at least one of {', '.join(Metric.registry)}")


def bleu_details(result: BLEUScore) -> str:
    """Return precisions, brevity penalty and lengths, as sacreBLEU prints them."""
    precisions = "/".join(f"{precision:.1f}" for precision in result.precisions)
    return (
        f"{precisions} (BP = {result.bp:.3f} ratio = {result.ratio:.3f} "
        f"hyp_len = {result.sys_len} ref_len = {result.ref_len})"
    )


@metrics.register("paper_bleu")
@dataclass(frozen=True, kw_only=True)
class PaperBleu(SacreMetric):
    """BLEU of *Attention Is All You Need*: Moses-tokenised, compound-split text.

    The protocol is older than the paper (GNMT and ConvS2S report on it too): Moses tokenisation,
    then compounds split at their hyphens, then multi-bleu.perl. Hypotheses and references are given
    as plain text. Never compare this BLEU with sacreBLEU's: the same translations have 29.3 by this
    protocol and 28.6 by sacreBLEU (Ott et al. 2018).
    """

    target_lang: str = "de"
    """Language of the tokeniser's rules for apostrophes and abbreviations, such as fr. The default
    does not depend on the data, because the protocol is for English-German."""
    split_compounds: bool = True
    """Whether ``rich-text`` counts as ``rich ##AT##-##AT## text``."""
    normalize_reference: bool = False
    """Whether typographic punctuation becomes ASCII in the reference, too; the protocol only
    normalises the hypothesis."""

    def scorer(self) -> BLEU:
        """Return the BLEU of multi-bleu.perl."""
        from sacrebleu.metrics.bleu import BLEU

        # force: no warning about text that looks tokenised, which it is.
        return BLEU(tokenize="none", smooth_method="none", force=True)

    def details(self, result: BLEUScore) -> str:
        """Return precisions, brevity penalty and lengths."""
        return bleu_details(result)

    def for_sentences(self) -> PaperBleu:
        """Raise an NmtError: the protocol does not smooth, so it cannot score sentences."""
        raise NmtError(NOT_FOR_SENTENCES.format(self.name))

    def counts(
        self, hypotheses: Sequence[str], references: Sequence[Any], sources: Sequence[str]
    ) -> Counts:
        """Return the counts of multi-bleu.perl, with case, after the protocol's tokenisation."""
        from sacremoses import MosesPunctNormalizer, MosesTokenizer  # takes a third of a second

        moses = MosesTokenizer(self.target_lang)
        normalize: Callable[[str], str] = MosesPunctNormalizer().replace_unicode_punct

        def tokenize(line: str) -> str:
            # Escaping (&quot;) renames tokens on both sides alike, so it would not change BLEU.
            text: str = moses.tokenize(line, escape=False, return_str=True)
            return split_compounds(text) if self.split_compounds else text

        rows = reference_rows(references)
        if self.normalize_reference:
            rows = [[normalize(line) for line in row] for row in rows]
        return super().counts(
            [tokenize(normalize(line)) for line in hypotheses],
            [[tokenize(line) for line in row] for row in rows],
            sources,
        )

    def signature(self) -> str:
        """Return every step of the protocol, in the form of sacreBLEU's signatures."""
        from importlib.metadata import version

        steps = {
            "nrefs": 1,
            "case": "mixed",
            "eff": "no",
            "unicode-punctuation": "both" if self.normalize_reference else "hypothesis",
            "tok": f"moses-{self.target_lang}",
            "compounds": "split" if self.split_compounds else "whole",
            "smooth": "none",
            "sacremoses": version("sacremoses"),
            "version": version("sacrebleu"),
        }
        return "|".join(f"{step}:{value}" for step, value in steps.items())


def split_compounds(line: str) -> str:
    """Return the line with hyphens inside words split off, as ``##AT##-##AT##``.

    Like the pattern of the protocol, a match consumes the letter after a hyphen: ``a-b-c`` becomes
    ``a ##AT##-##AT## b-c``, while ``ab-cd-ef`` is split twice.
    """
    return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", line)


def counts_against_average(
    scorer: SacreBleuMetric, texts: Sequence[str], weights: Sequence[int]
) -> list[list[float]]:
    """Return the counts of each text, with the average of all texts as its reference.

    One comparison with the average of many references replaces many comparisons (Vamvas and
    Sennrich 2024, *Linear-time Minimum Bayes Risk Decoding with Reference Aggregation*; for BLEU
    DeNero et al. 2009, *Fast Consensus Decoding over Translation Forests*).

    Args:
        scorer: a metric of n-grams.
        texts: detokenised text.
        weights: how often each text occurs.
    """
    lines = [scorer._preprocess_segment(text) for text in texts]
    counted = [scorer._extract_reference_info([line]) for line in lines]
    average = _average(counted, [weight / sum(weights) for weight in weights])
    return [scorer._compute_segment_statistics(line, average) for line in lines]


def _average(values: Sequence[Any], shares: Sequence[float]) -> Any:
    """Return the weighted mean of numbers, or of numbers within lists, mappings and counters."""
    first = values[0]
    if isinstance(first, Counter):
        mean: dict[Any, float] = {}
        for counter, share in zip(values, shares, strict=True):
            for key, count in counter.items():
                mean[key] = mean.get(key, 0.0) + share * count
        return mean
    if isinstance(first, dict):
        return {key: _average([value[key] for value in values], shares) for key in first}
    if isinstance(first, list):
        return [_average(parts, shares) for parts in zip(*values, strict=True)]
    return sum(share * value for value, share in zip(values, shares, strict=True))


_TOKENIZED = (
    "100 or more translations end in ' .', like tokenised text, whose BLEU is wrong; give plain "
    "text, or, if the references are tokenised too, take the metric tokenized_bleu"
)

MEANINGS = {
    "That's 100 lines that end in a tokenized period": _TOKENIZED,
    "It looks like you forgot to detokenize": _TOKENIZED,
    "If you insist your data is detokenized": _TOKENIZED,
}
"""What a message of sacreBLEU that begins so means for users, who cannot set its parameters."""


class Teller(logging.Handler):
    """Logging handler that prints each message once on stderr, above any progress bar."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._told: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Print the meaning of a record as a line, unless it was printed before."""
        text = record.getMessage()
        meanings = (meaning for begin, meaning in MEANINGS.items() if text.startswith(begin))
        message = next(meanings, f"sacreBLEU: {text}")
        if message not in self._told:
            self._told.add(message)
            from tqdm import tqdm

            tqdm.write(f"nmt: warning: {message}\n", file=sys.stderr, end="")


logging.getLogger("sacrebleu").addHandler(Teller())
