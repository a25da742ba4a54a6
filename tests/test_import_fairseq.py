"""Models that fairseq 0.12.2 has trained, and its translations with their log-probabilities."""

import gzip
import os
import shutil
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import nmt
from nmt.data.vocabulary import BOS, EOS
from nmt.errors import NmtError
from nmt.formats import import_formats, import_model
from nmt.formats.exporting import export_formats, export_run
from nmt.formats.fairseq import dictionary
from nmt.inference import SearchConfig
from nmt.recipe.config import build
from nmt.runs import load_model

FILES = Path(__file__).parent / "fairseq"
NAMES = ("post", "pre", "spm")
"""A post-norm model with one dictionary and codes of subword-nmt; a pre-norm model with learned
positions, two dictionaries and codes of fastBPE; and one with SentencePiece that ties nothing."""


def copy_model(directory: Path, name: str) -> Path:
    shutil.copytree(FILES / name, directory)
    content = (directory / "model.pt.gz").read_bytes()
    (directory / "model.pt").write_bytes(gzip.decompress(content))
    return directory


@pytest.fixture(scope="module", params=NAMES)
def imported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp(request.param)
    return import_model(
        copy_model(directory / request.param, request.param), directory / "run"
    ).path


def by_fairseq(run: Path) -> list[list[str]]:
    """Source, translation with a beam of 5, its length, a target, and each token's score."""
    rows = (FILES / run.parent.name[:-1] / "expected.tsv").read_text(encoding="utf-8").splitlines()
    return [row.split("\t") for row in rows]


def test_log_probabilities_are_those_of_fairseq(imported: Path) -> None:
    loaded = load_model(imported)
    for source, _, _, target, scores in by_fairseq(imported):
        [tokens] = loaded.subwords.encode_source([source])
        [labels] = loaded.subwords.encode_target([target])
        with torch.no_grad():
            logits = loaded.model(torch.tensor([[*tokens, EOS]]), torch.tensor([[BOS, *labels]]))
        log_probs = logits[0].log_softmax(-1).gather(1, torch.tensor([[*labels, EOS]]).t())[:, 0]
        expected = torch.tensor([float(score) for score in scores.split()])
        torch.testing.assert_close(log_probs, expected, atol=2e-5, rtol=0)


def test_translations_are_those_of_fairseq(imported: Path) -> None:
    rows = by_fairseq(imported)
    assert len(rows) > 23
    ours = list(nmt.Translator(imported).translate([row[0] for row in rows]))
    assert ours == [row[1] for row in rows]


def test_a_line_that_overwrites_has_the_id_of_its_piece(tmp_path: Path) -> None:
    path = tmp_path / "dict.en.txt"
    path.write_text("a 5\nb 4\na 3 #fairseq:overwrite\n<s> 1 #fairseq:overwrite\nc 1\n")
    vocabulary = dictionary(path, 9, is_target=False)
    rows = {piece: vocabulary.rows[at] for piece, at in vocabulary.vocabulary.ids.items()}
    assert {piece: rows[piece] for piece in "abc"} == {"b": 5, "a": 6, "c": 8}


def test_old_layouts_are_read(tmp_path: Path) -> None:
    """Names of 2018, with ``args`` in the place of ``cfg``."""
    directory = copy_model(tmp_path / "post", "post")
    new = import_model(directory, tmp_path / "new")
    state = load(directory)
    old: dict[str, Any] = {}
    for name, tensor in state["model"].items():
        if name == "decoder.output_projection.weight" or "_proj_" in name or "fc1_" in name:
            continue
        stack, _, rest = name.partition(".")
        norms = ["self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"]
        norms = norms if stack == "decoder" else norms[::2]
        for number, norm in enumerate(norms):
            rest = rest.replace(f".{norm}.", f".layer_norms.{number}.")
        if "attn.q_proj" in rest:
            parts = [state["model"][name.replace("q_proj", f"{it}_proj")] for it in "qkv"]
            old[f"{stack}.{rest.replace('q_proj.', 'in_proj_')}"] = torch.cat(parts)
        elif "attn.k_proj" not in rest and "attn.v_proj" not in rest:
            old[f"{stack}.{rest}"] = tensor
    args = Namespace(**vars(state["cfg"]["model"]))
    torch.save({"args": args, "model": old}, directory / "model.pt")
    run = import_model(directory, tmp_path / "old")
    assert run.section("model") == new.section("model")
    weights = [dict(load_model(it.path).model.named_parameters()) for it in (new, run)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[1][name], weight) for name, weight in weights[0].items())


