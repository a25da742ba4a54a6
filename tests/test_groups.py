"""Means over seeds: errors by hand, and Welch's test against Student's distribution."""

from __future__ import annotations

import math
import random
import statistics

import numpy as np
import pytest

from nmt.evaluation.groups import group_scores, welch_test


def test_the_errors_of_a_group() -> None:
    scores = group_scores({"base": [1.0, 2.0, 4.0], "one": [3.0], "same": [4.0, 2.0, 1.0]})
    base, one, same = scores.values()
    assert base.values == (1.0, 2.0, 4.0)
    assert base.mean == pytest.approx(7 / 3)
    # Squared distances from the mean: 16/9, 1/9 and 25/9, together 14/3.
    assert base.standard_deviation == pytest.approx(math.sqrt(7 / 3))
    assert base.standard_error == pytest.approx(math.sqrt(7 / 9))
    assert base.p_value is None
    assert (one.mean, one.standard_deviation, one.standard_error, one.p_value) == (3.0, *[None] * 3)
    assert same.p_value == pytest.approx(1.0)
    assert group_scores({}) == {}


def test_welch_s_test_where_student_s_distribution_is_elementary() -> None:
    for first, second, freedom in (
        ([1.0, 3.0], [4.0, 6.0], 2),  # of equal variances, 2 (n - 1)
        ([1.0, 3.0], [5.0, 5.0], 1),  # only one side varies
        ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0], 4),
        ([1.0, 2.0, 3.0], [1.5, 2.5, 3.5], 4),
    ):
        squares = [statistics.variance(side) / len(side) for side in (first, second)]
        t = abs(statistics.mean(first) - statistics.mean(second)) / math.sqrt(sum(squares))
        root = t / math.sqrt(t * t + freedom)
        p = {1: 1 - 2 / math.pi * math.atan(t), 2: 1 - root, 4: 1 - root * (3 - root**2) / 2}
        for pair in ((first, second), (second, first)):
            assert welch_test(*pair) == pytest.approx(p[freedom], rel=1e-6)


def test_welch_s_test_is_a_tail_of_student_s_distribution() -> None:
    """Compares with Student's density, added up over a fine grid."""
    draw = random.Random(1)
    for _ in range(20):
        sides = [
            [draw.gauss(mean, sd) for _ in range(draw.randint(2, 6))]
            for mean, sd in ((30.0, 0.5), (30.4, 1.5))
        ]
        squares = [statistics.variance(side) / len(side) for side in sides]
        t = abs(statistics.mean(sides[0]) - statistics.mean(sides[1])) / math.sqrt(sum(squares))
        v = sum(squares) ** 2 / sum(
            part**2 / (len(side) - 1) for part, side in zip(squares, sides, strict=True)
        )
        log_factor = math.lgamma((v + 1) / 2) - math.lgamma(v / 2) - math.log(v * math.pi) / 2
        grid = np.linspace(0, t, 100_001)
        density = math.exp(log_factor) * (1 + grid**2 / v) ** (-(v + 1) / 2)
        middle = float(np.sum((density[1:] + density[:-1]) / 2)) * t / 100_000
        assert welch_test(*sides) == pytest.approx(1 - 2 * middle, abs=1e-4)


def test_nothing_is_said_without_a_variance() -> None:
    for first, second in (([1.0], [2.0, 3.0]), ([2.0, 3.0], [1.0]), ([1.0, 1.0], [2.0, 2.0])):
        assert welch_test(first, second) is None
