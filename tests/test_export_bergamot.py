"""Exports for Bergamot's engines: their files, and the translations of Firefox's engine."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu
import torch
import yaml
from conftest import Command
from torch import Tensor, nn

import nmt
from nmt.data.shortlist import Origin, Shortlist
from nmt.data.vocabulary import BOS, EOS, EXCLUDED, PAD, UNK
from nmt.errors import NmtError
from nmt.formats import export_formats, export_run
from nmt.formats.bergamot import _checksum, shortlist_bytes
from nmt.formats.marian import layer_weights
from nmt.models import ModelConfig
from nmt.models.transformer.model import TransformerConfig
from nmt.recipe.config import build
from nmt.runs import LoadedModel, load_model, weights_of
from nmt.runs.calibration import Calibration

BERGAMOT = export_formats["bergamot"]

SIZES = {"d_model": 64, "d_ff": 64, "heads": 2, "encoder_layers": 2, "decoder_layers": 2}

STUDENT: dict[str, Any] = {"arch": "student_tiny_ssru", **SIZES}


@pytest.fixture(scope="module")
def data(
    tmp_path_factory: pytest.TempPathFactory, recipe: Path, nmt: Command, write_numbers: Any
) -> Callable[..., Path]:
    """Makes a dataset of numbers; Firefox's engine segments by a unigram model."""

    def make(*options: str) -> Path:
        place = tmp_path_factory.mktemp("numbers")
        for seed, (split, pairs) in enumerate({"train": 2000, "valid": 40, "test": 1000}.items()):
            write_numbers(place / split, pairs, seed)
        prefixes = [f"--{split}={place / split}" for split in ("train", "valid")]
        flags = ("--model-type=unigram", "--vocab-size=34", "--output-dir", place / "data-bin")
        done = nmt("preprocess", "--config", recipe, *prefixes, *flags, *options)
        assert done.status == 0, done.err
        return place

    return make


@pytest.fixture(scope="module")
def teach(recipe: Path, nmt: Command) -> Callable[..., Path]:
    """Trains a student on a dataset, and gives it a shortlist and a calibration."""

    def run(place: Path, updates: int, *settings: str) -> Path:
        path, data = place / "run", ("--data", place / "data-bin")
        sizes = [f"--set=model.{name}={value}" for name, value in SIZES.items()]
        often = (f"--set=train.valid_every={updates}", f"--set=train.save_every={updates}")
        flags = ("--arch", "student_tiny_ssru", "--max-updates", updates, *sizes, *often, *settings)
        assert nmt("train", "--config", recipe, *data, "--save-dir", path, *flags).status == 0
        narrow = ("--first", 3, "--best", 2)
        assert nmt("shortlist", *data, "--model", path, *narrow).status == 0
        assert nmt("calibrate", *data, "--model", path).status == 0
        return path

    return run


@pytest.fixture(scope="module")
def student(data: Callable[..., Path], teach: Callable[..., Path]) -> Path:
    return teach(data(), 40)


@pytest.fixture(scope="module")
def exported(student: Path, nmt: Command) -> Path:
    path = student.parent / "exported"
    done = nmt("export", "--format", "bergamot", "--model", student, "--output", path)
    assert (done.status, done.out) == (0, f"{path}\n"), done.err
    return path


def read_items(path: Path) -> dict[str, tuple[int, tuple[int, ...], bytes]]:
    """Read a file as Marian's ``binary.cpp`` does; each block must begin at 256 bytes."""
    content = path.read_bytes()
    version, count = struct.unpack_from("<2Q", content)
    assert version == 1
    headers = [struct.unpack_from("<4Q", content, 16 + 32 * at) for at in range(count)]
    at = 16 + 32 * count
    names, shapes, items = [], [], {}
    for length, *_ in headers:
        names.append(content[at : at + length].rstrip(b"\0").decode())
        at += length
    for _, _, rank, _ in headers:
        shapes.append(struct.unpack_from(f"<{rank}i", content, at))
        at += 4 * rank
    at += 8 + struct.unpack_from("<Q", content, at)[0]
    for name, shape, (_, kind, _, length) in zip(names, shapes, headers, strict=True):
        assert at % 256 == 0
        items[name] = (kind, shape, content[at : at + length])
        at += length
    assert at == len(content)
    return items


