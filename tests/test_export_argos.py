"""Packages for Argos Translate and LibreTranslate: their files, and what the real program reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from foreign_models import ENGLISH, marian_model
from test_export import random_run
from test_tags import DIRECTIONS, subwords_of

import nmt
from nmt.formats import export_formats, export_run, import_model

pytest.importorskip("ctranslate2")

ARGOS = export_formats["argos"]

INSTALL = """
import sys
from argostranslate import package, sbd, translate

class Whole:  # stands in for the model that divides text, which Argos Translate would download
    def __init__(self, language, use_gpu):
        assert language == "en"

    def sentences(self, text):
        return [text]

sbd.SBDetect = Whole
package.install_from_path(sys.argv[1])
for line in sys.stdin:
    print(translate.translate(line.rstrip(), "en", "de"))
"""


def in_argos(package: Path, lines: list[str], home: Path, compute_type: str) -> list[str]:
    """The translations of Argos Translate, after it has installed a package."""
    places = {f"XDG_{name}_HOME": str(home / name) for name in ("DATA", "CONFIG", "CACHE")}
    places["ARGOS_COMPUTE_TYPE"] = compute_type
    done = subprocess.run(
        [sys.executable, "-c", INSTALL, package],
        env=os.environ | places,
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


needs_argos = pytest.mark.skipif(
    find_spec("argostranslate") is None, reason="Argos Translate is not installed"
)
SEARCH: dict[str, Any] = {
    "strategy": {
        "name": "beam",
        "beam": 4,
        "length_penalty": {"name": "power", "alpha": 0.2},
        "stop": "first_beam",
    },
    "constraints": [],
    "max_length_ratio": 0.0,
    "max_length_offset": 256,
}
"""The search of Argos Translate, which is fixed."""


@needs_argos
@pytest.mark.full
@pytest.mark.parametrize(
    ("stored", "compute_type", "changes"),
    [
        ("fp32", "default", {}),
        # Argos Translate's own default, "auto", computes in int8.
        ("int8", "auto", {"share_encoder_decoder_embeddings": False, "end": 0.5}),
    ],
)
def test_argos_translate_installs_a_package_and_gives_the_text_of_nmt(
    stored: Any, compute_type: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    marian_model(tmp_path / "opus", **changes)
    run = import_model(tmp_path / "opus", tmp_path / "run").path
    for name in ("argos", "ctranslate2"):
        export_run(run, export_formats[name], stored, tmp_path / name)
    lines = [" ".join(line.split()[:at]) for line in ENGLISH[:3] for at in (1, 2, 3, 6)]
    package = tmp_path / "argos" / "translate-en_de.argosmodel"
    theirs = in_argos(package, lines, tmp_path, compute_type)
    translator = nmt.Translator(tmp_path / "ctranslate2", precision=stored, **SEARCH)
    assert theirs == list(translator.translate(lines))
    assert all(theirs)  # Argos Translate never gives an empty translation
    assert len({*theirs}) > 2


def test_a_package_is_one_archive_with_a_model_and_its_metadata(
    trained: Path, tmp_path: Path, nmt: Callable[..., Any]
) -> None:
    done = nmt("export", "--format", "argos", "-m", trained, "--output", tmp_path / "exported")
    assert done.status == 0, done.err
    package = tmp_path / "exported" / "translate-en_de.argosmodel"
    with zipfile.ZipFile(package) as archive:
        names = {*archive.namelist()}
        metadata = json.loads(archive.read("translate-en_de/metadata.json"))
        card = archive.read("translate-en_de/README.md").decode()
    assert {name.removeprefix("translate-en_de/") for name in names} == {
        "README.md",
        "metadata.json",
        "model/config.json",
        "model/model.bin",
        "model/shared_vocabulary.json",
        "sentencepiece.model",
    }
    assert (metadata["from_code"], metadata["from_name"]) == ("en", "English")
    assert (metadata["to_code"], metadata["to_name"]) == ("de", "German")
    assert card == (tmp_path / "exported" / "README.md").read_text(encoding="utf-8")
    export_run(trained, ARGOS, "fp32", tmp_path / "again")
    assert package.read_bytes() == (tmp_path / "again" / package.name).read_bytes()


def test_argos_translate_adds_no_tags(tmp_path: Path, nmt: Callable[..., Any]) -> None:
    run = random_run(tmp_path / "run", subwords_of(DIRECTIONS))
    done = nmt("export", "--format", "argos", "-m", run, "--output", tmp_path / "exported")
    assert done.err == (
        f"nmt: error: {run}: Argos Translate cannot run a model with preprocess.tags source; "
        "translate with nmt itself\n"
    )
