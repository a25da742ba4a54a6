"""The laws of search, for every registered strategy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import pytest
import torch
from for_each import for_each
from table_model import Sentence, TableModel, random_sources, unpad
from torch import Tensor

from nmt.data.vocabulary import BOS, EOS, PAD, UNK
from nmt.errors import NmtError
from nmt.search import (
    Beam,
    Constraint,
    Hypothesis,
    Prefixes,
    Sample,
    Strategy,
    constraints,
    strategies,
)
from nmt.search.constraints import Forbidden, MaxLength, MinLength, NoRepeatNgram
from nmt.search.hypotheses import Continuations

STOPS = ("all_finished", "first_beam", "current_length", "shrinking_beam")
LIMITS = ("pruning", "pruning_tokens", "pruning_finished")
"""Of beams, which may so miss what is best."""


def variants() -> list[Strategy]:
    """Every strategy, and the beams also with other widths, stops and limits."""
    found = [strategies[name] for name in strategies]
    for strategy in list(found):
        names = {field.name for field in fields(strategy)}
        if "beam" in names:
            for beam in (1, 3):
                groups = {"groups": beam} if "groups" in names else {}
                found.append(replace(strategy, beam=beam, **groups))
        if "stop" in names:
            found += [replace(strategy, stop=stop) for stop in STOPS]
        limits = LIMITS if strategy.name != "lexical_beam" else ()  # which it refuses
        found += [replace(strategy, **{limit: 1.0}) for limit in limits if limit in names]
        if "samples" in names:
            found += [
                replace(strategy, samples=3, **it) for it in ({}, {"top_k": 3}, {"top_p": 0.8})
            ]
    return found


def is_pruned(beam: Beam) -> bool:
    return any(getattr(beam, limit) is not None for limit in LIMITS)


def ids(strategy: Strategy) -> str:
    extra = [
        str(getattr(strategy, name, ""))
        for name in ("beam", "groups", "stop", *LIMITS, "samples", "top_k", "top_p")
    ]
    return " ".join([strategy.name, *extra]).strip()


def with_seeds(strategies: Sequence[Strategy]) -> pytest.MarkDecorator:
    """Parametrises a test with strategies, each with two seeds of eight."""
    cases = [
        (strategy, (3 * at + step) % 8) for at, strategy in enumerate(strategies) for step in (0, 1)
    ]
    names = [f"{ids(strategy)} {seed}" for strategy, seed in cases]
    return pytest.mark.parametrize(("strategy", "seed"), cases, ids=names)


every_strategy = pytest.mark.parametrize("strategy", variants(), ids=ids)
every_strategy_with_seeds = with_seeds(variants())
every_seed = for_each("seed", range(8))


def same(left: list[Hypothesis], right: list[Hypothesis]) -> bool:
    return [(it.tokens, it.finished) for it in left] == [
        (it.tokens, it.finished) for it in right
    ] and [it.score for it in left] == pytest.approx([it.score for it in right], abs=1e-5)


@every_strategy_with_seeds
def test_a_batch_gives_what_its_sentences_give_alone(strategy: Strategy, seed: int) -> None:
    model, source = TableModel(seed), random_sources(seed, 6)
    max_lengths = torch.tensor([4, 1, 7, 3, 12, 7])
    together = strategy.search(model, source, max_lengths)
    assert max(map(len, together)) <= strategy.max_hypotheses
    for row, max_length, found in zip(source.tolist(), max_lengths, together, strict=True):
        (alone,) = strategy.search(model, torch.tensor([unpad(row)]), max_length[None])
        assert same(found, alone)


@every_strategy_with_seeds
def test_a_log_probability_is_the_one_the_model_gives(strategy: Strategy, seed: int) -> None:
    model, source = TableModel(seed), random_sources(seed, 4)
    max_lengths = torch.tensor([2, 5, 3, 9])
    found = strategy.search(model, source, max_lengths)
    for row, max_length, hypotheses in zip(
        source.tolist(), max_lengths.tolist(), found, strict=True
    ):
        assert hypotheses
        assert [it.score for it in hypotheses] == sorted(
            (it.score for it in hypotheses), reverse=True
        )
        for it in hypotheses:
            assert not {PAD, BOS, EOS} & set(it.tokens)
            assert len(it.tokens) + it.finished <= max_length
            assert it.finished or len(it.tokens) == max_length
            output = (*it.tokens, EOS) if it.finished else tuple(it.tokens)
            assert it.log_probability == pytest.approx(model.score(unpad(row), output), abs=1e-5)


def some_outputs(
    model: TableModel, sentence: Sentence, max_length: int, strategy: Strategy, most: int
) -> set[Sentence]:
    """At least `most` outputs, finished or cut, or all that a strategy may give."""
    found: set[Sentence] = set()
    begun: list[Sentence] = [()]
    while begun and len(found) < most:
        tokens = begun.pop()
        if EOS in tokens or len(tokens) == max_length:
            found.add(tokens)
            continue
        following = {UNK, *range(EOS, model.vocabulary)}
        if isinstance(strategy, Sample):
            logits = torch.tensor(model.row(sentence, (BOS, *tokens)))
            continuations = Continuations.from_logits(logits).log_probabilities.double()
            following = set(strategy.probabilities(continuations).nonzero()[:, 0].tolist())
        begun += [(*tokens, token) for token in following]
    return found


@every_strategy_with_seeds
def test_a_list_has_as_many_distinct_hypotheses_as_are_wanted(
    strategy: Strategy, seed: int
) -> None:
    model, source = TableModel(seed), random_sources(seed, 4)
    max_lengths = torch.tensor([4, 1, 2, 9])
    for count in {min(2, strategy.max_hypotheses), strategy.max_hypotheses}:
        together = strategy.search(model, source, max_lengths, count=count)
        for row, max_length, found in zip(source.tolist(), max_lengths, together, strict=True):
            possible = some_outputs(model, unpad(row), int(max_length), strategy, count)
            assert len({tuple(it.output) for it in found}) == len(found)
            assert len(found) >= min(count, len(possible))
            ranks = [(it.finished, it.score) for it in found]
            assert ranks == sorted(ranks, reverse=True)
            for it in found:
                assert it.finished or len(it.tokens) == max_length
                score = model.score(unpad(row), (*it.output,))
                assert it.log_probability == pytest.approx(score, abs=1e-5)
            sentence = torch.tensor([unpad(row)])
            (alone,) = strategy.search(model, sentence, max_length[None], count=count)
            assert same(found, alone)


@with_seeds([it for it in variants() if type(it) is Beam and not is_pruned(it)])
def test_a_list_of_a_beam_begins_with_what_is_found_without_it(strategy: Beam, seed: int) -> None:
    model, source = TableModel(seed), random_sources(seed, 6)
    max_lengths = torch.tensor([4, 1, 7, 3, 2, 12])
    lists = strategy.search(model, source, max_lengths, count=strategy.beam)
    for found, (best, *_) in zip(lists, strategy.search(model, source, max_lengths), strict=True):
        assert same(found[:1], [best])


@pytest.mark.parametrize("strategy", [it for it in variants() if it.rows_per_sentence > 1], ids=ids)
def test_a_list_may_be_longer_than_the_search_is_wide(strategy: Strategy) -> None:
    count = 2 * strategy.rows_per_sentence
    (found,) = strategy.search(TableModel(1), random_sources(1, 1), torch.tensor([16]), count=count)
    assert len({tuple(it.output) for it in found}) == len(found)
    if not isinstance(strategy, Sample):  # which may have fewer
        assert len(found) >= count


def test_a_list_of_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="count must be at least 1, not 0"):
        Beam(beam=4).search(TableModel(0), random_sources(0, 1), torch.tensor([3]), count=0)


@with_seeds([it for it in variants() if hasattr(it, "beam") and not is_pruned(it)])
def test_a_wide_beam_finds_what_exhaustive_search_finds(strategy: Strategy, seed: int) -> None:
    model, source, max_length = TableModel(seed), random_sources(seed, 2), 4
    wide = replace(strategy, beam=300)  # in each group, more than all prefixes of 3 tokens
    found = wide.search(model, source, torch.tensor([max_length] * 2))
    penalty = wide.length_penalty
    for row, hypotheses in zip(source.tolist(), found, strict=True):
        scores = {
            output: model.score(unpad(row), output)
            / float(penalty.divisor(torch.tensor(len(output))))
            for output in model.all_outputs(max_length)
        }
        best = max(scores, key=lambda output: scores[output])
        assert (*hypotheses[0].tokens, EOS) == best
        assert hypotheses[0].score == pytest.approx(scores[best], abs=1e-5)


CONSTRAINTS = [
    Forbidden(tokens=(UNK,)),
    MinLength(length=3),
    MaxLength(length=3),
    NoRepeatNgram(size=2),
]
every_constraint = pytest.mark.parametrize("constraint", CONSTRAINTS, ids=repr)


def test_every_constraint_is_tested() -> None:
    assert {type(constraints[name]) for name in constraints} == set(map(type, CONSTRAINTS))


def keeps(constraint: Constraint, output: tuple[int, ...]) -> bool:
    """Whether a whole output, its end included, is one that the constraint allows."""
    match constraint:
        case Forbidden():
            return not set(constraint.tokens) & set(output)
        case MinLength():
            return output[-1] != EOS or len(output) - 1 >= constraint.length
        case MaxLength():
            return len(output) - (output[-1] == EOS) <= constraint.length
        case NoRepeatNgram():
            at = range(len(output) - constraint.size + 1)
            ngrams = [output[it : it + constraint.size] for it in at]
            return len(set(ngrams)) == len(ngrams)
    raise AssertionError(constraint)


@every_strategy
@for_each("constraint", CONSTRAINTS)
def test_constraints_are_kept_in_a_batch_as_alone(
    strategy: Strategy, constraint: Constraint
) -> None:
    seed = (variants().index(strategy) + CONSTRAINTS.index(constraint)) % 8
    model, source = TableModel(seed), random_sources(seed, 4)
    max_lengths = torch.tensor([6, 1, 9, 4])
    together = strategy.search(model, source, max_lengths, [constraint])
    for row, max_length, found in zip(source.tolist(), max_lengths, together, strict=True):
        sentence = torch.tensor([unpad(row)])
        (alone,) = strategy.search(model, sentence, max_length[None], [constraint])
        assert same(found, alone)
        for it in found:
            output = (*it.tokens, EOS) if it.finished else tuple(it.tokens)
            assert keeps(constraint, output)
            assert it.log_probability == pytest.approx(model.score(unpad(row), output), abs=1e-5)


@every_constraint
@every_seed
def test_a_wide_beam_finds_the_best_of_what_a_constraint_allows(
    constraint: Constraint, seed: int
) -> None:
    model, source = TableModel(seed), random_sources(seed, 1)
    wide = Beam(beam=200)
    ((found, *_),) = wide.search(model, source, torch.tensor([4]), [constraint])
    scores = all_scores(model, source, wide)
    kept = {output for output in scores if keeps(constraint, output)}
    assert (*found.tokens, EOS) == max(kept, key=lambda output: scores[output])


PREFIXES = torch.tensor([[4, 5, UNK], [PAD, PAD, PAD], [5, 5, PAD], [UNK, PAD, PAD]])


@every_strategy_with_seeds
def test_beginnings_are_kept_in_a_batch_as_alone(strategy: Strategy, seed: int) -> None:
    model, source = TableModel(seed), random_sources(seed, 4)
    max_lengths = torch.tensor([3, 1, 9, 4])
    others = (Forbidden(tokens=(UNK,)),)  # which a beginning may hold all the same
    beginnings = Prefixes(tokens=PREFIXES, others=others)
    together = strategy.search(model, source, max_lengths, [beginnings])
    for at, found in enumerate(together):
        own = Prefixes(tokens=PREFIXES[at : at + 1], others=others)
        sentence = unpad(source[at].tolist())
        (alone,) = strategy.search(model, torch.tensor([sentence]), max_lengths[at : at + 1], [own])
        assert same(found, alone)
        prefix = unpad(PREFIXES[at].tolist())
        for it in found:
            assert tuple(it.tokens[: len(prefix)]) == prefix
            assert UNK not in it.tokens[len(prefix) :]
            assert it.log_probability == pytest.approx(model.score(sentence, (*it.output,)))


@pytest.mark.parametrize("prefix", [(4,), (5, 4)], ids=str)
@every_seed
def test_a_wide_beam_finds_the_best_of_what_begins_so(prefix: tuple[int], seed: int) -> None:
    model, source, wide = TableModel(seed), random_sources(seed, 1), Beam(beam=200)
    beginning = Prefixes(tokens=torch.tensor([prefix]))
    ((found, *_),) = wide.search(model, source, torch.tensor([4]), [beginning])
    scores = all_scores(model, source, wide)
    begins = {output for output in scores if output[: len(prefix)] == prefix}
    assert tuple(found.output) == max(begins, key=lambda output: scores[output])


def all_scores(model: TableModel, source: Tensor, beam: Beam) -> dict[tuple[int, ...], float]:
    """Of every output that ends within four tokens, for the only source."""
    (row,) = source.tolist()
    return {
        output: model.score(unpad(row), output)
        / float(beam.length_penalty.divisor(torch.tensor(len(output))))
        for output in model.all_outputs(4)
    }


PHRASES = torch.tensor(
    [
        [[4, 5, PAD], [UNK, PAD, PAD]],
        [[PAD, PAD, PAD], [PAD, PAD, PAD]],
        [[5, 5, 4], [5, PAD, PAD]],
        [[UNK, PAD, PAD], [4, 4, PAD]],
    ]
)


def holds(output: Sequence[int], phrases: Tensor) -> bool:
    """Whether the phrases [P, L] are runs of the output."""
    wanted = [unpad(phrase) for phrase in phrases.tolist()]
    runs = {tuple(output[at : at + n]) for at in range(len(output)) for n in (1, 2, 3)}
    return {*wanted} - {()} <= runs


can_place_phrases = with_seeds(
    [it for it in variants() if type(it).open_with is not Strategy.open_with]
)


@can_place_phrases
def test_phrases_appear_in_a_batch_as_alone(strategy: Strategy, seed: int) -> None:
    model, source = TableModel(seed), random_sources(seed, 4)
    max_lengths = torch.tensor([4, 3, 9, 12])
    together = strategy.search(model, source, max_lengths, phrases=PHRASES)
    for at, found in enumerate(together):
        sentence, own = unpad(source[at].tolist()), PHRASES[at : at + 1]
        (alone,) = strategy.search(
            model, torch.tensor([sentence]), max_lengths[at : at + 1], phrases=own
        )
        assert same(found, alone)
        for it in found:
            assert holds(it.tokens, own[0])
            assert it.log_probability == pytest.approx(model.score(sentence, (*it.output,)))


@can_place_phrases
def test_without_phrases_the_search_is_that_of_a_beam(strategy: Beam, seed: int) -> None:
    values = {field.name: getattr(strategy, field.name) for field in fields(Beam)}
    model, source = TableModel(seed), random_sources(seed, 4)
    max_lengths = torch.tensor([4, 3, 9, 12])
    together = strategy.search(model, source, max_lengths, phrases=PHRASES)
    plain = Beam(**values).search(model, source, max_lengths)
    assert same(together[1], plain[1])
    assert strategy.search(model, source, max_lengths) == plain


@can_place_phrases
@for_each("phrases", [[[4, 5]], [[UNK, PAD], [5, PAD]], [[5, 5], [5, 4]]])
def test_a_wide_beam_finds_the_best_of_what_holds_the_phrases(
    phrases: list[list[int]], strategy: Beam, seed: int
) -> None:
    model, source, wide = TableModel(seed), random_sources(seed, 1), replace(strategy, beam=200)
    wanted = torch.tensor([phrases])
    ((found, *_),) = wide.search(model, source, torch.tensor([4]), phrases=wanted)
    scores = all_scores(model, source, wide)
    allowed = {output for output in scores if holds(output, wanted[0])}
    assert tuple(found.output) == max(allowed, key=lambda output: scores[output])


@for_each("strategy", [it for it in variants() if type(it).open_with is Strategy.open_with])
def test_other_strategies_refuse_phrases(strategy: Strategy) -> None:
    with pytest.raises(NmtError) as error:
        strategy.search(TableModel(0), random_sources(0, 4), torch.tensor([9] * 4), (), PHRASES)
    assert str(error.value) == (
        f"search.strategy: {strategy.name} cannot place phrases that must appear; use lexical_beam"
    )


@for_each("strategy", variants())
def test_constraints_that_leave_nothing_are_an_error(strategy: Strategy) -> None:
    nothing = Forbidden(tokens=(UNK, 4, 5))
    with pytest.raises(NmtError, match="leave no translation at all; loosen one of them"):
        strategy.search(
            TableModel(0), random_sources(0, 2), torch.tensor([5, 5]), [nothing, MinLength()]
        )


@for_each("strategy", variants())
def test_sentences_that_are_done_leave_the_batch(strategy: Strategy) -> None:
    model, source = TableModel(1), random_sources(1, 3)
    strategy.search(model, source, torch.tensor([1, 1, 2]))
    assert model.sentences_stepped <= 4


@for_each("strategy", variants())
def test_logits_that_are_not_numbers_are_an_error_with_the_step(strategy: Strategy) -> None:
    class Diverged(TableModel):
        def step(self, tokens, state):  # type: ignore[no-untyped-def]
            logits = super().step(tokens, state)
            logits[..., EOS] = -30.0
            if self.steps == 2:
                logits[0, 0, PAD] = float("nan")
            return logits

    with pytest.raises(NmtError, match="step 2 of the search: the model's logits are not"):
        strategy.search(Diverged(0), random_sources(0, 2), torch.tensor([5, 5]))


@for_each("strategy", variants())
def test_a_greatest_length_below_one_is_an_error(strategy: Strategy) -> None:
    with pytest.raises(ValueError, match="a max_length must be at least 1, not 0"):
        strategy.search(TableModel(0), random_sources(0, 2), torch.tensor([3, 0]))
