import torch
from for_each import for_each

from nmt.models.layers.attention import AttentionInput, FullAttention
from nmt.models.transformer.patterns import NeighbourhoodAttention


def heads(length: int) -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.randn(2, 3, length, 8, requires_grad=True) for _ in range(3)]


@for_each("kind", ["full", "masked", "causal"])
def test_full_attention_finds_the_same_with_and_without_gradients(kind: str) -> None:
    queries, keys, values = heads(5)
    mask = (torch.arange(5) < torch.tensor([[5], [3]]))[:, None, None] if kind == "masked" else None
    attention = FullAttention()
    inputs = AttentionInput(queries, keys, values, mask, causal=kind == "causal")
    trained = attention(inputs)
    with torch.no_grad():
        found = attention(inputs)
    assert torch.allclose(found, trained, atol=1e-6)


@for_each("causal", [False, True])
@for_each(("length", "radius"), [(1, 3), (7, 1), (8, 4), (23, 5), (9, 30)])
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
    inputs = AttentionInput(queries, keys, values, mask, causal)
    own = NeighbourhoodAttention(radius)(inputs) * at_tokens
    # A row of padding may have nothing to attend to: it sees everything, and is not compared.
    inputs = AttentionInput(queries, keys, values, allowed | ~tokens[:, None, :, None])
    full = FullAttention()(inputs) * at_tokens
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
    whole = attention(AttentionInput(queries, keys, values, causal=True))
    alone = attention(AttentionInput(queries[:, :, -1:], keys, values))
    assert torch.allclose(alone, whole[:, :, -1:], atol=1e-6)


def test_a_neighbourhood_holds_no_matrix_of_all_pairs() -> None:
    queries, keys, values = heads(64)
    largest = 0

    def watch(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal largest
        largest = max(largest, tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(watch, lambda tensor: tensor):
        NeighbourhoodAttention(4)(AttentionInput(queries, keys, values, causal=True))
    assert largest <= 2 * 3 * (64 + 8) * 2 * 8  # n times the keys of a block or its features
