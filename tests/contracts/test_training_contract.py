"""The laws of schedules, optimizers and losses, for every registered name."""

import dataclasses
import math

import pytest
import torch
from for_each import for_each

from nmt.recipe.config import build, dump
from nmt.training.losses.output_layer import SLICE_ELEMENTS
from nmt.training.losses.token import Loss, RDrop, SimCut, TokenLoss, losses
from nmt.training.optim.optimizers import OptimizerConfig, optimizers
from nmt.training.optim.schedules import Schedule, schedules

PARTS = [
    *[(Schedule, schedules, name) for name in schedules],
    *[(OptimizerConfig, optimizers, name) for name in optimizers],
    *[(Loss, losses, name) for name in losses],
]


@for_each(("kind", "registry", "name"), PARTS)
def test_a_bare_name_and_written_values_give_the_registered_entry(kind, registry, name) -> None:
    assert build(kind, name, "part") == registry[name]
    assert build(kind, dump(registry[name]), "part") == registry[name]


@for_each("name", schedules)
def test_a_schedule_rises_to_its_peak_and_never_exceeds_it(name: str) -> None:
    schedule = dataclasses.replace(schedules[name], lr=0.5, warmup_updates=10)
    rates = [schedule.rate(update, 512, 100) for update in range(1, 101)]
    assert rates[0] == pytest.approx(0.05)
    assert rates[9] == pytest.approx(0.5)
    assert rates[:10] == sorted(rates[:10])
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert all(rate >= 0 for rate in rates)


RATES = {"nag": 0.01, "adadelta": 100.0}
"""Learning rates that suit the contract's little problems, where it is not 0.1."""


def small_model() -> torch.nn.Module:
    """A layer with a matrix and a bias, which an optimizer may treat differently."""
    model = torch.nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, -2.0], [2.0, 0.5]]))
        model.bias.copy_(torch.tensor([3.0, -2.0]))
    return model


def optimizer_of(name: str, model: torch.nn.Module) -> torch.optim.Optimizer:
    optimizer = optimizers[name].build(model)
    for group in optimizer.param_groups:
        group["lr"] = RATES.get(name, 0.1)
    return optimizer


