"""Rewards of single translations, for training: from 0 (no match with the reference) to 1.

Rewards compare text, as metrics do, so they do not depend on the subwords.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from nmt.evaluation.tokenizers import AUTO, bleu, check_tokenizer, tokenizer_for
from nmt.recipe.registry import Registry

MAX_ORDER = 4


@dataclass(frozen=True, kw_only=True)
class Reward(ABC):
    """Quality of one translation; unlike metrics, rewards may be averaged over sentences."""

    registry: ClassVar[Registry[Reward]]

    name: str = ""
    """Registered name of the reward."""

    @abstractmethod
    def __call__(self, hypothesis: str, reference: str) -> float:
        """Return the reward, from 0 to 1; higher is better."""

    def for_language(self, target_lang: str) -> Reward:
        """Return the reward with the settings of a target language for "auto"."""
        return self


rewards: Registry[Reward] = Registry("reward")
Reward.registry = rewards


@dataclass(frozen=True, kw_only=True)
class WordReward(Reward):
    """A reward that compares n-grams of words."""

    tokenize: str = AUTO
    """sacreBLEU's tokeniser: 13a (WMT's), intl, char, zh, ja-mecab, ko-mecab, flores200, none;
    "auto" is the tokeniser of the target language, as for the metric bleu."""

    def __post_init__(self) -> None:
        check_tokenizer(self.tokenize)

    def for_language(self, target_lang: str) -> WordReward:
        """Return the reward with the tokeniser of the language."""
        if self.tokenize != AUTO:
            return self
        return replace(self, tokenize=tokenizer_for(target_lang))


@rewards.register("gleu")
@dataclass(frozen=True, kw_only=True)
class Gleu(WordReward):
    """The GLEU of GNMT (Wu et al. 2016): the lower of precision and recall of all 1- to 4-grams.

    An n-gram matches at most as often as it occurs in the other text.
    """

    def __call__(self, hypothesis: str, reference: str) -> float:
        """Return common n-grams / n-grams of the text that has more of them."""
        split = _bleu(self.tokenize).tokenizer
        proposed, expected = (_ngrams(split(text).split()) for text in (hypothesis, reference))
        # Both texts may be empty.
        return (proposed & expected).total() / max(proposed.total(), expected.total(), 1)


@rewards.register("bleu")
@dataclass(frozen=True, kw_only=True)
class SentenceBleu(WordReward):
    """BLEU of a sentence, with 1 added to the counts of 2- to 4-grams (Lin and Och 2004)."""

    def __call__(self, hypothesis: str, reference: str) -> float:
        """Return sacreBLEU's score divided by 100."""
        score: float = _bleu(self.tokenize).sentence_score(hypothesis, [reference]).score
        return score / 100


@rewards.register("chrf")
@dataclass(frozen=True, kw_only=True)
class SentenceChrf(Reward):
    """chrF of a sentence: F-score of character n-grams (Popović 2015)."""

    def __call__(self, hypothesis: str, reference: str) -> float:
        """Return sacreBLEU's score divided by 100."""
        score: float = _chrf().sentence_score(hypothesis, [reference]).score
        return score / 100


def _ngrams(words: Sequence[str]) -> Counter[tuple[str, ...]]:
    """Return the number of occurrences of each sequence of 1 to 4 words."""
    return Counter(
        tuple(words[at : at + order])
        for order in range(1, MAX_ORDER + 1)
        for at in range(len(words) - order + 1)
    )


@cache
def _bleu(tokenize: str) -> BLEU:
    return bleu(tokenize, smooth_method="add-k", smooth_value=1, effective_order=True)


@cache
def _chrf() -> CHRF:
    return CHRF()
