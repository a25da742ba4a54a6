import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from foreign_models import ENGLISH, marian_model
from sentencepiece import SentencePieceProcessor
from test_tags import DIRECTIONS, subwords_of

import nmt
from nmt.data.vocabulary import BOS, EOS, PAD, UNK
from nmt.errors import NmtError
from nmt.formats import export_formats, export_run, import_model
from nmt.models import ModelConfig
from nmt.recipe.config import build
from nmt.runs import Run, load_model, weights_of
from nmt.subwords.subwords import Subwords

transformers = pytest.importorskip("transformers")

HUGGING_FACE = export_formats["huggingface"]
SMALL = {
    "arch": "transformer_base",
    "encoder_layers": 2,
    "decoder_layers": 2,
    "d_model": 16,
    "d_ff": 32,
    "heads": 4,
}


@pytest.mark.parametrize(
    "changes",
    [
        {"activation_function": "swish", "scale_embedding": True},
        {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False},
        {"share_encoder_decoder_embeddings": False},
        {"activation_function": "gelu_new", "encoder_layers": 1, "decoder_layers": 3},
    ],
)
def test_an_imported_model_is_exported_as_it_was(changes: dict[str, Any], tmp_path: Path) -> None:
    model = marian_model(tmp_path / "theirs", **changes)
    run = import_model(tmp_path / "theirs", tmp_path / "run")
    export_run(run.path, HUGGING_FACE, "fp32", tmp_path / "again")
    again = transformers.MarianMTModel.from_pretrained(tmp_path / "again")
    before, after = (
        transformers.MarianTokenizer.from_pretrained(tmp_path / name)
        for name in ("theirs", "again")
    )
    assert after.encoder == before.encoder
    inputs = after(ENGLISH[:3], return_tensors="pt", padding=True)
    assert torch.equal(
        inputs.input_ids, before(ENGLISH[:3], return_tensors="pt", padding=True).input_ids
    )
    assert {*model.state_dict()} == {*again.state_dict()}
    for name, weight in again.state_dict().items():
        # Tables of positions have other lengths; the source has no vector of padding any more.
        if "embed_positions" not in name and "encoder.embed_tokens" not in name:
            assert torch.equal(weight, model.state_dict()[name])
    begun = torch.randint(2, model.config.decoder_vocab_size - 1, (3, 9))
    begun[:, 0] = model.config.decoder_start_token_id
    with torch.no_grad():
        logits, expected = (
            some(**inputs, decoder_input_ids=begun).logits for some in (again, model)
        )
    torch.testing.assert_close(logits, expected, atol=1e-6, rtol=1e-6)
    for key in ("num_beams", "length_penalty", "max_length", "bad_words_ids"):
        default = 1.0 if key == "length_penalty" else None
        expected = getattr(model.generation_config, key) or default
        assert getattr(again.generation_config, key) == expected
    assert not again.generation_config.early_stopping
    assert import_model(tmp_path / "again", tmp_path / "run again").section("model") == run.section(
        "model"
    )


@pytest.mark.parametrize("size", [40, 46])
def test_each_side_of_a_model_of_marian_may_have_its_own_size(size: int, tmp_path: Path) -> None:
    files, theirs = Path(__file__).parent / "marian", tmp_path / "theirs"
    theirs.mkdir()
    arrays = dict(np.load(files / "transformer.npz"))
    settings = yaml.safe_load(bytes(arrays["special:model.yml"]).rstrip(b"\0"))
    table = arrays.pop("Wemb")
    arrays["encoder_Wemb"] = np.resize(table, (size, table.shape[1]))
    arrays["decoder_Wemb"] = table
    settings |= {"dim-vocabs": [size, len(table)]}
    settings |= {"tied-embeddings": True, "tied-embeddings-all": False}
    arrays["special:model.yml"] = np.frombuffer(yaml.safe_dump(settings).encode() + b"\0", np.int8)
    np.savez(theirs / "model.npz", **arrays)
    pieces = SentencePieceProcessor(model_file=str(files / "vocab.spm"))
    names = [pieces.id_to_piece(token) for token in range(len(table))] + ["a", "b", "c"]
    for side, count in (("source", size), ("target", len(table))):
        shutil.copy(files / "vocab.spm", theirs / f"{side}.spm")
        vocabulary = {name: token for token, name in enumerate(names[:count])}
        (theirs / f"{side}.vocab.yml").write_text(yaml.safe_dump(vocabulary), encoding="utf-8")
    vocabularies = {"vocabs": ["source.vocab.yml", "target.vocab.yml"]}
    (theirs / "decoder.yml").write_text(yaml.safe_dump(vocabularies))
    run = import_model(theirs, tmp_path / "run", None, "en", "de")
    export_run(run.path, HUGGING_FACE, "fp32", tmp_path / "exported")
    tokenizer = transformers.MarianTokenizer.from_pretrained(tmp_path / "exported")
    model = transformers.MarianMTModel.from_pretrained(tmp_path / "exported")
    lines = [row.split("\t")[0] for row in (files / "transformer.tsv").open(encoding="utf-8")][:3]
    found = model.generate(**tokenizer(lines, return_tensors="pt", padding=True), num_beams=1)
    texts = tokenizer.batch_decode(found, skip_special_tokens=True)
    assert texts == list(nmt.Translator(run.path, strategy="greedy").translate(lines))


