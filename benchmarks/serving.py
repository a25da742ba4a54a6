"""Throughput and latency of ``nmt serve`` under load, beside ``nmt translate`` on the same text.

    python benchmarks/serving.py --model RUN --source test.en --clients 64 --seconds 600

The clients run in threads of this process, on the same machine. Each sends a request of one to
twenty lines, drawn at random, waits for the answer, and sends the next. Every answer is compared
with the output of the command. Prints JSON: lines a second of both; seconds of a request (median
and 95 per cent); answers by status, and those that differ; the megabytes of the server's processes
at the start, after each third of the time, and at the end; and the milliseconds of one sentence at
a time, over HTTP and in process.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import nmt

NMT = (sys.executable, "-m", "nmt")
SIZES = (1, 1, 1, 2, 5, 20)
"""Lines of a request, drawn at random."""


@contextmanager
def server(model: Path, *options: str) -> Iterator[tuple[str, int]]:
    """Start a server; yield its address and process number."""
    command = [*NMT, "serve", "--model", str(model), "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        yield process.stdout.readline().strip(), process.pid
    finally:
        process.terminate()
        process.wait()


class Client:
    """A client that keeps its connection."""

    def __init__(self, address: str, languages: tuple[str, str]) -> None:
        self.connection = http.client.HTTPConnection(urlsplit(address).netloc)
        self.languages = languages

    def translate(self, lines: list[str]) -> tuple[int, list[str]]:
        """Return the status and the translations."""
        source, target = self.languages
        body = json.dumps({"source_lang": source, "target_lang": target, "lines": lines})
        self.connection.request("POST", "/v1/translate", body, {"Content-Type": "application/json"})
        answer = self.connection.getresponse()
        values = json.loads(answer.read())
        return answer.status, [best["text"] for best, *_ in values.get("translations", [])]


def load(
    address: str,
    pairs: list[tuple[str, str]],
    languages: tuple[str, str],
    seed: int,
    seconds: float,
) -> list[tuple[int, int, bool, float]]:
    """Be a client; return lines, status, correctness and seconds of each request."""
    draw, client, done = random.Random(seed), Client(address, languages), []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        chosen = draw.choices(pairs, k=draw.choice(SIZES))
        start = time.monotonic()
        status, texts = client.translate([source for source, _ in chosen])
        is_right = status != 200 or texts == [target for _, target in chosen]
        done.append((len(chosen), status, is_right, time.monotonic() - start))
    return done


def megabytes(process: int) -> float:
    """Return the resident memory of a process and its children; shared memory counts once."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    rollups = [Path(f"/proc/{number}/smaps_rollup").read_text() for number in (process, *children)]
    return sum(int(text.partition("\nPss:")[2].split()[0]) for text in rollups) / 1024


def median_milliseconds(work: Any, repeats: int) -> float:
    """Return the median time of a function."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - start))
    return round(statistics.median(times), 2)


def main() -> None:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=100, help="of one sentence")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    workers = ("--workers", str(arguments.workers))
    lines = arguments.source.read_text(encoding="utf-8").splitlines()
    translator = nmt.Translator(arguments.model)
    with TemporaryDirectory() as scratch:
        command = [*NMT, "translate", "--model", arguments.model, *workers]
        output = Path(scratch) / "output"
        files = ("--input", arguments.source, "--output", output)
        said = subprocess.run([*command, *files], check=True, stderr=subprocess.PIPE, text=True)
        [speed] = re.findall(r"([\d.]+) sentences/s", said.stderr)
        texts = output.read_text(encoding="utf-8").splitlines()
    pairs, languages = list(zip(lines, texts, strict=True)), translator.languages
    with server(arguments.model, *workers) as (address, process):
        memory = [megabytes(process)]
        with ThreadPoolExecutor(arguments.clients) as pool:
            clients = [
                pool.submit(load, address, pairs, languages, seed, arguments.seconds)
                for seed in range(arguments.clients)
            ]
            for _ in range(2):
                time.sleep(arguments.seconds / 3)
                memory.append(megabytes(process))
            done = [request for client in clients for request in client.result()]
        memory.append(megabytes(process))
        client = Client(address, languages)
        over_http = median_milliseconds(lambda: client.translate(lines[:1]), arguments.repeats)
    in_process = median_milliseconds(
        lambda: list(translator.translate(lines[:1])), arguments.repeats
    )
    times = sorted(taken for *_, taken in done)
    right = sum(count for count, status, *_ in done if status == 200)
    measured = {
        "translate_lines_per_second": float(speed),
        "serve_lines_per_second": round(right / arguments.seconds, 1),
        "requests": len(done),
        "seconds_of_a_request": [
            round(times[int(share * (len(times) - 1))], 3) for share in (0.5, 0.95)
        ],
        "statuses": dict(Counter(status for _, status, *_ in done)),
        "wrong": sum(not is_right for *_, is_right, _ in done),
        "megabytes": [round(size) for size in memory],
        "one_sentence_ms": {"http": over_http, "in_process": in_process},
    }
    print(json.dumps(measured, indent=1))


if __name__ == "__main__":
    main()
