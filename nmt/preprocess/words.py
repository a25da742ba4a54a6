"""Text to token ids, each word cut once: the ids that SentencePiece gives, several times faster.

Text repeats its words. Where no piece goes over a space, the ids of a line are those of its words,
one after the other, and those of a word need to be found only once.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import numpy as np
from sentencepiece import SentencePieceProcessor

from nmt.data.columns import Sentences
from nmt.data.vocabulary import UNK
from nmt.preprocess.subwords import Subwords

Encode = Callable[[list[str]], Sentences]

MOST = 1 << 18
"""Words that are remembered before all are forgotten; about 50 MiB."""

_SPACE = "\u2581"
"""By which SentencePiece stands for a space."""


def encoders(subwords: Subwords) -> tuple[Encode, Encode]:
    """Functions that give the sentences of the source's lines and of the target's."""
    source = _encoder(subwords.source)
    return source, source if subwords.shared else _encoder(subwords.target)


def _encoder(processor: SentencePieceProcessor) -> Encode:
    if cuts_at_spaces(processor):
        return WordEncoder(processor)
    return lambda lines: Sentences.of(processor.encode(lines, num_threads=1))


def cuts_at_spaces(processor: SentencePieceProcessor) -> bool:
    """Whether the ids of every line are those of its words one after the other.

    They are where spaces are only to be found in front of a piece and are a piece themselves, and
    pieces are merged by rank, as in BPE: a unigram model adds up scores from the beginning of the
    line, and of two ways to cut a word that are about equal, rounding takes one.
    """
    numbers = range(len(processor))
    return (
        processor.normalize("  a  b ") == f"{_SPACE}a{_SPACE}b"
        and processor.piece_to_id(_SPACE) != UNK
        and not any({" ", _SPACE} & set(processor.id_to_piece(it)[1:]) for it in numbers)
        and all(processor.get_score(it).is_integer() for it in numbers)
    )


class WordEncoder:
    """Encodes lines, and remembers their words."""

    def __init__(self, processor: SentencePieceProcessor) -> None:
        """Remembers nothing yet, of a processor for which :func:`cuts_at_spaces` is true."""
        self._processor = processor
        self._numbers = _Numbers()
        self._words = Sentences.laid([])

    def __call__(self, lines: list[str]) -> Sentences:
        """The sentences of the lines."""
        if not lines:
            return Sentences.of([])
        text = "\n".join(lines).encode()  # which is split faster than str
        letters = np.frombuffer(text, np.uint8)
        ends = letters[(letters == ord(" ")) | (letters == ord("\n"))] == ord("\n")
        first = np.concatenate(([0], np.flatnonzero(ends) + 1))
        tokens, lengths = self._take(text.replace(b"\n", b" ").split(b" "))
        return Sentences(tokens, np.add.reduceat(lengths, first)).ended()

    def _take(self, words: list[bytes]) -> Sentences:
        if len(self._numbers) > MOST:
            self._numbers, self._words = _Numbers(), Sentences.laid([])
        known = len(self._numbers)
        numbers = np.fromiter(map(self._numbers.__getitem__, words), np.int64, len(words))
        if new := list(islice(reversed(self._numbers), len(self._numbers) - known)):
            ids = self._processor.encode(new[::-1], num_threads=1)
            both = zip(self._words, Sentences.laid(ids), strict=True)
            self._words = Sentences(*map(np.concatenate, both))
        return self._words.take(numbers)


class _Numbers(dict[bytes, int]):
    """Words by the order in which they were first asked for, from 0."""

    def __missing__(self, word: bytes) -> int:
        number = self[word] = len(self)
        return number
