from dataclasses import replace

import pytest
import torch

from nmt.training.optimizers import optimizers
from nmt.training.trainer import TrainConfig


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


def test_nesterov_without_momentum_is_refused() -> None:
    with pytest.raises(ValueError, match="nesterov needs a momentum"):
        replace(optimizers["sgd"], nesterov=True)


def test_an_optimizer_that_needs_whole_weights_is_not_sharded() -> None:
    with pytest.raises(ValueError, match="adafactor cannot be split; take adam, or sharding none"):
        TrainConfig(optimizer=optimizers["adafactor"], sharding="full")
    with pytest.raises(ValueError, match="max_tokens auto is found by each process alone"):
        TrainConfig(max_tokens="auto", sharding="full")
    TrainConfig(optimizer=optimizers["adam"], sharding="full")