def matrix(item: tuple[int, tuple[int, ...], bytes]) -> tuple[np.ndarray, float]:
    """The integers of a matrix in the order of the file, and their multiplier."""
    kind, shape, content = item
    size = shape[0] * shape[1]
    assert kind == 0x4101
    [multiplier] = struct.unpack_from("<f", content, size)
    return np.frombuffer(content, np.int8, size).astype(np.float32), multiplier


def test_weights_are_rounded_to_8_bits(student: Path, exported: Path) -> None:
    items, loaded = read_items(exported / "model.ende.intgemm.alphas.bin"), load_model(student)
    config: TransformerConfig = build(ModelConfig, loaded.recipe["model"], "model")  # type: ignore[type-abstract,assignment]
    weights = weights_of(loaded.model)
    for name, theirs in layer_weights(config):
        for part, their_name in zip(weights[name].chunk(len(theirs)), theirs, strict=True):
            if name.endswith("weight") and "norm" not in name:
                integers, multiplier = matrix(items[their_name])
                assert items[their_name][1] == tuple(part.shape)[::-1]
                # Stored transposed, which is as torch has it.
                error = np.abs(integers.reshape(part.shape) / multiplier - part.numpy())
                assert np.abs(integers).max() == 127
                assert error.max() <= 0.501 / multiplier
            else:
                kind, shape, content = items[their_name]
                assert (kind, shape) == (0x404, (1, len(part)))
                assert np.array_equal(np.frombuffer(content, "<f4", len(part)), part.numpy())
    integers, multiplier = matrix(items["Wemb"])
    table = integers.reshape(-1, 64) / multiplier
    embeddings = weights["target_embedding.weight"].numpy()
    assert np.abs(table[0] - embeddings[EOS]).max() <= 0.501 / multiplier
    assert np.abs(table[2] - embeddings[EOS + 1]).max() <= 0.501 / multiplier


def test_inputs_have_the_multipliers_of_the_calibration(student: Path, exported: Path) -> None:
    items = read_items(exported / "model.ende.intgemm.alphas.bin")
    calibration = Calibration.load(student)
    assert calibration is not None

    def multiplier(name: str) -> float:
        kind, shape, content = items[f"{name}_QuantMultA"]
        assert (kind, shape) == (0x404, (1,))
        return float(struct.unpack_from("<f", content)[0])

    for layer, names in {
        "encoder.1.attention.project_in": [f"encoder_l2_self_W{letter}" for letter in "qkv"],
        "encoder.0.feed_forward.outer": ["encoder_l1_ffn_W2"],
        "decoder.0.attention.project_in": ["decoder_l1_rnn_W", "decoder_l1_rnn_Wf"],
        "decoder.1.cross.project_memory": ["decoder_l2_context_Wk", "decoder_l2_context_Wv"],
        "output": ["none", "Wemb"],
    }.items():
        largest = max(map(abs, calibration.ranges[layer]))
        assert [multiplier(name) for name in names] == pytest.approx([127 / largest] * len(names))
    matrices = {name for name, (kind, *_) in items.items() if kind == 0x4101}
    assert {f"{name}_QuantMultA" for name in matrices | {"none"}} <= items.keys()


