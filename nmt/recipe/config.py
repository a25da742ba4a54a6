"""Strict conversion of plain values (YAML, flags) to frozen dataclasses, and back.

The dataclass is the schema. Fields may be numbers, strings, booleans, literals, tuples,
lists, dictionaries, optional values, other dataclasses, and *choices*: classes with a ``registry``,
written in a recipe as a bare name or as a mapping with that name and the fields to override.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from nmt.errors import NmtError, UnknownKeyError
from nmt.recipe.registry import Registry, unknown

T = TypeVar("T")

_MAY_CHANGE = "may change"

MayChange = Annotated[T, _MAY_CHANGE]
"""Type of a field that may change when a run is resumed: ``MayChange[int]``."""


def changeable(kind: type) -> list[str]:
    """Return the names of the fields that may change when a run is resumed."""
    hints = get_type_hints(kind, include_extras=True)
    return [name for name, hint in hints.items() if get_origin(hint) is Annotated]


def build(kind: type[T], values: object, where: str, base: T | None = None) -> T:
    """Return an instance of the dataclass `kind` with the given values.

    Args:
        kind: a dataclass, or the base class of a choice.
        values: the recipe's values: a mapping, None for no values, or the bare name of a choice.
        where: dotted path of the values, for messages.
        base: the instance whose fields are overridden; None for the defaults of `kind`.

    Raises:
        NmtError: a key or name is unknown, or a value has another type or is refused by the class.
    """
    registry = getattr(kind, "registry", None)
    if registry is not None:
        values, base = _choose(registry, values, where, base)
    if values is None:
        values = {}
    if not isinstance(values, Mapping):
        raise NmtError(f"{where}: expected keys and values, not {values!r}")
    if base is not None:
        kind = type(base)
    # Resolved, because postponed annotations are strings.
    hints = get_type_hints(kind)
    known = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    converted: dict[str, object] = {}
    for key, value in values.items():
        if key not in known:
            problem = _unknown_key(str(key), base, known, where)
            raise UnknownKeyError(where, str(key), problem)
        # So `loss: {smoothing: 0}` keeps the other fields of the loss that is chosen.
        current = getattr(base, key) if base is not None else _default(known[key])
        converted[key] = _convert(hints[key], value, f"{where}.{key}", current)
    try:
        if base is not None:
            return dataclasses.replace(base, **converted)  # type: ignore[type-var]
        missing = [name for name in known if name not in converted and _is_required(known[name])]
        if missing:
            raise NmtError(f"{where}: {', '.join(missing)} must be given")
        return kind(**converted)
    except ValueError as error:
        raise NmtError(f"{where}: {error}") from None


def _choose(
    registry: Registry[T], values: object, where: str, base: T | None
) -> tuple[object, T | None]:
    """Return the values of a choice as a mapping, and the registered entry they override."""
    if isinstance(values, str):
        values = {registry.key: values}
    name = values.get(registry.key) if isinstance(values, Mapping) else None
    if name is None:
        if base is None:
            raise NmtError(f"{where}: say which {registry.kind}: {', '.join(registry)}")
        return values, base
    try:
        return values, registry[str(name)]
    except NmtError as error:
        raise NmtError(f"{where}: {error}") from None


def dump(value: object) -> Any:
    """Return plain YAML values from which :func:`build` makes an equal instance."""
    if dataclasses.is_dataclass(value):
        return {field.name: dump(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [dump(item) for item in value]
    if isinstance(value, Mapping):
        return {key: dump(item) for key, item in value.items()}
    return value


def set_path(values: dict[str, Any], path: str, value: object) -> None:
    """Set a value at a dotted path of nested mappings, in place.

    A choice on the path that is a bare name becomes a mapping with that name:
    ``set_path({"loss": "nll"}, "loss.smoothing", .1)`` gives ``{"loss": {"name": "nll", ...}}``.
    Setting a choice to the name that it already has keeps its other keys.

    Raises:
        NmtError: a value on the path has no keys.
    """
    *parents, last = path.split(".")
    here = values
    for parent in parents:
        inner = here.get(parent)
        if inner is None:
            inner = here[parent] = {}
        elif isinstance(inner, str):
            inner = here[parent] = {"name": inner}
        elif not isinstance(inner, dict):
            raise NmtError(f"{path}: {parent!r} has no keys of its own")
        here = inner
    if not is_chosen(here.get(last), value):
        here[last] = value


def is_chosen(before: object, value: object) -> bool:
    """Return whether a value is the bare name of a choice that a mapping holds with its keys."""
    return isinstance(before, dict) and "name" in before and before["name"] == value


def parse_assignment(text: str) -> tuple[str, object]:
    """Split ``section.key=value`` into the dotted path and the YAML value.

    Raises:
        NmtError: the text has no key or no ``=``, or the value is not valid YAML.
    """
    path, equals, value = text.partition("=")
    if not equals or not path:
        raise NmtError(f"--set {text}: expected section.key=value")
    return path.strip(), parse_yaml(value, f"--set {path}")


def parse_yaml(text: str, where: str) -> Any:
    """Return the plain value of a YAML text.

    Raises:
        NmtError: the text is not valid YAML, gives a key twice, or expands to too many values; the
            message is one line with the place.
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" line {mark.line + 1}:" if mark else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", "cannot be read")
        raise NmtError(f"{where}:{place} not valid YAML: {problem}") from None


