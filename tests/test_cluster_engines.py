"""The scripts of examples/cluster for Ray Data and Spark, on this machine."""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import nmt as package

pytestmark = pytest.mark.full

CLUSTER = Path(__file__).parents[1] / "examples/cluster"
LINES, ROWS = 20_000, 1000
PENALTY = "{name: gnmt, alpha: 2}"
SEARCH = f"search.strategy={{name: beam, beam: 4, stop: first_beam, length_penalty: {PENALTY}}}"
"""Slow enough to kill what searches, with many different translations."""

ROOT = str(Path(package.__file__).parents[1])
ENVIRONMENT = {
    "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
    "PYSPARK_PYTHON": sys.executable,
    "SPARK_LOCAL_IP": "127.0.0.1",
    "RAY_AUTH_MODE": "disabled",  # no token in the home directory
    "RAY_DEDUP_LOGS": "0",
    "RAY_OVERRIDE_RESOURCES": '{"CPU": 4}',  # two workers, and room for reading and writing
    "RAY_USAGE_STATS_ENABLED": "0",
}

Lines = Callable[..., subprocess.CompletedProcess[str]]


class Job:
    """A script that translates `crawl.parquet`, in a process group of its own."""

    def __init__(self, command: list[str], place: Path, output: Path) -> None:
        self.output, self._log = output, output.with_suffix(".log")
        places = ["--model", "run", "--input", "crawl.parquet", "--output", str(output)]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [*command, *places, "--rows", str(ROWS)],
                cwd=place,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | ENVIRONMENT,
                start_new_session=True,
            )

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.crash()

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    @property
    def workers(self) -> list[int]:
        """The process of each model that was loaded."""
        return [int(pid) for pid in re.findall(r"worker (\d+) has loaded", self.log)]

    @property
    def tables(self) -> set[Path]:
        return set(self.output.glob("*.parquet"))

    def wait_for(self, workers: int, tables: int) -> None:
        """Wait until so many workers have written so many tables, of which more are to come."""
        while len(self.workers) < workers or len(self.tables) < tables:
            assert self._process.poll() is None, self.log
            time.sleep(0.02)
        assert len(self.tables) < LINES / ROWS - 5

    def finish(self) -> None:
        assert self._process.wait(timeout=400) == 0, self.log

    def crash(self) -> None:
        """Kill every process of the group."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@pytest.fixture(scope="module", params=["ray", "spark"])
def command(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """The command that runs the script of an engine with two workers."""
    script = str(CLUSTER / f"translate_{request.param}.py")
    for name in ("pandas", "pyarrow"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    # A crashed engine leaves files, and Ray's sockets need a short path.
    with tempfile.TemporaryDirectory(prefix="nmt", ignore_cleanup_errors=True) as directory:
        if request.param == "ray":
            pytest.importorskip("ray", reason="Ray is not installed")
            yield ["env", f"RAY_TMPDIR={directory}", sys.executable, script, "--workers", "2"]
        else:
            pyspark = pytest.importorskip("pyspark", reason="Spark is not installed")
            submit = Path(pyspark.__path__[0]) / "bin/spark-submit"
            files = ["--driver-java-options", f"-Djava.io.tmpdir={directory}"]
            yield [str(submit), "--master", "local[2,4]", *files, script]


@pytest.fixture(scope="module")
def place(
    tmp_path_factory: pytest.TempPathFactory,
    train: Any,
    nmt: Any,
    write_numbers: Callable[..., None],
    lines: Lines,
) -> Path:
    """A directory with a model, lines, their table, and their translation by one process."""
    place = tmp_path_factory.mktemp("engines")
    settings = ("--max-updates", 300, "--valid-every", 300, "--save-every", 300)
    assert train(place / "run", *settings, "--set", SEARCH).status == 0
    write_numbers(place / "crawl", LINES, seed=7)
    text, whole = place / "crawl.en", place / "whole.de"
    done = nmt("translate", "--model", place / "run", "--input", text, "--output", whole)
    assert done.status == 0, done.err
    assert len(set(whole.read_text().splitlines())) > LINES / 10
    assert lines("to-parquet", text, place / "crawl.parquet").returncode == 0
    return place


@pytest.fixture(scope="module")
def lines() -> Lines:
    """Runs lines.py."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, CLUSTER / "lines.py", *map(str, arguments)]
        environment = os.environ | ENVIRONMENT
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    return run


