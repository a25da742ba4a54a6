"""Translation speed: nmt's engines in their precisions beside a script for CTranslate2, in one run.

    python benchmarks/translation.py --model RUN --source test.en --reference test.de
    python benchmarks/translation.py --model RUN --random transformer_base --length 17 \
      --source test.en --sentences 256

Every side is a process of its own that holds its model and works when asked to. Sides take turns,
so that a noisy machine is noisy for all of them, and medians over the rounds are compared. Text
goes in and text comes out; all search as CTranslate2 does (the stop rule ``first_beam``, length
penalty ``power``). "auto" is the default engine of nmt, "nmt" its search in torch, "ctranslate2"
a script as in that package's documentation, on the weights that ``nmt export`` writes. With
--random the weights are random and every translation has --length tokens, for an output of random
weights has no natural length. A side whose name ends with ``shortlist``, as "nmt fp32 shortlist",
searches among the tokens of the shortlist that ``nmt shortlist`` gave the run; with --shortlist
there is one for each precision.
"""

from __future__ import annotations

import argparse
import atexit
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from nmt.data.vocabulary import EOS
from nmt.evaluation import Metric
from nmt.formats import export_formats, export_run
from nmt.inference import LineTranslator, SearchConfig, Translator
from nmt.inference.engines import load_translator
from nmt.models import ModelConfig
from nmt.recipe.config import build
from nmt.runs import Run, weights_of
from nmt.runs.exports import Export, vocabularies
from nmt.runtime.machine import keep_freed_memory
from nmt.runtime.processes import end_with_parent

BEAM = 4
OURS = ("nmt fp32", "nmt bf16")
DEFAULT = ("auto fp32", "auto int8")
PEERS = ("ctranslate2 float32", "ctranslate2 int8")
Translate = Callable[[list[str]], tuple[list[str], int]]
"""Lines to their translations and the number of tokens in those, each with its EOS."""


@dataclass(frozen=True)
class Setting:
    """Settings that all sides share."""

    run: Path
    exported: Path
    workers: int
    length: int | None
    """Tokens of every translation, with EOS; None lets the model end each translation."""
    peer_batch: int

    def search(self, beam: int) -> dict[str, Any]:
        """The recipe's section, for greedy search where the beam is 1."""
        ours: dict[str, Any] = {"name": "greedy"}
        if beam > 1:
            penalty = {"name": "power", "alpha": 1.0}
            ours = {
                "name": "beam",
                "beam": beam,
                "length_penalty": penalty,
                "stop": "first_beam",
            }
        lengths = {"max_length_ratio": 0.0, "max_length_offset": self.length}
        return {"strategy": ours, **(lengths if self.length else {})}

    def nmt(self, precision: str, shortlist: str = "") -> dict[int, Translate]:
        """This engine, as the command sets it up."""
        keep_freed_memory()
        if self.workers > 1:
            torch.set_num_threads(1)
        first = load_translator(
            self.run,
            engine="nmt",
            precision=precision,
            workers=self.workers,
            shortlist=bool(shortlist),
            **self.search(1),
        )
        assert isinstance(first, Translator)
        return {
            beam: partial(translate_counted, self._with_beam(first, beam)) for beam in (1, BEAM)
        }

    def auto(self, precision: str) -> dict[int, Translate]:
        """The default engine, as the command sets it up."""
        return {
            beam: partial(
                translate_counted,
                load_translator(
                    self.run,
                    precision=precision,
                    workers=self.workers,
                    threads=1,
                    **self.search(beam),
                ),
            )
            for beam in (1, BEAM)
        }

    def ctranslate2(self, compute_type: str) -> dict[int, Translate]:
        """CTranslate2, called as its own documentation does, on tokens of the same subwords."""
        return ctranslate2_searches(
            self.exported, compute_type, self.peer_batch, self.length, inter_threads=self.workers
        )

    def _with_beam(self, first: Translator, beam: int) -> Translator:
        strategy = build(SearchConfig, self.search(beam), "search").strategy
        config = replace(first.config, strategy=strategy)
        return Translator(first.model, first.subwords, config, first.execution, first.shortlister)


def translate_counted(translator: LineTranslator, lines: list[str]) -> tuple[list[str], int]:
    """The translations of lines, and the number of their tokens."""
    before = translator.counts.target_tokens
    texts = list(translator.translate(lines))
    return texts, translator.counts.target_tokens - before