def test_tokens_that_are_never_predicted_have_low_biases(
    student: Path, tmp_path: Path, nmt: Command
) -> None:
    loaded = load_model(student)
    recipe = {**loaded.recipe, "search": {"constraints": [{"name": "forbidden", "tokens": [1]}]}}
    BERGAMOT.write(replace(loaded, recipe=recipe), "int8", tmp_path)
    items = read_items(tmp_path / "model.ende.intgemm.alphas.bin")
    _, (_, size), content = items["decoder_ff_logit_out_b"]
    biases = np.frombuffer(content, "<f4", size)
    # The end, the unknown token, the others, PAD and BOS, and rows up to a multiple of eight.
    vocabulary = loaded.subwords.target_size
    assert (size, items["Wemb"][1]) == (-(-vocabulary // 8) * 8, (size, 64))
    low = [token for token, bias in enumerate(biases) if bias == EXCLUDED]
    assert low == [1, *range(vocabulary - 2, size)]
    settings = yaml.safe_load(items["special:model.yml"][2].rstrip(b"\0"))
    assert settings["dim-vocabs"] == [size, size]


def test_the_configuration_names_the_files(exported: Path) -> None:
    settings = yaml.safe_load((exported / "config.intgemm8bitalpha.yml").read_text())
    assert settings["vocabs"] == ["vocab.ende.spm"] * 2
    assert settings["gemm-precision"] == "int8shiftAlphaAll"
    for key in ("models", "vocabs", "shortlist"):
        assert all((exported / name).exists() for name in settings[key])
    card = json.loads((exported / "model_info.json").read_text())
    assert (card["src"], card["trg"], card["modelName"]) == ("en", "de", "en-de")


def test_a_shortlist_has_the_lists_of_the_run() -> None:
    # Ids 0-3 are special; the foreign order is 3, 1, 4, 5, 6, 7.
    order = [3, 1, 4, 5, 6, 7]
    origin = Origin(
        subwords="", data="", target_vocabulary=8, shared_vocabulary=True, pairs=1, iterations=1
    )
    candidates = np.full((8, 2), EOS, np.int32)
    candidates[4], candidates[5] = [7, 4], [6, EOS]
    content = shortlist_bytes(Shortlist(np.array([5], np.int32), candidates, origin), [order] * 2)
    magic, checksum, first, best, offsets, tokens = struct.unpack_from("<6Q", content)
    assert (magic, first, best, offsets, tokens) == (0xF11A48D5013417F5, 2, 2, 7, 10)
    starts = np.frombuffer(content, "<u8", offsets, 48)
    lists = np.split(np.frombuffer(content, "<u4", tokens, 48 + 8 * offsets), starts[1:-1])
    assert [found.tolist() for found in lists] == [[0, 3], [0], [0, 2, 5], [0, 4], [0], [0]]
    assert starts[-1] == tokens
    assert checksum == _checksum(content[16:])


def test_the_checksum_is_marian_s() -> None:
    numbers = struct.pack("<6Q", 2, 3, 5, 7, 1 << 63, (1 << 32) + 2)
    # By hash_combine of Marian's hash.h, compiled with g++; bytes after whole numbers do not count.
    assert _checksum(numbers + b"abc") == 14534616674037203145


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"arch": "rnnsearch_small"}, "arch rnnsearch_small"),
    ({**STUDENT, "decoder_attention": "full"}, "decoder_attention full"),
    ({**STUDENT, "decoder_attention": "ssru"}, "decoder_attention ssru without zero_bos"),
    ({**STUDENT, "sinusoids": "interleaved"}, "sinusoids interleaved"),
    ({**STUDENT, "feed_forward": "swish"}, "feed_forward swish"),
    ({**STUDENT, "tied_embeddings": "none"}, "tied_embeddings none"),
    ({**STUDENT, "decoder_feed_forward": False}, "decoder_feed_forward false"),
    ({**STUDENT, "d_model": 96}, "d_model 96, which 64 does not divide"),
]


@pytest.mark.parametrize(("model", "what"), REFUSED, ids=[what for _, what in REFUSED])
def test_what_the_engines_cannot_run_is_refused_by_name(
    model: dict[str, Any], what: str, trained: Path, tmp_path: Path
) -> None:
    config = build(ModelConfig, model, "model")  # type: ignore[type-abstract]
    size = load_model(trained).subwords.target_size
    loaded = replace(
        load_model(trained), recipe={"model": model}, model=config.build(size, size, True)
    )
    with pytest.raises(NmtError) as error:
        BERGAMOT.write(loaded, "int8", tmp_path)
    assert str(error.value) == (
        f"{trained}: Bergamot's engines have no counterpart of {what}; translate with nmt itself"
    )


