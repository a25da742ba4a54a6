import math

import torch
from for_each import for_each
from torch.nn import functional as F

from nmt.models.layers.feed_forward import FeedForwardPart, feed_forwards
from nmt.recipe.config import build


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


@for_each("name", feed_forwards)
def test_every_feed_forward_layer_drops_inner_activations_in_training_alone(name: str) -> None:
    layer, x = feed_forwards[name].build(8, 16, 0.5), torch.randn(5, 8)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


def test_relu_in_its_place_costs_no_copy_of_the_gradient() -> None:
    layer = build(FeedForwardPart, "relu", "here").build(4, 8, 0.0)
    with torch.profiler.profile() as profiler:
        layer(torch.randn(2, 3, 4, requires_grad=True)).sum().backward()
    assert not [event.name for event in profiler.events() if "CopySlices" in event.name]