MAX_VALUES = 20_000
"""Largest number of values in a YAML text; a value counts again for each alias of it."""

MAX_DEPTH = 40
"""Largest number of nested levels in a YAML text."""

MAX_DIGITS = 100
"""Largest number of characters of a number in a YAML text."""


class _Loader(yaml.SafeLoader):
    """Loads plain values within the limits above, and refuses duplicate keys.

    PyYAML would silently keep the last of two equal keys.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._count = 0
        self._sizes: dict[int, int] = {}  # number of values in a node, by the node's id

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Return the next node; refuse too many values or levels, and an alias inside itself."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        before = self._count
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _refused(f"more than {MAX_DEPTH} levels of nested values", event)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if isinstance(event, yaml.AliasEvent):
            if id(node) not in self._sizes:
                raise _refused(f"alias {event.anchor!r} is inside its own value", event)
            # A few lines of nested aliases can stand for billions of values.
            self._count += self._sizes[id(node)]
        else:
            self._count += 1
            self._sizes[id(node)] = self._count - before
        if self._count > MAX_VALUES:
            raise _refused(f"more than {MAX_VALUES:,} values, aliases counted", event)
        return node

    def compose_scalar_node(self, anchor: dict[Any, yaml.Node]) -> yaml.ScalarNode:
        """Return the next scalar; refuse a number with too many digits."""
        node = super().compose_scalar_node(anchor)
        # Python's conversion of long numbers takes quadratic time.
        if node.tag.endswith((":int", ":float")) and len(node.value) > MAX_DIGITS:
            raise _refused(f"a number of {len(node.value):,} characters", node)
        return node

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        """Return the next mapping; refuse a key that is given twice."""
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise _refused(f"key {key.value!r} is given twice", key)
                seen.add(key.value)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return the value of a node; refuse text that is not of the node's type."""
        try:
            return super().construct_object(node, deep)
        # PyYAML lets such errors out for a month 13 or for `!!bool x`.
        except (ArithmeticError, AttributeError, LookupError, ValueError):
            kind = node.tag.rpartition(":")[2]
            raise _refused(f"{node.value!r} is not a value of type {kind}", node) from None


def _refused(problem: str, place: Any) -> yaml.YAMLError:
    """Return an error with the place of an event or a node in the text."""
    return yaml.MarkedYAMLError(None, None, problem, place.start_mark)


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one mapping with dotted paths as keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def json_values(values: Any) -> Any:
    """Return plain values with text for numbers that JSON lacks: "inf", which :func:`build` reads.

    Args:
        values: mappings, lists and scalars.
    """
    if isinstance(values, Mapping):
        return {key: json_values(value) for key, value in values.items()}
    if isinstance(values, list):
        return [json_values(value) for value in values]
    if isinstance(values, float) and not math.isfinite(values):
        return str(values)
    return values


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is field.default_factory is dataclasses.MISSING


