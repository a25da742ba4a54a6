"""Students beside CTranslate2 in one run: speed, size, memory and quality.

    python benchmarks/students.py --student RUN --teacher RUN --source test.en --reference test.de
    python benchmarks/students.py --random --like RUN --data data-bin --source test.en

The student is searched as `nmt translate --precision int8 --strategy greedy` does, with the
shortlist of the run, if it has one. A script for CTranslate2 searches the teacher in int8, with a
beam of 4 and greedily. With --random all weights are random: of `student_tiny` and
`transformer_base`, or of the architectures that --student and --teacher name. Every translation
then has --length tokens; the shortlist is learned from --data.

Each model is in a process of its own. They take turns, so that a noisy machine is noisy for all of
them. Times are medians over the rounds, by the wall clock and of all threads of the processor
(CPU). `speedup` is the median over the rounds of the quotient of the first CTranslate2 side's
seconds and this side's, of a round. `memory_mb` is what the process has grown by since before it
loaded the model, and `load` the seconds until the model is loaded, without imports.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from translation import (
    BEAM,
    Side,
    Task,
    Translate,
    Turn,
    ctranslate2_searches,
    random_run,
    translate_counted,
)

from nmt.data.dataset import Dataset
from nmt.evaluation import Metric
from nmt.formats import export_formats, export_run
from nmt.inference.engines import load_translator
from nmt.preprocess.alignment.lexicon import LexiconConfig, learn_shortlist
from nmt.runs import Run
from nmt.runs.exports import Export
from nmt.runtime.machine import keep_freed_memory

Row = tuple[str, int]
"""A side and its beam; 1 is greedy search."""


@dataclass(frozen=True)
class Models:
    """Settings that all sides share."""

    paths: dict[str, Path]
    """Exports for CTranslate2, by name."""
    threads: int
    length: int | None
    """Tokens of every translation, with EOS; None lets the model end each translation."""
    batch: int
    """Tokens of a batch of CTranslate2."""

    def nmt(self, name: str) -> dict[int, Translate]:
        """Return greedy search as the command sets it up."""
        keep_freed_memory()
        lengths = {"max_length_ratio": 0.0, "max_length_offset": self.length}
        translator = load_translator(
            self.paths[name],
            engine="ctranslate2",
            device="cpu",
            precision="int8",
            threads=self.threads,
            shortlist=Export.open(self.paths[name], "ctranslate2").has_shortlist,
            strategy="greedy",
            **(lengths if self.length else {}),
        )
        return {1: partial(translate_counted, translator)}

    def ctranslate2(self, name: str) -> dict[int, Translate]:
        """Return CTranslate2's search, called as its documentation does, on the same subwords."""
        return ctranslate2_searches(
            self.paths[name], "int8", self.batch, self.length, intra_threads=self.threads
        )

    def size(self, side: str) -> int:
        """Return the bytes that a side needs on the disk."""
        _, name = side.split()
        return sum(file.stat().st_size for file in self.paths[name].iterdir())


def random_models(
    scratch: Path, like: Path, data: Path, student: str, teacher: str
) -> dict[str, Path]:
    """Return runs with random weights, the student's with a shortlist."""
    sections = {"student": {"arch": student}, "teacher": {"arch": teacher}}
    runs = {name: random_run(scratch / name, like, section) for name, section in sections.items()}
    dataset, run = Dataset.open(data), Run.open(runs["student"])
    run.give_shortlist(learn_shortlist(dataset, run.subwords.fingerprint, LexiconConfig()))
    return runs


def measure(
    sides: dict[str, Side], rows: Sequence[Row], task: Task, rounds: int
) -> dict[Row, list[Turn]]:
    """Return the turns of every row; a first one warms up and is left out."""
    turns: dict[Row, list[Turn]] = {row: [] for row in rows}
    for at in range(rounds + 1):
        for name, beam in rows:
            turn = sides[name].turn(replace(task, beam=beam))
            if at:
                turns[name, beam].append(turn)
    return turns


def speeds(turns: list[Turn], base: list[Turn], lines: int) -> dict[str, object]:
    """Return the figures of a row whose turns took all lines at once."""
    wall = statistics.median(sum(turn.seconds) for turn in turns)
    cpu = statistics.median(turn.cpu_seconds for turn in turns)
    words = sum(len(text.split()) for text in turns[0].texts)
    return {
        "sentences_per_second": round(lines / wall, 1),
        "sentences_per_cpu_second": round(lines / cpu, 1),
        "words_per_second": round(words / wall),
        "target_tokens_per_second": round(turns[0].target_tokens / wall),
        **speedups(turns, base),
    }


