from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nmt.cli.recipe import load
from nmt.errors import NmtError
from nmt.plugins import import_plugins, is_trusted, plugin_names


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory; what is imported from it is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.delenv("NMT_TRUST_PLUGINS", raising=False)
    yield tmp_path
    for name, module in [*sys.modules.items()]:
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def message(module: str, directory: Path | None) -> str:
    with pytest.raises(NmtError) as error:
        import_plugins([module], "nmt.yaml", directory)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("value", [5, "mymodel", {"a": 1}, [""], [".x"], ["a..b"], ["a/b"], [1]])
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
        ("def", ": SyntaxError: invalid syntax (raises.py, line 1)"),
        ("import no_such_module", " ({file}, line 1): No module named 'no_such_module'; looked "),
    ],
)
def test_a_plugin_that_raises_costs_one_line_with_its_place(
    directory: Path, source: str, expected: str
) -> None:
    file = directory / "raises.py"
    file.write_text(source)
    start = "nmt.yaml: cannot import the plugin 'raises'" + expected.format(file=file)
    assert message("raises", directory).startswith(start)


def test_an_interruption_of_a_plugin_stays_one(directory: Path) -> None:
    (directory / "raises.py").write_text("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        import_plugins(["raises"], "nmt.yaml", directory)


def test_no_file_beside_a_plugin_takes_the_place_of_an_installed_module(directory: Path) -> None:
    (directory / "my_parts.py").write_text("import this_helper, wave\n")
    (directory / "this_helper.py").write_text("")
    (directory / "wave.py").write_text("raise RuntimeError")  # a module of Python
    sys.modules.pop("wave", None)
    import_plugins(["my_parts"], "nmt.yaml", directory)
    assert sys.path[-1] == str(directory)
    assert Path(str(sys.modules["wave"].__file__)).parent != directory
    assert sys.modules["this_helper"].__file__ == str(directory / "this_helper.py")


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
    (directory / "payload.py").write_text("open('ran', 'w')")
    recipe = directory / "nmt.yaml"
    recipe.write_text("plugins: [payload]")
    return recipe


def test_a_recipe_that_was_found_imports_nothing_without_consent(directory: Path) -> None:
    found(directory)
    with pytest.raises(NmtError) as error:
        load(None, None, {})
    assert str(error.value) == (
        "nmt.yaml: names Python code to import: payload; it was found in the current directory: "
        "if it is yours, give --config nmt.yaml, --plugin payload or --trust-plugins "
        "(or NMT_TRUST_PLUGINS=1)"
    )
    assert not Path("ran").exists()


def test_a_recipe_that_was_found_and_is_trusted_announces_what_it_imports(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found(directory)
    assert load(None, None, {}, trust_plugins=True).plugins == ("payload",)
    assert Path("ran").exists()
    load(None, None, {})  # is imported already
    assert capsys.readouterr().err == "nmt.yaml: imports payload\n"


def test_a_recipe_or_a_plugin_that_was_given_is_imported_without_a_word(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = found(directory)
    load(recipe, None, {})
    assert Path("ran").exists()
    del sys.modules["payload"]
    load(None, None, {}, plugins=["payload"])
    assert capsys.readouterr().err == ""


def test_a_plugin_of_the_command_line_is_one_of_the_recipe(directory: Path) -> None:
    (directory / "my_parts.py").write_text("")
    assert load(None, None, {}, plugins=["my_parts"]).plugins == ("my_parts",)
