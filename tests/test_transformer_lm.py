"""A language model: trained on targets, as a feature, in shallow fusion, and refused alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from nmt.cli.score.by_model import load_in_torch, open_model
from nmt.data.vocabulary import BOS, EOS
from nmt.errors import NmtError
from nmt.inference import SearchConfig, Translator
from nmt.inference.engines import load_translator
from nmt.inference.execution import ON_CPU
from nmt.models import ModelConfig
from nmt.recipe.config import build

Command = Callable[..., Any]
SIZES = {"decoder_layers": 1, "d_model": 16, "d_ff": 32, "heads": 2}


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory, recipe: Path, dataset: Path, nmt: Command) -> Path:
    """A trained language model of the targets of the dataset."""
    directory = tmp_path_factory.mktemp("lm")
    values = yaml.safe_load(recipe.read_text()) | {"model": {"arch": "transformer_lm", **SIZES}}
    (directory / "lm.yaml").write_text(yaml.safe_dump(values))
    flags = ("--config", directory / "lm.yaml", "--data", dataset, "--max-updates", 40)
    done = nmt("train", *flags, "--save-dir", directory / "run")
    assert done.status == 0, done.err
    refused = nmt(
        "train", *flags, "--save-dir", directory / "other", "--set", "train.valid_metrics=[bleu]"
    )
    assert "a language model does not translate: set train.valid_metrics to []" in refused.err
    return directory / "run"


def test_it_scores_targets_alone(lm: Path, corpus: Path, nmt: Command) -> None:
    text, turned = corpus / "test.de", ["zwei eins", "eins"]
    score = ("score", "--model", lm, "--source")
    assert nmt(*score, corpus / "test.en", text).out == nmt(*score, text, text).out
    scorer = open_model(lm, "cpu", False)
    assert scorer.engine.startswith("nmt: ")
    likely, rare = (sum(*scorer.score(["x"], [line])) for line in ("eins zwei drei", "ei eini ei"))
    assert likely > rare
    one, other = scorer.score(["one two", "three"], [turned[0]] * 2)
    assert one == pytest.approx(other)


def test_an_ensemble_of_logarithms_weighs_it_at_every_token(
    lm: Path, trained: Path, corpus: Path
) -> None:
    search = {"strategy": "beam", "ensemble": "log_probability", "weights": [0.8, 0.2]}
    fused = load_translator(trained, lm, device="cpu", **search)
    assert isinstance(fused, Translator)
    members = [load_in_torch([path], SearchConfig(), ON_CPU) for path in (trained, lm)]
    for line in (corpus / "test.en").read_text().splitlines():
        source = [*fused.subwords.encode_source([line])[0], EOS]
        [tokens] = fused.subwords.encode_target(["eins zwei"])
        model, language, both = (
            one.next_log_probabilities(source, tokens) for one in (*members, fused)
        )
        expected = (0.8 * model + 0.2 * language).log_softmax(-1)
        torch.testing.assert_close(both, expected, atol=1e-5, rtol=1e-5)
    assert len([*fused.translate(["one two", "three"])]) == 2
    source, target = torch.tensor([[5, 6, EOS]]), torch.tensor([[BOS, 7]])
    torch.testing.assert_close(  # of the member that reads the source
        fused.model.eval().source_attention(source, target),
        members[0].model.eval().source_attention(source, target),
    )


def test_it_does_not_translate_alone(lm: Path, trained: Path, corpus: Path, nmt: Command) -> None:
    refused = nmt("translate", "--model", lm, corpus / "test.en")
    assert refused.status == 1
    assert "a language model does not translate alone; add a translation model" in refused.err
    refused = nmt(
        "align", "--model", lm, "--source", corpus / "test.en", "--target", corpus / "test.de"
    )
    assert "TransformerLM has no attention" in refused.err
    for others in ((), ("--model", trained)):
        refused = nmt("explain", "--model", lm, *others, corpus / "test.en", "--json")
        assert "a language model reads no source to explain; leave out" in refused.err


def test_it_is_no_reverse_model(lm: Path, corpus: Path, tmp_path: Path, nmt: Command) -> None:
    listed = tmp_path / "list.txt"
    listed.write_text("0 ||| eins ||| LogProbability= -1 ||| -1\n", encoding="utf-8")
    refused = nmt("rescore", "--reverse", "--model", lm, "--source", corpus / "test.en", listed)
    assert (refused.status, refused.out) == (1, "")
    assert "a language model reads no source" in refused.err
    assert refused.err.endswith("leave out --reverse\n")


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(NmtError, match="d_model must be an even number for each of 4 heads"):
        build(ModelConfig, {"arch": "transformer_lm", "d_model": 20, "heads": 4}, "model")
