"""The coverage penalty."""

from __future__ import annotations

import math
import random

import pytest
import torch
from for_each import for_each
from table_model import TableModel, random_sources, unpad
from torch import Tensor

from nmt.data.vocabulary import EOS, PAD
from nmt.search import Beam, Hypothesis
from nmt.search.ranking import with_coverage


class Attending(TableModel):
    """A table model that attends by chance, as the source and the target so far say."""

    def weights(self, sentence: tuple[int, ...], prefix: tuple[int, ...]) -> list[float]:
        generator = random.Random(f"{sentence} {prefix}")
        drawn = [generator.random() for _ in sentence]
        return [each / sum(drawn) for each in drawn]

    def source_attention(self, source: Tensor, target: Tensor) -> Tensor:
        given = torch.zeros(*target.shape, source.shape[1])
        for at, (row, tokens) in enumerate(zip(source.tolist(), target.tolist(), strict=True)):
            for step in range(len(tokens)):
                weights = self.weights(unpad(row), (*tokens[: step + 1],))
                given[at, step, : len(weights)] = torch.tensor(weights)
        return given


def test_the_penalty_is_that_of_the_paper() -> None:
    class Given(TableModel):
        def source_attention(self, source: Tensor, target: Tensor) -> Tensor:
            # Over three steps 1.0 and 0.8, and 1.2 on the end, which need not be covered.
            return torch.tensor([[[0.5, 0.3, 0.2], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]])

    hypothesis = Hypothesis([7, 8], -3.0, -3.0 / ((5 + 3) / 6) ** 0.2, finished=True)
    ((found,),) = with_coverage([[hypothesis]], Given(0), torch.tensor([[4, 5, EOS]]), 0.2)
    assert found.score == pytest.approx(-2.8768912, abs=1e-6)
    assert found.log_probability == -3.0


@for_each("seed", range(8))
def test_a_wide_beam_finds_what_exhaustive_search_finds(seed: int) -> None:
    model, source, beam = Attending(seed), random_sources(seed, 2), Beam(beam=200)
    wide = Beam(beam=200, stop="all_finished")
    found = with_coverage(wide.search(model, source, torch.tensor([4, 4])), model, source, 0.5)
    for row, (best, *_) in zip(source.tolist(), found, strict=True):
        sentence = unpad(row)
        scores = {}
        for output in model.all_outputs(4):
            steps = [model.weights(sentence, (2, *output[:at])) for at in range(len(output))]
            sums = [sum(each) for each in zip(*steps, strict=True)][:-1]
            penalty = 0.5 * sum(math.log(min(each, 1.0)) for each in sums)
            divisor = float(beam.length_penalty.divisor(torch.tensor(len(output))))
            scores[output] = model.score(sentence, output) / divisor + penalty
        assert tuple(best.output) == max(scores, key=lambda output: scores[output])
        assert best.score == pytest.approx(scores[tuple(best.output)], abs=1e-5)


@for_each("seed", range(4))
def test_a_batch_gives_what_its_sentences_give_alone(seed: int) -> None:
    model, source, beam = Attending(seed), random_sources(seed, 5), Beam(stop="all_finished")
    max_lengths = torch.tensor([4, 1, 7, 3, 9])
    together = with_coverage(beam.search(model, source, max_lengths), model, source, 0.2)
    for row, max_length, found in zip(source.tolist(), max_lengths, together, strict=True):
        one = torch.tensor([unpad(row)])
        (alone,) = with_coverage(beam.search(model, one, max_length[None]), model, one, 0.2)
        assert [it.tokens for it in alone] == [it.tokens for it in found]
        assert [it.score for it in alone] == pytest.approx([it.score for it in found], abs=1e-5)


class Even(TableModel):
    """A table model that attends to every source token alike."""

    def __init__(self, weight: float) -> None:
        super().__init__(0)
        self.weight = weight

    def source_attention(self, source: Tensor, target: Tensor) -> Tensor:
        return torch.full((*target.shape, source.shape[1]), self.weight)


def test_what_is_not_attended_to_at_all_still_has_a_score() -> None:
    hypothesis = Hypothesis([7], -1.0, -1.0, finished=False)
    source = torch.tensor([[4, EOS, PAD]])
    ((found,),) = with_coverage([[hypothesis]], Even(0.0), source, 1.0)
    assert found.score == pytest.approx(-1.0 + math.log(1e-9))


def test_every_hypothesis_keeps_its_place_also_where_one_is_cut() -> None:
    finished = Hypothesis([7], -2.0, -2.0, finished=True)
    cut = Hypothesis([7, 8], -1.0, -1.0, finished=False)
    (found,) = with_coverage([[finished, cut]], Even(0.5), torch.tensor([[4, 5, EOS]]), 0.2)
    assert [it.tokens for it in found] == [[7], [7, 8]]
