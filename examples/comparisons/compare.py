"""Compare systems on equal core time, with several seeds, in a table with standard errors.

    python compare.py plans/systems.yaml --data DATASET

A plan names the rows of a table and what each of them sets in a common recipe. For each row:

1. The CPU seconds of an update are measured several times, all rows in turn. The least counts,
   because whatever else the machine computes only adds to them. All rows get the same core-minutes.
   A row that is added later is measured in turn with the first row; the ratio of the two counts,
   because the machine may be slower than before.
2. Each learning rate of the plan's grid trains for a share of the updates. The lowest validation
   loss wins, and its run is the run of the first seed from there on.
3. The other seeds train; the last checkpoints of each run are averaged.
4. The validation set is translated and scored. With ``--test``, so is the test set: only once, when
   all choices are made.

Every training has one thread, and ``--jobs`` of them run at a time. Everything stays in the working
directory. The same command resumes where it was interrupted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from nmt.report.charts import Chart, Line
from nmt.report.log import read_log

NMT = (sys.executable, "-m", "nmt")
TIMED = (25, 100)
"""An update's cost is measured from the first to the second of these numbers of updates."""

ROUNDS = 3
"""Measurements of each row's cost."""

STARTED: list[subprocess.Popen[bytes]] = []
"""The commands so far; Ctrl-C ends those that run."""

INTERRUPTED = threading.Event()

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A system: what it sets in the common recipe."""

    set: Mapping[str, Any] = field(default_factory=dict)
    """Values of the recipe by their dotted keys."""
    published: float | None = None
    """A published score; the table compares its difference from that of the first row shown."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The file that describes a comparison."""

    recipe: str
    """Path of the common recipe, from the plan's directory."""
    core_minutes: float
    """CPU time of each training, on one core."""
    rows: dict[str, Row]
    """The systems; the others are compared with the first."""
    seeds: int = 3
    """Trainings of each row."""
    rates: tuple[float, ...] = (0.5, 1.0, 2.0)
    """Factors of a row's learning rate that are tried; the table shows the chosen one."""
    rate_share: float = 0.33
    """Share of the updates after which learning rates are compared."""
    average: int = 5
    """Number of checkpoints that are averaged."""
    translations: dict[str, str] = field(default_factory=lambda: {"": "--model averaged"})
    """Options of ``nmt translate`` by the name of the table's row; ``--model last`` and ``--model
    averaged`` are those of the run."""


def read_plan(path: Path) -> Plan:
    """Read a plan; an unknown key is a TypeError."""
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    rows = {name: Row(**(row or {})) for name, row in values.pop("rows").items()}
    return Plan(rows=rows, **{"rates": tuple(values.pop("rates", Plan.rates)), **values})


