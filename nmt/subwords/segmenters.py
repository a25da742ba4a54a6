"""The contract of segmenters: text to token ids of one side, and back.

The ids come from a SentencePiece model; or they come from a list of pieces, and the model only
segments, as in OPUS-MT. :mod:`nmt.subwords.bpe` segments by codes of BPE.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from functools import cached_property
from random import Random
from typing import Any

import sentencepiece

from nmt.data.vocabulary import BOS, EOS, PAD, SPACE, UNK, Vocabulary
from nmt.languages import is_unspaced
from nmt.subwords.random_segmentation import RandomSegmentation

TAG = re.compile(r">>([^>\s]*)<<")
"""A language tag, spelled as in OPUS-MT, such as ``>>deu<<``."""

SEPARATOR = "<sep/>"
"""Piece between the sentences of a document; see :mod:`nmt.preprocess.documents`."""

NO_DUMMY_PREFIX = b"\x1a\x02\x18\x00"
"""Fields that a SentencePiece model may be followed by: `normalizer_spec.add_dummy_prefix` is
false. Of a field that a message of protocol buffers has twice, the last value counts."""


def load_processor(model: bytes) -> sentencepiece.SentencePieceProcessor:
    """Return a SentencePiece processor.

    Raises:
        RuntimeError: the bytes are not a SentencePiece model.
    """
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(model)  # the constructor would accept an empty model
    return processor


class Segmenter(ABC):
    """Text to token ids of one side, and back."""

    separator: int | None = None
    """Id between the lines of a text; None if a text is one line."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of token ids, special ids included."""

    @property
    def marks_word_begins(self) -> bool:
        """Whether a piece begins a word if and only if it begins with a space."""
        return True

    @property
    def tags(self) -> dict[str, int]:
        """Ids of the tags by their pieces; see :mod:`nmt.subwords.tags`."""
        return {}

    @abstractmethod
    def encode(self, lines: list[str], num_threads: int = 1) -> list[list[int]]:
        """Return the ids of every line, without BOS and EOS; none for a line of white space."""

    def encode_phrases(self, phrases: list[str], num_threads: int = 1) -> list[list[int]]:
        """Return the ids of every phrase, as they are within a line."""
        return self.encode(phrases, num_threads)

    @abstractmethod
    def sample(self, line: str, alpha: float, draw: Random) -> list[int]:
        """Return the ids of a random segmentation.

        See :meth:`nmt.subwords.random_segmentation.RandomSegmentation.sample`.
        """

    @abstractmethod
    def decode(self, ids: list[list[int]], num_threads: int = 1) -> list[str]:
        """Return the text of every sentence, without special ids other than UNK."""

    @abstractmethod
    def pieces(self, ids: list[int]) -> list[str]:
        """Return the pieces of the ids; "▁" stands for a space."""

    @abstractmethod
    def line_offsets(self, lines: list[str], num_threads: int = 1) -> list[list[int]]:
        """Return the offset in each line, in characters, of the pieces of :meth:`encode`."""

    @abstractmethod
    def text_offsets(self, ids: list[list[int]], num_threads: int = 1) -> list[list[int]]:
        """Return the offset, in characters, of the pieces in the text of :meth:`decode`."""


class WrappedSegmenter(Segmenter):
    """A segmenter that delegates to another segmenter; subclasses override methods."""

    def __init__(self, inner: Segmenter) -> None:
        """Wrap a segmenter."""
        self.inner = inner
        self.separator = inner.separator

    @property
    def size(self) -> int:
        """Number of pieces."""
        return self.inner.size

    @property
    def marks_word_begins(self) -> bool:
        """Whether a piece begins a word if and only if it begins with a space."""
        return self.inner.marks_word_begins

    @property
    def tags(self) -> dict[str, int]:
        """The tags of the vocabulary."""
        return self.inner.tags

    def encode(self, lines: list[str], num_threads: int = 1) -> list[list[int]]:
        """Return the ids of every line."""
        return self.inner.encode(lines, num_threads)

    def encode_phrases(self, phrases: list[str], num_threads: int = 1) -> list[list[int]]:
        """Return the ids of every phrase, as they are within a line."""
        return self.inner.encode_phrases(phrases, num_threads)

    def sample(self, line: str, alpha: float, draw: Random) -> list[int]:
        """Return the ids of a random segmentation."""
        return self.inner.sample(line, alpha, draw)

    def decode(self, ids: list[list[int]], num_threads: int = 1) -> list[str]:
        """Return the text of every sentence."""
        return self.inner.decode(ids, num_threads)

    def pieces(self, ids: list[int]) -> list[str]:
        """Return the pieces of the ids."""
        return self.inner.pieces(ids)

    def line_offsets(self, lines: list[str], num_threads: int = 1) -> list[list[int]]:
        """Return the offset of each piece in its line."""
        return self.inner.line_offsets(lines, num_threads)

    def text_offsets(self, ids: list[list[int]], num_threads: int = 1) -> list[list[int]]:
        """Return the offset of each piece in its text."""
        return self.inner.text_offsets(ids, num_threads)


