"""Limits of control groups, read from files as the kernel writes them."""

import os
from pathlib import Path

import pytest

from nmt.runtime import machine
from nmt.runtime.machine import (
    core_limit,
    host_memory,
    keep_threads_within_limit,
    let_waiting_threads_sleep,
    memory_limit,
)
from nmt.runtime.processes import available_cores

GIB = 1 << 30


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory for groups, and for the file `cgroup` that names those of the process."""
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    monkeypatch.setattr(machine, "GROUPS", tmp_path / "cgroup")
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    return tmp_path


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


VERSIONS = {
    "version 2": {
        "cgroup": "0::/jobs/one",
        "jobs/one/cpu.max": "max 100000",
        "jobs/one/memory.max": str(2 * GIB),
        "jobs/cpu.max": "50000 100000",
        "jobs/memory.max": "max",
    },
    "version 1": {
        "cgroup": "4:memory:/jobs/one\n1:cpu,cpuacct:/jobs/one\n0::/",
        "cpu/jobs/one/cpu.cfs_quota_us": "-1",
        "cpu/jobs/one/cpu.cfs_period_us": "100000",
        "cpu/jobs/cpu.cfs_quota_us": "50000",
        "cpu/jobs/cpu.cfs_period_us": "100000",
        "memory/jobs/one/memory.limit_in_bytes": str(2 * GIB),
        "memory/memory.limit_in_bytes": "9223372036854771712",
    },
    "a container that sees its group's path on the host": {
        "cgroup": "0::/docker/9f3",
        "cpu.max": "50000 100000",
        "memory.max": str(2 * GIB),
    },
}


@pytest.mark.parametrize("files", VERSIONS.values(), ids=VERSIONS)
def test_the_smallest_limit_of_a_group_and_those_around_it_holds(
    root: Path, files: dict[str, str]
) -> None:
    write(root, files)
    assert core_limit() == 0.5
    assert memory_limit() == 2 * GIB
    assert available_cores() == 1
    assert host_memory() <= 2 * GIB


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"cgroup": "0::/"},
        {"cgroup": "0::/a", "a/cpu.max": "max 100000", "a/memory.max": "max"},
        {"cgroup": "1:cpu:/", "cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
    ],
    ids=["another system", "the group of all", "no limits", "no limits in version 1"],
)
def test_without_limits_all_of_the_machine_counts(
    root: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    write(root, files)
    assert core_limit() is None
    assert memory_limit() is None
    keep_threads_within_limit()
    assert "OMP_NUM_THREADS" not in os.environ


def test_the_name_of_a_group_may_be_any_bytes(root: Path) -> None:
    write(root, {"j\udce4/cpu.max": "50000 100000"})
    (root / "cgroup").write_bytes(b"0::/j\xe4\n")
    assert core_limit() == 0.5


def test_torch_gets_a_thread_for_each_core_of_the_limit_and_a_part_of_one(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)), raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    write(root, {"cgroup": "0::/", "cpu.max": "250000 100000"})
    keep_threads_within_limit()
    assert os.environ["OMP_NUM_THREADS"] == "7"
    monkeypatch.delenv("OMP_NUM_THREADS")
    keep_threads_within_limit()
    assert os.environ["OMP_NUM_THREADS"] == "3"


def test_waiting_threads_sleep_soon_unless_the_user_says_how_they_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for given, spins in (
        ({}, "1000"),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "active"}, None),
    ):
        with monkeypatch.context() as patch:
            for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
                patch.setenv(name, "")  # so that the context restores it
                patch.delenv(name)
            for name, value in given.items():
                patch.setenv(name, value)
            let_waiting_threads_sleep()
            assert os.environ.get("GOMP_SPINCOUNT") == spins
