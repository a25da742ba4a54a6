from __future__ import annotations

import hashlib
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from for_each import for_each

from nmt.cli.recipe import load
from nmt.errors import NmtError
from nmt.recipe.plugins import (
    import_copies,
    import_plugins,
    is_trusted,
    plugin_names,
    plugin_sources,
)
from nmt.runs.recipe import differing, import_plugins_of_run, read_plugins, write_plugins


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory; what is imported from it is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(sys, "meta_path", sys.meta_path.copy())
    monkeypatch.delenv("NMT_TRUST_PLUGINS", raising=False)
    yield tmp_path
    for name in [*sys.modules]:
        if name.startswith("my_"):
            del sys.modules[name]


def message(module: str, directory: Path | None) -> str:
    with pytest.raises(NmtError) as error:
        import_plugins([module], "nmt.yaml", directory)
    assert "\n" not in str(error.value)
    return str(error.value)


@for_each("value", [5, "mymodel", {"a": 1}, [""], [".x"], ["a..b"], ["a/b"], [1]])
def test_plugins_that_are_no_list_of_modules_cost_one_line(value: object) -> None:
    with pytest.raises(NmtError) as error:
        plugin_names(value, "nmt.yaml")
    expected = "nmt.yaml: plugins: expected a list of modules, such as [mymodel], not "
    assert str(error.value) == expected + repr(value)


def test_plugins_without_a_value_are_none() -> None:
    assert plugin_names(None, "nmt.yaml") == ()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("raise ValueError('broken\\nhere')", " ({file}, line 1): ValueError: broken here"),
        ("import sys\nsys.exit(3)", " ({file}, line 2): SystemExit: 3"),
        ("class E(BaseException): pass\nraise E", " ({file}, line 2): E: "),
        ("def", ": SyntaxError: invalid syntax (my_raises.py, line 1)"),
        (
            "from nmt.evaluation.metrics import metrics\nmetrics.add('bleu', metrics['chrf'])",
            " ({file}, line 2): ValueError: a metric 'bleu' already exists: choose another",
        ),
        (
            "import dataclasses\nfrom nmt.evaluation.metrics import Bleu\n\n\n"
            "@dataclasses.dataclass\nclass Mine(Bleu): pass",
            " ({file}, line 5): TypeError: cannot inherit non-frozen dataclass from a frozen one",
        ),
        (
            "from dataclasses import replace\nfrom nmt.models import architectures\n"
            "replace(architectures['transformer_tiny'], d_model=-1)",
            " ({file}, line 3): ValueError: d_model must be at least 1, not -1",
        ),
        ("import no_such_module", " ({file}, line 1): No module named 'no_such_module'; looked "),
    ],
)
def test_a_plugin_that_raises_costs_one_line_with_its_place(
    directory: Path, source: str, expected: str
) -> None:
    file = directory / "my_raises.py"
    file.write_text(source)
    start = "nmt.yaml: cannot import the plugin 'my_raises'" + expected.format(file=file)
    assert message("my_raises", directory).startswith(start)


@pytest.mark.parametrize("path", ["my_raises.py", "./my_raises.py", "plugins/my_raises.py"])
def test_the_file_of_a_plugin_in_the_place_of_its_name_is_answered(
    directory: Path, path: str
) -> None:
    (directory / "my_raises.py").write_text("")
    said = message(path, directory)
    assert said == (
        f"nmt.yaml: cannot import the plugin '{path}'; give the name of the module, without .py"
    )


def test_an_interruption_of_a_plugin_stays_one(directory: Path) -> None:
    (directory / "my_raises.py").write_text("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        import_plugins(["my_raises"], "nmt.yaml", directory)


def test_no_file_beside_a_plugin_takes_the_place_of_an_installed_module(directory: Path) -> None:
    (directory / "my_parts.py").write_text("import my_helper, wave\n")
    (directory / "my_helper.py").write_text("")
    (directory / "wave.py").write_text("raise RuntimeError")  # a module of Python
    sys.modules.pop("wave", None)
    import_plugins(["my_parts"], "nmt.yaml", directory)
    assert sys.path[-1] == str(directory)
    assert Path(str(sys.modules["wave"].__file__)).parent != directory
    assert sys.modules["my_helper"].__file__ == str(directory / "my_helper.py")


def test_a_plugin_with_the_name_of_an_installed_module_is_refused(directory: Path) -> None:
    (directory / "wave.py").write_text("raise RuntimeError")
    sys.modules.pop("wave", None)
    said = message("wave", directory)
    assert said.startswith(f"nmt.yaml: the plugin {directory / 'wave.py'} has the name of an inst")
    assert said.endswith("; rename it")
    assert str(directory) not in sys.path


def test_a_directory_that_holds_no_plugin_is_not_searched_later(directory: Path) -> None:
    (directory / "wave").mkdir()  # of no modules
    sys.modules.pop("wave", None)
    import_plugins(["wave"], "nmt.yaml", directory)
    assert str(directory) not in sys.path


def test_a_package_is_imported_by_its_dotted_name(directory: Path) -> None:
    (directory / "my_package").mkdir()
    (directory / "my_package" / "models.py").write_text("")
    import_plugins(["my_package.models"], "nmt.yaml", directory)
    assert "my_package.models" in sys.modules


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("0", False), ("", False)])
def test_the_environment_may_trust(
    monkeypatch: pytest.MonkeyPatch, value: str, expected: bool
) -> None:
    assert not is_trusted(False)
    assert is_trusted(True)
    monkeypatch.setenv("NMT_TRUST_PLUGINS", value)
    assert is_trusted(False) == expected


