"""All tests and measurements on a GPU in one command, for a machine that is lent for minutes.

    benchmarks/gpu.sh --minutes 9 --output work/gpu --part 1
    benchmarks/gpu.sh --minutes 9 --output work/gpu --part 2 --write-docs

The command runs one stage after another, the most important first: in part 1 training and decoding,
in part 2 losses in bf16 and fp8, CTranslate2 on the same weights, the tests marked `gpu`, and what
is compared with older figures. Each stage is a process with a share of the time. When a stage ends,
`results.jsonl` in the output directory gets its line, and `tables.md` is written anew, so that
finished figures survive whatever comes later. `log.txt` holds what the processes print. A stage
that fails or takes too long is reported, the next stage begins, and the exit status is 1.
`--write-docs` puts the tables into docs/results/speed.md. A later run adds to the same directory;
`--stages` names some of the stages, or none, to write the tables again.

CTranslate2's wheel needs cuBLAS of CUDA 12. Where torch brings a later one, the stage links that
under the name that the wheel looks for.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any
from xml.etree import ElementTree

from gpu_tables import tables

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs/results/speed.md"
BEGIN, END = "<!-- gpu: begin -->", "<!-- gpu: end -->"
MODULES = (
    *("torch", "numpy", "typer", "rich", "sentencepiece", "sacrebleu", "sacremoses", "yaml"),
    *("tqdm", "safetensors", "pytest", "hypothesis"),
)
GRACE = 10.0
"""Most seconds that a process has to end after it was asked to."""

Record = dict[str, Any]


def objects(output: str) -> list[Record]:
    """The JSON objects that a process printed, among other text."""
    found, at, decoder = [], 0, json.JSONDecoder()
    while (at := output.find("{", at)) >= 0:
        try:
            value, at = decoder.raw_decode(output, at)
        except json.JSONDecodeError:
            at += 1
        else:
            found.append(value)
    return found


@dataclass(frozen=True)
class Stage:
    """One measurement: commands that run one after another."""

    name: str
    share: float
    """Part of the time that is left for this stage and those after it."""
    commands: list[list[str]]
    read: Callable[[str], list[Record]] = field(default=objects)
    """Returns the results, given what the commands printed."""
    part: int = 1
    """Number of the call of the command that measures it."""


@dataclass(frozen=True)
class Sizes:
    """Amounts of work; the defaults are those for a GPU."""

    tests: tuple[str, ...] = ("tests/test_gpu.py",)
    test_processes: str = "8"
    base: tuple[str, ...] = ("model.arch=transformer_base",)
    big: tuple[str, ...] = ("model.arch=transformer_big",)
    micro_batch: tuple[str, ...] = ("train.max_tokens=32768",)
    graphs: tuple[str, ...] = ("train.cuda_graphs=true",)
    turns: tuple[str, ...] = ("--rounds=5", "--updates=20", "--warm-up=10")
    archs: tuple[str, ...] = ("transformer_base", "transformer_big")
    decoding: tuple[str, ...] = ()
    batches: tuple[str, ...] = ("1", "8", "64", "256", "512", "1024")
    loader: tuple[str, ...] = ("--seconds=12",)
    pairs: tuple[str, ...] = ("--pairs=200000",)
    vocabulary: str = "37000"
    training: tuple[str, ...] = ("log_every=100", "valid_every=100000", "save_every=100000")
    curve: tuple[str, ...] = ("max_updates=2000", "cuda_graphs=true")


TINY_MODEL = (
    *("model.arch=transformer_tiny", "model.d_model=16", "model.d_ff=32", "model.heads=2"),
    *("model.encoder_layers=1", "model.decoder_layers=1"),
)
TINY = Sizes(
    test_processes="0",
    base=TINY_MODEL,
    big=TINY_MODEL,
    micro_batch=("train.tokens_per_update=200", "train.precision=fp32"),
    graphs=(),
    turns=("--rounds=1", "--updates=1", "--warm-up=1", "--pairs=50", "--vocabulary=60"),
    archs=("transformer_tiny", "transformer_tiny"),
    decoding=("--vocabulary=60", "--length=3", "--rounds=1", "--precision=fp32"),
    batches=("1", "2"),
    loader=("--seconds=0.1", "--pairs=50", "--tokens-per-update=200"),
    pairs=("--pairs=300", "--held-out=5"),
    vocabulary="400",
    training=("log_every=1", "tokens_per_update=200"),
    curve=("max_updates=2",),
)


def replica_commands(sizes: Sizes, replica: Path) -> list[list[str]]:
    """The commands that make a corpus like WMT14's, and its dataset."""
    python = sys.executable
    return [
        [python, "benchmarks/replica.py", "--output-dir", str(replica), *sizes.pairs],
        [
            *(python, "-m", "nmt", "preprocess", "--source-lang=en", "--target-lang=de"),
            *(f"--{split}={replica / split}" for split in ("train", "valid", "test")),
            *(f"--output-dir={replica / 'data-bin'}", f"--vocab-size={sizes.vocabulary}"),
        ],
    ]


