import io
import json
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign_models import ENGLISH, marian_model
from safetensors.torch import load_file, save_file

import nmt
from nmt.data.vocabulary import BOS, EOS, PAD
from nmt.errors import NmtError
from nmt.formats import import_model
from nmt.formats.huggingface import POSITIONS
from nmt.runs import load_model

transformers = pytest.importorskip("transformers")

LINES = [
    " ".join(line.split()[at:][:length])
    for line in ENGLISH[:3]
    for at in (0, 2)
    for length in (1, 6)
]

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    **{name: {"activation_function": name} for name in ("relu", "gelu", "gelu_new", "silu")},
    "swish": {"activation_function": "swish"},
    "scaled embeddings": {"scale_embedding": True},
    "separate vocabularies": {
        "share_encoder_decoder_embeddings": False,
        "tie_word_embeddings": False,
        "end": 1.0,
    },
    "separate vocabularies, output tied": {
        "share_encoder_decoder_embeddings": False,
        "end": 1.0,
    },
    "one layer": {"encoder_layers": 1, "decoder_layers": 1},
    "deep and shallow": {"encoder_layers": 6, "decoder_layers": 1, "end": 1.0, "seed": 1},
    "as OPUS-MT": {
        "activation_function": "swish",
        "scale_embedding": True,
        "encoder_layers": 6,
        "decoder_layers": 6,
    },
}