def found(directory: Path) -> Path:
    """A recipe in the current directory, with a plugin that leaves a mark when it is run."""
    (directory / "my_payload.py").write_text("open('ran', 'w')")
    recipe = directory / "nmt.yaml"
    recipe.write_text("plugins: [my_payload]")
    return recipe


def test_a_recipe_that_was_found_imports_nothing_without_consent(directory: Path) -> None:
    found(directory)
    with pytest.raises(NmtError) as error:
        load(None, None, {})
    assert str(error.value) == (
        "nmt.yaml: names Python code to import: my_payload; it was found in the current directory: "
        "if it is yours, give --config nmt.yaml, --plugin my_payload or --trust-plugins "
        "(or NMT_TRUST_PLUGINS=1)"
    )
    assert not Path("ran").exists()


def test_a_recipe_that_was_found_and_is_trusted_announces_what_it_imports(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found(directory)
    assert load(None, None, {}, trust_plugins=True).plugins == ("my_payload",)
    assert Path("ran").exists()
    load(None, None, {})  # is imported already
    assert capsys.readouterr().err == "nmt.yaml: imports my_payload\n"


def test_a_recipe_or_a_plugin_that_was_given_is_imported_without_a_word(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = found(directory)
    load(recipe, None, {})
    assert Path("ran").exists()
    del sys.modules["my_payload"]
    load(None, None, {}, plugins=["my_payload"])
    assert capsys.readouterr().err == ""


def test_a_plugin_of_the_command_line_is_one_of_the_recipe(directory: Path) -> None:
    (directory / "my_parts.py").write_text("")
    assert load(None, None, {}, plugins=["my_parts"]).plugins == ("my_parts",)


def write(directory: Path, sources: dict[str, str]) -> dict[str, bytes]:
    for name, source in sources.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(source)
    return {name: source.encode() for name, source in sources.items()}


def test_the_sources_of_a_plugin_are_its_package_and_what_it_imports_beside_itself(
    directory: Path,
) -> None:
    needed = write(
        directory,
        {
            "my_package/__init__.py": "import my_layers.linear, wave",
            "my_package/models.py": "from . import parts",
            "my_package/parts.py": "def late():\n    from my_helper import f",
            "my_package/broken.py": "def",
            "my_layers/__init__.py": "",
            "my_layers/linear.py": "",
            "my_helper.py": "import torch\nimport nmt",
        },
    )
    write(directory, {"mine_alone.py": "", "nmt/__init__.py": "", "my_package/data.txt": ""})
    import_plugins(["my_package.models"], "nmt.yaml", directory)
    assert plugin_sources(["my_package.models"]) == needed


def test_the_sources_of_a_module_are_the_module(directory: Path) -> None:
    needed = write(directory, {"my_parts.py": "import yaml"})
    write(directory, {"my_parts/readme.py": ""})  # no package
    import_plugins(["my_parts"], "nmt.yaml", directory)
    assert plugin_sources(["my_parts"]) == needed


def test_an_installed_package_brings_nothing_but_itself() -> None:
    import_plugins(["sacremoses"], "nmt.yaml")
    assert {name.split("/")[0] for name in plugin_sources(["sacremoses"])} == {"sacremoses"}
    assert {*plugin_sources(["wave"])} == {"wave.py"}


def test_what_is_not_written_in_python_has_no_source() -> None:
    assert plugin_sources(["sys"]) == {}


COPIES = {
    "my_package/models.py": "from my_package.parts import name\nimport my_layers",
    "my_package/parts.py": "name = 'copy'",
    "my_layers/__init__.py": "from .linear import name\ndef late():\n    import my_helper",
    "my_layers/linear.py": "name = 'copy'",
    "my_helper.py": "name = 'copy'",
}


def test_copies_are_imported_before_what_is_installed_and_nothing_beside_them_is(
    directory: Path,
) -> None:
    installed, copies = directory / "installed", directory / "copies"
    write(installed, {name: "name = 'installed'" for name in COPIES})
    sys.path.insert(0, str(installed))
    sources = write(copies, COPIES)
    write(copies, {"wave.py": "", "my_layers/linear/__init__.py": "name = 'stranger'"})
    sys.modules.pop("wave", None)
    import_copies(["my_package.models", "wave"], sources, copies, "run")
    assert sys.modules["my_package.models"].name == "copy"
    assert sys.modules["my_layers"].name == "copy"
    assert sys.modules["my_layers"].__file__ == str(copies / "my_layers" / "__init__.py")
    sys.modules["my_layers"].late()
    assert sys.modules["my_helper"].name == "copy"
    assert not str(sys.modules["wave"].__file__).startswith(str(directory))
    assert [*directory.rglob("*.pyc")] == []


def test_an_error_of_a_copy_has_the_line_of_the_copy(directory: Path) -> None:
    sources = write(directory, {"my_raises.py": "\nraise ValueError('broken')"})
    with pytest.raises(NmtError) as error:
        import_copies(["my_raises"], sources, directory, "run")
    place = f"{directory / 'my_raises.py'}, line 2"
    assert str(error.value) == (
        f"run: cannot import the plugin 'my_raises' ({place}): ValueError: broken"
    )


def test_a_run_reads_the_copies_that_were_written_last(directory: Path) -> None:
    sources = {name: source.encode() for name, source in COPIES.items()}
    write_plugins(directory, sources)
    assert read_plugins(directory) == sources
    write_plugins(directory, {"my_parts.py": b""})
    assert read_plugins(directory) == {"my_parts.py": b""}
    assert [path.name for path in directory.iterdir()] == ["plugins"]
    write_plugins(directory, {})
    assert read_plugins(directory) == {}
    assert [*directory.iterdir()] == []


@pytest.mark.parametrize("file", ["my_parts.py", "plugins.json"])
def test_a_copy_that_was_changed_or_removed_is_refused(directory: Path, file: str) -> None:
    write_plugins(directory, {"my_parts.py": b"x = 1"})
    path = directory / "plugins" / file
    path.write_bytes(path.read_bytes().replace(b"1", b"2"))
    with pytest.raises(NmtError, match=r"; restore it, or remove the directory and give modules"):
        read_plugins(directory)
    path.unlink()
    with pytest.raises(NmtError, match=r"missing; restore it, or remove the directory"):
        read_plugins(directory)


@pytest.mark.parametrize("name", ["../my_parts.py", "/my_parts.py"])
def test_a_copy_lies_in_its_directory(directory: Path, name: str) -> None:
    (directory / "run" / "plugins").mkdir(parents=True)
    write_plugins(directory / "other", {"my_parts.py": b""})
    forged = json.loads((directory / "other" / "plugins" / "plugins.json").read_text())
    forged["files"] = {name: forged["files"]["my_parts.py"]}
    del forged["checksum"]
    text = json.dumps(forged, sort_keys=True)
    forged["checksum"] = hashlib.sha256(text.encode()).hexdigest()
    (directory / "run" / "plugins" / "plugins.json").write_text(json.dumps(forged))
    with pytest.raises(NmtError, match=r"is not the name of a file in the directory"):
        read_plugins(directory / "run")


def test_a_module_of_ones_own_that_differs_from_the_copy_is_announced(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(directory, {"my_parts.py": "x = 1"})
    import_plugins(["my_parts"], "nmt.yaml", directory)
    run = directory / "run"
    for source, warning in (
        (b"x = 1", ""),
        (
            b"x = 2",
            f"nmt: warning: {run}: my_parts.py: differs from the copy in {run / 'plugins'}, with "
            "which the run was trained\n",
        ),
    ):
        write_plugins(run, {"my_parts.py": source})
        import_plugins_of_run(run, ["my_parts"], trusted=False)
        assert capsys.readouterr().err == warning
    assert sys.modules["my_parts"].x == 1


def test_a_run_without_copies_is_not_compared(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(directory, {"my_parts.py": "x = 1"})
    import_plugins(["my_parts"], "nmt.yaml", directory)
    import_plugins_of_run(directory / "run", ["my_parts"], trusted=False)
    assert capsys.readouterr().err == ""


def test_the_copies_of_a_run_are_imported_only_with_consent(directory: Path) -> None:
    write_plugins(directory, {"my_parts.py": b"x = 2"})
    refusal = r"would import Python code: my_parts from .*plugins; if"
    with pytest.raises(NmtError, match=refusal) as said:
        import_plugins_of_run(directory, ["my_parts"], trusted=False)
    assert str(said.value).endswith(
        "; if you trust it, give --trust-plugins (in Python trust_plugins=True; or "
        "NMT_TRUST_PLUGINS=1), or name modules of your own with --plugin my_parts (in Python "
        "import my_parts)"
    )
    assert "my_parts" not in sys.modules
    import_plugins_of_run(directory, ["my_parts"], trusted=True)
    assert sys.modules["my_parts"].x == 2


def test_a_file_that_is_missing_on_either_side_differs() -> None:
    sources, copies = {"a": b"1", "b": b"2", "c": b"3"}, {"b": b"2", "c": b"4", "d": b"5"}
    assert differing(sources, copies) == ["a", "c", "d"]


def test_no_copy_is_found_where_the_plugins_of_a_run_are_imported_already(directory: Path) -> None:
    write_plugins(directory, {"my_payload.py": b"open('ran', 'w')", "pytest.py": b""})
    import_plugins_of_run(directory, ["pytest"], trusted=False)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("my_payload")
    assert not Path("ran").exists()
