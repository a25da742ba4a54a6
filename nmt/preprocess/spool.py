"""Encoded pairs in plain files, from which a killed preprocessing resumes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from nmt.data.columns import Sentences
from nmt.data.manifest import LINK_TYPE
from nmt.io import files
from nmt.preprocess.cleaning import CleaningStats
from nmt.preprocess.duplicates import mark_repeated, open_marks
from nmt.preprocess.encoding import Encoded

NUMBERS = ("keys", "weights")
"""Fields of :class:`~nmt.preprocess.encoding.Encoded` with numbers of each pair; empty where they
are not needed."""


@dataclass
class Progress:
    """Progress of encoding, as saved for a later run to resume from."""

    lines: list[int] = field(default_factory=list)
    """Lines read of each corpus begun; all but the last are read to the end."""
    pairs: list[int] = field(default_factory=list)
    """Pairs spooled of each corpus begun."""
    tally: CleaningStats = field(default_factory=CleaningStats)
    sizes: dict[str, int] = field(default_factory=dict)
    """Bytes of each file of the spool; bytes after these were written after this was saved."""
    is_done: bool = False


class Spool:
    """Encoded pairs in the order of the text: tokens, lengths and keys in plain files.

    Links are stored like tokens.
    """

    def __init__(self, directory: Path, dtypes: tuple[str, str], has_links: bool = False) -> None:
        """Open a spool, or begin one.

        Args:
            directory: for the files; made if missing.
            dtypes: types of the token ids of the source and of the target.
            has_links: whether the pairs have word alignments.
        """
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self._dtypes = {"source": dtypes[0], "target": dtypes[1]}
        if has_links:
            self._dtypes["links"] = LINK_TYPE
        self._names = [f"{side}.{kind}" for side in self._dtypes for kind in ("tokens", "lengths")]
        self._saved = directory / "progress.json"
        self.progress = Progress()
        if self._saved.exists():
            values = json.loads(self._saved.read_bytes())
            self.progress = Progress(**values | {"tally": CleaningStats(**values["tally"])})

    def fill(self, encoded: Iterable[Encoded], save_every: int) -> None:
        """Append all encoded blocks, and mark the spool as done.

        Args:
            encoded: the blocks after those that :attr:`progress` counts.
            save_every: number of blocks between saves of the progress.
        """
        progress = self.progress
        with ExitStack() as stack:
            out = {name: stack.enter_context(self._open(name)) for name in [*self._names, *NUMBERS]}

            def save() -> None:
                """Write the progress, behind all that it counts."""
                for name, file in out.items():
                    file.flush()
                    os.fsync(file.fileno())
                    progress.sizes[name] = file.tell()
                with files.whole_file(self._saved) as path:
                    path.write_text(json.dumps(asdict(progress)), encoding="utf-8")

            for count, block in enumerate(encoded, 1):
                corpus = block.block.corpus
                while len(progress.lines) <= corpus:
                    progress.lines.append(0)
                    progress.pairs.append(0)
                for side, dtype in self._dtypes.items():
                    sentences: Sentences = getattr(block, side)
                    out[f"{side}.tokens"].write(sentences.tokens.astype(dtype).tobytes())
                    out[f"{side}.lengths"].write(sentences.lengths.astype("<i4").tobytes())
                for name in NUMBERS:
                    out[name].write(getattr(block, name).tobytes())
                progress.lines[corpus] += block.block.lines
                progress.pairs[corpus] += len(block.source.lengths)
                progress.tally.add(block.stats)
                if count % save_every == 0:
                    save()
            progress.is_done = True
            save()

    @contextmanager
    def reader(self) -> Iterator[Callable[[int], list[Sentences]]]:
        """Yield a function that reads source, target and perhaps links of the next `n` pairs."""
        with ExitStack() as stack:
            opened = {
                name: stack.enter_context((self.directory / name).open("rb"))
                for name in self._names
            }

            def column(name: str, pairs: int) -> Sentences:
                """Return the next sentences of a column."""
                counts = np.fromfile(opened[f"{name}.lengths"], "<i4", pairs).astype(np.int64)
                dtype = self._dtypes[name]
                return Sentences(
                    np.fromfile(opened[f"{name}.tokens"], dtype, int(counts.sum())), counts
                )

            yield lambda pairs: [column(name, pairs) for name in self._dtypes]

    def weights(self, first: int, last: int) -> npt.NDArray[np.float32]:
        """Return the weights of the pairs from `first` to `last`, which have weights."""
        path = self.directory / "weights"
        return np.fromfile(path, np.float32, last - first, offset=first * 4)

    def repeated(self) -> npt.NDArray[np.bool_]:
        """Return for every pair [n] whether an equal pair came before, mapped from a file."""
        scratch, marks = self.directory / "parts", self.directory / "repeated"
        mark_repeated(self.directory / "keys", marks, scratch)
        return open_marks(marks)

    def _open(self, name: str) -> BinaryIO:
        file = (self.directory / name).open("ab")
        file.seek(file.truncate(self.progress.sizes.get(name, 0)))
        return file
