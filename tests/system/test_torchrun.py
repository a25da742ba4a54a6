"""Several processes, as torchrun starts them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

FAILING = """
import os
from dataclasses import dataclass

from nmt.training.losses import CrossEntropy, losses


@losses.register("fails")
@dataclass(frozen=True, kw_only=True)
class Fails(CrossEntropy):
    def __call__(self, states, output, labels):
        if os.environ["RANK"] == "1":
            raise RuntimeError("rank 1 is broken")
        return super().__call__(states, output, labels)
"""


def torchrun(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """``torchrun --nproc-per-node 2 -m nmt train ARGUMENTS``, on a free port."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [sys.executable, *launcher, "-m", "nmt", "train", *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=500,
    )


def log(run: Path, kind: str) -> dict[str, Any]:
    """The last record of that kind."""
    lines = map(json.loads, (run / "log.jsonl").read_text().splitlines())
    *_, last = (line for line in lines if line["record"] == kind)
    return dict(last)


def test_two_processes_learn_what_one_does(
    train: Any, recipe: Path, dataset: Path, tmp_path: Path
) -> None:
    options = (
        *("--dropout", 0, "--max-updates", 20, "--valid-every", 20, "--save-every", 20),
        *("--max-tokens", 40, "--set", "train.log_every=20"),
        *("--set", "train.valid_metrics=[chrf]"),
    )
    one, two = tmp_path / "one", tmp_path / "two"
    assert train(one, *options).status == 0
    places = ("--config", recipe, "--data", dataset, "--save-dir", two)
    done = torchrun(*places, *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{two}\n"
    assert done.stderr.count("fp32 on 2 x cpu, 200 training pairs") == 1
    alone, together = log(one, "validation"), log(two, "validation")
    assert abs(alone["loss"] - together["loss"]) < 1e-3
    assert "chrf" in together  # so translations were made by both
    alone, together = log(one, "train"), log(two, "train")
    assert (alone["epoch"], alone["lr"]) == (together["epoch"], together["lr"])
    for key in ("loss", "grad_norm"):
        assert abs(alone[key] - together[key]) < 1e-3


def test_the_failure_of_one_process_ends_the_other(
    recipe: Path, dataset: Path, tmp_path: Path
) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    text = recipe.read_text().replace("train:\n", "train:\n  loss: fails\n")
    (tmp_path / "nmt.yaml").write_text(f"plugins: [failing]\n{text}")
    done = torchrun("--data", dataset, cwd=tmp_path)
    assert done.returncode != 0
    assert "rank 1 is broken" in done.stderr
    assert list((tmp_path / "checkpoints").glob("update_*")) == []
