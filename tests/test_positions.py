import math
import weakref
from dataclasses import replace

import pytest
import torch
from for_each import for_each

from nmt.errors import NmtError
from nmt.models import ModelConfig
from nmt.models.layers.attention import AttentionConfig, AttentionInput, FullAttention
from nmt.models.layers.cache import KeyValueCache, OrderedCache, SharedCache
from nmt.models.transformer.multi_head import SelfAttention
from nmt.models.transformer.positions import (
    AlibiAttention,
    LearnedPositions,
    RelativeAttention,
    Rotation,
    SinusoidalPositions,
    alibi_slopes,
    position_parts,
    sinusoids,
)
from nmt.recipe.config import build

CPU = torch.device("cpu")


def heads(queries: int, keys: int) -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.randn(2, 4, length, 6) for length in (queries, keys, keys)]


def test_a_rotation_of_a_worked_example() -> None:
    turned = Rotation(4, 10000.0)(torch.tensor([[[[1.0, 0, 1, 0]]]]), torch.tensor([3]))
    expected = torch.tensor([-0.989992, 0.141120, 0.999550, 0.029996])  # angles 3 and 0.03
    torch.testing.assert_close(turned[0, 0, 0], expected, atol=1e-6, rtol=0)


def test_rotary_scores_depend_on_distances_alone() -> None:
    queries, keys, _ = (x.transpose(1, 2) for x in heads(5, 5))  # [B, T, H, C]

    def scores(first: int) -> torch.Tensor:
        turned = [Rotation(6, 10000.0)(x, torch.arange(first, first + 5)) for x in (queries, keys)]
        return torch.einsum("bqhc,bkhc->bhqk", *turned)

    assert torch.allclose(scores(0), scores(40), atol=1e-4)
    assert not torch.allclose(scores(0), torch.einsum("bqhc,bkhc->bhqk", queries, keys), atol=0.1)


def test_rotary_turns_queries_and_keys_of_another_width_than_values() -> None:
    sizes = AttentionConfig(d_model=8, heads=2, d_k=6, d_v=4, bias=True, dropout=0.0)
    rotation = position_parts["rotary"].rotation(sizes)
    assert rotation is not None
    assert rotation(torch.randn(5, 2, 6), torch.arange(5)).shape == (5, 2, 6)


def test_rotary_turns_at_the_rates_of_its_base() -> None:
    sizes = AttentionConfig(d_model=8, heads=2, d_k=4, d_v=4, bias=True, dropout=0.0)
    rotation = replace(position_parts["rotary"], base=100.0).rotation(sizes)
    assert rotation is not None
    assert rotation.rates.tolist() == pytest.approx([1.0, 0.1])


@pytest.mark.parametrize("base", [0, -10_000])
def test_a_rotation_without_a_rate_is_refused(base: float) -> None:
    positions = {"name": "rotary", "base": base}
    with pytest.raises(NmtError, match=f"model.positions: base must be more than 0, not {base}"):
        build(ModelConfig, {"arch": "transformer_base", "positions": positions}, "model")


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (8, [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]),
        (12, [*(2.0**-h for h in range(1, 9)), 0.7071, 0.3536, 0.1768, 0.0884]),
    ],
)
def test_alibi_slopes_are_the_paper_s(count: int, expected: list[float]) -> None:
    assert alibi_slopes(count) == pytest.approx(expected, abs=1e-4)


def test_alibi_lowers_scores_by_distance() -> None:
    queries, keys, values = heads(3, 3)
    attended = AlibiAttention(4)(AttentionInput(0 * queries, keys, values))
    slope = alibi_slopes(4)[1]
    weights = torch.exp(-slope * torch.tensor([1.0, 0.0, 1.0]))
    expected = (weights / weights.sum()) @ values[:, 1]
    assert torch.allclose(attended[:, 1, 1], expected, atol=1e-6)


def test_relative_attention_is_that_of_the_paper_written_out() -> None:
    queries, keys, values = heads(5, 5)
    attention = RelativeAttention(6, 6, clip=2)
    expected = torch.zeros_like(queries)
    for i in range(5):
        rows = [max(-2, min(2, j - i)) + 2 for j in range(5)]
        scores = (queries[:, :, i, None] * (keys + attention.keys[rows])).sum(-1) / 6**0.5
        weights = scores.softmax(-1)
        expected[:, :, i] = (weights[..., None] * (values + attention.values[rows])).sum(2)
    assert torch.allclose(attention(AttentionInput(queries, keys, values)), expected, atol=1e-5)


@pytest.mark.parametrize("attention", [AlibiAttention(4), RelativeAttention(6, 6, 2)])
def test_the_newest_query_alone_finds_what_it_finds_among_all(attention: torch.nn.Module) -> None:
    queries, keys, values = heads(5, 5)
    whole = attention(AttentionInput(queries, keys, values, causal=True))
    alone = attention(AttentionInput(queries[:, :, -1:], keys, values))
    assert torch.allclose(alone, whole[:, :, -1:], atol=1e-6)


@pytest.mark.parametrize("attention", [AlibiAttention(4), RelativeAttention(6, 6, 2)])
def test_attention_with_positions_drops_weights(attention: torch.nn.Module) -> None:
    queries, keys, values = heads(5, 5)
    assert torch.equal(
        attention(AttentionInput(queries, keys, values)),
        attention(AttentionInput(queries, keys, values)),
    )
    first, second = (
        attention(AttentionInput(queries, keys, values, dropout=0.5)) for _ in range(2)
    )
    assert not torch.equal(first, second)


class BiasedAttention(FullAttention):
    pass


@pytest.mark.parametrize(
    ("attention_fn", "cache"), [(FullAttention(), SharedCache), (BiasedAttention(), OrderedCache)]
)
def test_a_decoder_orders_the_keys_of_all_but_plain_full_attention(
    attention_fn: torch.nn.Module, cache: type[KeyValueCache]
) -> None:
    sizes = AttentionConfig(d_model=24, heads=4, d_k=6, d_v=6, bias=True, dropout=0.0)
    assert type(SelfAttention(sizes, attention_fn).new_cache()) is cache


def test_learned_positions_beyond_the_table_share_its_last_row() -> None:
    positions = LearnedPositions(4, 3, std=1.0)
    assert torch.equal(positions(2, 4, CPU), positions.table.weight[[2, 3, 3, 3]])


def test_the_rates_of_concatenated_sinusoids_end_at_a_ten_thousandth() -> None:
    for layout, last in (("concatenated", 1e-4), ("halves", 10000 ** (-3 / 4))):
        table = sinusoids(2, 8, layout)
        assert table[1, [0, 4]].tolist() == pytest.approx([math.sin(1), math.cos(1)])
        assert table[1, 3].item() == pytest.approx(math.sin(last))
    assert torch.equal(sinusoids(3, 2, "concatenated"), sinusoids(3, 2, "halves"))


@for_each("length", [255, 256, 257, 600])
def test_the_table_of_sinusoids_grows_with_the_longest_input(length: int) -> None:
    positions = SinusoidalPositions(4, offset=1)
    assert torch.equal(positions(0, length, CPU), sinusoids(length + 1, 4)[1:])


def test_a_table_of_sinusoids_that_a_cuda_graph_may_read_is_not_freed() -> None:
    positions = SinusoidalPositions(4)
    table = weakref.ref(positions.table)
    positions(0, 600, CPU)
    assert positions.table is not table()
    assert table() is not None
