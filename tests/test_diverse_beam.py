"""Diverse beam search, beyond the laws of all strategies."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from for_each import for_each
from table_model import Sentence, TableModel, random_sources, unpad

from nmt.data.vocabulary import BOS, EOS, PAD
from nmt.errors import NmtError
from nmt.recipe.config import build
from nmt.search import Beam, DiverseBeam, Strategy, length_penalties

MAX_LENGTHS = torch.tensor([8, 3, 8, 5])


def plain_diverse_greedy(
    model: TableModel, sentence: Sentence, groups: int, diversity: float, max_length: int
) -> list[Sentence]:
    """Groups of one sequence each, in plain Python, up to their ends."""
    alive: list[Sentence] = [()] * groups
    for _ in range(max_length):
        taken: list[int] = []
        for at, tokens in enumerate(alive):
            if EOS in tokens:
                continue
            values = {
                token: value - diversity * taken.count(token)
                for token, value in enumerate(model.log_probabilities(sentence, tokens))
                if token not in (PAD, BOS)
            }
            best = max(values, key=lambda token: values[token])
            alive[at] = (*tokens, best)
            taken += [best] * (best != EOS)
    return alive


@for_each("seed", range(10))
def test_groups_of_one_give_what_plain_ones_give(seed: int) -> None:
    model, source = TableModel(seed, vocabulary=9), random_sources(seed, 4)
    beam = DiverseBeam(beam=3, groups=3, diversity=0.7, stop="first_beam")
    found = beam.search(model, source, MAX_LENGTHS)
    for row, max_length, hypotheses in zip(
        source.tolist(), MAX_LENGTHS.tolist(), found, strict=True
    ):
        plain = {*plain_diverse_greedy(model, unpad(row), 3, 0.7, max_length)}
        ended = {it for it in plain if EOS in it} or plain
        assert {tuple(it.output) for it in hypotheses} == ended


@for_each("seed", range(10))
def test_one_group_is_a_beam_and_the_first_of_several_a_narrower_one(seed: int) -> None:
    model, source = TableModel(seed, vocabulary=9), random_sources(seed, 4)
    plain = Beam(stop="all_finished").search(model, source, MAX_LENGTHS)
    one = DiverseBeam(groups=1, stop="all_finished")
    assert one.search(model, source, MAX_LENGTHS) == plain
    narrow = Beam(beam=2, stop="all_finished").search(model, source, MAX_LENGTHS)
    several = replace(one, beam=6, groups=3).search(model, source, MAX_LENGTHS)
    for few, many in zip(narrow, several, strict=True):
        if few[0].finished:
            assert {tuple(it.tokens) for it in few} <= {tuple(it.tokens) for it in many}


def test_diversity_gives_more_different_outputs() -> None:
    model, source = TableModel(1, vocabulary=12, spread=4.0), random_sources(1, 16)
    different = []
    for diversity in (0.0, 1.0, 4.0):
        beam = DiverseBeam(beam=4, groups=4, diversity=diversity, stop="first_beam")
        found = beam.search(model, source, torch.full((16,), 6))
        different.append(sum(len({tuple(it.tokens) for it in each}) for each in found))
    assert 16 == different[0] < different[1] <= different[2]


def test_no_output_is_given_twice() -> None:
    model, source = TableModel(1), random_sources(1, 8)
    beam = DiverseBeam(beam=4, groups=2, diversity=0.0, length_penalty=length_penalties["none"])
    for found in beam.search(model, source, torch.full((8,), 6)):
        assert len({tuple(it.tokens) for it in found}) == len(found)


def test_groups_do_not_share_sequences_where_a_list_is_asked_for() -> None:
    model, source = TableModel(1), random_sources(1, 8)
    beam = DiverseBeam(beam=4, groups=2, diversity=0.0)
    lists = beam.search(model, source, torch.full((8,), 6), count=4)
    alone = beam.search(model, source, torch.full((8,), 6))
    assert min(map(len, lists)) == 4
    assert max(map(len, alone)) == 2  # as both groups find the same


@for_each(
    ("values", "message"),
    [
        ({"beam": 4, "groups": 3}, "a beam of 4 cannot be divided into 3 groups"),
        ({"groups": 0}, "a beam of 4 cannot be divided into 0 groups"),
        ({"diversity": -0.5}, "diversity must be at least 0, not -0.5"),
    ],
)
def test_a_mistaken_value_is_one_line(values: dict[str, object], message: str) -> None:
    with pytest.raises(NmtError) as error:
        build(Strategy, {"name": "diverse_beam", **values}, "s")  # type: ignore[type-abstract]
    assert str(error.value) == f"s: {message}"
