"""Packs that are filled up to few shapes."""

from __future__ import annotations

import numpy as np
import torch

from nmt.data.packing import Packing
from nmt.models.kernels.packs import filled

LENGTHS = np.array([[5, 1, 9, 3], [7, 2, 4, 4]])


def test_a_pack_is_filled_up_once() -> None:
    source, target = (torch.arange(1, int(side.sum()) + 1) for side in LENGTHS)
    once = filled(source, target, Packing.from_lengths(*LENGTHS))
    assert [len(once[0]), len(once[1])] == [64, 64]
    assert filled(*once) == once


def test_a_pack_of_whole_grains_is_filled_up_by_a_pair_of_a_grain() -> None:
    rounded = Packing.from_lengths(np.array([60, 4]), np.array([30, 2])).rounded
    assert rounded.source.lengths.tolist() == [60, 4, 64]
    assert rounded.target.lengths.tolist() == [30, 2, 32]


def test_an_empty_side_is_not_round() -> None:
    assert Packing.from_lengths(np.array([64]), np.array([64])).is_round
    assert not Packing.from_lengths(np.array([64]), np.array([0])).is_round