def test_command(sizes: Sizes, junit: Path) -> list[str]:
    """The command that runs the tests marked `gpu`, and writes their outcomes to a file."""
    pytest = [sys.executable, "-m", "pytest", "-q", "-rs", "-m", "gpu", f"--junitxml={junit}"]
    if find_spec("xdist"):
        pytest += ["-n", sizes.test_processes]
    return [*pytest, *sizes.tests]


def stages(sizes: Sizes, scratch: Path, data: Path | None) -> list[Stage]:
    """All stages, in order."""
    python = sys.executable

    def benchmark(script: str, *options: str) -> list[str]:
        return [python, f"benchmarks/{script}.py", *options]

    def training(model: tuple[str, ...], *more: str) -> list[list[str]]:
        settings = [f"--set={setting}" for setting in (*model, *sizes.micro_batch, *more)]
        return [benchmark("training", "--alone", "--profile", *sizes.turns, *settings)]

    def decoding(arch: str, *more: str) -> list[list[str]]:
        options = (*sizes.decoding, *more, "--batches", *sizes.batches)
        return [benchmark("translation_batches", "--arch", arch, *options)]

    def curve(precision: str) -> Stage:
        """The stage that trains the base model in a precision, for the curve of its loss."""
        settings = (*sizes.training, *sizes.curve, f"precision={precision}")
        train = [f"--set={it}" for it in (*sizes.base, *sizes.micro_batch)]
        train += [f"--set=train.{it}" for it in settings]
        places = [f"--data={data or replica / 'data-bin'}", f"--save-dir={runs / precision}"]
        command = [python, "-m", "nmt", "train", *places, *train, "--max-minutes={minutes}"]
        run = runs / precision
        return Stage(f"curve {precision}", 0.9, [command], lambda _: progress(run), part=2)

    junit, replica, runs = (scratch / name for name in ("tests.xml", "replica", "runs"))
    base, big = sizes.archs
    compiled = "train.compile=true"
    fp8 = "train.precision=fp8"
    exported = scratch / "ct2"
    graphs = ("--cuda-graphs", "--no-profile")
    of_run = ("--model", str(runs / "bf16"), "--batches", *sizes.batches)
    return [
        Stage("train base compiled graphs", 1.1, training(sizes.base, compiled, *sizes.graphs)),
        Stage("train base graphs", 0.6, training(sizes.base, *sizes.graphs)),
        Stage("train big compiled graphs", 1.1, training(sizes.big, compiled, *sizes.graphs)),
        Stage("decode base graphs", 0.5, decoding(base, *graphs)),
        Stage("decode base greedy graphs", 0.5, decoding(base, "--beam=1", *graphs)),
        Stage(
            "train big fp8 compiled graphs", 1.1, training(sizes.big, fp8, compiled, *sizes.graphs)
        ),
        Stage(
            "train base fp8 compiled graphs",
            1.1,
            training(sizes.base, fp8, compiled, *sizes.graphs),
        ),
        Stage("train big graphs", 0.6, training(sizes.big, *sizes.graphs)),
        *([] if data else [Stage("data", 0.5, replica_commands(sizes, replica), part=2)]),
        curve("bf16"),
        Stage(
            "ctranslate2",
            0.6,
            [
                [python, "-m", "nmt", "export", f"--model={runs / 'bf16'}", f"--output={exported}"],
                benchmark(
                    *("ctranslate2_batches", f"--model={exported}", "--batches", *sizes.batches)
                ),
            ],
            part=2,
        ),
        Stage(
            "decode same weights",
            0.4,
            [benchmark("translation_batches", *sizes.decoding, *of_run, *graphs)],
            part=2,
        ),
        curve("fp8"),
        Stage("tests", 2.2, [test_command(sizes, junit)], lambda _: outcomes(junit), part=2),
        Stage("train base", 0.5, training(sizes.base), part=2),
        Stage("train big", 0.5, training(sizes.big), part=2),
        Stage("decode base", 1.0, decoding(base), part=2),
        Stage("decode base greedy", 0.4, decoding(base, "--beam=1", "--no-profile"), part=2),
        Stage("decode big", 0.7, decoding(big, "--no-profile"), part=2),
        Stage("loader", 0.3, [benchmark("loader", *sizes.loader)], part=2),
    ]


