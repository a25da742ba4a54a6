"""Everything that a report shows of runs: logs, recipes, datasets, translations."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from nmt.data.dataset import Dataset, length_statistics, tokens_in_use
from nmt.data.manifest import SIDES
from nmt.errors import NmtError
from nmt.evaluation.groups import group_scores
from nmt.evaluation.metrics import metrics
from nmt.io.documents import finite
from nmt.languages import count_words, has_spaces
from nmt.recipe.config import flatten, json_values
from nmt.report.charts import Chart, Panel, panels
from nmt.report.log import Axis, Curve, Log, read_log
from nmt.runs import LOG, Run
from nmt.runs.calibration import Calibration
from nmt.runs.translations import kept_translations, read_translations

NOT_KEPT = "The run keeps no translations: they are written where train.valid_metrics has a metric."

UNSHARED = ("train.save_dir",)
"""Keys of the recipe that differ in every run and are not shown."""

PER_RUN = (*UNSHARED, "train.seed", "train.data")
"""Keys in which the recipes of a group may differ; the fingerprint of the data may not differ."""

ABSENT = "–"
"""Stands for the value of a key that a recipe does not have."""

WORST = 20
"""Number of sentences with the lowest chrF that are shown."""

NGRAM = 4
"""Words, or characters of a language without spaces, of a repetition."""


@dataclass(frozen=True)
class RunReport:
    """Runs and their logs, by the names that the report gives them."""

    runs: Mapping[str, Run]
    logs: Mapping[str, Log]
    is_grouped: bool = False
    """Whether the report shows means over the runs of each recipe."""

    @cached_property
    def panels(self) -> list[Panel]:
        """The charts."""
        return list(panels(self.logs))

    @property
    def colours(self) -> dict[str, int]:
        """The number of the colour of each run."""
        return {name: number for number, name in enumerate(self.runs)}

    def marks(self, axis: Axis) -> dict[str, list[float]]:
        """Return where on an axis trainings resumed, and where updates were skipped."""
        marks: dict[str, list[float]] = {"resumed": [], "skipped": []}
        for log in self.logs.values():
            for kind, updates in (("resumed", log.resumed), ("skipped", list(log.skipped))):
                marks[kind] += updates if axis == "update" else log.minutes(updates)
        return marks

    def charts(self, axis: Axis) -> dict[str, Chart]:
        """Return the charts over an axis by their titles."""
        marks = self.marks(axis)
        return {panel.title: panel.chart(axis, self.colours, marks) for panel in self.panels}

    def differences(self) -> dict[str, list[object]]:
        """Return the values of each run, by the keys of the recipe whose values differ."""
        flat = [flatten(json_values(run.recipe)) for run in self.runs.values()]
        keys = dict.fromkeys(key for recipe in flat for key in recipe)
        rows = {key: [recipe.get(key, ABSENT) for recipe in flat] for key in keys}
        return {
            key: values
            for key, values in rows.items()
            if key not in UNSHARED and any(value != values[0] for value in values)
        }

    def groups(self) -> list[dict[str, Any]]:
        """Return the scores of the best validations, by groups of runs that differ in the seed.

        Recipes of a group are equal except for train.seed and the paths of the run and its data.
        """
        by_recipe: dict[str, list[str]] = {}
        for name, run in self.runs.items():
            recipe = flatten(json_values(run.recipe))
            values = {key: recipe[key] for key in sorted(recipe) if key not in PER_RUN}
            by_recipe.setdefault(json.dumps([run.data, values]), []).append(name)
        names = [", ".join(runs) for runs in by_recipe.values()]
        best = {name: self._scores(log, log.best) or {} for name, log in self.logs.items()}
        scores: dict[str, dict[str, Any]] = {name: {} for name in names}
        for metric in dict.fromkeys(key for values in best.values() for key in values):
            values = {
                name: [value for run in runs if (value := best[run].get(metric)) is not None]
                for name, runs in zip(names, by_recipe.values(), strict=True)
            }
            known = {name: numbers for name, numbers in values.items() if numbers}
            for name, group in group_scores(known).items():
                scores[name][metric] = vars(group)
        return [
            {"name": name, "runs": runs, "best": scores[name]}
            for name, runs in zip(names, by_recipe.values(), strict=True)
        ]

    def document(self) -> dict[str, Any]:
        """Return plain values for JSON, with every value of every curve."""
        datasets: dict[str, dict[str, Any]] = {}
        described = []
        for name, run in self.runs.items():
            about = self._facts(name)
            try:
                dataset = dataset_of(run)
                # The relative path of another run may have missed the same dataset.
                if "missing" in datasets.get(run.data, {"missing": ""}):
                    datasets[run.data] = dataset_facts(dataset)
                kept = Translations.from_run(run, dataset)
            except NmtError as error:
                datasets.setdefault(run.data, {"missing": f"The dataset cannot be read: {error}"})
                about["translations"] = {"missing": f"The validation set cannot be read: {error}"}
            else:
                about["translations"] = {"missing": NOT_KEPT} if kept is None else kept.facts()
            described.append(about)
        return {
            "runs": described,
            "datasets": datasets,
            "differences": self.differences(),
            **({"groups": self.groups()} if self.is_grouped else {}),
            "curves": curves(self.panels),
        }

    def _facts(self, name: str) -> dict[str, Any]:
        run, log = self.runs[name], self.logs[name]
        speeds = log.curve("train", "target_tokens_per_second").values
        memory = log.curve("train", "memory_mb").values
        epochs = log.curve("train", "epoch").values
        return {
            "name": name,
            "path": str(run.path),
            "languages": list(run.languages),
            "architecture": run.section("model").get("arch"),
            "updates": log.last,
            "epochs": epochs[-1] if epochs else None,
            "minutes": log.minutes([log.last])[0] or None,
            # The median, because compiling slows the first reports.
            "target_tokens_per_second": statistics.median(speeds) if speeds else None,
            "memory_mb": max(memory) if memory else None,
            "begun": log.begun,
            "ended": log.ended,
            "resumed": log.resumed,
            "skipped": [{"update": at, "where": where} for at, where in log.skipped.items()],
            "best": self._scores(log, log.best),
            "last": self._scores(log, max(log.validation, default=None)),
            "fingerprint": run.data,
            "recipe": json_values(run.recipe),
            "confidence": _confidence(run),
        }

    @staticmethod
    def _scores(log: Log, update: int | None) -> dict[str, Any] | None:
        """Return the scores of a validation, with None for values that are not finite.

        Return None without a validation.
        """
        if update is None:
            return None
        return {"update": update, **finite(log.validation.get(update, {}))}


def read_runs(paths: Sequence[Path], is_grouped: bool = False) -> RunReport:
    """Read runs and their logs; a run may be training meanwhile.

    Runs are named after their directories; runs with the same name are named with their parent
    directories. If these names are not unique, all runs are named after their paths. A run that is
    given twice counts once.

    Raises:
        NmtError: a directory is not a run, or was not trained, or its log is damaged or empty.
    """
    paths = list({path.resolve(): path for path in paths}.values())
    places = [path.resolve() for path in paths]
    counts = Counter(place.name for place in places)
    names = [place.name if counts[place.name] == 1 else place.parent.name for place in places]
    if len({*names}) < len(names):
        names = [str(path) for path in paths]
    runs = {name: Run.open(path) for name, path in zip(names, paths, strict=True)}
    for run in runs.values():
        if {"averaged", "imported"} & run.recipe.keys():
            raise NmtError(
                f"{run.path}: is an average or an import, which has no log; give a run that "
                "`nmt train` has made"
            )
    logs = {name: read_log(run.path / LOG) for name, run in runs.items()}
    return RunReport(runs, logs, is_grouped)


def curves(shown: Sequence[Panel], thin: bool = False) -> dict[str, Any]:
    """Return the points of all curves, by panel, kind of record and run.

    Args:
        shown: the panels.
        thin: whether to return only the points that the charts draw.
    """
    return {
        panel.name: {
            kind: {run: _points(curve.thinned() if thin else curve) for run, curve in runs.items()}
            for kind, runs in panel.curves.items()
        }
        for panel in shown
    }


def dataset_of(run: Run) -> Dataset:
    """Return the dataset that a run was trained on.

    The recipe may name it relative to the directory where `nmt train` ran, which is in general one
    of the directories that hold the run.

    Raises:
        NmtError: the dataset is not at the path that the recipe names, or it has changed.
    """
    path = Path(str(run.recipe.get("train", {}).get("data")))
    for directory in (Path(), *run.path.resolve().parents):
        with suppress(NmtError):
            dataset = Dataset.open(directory / path)
            if dataset.manifest.fingerprint == run.data:
                return dataset
    # Raises the error about the path that the recipe names.
    Dataset.open(path)
    raise NmtError(f"{path}: not the dataset that {run.path} was trained on")


def dataset_facts(dataset: Dataset) -> dict[str, Any]:
    """Return plain values about a dataset: its splits, what cleaning did, and its vocabulary."""
    manifest = dataset.manifest
    train = manifest.splits["train"]
    return {
        "path": str(dataset.path),
        "fingerprint": manifest.fingerprint,
        "languages": [manifest.language(side) for side in SIDES],
        "splits": {
            name: {
                "pairs": counts.pairs,
                "tokens": [counts.source_tokens, counts.target_tokens],
                "unknown": [counts.source_unknown, counts.target_unknown],
                "lengths": [
                    vars(lengths) if (lengths := length_statistics(dataset, name, side)) else None
                    for side in SIDES
                ],
            }
            for name, counts in manifest.splits.items()
        },
        "dropped": {reason: count for reason, count in train.dropped.items() if count},
        "rewritten": {step: count for step, count in train.rewritten.items() if count},
        "examples": {reason: list(map(list, pairs)) for reason, pairs in train.examples.items()},
        "vocabulary": {
            "shared": manifest.shared_vocabulary,
            "sizes": [manifest.vocabulary(side) for side in SIDES],
            "in_use": [tokens_in_use(dataset, side) for side in SIDES],
        },
    }


@dataclass(frozen=True)
class Translations:
    """The validation set of a run, and its translations after some updates."""

    target_lang: str
    sources: Sequence[str]
    references: Sequence[str]
    by_update: Mapping[int, Sequence[str]]

    @classmethod
    def from_run(cls, run: Run, dataset: Dataset) -> Translations | None:
        """Read the translations that a run keeps; None if there are none.

        Raises:
            NmtError: a file is damaged.
        """
        updates = kept_translations(run.path)
        if not updates:
            return None
        split = dataset.split("valid")
        texts = {update: read_translations(run.path, update, len(split)) for update in updates}
        sources, references = split.source_text(), split.reference_text()
        return cls(run.target_lang, sources, references, texts)

    def facts(self) -> dict[str, Any]:
        """Return plain values: statistics of each validation, and the worst last translations."""
        last = self.by_update[max(self.by_update)]
        chrf = metrics["chrf"].for_sentences()
        scores = [
            chrf.score([hypothesis], [reference]).value
            for hypothesis, reference in zip(last, self.references, strict=True)
        ]
        order = sorted(range(len(scores)), key=scores.__getitem__)
        return {
            "updates": {
                update: self._statistics(texts) for update, texts in self.by_update.items()
            },
            "worst": [
                {
                    "line": at + 1,
                    "chrf": scores[at],
                    "source": self.sources[at],
                    "reference": self.references[at],
                    "translations": {up: texts[at] for up, texts in self.by_update.items()},
                }
                for at in order[:WORST]
            ],
        }

    def _statistics(self, texts: Sequence[str]) -> dict[str, Any]:
        words = sum(map(count_words, self.references))
        unspaced = not has_spaces(self.target_lang)
        pairs = zip(texts, self.references, strict=True)
        return {
            "chrf": metrics["chrf"].score(texts, self.references).value,
            "length_ratio": sum(map(count_words, texts)) / max(1, words),
            "repeating": sum(repeats(text, other, unspaced) for text, other in pairs),
            "empty": sum(not text.strip() for text in texts),
        }


def repeats(text: str, reference: str, unspaced: bool = False) -> bool:
    """Return whether an n-gram occurs twice in a translation, and not twice in the reference.

    Args:
        text: the translation.
        reference: its reference.
        unspaced: whether to count n-grams of characters instead of words.
    """
    units = [[*line] if unspaced else line.split() for line in (text, reference)]
    counts, allowed = (
        Counter(tuple(line[at : at + NGRAM]) for at in range(len(line) - NGRAM + 1))
        for line in units
    )
    return any(count > max(1, allowed[ngram]) for ngram, count in counts.items())


def _confidence(run: Run) -> dict[str, Any] | None:
    """Return how reliable the confidence in translations is; None without a calibration."""
    calibration = Calibration.load(run.path)
    if calibration is None or (confidence := calibration.confidence) is None:
        return None
    return {
        "median_chrf": confidence.median_chrf,
        "calibration_error": confidence.calibration_error,
        "bins": [vars(one) for one in confidence.bins],
    }


def _points(curve: Curve) -> dict[str, Sequence[float | None]]:
    """Return the points of a curve, with None for unknown minutes."""
    minutes = curve.minutes if any(curve.minutes) else [None] * len(curve)
    return {"update": curve.updates, "minutes": minutes, "values": curve.values}
