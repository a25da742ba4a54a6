import pytest
import torch

from nmt.models.attention import mix_values
from nmt.models.patterns import (
    LinformerAttention,
    NeighbourhoodAttention,
    PerformerAttention,
    orthogonal_features,
)


def heads(length: int) -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.randn(2, 3, length, 8, requires_grad=True) for _ in range(3)]


@pytest.mark.parametrize("kind", ["full", "masked", "causal"])
def test_full_attention_finds_the_same_with_and_without_gradients(kind: str) -> None:
    queries, keys, values = heads(5)
    mask = (torch.arange(5) < torch.tensor([[5], [3]]))[:, None, None] if kind == "masked" else None
    trained = mix_values(queries, keys, values, mask, causal=kind == "causal")
    with torch.no_grad():
        found = mix_values(queries, keys, values, mask, causal=kind == "causal")
    assert torch.allclose(found, trained, atol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("length", "radius"), [(1, 3), (7, 1), (8, 4), (23, 5), (9, 30)])
def test_a_neighbourhood_is_full_attention_with_a_mask(
    length: int, radius: int, causal: bool
) -> None:
    queries, keys, values = heads(length)
    lengths = torch.tensor([length, max(1, length - 4)])
    tokens = torch.arange(length) < lengths[:, None]  # [B, S]
    distance = torch.arange(length)[:, None] - torch.arange(length)
    near = (distance <= radius) & (distance >= (0 if causal else -radius))
    allowed = near & tokens[:, None, None, :]
    mask = tokens[:, None, None, :]
    at_tokens = tokens[:, None, :, None]
    own = NeighbourhoodAttention(radius)(queries, keys, values, mask, causal) * at_tokens
    # A row of padding may have nothing to attend to: it sees everything, and is not compared.
    full = mix_values(queries, keys, values, allowed | ~tokens[:, None, :, None]) * at_tokens
    assert torch.allclose(own, full, atol=1e-5)
    for mine, theirs in zip(
        torch.autograd.grad(own.square().sum(), (queries, keys, values)),
        torch.autograd.grad(full.square().sum(), (queries, keys, values)),
        strict=True,
    ):
        assert torch.allclose(mine, theirs, atol=1e-4)


def test_the_newest_query_alone_sees_its_neighbourhood() -> None:
    queries, keys, values = heads(9)
    attention = NeighbourhoodAttention(3)
    whole = attention(queries, keys, values, causal=True)
    alone = attention(queries[:, :, -1:], keys, values)
    assert torch.allclose(alone, whole[:, :, -1:], atol=1e-6)


def test_a_neighbourhood_holds_no_matrix_of_all_pairs() -> None:
    queries, keys, values = heads(64)
    largest = 0

    def watch(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal largest
        largest = max(largest, tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(watch, lambda tensor: tensor):
        NeighbourhoodAttention(4)(queries, keys, values, causal=True)
    assert largest <= 2 * 3 * (64 + 8) * 2 * 8  # n times the keys of a block or its features


@pytest.mark.parametrize("masked", [False, True])
def test_a_performer_comes_near_the_softmax(masked: bool) -> None:
    queries, keys, values = (0.5 * x.detach() for x in heads(12))
    mask = (torch.arange(12) < torch.tensor([[12], [5]]))[:, None, None] if masked else None
    attention = PerformerAttention(orthogonal_features(4096, 8, seed=1))
    own, full = (mix(queries, keys, values, mask) for mix in (attention, mix_values))
    without_keys = mix_values(0 * queries, keys, values, mask)
    assert (own - full).abs().mean() < 0.3 * (without_keys - full).abs().mean()


def test_a_performer_divides_by_no_zero_where_queries_and_keys_share_no_feature() -> None:
    torch.manual_seed(1)
    queries, values = (torch.randn(16, 4, 2, 64) for _ in range(2))
    queries = (10 * queries).requires_grad_()
    features = orthogonal_features(128, 64, seed=1)
    mixed = PerformerAttention(features)(queries, -queries, values)
    mixed.square().sum().backward()
    assert queries.grad is not None
    assert queries.grad.isfinite().all()
    scaled = queries.detach().double() * 64**-0.25
    by_query, by_key = (x @ features.double().t() for x in (scaled, -scaled))
    by_key = by_key - scaled.square().sum(-1, keepdim=True) / 2
    scores = (by_query[:, :, :, None] + by_key[:, :, None]).logsumexp(-1)
    expected = scores.softmax(-1) @ values.double()
    torch.testing.assert_close(mixed.double(), expected, atol=1e-4, rtol=1e-4)


def test_features_are_orthogonal_and_the_same_for_a_seed() -> None:
    features = orthogonal_features(8, 8, seed=3)
    products = features @ features.t()
    assert torch.allclose(products, torch.diag(products.diag()), atol=1e-4)
    assert torch.equal(features, orthogonal_features(8, 8, seed=3))
    assert not torch.equal(features, orthogonal_features(8, 8, seed=4))


def test_a_linformer_that_mixes_nothing_is_full_attention() -> None:
    queries, keys, values = heads(6)
    attention = LinformerAttention(rank=6, max_positions=6)
    for weight in attention.parameters():
        torch.nn.init.eye_(weight)
    own = attention(queries, keys, values)
    assert torch.allclose(own, mix_values(queries, keys, values), atol=1e-6)


def test_a_linformer_does_not_attend_beyond_its_positions() -> None:
    queries, keys, values = heads(6)
    attention = LinformerAttention(rank=2, max_positions=4)
    cut = attention(queries, keys[:, :, :4], values[:, :, :4])
    assert torch.equal(attention(queries, keys, values), cut)