def outcomes(junit: Path) -> list[Record]:
    """Numbers of tests by outcome, and the names of those that failed."""
    [suite] = ElementTree.parse(junit).getroot().iter("testsuite")
    counts = {name: int(suite.attrib[name]) for name in ("tests", "skipped")}
    failed = [
        case.attrib["name"]
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    passed = counts["tests"] - counts["skipped"] - len(failed)
    return [{"passed": passed, "skipped": counts["skipped"], "failed": failed}]


def progress(run: Path) -> list[Record]:
    """The reports of a training, and its last validation."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    validations = [line for line in lines if line["record"] == "validation"]
    return [line for line in lines if line["record"] == "train"] + validations[-1:]


def with_cublas(scratch: Path) -> str:
    """LD_LIBRARY_PATH by which CTranslate2 finds a cuBLAS, also one of a later CUDA."""
    paths = [path for path in os.environ.get("LD_LIBRARY_PATH", "").split(":") if path]
    for entry in filter(None, map(Path, sys.path)):
        for library in sorted(entry.glob("nvidia/*/lib/libcublas*.so.*")):
            name = library.name.split(".so.")[0]
            link = scratch / f"{name}.so.12"
            if not link.exists():
                link.symlink_to(library)
            paths.append(str(library.parent))
    return ":".join([*paths, str(scratch)])


def run_stage(stage: Stage, seconds: float, log: IO[str]) -> Record:
    """Run a stage, and return its record, whose `error` is None after a success."""
    start, printed, error = time.monotonic(), "", None
    for command in stage.commands:
        left = seconds - (time.monotonic() - start)
        words = [word.replace("{minutes}", f"{max(0.1, left / 60 * 0.8):.2f}") for word in command]
        log.write(f"\n$ {' '.join(words)}\n")
        output, error = run_command(words, left, log)
        printed += output
        if error:
            break
    results: list[Record] = []
    with suppress(OSError, ElementTree.ParseError):  # nothing was finished
        results = stage.read(printed)
    passed = round(time.monotonic() - start, 1)
    return {"stage": stage.name, "seconds": passed, "error": error, "results": results}


def run_command(words: list[str], seconds: float, log: IO[str]) -> tuple[str, str | None]:
    """Run a process in a session of its own; return its output, and an error or None."""
    log.flush()
    grace = min(GRACE, 0.2 * max(0.0, seconds))
    process = subprocess.Popen(
        words,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=max(0.0, seconds - grace))
        error = f"exit status {process.returncode}" if process.returncode else None
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            output, _ = process.communicate(timeout=grace)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        error = f"stopped after {seconds:.0f} s"
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # what it left running
    log.write(output)
    log.flush()
    return output, error


def machine() -> Record:
    """Where the measurements are made."""
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {"device": device, "torch": torch.__version__, "date": date.today().isoformat()}


def write_tables(output: Path, write_docs: bool) -> str:
    """Write `tables.md` from the last record of each stage, and the document, if wanted."""
    records = [json.loads(line) for line in (output / "results.jsonl").read_text().splitlines()]
    text = tables({record["stage"]: record for record in records})
    (output / "tables.md").write_text(text, encoding="utf-8")
    if write_docs:
        document = DOCUMENT.read_text(encoding="utf-8")
        block = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.S)
        assert block.search(document), f"{DOCUMENT} has no block {BEGIN}"
        replaced = block.sub(lambda _: f"{BEGIN}\n\n{text}\n{END}", document)
        DOCUMENT.write_text(replaced, encoding="utf-8")
    return text


def measure(chosen: Sequence[Stage], output: Path, deadline: float, write_docs: bool) -> bool:
    """Run the stages, write their records and tables; return whether all succeeded."""
    shares = [stage.share for stage in chosen]
    succeeded = True
    with (output / "results.jsonl").open("a") as results, (output / "log.txt").open("a") as log:
        for number, stage in enumerate(chosen):
            seconds = (deadline - time.monotonic()) * stage.share / sum(shares[number:])
            print(f"{stage.name}: at most {max(0.0, seconds):.0f} s", file=sys.stderr, flush=True)
            if seconds > 0:
                record = run_stage(stage, seconds, log)
            else:
                record = {"stage": stage.name, "error": "no time was left", "results": []}
            if record["error"]:
                succeeded = False
                print(f"{stage.name}: FAILED: {record['error']}", file=sys.stderr, flush=True)
            results.write(json.dumps({**record, **machine()}) + "\n")
            results.flush()
            os.fsync(results.fileno())
            write_tables(output, write_docs)
    return succeeded


def main() -> None:
    """Measure everything."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="for everything [10]")
    parser.add_argument("--output", type=Path, default=Path("work/gpu"), help="[work/gpu]")
    parser.add_argument("--data", type=Path, help="dataset of the base model; a replica without")
    parser.add_argument("--part", type=int, choices=(1, 2), help="stages of one call [all]")
    parser.add_argument("--stages", nargs="*", help="names of stages, with _ for a space [all]")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, also on a CPU")
    parser.add_argument("--write-docs", action="store_true", help=f"tables into {DOCUMENT.name}")
    arguments = parser.parse_args()
    missing = [module for module in MODULES if find_spec(module) is None]
    if missing:
        sys.exit(f"gpu.sh: missing Python modules: {', '.join(missing)}; give PYTHON or PYTHONPATH")
    deadline = time.monotonic() + 60 * arguments.minutes - GRACE
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "results.jsonl").touch()
    with TemporaryDirectory() as scratch:
        known = {
            stage.name.replace(" ", "_"): stage
            for stage in stages(
                TINY if arguments.tiny else Sizes(),
                Path(scratch),
                arguments.data and arguments.data.resolve(),
            )
        }
        part = arguments.part
        of_part = [name for name, stage in known.items() if part in (None, stage.part)]
        chosen = of_part if arguments.stages is None else arguments.stages
        if unknown := [name for name in chosen if name not in known]:
            parser.error(f"unknown stages {', '.join(unknown)}; there are {', '.join(known)}")
        named = [known[name] for name in chosen]
        (Path(scratch) / "cublas").mkdir()
        os.environ["LD_LIBRARY_PATH"] = with_cublas(Path(scratch) / "cublas")
        if arguments.tiny:
            # A CPU would take minutes to compile, and its threads wait for each other.
            os.environ |= {"TORCH_COMPILE_DISABLE": "1", "OMP_NUM_THREADS": "1"}
        succeeded = measure(named, arguments.output, deadline, arguments.write_docs)
    print(write_tables(arguments.output, arguments.write_docs))
    sys.exit(0 if succeeded else 1)


if __name__ == "__main__":
    main()
