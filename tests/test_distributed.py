"""One process among its peers: alone everything is a no-op, together everyone sees the same."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys

import pytest
import torch

from nmt.distributed import World, join, pick_device
from nmt.errors import NmtError

TOGETHER = """
import json
from nmt.distributed import join

with join("cpu") as world:
    seen = {
        "first": world.is_first,
        "sum": world.sum([world.rank + 1.0, 2.0**53 + 2 * world.rank]),
        "max": world.max([float(world.rank), -float(world.rank)]),
        "gather": world.gather({"rank": world.rank}),
    }
    world.barrier()
print(json.dumps(seen))
"""


MISSING = """
import os, sys, time
from nmt.distributed import join

with join("cpu", timeout_minutes=0.3) as world:  # in which all must have started, too
    world.barrier()
    if world.rank == {missing}:
        if "{does}" == "die":
            os._exit(1)
        time.sleep(300)
    world.sum([1.0])
"""


def test_alone_everything_is_what_was_given() -> None:
    world = World()
    assert world.is_first
    assert world.sum([1.5, 2.0]) == [1.5, 2.0]
    assert world.max([1.5, 2.0]) == [1.5, 2.0]
    assert world.gather("a") == ["a"]
    world.barrier()


def test_without_the_environment_of_torchrun_a_process_is_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    with join("cpu") as world:
        assert (world.rank, world.size, world.device) == (0, 1, torch.device("cpu"))
    assert not torch.distributed.is_initialized()


def start(code: str, size: int) -> list[subprocess.Popen[str]]:
    """That many processes that know of each other, as Slurm starts them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = os.environ | {
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    return [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


def test_two_processes_see_the_same_sums_maxima_and_values() -> None:
    processes = start(TOGETHER, 2)
    seen = [json.loads(process.communicate(timeout=120)[0]) for process in processes]
    assert [it.pop("first") for it in seen] == [True, False]
    assert seen[0] == seen[1]
    assert seen[0] == {
        "sum": [3.0, 2.0**54 + 2],  # exact in float64
        "max": [1.0, 0.0],
        "gather": [{"rank": 0}, {"rank": 1}],
    }


@pytest.mark.parametrize("does", ["hang", "die"])
@pytest.mark.parametrize("missing", [0, 1])
def test_the_process_that_does_not_come_is_named(does: str, missing: int) -> None:
    processes = start(MISSING.format(does=does, missing=missing), 3)
    present = [process for rank, process in enumerate(processes) if rank != missing]
    for process in present:
        _, err = process.communicate(timeout=120)
        assert f"rank {missing} failed, or did not come to a collective operation in time" in err
        assert process.returncode == 1
    processes[missing].kill()
    processes[missing].communicate()


def test_a_device_is_picked_by_name() -> None:
    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_every_process_of_a_machine_takes_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_device("auto", 1) == pick_device("cuda", 1) == torch.device("cuda:1")
    assert pick_device("cuda:0", 1) == torch.device("cuda:0")
    with pytest.raises(NmtError, match=re.escape("device 'cuda:2' is not there: 2 GPUs found")):
        pick_device("auto", 2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_a_gpu_that_is_not_there_is_an_error(name: str) -> None:
    with pytest.raises(NmtError, match="is not there: 0 GPUs found"):
        pick_device(name)


def test_an_unknown_device_is_an_error_with_the_known_ones() -> None:
    with pytest.raises(NmtError) as error:
        pick_device("gpu")
    assert str(error.value) == "unknown device 'gpu'; use cpu, cuda, cuda:N or auto"
