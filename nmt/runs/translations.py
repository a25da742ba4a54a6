"""Translations of the validation set, which a run keeps for some of its validations."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from nmt.errors import NmtError
from nmt.io import documents, files

DIRECTORY = "validation"


def write_translations(run: Path, update: int, lines: Sequence[str], best: int) -> None:
    """Write the translations of a validation into a run, and remove translations not to keep.

    The run keeps the newest and the best translations, and the first translations at or after each
    power of two. So a run of N updates keeps about log2(N) files, which show how the translations
    changed.

    Args:
        run: directory of the run.
        update: number of the update that was validated.
        lines: a translation of each source sentence of the validation set.
        best: number of the update of the best validation.
    """
    directory = run / DIRECTORY
    directory.mkdir(exist_ok=True)
    # A kill may have left a half-written file.
    files.sweep(directory)
    with files.whole_file(_file(run, update)) as partial:
        partial.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    updates = kept_translations(run)
    # One for each power of two shows how a model learns, in a bounded number of files.
    kept = {update, best, *{at.bit_length(): at for at in reversed(updates)}.values()}
    for at in updates:
        if at not in kept or at > update:  # a resumed training writes later files again
            _file(run, at).unlink()


def remove_translations(run: Path) -> None:
    """Remove all translations that a run keeps, if there are any."""
    shutil.rmtree(run / DIRECTORY, ignore_errors=True)


def kept_translations(run: Path) -> list[int]:
    """Return the numbers of the updates whose translations a run keeps, in order."""
    names = (path.stem.removeprefix("update_") for path in (run / DIRECTORY).glob("update_*.txt"))
    return sorted(int(name) for name in names if name.isdecimal())


def read_translations(run: Path, update: int, lines: int) -> list[str]:
    """Return the translations of a validation.

    Args:
        run: directory of the run.
        update: number of the update that was validated.
        lines: number of sentences of the validation set.

    Raises:
        NmtError: the file is damaged: it has another number of lines, or is not UTF-8.
    """
    path = _file(run, update)
    with documents.open_regular(path) as file:
        content = file.read()
    try:
        translations = content.decode("utf-8").split("\n")[:-1]
    except UnicodeDecodeError:
        raise NmtError(f"{path}: damaged: not UTF-8; remove the file") from None
    if len(translations) != lines:
        raise NmtError(
            f"{path}: damaged: {len(translations)} translations of {lines} sentences; remove the "
            "file"
        )
    return translations


def _file(run: Path, update: int) -> Path:
    return run / DIRECTORY / f"update_{update:07d}.txt"