def test_a_run_needs_a_calibration_but_no_shortlist(
    student: Path, tmp_path: Path, nmt: Command
) -> None:
    flags = ("--format", "bergamot", "--model", student, "--output", tmp_path / "exported")
    refused = nmt("export", *flags, "--precision", "fp16")
    assert "no counterpart of --precision fp16" in refused.err
    calibration, shortlist = student / "calibration.json", student / "shortlist.safetensors"
    shortlist.rename(tmp_path / "shortlist")
    assert nmt("export", *flags).status == 0
    assert not [*(tmp_path / "exported").glob("lex*")]
    assert "shortlist" not in (tmp_path / "exported" / "config.intgemm8bitalpha.yml").read_text()
    calibration.rename(tmp_path / "calibration")
    missing = nmt("export", *flags)
    Calibration(weights="0" * 64, ranges={}).save(student)
    outdated = nmt("export", *flags)
    (tmp_path / "calibration").rename(calibration)
    (tmp_path / "shortlist").rename(shortlist)
    best = (student / "best").resolve().name
    for done in (missing, outdated):
        assert (done.status, done.err) == (
            1,
            f"nmt: error: {student}: has no calibration of {best}, which Bergamot's engines need; "
            f"run `nmt calibrate --model {student}` first\n",
        )


class EngineLinear(nn.Module):
    """A product as gemmology computes it: unsigned inputs, shifted by 127, times signed weights.

    On processors with AVX2 alone, the sums of two neighbouring products saturate at 16 bits.
    """

    def __init__(self, linear: nn.Linear, parts: int, largest: float, saturates: bool) -> None:
        super().__init__()
        self.bias, self.weight, self.in_features = linear.bias, linear.weight, linear.in_features
        self.multiplier, self.saturates = 127 / largest, saturates
        self.parts = [engine_integers(part) for part in linear.weight.detach().chunk(parts)]

    def forward(self, x: Tensor) -> Tensor:
        inputs = (x * self.multiplier).round().clamp(-127, 127) + 127
        outputs = []
        for integers, multiplier in self.parts:
            pairs = (inputs[..., None, :] * integers).unflatten(-1, (-1, 2)).sum(-1)
            sums = (pairs.clamp(-(1 << 15), (1 << 15) - 1) if self.saturates else pairs).sum(-1)
            outputs.append((sums - 127 * integers.sum(1)) / (self.multiplier * multiplier))
        output = torch.cat(outputs, -1)
        return output if self.bias is None else output + self.bias


def engine_integers(weight: Tensor) -> tuple[Tensor, Tensor]:
    multiplier = 127 / weight.abs().max()
    return (weight * multiplier).round(), multiplier


def as_in_the_engine(loaded: LoadedModel, saturates: bool) -> None:
    """Give a model the arithmetic of the engine."""
    calibration = Calibration.load(loaded.run.path)
    assert calibration is not None
    # Each of Marian's matrices has a multiplier of its own.
    fused = {"encoder.project_in": 3, "decoder.project_in": 2, "decoder.project_memory": 2}
    for name, part in [*loaded.model.named_modules()]:
        if type(part) is nn.Linear:
            parent, _, attribute = name.rpartition(".")
            parts = fused.get(f"{name.split('.')[0]}.{attribute}", 1)
            largest = max(map(abs, calibration.ranges[name]))
            module = EngineLinear(part, parts, largest, saturates)
            setattr(loaded.model.get_submodule(parent), attribute, module)
    table = loaded.model.target_embedding.weight  # type: ignore[union-attr]
    integers, multiplier = engine_integers(table.data)  # type: ignore[operator,arg-type]
    table.data.copy_(integers / multiplier)  # type: ignore[operator,union-attr]


