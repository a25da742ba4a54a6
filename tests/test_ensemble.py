"""Several models as one."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzz.seals import seal
from table_model import TableModel, random_sources, unpad
from tiny_models import tiny_model
from torch import Tensor

from nmt.data.vocabulary import BOS, EOS
from nmt.errors import NmtError
from nmt.models import architectures
from nmt.models.ensemble import Average, Ensemble
from nmt.search import Beam

both_averages = pytest.mark.parametrize("average", ["probability", "log_probability"])


def two_models() -> list[Any]:
    config = dataclasses.replace(architectures["transformer_tiny"], d_model=16, d_ff=16)
    torch.manual_seed(1)
    return [config.build(20, 20, True).eval() for _ in range(2)]


def first_step(model: Any) -> Tensor:
    state = model.start(torch.tensor([[7, 8, EOS]]))
    return torch.as_tensor(model.step(torch.tensor([[BOS]]), state)).log_softmax(-1)[0, 0]


@torch.no_grad()
def test_the_mean_is_of_probabilities_or_of_their_logarithms() -> None:
    models = two_models()
    one, two = map(first_step, models)
    mean = first_step(Ensemble(models, (3.0, 1.0)))
    torch.testing.assert_close(mean.exp(), 0.75 * one.exp() + 0.25 * two.exp())
    mean = first_step(Ensemble(models, (3.0, 1.0), "log_probability"))
    torch.testing.assert_close(mean, (0.75 * one + 0.25 * two).log_softmax(-1))


@torch.no_grad()
@both_averages
def test_a_model_with_itself_gives_what_it_gives_alone(average: Average) -> None:
    model, _ = two_models()
    torch.testing.assert_close(
        first_step(Ensemble([model, model], (1, 1), average)), first_step(model)
    )


@torch.no_grad()
@both_averages
def test_stepping_gives_the_logits_of_forward(average: Average) -> None:
    ensemble = Ensemble(two_models(), (1, 1), average)
    source, target = torch.tensor([[7, 8, EOS]]), torch.tensor([[BOS, 9, 10, 11]])
    state = ensemble.start(source)
    steps = [ensemble.step(tokens, state) for tokens in target[:, None].unbind(-1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), ensemble(source, target))


@both_averages
@pytest.mark.parametrize("seed", range(4))
def test_a_batch_gives_what_its_sentences_give_alone(average: Average, seed: int) -> None:
    ensemble = Ensemble([TableModel(seed), TableModel(seed + 100)], (1, 2), average)
    source, max_lengths = random_sources(seed, 5), torch.tensor([4, 1, 7, 3, 9])
    together = Beam().search(ensemble, source, max_lengths)
    for row, max_length, found in zip(source.tolist(), max_lengths, together, strict=True):
        (alone,) = Beam().search(ensemble, torch.tensor([unpad(row)]), max_length[None])
        assert [it.tokens for it in found] == [it.tokens for it in alone]


def test_every_model_needs_a_weight() -> None:
    for weights in ((1.0,), (1.0, 0.0)):
        with pytest.raises(ValueError, match="2 models need as many weights above 0"):
            Ensemble([TableModel(1), TableModel(2)], weights)


def test_language_models_alone_have_no_attention() -> None:
    models = [tiny_model("transformer_lm") for _ in range(2)]
    source = torch.tensor([[7, EOS]])
    with pytest.raises(NmtError, match="Ensemble has no attention, which word alignments and"):
        Ensemble(models, [1, 1]).source_attention(source, torch.tensor([[BOS, 7]]))


def test_an_ensemble_has_no_states() -> None:
    with pytest.raises(TypeError, match="an ensemble has no decoder output"):
        Ensemble([TableModel(1)], (1,)).decode(torch.zeros(1, 1), torch.zeros(1, 1))


def test_the_command_takes_several_models(
    run: Path, corpus: Path, tmp_path: Path, nmt: Callable[..., Any]
) -> None:
    models = [run / "update_0000002", run / "update_0000006"]

    def translate(*flags: object) -> str:
        done = nmt("translate", corpus / "test.en", *flags)
        assert done.status == 0, done.err
        return str(done.out)

    twice = translate("--model", models[1], "--model", models[1])
    assert twice == translate("--model", models[1])
    both = ("--model", models[0], "--model", models[1])
    assert translate(*both).count("\n") == 10
    heavy = translate(*both, "--set", "search.weights=[1, 1000000]")
    assert heavy == twice
    done = nmt("translate", corpus / "test.en", *both, "--set", "search.weights=[1]")
    assert done.status == 1
    assert done.err == (
        "nmt: error: search.weights: 2 models need as many weights above 0, not (1.0,)\n"
    )


def test_models_of_other_subwords_are_refused(
    run: Path, corpus: Path, tmp_path: Path, nmt: Callable[..., Any]
) -> None:
    other = Path(shutil.copytree(run, tmp_path / "other", symlinks=True))
    with (other / "subwords.model").open("ab") as file:
        file.write(b"\x1a\x00")  # an empty field of the serialised model
    seal(other / "subwords.model")
    done = nmt("translate", corpus / "test.en", "--model", run, "--model", other)
    assert (done.status, done.out) == (1, "")
    assert done.err == (
        f"nmt: error: {other}: its subwords differ from {run}'s; the models of an ensemble "
        "must share them\n"
    )
