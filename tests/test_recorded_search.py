"""Steps of fixed size find what the ordinary search finds; tests/test_gpu.py records them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from for_each import for_each
from tiny_models import VOCABULARY, tiny

from nmt.data.vocabulary import EOS, PAD
from nmt.errors import NmtError
from nmt.inference.execution import Execution
from nmt.inference.fast import recorded_search
from nmt.inference.fast.recorded_search import RecordedSearch
from nmt.inference.translator import Translator
from nmt.models import Model
from nmt.recipe.config import build
from nmt.runs import load_model
from nmt.search import Beam, Greedy, Hypothesis, Strategy, strategies
from nmt.search.config import SearchConfig
from nmt.search.constraints import MinLength
from nmt.search.ranking import length_penalties


def model_of(name: str = "transformer_base") -> Model:
    torch.manual_seed(1)
    return tiny(name).build(VOCABULARY, VOCABULARY, True).eval()


def some_sources(lengths: list[int]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    rows = torch.full((len(lengths), max(lengths)), PAD)
    for row, length in zip(rows, lengths, strict=True):
        row[:length] = torch.randint(EOS + 1, VOCABULARY, (length,), generator=generator)
        row[length - 1] = EOS
    return rows


SOURCES = some_sources([17, 3, 9, 5, 21])
LENGTHS = torch.tensor([40, 7, 70, 1, 12])


def assert_same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    for ours, others in zip(found, expected, strict=True):
        assert [it.tokens for it in ours] == [it.tokens for it in others]
        assert [it.finished for it in ours] == [it.finished for it in others]
        scores = [[it.score for it in list_] for list_ in (ours, others)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-4)


STOPS = ("first_beam", "optimistic", "all_finished", "current_length", "shrinking_beam")


@torch.no_grad()
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    "strategy",
    [
        Greedy(),
        *(Beam(beam=4, stop=stop) for stop in STOPS),  # type: ignore[arg-type]
        Beam(beam=3, length_penalty=length_penalties["none"], pruning=1.0, pruning_tokens=2.0),
    ],
    ids=str,
)
def test_steps_of_fixed_size_find_the_same_hypotheses(strategy: Strategy, count: int) -> None:
    model = model_of()
    expected = strategy.search(model, SOURCES, LENGTHS, count=count)
    # Sentences end at different steps, some after more than the steps that there is room for first.
    assert len({len(hypotheses[0].tokens) for hypotheses in expected}) > 2
    recorded = RecordedSearch(model)
    for _ in range(2):  # the second search finds all steps used
        assert_same(recorded.search(strategy, SOURCES, LENGTHS, count=count), expected)


@torch.no_grad()
@for_each(
    "name",
    ["positions rotary + feed-forward swish + rms norm", "multi-query", "separate positions"],
)
def test_models_with_plain_attention_have_steps_of_fixed_size(name: str) -> None:
    model = model_of(name)
    assert_same(
        RecordedSearch(model).search(Beam(), SOURCES, LENGTHS),
        Beam().search(model, SOURCES, LENGTHS),
    )


@torch.no_grad()
def test_room_grows_with_the_steps_and_shrinks_with_the_sentences(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recorded_search, "STEPS", 4)
    model = model_of()
    recorded = RecordedSearch(model)
    found = recorded.search(Beam(beam=2), SOURCES, LENGTHS)
    assert_same(found, Beam(beam=2).search(model, SOURCES, LENGTHS))
    sizes = [(sentences, steps) for _, _, sentences, _, steps in recorded._steps]
    assert sizes[0] == (8, 4)
    assert len({sentences for sentences, _ in sizes}) > 2
    assert sizes[-1][1] >= 32


@torch.no_grad()
def test_a_step_is_recorded_once_for_all_searches_of_its_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    advanced = []
    advance = recorded_search._Step._advance
    monkeypatch.setattr(
        recorded_search._Step, "_advance", lambda step: advanced.append(step) or advance(step)
    )
    recorded = RecordedSearch(model_of())
    for length in (3, 7, 12):
        recorded.search(Greedy(), some_sources([length]), torch.tensor([5]))
    [step] = recorded._steps.values()
    assert set(advanced) == {step}


@torch.no_grad()
def test_what_no_recorded_step_can_do_has_its_own_steps() -> None:
    model = model_of()
    recorded = RecordedSearch(model)
    limits = [MinLength(length=3)]
    for strategy, more in ((Beam(), limits), (strategies["diverse_beam"], [])):
        expected = strategy.search(model, SOURCES, LENGTHS, more)
        assert_same(recorded.search(strategy, SOURCES, LENGTHS, more), expected)
    wide = Beam(beam=VOCABULARY // 2)
    assert_same(recorded.search(wide, SOURCES, LENGTHS), wide.search(model, SOURCES, LENGTHS))
    assert not recorded._steps


@torch.no_grad()
def test_recordings_are_dropped_where_they_become_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recorded_search, "MOST_RECORDINGS", 2)
    recorded = RecordedSearch(model_of())
    for count in (1, 2, 3, 1):
        found = recorded.search(Greedy(), SOURCES[:2], LENGTHS[:2], count=count)
        assert len(found) == 2
        assert len(recorded._steps) <= 2


@torch.no_grad()
def test_a_diverged_model_is_an_error() -> None:
    model = model_of()
    model.output.weight[7] = float("nan")
    with pytest.raises(NmtError, match="step 1 of the search: the model's logits are not numbers"):
        RecordedSearch(model).search(Beam(), SOURCES, LENGTHS)


def test_other_models_are_refused() -> None:
    for name in ("rnnsearch", "student_tiny_ssru", "today's"):
        with pytest.raises(NmtError, match="cuda_graphs is for single Transformers with plain"):
            RecordedSearch(model_of(name))


def test_a_translator_searches_by_recorded_steps(trained: Path, corpus: Path) -> None:
    loaded = load_model(trained, torch.device("cpu"))
    lines = (corpus / "test.en").read_text().splitlines()
    config = build(SearchConfig, {"strategy": {"name": "beam", "beam": 3}}, "search")
    ours = Translator(loaded.model, loaded.subwords, config, Execution(cuda_graphs=True))
    expected = list(Translator(loaded.model, loaded.subwords, config).translate(lines))
    assert list(ours.translate(lines)) == expected
    assert ours._recorded is not None
    assert ours._recorded._steps


def test_a_cpu_is_refused(trained: Path, corpus: Path, nmt: Callable[..., Any]) -> None:
    flags = ("--model", trained, "--device", "cpu", "--cuda-graphs")
    done = nmt("translate", corpus / "test.en", *flags)
    assert (done.status, done.out) == (1, "")
    assert done.err == "nmt: error: cuda_graphs is for GPUs; leave it out\n"