def ctranslate2_searches(
    path: Path,
    compute_type: str,
    batch: int,
    length: int | None,
    inter_threads: int = 1,
    intra_threads: int = 1,
) -> dict[int, Translate]:
    """Greedy search and a beam by CTranslate2, of an export."""
    import ctranslate2

    export = Export.open(path, "ctranslate2")
    engine = ctranslate2.Translator(
        str(export.path),
        compute_type=compute_type,
        inter_threads=inter_threads,
        intra_threads=intra_threads,
    )
    source, target = vocabularies(export.subwords)
    ids = {token: at for at, token in enumerate(target)}

    def translate(beam: int, lines: list[str]) -> tuple[list[str], int]:
        """Return the translations of lines by a beam, and the number of their tokens."""
        tokens = [[source[id_] for id_ in line] for line in export.subwords.encode_source(lines)]
        results = engine.translate_batch(
            tokens,
            max_batch_size=batch,
            batch_type="tokens",
            beam_size=beam,
            length_penalty=1.0,
            max_decoding_length=length or 256,
            return_end_token=True,
        )
        best = [[ids[token] for token in result.hypotheses[0]] for result in results]
        return export.subwords.decode_target(best), sum(map(len, best))

    return {beam: partial(translate, beam) for beam in (1, BEAM)}


@dataclass(frozen=True)
class Task:
    """The work of a side in its turn."""

    lines: list[str]
    beam: int
    one_by_one: bool


@dataclass(frozen=True)
class Turn:
    """The result of a side in its turn."""

    texts: list[str]
    target_tokens: int
    seconds: list[float]
    """Of the whole text, or of each line."""
    cpu_seconds: float
    """Of all threads of the process, for the whole task."""
    grown_mb: int
    """Megabytes by which the process has grown at most since it began to load the model."""


class Side:
    """A process that holds a model."""

    def __init__(self, name: str, setting: Setting) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, end = context.Pipe()
        # No daemon: it has children of its own.
        self.process = context.Process(target=work, args=(name, setting, end))
        self.process.start()
        atexit.register(self.process.terminate)  # or an error would wait for the process
        end.close()
        self.load_seconds: float = self.pipe.recv()

    def turn(self, task: Task) -> Turn:
        """The task, done."""
        self.pipe.send(task)
        turn: Turn = self.pipe.recv()
        return turn

    def close(self) -> None:
        """Ends the process."""
        self.pipe.send(None)
        self.process.join()


def work(name: str, setting: Setting, pipe: Connection[Any, Any]) -> None:
    """The process of a side."""
    end_with_parent()
    engine, *how = name.split()
    before, start = resident_mb(), time.perf_counter()
    by_beam = getattr(setting, engine)(*how)
    pipe.send(time.perf_counter() - start)
    while (task := pipe.recv()) is not None:
        translate, seconds, texts, tokens = by_beam[task.beam], [], [], 0
        cpu = time.process_time()
        for lines in [[line] for line in task.lines] if task.one_by_one else [task.lines]:
            start = time.perf_counter()
            made, count = translate(lines)
            seconds.append(time.perf_counter() - start)
            texts += made
            tokens += count
        cpu_seconds = time.process_time() - cpu
        pipe.send(Turn(texts, tokens, seconds, cpu_seconds, resident_mb() - before))
    for worker in multiprocessing.active_children():
        worker.terminate()  # or this process would wait for them, and they for work


def resident_mb() -> int:
    """The most memory that this process has held, in megabytes of 1,000,000 bytes."""
    # Linux resets this figure when a program starts; that of getrusage is the parent's at first.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024 // 1_000_000


def random_run(path: Path, like: Path, model_section: dict[str, Any]) -> Path:
    """A run with random weights and the subwords of another, whose outputs never end.

    The embedding of the end is zero, and so is its logit: far from the best of thousands of random
    ones. Every output comes to the greatest length, at no cost to either engine.
    """
    config = build(ModelConfig, model_section, "model")  # type: ignore[type-abstract]
    other = Run.open(like)
    subwords = other.subwords
    torch.manual_seed(1)
    model = config.build(subwords.source_size, subwords.target_size, subwords.shared)
    with torch.no_grad():
        model.output.weight[EOS] = 0.0
    run = Run.create(
        path,
        languages=(other.source_lang, other.target_lang),
        identity="benchmark",
        data="",
        recipe={"model": model_section},
        subwords=subwords,
    )
    run.save(1, weights_of(model), None, {}, {}, best=True)
    return path


