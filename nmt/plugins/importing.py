"""Names of plugins, consent to run their code, and their import.

Importing a module runs its code. `nmt` therefore imports a plugin only if the user asks for it: in
a recipe given with ``--config``, by name with ``--plugin``, or with ``--trust-plugins`` for the
plugins of a run or of a recipe found in the current directory.
"""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

from nmt.errors import NmtError

PACKAGE = Path(__file__).resolve().parents[1]
"""Directory of this package's code."""

_LIBRARIES = tuple(
    f"{sysconfig.get_path(kind)}{os.sep}" for kind in ("stdlib", "purelib", "platlib")
)
"""Directories of modules that are installed."""

TRUST = "NMT_TRUST_PLUGINS"
"""Environment variable; the value 1 has the effect of ``--trust-plugins``."""


def plugin_names(value: object, where: str) -> tuple[str, ...]:
    """Return the modules under the key ``plugins`` of a recipe.

    Args:
        value: the key's value; None means no plugins.
        where: the recipe, for messages.

    Raises:
        NmtError: the value is not a list of dotted module names.
    """
    if value is None:
        return ()
    if not isinstance(value, list) or not all(_is_module_name(name) for name in value):
        raise NmtError(
            f"{where}: plugins: expected a list of modules, such as [mymodel], not {value!r}"
        )
    return tuple(value)


def _is_module_name(name: object) -> bool:
    return isinstance(name, str) and all(part.isidentifier() for part in name.split("."))


def is_trusted(flag: bool) -> bool:
    """Return whether the user allows plugins that they have not named: by flag or variable."""
    return flag or os.environ.get(TRUST) == "1"


def not_imported(modules: Sequence[str]) -> list[str]:
    """Return the modules that this process has not imported yet."""
    return [module for module in modules if module not in sys.modules]


def import_plugins(modules: Sequence[str], where: str, directory: Path | None = None) -> None:
    """Import modules with the user's consent, so that they register their entries.

    Args:
        modules: dotted names.
        where: the recipe or option that names the modules, for messages.
        directory: another directory to search. If a module lies there, the directory becomes the
            last entry of Python's path, so no file in it hides an installed module.

    Raises:
        NmtError: a module cannot be imported, or has the name of an installed module.
    """
    importlib.invalidate_caches()
    for module in not_imported(modules):
        if directory is not None and _lies_in(directory, module, where):
            sys.path.append(str(directory.resolve()))
        looked = f"in {directory.resolve()} and " if directory is not None else ""
        _import(module, where, f"looked {looked}where Python looks")


def _lies_in(directory: Path, module: str, where: str) -> bool:
    """Return whether a module lies in a directory, and nowhere on Python's path.

    Raises:
        NmtError: the module in the directory has the name of an installed module.
    """
    top = module.partition(".")[0]
    beside = PathFinder.find_spec(top, [str(directory.resolve())])
    if beside is None or top in sys.modules:
        return False
    elsewhere = find_spec(top)
    if elsewhere is None or _is_namespace(elsewhere):
        return True
    if not _is_namespace(beside) and Path(str(elsewhere.origin)) != Path(str(beside.origin)):
        raise NmtError(
            f"{where}: the plugin {beside.origin} has the name of an installed module "
            f"({elsewhere.origin}); rename it"
        )
    return False


def _is_namespace(spec: ModuleSpec) -> bool:
    """Return whether a name is a namespace package: directories without ``__init__.py``."""
    return spec.origin is None


def _import(module: str, where: str, looked: str) -> None:
    if module.endswith(".py"):
        raise NmtError(
            f"{where}: cannot import the plugin {module!r}; give the name of the module, "
            "without .py"
        )
    try:
        importlib.import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the module may raise anything, even SystemExit
        said = in_words(error)
        if isinstance(error, ModuleNotFoundError):
            said = f"{error.msg}; {looked}"
        raise NmtError(
            f"{where}: cannot import the plugin {module!r}{_line(error)}: {said}"
        ) from error


def in_words(error: BaseException) -> str:
    """Return the class and the message of an error as one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _line(error: BaseException) -> str:
    """Return file and line of a plugin's error for a message; empty if no line was run."""
    frames = traceback.extract_tb(error.__traceback__)
    run = [frame for frame in frames if not _is_ours(frame.filename)]
    # A name such as "<string>" is code that Python made, as the methods of a dataclass.
    written = [frame for frame in run if not frame.filename.startswith(("<", *_LIBRARIES))]
    places = [f" ({frame.filename}, line {frame.lineno})" for frame in written or run]
    return places[-1] if places else ""


def _is_ours(file: str) -> bool:
    """Return whether a file is part of this package, or of Python's import."""
    is_of_import = file == importlib.__file__ or file.startswith("<frozen importlib")
    return is_of_import or Path(file).is_relative_to(PACKAGE)
