"""The keys of a recipe, read from the source of the dataclasses that define them.

Nothing is imported: help answers before torch could be imported, and the docstring below a field is
in the source alone. A statement of a module is parsed when it is looked up.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_STATEMENT = re.compile(r"^(?:@.*\n)*[A-Za-z_].*\n(?:(?:[ \t)\]}].*)?\n)*", re.M)
_DEFINITION = re.compile(r"(?:@.*\n)*(?:class|def) (\w+)|([\w, ]+)(?:: [^=]+)? = ")
_TYPES: dict[str, type] = {"bool": bool, "int": int, "float": float, "str": str}


@dataclass(frozen=True)
class Kind:
    """The values that a field takes."""

    type: type = str
    """bool, int, float or str."""
    is_list: bool = False
    values: tuple[str, ...] = ()
    """Names that the field takes; those of a choice are the registered ones."""
    choice: Choice | None = None


@dataclass(frozen=True)
class Field:
    """A field of a dataclass, in the module that declares it."""

    module: Module
    annotation: ast.expr
    default: Any
    """The default as a plain value; the default of a choice is its name."""
    documentation: str
    """The docstring below the field, or below the same field of a base class."""

    @cached_property
    def kind(self) -> Kind:
        """The values that the field takes."""
        return self.module.kind(self.annotation)


@dataclass(frozen=True)
class Choice:
    """A registry and its entries."""

    kind: str
    """Word for an entry, such as "search strategy"."""
    key: str
    """Field that holds an entry's name."""
    entries: Mapping[str, Mapping[str, Field] | None]
    """Fields by name of each entry; None where the source does not show the class."""


@dataclass(frozen=True)
class Key:
    """A key of a recipe."""

    path: str
    """Dotted path, such as ``search.strategy.beam``."""
    kind: Kind
    documentation: str
    default: str = ""
    """Default in words, and the choices on which the default depends; empty for none."""
    needs: str = ""
    """Names of the choices that have the key, if the default choice has no such key."""


Variants = Mapping[str, Mapping[str, Field] | None]
"""Fields by name of each entry of a choice, the default entry first; a class alone is one entry."""


@cache
def module(name: str) -> Module:
    """Return a module of the package by its dotted name."""
    path = _ROOT.joinpath(*name.split("."))
    return Module(path / "__init__.py" if path.is_dir() else path.with_suffix(".py"))


class Module:
    """The statements of a module."""

    def __init__(self, path: Path) -> None:
        """Split the source into top-level statements, without parsing them."""
        self.path = path
        self.statements = _STATEMENT.findall(path.read_text(encoding="utf-8"))
        self.fields = cache(self._fields)
        """Return the fields of a dataclass by its name, those of its base classes first."""
        self.choice = cache(self._choice)
        """Return the choice of a base class by its name; None if the class has no registry."""

    @cached_property
    def _definitions(self) -> dict[str, str]:
        matches = ((_DEFINITION.match(text), text) for text in self.statements)
        return {
            name: text
            for match, text in matches
            if match
            for name in (match[1] or match[2]).split(", ")
        }

    def find(self, name: str) -> tuple[Module, Any]:
        """Return the statement that defines a name, and its module; imports are followed.

        Raises:
            LookupError: the name is not defined in this package.
        """
        if name in self._definitions:
            return self, _parse(self._definitions[name])
        for text in self.statements:
            if text.startswith("from nmt") and name in text:
                imported = _parse(text)
                if name in [alias.name for alias in imported.names]:
                    return module(imported.module).find(name)
        raise LookupError(name)

    def _fields(self, name: str) -> dict[str, Field]:
        home, statement = self.find(name)
        fields: dict[str, Field] = {}
        for base in reversed(statement.bases):
            if isinstance(base, ast.Name) and base.id != "ABC":
                fields |= home.fields(base.id)
        body: list[Any] = [*statement.body, None]
        for field, below in pairwise(body):
            if isinstance(field, ast.AnnAssign) and "ClassVar" not in ast.unparse(field.annotation):
                key = ast.unparse(field.target)
                text = home.value(below.value) if isinstance(below, ast.Expr) else None
                if text is None and key in fields:
                    text = fields[key].documentation
                fields[key] = Field(home, field.annotation, home.value(field.value), text or "")
        return fields

    def kind(self, annotation: ast.expr) -> Kind:
        """Return the values that a field with this annotation takes."""
        match annotation:
            case ast.Name(id=name) if name in _TYPES:
                return Kind(_TYPES[name])
            case ast.Name(id=name):
                home, statement = self.find(name)
                if isinstance(statement, ast.Assign):
                    return home.kind(statement.value)
                choice = home.choice(name)
                return Kind(values=tuple(choice.entries) if choice else (), choice=choice)
            case ast.Subscript(value=ast.Name(id="Literal"), slice=values):
                literals = values.elts if isinstance(values, ast.Tuple) else [values]
                return Kind(values=tuple(str(self.value(literal)) for literal in literals))
            case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=[first, *_])):
                return replace(self.kind(first), is_list=True)
            case ast.Subscript(value=ast.Name(id="MayChange"), slice=inner):
                return self.kind(inner)
            case ast.BinOp(left=left, right=ast.Constant(value=None)):
                return self.kind(left)
            case ast.BinOp():  # either of two types, given as text
                return Kind()
        raise LookupError(ast.unparse(annotation))

    def _choice(self, name: str) -> Choice | None:
        head = f"{name}.registry = "
        registry = next((text for text in self.statements if text.startswith(head)), None)
        if registry is None:
            return None
        registry = registry.removeprefix(head).strip()
        _, statement = self.find(registry)
        word, *key = map(self.value, statement.value.args[:2])
        entries = [
            entry
            for path in self.path.parent.rglob("*.py")
            for entry in module(_dotted(path)).entries(registry)
        ]
        return Choice(word, key[0] if key else "name", dict(sorted(entries)))

    def entries(self, registry: str) -> Iterator[tuple[str, Mapping[str, Field] | None]]:
        """Yield the entries that this module registers, with their fields."""
        for text in self.statements:
            if text.startswith(f"@{registry}.register("):
                statement = _parse(text)
                [call, *_] = statement.decorator_list
                yield self.value(call.args[0]), self.fields(statement.name)
            elif text.startswith(f"{registry}.add("):
                name, entry = _parse(text).value.args
                yield self.value(name), self._instance(entry)

    def value(self, node: Any) -> Any:
        """Return the value of an expression; of an entry of a registry, its name."""
        match node:
            case ast.Name(id=name):
                home, statement = self.find(name)
                value = home.value(statement.value)
                match statement:
                    case ast.Assign(targets=[ast.Tuple(elts=targets)]):  # A, B = 1, 2
                        return value[[ast.unparse(target) for target in targets].index(name)]
                return value
            case ast.Subscript(slice=ast.Constant(value=name)):
                return name
            case ast.Tuple(elts=elements):
                return tuple(map(self.value, elements))
        return None if node is None else ast.literal_eval(node)

    def _instance(self, call: Any) -> Mapping[str, Field] | None:
        """Return the fields of an instance, or None if the call is not that of a class."""
        home, statement = self.find(call.func.id)
        if not isinstance(statement, ast.ClassDef):
            return None
        fields = home.fields(call.func.id)
        given = {keyword.arg: self.value(keyword.value) for keyword in call.keywords}
        return {
            name: replace(field, default=given.get(name, field.default))
            for name, field in fields.items()
        }


