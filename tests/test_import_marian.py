"""Models that Marian 1.12 has trained, and its translations with their log-probabilities."""

import io
import json
import os
import re
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import nmt
from nmt.data.vocabulary import BOS, EOS
from nmt.errors import NmtError
from nmt.formats import import_formats, import_model
from nmt.formats.marian_files import read_pieces
from nmt.models.transformer.model import Transformer
from nmt.runs import load_model

FILES = Path(__file__).parent / "marian"
NAMES = ("transformer", "student", "average", "prenorm_student")
SCORED = (*NAMES, "prenorm")
"""The decoder of Marian 1.12.42 gives pre-norm models with self-attention other log-probabilities
than its scorer, whose model is the one that was trained."""
YAML = "special:model.yml"


def copy_model(directory: Path, name: str) -> Path:
    directory.mkdir()
    shutil.copy(FILES / f"{name}.npz", directory / "model.npz")
    shutil.copy(FILES / "vocab.spm", directory)
    return directory


def import_named(tmp_path: Path, name: str) -> Path:
    directory = copy_model(tmp_path / name, name)
    return import_model(directory, tmp_path / "run", None, "en", "de").path


def by_marian(name: str) -> list[list[str]]:
    """Source, translation with a beam of 4, and log-probability, as Marian printed them."""
    rows = (FILES / f"{name}.tsv").read_text().splitlines()
    return [row.split("\t") for row in rows]


def longest(source: str) -> int:
    """The length at which Marian cuts: thrice that of the source, of one token a word and EOS."""
    return 3 * (len(source.split()) + 1)


@pytest.mark.parametrize("name", SCORED)
def test_log_probabilities_are_those_of_marian(name: str, tmp_path: Path) -> None:
    loaded = load_model(import_named(tmp_path, name))
    for source, target, expected in by_marian(name):
        [tokens] = loaded.subwords.encode_source([source])
        [labels] = loaded.subwords.encode_target([target])
        with torch.no_grad():
            logits = loaded.model(torch.tensor([[*tokens, EOS]]), torch.tensor([[BOS, *labels]]))
        scored = [*labels, EOS][: longest(source)]  # Marian scores no end where it cuts
        log_probs = logits[0, : len(scored)].log_softmax(-1)
        total = log_probs.gather(1, torch.tensor(scored)[:, None]).sum().item()
        assert abs(total - float(expected)) / len(scored) < 1e-5  # Marian prints six digits


@pytest.mark.parametrize("name", NAMES)
def test_translations_are_those_of_marian(name: str, tmp_path: Path) -> None:
    rows = by_marian(name)
    whole = [row for row in rows if len(row[1].split()) < longest(row[0])]
    assert len(whole) > 0.9 * len(rows)
    power = {"name": "power", "alpha": 0.0}
    rules = {"name": "beam", "beam": 4, "length_penalty": power, "stop": "shrinking_beam"}
    translator = nmt.Translator(import_named(tmp_path, name), strategy=rules)
    ours = list(translator.translate([source for source, _, _ in whole]))
    assert ours == [target for _, target, _ in whole]


@pytest.mark.parametrize(
    ("settings", "layer"),
    [
        ({}, 2),
        ({"transformer-guided-alignment-layer": "last"}, 2),
        ({"transformer-guided-alignment-layer": "1", "transformer-decoder-dim-ffn": 24}, 1),
    ],
    ids=str,
)
def test_words_are_aligned_by_the_head_that_marian_guides(
    settings: dict[str, Any], layer: int, tmp_path: Path
) -> None:
    directory = copy_model(tmp_path / "deep", "transformer")
    arrays = dict(np.load(directory / "model.npz"))
    written = yaml.safe_load(bytes(arrays["special:model.yml"]).rstrip(b"\0"))
    del written["transformer-guided-alignment-layer"]
    written |= {"dec-depth": 2, **settings}
    arrays |= {
        name.replace("decoder_l1", "decoder_l2"): array
        for name, array in arrays.items()
        if name.startswith("decoder_l1")
    }
    arrays["special:model.yml"] = np.frombuffer(yaml.safe_dump(written).encode() + b"\0", np.int8)
    np.savez(directory / "model.npz", **arrays)
    model = load_model(import_model(directory, tmp_path / "run", None, "en", "de").path).model
    assert isinstance(model, Transformer)
    assert (model.alignment_layer, model.alignment_head) == (layer, 1)