def random_run(path: Path, trained: Path, **changes: Any) -> Path:
    """A run with sharp random weights and the subwords of a directory."""
    search = {"strategy": {"stop": "current_length", "length_penalty": "power", "name": "beam"}}
    recipe = {"model": {**SMALL, **changes}, "search": {**search, "max_length_offset": 20}}
    config = build(ModelConfig, recipe["model"], "model")  # type: ignore[type-abstract]
    torch.manual_seed(3)
    subwords = Subwords.load(trained)
    model = config.build(subwords.source_size, subwords.target_size, subwords.shared)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.1 * torch.randn_like(weight)
    run = Run.create(
        path, languages=("en", "de"), identity="1", data="", recipe=recipe, subwords=subwords
    )
    run.save(1, weights_of(model), None, {}, {"loss": 2.5}, best=True)
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"sinusoids": "halves", "feed_forward": "gelu", "tied_embeddings": "decoder"},
        {"sinusoids": "concatenated", "output_bias": True, "tied_embeddings": "none"},
        {"positions": {"name": "learned", "max_positions": 60}, "feed_forward": "swish"},
        {"positions": {"name": "learned", "max_positions": 60, "separate": True}},
        {"positions": {"name": "sinusoidal", "offset": 2}, "sinusoids": "halves"},
        {"positions": "none", "scale_embeddings": False, "norm_epsilon": 1e-5},
        {"alignment_head": 2},
    ],
    ids=str,
)
def test_a_run_of_nmt_opens_in_transformers(
    changes: dict[str, Any], trained: Path, corpus: Path, tmp_path: Path
) -> None:
    run = random_run(tmp_path / "run", trained, **changes)
    export_run(run, HUGGING_FACE, "fp32", tmp_path / "exported")
    model = transformers.MarianMTModel.from_pretrained(tmp_path / "exported")
    tokenizer = transformers.MarianTokenizer.from_pretrained(tmp_path / "exported")
    loaded = load_model(run)
    lines = (corpus / "test.en").read_text().splitlines()
    inputs = tokenizer(lines, return_tensors="pt", padding=True)
    rows = [[*row, EOS] for row in loaded.subwords.encode_source(lines)]
    kept = [row[row != PAD].tolist() for row in inputs.input_ids]
    assert kept == rows
    target = torch.randint(4, loaded.subwords.target_size, (len(lines), 7))
    target[:, 0] = BOS
    with torch.no_grad():
        expected = model(**inputs, decoder_input_ids=target).logits
        logits = loaded.model(inputs.input_ids, target)
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
    longest = model.config.max_position_embeddings if "learned" in str(changes) else 512
    assert (model.generation_config.max_length, tokenizer.model_max_length) == (longest, longest)
    again = import_model(tmp_path / "exported", tmp_path / "again").section("model")
    assert again["alignment_head"] == changes.get("alignment_head")
    assert again["alignment_layer"] == loaded.recipe["model"]["decoder_layers"]
    export_run(tmp_path / "again", HUGGING_FACE, "fp32", tmp_path / "third")
    third = transformers.MarianMTModel.from_pretrained(tmp_path / "third")
    assert third.config.decoder_start_token_id == model.config.decoder_start_token_id
    import_model(tmp_path / "third", tmp_path / "fourth")


def test_constraints_become_settings_of_generate_and_come_back(
    trained: Path, tmp_path: Path
) -> None:
    constraints = [{"name": "forbidden", "tokens": [1, 17]}, {"name": "no_repeat_ngram", "size": 3}]
    beyond = [{"name": "forbidden", "tokens": [10**6]}, *constraints]
    loaded = load_model(random_run(tmp_path / "run", trained))
    recipe = {**loaded.recipe, "search": {**loaded.recipe["search"], "constraints": beyond}}
    (tmp_path / "exported").mkdir()
    HUGGING_FACE.write(replace(loaded, recipe=recipe), "fp32", tmp_path / "exported")
    settings = json.loads((tmp_path / "exported" / "generation_config.json").read_text())
    assert settings["bad_words_ids"] == [[PAD], [UNK], [BOS], [17]]
    again = import_model(tmp_path / "exported", tmp_path / "again").section("search")
    assert again["constraints"] == constraints


