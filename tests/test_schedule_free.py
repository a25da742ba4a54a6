"""Schedule-free AdamW: its points, and training that validates and saves their average."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from trained_runs import assert_same_checkpoint, records

from nmt.runs import Checkpoint, load_model
from nmt.training.config import TrainConfig
from nmt.training.optim.optimizers import optimizers
from nmt.training.optim.schedule_free import ScheduleFreeAdamW, ScheduleFreeAverage

NAME = "schedule_free_adamw"
OPTIONS = ("--set", f"train.optimizer={NAME}", "--set", "train.schedule.name=constant")


def built(model: nn.Module, **values: Any) -> ScheduleFreeAdamW:
    optimizer = replace(optimizers[NAME], **values).build(model)
    assert isinstance(optimizer, ScheduleFreeAdamW)
    return optimizer


def test_its_points_are_those_of_the_paper() -> None:
    torch.manual_seed(7)
    model = nn.Linear(3, 2).double()
    optimizer = built(model, betas=(0.8, 0.95), weight_decay=0.3)
    decays = {"weight": 0.3, "bias": 0.0}
    x = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    z = {name: value.clone() for name, value in x.items()}
    moment = {name: torch.zeros_like(value) for name, value in x.items()}
    squares = 0.0
    for step, lr in enumerate((0.01, 0.03, 0.05, 0.05, 0.05), start=1):
        squares += lr**2
        for group in optimizer.param_groups:
            group["lr"] = lr
        for name, weight in model.named_parameters():
            y = 0.2 * z[name] + 0.8 * x[name]
            torch.testing.assert_close(weight.detach(), y)
            gradient = weight.grad = torch.randn_like(weight)
            moment[name] = 0.95 * moment[name] + 0.05 * gradient**2
            root = (moment[name] / (1 - 0.95**step)).sqrt()
            z[name] = z[name] - lr * (gradient / (root + 1e-8) + decays[name] * y)
            share = lr**2 / squares
            x[name] = (1 - share) * x[name] + share * z[name]
        optimizer.step()
        for name, weight in model.named_parameters():
            torch.testing.assert_close(optimizer.averaged(weight), x[name])


def step(optimizer: torch.optim.Optimizer, gradient: float) -> None:
    """Take a step at a rate of 0.1 with this number in all gradients; NaN is skipped."""
    for group in optimizer.param_groups:
        group["lr"] = 0.1
        for weight in group["params"]:
            weight.grad = torch.full_like(weight, gradient)
    optimizer.found_inf = torch.tensor(float(gradient != gradient))
    optimizer.step()


def test_a_skipped_step_leaves_the_average_as_it_is() -> None:
    model = nn.Linear(2, 2)
    optimizer = built(model)

    def average(gradient: float) -> list[Tensor]:
        step(optimizer, gradient)
        return list(ScheduleFreeAverage(dict(model.named_parameters()), optimizer).values.values())

    before, after = average(1.0), average(float("nan"))
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert all(not torch.equal(one, other) for one, other in zip(after, average(1.0), strict=True))


def test_steps_after_skipped_ones_are_those_of_a_training_without_them() -> None:
    def points(gradients: list[float]) -> list[Tensor]:
        torch.manual_seed(7)
        model = nn.Linear(2, 2)
        optimizer = built(model, weight_decay=0.3)
        for gradient in gradients:
            step(optimizer, gradient)
        states = (optimizer.state[weight] for weight in model.parameters())
        return [*model.parameters(), *(value for state in states for value in state.values())]

    nan = float("nan")
    skipping, plain = points([nan, 1.0, nan, -3.0, nan, nan, 2.0]), points([1.0, -3.0, 2.0])
    assert all(torch.equal(one, other) for one, other in zip(skipping, plain, strict=True))


def test_a_weight_without_a_gradient_stays_as_it_is() -> None:
    model = nn.Linear(2, 2)
    optimizer, before = built(model, weight_decay=0.3), model.bias.detach().clone()
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    model.weight.grad = torch.ones(2, 2)
    optimizer.step()
    assert torch.equal(model.bias, before)
    assert torch.equal(optimizer.averaged(model.bias), before)


def test_a_frozen_weight_is_its_own_average() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    values = ScheduleFreeAverage(dict(model.named_parameters()), built(model)).values
    assert torch.equal(values["0.weight"], model[0].weight)


def test_training_validates_saves_and_translates_with_the_average_and_resumes_exactly(
    train: Any, tmp_path: Path
) -> None:
    whole, parts, seldom = (tmp_path / name for name in ("whole", "parts", "seldom"))
    assert train(whole, *OPTIONS, "--save-every", 1, "--valid-every", 1).status == 0
    for updates in (3, 6):
        options = ("--save-every", 1, "--valid-every", 1, "--max-updates", updates)
        assert train(parts, *OPTIONS, *options).status == 0
    assert_same_checkpoint(parts / "last", whole / "last")
    assert records(parts) == records(whole)
    # Validation between updates changes no bit of the training.
    assert train(seldom, *OPTIONS, "--valid-every", 100).status == 0
    assert_same_checkpoint(seldom / "last", whole / "last")
    last = Checkpoint.open(whole / "last")
    means, state = last.weights(), last.optimizer()
    for name, mean in means.items():
        y, z = state[f"{name}/weight"], state[f"{name}/z"]
        torch.testing.assert_close(0.1 * z + 0.9 * mean, y)
        assert not torch.equal(mean, y)
    model = load_model(whole / "last").model
    assert all(torch.equal(weight, means[name]) for name, weight in model.named_parameters())


def test_it_learns_with_a_scaled_loss(train: Any, tmp_path: Path) -> None:
    options = ("--precision", "fp16", "--max-updates", 20, "--valid-every", 5)
    assert train(tmp_path / "run", *OPTIONS, *options).status == 0
    losses = [line["loss"] for line in records(tmp_path / "run") if line["record"] == "validation"]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.8 * losses[0]


def test_another_average_and_sharding_are_refused() -> None:
    with pytest.raises(ValueError, match=f"{NAME} averages the weights itself; take ema_decay 0"):
        TrainConfig(optimizer=optimizers[NAME], ema_decay=0.9)
    with pytest.raises(ValueError, match=f"{NAME} cannot be split; take adam, or sharding none"):
        TrainConfig(optimizer=optimizers[NAME], sharding="full")
