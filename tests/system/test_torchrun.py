"""Several processes, as torchrun starts them."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from trained_runs import assert_same_checkpoint, assert_same_run, last_update

from nmt.runs import Checkpoint

pytestmark = pytest.mark.full

FAILING = """
import os
from dataclasses import dataclass

from nmt.training.losses.token import CrossEntropy, losses


@losses.register("fails")
@dataclass(frozen=True, kw_only=True)
class Fails(CrossEntropy):
    def __call__(self, decoder_output, output, labels, weights=None):
        if os.environ["RANK"] == "1":
            raise RuntimeError("rank 1 is broken")
        return super().__call__(decoder_output, output, labels, weights)
"""


def start(*arguments: object, cwd: Path) -> subprocess.Popen[str]:
    """``torchrun --nproc-per-node 2 -m nmt train ARGUMENTS``, on a free port."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.Popen(
        [sys.executable, *launcher, "-m", "nmt", "train", *map(str, arguments)],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def torchrun(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The same, when it has ended."""
    process = start(*arguments, cwd=cwd)
    out, err = process.communicate(timeout=500)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.fixture
def two_processes(programs: Path) -> Callable[..., tuple[str, str]]:
    """Runs ``nmt ARGUMENTS`` as torchrun would, in two processes; gives their stdout and stderr."""

    def run(*arguments: object) -> tuple[str, str]:
        shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
        processes = [
            subprocess.Popen(
                [programs / "nmt", *map(str, arguments)],
                env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        said = [process.communicate(timeout=500) for process in processes]
        assert [process.returncode for process in processes] == [0, 0], said
        return said[0][0] + said[1][0], said[0][1] + said[1][1]

    return run


def free_port() -> str:
    """A port for processes that meet."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def log(run: Path, kind: str) -> list[dict[str, Any]]:
    """The records of that kind."""
    lines = map(json.loads, (run / "log.jsonl").read_text().splitlines())
    return [line for line in lines if line["record"] == kind]


def test_two_processes_learn_what_one_does(
    train: Any, two_processes: Any, recipe: Path, dataset: Path, tmp_path: Path
) -> None:
    options = (
        *("--dropout", 0, "--max-updates", 50, "--valid-every", 50, "--save-every", 50),
        *("--max-tokens", 40, "--set", "train.log_every=1"),
        *("--set", "train.valid_metrics=[chrf]"),
    )
    one, two = tmp_path / "one", tmp_path / "two"
    assert train(one, *options).status == 0
    places = ("--config", recipe, "--data", dataset, "--save-dir", two)
    recomputed = ("--set", "train.checkpoint_activations=attention")
    out, err = two_processes("train", *places, *options, *recomputed)
    assert out == f"{two}\n"
    assert err.count("fp32 on 2 x cpu, 200 training pairs") == 1
    for kind in ("train", "validation"):
        for alone, together in zip(log(one, kind), log(two, kind), strict=True):
            assert alone.keys() == together.keys()
            assert alone["loss"] == pytest.approx(together["loss"], rel=1e-4)
            for key in ("epoch", "lr", "tokens"):
                assert alone.get(key) == together.get(key)
    assert "chrf" in log(two, "validation")[0]  # so translations were made by both


def test_two_processes_guide_attention_as_one_does(
    train: Any, two_processes: Any, recipe: Path, linked_dataset: Path, tmp_path: Path
) -> None:
    options = (
        *(
            "--data",
            linked_dataset,
            "--dropout",
            0,
            "--max-tokens",
            40,
            "--set",
            "model.d_model=256",
        ),
        *("--set", "train.log_every=1", "--set", "train.guided_alignment=0.5", "--lr", 0.001),
        *("--valid-every", 2, "--save-every", 6),  # a single batch, which one process validates
    )
    assert train(tmp_path / "one", *options).status == 0
    for sharding in ("none", "full"):
        flags = ("--config", recipe, "--set", f"train.sharding={sharding}")
        two_processes("train", "--save-dir", tmp_path / sharding, *flags, *options)
        logs = log(tmp_path / "one", "train"), log(tmp_path / sharding, "train")
        for alone, together in zip(*logs, strict=True):
            for key in ("loss", "alignment", "grad_norm"):
                assert alone[key] == pytest.approx(together[key], rel=1e-3)


def test_two_processes_sample_and_reward_what_one_does(
    train: Any, two_processes: Any, recipe: Path, dataset: Path, trained: Path, tmp_path: Path
) -> None:
    options = (
        *("--dropout", 0, "--max-updates", 3, "--set", "train.log_every=1"),
        *("--set", "train.loss={name: expected_reward, samples: 3}", "--init-from", trained),
    )
    one, two = tmp_path / "one", tmp_path / "two"
    assert train(one, *options).status == 0
    places = ("--config", recipe, "--data", dataset, "--save-dir", two)
    two_processes("train", *places, *options)
    for alone, together in zip(log(one, "train"), log(two, "train"), strict=True):
        for key in ("loss", "reward", "perplexity"):
            assert alone[key] == pytest.approx(together[key], rel=1e-3)


def test_each_process_leaves_out_layers_of_its_own(
    two_processes: Any, recipe: Path, dataset: Path, tmp_path: Path
) -> None:
    options = (
        *("--config", recipe, "--data", dataset, "--max-tokens", 40, "--save-every", 3),
        *("--set", "train.layer_dropout=0.5", "--set", "train.token_dropout=0.1"),
    )
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    two_processes("train", "--save-dir", whole, *options, "--max-updates", 8)
    for updates in (4, 8):
        two_processes("train", "--save-dir", parts, *options, "--max-updates", updates)
    assert_same_checkpoint(whole / "last", parts / "last")


@pytest.mark.parametrize(
    ("precision", "part", "loss"),
    [("fp32", "layers", "simcut"), ("bf16", "attention", "label_smoothed_cross_entropy")],
)
def test_sharded_weights_train_as_replicated_ones_and_resume(
    precision: str,
    part: str,
    loss: str,
    two_processes: Any,
    recipe: Path,
    dataset: Path,
    tmp_path: Path,
) -> None:
    options = (
        *("--config", recipe, "--data", dataset, "--valid-every", 4, "--save-every", 3),
        *("--set", "train.valid_metrics=[chrf]", "--set", "train.log_every=1", "--dropout", 0),
        *("--set", "model.d_model=256", "--max-tokens", 40, "--precision", precision),
        *("--set", "train.clip_norm=1", "--set", f"train.loss.name={loss}"),
    )
    recomputed = ("--set", f"train.checkpoint_activations={part}")
    sharded = (*options, *recomputed, "--set", "train.sharding=full")
    replicated, split, resumed = (tmp_path / name for name in ("replicated", "split", "resumed"))
    for run, chosen in ((replicated, options), (split, sharded)):
        two_processes("train", "--save-dir", run, *chosen, "--max-updates", 8)
    for updates in (4, 8):
        two_processes("train", "--save-dir", resumed, *sharded, "--max-updates", updates)
    assert_same_checkpoint(split / "last", resumed / "last")
    for kind in ("train", "validation"):
        for one, other in zip(log(replicated, kind), log(split, kind), strict=True):
            assert one["loss"] == pytest.approx(
                other["loss"], rel=1e-4 if precision == "fp32" else 0.02
            )


@pytest.mark.parametrize("adaptation", ["lora", "adapters"])
def test_sharded_processes_adapt_a_model_as_one_does(
    adaptation: str,
    train: Any,
    two_processes: Any,
    recipe: Path,
    dataset: Path,
    trained: Path,
    tmp_path: Path,
) -> None:
    options = (
        *("--init-from", trained, "--set", f"model.adaptation={adaptation}", "--dropout", 0),
        *("--max-tokens", 40, "--set", "train.log_every=1", "--set", "train.valid_metrics=[chrf]"),
    )
    one, two = tmp_path / "one", tmp_path / "two"
    assert train(one, *options).status == 0
    places = ("--config", recipe, "--data", dataset, "--save-dir", two)
    two_processes("train", *places, *options, "--set", "train.sharding=full")
    for kind in ("train", "validation"):
        for alone, together in zip(log(one, kind), log(two, kind), strict=True):
            assert alone["loss"] == pytest.approx(together["loss"], rel=1e-4)
    mine, theirs = (Checkpoint.open(run / "last").weights() for run in (one, two))
    assert mine.keys() == theirs.keys()
    assert all(".part." in name or ".adapter." in name for name in theirs)


def test_the_failure_of_one_process_ends_the_other(
    recipe: Path, dataset: Path, tmp_path: Path
) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    text = recipe.read_text().replace("train:\n", "train:\n  loss: fails\n")
    (tmp_path / "nmt.yaml").write_text(f"plugins: [failing]\n{text}")
    done = torchrun("--config", "nmt.yaml", "--data", dataset, cwd=tmp_path)
    assert done.returncode != 0
    assert "rank 1 is broken" in done.stderr
    assert list((tmp_path / "checkpoints").glob("update_*")) == []


def test_kills_and_a_preemption_under_torchrun_change_nothing(
    kills: int, two_processes: Any, recipe: Path, dataset: Path, tmp_path: Path
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    moments = random.Random(seed)
    options = (
        *("--config", recipe, "--data", dataset, "--max-updates", 40, "--save-every", 4),
        *("--dropout", 0.1, "--valid-every", 10, "--set", "train.log_every=2"),
    )
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    two_processes("train", "--save-dir", whole, *options)
    for number in [signal.SIGTERM, *[signal.SIGKILL] * max(1, kills // 10)]:
        process = start("--save-dir", killed, *options, cwd=tmp_path)
        target = last_update(killed) + moments.randrange(1, 9)
        while process.poll() is None and last_update(killed) < target:
            time.sleep(0.005)
        time.sleep(moments.random() * 0.05)
        with suppress(ProcessLookupError):  # it may have come to its end
            if number == signal.SIGTERM:
                process.send_signal(number)  # which torchrun hands on
            else:
                os.killpg(process.pid, number)
        _, err = process.communicate(timeout=500)
        if number == signal.SIGTERM and process.returncode:
            assert "training ended: interrupted by SIGTERM; all is saved after update" in err
            assert (killed / "last").exists()
    two_processes("train", "--save-dir", killed, *options)
    assert_same_run(killed, whole)


def test_a_signal_to_one_process_lets_all_save_and_leave_with_its_status(
    recipe: Path, dataset: Path, tmp_path: Path
) -> None:
    rendezvous = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    shared = os.environ | rendezvous
    options = ("--config", recipe, "--data", dataset, "--max-updates", 10**6)
    command = [sys.executable, "-m", "nmt", "train", *map(str, options)]
    processes = [
        subprocess.Popen(
            command, cwd=tmp_path, env=shared | {"RANK": str(rank)}, stderr=subprocess.PIPE
        )
        for rank in range(2)
    ]
    while last_update(tmp_path / "checkpoints") < 4:
        assert all(process.poll() is None for process in processes), processes
        time.sleep(0.01)
    processes[1].send_signal(signal.SIGUSR1)
    for process in processes:
        process.communicate(timeout=120)
        assert process.returncode == 128 + signal.SIGUSR1
    checkpoint = Checkpoint.open(tmp_path / "checkpoints" / "last")
    assert checkpoint.update >= last_update(tmp_path / "checkpoints")


def test_two_processes_translate_what_one_does_and_keep_the_order(
    two_processes: Any, trained: Path, corpus: Path, nmt: Any
) -> None:
    flags = (corpus / "test.en", "--model", trained, "--window", 2, "--workers", 1)
    out, err = two_processes("translate", *flags)
    assert out == nmt("translate", *flags).out
    assert out.count("\n") == 10
    assert err.count("translated 10 lines") == 1