class SentencePiece(Segmenter):
    """A SentencePiece model that is the vocabulary, too."""

    def __init__(self, model: bytes) -> None:
        """Load a serialised model."""
        self.processor = load_processor(model)

    @property
    def size(self) -> int:
        """Number of pieces."""
        return int(self.processor.get_piece_size())

    @cached_property
    def tags(self) -> dict[str, int]:
        """The pieces that no text spells, and the pieces with the form of a language tag."""
        # After EOS, because BOS and EOS are control pieces, too.
        pieces = {self.processor.id_to_piece(token): token for token in range(EOS + 1, self.size)}
        return {
            piece: token
            for piece, token in pieces.items()
            if self.processor.is_control(token) or TAG.fullmatch(piece)
        }

    def normalized(self, line: str) -> tuple[str, list[int]]:
        """Return a line as the model reads it, and the offset in the line of each character.

        A space precedes every word but the first; one more offset is the end of the line.
        """
        text, offsets = self.processor.normalize(line, with_offsets=True)
        return text.replace(SPACE, " ")[1:], offsets[1:] or [0]

    def encode(self, lines: list[str], num_threads: int = 1) -> list[list[int]]:
        """Return the ids of every line."""
        if len(lines) == 1:
            return [self.processor.encode(lines[0])]  # without the threads that a list starts
        # Whole lists, so that SentencePiece's threads share the work.
        ids: list[list[int]] = self.processor.encode(lines, num_threads=num_threads)
        return ids

    def encode_phrases(self, phrases: list[str], num_threads: int = 1) -> list[list[int]]:
        """Return the ids of every phrase, as they are within a line."""
        rows = self.encode(phrases, num_threads)
        for at, phrase in enumerate(phrases):
            if is_unspaced(phrase[:1]):
                rows[at] = self.without_space.encode(phrase)
        return rows

    @cached_property
    def without_space(self) -> sentencepiece.SentencePieceProcessor:
        """A processor that puts no space before a line.

        In a script without spaces, a phrase within a line has none before it.
        """
        return load_processor(self.processor.serialized_model_proto() + NO_DUMMY_PREFIX)

    def sample(self, line: str, alpha: float, draw: Random) -> list[int]:
        """Return the ids of a random segmentation."""
        return self._random.sample(line, alpha, draw)

    @cached_property
    def _random(self) -> RandomSegmentation:
        return RandomSegmentation(self.processor)

    def decode(self, ids: list[list[int]], num_threads: int = 1) -> list[str]:
        """Return the text of every sentence."""
        if not ids:
            return []  # SentencePiece would take it for one empty sentence
        # Without the threads that a list starts.
        if len(ids) == 1:
            return [self.processor.decode(ids[0])]
        lines: list[str] = self.processor.decode(ids, num_threads=num_threads)
        return lines

    def pieces(self, ids: list[int]) -> list[str]:
        """Return the pieces of the ids."""
        return [self.processor.id_to_piece(token) for token in ids]

    def line_offsets(self, lines: list[str], num_threads: int = 1) -> list[list[int]]:
        """Return the offset of each piece in its line."""
        return _begins(
            self.processor.encode(lines, return_type="offset_mapping", num_threads=num_threads)
        )

    def text_offsets(self, ids: list[list[int]], num_threads: int = 1) -> list[list[int]]:
        """Return the offset of each piece in its text."""
        if not ids:
            return []
        return _begins(
            self.processor.decode(ids, return_type="offset_mapping", num_threads=num_threads)
        )


