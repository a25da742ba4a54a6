"""Writes the reference of every key of a recipe, read from the dataclasses that are the schema.

python docs/make_recipe_reference.py > docs/recipe.md
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
import textwrap
import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from nmt.evaluation import ScoreConfig
from nmt.inference import SearchConfig
from nmt.models import architectures
from nmt.preprocess.config import PreprocessConfig
from nmt.recipe.config import changeable
from nmt.recipe.registry import Registry
from nmt.training.config import TrainConfig

SECTIONS = {
    "preprocess": PreprocessConfig,
    "train": TrainConfig,
    "search": SearchConfig,
    "score": ScoreConfig,
}
STAR = r"\*"
WORDS = {bool: "true or false", int: "whole number", float: "number", str: "text"}
HEAD = """\
# The recipe, key by key

`docs/make_recipe_reference.py` generates this page from the dataclasses that define the keys.

A recipe has the sections `preprocess`, `model`, `train`, `search` and `score`.
`plugins` is a list of modules to import, which may lie next to the recipe.
Commands read `nmt.yaml` in the current directory, or the file given with `--config`.
`--set section.key=value` overrides the file, and a command's own options override both.
Without `--config`, plugins are imported only with `--plugin` or `--trust-plugins`.
Unknown sections and keys are refused.

A missing key has the default below.
A *choice* is a name (`loss: cross_entropy`), or a name with keys (`loss: {name: cross_entropy}`).
Keys without a name change the default choice (`schedule: {lr: 0.001}`).

A resumed run may change the keys of `model` and `train` with a star (\\*).
It may also change all keys of the other sections.
A key takes numbers, `true` or `false`, or text, as its default does, unless the table says more.
"""


def main() -> None:
    """Prints the reference, as Markdown."""
    print(HEAD)
    choices: dict[str, Registry[Any]] = {}
    for name, section in SECTIONS.items():
        print(f"## `{name}`\n\n{documentation(section)}\n")
        print_keys(section(), choices, {})
        if name == "preprocess":
            print(f"## `model`\n\nWhich {architectures.kind}, and what differs from its values.\n")
            print_choice(architectures, choices)
    while choices:  # which may hold choices of their own
        registry = choices.pop(next(iter(choices)))
        print(f"## Choice: {registry.kind}\n")
        print_choice(registry, choices)


def print_choice(registry: Registry[Any], choices: dict[str, Registry[Any]]) -> None:
    """Prints every entry of a registry; entries of one class share a table."""
    classes: dict[type, list[str]] = {}
    explained: dict[tuple[str, str], str] = {}
    for name in registry:
        classes.setdefault(type(registry[name]), []).append(name)
    for kind, names in classes.items():
        # The defaults of the class first, then by name.
        names.sort(key=lambda name: bool(differences(registry[name], kind(), registry.key)))
        first, *others = names
        titles = ", ".join(f"`{name}`" for name in (first, *others))
        print(f"### {titles}\n\n{documentation(kind)}\n")
        if others:
            print(f"The defaults below are those of `{first}`; the others differ from it in\n")
            for name in others:
                print(f"- `{name}`: {differences(registry[name], registry[first], registry.key)}")
            print()
        print_keys(registry[first], choices, explained, skip=registry.key, entry=first)


def differences(entry: Any, other: Any, skip: str) -> str:
    """Return the values of an entry that differ from those of another of its class."""
    return ", ".join(
        f"`{field.name}: {value_text(getattr(entry, field.name))}`"
        for field in dataclasses.fields(entry)
        if field.name != skip and getattr(entry, field.name) != getattr(other, field.name)
    )


def print_keys(
    instance: Any,
    choices: dict[str, Registry[Any]],
    explained: dict[tuple[str, str], str],
    skip: str = "",
    entry: str = "",
) -> None:
    """Prints a table of an instance's fields, and collects the choices among their types.

    `explained` maps a key and its meaning to the entry whose table has the meaning, and grows.
    """
    hints = get_type_hints(type(instance))
    may_change = changeable(type(instance))
    rows = []
    for name, meaning in field_documentation(instance).items():
        if name == skip:
            continue
        value = getattr(instance, name)
        default = f"`{value_text(value)}`"
        if takes := type_text(hints[name], choices, value):
            default += f"; {takes}"
        teller = explained.setdefault((name, meaning), entry)
        told = meaning if teller == entry else f"As in `{teller}`."
        told = told.replace("``", "`").replace("|", r"\|")
        rows.append(f"| `{name}`{STAR if name in may_change else ''} | {default} | {told} |")
    if rows:
        print("| key | default | meaning |\n|---|---|---|")
        print("\n".join(rows) + "\n")


def type_text(hint: Any, choices: dict[str, Registry[Any]], value: Any = None) -> str:
    """Return the type of a field in words; nothing if the field's value shows the type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        inner = [argument for argument in arguments if argument is not type(None)]
        null = ", or null" if len(inner) < len(arguments) and value is not None else ""
        return " or ".join(type_text(argument, choices) for argument in inner) + null
    if origin is Literal:
        return ", ".join(f"`{argument}`" for argument in arguments if argument != value)
    if origin is tuple:
        if value and all(isinstance(item, (int, float, str)) for item in value):
            return ""
        many = "list" if arguments[-1] is Ellipsis else f"list of {len(arguments)}"
        return f"{many}: {type_text(arguments[0], choices)}"
    if registry := getattr(hint, "registry", None):
        choices[registry.kind] = registry
        return f"[{registry.kind}](#choice-{registry.kind.replace(' ', '-')})"
    if dataclasses.is_dataclass(hint):
        return f"keys {', '.join(f'`{field.name}`' for field in dataclasses.fields(hint))}"
    return "" if value is not None else WORDS[hint]


def value_text(value: Any) -> str:
    """A value as a recipe writes it; a choice by its name and the keys that are not as usual."""
    if dataclasses.is_dataclass(value):
        name = str(getattr(value, "name", ""))
        changed = [
            f"{field.name}: {value_text(getattr(value, field.name))}"
            for field in dataclasses.fields(value)
            if field.name != "name" and getattr(value, field.name) != field.default
        ]
        return f"{{{', '.join([f'name: {name}', *changed])}}}" if name and changed else name
    if isinstance(value, tuple):
        return f"[{', '.join(map(value_text, value))}]"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return repr(value) if value == "" else str(value)


def documentation(kind: type) -> str:
    """The docstring of a class as Markdown, a paragraph on each line."""
    paragraphs = inspect.cleandoc(kind.__doc__ or "").replace("``", "`").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def field_documentation(instance: Any) -> dict[str, str]:
    """The strings below the fields of an instance's class, and then of its bases, by field."""
    texts: dict[str, str] = {}
    for kind in type(instance).__mro__:
        if dataclasses.is_dataclass(kind):
            for name, text in strings_below_fields(kind):
                texts.setdefault(name, " ".join(text.split()))
    names = {field.name for field in dataclasses.fields(instance)}
    if missing := names - set(texts):
        sys.exit(f"{type(instance).__name__}: nothing is written below {', '.join(missing)}")
    return {name: text for name, text in texts.items() if name in names}  # no class variables


def strings_below_fields(kind: type) -> Iterator[tuple[str, str]]:
    """The fields of a class that have a string below them, with it."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    for field, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
            yield ast.unparse(field.target), str(ast.literal_eval(below.value))


if __name__ == "__main__":
    main()