@torch.no_grad()
def engine_greedy(loaded: LoadedModel, line: str, shortlist: Shortlist | None) -> str:
    """Greedy search by the engine's rules."""
    [ids] = loaded.subwords.encode_source([line])
    source = torch.tensor([[*ids, EOS]])
    allowed = torch.ones(loaded.subwords.target_size, dtype=torch.bool)
    allowed[[PAD, BOS]] = False
    if shortlist is not None:
        allowed &= torch.from_numpy(shortlist.chosen(source.numpy()))[0]
        # Foreign ids from 2 fill a list up to a multiple of eight.
        for token in range(EOS + 1, len(allowed)):
            allowed[token] |= int(allowed.sum()) % 8 > 0
    state, last, tokens = loaded.model.start(source), BOS, []
    for _ in range(2 * source.shape[1] + 4):
        logits = loaded.model.step(torch.tensor([[last]]), state)[0, 0]
        last = int(logits.masked_fill(~allowed, float("-inf")).argmax())
        if last == EOS:
            break
        tokens.append(last)
    tokens = [token for token in tokens if token != UNK]  # of which the engine writes nothing
    return loaded.subwords.decode_target([tokens])[0]


def engine(exported: Path, with_shortlist: bool) -> Any:
    """Return Firefox's engine with an export."""
    fxtranslate = pytest.importorskip("fxtranslate", reason="fxtranslate is not installed")
    settings = yaml.safe_load((exported / "config.intgemm8bitalpha.yml").read_text())
    names = [*settings["models"], *settings["vocabs"]]
    names += settings["shortlist"] if with_shortlist else []
    return fxtranslate.Translator(*[(exported / name).read_bytes() for name in names])


def assert_computes_what_the_files_say(run: Path, exported: Path) -> None:
    lines = (run.parent / "test.en").read_text().splitlines()[:30]
    for with_shortlist in (False, True):
        translator, loaded = engine(exported, with_shortlist), load_model(run)
        as_in_the_engine(loaded, saturates=translator.backend() in ("avx2", "ssse3"))
        shortlist = loaded.run.shortlist if with_shortlist else None
        expected = [engine_greedy(loaded, line, shortlist) for line in lines]
        found = [translator.translate(line) for line in lines]
        assert len({*expected}) > 10
        # Sums in another order may decide between tokens of nearly equal logits.
        equal = sum(map(str.__eq__, expected, found))
        assert equal >= 28, (equal, [*zip(expected, found, strict=True)])


def test_firefox_s_engine_computes_what_the_files_say(student: Path, exported: Path) -> None:
    assert_computes_what_the_files_say(student, exported)


@pytest.mark.full
def test_firefox_s_engine_reads_separate_vocabularies(
    data: Callable[..., Path], teach: Callable[..., Path], tmp_path: Path
) -> None:
    place = data("--separate-vocabularies", "--vocab-size=20")
    run = teach(place, 40, "--set=model.tied_embeddings=decoder")
    export_run(run, BERGAMOT, "int8", tmp_path / "exported")
    assert (tmp_path / "exported" / "srcvocab.ende.spm").exists()
    assert_computes_what_the_files_say(run, tmp_path / "exported")


@pytest.mark.full
def test_firefox_s_engine_translates_a_trained_student_as_nmt_does(
    data: Callable[..., Path], teach: Callable[..., Path], tmp_path: Path
) -> None:
    run = teach(data(), 300, "--set=train.tokens_per_update=1000", "--set=train.max_tokens=1000")
    export_run(run, BERGAMOT, "int8", tmp_path / "exported")
    lines, references = (
        (run.parent / f"test.{side}").read_text().splitlines() for side in ("en", "de")
    )
    ours = [*nmt.Translator(run).translate(lines)]
    for with_shortlist in (False, True):
        found = [*map(engine(tmp_path / "exported", with_shortlist).translate, lines)]
        assert sum(map(str.__eq__, ours, found)) >= 980
        scores = [sacrebleu.corpus_bleu(texts, [references]).score for texts in (found, ours)]
        assert min(scores) > 95
        assert max(scores) - min(scores) < 1
