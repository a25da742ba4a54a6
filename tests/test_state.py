"""What a decoder remembers between steps."""

from __future__ import annotations

import torch

from nmt.models.state import ROOM, Cache


def test_a_cache_holds_the_steps_so_far_whatever_room_it_makes() -> None:
    generator = torch.Generator().manual_seed(1)
    steps = torch.randn(2 * ROOM + 3, 2, 6, 4, 1, 8, generator=generator)  # [T, k/v, N, H, 1, C]
    cache, rows = Cache(), torch.arange(6)
    for at, (keys, values) in enumerate(steps, start=1):
        held = cache.extend(keys[rows], values[rows])
        for side in (0, 1):
            expected = torch.cat(steps[:at, side].unbind(), dim=2)[rows]
            assert torch.equal(held[side], expected)
        chosen = torch.randint(len(rows), (6,), generator=generator)
        cache.select(chosen)
        rows = rows[chosen]


def test_a_step_moves_nothing_that_is_held() -> None:
    cache = Cache()
    first, _ = cache.extend(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 2))
    second, _ = cache.extend(torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 1, 2))
    assert first.data_ptr() == second.data_ptr()
