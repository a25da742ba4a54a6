"""Losses of whole translations, against sums over all translations that there are."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from for_each import for_each
from torch import Tensor
from trained_runs import assert_same_checkpoint, records

from nmt.data.batches import Batch, batch_of
from nmt.data.vocabulary import BOS, EOS, PAD, UNK
from nmt.errors import NmtError
from nmt.models import Model, architectures
from nmt.recipe.config import build
from nmt.training.config import TrainConfig
from nmt.training.losses.output_layer import log_probabilities
from nmt.training.losses.sequence import Candidates, SequenceCriterion, SequenceLoss
from nmt.training.losses.token import Loss, losses

NAMES = [name for name in losses if losses[name].translates]
RISK, REWARD = losses["minimum_risk"], losses["expected_reward"]
SOURCE = [5, 4, 4, EOS]
REFERENCE = (4, EOS)  # so that samples are cut after 4 tokens
BIASES = [-math.inf, 0.3, -math.inf, 0.5, 0.0, -0.2]  # padding and BOS are never sampled


def words(sentences: list[list[int]]) -> list[str]:
    return [" ".join("puse45"[token] for token in row if token != EOS) for row in sentences]


def tiny(**changes: Any) -> Model:
    torch.manual_seed(1)
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 8, "d_ff": 8, "heads": 2}
    config = dataclasses.replace(
        architectures["transformer_tiny"], **sizes, **{"dropout": 0.0, **changes}
    )
    model = config.build(6, 6, True)
    with torch.no_grad():
        model.output.weight *= 0.3  # so that no translation is too unlikely to be drawn
    model.output.bias = torch.nn.Parameter(torch.tensor(BIASES))
    return model


def make_batch(pairs: list[tuple[list[int], tuple[int, ...]]]) -> Batch:
    def table(rows: list[list[int]]) -> Tensor:
        width = max(map(len, rows))
        return torch.tensor([row + [PAD] * (width - len(row)) for row in rows])

    return batch_of(
        table([source for source, _ in pairs]), table([list(target) for _, target in pairs])
    )


BATCH = make_batch([(SOURCE, REFERENCE)])
EMPTY = batch_of(torch.tensor([[EOS]]), torch.tensor([[PAD]]))


def all_translations() -> list[tuple[int, ...]]:
    """Everything that can be sampled: up to 3 tokens and EOS, or 4 tokens that were cut."""
    inner = [UNK, 4, 5]
    ended = [(*it, EOS) for n in range(4) for it in itertools.product(inner, repeat=n)]
    return ended + list(itertools.product(inner, repeat=4))


def scores(model: Model, translations: list[tuple[int, ...]]) -> Tensor:
    """The log-probability of each, one after the other."""
    found = []
    for tokens in translations:
        logits = model(torch.tensor([SOURCE]), torch.tensor([[BOS, *tokens[:-1]]]))[0]
        found.append(logits.log_softmax(-1)[torch.arange(len(tokens)), list(tokens)].sum())
    return torch.stack(found)


def gradient(model: Model, value: Tensor) -> Tensor:
    weights = list(model.parameters())
    return torch.cat([each.flatten() for each in torch.autograd.grad(value, weights)])


def criterion(model: Model, loss: Loss, **values: Any) -> SequenceCriterion:
    changed = dataclasses.replace(loss, **values)
    assert isinstance(changed, SequenceLoss)
    return SequenceCriterion(model, changed, words)


def test_samples_are_all_translations_that_there_are() -> None:
    own = criterion(tiny(), RISK, samples=500)
    drawn = set()
    for own.sampling_seed in range(20):  # many small ones: the rows of a sentence cost their square
        drawn.update(own.draw_candidates(BATCH).tokens[0])
    assert sorted(drawn) == sorted(all_translations())


def test_the_risk_and_its_gradient_are_those_of_all_translations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny()
    own = criterion(model, RISK, sharpness=0.3)
    everything = all_translations()
    monkeypatch.setattr(own, "_sample", lambda _: [Counter(everything)])
    rewards = torch.tensor([own.loss.reward(*words([list(it), [4]])) for it in everything])
    shares = (0.3 * scores(model, everything)).softmax(0)
    risk = (shares * (1 - rewards)).sum()
    result = own(BATCH)
    torch.testing.assert_close(result["loss"], risk)
    torch.testing.assert_close(gradient(model, result["loss"]), gradient(model, risk))


def test_the_gradient_of_the_expected_reward_comes_near_that_of_all_translations() -> None:
    model = tiny()
    own = criterion(model, REWARD, samples=1_000, likelihood=0.0)
    everything = all_translations()
    rewards = torch.tensor([own.loss.reward(*words([list(it), [4]])) for it in everything])
    probabilities = scores(model, everything).exp()
    torch.testing.assert_close(probabilities.sum().item(), 1.0)
    expected = 1 - (probabilities * rewards).sum()
    results = []
    for own.sampling_seed in range(10):
        results.append(own(BATCH))
    loss, reward = (torch.stack([it[key] for it in results]).mean() for key in ("loss", "reward"))
    assert loss.item() == pytest.approx(expected.item(), abs=0.01)
    assert reward.item() == pytest.approx(1 - expected.item(), abs=0.01)
    mine, theirs = gradient(model, loss), gradient(model, expected)
    assert (mine - theirs).norm() < 0.05 * theirs.norm()


def test_both_costs_of_three_candidates_by_hand() -> None:
    candidates = Candidates(
        tokens=[[(4, EOS), (5, EOS), (1, EOS)], [(5, EOS), (4, EOS)]],
        exist=torch.tensor([[True, True, True], [True, True, False]]),
        counts=torch.tensor([[0, 3, 1], [1, 3, 0]]),
        rewards=torch.tensor([[1.0, 0.5, 0.2], [1.0, 0.0, 0.0]]),
    )
    log_p = torch.tensor([[0.2, 0.3, 0.1], [0.4, 0.1, 1.0]]).log().requires_grad_()
    risks = dataclasses.replace(RISK, sharpness=1.0).cost(log_p, candidates)
    assert risks.tolist() == pytest.approx([(0.3 * 0.5 + 0.1 * 0.8) / 0.6, 0.1 / 0.5])
    costs = dataclasses.replace(REWARD, samples=4).cost(log_p, candidates)
    assert costs.tolist() == pytest.approx([1 - (3 * 0.5 + 0.2) / 4, 1 - 1 / 4])
    costs.sum().backward()
    means = (0.425, 0.25)
    assert log_p.grad is not None
    assert log_p.grad[0].tolist() == pytest.approx(
        [0.0, -3 / 4 * (0.5 - means[0]), -1 / 4 * (0.2 - means[0])]
    )
    assert log_p.grad[1].tolist() == pytest.approx(
        [-1 / 4 * (1 - means[1]), -3 / 4 * (0 - means[1]), 0.0]
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_likelihood_is_added(name: str) -> None:
    model = tiny()
    alone = criterion(model, losses[name], likelihood=0.0)(BATCH)
    mixed = criterion(model, losses[name], likelihood=0.5)(BATCH)
    nll = -scores(model, [REFERENCE])[0]
    torch.testing.assert_close(mixed["nll"], nll)
    torch.testing.assert_close(mixed["loss"] - alone["loss"], 0.5 * nll)


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_costs_what_its_sentences_cost_alone(name: str) -> None:
    pairs = [(SOURCE, REFERENCE), ([5, EOS], (5, 4, EOS)), ([4, 4, 5, 4, EOS], (4, 5, 4, EOS))]
    own = criterion(tiny(), losses[name])
    together = own(make_batch(pairs))
    alone = [own(make_batch([pair])) for pair in pairs]
    for key in ("loss", "nll", "reward"):
        torch.testing.assert_close(together[key], sum(each[key] for each in alone))


def test_an_update_draws_other_samples_than_the_one_before() -> None:
    own = criterion(tiny(), RISK)
    own.sampling_seed = 1
    first, again = own.draw_candidates(BATCH), own.draw_candidates(BATCH)
    own.sampling_seed = 2
    other = own.draw_candidates(BATCH)
    assert first.tokens == again.tokens
    assert first.tokens != other.tokens


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_batch_costs_nothing(name: str) -> None:
    model = tiny()
    result = criterion(model, losses[name])(EMPTY)
    result["loss"].backward()
    assert [value.item() for value in result.values()] == [0.0, 0.0, 0.0]
    assert not any(weight.grad.any() for weight in model.parameters() if weight.grad is not None)


@pytest.mark.parametrize("name", NAMES)
def test_sampling_leaves_the_mode_of_the_model_and_its_gradients_alone(name: str) -> None:
    model = tiny(dropout=0.1).train()
    own = criterion(model, losses[name])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = own(BATCH)
    result["loss"].backward()
    assert model.training
    # Weights that were cast while sampling, without a gradient, are not used again.
    assert all(weight.grad is not None for weight in model.parameters())


def test_in_bf16_the_gradient_is_near_that_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny()
    own = criterion(model, RISK, sharpness=0.3)
    monkeypatch.setattr(own, "_sample", lambda _: [Counter(all_translations())])  # in both
    exact = gradient(model, own(BATCH)["loss"])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = own(BATCH)["loss"]
    assert 0.0 < (gradient(model, loss) - exact).norm() < 0.05 * exact.norm()


@pytest.mark.parametrize("name", NAMES)
def test_the_reward_rises(name: str) -> None:
    model = tiny()
    own = criterion(model, losses[name], likelihood=0.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    rewards = []
    for update in range(30):
        own.sampling_seed = update
        result = own(BATCH)
        optimizer.zero_grad()
        result["loss"].backward()
        optimizer.step()
        rewards.append(result["reward"].item())
    assert sum(rewards[-5:]) > 1.5 * sum(rewards[:5])


def test_log_probabilities_of_slices_are_those_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(4)
    output = torch.nn.Linear(8, 23)
    decoder_output = torch.randn(11, 8, requires_grad=True)
    labels = torch.randint(0, 23, (11,))
    weights = [decoder_output, *output.parameters()]
    factors = torch.randn(11)
    plain = output(decoder_output).log_softmax(-1)[torch.arange(11), labels]
    expected = torch.autograd.grad(factors @ plain, weights)
    monkeypatch.setitem(log_probabilities.__globals__["SLICE_ELEMENTS"], "cpu", 100)
    own = log_probabilities(decoder_output, output, labels)
    torch.testing.assert_close(own, plain)
    for mine, theirs in zip(torch.autograd.grad(factors @ own, weights), expected, strict=True):
        torch.testing.assert_close(mine, theirs)


@for_each(
    ("values", "message"),
    [
        ({"name": "minimum_risk", "samples": 1}, "samples must be at least 2, not 1"),
        ({"name": "minimum_risk", "sharpness": 0}, "sharpness must be more than 0, is 0"),
        ({"name": "minimum_risk", "likelihood": -1}, "likelihood must not be negative, is -1"),
        ({"name": "expected_reward", "samples": 1}, "samples must be at least 2, not 1"),
    ],
)
def test_values_that_make_no_sense_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(NmtError, match=message):
        build(Loss, values, "train.loss")


def test_the_samples_and_the_reference_of_a_sentence_are_rows_of_the_batch() -> None:
    for name in NAMES:
        loss: Any = losses[name]
        assert dataclasses.replace(loss, samples=2).rows_per_sentence == 3


@pytest.mark.parametrize("name", NAMES)
def test_such_a_loss_needs_a_trained_model_and_all_its_weights(name: str) -> None:
    with pytest.raises(ValueError, match=f"loss {name} needs a trained model; give its run"):
        TrainConfig(loss=losses[name])
    with pytest.raises(ValueError, match=f"loss {name} needs all weights; take sharding none"):
        TrainConfig(loss=losses[name], init_from="run", sharding="full")


OFTEN = ("--set", "train.log_every=4", "--save-every", 5, "--set", "train.max_tokens=400")


@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_run_ends_as_one_that_was_never_stopped(
    train: Any, trained: Path, tmp_path: Path, name: str
) -> None:
    loss = ("--set", f"train.loss={{name: {name}, samples: 4}}", "--init-from", trained, *OFTEN)
    done = train(tmp_path / "whole", *loss, "--max-updates", 12)
    assert done.status == 0
    for updates in (6, 12):
        assert train(tmp_path / "parts", *loss, "--max-updates", updates).status == 0
    assert records(tmp_path / "parts") == records(tmp_path / "whole")
    assert_same_checkpoint(tmp_path / "parts" / "last", tmp_path / "whole" / "last")
    rewards = [line["reward"] for line in records(tmp_path / "whole") if line["record"] == "train"]
    assert all(0.0 < reward < 1.0 for reward in rewards)
    assert f" | reward {rewards[0]:.4f} | ppl " in done.err
