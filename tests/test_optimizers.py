from dataclasses import replace

import pytest
import torch

from nmt.training.config import TrainConfig
from nmt.training.optimizers import optimizers


def test_adam_has_the_paper_s_values() -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    defaults = optimizers["adam"].build([weight]).defaults
    assert (defaults["betas"], defaults["eps"]) == ((0.9, 0.98), 1e-9)
    assert defaults["weight_decay"] == 0


def test_adamw_takes_its_decay_off_the_weight_itself() -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = replace(optimizers["adamw"], weight_decay=0.1).build([weight])
    optimizer.param_groups[0]["lr"] = 0.5
    weight.grad = torch.zeros(1)
    optimizer.step()
    assert weight.item() == pytest.approx(0.95)


@pytest.mark.parametrize("eps", [1e-30, 1e-10])
def test_adafactor_follows_gradients_whose_squares_are_above_its_first_epsilon(eps: float) -> None:
    config = optimizers["adafactor"]
    assert config.eps == 1e-30  # type: ignore[attr-defined]
    weight = torch.nn.Parameter(torch.zeros(2, 3))
    optimizer = replace(config, eps=eps).build([weight])  # type: ignore[call-arg]
    optimizer.param_groups[0]["lr"] = 0.01
    # Squares of rank one, which rows and columns give exactly: every step is as large, and of an
    # unused column nothing, not a division of nothing by nothing.
    weight.grad = torch.tensor([[1.0], [2.0]]) @ torch.tensor([[1.0, 2.0, 0.0]]) * 1e-6
    optimizer.step()
    used = weight.detach()[:, :2] / (-0.01 * 1e-3)
    if eps == 1e-30:
        assert torch.allclose(used, torch.ones(2, 2), rtol=1e-3)
    else:
        assert torch.allclose(used, weight.grad[:, :2] * 1e5, rtol=1e-3)
    assert weight[:, 2].tolist() == [0.0, 0.0]


def test_nesterov_without_momentum_is_refused() -> None:
    with pytest.raises(ValueError, match="nesterov needs a momentum"):
        replace(optimizers["sgd"], nesterov=True)


def test_an_optimizer_that_needs_whole_weights_is_not_sharded() -> None:
    with pytest.raises(ValueError, match="adafactor cannot be split; take adam, or sharding none"):
        TrainConfig(optimizer=optimizers["adafactor"], sharding="full")
    with pytest.raises(ValueError, match="max_tokens auto is found by each process alone"):
        TrainConfig(max_tokens="auto", sharding="full")
    TrainConfig(optimizer=optimizers["adam"], sharding="full")
