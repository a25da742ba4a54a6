from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from trained_runs import assert_same_checkpoint, records

from nmt.data.dataset import Dataset
from nmt.runs import Checkpoint, load_model
from nmt.runtime.distributed import World
from nmt.training.config import TrainConfig
from nmt.training.optim.moving_average import MovingAverage
from nmt.training.trainer import Trainer

FINITE = torch.tensor(True)


def set_to(model: nn.Linear, value: float) -> None:
    with torch.no_grad():
        model.weight.fill_(value)


def test_the_average_follows_the_weights_by_its_formula() -> None:
    model = nn.Linear(1, 1, bias=False)
    set_to(model, 1.0)
    average = MovingAverage(dict(model.named_parameters()), decay=0.5)
    expected = 1.0
    for update, value in enumerate((3.0, -1.0, 2.0, 8.0, 8.0, 8.0, 9.0, 7.0, 5.0, 4.0), start=1):
        set_to(model, value)
        average.add(update, FINITE)
        decay = min(0.5, (1 + update) / (10 + update))
        expected = decay * expected + (1 - decay) * value
        assert average.values["weight"].item() == pytest.approx(expected)


def test_a_skipped_update_does_not_move_the_average() -> None:
    model = nn.Linear(1, 1, bias=False)
    average = MovingAverage(dict(model.named_parameters()), decay=0.9)
    before = average.values["weight"].clone()
    set_to(model, 5.0)
    average.add(1, ~FINITE)
    assert torch.equal(average.values["weight"], before)


def test_the_weights_come_back_also_after_an_error() -> None:
    model = nn.Linear(1, 1, bias=False)
    average = MovingAverage(dict(model.named_parameters()), decay=0.9)
    mean = average.values["weight"].item()
    set_to(model, 5.0)

    def fail() -> None:
        with average.in_place_of_the_weights():
            assert model.weight.item() == mean
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert model.weight.item() == 5.0


@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_main_process_keeps_the_average_for_a_checkpoint(
    dataset: Path, trained: Path, rank: int
) -> None:
    loaded, split = load_model(trained), Dataset.open(dataset).split("train")
    config = TrainConfig(ema_decay=0.9, precision="fp32")
    trainer = Trainer(loaded.run, config, loaded.model, split, World())
    trainer.step(trainer.loader.update(1), 1e-3)
    trainer.world = World(rank=rank)
    assert trainer.average is not None
    weights, optimizer = trainer.snapshot()
    assert (bool(weights), bool(optimizer)) == (rank == 0, rank == 0)
    for name, value in weights.items():
        assert torch.equal(value, trainer.average.values[name])
        assert not torch.equal(value, trainer.weights[name])


def test_training_with_an_average_goes_on_as_if_never_stopped_and_translates_with_it(
    train: Any, trained: Path, tmp_path: Path
) -> None:
    mean = ("--set", "train.ema_decay=0.9", "--save-every", 1)
    assert train(tmp_path / "whole", *mean).status == 0
    for updates in (3, 6):
        assert train(tmp_path / "parts", *mean, "--max-updates", updates).status == 0
    assert_same_checkpoint(tmp_path / "parts" / "last", tmp_path / "whole" / "last")
    last_said = [
        {(line["record"], line["update"]): line for line in records(tmp_path / name)}
        for name in ("parts", "whole")
    ]
    assert last_said[0][("validation", 6)] == last_said[1][("validation", 6)]
    # The weights themselves move as without an average, which only looks on.
    last = Checkpoint.open(tmp_path / "whole" / "last")
    plain = Checkpoint.open(trained / "last").weights()
    beside, means = last.optimizer(), last.weights()
    assert all(torch.equal(beside[f"{name}/weight"], plain[name]) for name in plain)
    assert any(not torch.equal(means[name], plain[name]) for name in plain)
    model = load_model(tmp_path / "whole" / "last").model
    assert all(torch.equal(weight, means[name]) for name, weight in model.named_parameters())
    assert last.scores["loss"] != Checkpoint.open(trained / "last").scores["loss"]


def test_an_average_of_sharded_weights_is_refused() -> None:
    with pytest.raises(ValueError, match="ema_decay needs all weights in every process"):
        TrainConfig(ema_decay=0.9, sharding="full")
