"""Beam and greedy search, and the length penalties, beyond the laws of all strategies."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from for_each import for_each
from table_model import Sentence, TableModel, random_sources, unpad
from tiny_models import VOCABULARY, some_sources, tiny

from nmt.data.vocabulary import BOS, EOS, PAD, UNK
from nmt.errors import NmtError
from nmt.recipe.config import build
from nmt.search import Beam, Greedy, LengthPenalty, Strategy, length_penalties
from nmt.search.constraints import Forbidden
from nmt.search.hypotheses import Continuations, top_by_blocks

NONE = length_penalties["none"]
PENALTIES = [length_penalties[name] for name in length_penalties]


def divisor(penalty: LengthPenalty, length: int) -> float:
    return float(penalty.divisor(torch.tensor(length)))


def plain_beam_search(
    model: TableModel, sentence: Sentence, beam: Beam, max_length: int
) -> list[tuple[Sentence, float]]:
    """Beam search in plain Python, one sentence, that never stops early."""
    alive: list[tuple[Sentence, float]] = [((), 0.0)]
    finished: list[tuple[Sentence, float]] = []
    for length in range(1, max_length + 1):
        candidates = [
            ((*tokens, token), total + gain)
            for tokens, total in alive
            for token, gain in enumerate(model.log_probabilities(sentence, tokens))
            if token not in (PAD, BOS)
        ]
        candidates = sorted(candidates, key=lambda it: -it[1])[: 2 * beam.beam]
        alive = [it for it in candidates if it[0][-1] != EOS][: beam.beam]
        penalty = divisor(beam.length_penalty, length)
        finished += [(it[0], it[1] / penalty) for it in candidates if it[0][-1] == EOS]
        finished = sorted(finished, key=lambda it: -it[1])[: beam.beam]
    return finished or [(tokens, total / penalty) for tokens, total in alive]


@for_each("seed", range(10))
@for_each("penalty", PENALTIES)
@for_each("width", [1, 2, 4])
def test_beam_search_gives_what_a_plain_one_without_early_stop_gives(
    width: int, penalty: LengthPenalty, seed: int
) -> None:
    model, source, max_length = TableModel(seed, vocabulary=8), random_sources(seed, 4), 9
    max_lengths = torch.full((4,), max_length)
    beam = Beam(beam=width, length_penalty=penalty, stop="optimistic")
    optimistic = beam.search(model, source, max_lengths)
    all_finished = replace(beam, stop="all_finished").search(model, source, max_lengths)
    for at, row in enumerate(source.tolist()):
        plain = plain_beam_search(model, unpad(row), beam, max_length)
        found = [(*it.tokens, EOS)[: len(it.tokens) + it.finished] for it in all_finished[at]]
        assert found == [tokens for tokens, _ in plain]
        assert [it.score for it in all_finished[at]] == pytest.approx(
            [score for _, score in plain], abs=1e-5
        )
        assert optimistic[at][0] == all_finished[at][0]


def test_the_optimistic_stop_saves_steps() -> None:
    model = TableModel(3)
    steps = []
    for stop in ("optimistic", "all_finished"):
        model.steps = 0
        Beam(stop=stop).search(model, random_sources(3, 1), torch.tensor([60]))  # type: ignore[arg-type]
        steps.append(model.steps)
    assert steps[0] < steps[1] < 60


@for_each("seed", range(20))
def test_greedy_is_a_beam_of_one_that_stops_at_its_first_end(seed: int) -> None:
    model, source = TableModel(seed), random_sources(seed, 5)
    max_lengths = torch.tensor([8, 2, 8, 1, 5])
    one = Beam(beam=1, length_penalty=NONE, stop="first_beam")
    assert Greedy().search(model, source, max_lengths) == one.search(model, source, max_lengths)


@for_each("seed", range(20))
def test_greedy_search_without_constraints_finds_what_the_common_loop_finds(seed: int) -> None:
    model, source = TableModel(seed), random_sources(seed, 5)
    max_lengths = torch.tensor([8, 2, 8, 1, 5])
    common = Greedy().search(model, source, max_lengths, [Forbidden(tokens=())])
    assert Greedy().search(model, source, max_lengths) == common


def test_greedy_search_may_run_where_gradients_are_recorded() -> None:
    torch.manual_seed(1)
    model = tiny("transformer_tiny").build(VOCABULARY, VOCABULARY, True).eval()
    source = some_sources()
    max_lengths = torch.full((len(source),), 5)
    with torch.no_grad():
        expected = Greedy().search(model, source, max_lengths)
    assert [
        [hypothesis.tokens for hypothesis in hypotheses]
        for hypotheses in Greedy().search(model, source, max_lengths)
    ] == [[hypothesis.tokens for hypothesis in hypotheses] for hypotheses in expected]


@for_each("seed", range(20))
def test_the_papers_beam_of_one_is_never_worse_than_greedy(seed: int) -> None:
    # It is not the same: an end that was second best may win once the best has gone on.
    model, source, max_lengths = TableModel(seed), random_sources(seed, 5), torch.full((5,), 30)
    greedy = Greedy().search(model, source, max_lengths)
    one = Beam(beam=1, length_penalty=NONE).search(model, source, max_lengths)
    for (left,), (right,) in zip(greedy, one, strict=True):
        assert right.score >= left.score or not left.finished


class Given(TableModel):
    """A model with the given probabilities after each target; after others, the end."""

    def __init__(self, probabilities: dict[Sentence, dict[int, float]]) -> None:
        super().__init__(0)

        def row(sentence: Sentence, prefix: Sentence) -> list[float]:
            given = probabilities.get(prefix[1:], {EOS: 1.0})
            return torch.tensor([given.get(it, 1e-9) for it in range(6)]).log().tolist()

        self.row = row  # type: ignore[assignment]


def best(strategy: Strategy, model: TableModel, max_length: int = 5) -> tuple[list[int], bool]:
    ((first, *_),) = strategy.search(model, torch.tensor([[7, EOS]]), torch.tensor([max_length]))
    return first.tokens, first.finished


def test_a_beam_finds_what_greedy_misses() -> None:
    model = Given({(): {4: 0.6, 5: 0.4}, (4,): {4: 0.6, 5: 0.4}, (5,): {4: 1.0}})
    assert best(Greedy(), model) == ([4, 4], True)  # probability 0.6 x 0.6
    assert best(Beam(beam=2, length_penalty=NONE), model) == ([5, 4], True)  # 0.4 x 1


def test_the_length_penalty_decides_between_short_and_long() -> None:
    model = Given({(): {EOS: 0.5, 4: 0.45}, (4,): {4: 1.0}})
    assert best(Beam(beam=2, length_penalty=NONE), model) == ([], True)
    assert best(Beam(beam=2, stop="optimistic"), model) == ([4, 4], True)


def test_without_an_end_the_best_alive_hypothesis_is_given() -> None:
    model = Given({(): {4: 0.6, 5: 0.4}, (4,): {4: 0.9, 5: 0.1}})
    assert best(Greedy(), model, max_length=2) == ([4, 4], False)
    never = Given({(): {4: 1.0}, (4,): {5: 1.0}, (4, 5): {4: 1.0}})
    never_row = never.row
    never.row = lambda sentence, prefix: [  # type: ignore[assignment]
        float("-inf") if token == EOS else logit
        for token, logit in enumerate(never_row(sentence, prefix))
    ]
    assert best(Beam(), never, max_length=3) == ([4, 5, 4], False)


def test_a_finished_hypothesis_is_preferred_to_a_likelier_unfinished_one() -> None:
    model = Given({(): {4: 0.9, EOS: 0.1}, (4,): {4: 0.9, 5: 0.1}})
    assert best(Beam(beam=1, stop="optimistic"), model, max_length=2) == ([], True)


@pytest.mark.parametrize("stop", ["first_beam", "current_length"])
def test_an_end_that_was_second_best_may_win_but_not_where_the_first_end_stops(stop: str) -> None:
    model = Given({(): {4: 0.6, EOS: 0.4}, (4,): {4: 0.4, EOS: 0.6}})
    beam = Beam(beam=1, length_penalty=NONE, stop="optimistic")
    assert best(beam, model) == ([], True)  # 0.4
    assert best(replace(beam, stop=stop), model) == ([4], True)  # type: ignore[arg-type]  # 0.36


def test_a_hypothesis_that_ends_leaves_the_shrinking_beam_smaller() -> None:
    rows = {(): {4: 0.6, EOS: 0.4}, (4,): {5: 0.5, EOS: 0.3, 4: 0.2}, (4, 5): {EOS: 0.9, 4: 0.1}}
    penalty = build(LengthPenalty, {"name": "power", "alpha": 1.0}, "x")  # type: ignore[type-abstract]
    beam = Beam(beam=2, length_penalty=penalty, stop="shrinking_beam")
    # The end after 4 is the second-best of the step, but one place of two is left.
    assert best(beam, Given(rows)) == ([4, 5], True)
    assert best(replace(beam, stop="first_beam"), Given(rows)) == ([4], True)


def test_pruning_gives_up_what_is_far_below_the_best() -> None:
    model = Given({(): {4: 0.6, 5: 0.4}, (4,): {4: 0.6, 5: 0.4}, (5,): {4: 1.0}})
    wide = Beam(beam=2, length_penalty=NONE)
    assert best(replace(wide, pruning=0.41), model) == ([5, 4], True)  # log(0.6 / 0.4) = 0.405
    assert best(replace(wide, pruning=0.40), model) == ([4, 4], True)


def test_tokens_that_are_far_below_the_likeliest_one_may_be_given_up() -> None:
    model = Given({(): {4: 0.6, 5: 0.4}, (4,): {4: 0.6, 5: 0.4}, (5,): {4: 1.0}})
    wide = Beam(beam=2, length_penalty=NONE)
    assert best(replace(wide, pruning_tokens=0.41), model) == ([5, 4], True)  # log(0.6 / 0.4)
    assert best(replace(wide, pruning_tokens=0.40), model) == ([4, 4], True)
    assert best(replace(wide, pruning_tokens=0.0), model) == ([4, 4], True)  # the likeliest alone


def test_what_is_far_below_the_best_that_is_finished_may_be_given_up() -> None:
    model = Given({(): {EOS: 0.5, 4: 0.45}, (4,): {4: 1.0}})
    steps = []
    for limit, found in ((0.11, ([4, 4], True)), (0.10, ([], True))):  # log(0.5 / 0.45) = 0.105
        model.steps = 0
        penalty = build(LengthPenalty, {"name": "power", "alpha": 1.0}, "x")  # type: ignore[type-abstract]
        beam = Beam(beam=2, length_penalty=penalty, pruning_finished=limit)
        # After one token the scores are still those of one token.
        assert best(beam, model) == found
        steps.append(model.steps)
    assert steps[1] == 1 < steps[0]


def test_what_is_far_below_the_best_that_is_finished_is_so_by_its_score() -> None:
    model = Given({(): {EOS: 0.5, 4: 0.45}, (4,): {4: 0.8, 5: 0.1}})
    penalty = build(LengthPenalty, {"name": "power", "alpha": 1.0}, "x")  # type: ignore[type-abstract]
    beam = Beam(beam=2, length_penalty=penalty, pruning_finished=0.11)
    # After two tokens: log(0.45 * 0.8) / 2 = -0.51 is more than log(0.5) = -0.69 of the end.
    assert best(beam, model) == ([4, 4], True)


@for_each("strategy", [Greedy(), Beam(), Beam(beam=1)])
def test_equals_go_to_the_lowest_id(strategy: Strategy) -> None:
    model = Given({(): {UNK: 1 / 3, 4: 1 / 3, 5: 1 / 3}})
    (found,) = strategy.search(model, torch.tensor([[7, EOS]]), torch.tensor([5]))
    expected = [[UNK], [4], [5]]
    assert [it.tokens for it in found][:3] == expected[: strategy.rows_per_sentence]


def test_a_constraint_that_forbids_nothing_leaves_greedy_search_the_lowest_id_of_equals() -> None:
    model = Given({(): {4: 1 / 2, 5: 1 / 2}})
    for constraints in ([], [Forbidden(tokens=())]):
        ((found,),) = Greedy().search(
            model, torch.tensor([[7, EOS]]), torch.tensor([5]), constraints
        )
        assert found.tokens == [4]


def test_the_likeliest_tokens_are_those_of_the_softmax() -> None:
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(3, 2, 50, generator=generator)
    logits[..., PAD] = logits[..., BOS] = 9.0  # likeliest of all, but never produced
    values, tokens = Continuations.from_logits(logits).likeliest(7)
    expected = logits.log_softmax(-1)
    expected[..., [PAD, BOS]] = float("-inf")
    torch.testing.assert_close(values.sort(descending=True)[0][..., :7], expected.topk(7)[0])
    for_values = expected.gather(-1, tokens).where(values > float("-inf"), float("-inf"))
    torch.testing.assert_close(values, for_values)
    assert not {PAD, BOS} & set(tokens.flatten().tolist())


def test_half_precision_logits_give_log_probabilities_in_full_precision() -> None:
    values, _ = Continuations.from_logits(torch.zeros(1, 1, 1000, dtype=torch.bfloat16)).likeliest(
        1
    )
    assert values.max().item() == pytest.approx(-6.907755, abs=1e-5)


@for_each(
    ("length", "expected"),
    [(1, 1.0), (5, 1.358655), (7, 1.515717), (10, 1.732862), (20, 2.354362), (50, 3.778565)],
)
def test_the_gnmt_penalty_has_the_papers_values(length: int, expected: float) -> None:
    assert divisor(length_penalties["gnmt"], length) == pytest.approx(expected, abs=2e-6)


@for_each(
    ("penalty", "power"),
    [
        (NONE, 0.0),
        (length_penalties["power"], 1.0),
        (replace(length_penalties["power"], alpha=0.6), 0.6),
        (length_penalties["gnmt"], 0.4979),  # 0.6 log(35/25) / log(30/20)
    ],
)
def test_the_nearest_power_of_a_penalty(penalty: LengthPenalty, power: float) -> None:
    assert penalty.nearest_power == power


def test_gnmt_and_power_penalties_of_one_alpha_differ() -> None:
    gnmt, power = (
        build(LengthPenalty, {"name": it, "alpha": 0.6}, "x") for it in ("gnmt", "power")
    )
    assert divisor(gnmt, 25) / divisor(gnmt, 20) == pytest.approx(1.1156, abs=1e-4)
    assert divisor(power, 25) / divisor(power, 20) == pytest.approx(1.1433, abs=1e-4)


@for_each("penalty", PENALTIES)
def test_a_penalty_never_falls_with_length(penalty: LengthPenalty) -> None:
    alpha = random.Random(1).random() * 3
    values = {"name": penalty.name} | ({"alpha": alpha} if hasattr(penalty, "alpha") else {})
    divisors = build(LengthPenalty, values, "x").divisor(torch.arange(1, 300))
    assert divisors.dtype == torch.float32
    assert (divisors.diff() >= 0).all()


@for_each(
    ("values", "message"),
    [
        ({"name": "beam", "beam": 0}, "s: beam must be at least 1, not 0"),
        ({"name": "beam", "pruning": -1}, "s: pruning must be at least 0, not -1"),
        ({"name": "beam", "pruning_tokens": -1}, "s: pruning_tokens must be at least 0, not -1"),
        (
            {"name": "beam", "pruning_finished": -1},
            "s: pruning_finished must be at least 0, not -1",
        ),
        (
            {"name": "greedy", "beam": 4},
            "s: greedy has no key 'beam'; beam, diverse_beam and lexical_beam have it: use "
            "--strategy beam, or leave the key out",
        ),
        ({"name": "bean"}, "s: unknown search strategy 'bean'; did you mean 'beam'?"),
        (
            {"name": "beam", "length_penalty": {"name": "gnmt", "alpha": -1}},
            "s.length_penalty: alpha must be at least 0, not -1",
        ),
        (
            {"name": "beam", "length_penalty": "wu"},
            "s.length_penalty: unknown length penalty 'wu'; known: gnmt, none, power",
        ),
    ],
)
def test_a_mistaken_recipe_is_one_line(values: dict[str, object], message: str) -> None:
    with pytest.raises(NmtError) as error:
        build(Strategy, values, "s")
    assert str(error.value) == message


@for_each("are_strided", [False, True])
@for_each("vocabulary", [700, 1280, 1283])
def test_the_largest_values_are_found_wherever_they_lie(vocabulary: int, are_strided: bool) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    values = torch.randn(3, 2, vocabulary, generator=generator)
    values[0, 0, -9:] += 10  # all in one block, at the end
    values[1, 0, 64:] = float("-inf")
    found, at = top_by_blocks(values, 8, are_strided)
    assert torch.equal(found, values.topk(8).values)
    assert torch.equal(values.gather(-1, at), found)
