"""Special ids, the same in every vocabulary, and vocabularies that are lists of pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nmt.io.documents import DocumentFormat

# PAD is 0, so that zeros are padding, and so that counting non-zeros counts tokens.
PAD, UNK, BOS, EOS = 0, 1, 2, 3
"""The special ids, the same in every vocabulary."""

SPECIAL_PIECES = ("<pad>", "<unk>", "<s>", "</s>")
"""Names of the special ids, in the order of the ids."""

SPACE = "\u2581"
"""SentencePiece's character for a space."""

# Within the range of fp16, and low enough that float32 rounds its exponential to 0.
EXCLUDED = -1e4
"""Logit of a token that an imported model never predicts: its probability is 0 in every format."""


def is_excluded(bias: float) -> bool:
    """Return whether a bias is :data:`EXCLUDED`, perhaps changed by training."""
    return bias < EXCLUDED / 2


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The pieces of a vocabulary in the order of their ids, for a segmenter with other ids."""

    pieces: tuple[str, ...]
    """The special pieces, then the ordinary pieces. An ordinary piece may have the name of a
    special piece."""

    def __post_init__(self) -> None:
        if self.pieces[: len(SPECIAL_PIECES)] != SPECIAL_PIECES:
            raise ValueError(f"pieces must begin with {', '.join(SPECIAL_PIECES)}")
        if len(self.ids) + len(SPECIAL_PIECES) != len(self.pieces):
            raise ValueError("pieces has a piece twice")

    @classmethod
    def from_pieces(cls, pieces: Sequence[str]) -> Vocabulary:
        """Return the vocabulary of the special pieces and these ordinary pieces."""
        return cls(pieces=(*SPECIAL_PIECES, *pieces))

    @property
    def ids(self) -> dict[str, int]:
        """The id of each ordinary piece."""
        first = len(SPECIAL_PIECES)
        return {piece: token for token, piece in enumerate(self.pieces[first:], first)}


VOCABULARIES = DocumentFormat(
    kind=Vocabulary,
    name="nmt-vocabulary",
    version=1,
    remedy="restore it, or import the model again",
)
