"""Translations that go on in different ways after the same beginning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import log

import torch

from nmt.data.vocabulary import BOS, EOS, PAD, UNK
from nmt.errors import NmtError
from nmt.inference.alignment import piece_starts
from nmt.inference.lines import LineTranslator
from nmt.inference.request import Request, Sentence
from nmt.inference.translator import Translator
from nmt.languages import has_spaces
from nmt.search import Hypothesis
from nmt.subwords.words import WORD
from nmt.subwords.wrappers import refuse_beginnings

MIN_LOG_PROBABILITY = log(0.001)
"""Log-probability below which a token is no alternative."""


@dataclass(frozen=True)
class Alternative:
    """A translation with another next word after the beginning."""

    text: str
    """The whole translation."""
    next: str
    """The word that follows the beginning; in text without spaces, the piece."""
    score: float
    """Score of the search."""


def alternatives(
    translator: LineTranslator, requests: Sequence[Request], count: int = 8
) -> list[list[Alternative]]:
    """Return translations that begin with the prefix of a request and differ in the next word.

    An n-best list mostly differs in its last words. So the likeliest next tokens are each
    completed by a search, all in one batch.

    Args:
        translator: of a run.
        requests: lines, each with a prefix that ends before a word; a blank line has no
            alternatives.
        count: number of next tokens to try; several tokens may begin the same word.

    Returns:
        The alternatives of each request, best first; each word once.

    Raises:
        NmtError: an export, a model from right to left, or a language that it does not have.
    """
    translator = translator.in_torch
    assert isinstance(translator, Translator)
    # A model that writes from right to left cannot begin with a given beginning.
    refuse_beginnings(translator.subwords.target_order)
    by_request: dict[int, list[Alternative]] = {}
    for of_target, indices in translator.by_target(requests):
        ones = _in_one_language(of_target, [requests[at] for at in indices], count)
        by_request.update(zip(indices, ones, strict=True))
    return [by_request[at] for at in range(len(requests))]


def _in_one_language(
    translator: Translator, requests: Sequence[Request], count: int
) -> list[list[Alternative]]:
    """Return the alternatives of requests in the language of the translator."""
    starts = [
        (at, replace(sentence, prefix=[*sentence.prefix, token], phrases=[]))
        for at, sentence in translator.encode(requests).items()
        for token in _next_tokens(translator, sentence, count)
    ]
    by_request: list[dict[str, Alternative]] = [{} for _ in requests]
    for number, (best, *_) in translator.find(dict(enumerate(sentence for _, sentence in starts))):
        at = starts[number][0]
        for alternative in _alternatives(translator, requests[at].prefix, best):
            other = by_request[at].get(alternative.next)
            if other is None or other.score < alternative.score:
                by_request[at][alternative.next] = alternative
    return [sorted(words.values(), key=lambda one: -one.score) for words in by_request]


def _next_tokens(translator: Translator, sentence: Sentence, count: int) -> list[int]:
    """Return the likeliest tokens that may follow the prefix, where they begin a word."""
    log_probs = translator.next_log_probabilities(sentence.source, [*sentence.prefix])
    excluded = torch.zeros(len(log_probs), dtype=torch.bool)
    if sentence.prefix and has_spaces(translator.languages[1]):
        # Some subwords do not say where words begin. The search then keeps tokens that continue the
        # prefix, and their texts are dropped after it.
        with suppress(NmtError):
            excluded = ~torch.from_numpy(translator.subwords.begins_word[1])
    excluded[[PAD, UNK, BOS, EOS]] = True
    log_probs = log_probs.masked_fill(excluded, float("-inf"))
    values, tokens = log_probs.topk(min(count, len(log_probs)))
    return [
        token
        for token, value in zip(tokens.tolist(), values.tolist(), strict=True)
        if value > MIN_LOG_PROBABILITY
    ]


def _alternatives(
    translator: Translator, prefix: str, hypothesis: Hypothesis
) -> Iterator[Alternative]:
    """Yield the alternative of a hypothesis, if its text begins with the prefix."""
    # Tokens of a prefix may decode to other text, so the text itself is compared.
    [text] = translator.subwords.decode_target([hypothesis.tokens])
    rest = text[len(prefix) :]
    word = WORD.search(rest)
    if not text.startswith(prefix) or not word:
        return
    if has_spaces(translator.languages[1]):
        end = len(prefix) + word.end()
    else:
        [offsets] = translator.subwords.target_offsets([hypothesis.tokens])
        end = min((at for at in piece_starts(offsets) if at > len(prefix)), default=len(text))
    yield Alternative(text, text[len(prefix) : end].strip(), hypothesis.score)
