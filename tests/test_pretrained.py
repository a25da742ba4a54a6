"""Translators of runs, of other toolkits' models and of models of a hub; without a network."""

from __future__ import annotations

import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from foreign_models import ENGLISH, marian_model
from test_import_fairseq import NAMES
from test_import_fairseq import copy_model as copy_fairseq_model

import nmt as package
from nmt.errors import NmtError
from nmt.formats import import_model, importing
from nmt.inference import pretrained
from nmt.inference.pretrained import is_hub_name
from nmt.io.files import user_cache
from nmt.runs import Run

pytest.importorskip("transformers")
huggingface_hub = pytest.importorskip("huggingface_hub")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NMT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("foreign") / "opus-mt-en-de"
    marian_model(directory)
    return directory


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The models that are imported."""
    done: list[Path] = []

    def counted(source: Path, *arguments: Any, **settings: Any) -> Run:
        done.append(source)
        return import_model(source, *arguments, **settings)

    monkeypatch.setattr(pretrained, "import_model", counted)
    return done


def fake_hub(monkeypatch: pytest.MonkeyPatch, answer: Path | Exception) -> list[str]:
    """Let the hub's package give a directory or an error; return the names that are asked for."""
    asked: list[str] = []

    def snapshot_download(repo_id: str, allow_patterns: list[str]) -> str:
        asked.append(repo_id)
        if isinstance(answer, Path):
            names = {file.name for file in answer.iterdir() if file.is_file()}
            left = {n for n in names if not any(fnmatch(n, wanted) for wanted in allow_patterns)}
            assert left <= {"run.lock", "log.jsonl"}
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return asked


def test_a_run_and_a_checkpoint_are_themselves(trained: Path, cache: Path) -> None:
    lines = ["one two", "three"]
    expected = [*package.Translator(trained, device="cpu").translate(lines)]
    for path in (trained, str(trained), trained / "best"):
        translator = package.Translator.from_pretrained(path, device="cpu")
        assert [*translator.translate(lines)] == expected
    assert not cache.exists()


def test_a_model_of_another_toolkit_is_imported_once(
    foreign: Path, imports: list[Path], cache: Path, tmp_path: Path
) -> None:
    run = import_model(foreign, tmp_path / "run").path
    expected = [*package.Translator(run).translate(ENGLISH[:3])]
    for _ in range(2):
        translator = package.Translator.from_pretrained(foreign)
        assert [*translator.translate(ENGLISH[:3])] == expected
    assert imports == [foreign]
    changed = Path(shutil.copytree(foreign, tmp_path / "changed"))
    (changed / "generation_config.json").write_text('{"num_beams": 2}')
    run = pretrained.find_model(changed)
    assert Run.open(run).recipe["search"]["strategy"]["beam"] == 2
    assert imports == [foreign, changed]
    runs = [path.name for path in (cache / "imports").iterdir() if path.is_dir()]
    assert sorted(name.rpartition("-")[0] for name in runs) == ["changed", "opus-mt-en-de"]


def test_a_long_name_of_a_directory_is_cut_in_the_cache(foreign: Path, tmp_path: Path) -> None:
    model = shutil.copytree(foreign, tmp_path / ("ß" * 120))
    assert pretrained.find_model(model).name.startswith("ß" * 50 + "-")


def test_two_at_once_import_once(foreign: Path, imports: list[Path]) -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(pretrained.find_model, [foreign] * 2)
    assert first == second
    assert len(imports) == 1


def test_an_import_that_fails_leaves_no_run(
    foreign: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    with monkeypatch.context() as context:
        context.setattr(importing.Run, "save", lambda *arguments, **settings: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            pretrained.find_model(foreign)
    assert [path.suffix for path in (cache / "imports").iterdir()] == [".lock"]
    assert Run.exists(pretrained.find_model(foreign))


def test_a_model_of_the_hub(
    foreign: Path, monkeypatch: pytest.MonkeyPatch, imports: list[Path], nmt: Any, tmp_path: Path
) -> None:
    asked = fake_hub(monkeypatch, foreign)
    run = pretrained.find_model("Helsinki-NLP/opus-mt-en-de")
    assert run.name.startswith("opus-mt-en-de-")
    assert Run.open(run).recipe["imported"]["source"] == "Helsinki-NLP/opus-mt-en-de"
    assert imports == [foreign]
    done = nmt("import", "Helsinki-NLP/opus-mt-en-de", "--output", tmp_path / "run")
    assert (done.status, done.out) == (0, f"{tmp_path / 'run'}\n"), done.err
    assert asked == ["Helsinki-NLP/opus-mt-en-de"] * 2


@pytest.mark.parametrize("name", NAMES)
def test_a_fairseq_model_of_the_hub(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    directory = copy_fairseq_model(tmp_path / name, name)
    for other in ("expected.tsv", "model.pt.gz"):
        (directory / other).unlink()
    fake_hub(monkeypatch, directory)
    run = pretrained.find_model(f"owner/{name}")
    assert Run.open(run).recipe["imported"]["format"] == "fairseq"


def test_a_run_of_the_hub_has_no_links(
    trained: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copytree(trained, tmp_path / "pulled", ignore=shutil.ignore_patterns("best", "last"))
    fake_hub(monkeypatch, tmp_path / "pulled")
    assert pretrained.find_model("owner/model").name == "update_0000006"
    assert [*package.Translator.from_pretrained("owner/model").translate(["one"])]


def test_mistakes_are_one_line(
    monkeypatch: pytest.MonkeyPatch, nmt: Any, foreign: Path, tmp_path: Path
) -> None:
    fake_hub(monkeypatch, huggingface_hub.errors.HFValidationError("Repo id is bad\nmore"))
    done = nmt("import", "owner/none", "--output", tmp_path / "run")
    assert (done.status, done.err) == (
        1,
        "nmt: error: owner/none: no such directory, and the Hugging Face hub does not give it: "
        "Repo id is bad; mend the name, or give a directory\n",
    )
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(NmtError, match=r"^owner/none: .* pip install 'nmt-toolkit\[hub\]', or "):
        package.Translator.from_pretrained("owner/none")
    with pytest.raises(NmtError, match="does not exist; give a run directory"):
        package.Translator.from_pretrained("nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NmtError, match=r"it has no run\.json; give a run directory"):
        package.Translator.from_pretrained(tmp_path / "empty")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for value in (str(tmp_path / "file"), ""):
        monkeypatch.setenv("NMT_CACHE", value)
        assert user_cache() == tmp_path / ("file" if value else "nmt")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert user_cache() == Path.home() / ".cache" / "nmt"
    monkeypatch.setenv("NMT_CACHE", str(tmp_path / "file"))
    with pytest.raises(
        NmtError, match=r"cannot be written: .*; set NMT_CACHE to another directory"
    ):
        pretrained.find_model(foreign)


def test_names_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "here").mkdir(parents=True)
    assert is_hub_name("Helsinki-NLP/opus-mt-en-de")
    for name in ("runs/here", "a/b/c", "/tmp/x", "./x", "x", "../x", "a/.b"):
        assert not is_hub_name(name)
