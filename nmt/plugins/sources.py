"""Source files of plugins: collected as copies, imported from copies, and named in errors."""

from __future__ import annotations

import ast
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import ExecutionLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import decode_source, spec_from_file_location
from pathlib import Path
from types import ModuleType

from nmt.plugins.importing import import_plugins, in_words


def plugin_sources(modules: Sequence[str]) -> dict[str, bytes]:
    """Return the source files of imported plugins, by path relative to their directory.

    For a module in a package, all files of the package are returned. For a plugin that is not
    installed, the modules beside the plugin that it imports are returned, too. A module that is not
    written in Python has no source files.
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
                beside = sorted({top for source in files.values() for top in _imported(source)})
                names += [top for top in beside if top not in names and _is_module(root, top)]
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
    return is_there and top != "nmt"


def _is_installed(root: Path) -> bool:
    is_of_python = str(root) == sysconfig.get_path("stdlib")
    return is_of_python or not {"site-packages", "dist-packages"}.isdisjoint(root.parts)


def _imported(source: bytes) -> Iterator[str]:
    """Yield the top-level names of the modules that a source file imports, on any line."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # a file of a package that nothing imports
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
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
