"""Engines: the software that searches with a trained model, this package or another one."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from nmt.errors import NmtError, UnknownKeyError
from nmt.formats import Export, export_formats, export_run
from nmt.inference.ctranslate2 import CTranslate2Translator, check_execution, search_options
from nmt.inference.ensembles import ensemble_of, load_members
from nmt.inference.execution import Execution, use_engine
from nmt.inference.lines import LineTranslator
from nmt.inference.translator import Translator
from nmt.messages import say
from nmt.recipe.config import build
from nmt.recipe.plugins import not_imported
from nmt.recipe.registry import unknown
from nmt.runs import find_checkpoint
from nmt.runs.recipe import import_plugins_of_run
from nmt.runtime.distributed import pick_device
from nmt.runtime.precision import check_precision
from nmt.search import strategies
from nmt.search.config import SearchConfig

EXPORTS = "exports"
"""Directory of a run for the exports that this engine makes."""


class Engine(ABC):
    """Trained models, ready to be searched with.

    Attributes:
        recipe: the resolved recipe of the run that the (first) model comes from.
    """

    recipe: dict[str, Any]

    @abstractmethod
    def __init__(
        self, paths: Sequence[Path], execution: Execution, trust_plugins: bool = False
    ) -> None:
        """Open the models at the given paths.

        Args:
            paths: at least one model.
            execution: settings of how the models are run.
            trust_plugins: whether to import the Python modules that the models name as plugins.

        Raises:
            NmtError: a model cannot be opened, or the engine takes only one model.
        """

    @staticmethod
    def check_precision(execution: Execution) -> str | None:
        """Return a warning if the precision is slow; call this before loading a model.

        Raises:
            NmtError: the device does not support the precision.
        """
        return check_precision(execution.precision, execution.device)

    @abstractmethod
    def translator(self, search: SearchConfig) -> LineTranslator:
        """Return the translator of these models.

        Raises:
            NmtError: the engine does not support the search or a setting of the execution.
        """


class Runs(Engine):
    """The engine of this package, with one run or an ensemble of several."""

    def __init__(
        self, paths: Sequence[Path], execution: Execution, trust_plugins: bool = False
    ) -> None:
        """Load the models."""
        for path in paths:
            if Export.exists(path):
                raise NmtError(
                    f"{path}: an export, not a run; translate it alone and "
                    f"{use_engine('ctranslate2')}, or give the run that was exported"
                )
        self._members = load_members(paths, execution.device, trust_plugins)
        self._execution = execution
        self.recipe = self._members[0].recipe

    def translator(self, search: SearchConfig) -> LineTranslator:
        """Return the translator of the run or of the ensemble."""
        model, shortlister = ensemble_of(self._members, search, self._execution)
        first = self._members[0]
        return Translator(
            model, first.subwords, search, self._execution, shortlister, first.run.languages
        )


class CTranslate2(Engine):
    """CTranslate2, with one export."""

    def __init__(
        self, paths: Sequence[Path], execution: Execution, trust_plugins: bool = False
    ) -> None:
        """Open the export, which needs no plugins."""
        if len(paths) > 1:
            raise NmtError(f"engine ctranslate2: one model, not {len(paths)}; {use_engine('nmt')}")
        self._export, self._execution = Export.open(paths[0], "ctranslate2"), execution
        self.recipe = self._export.recipe

    @staticmethod
    def check_precision(execution: Execution) -> str | None:
        """Return None: CTranslate2 itself refuses a precision."""
        return None

    def translator(self, search: SearchConfig) -> LineTranslator:
        """Return the translator of the export, which has no shortlist and is not compiled."""
        return CTranslate2Translator(self._export, search, self._execution)


class Auto(Engine):
    """CTranslate2 for one run on a CPU, if every setting means the same there.

    The run is exported once. The export stays in the run, and belongs to one checkpoint.
    """

    def __init__(
        self, paths: Sequence[Path], execution: Execution, trust_plugins: bool = False
    ) -> None:
        """Note the models; the search, perhaps of a plugin, decides which engine loads them."""
        self._paths, self._execution, self._trust_plugins = paths, execution, trust_plugins
        if Export.exists(paths[0]):
            self.recipe = Export.open(paths[0], "ctranslate2").recipe
            return
        run, _ = find_checkpoint(paths[0])
        if not_imported(run.plugins):
            import_plugins_of_run(run.path, run.plugins, trust_plugins)
        self.recipe = run.recipe

    def translator(self, search: SearchConfig) -> LineTranslator:
        """Return the translator of the faster engine that supports the search and the execution.

        Prints a line that names the engine, with the reason.
        """
        try:
            export = self._export(search)
            exported = CTranslate2([export], self._execution).translator(search)
        except NmtError as error:
            why = re.sub(rf"(?:;|, or) {re.escape(use_engine('nmt'))}$", "", str(error))
            _tell(f"engine nmt: {why}")
            return Runs(self._paths, self._execution, self._trust_plugins).translator(search)
        _tell(f"engine ctranslate2: {export}")
        return exported

    def _export(self, search: SearchConfig) -> Path:
        """Return the export of the only model, which is made if there is none yet.

        Raises:
            NmtError: the model or the search is not for CTranslate2.
        """
        [path, *others] = self._paths
        if others:
            raise NmtError("an ensemble")
        if self._execution.device.type != "cpu":
            raise NmtError("on a GPU")
        if importlib.util.find_spec("ctranslate2") is None:
            raise NmtError("CTranslate2 is not installed")
        check_execution(self._execution)
        search_options(search)
        if Export.exists(path):
            return path
        run, checkpoint = find_checkpoint(path)
        if (directions := run.subwords.directions) and directions.tags == "target":
            raise NmtError("translations begin with tags")
        exports = run.path / EXPORTS
        digest = checkpoint.files["model.safetensors"].sha256
        export = exports / f"{checkpoint.path.name}-{digest[:12]}"
        if Export.exists(export):
            return export
        if "WORLD_SIZE" in os.environ:
            raise NmtError("under torchrun, and there is no export yet")
        ctranslate2 = export_formats["ctranslate2"]
        try:
            exports.mkdir(exist_ok=True)
            _remove_outdated(export, run.path)
            # The checkpoint, since training may set another best one meanwhile.
            export_run(checkpoint.path, ctranslate2, "fp32", export, self._trust_plugins)
        except OSError as error:
            raise NmtError(f"{exports}: cannot be written: {error.strerror}") from None
        return export


def _tell(line: str) -> None:
    """Print a line, under torchrun in the first process alone."""
    if os.environ.get("RANK", "0") == "0":
        say(line)


def _remove_outdated(export: Path, run: Path) -> None:
    """Remove exports of checkpoints that the run no longer has, or has with other weights.

    Args:
        export: the export that is about to be made, beside the others.
        run: the run's directory.
    """
    current = export.name.partition("-")[0]
    for other in export.parent.iterdir():
        name = re.fullmatch(r"(update_\d+)-[0-9a-f]{12}", other.name)
        if name and other != export and (name[1] == current or not (run / name[1]).exists()):
            shutil.rmtree(other)


ENGINES: dict[str, type[Engine]] = {"nmt": Runs, "ctranslate2": CTranslate2, "auto": Auto}
"""Engines by name."""


def pick_engine(name: str | None, paths: Sequence[Path]) -> type[Engine]:
    """Return the engine with the given name, or the engine that fits the models.

    Args:
        name: one of `ENGINES`; None for CTranslate2 with an export, and nmt with runs.
        paths: an export, or runs or checkpoints; at least one.

    Raises:
        NmtError: there is no such engine.
    """
    name = name or ("ctranslate2" if all(map(Export.exists, paths)) else "nmt")
    if name not in ENGINES:
        raise NmtError(unknown("engine", name, ENGINES))
    return ENGINES[name]


def load_translator(
    model: str | Path,
    *others: str | Path,
    engine: str | None = None,
    device: str = "auto",
    trust_plugins: bool = False,
    source_lang: str | None = None,
    target_lang: str | None = None,
    **settings: object,
) -> LineTranslator:
    """Load a translator that does what the command ``nmt translate`` does.

    ``nmt.Translator``, its public name, is called as in ``nmt.Translator("checkpoints",
    strategy="greedy").translate(lines)``, which gives a translation for every line, lazily.

    Args:
        model: a run (its best checkpoint), one of its checkpoints, or an export.
        others: runs or checkpoints of the same subwords, for an ensemble.
        engine: "nmt", "ctranslate2" or "auto"; None for CTranslate2 with an export, and nmt with
            runs. "auto" takes CTranslate2 where every setting means the same, and exports the run
            for it; it needs "nmt" for beginnings, phrases and alignments.
        device: "cpu", "cuda", "cuda:N" or "auto".
        trust_plugins: whether to import the Python modules that the runs name as plugins.
        source_lang: source language of a multilingual model; None for any.
        target_lang: target language of a multilingual model; None for the only one.
        settings: the other fields of :class:`nmt.inference.Execution`, such as ``precision``; and
            keys of the recipe's section ``search``, which override those of the first model, as in
            ``strategy={"name": "beam", "beam": 8}``.

    Raises:
        NmtError: a model or the shortlist cannot be loaded, a setting is unknown or wrong, or the
            model does not have the languages.
        TypeError: a model is no path.
    """
    names = [field.name for field in fields(Execution) if field.name in settings]
    running = {name: settings.pop(name) for name in names}
    execution = build(Execution, running, "execution", Execution(device=pick_device(device)))
    paths = [as_path(path) for path in (model, *others)]
    chosen = pick_engine(engine, paths)
    if warning := chosen.check_precision(execution):
        warnings.warn(warning, stacklevel=2)
    opened = chosen(paths, execution, trust_plugins)
    values = {**(opened.recipe.get("search") or {}), **settings}
    try:
        search = build(SearchConfig, values, "search")
    except UnknownKeyError as error:
        if error.key not in settings or not (names := strategies.names_with(error.key)):
            raise
        strategy = _strategy(values.get("strategy"), names, settings)
        raise NmtError(f"{error.key!r} is a key of the strategy; give {strategy=}") from None
    return opened.translator(search).for_direction(target_lang, source_lang)


def _strategy(chosen: Any, names: Sequence[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chosen strategy with those settings that are keys of it.

    Args:
        chosen: the search's strategy, by its name or a dictionary.
        names: strategies that have the keys; the first one if the chosen one does not.
        settings: settings of a translator.
    """
    strategy = dict(chosen) if isinstance(chosen, Mapping) else {strategies.key: chosen}
    if strategy.get(strategies.key) not in names:
        strategy = {strategies.key: names[0]}
    keys = (key for key in settings if strategy[strategies.key] in strategies.names_with(key))
    return strategy | {key: settings[key] for key in keys}


def as_path(model: object) -> Path:
    """Return the path of one model.

    Raises:
        TypeError: it is no path, as a list of the members of an ensemble.
    """
    if isinstance(model, (str, os.PathLike)):
        return Path(model)
    raise TypeError(
        f"model: expected a path, not {type(model).__name__}; give each model of an ensemble as an "
        "argument of its own, nmt.Translator(first, second)"
    )
