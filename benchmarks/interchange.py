"""nmt beside another toolkit with the same model: translations, log-probabilities, speed.

    python benchmarks/interchange.py huggingface --model opus-mt-en-de --source test.en
    python benchmarks/interchange.py marian --run RUN --source test.en --python marian/bin/python
    python benchmarks/interchange.py onnx --run RUN --source test.en --beam 1

A directory of the other toolkit (--model) is imported; a run of nmt (--run) is exported. Both then
translate the same lines, one after the other, with the same beam and number of threads, and give
the log-probability of nmt's translations. `import` has the seconds of an import with the start
of Python, the megabytes by which the import enlarges the peak memory of its process, and the size
of the file of weights. With --python the toolkit runs in an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from toolkits import TOOLKITS

import nmt
from nmt.formats import export_formats, export_run, import_formats

RULES = {
    "huggingface": ("current_length", {"max_length_ratio": 0.0, "max_length_offset": 255}),
    "marian": ("shrinking_beam", {"max_length_ratio": 3.0, "max_length_offset": 1}),
    "onnx": ("first_beam", {"max_length_ratio": 1.0, "max_length_offset": 50}),
}
"""When the search of each toolkit stops, and its longest translation."""

IMPORT = """
import sys
from pathlib import Path
from nmt.formats import import_model
status = Path("/proc/self/status")  # getrusage begins with the memory of the parent
before = status.read_text()
import_model(*map(Path, sys.argv[1:3]), None, *sys.argv[3:])
print(*(text.partition("VmHWM:")[2].split()[0] for text in (before, status.read_text())))
"""
"""A program that imports a model, and prints its peak memory before and after, in KiB."""


def import_measured(model: Path, run: Path, languages: tuple[str, str]) -> dict[str, float]:
    """Import a model as a run in a process of its own, and return what that takes."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", IMPORT, model, run, *languages], check=True, stdout=subprocess.PIPE
    )
    seconds = time.perf_counter() - start
    before, after = map(int, done.stdout.split())
    weights = max(file.stat().st_size for file in model.iterdir())
    return {
        "seconds": round(seconds, 2),
        "peak_mb": round((after - before) * 1024 / 1e6, 1),
        "weights_mb": round(weights / 1e6, 1),
    }


def by_nmt(
    run: Path, name: str, lines: list[str], beam: int
) -> tuple[list[str], list[list[float]], float]:
    """Return nmt's translations, the log-probabilities of their tokens, and seconds of search."""
    stop, lengths = RULES[name]
    penalty = {"name": "power", "alpha": 1.0}
    beams = {"name": "beam", "beam": beam, "length_penalty": penalty, "stop": stop}
    translator = nmt.Translator(run, strategy=beams if beam > 1 else "greedy", **lengths)
    start = time.perf_counter()
    texts = list(translator.translate(lines))
    seconds = time.perf_counter() - start
    return texts, translator.score(lines, texts), seconds


def compared(arguments: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Return all figures."""
    name, languages = arguments.toolkit, (arguments.source_lang, arguments.target_lang)
    model, run = arguments.model, arguments.run
    found: dict[str, Any] = {"threads": arguments.threads, "beam": arguments.beam}
    if run:
        model = scratch / "exported"
        export_run(run, export_formats[name], "fp32", model)
    if name in import_formats:
        found["import"] = import_measured(model, scratch / "run", languages)
    lines = arguments.source.read_text(encoding="utf-8").splitlines()[: arguments.sentences]
    texts, scores, seconds = by_nmt(run or scratch / "run", name, lines, arguments.beam)
    job = {
        "model": str(model.resolve()),
        "beam": arguments.beam,
        "threads": arguments.threads,
        "lines": lines,
        "targets": texts,
    }
    files = [scratch / "job.json", scratch / "result.json"]
    files[0].write_text(json.dumps(job), encoding="utf-8")
    program = Path(__file__).with_name("toolkits.py")
    subprocess.run([arguments.python, program, name, *files], check=True, stdout=sys.stderr)
    other = json.loads(files[1].read_text(encoding="utf-8"))
    pairs = zip(scores, other["scores"], strict=True)
    differences = [abs(sum(ours) - theirs) / len(ours) for ours, theirs in pairs]
    same = sum(ours == theirs for ours, theirs in zip(texts, other["texts"], strict=True))
    found |= {
        "lines": len(lines),
        "equal_translations": round(same / len(lines), 4),
        "largest_difference_per_token": max(differences),
    }
    for side, taken in (("nmt", seconds), (name, other["seconds"])):
        per_second = round(len(lines) / taken, 1)
        found[side] = {"seconds": round(taken, 2), "lines_per_second": per_second}
    if arguments.show:
        found["different"] = [
            {"source": line, "nmt": ours, name: theirs}
            for line, ours, theirs in zip(lines, texts, other["texts"], strict=True)
            if ours != theirs
        ][: arguments.show]
    return found


def main() -> None:
    """Compare, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("toolkit", choices=TOOLKITS)
    models = parser.add_mutually_exclusive_group(required=True)
    models.add_argument("--model", type=Path, help="directory of the toolkit, which is imported")
    models.add_argument("--run", type=Path, help="run of nmt, which is exported")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--python", default=sys.executable, help="of the toolkit's environment")
    parser.add_argument("--source-lang", "-s", default="en")
    parser.add_argument("--target-lang", "-t", default="de")
    parser.add_argument("--show", type=int, default=0, help="number of differences to print")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with TemporaryDirectory() as directory:
        print(json.dumps(compared(arguments, Path(directory)), indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