def test_the_decoder_s_configuration_names_files_and_the_search(tmp_path: Path) -> None:
    directory = copy_model(tmp_path / "model", "transformer")
    best = "opus.spm.transformer.model1.npz.best-perplexity.npz"  # as in packages of OPUS-MT
    (directory / "model.npz").rename(directory / best)
    for other in ("opus.npz.optimizer.npz", "README.md", "preprocess.sh", "LICENSE"):
        (directory / other).write_bytes(b"")
    for side in ("source", "target"):
        shutil.copy(directory / "vocab.spm", directory / f"{side}.spm")
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(directory / "vocab.spm"))
    (directory / "vocab.spm").unlink()
    pieces = {processor.id_to_piece(token): token for token in range(len(processor))}
    (directory / "opus.vocab.yml").write_text(yaml.safe_dump(pieces, allow_unicode=True))
    decoder = {
        "models": [f"/elsewhere/{best}"],
        "vocabs": ["opus.vocab.yml", "opus.vocab.yml"],
        "beam-size": 3,
        "normalize": True,
        "allow-unk": True,
    }
    (directory / "decoder.yml").write_text(yaml.safe_dump(decoder))
    run = import_model(directory, tmp_path / "run", None, "en", "de")
    assert run.section("search") == {
        "strategy": {
            "name": "beam",
            "beam": 3,
            "length_penalty": {"name": "power", "alpha": 1.0},
            "stop": "shrinking_beam",
        },
        "constraints": [],
        "max_length_ratio": 3.0,
        "max_length_offset": 1,
    }
    source, target, _ = by_marian("transformer")[0]
    assert list(nmt.Translator(run.path).translate([source])) == [target]


def test_a_binary_file_is_the_same_model(tmp_path: Path) -> None:
    directory = copy_model(tmp_path / "model", "student")
    before = import_model(directory, tmp_path / "npz", None, "en", "de").path
    (directory / "model.npz").unlink()
    shutil.copy(FILES / "student.bin", directory / "model.bin")
    (directory / "lex.s2t.bin").write_bytes(b"a shortlist of Bergamot")
    after = import_model(directory, tmp_path / "bin", None, "en", "de").path
    weights, others = (load_model(run).model.state_dict() for run in (before, after))
    assert {*weights} == {*others}
    assert all(torch.equal(weights[name], others[name]) for name in weights)


@pytest.mark.parametrize("layout", ["vocab.ende.spm", "vocab.txt", "vocab.json"])
def test_vocabularies_of_every_layout_are_read(layout: str, tmp_path: Path) -> None:
    import sentencepiece

    directory = copy_model(tmp_path / "model", "transformer")
    spm = directory / "vocab.spm"
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(spm)).id_to_piece([*range(43)])
    if layout.endswith("spm"):  # Bergamot's, without a decoder.yml
        spm.rename(directory / layout)
    else:
        for side in ("source", "target"):
            shutil.copy(spm, directory / f"{side}.spm")
        ids = {piece: token for token, piece in enumerate(pieces)}
        text = json.dumps(ids) if layout.endswith("json") else "\n".join(pieces)
        (directory / layout).write_text(text)
        (directory / "decoder.yml").write_text(f"vocabs: [{layout}, {layout}]")
        spm.unlink()
    run = import_model(directory, tmp_path / "run", None, "en", "de")
    source, target, _ = by_marian("transformer")[0]
    assert list(nmt.Translator(run.path).translate([source])) == [target]


