"""Load the recipe of an experiment: ``nmt.yaml``, overridden by ``--set`` and flags.

The sections are ``preprocess``, ``model``, ``train``, ``search`` and ``score``. ``plugins`` lists
modules to import. Every command reads ``nmt.yaml`` in the current directory, or the file of
``--config``. A recipe that was found in the current directory may be a stranger's, so its plugins
need the user's consent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from nmt.errors import NmtError, UnknownKeyError
from nmt.io.documents import open_regular
from nmt.messages import say
from nmt.recipe.config import is_chosen, parse_assignment, parse_yaml, set_path
from nmt.recipe.keys import keys
from nmt.recipe.plugins import TRUST, import_plugins, is_trusted, not_imported, plugin_names
from nmt.recipe.registry import nearest, unknown

RECIPE = Path("nmt.yaml")

MAX_BYTES = 1 << 20
"""Largest recipe, in bytes."""

DEFAULT_ARCH = "transformer_base"

SECTIONS = ("preprocess", "model", "train", "search", "score")

CONVERT = "; `nmt recipe` converts configurations of other toolkits"

ConfigFlag = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Recipe (YAML).  [default: nmt.yaml, if the current directory has one]",
        show_default=False,
        rich_help_panel="Recipe",
    ),
]

SetFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Set any key of the recipe (docs/recipe.md). May be given several times.",
        show_default=False,
        rich_help_panel="Recipe",
    ),
]


@dataclass(frozen=True)
class Recipe:
    """Plain values of a recipe by section, with flags and ``--set`` applied."""

    sections: dict[str, dict[str, Any]]
    plugins: tuple[str, ...] = ()
    """Modules that were imported."""

    def section(self, name: str) -> dict[str, Any]:
        """Return the values of a section; empty if the recipe has none.

        The default dataset of `train` is the dataset that `preprocess` makes.
        """
        made = name == "train" and self.section("preprocess").get("output_dir")
        return {**({"data": made} if made else {}), **self.sections.get(name, {})}


def load(
    config: Path | None,
    assignments: list[str] | None,
    flags: Mapping[str, object],
    base: Mapping[str, Any] | None = None,
    plugins: Sequence[str] | None = None,
    trust_plugins: bool = False,
) -> Recipe:
    """Load the recipe of a command, and import its plugins.

    Args:
        config: the recipe's file; None for ``nmt.yaml`` if it exists.
        assignments: the ``--set`` flags, ``section.key=value``; they override the recipe.
        flags: dotted path to value for the command's own flags; None means not given. They
            override everything, except that a flag that chooses a part is applied before ``--set``
            of the part's keys.
        base: values that the recipe overrides, for instance the recipe of a trained run.
        plugins: modules that the user names in addition to the modules of the recipe.
        trust_plugins: whether plugins may be imported if `config` is None.

    Raises:
        NmtError: the file is missing or not valid, or names an unknown section, or a plugin cannot
            or may not be imported.
    """
    values: dict[str, Any] = {}
    for layer in (dict(base or {}), read(config)):
        _merge(values, layer)
    assigned = [parse_assignment(text) for text in assignments or []]
    set_by_flags = {path: value for path, value in flags.items() if value is not None}
    # Afterwards the choice would drop the keys of its part that --set has set.
    for choice in [
        path for path in set_by_flags if any(key.startswith(f"{path}.") for key, _ in assigned)
    ]:
        set_path(values, choice, set_by_flags.pop(choice))
    for path, value in assigned:
        if "." not in path and path not in SECTIONS and (paths := homes(path)):
            raise NmtError(f"--set {path}: a key without its section; did you mean {paths[0]!r}?")
        _check_section(path.partition(".")[0], f"--set {path}")
        if "." not in path:
            raise NmtError(f"--set {path}: expected section.key=value")
        section, key, *_ = path.split(".")
        _check_keys(section, [key], section)
        set_path(values, path, value)
    for path, value in set_by_flags.items():
        set_path(values, path, value)
    file = config or RECIPE
    listed = plugin_names(values.pop("plugins", None), str(file))
    # Modules that the user names need no consent, even if the recipe lists them, too.
    import_named(plugins)
    if config is None:
        _check_consent(listed, trust_plugins)
    import_plugins(listed, str(file), file.parent)
    return Recipe(values, tuple(dict.fromkeys([*listed, *(plugins or [])])))


def _check_consent(listed: Sequence[str], trusted: bool) -> None:
    """Print the plugins that a recipe found in the current directory is about to import.

    Raises:
        NmtError: the user has neither named nor trusted them.
    """
    missing = not_imported(listed)
    if not missing:
        return
    if not is_trusted(trusted):
        raise NmtError(
            f"{RECIPE}: names Python code to import: {', '.join(missing)}; it was found in the "
            f"current directory: if it is yours, give --config {RECIPE}, --plugin {missing[0]} or "
            f"--trust-plugins (or {TRUST}=1)"
        )
    say(f"{RECIPE}: imports {', '.join(missing)}")


def read(config: Path | None) -> dict[str, Any]:
    """Return the plain values of a recipe file, after checking the names of its sections.

    Raises:
        NmtError: the file cannot be read, or is not a mapping of known sections.
    """
    path = config or RECIPE
    if config is None and not path.exists():
        return {}
    values = parse_yaml(_text(path, is_given=config is not None), str(path))
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise NmtError(f"{path}: expected sections ({', '.join(SECTIONS)})")
    for name, section in values.items():
        _check_section(str(name), str(path), CONVERT)
        if name != "plugins" and not isinstance(section, (dict, type(None))):
            raise NmtError(f"{path}: {name}: expected keys and values")
        if name in SECTIONS:
            _check_keys(str(name), map(str, section or ()), f"{path}: {name}")
    return {name: section for name, section in values.items() if section is not None}


def _text(path: Path, is_given: bool) -> str:
    """Return the text of a recipe; a recipe given by name may be a pipe."""
    try:
        with path.open("rb") if is_given else open_regular(path) as file:
            # One byte more shows that the file is longer than the limit.
            content = file.read(MAX_BYTES + 1)
        if len(content) <= MAX_BYTES:
            return content.decode("utf-8")
        reason = f"larger than {MAX_BYTES:,} bytes"
    except FileNotFoundError:
        reason = "No such file or directory; check the path, or write one with `nmt init`"
    except IsADirectoryError:
        reason = "a directory; give the file in it"
    except OSError as error:
        reason = error.strerror or str(error)
    except UnicodeDecodeError:
        reason = "not UTF-8"
    raise NmtError(f"{path}: cannot read the recipe: {reason}")


def homes(key: str) -> list[str]:
    """Return the dotted paths of default choices that end with a key, the shortest first."""
    paths = [path for path, of in keys().items() if path.endswith(f".{key}") and not of.needs]
    return sorted(paths, key=lambda path: path.count("."))


def _check_section(name: str, where: str, hint: str = "") -> None:
    if name in (*SECTIONS, "plugins"):
        return
    if paths := homes(name):
        raise NmtError(f"{where}: {name}: a key without its section; did you mean {paths[0]!r}?")
    hint = "" if nearest(name, SECTIONS) else hint
    raise UnknownKeyError(where, name, unknown("section", name, SECTIONS) + hint)


def _check_keys(section: str, given: Iterable[str], where: str) -> None:
    """Refuse keys that a section lacks, also in a command that does not use the section."""
    if section == "model":  # the architecture decides on them
        return
    known = {path.split(".")[1] for path in keys() if path.startswith(f"{section}.")}
    for key in given:
        if key not in known:
            raise UnknownKeyError(where, key, unknown("key", key, known))


def _merge(values: dict[str, Any], layer: Mapping[str, Any]) -> None:
    """Merge nested mappings; the name of another choice replaces the old choice and its keys."""
    for key, value in layer.items():
        here = values.get(key)
        if isinstance(value, Mapping):
            if not isinstance(here, dict) or _is_other_choice(here, value):
                here = values[key] = {}
            _merge(here, value)
        elif not is_chosen(here, value):
            values[key] = value


def _is_other_choice(here: Mapping[str, Any], there: Mapping[str, Any]) -> bool:
    return any(name in there and there[name] != here.get(name) for name in ("name", "arch"))


PluginFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="MODULE",
        help="Import a Python module of your own, from the current directory or where Python "
        "looks. May be given several times.",
        show_default=False,
        rich_help_panel="Plugins",
    ),
]

TrustFlag = Annotated[
    bool,
    typer.Option(
        "--trust-plugins",
        help="Import the plugins of the run, and of a recipe that was found in the current "
        "directory. This runs their Python code. NMT_TRUST_PLUGINS=1 does the same.",
        rich_help_panel="Plugins",
    ),
]


def import_named(plugins: Sequence[str] | None) -> None:
    """Import the modules that the command line names."""
    import_plugins(plugins or [], "--plugin", Path())
