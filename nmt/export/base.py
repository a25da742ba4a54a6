"""The contract of an export format, and the directory that every export is.

An export holds what its engine reads and, beside it, what lines of text need: the subwords and the
recipe of the run. It needs nothing of the run any more, and can be moved or copied.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import yaml

from nmt import files
from nmt.errors import NmtError
from nmt.preprocess.subwords import Subwords
from nmt.registry import Registry
from nmt.runs import LoadedModel, load_model

VERSION = 1
"""Of the directory; another one is refused."""

DESCRIPTION = "export.json"

Stored = Literal["fp32", "fp16", "bf16", "int8"]
"""What weights are stored in; the engine may compute in another precision."""


@dataclass(frozen=True, kw_only=True)
class ExportFormat(ABC):
    """A way to write a model down for another engine."""

    registry: ClassVar[Registry[ExportFormat]]

    name: str = ""
    """Name of the format."""

    @abstractmethod
    def write(self, loaded: LoadedModel, stored: Stored, directory: Path) -> None:
        """Writes the model into an existing directory.

        Raises:
            NmtError: the engine cannot run such a model, or what writes the format is missing.
        """


export_formats: Registry[ExportFormat] = Registry("export format")
ExportFormat.registry = export_formats


@dataclass(frozen=True)
class Export:
    """A directory that :func:`export_run` made."""

    path: Path
    format: str
    """Name of its format."""
    recipe: dict[str, Any]
    """The resolved recipe of the run: plain values."""
    subwords: Subwords
    languages: tuple[str, str]
    """Source and target."""

    @classmethod
    def exists(cls, path: Path) -> bool:
        """Whether there is an export in the directory."""
        return (path / DESCRIPTION).exists()

    @classmethod
    def open(cls, path: Path, format_: str) -> Export:
        """The export in a directory, without its weights.

        Raises:
            NmtError: there is none, or it is damaged or of another format or version.
        """
        try:
            values = json.loads((path / DESCRIPTION).read_text(encoding="utf-8"))
            recipe = yaml.safe_load((path / "recipe.yaml").read_text(encoding="utf-8"))
            languages = (values["source_lang"], values["target_lang"])
            is_sound = values["format"] == "nmt-export" and isinstance(recipe, dict)
            is_sound = is_sound and all(isinstance(it, str) for it in languages)
        except FileNotFoundError as error:
            raise NmtError(
                f"{path}: not an exported model: it has no {Path(error.filename).name}; write one "
                "with nmt export, and give its directory with --model"
            ) from None
        except (UnicodeDecodeError, ValueError, KeyError, TypeError, yaml.YAMLError):
            is_sound = False
        if not is_sound:
            raise NmtError(f"{path}: a damaged export; make it again with nmt export")
        if values.get("version") != VERSION:
            raise NmtError(
                f"{path}: export version {values.get('version')}, but this nmt reads {VERSION}; "
                "make it again with nmt export"
            )
        if values.get("engine") != format_:
            raise NmtError(f"{path}: an export for {values.get('engine')}, not for {format_}")
        return cls(path, format_, recipe, Subwords.load(path), languages)


def export_run(
    model: Path, format_: ExportFormat, stored: Stored, output: Path, trust_plugins: bool = False
) -> Export:
    """A new export of a run or checkpoint, in the place of an older one; whole, or nothing.

    Raises:
        NmtError: there is no such model, it cannot be exported, or `output` holds anything else.
    """
    if output.exists() and not Export.exists(output) and not _is_empty(output):
        raise NmtError(f"{output}: holds something else than an export; choose another --output")
    loaded = load_model(model, trust_plugins=trust_plugins)
    with files.whole_directory(output.resolve()) as partial:
        format_.write(loaded, stored, partial)
        loaded.subwords.save(partial)
        recipe = yaml.safe_dump(loaded.recipe, sort_keys=False)
        (partial / "recipe.yaml").write_text(recipe, encoding="utf-8")
        description = {
            "format": "nmt-export",
            "version": VERSION,
            "engine": format_.name,
            "source_lang": loaded.run.source_lang,
            "target_lang": loaded.run.target_lang,
            "stored": stored,
        }
        text = json.dumps(description, indent=1) + "\n"
        (partial / DESCRIPTION).write_text(text, encoding="utf-8")
    return Export.open(output, format_.name)


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())
