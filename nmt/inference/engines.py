"""Engines: the software that searches with a trained model, this package or another one."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from nmt.errors import NmtError, UnknownKeyError, explain
from nmt.inference.ctranslate2 import CTranslate2Translator, check_execution, search_options
from nmt.inference.execution import ON_CPU, Execution, use_engine
from nmt.inference.lines import LineTranslator
from nmt.io import files
from nmt.messages import warn
from nmt.recipe.config import build
from nmt.recipe.plugins import not_imported
from nmt.recipe.registry import unknown
from nmt.runs import Checkpoint, Run, find_checkpoint
from nmt.runs.calibration import Calibration
from nmt.runs.exports import Export
from nmt.runs.recipe import import_plugins_of_run
from nmt.runtime.distributed import pick_device
from nmt.runtime.precision import check_precision
from nmt.search import strategies
from nmt.search.config import SearchConfig

EXPORTS = "exports"
"""Directory of a run for the exports that this engine makes."""


Engine = Callable[[Sequence[Path], SearchConfig, Execution, bool], LineTranslator]
"""Loads a translator: of the models at some paths, for a search, run with some settings.

The last argument is whether to import the Python modules that the models name as plugins. An engine
raises an NmtError if a model cannot be loaded, or if it does not support the search or a setting.
"""


def recipe_of(model: Path, trust_plugins: bool = False) -> dict[str, Any]:
    """Return the recipe of a run, or of the run of an export; import the plugins that it names.

    Raises:
        NmtError: the model cannot be opened, or its plugins lack consent.
    """
    if Export.exists(model):
        return Export.open(model, "ctranslate2").recipe
    run, _ = find_checkpoint(model)
    if not_imported(run.plugins):
        import_plugins_of_run(run.path, run.plugins, trust_plugins)
    return run.recipe


def load_runs(
    paths: Sequence[Path], search: SearchConfig, execution: Execution, trust_plugins: bool = False
) -> LineTranslator:
    """Load the translator of one run, or of an ensemble of several, into this package.

    Raises:
        NmtError: a path is an export, or cannot be loaded.
    """
    # Imported here, because a run that CTranslate2 translates needs no torch.
    import torch

    from nmt.inference.ensembles import ensemble_of, load_members
    from nmt.inference.fast.kernels import choose_attention
    from nmt.inference.translator import Translator

    refuse_exports(paths)
    choose_attention(execution.kind)
    members = load_members(paths, torch.device(execution.device), trust_plugins)
    model, shortlister = ensemble_of(members, search, execution)
    first = members[0]
    return Translator(model, first.subwords, search, execution, shortlister, first.run.languages)


def refuse_exports(paths: Sequence[Path]) -> None:
    """Refuse exports, which this package cannot load.

    Raises:
        NmtError: a path is an export.
    """
    for path in filter(Export.exists, paths):
        raise NmtError(
            f"{path}: an export, not a run; translate it alone and "
            f"{use_engine('ctranslate2')}, or give the run that was exported"
        )


def load_export(
    paths: Sequence[Path], search: SearchConfig, execution: Execution, trust_plugins: bool = False
) -> LineTranslator:
    """Load the translator of one run or export into CTranslate2.

    Raises:
        NmtError: CTranslate2 cannot run the model, or has no equal search.
    """
    export = exported(paths[0], trust_plugins, execution.shortlist)
    return CTranslate2Translator(export, search, execution)


def load_fastest(
    paths: Sequence[Path],
    search: SearchConfig,
    execution: Execution,
    trust_plugins: bool = False,
    load: Engine = load_runs,
) -> LineTranslator:
    """Load CTranslate2 for one run on a CPU, if its search means the same there, else the runs.

    Lines that CTranslate2 cannot translate alike are left to this package, which `load` loads. The
    run is exported once. The export stays in the run, or where the run cannot be written in the
    user's cache, and belongs to one checkpoint.
    """
    try:
        check_alike(paths, search, execution)
        export = exported(paths[0], trust_plugins, execution.shortlist)
        in_torch = None
        if export.path != paths[0]:
            # No workers: a fork of a process with CTranslate2's threads could hang.
            alone = replace(execution, workers=1)
            if execution.precision == "int8":  # which PyTorch lacks
                alone = replace(alone, precision="auto")
            in_torch = partial(load, paths, search, alone, trust_plugins)
        translator: LineTranslator = CTranslate2Translator(export, search, execution, in_torch)
        translator.engine = f"ctranslate2: {export.path}"
    except NmtError as error:
        if all(map(Export.exists, paths)):
            # This package loads no exports, so the first error is the useful one.
            raise
        reason = _without_advice(error)
        if execution.precision == "int8":
            raise NmtError(
                f"precision int8 needs CTranslate2, which cannot be used: {reason}; use precision "
                "auto or fp32"
            ) from None
        if warning := check_precision(execution.precision, execution.kind):
            warn(f"precision {warning}")
        translator = load(paths, search, execution, trust_plugins)
        translator.engine = f"nmt: {reason}"
    return translator


def _without_advice(error: NmtError) -> str:
    """Return an error without the advice to use nmt, which is the engine in use now."""
    return re.sub(rf"(?:;|, or) {re.escape(use_engine('nmt'))}$", "", str(error))


def fastest_engine(run: Run) -> str:
    """Return the engine that :func:`load_fastest` would choose on a CPU, and why; export nothing.

    The search is the one of the run's recipe, and the run has a checkpoint.
    """
    try:
        check_alike([run.path], build(SearchConfig, run.section("search"), "search"), ON_CPU)
        if export := _find_export(*find_checkpoint(run.path)):
            return f"ctranslate2: {export.path}"
        from nmt.formats import export_formats, load_exportable

        load_exportable(run.path, export_formats["ctranslate2"], "fp32")
        return "ctranslate2, after an export at the first translation"
    except NmtError as error:
        return f"nmt: {_without_advice(error)}"


def check_alike(paths: Sequence[Path], search: SearchConfig, execution: Execution) -> None:
    """Check that CTranslate2 searches with models as this package does.

    Raises:
        NmtError: it does not; the message says why.
    """
    if len(paths) > 1:
        raise NmtError("an ensemble")
    if execution.kind != "cpu":
        raise NmtError("on a GPU")
    if importlib.util.find_spec("ctranslate2") is None:
        raise NmtError("CTranslate2 is not installed")
    check_execution(execution)
    search_options(search)


def exported(path: Path, trust_plugins: bool = False, shortlist: bool = False) -> Export:
    """Return the export of a run or checkpoint for CTranslate2, which is made if there is none.

    Args:
        path: a run, a checkpoint or an export.
        trust_plugins: whether to import the Python modules that the run names as plugins.
        shortlist: whether an export of a run needs the shortlist. Without need it has none, because
            CTranslate2 takes up to half a second to load one.

    Raises:
        NmtError: there is no model or shortlist, or CTranslate2 cannot run the model.
    """
    if Export.exists(path):
        return Export.open(path, "ctranslate2")
    run, checkpoint = find_checkpoint(path)
    if (export := _find_export(run, checkpoint, shortlist)) is None:
        return _make_export(run, checkpoint, trust_plugins, shortlist)
    # The export needs no plugins, but a user must hear of one that has changed.
    import_plugins_of_run(run.path, run.plugins, trust_plugins)
    return export


def _places(run: Run, checkpoint: Checkpoint, shortlist: bool) -> list[Path]:
    """Return the directories where the export of a checkpoint may be, the best one first."""
    # The digest, because an update may have been trained again.
    name = f"{checkpoint.path.name}-{checkpoint.digest[:12]}"
    if shortlist:
        name += f"-{run.shortlist.checksum()[:12]}"
    return [directory / EXPORTS / name for directory in (run.path, files.user_cache())]


def _find_export(run: Run, checkpoint: Checkpoint, shortlist: bool = False) -> Export | None:
    """Return the export of a checkpoint, None if there is none."""
    for place in _places(run, checkpoint, shortlist):
        # An export of an older version, or with a damaged description, is made again.
        with suppress(NmtError):
            return Export.open(place, "ctranslate2")
    return None


def _make_export(run: Run, checkpoint: Checkpoint, trust_plugins: bool, shortlist: bool) -> Export:
    """Export a checkpoint into the first directory that can be written, and return the export.

    Raises:
        NmtError: CTranslate2 cannot run the model, or no directory can be written.
    """
    if "WORLD_SIZE" in os.environ:
        raise NmtError("under torchrun, and there is no export yet")
    from nmt.formats import export_run
    from nmt.formats.ctranslate2 import CTranslate2Format

    problems = []
    for place in _places(run, checkpoint, shortlist):
        exports = place.parent
        try:
            exports.mkdir(parents=True, exist_ok=True)
            # Two commands may meet a new run at once.
            with files.locked(exports, f"exports {run.path}"):
                with suppress(NmtError):  # it has made the export while this one waited
                    return Export.open(place, "ctranslate2")
                # The cache holds the exports of other runs, too.
                if exports.parent == run.path:
                    _remove_outdated(place, run.path)
                # The checkpoint, not the run, whose best checkpoint training may move meanwhile.
                kind = CTranslate2Format(name="ctranslate2", shortlist=shortlist)
                return export_run(checkpoint.path, kind, "fp32", place, trust_plugins)
        except OSError as error:
            problems.append(f"{exports}: cannot be written: {explain(error)}")
        finally:
            with suppress(OSError):
                exports.rmdir()  # if it is empty
    raise NmtError("; ".join(problems))


def _remove_outdated(export: Path, run: Path) -> None:
    """Remove exports of checkpoints that the run no longer has, or has with other weights.

    Exports with an older shortlist of the run are removed, too.

    Args:
        export: the export that is about to be made, in the directory of all exports.
        run: the run's directory.
    """
    update, digest, *shortlist = export.name.split("-")
    for other in export.parent.iterdir():
        name = re.fullmatch(r"(update_\d+)-([0-9a-f]{12})(-[0-9a-f]{12})?", other.name)
        if not name or other == export:
            continue
        # An export with the shortlist and an export without it may be of the same weights.
        is_current = name[2] == digest and bool(name[3]) != bool(shortlist)
        if not (run / name[1]).exists() or (name[1] == update and not is_current):
            shutil.rmtree(other)


ENGINES: dict[str, Engine] = {
    "auto": load_fastest,
    "ctranslate2": load_export,
    "nmt": load_runs,
}
"""Engines by name."""


def pick_engine(
    name: str, paths: Sequence[Path], execution: Execution
) -> tuple[Engine, str | None]:
    """Return the engine with a name, and a warning of a slow precision.

    Args:
        name: one of `ENGINES`.
        paths: an export, or runs or checkpoints; at least one.
        execution: settings of how the models are run.

    Raises:
        NmtError: there is no such engine, or it does not support the models or the precision.
    """
    if name not in ENGINES:
        raise NmtError(unknown("engine", name, ENGINES))
    if name == "ctranslate2" and len(paths) > 1:
        raise NmtError(f"engine ctranslate2: one model, not {len(paths)}; {use_engine('nmt')}")
    if name == "nmt" or len(paths) > 1:
        refuse_exports(paths)
    load = partial(_load_with_confidence, ENGINES[name])
    if name != "nmt":  # CTranslate2 itself refuses a precision
        return load, None
    return load, check_precision(execution.precision, execution.kind)


def _load_with_confidence(
    engine: Engine,
    paths: Sequence[Path],
    search: SearchConfig,
    execution: Execution,
    trust_plugins: bool = False,
) -> LineTranslator:
    """Load a translator; of one calibrated run or checkpoint, with its confidence."""
    translator = engine(paths, search, execution, trust_plugins)
    path = paths[0]
    if len(paths) == 1 and not Export.exists(path):
        try:
            calibration = Calibration.load(path if Run.exists(path) else path.resolve().parent)
        except NmtError as error:  # a translation needs no confidence
            warn(f"no confidence: {error}")
            calibration = None
        # A calibration of other weights says nothing about this model.
        if calibration and calibration.weights == find_checkpoint(path)[1].digest:
            translator.confidence = calibration.confidence
    return translator


def load_translator(
    model: str | Path,
    *others: str | Path,
    engine: str = "auto",
    device: str = "auto",
    trust_plugins: bool = False,
    source_lang: str | None = None,
    target_lang: str | None = None,
    terminology: str | Path | None = None,
    **settings: object,
) -> LineTranslator:
    """Load a translator that does what the command ``nmt translate`` does.

    ``nmt.Translator``, its public name, is called as in ``nmt.Translator("checkpoints",
    strategy="greedy").translate(lines)``, which gives a translation for every line, lazily.

    Args:
        model: a run (its best checkpoint), one of its checkpoints, or an export.
        others: runs or checkpoints of the same subwords, for an ensemble.
        engine: "nmt", "ctranslate2" or "auto": CTranslate2 on a CPU where every setting means the
            same, for which the run is exported once, and nmt for the rest.
        device: "cpu", "cuda", "cuda:N" or "auto".
        trust_plugins: whether to import the Python modules that the runs name as plugins.
        source_lang: source language of a multilingual model; None for any.
        target_lang: target language of a multilingual model; None for the only one.
        terminology: glossary whose translations must appear where a line has a term; see
            :func:`nmt.inference.terminology.read_terminology`.
        settings: the other fields of :class:`nmt.inference.Execution`, such as ``precision``; and
            keys of the recipe's section ``search``, which override the first model's, as in
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
    load, warning = pick_engine(engine, paths, execution)
    if warning:
        warnings.warn(warning, stacklevel=2)
    recipe = recipe_of(paths[0], trust_plugins)
    values = {**(recipe.get("search") or {}), **settings}
    try:
        search = build(SearchConfig, values, "search")
    except UnknownKeyError as error:
        if error.key not in settings or not (names := strategies.names_with(error.key)):
            raise
        strategy = _strategy(values.get("strategy"), names, settings)
        raise NmtError(f"{error.key!r} is a key of the strategy; give {strategy=}") from None
    translator = load(paths, search, execution, trust_plugins)
    translator = translator.for_direction(target_lang, source_lang)
    if terminology is not None:
        from nmt.inference.terminology import use_terminology  # with parsers of XML

        use_terminology(Path(terminology), [translator])
    return translator


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
