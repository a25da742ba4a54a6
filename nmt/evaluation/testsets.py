"""Test sets by name; sacreBLEU downloads them into ``~/.sacrebleu``, or into ``$SACREBLEU``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt.errors import NmtError
from nmt.io.lines import Lines
from nmt.recipe.registry import unknown

References = Sequence[str | Sequence[str]]
"""For each sentence its reference, or a sequence of several references."""


@dataclass(frozen=True)
class TestSet:
    """Source sentences, and their translations by humans: one or several for each."""

    __test__ = False  # for pytest

    name: str
    references: References
    sources: Sequence[str] | None = None
    """Source sentences; None if they are not known."""
    target_lang: str = ""
    """Language of the references; empty if it is not known."""

    def __str__(self) -> str:
        return f"{self.name}, {len(self.references):,} lines"


def by_name(name: str, pair: str) -> TestSet:
    """Return a test set, after downloading it if necessary.

    Raises:
        NmtError: there is no such test set or language pair, the download fails, or an earlier
            download is damaged.
    """
    from sacrebleu.dataset import DATASETS
    from sacrebleu.utils import SACREBLEU_DIR

    if name not in DATASETS:
        raise NmtError(unknown("test set", name, DATASETS))
    if pair not in DATASETS[name].langpairs:
        raise NmtError(f"{name}: {unknown('language pair', pair, DATASETS[name].langpairs)}")
    home = Path(SACREBLEU_DIR) / name
    damaged = NmtError(f"{name}: damaged; remove {home}, so that it is fetched again")
    dataset: Any = DATASETS[name]
    try:
        source, references = dataset.get_source_file(pair), dataset.get_reference_files(pair)
    except FileNotFoundError:  # in the unpacked archive: a kill interrupted the unpacking
        raise damaged from None
    # sacreBLEU exits where a checksum differs.
    except (Exception, SystemExit) as error:
        raise NmtError(
            f"{name}: cannot be fetched: {reason(error)}; remove {home} before another attempt; "
            f"without network access, copy {SACREBLEU_DIR} from another machine, or give the "
            "files with --reference"
        ) from None
    sources, *translations = (Lines.open(Path(path)).read() for path in (source, *references))
    # sacreBLEU uses whatever an interrupted download has left.
    if {len(sources)} != {*map(len, translations)} or not sources:
        raise damaged
    return TestSet(f"{name} {pair}", by_sentence(translations), sources, pair.partition("-")[2])


def reference_rows(references: References) -> list[list[str]]:
    """Return the references of each sentence as a list."""
    return [[row] if isinstance(row, str) else [*row] for row in references]


def by_sentence(sides: Sequence[Sequence[str]]) -> References:
    """Return the references of each sentence, from one or several translations of a test set.

    The translations have equally many lines.
    """
    return [*zip(*sides, strict=True)] if len(sides) > 1 else sides[0]


def reason(error: BaseException) -> str:
    """Return why sacreBLEU could not fetch a file, on one line."""
    if isinstance(error, SystemExit):
        return "the downloaded file does not match its checksum"
    return " ".join(str(getattr(error, "reason", error)).split())
