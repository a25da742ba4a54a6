"""Word alignments of the training pairs (Pharaoh lines to numbers of words), and loss weights.

White space separates the words of a line, in the corpus as it is given. A pair keeps no links if
cleaning or the normalisation of the subword model joins or divides words.
"""

from __future__ import annotations

import math
import re

import numpy as np
import numpy.typing as npt

from nmt.data.columns import MOST_WORDS, RaggedArray
from nmt.data.vocabulary import EOS
from nmt.errors import NmtError
from nmt.evaluation.alignments import parse
from nmt.preprocess.annotations import LINKS, WEIGHTS
from nmt.preprocess.corpus import Chunk

_SURE = re.compile(r"(?:\s*[0-9]{1,9}-[0-9]{1,9}(?=\s|$))*\s*")


def read_links(chunk: Chunk) -> RaggedArray:
    """Return the links of every pair of a chunk: numbers of source and target words in turn.

    Args:
        chunk: with links.

    Raises:
        NmtError: a line is not in Pharaoh format, or a word is out of range.
    """
    name, links_of_pairs = chunk.names[LINKS], chunk.annotations[LINKS]
    rows: list[list[int]] = []
    sides = zip(chunk.source, chunk.target, strict=True)
    for number, (line, pair) in enumerate(zip(links_of_pairs, sides, strict=True), chunk.first):
        if _SURE.fullmatch(line):  # faster than link by link
            words = list(map(int, line.replace("-", " ").split()))
            links = set(zip(words[::2], words[1::2], strict=True))
        else:
            links = parse(line, f"{name}:{number}")[1]
        counts = [len(text.split()) for text in pair]
        for source, target in links:
            if source >= counts[0] or target >= counts[1]:
                raise NmtError(
                    f"{name}:{number}: the link {source}-{target} is out of range: the source has "
                    f"{counts[0]} words and the target {counts[1]}; number the words of this very "
                    "text, from 0"
                )
        # Numbers of words have 16 bits in the file.
        is_stored = max(counts) <= MOST_WORDS
        # Sorted, so that the order of links in a file changes nothing in the dataset.
        rows.append([word for link in sorted(links) for word in link] if is_stored else [])
    return RaggedArray.from_lists(rows)


def words_of_subwords(
    sentences: RaggedArray, begins_word: npt.NDArray[np.bool_]
) -> npt.NDArray[np.int64]:
    """Return the number of each subword's word in its sentence, from 0; -1 for EOS.

    Args:
        sentences: the subwords; every sentence ends with EOS.
        begins_word: whether each id begins a word.
    """
    begins = begins_word[sentences.tokens]
    first = np.cumsum(sentences.lengths) - sentences.lengths
    # Also if the subwords put no space before the first word.
    begins[first] = True
    words = np.cumsum(begins) - 1
    words -= np.repeat(words[first], sentences.lengths)
    words[sentences.tokens == EOS] = -1
    return words


def count_words(
    sentences: RaggedArray, begins_word: npt.NDArray[np.bool_]
) -> npt.NDArray[np.int64]:
    """Return the number of words of each sentence that is not empty."""
    if not len(sentences.lengths):
        return np.zeros(0, np.int64)
    words = words_of_subwords(sentences, begins_word)
    starts = np.cumsum(sentences.lengths) - sentences.lengths
    return np.maximum.reduceat(words, starts) + 1


MAX_WEIGHT = 1e6
"""Largest weight of a pair."""


def read_weights(chunk: Chunk) -> npt.NDArray[np.float32]:
    """Return the weights of the pairs of a chunk, [n]; empty if the chunk has no weights.

    Raises:
        NmtError: a line is not a number from 0 to :data:`MAX_WEIGHT`.
    """
    texts = chunk.annotations.get(WEIGHTS, [])
    weights = np.array([_number(text) for text in texts], np.float64)
    # Negated as a whole, so that NaN is refused, too.
    wrong = np.flatnonzero(~((weights >= 0) & (weights <= MAX_WEIGHT)))
    if len(wrong):
        text = texts[wrong[0]]
        raise NmtError(
            f"{chunk.names[WEIGHTS]}: line {chunk.first + wrong[0]}: {text[:40]!r} is not a "
            f"weight; write a number from 0 to {MAX_WEIGHT:,.0f}"
        )
    return weights.astype(np.float32)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
