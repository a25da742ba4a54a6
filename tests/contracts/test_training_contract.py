"""The laws of schedules, optimizers and losses, for every registered name."""

import dataclasses
import math

import pytest
import torch

from nmt.config import build, dump
from nmt.training.losses import SLICE_ELEMENTS, Loss, losses
from nmt.training.optimizers import OptimizerConfig, optimizers
from nmt.training.schedules import Schedule, schedules

PARTS = [
    *[(Schedule, schedules, name) for name in schedules],
    *[(OptimizerConfig, optimizers, name) for name in optimizers],
    *[(Loss, losses, name) for name in losses],
]


@pytest.mark.parametrize(("kind", "registry", "name"), PARTS, ids=[part[2] for part in PARTS])
def test_a_bare_name_and_written_values_give_the_registered_entry(kind, registry, name) -> None:
    assert build(kind, name, "part") == registry[name]
    assert build(kind, dump(registry[name]), "part") == registry[name]


@pytest.mark.parametrize("name", list(schedules))
def test_a_schedule_rises_to_its_peak_and_never_exceeds_it(name: str) -> None:
    schedule = dataclasses.replace(schedules[name], lr=0.5, warmup_updates=10)
    rates = [schedule.rate(update, 512, 100) for update in range(1, 101)]
    assert rates[0] == pytest.approx(0.05)
    assert rates[9] == pytest.approx(0.5)
    assert rates[:10] == sorted(rates[:10])
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert all(rate >= 0 for rate in rates)


@pytest.mark.parametrize("name", list(optimizers))
def test_an_optimizer_goes_downhill(name: str) -> None:
    weight = torch.nn.Parameter(torch.tensor([3.0, -2.0]))
    optimizer = optimizers[name].build([weight])
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    start = weight.square().sum().item()
    for _ in range(20):
        optimizer.zero_grad()
        weight.square().sum().backward()
        optimizer.step()
    assert weight.square().sum().item() < 0.8 * start


@pytest.mark.parametrize("name", list(optimizers))
def test_an_optimizer_takes_no_step_where_a_gradient_was_not_finite(name: str) -> None:
    weight = torch.nn.Parameter(torch.tensor([3.0, -2.0]))
    optimizer = optimizers[name].build([weight])
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    for gradient, found in ((1.0, 0.0), (float("nan"), 1.0), (1.0, 0.0)):
        before = weight.detach().clone()
        weight.grad = torch.full((2,), gradient)
        optimizer.found_inf = torch.tensor(found)
        optimizer.step()
        assert torch.equal(weight, before) == bool(found)
    assert weight.isfinite().all()


def plain(loss: Loss, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The same loss written out over the whole table of target probabilities."""
    vocabulary = logits.shape[1]
    label, other, pad = loss.masses(vocabulary)
    target = torch.full_like(logits, other)
    target[:, 0] = pad
    target.scatter_(1, labels[:, None], label)
    assert torch.allclose(target.sum(1), torch.ones(len(labels)), atol=1e-5)
    cross_entropy = -(target * logits.log_softmax(1)).sum()
    return cross_entropy - loss.constant(vocabulary) * len(labels)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", list(losses))
def test_the_sliced_loss_and_its_gradients_are_those_of_the_plain_one(
    name: str, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SLICE_ELEMENTS, "cpu", 100)  # slices of 4 of 11 tokens
    torch.manual_seed(4)
    output = torch.nn.Linear(8, 23, bias=bias)
    states = torch.randn(11, 8, requires_grad=True)
    labels = torch.randint(1, 23, (11,))
    weights = [states, *output.parameters()]
    expected = plain(losses[name], output(states), labels)
    expected_gradients = torch.autograd.grad(3.0 * expected, weights)
    loss, nll = losses[name](states, output, labels)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(
        nll, torch.nn.functional.cross_entropy(output(states), labels, reduction="sum")
    )
    for own, other in zip(
        torch.autograd.grad(3.0 * loss, weights), expected_gradients, strict=True
    ):
        torch.testing.assert_close(own, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", list(losses))
def test_a_loss_of_no_tokens_is_zero_and_so_is_its_gradient(name: str) -> None:
    output = torch.nn.Linear(8, 23)
    loss, nll = losses[name](torch.randn(0, 8), output, torch.zeros(0, dtype=torch.int64))
    loss.backward()
    assert (loss.item(), nll.item()) == (0.0, 0.0)
    assert not output.weight.grad.any()


@pytest.mark.parametrize("name", list(losses))
def test_under_autocast_a_loss_keeps_float32_gradients_near_the_exact_ones(name: str) -> None:
    torch.manual_seed(4)
    output = torch.nn.Linear(8, 23)
    states, labels = torch.randn(11, 8), torch.randint(1, 23, (11,))
    exact, _ = losses[name](states, output, labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low, _ = losses[name](states.bfloat16().requires_grad_(), output, labels)
    low.backward()
    assert math.isclose(low.item(), exact.item(), rel_tol=1e-2)
    assert output.weight.grad.dtype == torch.float32