def test_settings_of_hydra_are_read(tmp_path: Path) -> None:
    """``fairseq-hydra-train`` has sections for both sides, and settings of the search."""
    directory = copy_model(tmp_path / "post", "post")
    state = load(directory)
    values = {"_name": "transformer_align", "encoder": {}, "decoder": {}}
    values |= {"alignment_layer": 0, "alignment_heads": 1}
    for key, value in vars(state["cfg"]["model"]).items():
        side, _, rest = key.partition("_")
        (values[side] if side in ("encoder", "decoder") and rest else values)[rest or key] = value  # type: ignore[index]
    values = {key: value for key, value in values.items() if key != "arch"}
    for key in ("share_all_embeddings", "share_decoder_input_output_embed"):
        values[key] = True
    generation = {"beam": 3, "lenpen": 0.5, "max_len_a": 1.5, "max_len_b": 10, "min_len": 2}
    tokenizer = {"_name": "moses", "moses_no_dash_splits": True, "moses_no_escape": True}
    task = {"_name": "translation", "source_lang": "en", "target_lang": "de"}
    cfg = {"model": values, "task": task, "generation": generation, "tokenizer": tokenizer}
    torch.save({"cfg": cfg, "model": state["model"]}, directory / "model.pt")
    run = import_model(directory, tmp_path / "run")
    aligned = [run.section("model")[f"alignment_{part}"] for part in ("layer", "head")]
    assert aligned == [1, 1]
    assert run.section("search") == {
        "strategy": {
            "name": "beam",
            "beam": 3,
            "length_penalty": {"name": "power", "alpha": 0.5},
            "stop": "first_beam",
        },
        "constraints": [{"name": "min_length", "length": 2}],
        "max_length_ratio": 1.5,
        "max_length_offset": 11,
        "max_source_length": 1024,
    }
    codes = (run.path / "subwords.source.codes.json").read_text()
    assert '"dash_splits": false' in codes
    assert '"escape": false' in codes


def test_text_may_be_tokenised_elsewhere(tmp_path: Path) -> None:
    directory = copy_model(tmp_path / "post", "post")
    kind = import_formats["fairseq_tokenized"]
    run = import_model(directory, tmp_path / "run", kind)
    translator = nmt.Translator(run.path)
    [source, _, _, _, _] = (FILES / "post" / "expected.tsv").read_text().splitlines()[0].split("\t")
    assert source == "The old man doesn't like the friendly neighbour!"
    tokenised = "The old man doesn &apos;t like the friendly neighbour !"
    assert list(translator.translate([tokenised])) == [
        "Der alte Mann mag nicht den freundlichen Nachbarn ."
    ]


