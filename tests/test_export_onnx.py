"""Graphs of ONNX against the models that they were exported from, in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
import torch
from foreign_models import ENGLISH, marian_model

import nmt
from nmt.data.vocabulary import BOS, EOS, PAD
from nmt.errors import NmtError
from nmt.formats import export_formats, export_run, import_model
from nmt.models import ModelConfig
from nmt.recipe.config import build
from nmt.runs import LoadedModel, load_model
from nmt.runs.exports import Export

ONNX = export_formats["onnx"]
Array = npt.NDArray[Any]
SMALL = {"arch": "transformer_tiny", "encoder_layers": 1, "decoder_layers": 1, "d_model": 16}


class Graphs:
    """The graphs of an export, as ONNX Runtime runs them."""

    def __init__(self, directory: Path) -> None:
        self.encoder, self.decoder = (
            onnxruntime.InferenceSession(directory / "onnx" / f"{name}.onnx")
            for name in ("encoder_model", "decoder_model_merged")
        )
        self.past = [size for size in self.decoder.get_inputs() if size.name.startswith("past")]

    def start(self, source: Array, mask: Array) -> dict[str, Array]:
        """Return the inputs of the first step, without its tokens."""
        [encoded] = self.encoder.run(None, {"input_ids": source, "attention_mask": mask})
        sizes = {"batch_size": len(source)}
        empty = {
            part.name: np.zeros(
                [sizes.get(size, 0) if isinstance(size, str) else size for size in part.shape],
                np.float32,
            )
            for part in self.past
        }
        return {"encoder_hidden_states": encoded, "encoder_attention_mask": mask, **empty}

    def step(self, tokens: Array, inputs: dict[str, Array]) -> Array:
        """Return the logits [B, V] after tokens [B]; `inputs` become those of the next step."""
        logits, *present = self.decoder.run(None, {**inputs, "input_ids": tokens[:, None]})
        inputs.update(zip([part.name for part in self.past], present, strict=True))
        return np.asarray(logits)[:, 0]

    def logits(self, source: Array, mask: Array, target: Array) -> Array:
        """Return the logits [B, T, V] of the tokens that follow those of a target [B, T]."""
        inputs = self.start(source, mask)
        return np.stack([self.step(tokens, inputs) for tokens in target.T], 1)

    def greedy(self, ids: list[int], longest: int) -> list[int]:
        """Return the likeliest tokens after each other, up to the end."""
        source = np.array([ids])
        inputs, tokens = self.start(source, np.ones_like(source)), [BOS]
        while tokens[-1] != EOS and len(tokens) <= longest:
            logits = self.step(np.array(tokens[-1:]), inputs)
            logits[:, [PAD, BOS]] = -np.inf
            tokens.append(int(logits.argmax()))
        return [token for token in tokens[1:] if token != EOS]


@pytest.fixture(scope="module")
def exported(
    trained: Path, tmp_path_factory: pytest.TempPathFactory, nmt: Callable[..., Any]
) -> Path:
    """The trained run, exported by the command."""
    output = tmp_path_factory.mktemp("onnx") / "exported"
    done = nmt("export", "--format", "onnx", "--model", trained, "--output", output)
    assert (done.status, done.out) == (0, f"{output}\n")
    assert done.err == f"exported {trained} to onnx\n"
    return output


def assert_same_logits(loaded: LoadedModel, exported: Path) -> None:
    """Compare the logits for a batch with padding, whose sizes are not those of the examples."""
    generator = torch.Generator().manual_seed(1)
    source = torch.randint(4, loaded.subwords.source_size, (5, 13), generator=generator)
    source[1, 4:] = source[3, 9:] = PAD
    target = torch.randint(4, loaded.subwords.target_size, (5, 11), generator=generator)
    target[:, 0] = BOS
    mask = (source != PAD).long()
    logits = Graphs(exported).logits(source.numpy(), mask.numpy(), target.numpy())
    with torch.no_grad():
        expected = loaded.model(source, target)
    torch.testing.assert_close(torch.from_numpy(logits), expected, atol=1e-5, rtol=1e-5)


def test_an_exported_decoder_returns_the_logits_of_the_model(trained: Path, exported: Path) -> None:
    assert_same_logits(load_model(trained), exported)


@pytest.mark.parametrize(
    "changes",
    [
        {"decoder_layers": 2, "decoder_attention": "ssru"},
        {"positions": "rotary", "key_value_heads": 1, "residual": "pre_norm"},
    ],
)
def test_later_changes_to_the_transformer_return_the_logits_of_the_model(
    trained: Path, tmp_path: Path, changes: dict[str, object]
) -> None:
    loaded = load_model(trained)
    model = {**SMALL, **changes}
    config = build(ModelConfig, model, "model")  # type: ignore[type-abstract]
    size = loaded.subwords.source_size
    changed = replace(loaded, recipe={"model": model}, model=config.build(size, size, True).eval())
    ONNX.write(changed, "fp32", tmp_path)
    assert_same_logits(changed, tmp_path)


def test_greedy_search_in_onnxruntime_finds_the_same_text(
    trained: Path, exported: Path, corpus: Path
) -> None:
    lines = (corpus / "test.en").read_text().splitlines()
    graphs, subwords = Graphs(exported), Export.open(exported, "onnx").subwords
    sources = [[*row, EOS] for row in subwords.encode_source(lines)]
    found = [graphs.greedy(row, len(row) + 50) for row in sources]
    ours = nmt.Translator(trained, strategy="greedy").translate(lines)
    assert subwords.decode_target(found) == list(ours)


def test_files_inputs_and_outputs_have_the_names_of_optimum(exported: Path) -> None:
    graphs = Graphs(exported)
    parts = [
        f"0.{name}" for name in ("decoder.key", "decoder.value", "encoder.key", "encoder.value")
    ]
    assert [part.name for part in graphs.encoder.get_inputs()] == ["input_ids", "attention_mask"]
    assert [part.name for part in graphs.encoder.get_outputs()] == ["last_hidden_state"]
    assert [part.name for part in graphs.decoder.get_inputs()] == [
        "encoder_attention_mask",
        "input_ids",
        "encoder_hidden_states",
        *(f"past_key_values.{part}" for part in parts),
    ]
    assert [part.name for part in graphs.decoder.get_outputs()] == [
        "logits",
        *(f"present.{part}" for part in parts),
    ]
    # transformers.js makes the past of the first step with length 0 where a size has another name.
    assert {(part.shape[0], *part.shape[1::2]) for part in graphs.past} == {("batch_size", 2, 8)}
    assert not any(part.shape[2] == "batch_size" for part in graphs.past)
    names = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    assert names < {path.name for path in exported.iterdir()}


def test_every_file_of_an_export_has_a_checksum(
    exported: Path, corpus: Path, nmt: Callable[..., Any]
) -> None:
    export = Export.open(exported, "onnx")
    export.check_files()
    files = {str(path.relative_to(exported)) for path in exported.rglob("*") if path.is_file()}
    assert {*export.files} == files - {"export.json"}
    assert "onnx/encoder_model.onnx" in files
    graph = (exported / "onnx" / "encoder_model.onnx").read_bytes()
    assert b"site-packages" not in graph  # no paths of the machine
    done = nmt("translate", corpus / "test.en", "--model", exported)
    assert done.err == (
        f"nmt: error: {exported}: an export for onnx, not for ctranslate2; give the run as "
        "the model, or export it with --format ctranslate2\n"
    )


def test_an_imported_model_is_exported_with_the_ids_it_had(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    model = marian_model(tmp_path / "theirs", encoder_layers=1, decoder_layers=1)
    run = import_model(tmp_path / "theirs", tmp_path / "run")
    export_run(run.path, ONNX, "fp32", tmp_path / "exported")
    tokenizer = transformers.MarianTokenizer.from_pretrained(tmp_path / "exported")
    inputs = tokenizer(ENGLISH[:3], return_tensors="pt", padding=True)
    start = model.config.decoder_start_token_id
    target = torch.randint(2, start, (3, 9), generator=torch.Generator().manual_seed(1))
    target[:, 0] = start
    arrays = [tensor.numpy() for tensor in (inputs.input_ids, inputs.attention_mask, target)]
    logits = Graphs(tmp_path / "exported").logits(*arrays)
    with torch.no_grad():
        expected = model(**inputs, decoder_input_ids=target).logits
    torch.testing.assert_close(torch.from_numpy(logits), expected, atol=1e-4, rtol=1e-4)
    fast = tokenizers.Tokenizer.from_file(str(tmp_path / "exported" / "tokenizer.json"))
    for line in ENGLISH[:3]:
        assert fast.encode(line).ids == tokenizer(line).input_ids


def test_what_no_graph_can_hold_is_refused_by_name(trained: Path, tmp_path: Path) -> None:
    model = {
        **SMALL,
        "encoder_attention": {"name": "neighbourhood", "radius": 2},
    }
    config = build(ModelConfig, model, "model")  # type: ignore[type-abstract]
    loaded = replace(load_model(trained), recipe={"model": model}, model=config.build(60, 60, True))
    with pytest.raises(NmtError) as error:
        ONNX.write(loaded, "int8", tmp_path)
    assert str(error.value) == (
        f"{trained}: no model with --precision int8, encoder_attention "
        "neighbourhood can be exported to onnx; translate with nmt itself"
    )


def test_a_model_that_torch_cannot_export_costs_one_line(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nmt: Callable[..., Any]
) -> None:
    def fail(*_: object, **named: object) -> None:
        raise torch.onnx.OnnxExporterError("no such operator\nand much more")

    monkeypatch.setattr("torch.onnx.export", fail)
    command = ("export", "--format", "onnx", "--model", trained, "--output", tmp_path / "exported")
    done = nmt(*command)
    assert (done.status, done.err) == (
        1,
        f"nmt: error: {trained}: torch cannot export the model to onnx: no such operator\n",
    )
    monkeypatch.setattr("nmt.formats.onnx.find_spec", lambda name: None)
    assert nmt(*command).err == (
        "nmt: error: exporting to onnx needs onnxscript; pip install 'nmt-toolkit[onnx]', or "
        "-e '.[onnx]' in a clone\n"
    )
    assert not list(tmp_path.iterdir())
