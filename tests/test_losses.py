import math
from dataclasses import replace

import pytest
import torch
from for_each import for_each

from nmt.training.losses.token import TokenLoss, losses

LOGITS = [2.0, 1.0, 0.0, -2.0]
SMOOTHED = losses["label_smoothed_cross_entropy"]


def value(loss: TokenLoss, label: int = 0, pad: int = 0) -> float:
    """The loss of one token whose logits are LOGITS, with the entry `pad` moved to index 0."""
    order = [pad, *[index for index in range(4) if index != pad]]
    output = torch.nn.Linear(4, 4, bias=False)
    torch.nn.init.eye_(output.weight)
    hidden = torch.tensor([[LOGITS[index] for index in order]])
    return loss(hidden, output, torch.tensor([order.index(label)]))[0].item()


@for_each(
    ("definition", "pad", "expected"),
    [
        ("fairseq", 1, 0.6530500),
        ("tensor2tensor", 1, 0.2181058),
        ("uniform", 1, 0.5947166),
        ("annotated", 3, 0.5697166),
    ],
)
def test_the_published_definitions_of_label_smoothing(
    definition: str, pad: int, expected: float
) -> None:
    loss = replace(SMOOTHED, smoothing=0.1, definition=definition)
    assert value(loss, pad=pad) == pytest.approx(expected, abs=4e-7)


def test_without_smoothing_every_definition_is_the_negative_log_likelihood() -> None:
    for definition in ("tensor2tensor", "fairseq", "uniform", "annotated"):
        loss = replace(SMOOTHED, smoothing=0.0, definition=definition)
        assert value(loss) == pytest.approx(0.4197166, abs=2e-7)
    assert value(losses["cross_entropy"]) == pytest.approx(0.4197166, abs=2e-7)


def test_the_smoothed_label_and_its_entropy_for_a_vocabulary_of_37000() -> None:
    label, other, _ = SMOOTHED.target_distribution(37000)
    assert (label, other) == (0.9, pytest.approx(2.70278e-6, rel=1e-5))
    assert SMOOTHED.constant(37000) == pytest.approx(1.37695, abs=1e-5)
    uniform = replace(SMOOTHED, definition="uniform")
    assert uniform.target_distribution(37000)[0] == pytest.approx(0.9000027)


def test_smoothing_outside_its_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"smoothing lies in \[0, 1\), not 1.0"):
        replace(SMOOTHED, smoothing=1.0)


def test_a_perfect_model_scores_zero_by_the_definition_of_the_paper() -> None:
    label, other, _ = SMOOTHED.target_distribution(4)
    output = torch.nn.Linear(4, 4, bias=False)
    torch.nn.init.eye_(output.weight)
    hidden = torch.tensor([[math.log(label), *[math.log(other)] * 3]])
    assert SMOOTHED(hidden, output, torch.tensor([0]))[0].item() == pytest.approx(0, abs=1e-6)


def test_two_passes_that_agree_cost_twice_the_cross_entropy_and_no_more() -> None:
    assert losses["r_drop"].definition == "uniform"
    output = torch.nn.Linear(4, 7)
    hidden, labels = torch.randn(3, 4), torch.tensor([1, 5, 2])
    for definition in ("tensor2tensor", "fairseq", "uniform"):
        loss = replace(losses["r_drop"], definition=definition)
        once, nll = replace(SMOOTHED, definition=definition)(hidden, output, labels)
        both, mean_nll = loss(hidden.repeat(2, 1), output, labels)
        torch.testing.assert_close(both, 2 * once)
        torch.testing.assert_close(mean_nll, nll)


def test_the_divergence_of_two_known_predictions() -> None:
    loss = replace(losses["r_drop"], smoothing=0.0, alpha=1.0)
    output = torch.nn.Linear(2, 2, bias=False)
    torch.nn.init.eye_(output.weight)
    one, two = (0.75, 0.25), (0.5, 0.5)
    hidden = torch.tensor([one, two]).log()
    cross_entropies = -math.log(one[1]) - math.log(two[1])
    divergence = 0.25 * math.log(0.75 / 0.5) + -0.25 * math.log(0.25 / 0.5)  # of (p - q) log p/q
    value = loss(hidden, output, torch.tensor([1]))[0].item()
    assert value == pytest.approx(cross_entropies + divergence / 2, rel=1e-5)


def test_in_bf16_a_label_that_is_nearly_certain_keeps_its_likelihood_and_gradient() -> None:
    """Rounded alone, its probability of 0.9985 would be one, cost nothing and teach nothing."""
    output = torch.nn.Linear(2, 4, bias=False)
    with torch.no_grad():
        output.weight.copy_(torch.tensor([[0.0, 0.0], [7.6, 0.0], [0.0, 0.0], [0.0, 0.0]]))
    labels = torch.ones(5, dtype=torch.int64)
    nll, gradients = [], []
    for low in (False, True):
        hidden = torch.tensor([[1.0, 0.0]]).repeat(5, 1).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low):
            loss, own = losses["cross_entropy"](hidden, output, labels)
        nll.append(own)
        gradients += torch.autograd.grad(loss, hidden)
    assert nll[0].item() == pytest.approx(5 * 0.0015, rel=2e-2)
    torch.testing.assert_close(nll[1], nll[0], rtol=1e-2, atol=0.0)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-2, atol=0.0)


@for_each("dtype", [torch.float32, torch.bfloat16, torch.float16])
@for_each("name", ["cross_entropy", "label_smoothed_cross_entropy"])
def test_a_label_whose_probability_is_rounded_to_zero_costs_what_it_should(
    name: str, dtype: torch.dtype
) -> None:
    output = torch.nn.Linear(1, 4, bias=False)
    with torch.no_grad():
        output.weight.copy_(torch.tensor([[0.0], [0.0], [0.0], [200.0]]))
    hidden = torch.ones(1, 1, requires_grad=True)
    with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
        loss, nll = losses[name](hidden, output, torch.tensor([1]))
    label, other, _ = losses[name].target_distribution(4)
    constant = losses[name].constant(4)
    assert nll.item() == pytest.approx(200.0)
    assert loss.item() == pytest.approx((label + 2 * other) * 200.0 - constant, rel=1e-3)
    loss.backward()
    assert hidden.grad is not None
    assert hidden.grad.item() == pytest.approx((label + 2 * other) * 200.0, rel=4e-3)
