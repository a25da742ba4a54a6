"""Random segmentations by the pieces of a SentencePiece model, from a generator of the caller.

For BPE this is BPE-dropout (Provilkov et al. 2020, algorithm 1), for unigram models the sampling of
Kudo (2018) among all segmentations, by forward filtering and backward sampling. SentencePiece can
sample, too, but from 0.2.2 on its generator gives other numbers in every process.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import accumulate
from operator import add
from random import Random

from sentencepiece import SentencePieceProcessor

from nmt.data.vocabulary import SPACE
from nmt.subwords.model_pieces import NORMAL, USER_DEFINED, pieces_of

KNOWN_WORDS = 1 << 14
"""Number of words whose segmentations are cached: 50 MiB for German and English words."""

LONGEST_KEPT = 32
"""Characters of the longest word in the cache; lines without spaces are longer and seldom
repeat."""

UNKNOWN_PENALTY = 10.0
"""Difference between the lowest score of a piece and the score of a character without a piece, as
in SentencePiece."""

Choices = list[tuple[list[int], list[float]]]
"""For each end in a word: where the last piece may begin, and the cumulative weights."""


def are_ranks(scores: Iterable[float]) -> bool:
    """Return whether the scores of pieces are ranks, as in BPE, and no log-probabilities."""
    return all(score.is_integer() for score in scores)


class RandomSegmentation:
    """Draws segmentations of lines."""

    def __init__(self, processor: SentencePieceProcessor) -> None:
        """Take the pieces, and the normalisation, of a processor."""
        self._processor = processor
        pieces = [*enumerate(pieces_of(processor.serialized_model_proto()))]
        kinds = NORMAL, USER_DEFINED
        self._ids = {piece.text: token for token, piece in pieces if piece.kind in kinds}
        self._scores = {piece.text: piece.score for _, piece in pieces if piece.kind == NORMAL}
        self._ranks = {text: -score for text, score in self._scores.items()}
        self._is_bpe = are_ranks(self._scores.values())
        self._longest = max(map(len, self._scores), default=1)
        self._least = min(self._scores.values(), default=0.0) - UNKNOWN_PENALTY
        self._symbols = self._ids.keys() - self._scores.keys()
        self._divide = re.compile("|".join(self._undivided()), re.DOTALL).findall
        self._segment = self._merged if self._is_bpe else self._drawn
        self._choices = lru_cache(KNOWN_WORDS)(self._weigh)

    def sample(self, line: str, alpha: float, draw: Random) -> list[int]:
        """Return the ids of a segmentation.

        Args:
            line: text.
            alpha: for BPE, the probability with which a merge is left out of a step; for unigram
                models, the exponent of the probabilities.
            draw: draws; its state and the line determine the segmentation.
        """
        ids: list[int] = []
        unknown = self._processor.unk_id()
        for word in self._divide(self._processor.normalize(line)):
            if word in self._symbols:
                ids.append(self._ids[word])
                continue
            pieces = self._segment(word, alpha, draw)
            for piece in pieces:
                token = self._ids.get(piece)
                spelled = self._spelled(piece) if token is None else [token]
                if spelled != [unknown] or ids[-1:] != [unknown]:  # SentencePiece joins a run
                    ids += spelled
        return ids

    def _undivided(self) -> list[str]:
        """Return patterns of the units to segment separately: user-defined symbols, and words.

        Words are whole lines if a piece may continue after a space.
        """
        symbols = [re.escape(piece) for piece in sorted(self._symbols, key=len, reverse=True)]
        others = f"(?!{'|'.join(symbols)})" if symbols else ""
        if any(SPACE in piece[1:] for piece in self._ids):
            return [*symbols, f"(?:{others}.)+"]
        return [*symbols, f"{SPACE}(?:{others}[^{SPACE}])*", f"(?:{others}[^{SPACE}])+"]

    def _spelled(self, character: str) -> list[int]:
        """Return the ids of the bytes of a character without a piece, or the unknown piece."""
        unknown = self._processor.unk_id()
        ids = [self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in character.encode()]
        return [unknown] if unknown in ids else ids

    def _merged(self, word: str, alpha: float, draw: Random) -> list[str]:
        """Return the pieces after merges; each step leaves out random merges."""
        ranks, toss, pieces = self._ranks, draw.random, [*word]
        while ranked := [
            (ranks[both], at)
            for at, both in enumerate(map(add, pieces, pieces[1:]))
            # BPE-dropout (Provilkov et al. 2020): each step draws anew.
            if both in ranks and toss() >= alpha
        ]:
            # Of equal ranks the leftmost, as in BPE's own order.
            at = min(ranked)[1]
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
        return pieces

    def _drawn(self, word: str, alpha: float, draw: Random) -> list[str]:
        """Return random pieces; the last one is drawn first."""
        weigh = self._choices if len(word) <= LONGEST_KEPT else self._weigh
        choices = weigh(word, alpha)
        pieces: list[str] = []
        end = len(word)
        while end:
            begins, weights = choices[end - 1]
            [begin] = draw.choices(begins, cum_weights=weights)
            pieces.append(word[begin:end])
            end = begin
        return pieces[::-1]

    def _weigh(self, word: str, alpha: float) -> Choices:
        """Sum up the weights of all segmentations of each beginning of a word."""
        totals, choices = [0.0], []
        for end in range(1, len(word) + 1):
            begins, scores = [], []
            for begin in range(max(0, end - self._longest), end):
                # Only a single character may be without a piece.
                score = self._scores.get(word[begin:end], self._least if begin == end - 1 else None)
                if score is not None:
                    begins.append(begin)
                    scores.append(totals[begin] + alpha * score)
            # Relative to the greatest, because exponentials of a long word's sums would underflow.
            most = max(scores)
            weights = [*accumulate(math.exp(score - most) for score in scores)]
            totals.append(most + math.log(weights[-1]))
            choices.append((begins, weights))
        return choices
