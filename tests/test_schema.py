"""The schema of the recipe, read from source, is that of the dataclasses."""

from __future__ import annotations

import dataclasses
import runpy
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from for_each import for_each

from nmt.cli.recipe import DEFAULT_ARCH, SCHEMA, SECTIONS
from nmt.evaluation import ScoreConfig
from nmt.inference import SearchConfig
from nmt.models import architectures
from nmt.preprocess.config import PreprocessConfig
from nmt.recipe.config import dump, flatten
from nmt.recipe.schema import Choice, Field, module
from nmt.training.config import TrainConfig

ROOT = Path(__file__).parents[1]
LIVE = {
    "preprocess": PreprocessConfig(),
    "model": architectures[DEFAULT_ARCH],
    "train": TrainConfig(),
    "search": SearchConfig(),
    "score": ScoreConfig(),
}
"""The sections with their defaults, by import."""

documentation = runpy.run_path(str(ROOT / "docs/make_recipe_reference.py"))["field_documentation"]


def entries(registry: Any) -> dict[str, Any]:
    return {name: registry[name] for name in registry}


def owners(path: str) -> list[Any]:
    """The parts of a recipe that have a key; the part that is the default comes first."""
    section, *parents, name = path.split(".")
    parts = [LIVE[section]]
    if section == "model":
        parts += entries(architectures).values()
    for parent in parents:
        chosen = next(getattr(part, parent) for part in parts if hasattr(part, parent))
        parts = [chosen, *entries(chosen.registry).values()]
    return [part for part in parts if hasattr(part, name)]


def plain(value: Any) -> Any:
    """A value as the source shows it: a choice by its name."""
    if dataclasses.is_dataclass(value):
        return value.name  # type: ignore[attr-defined]
    return tuple(map(plain, value)) if isinstance(value, tuple) else value


@for_each("section", SECTIONS)
def test_the_schema_is_that_of_the_dataclasses(section: str) -> None:
    where, _, name = SECTIONS[section].partition(" ")[0].rpartition(".")
    if section == "model":
        check_choice(module(where).choice(name), architectures)
    else:
        check(module(where).fields(name), LIVE[section])
    paths = [path for path in SCHEMA.paths() if path.partition(".")[0] == section]
    leaves = [path for path in paths if f"{path}.name" not in paths]
    assert sorted(leaves) == sorted(flatten({section: dump(LIVE[section])}))


def check(fields: Mapping[str, Field], live: Any) -> None:
    """Compare the fields in the source with those of an instance, and with parts of a choice."""
    assert [*fields] == [field.name for field in dataclasses.fields(live)]
    hints = get_type_hints(type(live))
    for name, text in documentation(live).items():
        field = fields[name]
        assert " ".join(field.documentation.split()).replace("``", "`").replace("|", r"\|") == text
        if name not in ("name", "arch"):
            assert field.default == plain(getattr(live, name))
        registries = [kind.registry for kind in inner(hints[name]) if hasattr(kind, "registry")]
        if registries:
            check_choice(field.kind.choice, registries[0])
        else:
            assert field.kind.choice is None


def check_choice(choice: Choice | None, registry: Any) -> None:
    assert choice is not None
    assert (choice.kind, choice.key) == (registry.kind, registry.key)
    assert [*choice.entries] == [*registry]
    for name, fields in choice.entries.items():
        if fields is None:  # made by a function
            assert name.startswith("conv_s2s_")
        else:
            check(fields, registry[name])


def inner(hint: Any) -> Iterator[Any]:
    """Yield a type and all types within it."""
    yield hint
    for argument in get_args(hint):
        yield from inner(argument)


def test_defaults_that_depend_on_a_choice_say_so() -> None:
    assert SCHEMA.key("search.strategy.length_penalty.alpha").default == (
        "0.6 with gnmt, 1.0 with power"
    )
    assert SCHEMA.key("model.dropout").default == (
        "0.1 with transformer_base; depends on the architecture"
    )
    assert SCHEMA.key("train.schedule.lr").default == ""
    assert SCHEMA.key("search.strategy.top_k").needs == "sample"
    assert SCHEMA.key("search.strategy.beam").needs == ""


def test_a_key_that_does_not_exist_is_no_key() -> None:
    for path in ("train.no", "train.seed.no", "train.schedule.no"):
        with pytest.raises(LookupError):
            SCHEMA.key(path)


def test_the_paths_of_a_key_are_found_without_torch() -> None:
    program = (
        "import sys; from nmt.cli.recipe import homes\n"
        "print(*homes('lr'), *homes('beam'), *homes('seed'), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == [
        "train.schedule.lr", "search.strategy.beam", "preprocess.seed", "train.seed", "False"
    ]  # fmt: skip