def test_a_killed_worker_loses_no_line(
    command: list[str], place: Path, tmp_path: Path, lines: Lines
) -> None:
    with Job(command, place, tmp_path / "translated") as job:
        job.wait_for(workers=2, tables=3)
        before = job.workers
        os.kill(before[-1], signal.SIGKILL)
        job.finish()
    assert len(before) == 2
    assert len(job.workers) == len({*job.workers}) > 2  # a new one, and each loads once
    done = lines("to-text", place / "crawl.parquet", job.output, tmp_path / "crawl.de")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "crawl.de").read_text() == (place / "whole.de").read_text()


def test_the_same_command_resumes_after_a_crash(
    command: list[str], place: Path, tmp_path: Path, lines: Lines
) -> None:
    text = ("to-text", place / "crawl.parquet", tmp_path / "translated", tmp_path / "crawl.de")
    with Job(command, place, tmp_path / "translated") as job:
        job.wait_for(workers=1, tables=5)
        job.crash()
        kept = job.tables
    done = lines(*text)
    assert done.returncode == 1
    assert "have no translation; run the translation again" in done.stderr
    assert not (tmp_path / "crawl.de").exists()
    for _ in range(2):  # the second time there is nothing left to do
        with Job(command, place, tmp_path / "translated") as job:
            job.finish()
        assert len(kept & job.tables) >= 3  # Ray removes what it may not have written whole
        kept = job.tables
    assert lines(*text).returncode == 0
    assert (tmp_path / "crawl.de").read_text() == (place / "whole.de").read_text()


def test_a_mistaken_model_is_one_line(command: list[str], tmp_path: Path) -> None:
    with Job(command, tmp_path, tmp_path / "translated") as job, pytest.raises(AssertionError):
        job.finish()
    (line,) = [line for line in job.log.splitlines() if "Traceback" in line or ".py: " in line]
    assert re.fullmatch(r"translate_\w+\.py: error: \S+/run: .*", line)


def test_lines_become_a_table_and_return_in_order(tmp_path: Path, lines: Lines) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = importlib.import_module("pyarrow.parquet")
    text, table, translated = (tmp_path / name for name in ("text", "table", "translated"))
    # More than a block, with a blank line, a separator that ends no line, and an unfinished line.
    text.write_text("\n".join([*map(str, range(250_000)), "", "a\u2028b"]))
    assert lines("to-parquet", text, table).returncode == 0
    columns = parquet.read_table(table).to_pydict()
    assert columns["text"] == text.read_text().split("\n")
    order = sorted(columns["id"], key=lambda number: number % 7)
    rows = [(number, columns["text"][number]) for number in order]

    def restored(rows: list[tuple[int, str]]) -> subprocess.CompletedProcess[str]:
        ids, translations = zip(*rows, strict=True)
        parquet.write_table(pyarrow.table({"id": ids, "translation": translations}), translated)
        return lines("to-text", table, translated, tmp_path / "restored")

    assert restored(rows).returncode == 0
    assert (tmp_path / "restored").read_text() == f"{text.read_text()}\n"
    assert restored([*rows, rows[0]]).returncode == 0  # a worker died after it had translated it
    assert (tmp_path / "restored").read_text() == f"{text.read_text()}\n"
    lost = restored(rows[1:])
    assert lost.returncode == 1
    assert lost.stderr == (
        f"lines.py: error: {translated}: of lines 1 to 100000, 1 have no translation; "
        "run the translation again\n"
    )


def test_a_missing_file_is_one_line(tmp_path: Path, lines: Lines) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    done = lines("to-text", tmp_path / "none", tmp_path / "none", tmp_path / "text")
    assert done.returncode == 1
    assert done.stderr == f"lines.py: error: {tmp_path}/none: no such table; check the path\n"
    assert not list(tmp_path.iterdir())
