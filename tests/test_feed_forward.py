import dataclasses
import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from nmt.data.batches import batch_of
from nmt.errors import NmtError
from nmt.inference.kernels import convert
from nmt.models import ModelConfig, architectures
from nmt.models.feed_forward import FeedForwardPart, feed_forwards
from nmt.recipe.config import build
from nmt.training.criterion import TokenCriterion
from nmt.training.losses import losses

EXPERTS = {"name": "mixture_of_experts", "experts": 4}


def test_swiglu_of_two_thirds_the_width_is_as_large_as_the_paper_s() -> None:
    sizes = [
        sum(weight.numel() for weight in feed_forwards[name].build(512, inner, 0.0).parameters())
        for name, inner in (("relu", 2048), ("swiglu", 1365))
    ]
    assert sizes == [2_099_712, 2_096_640]


def test_swiglu_is_the_paper_s_equation() -> None:
    layer = feed_forwards["swiglu"].build(3, 5, 0.0)
    x = torch.randn(2, 3)
    w, v = layer.inner.weight.chunk(2)
    expected = (F.silu(x @ w.t()) * (x @ v.t())) @ layer.outer.weight.t()
    assert torch.allclose(layer(x), expected, atol=1e-6)


def test_swish_and_the_approximated_gelu_are_their_equations() -> None:
    x = torch.randn(2, 3)
    layer = feed_forwards["swish"].build(3, 5, 0.0)
    inner = layer.inner(x)
    torch.testing.assert_close(layer(x), layer.outer(inner * inner.sigmoid()))
    layer = feed_forwards["gelu_tanh"].build(3, 5, 0.0)
    inner = layer.inner(x)
    slope = (2 / math.pi) ** 0.5 * (inner + 0.044715 * inner**3)
    torch.testing.assert_close(layer(x), layer.outer(0.5 * inner * (1 + slope.tanh())))


@pytest.mark.parametrize("name", feed_forwards)
def test_every_feed_forward_layer_drops_inner_activations_in_training_alone(name: str) -> None:
    layer, x = feed_forwards[name].build(8, 16, 0.5), torch.randn(5, 8)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


@pytest.mark.parametrize("chosen", [1, 2])
def test_a_position_goes_through_the_experts_that_its_gate_likes_best(chosen: int) -> None:
    torch.manual_seed(1)
    layer = build(FeedForwardPart, {**EXPERTS, "chosen": chosen}, "here").build(6, 8, 0.0)
    x = torch.randn(2, 5, 6)
    mixed = layer(x)
    for position, own in zip(x.flatten(0, 1), mixed.flatten(0, 1), strict=True):
        probabilities = layer.gate(position).softmax(0)
        best = probabilities.argsort(descending=True)[:chosen].tolist()
        shares = probabilities[best] / (probabilities[best].sum() if chosen > 1 else 1)
        made = torch.stack([layer.experts[expert](position) for expert in best])
        assert torch.allclose(own, shares @ made, atol=1e-5)


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_the_gate_computes_in_float32_whatever_the_precision(precision: Any) -> None:
    torch.manual_seed(1)
    layer, x = feed_forwards["mixture_of_experts"].build(64, 128, 0.0).eval(), torch.randn(50, 64)
    scores = layer.gate(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer.gate(x), scores)
    model = torch.nn.Sequential(layer)
    convert(model, precision, torch.device("cpu"))
    assert torch.equal(model[0].gate(x), scores)


def test_the_penalty_is_least_where_experts_are_chosen_evenly() -> None:
    layer = build(FeedForwardPart, {**EXPERTS, "balance": 0.5}, "here").build(4, 8, 0.0)
    torch.nn.init.eye_(layer.gate.weight)
    everywhere = torch.ones(4, dtype=torch.bool)
    layer(9 * torch.eye(4))
    assert layer.imbalance(everywhere).item() == pytest.approx(0.5, rel=1e-3)
    layer(9 * torch.eye(4)[[2, 2, 2, 2]])
    assert layer.imbalance(everywhere).item() == pytest.approx(0.5 * 4, rel=1e-2)
    layer.eval()(torch.eye(4))
    assert layer.imbalance(everywhere) == 0.0


def test_padding_does_not_count_for_the_penalty() -> None:
    torch.manual_seed(1)
    layer = build(FeedForwardPart, EXPERTS, "here").build(4, 8, 0.0)
    x = torch.randn(2, 5, 4)
    tokens = torch.tensor([[True] * 5, [True] * 2 + [False] * 3])
    layer(x)
    with_padding = layer.imbalance(tokens)
    layer(x[tokens])
    torch.testing.assert_close(with_padding, layer.imbalance(torch.ones(7, dtype=torch.bool)))


def test_the_penalty_of_a_model_is_added_for_every_target_token() -> None:
    config = dataclasses.replace(
        architectures["transformer_tiny"],
        d_model=8,
        d_ff=8,
        heads=2,
        dropout=0.0,
        feed_forward=build(FeedForwardPart, EXPERTS, "here"),
    )
    model = config.build(12, 12, True)
    batch = batch_of(torch.tensor([[5, 6, 3]]), torch.tensor([[7, 8, 9, 3]]))
    sums = TokenCriterion(model, losses["cross_entropy"])(batch)
    assert model.auxiliary_loss().item() > 0
    torch.testing.assert_close(sums["loss"], sums["nll"] + 4 * model.auxiliary_loss())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"chosen": 3}, "chosen must be 1 or 2, not 3"),
        ({"experts": 1}, "experts must be at least 2, not 1"),
        ({"balance": -1}, "balance must not be negative"),
        ({"balance": "inf"}, "balance must not be negative or infinite, is inf"),
    ],
)
def test_experts_that_make_no_sense_are_refused(values: dict[str, Any], message: str) -> None:
    feed_forward = {**EXPERTS, **values}
    with pytest.raises(NmtError, match=f"model.feed_forward: {message}"):
        build(ModelConfig, {"arch": "transformer_tiny", "feed_forward": feed_forward}, "model")


def test_relu_in_its_place_costs_no_copy_of_the_gradient() -> None:
    layer = build(FeedForwardPart, "relu", "here").build(4, 8, 0.0)
    with torch.profiler.profile() as profiler:
        layer(torch.randn(2, 3, 4, requires_grad=True)).sum().backward()
    assert not [event.name for event in profiler.events() if "CopySlices" in event.name]
