"""Packages for Argos Translate and LibreTranslate: ``translate-SOURCE_TARGET.argosmodel``.

A package is a zip archive of a directory with ``metadata.json``, a model for CTranslate2, one
SentencePiece model for both sides and a README (argostranslate 1.11, ``package.py``). Argos
Translate divides text into sentences by a model that it downloads itself.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from nmt.formats.ctranslate2 import CTranslate2Format
from nmt.formats.exporting import export_formats
from nmt.formats.model_card import MODEL_CARD
from nmt.languages import name_of
from nmt.messages import warn
from nmt.runs import LoadedModel
from nmt.runs.exports import Stored
from nmt.subwords.model_pieces import BYTE, pieces_of

VERSION = "1.0"
"""Version of the package, and of the format of its metadata."""


@export_formats.register("argos")
@dataclass(frozen=True, kw_only=True)
class ArgosFormat(CTranslate2Format):
    """A package that Argos Translate installs."""

    spells_text: ClassVar[bool] = True
    reads_tags: ClassVar[bool] = False
    refusal: ClassVar[str] = "Argos Translate cannot run a model with {}"

    shortlist: bool = False
    """Whether to write the shortlist of a run that has one; Argos Translate uses none."""

    def use(self, loaded: LoadedModel) -> str:
        """Return code for Python."""
        source, target = loaded.run.languages
        return (
            "```python\nfrom argostranslate import package, translate\n\n"
            f'package.install_from_path("{_stem(loaded)}.argosmodel")\n'
            f'print(translate.translate("One sentence.", "{source}", "{target}"))\n```\n'
        )

    def write(self, loaded: LoadedModel, stored: Stored, directory: Path) -> None:
        """Write the package."""
        if any(piece.kind == BYTE for piece in pieces_of(loaded.subwords.models[-1])):
            warn(
                "Argos Translate cannot spell characters in bytes; train with "
                "preprocess.byte_fallback false if rare characters matter"
            )
        stem = _stem(loaded)
        package = directory / stem
        (package / "model").mkdir(parents=True)
        super().write(loaded, stored, package / "model")
        source, target = loaded.run.languages
        metadata = {
            "package_version": VERSION,
            "argos_version": VERSION,
            "from_code": source,
            "from_name": name_of(source),
            "to_code": target,
            "to_name": name_of(target),
            "links": [],
        }
        text = json.dumps(metadata, indent=1, ensure_ascii=False) + "\n"
        (package / "metadata.json").write_text(text, encoding="utf-8")
        (package / "sentencepiece.model").write_bytes(loaded.subwords.models[0])
        (package / MODEL_CARD).write_text(self.card(loaded, stored), encoding="utf-8")
        with zipfile.ZipFile(directory / f"{stem}.argosmodel", "w") as archive:
            for path in sorted(package.rglob("*")):
                if path.is_file():
                    # Without the time of the file, so that equal models make equal packages.
                    entry = zipfile.ZipInfo(str(path.relative_to(directory)))
                    with (
                        path.open("rb") as file,
                        archive.open(entry, "w", force_zip64=True) as copy,
                    ):
                        shutil.copyfileobj(file, copy)
        shutil.rmtree(package)


def _stem(loaded: LoadedModel) -> str:
    return "translate-{}_{}".format(*loaded.run.languages)
