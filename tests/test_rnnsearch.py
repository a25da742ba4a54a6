from typing import Any

import pytest
import torch

from nmt.errors import NmtError
from nmt.models import ModelConfig, architectures
from nmt.models.rivals.rnnsearch import RNNsearchConfig
from nmt.recipe.config import build


def test_the_paper_s_sizes_make_its_number_of_parameters() -> None:
    with torch.device("meta"):
        model = architectures["rnnsearch"].build(30000, 30000, False)
    m, n, a, half, v = 620, 1000, 1000, 500, 30000
    embeddings = 2 * v * m
    encoder = 2 * (3 * n * (m + n) + 6 * n)  # torch's GRU has two biases
    attention = (n + 1) * a + 2 * n * a + a
    decoder = 3 * (m * n + n + n * n + 2 * n * n) + n * n + n  # and W_s
    output = (n + m + 2 * n + 1) * 2 * half + (half + 1) * v
    assert model.num_parameters() == embeddings + encoder + attention + decoder + output


def test_weights_begin_as_in_the_paper() -> None:
    torch.manual_seed(1)
    model = RNNsearchConfig(embedding_width=30, hidden_width=40).build(50, 50, True)
    recurrent = model.encoder.forwards.weight_hh_l0[:40]
    for matrix in (recurrent, model.unit.candidate.weight):
        assert torch.allclose(matrix @ matrix.t(), torch.eye(40), atol=1e-5)
    assert not model.attention.score.weight.any()
    assert 0.0009 < model.attention.memory.weight.std() < 0.0011
    assert 0.009 < model.readout.weight.std() < 0.011


@torch.no_grad()
def test_the_decoder_s_unit_is_the_paper_s_equation() -> None:
    torch.manual_seed(2)
    config = RNNsearchConfig(embedding_width=3, hidden_width=4)
    unit = config.build(9, 9, True).unit
    for weight in unit.parameters():
        weight.normal_()
    s, e, c = torch.randn(4), torch.randn(3), torch.randn(8)
    w_z, w_r, w = unit.word.weight.split(4)
    b_z, b_r, b = unit.word.bias.split(4)
    c_z, c_r, c_h = unit.context.weight.split(4)
    u_z, u_r = unit.gates.weight.split(4)
    z = torch.sigmoid(w_z @ e + b_z + u_z @ s + c_z @ c)
    r = torch.sigmoid(w_r @ e + b_r + u_r @ s + c_r @ c)
    proposed = torch.tanh(w @ e + b + unit.candidate.weight @ (r * s) + c_h @ c)
    expected = (1 - z) * s + z * proposed
    own = unit(s[None, None], unit.word(e)[None, None], c[None, None])
    assert torch.allclose(own[0, 0], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("values", "message"),
    [({"hidden_width": 0}, "hidden_width must be at least 1"), ({"dropout": 1}, "dropout lies in")],
)
def test_sizes_that_make_no_sense_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(NmtError, match=message):
        build(ModelConfig, {"arch": "rnnsearch", **values}, "model")
