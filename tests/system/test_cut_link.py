"""Two machines, as network namespaces, and a link between them that is cut and comes back."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from trained_runs import assert_same_run, last_update

TIMEOUT_MINUTES = 0.2
"""In which all workers must have started, too."""

ADDRESSES = ("10.77.0.1", "10.77.0.2")


def ip(arguments: str) -> str:
    command = ["ip", *arguments.split()]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Machines:
    """Two network namespaces, with a link between them."""

    def __init__(self) -> None:
        self.names = [f"nmt-{os.getpid()}-{number}" for number in range(2)]

    def make(self) -> None:
        """Makes the namespaces and the link."""
        for name in self.names:
            ip(f"netns add {name}")
        first, second = self.names
        ip(f"link add link0 netns {first} type veth peer name link0 netns {second}")
        for name, address in zip(self.names, ADDRESSES, strict=True):
            ip(f"-n {name} address add {address}/24 dev link0")
            ip(f"-n {name} link set lo up")
        self.set_link("up")

    def set_link(self, state: str) -> None:
        """Cuts the link ("down") or mends it ("up"), from both ends."""
        for name in self.names:
            ip(f"-n {name} link set link0 {state}")

    def workers(self, number: int) -> list[int]:
        """The processes of ``nmt`` on a machine; torchrun is none of them."""
        pids = map(int, ip(f"netns pids {self.names[number]}").split())
        return [pid for pid in pids if "torch.distributed.run" not in _command_line(pid)]

    def kill(self) -> None:
        """Kills what runs on the machines."""
        for name in self.names:
            for pid in ip(f"netns pids {name}").split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)

    def remove(self) -> None:
        """Kills what runs on the machines that were made, and removes them."""
        made = ip("netns list").split()
        self.names = [name for name in self.names if name in made]
        self.kill()
        for name in self.names:
            ip(f"netns delete {name}")

    @contextmanager
    def torchrun(
        self, directory: Path, *arguments: object
    ) -> Iterator[list[subprocess.Popen[bytes]]]:
        """``torchrun -m nmt train ARGUMENTS`` on both machines; messages go to files there."""
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2"]
        launcher += ["--rdzv-backend=c10d", f"--rdzv-endpoint={ADDRESSES[0]}:29500"]
        with ExitStack() as stack:
            stack.callback(self.kill)
            processes = []
            for number, (name, address) in enumerate(zip(self.names, ADDRESSES, strict=True)):
                place = [f"--local-addr={address}", f"--rdzv-conf=is_host={1 - number}"]
                command = [*launcher, *place, "-m", "nmt", "train", *map(str, arguments)]
                messages = stack.enter_context((directory / f"messages.{number}").open("wb"))
                processes.append(
                    subprocess.Popen(
                        ["ip", "netns", "exec", name, *command],
                        cwd=directory,
                        env=os.environ | {"GLOO_SOCKET_IFNAME": "link0"},
                        stdout=subprocess.DEVNULL,
                        stderr=messages,
                    )
                )
            yield processes


def _command_line(pid: int) -> str:
    """The command line of a process; of one that has ended, as if it were torchrun's."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text() or "torch.distributed.run"
    return "torch.distributed.run"


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    """Two machines, where this user may make them."""
    if shutil.which("ip") is None:
        pytest.skip("ip (iproute2) is not there")
    machines = Machines()
    try:
        machines.make()
        yield machines
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces cannot be made here: {error.stderr.strip()}")
    finally:
        machines.remove()


@pytest.fixture(scope="module")
def options(recipe: Path, dataset: Path) -> list[object]:
    """What is trained."""
    return [
        *("--config", recipe, "--data", dataset, "--max-updates", 120, "--save-every", 20),
        *("--dropout", 0.1, "--valid-every", 50, "--set", "train.log_every=1"),
        *("--set", f"train.timeout_minutes={TIMEOUT_MINUTES}"),
    ]


@pytest.fixture(scope="module")
def whole(
    machines: Machines, options: list[object], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The run of a training that nothing interrupted."""
    directory = tmp_path_factory.mktemp("whole")
    train(machines, directory, *options)
    return directory / "checkpoints"


def train(machines: Machines, directory: Path, *options: object) -> None:
    with machines.torchrun(directory, *options) as processes:
        for process in processes:
            assert process.wait(timeout=120) == 0, said(directory)


def said(directory: Path) -> list[str]:
    """What each machine said."""
    return [(directory / f"messages.{number}").read_text() for number in range(2)]


Moment = Callable[[Path], bool]

MOMENTS: dict[str, Moment] = {
    "before the first update": lambda run: (run / "log.jsonl").exists(),
    "training": lambda run: last_update(run) >= 30,
    "saving": lambda run: any(run.glob(".update_0000040*")),
    "validation": lambda run: last_update(run) >= 50,  # reported before it is validated
}


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_link_that_is_cut_ends_both_sides_in_time_and_changes_no_bit(
    moment: str, machines: Machines, options: list[object], whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "checkpoints"
    with machines.torchrun(tmp_path, *options) as processes:
        while not MOMENTS[moment](run):
            assert all(process.poll() is None for process in processes), said(tmp_path)
            time.sleep(0.001)
        machines.set_link("down")
        deadline = time.monotonic() + 60 * TIMEOUT_MINUTES + 10
        assert all(machines.workers(number) for number in range(2))
        while any(machines.workers(number) for number in range(2)):
            assert time.monotonic() < deadline, said(tmp_path)
            time.sleep(0.1)
    lost = [re.findall("nmt: error: (.*)", messages) for messages in said(tmp_path)]
    assert [[line.split(" failed")[0] for line in lines] for lines in lost] == [
        ["rank 0: rank 1"],
        ["rank 1: rank 0"],
    ]
    machines.set_link("up")
    train(machines, tmp_path, *options)
    assert_same_run(run, whole)
