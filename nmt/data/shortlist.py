"""Lexical shortlists: tables of the likely target tokens of each source token, and their file.

With a shortlist, search computes logits only of the tokens that a sentence may need (Jean et al.
2015, *On Using Very Large Target Vocabulary for Neural Machine Translation*, section 3.4).
``docs/formats.md`` describes the file.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from nmt.data.manifest import Ids
from nmt.data.vocabulary import BOS, EOS, PAD, UNK
from nmt.errors import NmtError
from nmt.io import documents, files
from nmt.io.documents import DocumentFormat

REMEDY = "make it again with `nmt shortlist`"

SPECIAL = (PAD, UNK, BOS, EOS)
"""Ids on every shortlist, so that a list of all tokens changes nothing. Search never chooses PAD or
BOS."""

Table = npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Origin of a shortlist: its subwords, its data and its settings."""

    subwords: str
    """Fingerprint of the subwords whose ids the shortlist holds."""
    data: str
    """Fingerprint of the dataset that the shortlist was learned from."""
    target_vocabulary: int
    """Number of target ids."""
    shared_vocabulary: bool
    """Whether source ids are target ids, too."""
    pairs: int
    """Number of training pairs read."""
    iterations: int
    """Iterations of expectation maximisation."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """Metadata of a shortlist's file."""

    origin: Origin
    sha256: str
    """Checksum of name, type, shape and bytes of each tensor."""


DESCRIPTIONS = DocumentFormat(kind=Description, name="nmt-shortlist", version=2, remedy=REMEDY)


@dataclass(frozen=True)
class Shortlist:
    """Shortlist of target ids for the tokens of a source."""

    frequent: Table
    """Target ids on every list: [F], the most frequent first."""

    candidates: Table
    """Target ids of each source id: [source vocabulary, K], the likeliest first. Shorter lists are
    padded with EOS, which is on every list."""

    origin: Origin

    def chosen(self, sources: Ids, forced: Ids | None = None) -> npt.NDArray[np.bool_]:
        """Return the shortlist of each sentence as a mask [B, V], True at chosen target ids.

        Args:
            sources: [B, S], padded. If the vocabulary is shared, the source ids are on the lists,
                too, because translations copy names and numbers.
            forced: [B, n], padded: further ids that must be on the lists.
        """
        chosen = np.zeros((len(sources), self.origin.target_vocabulary), np.bool_)
        chosen[:, SPECIAL] = True
        chosen[:, self.frequent] = True
        wanted: list[Ids] = [self.candidates[sources].reshape(len(sources), -1)]
        wanted += [sources] if self.origin.shared_vocabulary else []
        wanted += [forced] if forced is not None else []
        # Shorter rows are filled with EOS and PAD, which are chosen anyway.
        np.put_along_axis(chosen, np.concatenate(wanted, axis=1), True, axis=1)
        return chosen

    def save(self, path: Path) -> None:
        """Write the file atomically; the same shortlist gives the same bytes."""
        description = Description(origin=self.origin, sha256=self.checksum())
        # One key, because safetensors writes several keys in any order.
        metadata = {"description": DESCRIPTIONS.text(description)}
        with files.whole_file(path) as partial:
            try:
                save_file(self._arrays(), partial, metadata)
            except SafetensorError as error:  # no OSError, even if the disk is full
                raise files.os_error(error, partial) from None
            partial.chmod(0o644)  # safetensors makes files private

    @classmethod
    def load(cls, path: Path) -> Shortlist:
        """Read a shortlist from a file.

        Raises:
            NmtError: there is no shortlist, or it is damaged or of another version.
        """
        try:
            # safe_open itself would wait for a named pipe.
            documents.open_regular(path).close()
        except FileNotFoundError:
            raise NmtError(f"{path}: there is no shortlist; make it with `nmt shortlist`") from None
        try:
            with safe_open(path, "numpy") as file:
                text = (file.metadata() or {}).get("description", "")
                described = DESCRIPTIONS.parse(text, str(path))
                shortlist = cls(
                    file.get_tensor("frequent"), file.get_tensor("candidates"), described.origin
                )
        except (SafetensorError, TypeError, ValueError):
            raise NmtError(f"{path}: not a shortlist, or a damaged one; {REMEDY}") from None
        if shortlist.checksum() != described.sha256:
            raise NmtError(f"{path}: damaged: its checksum does not match; {REMEDY}")
        # A checksum proves that the file is unchanged, not that its ids are in range.
        if not shortlist._is_sound():
            raise NmtError(f"{path}: damaged: not tables of target ids; {REMEDY}")
        return shortlist

    def is_of(self, subwords: str, source_vocabulary: int, target_vocabulary: int) -> bool:
        """Whether the shortlist belongs to subwords with this fingerprint and these sizes."""
        return (
            self.origin.subwords == subwords
            and len(self.candidates) == source_vocabulary
            and self.origin.target_vocabulary == target_vocabulary
        )

    def checksum(self) -> str:
        """Return the SHA-256 of name, type, shape and bytes of each tensor."""
        digest = hashlib.sha256()
        for name, array in self._arrays().items():
            # Bytes alone do not tell a [2, 3] table from a [3, 2] table.
            digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def _is_sound(self) -> bool:
        return (self.frequent.ndim, self.candidates.ndim) == (1, 2) and all(
            array.dtype == np.int32
            and array.min(initial=0) >= 0
            and array.max(initial=0) < self.origin.target_vocabulary
            for array in self._arrays().values()
        )

    def _arrays(self) -> dict[str, Table]:
        return {"frequent": self.frequent, "candidates": self.candidates}
