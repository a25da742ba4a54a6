"""The trial by which training chooses among the optional kernels of a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from nmt.data.dataset import Dataset
from nmt.models import architectures
from nmt.runtime import own_kernels
from nmt.runtime.distributed import World
from nmt.runtime.own_kernels import OPTIONAL, choose_kernels, is_chosen
from nmt.training import kernel_trial
from nmt.training.config import TrainConfig
from nmt.training.kernel_trial import choose_own_kernels
from nmt.training.trainer import Trainer, TrainerState

SIZES = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "d_ff": 32, "heads": 2}


@pytest.fixture
def trainer(dataset: Path) -> Trainer:
    torch.manual_seed(1)
    config = TrainConfig(tokens_per_update=150, precision="fp32", device="cpu")
    model = replace(architectures["transformer_tiny"], **SIZES).build(60, 60, True)
    split = Dataset.open(dataset).split("train")
    return Trainer(None, config, model.train(), split, World())  # type: ignore[arg-type]


@pytest.fixture
def trial(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> Callable[[dict[str, tuple[float, float]]], list[str]]:
    """Runs the trial, given the error and the seconds that each kernel adds."""

    def run(kernels: dict[str, tuple[float, float]]) -> list[str]:
        def chosen() -> list[tuple[float, float]]:
            return [kernels[name] for name in OPTIONAL if is_chosen(name)]

        gradients = trainer.gradients

        def with_errors(batch: Any) -> list[torch.Tensor]:
            error = sum(it[0] for it in chosen())
            return [gradient * (1 + error) for gradient in gradients(batch)]

        def seconds(_: Trainer) -> float:
            return 1.0 + sum(it[1] for it in chosen())

        monkeypatch.setattr(trainer, "gradients", with_errors)
        monkeypatch.setattr(kernel_trial, "time_ordinary_batches", seconds)
        return choose_own_kernels(trainer)

    return run


@pytest.mark.parametrize(
    ("add_norm", "feed_forward", "expected"),
    [
        ((0.01, -0.1), (0.01, -0.2), ["add_norm", "feed_forward"]),
        ((0.01, 0.1), (0.01, -0.1), ["feed_forward"]),
        ((0.06, -0.1), (0.01, -0.1), ["feed_forward"]),
        ((float("nan"), -0.1), (0.0, 0.0), []),
    ],
    ids=["both", "one is slower", "one is wrong", "NaN, and no faster"],
)
def test_kernels_are_used_if_they_are_right_and_faster(
    trial: Any, trainer: Trainer, add_norm: Any, feed_forward: Any, expected: list[str]
) -> None:
    assert trial({"add_norm": add_norm, "feed_forward": feed_forward}) == expected
    assert [name for name in OPTIONAL if is_chosen(name)] == expected
    assert trainer.state.own_kernels == expected
    assert trainer.model.training


def test_a_kernel_that_fails_is_not_used_and_the_reason_is_told(
    trial: Any, trainer: Trainer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    ordinary = kernel_trial._gradients

    def gradients(trainer: Trainer, batch: Any, names: list[str]) -> Any:
        if "add_norm" in names:
            raise RuntimeError("no such instruction\nand more")
        return ordinary(trainer, batch, names)

    monkeypatch.setattr(kernel_trial, "_gradients", gradients)
    assert trial({"add_norm": (0.0, -0.1), "feed_forward": (0.0, -0.1)}) == ["feed_forward"]
    assert "kernel add_norm is not used: no such instruction\n" in capsys.readouterr().err


def test_a_resumed_run_uses_the_same_kernels_on_the_same_devices(trainer: Trainer) -> None:
    trainer.set_own_kernels(["add_norm"])
    weights, optimizer = trainer.snapshot()
    for devices, expected in ((["cpu"], True), (["another GPU"], False)):
        choose_kernels(["feed_forward"])
        state = TrainerState(own_kernels=["add_norm"], own_kernels_devices=devices)
        trainer.restore(weights, optimizer, state)
        assert is_chosen("add_norm") is expected
        assert not is_chosen("feed_forward")
    assert not trainer.needs_kernel_trial  # on a CPU


def test_a_new_trainer_begins_without_optional_kernels(trainer: Trainer, dataset: Path) -> None:
    choose_kernels(OPTIONAL)
    split = Dataset.open(dataset).split("train")
    Trainer(None, trainer.config, trainer.model, split, World())  # type: ignore[arg-type]
    assert own_kernels._chosen == set()
