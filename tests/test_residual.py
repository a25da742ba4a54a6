from typing import Any

import pytest
import torch
from for_each import for_each

from nmt.errors import NmtError
from nmt.models import ModelConfig
from nmt.models.layers.basic import deep_norm_scales
from nmt.models.transformer.layers import EncoderLayer
from nmt.models.transformer.model import TransformerConfig
from nmt.recipe.config import build

TINY = {"arch": "transformer_tiny", "d_model": 8, "d_ff": 12, "heads": 2}


@for_each(
    ("layers", "encoder", "decoder"),
    [
        (6, (1.4179, 0.4970), (2.0598, 0.3433)),
        (18, (1.9987, 0.3526), (2.7108, 0.2608)),
        (100, (3.4157, 0.2063), (4.1618, 0.1699)),
    ],
)
def test_the_scales_of_deep_norm_are_the_paper_s(
    layers: int, encoder: tuple[float, float], decoder: tuple[float, float]
) -> None:
    scales = deep_norm_scales(layers, layers)
    assert scales["encoder"] == pytest.approx(encoder, abs=1e-4)
    assert scales["decoder"] == pytest.approx(decoder, abs=1e-4)


def make_layer(residual: str, **values: Any) -> EncoderLayer:
    config = build(ModelConfig, {**TINY, "residual": residual, **values}, "model")
    assert isinstance(config, TransformerConfig)
    return EncoderLayer(config)


def test_add_and_norm_is_the_formula_of_each_residual() -> None:
    x, output = torch.randn(3, 8), torch.randn(3, 8)
    inputs = []

    def sublayer(x: torch.Tensor) -> torch.Tensor:
        inputs.append(x)
        return output

    def normed(y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(y, (8,), eps=1e-6)

    layers = {name: make_layer(name).eval() for name in ("post_norm", "pre_norm", "deep_norm")}
    post, pre, deep = (
        layer.add_and_norm(x, sublayer, layer.attention_norm) for layer in layers.values()
    )
    alpha = deep_norm_scales(4, 4)["encoder"][0]
    assert torch.allclose(post, normed(x + output))
    assert torch.equal(pre, x + output)
    assert torch.allclose(deep, normed(alpha * x + output))
    assert torch.equal(inputs[0], x)
    assert torch.allclose(inputs[1], normed(x))
    assert torch.equal(inputs[2], x)
    rms = make_layer("post_norm", norm="rms_norm").eval()
    expected = (x + output) / (x + output).square().mean(-1, keepdim=True).sqrt()
    assert torch.allclose(rms.add_and_norm(x, sublayer, rms.attention_norm), expected, atol=1e-5)


@pytest.mark.parametrize("residual", ["post_norm", "pre_norm", "deep_norm"])
def test_the_output_of_a_sublayer_is_dropped_in_training_alone(residual: str) -> None:
    layer = make_layer(residual, dropout=0.5)
    x, output = torch.randn(3, 8), torch.randn(3, 8)

    def combined() -> torch.Tensor:
        return layer.add_and_norm(x, lambda _: output, layer.attention_norm)

    in_training = combined()
    layer.eval()
    assert not torch.equal(in_training, combined())
    assert torch.equal(combined(), combined())


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_norms_have_the_epsilon_of_the_recipe(norm: str) -> None:
    assert make_layer("post_norm", norm=norm, norm_epsilon=0.25).attention_norm.eps == 0.25


def test_deep_norm_scales_the_first_weights_of_values_outputs_and_feed_forward_alone() -> None:
    models = []
    for residual in ("post_norm", "deep_norm"):
        torch.manual_seed(1)
        config = build(ModelConfig, {**TINY, "residual": residual}, "model")
        models.append(dict(config.build(20, 20, True).named_parameters()))
    beta = deep_norm_scales(4, 4)["decoder"][1]
    for name, plain in models[0].items():
        scaled = models[1][name]
        if name.startswith("decoder.0.") and name.endswith(
            ("inner.weight", "outer.weight", "output.weight")
        ):
            assert torch.allclose(scaled, beta * plain)
        elif name == "decoder.0.attention.project_in.weight":
            assert torch.equal(scaled[:16], plain[:16])
            assert torch.allclose(scaled[16:], beta * plain[16:])
        elif "norm" in name or "embedding" in name:
            assert torch.equal(scaled, plain)


def test_the_plain_transformer_has_the_weights_it_always_had() -> None:
    model = build(ModelConfig, TINY, "model").build(20, 20, True)
    layer = {name[len("decoder.0.") :] for name, _ in model.named_parameters() if "oder.0." in name}
    attention = ["project_in", "output"]
    cross = ["project_query", "project_memory", "output"]
    names = [f"attention.{part}" for part in attention] + [f"cross.{part}" for part in cross]
    names += [f"{part}_norm" for part in ("attention", "cross", "feed_forward")]
    names += ["feed_forward.inner", "feed_forward.outer"]
    assert layer == {f"{name}.{kind}" for name in names for kind in ("weight", "bias")}


@for_each(
    ("values", "message"),
    [
        (
            {"positions": "alibi", "encoder_attention": "neighbourhood"},
            "alibi positions are written into the scores of all pairs, which encoder_attention "
            "neighbourhood does not have; use sinusoidal or learned positions",
        ),
        (
            {"positions": "rotary", "decoder_attention": "ssru"},
            "rotary positions are .* which decoder_attention ssru",
        ),
        ({"positions": "rotary", "d_k": 3}, "rotary positions need an even width of a head, not 3"),
        ({"key_value_heads": 3}, "2 heads cannot share 3 key_value_heads evenly"),
        ({"key_value_heads": 0}, "2 heads cannot share 0 key_value_heads evenly"),
        ({"residual": "prenorm"}, "model.residual: unknown value 'prenorm'; did you mean"),
        ({"positions": {"name": "learned", "max_positions": 0}}, "max_positions must be at least"),
        ({"positions": {"name": "relative", "clip": 0}}, "clip must be at least 1"),
        ({"encoder_attention": {"name": "neighbourhood", "radius": 0}}, "radius must be at least"),
    ],
)
def test_parts_that_do_not_go_together_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(NmtError, match=message):
        build(ModelConfig, {**TINY, **values}, "model")
