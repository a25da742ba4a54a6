"""Preprocessing at scale: pairs per second beside SentencePiece alone, and peak memory.

python benchmarks/preprocess.py MULTI30K [--pairs 4000000] [--workers 2] [--work DIR]
python benchmarks/preprocess.py --index 300000000 --work DIR
python benchmarks/preprocess.py --order 36000000
python benchmarks/preprocess.py --check 2000000

The first makes a corpus of the training pairs in MULTI30K (train.en and train.de, or .gz), repeated
with a number in each line, so that no two are alike; learns 8,000 subwords from it; encodes both
sides with SentencePiece alone, by as many threads as there are workers; and runs `nmt preprocess`
with cleaning and exact removal of duplicates. Memory is the greatest sum over all its processes of
their proportional share (PSS), every 0.2 s.

The second opens a dataset of so many pairs whose offsets are sparse files, in a process of its own.
The third makes one epoch's order for so many pairs with lengths like those of WMT14. The fourth
times the check of all ids and offsets before training, of so many pairs of 28 tokens a side. Linux
only.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import sentencepiece

from nmt.data.columns import RaggedArray
from nmt.data.dataset import Dataset
from nmt.data.manifest import MANIFEST, MANIFESTS, OFFSET_TYPE, Manifest, fingerprint_of
from nmt.data.sampler import RandomSampler
from nmt.data.vocabulary import EOS
from nmt.data.writer import DatasetWriter, staging
from nmt.preprocess.corpus import Bitext
from nmt.subwords.learning import SubwordTraining, train_subwords

CLEANING = ("unicode", "control_characters", "spaces", "length", "identical", "held_out")


def main() -> None:
    """Runs what was asked for, and prints a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("multi30k", type=Path, nargs="?")
    parser.add_argument("--pairs", type=int, default=4_000_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path("work/preprocess"))
    parser.add_argument("--index", type=int)
    parser.add_argument("--check", type=int)
    parser.add_argument("--order", type=int)
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    if given.index:
        result = open_index(given.work / "index", given.index)
    elif given.check:
        result = check_ids(given.work / "check", given.check)
    elif given.order:
        result = make_order(given.order)
    elif given.multi30k:
        result = preprocess(given.multi30k, given.work, given.pairs, given.workers)
    else:
        parser.error("give the directory of Multi30k, --index or --order")
    print(json.dumps(result))


def preprocess(multi30k: Path, work: Path, pairs: int, workers: int) -> dict[str, float]:
    """Speeds in pairs per second, and peak memory in MiB."""
    corpus, model = write_corpus(multi30k, work, pairs)
    alone = time_sentencepiece(corpus, model, workers)
    output = work / "data-bin"
    command = [
        *(sys.executable, "-m", "nmt", "preprocess", "-s", "en", "-t", "de"),
        *("--train", corpus, "--valid", work / "valid", "--subword-model", model),
        *("--workers", workers, "--output-dir", output),
        *itertools.chain.from_iterable(("--clean", step) for step in (*CLEANING, "duplicates")),
    ]
    start = time.perf_counter()
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        peak = max(peak, memory(process.pid))
        time.sleep(0.2)
    seconds = time.perf_counter() - start
    if process.returncode:
        sys.exit("nmt preprocess failed")
    kept = Dataset.open(output).manifest.splits["train"].pairs
    return {
        "pairs": pairs,
        "kept": kept,
        "workers": workers,
        "pairs_per_second": round(pairs / seconds),
        "sentencepiece_alone_pairs_per_second": round(pairs / alone),
        "share_of_sentencepiece": round(alone / seconds, 3),
        "peak_memory_mib": round(peak / 2**20),
    }


def write_corpus(multi30k: Path, work: Path, pairs: int) -> tuple[Path, Path]:
    """The corpus's prefix and the subword model; those of an earlier run are used again."""
    corpus, model = work / f"train-{pairs}", work / "subwords.model"
    chunks = list(Bitext.find(str(multi30k / "train"), "en", "de").chunks())
    sides = {
        "en": [line for chunk in chunks for line in chunk.source],
        "de": [line for chunk in chunks for line in chunk.target],
    }
    for language, lines in sides.items():
        (work / f"valid.{language}").write_text("".join(f"{it} .\n" for it in lines[:1000]))
        path = Path(f"{corpus}.{language}")
        if not path.exists():
            partial = path.with_suffix(".partial")
            with partial.open("w", encoding="utf-8") as file:
                for number, line in zip(range(pairs), itertools.cycle(lines), strict=False):
                    file.write(f"{line} {number}\n")
            partial.rename(path)
    if not model.exists():
        model.write_bytes(
            train_subwords(sides["en"] + sides["de"], SubwordTraining(vocab_size=8000))
        )
    return corpus, model


