import math
from typing import Any

import pytest
import torch
from for_each import for_each

from nmt.data.vocabulary import EOS
from nmt.errors import NmtError
from nmt.models import ModelConfig, architectures
from nmt.models.rivals.conv_s2s import ConvS2SConfig
from nmt.recipe.config import build


@pytest.mark.parametrize(
    ("name", "embedding", "shapes"),
    [
        ("conv_s2s_wmt_en_de", 512, [(512, 3)] * 10 + [(768, 3)] * 3 + [(2048, 1)] * 2),
        (
            "conv_s2s_wmt_en_fr_fairseq",
            768,
            [(512, 3)] * 6 + [(768, 3)] * 4 + [(1024, 3)] * 3 + [(2048, 1), (4096, 1)],
        ),
    ],
)
def test_the_listed_layers_make_the_number_of_parameters(
    name: str, embedding: int, shapes: list[tuple[int, int]]
) -> None:
    with torch.device("meta"):
        model = architectures[name].build(40000, 40000, True)

    def layer(inputs: int, outputs: int) -> int:  # a gain and a bias for every output
        return (inputs + 2) * outputs

    def stack(attends: bool) -> int:
        width, total = shapes[0][0], layer(embedding, shapes[0][0])
        for outputs, kernel in shapes:
            total += layer(kernel * width, 2 * outputs)
            total += layer(width, outputs) if width != outputs else 0
            total += (layer(outputs, embedding) + layer(embedding, outputs)) if attends else 0
            width = outputs
        return total + layer(width, 512 if attends else embedding)

    tables = 2 * (40000 + 1024) * embedding + layer(512, 40000)
    assert model.num_parameters() == stack(False) + stack(True) + tables


def test_weights_begin_with_the_paper_s_deviations() -> None:
    torch.manual_seed(1)
    shapes = ((1, 64, 3),)
    config = ConvS2SConfig(encoder=shapes, decoder=shapes, embedding_width=48, dropout=0.2)
    model = config.build(500, 500, True)
    deviations = {
        math.sqrt(4 * 0.8 / (3 * 64)): model.decoder[0].convolution.weight,
        math.sqrt(1 / 64): model.decoder[0].ask.weight,
        math.sqrt(0.8 / 512): model.output.weight,
        0.1: model.target_embedding.words.weight,
    }
    for expected, weight in deviations.items():
        assert 0.97 * expected < weight.std() < 1.03 * expected


def test_the_encoder_s_gradient_is_divided_by_twice_the_layers_that_attend() -> None:
    model = ConvS2SConfig(encoder=((1, 8, 3),), decoder=((3, 8, 3),)).build(20, 20, True).eval()
    source = torch.tensor([[5, 6, EOS]])
    keys, _, _ = model.encode(source)
    keys.sum().backward()
    scaled = model.encoder_output.bias.grad
    torch.testing.assert_close(scaled, torch.full_like(scaled, 3 / 6))  # three positions


@for_each(
    ("values", "message"),
    [
        ({"encoder": [[2, 8, 4]]}, "kernels of the encoder must be odd"),
        ({"decoder": []}, "decoder needs layers"),
        ({"decoder": [[2, 0, 3]]}, "decoder needs layers, widths and kernels of at least 1"),
        ({"encoder": [[2, 8]]}, "expected 3 values"),
        ({"max_positions": 0}, "max_positions must be at least 1, not 0"),
    ],
)
def test_layers_that_make_no_sense_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(NmtError, match=message):
        build(ModelConfig, {"arch": "conv_s2s", **values}, "model")


@torch.no_grad()
def test_positions_beyond_the_table_share_its_last_row() -> None:
    shapes = ((1, 8, 3),)
    config = ConvS2SConfig(encoder=shapes, decoder=shapes, max_positions=70)
    model = config.build(20, 20, True).eval()
    far = model.target_embedding(torch.tensor([[7]]), 5000)
    assert torch.equal(far, model.target_embedding(torch.tensor([[7]]), 69))
    assert not torch.equal(far, model.target_embedding(torch.tensor([[7]]), 68))