def tensors_of(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copies of the weights and of all tensors of the optimizer's state."""
    tensors = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    for name, weight in model.named_parameters():
        for key, value in optimizer.state[weight].items():
            tensors[f"{name}/{key}"] = torch.as_tensor(value).clone()
    return tensors


@pytest.mark.parametrize("name", list(optimizers))
def test_an_optimizer_goes_downhill(name: str) -> None:
    model = small_model()
    optimizer = optimizer_of(name, model)
    start = [weight.square().sum().item() for weight in model.parameters()]
    for _ in range(20):
        optimizer.zero_grad()
        torch.stack([weight.square().sum() for weight in model.parameters()]).sum().backward()
        optimizer.step()
    for weight, before in zip(model.parameters(), start, strict=True):
        assert weight.square().sum().item() < 0.8 * before


@pytest.mark.parametrize("name", list(optimizers))
@for_each("failures", [(1,), (0, 2)])
def test_an_optimizer_takes_no_step_where_a_gradient_was_not_finite(
    name: str, failures: tuple[int, ...]
) -> None:
    def train(skips: bool) -> dict[str, torch.Tensor]:
        model = small_model()
        optimizer = optimizer_of(name, model)
        for update in range(4):
            failed = update in failures
            if failed and not skips:
                continue
            before = tensors_of(optimizer, model)
            for weight in model.parameters():
                weight.grad = torch.full_like(weight, float("nan") if failed else 1.0 + update)
            optimizer.found_inf = torch.tensor(float(failed))
            optimizer.step()
            after = tensors_of(optimizer, model)
            assert all(torch.equal(after[key], before[key]) for key in before) == failed
        return tensors_of(optimizer, model)

    skipped, without = train(True), train(False)
    assert skipped.keys() == without.keys()
    assert all(torch.equal(skipped[key], without[key]) for key in skipped)


TOKEN_LOSSES = [name for name in losses if isinstance(losses[name], TokenLoss)]


def plain(loss: TokenLoss, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The same loss written out over the whole table of target probabilities."""
    vocabulary = logits.shape[1]
    divergence = torch.zeros(())
    if isinstance(loss, RDrop):
        one, two = logits.log_softmax(1).chunk(2)
        for log_p, log_q in ((one, two), (two, one)):
            divergence = divergence + 0.5 * loss.alpha * (log_p.exp() * (log_p - log_q)).sum()
    if isinstance(loss, SimCut):
        log_p, log_q = logits.log_softmax(1).chunk(2)
        divergence = loss.alpha * (log_p.exp() * (log_p - log_q)).sum()
        logits, labels = logits.chunk(2)[0], labels.chunk(2)[0]
    label, other, pad = loss.target_distribution(vocabulary)
    target = torch.full_like(logits, other)
    target[:, 0] = pad
    target.scatter_(1, labels[:, None], label)
    assert torch.allclose(target.sum(1), torch.ones(len(labels)), atol=1e-5)
    cross_entropy = -(target * logits.log_softmax(1)).sum()
    return cross_entropy - loss.constant(vocabulary) * len(labels) + divergence


@for_each("bias", [False, True])
@pytest.mark.parametrize("name", TOKEN_LOSSES)
def test_the_sliced_loss_and_its_gradients_are_those_of_the_plain_one(
    name: str, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SLICE_ELEMENTS, "cpu", 100)  # slices of 4 of 11 tokens
    torch.manual_seed(4)
    output = torch.nn.Linear(8, 23, bias=bias)
    passes = losses[name].passes
    decoder_output = torch.randn(passes * 11, 8, requires_grad=True)
    labels = torch.randint(1, 23, (11,))
    weights = [decoder_output, *output.parameters()]
    labels_of_all = labels.repeat(passes)
    expected = plain(losses[name], output(decoder_output), labels_of_all)
    expected_gradients = torch.autograd.grad(3.0 * expected, weights)
    loss, nll = losses[name](decoder_output, output, labels)
    torch.testing.assert_close(loss, expected)
    counted = 1 if isinstance(losses[name], SimCut) else passes  # passes with a cross-entropy
    likelihoods = torch.nn.functional.cross_entropy(
        output(decoder_output[: counted * 11]), labels.repeat(counted), reduction="sum"
    )
    torch.testing.assert_close(nll, likelihoods / counted)
    for own, other in zip(
        torch.autograd.grad(3.0 * loss, weights), expected_gradients, strict=True
    ):
        torch.testing.assert_close(own, other, atol=1e-5, rtol=1e-4)


@for_each("name", TOKEN_LOSSES)
def test_a_loss_of_no_tokens_is_zero_and_so_is_its_gradient(name: str) -> None:
    output = torch.nn.Linear(8, 23)
    loss, nll = losses[name](torch.randn(0, 8), output, torch.zeros(0, dtype=torch.int64))
    loss.backward()
    assert (loss.item(), nll.item()) == (0.0, 0.0)
    assert not output.weight.grad.any()


@pytest.mark.parametrize("name", TOKEN_LOSSES)
def test_under_autocast_a_loss_keeps_float32_gradients_near_the_exact_ones(name: str) -> None:
    torch.manual_seed(4)
    output = torch.nn.Linear(8, 23)
    decoder_output = torch.randn(losses[name].passes * 11, 8)
    labels = torch.randint(1, 23, (11,))
    exact, _ = losses[name](decoder_output, output, labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low, _ = losses[name](decoder_output.bfloat16().requires_grad_(), output, labels)
    low.backward()
    assert math.isclose(low.item(), exact.item(), rel_tol=1e-2)
    assert output.weight.grad.dtype == torch.float32


@for_each(
    ("part", "values", "message"),
    [
        (optimizers["adam"], {"betas": (0.9, 1.0)}, r"betas lies in \[0, 1\), not 1.0"),
        (optimizers["adam"], {"eps": 0.0}, "eps must be more than 0, is 0.0"),
        (optimizers["adamw"], {"weight_decay": -1.0}, "weight_decay must not be negative, is -1.0"),
        (optimizers["adamw"], {"eps": -1.0}, "eps must be more than 0"),
        (optimizers["sgd"], {"momentum": 1.0}, r"momentum lies in \[0, 1\), not 1.0"),
        (optimizers["nag"], {"momentum": 0.0}, "nesterov needs a momentum"),
        (optimizers["adafactor"], {"decay": 0.0}, "decay must be more than 0"),
        (optimizers["adafactor"], {"clip": -1.0}, "clip must be at least 1"),
        (optimizers["adafactor"], {"eps": 0.0}, "eps must be more than 0"),
        (optimizers["adafactor"], {"min_scale": 0.0}, "min_scale must be more than 0"),
        (optimizers["adafactor"], {"weight_decay": -0.1}, "weight_decay must not be negative"),
        (optimizers["adadelta"], {"rho": 1.5}, r"rho lies in \[0, 1\), not 1.5"),
        (optimizers["adadelta"], {"eps": 0.0}, "eps must be more than 0"),
        (optimizers["muon"], {"momentum": 1.0}, r"momentum lies in \[0, 1\), not 1.0"),
        (optimizers["muon"], {"iterations": 0}, "iterations must be at least 1, is 0"),
        (optimizers["muon"], {"weight_decay": -0.1}, "weight_decay must not be negative"),
        (optimizers["schedule_free_adamw"], {"betas": (0.0, 0.9)}, "first of betas must be more"),
        (optimizers["schedule_free_adamw"], {"weight_decay": -0.1}, "weight_decay must not be neg"),
        (losses["r_drop"], {"alpha": -1.0}, "alpha must not be negative, is -1.0"),
        (losses["r_drop"], {"smoothing": 1.0}, "smoothing lies in"),
        (losses["simcut"], {"alpha": -1.0}, "alpha must not be negative, is -1.0"),
        (losses["simcut"], {"cutoff": 1.0}, r"cutoff lies in \[0, 1\), not 1.0"),
        (schedules["cosine"], {"final_share": 2.0}, r"final_share lies in \[0, 1\], not 2.0"),
        (schedules["plateau"], {"shrink": 1.0}, "shrink lies between 0 and 1, not 1.0"),
        (schedules["plateau"], {"plateau": 0}, "plateau must be at least 1, not 0"),
        (schedules["plateau"], {"final_share": -1.0}, "final_share lies in"),
    ],
)
def test_values_that_make_no_sense_are_refused(part, values, message) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(part, **values)


def test_only_an_optimizer_that_moves_each_number_alone_can_be_sharded() -> None:
    for name in optimizers:
        alone = []
        for neighbour in (1.0, 100.0):
            model = small_model()
            optimizer = optimizer_of(name, model)
            model.weight.grad = torch.tensor([[1.0, neighbour], [neighbour, neighbour]])
            optimizer.step()
            alone.append(model.weight[0, 0].item())
        assert alone[0] == alone[1] or not optimizers[name].can_be_sharded, name
