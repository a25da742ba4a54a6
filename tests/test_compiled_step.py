"""The step of a search as torch compiles it: the same step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import VOCABULARY, some_sources, tiny

from nmt.inference.ensembles import GRAPHS, compile_steps
from nmt.models import Model
from nmt.models.ensemble import Ensemble, members_of
from nmt.search import Beam

pytestmark = pytest.mark.full

LENGTHS = torch.tensor([12, 9, 7])


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """What torch has captured so far; the graphs are run as they are, which needs no compiler."""
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    yield counters
    torch._dynamo.reset()


def assert_the_same_when_compiled(model: Model) -> None:
    with torch.inference_mode():
        plain = Beam().search(model.eval(), some_sources(), LENGTHS)
        compile_steps(model)
        compiled = Beam().search(model, some_sources(), LENGTHS)
    for member in members_of(model):
        assert hasattr(member.decode_step, "_torchdynamo_orig_callable")
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    assert [[it.tokens for it in found] for found in compiled] == [
        [it.tokens for it in found] for found in plain
    ]


@pytest.mark.parametrize("name", ["transformer_base", "today's", "rnnsearch", "bytenet_small"])
def test_the_whole_step_is_a_graph_and_gives_the_same(name: str, captured: Any) -> None:
    torch.manual_seed(1)
    assert_the_same_when_compiled(tiny(name).build(VOCABULARY, VOCABULARY, True))
    assert not captured["graph_break"]
    assert captured["stats"]["unique_graphs"] < GRAPHS / 4


@pytest.mark.usefixtures("captured")
def test_a_step_that_is_captured_in_parts_gives_the_same() -> None:
    torch.manual_seed(1)
    assert_the_same_when_compiled(tiny("gnmt_small").build(VOCABULARY, VOCABULARY, True))


@pytest.mark.usefixtures("captured")
def test_each_model_of_an_ensemble_is_captured() -> None:
    torch.manual_seed(1)
    members = [tiny("rnnsearch").build(VOCABULARY, VOCABULARY, True) for _ in range(2)]
    assert_the_same_when_compiled(Ensemble(members, [1.0, 2.0]))


def test_a_cpu_is_refused(trained: Path, corpus: Path, nmt: Callable[..., Any]) -> None:
    flags = ("--model", trained, "--device", "cpu", "--compile")
    done = nmt("translate", corpus / "test.en", *flags)
    assert (done.status, done.out) == (1, "")
    assert done.err == "nmt: error: compile is for GPUs: a CPU would take longer; leave it out\n"
