"""Sentences of a document, joined by a separator that no text spells.

As text, joined sentences are the lines of one string. As ids, the separator replaces the EOS of
each sentence but the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import ne

import numpy as np
import numpy.typing as npt

from nmt.data.columns import RaggedArray
from nmt.data.context import DocumentContext, Span
from nmt.data.manifest import Ids
from nmt.data.vocabulary import EOS
from nmt.errors import NmtError
from nmt.messages import warn
from nmt.preprocess.annotations import DOCUMENT_IDS
from nmt.preprocess.corpus import Bitext, Chunk
from nmt.subwords.segmenters import SEPARATOR, Segmenter


def document_numbers(chunk: Chunk) -> Ids:
    """Return the number of the document of each pair [n], from 1; 0 for a blank line.

    Raises:
        NmtError: a line has no id; or without ids, a line is blank on one side only.
    """
    if DOCUMENT_IDS not in chunk.annotations:
        blank = blank_pairs(chunk)
        return np.where(blank, 0, np.cumsum(blank) + 1)
    ids = [text.strip() for text in chunk.annotations[DOCUMENT_IDS]]
    if "" in ids:
        name, line = chunk.names[DOCUMENT_IDS], chunk.first + ids.index("")
        raise NmtError(f"{name}: line {line} has no id of a document; write an id on each line")
    return 1 + np.cumsum([False, *map(ne, ids, ids[1:])])


def blank_pairs(chunk: Chunk) -> npt.NDArray[np.bool_]:
    """Return whether each pair [n] is blank, as between documents.

    Raises:
        NmtError: a line is blank on one side only.
    """
    blank, other = (
        np.array([not line.strip() for line in side], np.bool_)
        for side in (chunk.source, chunk.target)
    )
    if (differing := np.flatnonzero(blank != other)).size:
        raise NmtError(
            f"{chunk.text_names}: line {chunk.first + differing[0]} is blank on one side only; the "
            "blank lines between documents must be on both sides"
        )
    return blank


def with_blank_lines(chunk: Chunk) -> Chunk:
    """Return pairs with blank lines between documents instead of ids.

    Raises:
        NmtError: as :func:`document_numbers`, or a line is blank on one side only.
    """
    if DOCUMENT_IDS not in chunk.annotations:
        return chunk
    blank_pairs(chunk)  # before the numbers of lines differ from the files
    is_behind_another = chunk.first > 1
    # The first document of a file has no blank line before it.
    begins = np.diff(document_numbers(chunk), prepend=1 - is_behind_another).tolist()
    source, target = (
        [
            text
            for begins_document, line in zip(begins, side, strict=True)
            for text in (["", line] if begins_document else [line])
        ]
        for side in (chunk.source, chunk.target)
    )
    return replace(chunk, source=source, target=target, annotations={}, names={})


def warn_of_undivided(bitexts: Iterable[Bitext]) -> None:
    """Print a warning if texts have no ids and no blank line, so that each is one document."""
    whole = [
        bitext.names[0]
        for bitext in bitexts
        if DOCUMENT_IDS not in bitext.annotations
        and all(line.strip() for chunk in bitext.chunks("replace") for line in chunk.source)
    ]
    if whole:
        warn(
            f"no blank line is in {', '.join(whole)}: the whole file is one document; write blank "
            "lines between documents, on both sides, or set preprocess.document_ids"
        )


@dataclass(frozen=True)
class Joiner:
    """Joins the sentences of documents, by the settings of a dataset."""

    context: DocumentContext
    separators: tuple[int, int]
    """Ids of the separators of source and target."""

    def examples(
        self, source: RaggedArray, target: RaggedArray, numbers: Ids
    ) -> tuple[RaggedArray, RaggedArray]:
        """Return the pairs of training, made of the sentences of documents.

        Args:
            source: sentences, with EOS.
            target: their translations.
            numbers: number of the document of each sentence [n].
        """
        # `max_tokens` limits each side.
        lengths = np.maximum(source.lengths, target.lengths).tolist()
        spans = [
            (start + first, start + last)
            for start, end in _runs(numbers)
            for first, last in self.context.examples(lengths[start:end])
        ]
        table = np.array(spans, np.int64).reshape(-1, 2)
        # With context on the source alone the target is the last sentence.
        first = table[:, 0] if self.context.sides == "both" else table[:, 1] - 1
        return (
            joined(source, table[:, 0], table[:, 1], self.separators[0]),
            joined(target, first, table[:, 1], self.separators[1]),
        )

    def held_out(self, chunk: Chunk, numbers: Ids, lengths: Ids) -> tuple[list[str], list[str]]:
        """Return the texts of held-out pairs, one text for each line.

        With whole documents, the first line of a part holds the whole part, and its other lines are
        empty.

        Args:
            chunk: pairs with the blank lines between documents.
            numbers: number of the document of each line [n].
            lengths: length of each pair in tokens [n].
        """
        source, target = [""] * len(numbers), [""] * len(numbers)
        for start, end in _runs(numbers):
            if not numbers[start]:
                continue
            of_document = lengths[start:end].tolist()
            spans = (
                self.context.parts(of_document)
                if self.context.whole
                else self.context.examples(of_document)
            )
            for first, last in spans:
                at = start + (first if self.context.whole else last - 1)
                source[at] = "\n".join(chunk.source[start + first : start + last])
                begin = start + first if self.context.sides == "both" else at
                target[at] = "\n".join(chunk.target[begin : start + last])
        return source, target


def joined(sentences: RaggedArray, first: Ids, last: Ids, separator: int) -> RaggedArray:
    """Return sentences ``first[i]`` to ``last[i] - 1`` as one, for each i."""
    counts = last - first
    ends = np.cumsum(counts)
    # One arange numbers the sentences of all groups, moved to where each group begins.
    taken = sentences.take(np.repeat(first - (ends - counts), counts) + np.arange(counts.sum()))
    last_tokens = np.cumsum(taken.lengths) - 1
    tokens = taken.tokens.copy()
    # Every EOS becomes a separator, and then the last one of each group EOS again.
    tokens[last_tokens] = separator
    tokens[last_tokens[ends - 1]] = EOS
    lengths = np.add.reduceat(taken.lengths, ends - counts) if len(counts) else counts
    return RaggedArray(tokens, lengths)


def _runs(numbers: Ids) -> Iterator[Span]:
    """Yield where consecutive equal numbers begin and end."""
    start = 0
    for _, run in groupby(numbers.tolist()):
        end = start + sum(1 for _ in run)
        yield start, end
        start = end


def separator_of(segmenter: Segmenter) -> int:
    """Return the id of the separator.

    Raises:
        NmtError: the vocabulary has no separator.
    """
    if SEPARATOR not in segmenter.tags:
        raise NmtError(
            f"the vocabulary lacks the separator {SEPARATOR} of preprocess.documents; add it by "
            "preprocess.extend_vocabulary"
        )
    return segmenter.tags[SEPARATOR]


def joiner_of(context: DocumentContext | None, sides: Sequence[Segmenter]) -> Joiner | None:
    """Return the joiner of a context; None for single sentences."""
    if context is None:
        return None
    source, target = sides
    has_target = context.sides == "both"
    # A target without context is one sentence, so its separator is never used.
    return Joiner(context, (separator_of(source), separator_of(target) if has_target else EOS))