@dataclass(frozen=True)
class Comparison:
    """A plan at work."""

    plan: Plan
    recipe: Path
    data: Path
    work: Path
    jobs: int = 1

    def run(self, rows: Iterable[str], split: str) -> dict[str, list[dict[str, Any]]]:
        """Do what is missing; return the scores of each seed by row and translation."""
        names = list(rows)
        measured = list(dict.fromkeys([self._first, *names]))
        for name in measured:
            self._check_settings(name)
        for name in measured:  # before any process reads them
            home = self._home(name)
            home.mkdir(parents=True, exist_ok=True)
            text = yaml.safe_dump(self._recipe(name), sort_keys=False)
            (home / "recipe.yaml").write_text(text, encoding="utf-8")
        self._measure_costs(measured)
        grid = [(name, factor) for factor in self.plan.rates for name in names]
        if len(self.plan.rates) > 1:
            self._each(lambda item: self.loss(*item), grid)
        runs = [(name, seed) for seed in range(1, self.plan.seeds + 1) for name in names]
        self._each(lambda item: self.averaged(*item), runs)
        self._each(lambda item: self.scores(*item, split), runs)
        results: dict[str, list[dict[str, Any]]] = {}
        for name, seed in runs:
            for translation, scores in self.scores(name, seed, split).items():
                results.setdefault(f"{name} {translation}".strip(), []).append(scores)
        return results

    def updates(self, row: str) -> int:
        """Return the number of updates that the row's core-minutes allow."""
        first = min(seconds for seconds, _ in self._costs(self._first))
        own, beside = (min(seconds) for seconds in zip(*self._costs(row), strict=True))
        cost = first * own / beside
        return max(1, round(60 * self.plan.core_minutes / cost))

    @property
    def _first(self) -> str:
        return next(iter(self.plan.rows))

    def _measure_costs(self, rows: Iterable[str]) -> None:
        """Measure what is missing of the rows' costs, each time beside the plan's first row."""
        for done in range(ROUNDS):
            missing = [row for row in rows if len(self._costs(row)) <= done]
            if missing:
                _say(f"measuring costs, round {done + 1} of {ROUNDS}: {', '.join(missing)}")
                timed = list(dict.fromkeys([self._first, *missing]))
                costs = dict(zip(timed, self._each(self._cost, timed), strict=True))
                for row in missing:
                    pairs = [*self._costs(row), (costs[row], costs[self._first])]
                    _write(self._home(row) / "cost.json", {"of_row_and_first": pairs})

    def _cost(self, row: str) -> float:
        """Return the CPU seconds of an update."""
        seconds = [self._time(row, count) for count in TIMED]
        return (seconds[1] - seconds[0]) / (TIMED[1] - TIMED[0])

    def _costs(self, row: str) -> list[tuple[float, float]]:
        """Return the CPU seconds of an update, each with those of the first row measured then."""
        record = self._home(row) / "cost.json"
        if not record.exists():
            return []
        return [(own, first) for own, first in json.loads(record.read_text())["of_row_and_first"]]

    def _check_settings(self, row: str) -> None:
        """Refuse results of other settings, which the row's name alone does not tell apart."""
        plan = {**vars(self.plan), "rows": None, "seeds": None}
        settings = json.dumps([plan, self._recipe(row)], default=str)
        record = self._home(row) / "settings.json"
        if not record.exists():
            _write(record, settings)
        elif json.loads(record.read_text()) != settings:
            raise SystemExit(
                f"compare.py: {record.parent} was made with other settings; take another --work"
            )

    def _home(self, row: str) -> Path:
        return self.work / _slug(row)

    def _time(self, row: str, updates: int) -> float:
        """Return the CPU seconds of a training of some updates."""
        run = self._home(row) / f"timed-{updates}"
        settings = {"train.max_updates": updates, "train.valid_every": 10**6}
        command = self._train(row, run, settings | {"train.save_every": 10**6})
        shutil.rmtree(run, ignore_errors=True)  # of an interrupted run, which would resume
        log = run.with_suffix(".log")
        with log.open("w") as output:
            process = self._start(command, stderr=output, stdout=output)
            _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise _failed("train", log)
        shutil.rmtree(run, ignore_errors=True)
        return usage.ru_utime + usage.ru_stime

    def _recipe(self, row: str) -> dict[str, Any]:
        """Return the row's recipe: the common one with the values that the row sets."""
        recipe: dict[str, Any] = yaml.safe_load(self.recipe.read_text(encoding="utf-8"))
        for key, value in self.plan.rows[row].set.items():
            *sections, last = key.split(".")
            place = recipe
            for section in sections:
                place = place.setdefault(section, {})
            place[last] = value
        return recipe

    def loss(self, row: str, factor: float) -> float:
        """Return the validation loss of a learning rate after its share of the updates."""
        record = self._home(row) / f"loss-{factor:g}.json"
        if not record.exists():
            updates = max(1, round(self.plan.rate_share * self.updates(row)))
            run = self._trained(row, factor, 1, updates)
            lines = map(json.loads, (run / "log.jsonl").read_text().splitlines())
            losses = {x["update"]: x["loss"] for x in lines if x["record"] == "validation"}
            _write(record, {"loss": losses[updates]})
        return _number(json.loads(record.read_text())["loss"])

    def factor(self, row: str) -> float:
        """Return the factor of the learning rate that is best on the validation set."""
        if len(self.plan.rates) == 1:
            return self.plan.rates[0]
        return min(self.plan.rates, key=lambda factor: self.loss(row, factor))

    def averaged(self, row: str, seed: int) -> Path:
        """Return the trained run of a seed, with its average of checkpoints."""
        run = self._trained(row, self.factor(row), seed, self.updates(row))
        average = run.with_name("averaged")
        if not average.exists():
            options = ["--run", run, "--last", self.plan.average, "--output", average]
            self._nmt("average-checkpoints", *options, log=run.with_suffix(".log"))
        return run

    def scores(self, row: str, seed: int, split: str) -> dict[str, dict[str, Any]]:
        """Return the scores of a run on a split, by the name of the translation."""
        run = self.averaged(row, seed)
        record = run.with_name(f"{split}.json")
        if not record.exists():
            _say(f"translating and scoring: {row}, seed {seed}, {split}")
            _write(record, {name: self._score(run, name, split) for name in self.plan.translations})
        scores: dict[str, dict[str, Any]] = json.loads(record.read_text())
        return scores

    def _score(self, run: Path, name: str, split: str) -> dict[str, Any]:
        log = run.with_suffix(".log")
        output = run.with_name(f"{split}-{_slug(name)}.hyp")
        options = [
            str(run.with_name("averaged") if word == "averaged" else run / word)
            if word in ("averaged", "last", "best")
            else word
            for word in self.plan.translations[name].split()
        ]
        if not output.exists():
            source = ["--input", self.data / f"{split}.{self._language('source')}"]
            options += [f"--plugin={name}" for name in self._plugins()]
            self._nmt("translate", *source, "--output", output, "--workers", 1, *options, log=log)
        command = ["--config", self.recipe, "--data", self.data, "--split", split, "--json", output]
        lines = map(json.loads, self._nmt("score", *command, log=log).splitlines())
        values = {line["metric"]: line["value"] for line in lines}
        return values | {"loss": self._last_loss(run)}

    def _language(self, side: str) -> str:
        manifest = json.loads((self.data / "manifest.json").read_text())
        return str(manifest[f"{side}_lang"])

    def _last_loss(self, run: Path) -> float:
        lines = map(json.loads, (run / "log.jsonl").read_text().splitlines())
        return _number([line["loss"] for line in lines if line["record"] == "validation"][-1])

    def _trained(self, row: str, factor: float, seed: int, updates: int) -> Path:
        """Train a run up to a number of updates, and return its directory."""
        run = self._home(row) / f"lr-{factor:g}" / f"seed-{seed}" / "run"
        done = run.with_name(f"trained-{updates}")
        if not done.exists():
            settings = {"train.seed": seed, "train.max_updates": updates}
            settings["train.schedule.lr"] = factor * self.rate(row)
            rate = settings["train.schedule.lr"]
            _say(f"training: {row}, learning rate {rate:.2g}, seed {seed}, to update {updates:,}")
            self._nmt(*self._train(row, run, settings), log=run.with_suffix(".log"))
            done.touch()
        return run

    def rate(self, row: str) -> float:
        """Return the learning rate of the row's recipe, which the grid's factors multiply."""
        return float(self._recipe(row)["train"]["schedule"]["lr"])

    def _train(self, row: str, run: Path, settings: Mapping[str, Any]) -> list[str]:
        run.parent.mkdir(parents=True, exist_ok=True)
        recipe = self._home(row) / "recipe.yaml"
        values = {"train.data": str(self.data), **settings}
        changes = [f"--set={key}={json.dumps(value)}" for key, value in values.items()]
        return ["train", f"--config={recipe}", f"--save-dir={run}", *changes]

    def _each(self, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
        with ThreadPoolExecutor(self.jobs) as pool:
            try:
                return list(pool.map(work, items))
            except KeyboardInterrupt:
                INTERRUPTED.set()
                pool.shutdown(wait=False, cancel_futures=True)
                for process in STARTED:
                    process.terminate()  # a training saves first, also if Ctrl-C has reached it
                raise

    def _nmt(self, *arguments: object, log: Path) -> str:
        """Run a command of nmt, its messages in a log; return what it prints."""
        with log.open("a") as messages:
            process = self._start(map(str, arguments), stdout=subprocess.PIPE, stderr=messages)
            output, _ = process.communicate()
        if process.returncode:
            raise _failed(str(arguments[0]), log)
        return output.decode()

    def _start(self, arguments: Iterable[str], **streams: Any) -> subprocess.Popen[bytes]:
        """Start a command of nmt with one thread, and the plugins of the recipe on its path."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if self._plugins():
            path = [str(self.recipe.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
            environment["PYTHONPATH"] = os.pathsep.join(path)
        process = subprocess.Popen([*NMT, *arguments], env=environment, **streams)
        STARTED.append(process)
        if INTERRUPTED.is_set():
            process.terminate()
        return process

    def _plugins(self) -> list[str]:
        """Return the plugins of the common recipe, which lie beside it or where Python looks."""
        return yaml.safe_load(self.recipe.read_text(encoding="utf-8")).get("plugins") or []


def _failed(command: str, log: Path) -> SystemExit:
    """Return the error of a command that failed, with the last line of its log."""
    last = log.read_text(encoding="utf-8").splitlines()[-1:]
    return SystemExit(f"compare.py: nmt {command} failed; see {log}: {''.join(last)}")


def _slug(name: str) -> str:
    """Return the name with underscores for all but letters and digits."""
    return "".join(letter if letter.isalnum() else "_" for letter in name)


def _number(value: float | None) -> float:
    """Return a loss, infinite if training has diverged."""
    return math.inf if value is None else float(value)


def _say(message: str) -> None:
    print(f"compare.py: {message}", file=sys.stderr, flush=True)


def _write(path: Path, values: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(values), encoding="utf-8")
    draft.replace(path)


def table(comparison: Comparison, results: Mapping[str, list[dict[str, Any]]]) -> str:
    """Return the results as Markdown: means over seeds, each with its standard error."""
    heads = ["system", "BLEU", "change", "chrF", "validation loss", "updates", "learning rate"]
    plan = comparison.plan
    is_published = any(row.published is not None for row in plan.rows.values())
    lines = [heads + ["published change"] * is_published, ["---"] * (len(heads) + is_published)]
    rows = {
        name: max((row for row in plan.rows if name.startswith(row)), key=len) for name in results
    }
    first, base = next(iter(results.values())), plan.rows[next(iter(rows.values()))].published
    for name, scores in results.items():
        row = rows[name]
        bleu = [score["bleu"] for score in scores]
        cells = [name, mean(bleu), "" if scores is first else difference(bleu, first)]
        cells += [mean([score["chrf"] for score in scores])]
        cells += [mean([score["loss"] for score in scores], 3)]
        cells += [f"{comparison.updates(row):,}"]
        cells += [f"{comparison.factor(row) * comparison.rate(row):.2g}"]
        if is_published:
            value = plan.rows[row].published
            known = value is not None and base is not None and scores is not first
            cells.append(f"{value - base:+.1f}" if known else "")  # type: ignore[operator]
        lines.append(cells)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def picture(comparison: Comparison, rows: Iterable[str]) -> str:
    """Return the validation losses over core-minutes as SVG, means over the seeds."""
    lines = []
    for colour, row in enumerate(rows):
        runs = [comparison.averaged(row, seed + 1) for seed in range(comparison.plan.seeds)]
        curves = [read_log(run / "log.jsonl").curve("validation", "loss") for run in runs]
        rate = comparison.plan.core_minutes / comparison.updates(row)
        minutes = [rate * update for update in curves[0].updates]
        losses = zip(*(curve.values for curve in curves), strict=True)
        lines.append(Line(row, minutes, [statistics.mean(values) for values in losses], colour))
    return Chart(lines, "core-minutes", "validation loss").svg()


def mean(values: list[float], digits: int = 2) -> str:
    """Return the mean with its standard error."""
    error = f" ± {_squared_error(values) ** 0.5:.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{error}"


def difference(values: list[float], base: list[dict[str, Any]]) -> str:
    """Return the difference of the means of BLEU, with its standard error."""
    others = [score["bleu"] for score in base]
    change = statistics.mean(values) - statistics.mean(others)
    return f"{change:+.2f} ± {(_squared_error(values) + _squared_error(others)) ** 0.5:.2f}"


def _squared_error(values: list[float]) -> float:
    return statistics.variance(values) / len(values) if len(values) > 1 else float("nan")


def main() -> None:
    """Do what is missing of a plan, and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("plan", type=Path, help="such as plans/systems.yaml")
    parser.add_argument("--data", type=Path, required=True, help="dataset, made by nmt preprocess")
    parser.add_argument("--work", type=Path, help="working directory [default: work/PLAN]")
    parser.add_argument("--rows", nargs="*", metavar="ROW", help="rows to train [default: all]")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="trainings at a time")
    parser.add_argument("--test", action="store_true", help="score the test set, too")
    parser.add_argument("--picture", type=Path, help="SVG to write: losses over core-minutes")
    arguments = parser.parse_args()
    plan = read_plan(arguments.plan)
    unknown = sorted({*(arguments.rows or ())} - {*plan.rows})
    if unknown:
        parser.error(f"no row {unknown[0]!r} in {arguments.plan}; one of {', '.join(plan.rows)}")
    comparison = Comparison(
        plan=plan,
        recipe=(arguments.plan.parent / plan.recipe).resolve(),
        data=arguments.data.resolve(),
        work=(arguments.work or Path("work") / arguments.plan.stem).resolve(),
        jobs=arguments.jobs,
    )
    chosen = [name for name in plan.rows if not arguments.rows or name in arguments.rows]
    for split in ("valid", "test") if arguments.test else ("valid",):
        print(f"{split}:\n\n{table(comparison, comparison.run(chosen, split))}\n")
    if arguments.picture:
        arguments.picture.write_text(picture(comparison, chosen), encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        _say("interrupted; the same command resumes")
        sys.exit(130)