@pytest.fixture(params=CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
def imported(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Path, Path]:
    """A model, its directory, and the run that was imported from it."""
    model = marian_model(tmp_path / "theirs", **request.param)
    import_model(tmp_path / "theirs", tmp_path / "run")
    return model, tmp_path / "theirs", tmp_path / "run"


def place(vocabulary: dict[str, int], pieces: list[str]) -> list[int]:
    """The foreign id of each of our ids; of PAD and BOS, that of padding."""
    names = ["<pad>", "<unk>", "<pad>", "</s>", *pieces[4:]]
    return [vocabulary[name] for name in names]


def test_the_logits_are_those_of_transformers(imported: tuple[Any, Path, Path]) -> None:
    model, theirs, run = imported
    loaded = load_model(run)
    tokenizer = transformers.MarianTokenizer.from_pretrained(theirs)
    inputs = tokenizer(LINES, return_tensors="pt", padding=True)
    labels = tokenizer(text_target=LINES[::-1], return_tensors="pt", padding=True).input_ids
    begun = torch.cat(
        (torch.full_like(labels[:, :1], model.config.decoder_start_token_id), labels), 1
    )
    with torch.no_grad():
        expected = model(**inputs, decoder_input_ids=begun).logits

    subwords = loaded.subwords
    source_pieces = subwords.source_pieces([*range(subwords.source_size)])
    target_pieces = subwords.target_pieces([*range(subwords.target_size)])
    to_source = place(tokenizer.encoder, source_pieces)
    to_target = place(getattr(tokenizer, "target_encoder", tokenizer.encoder), target_pieces)
    sources = [[*row, EOS] for row in subwords.encode_source(LINES)]
    assert [[to_source[token] for token in row] for row in sources] == [
        row[mask].tolist()
        for row, mask in zip(inputs.input_ids, inputs.attention_mask.bool(), strict=True)
    ]
    targets = [[BOS, *row, EOS] for row in subwords.encode_target(LINES[::-1])]
    for at, (source, target) in enumerate(zip(sources, targets, strict=True)):
        with torch.no_grad():
            logits = loaded.model(torch.tensor([source]), torch.tensor([target]))[0]
        wanted = expected[at, : len(target)][:, to_target]
        torch.testing.assert_close(logits[:, PAD + 1 :], wanted[:, PAD + 1 :], atol=1e-4, rtol=0)
        assert (logits[:, PAD].exp() == 0).all()


@pytest.mark.full
def test_translations_are_those_of_generate(imported: tuple[Any, Path, Path]) -> None:
    model, theirs, run = imported
    tokenizer = transformers.MarianTokenizer.from_pretrained(theirs)
    ours = nmt.Translator(run).translate(LINES)
    compared = set()
    for line, text in zip(LINES, ours, strict=True):
        [output] = model.generate(**tokenizer([line], return_tensors="pt"))
        if len(output) < model.generation_config.max_length:  # longer ones are cut elsewhere
            assert text == tokenizer.decode(output, skip_special_tokens=True)
            compared.add(text)
    assert len(compared) > 3


def test_the_positions_bound_sources_and_the_greatest_length_the_output_alone(
    tmp_path: Path,
) -> None:
    model = marian_model(tmp_path / "theirs", max_position_embeddings=60)
    model.generation_config.update(max_length=12)
    model.generation_config.save_pretrained(tmp_path / "theirs")
    search = import_model(tmp_path / "theirs", tmp_path / "run").section("search")
    assert (search["max_source_length"], search["max_length_offset"]) == (60, 12 - 1)


@pytest.mark.parametrize("stop", [True, "never"])
def test_the_rules_of_the_generation_config_are_those_of_the_run(
    stop: object, tmp_path: Path
) -> None:
    model = marian_model(tmp_path / "theirs")
    model.generation_config.update(
        num_beams=3,
        early_stopping=stop,
        length_penalty=0.5,
        no_repeat_ngram_size=2,
        bad_words_ids=[[5], [1, 2], [37]],
    )
    model.generation_config.save_pretrained(tmp_path / "theirs")
    search = import_model(tmp_path / "theirs", tmp_path / "run").section("search")
    assert search["strategy"] == {
        "name": "beam",
        "beam": 3,
        "length_penalty": {"name": "power", "alpha": 0.5},
        "stop": "first_beam" if stop is True else "all_finished",
    }
    assert search["constraints"] == [
        {"name": "forbidden", "tokens": [7]},
        {"name": "no_repeat_ngram", "size": 2},
    ]


def test_a_file_of_torch_and_other_positions_are_read_too(tmp_path: Path) -> None:
    model = marian_model(tmp_path / "theirs", activation_function="relu")
    theirs = tmp_path / "theirs"
    (theirs / "model.safetensors").unlink()
    torch.save(model.state_dict(), theirs / "pytorch_model.bin")
    recipe = import_model(theirs, tmp_path / "run").section("model")
    one = (tmp_path / "run" / "last" / "model.safetensors").read_bytes()
    tensors = [*model.state_dict().items()]
    for number, part in enumerate((tensors[::2], tensors[1::2]), 1):
        torch.save(dict(part), theirs / f"pytorch_model-0000{number}-of-00002.bin")
    (theirs / "pytorch_model.bin").unlink()
    import_model(theirs, tmp_path / "parts")
    assert (tmp_path / "parts" / "last" / "model.safetensors").read_bytes() == one
    for part_file in theirs.glob("pytorch_model-*.bin"):
        part_file.unlink()
    assert (recipe["positions"]["name"], recipe["sinusoids"]) == ("sinusoidal", "halves")
    state = model.state_dict()
    for stack in ("encoder", "decoder"):
        state[f"model.{stack}.embed_positions.weight"] = torch.ones(40, 16) * 0.25
    torch.save(state, theirs / "pytorch_model.bin")
    run = import_model(theirs, tmp_path / "run")
    learned = {"name": "learned", "max_positions": 40, "separate": False}
    assert run.section("model")["positions"] == learned
    assert (load_model(run.path).model.positions.table.weight == 0.25).all()  # type: ignore[union-attr]
    state["model.encoder.embed_positions.weight"] = torch.ones(40, 16) * 0.5
    torch.save(state, theirs / "pytorch_model.bin")
    run = import_model(theirs, tmp_path / "run")
    assert run.section("model")["positions"] == {**learned, "separate": True}
    read = load_model(run.path).model
    assert (read.positions.table.weight == 0.25).all()  # type: ignore[union-attr]
    assert (read.source_positions.table.weight == 0.5).all()  # type: ignore[union-attr]


def test_the_command_says_where_a_run_comes_from(tmp_path: Path, nmt: Callable[..., Any]) -> None:
    marian_model(tmp_path / "opus", activation_function="relu")
    done = nmt("import", tmp_path / "opus", "--output", tmp_path / "run")
    assert (done.status, done.out) == (0, f"{tmp_path / 'run'}\n")
    assert done.err == f"imported {tmp_path / 'opus'}, en to de\n"
    shown = nmt("inspect", tmp_path / "run", "--verify").out
    assert "run, en to de, transformer_base\nimported from opus (huggingface)\n" in shown
    assert shown.endswith("checksums: as written\n")
    again = nmt("import", tmp_path / "opus", "--output", tmp_path / "run", "-s", "eng", "-t", "deu")
    assert again.status == 0
    assert "run, eng to deu" in nmt("inspect", tmp_path / "run").out
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    refused = nmt("import", tmp_path / "opus", "--output", tmp_path / "other")
    assert refused.status == 1
    assert "holds something other than an imported run" in refused.err


class Executed:
    """What a hostile pickle would run."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("executed"),))


def change_json(name: str, **values: Any) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        path = directory / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return change


def change_tensors(**changes: Any) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        path = directory / "model.safetensors"
        tensors = load_file(path)
        for name, tensor in changes.items():
            tensors.pop(name, None)
            if tensor is not None:
                tensors[name] = tensor
        save_file(tensors, path)

    return change


def replace_weights(content: bytes) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        (directory / "model.safetensors").unlink()
        (directory / "pytorch_model.bin").write_bytes(content)

    return change


def saved(*tensors: torch.Tensor) -> bytes:
    file = io.BytesIO()
    torch.save({str(number): tensor for number, tensor in enumerate(tensors)}, file)
    return file.getvalue()


def compressed(content: bytes) -> bytes:
    file = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(content)) as plain,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for name in plain.namelist():
            archive.writestr(name, plain.read(name))
    return file.getvalue()


FC = "model.encoder.layers.0.fc1.weight"
QUERY, KEY = (f"model.encoder.layers.0.self_attn.{part}_proj.weight" for part in "qk")
NORM = "model.encoder.layers.0.final_layer_norm.bias"
HALF = torch.zeros(1, dtype=torch.float16)
GENERATION = "generation_config.json: not a search that nmt can do: .*"
REFUSED: list[tuple[Callable[[Path], object], str]] = [
    (lambda path: (path / "source.spm").unlink(), r"source.spm: missing; the import needs it"),
    (lambda path: (path / "target.spm").write_text("x"), r"target.spm: not a SentencePiece model"),
    (lambda path: (path / "config.json").write_text("{"), r"config.json: not JSON"),
    (lambda path: (path / "vocab.json").write_text("[]"), r"vocab.json: expected keys and values"),
    (lambda path: (path / "model.safetensors").write_bytes(b"x"), r"not a safetensors file"),
    (lambda path: (path / "model.safetensors").unlink(), r"holds neither model.safetensors"),
    (lambda path: (path / "vocab.json").unlink(), r"looks like none of the formats fairseq"),
    (
        change_json("config.json", model_type="bart"),
        r"no counterpart of model_type bart, not marian",
    ),
    (change_json("config.json", activation_function="mish"), r"activation_function mish"),
    (
        change_json("config.json", decoder_ffn_dim=7),
        r"a decoder_ffn_dim other than encoder_ffn_dim",
    ),
    (change_json("config.json", d_model="x"), r"config.json.d_model"),
    (
        change_json("config.json", d_model=10**12),
        r"has the shape \[33, 16\], not \[33, 1000000000000\]",
    ),
    (change_json("config.json", encoder_layers=10**12), r"no tensor model.encoder.layers.2"),
    (change_json("config.json", vocab_size=10**12), r"but config.json says 1000000000000"),
    (change_json("config.json", encoder_layers=-1), r"no place for the tensor model.encoder"),
    (change_json("config.json", dropout=2.0), r"config.json: dropout lies in"),
    (
        change_json("config.json", encoder_attention_heads=3, decoder_attention_heads=3),
        r"not divisible by 3",
    ),
    (change_json("config.json", pad_token_id=99), r"a special id is 99, but there are 33 pieces"),
    (change_json("config.json", eos_token_id=-1), r"a special id is -1"),
    (change_json("vocab.json", the=99), r"ids from 0 to 32"),
    (change_json("vocab.json", the=3), r"34 pieces with 33 ids"),
    (change_json("tokenizer_config.json", unk_token="huh"), r"has no piece 'huh'"),
    (
        change_json("tokenizer_config.json", target_lang=None),
        r"no target language; give it with --target-lang",
    ),
    (
        change_json("tokenizer_config.json", source_lang="a/b"),
        r"not 'a/b'; give it with --source-lang",
    ),
    (change_json("generation_config.json", num_beams="x"), r"num_beams: expected a number"),
    (change_json("generation_config.json", num_beams=2.5), r"num_beams: expected a number"),
    (change_json("generation_config.json", bad_words_ids=[1]), r"expected lists of ids"),
    (change_json("generation_config.json", bad_words_ids=[[[1]]]), r"expected lists of ids"),
    (change_tensors(**{FC: None}), r"have no tensor model.encoder.layers.0.fc1.weight"),
    (change_tensors(**{FC: torch.zeros(3)}), r"different shapes|fc1.weight"),
    (change_tensors(**{FC: torch.zeros(24, 16, dtype=torch.int8)}), r"is not a tensor of numbers"),
    (change_tensors(extra=torch.zeros(3)), r"no place for the tensor extra"),
    (change_tensors(final_logits_bias=torch.zeros(3)), r"has the shape \[3\], not \[1, 33\]"),
    (replace_weights(pickle.dumps(Executed())), r"not only tensors"),
    (replace_weights(b"x"), r"not only tensors"),
    (replace_weights(b"\x80\x02a."), r"not only tensors"),
    (
        replace_weights(saved(HALF.expand(10**9))),
        r"sparse, or larger than the file",
    ),
    (
        replace_weights(saved(*[torch.zeros(999)] * 9)),
        r"sparse, or larger than the file",
    ),
    (replace_weights(saved(torch.zeros(9, device="meta"))), r"sparse, or larger than the file"),
    (replace_weights(saved(torch.eye(3).to_sparse())), r"sparse, or larger than the file"),
    (replace_weights(compressed(saved(torch.zeros(10**5)))), r"sparse, or larger than the file"),
    (
        change_tensors(**{QUERY: torch.zeros(16, 9)}),
        rf"does not fit {QUERY} of the shape \[16, 9\]",
    ),
    (change_tensors(**{KEY: torch.zeros(16)}), rf"{KEY} has the shape \[16\], which does not fit"),
    (change_tensors(**{NORM: torch.tensor(1.0)}), rf"{NORM} has the shape \[\], which does not"),
    (
        change_tensors(**{POSITIONS[0]: torch.zeros(10**12, 0)}),
        r"has the shape \[1000000000000, 0\], but config.json says d_model 16",
    ),
    (
        change_json("generation_config.json", no_repeat_ngram_size=-1),
        GENERATION + "size must be at least 1",
    ),
    (
        change_json("generation_config.json", num_beams=2, length_penalty=-1.0),
        GENERATION + "alpha must be at least 0, not -1; change that value",
    ),
]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "model"
    marian_model(path, activation_function="relu")
    return path


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_cannot_be_imported_is_refused_in_one_line(
    change: Callable[[Path], object],
    message: str,
    sound: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import shutil

    monkeypatch.chdir(tmp_path)
    shutil.copytree(sound, "model")
    change(Path("model"))
    with pytest.raises(NmtError, match=message) as error:
        import_model(Path("model"), Path("run"))
    assert "\n" not in str(error.value)
    assert not Path("run").exists()
    assert not Path("executed").exists()


GROWTH = """
import sys
from pathlib import Path
from nmt.formats import import_model
status = Path("/proc/self/status")
before = status.read_text()
import_model(*map(Path, sys.argv[1:]))
print(*(text.partition("VmHWM:")[2].split()[0] for text in (before, status.read_text())))
"""


def test_an_import_takes_little_more_memory_than_the_weights(tmp_path: Path) -> None:
    sizes = {"d_model": 256, "encoder_ffn_dim": 12_000, "decoder_ffn_dim": 12_000}
    marian_model(tmp_path / "model", **sizes)
    arguments = (tmp_path / "model", tmp_path / "run")
    # With a fixed threshold glibc returns what is freed; else chance decides how much it keeps.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"}
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, *arguments], capture_output=True, check=True, env=environment
    )
    before, after = (1024 * int(peak) for peak in done.stdout.split())
    size = (tmp_path / "model" / "model.safetensors").stat().st_size
    assert size > 100e6
    assert after - before < 1.5 * size + 16e6  # of code that the import loads
