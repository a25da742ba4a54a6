"""The fuzzer tells outcomes apart, and a small run of it finds no fault."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from fuzz import child, mutations

TESTS = Path(__file__).parent


def fail() -> None:
    print("nmt: error: data-bin: missing", file=sys.stderr)
    sys.exit(1)


def fail_with_escapes() -> None:
    print("nmt: error: \x1b[31m: missing", file=sys.stderr)
    sys.exit(1)


def fail_silently() -> None:
    sys.exit(1)


def raise_an_error() -> None:
    raise ValueError("of a parser")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def ask_for_memory() -> None:
    bytearray(2 * child.BYTES)


def wait() -> None:
    time.sleep(60)


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        (lambda: print("eins"), None),
        (fail, None),
        (fail_with_escapes, "unreadable"),
        (fail_silently, "traceback"),
        (raise_an_error, "traceback"),
        (die, "traceback"),
        (ask_for_memory, "flood"),
        (wait, "hang"),
    ],
)
def test_the_outcome_of_a_command_is_known(
    command: Callable[[], None], fault: str | None, tmp_path: Path
) -> None:
    place = tmp_path / "work"
    place.mkdir()
    assert child.run(command, place, seconds=0.5 if fault == "hang" else 10).fault == fault


def test_the_same_seed_damages_a_file_alike(tmp_path: Path) -> None:
    def damaged(seed: int, name: str) -> bytes:
        file = tmp_path / f"{name}-{seed}.json"
        file.write_text('{"version": 1, "files": {"a": 1}}')
        mutations.damage(file, Random(seed), keeps_size=False, streams=False)
        return file.read_bytes() if file.is_file() else b""

    once, again = ([damaged(seed, name) for seed in range(20)] for name in ("once", "again"))
    assert once == again
    assert len(set(once)) > 10


@pytest.mark.full
def test_damage_costs_one_line(tmp_path: Path) -> None:
    arguments = ("--mutations", "24", "--jobs", "1", "--material", str(tmp_path / "material"))
    done = subprocess.run(
        [sys.executable, "-m", "fuzz", *arguments],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "| all | 24 |" in done.stdout
