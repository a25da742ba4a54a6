from typing import Any

import pytest
import torch
from for_each import for_each

from nmt.errors import NmtError
from nmt.models import ModelConfig, architectures
from nmt.models.rivals.gnmt import GNMTConfig
from nmt.recipe.config import build


@pytest.mark.parametrize("name", ["gnmt", "gnmt_v2"])
def test_the_paper_s_layers_make_its_number_of_parameters(name: str) -> None:
    with torch.device("meta"):
        model = architectures[name].build(32000, 32000, True)
    d, v = 1024, 32000
    lstm = 4 * d * d
    encoder = 2 * 2 * lstm + 3 * lstm + 6 * 2 * lstm  # both directions, the second, the others
    decoder = 8 * 3 * lstm  # every layer reads the context too
    biases = 4 * d * (2 * (2 + 7) + 1 + 2 * 7)  # two a layer, one in the decoder's bottom layer
    attention = 2 * d * d + 2 * d
    assert model.num_parameters() == encoder + decoder + biases + attention + 3 * v * d + v


@torch.no_grad()
def test_v2_gives_the_layers_above_the_context_that_the_bottom_layer_now_asks_for() -> None:
    config = GNMTConfig(width=4, encoder_layers=2, decoder_layers=2)
    memory = (torch.randn(1, 3, 4), torch.randn(1, 3, 4), torch.ones(1, 3, dtype=torch.bool))
    word = torch.randn(1, 1, 16)
    for query in ("previous", "current"):
        torch.manual_seed(1)
        model = build(GNMTConfig, {"attention_query": query}, "model", config).build(9, 9, True)
        bottom = model.decoder_bottom
        start = bottom.start(memory[1])
        output, context, after = bottom(word, start, memory)
        asked_with = {"previous": start[0], "current": output}[query]
        assert torch.equal(context, bottom.attention(asked_with, *memory))
        assert torch.equal(after[0], output)


def test_weights_begin_uniform_within_the_stated_range() -> None:
    model = GNMTConfig(width=32, encoder_layers=2, decoder_layers=2).build(50, 50, True)
    weights = torch.cat([weight.flatten() for weight in model.parameters()])
    assert 0.0399 < weights.abs().max() <= 0.04


@for_each(
    ("values", "message"),
    [
        ({"decoder_layers": 1}, "decoder_layers must be at least 2, not 1"),
        ({"initial_range": 0}, "initial_range must be more than 0"),
        ({"initial_range": "inf"}, "initial_range must be more than 0 and finite, not inf"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(NmtError, match=message):
        build(ModelConfig, {"arch": "gnmt", **values}, "model")