def time_sentencepiece(corpus: Path, model: Path, threads: int) -> float:
    """Seconds in which SentencePiece encodes both sides, reading not counted."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    seconds = 0.0
    for language in ("en", "de"):
        with Path(f"{corpus}.{language}").open(encoding="utf-8") as file:
            while lines := [line.rstrip("\n") for line in itertools.islice(file, 10_000)]:
                start = time.perf_counter()
                processor.encode(lines, num_threads=threads)
                seconds += time.perf_counter() - start
    return seconds


def memory(pid: int) -> int:
    """Bytes of a process and its descendants, pages that they share counted once."""
    total = 0
    for process in descendants(pid):
        try:
            rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
        except OSError:
            continue  # it has ended
        total += 1024 * int(rollup.partition("\nPss:")[2].split()[0])
    return total


def descendants(pid: int) -> Iterator[int]:
    """A process and all that it has started."""
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            yield from descendants(int(child))


def open_index(path: Path, pairs: int) -> dict[str, float]:
    """Seconds and peak MiB of a process that opens a dataset and reads some of its pairs."""
    if not path.exists():
        with staging(path) as directory:
            writer = DatasetWriter(directory, ("en", "de"), (8000, 8000))
            (directory / "subwords.model").write_bytes(b"")
            for name in ("train", "valid"):
                with writer.split(name) as split:
                    split.append(
                        RaggedArray.from_sentences([[4]]), RaggedArray.from_sentences([[5]])
                    )
            manifest = writer.finish(shared_vocabulary=True, recipe={})
        _stretch(path, manifest, pairs)
    program = (
        "import re, sys, time; from pathlib import Path\n"
        "from nmt.data.dataset import Dataset\n"
        "start = time.perf_counter()\n"
        "split = Dataset.open(Path(sys.argv[1])).split('train')\n"
        "assert len(split.source(len(split) - 1)) == 2\n"
        "seconds = time.perf_counter() - start\n"
        # Not getrusage, whose peak is that of the parent before exec, if that was higher.
        "peak = re.search(r'VmHWM:\\s+(\\d+) kB', Path('/proc/self/status').read_text())[1]\n"
        "print(len(split), seconds, int(peak) / 1024)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, path], capture_output=True, text=True, check=True
    )
    count, seconds, peak = done.stdout.split()
    return {"pairs": int(count), "seconds": float(seconds), "peak_memory_mib": float(peak)}


def _stretch(path: Path, manifest: Manifest, pairs: int) -> None:
    """Make the training split of a dataset appear to hold many pairs, of which one can be read."""
    for language in ("en", "de"):
        os.truncate(path / f"train.{language}.tokens", 2 * pairs)
        with (path / f"train.{language}.offsets").open("r+b") as file:
            file.seek(8 * (pairs - 1))
            file.write(np.array([pairs - 2, pairs], OFFSET_TYPE).tobytes())
    facts = {
        name: replace(it, bytes=(path / name).stat().st_size) for name, it in manifest.files.items()
    }
    train = replace(manifest.splits["train"], pairs=pairs, source_tokens=pairs, target_tokens=pairs)
    stretched = replace(
        manifest,
        splits={**manifest.splits, "train": train},
        files=facts,
        fingerprint=fingerprint_of(facts),
    )
    (path / MANIFEST).write_text(MANIFESTS.text(stretched), encoding="utf-8")


def check_ids(path: Path, pairs: int) -> dict[str, float]:
    """Seconds and peak MiB of checking a training split that was just written."""
    if not path.exists():
        random = np.random.default_rng(7)
        with staging(path) as directory:
            writer = DatasetWriter(directory, ("en", "de"), (32000, 32000))
            with writer.split("train") as split:
                for first in range(0, pairs, 100_000):
                    ids = random.integers(EOS + 1, 32000, (min(100_000, pairs - first), 28))
                    ids[:, -1] = EOS
                    side = RaggedArray(ids.ravel(), np.full(len(ids), 28))
                    split.append(side, side)
            writer.finish(shared_vocabulary=True, recipe={})
    split = Dataset.open(path).split("train")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    split.check()
    seconds = time.perf_counter() - start
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"tokens": 2 * 28 * pairs, "seconds": seconds, "more_peak_memory_mib": more / 1024}


def make_order(pairs: int) -> dict[str, float]:
    """Seconds for what all epochs share and for one epoch, and peak MiB."""
    random = np.random.default_rng(7)
    some = random.lognormal(3.0, 0.5, 1_000_000).astype(np.int32).clip(1, 254) + 2
    other = np.maximum(2, some * random.normal(1, 0.15, len(some))).astype(np.int32)
    target, source = np.resize(some, pairs), np.resize(other, pairs)
    start = time.perf_counter()
    order = RandomSampler(source, target, 25_000, seed=1)
    shared = time.perf_counter() - start
    start = time.perf_counter()
    order.epoch(1)
    return {
        "pairs": pairs,
        "updates": order.updates_per_epoch,
        "once_seconds": round(shared, 2),
        "epoch_seconds": round(time.perf_counter() - start, 2),
        "peak_memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


if __name__ == "__main__":
    main()
