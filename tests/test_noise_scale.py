"""The gradient noise scale: its estimates in a known case, and what training logs of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from trained_runs import assert_same_checkpoint, records

from nmt.data.dataset import Dataset
from nmt.data.sampler import RandomSampler, packed_micro_batches
from nmt.runs import load_model
from nmt.runtime.distributed import World
from nmt.training.config import TrainConfig
from nmt.training.noise_scale import squared_gradient_and_variance
from nmt.training.trainer import Trainer

MANY = ("--max-tokens", 40, "--set", "train.log_every=1", "--dropout", 0)
LOGS = ("--set", "train.log_noise_scale=true")


def test_gradients_of_a_linear_model_with_known_noise() -> None:
    """Targets are w x + noise, x and noise are standard normal, and the model is 0.

    A sample's gradient is then -(w x + noise) x, of mean -w and covariance (|w|^2 + 1) I + w w^T.
    """
    torch.manual_seed(1)
    w = torch.tensor([0.3, -0.2, 0.1, 0.4], dtype=torch.float64)
    x = torch.randn(4000, 64, 4, dtype=torch.float64)  # draws, samples, width
    y = x @ w + torch.randn(4000, 64, dtype=torch.float64)
    gradients = -y[..., None] * x
    part, whole = gradients[:, :8].mean(1), gradients.mean(1)
    squared, variance = squared_gradient_and_variance(
        part.square().sum(1), whole.square().sum(1), 8, 64
    )
    norm = w.square().sum().item()
    trace = 4 * (norm + 1) + norm
    for estimates, expected in ((squared, norm), (variance, trace)):
        error = estimates.std().item() / 4000**0.5
        assert estimates.mean().item() == pytest.approx(expected, abs=4 * error)
        assert error < 0.05 * expected


def test_mixed_micro_batches_hold_random_sentences_of_the_update() -> None:
    lengths = np.random.default_rng(1).integers(1, 60, (2, 2000)).astype(np.int32)
    sampler = RandomSampler(*lengths, 20000, 1)
    update = sampler.update(1)
    [mixed], [sorted_] = (
        packed_micro_batches(update, sampler, 4000, mixes=mixes) for mixes in (True, False)
    )
    assert sorted(np.concatenate(mixed)) == sorted(np.concatenate(update))
    means = [sampler.longer_lengths[part].mean() for part in mixed]
    assert len(means) >= 5
    assert max(means) - min(means) < 8
    assert sampler.longer_lengths[sorted_[0]].mean() > max(means)
    shares = packed_micro_batches(update, sampler, 4000, 2, mixes=True)
    assert sorted(np.concatenate([*shares[0], *shares[1]])) == sorted(np.concatenate(update))
    for part in (*shares[0], *shares[1]):
        assert max(side[part].sum() for side in lengths) <= 4000


def test_a_sentence_that_is_too_long_is_a_micro_batch_by_itself_among_mixed_ones() -> None:
    lengths = np.array([[5, 90, 3, 70, 2], [5, 80, 3, 75, 2]], np.int32)
    sampler = RandomSampler(*lengths, 1000, 1)
    [parts] = packed_micro_batches([np.arange(5)], sampler, 50, mixes=True)
    assert sorted(map(sorted, parts)) == [[0, 2, 4], [1], [3]]
    assert sorted(parts[0]) == [0, 2, 4]  # the part of the update that shows the noise


def test_the_noise_scale_is_logged_and_changes_updates_only_by_rounding(
    train: Any, tmp_path: Path
) -> None:
    usual, logged = tmp_path / "usual", tmp_path / "logged"
    assert train(usual, *MANY).status == 0
    done = train(logged, *MANY, *LOGS)
    assert done.status == 0
    reports = [line for line in records(logged) if line["record"] == "train"]
    scales = [line["noise_scale"] for line in reports if "noise_scale" in line]
    assert scales
    assert all(scale > 0 for scale in scales)
    assert done.err.count("| noise scale ") == len(scales)
    for line, other in zip(records(usual), records(logged), strict=True):
        assert line["loss"] == pytest.approx(other["loss"], abs=1e-5)
        assert "noise_scale" not in line


@pytest.mark.parametrize("sampling", [None, 0.1])
def test_the_terms_are_those_of_the_gradients(
    trained: Path, dataset: Path, sampling: float | None
) -> None:
    loaded = load_model(trained)
    values = {"tokens_per_update": 150, "max_tokens": 40, "precision": "fp32", "device": "cpu"}
    config = TrainConfig(**values, log_noise_scale=True, subword_sampling=sampling)
    model = loaded.model.eval()  # without dropout
    trainer = Trainer(loaded.run, config, model, Dataset.open(dataset).split("train"), World())
    update = trainer.loader.update(1)
    counts = [update.first_target_tokens, update.target_tokens]
    read = [len(batch.target_output) for batch in update.batches]
    assert len(read) > 2
    assert (counts == [read[0], sum(read)]) == (sampling is None)
    norms = []
    for batches, tokens in zip((update.batches[:1], update.batches), counts, strict=True):
        loss = sum(trainer.criterion(batch)["loss"] for batch in batches)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        norms.append(sum((gradient / tokens).square().sum() for gradient in gradients))
    squared, variance = squared_gradient_and_variance(*norms, *counts)
    trainer.step(update, 0.0)
    sums = trainer.running_stats.sums()
    assert sums["squared_gradient"] == pytest.approx(squared.item(), rel=1e-4)
    assert sums["gradient_variance"] == pytest.approx(variance.item(), rel=1e-4)


def test_a_run_that_logs_the_noise_scale_resumes_exactly(train: Any, tmp_path: Path) -> None:
    options = ("--max-tokens", 40, *LOGS, "--set", "train.log_every=4")
    assert train(tmp_path / "whole", *options, "--max-updates", 8).status == 0
    for updates in (6, 8):  # the stop is in the middle of a report
        assert train(tmp_path / "parts", *options, "--max-updates", updates).status == 0
    assert records(tmp_path / "parts") == records(tmp_path / "whole")
    assert_same_checkpoint(tmp_path / "parts" / "last", tmp_path / "whole" / "last")


def test_micro_batches_that_do_not_show_the_noise_are_refused(train: Any, tmp_path: Path) -> None:
    for options, message in (
        (
            ("--max-tokens", 4096),
            "train.log_noise_scale compares the micro-batches of an update, but each process has "
            "only one; lower --max-tokens from 4096 to 75",
        ),
        (
            ("--set", "model.positions.name=alibi"),
            "train.log_noise_scale compares micro-batches of random sentences; those of this model "
            "hold sentences of similar length, because its attention pads: take false",
        ),
    ):
        done = train(tmp_path / "run", *LOGS, *options)
        assert done.status == 1
        assert done.err.splitlines()[-1] == f"nmt: error: {message}"
    mended = train(tmp_path / "run", *LOGS, "--max-tokens", 75, "--max-updates", 1)
    assert mended.status == 0, mended.err


def test_sharded_gradients_are_refused() -> None:
    with pytest.raises(ValueError, match="log_noise_scale needs whole gradients"):
        TrainConfig(log_noise_scale=True, sharding="full")
