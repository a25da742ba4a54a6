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
from torch.distributed import TCPStore

from nmt.errors import LostPeerError, NmtError
from nmt.runtime import distributed
from nmt.runtime.distributed import World, join, pick_device

TOGETHER = """
import json
from nmt.runtime.distributed import join

with join("cpu") as world:
    seen = {
        "first": world.is_main,
        "sum": world.sum([world.rank + 1.0, 2.0**53 + 2 * world.rank]),
        "max": world.max([float(world.rank), -float(world.rank)]),
        "gather": world.gather({"rank": world.rank}),
    }
    world.barrier()
print(json.dumps(seen))
"""


MISSING = """
import os, signal, sys, time
import nmt.runtime.distributed
from nmt.cli import app

def command(**_):
    with nmt.runtime.distributed.join("cpu", timeout_minutes=0.05) as world:
        world.barrier()
        if world.rank == {missing}:
            {does}
        world.sum([1.0])

nmt.runtime.distributed.ROLL_CALL_SECONDS = 1.0
app.app = command
began, children = time.monotonic(), {{}}
for rank in {ranks}:  # forked, so that they start at the same time, however long an import takes
    os.environ["RANK"] = str(rank)
    children[rank] = os.fork()
    if not children[rank]:
        app.main()
stray = children.pop({missing}, None)
assert [os.waitpid(child, 0)[1] >> 8 for child in children.values()] == [1, 1]
assert time.monotonic() - began < 0.05 * 60 + 10
if stray:
    os.kill(stray, signal.SIGKILL)
"""


def test_alone_everything_is_what_was_given() -> None:
    world = World()
    assert world.is_main
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


def start(
    code: str, count: int, of: int | None = None, agent: TCPStore | None = None
) -> list[subprocess.Popen[str]]:
    """That many processes, of so many that know of each other.

    They are started as Slurm does, or as torchrun does after a failure on the machine of rank 1.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = os.environ | {
        "WORLD_SIZE": str(of or count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(agent.port if agent else port),
    }
    if agent:
        shared["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    return [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env=shared
            | {name: str(rank) for name in ("RANK", "LOCAL_RANK", "TORCHELASTIC_RESTART_COUNT")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]


@pytest.mark.full
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


LATE = f"import os, time\ntime.sleep(int(os.environ['RANK']))\n{TOGETHER}"


@pytest.mark.full
def test_processes_that_are_started_again_find_each_other_and_not_those_before(
    launcher_store: TCPStore,
) -> None:
    for _ in range(2):
        processes = start(LATE, 2, agent=launcher_store)
        said = [process.communicate(timeout=120) for process in processes]
        assert [json.loads(out)["sum"][0] for out, _ in said] == [3.0, 3.0], said
    code = MISSING.format(does="pass", missing=1, ranks=[0, 2])
    lost = lost_processes(code, launcher_store)
    assert lost.keys() == {0, 2}
    assert all(
        line.startswith("rank 1 did not start, or cannot be reached") for line in lost.values()
    )
    lost = lost_processes(MISSING.format(does="pass", missing=0, ranks=[1, 2]), launcher_store)
    assert [line.partition(";")[0] for line in lost.values()] == [
        "rank 0 did not start, or cannot be reached"
    ] * 2


@pytest.fixture
def launcher_store() -> TCPStore:
    """The store that torchrun keeps over restarts."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


HANG, DIE, STOP = "time.sleep(60)", "os._exit(1)", "os.kill(os.getpid(), signal.SIGSTOP)"


@pytest.mark.full
@pytest.mark.parametrize("does", [HANG, DIE, STOP])
@pytest.mark.parametrize("missing", [0, 1])
def test_the_process_that_does_not_answer_is_named_in_time(does: str, missing: int) -> None:
    lost = lost_processes(MISSING.format(does=does, missing=missing, ranks=range(3)))
    expected = f"rank {missing} failed, cannot be reached, or did not answer for 0.05 minutes"
    if missing == 0 and does != HANG:  # with it went the store
        expected = "rank 0 failed or cannot be reached: its store at 127.0.0.1:"
    assert all(line.startswith(expected) for line in lost.values())
    assert sorted(lost) == sorted({0, 1, 2} - {missing})


BUSY = """
import sys, time
from nmt.errors import LostPeerError
import nmt.runtime.distributed

nmt.runtime.distributed.ROLL_CALL_SECONDS = 1.0
try:
    with nmt.runtime.distributed.join("cpu", timeout_minutes=0.05) as world:
        world.barrier()
        time.sleep(7 * world.is_main)
        world.gather(1)
except LostPeerError as error:
    print(error)
"""


