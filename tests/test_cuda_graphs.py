"""Micro-batches to be recorded as CUDA graphs; tests/test_gpu.py records and trains on them."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import VOCABULARY

from nmt.data.batches import batch_of
from nmt.data.dataset import Dataset
from nmt.data.loader import Update
from nmt.data.packing import GRAIN
from nmt.errors import NmtError
from nmt.models import architectures
from nmt.models.transformer.patterns import patterns
from nmt.runtime.distributed import World
from nmt.training.config import TrainConfig
from nmt.training.losses.token import losses
from nmt.training.parallel import cuda_graphs
from nmt.training.parallel.cuda_graphs import (
    SENTENCES,
    TOKENS,
    RecordedProcess,
    check_recordable,
    filled_up,
)
from nmt.training.parallel.processes import SingleProcess
from nmt.training.trainer import Trainer, TrainerState

SOURCE = torch.tensor([[5, 6, 3], [7, 3, 0]])
TARGET = torch.tensor([[8, 9, 10, 3], [11, 3, 0, 0]])


def criterion(**settings: Any) -> torch.nn.Module:
    torch.manual_seed(1)
    config = replace(
        architectures["transformer_tiny"], d_model=32, heads=2, dropout=0.0, **settings
    )
    loss = losses["label_smoothed_cross_entropy"]
    return loss.criterion(config.build(VOCABULARY, VOCABULARY, True), None)  # type: ignore[arg-type]


def test_a_filled_batch_has_one_of_few_sizes() -> None:
    batch = filled_up(batch_of(SOURCE, TARGET))
    assert TOKENS % GRAIN == 0
    assert len(batch.source) == len(batch.target_input) == len(batch.target_output) == TOKENS
    for side, length in ((batch.packing.source, 3 + 2), (batch.packing.target, 4 + 2)):
        assert len(side.lengths) == SENTENCES
        assert side.lengths[2] == TOKENS - length
        assert not side.lengths[3:].any()
    assert batch.weights is not None
    assert batch.weights.tolist() == [1.0] * 6 + [0.0] * (TOKENS - 6)
    assert not batch.target_output[6:].any()


@pytest.mark.parametrize("weights", [None, torch.tensor([0.5] * 4 + [2.0] * 2)])
def test_padding_of_a_filled_batch_has_no_loss_and_no_gradient(
    weights: torch.Tensor | None,
) -> None:
    batch = replace(batch_of(SOURCE, TARGET), weights=weights)
    outcomes = []
    for each in (batch, filled_up(batch)):
        process = SingleProcess(criterion())
        measured = process.run(each, torch.tensor(0.5), nullcontext)
        gradients = [weight.grad for weight in process.criterion.parameters()]
        outcomes.append([measured["loss"], measured["nll"], *gradients])
    for found, expected in zip(*outcomes[::-1], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_recordings_are_kept_by_size_until_a_sentence_is_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded = []

    def record(run: Any, _: object) -> tuple[Any, dict[str, torch.Tensor]]:
        recorded.append(run)
        measured: dict[str, torch.Tensor] = {}
        return lambda: measured.update(run()), measured

    pools: list[object] = []
    monkeypatch.setattr(cuda_graphs, "record", record)
    monkeypatch.setattr(cuda_graphs, "graph_pool", lambda: pools.append(object()) or pools[-1])
    monkeypatch.setattr(cuda_graphs, "TOKENS", 64)
    monkeypatch.setattr(cuda_graphs, "SENTENCES", 4)
    part = criterion()
    process = RecordedProcess(part, part.parameters())
    batch, factor = batch_of(SOURCE, TARGET), torch.tensor(1.0)
    measured = [process.run(batch, factor, nullcontext)["loss"] for _ in range(4)]
    assert len(recorded) == 1
    assert len({float(loss) for loss in measured}) == 1
    four = [weight.grad.clone() for weight in part.parameters()]
    process.clear(torch.optim.SGD(part.parameters(), lr=0.1))
    assert not any(weight.grad.any() for weight in part.parameters())
    process.run(batch, torch.tensor(4.0), nullcontext)
    for weight, expected in zip(part.parameters(), four, strict=True):
        torch.testing.assert_close(weight.grad, expected)
    long = torch.cat((torch.full((1, 300), 7), torch.tensor([[3]])), 1)
    process.run(batch_of(long, TARGET[:1]), factor, nullcontext)
    for _ in range(2):
        process.run(batch, factor, nullcontext)
    assert len(recorded) == 2
    assert len(pools) == 2  # torch refuses one whose recordings are all gone


def test_padding_alone_forgets_no_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[Any] = []

    def record(run: Any, _: object) -> tuple[Any, dict[str, torch.Tensor]]:
        recorded.append(run)
        return run, {}

    monkeypatch.setattr(cuda_graphs, "record", record)
    monkeypatch.setattr(cuda_graphs, "graph_pool", object)
    part = criterion()
    process = RecordedProcess(part, part.parameters())
    long = torch.tensor([[7] * 199 + [3]] * 2)  # with 112 tokens of padding on each side
    for batch in (batch_of(long, long), batch_of(SOURCE, TARGET)):  # the second one with 507
        for _ in range(2):
            process.run(batch, torch.tensor(1.0), nullcontext)
    assert len(recorded) == 1


def test_what_cannot_be_recorded_is_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = World(place="cuda")
    for is_compilable, world, part, reason in (
        (True, World(place="cpu"), criterion(), "one process with a GPU"),
        (True, replace(gpu, size=2), criterion(), "one process with a GPU"),
        (False, gpu, criterion(), "plain attention"),
        (True, gpu, criterion(decoder_attention=patterns["ssru"]), "plain attention"),
    ):
        monkeypatch.setattr(cuda_graphs, "is_compilable", lambda *_, value=is_compilable: value)
        monkeypatch.setattr(cuda_graphs, "has_own_kernels", lambda: True)
        with pytest.raises(NmtError, match=f"{reason}.*; set train.cuda_graphs to false"):
            check_recordable(part, part.model, world)
    check_recordable(criterion(), criterion().model, gpu)
    two_passes = losses["r_drop"].criterion(criterion().model, None)  # type: ignore[arg-type]
    for part in (torch.nn.Identity(), two_passes):
        with pytest.raises(NmtError, match="one pass"):
            check_recordable(part, criterion().model, gpu)
    monkeypatch.setattr(cuda_graphs, "has_own_kernels", lambda: False)
    with pytest.raises(NmtError, match="where Triton works"):
        check_recordable(criterion(), criterion().model, gpu)


def test_beyond_the_largest_number_of_recordings_micro_batches_are_launched_as_usual(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cuda_graphs, "MAX_GRAPHS", 0)  # a recording would need a GPU
    part = criterion()
    process = RecordedProcess(part, part.parameters())
    batch = batch_of(SOURCE, TARGET)
    measured = [process.run(batch, torch.tensor(1.0), nullcontext)["loss"] for _ in range(3)]
    assert measured[0] == measured[2]


@pytest.mark.parametrize(
    ("name", "value"),
    [("checkpoint_activations", "layers"), ("layer_dropout", 0.1), ("guided_alignment", 0.05)],
)
def test_settings_that_change_launches_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} does not work with cuda_graphs"):
        TrainConfig(**{name: value}, cuda_graphs=True)


def test_training_on_a_cpu_refuses_graphs_and_writes_nothing(train: Any, tmp_path: Path) -> None:
    done = train(tmp_path / "run", "--set", "train.cuda_graphs=true")
    assert done.status == 1
    assert done.err == (
        "nmt: error: train.cuda_graphs is for one process with a GPU; set train.cuda_graphs to "
        "false\n"
    )
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_may_begin_or_cease_to_record(train: Any, tmp_path: Path) -> None:
    assert train(tmp_path / "run", "--max-updates", 1).status == 0
    done = train(tmp_path / "run", "--set", "train.cuda_graphs=true")
    assert "train.cuda_graphs is for one process with a GPU" in done.err


@pytest.fixture
def recording_trainer(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> Trainer:
    """A trainer that would record if this were a GPU."""
    monkeypatch.setattr("nmt.training.trainer.check_recordable", lambda *_: None)
    config = TrainConfig(cuda_graphs=True, max_tokens="auto", precision="fp32", device="cpu")
    part = criterion()
    split = Dataset.open(dataset).split("train")
    return Trainer(None, config, part.model, split, World())  # type: ignore[arg-type]


@pytest.mark.parametrize("recorded", [False, True])
def test_a_trial_of_memory_counts_if_it_was_for_recordings_too(
    recorded: bool, recording_trainer: Trainer
) -> None:
    trainer = recording_trainer
    state = TrainerState(max_tokens=77, max_tokens_devices=["cpu"], max_tokens_recorded=recorded)
    trainer.restore(*trainer.snapshot(), state)
    assert (trainer.loader.max_tokens == 77) is recorded
    assert (trainer.state.max_tokens, trainer.state.max_tokens_recorded) == (
        (77, True) if recorded else (0, False)
    )


def test_the_origin_of_a_failure_is_searched_in_the_filled_batch(
    recording_trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_graphs, "TOKENS", 64)
    monkeypatch.setattr(cuda_graphs, "SENTENCES", 4)
    sizes = []
    trainer = recording_trainer
    batch = batch_of(SOURCE, TARGET)
    update = Update(number=1, epoch=1, batches=[batch], num_positions=6, target_tokens=6)
    trainer.criterion.register_forward_pre_hook(lambda _, given: sizes.append(len(given[0].source)))
    assert trainer.origin(update) == "in the backward pass"
    assert sizes == [64]
