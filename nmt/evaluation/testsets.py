"""Test sets by name; sacreBLEU downloads them into ``~/.sacrebleu``, or into ``$SACREBLEU``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sacrebleu.dataset import DATASETS
from sacrebleu.utils import SACREBLEU_DIR

from nmt.errors import NmtError
from nmt.evaluation.fetching import fetching, reason
from nmt.io.lines import Lines
from nmt.recipe.registry import unknown


@dataclass(frozen=True)
class TestSet:
    """Source sentences, and their translations by humans."""

    __test__ = False  # to pytest

    name: str
    references: Sequence[str]
    sources: Sequence[str] | None = None
    """Source sentences; None if they are not known."""
    target_lang: str = ""
    """Language of the references; empty if it is not known."""

    def __str__(self) -> str:
        return f"{self.name}, {len(self.references):,} lines"


def by_name(name: str, pair: str) -> TestSet:
    """Return a test set, after downloading it if necessary.

    Raises:
        NmtError: there is no such test set or language pair, the test set has more than one
            reference, the download fails, or an earlier download is damaged.
    """
    if name not in DATASETS:
        raise NmtError(unknown("test set", name, DATASETS))
    if pair not in DATASETS[name].langpairs:
        raise NmtError(f"{name}: {unknown('language pair', pair, DATASETS[name].langpairs)}")
    with _fetching(name):
        dataset: Any = DATASETS[name]
        source, references = dataset.get_source_file(pair), dataset.get_reference_files(pair)
    if len(references) != 1:
        raise NmtError(f"{name}: {len(references)} references for each line; choose one with one")
    sources, translations = (Lines.open(Path(path)).read() for path in (source, *references))
    if len(sources) != len(translations) or not sources:
        raise _damaged(name)
    return TestSet(f"{name} {pair}", translations, sources, pair.partition("-")[2])


def _damaged(name: str) -> NmtError:
    home = Path(SACREBLEU_DIR) / name
    return NmtError(f"{name}: damaged; remove {home}, so that it is fetched again")


@contextmanager
def _fetching(name: str) -> Iterator[None]:
    """Turn each failure into an NmtError, and remove the files of a failed attempt."""
    root = Path(SACREBLEU_DIR)
    try:
        with fetching(root, name):
            yield
    except (Exception, SystemExit) as error:
        # A file of the unpacked archive is missing: a kill interrupted the unpacking.
        if isinstance(error, FileNotFoundError) and (root / name).exists():
            raise _damaged(name) from None
        raise NmtError(
            f"{name}: cannot be fetched: {reason(error)}; where the network does not allow it, "
            f"copy {SACREBLEU_DIR} from a machine where it does, or give the files with --reference"
        ) from None
