"""Who may import whom, read from the source of every module, imports inside functions included."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from for_each import for_each

import nmt

# From the top: a part may import parts on lines below its own, none beside it and none above.
LAYERS = (
    {"cli"},
    {"advice", "serve"},
    {"training", "explain", "report"},
    {"inference"},
    {"formats"},
    {"search", "runs"},
    {"preprocess"},
    {"models", "subwords"},
    {"data", "evaluation"},
    {"io"},
    {"languages", "recipe", "runtime"},
    {"errors", "lazy", "messages"},
)
ENTRANCES = {"nmt", "nmt.__main__"}  # which may import the command line


@dataclass(frozen=True)
class Import:
    importer: str
    imported: str
    runs_at_once: bool
    """Whether it runs when the importer is imported: not inside a function, nor for types only."""


def imports(importer: str, source: str, modules: Iterable[str]) -> Iterator[Import]:
    """The imports of a module; `modules` tells ``from package import module`` from names."""
    for statement, at_once in _statements(ast.parse(source), True):
        if isinstance(statement, ast.Import):
            names = [alias.name for alias in statement.names]
        else:
            assert statement.level == 0, f"{importer} has a relative import"
            inner = [f"{statement.module}.{alias.name}" for alias in statement.names]
            names = [name if name in modules else str(statement.module) for name in inner]
        for name in names:
            yield Import(importer, name, at_once)


def _statements(node: ast.AST, at_once: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for child in ast.iter_child_nodes(node):
        later = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) or (
            isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        )
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child, at_once
        yield from _statements(child, at_once and not later)


def part(module: str) -> str:
    """The part of the house that a module is in: ``nmt.search.beam`` is in ``search``."""
    return module.split(".")[1] if "." in module else ""


def layer(module: str) -> int:
    return next(index for index, parts in enumerate(LAYERS) if part(module) in parts)


def may_import(importer: str, imported: str) -> bool:
    if importer in ENTRANCES or imported == "nmt" or part(importer) == part(imported):
        return True
    if part(importer) == "search" and part(imported) == "models":
        return imported == "nmt.models.base"
    return layer(importer) < layer(imported)


def way_to(target: str, start: str, found: Iterable[Import]) -> list[str] | None:
    """The modules by which importing `start` imports `target`, if it does."""
    at_once: dict[str, list[str]] = {}
    for each in found:
        if each.runs_at_once:
            at_once.setdefault(each.importer, []).append(each.imported)
    ways = {start: [start]}
    queue = [start]
    while queue:
        here = queue.pop(0)
        if here.split(".")[0] == target:
            return ways[here]
        packages = [here.rpartition(".")[0]] if "." in here else []  # are imported before it
        for there in at_once.get(here, []) + packages:
            if there not in ways:
                ways[there] = [*ways[here], there]
                queue.append(there)
    return None


def read_modules() -> dict[str, str]:
    root = Path(nmt.__file__).parent
    sources = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        sources[name] = path.read_text(encoding="utf-8")
    return sources


SOURCES = read_modules()
IMPORTS = [each for name, source in SOURCES.items() for each in imports(name, source, SOURCES)]
INNER = [each for each in IMPORTS if each.imported.split(".")[0] == "nmt"]


def test_every_module_is_in_one_part_of_one_layer():
    misplaced = [
        module
        for module in set(SOURCES) - ENTRANCES
        if sum(part(module) in parts for parts in LAYERS) != 1
    ]
    assert misplaced == []


def test_every_part_of_the_layers_exists():
    assert set().union(*LAYERS) == {part(module) for module in set(SOURCES) - ENTRANCES}


def test_a_part_imports_only_parts_below_it():
    forbidden = [
        f"{each.importer} imports {each.imported}"
        for each in INNER
        if not may_import(each.importer, each.imported)
    ]
    assert forbidden == []


def test_no_imports_go_in_a_circle():
    graph: dict[str, set[str]] = {}
    for each in INNER:
        graph.setdefault(each.importer, set()).add(each.imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_the_package_needs_nothing_of_the_repository_around_it():
    around = {"tests", "examples", "benchmarks", "docs"}
    assert not [each for each in IMPORTS if each.imported.split(".")[0] in around]


def test_a_wheel_has_the_files_of_the_package_that_are_no_modules():
    tomllib = pytest.importorskip("tomllib")  # of Python 3.11
    root = Path(nmt.__file__).parent
    project = tomllib.loads((root.parent / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["nmt"]
    packed = {path for pattern in patterns for path in root.glob(pattern)}
    files = {path for path in root.rglob("*.*") if path.suffix not in ("", ".py", ".pyc")}
    assert files == {path for path in packed if path.suffix != ".py"}


def test_every_file_is_named_for_its_subject():
    subjectless = {"utils", "util", "common", "helpers", "helper", "misc"}
    assert not [module for module in SOURCES if subjectless & set(module.split("."))]


def test_no_command_imports_torch_before_it_needs_it():
    ways = [way_to("torch", module, IMPORTS) for module in SOURCES if part(module) == "cli"]
    assert [" -> ".join(way) for way in ways if way] == []


def test_imports_are_found_wherever_they_are():
    source = """
import json, nmt.io.files
from nmt import errors, __version__
from nmt.search.base import Strategy
if TYPE_CHECKING:
    from nmt.data import manifest
else:
    import late
def function():
    def inner():
        import torch.nn
class Thing:
    from nmt.recipe.registry import Registry
"""
    modules = ["nmt", "nmt.errors", "nmt.data", "nmt.data.manifest", "nmt.search.base"]
    found = {each.imported: each.runs_at_once for each in imports("nmt.here", source, modules)}
    assert found == {
        "json": True,
        "nmt.io.files": True,
        "nmt.errors": True,
        "nmt": True,
        "nmt.search.base": True,
        "nmt.data.manifest": False,
        "late": False,
        "torch.nn": False,
        "nmt.recipe.registry": True,
    }


@for_each(
    ("importer", "imported", "allowed"),
    [
        ("nmt.training.trainer", "nmt.data.batching", True),
        ("nmt.data.batching", "nmt.training.trainer", False),
        ("nmt.models.transformer.model", "nmt.subwords.subwords", False),
        ("nmt.models.transformer.model", "nmt.models.layers.attention", True),
        ("nmt.search.beam", "nmt.models.base", True),
        ("nmt.search.beam", "nmt.models.transformer.model", False),
        ("nmt.search.beam", "nmt.models", False),
        ("nmt.recipe.registry", "nmt.errors", True),
        ("nmt.errors", "nmt.recipe.registry", False),
        ("nmt.recipe.config", "nmt", True),
        ("nmt.__main__", "nmt.cli.app", True),
        ("nmt.runs.run", "nmt.cli.console", False),
    ],
)
def test_the_rule_for_one_import(importer: str, imported: str, allowed: bool):
    assert may_import(importer, imported) == allowed


def test_a_way_to_torch_is_found_through_a_package():
    found = [
        Import("nmt.cli.train", "nmt.search.base", True),
        Import("nmt.search", "nmt.search.beam", True),
        Import("nmt.search.beam", "torch.nn", True),
        Import("nmt.cli.score.command", "nmt.search.beam", False),
    ]
    assert way_to("torch", "nmt.cli.train", found) == [
        "nmt.cli.train",
        "nmt.search.base",
        "nmt.search",
        "nmt.search.beam",
        "torch.nn",
    ]
    assert way_to("torch", "nmt.cli.score.command", found) is None