def test_what_a_trained_run_translates_transformers_translates(
    trained: Path, corpus: Path, tmp_path: Path
) -> None:
    export_run(trained, HUGGING_FACE, "fp32", tmp_path / "exported")
    model = transformers.MarianMTModel.from_pretrained(tmp_path / "exported")
    tokenizer = transformers.MarianTokenizer.from_pretrained(tmp_path / "exported")
    lines = (corpus / "test.en").read_text().splitlines()
    strategy = {"name": "beam", "beam": 3, "length_penalty": "power", "stop": "current_length"}
    rules = {"strategy": strategy, "max_length_ratio": 0.0, "max_length_offset": 60}
    ours = list(nmt.Translator(trained, **rules).translate(lines))
    for line, text in zip(lines, ours, strict=True):
        inputs = tokenizer([line], return_tensors="pt")
        [output] = model.generate(
            **inputs, num_beams=3, length_penalty=1.0, early_stopping=False, max_length=61
        )
        assert len(output) < 61
        assert text == tokenizer.decode(output, skip_special_tokens=True)


def test_the_command_writes_a_model_card_in_half_precision(
    trained: Path, tmp_path: Path, nmt: Callable[..., Any]
) -> None:
    run = random_run(tmp_path / "run", trained)
    flags = ("--format", "huggingface", "--precision", "fp16", "--output", tmp_path / "exported")
    done = nmt("export", "--model", run, *flags)
    assert (done.status, done.out) == (0, f"{tmp_path / 'exported'}\n")
    card = (tmp_path / "exported" / "README.md").read_text()
    assert "language:\n- en\n- de\nlicense" in card
    assert "| loss | 2.500 |" in card
    model = transformers.MarianMTModel.from_pretrained(tmp_path / "exported")
    assert model.dtype == torch.float16
    export_run(run, HUGGING_FACE, "bf16", tmp_path / "bf16")
    for name in ("exported", "bf16"):
        again = import_model(tmp_path / name, tmp_path / f"run of {name}").section("model")
        assert "sinusoidal" in str(again["positions"])


@pytest.mark.parametrize("tagged", [False, True])
def test_the_code_of_a_model_card_translates_as_the_run(
    tagged: bool,
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    subwords = subwords_of(DIRECTIONS) if tagged else Subwords.load(trained)
    subwords.save(tmp_path)
    run = random_run(tmp_path / "run", tmp_path)
    recipe = Run.open(run).recipe
    recipe["search"]["max_length_ratio"] = 0.0  # of random weights few sentences end
    Run.open(run).with_recipe(recipe)
    export_run(run, HUGGING_FACE, "fp32", tmp_path / "exported")
    card = (tmp_path / "exported" / "README.md").read_text()
    languages = ["en", "de", "fr"] if tagged else ["en", "de"]
    assert yaml.safe_load(card.split("---\n")[1])["language"] == languages
    [code] = re.findall("^```python\n(.*?)^```", card, re.M | re.S)
    monkeypatch.chdir(tmp_path / "exported")
    exec(compile(code, "README.md", "exec"), {})
    # The longest output of generate is one token shorter: max_length counts the first token.
    translator = nmt.Translator(run, target_lang="de", max_length_offset=19)
    texts = [*translator.translate(["One sentence."])]
    assert capsys.readouterr().out == f"{texts}\n"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"arch": "rnnsearch_small"}, "arch rnnsearch_small"),
    ({**SMALL, "positions": "alibi"}, "positions alibi"),
    ({**SMALL, "feed_forward": "swiglu"}, "feed_forward swiglu"),
    ({**SMALL, "residual": "pre_norm", "norm": "rms_norm"}, "residual pre_norm, norm rms_norm"),
    ({**SMALL, "decoder_attention": "ssru"}, "decoder_attention ssru"),
    ({**SMALL, "d_k": 2}, "d_k or d_v other than d_model / heads"),
    ({**SMALL, "key_value_heads": 1}, "key_value_heads 1"),
    ({**SMALL, "norm_epsilon": 0.01}, "norm_epsilon 0.01"),
    ({**SMALL, "attention_bias": False}, "attention_bias false"),
]


@pytest.mark.parametrize(("model", "what"), REFUSED, ids=[what for _, what in REFUSED])
def test_what_transformers_cannot_hold_is_refused_by_name(
    model: dict[str, Any], what: str, trained: Path, tmp_path: Path
) -> None:
    config = build(ModelConfig, model, "model")  # type: ignore[type-abstract]
    loaded = replace(load_model(trained), recipe={"model": model}, model=config.build(60, 60, True))
    with pytest.raises(NmtError) as error:
        HUGGING_FACE.write(loaded, "fp32", tmp_path)
    assert str(error.value) == (
        f"{trained}: MarianMTModel has no counterpart of {what}; translate with nmt itself"
    )
    with pytest.raises(NmtError, match="no counterpart of --precision int8"):
        HUGGING_FACE.write(load_model(trained), "int8", tmp_path)
