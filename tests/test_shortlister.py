"""The laws of search with a shortlist: every strategy with every architecture, and what else is."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from tiny_models import KINDS_AND_STRATEGIES, VOCABULARY, some_sources, tiny
from torch import Tensor

from nmt.data.shortlist import Origin, Shortlist
from nmt.data.vocabulary import BOS, EOS, PAD, UNK
from nmt.inference.fast.kernels import convert
from nmt.inference.fast.shortlister import Shortlister
from nmt.models import Model
from nmt.models.ensemble import Ensemble
from nmt.runtime.precision import InferencePrecision, autocast
from nmt.search import Constraint, Hypothesis, Prefixes, Strategy, strategies
from nmt.search.constraints import Forbidden, NoRepeatNgram

every_pair = pytest.mark.parametrize(("arch", "strategy"), KINDS_AND_STRATEGIES)
MAX_LENGTHS = torch.tensor([7, 3, 9])
ORIGIN = Origin(
    subwords="",
    data="",
    target_vocabulary=VOCABULARY,
    shared_vocabulary=False,
    pairs=0,
    iterations=0,
)
EVERYTHING = Shortlist(
    np.arange(VOCABULARY, dtype=np.int32), np.full((VOCABULARY, 1), EOS, np.int32), ORIGIN
)
# Three of its own for each token, so that lists differ; EOS alone has none.
OWN = np.array([[4 + (7 * it + by) % 19 for by in (0, 3, 8)] for it in range(VOCABULARY)], np.int32)
OWN[: EOS + 1] = EOS
FEW = Shortlist(np.array([5], np.int32), OWN, ORIGIN)


def made(arch: str, seed: int = 2) -> Model:
    """A tiny model with weights large enough to prefer something."""
    torch.manual_seed(seed)
    model = tiny(arch).build(VOCABULARY, VOCABULARY, True).eval()
    with torch.no_grad():
        model.output.weight.mul_(3.0)
    return model


def ensemble(average: str) -> Model:
    members = [made("transformer_base"), made("gnmt", seed=2)]
    return Ensemble(members, [2.0, 1.0], average)  # type: ignore[arg-type]


def found(
    shortlister: Shortlister,
    strategy: Strategy,
    source: Tensor,
    lengths: Tensor,
    constraints: list[Constraint] | None = None,
    phrases: Tensor | None = None,
    forced: Tensor | None = None,
) -> list[list[Hypothesis]]:
    with torch.no_grad():
        few = shortlister.choose(source, source[:, :0] if forced is None else forced)
        return few.search(strategy, source, lengths, constraints or [], phrases)


def assert_same(left: list[Hypothesis], right: list[Hypothesis]) -> None:
    assert [it.output for it in left] == [it.output for it in right]
    assert [it.score for it in left] == pytest.approx([it.score for it in right], abs=1e-5)


def assert_each_is_as_alone(shortlister: Shortlister, strategy: Strategy) -> None:
    source = some_sources()
    together = found(shortlister, strategy, source, MAX_LENGTHS)
    for at, row in enumerate(source):
        one = row[row != PAD][None]
        (alone,) = found(shortlister, strategy, one, MAX_LENGTHS[at : at + 1])
        assert_same(alone, together[at])


@every_pair
def test_a_list_of_all_tokens_changes_nothing(arch: str, strategy: str) -> None:
    model, source = made(arch), some_sources()
    with torch.no_grad():
        whole = strategies[strategy].search(model, source, MAX_LENGTHS)
    listed = found(Shortlister(EVERYTHING, model), strategies[strategy], source, MAX_LENGTHS)
    for left, right in zip(listed, whole, strict=True):
        assert_same(left, right)


@every_pair
def test_a_batch_gives_what_its_sentences_give_alone(arch: str, strategy: str) -> None:
    assert_each_is_as_alone(Shortlister(FEW, made(arch)), strategies[strategy])


@pytest.mark.parametrize("average", ["probability", "log_probability"])
@pytest.mark.parametrize("strategy", ["beam", "sample"])
def test_of_an_ensemble_too(average: str, strategy: str) -> None:
    assert_each_is_as_alone(Shortlister(FEW, ensemble(average)), strategies[strategy])


@pytest.mark.parametrize("strategy", strategies)
def test_outputs_are_of_the_list_and_share_its_probability(strategy: str) -> None:
    model, source = made("transformer_base"), some_sources()
    lists = FEW.chosen(source.numpy())
    assert not (lists == lists[0]).all()
    hypotheses = found(Shortlister(FEW, model), strategies[strategy], source, MAX_LENGTHS)
    for row, allowed, given in zip(source, torch.from_numpy(lists), hypotheses, strict=True):
        for it in given:
            assert allowed[it.tokens].all()
            inputs = torch.tensor([[BOS, *it.output[:-1]]])
            with torch.no_grad():
                logits = model(row[row != PAD][None], inputs)[0]
            log_probs = logits.masked_fill(~allowed, float("-inf")).log_softmax(-1)
            expected = log_probs.gather(-1, torch.tensor(it.output)[:, None]).sum()
            assert it.log_probability == pytest.approx(float(expected), abs=1e-4)


def test_what_is_forced_is_there_and_constraints_mean_what_they_meant() -> None:
    model, source, lengths = made("transformer_base"), some_sources(), torch.tensor([9, 9, 9])
    shortlister = Shortlister(FEW, model)
    lists = FEW.chosen(source.numpy())
    missing = [int(np.flatnonzero(~row)[-1]) for row in lists]
    prefix = torch.tensor([[it, 5] for it in missing])
    plain = found(shortlister, strategies["beam"], source, lengths)
    banned = plain[0][0].tokens[0]
    rules = [Prefixes(tokens=prefix, others=[Forbidden(tokens=(UNK, banned, missing[1])),
                                             NoRepeatNgram(size=1)])]  # fmt: skip
    for begun, hypotheses in zip(
        prefix.tolist(),
        found(shortlister, strategies["beam"], source, lengths, rules, forced=prefix),
        strict=True,
    ):
        for it in hypotheses:
            assert it.tokens[:2] == begun
            assert banned not in it.tokens[2:]
            assert len(set(it.tokens)) == len(it.tokens)
    phrases = prefix[:, None]
    beam = replace(strategies["lexical_beam"], beam=6)
    for begun, hypotheses in zip(
        prefix.tolist(),
        found(shortlister, beam, source, lengths, phrases=phrases, forced=prefix),
        strict=True,
    ):
        tokens = hypotheses[0].tokens
        assert begun in [tokens[at : at + 2] for at in range(len(tokens))]


def test_the_search_makes_as_many_hypotheses_as_are_asked_for() -> None:
    strategy, source = Mock(), some_sources()
    strategy.search.return_value = []
    few = Shortlister(FEW, made("gnmt")).choose(source, source[:, :0])
    few.search(strategy, source, MAX_LENGTHS, [], None, 3)
    assert strategy.search.call_args.args[-1] == 3


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_in_every_precision(precision: InferencePrecision) -> None:
    model, source, cpu = made("gnmt"), some_sources(), torch.device("cpu")
    exact = found(Shortlister(FEW, model), strategies["greedy"], source, MAX_LENGTHS)
    shortlister = Shortlister(FEW, model, precision)
    narrow = shortlister._narrow(model, torch.tensor([EOS]))
    kept = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    assert narrow(torch.zeros(1, model.output.in_features, dtype=kept)).dtype == kept
    convert(model, precision, cpu)
    with autocast(precision, cpu):
        low = found(shortlister, strategies["greedy"], source, MAX_LENGTHS)
    allowed = FEW.chosen(source.numpy())
    for one, other, row in zip(low, exact, allowed, strict=True):
        assert row[one[0].tokens].all()
        assert one[0].score == pytest.approx(other[0].score, abs=1e-5 if precision == "fp32" else 1)
