"""Writes the table from which commands take types, help and defaults of the keys of a recipe.

python docs/make_recipe_keys.py > nmt/recipe/keys.json
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from make_recipe_reference import SECTIONS, field_documentation

from nmt.cli.recipe import DEFAULT_ARCH
from nmt.models import architectures
from nmt.recipe.keys import Key
from nmt.recipe.registry import Registry


def main() -> None:
    """Prints a row for each key; what is missing in a row has the default of :class:`Key`."""
    print(",\n".join(map(row, all_keys())).join(("[\n", "\n]")))


def all_keys() -> Iterator[Key]:
    """Yields the keys of all sections."""
    yield from keys("model", entries(architectures, DEFAULT_ARCH), architectures)
    for name, section in SECTIONS.items():
        yield from keys(name, {"": section()})


def keys(
    prefix: str, variants: Mapping[str, Any], registry: Registry[Any] | None = None
) -> Iterator[Key]:
    """Yields the keys at a path: those of a section, or of all entries of a choice.

    Args:
        prefix: path of the section or choice.
        variants: the entries by name, the default first; a section alone is one entry.
        registry: that of the entries.
    """
    default, *_ = variants
    names = (field.name for part in variants.values() for field in dataclasses.fields(part))
    for name in dict.fromkeys(names):
        owners = {entry: part for entry, part in variants.items() if hasattr(part, name)}
        first, *_ = owners
        hint = get_type_hints(type(owners[first]))[name]
        defaults = {entry: text(getattr(part, name)) for entry, part in owners.items()}
        needs = "" if first == default else ", ".join(owners)
        key = Key(
            path=f"{prefix}.{name}",
            **takes(hint),
            documentation=field_documentation(owners[first])[name],
            default=in_words(defaults, registry),
            needs=needs,
        )
        if registry and name == registry.key:
            key = dataclasses.replace(key, values=tuple(registry), default=default)
        yield key
        if (inner := getattr(hint, "registry", None)) and not needs:
            yield from keys(key.path, entries(inner, defaults[first]), inner)


def entries(registry: Registry[Any], default: str) -> dict[str, Any]:
    """Returns the entries of a choice, the default first."""
    return {name: registry[name] for name in (default, *registry)}


def takes(hint: Any) -> dict[str, Any]:
    """Returns what a field of a type takes, as fields of :class:`Key`."""
    arguments = [argument for argument in get_args(hint) if argument is not type(None)]
    match get_origin(hint):
        case None if hint in (bool, int, float):
            return {"type_name": hint.__name__}
        case None:
            return {"values": tuple(getattr(hint, "registry", ()))}
        case origin if origin is Literal:
            return {"values": tuple(map(str, arguments))}
        case origin if origin is tuple:
            return {**takes(arguments[0]), "is_list": True}
        case origin if origin in (Union, types.UnionType) and len(arguments) == 1:
            return takes(arguments[0])
    return {}  # either of two types, given as text


def in_words(defaults: Mapping[str, str], registry: Registry[Any] | None) -> str:
    """Returns a default that may depend on the choice of a part."""
    first, *others = dict.fromkeys(defaults.values())
    if not others or registry is None:
        return first
    if len(defaults) == 2:
        return ", ".join(f"{default} with {entry}" for entry, default in defaults.items())
    return f"{first or 'null'} with {next(iter(defaults))}; depends on the {registry.kind}"


def text(value: Any) -> str:
    """Returns a default as help prints it; nothing for one that says nothing."""
    if value is None or value is False:
        return ""
    if isinstance(value, tuple):
        return ", ".join(map(text, value))
    if dataclasses.is_dataclass(value):
        return str(value.name)  # type: ignore[attr-defined]
    return "true" if value is True else str(value)


def row(key: Key) -> str:
    """Returns a line of the table."""
    default = {field.name: field.default for field in dataclasses.fields(Key)}
    values = {name: value for name, value in vars(key).items() if value != default[name]}
    return json.dumps(values)


if __name__ == "__main__":
    main()