def test_a_run_with_codes_is_fine_tuned(
    tmp_path: Path, nmt: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    import_model(copy_model(Path("post"), "post"), Path("run"))
    table = (FILES / "post" / "expected.tsv").read_text(encoding="utf-8")
    rows = [row.split("\t") for row in table.splitlines()]
    for side, column in (("en", 0), ("de", 3)):
        for split in ("train", "valid"):
            lines = "".join(f"{row[column]}\n" for row in rows)
            Path(f"{split}.{side}").write_text(lines, encoding="utf-8")
    Path("train.align").write_text("0-0\n" * len(rows))
    preprocess = (
        "preprocess -s en -t de --train train --valid valid --workers 1 --subword-model run"
    )
    train = "train --data data --init-from run --save-dir tuned --max-updates 1 --warmup-updates 1"
    assert nmt(*f"{preprocess} --output-dir data".split()).status == 0
    options = "--lr 0.0001 --max-tokens 99 --valid-every 1 --save-every 1 --device cpu"
    assert nmt(*f"{train} {options}".split()).status == 0
    before, after = load_model(Path("run")), load_model(Path("tuned"))
    searches = [
        build(
            SearchConfig, yaml.safe_load(Path(run, "recipe.yaml").read_text())["search"], "search"
        )
        for run in ("run", "tuned")
    ]
    assert searches[0] == searches[1] != SearchConfig()
    assert after.subwords.is_same_as(before.subwords)
    difference = after.model.output.weight - before.model.output.weight
    assert 0 < difference.abs().max() < 0.001
    refused = nmt(*f"{preprocess} --output-dir other --alignments".split())
    assert "word alignments of training pairs need SentencePiece models" in refused.err
    extended = preprocess.replace("--subword-model", "--extend-vocabulary")
    refused = nmt(*f"{extended} --output-dir other".split())
    assert "a vocabulary of BPE codes cannot be extended" in refused.err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("huggingface", "MarianMTModel has no counterpart of BPE codes"),
        ("marian", "Marian has no counterpart of BPE codes, .* with offset 2; translate with nmt"),
        ("onnx", "no model with BPE codes can be exported to onnx; translate with nmt itself"),
    ],
)
def test_formats_without_a_place_for_codes_refuse_them(
    name: str, message: str, tmp_path: Path
) -> None:
    run = import_model(copy_model(tmp_path / "post", "post"), tmp_path / "run")
    with pytest.raises(NmtError, match=message):
        export_run(run.path, export_formats[name], "fp32", tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


def load(directory: Path) -> dict[str, Any]:
    with torch.serialization.safe_globals([Namespace]):
        loaded: dict[str, Any] = torch.load(directory / "model.pt", weights_only=True)
    return loaded


def change_model(**changes: Any) -> Callable[[Path], None]:
    """Change, add or (None) remove tensors; "__" stands for a dot."""

    def change(directory: Path) -> None:
        state = load(directory)
        named = {name.replace("__", "."): tensor for name, tensor in changes.items()}
        weights = {**state["model"], **named}
        state["model"] = {name: each for name, each in weights.items() if each is not None}
        torch.save(state, directory / "model.pt")

    return change


def change_settings(**changes: Any) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        state = load(directory)
        vars(state["cfg"]["model"]).update(changes)
        state["cfg"]["generation"] = {
            key: changes.get(key, value) for key, value in state["cfg"]["generation"].items()
        }
        torch.save(state, directory / "model.pt")

    return change


def several(*changes: Callable[[Path], object]) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        for each in changes:
            each(directory)

    return change


def save(value: Any) -> Callable[[Path], None]:
    return lambda directory: torch.save(value, directory / "model.pt")


class Executed:
    """Writes a file when pickle reads it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch executed",)


def hidden() -> Namespace:
    """A namespace that asks to be called while it is read."""
    namespace = Namespace()
    namespace.__dict__["__setstate__"] = Executed()
    return namespace


def write(name: str, text: str) -> Callable[[Path], object]:
    return lambda path: (path / name).write_text(text)


def append(name: str, text: str) -> Callable[[Path], object]:
    return lambda path: (path / name).write_text((path / name).read_text() + text)


def pipe(directory: Path) -> None:
    (directory / "model.pt").unlink()
    os.mkfifo(directory / "model.pt")


def two(directory: Path) -> None:
    (directory / "model.pt").rename(directory / "model1.pt")
    shutil.copy(directory / "model1.pt", directory / "model2.pt")


PLAIN = "not only tensors, and nmt reads nothing else"
Q = "encoder__layers__0__self_attn__q_proj__weight"
REFUSED: list[tuple[Callable[[Path], object], str]] = [
    (save({"model": Executed()}), rf"model.pt: {PLAIN}: it holds posix.system"),
    (save({"args": Executed(), "model": {}}), rf"{PLAIN}: it holds posix.system"),
    (save({"args": hidden(), "model": {}}), rf"{PLAIN}: it holds posix.system"),
    (write("model.pt", "x"), PLAIN),
    (save([1]), r"not a checkpoint of fairseq"),
    (save({"model": {}}), r"no counterpart of arch None"),
    (pipe, r"model.pt: not a regular file"),
    (two, r"several checkpoints: model1.pt, model2.pt; import each model of an ensemble"),
    (lambda path: (path / "dict.de.txt").unlink(), r"dict.de.txt: missing"),
    (write("dict.de.txt", "a\n"), r"dict.de.txt:1: expected a piece and a count, not 'a'"),
    (append("dict.de.txt", "a x\n"), r"expected a piece and a count, not 'a x'"),
    (append("dict.de.txt", "zz 3\n"), r"pieces and 4 special pieces, but the model has"),
    (lambda path: (path / "dict.en.txt").write_bytes(b"\xff 1\n"), r"dict.en.txt: not UTF-8"),
    (lambda path: (path / "code").unlink(), r"holds no subwords of en: none of sentencepiece.bpe"),
    (write("code", "#version: 7\n"), r"code: version '7' of the codes"),
    (append("code", "a\n"), r"code: merge \d+ is 'a', not two symbols; copy the codes again"),
    (write("spm.model", "x"), r"spm.model: not a SentencePiece model"),
    (change_model(extra=torch.zeros(2)), r"no place for the tensor extra"),
    (change_model(extra=torch.zeros(2, dtype=torch.int64)), r"'extra' is not a tensor of numbers"),
    (change_model(extra="x"), r"'extra' is not a tensor of numbers"),
    (change_model(extra=torch.zeros(2).to_sparse()), r"its tensors are sparse, or"),
    (change_model(extra=torch.zeros(1).expand(10**9)), r"its tensors are sparse, or larger"),
    (change_model(**{Q: None}), r"has no tensor encoder.layers.0.self_attn.q_proj.weight"),
    (change_model(**{Q: torch.zeros(3, 4)}), r"self_attn.k_proj.weight has the shape \[16, 16\]"),
    (change_model(**{Q: torch.zeros(())}), r"self_attn.q_proj.weight has the shape \[\]"),
    (change_model(encoder__layers__0__fc1__weight=torch.zeros(3, 4)), r"different shapes"),
    (change_model(encoder__embed_tokens__weight=None), r"encoder.embed_tokens.weight is missing"),
    (
        change_model(encoder__embed_tokens__weight=torch.zeros(4, 3)),
        r"encoder.embed_tokens.weight is of the shape \[4, 3\], not a table of width 16",
    ),
    (change_model(decoder__output_projection__weight=torch.ones(97, 16)), r"is tied, but has"),
    (change_settings(arch="fconv_self_att"), r"arch fconv_self_att; of transformer_\*"),
    (change_settings(layernorm_embedding=True), r"no counterpart of layernorm_embedding: True"),
    (change_settings(adaptive_softmax_cutoff="1,2"), r"adaptive_softmax_cutoff: 1,2"),
    (change_settings(decoder_attention_heads=4), r"decoder_attention_heads 4 other than"),
    (change_settings(decoder_output_dim=8), r"no counterpart of decoder_output_dim: 8"),
    (change_settings(activation_fn="tanh"), r"no counterpart of activation_fn tanh"),
    (change_settings(encoder_embed_dim="x"), r"encoder_embed_dim"),
    (change_settings(encoder_attention_heads=5, decoder_attention_heads=5), r"by 5 heads"),
    (change_settings(encoder_layers=10**12), r"has no tensor encoder.layers.2"),
    (change_settings(encoder_layers=0), r"encoder_layers: expected a number from 1, not 0"),
    (change_settings(encoder_learned_pos=True, decoder_learned_pos=True), r"embed_positions"),
    (
        change_settings(encoder_normalize_before=True, decoder_normalize_before=True),
        r"has no tensor encoder.layer_norm.weight",
    ),
    (
        several(
            change_settings(encoder_normalize_before=True, decoder_normalize_before=True),
            change_model(encoder__layer_norm__weight=torch.ones(3)),
        ),
        r"encoder.layer_norm.weight has the shape \[3\], not \[16\]",
    ),
    (
        several(
            change_settings(encoder_learned_pos=True, decoder_learned_pos=True),
            change_model(
                encoder__embed_positions__weight=torch.ones(9, 16),
                decoder__embed_positions__weight=torch.ones(8, 16),
            ),
        ),
        r"tables of other positions",
    ),
    (change_settings(share_all_embeddings=torch.ones(2)), r"expected a bool, not a Tensor"),
    (change_settings(source_lang="../x"), r"source_lang names no language: '../x'"),
    (change_settings(source_lang="e\nn"), r"source_lang names no language: 'e\\nn'"),
    (
        change_model(encoder__layers__0__self_attn__in_proj_weight=torch.tensor(1.0)),
        r"encoder.layers.0.self_attn.q_proj.weight has the shape \[\]",
    ),
    (change_settings(target_lang=None), r"target_lang names no language: ''"),
    (change_settings(beam=0), r"model.pt: not a search that nmt can do: search.*beam must be"),
    (change_settings(lenpen=float("nan")), r"not a search that nmt can do: search.*alpha"),
    (change_settings(unkpen=1.0), r"no counterpart of unkpen: 1.0"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_what_cannot_be_imported_is_refused_in_one_line(
    change: Callable[[Path], object],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    copy_model(Path("model"), "post")
    change(Path("model"))
    with pytest.raises(NmtError, match=message) as error:
        import_model(Path("model"), Path("run"), import_formats["fairseq"])
    assert "\n" not in str(error.value)
    assert not Path("run").exists()
    assert not Path("executed").exists()