@pytest.mark.parametrize("ending", ["yml", "json", "txt"])
def test_vocabularies_are_as_large_as_those_of_opus_mt(ending: str, tmp_path: Path) -> None:
    pieces = ["</s>", "<unk>", *(f"piece{number}" for number in range(65000))]
    ids = {piece: token for token, piece in enumerate(pieces)}
    text = {
        "yml": "".join(f"{piece}: {token}\n" for piece, token in ids.items()),
        "json": json.dumps(ids),
        "txt": "\n".join(pieces),
    }
    path = tmp_path / f"vocab.{ending}"
    path.write_text(text[ending])
    assert read_pieces(path) == dict(enumerate(pieces))


def test_pieces_in_yaml_are_text(tmp_path: Path) -> None:
    pieces = ["</s>", "<unk>", "no", "on", "yes", "007", "1.50", "null", "~", "2020-01-01", "0x1f"]
    pieces += ["True", "1_0", "\u2581no"]
    text = "".join(f"{piece}: {token}\n" for token, piece in enumerate(pieces))
    (tmp_path / "vocab.yml").write_text(f'{text}"\\"\\u2028": {len(pieces)}\n', "utf-8")
    names = {**dict(enumerate(pieces)), len(pieces): '"\u2028'}
    assert read_pieces(tmp_path / "vocab.yml") == names


def test_pieces_in_a_list_may_be_other_line_ends(tmp_path: Path) -> None:
    (tmp_path / "vocab").write_bytes("</s>\r\n<unk>\n\u2028\n\x85\na".encode())
    names = dict(enumerate(["</s>", "<unk>", "\u2028", "\x85", "a"]))
    assert read_pieces(tmp_path / "vocab") == names


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", "the piece 'a' is given twice"),
        ("a: b\n", "expected pieces with their ids"),
        ("a: 9999999999\n", "expected pieces with their ids"),
        ("a: [1]\n", "expected pieces with their ids"),
        ("a: &x 1\nb: *x\n", "expected pieces with their ids"),
        ("a: 1\n---\nb: 2\n", "expected pieces with their ids"),
        ("- a\n", "expected pieces with their ids"),
        ("", "expected pieces with their ids"),
        ('"a: 1\n', "not valid YAML"),
        ("a\x00: 1\n", "not valid YAML"),
    ],
)
def test_other_vocabularies_are_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "vocab.yml"
    path.write_text(text)
    with pytest.raises(NmtError, match=f"^{re.escape(str(path))}.*{message}"):
        read_pieces(path)


def change_arrays(**changes: Any) -> Callable[[Path], None]:
    """Change, add or (None) remove arrays of a model."""

    def change(directory: Path) -> None:
        arrays = dict(np.load(directory / "model.npz")) | changes
        kept = {name: array for name, array in arrays.items() if array is not None}
        np.savez(directory / "model.npz", **kept)

    return change


def change_settings(**changes: Any) -> Callable[[Path], None]:
    """Change the configuration inside a model."""

    def change(directory: Path) -> None:
        arrays = dict(np.load(directory / "model.npz"))
        settings = yaml.safe_load(arrays[YAML].tobytes().rstrip(b"\0 \n")) | {
            key.replace("_", "-"): value for key, value in changes.items()
        }
        text = yaml.safe_dump(settings).encode()
        arrays[YAML] = np.frombuffer(text, np.int8)
        np.savez(directory / "model.npz", **arrays)

    return change


def write_member(content: bytes) -> Callable[[Path], None]:
    """Replace a model by an archive with one member."""

    def change(directory: Path) -> None:
        with zipfile.ZipFile(directory / "model.npz", "w") as archive:
            archive.writestr("Wemb.npy", content)

    return change


def header(shape: tuple[int, ...], dtype: str) -> bytes:
    file = io.BytesIO()
    values = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, values)
    return file.getvalue()


def pipe(directory: Path) -> None:
    (directory / "model.npz").unlink()
    os.mkfifo(directory / "model.npz")


def pickled(directory: Path) -> None:
    np.savez(directory / "model.npz", Wemb=np.array([Path("executed")], dtype=object))