def measure(
    sides: dict[str, Side], tasks: dict[str, Task], rounds: int, references: Sequence[str]
) -> dict[str, object]:
    """Medians over the rounds of every side in every task; the first round warms up."""
    turns: dict[tuple[str, str], list[Turn]] = {}
    for _ in range(rounds + 1):
        for task_name, task in tasks.items():
            for name, side in sides.items():
                turns.setdefault((task_name, name), []).append(side.turn(task))
    return {
        task_name: {name: summary(turns[task_name, name], task, references) for name in sides}
        for task_name, task in tasks.items()
    }


def summary(turns: list[Turn], task: Task, references: Sequence[str]) -> dict[str, object]:
    """The figures of one side in one task."""
    timed = [sum(turn.seconds) for turn in turns[1:]]
    seconds = statistics.median(timed)
    figures: dict[str, object] = {
        "sentences_per_second": round(len(task.lines) / seconds, 1),
        "range": [round(len(task.lines) / it, 1) for it in (max(timed), min(timed))],
        "target_tokens_per_second": round(turns[-1].target_tokens / seconds),
        "target_tokens": turns[-1].target_tokens,
    }
    if task.one_by_one:
        by_line = zip(*(turn.seconds for turn in turns[1:]), strict=True)
        each = sorted(1000 * statistics.median(times) for times in by_line)
        figures["milliseconds_p50"] = round(statistics.median(each), 1)
        figures["milliseconds_p95"] = round(each[int(0.95 * len(each))], 1)
    if references:
        bleu = Metric.registry["bleu"].score(turns[-1].texts, references[: len(task.lines)])
        figures["bleu"] = round(bleu.value, 2)
    return figures


def main() -> None:
    """Measures, and prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, required=True, help="run; of --random, its subwords")
    parser.add_argument("--random", metavar="ARCH", help="random weights of that architecture")
    parser.add_argument("--length", type=int, default=17, help="of outputs of random weights")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--sentences", type=int, default=1000, help="translated as one text")
    parser.add_argument("--one-by-one", type=int, default=100, help="translated one at a time")
    parser.add_argument("--workers", type=int, default=2, help="each of one thread")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beams", type=int, nargs="+", choices=(1, BEAM), default=[1, BEAM])
    parser.add_argument("--sides", nargs="+", metavar="SIDE", help='such as "nmt fp32" [all]')
    parser.add_argument("--shortlist", action="store_true", help="also with the run's shortlist")
    parser.add_argument("--peer-batch", type=int, default=1024, help="tokens, of CTranslate2")
    arguments = parser.parse_args()
    lines = arguments.source.read_text(encoding="utf-8").splitlines()[: arguments.sentences]
    references: list[str] = []
    if arguments.reference and not arguments.random:
        references = arguments.reference.read_text(encoding="utf-8").splitlines()
    with TemporaryDirectory() as scratch:
        run, length = arguments.model, None
        if arguments.random:
            run = random_run(Path(scratch) / "run", arguments.model, {"arch": arguments.random})
            length = arguments.length
        names = arguments.sides or [
            *OURS,
            *((*DEFAULT, *PEERS) if find_spec("ctranslate2") else ()),
        ]
        if arguments.shortlist:
            names += [f"{name} shortlist" for name in OURS]
        exported = Path(scratch) / "exported"
        if any(name in PEERS for name in names):
            export_run(run, export_formats["ctranslate2"], "fp32", exported)
        setting = Setting(run, exported, arguments.workers, length, arguments.peer_batch)
        sides = {name: Side(name, setting) for name in names}
        tasks = {}
        for beam in arguments.beams:
            kind = f"beam {beam}" if beam > 1 else "greedy"
            tasks[f"{kind}, all at once"] = Task(lines, beam, False)
            single = lines[: arguments.one_by_one]
            if single:
                tasks[f"{kind}, one at a time"] = Task(single, beam, True)
        found = measure(sides, tasks, arguments.rounds, references)
        for side in sides.values():
            side.close()
    loads = {name: round(side.load_seconds, 3) for name, side in sides.items()}
    print(json.dumps({"load_seconds": loads, **found}, indent=1))


if __name__ == "__main__":
    main()