@pytest.mark.full
def test_a_process_that_was_busy_for_too_long_names_the_key_to_raise() -> None:
    first, second = (process.communicate(timeout=120)[0] for process in start(BUSY, 2))
    assert second == (
        "rank 1: rank 0 failed, cannot be reached, or did not answer for 0.05 minutes; see its "
        "messages\n"
    )
    assert first == (
        "rank 0: a collective operation failed in all processes: the network failed, or a process "
        "was busy for more than 0.05 minutes, such as with a slow metric of validation; raise "
        "train.timeout_minutes\n"
    )


@pytest.mark.full
@pytest.mark.parametrize("missing", [0, 1])
def test_the_process_that_does_not_start_is_named_in_time(missing: int) -> None:
    ranks = sorted({0, 1, 2} - {missing})
    lost = lost_processes(MISSING.format(does="pass", missing=missing, ranks=ranks))
    first = lost[ranks[0]]
    if missing == 0:
        assert first.startswith("rank 0 failed or cannot be reached: its store at 127.0.0.1:")
    else:
        assert first.startswith("rank 1 did not start, or cannot be reached; see its messages")
    assert sorted(lost) == ranks


def lost_processes(code: str, agent: TCPStore | None = None) -> dict[int, str]:
    """What the processes that the code starts say before they end, by their ranks."""
    [launcher] = start(code, 1, of=3, agent=agent)
    _, err = launcher.communicate(timeout=120)
    assert launcher.returncode == 0, err
    assert "Traceback" not in err
    return {int(rank): said for rank, said in re.findall("nmt: error: rank (.): (.*)", err)}


@pytest.mark.full
def test_processes_that_cannot_find_each_other_are_told_what_to_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    for port in ("2000", "99999", "-1", "0", "x"):
        monkeypatch.setenv("MASTER_PORT", port)
        with pytest.raises(NmtError, match="set them, or start the processes with torchrun"):
            join("cpu").__enter__()
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")


@pytest.mark.parametrize(
    ("name", "value"),
    [("WORLD_SIZE", "x"), ("WORLD_SIZE", "0"), ("RANK", "-1"), ("LOCAL_RANK", "")],
)
def test_a_variable_of_torchrun_that_is_no_number_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(NmtError) as error:
        join("cpu").__enter__()
    assert str(error.value) == (
        f"the environment variable {name} is {value!r}, not a whole number of at least "
        f"{int(name == 'WORLD_SIZE')}; unset it, or start the processes with torchrun, which sets "
        "it"
    )


@pytest.mark.parametrize("size", ["2", None])
def test_a_rank_that_the_number_of_processes_excludes_is_refused(
    monkeypatch: pytest.MonkeyPatch, size: str | None
) -> None:
    monkeypatch.setenv("RANK", size or "1")
    if size:
        monkeypatch.setenv("WORLD_SIZE", size)
    with pytest.raises(NmtError, match=rf"RANK is {size or 1} and WORLD_SIZE {size or 1}, whose"):
        join("cpu").__enter__()


def test_a_port_that_is_taken_is_the_reason_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("", 0)) as taken:
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        with pytest.raises(LostPeerError, match="address already in use"):
            join("cpu").__enter__()


def test_a_device_is_picked_by_name() -> None:
    assert pick_device("cpu") == "cpu"
    assert pick_device("auto") == ("cuda:0" if torch.cuda.is_available() else "cpu")


def test_every_process_of_a_machine_takes_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(distributed, "may_have_gpu", lambda: True)
    assert pick_device("auto", 1) == pick_device("cuda", 1) == "cuda:1"
    assert pick_device("cuda:0", 1) == "cuda:0"
    with pytest.raises(NmtError, match=re.escape("device 'cuda:2' does not exist: 2 GPUs found")):
        pick_device("auto", 2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_a_gpu_that_is_not_there_is_an_error(name: str) -> None:
    with pytest.raises(NmtError, match="does not exist: 0 GPUs found"):
        pick_device(name)


@pytest.mark.parametrize("name", ["gpu", "mps", "xpu", "hpu", "meta"])
def test_an_unknown_device_is_an_error_with_the_known_ones(name: str) -> None:
    with pytest.raises(NmtError) as error:
        pick_device(name)
    assert str(error.value) == f"unknown device {name!r}; use cpu, cuda, cuda:N or auto"
