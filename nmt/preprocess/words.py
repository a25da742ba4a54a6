"""Encode text with a cache of words: SentencePiece's ids, several times faster.

Text repeats its words. If no piece crosses a space, the ids of a line are the ids of its words, one
after the other, and each distinct word needs to be segmented only once.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import numpy as np
from sentencepiece import SentencePieceProcessor

from nmt.data.columns import Sentences
from nmt.data.vocabulary import SPACE, UNK
from nmt.preprocess.joining import JoinedSegmenter
from nmt.preprocess.segmenters import Segmenter, SentencePiece
from nmt.preprocess.subwords import Subwords

Encode = Callable[[list[str]], Sentences]

MAX_WORDS = 1 << 18
"""Words in the cache before it is emptied; about 50 MiB."""

MAX_TOKENS = 1 << 20
"""Tokens of these words; of text without spaces, a word may be a line."""


def encoders(subwords: Subwords) -> tuple[Encode, Encode]:
    """Return functions that encode lines of the source and of the target."""
    source = _encoder(subwords.source)
    return source, source if subwords.target is subwords.source else _encoder(subwords.target)


def _encoder(segmenter: Segmenter) -> Encode:
    if isinstance(segmenter, JoinedSegmenter):
        segmenter = segmenter.inner  # lines are single sentences
    if isinstance(segmenter, SentencePiece) and cuts_at_spaces(segmenter.processor):
        return WordEncoder(segmenter.processor)
    return lambda lines: Sentences.of(segmenter.encode(lines))


def cuts_at_spaces(processor: SentencePieceProcessor) -> bool:
    """Return whether the ids of every line are the ids of its words, one after the other.

    This holds if a space occurs only at the beginning of pieces and is a piece itself, and if
    pieces are merged by rank, as in BPE. A unigram model adds up scores from the beginning of the
    line, so rounding decides between two segmentations of a word with nearly equal scores.
    """
    ids = range(len(processor))
    return (
        processor.normalize("  a  b ") == f"{SPACE}a{SPACE}b"
        and processor.piece_to_id(SPACE) != UNK
        and not any({" ", SPACE} & set(processor.id_to_piece(token)[1:]) for token in ids)
        and all(processor.get_score(token).is_integer() for token in ids)
    )


class WordEncoder:
    """Encodes lines, with a cache of their words."""

    def __init__(self, processor: SentencePieceProcessor) -> None:
        """Begin with an empty cache; :func:`cuts_at_spaces` must hold for the processor."""
        self._processor = processor
        self._numbers = _Numbers()
        self._words = Sentences.laid([])

    def __call__(self, lines: list[str]) -> Sentences:
        """Return the sentences of the lines, each with EOS."""
        if not lines:
            return Sentences.of([])
        joined = "\n".join(lines)
        if SPACE in joined:  # which a model takes for a space where its normalisation leaves it
            return Sentences.of(self._processor.encode(lines, num_threads=1))
        text = joined.encode()  # bytes are split faster than str
        letters = np.frombuffer(text, np.uint8)
        ends = letters[(letters == ord(" ")) | (letters == ord("\n"))] == ord("\n")
        first = np.concatenate(([0], np.flatnonzero(ends) + 1))
        tokens, lengths = self._take(text.replace(b"\n", b" ").split(b" "))
        return Sentences(tokens, np.add.reduceat(lengths, first)).ended()

    def _take(self, words: list[bytes]) -> Sentences:
        if len(self._numbers) > MAX_WORDS or len(self._words.tokens) > MAX_TOKENS:
            self._numbers, self._words = _Numbers(), Sentences.laid([])
        known = len(self._numbers)
        numbers = np.fromiter(map(self._numbers.__getitem__, words), np.int64, len(words))
        if new := list(islice(reversed(self._numbers), len(self._numbers) - known)):
            ids = self._processor.encode(new[::-1], num_threads=1)
            both = zip(self._words, Sentences.laid(ids), strict=True)
            self._words = Sentences(*map(np.concatenate, both))
        return self._words.take(numbers)


class _Numbers(dict[bytes, int]):
    """Number of each word, from 0, in the order of first use; a new word gets the next number."""

    def __missing__(self, word: bytes) -> int:
        number = self[word] = len(self)
        return number
