"""Directions that are sampled by a temperature."""

from __future__ import annotations

import numpy as np
import pytest
from for_each import for_each

from nmt.data.sampler import DirectionSampler, RandomSampler

DIRECTIONS = np.repeat([0, 2, 5], [800, 100, 30])  # of a shard, not every number is there
LENGTHS = np.random.default_rng(1).integers(2, 12, len(DIRECTIONS))


def sampler(temperature: float, seed: int = 1) -> DirectionSampler:
    return DirectionSampler(LENGTHS, LENGTHS + 1, 200, seed, DIRECTIONS, temperature)


def drawn(sampled: RandomSampler, epoch: int) -> np.ndarray:
    """How often an epoch holds each sentence."""
    return np.bincount(np.concatenate(sampled.epoch(epoch)), minlength=len(LENGTHS))


@for_each("temperature", [1.0, 2.0, 5.0, 1e6])
def test_the_pairs_of_an_epoch_are_in_the_proportions_of_the_paper(temperature: float) -> None:
    sampled = sampler(temperature)
    expected = np.array([800, 100, 30]) ** (1 / temperature)
    expected *= len(LENGTHS) / expected.sum()
    counts = np.bincount(DIRECTIONS, drawn(sampled, 1))[[0, 2, 5]]
    assert counts.sum() == len(LENGTHS)
    assert np.abs(counts - expected).max() <= 1
    assert np.abs(sampled.draws - expected).max() <= 1


def test_each_pair_of_a_direction_is_drawn_equally_often_or_once_more() -> None:
    for epoch in (1, 2):
        times = drawn(sampler(5.0), epoch)
        for number in (0, 2, 5):
            of_direction = times[number == DIRECTIONS]
            assert of_direction.max() - of_direction.min() <= 1
    assert drawn(sampler(5.0), 1).tolist() != drawn(sampler(5.0), 2).tolist()


def test_the_updates_are_a_function_of_the_seed_and_have_nearly_equal_sizes() -> None:
    one, two, other = sampler(5.0), sampler(5.0), sampler(5.0, seed=2)
    for update in (1, one.updates_per_epoch, one.updates_per_epoch + 1, 90):
        [first], [second], [third] = one.update(update), two.update(update), other.update(update)
        assert first.tolist() == second.tolist() != third.tolist()
        assert 180 <= (LENGTHS[first] + 1).sum() <= 220
    assert one.epoch_of(one.updates_per_epoch + 1) == 2


def test_a_temperature_of_one_draws_every_pair_once() -> None:
    assert drawn(sampler(1.0), 1).tolist() == [1] * len(LENGTHS)
    plain = RandomSampler(LENGTHS, LENGTHS + 1, 200, 1)
    assert plain.updates_per_epoch == sampler(1.0).updates_per_epoch


def test_the_size_of_updates_is_that_of_the_directions_as_they_are_drawn() -> None:
    targets = np.where(DIRECTIONS == 0, 4, 40)
    sampled = DirectionSampler(LENGTHS, targets, 200, 1, DIRECTIONS, 1e6)
    tokens = targets[np.concatenate(sampled.epoch(1))].sum()
    assert tokens / sampled.updates_per_epoch == pytest.approx(200, rel=0.05)


def test_with_a_temperature_near_zero_only_the_largest_direction_is_drawn() -> None:
    assert sampler(0.001).draws.tolist() == [len(LENGTHS), 0, 0]
