"""Int8 by a calibration: products, and a Transformer whose results do not depend on the batch."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_models import tiny
from torch import nn

from nmt.data.padding import as_rows
from nmt.data.vocabulary import EOS, PAD
from nmt.errors import NmtError
from nmt.inference.fast import int8
from nmt.inference.fast.calibrated import TwoLayers, _note, measure_ranges
from nmt.inference.fast.int8 import FewRowsLinear, ManyRowsLinear, Quantisation, has_fixed_kernels
from nmt.inference.fast.kernels import PackedLinear, convert
from nmt.models import Model
from nmt.models.layers.feed_forward import feed_forwards
from nmt.models.transformer.model import TransformerConfig
from nmt.models.transformer.patterns import patterns
from nmt.models.transformer.positions import position_parts
from nmt.search import Beam, Greedy, Hypothesis, Strategy
from nmt.search.ranking import with_coverage

pytestmark = pytest.mark.skipif(
    not has_fixed_kernels(), reason="this torch has no products with a fixed quantisation"
)
CPU = torch.device("cpu")
VOCABULARY = 50
BOTH = pytest.mark.parametrize("kind", [FewRowsLinear, ManyRowsLinear])
SMALL = TransformerConfig(
    encoder_layers=2, decoder_layers=2, d_model=32, d_ff=64, heads=2, dropout=0.0
)
VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "student": {"decoder_attention": patterns["ssru"], "decoder_feed_forward": False},
    "average": {"decoder_attention": patterns["average"]},
    "rotary": {"positions": position_parts["rotary"], "residual": "pre_norm"},
    "shared_heads": {"key_value_heads": 1, "feed_forward": feed_forwards["swiglu"]},
}


@BOTH
@torch.no_grad()
def test_the_largest_numbers_of_8_bits_do_not_overflow(kind: type[nn.Module]) -> None:
    linear = nn.Linear(64, 32)
    linear.weight.fill_(127.0)
    linear.bias.fill_(0.5)
    for rows in (1, 100):
        product = kind(linear, (0.0, 127.0))(torch.full((rows, 64), 127.0))
        torch.testing.assert_close(product, torch.full((rows, 32), 64 * 127.0 * 127.0 + 0.5))


@BOTH
@torch.no_grad()
def test_a_product_is_near_that_of_fp32_and_that_of_a_row_alone(kind: type[nn.Module]) -> None:
    torch.manual_seed(1)
    linear, x = nn.Linear(64, 32), torch.randn(3, 5, 64).clamp(-3, 3)
    layer = kind(linear, (-3.0, 3.0))
    assert 0 < (layer(x) - linear(x)).abs().max() < 0.1  # of 7 bits, without VNNI
    assert torch.equal(layer(x)[1:, 2:], layer(x[1:, 2:]))


@BOTH
@torch.no_grad()
def test_two_layers_with_relu_between_are_near_those_of_fp32(kind: Any) -> None:
    torch.manual_seed(1)
    first, second, x = nn.Linear(64, 128), nn.Linear(128, 32), torch.randn(7, 64)
    hidden = first(x).relu()
    into = kind.into(first, (float(x.min()), float(x.max())), (0.0, float(hidden.max())))
    product = kind(second, (0.0, float(hidden.max())))(into(x))
    assert 0 < (product - second(hidden)).abs().max() < 0.1


def test_a_quantisation_maps_zero_to_an_integer_whatever_the_range() -> None:
    for limits, width in (((-1, 2), 3), ((0.5, 2), 2), ((-2, -1), 2), ((0, 0), 255e-10)):
        quantisation = Quantisation.of(limits)
        assert 0 <= quantisation.zero <= 255
        levels = round(width / quantisation.scale)
        assert levels in (127, 255)  # in 7 bits without VNNI
        assert quantisation.scale == pytest.approx(width / levels)


def calibrated(config: TransformerConfig) -> Model:
    """A converted model with random weights, which was calibrated on random sentences."""
    torch.manual_seed(1)
    model = config.build(VOCABULARY, VOCABULARY, True).eval()
    with torch.no_grad():
        model.output.weight.mul_(3.0)
    found: dict[str, tuple[float, float]] = {}
    for name, module in model.named_modules():
        if type(module) is nn.Linear:
            module.register_forward_pre_hook(
                lambda module, arguments, name=name: _note(found, name, module, arguments)
            )
    with torch.no_grad():
        model(sources(8), sources(8))
    layers = dict(model.named_modules())
    convert(model, "int8", CPU, {layers[name]: limits for name, limits in found.items()})
    return model


def sources(count: int) -> torch.Tensor:
    draw = random.Random(count)
    return as_rows(
        [[*draw.choices(range(4, VOCABULARY), k=draw.randint(1, 40)), EOS] for _ in range(count)]
    )


@torch.inference_mode()
def test_attention_has_the_width_of_the_source() -> None:
    model, source = calibrated(SMALL), sources(3)
    for width in (17, 32):
        padded = torch.nn.functional.pad(source, (0, width), value=PAD)[:, :width]
        weights = model.source_attention(padded, source[:, :5])
        assert weights.shape == (3, 5, width)
        torch.testing.assert_close(weights.sum(-1), torch.ones(3, 5))
    assert with_coverage([[Hypothesis([5, 6], -1.0, -1.0, True)]] * 3, model, source, 0.2)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("strategy", [Greedy(), Beam()], ids=["greedy", "beam"])
@torch.inference_mode()
def test_a_sentence_has_the_same_bits_alone_and_in_any_batch(
    variant: str, strategy: Strategy
) -> None:
    model, source = calibrated(replace(SMALL, **VARIANTS[variant])), sources(24)
    lengths = torch.tensor([random.Random(at).randint(1, 12) for at in range(24)])
    together = strategy.search(model, source, lengths)
    for seed, size in ((1, 1), (2, 5), (3, 24)):
        order = torch.randperm(24, generator=torch.Generator().manual_seed(seed))
        for chosen in order.split(size):
            longest = int((source[chosen] != PAD).sum(1).max())
            found = strategy.search(model, source[chosen, :longest], lengths[chosen])
            assert found == [together[at] for at in chosen]


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_a_calibrated_model_is_near_fp32(variant: str) -> None:
    config = replace(SMALL, **VARIANTS[variant])
    model = calibrated(config)
    torch.manual_seed(1)
    exact = config.build(VOCABULARY, VOCABULARY, True).eval()
    exact.output.weight.mul_(3.0)
    source, target = sources(8), sources(8)
    logits = exact(source, target)
    assert 0 < (model(source, target) - logits).abs().max() < 0.25 * logits.std()
    attention = exact.source_attention(source, target)
    assert (
        0
        < (model.source_attention(source, target)[..., : source.shape[1]] - attention).abs().max()
        < 0.05
    )


def test_each_layer_is_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    packed, quantised = [], int8._quantised

    def noted(linear: nn.Linear) -> torch.Tensor:
        packed.append(linear)
        return quantised(linear)

    monkeypatch.setattr(int8, "_quantised", noted)
    parts = [*calibrated(SMALL).modules()]
    # With ReLU, which the product of the first layer computes.
    pairs = [part for part in parts if isinstance(part, TwoLayers)]
    assert len(pairs) == SMALL.encoder_layers + SMALL.decoder_layers
    assert len(packed) == len(set(packed)) >= 4 * SMALL.encoder_layers + 6 * SMALL.decoder_layers


def test_a_model_that_is_no_transformer_is_an_error() -> None:
    with pytest.raises(NmtError, match="RNNsearch: only Transformers are calibrated"):
        measure_ranges(tiny("rnnsearch").build(VOCABULARY, VOCABULARY, True), None, 1)  # type: ignore[arg-type]


def test_layers_without_a_range_stay_exact() -> None:
    model = SMALL.build(VOCABULARY, VOCABULARY, True).eval()
    first = model.get_submodule("decoder.0.cross.project_query")
    convert(model, "int8", CPU, {first: (-1.0, 1.0)})
    kinds = [type(module) for module in model.modules()]
    assert sum(issubclass(kind, FewRowsLinear) for kind in kinds) == 1
    assert any(issubclass(kind, PackedLinear) for kind in kinds)
