"""The laws of search where they meet those of models: every strategy with every architecture."""

from __future__ import annotations

import pytest
import torch
from tiny_models import KINDS_AND_STRATEGIES, VOCABULARY, some_sources, tiny
from torch import Tensor

from nmt.data.vocabulary import BOS, EOS, PAD
from nmt.models import Model
from nmt.models.base import State
from nmt.search import Hypothesis, strategies

every_pair = pytest.mark.parametrize(("arch", "strategy"), KINDS_AND_STRATEGIES)
MAX_LENGTHS = torch.tensor([7, 3, 9])


class Uncached(Model):
    """The same model, which remembers tokens alone and goes over the whole target in each step."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def decode(self, source: Tensor, target: Tensor) -> Tensor:
        return self.model.decode(source, target)

    def start(self, source: Tensor) -> State:
        return Targets(source)

    def project(self, decoder_output: Tensor) -> Tensor:
        return self.model.project(decoder_output)

    def decode_step(self, tokens: Tensor, state: object) -> Tensor:
        assert isinstance(state, Targets)
        state.targets = torch.cat((state.targets, tokens[..., None]), dim=-1)
        rows = state.source[:, None].expand(-1, tokens.size(1), -1).flatten(0, 1)
        last = self.model.decode(rows, state.targets.flatten(0, 1))[:, -1]
        return last.view(*tokens.shape, -1)


class Targets:
    def __init__(self, source: Tensor) -> None:
        self.source = source
        self.targets = source.new_empty((len(source), 1, 0))

    def select(self, rows: Tensor) -> None:
        self.source = self.source[rows[:, 0] // self.targets.size(1)]
        self.targets = self.targets.flatten(0, 1)[rows]


def made(arch: str) -> Model:
    """A tiny model with weights large enough to prefer something."""
    torch.manual_seed(1)
    model = tiny(arch).build(VOCABULARY, VOCABULARY, True).eval()
    with torch.no_grad():
        model.output.weight.mul_(3.0)
    return model


def found(model: Model, strategy: str, source: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
    with torch.no_grad():
        return strategies[strategy].search(model, source, lengths)


def assert_same(left: list[Hypothesis], right: list[Hypothesis]) -> None:
    assert [it.output for it in left] == [it.output for it in right]
    assert [it.score for it in left] == pytest.approx([it.score for it in right], abs=1e-5)


@every_pair
def test_a_batch_gives_what_its_sentences_give_alone(arch: str, strategy: str) -> None:
    model, source = made(arch), some_sources()
    together = found(model, strategy, source, MAX_LENGTHS)
    for at, row in enumerate(source):
        one = row[row != PAD][None]
        (alone,) = found(model, strategy, one, MAX_LENGTHS[at : at + 1])
        assert_same(alone, together[at])
        assert not {PAD, BOS, EOS} & set(together[at][0].tokens)


@every_pair
def test_cached_decoding_gives_what_uncached_gives(arch: str, strategy: str) -> None:
    model, source = made(arch), some_sources()
    cached = found(model, strategy, source, MAX_LENGTHS)
    uncached = found(Uncached(model), strategy, source, MAX_LENGTHS)
    for left, right in zip(cached, uncached, strict=True):
        assert_same(left, right)
