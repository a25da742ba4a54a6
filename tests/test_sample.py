"""Sampling, beyond the laws of all strategies."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import torch
from table_model import TableModel, unpad

from nmt.data.vocabulary import BOS, EOS, UNK
from nmt.errors import NmtError
from nmt.recipe.config import build
from nmt.search import Greedy, Sample, Strategy
from nmt.search.continuations import BLOCK, Continuations
from nmt.search.sample import drawn

SOURCE = torch.tensor([[7, 8, EOS]])


def samples(strategy: Sample, model: TableModel, max_length: int = 6) -> list[list[int]]:
    (found,) = strategy.search(model, SOURCE, torch.tensor([max_length]))
    return [it.tokens for it in found]


def test_tokens_are_drawn_with_the_probabilities_of_the_model() -> None:
    model, count = TableModel(3), 20_000
    counts = Counter(tuple(it) for it in samples(Sample(samples=count), model, max_length=1))
    given = model.log_probabilities(unpad(SOURCE[0].tolist()), ())
    possible = {token: math.exp(given[token]) for token in (UNK, EOS, 4, 5)}
    for token in (UNK, 4, 5):
        expected = possible[token] / sum(possible.values())
        assert counts[(token,)] / count == pytest.approx(expected, abs=0.015)


def test_different_samples_are_drawn_without_replacement() -> None:
    class OneTable(TableModel):
        def __init__(self) -> None:
            super().__init__(3, spread=1.0)
            row, self.row = self.row, lambda _, prefix: row((), prefix)  # type: ignore[assignment]

    model, count = OneTable(), 2000
    outputs = [(EOS,), *((a, b) for a in (UNK, 4, 5) for b in (UNK, EOS, 4, 5))]

    def probability(output: tuple[int, ...]) -> float:
        rows = [torch.tensor(model.row((), (BOS, *output[:at]))) for at in range(len(output))]
        follow = Continuations.from_logits(torch.stack(rows)).log_probabilities
        given = Sample().probabilities(follow).tolist()
        return math.prod(row[token] for row, token in zip(given, output, strict=True))

    source = torch.tensor([[at, EOS] for at in range(4, 4 + count)])
    found = Sample(samples=2).search(model, source, torch.full((count,), 2), count=2)
    sets = Counter(frozenset(tuple(it.output) for it in each) for each in found)
    for one, other in itertools.combinations(outputs, 2):
        p, q = probability(one), probability(other)
        assert sets[frozenset((one, other))] / count == pytest.approx(
            p * q / (1 - p) + q * p / (1 - q), abs=0.02
        )


def test_a_list_of_samples_holds_as_many_as_are_drawn_or_asked_for() -> None:
    model, max_lengths = TableModel(3, vocabulary=20), torch.tensor([6])
    for drawn_samples, count in ((6, 2), (2, 6)):
        (found,) = Sample(samples=drawn_samples).search(model, SOURCE, max_lengths, count=count)
        assert len({tuple(it.output) for it in found}) == 6


def test_a_low_temperature_or_one_token_to_draw_from_is_greedy() -> None:
    model = TableModel(5)
    ((greedy,),) = Greedy().search(model, SOURCE, torch.tensor([6]))
    assert samples(Sample(temperature=1e-4), model) == [greedy.tokens]
    assert samples(Sample(top_k=1), model) == [greedy.tokens]
    assert samples(Sample(top_p=1e-6), model) == [greedy.tokens]


def test_another_seed_gives_other_samples_and_the_same_one_the_same() -> None:
    model = TableModel(5)
    first, again, other = (samples(Sample(samples=5, seed=it), model) for it in (1, 1, 2))
    assert first == again != other


def test_what_tokens_are_drawn_with() -> None:
    logits = torch.tensor([0.0, 0.1, 0.0, 0.2, 0.1, 0.0]).log()  # of PAD, UNK, BOS, EOS, 4, 5

    def probabilities(**keys: float) -> list[float]:
        return [round(it, 4) for it in Sample(**keys).probabilities(logits).tolist()]  # type: ignore[arg-type]

    assert probabilities() == [0, 0.25, 0, 0.5, 0.25, 0]
    assert probabilities(temperature=0.5) == [0, 0.1667, 0, 0.6667, 0.1667, 0]
    assert probabilities(top_k=1) == [0, 0, 0, 1, 0, 0]
    assert probabilities(top_p=0.5) == [0, 0, 0, 0.5, 0, 0]  # not divided by what is left
    assert probabilities(top_p=0.51) == [0, 0.25, 0, 0.5, 0.25, 0]  # equals stay together


def test_a_top_p_of_one_leaves_every_token() -> None:
    logits = 3 * torch.randn(32_000, generator=torch.Generator().manual_seed(1))
    assert Sample(top_p=1.0).probabilities(logits).count_nonzero() == 32_000


def test_draws_are_those_of_cumulative_sums_and_nothing_impossible() -> None:
    generator = torch.Generator().manual_seed(1)
    numbers = torch.rand(30, 40, dtype=torch.float64, generator=generator)
    numbers[:, 0], numbers[:, 1] = 0.0, 1 - 2.0**-53
    for vocabulary in (3, BLOCK, 10 * BLOCK + 7):
        probabilities = torch.rand(30, 1, vocabulary, generator=generator)
        probabilities[probabilities < 0.5] = 0.0
        probabilities[..., 1] += 0.1  # something is always possible
        up_to = probabilities.double().cumsum(-1).expand(-1, 40, -1).contiguous()
        expected = torch.searchsorted(up_to, numbers[..., None] * up_to[..., -1:], right=True)
        tokens = drawn(probabilities, numbers)
        given = probabilities.expand(-1, 40, -1).gather(-1, tokens[..., None])
        assert bool((given > 0).all())
        assert torch.equal(tokens[:, 2:], expected[:, 2:, 0])


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("samples", 0, "samples must be at least 1, not 0"),
        ("temperature", 0, "temperature must be at least 1e-06, not 0"),
        ("top_k", 0, "top_k must be at least 1, not 0"),
        ("top_p", 1.5, "top_p lies in (0, 1], not 1.5"),
    ],
)
def test_a_mistaken_value_is_one_line(key: str, value: float, message: str) -> None:
    with pytest.raises(NmtError) as error:
        build(Strategy, {"name": "sample", key: value}, "s")  # type: ignore[type-abstract]
    assert str(error.value) == f"s: {message}"