class ListedPieces(Segmenter):
    """A SentencePiece model that segments, and a list of pieces with the ids.

    A piece that is not in the list is UNK; the list may have pieces that the model lacks. A
    language tag at the beginning of a line is one piece if it is in the list.
    """

    def __init__(self, model: bytes, vocabulary: Vocabulary) -> None:
        """Load a serialised model for the pieces of a vocabulary."""
        self._inner = SentencePiece(model)
        self._names = vocabulary.pieces
        self._ids = vocabulary.ids

    @property
    def size(self) -> int:
        """Number of pieces."""
        return len(self._names)

    @cached_property
    def tags(self) -> dict[str, int]:
        """The pieces that look like a language tag, and the pieces that no text spells."""
        return {
            piece: token
            for piece, token in self._ids.items()
            if TAG.fullmatch(piece) or piece in self._inner.tags
        }

    def encode(self, lines: list[str], num_threads: int = 1) -> list[list[int]]:
        """Return the ids of every line."""
        tags, texts = self._without_tags(lines)
        # As pieces, because the list has other ids than the model.
        cut = self._inner.processor.encode(texts, return_type=str, num_threads=num_threads)
        return [self._identified(tag, pieces) for tag, pieces in zip(tags, cut, strict=True)]

    def encode_phrases(self, phrases: list[str], num_threads: int = 1) -> list[list[int]]:
        """Return the ids of every phrase, as they are within a line."""
        rows = self.encode(phrases, num_threads)
        for at, phrase in enumerate(phrases):
            if is_unspaced(phrase[:1]):
                pieces = self._inner.without_space.encode(phrase, return_type=str)
                rows[at] = self._identified("", pieces)
        return rows

    def sample(self, line: str, alpha: float, draw: Random) -> list[int]:
        """Return the ids of a random segmentation."""
        [tag], [text] = self._without_tags([line])
        return self._identified(tag, self._inner.pieces(self._inner.sample(text, alpha, draw)))

    def decode(self, ids: list[list[int]], num_threads: int = 1) -> list[str]:
        """Return the text of every sentence."""
        lines = self._inner.decode(self._texts(ids), num_threads)  # type: ignore[arg-type]
        return [_spaced(line).strip() for line in lines]

    def pieces(self, ids: list[int]) -> list[str]:
        """Return the pieces of the ids."""
        return [self._names[token] for token in ids]

    def line_offsets(self, lines: list[str], num_threads: int = 1) -> list[list[int]]:
        """Return the offset of each piece in its line."""
        tags, texts = self._without_tags(lines)
        offsets = self._inner.line_offsets(texts, num_threads)
        return [
            [0, *(len(tag) + offset for offset in row)] if tag else row
            for tag, row in zip(tags, offsets, strict=True)
        ]

    def text_offsets(self, ids: list[list[int]], num_threads: int = 1) -> list[list[int]]:
        """Return the offset of each piece in its text; special ids are where the next piece is."""
        rows = self._texts(ids)
        offsets = self._inner.text_offsets(rows, num_threads)  # type: ignore[arg-type]
        texts = self._inner.decode(rows, num_threads)  # type: ignore[arg-type]
        spaced = map(_spaced, texts)
        return [
            with_silent(row, _stripped(begins, text), len(text.strip()))
            for row, begins, text in zip(ids, offsets, spaced, strict=True)
        ]

    def _texts(self, ids: list[list[int]]) -> list[list[str]]:
        """Return the pieces of each sentence that have a text."""
        return [[self._names[token] for token in row if token not in SILENT] for row in ids]

    def _without_tags(self, lines: list[str]) -> tuple[list[str], list[str]]:
        """Return the tag of each line, empty without one, and the rest of the line."""
        if not self.tags:
            return [""] * len(lines), lines
        # OPUS-MT's multilingual models read the tag as one token.
        matches = map(TAG.match, lines)
        tags = [match[0] if match and match[0] in self.tags else "" for match in matches]
        return tags, [line[len(tag) :] for tag, line in zip(tags, lines, strict=True)]

    def _identified(self, tag: str, pieces: list[str]) -> list[int]:
        """Return the ids of a tag, if any, and of pieces."""
        known = self._ids.get
        return [known(piece, UNK) for piece in ([tag, *pieces] if tag else pieces)]


SILENT = frozenset((PAD, BOS, EOS))
"""Special ids without a text."""


def with_silent(ids: list[int], offsets: list[int], end: int) -> list[int]:
    """Return the offsets of all ids in a text, given the offsets of the ids with a text.

    Args:
        ids: ids of a sentence; an id without a text is where the next piece begins.
        offsets: offsets of the ids with a text.
        end: length of the text, the greatest offset.
    """
    # From the end, because a silent id has the place of the piece after it.
    place, spoken = end, reversed(offsets)
    placed: list[int] = []
    for token in reversed(ids):
        place = place if token in SILENT else next(spoken)
        # Pieces of white space at the ends lie outside of the stripped text.
        placed.append(min(max(place, 0), end))
    return placed[::-1]


def _stripped(offsets: list[int], text: str) -> list[int]:
    """Return offsets in a text without the white space around it."""
    before = len(text) - len(text.lstrip())
    return [offset - before for offset in offsets]


def _spaced(text: str) -> str:
    """Return a text with spaces where SentencePiece left the mark of a space, in unknown pieces."""
    return text.replace(SPACE, " ")


def _begins(mapped: list[dict[str, Any]]) -> list[list[int]]:
    return [[begin for begin, _ in sentence["offsets"]] for sentence in mapped]
