"""Word alignment of a parallel corpus, learned from this corpus alone.

IBM model 1 and then a hidden Markov model are learned in both directions, and their alignments are
made symmetric by grow-diag-final-and (Koehn et al. 2003). Words are compared without their case and
without punctuation around them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import numpy as np
from tqdm import tqdm

from nmt.data.columns import RaggedArray
from nmt.data.vocabulary import EOS, UNK
from nmt.languages import combining_marks
from nmt.preprocess.alignment.hmm import HiddenMarkovModel
from nmt.preprocess.alignment.lexicon import Lexicon, Pairs
from nmt.subwords.learning import reservoir

LEXICON_ITERATIONS = 5
"""Iterations of IBM model 1."""

HMM_ITERATIONS = 5
"""Iterations of the hidden Markov model."""

MAX_PAIR_WORDS = 200
"""Words of the longest side of a pair that is learned from and aligned. The time of a pair grows
with the third power of its length."""

Link = tuple[int, int]

NEIGHBOURS = [(-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1)]
"""Steps from a link to its neighbours, in the order of Koehn et al. 2003: diagonal steps last."""

_INSIDE = re.compile(rf"\w(?:.*[\w{combining_marks()}])?")


class WordNumbers:
    """Numbers of the words of one language; words are compared without case and punctuation."""

    def __init__(self, lines: Iterable[str]) -> None:
        """Number the words of some lines, beginning after the special ids."""
        words = dict.fromkeys(chain.from_iterable(map(_words, lines)))
        self._ids = {word: number for number, word in enumerate(words, EOS + 1)}

    def __len__(self) -> int:
        return len(self._ids) + EOS + 1

    def encode(self, lines: Iterable[str]) -> list[list[int]]:
        """Return the numbers of the words of each line; UNK for other words."""
        return [[self._ids.get(word, UNK) for word in _words(line)] for line in lines]


class CorpusAligner:
    """Aligns the words of pairs of lines."""

    def __init__(self, pairs: Iterable[tuple[str, str]], max_pairs: int, seed: int = 1) -> None:
        """Learn from pairs of lines, or from a random sample of at most `max_pairs`."""
        sample = reservoir(pairs, max_pairs, seed)
        kept = [pair for pair in sample if _fits(*pair) and all(map(str.strip, pair))]
        columns = [[pair[side] for pair in kept] for side in (0, 1)]
        self._vocabularies = [WordNumbers(lines) for lines in columns]
        rows = [
            words.encode(lines) for words, lines in zip(self._vocabularies, columns, strict=True)
        ]
        self._models = [self._learn(rows, sides) for sides in ((0, 1), (1, 0))] if kept else []

    def _learn(self, rows: list[list[list[int]]], sides: tuple[int, int]) -> HiddenMarkovModel:
        """Return the model of one direction, given both sides' words."""
        source, target = (rows[side] for side in sides)
        num_sources, num_targets = (len(self._vocabularies[side]) for side in sides)
        # EOS is the empty word of IBM model 1.
        ended = [[np.array([*row, EOS]) for row in side] for side in (source, target)]
        # IBM model 1 has no local optima, so its table is a safe start for the hidden Markov model.
        lexicon = Lexicon.learn(Pairs.from_sentences(*ended), num_sources, LEXICON_ITERATIONS)
        model = HiddenMarkovModel(lexicon, num_targets)
        words = RaggedArray.from_lists(source), RaggedArray.from_lists(target)
        for _ in tqdm(range(HMM_ITERATIONS), "aligning", disable=None, leave=False):
            model.fit(*words)
        return model

    def align(self, sources: Sequence[str], targets: Sequence[str]) -> Iterator[list[Link]]:
        """Yield the links of each pair of lines: numbers of source and target words, from 0.

        A pair with more than `MAX_PAIR_WORDS` words on a side has no links.
        """
        pairs = zip(sources, targets, strict=True)
        # An empty pair instead of none: line n of the output belongs to line n of the input.
        kept = [pair if _fits(*pair) else ("", "") for pair in pairs]
        lines = [[pair[side] for pair in kept] for side in (0, 1)]
        if not self._models:
            yield from ([] for _ in kept)
            return
        sides = [
            RaggedArray.from_lists(words.encode(side))
            for words, side in zip(self._vocabularies, lines, strict=True)
        ]
        forwards = self._models[0].align(sides[0], sides[1])
        backwards = self._models[1].align(sides[1], sides[0])
        for of_target, of_source in zip(forwards, backwards, strict=True):
            one = {(s, t) for t, s in enumerate(of_target.tolist()) if s >= 0}
            other = {(s, t) for s, t in enumerate(of_source.tolist()) if t >= 0}
            yield grow_diag_final_and(one, other)


def _fits(source: str, target: str) -> bool:
    """Return whether neither side is too long to align."""
    return max(len(source.split()), len(target.split())) <= MAX_PAIR_WORDS


def grow_diag_final_and(one: set[Link], other: set[Link]) -> list[Link]:
    """Return the symmetric alignment of two directed alignments, sorted.

    Begins with the links that both alignments have. Repeatedly adds links of either alignment that
    neighbour a link, also diagonally, and join a word without a link. At the end adds links between
    two words without links (Koehn et al. 2003).
    """
    union, links = one | other, one & other
    sources, targets = ({link[side] for link in links} for side in (0, 1))
    before = -1
    # Links next to links, until nothing is added (Koehn et al. 2003).
    while len(links) > before:
        before = len(links)
        # The filter is lazy: links that are added on the way grow in the same pass.
        for source, target in filter(links.__contains__, sorted(union)):
            for step in NEIGHBOURS:
                link = source + step[0], target + step[1]
                is_new = link[0] not in sources or link[1] not in targets
                if is_new and link in union and link not in links:
                    links.add(link)
                    sources.add(link[0])
                    targets.add(link[1])
    # "final and": a link of one direction only, between words without a link.
    for link in chain(sorted(one), sorted(other)):
        if link[0] not in sources and link[1] not in targets:
            links.add(link)
            sources.add(link[0])
            targets.add(link[1])
    return sorted(links, key=lambda link: (link[1], link[0]))


def _words(line: str) -> list[str]:
    """Return the words of a line without their case and the punctuation around them."""
    # Two spellings of an accent would make two words.
    words = unicodedata.normalize("NFC", line).split()
    insides = ((word, _INSIDE.search(word)) for word in words)
    return [inside[0].casefold() if inside else word for word, inside in insides]