def speedups(turns: list[Turn], base: list[Turn]) -> dict[str, float]:
    """Return how many times faster the turns were than those of another row, round by round."""
    pairs = list(zip(base, turns, strict=True))
    return {
        "speedup": round(statistics.median(sum(b.seconds) / sum(t.seconds) for b, t in pairs), 2),
        "speedup_cpu": round(statistics.median(b.cpu_seconds / t.cpu_seconds for b, t in pairs), 2),
    }


def latencies(turns: list[Turn], base: list[Turn]) -> dict[str, object]:
    """Return the figures of a row whose turns took one line at a time."""
    by_line = zip(*(turn.seconds for turn in turns), strict=True)
    each = sorted(1000 * statistics.median(times) for times in by_line)
    lines = len(each)
    cpu = statistics.median(1000 * turn.cpu_seconds / lines for turn in turns)
    return {
        "milliseconds_p50": round(statistics.median(each), 2),
        "milliseconds_p95": round(each[int(0.95 * lines)], 2),
        "cpu_milliseconds": round(cpu, 2),
        **speedups(turns, base),
    }


def quality(texts: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Return BLEU and chrF; nothing without references."""
    if not references:
        return {}
    return {
        name: round(Metric.registry[name].score(texts, references).value, 2)
        for name in ("bleu", "chrf")
    }


def parsed() -> argparse.Namespace:
    """Return the arguments of the command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--student", help="run; with --random an architecture [student_tiny]")
    parser.add_argument("--teacher", help="run; with --random one [transformer_base]")
    parser.add_argument("--random", action="store_true", help="random weights")
    parser.add_argument("--like", type=Path, help="run whose subwords random models have")
    parser.add_argument("--data", type=Path, help="dataset of --like")
    parser.add_argument("--length", type=int, default=17, help="of outputs of random weights")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--sentences", type=int, help="translated as one text [all of --source]")
    parser.add_argument("--one-by-one", type=int, default=100, help="translated one at a time")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer-batch", type=int, default=1024, help="tokens, of CTranslate2")
    arguments = parser.parse_args()
    if arguments.random and not (arguments.like and arguments.data):
        parser.error("--random needs --like and --data")
    if not arguments.random and not (arguments.student and arguments.teacher):
        parser.error("--student and --teacher, or --random")
    return arguments


def main() -> None:
    """Measure, and print one JSON object."""
    arguments = parsed()
    lines = arguments.source.read_text(encoding="utf-8").splitlines()[: arguments.sentences]
    references: list[str] = []
    if arguments.reference and not arguments.random:
        references = arguments.reference.read_text(encoding="utf-8").splitlines()[: len(lines)]
    with TemporaryDirectory() as directory:
        scratch = Path(directory)
        if arguments.random:
            student = arguments.student or "student_tiny"
            teacher = arguments.teacher or "transformer_base"
            runs = random_models(scratch, arguments.like, arguments.data, student, teacher)
        else:
            runs = {"student": Path(arguments.student), "teacher": Path(arguments.teacher)}
        paths = {name: scratch / f"{name}.exported" for name in runs}
        for name, run in runs.items():
            export_run(run, export_formats["ctranslate2"], "int8", paths[name])
        length = arguments.length if arguments.random else None
        models = Models(paths, arguments.threads, length, arguments.peer_batch)
        rows: list[Row] = [("ctranslate2 teacher", BEAM), ("ctranslate2 teacher", 1)]
        rows += [("nmt student", 1)]
        sides = {name: Side(name, models) for name in dict(rows)}
        together = measure(sides, rows, Task(lines, 1, False), arguments.rounds)
        alone = measure(sides, rows, Task(lines[: arguments.one_by_one], 1, True), arguments.rounds)
        found = {
            f"{name}, {'greedy' if beam == 1 else f'beam {beam}'}": {
                "all at once": speeds(turns, together[rows[0]], len(lines)),
                "one at a time": latencies(alone[name, beam], alone[rows[0]]),
                "load_seconds": round(sides[name].load_seconds, 3),
                "memory_mb": turns[-1].grown_mb,
                "disk_mb": round(models.size(name) / 1e6, 1),
                **quality(turns[-1].texts, references),
            }
            for (name, beam), turns in together.items()
        }
        for side in sides.values():
            side.close()
    print(json.dumps({"threads": arguments.threads, **found}, indent=1))


if __name__ == "__main__":
    main()
