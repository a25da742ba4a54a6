"""Sampling, beyond the laws of all strategies."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import torch
from for_each import for_each
from table_model import TableModel, unpad

from nmt.data.vocabulary import BOS, EOS, UNK
from nmt.errors import NmtError
from nmt.recipe.config import build
from nmt.search import Avoided, Constraint, Greedy, Sample, Strategy
from nmt.search.constraints import MaxLength, MinLength, NoRepeatNgram
from nmt.search.hypotheses import BLOCK, Continuations
from nmt.search.sample import LEAST_TEMPERATURE, drawn

SOURCE = torch.tensor([[7, 8, EOS]])
AFTER_FOUR = torch.tensor([[[4, UNK], [4, 4], [4, 5]]])


def samples(strategy: Sample, model: TableModel, max_length: int = 6) -> list[list[int]]:
    (found,) = strategy.search(model, SOURCE, torch.tensor([max_length]))
    return [it.tokens for it in found]


def probability(model: TableModel, output: tuple[int, ...]) -> float:
    """The probability that a whole output is drawn for the source."""
    sentence = unpad(SOURCE[0].tolist())
    rows = [model.row(sentence, (BOS, *output[:at])) for at in range(len(output))]
    follow = Continuations.from_logits(torch.tensor(rows)).log_probabilities
    given = Sample().probabilities(follow).tolist()
    return math.prod(row[token] for row, token in zip(given, output, strict=True))


OUTPUTS = [(EOS,), *itertools.product((UNK, 4, 5), (UNK, EOS, 4, 5))]
"""All outputs of at most two tokens."""


def test_outputs_are_drawn_with_the_probabilities_of_the_model() -> None:
    model, count = TableModel(3, spread=1.0), 10_000
    (found,) = Sample(samples=count).search(model, SOURCE, torch.tensor([2]))
    counts = Counter(tuple(it.output) for it in found)
    for output in OUTPUTS:
        assert counts[output] / count == pytest.approx(probability(model, output), abs=0.015)


@pytest.mark.parametrize("samples", [2, 3])
def test_different_samples_are_drawn_without_replacement(samples: int) -> None:
    class OneTable(TableModel):
        def __init__(self) -> None:
            super().__init__(3, spread=1.0)
            sentence, row = unpad(SOURCE[0].tolist()), self.row
            self.row = lambda _, prefix: row(sentence, prefix)  # type: ignore[assignment]

    model, count = OneTable(), 2000
    source = torch.tensor([[at, EOS] for at in range(4, 4 + count)])
    max_lengths = torch.full((count,), 2)
    found = Sample(samples=samples).search(model, source, max_lengths, count=samples)
    pairs = Counter(
        pair
        for each in found
        for pair in itertools.combinations(sorted(tuple(it.output) for it in each), 2)
    )
    expected: Counter[tuple[tuple[int, ...], ...]] = Counter()
    probabilities = {output: probability(model, output) for output in sorted(OUTPUTS)}
    for order in itertools.permutations(probabilities, samples):
        likelihood, rest = 1.0, 1.0
        for output in order:
            likelihood *= probabilities[output] / rest
            rest -= probabilities[output]
        expected.update(dict.fromkeys(itertools.combinations(sorted(order), 2), likelihood))
    for pair in itertools.combinations(probabilities, 2):
        assert pairs[pair] / count == pytest.approx(expected[pair], abs=0.02)


def test_a_list_of_samples_holds_as_many_as_are_drawn_or_asked_for() -> None:
    model, max_lengths = TableModel(3, vocabulary=20), torch.tensor([6])
    for drawn_samples, count in ((6, 2), (2, 6)):
        (found,) = Sample(samples=drawn_samples).search(model, SOURCE, max_lengths, count=count)
        assert len({tuple(it.output) for it in found}) == 6


@pytest.mark.parametrize(
    ("constraints", "count"),
    [
        ([MaxLength(length=2), NoRepeatNgram(size=1)], 10),  # after an end nothing may follow
        ([MinLength(length=2), MaxLength(length=2), Avoided(phrases=AFTER_FOUR)], 6),
    ],
    ids=["after an end", "after a token"],
)
def test_a_list_is_full_although_nothing_may_follow_some_sequences(
    constraints: list[Constraint], count: int
) -> None:
    (found,) = Sample().search(TableModel(3), SOURCE, torch.tensor([5]), constraints, count=count)
    assert len({tuple(it.output) for it in found}) == count


def test_a_list_ends_with_the_last_output_that_may_be_drawn() -> None:
    model = TableModel(5)
    (found,) = Sample(top_k=1).search(model, SOURCE, torch.tensor([60]), count=3)
    assert [len(it.output) for it in found] == [model.steps]


def test_a_low_temperature_or_one_token_to_draw_from_is_greedy() -> None:
    model = TableModel(5)
    ((greedy,),) = Greedy().search(model, SOURCE, torch.tensor([6]))
    assert samples(Sample(temperature=LEAST_TEMPERATURE), model) == [greedy.tokens]
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
    assert probabilities(top_k=7) == probabilities()
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


@for_each(
    ("key", "value", "message"),
    [
        ("samples", 0, "samples must be at least 1, not 0"),
        ("temperature", 0, "temperature must be at least 1e-06, not 0"),
        ("top_k", 0, "top_k must be at least 1, not 0"),
        ("top_p", 0, "top_p lies in (0, 1], not 0"),
        ("top_p", 1.5, "top_p lies in (0, 1], not 1.5"),
    ],
)
def test_a_mistaken_value_is_one_line(key: str, value: float, message: str) -> None:
    with pytest.raises(NmtError) as error:
        build(Strategy, {"name": "sample", key: value}, "s")  # type: ignore[type-abstract]
    assert str(error.value) == f"s: {message}"
