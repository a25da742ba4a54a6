"""Plugins: modules that register names for recipes, imported with the user's consent.

Importing a module runs its code. `nmt` therefore imports a plugin only if the user asks for it: in
a recipe given with ``--config``, by name with ``--plugin``, or with ``--trust-plugins`` for the
plugins of a run or of a recipe found in the current directory.
"""

from __future__ import annotations

import ast
import importlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import ExecutionLoader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import decode_source, find_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from nmt.errors import NmtError

__all__ = [
    "TRUST",
    "import_copies",
    "import_plugins",
    "is_trusted",
    "not_imported",
    "plugin_error",
    "plugin_names",
    "plugin_sources",
]

PACKAGE = Path(__file__).resolve().parents[1]
"""Directory of this package's code."""

# With a separator at the end, or lib/python3.1 would be a prefix of lib/python3.12, too.
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
        directory: another directory to search. If a module is there, the directory becomes the last
            entry of Python's path, so its files never hide an installed module.

    Raises:
        NmtError: a module cannot be imported, or has the name of an installed module.
    """
    # A plugin may have been written after Python listed its directory.
    importlib.invalidate_caches()
    for module in not_imported(modules):
        if directory is not None and _lies_in(directory, module, where):
            sys.path.append(str(directory.resolve()))
        looked = f"in {directory.resolve()} and " if directory is not None else ""
        _import(module, where, f"looked {looked}where Python looks")


def _lies_in(directory: Path, module: str, where: str) -> bool:
    """Return whether a module is in a directory, and nowhere on Python's path.

    Raises:
        NmtError: the module in the directory has the name of an installed module.
    """
    top = module.partition(".")[0]
    # Finding a top-level module runs none of its code.
    local = PathFinder.find_spec(top, [str(directory.resolve())])
    if local is None or top in sys.modules:
        return False
    elsewhere = find_spec(top)
    if elsewhere is None or _is_namespace(elsewhere):
        return True
    if not _is_namespace(local) and Path(str(elsewhere.origin)) != Path(str(local.origin)):
        raise NmtError(
            f"{where}: the plugin {local.origin} has the name of an installed module "
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
    # A name such as "<string>" is generated code, for example the methods of a dataclass.
    written = [frame for frame in run if not frame.filename.startswith(("<", *_LIBRARIES))]
    places = [f" ({frame.filename}, line {frame.lineno})" for frame in written or run]
    return places[-1] if places else ""


def _is_ours(file: str) -> bool:
    """Return whether a file is part of this package, or of Python's import."""
    is_of_import = file == importlib.__file__ or file.startswith("<frozen importlib")
    return is_of_import or Path(file).is_relative_to(PACKAGE)


def plugin_sources(modules: Sequence[str]) -> dict[str, bytes]:
    """Return the source files of imported plugins, by path relative to their directory.

    For a module in a package, all files of the package are returned. For a plugin that is not
    installed, imported modules next to the plugin are returned, too. A module that is not written
    in Python has no source files.
    """
    sources: dict[str, bytes] = {}
    for module in modules:
        if (root := _root(module)) is None:
            continue
        names = [module.partition(".")[0]]
        for name in names:
            files = {str(file.relative_to(root)): file.read_bytes() for file in _files(root, name)}
            sources.update(files)
            if not _is_installed(root):
                imported = sorted({top for source in files.values() for top in _imported(source)})
                # The list grows while it is walked, because modules import further ones.
                names += [top for top in imported if top not in names and _is_module(root, top)]
    return sources


def plugin_error(error: Exception, modules: Sequence[str]) -> str | None:
    """Return the place and the text of an error that was raised below the code of plugins.

    Args:
        error: an error with its traceback.
        modules: dotted names of imported plugins.

    Returns:
        The last file and line of a plugin in the traceback, and the error in words; None if the
        traceback has no line of a plugin.
    """
    roots = {module: root for module in modules if (root := _root(module)) is not None}
    files = {str(roots[module] / name) for module in roots for name in plugin_sources([module])}
    frames = traceback.extract_tb(error.__traceback__)
    if not (lines := [frame for frame in frames if frame.filename in files]):
        return None
    return f"{lines[-1].filename}, line {lines[-1].lineno}: {in_words(error)}"


