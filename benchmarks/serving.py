"""Throughput and latency of ``nmt serve`` under load, beside ``nmt translate`` on the same text.

    python benchmarks/serving.py --model RUN --source test.en --clients 64 --seconds 600

The clients run in threads of this process, on the same machine. Each sends a request of some lines
(--sizes, drawn at random), waits for the answer, and sends the next. Every answer is compared with
the output of the command. Prints JSON: seconds until the server is ready, and its megabytes then;
the median milliseconds of one sentence in process and over HTTP, on a connection that is kept and
on a new one, in turn for the same sentences; lines a second of the command and of the server;
seconds of a request (median and 95 per cent); answers by status, and those that differ; and the
megabytes of the server's processes every ten seconds.
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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import torch

import nmt

NMT = (sys.executable, "-m", "nmt")
SIZES = (1, 1, 1, 2, 5, 20)
SAMPLE_SECONDS = 10
"""Seconds between two looks at the memory."""


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
    sizes: list[int],
    seed: int,
    seconds: float,
) -> list[tuple[int, int, bool, float]]:
    """Be a client; return lines, status, correctness and seconds of each request."""
    draw, client, done = random.Random(seed), Client(address, languages), []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        chosen = draw.choices(pairs, k=draw.choice(sizes))
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


def single_sentences(
    address: str, translator: Any, sentences: list[str], repeats: int
) -> dict[str, float]:
    """Return the median milliseconds of a sentence by each way, all ways in turn."""
    kept = Client(address, translator.languages)
    ways: dict[str, Callable[[str], Any]] = {
        "in_process": lambda sentence: list(translator.translate([sentence])),
        "http": lambda sentence: kept.translate([sentence]),
        "http_new_connection": lambda sentence: Client(address, translator.languages).translate(
            [sentence]
        ),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    draw = random.Random(1)
    for sentence in draw.choices(sentences, k=repeats):
        for name in draw.sample(list(ways), len(ways)):
            start = time.perf_counter()
            ways[name](sentence)
            times[name].append(1000 * (time.perf_counter() - start))
    return {name: round(statistics.median(of_way), 2) for name, of_way in times.items()}


def main() -> None:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="lines of a request")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=100, help="single sentences")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    workers = ("--workers", str(arguments.workers))
    lines = arguments.source.read_text(encoding="utf-8").splitlines()
    torch.set_num_threads(1)
    translator = nmt.Translator(arguments.model)
    with TemporaryDirectory() as scratch:
        command = [*NMT, "translate", "--model", arguments.model, *workers]
        output = Path(scratch) / "output"
        files = ("--input", arguments.source, "--output", output)
        said = subprocess.run([*command, *files], check=True, stderr=subprocess.PIPE, text=True)
        [speed] = re.findall(r"([\d.]+) sentences/s", said.stderr)
        texts = output.read_text(encoding="utf-8").splitlines()
    pairs, languages = list(zip(lines, texts, strict=True)), translator.languages
    begun = time.monotonic()
    with server(arguments.model, *workers) as (address, process):
        ready, memory = time.monotonic() - begun, [megabytes(process)]
        sentence_times = single_sentences(address, translator, lines, arguments.repeats)
        with ThreadPoolExecutor(arguments.clients) as pool:
            clients = [
                pool.submit(
                    load, address, pairs, languages, arguments.sizes, seed, arguments.seconds
                )
                for seed in range(arguments.clients)
            ]
            while not all(client.done() for client in clients):
                time.sleep(SAMPLE_SECONDS)
                memory.append(megabytes(process))
            done = [request for client in clients for request in client.result()]
    times = sorted(taken for *_, taken in done)
    right = sum(count for count, status, *_ in done if status == 200)
    measured = {
        "seconds_until_ready": round(ready, 1),
        "one_sentence_ms": sentence_times,
        "translate_lines_per_second": float(speed),
        "serve_lines_per_second": round(right / arguments.seconds, 1),
        "requests": len(done),
        "seconds_of_a_request": [
            round(times[int(share * (len(times) - 1))], 3) for share in (0.5, 0.95)
        ],
        "statuses": dict(Counter(status for _, status, *_ in done)),
        "wrong": sum(not is_right for *_, is_right, _ in done),
        "megabytes": [round(size) for size in memory],
    }
    print(json.dumps(measured, indent=1))


if __name__ == "__main__":
    main()
