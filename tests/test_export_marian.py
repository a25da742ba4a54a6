"""Exports for Marian, which an import of the export reads again."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch
import yaml
from foreign_models import marian_model
from test_export_huggingface import SMALL, random_run
from test_import_marian import NAMES, import_named

import nmt
from nmt.data.vocabulary import BOS, EOS
from nmt.errors import NmtError
from nmt.formats import export_formats, export_run, import_model
from nmt.formats.marian import vocabulary_list
from nmt.formats.marian_files import read_pieces
from nmt.formats.tokenizer_files import TokenLayout
from nmt.models import ModelConfig
from nmt.recipe.config import build
from nmt.runs import load_model, weights_of

MARIAN = export_formats["marian"]
CONCATENATED = {"sinusoids": "concatenated"}


@pytest.mark.parametrize("name", [*NAMES, "prenorm"])
def test_an_imported_model_is_exported_as_it_was(name: str, tmp_path: Path) -> None:
    run = import_named(tmp_path, name)
    export_run(run, MARIAN, "fp32", tmp_path / "exported")
    before = np.load(tmp_path / name / "model.npz")
    after = np.load(tmp_path / "exported" / "model.npz")
    assert {*before} == {*after}
    for array in {*before} - {"special:model.yml"}:
        assert np.array_equal(after[array], before[array]), array
    vocabulary = (tmp_path / name / "vocab.spm").read_bytes()
    assert (tmp_path / "exported" / "source.spm").read_bytes() == vocabulary
    settings = yaml.safe_load((tmp_path / "exported" / "model.npz.decoder.yml").read_text())
    assert settings["allow-unk"] is False
    again = import_model(tmp_path / "exported", tmp_path / "again", None, "en", "de")
    assert again.section("model") == nmt.runs.Run.open(run).section("model")
    assert again.section("search") == nmt.runs.Run.open(run).section("search")


def test_an_imported_model_keeps_its_vocabulary_when_it_is_trained(tmp_path: Path) -> None:
    loaded = load_model(import_named(tmp_path, "transformer"))
    with torch.no_grad():
        loaded.model.output.bias *= 0.999
    (tmp_path / "exported").mkdir()
    MARIAN.write(loaded, "fp32", tmp_path / "exported")
    vocabulary = (tmp_path / "transformer" / "vocab.spm").read_bytes()
    assert (tmp_path / "exported" / "source.spm").read_bytes() == vocabulary
    assert TokenLayout.from_model(loaded).special["eos"] == 0


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tied_embeddings": "decoder", "feed_forward": "swish", "output_bias": True},
        {"tied_embeddings": "none"},
        {"decoder_attention": {"name": "ssru", "zero_bos": True}},
    ],
    ids=str,
)
def test_a_run_that_begins_with_bos_keeps_its_log_probabilities(
    changes: dict[str, Any], trained: Path, corpus: Path, tmp_path: Path
) -> None:
    run = random_run(tmp_path / "run", trained, **CONCATENATED, **changes)
    export_run(run, MARIAN, "fp32", tmp_path / "exported")
    again = import_model(tmp_path / "exported", tmp_path / "again", None, "en", "de").path
    loaded = load_model(run)
    assert loaded.model.target_embedding.weight[BOS].abs().sum() > 1  # type: ignore[union-attr]
    lines, targets = ((corpus / f"test.{side}").read_text().splitlines() for side in ("en", "de"))
    ours, theirs = (nmt.Translator(path).score(lines, targets) for path in (run, again))
    for row, other in zip(ours, theirs, strict=True):
        assert row == pytest.approx(other, abs=1e-4)


def test_pieces_stand_in_the_order_that_marian_expects(trained: Path, tmp_path: Path) -> None:
    run = random_run(tmp_path / "run", trained, **CONCATENATED)
    export_run(run, MARIAN, "fp32", tmp_path / "exported")
    before, after = (
        sentencepiece.SentencePieceProcessor(model_file=str(path))
        for path in (trained / "subwords.model", tmp_path / "exported" / "source.spm")
    )
    size = len(before)
    assert (after.eos_id(), after.unk_id(), len(after)) == (0, 1, size)
    assert [after.id_to_piece(size - 2), after.id_to_piece(size - 1)] == ["<pad>", "<s>"]
    line = "a line with Ünknown characters 1 2 3"
    assert after.encode(line, out_type=str) == before.encode(line, out_type=str)
    assert after.decode(after.encode(line)) == before.decode(before.encode(line))


def test_a_vocabulary_that_is_no_sentencepiece_model_becomes_a_list(
    tmp_path: Path, trained: Path
) -> None:
    marian_model(tmp_path / "theirs", activation_function="relu", scale_embedding=True)
    run = import_model(tmp_path / "theirs", tmp_path / "run").path
    weights = {name: weight.clone() for name, weight in weights_of(load_model(run).model).items()}
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    recipe["model"] |= CONCATENATED
    loaded = replace(load_model(run), recipe=recipe)
    (tmp_path / "exported").mkdir()
    MARIAN.write(loaded, "fp32", tmp_path / "exported")
    vocabulary = yaml.safe_load((tmp_path / "exported" / "source.vocab.yml").read_text())
    assert [vocabulary["</s>"], vocabulary["<unk>"]] == [0, 1]
    assert json.loads((tmp_path / "theirs" / "vocab.json").read_text()).items() >= {
        (piece, token) for piece, token in vocabulary.items() if piece != "<s>"
    }
    table = np.load(tmp_path / "exported" / "model.npz")["Wemb"]
    start = weights["target_embedding.weight"][BOS]
    assert np.array_equal(table[0], (weights["target_embedding.weight"][EOS] - start).numpy())


def test_pieces_of_a_list_are_read_as_they_were(tmp_path: Path) -> None:
    pieces = [
        "</s>",
        "<unk>",
        "\u2581no",
        '"',
        "\\",
        "\U0001f600",
        "a\U0001f600",
        "\u2028",
        "\x85",
        "\t",
    ]
    (tmp_path / "vocab.yml").write_text(vocabulary_list(pieces), encoding="utf-8")
    assert read_pieces(tmp_path / "vocab.yml") == dict(enumerate(pieces))
    assert yaml.safe_load((tmp_path / "vocab.yml").read_bytes()) == {
        piece: token for token, piece in enumerate(pieces)
    }


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"arch": "rnnsearch_small"}, "arch rnnsearch_small"),
    (SMALL, "sinusoids interleaved"),
    ({**SMALL, "positions": "learned"}, "positions learned, sinusoids interleaved"),
    (
        {**SMALL, **CONCATENATED, "positions": {"name": "sinusoidal", "offset": 2}},
        "positions sinusoidal with offset 2",
    ),
    ({**SMALL, **CONCATENATED, "feed_forward": "gelu"}, "feed_forward gelu"),
    ({**SMALL, **CONCATENATED, "scale_embeddings": False}, "scale_embeddings false"),
    ({**SMALL, **CONCATENATED, "d_k": 2}, "d_k or d_v other than d_model / heads"),
    ({**SMALL, **CONCATENATED, "norm_epsilon": 0.01}, "norm_epsilon 0.01"),
    ({**SMALL, **CONCATENATED, "key_value_heads": 1}, "key_value_heads 1"),
    (
        {**SMALL, **CONCATENATED, "decoder_attention": "ssru"},
        "decoder_attention ssru without zero_bos",
    ),
    (
        {**SMALL, **CONCATENATED, "residual": "pre_norm"},
        "an embedding of BOS other than zeros with residual pre_norm",
    ),
    (
        {**SMALL, **CONCATENATED, "decoder_attention": "average"},
        "gates of decoder_attention average that see both the input and the mean, "
        "decoder_attention average without zero_bos",
    ),
]


@pytest.mark.parametrize(("model", "what"), REFUSED, ids=[what for _, what in REFUSED])
def test_what_marian_cannot_hold_is_refused_by_name(
    model: dict[str, Any], what: str, trained: Path, tmp_path: Path
) -> None:
    config = build(ModelConfig, model, "model")  # type: ignore[type-abstract]
    torch.manual_seed(1)
    loaded = replace(load_model(trained), recipe={"model": model}, model=config.build(60, 60, True))
    with pytest.raises(NmtError) as error:
        MARIAN.write(loaded, "fp32", tmp_path)
    assert str(error.value) == (
        f"{trained}: Marian has no counterpart of {what}; translate with nmt itself"
    )
    with pytest.raises(NmtError, match="no counterpart of --precision fp16"):
        MARIAN.write(load_model(trained), "fp16", tmp_path)
    shutil.rmtree(tmp_path)
