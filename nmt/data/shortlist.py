"""Which target tokens may translate which source tokens: a table, and the file that holds it.

With it a search asks the output layer for the tokens that a sentence may need and no others (Jean
et al. 2015, *On Using Very Large Target Vocabulary for Neural Machine Translation*, section 3.4).
``docs/formats.md`` describes the file.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from nmt import files
from nmt.data.format import BOS, EOS, PAD, UNK, Ids
from nmt.errors import NmtError

VERSION = 1
"""Of the file; another one is refused."""

FORMAT = "nmt-shortlist"
REMEDY = "make it again with `nmt shortlist`"

SPECIAL = (PAD, UNK, BOS, EOS)
"""On every list, so that a list of all tokens changes nothing. No search gives PAD or BOS."""

Table = npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class Origin:
    """How a shortlist was made."""

    subwords: str
    """The fingerprint of the subwords whose ids it holds."""
    data: str
    """The fingerprint of the dataset it was learned from."""
    target_vocabulary: int
    """Number of target ids."""
    shared_vocabulary: bool
    """Whether source ids are target ids, too."""
    pairs: int
    """How many training pairs were read."""
    iterations: int
    """Of the expectation maximisation."""


@dataclass(frozen=True)
class Shortlist:
    """The target ids to choose from, given a source."""

    frequent: Table
    """Those that are always among them: [F], the most frequent first."""

    candidates: Table
    """Those of each source id: [source vocabulary, K], the likeliest first; EOS, which is on every
    list, where there are fewer."""

    origin: Origin

    def chosen(self, sources: Ids, forced: Ids | None = None) -> npt.NDArray[np.bool_]:
        """Which target ids are on the list of each sentence: [B, V].

        Args:
            sources: [B, S], padded. Where the vocabulary is shared, their own ids are on the lists,
                too: names and numbers are copied.
            forced: [B, n], padded: what else must be there.
        """
        chosen = np.zeros((len(sources), self.origin.target_vocabulary), np.bool_)
        chosen[:, SPECIAL] = True
        chosen[:, self.frequent] = True
        wanted: list[Ids] = [self.candidates[sources].reshape(len(sources), -1)]
        wanted += [sources] if self.origin.shared_vocabulary else []
        wanted += [forced] if forced is not None else []
        np.put_along_axis(chosen, np.concatenate(wanted, axis=1), True, axis=1)
        return chosen

    def save(self, path: Path) -> None:
        """Writes the file, whole or not at all; the same bytes for the same shortlist.

        Raises:
            NmtError: it cannot be written there.
        """
        # One key: safetensors writes several in any order.
        description = {"format": FORMAT, "version": VERSION, "origin": asdict(self.origin)}
        metadata = {"description": json.dumps({**description, "sha256": self._checksum()})}
        with files.whole_file(path) as partial:
            try:
                save_file(self._arrays(), partial, metadata)
            except SafetensorError as error:  # which is no OSError, also where the disk is full
                raise NmtError(
                    f"{path}: cannot be written: {error}; make room there, or copy the run to "
                    "where it may be written"
                ) from None
            partial.chmod(0o644)  # safetensors lets nobody else read it

    @classmethod
    def load(cls, path: Path) -> Shortlist:
        """The shortlist in a file.

        Raises:
            NmtError: there is none, or it is damaged or of another version.
        """
        if not path.is_file():
            raise NmtError(f"{path}: there is no shortlist; make it with `nmt shortlist`")
        try:
            with safe_open(path, "numpy") as file:
                described: dict[str, Any] = json.loads((file.metadata() or {})["description"])
                if described["format"] != FORMAT:
                    raise ValueError
                if described["version"] != VERSION:
                    raise NmtError(
                        f"{path}: a shortlist of format {described['version']}, but this nmt reads "
                        f"format {VERSION}; {REMEDY}"
                    )
                arrays = (file.get_tensor("frequent"), file.get_tensor("candidates"))
            found = cls(*arrays, Origin(**described["origin"]))
        except (SafetensorError, KeyError, TypeError, ValueError):
            raise NmtError(f"{path}: not a shortlist, or a damaged one; {REMEDY}") from None
        if found._checksum() != described["sha256"]:
            raise NmtError(f"{path}: damaged: its checksum does not match; {REMEDY}")
        return found

    def _arrays(self) -> dict[str, Table]:
        return {"frequent": self.frequent, "candidates": self.candidates}

    def _checksum(self) -> str:
        digest = hashlib.sha256(json.dumps(asdict(self.origin), sort_keys=True).encode())
        for name, array in self._arrays().items():
            digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()
