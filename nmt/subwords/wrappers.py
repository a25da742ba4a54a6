"""Segmenters around segmenters: texts of several lines, and target sentences from right to left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from random import Random
from typing import Literal

from nmt.errors import NmtError
from nmt.io.documents import DocumentFormat
from nmt.subwords.segmenters import Segmenter, WrappedSegmenter


class JoinedSegmenter(WrappedSegmenter):
    """A segmenter of texts of several lines, the sentences of a document."""

    def __init__(self, inner: Segmenter, separator: int) -> None:
        """Wrap a segmenter; `separator` is the id between two lines."""
        super().__init__(inner)
        self.separator: int = separator

    def encode(self, lines: list[str], num_threads: int = 1) -> list[list[int]]:
        """Return the ids of every text."""
        texts = [line.split("\n") for line in lines]
        # All sentences in one call, so that threads share them.
        ids = iter(self.inner.encode([*chain.from_iterable(texts)], num_threads))
        return [self._joined([*islice(ids, len(sentences))]) for sentences in texts]

    def sample(self, line: str, alpha: float, draw: Random) -> list[int]:
        """Return the ids of a random segmentation."""
        return self._joined([self.inner.sample(part, alpha, draw) for part in line.split("\n")])

    def decode(self, ids: list[list[int]], num_threads: int = 1) -> list[str]:
        """Return the text of every sequence, a line for each sentence."""
        rows = [[*self._divided(row)] for row in ids]
        texts = iter(self.inner.decode([*chain.from_iterable(rows)], num_threads))
        # Byte pieces can spell a line feed.
        return [
            "\n".join(text.replace("\n", " ") for text in islice(texts, len(row))) for row in rows
        ]

    def _joined(self, sentences: list[list[int]]) -> list[int]:
        first, *others = sentences
        return [*first, *chain.from_iterable([self.separator, *ids] for ids in others)]

    def _divided(self, ids: list[int]) -> Iterator[list[int]]:
        start = 0
        for at, token in enumerate(ids):
            if token == self.separator:
                yield ids[start:at]
                start = at + 1
        yield ids[start:]


ORDER_FILE = "target_order.json"
"""Name of the file in a dataset, a run or an export. From left to right, there is no such file."""

TokenOrder = Literal["left_to_right", "right_to_left"]


@dataclass(frozen=True, kw_only=True)
class TargetOrder:
    """Content of ``target_order.json``."""

    order: TokenOrder = "left_to_right"
    """Order of the tokens of target sentences."""


TARGET_ORDER = DocumentFormat(
    kind=TargetOrder,
    name="nmt-target-order",
    version=1,
    remedy="copy the directory again from where it came from, or make it again",
)


def refuse_beginnings(order: TokenOrder) -> None:
    """Raise an NmtError for models that write the end of a translation first."""
    if order == "right_to_left":
        raise NmtError(
            "a model from right to left writes the end first, and cannot continue a beginning; "
            "leave out the prefix, or use a model from left to right"
        )


class ReversedSegmenter(WrappedSegmenter):
    """A segmenter that reverses the tokens; texts and offsets keep the order of the text.

    A model from right to left writes the last token first (Liu et al. 2016, *Agreement on
    Target-Bidirectional Neural Machine Translation*; Sennrich et al. 2016, for rescoring).
    """

    def encode(self, lines: list[str], num_threads: int = 1) -> list[list[int]]:
        """Return the ids of every line, the last one first."""
        return _reversed(self.inner.encode(lines, num_threads))

    def encode_phrases(self, phrases: list[str], num_threads: int = 1) -> list[list[int]]:
        """Return the ids of every phrase, the last one first."""
        return _reversed(self.inner.encode_phrases(phrases, num_threads))

    def sample(self, line: str, alpha: float, draw: Random) -> list[int]:
        """Return the ids of a random segmentation, the last one first."""
        return self.inner.sample(line, alpha, draw)[::-1]

    def decode(self, ids: list[list[int]], num_threads: int = 1) -> list[str]:
        """Return the text of every sentence."""
        return self.inner.decode(_reversed(ids), num_threads)

    def line_offsets(self, lines: list[str], num_threads: int = 1) -> list[list[int]]:
        """Return the offset of each piece in its line, in the order of :meth:`encode`."""
        return _reversed(self.inner.line_offsets(lines, num_threads))

    def text_offsets(self, ids: list[list[int]], num_threads: int = 1) -> list[list[int]]:
        """Return the offset of each piece in its text, in the order of the ids."""
        return _reversed(self.inner.text_offsets(_reversed(ids), num_threads))


def _reversed(rows: list[list[int]]) -> list[list[int]]:
    return [row[::-1] for row in rows]