class Schema:
    """The sections of a recipe."""

    def __init__(self, sections: Mapping[str, str]) -> None:
        """Keep the sections by name.

        Args:
            sections: dotted path of the dataclass of each section; of a section that is itself a
                choice, that of the base class, a space, and the name of the default entry.
        """
        self._sections = sections

    def key(self, path: str) -> Key:
        """Return a key by its dotted path; a key of any entry of a choice is found.

        Raises:
            LookupError: there is no such key.
        """
        section, *parents, name = path.split(".")
        variants, choice = self._section(section)
        for parent in parents:
            variants, choice = _inside(_owners(variants, parent)[0][1])
        owners = _owners(variants, name)
        first, field = owners[0]
        if choice is None:
            return Key(path, field.kind, field.documentation, _text(field.default))
        if name == choice.key:
            names = Kind(values=tuple(choice.entries))
            return Key(path, names, field.documentation, default=first)
        defaults = {owner: _text(field.default) for owner, field in owners}
        needs = ", ".join(defaults) if first != next(iter(variants)) else ""
        return Key(path, field.kind, field.documentation, _in_words(defaults, choice.kind), needs)

    def keys(self, section: str) -> list[str]:
        """Return the keys of a section; none if the section is a choice, which decides on them."""
        variants, choice = self._section(section)
        return [] if choice else list(next(iter(variants.values())) or ())

    def paths(self) -> Iterator[str]:
        """Yield the dotted paths of all keys, those of default choices included."""
        for section in self._sections:
            variants, _ = self._section(section)
            yield from _paths(section, variants)

    def _section(self, name: str) -> tuple[Variants, Choice | None]:
        kind, _, default = self._sections[name].partition(" ")
        where, _, kind = kind.rpartition(".")
        home = module(where)
        if default and (choice := home.choice(kind)):
            return _variants(choice, default), choice
        return {"": home.fields(kind)}, None


def _paths(prefix: str, variants: Variants) -> Iterator[str]:
    for name, field in (next(iter(variants.values())) or {}).items():
        yield f"{prefix}.{name}"
        if field.kind.choice and isinstance(field.default, str):
            yield from _paths(f"{prefix}.{name}", _inside(field)[0])


def _inside(field: Field) -> tuple[Variants, Choice]:
    """Return the entries of a field that is a choice, the default first."""
    if field.kind.choice is None:
        raise LookupError("no choice")
    return _variants(field.kind.choice, field.default), field.kind.choice


def _variants(choice: Choice, default: str) -> Variants:
    return {default: choice.entries[default], **choice.entries}


def _owners(variants: Variants, name: str) -> list[tuple[str, Field]]:
    """Return the entries that have a field, with the field."""
    owners = [
        (entry, fields[name]) for entry, fields in variants.items() if fields and name in fields
    ]
    if not owners:
        raise LookupError(name)
    return owners


def _in_words(defaults: Mapping[str, str], word: str) -> str:
    """Return a default that depends on the choice of a part."""
    first, *others = dict.fromkeys(defaults.values())
    if not others:
        return first
    if len(defaults) == 2:
        return ", ".join(f"{default} with {entry}" for entry, default in defaults.items())
    return f"{first} with {next(iter(defaults))}; depends on the {word}"


def _parse(statement: str) -> Any:
    """Return the node of a statement; of a class without its methods, which follow the fields."""
    head, *methods = re.split(r"\n    (?:@|def )", statement, maxsplit=1)
    return ast.parse(f"{head}\n    pass" if methods else head).body[0]


def _text(value: Any) -> str:
    """Return a default as help prints it; empty for one that says nothing."""
    if value is None or value is False:
        return ""
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return str(value).lower() if value is True else str(value)


def _dotted(path: Path) -> str:
    return ".".join(path.relative_to(_ROOT).with_suffix("").parts).removesuffix(".__init__")
