"""Recurrences in the place of a decoder's self-attention, against their papers' formulas."""

import dataclasses

import pytest
import torch
from torch import Tensor

from nmt.data.packing import Pack, Rows
from nmt.data.vocabulary import BOS
from nmt.models import ModelConfig, architectures
from nmt.models.layers.cache import BeamAncestry
from nmt.models.layers.sentences import Packed, Padded
from nmt.models.transformer.model import TransformerConfig
from nmt.models.transformer.patterns import patterns
from nmt.models.transformer.recurrences import SSRU, AverageAttention, Recurrence, linear_scan
from nmt.recipe.config import build

WIDTH = 6


def some_input() -> Tensor:
    return torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(3))


def recurrences() -> list[Recurrence]:
    torch.manual_seed(1)
    averages = [AverageAttention(WIDTH, 9, name) for name in ("relu", "swish")]
    return [SSRU(WIDTH), *averages]


every_recurrence = pytest.mark.parametrize(
    "recurrence", recurrences(), ids=lambda recurrence: type(recurrence).__name__
)


def test_a_scan_is_the_recurrence_step_by_step() -> None:
    decay, inputs = torch.rand(3, 37, WIDTH), torch.randn(3, 37, WIDTH)
    decay[:, 0] = 0
    hidden, expected = torch.zeros(3, WIDTH), []
    for at in range(37):
        hidden = decay[:, at] * hidden + inputs[:, at]
        expected.append(hidden)
    assert torch.allclose(linear_scan(decay, inputs, 37), torch.stack(expected, 1), atol=1e-5)


@every_recurrence
def test_sentences_of_a_pack_do_not_meet(recurrence: Recurrence) -> None:
    x, lengths = some_input(), torch.tensor([5, 3]).numpy()
    pack = Pack(lengths, Rows(lengths, lengths))
    packed = recurrence(torch.cat((x[0], x[1, :3])), Packed(pack))
    whole = recurrence(x, Padded())
    assert torch.allclose(packed, torch.cat((whole[0], whole[1, :3])), atol=1e-6)


@every_recurrence
def test_a_step_costs_a_state_of_fixed_size(recurrence: Recurrence) -> None:
    x, cache = some_input(), recurrence.new_cache()
    steps = [cache.attend(recurrence, x[:, at : at + 1], BeamAncestry(at + 1)) for at in range(5)]
    assert torch.allclose(torch.cat(steps, 1), recurrence(x, Padded()), atol=1e-6)
    assert cache._hidden.shape == (2, 1, WIDTH)


def test_ssru_is_the_papers() -> None:
    ssru, x = SSRU(WIDTH), some_input()
    torch.nn.init.normal_(ssru.forget_bias)
    to_forget, to_new = ssru.project_in.weight.chunk(2)
    cell, outputs = torch.zeros(2, WIDTH), []
    for at in range(5):
        forget = torch.sigmoid(x[:, at] @ to_forget.t() + ssru.forget_bias)
        cell = forget * cell + (1 - forget) * (x[:, at] @ to_new.t())
        outputs.append(cell.relu())
    assert torch.allclose(ssru(x, Padded()), torch.stack(outputs, 1), atol=1e-6)


@pytest.mark.parametrize("tied", ["all", "decoder"])
def test_a_decoder_that_begins_with_zeros_does_not_see_the_embedding_of_bos(tied: str) -> None:
    recurrence = {"name": "ssru", "zero_bos": True}
    sizes = {"d_model": WIDTH, "d_ff": 8, "heads": 2, "dropout": 0.0, "tied_embeddings": tied}
    values = {"arch": "transformer_tiny", "decoder_attention": recurrence, **sizes}
    model = build(ModelConfig, values, "model").build(9, 9, True)  # type: ignore[type-abstract]
    source, target = torch.tensor([[4, 5, 3]]), torch.tensor([[BOS, 6, 7]])
    before = model.decode(source, target)
    with torch.no_grad():
        model.target_embedding.weight[BOS] += torch.linspace(-1, 1, WIDTH)
    assert torch.equal(model.decode(source, target), before)
    state = model.start(source)
    first = model.decode_step(target[:, :1], state)
    assert torch.allclose(first, before[:, :1], atol=1e-6)
    model.target_embedding.zero_token = None
    assert not torch.allclose(model.decode(source, target)[:, 0], before[:, 0], atol=1e-3)


def test_average_attention_is_of_the_mean_of_the_past() -> None:
    average, x = AverageAttention(WIDTH, 9, "relu"), some_input()
    means = x.cumsum(1) / torch.arange(1, 6)[:, None]
    past = average.outer(average.inner(means).relu())
    input_gate, forget_gate = torch.sigmoid(average.gate(torch.cat((x, past), -1))).chunk(2, -1)
    assert torch.allclose(average(x, Padded()), input_gate * x + forget_gate * past, atol=1e-6)


def test_average_attention_has_the_hidden_width_that_is_asked_for() -> None:
    layer = dataclasses.replace(patterns["average"], d_hidden=3).recurrence(8)
    assert (layer.inner.out_features, layer.outer.in_features) == (3, 3)
    assert patterns["average"].recurrence(8).inner.out_features == 32


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"encoder_attention": "ssru"}, "encoder_attention ssru sees the past alone"),
        (
            {"decoder_attention": "ssru", "residual": "deep_norm"},
            "deep_norm has no scale for the weights of ssru",
        ),
        (
            {"decoder_attention": "average", "positions": "rotary"},
            "decoder_attention average does not have",
        ),
        ({"decoder_attention": {"name": "average", "d_hidden": 0}}, "d_hidden must be at least 1"),
    ],
)
def test_parts_that_do_not_fit_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(Exception, match=message):
        build(ModelConfig, {"arch": "transformer_base", **values}, "model")


def test_a_decoder_without_feed_forward_layers_has_none() -> None:
    config = architectures["student_tiny_ssru"]
    assert isinstance(config, TransformerConfig)
    smaller = dataclasses.replace(config, decoder_feed_forward=False)
    difference = (
        config.build(100, 100, True).num_parameters()
        - smaller.build(100, 100, True).num_parameters()
    )
    assert difference == 2 * (2 * 256 * 1536 + 1536 + 256 + 2 * 256)
