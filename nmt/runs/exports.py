"""The directory of an export: the files of its engine, and the subwords and recipe of the run.

An export does not need the run any more, and can be moved or copied.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from nmt.data.vocabulary import SPECIAL_PIECES
from nmt.errors import NmtError
from nmt.io import documents
from nmt.io.documents import DocumentFormat, FileFacts
from nmt.runs.recipe import read_recipe
from nmt.subwords.subwords import Subwords

EXPORT = "export.json"
"""File that an export of a run for another engine has instead of ``run.json``."""

VERSION = 3
"""Version of the directory; other versions are refused."""

REMEDY = "make it again with nmt export"

VOCABULARY_MAP = "vmap.txt"
"""File that an export for CTranslate2 has if the run has a shortlist."""

Stored = Literal["fp32", "fp16", "bf16", "int8"]
"""Data type of the stored weights; the engine may compute in another precision."""


@dataclass(frozen=True, kw_only=True)
class _ExportDescription:
    """The content of ``export.json``."""

    engine: str
    source_lang: str
    target_lang: str
    stored: Stored
    files: dict[str, FileFacts]

    def __post_init__(self) -> None:
        documents.check_inside(self.files)


_FORMAT = DocumentFormat(kind=_ExportDescription, name="nmt-export", version=VERSION, remedy=REMEDY)


@dataclass(frozen=True)
class Export:
    """A directory that :func:`export_run` made."""

    path: Path
    format: str
    """Name of its format."""
    subwords: Subwords
    languages: tuple[str, str]
    """Source and target."""
    files: dict[str, FileFacts]
    """Size and checksum of every file."""

    @classmethod
    def exists(cls, path: Path) -> bool:
        """Whether there is an export in the directory."""
        return (path / EXPORT).exists()

    @classmethod
    def open(cls, path: Path, format_: str) -> Export:
        """Open the export in a directory, without its weights.

        Raises:
            NmtError: the export is missing or damaged, or has another format or version.
        """
        try:
            description = _FORMAT.read(path / EXPORT)
        except (FileNotFoundError, NotADirectoryError):
            raise NmtError(
                f"{path}: not an exported model: it has no {EXPORT}; write one with nmt "
                "export, and give its directory as the model"
            ) from None
        if description.engine != format_:
            raise NmtError(
                f"{path}: an export for {description.engine}, not for {format_}; give the run "
                f"as the model, or export it with --format {format_}"
            )
        subwords = Subwords.load_checked(path, description.files, REMEDY)
        languages = (description.source_lang, description.target_lang)
        return cls(path, format_, subwords, languages, description.files)

    @classmethod
    def describe(cls, path: Path, format_: str, languages: tuple[str, str], stored: Stored) -> None:
        """Write the description of the files in a directory, which makes it an export.

        Args:
            path: the directory, with the files of the engine, the subwords and the recipe.
            format_: name of the export's format.
            languages: source and target language.
            stored: data type of the stored weights.
        """
        description = _ExportDescription(
            engine=format_,
            source_lang=languages[0],
            target_lang=languages[1],
            stored=stored,
            files={
                str(file.relative_to(path)): FileFacts.from_file(file)
                # In order, so that equal exports have equal descriptions.
                for file in sorted(path.rglob("*"))
                if file.is_file()
            },
        )
        # Last, because it holds the checksums of all other files.
        (path / EXPORT).write_text(_FORMAT.text(description), encoding="utf-8")

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """The resolved recipe of the run: plain values.

        Raises:
            NmtError: the recipe is missing or has changed.
        """
        return read_recipe(self.path)

    @cached_property
    def vocabularies(self) -> tuple[list[str], list[str]]:
        """CTranslate2's names of the source and of the target token ids, in order."""
        return vocabularies(self.subwords)

    @property
    def has_shortlist(self) -> bool:
        """Whether the export holds a shortlist, which CTranslate2 calls a vocabulary map."""
        return VOCABULARY_MAP in self.files

    def check_files(self) -> None:
        """Compare every file with its checksum.

        Raises:
            NmtError: a file is missing or has changed.
        """
        for name, facts in self.files.items():
            documents.check(self.path / name, facts, REMEDY)


MAX_POSITIONS = 2048
"""Rows of the exported position tables, and the maximum length of a sentence."""

QUANTIZATIONS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int8": "int8"}


def vocabularies(subwords: Subwords) -> tuple[list[str], list[str]]:
    """Return CTranslate2's names of the source and of the target token ids, in order."""
    source = subwords.source_pieces(list(range(subwords.source_size)))
    target = source
    if not subwords.shared:
        target = subwords.target_pieces(list(range(subwords.target_size)))
    rest = len(SPECIAL_PIECES)  # CTranslate2 has the same names of special ids
    return [*SPECIAL_PIECES, *source[rest:]], [*SPECIAL_PIECES, *target[rest:]]


def check_vocabularies(export: Export) -> None:
    """Check that the vocabulary files hold the tokens of the subwords, and that a map has lines.

    CTranslate2 does not even compare the number of tokens with the weights, and an empty map kills
    the process.

    Raises:
        ValueError: a file holds other tokens, or the map does not begin with the tokens of all
            lists.
    """
    shared, *separate = (
        export.path / f"{name}_vocabulary.json" for name in ("shared", "source", "target")
    )
    paths = [shared, shared] if shared.exists() else separate
    for path, tokens in zip(paths, export.vocabularies, strict=True):
        if json.loads(path.read_bytes()) != tokens:
            raise ValueError(f"{path.name} does not hold the tokens of the subwords")
    vocabulary_map = export.path / VOCABULARY_MAP
    if vocabulary_map.exists():
        with vocabulary_map.open("rb") as file:
            if file.read(1) != b"\t":
                raise ValueError(f"{VOCABULARY_MAP} does not begin with the tokens of all lists")
