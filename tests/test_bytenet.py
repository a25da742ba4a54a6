from typing import Any

import pytest
import torch
from for_each import for_each

from nmt.data.vocabulary import BOS, EOS, PAD
from nmt.errors import NmtError
from nmt.models import ModelConfig, architectures
from nmt.models.rivals.bytenet import ByteNetConfig
from nmt.recipe.config import build


def test_the_paper_s_blocks_make_its_number_of_parameters() -> None:
    with torch.device("meta"):
        model = architectures["bytenet"].build(296, 323, False)
    d = 800
    block = (2 * d + 1) * d + (3 * d + 1) * d + (d + 1) * 2 * d + 2 * (2 * d + d + d)
    ends = (296 + 323) * 2 * d + (2 * d + 1) * 2 * d + (2 * d + 1) * 323
    assert model.num_parameters() == 60 * block + ends


@pytest.mark.parametrize(("sets", "field"), [(1, 63), (6, 373)])
def test_the_encoder_sees_as_many_neighbours_as_its_dilations_reach(sets: int, field: int) -> None:
    torch.manual_seed(1)
    model = ByteNetConfig(width=4, sets=sets, length_ratio=1.0).build(9, 9, True).double()
    embedded = []
    model.source_embedding.register_forward_hook(
        lambda _, __, output: embedded.append(output) or output.retain_grad()
    )
    source = torch.full((1, 401), 5)
    source[0, -1] = EOS
    model.encode(source)[0, 200].sum().backward()
    seen = embedded[0].grad[0].abs().sum(-1).nonzero()[:, 0]
    assert (seen.min(), seen.max()) == (200 - field // 2, 200 + field // 2)


@torch.no_grad()
def test_the_source_is_unfolded_to_the_expected_length_and_the_decoder_goes_on() -> None:
    torch.manual_seed(1)
    model = ByteNetConfig(width=4, sets=1, dilations=(1,)).build(9, 9, True).eval()
    encoded = model.encode(torch.tensor([[5, 6, 7, 8, EOS]]))
    assert encoded[0].any(dim=1).tolist() == [True] * 6 + [False] * (encoded.shape[1] - 6)
    decoder_output = model.decode(torch.tensor([[EOS]]), torch.tensor([[BOS, *[5] * 19]]))
    assert decoder_output.shape == (1, 20, 8)


@torch.no_grad()
@pytest.mark.parametrize(("ratio", "length", "unfolded"), [(1.2, 25, 30), (1.144, 375, 429)])
def test_rounding_unfolds_no_further_alone_or_beside_a_longer_source(
    ratio: float, length: int, unfolded: int
) -> None:
    model = ByteNetConfig(width=4, sets=1, dilations=(1,), length_ratio=ratio).build(9, 9, True)
    for weight in model.parameters():
        torch.nn.init.normal_(weight)  # so that a position beyond the source is not zero
    source = torch.full((2, length + 40), 5)
    source[0, length:] = PAD
    alone, beside = model.encode(source[:1, :length]), model.encode(source)
    assert alone.shape[1] == unfolded
    torch.testing.assert_close(beside[:1, :unfolded], alone)
    assert not beside[0, unfolded:].any()


@torch.no_grad()
def test_what_enters_the_blocks_begins_at_unit_variance() -> None:
    torch.manual_seed(1)
    model = ByteNetConfig(width=64, sets=1, dilations=(1,), length_ratio=1.0).build(500, 500, True)
    entering: list[torch.Tensor] = []
    for stack in (model.encoder, model.decoder):
        stack[0].norms[0].register_forward_hook(lambda _, given, __: entering.append(given[0]))
    source = torch.randint(4, 500, (1, 400))
    model.encode(source)
    model.decoder[0].decode(model._embed(model.target_embedding, source))
    variances = [x[:, :400].var().item() for x in entering]
    assert variances == pytest.approx([1.0, 1.0], rel=0.05)


@for_each(
    ("values", "message"),
    [
        ({"kernel": 2}, "kernel must be odd"),
        ({"dilations": [1, 0]}, "dilations must be"),
        ({"length_ratio": 0.5}, "must not make a source shorter"),
        ({"length_ratio": "inf"}, "length_ratio must be finite"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(NmtError, match=message):
        build(ModelConfig, {"arch": "bytenet", **values}, "model")
