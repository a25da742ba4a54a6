"""fairseq's dictionaries, and the subwords of its training text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nmt.errors import NmtError
from nmt.imports.base import MAX_JSON, read_sentencepiece
from nmt.imports.vocabularies import ReorderedVocabulary
from nmt.io import reading
from nmt.preprocess.bpe import BpeCodes, parse_codes

BEGIN, PAD, END, UNKNOWN = range(4)
"""fairseq's special ids. The decoder begins with the end of a sentence."""

OVERWRITES = "#fairseq:overwrite"
"""Mark of a line whose piece takes the place of an earlier one."""

SENTENCEPIECE = ("sentencepiece.bpe", "sentencepiece", "spm")
"""Names of a SentencePiece model, without ``.model``."""

CODES = ("bpecodes", "code", "codes")
"""Names of a file with BPE codes."""


def dictionary(path: Path, size: int, is_target: bool) -> ReorderedVocabulary:
    """Return the vocabulary of a dictionary.

    Args:
        path: of a file with a piece and its count in each line.
        size: number of vectors of the model.
        is_target: whether the decoder reads it.

    Raises:
        NmtError: the file is missing or damaged, or of another size.
    """
    lines = _lines(path)
    names = {BEGIN: "<s>"}
    for number, line in enumerate(lines, 1):
        piece, _, count = line.removesuffix(f" {OVERWRITES}").rpartition(" ")
        if not piece or not count.isascii() or not count.isdecimal():
            raise NmtError(f"{path}:{number}: expected a piece and a count, not {line[:99]!r}")
        if line.endswith(OVERWRITES):
            if piece == names[BEGIN]:
                continue
            names = {earlier: name for earlier, name in names.items() if name != piece}
        names[UNKNOWN + number] = piece
    if len(lines) + UNKNOWN + 1 != size:
        raise NmtError(
            f"{path}: {len(lines)} pieces and 4 special ones, but the model has {size} vectors"
        )
    start = END if is_target else None
    try:
        return ReorderedVocabulary.of(names, size, PAD, UNKNOWN, start, END)
    except ValueError as error:
        raise NmtError(f"{path}: {error}") from None


def read_segmenter(
    source: Path, language: str, tokenisation: Mapping[str, Any]
) -> tuple[Path, bytes | BpeCodes]:
    """Return the SentencePiece model or the BPE codes of a language, and the path of their file.

    Args:
        source: directory of the model.
        language: its files are preferred to those of both languages.
        tokenisation: before BPE codes.

    Raises:
        NmtError: there are none, or they are damaged.
    """
    for name in SENTENCEPIECE:
        for path in (source / f"{name}.{language}.model", source / f"{name}.model"):
            if path.exists():
                return path, read_sentencepiece(path)
    for name in CODES:
        for path in (source / f"{name}.{language}", source / name):
            if path.exists():
                text = "\n".join(_lines(path))
                try:
                    return path, parse_codes(text, language=language, **tokenisation)
                except ValueError as error:
                    raise NmtError(f"{path}: {error}; copy the codes again") from None
    names = ", ".join((*(f"{name}.model" for name in SENTENCEPIECE), *CODES))
    raise NmtError(f"{source}: holds no subwords of {language}: none of {names}")


def _lines(path: Path) -> list[str]:
    """Return the lines of a file."""
    try:
        text = reading.read_bounded(path, MAX_JSON).decode()
    except FileNotFoundError:
        raise NmtError(f"{path}: missing; the import needs it") from None
    except UnicodeDecodeError:
        raise NmtError(f"{path}: not UTF-8") from None
    return [line.rstrip() for line in text.removesuffix("\n").split("\n")] if text else []