def raw_header(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def decoder(text: str) -> Callable[[Path], object]:
    return lambda path: (path / "decoder.yml").write_text(text)


PRE_NORM = {"transformer_postprocess": "da", "transformer_postprocess_top": "n"}
NO_ARRAYS = "model.npz: not a file of numpy arrays of numbers; copy the model again"
SEARCH = "decoder.yml: not a search that nmt can do: search.*"


def spoil_piece(path: Path) -> None:
    """Makes a piece bytes that are no text."""
    before, piece, after = path.read_bytes().partition("\u2581t".encode())
    path.write_bytes(before + b"\xff" + piece[1:] + after)


REFUSED: list[tuple[Callable[[Path], object], str]] = [
    (lambda path: (path / "vocab.spm").unlink(), r"vocab.spm: missing"),
    (lambda path: spoil_piece(path / "vocab.spm"), r"vocab.spm: not a SentencePiece model"),
    (lambda path: (path / "model.npz").write_bytes(b"x"), NO_ARRAYS),
    (lambda path: shutil.copy(path / "model.npz", path / "b.npz"), r"expected one model"),
    (lambda path: (path / "decoder.yml").write_text("models: [a, b]"), r"an ensemble of 2 models"),
    (lambda path: (path / "decoder.yml").write_text("[1"), r"decoder.yml"),
    (
        lambda path: (path / "decoder.yml").write_text("beam-size: x"),
        r"beam-size: expected a number",
    ),
    (lambda path: (path / "decoder.yml").write_text("word-penalty: 1.0"), r"word-penalty: 1.0"),
    (
        lambda path: (path / "decoder.yml").write_text("vocabs: [a.spm]"),
        r"expected two vocabularies",
    ),
    (decoder(r'vocabs: ["a\0.spm", vocab.spm]'), r"model: vocabs: 'a\\x00.spm' names no file"),
    (decoder(r'models: ["a\nb.npz"]'), r"model: models: 'a\\nb.npz' names no file; mend the name"),
    (decoder("normalize: abc"), r"decoder.yml: normalize: expected a number, not 'abc'"),
    (decoder("normalize: [1]"), r"decoder.yml: normalize: expected a number, not \[1\]"),
    (decoder("normalize: -1.0"), SEARCH + "alpha must be at least 0, not -1; change that value"),
    (decoder("normalize: .nan"), SEARCH + "alpha"),
    (decoder("beam-size: 0"), SEARCH + "beam must be at least 1, not 0; change that value"),
    (decoder("beam-size: -5"), SEARCH + "beam must be at least 1, not -5; change that value"),
    (decoder("max-length-factor: .nan"), SEARCH + "max_length_ratio"),
    (decoder("max-length-factor: .inf"), SEARCH + "max_length_ratio must be at most 1,000,000"),
    (
        change_arrays(encoder_l1_self_Wk=np.zeros((3, 4))),
        r"encoder_l1_self_Wk has the shape \[3, 4\]",
    ),
    (change_arrays(encoder_l1_self_Wq=np.zeros((2, 3, 4))), r"does not fit encoder_l1_self_Wq of"),
    (change_arrays(encoder_l1_self_Wo=np.zeros((2, 3, 4))), r"different shapes: encoder.0"),
    (change_arrays(encoder_l1_self_Wo=np.zeros(4)), r"encoder_l1_self_Wo has the shape \[4\]"),
    (change_arrays(Wemb=np.zeros((10**12, 0))), r"has no table Wemb of the width dim-emb"),
    (change_arrays(**{YAML: None}), r"holds no configuration"),
    (change_arrays(extra=np.zeros(2)), r"no place for the tensor extra"),
    (change_arrays(encoder_l1_ffn_W1=None), r"has no tensor encoder_l1_ffn_W1"),
    (
        change_arrays(encoder_l1_ffn_W1=np.zeros((3, 4))),
        r"different shapes: encoder.0.feed_forward",
    ),
    (change_arrays(Wemb=None), r"has no table Wemb"),
    (change_arrays(decoder_ff_logit_out_b=np.zeros(3)), r"has 3 elements, not 4"),
    (change_settings(right_left=True), r"no counterpart of right-left: True"),
    (change_settings(type="s2s"), r"no counterpart of type: s2s"),
    (change_settings(transformer_ffn_activation="gelu"), r"transformer-ffn-activation: gelu"),
    (change_settings(transformer_preprocess="n"), r"no counterpart of transformer-preprocess"),
    (
        change_settings(transformer_preprocess="n", **PRE_NORM),
        r"has no tensor encoder_l1_self_Wo_ln_scale_pre",
    ),
    (
        change_settings(transformer_decoder_autoreg="average-attention"),
        r"has no tensor decoder_l1_aan_W1",
    ),
    (
        change_settings(
            transformer_decoder_autoreg="average-attention", transformer_aan_nogate=True
        ),
        r"no counterpart of transformer-aan-nogate",
    ),
    (
        change_settings(transformer_decoder_autoreg="average-attention", transformer_dim_aan=0),
        r"transformer-dim-aan: expected a number",
    ),
    (change_settings(transformer_decoder_autoreg="rnn"), r"no counterpart of dec-cell: gru"),
    (change_settings(transformer_tied_layers=[1, 1]), r"transformer-tied-layers: \[1, 1\]"),
    (change_settings(dim_emb="x"), r"dim-emb: expected a number"),
    (change_settings(transformer_heads=5), r"not divisible by 5 heads"),
    (change_settings(enc_depth=10**12), r"has no tensor encoder_l3"),
    (write_member(header((10**12,), "<f4")), NO_ARRAYS),
    (write_member(header((1,), "|O") + b"cos\nsystem\n"), NO_ARRAYS),
    (write_member(b"\x93NUMPY\x01\x00\xff\xff"), NO_ARRAYS),
    (write_member(raw_header("-" * 9000 + "1")), NO_ARRAYS),
    (write_member(raw_header("{[]: 1}")), NO_ARRAYS),
    (write_member(b"text"), NO_ARRAYS),
    (pickled, NO_ARRAYS),
    (pipe, r"model.npz: "),
]


def change_binary(at: int, form: str, *values: int) -> Callable[[Path], object]:
    """Put numbers at a place of a binary file, in the place of the npz file."""

    def change(directory: Path) -> None:
        (directory / "model.npz").unlink()
        content = bytearray((FILES / "student.bin").read_bytes())
        struct.pack_into(form, content, at, *values)
        (directory / "model.bin").write_bytes(content)

    return change


def shorten(directory: Path) -> None:
    (directory / "model.npz").unlink()
    (directory / "model.bin").write_bytes((FILES / "student.bin").read_bytes()[:-300])


def put_ctranslate2(directory: Path) -> None:
    (directory / "model.npz").unlink()
    header = struct.pack("<IH16sII", 6, 16, b"TransformerSpec", 7, 0)
    (directory / "model.bin").write_bytes(header)


BINARY = r"model.bin: not a binary file of Marian: "
REFUSED += [
    (put_ctranslate2, r"model.bin: a model of CTranslate2, which cannot be imported; translate"),
    (shorten, BINARY + "it ends too early"),
    (change_binary(0, "<Q", 2), BINARY + "its version is 2, not 1"),
    (change_binary(8, "<Q", 1 << 62), BINARY + "it ends too early"),
    (change_binary(16, "<Q", 1 << 40), BINARY + "it ends too early"),
    (change_binary(24, "<Q", 0x4101), r"the type of decoder_Wemb is 0x4101: quantised weights"),
    (change_binary(32, "<Q", 1 << 61), BINARY + "it ends too early"),
    (change_binary(40, "<Q", 3), BINARY + r"decoder_Wemb of 3 bytes has the shape \[43, 16\]"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_cannot_be_imported_is_refused_in_one_line(
    change: Callable[[Path], object],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    copy_model(Path("model"), "transformer")
    change(Path("model"))
    with pytest.raises(NmtError, match=message) as error:
        import_model(Path("model"), Path("run"), import_formats["marian"], "en", "de")
    assert "\n" not in str(error.value)
    assert not Path("run").exists()
    assert not Path("executed").exists()
