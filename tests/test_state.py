"""What a decoder remembers between steps."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from nmt.models.layers.attention import AttentionConfig
from nmt.models.layers.cache import (
    MOST_SHARING,
    ROOM,
    BeamAncestry,
    Cache,
    OrderedCache,
    SharedCache,
)
from nmt.models.layers.sentences import Padded
from nmt.models.transformer.multi_head import SelfAttention
from nmt.models.transformer.positions import Rotation

HEADS = AttentionConfig(d_model=8, heads=2, d_k=4, d_v=4, bias=True, dropout=0.0)


def test_a_cache_holds_the_steps_so_far_whatever_room_it_makes() -> None:
    generator = torch.Generator().manual_seed(1)
    steps = torch.randn(2 * ROOM + 3, 2, 6, 4, 1, 8, generator=generator)  # [T, k/v, N, H, 1, C]
    cache, rows = OrderedCache(), torch.arange(6)
    for at, (keys, values) in enumerate(steps, start=1):
        held = cache.extend(keys[rows], values[rows])
        for side in (0, 1):
            expected = torch.cat(steps[:at, side].unbind(), dim=2)[rows]
            assert torch.equal(held[side], expected)
        chosen = torch.randint(len(rows), (6,), generator=generator)
        cache.select(chosen[:, None], chosen)
        rows = rows[chosen]


def test_a_step_moves_nothing_that_is_held() -> None:
    cache = SharedCache()
    first, _ = cache.extend(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 2))
    second, _ = cache.extend(torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 1, 2))
    assert first.data_ptr() == second.data_ptr()


@pytest.mark.parametrize("rotation", [None, Rotation(4, 10.0)])
@pytest.mark.parametrize("first", [4, MOST_SHARING + 1])
@pytest.mark.parametrize("kind", [SharedCache, OrderedCache])
@torch.no_grad()
def test_a_row_attends_to_its_own_past_whatever_it_follows(
    kind: type[Cache], first: int, rotation: nn.Module | None
) -> None:
    generator = torch.Generator().manual_seed(2)
    attention = SelfAttention(HEADS, rotation=rotation)
    cache: Cache = kind()
    ancestry = BeamAncestry()
    pasts, width = torch.zeros(3, 1, 0, 8), 1  # [B, K, T, D], what each row has been given
    for rows in (first, 4, 2, 5, 5, 5, 3, 3, 1, 2):  # of each of 3, and later 2, sentences
        step = torch.randn(*pasts.shape[:2], 8, generator=generator)
        pasts = torch.cat((pasts, step[:, :, None]), dim=2)
        ancestry.grow(step[..., 0])
        whole = attention(pasts.flatten(0, 1), Padded(), causal=True)
        expected = whole[:, -1].view_as(step)
        torch.testing.assert_close(cache.attend(attention, step, ancestry), expected)
        stay = torch.tensor([0, len(pasts) - 1]) if rows == 2 else torch.arange(len(pasts))
        parents = torch.randint(width, (len(stay), rows), generator=generator)
        chosen = stay[:, None] * width + parents
        if not ancestry.has_branched:
            cache = cache.for_rows(rows)
            assert isinstance(cache, OrderedCache if rows > MOST_SHARING else kind)
        ancestry.select(chosen)
        cache.select(chosen, stay if rows == 2 else None)
        pasts, width = pasts.flatten(0, 1)[chosen], rows
