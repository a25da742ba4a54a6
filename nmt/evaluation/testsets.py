"""Test sets by name, fetched and kept by sacreBLEU in ``~/.sacrebleu``, or in ``$SACREBLEU``."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sacrebleu.dataset import DATASETS
from sacrebleu.utils import SACREBLEU_DIR

from nmt.errors import NmtError
from nmt.io.lines import Lines
from nmt.recipe.registry import unknown

TIMEOUT = 60.0
"""Seconds without an answer after which a server counts as out of reach."""


@dataclass(frozen=True)
class TestSet:
    """What is to be translated, and how a human did."""

    __test__ = False  # to pytest

    name: str
    references: Sequence[str]
    sources: Sequence[str] | None = None
    """None where they are not known."""
    target_lang: str = ""
    """Of the references; empty where it is not known."""

    def __str__(self) -> str:
        return f"{self.name}, {len(self.references):,} lines"


def names() -> list[str]:
    """The names of all test sets, such as ``wmt14/full``."""
    return sorted(DATASETS)


def language_pairs(name: str) -> list[str]:
    """The language pairs of a test set, such as ``en-de``."""
    if name not in DATASETS:
        raise NmtError(unknown("test set", name, DATASETS))
    return sorted(DATASETS[name].langpairs)


def by_name(name: str, pair: str) -> TestSet:
    """The test set of that name, which is fetched where it was not yet.

    Raises:
        NmtError: there is no such test set or language pair, it has more than one reference, it
            cannot be fetched, or what was fetched before is damaged.
    """
    if pair not in language_pairs(name):
        raise NmtError(f"{name}: {unknown('language pair', pair, DATASETS[name].langpairs)}")
    home = Path(SACREBLEU_DIR) / name
    with _fetching(name, home):
        dataset: Any = DATASETS[name]
        source, references = dataset.get_source_file(pair), dataset.get_reference_files(pair)
    if len(references) != 1:
        raise NmtError(f"{name}: {len(references)} references for each line; choose one with one")
    sources, translations = (Lines.open(Path(path)).read() for path in (source, *references))
    if len(sources) != len(translations) or not sources:
        raise NmtError(f"{name}: damaged; remove {home}, so that it is fetched again")
    return TestSet(f"{name} {pair}", translations, sources, pair.partition("-")[2])


@contextmanager
def _fetching(name: str, home: Path) -> Iterator[None]:
    """Makes one line of each way to fail, and removes the files that a failed attempt began.

    sacreBLEU takes a file that is there for a file that is whole.
    """
    before, timeout = set(home.rglob("*")), socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT)
    try:
        yield
    except (Exception, SystemExit) as error:
        for path in set(home.rglob("*")) - before:
            if path.is_file():
                path.unlink()
        # A file missing from what was unpacked: that was cut short by a kill.
        if isinstance(error, FileNotFoundError) and home.exists():
            raise NmtError(f"{name}: damaged; remove {home}, so that it is fetched again") from None
        reason = " ".join(str(getattr(error, "reason", error)).split())
        if isinstance(error, SystemExit):
            reason = "what came is not what its checksum says"
        raise NmtError(
            f"{name}: cannot be fetched: {reason}; where the network does not allow it, copy "
            f"{SACREBLEU_DIR} from a machine where it does, or give the files with --reference"
        ) from None
    finally:
        socket.setdefaulttimeout(timeout)