def _root(module: str) -> Path | None:
    """Return the directory of an imported module's top-level package; None without source."""
    file = getattr(sys.modules[module], "__file__", None)
    if file is None or not file.endswith(".py"):
        return None
    # Not resolved, because tracebacks name files as Python found them.
    path = Path(file).absolute()
    return (path.parent if path.name == "__init__.py" else path).parents[module.count(".")]


def _files(root: Path, top: str) -> list[Path]:
    """Return the source files of a top-level module or package in a directory."""
    module, package = root / f"{top}.py", root / top
    if module.is_file() and not (package / "__init__.py").is_file():
        return [module]
    return sorted(package.rglob("*.py"))


def _is_module(root: Path, top: str) -> bool:
    is_there = (root / f"{top}.py").is_file() or (root / top / "__init__.py").is_file()
    # A plugin may lie in a checkout of this package.
    return is_there and top != "nmt"


def _is_installed(root: Path) -> bool:
    is_of_python = str(root) == sysconfig.get_path("stdlib")
    return is_of_python or not {"site-packages", "dist-packages"}.isdisjoint(root.parts)


def _imported(source: bytes) -> Iterator[str]:
    """Yield the top-level names of the modules that a source file imports, on any line."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # an unused file of a package
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        # Relative imports stay within the package, all of whose files are copied.
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield str(node.module).partition(".")[0]


def import_copies(
    modules: Sequence[str], sources: Mapping[str, bytes], directory: Path, where: str
) -> None:
    """Import plugins from copies of their sources, or from Python's path without a copy.

    A copy takes precedence over an installed module. Only the bytes in `sources` are run, not the
    files in `directory`.

    Args:
        modules: dotted names.
        sources: source files by relative path, from :func:`plugin_sources`.
        directory: the directory of the copies, for tracebacks.
        where: the run that names the modules, for messages.

    Raises:
        NmtError: a module cannot be imported.
    """
    sys.meta_path.insert(0, _Copies(sources, directory))  # stays: imports may come later
    import_plugins(modules, where)


class _Copies(MetaPathFinder, ExecutionLoader):
    """Finder and loader of modules whose source files are in memory."""

    def __init__(self, sources: Mapping[str, bytes], directory: Path) -> None:
        self._directory = directory.resolve()
        self._sources = {str(self._directory / name): sources[name] for name in sources}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module with a copy, or of a package of such modules, or None."""
        try:
            return spec_from_file_location(fullname, self.get_filename(fullname), loader=self)
        except ImportError:
            package = self._stem(fullname)
        if not any(file.startswith(package + os.sep) for file in self._sources):
            return None
        spec = ModuleSpec(fullname, None, is_package=True)  # a directory without __init__.py
        spec.submodule_search_locations = [package]
        return spec

    def get_filename(self, fullname: str) -> str:
        """Return the path of a module's copy.

        Raises:
            ImportError: the module has no copy.
        """
        stem = self._stem(fullname)
        # In Python's order: a package hides a module of the same name.
        for file in (os.path.join(stem, "__init__.py"), f"{stem}.py"):
            if file in self._sources:
                return file
        raise ImportError(f"no copy of {fullname}")

    def is_package(self, fullname: str) -> bool:
        """Return whether a module is a package with an ``__init__.py``."""
        return os.path.basename(self.get_filename(fullname)) == "__init__.py"

    def get_source(self, fullname: str) -> str:
        """Return the text of the copy of a module."""
        return decode_source(self._sources[self.get_filename(fullname)])

    def _stem(self, fullname: str) -> str:
        return str(self._directory.joinpath(*fullname.split(".")))
