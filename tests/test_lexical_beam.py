"""Phrases that must appear, beyond the laws of all strategies."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from for_each import for_each
from table_model import TableModel, random_sources, unpad
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nmt.data.vocabulary import BOS, PAD
from nmt.errors import NmtError
from nmt.recipe.config import build
from nmt.search import LexicalBeam, Strategy
from nmt.search.constraints import MaxLength
from nmt.search.lexical import LexicalBeamState, phrase_progress

PHRASES = torch.tensor([[[4, 5, 6], [5, 7, PAD], [PAD, PAD, PAD]]])


@for_each(
    ("tokens", "count", "is_whole", "lacking"),
    [
        ([], 0, False, [4, 5, PAD]),
        ([8, 4], 1, False, [5, 5, PAD]),
        ([4, 5], 2, False, [6, 7, PAD]),  # a beginning of both
        ([4, 5, 8], 0, False, [4, 5, PAD]),  # and of none once it was not gone on with
        ([4, 5, 6], 3, False, [PAD, 5, PAD]),
        ([4, 5, 6, 5], 4, False, [PAD, 7, PAD]),
        ([4, 5, 7, 4], 3, False, [5, PAD, PAD]),
        ([5, 7, 4, 5, 6, 8], 5, True, [PAD, PAD, PAD]),
    ],
)
def test_how_much_a_sequence_holds(
    tokens: list[int], count: int, is_whole: bool, lacking: list[int]
) -> None:
    given = phrase_progress(torch.tensor([[[BOS, *tokens]]]), PHRASES)
    assert [it.tolist() for it in given] == [[[count]], [[is_whole]], [[lacking]]]


def test_phrases_are_held_by_a_beam_that_is_narrower_than_they_are_long() -> None:
    model, source = TableModel(1, vocabulary=12), random_sources(1, 8)
    phrases = torch.tensor([[[9, 10, 11, 4], [8, 8, PAD, PAD]]]).expand(8, -1, -1)
    for found in LexicalBeam(beam=2).search(model, source, torch.full((8,), 7), (), phrases):
        for it in found:
            text = " ".join(map(str, it.tokens))
            assert "9 10 11 4" in text
            assert "8 8" in text


def test_where_there_is_no_room_for_all_phrases_as_much_as_may_be_is_held() -> None:
    model, source = TableModel(1, vocabulary=12), random_sources(1, 8)
    phrases = torch.tensor([[[9, 10, 11, 4]]]).expand(8, -1, -1)
    for found in LexicalBeam().search(model, source, torch.full((8,), 3), (), phrases):
        assert found[0].tokens == [9, 10, 11]
        assert not found[0].finished


def test_cut_outputs_beside_finished_ones_hold_all_phrases() -> None:
    both = 0
    for seed in range(40):
        model, source = TableModel(seed, vocabulary=8), random_sources(seed, 6)
        phrases = torch.tensor([[[6, 7]]]).expand(6, -1, -1)
        max_lengths = torch.full((6,), 4)
        for found in LexicalBeam(beam=6).search(model, source, max_lengths, (), phrases, count=6):
            finished = {it.finished for it in found}
            both += finished == {True, False}
            if True in finished:
                assert all("6 7" in " ".join(map(str, it.tokens)) for it in found)
    assert both


def test_a_list_with_phrases_holds_no_output_twice() -> None:
    model, source = TableModel(1, vocabulary=8), random_sources(1, 6)
    phrases = torch.tensor([[[6, 7], [6, 5]]]).expand(6, -1, -1)
    max_lengths = torch.full((6,), 20)
    lists = LexicalBeam(beam=8).search(model, source, max_lengths, (), phrases, count=4)
    assert max(map(len, lists)) > 1
    for found in lists:
        assert len({tuple(it.output) for it in found}) == len(found)


def test_each_bank_gets_its_share_and_the_fullest_comes_first() -> None:
    values, tokens = zip(
        (-1.0, [8, 9]),  # one token of the phrase
        (-2.0, [7, 9]),
        (-3.0, [6, 9]),  # beyond the share of two
        (-4.0, [8, 8]),  # none
        (-5.0, [7, 7]),
        (-6.0, [6, 6]),
        (-7.0, [9, 10]),  # both
        (float("-inf"), [9, 10]),
        strict=True,
    )
    phrases = torch.tensor([[[9, 10]]])
    state = LexicalBeam().open_with(random_sources(1, 1), torch.tensor([5]), 1, phrases)
    assert isinstance(state, LexicalBeamState)
    order = state._shared_out(torch.tensor([values]), torch.tensor([tokens]), 6)
    assert order.tolist() == [[6, 0, 1, 3, 4, 2, 5, 7]]


def test_memory_does_not_grow_with_the_square_of_the_candidates() -> None:
    sizes = []

    class Sizes(TorchDispatchMode):
        """Notes the size of every tensor."""

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            sizes.extend(it.numel() for it in tree_leaves(result) if isinstance(it, Tensor))
            return result

    phrases = torch.tensor([[[9, 10]]])
    with Sizes():
        LexicalBeam(beam=16).search(
            TableModel(1, vocabulary=40), random_sources(1, 1), torch.tensor([6]), (), phrases
        )
    candidates = 16 * (2 * 16 + 1)
    assert max(sizes) < candidates**2 / 4


@for_each("stop", ["optimistic", "all_finished", "first_beam", "current_length"])
def test_at_a_greatest_length_nothing_goes_on_after_its_end(stop: str) -> None:
    phrases = torch.tensor([[[7]], [[PAD]]])  # the second sentence has none
    for seed in range(8):
        model, source = TableModel(seed, vocabulary=40), random_sources(seed, 2)
        beam = LexicalBeam(stop=stop)  # type: ignore[arg-type]
        together = beam.search(
            model, source, torch.tensor([20, 20]), [MaxLength(length=3)], phrases
        )
        for row, found in zip(source.tolist(), together, strict=True):
            for it in found:
                score = model.score(unpad(row), (*it.output,))
                assert it.log_probability == pytest.approx(score, abs=1e-5)


@for_each("key", ["pruning", "pruning_tokens", "pruning_finished"])
def test_pruning_is_refused(key: str) -> None:
    with pytest.raises(NmtError) as error:
        build(Strategy, {"name": "lexical_beam", key: 3}, "s")  # type: ignore[type-abstract]
    assert str(error.value) == f"s: {key} would give up what phrases make unlikely; use none"