def _unknown_key(key: str, base: object, known: Mapping[str, Any], where: str) -> str:
    """Return a message for an unknown key: where the key exists, or the nearest known key."""
    values = {name: getattr(base, name) if base else _default(known[name]) for name in known}
    inner = {name: dump(value) for name, value in values.items() if dataclasses.is_dataclass(value)}
    for path in flatten(inner):
        if path.endswith(f".{key}"):
            return f"unknown key {key!r}; did you mean {path!r}?"
    registry = getattr(base, "registry", None)
    if registry is not None and (owners := registry.names_with(key)):
        return (
            f"{getattr(base, registry.key)} has no key {key!r}; {_remedy(registry, owners, where)}"
        )
    return unknown("key", key, known)


def _remedy(registry: Registry[Any], owners: Sequence[str], where: str) -> str:
    """Return a clause that names the entries with a key, and the two remedies."""
    *others, last = owners if len(owners) < 5 else [*owners[:3], f"{len(owners) - 3} more"]
    have = f"{', '.join(others)} and {last} have" if others else f"{last} has"
    choose = f"{f'use {registry.flag}' if registry.flag else f'set {where} to'} {owners[0]}"
    remedies = [choose, "leave the key out"]
    if registry.key == "arch":  # the key may belong to another architecture
        remedies.reverse()
    return f"{have} it: {', or '.join(remedies)}"


def _default(field: dataclasses.Field[Any]) -> object:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default  # perhaps MISSING, which is not a valid value of a field


def _convert(hint: Any, value: object, where: str, current: object) -> object:
    """Return the value converted to the type `hint`; a mapping overrides fields of `current`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        inner = [argument for argument in arguments if argument is not type(None)]
        return _first_that_fits(inner, value, where, current)
    if origin is Literal:
        if value not in arguments:
            raise NmtError(f"{where}: {unknown('value', str(value), map(str, arguments))}")
        return value
    if origin is tuple:
        return _convert_tuple(arguments, value, where)
    if origin is list:
        return list(_convert_tuple((*arguments, ...), value, where))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise NmtError(f"{where}: expected keys and values, not {value!r}")
        _, inner_hint = arguments
        return {
            str(key): _convert(inner_hint, item, f"{where}.{key}", None)
            for key, item in value.items()
        }
    if dataclasses.is_dataclass(hint) or hasattr(hint, "registry"):
        base = current if isinstance(current, hint) else None
        return build(hint, value, where, base)
    return _convert_scalar(hint, value, where)


def _first_that_fits(hints: list[Any], value: object, where: str, current: object) -> object:
    for hint in hints[:-1]:
        try:
            return _convert(hint, value, where, current)
        except NmtError:
            continue
    return _convert(hints[-1], value, where, current)


def _convert_tuple(arguments: tuple[Any, ...], value: object, where: str) -> tuple[object, ...]:
    # `clean: spaces` means `clean: [spaces]`.
    items = list(value) if isinstance(value, (list, tuple)) else [value]
    if arguments[-1] is Ellipsis:
        hints = [arguments[0]] * len(items)
    elif len(arguments) == len(items):
        hints = list(arguments)
    else:
        raise NmtError(f"{where}: expected {len(arguments)} values, not {len(items)}")
    return tuple(_convert(hint, item, where, None) for hint, item in zip(hints, items, strict=True))


_EXPECTED = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def _convert_scalar(hint: Any, value: object, where: str) -> object:
    if hint not in _EXPECTED:
        raise TypeError(f"{where}: a field of a recipe cannot be a {hint}")
    # bool is a subclass of int, and true must not become 1.
    if isinstance(value, bool):
        if hint is bool:
            return value
    # YAML takes a name such as 2020 for a number.
    elif hint is str and isinstance(value, (str, int, float)):
        return str(value)
    elif hint is float and (number := _number(value)) is not None and not math.isnan(number):
        return number
    elif hint is int:
        number = value if isinstance(value, int) else _number(value)
        # 1e3 is a whole number, too.
        if number is not None and abs(number) < 2**63 and number == int(number):
            return int(number)
    remedy = "; put it in quotes" if hint is str and isinstance(value, bool) else ""
    limit = " below 2^63" if hint is int and type(value) is int else ""
    shown = "nothing" if value is None else repr(value)
    raise NmtError(f"{where}: expected {_EXPECTED[hint]}{limit}, not {shown}{remedy}")


def _number(value: object) -> float | None:
    """Return the value as a float, or None. YAML 1.1 reads 1e-4, without a dot, as a string."""
    try:
        return float(value) if isinstance(value, (int, float, str)) else None
    except (ValueError, OverflowError):
        return None
