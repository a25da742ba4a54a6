"""Models of M2M-100 and NLLB: logits, translations, refusals, fine-tuning, a new language."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign_models import ENGLISH, GERMAN, m2m_model
from safetensors.torch import load_file
from test_import_huggingface import GROWTH, change_json, change_tensors

import nmt
from nmt.data.vocabulary import BOS, EOS, PAD, UNK
from nmt.errors import NmtError
from nmt.formats import import_model
from nmt.runs import load_model
from nmt.subwords.segmenters import TAG
from nmt.subwords.tags import tagged

transformers = pytest.importorskip("transformers")

Command = Callable[..., Any]

WORDS = " ".join(ENGLISH + GERMAN).split()

draw = random.Random(1)
LINES = [" ".join(draw.choices(WORDS, k=draw.randint(1, 9))) for _ in range(400)]

LANGUAGES = {"nllb": ("eng_Latn", "deu_Latn"), "m2m100": ("en", "de")}

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "NLLB": {"end": 9.0},
    "M2M-100": {"kind": "m2m100"},
    "gelu, unscaled": {
        "activation_function": "gelu",
        "scale_embedding": False,
        "end": 7.0,
        "seed": 1,
    },
    "one layer, two heads": {
        "kind": "m2m100",
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "seed": 2,
    },
    "deep and shallow": {"encoder_layers": 6, "decoder_layers": 1, "d_model": 24, "seed": 3},
}

Foreign = tuple[Any, Any, tuple[str, str], Path]


@pytest.fixture(params=CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
def imported(request: pytest.FixtureRequest, tmp_path: Path) -> Foreign:
    """A model, its tokenizer, two of its languages, and the run that was imported from it."""
    model, tokenizer = m2m_model(tmp_path / "theirs", **request.param)
    import_model(tmp_path / "theirs", tmp_path / "run")
    return model, tokenizer, LANGUAGES[request.param.get("kind", "nllb")], tmp_path / "run"


def foreign_id(piece: str, token: int, tokenizer: Any) -> int:
    """The id of a piece of ours in the tokenizer."""
    if token <= EOS:
        return (1, 3, 2, 2)[token]
    if piece.startswith("<unused"):
        return int(piece.split()[1][:-1])
    code = match[1] if (match := TAG.fullmatch(piece)) else None
    name = piece if code is None else f"__{code}__" if len(code) == 2 else code
    converted: int = tokenizer.convert_tokens_to_ids(name)
    return converted


def test_the_logits_are_those_of_transformers(imported: Foreign) -> None:
    model, tokenizer, (source_lang, target_lang), run = imported
    loaded = load_model(run)
    subwords = tagged(loaded.subwords, (source_lang, target_lang))
    tokenizer.src_lang, tokenizer.tgt_lang = source_lang, target_lang
    lines = LINES[:20]
    inputs = tokenizer(lines, return_tensors="pt", padding=True)
    labels = tokenizer(text_target=lines[::-1], return_tensors="pt", padding=True).input_ids
    begun = torch.cat((torch.full_like(labels[:, :1], 2), labels), 1)
    with torch.no_grad():
        expected = model(**inputs, decoder_input_ids=begun).logits
    pieces = subwords.source_pieces([*range(subwords.source_size)])
    theirs = [foreign_id(piece, token, tokenizer) for token, piece in enumerate(pieces)]
    assert sorted({*theirs}) == [*range(model.config.vocab_size)]
    sources = [[*row, EOS] for row in subwords.encode_source(lines)]
    assert [[theirs[token] for token in row] for row in sources] == [
        row[mask].tolist()
        for row, mask in zip(inputs.input_ids, inputs.attention_mask.bool(), strict=True)
    ]
    targets = [[BOS, *row, EOS] for row in subwords.encode_target(lines[::-1])]
    assert [theirs[token] for token in targets[0]] == [2, *labels[0][labels[0] != 1].tolist()]
    for at, (source, target) in enumerate(zip(sources, targets, strict=True)):
        with torch.no_grad():
            [logits] = loaded.model(torch.tensor([source]), torch.tensor([target]))
        wanted = expected[at, : len(target)][:, theirs]
        known = [PAD, UNK, *range(EOS, len(theirs))]
        torch.testing.assert_close(logits[:, known], wanted[:, known], atol=1e-4, rtol=0)
        assert (logits[:, BOS].exp() == 0).all()


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["greedy", "beam"])
def test_translations_are_those_of_generate(imported: Foreign, strategy: str) -> None:
    model, tokenizer, (source_lang, target_lang), run = imported
    tokenizer.src_lang = source_lang
    token = {2: f"__{target_lang}__"}.get(len(target_lang), target_lang)
    outputs = model.generate(
        **tokenizer(LINES, return_tensors="pt", padding=True),
        forced_bos_token_id=tokenizer.convert_tokens_to_ids(token),
        num_beams=1 if strategy == "greedy" else 4,
    )
    settings = {"strategy": "greedy"} if strategy == "greedy" else {}
    translator = nmt.Translator(run, source_lang=source_lang, target_lang=target_lang, **settings)
    ours = translator.translate(LINES)
    compared = set()
    for output, text in zip(outputs.tolist(), ours, strict=True):
        # At the maximum length a beam of transformers prefers sentences without an end.
        if strategy == "greedy" or 2 in output[1:]:
            # transformers 5 takes the languages of M2M-100 for text.
            known = [token for token in output if 4 <= token < 61]
            assert text == tokenizer.decode(known).strip()
            compared.add((*output,))
    assert sum(2 in output[1:] for output in outputs.tolist()) >= 200
    assert len(compared) > 20


def test_a_score_leaves_out_the_tag_that_the_user_chose(tmp_path: Path) -> None:
    m2m_model(tmp_path / "theirs")
    import_model(tmp_path / "theirs", tmp_path / "run")
    translator = nmt.Translator(tmp_path / "run", source_lang="eng_Latn", target_lang="deu_Latn")
    for [translation] in translator.translations(LINES[:9], scored=True):
        tag, *others = translation.token_log_probabilities
        assert tag == 0
        assert translation.hypothesis.log_probability == pytest.approx(sum(others), abs=1e-4)
        assert all(log_probability < 0 for log_probability in others)
        [given] = translator.score([translation.source], [translation.text])
        assert given[0] == 0


def test_the_run_has_all_directions_or_those_that_were_chosen(tmp_path: Path, nmt: Command) -> None:
    m2m_model(tmp_path / "nllb")
    run = tmp_path / "run"
    done = nmt("import", tmp_path / "nllb", "--output", run)
    languages = "deu_Latn+eng_Latn+fra_Latn to eng_Latn+fra_Latn+deu_Latn"
    assert (done.status, done.err) == (
        0,
        f"imported {tmp_path / 'nllb'}, {languages}\n",
    )
    trained = load_model(run).subwords.directions.trained
    assert trained == tuple(permutations(["deu_Latn", "eng_Latn", "fra_Latn"], 2))
    shown = nmt("inspect", run).out
    assert "direction eng_Latn to fra_Latn\n" in shown
    assert "tags: of its own language, before each source and target\n" in shown
    (tmp_path / "text").write_text("the cat sat\n")
    refused = nmt("translate", "-m", run, "-t", "deu_Latn", tmp_path / "text")
    assert refused.err == (
        "nmt: error: the model translates into 'deu_Latn' from eng_Latn and fra_Latn; choose one "
        "with -s (in Python source_lang)\n"
    )
    chosen = nmt("translate", "-m", run, "-s", "eng_Latn", "-t", "deu_Latn", tmp_path / "text")
    assert chosen.status == 0, chosen.err
    other = nmt("translate", "-m", run, "-s", "fra_Latn", "-t", "deu_Latn", tmp_path / "text")
    assert chosen.out != other.out
    flags = ("--output", run, "-s", "eng_Latn", "-t")
    assert nmt("import", tmp_path / "nllb", *flags, "deu_Latn").status == 0
    assert nmt("translate", "-m", run, tmp_path / "text").out == chosen.out
    assert nmt("import", tmp_path / "nllb", *flags, "nob_Latn").err == (
        f"nmt: error: {tmp_path / 'nllb'}: no direction from eng_Latn into nob_Latn; the model "
        "translates from deu_Latn, eng_Latn and fra_Latn into eng_Latn, fra_Latn and deu_Latn\n"
    )


def unnamed(directory: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (directory / name).unlink(missing_ok=True)


def listed(directory: Path) -> None:
    unnamed(directory)
    tokens = {"additional_special_tokens": ["deu_Latn", {"content": "eng_Latn"}]}
    (directory / "special_tokens_map.json").write_text(json.dumps(tokens))


def test_languages_may_be_listed_in_the_order_of_their_ids(tmp_path: Path) -> None:
    m2m_model(tmp_path / "theirs")
    listed(tmp_path / "theirs")
    run = import_model(tmp_path / "theirs", tmp_path / "listed")
    pieces = run.subwords.source_pieces([*range(run.subwords.source_size)])
    first = 4 + 1 + 57  # special ids, <s>, and the pieces of SentencePiece that are not special
    assert (pieces.index(">>deu_Latn<<"), pieces.index(">>eng_Latn<<")) == (first, first + 1)


def test_older_files_of_torch_are_read_too(tmp_path: Path) -> None:
    model, _ = m2m_model(tmp_path / "theirs")
    import_model(tmp_path / "theirs", tmp_path / "run")
    (tmp_path / "theirs" / "model.safetensors").unlink()
    state = {**model.state_dict(), "model.encoder.embed_positions.weights": torch.zeros(42, 16)}
    torch.save(state, tmp_path / "theirs" / "pytorch_model.bin")
    import_model(tmp_path / "theirs", tmp_path / "older")
    one, other = (
        load_file(tmp_path / name / "last" / "model.safetensors") for name in ("run", "older")
    )
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


NORM = "model.encoder.layer_norm.weight"
REFUSED: list[tuple[Callable[[Path], object], str]] = [
    (unnamed, r"no file names the tokens of languages; copy tokenizer.json"),
    (
        lambda path: (
            listed(path),
            change_json("special_tokens_map.json", additional_special_tokens=[3])(path),
        ),
        r"do not hold tokens and their ids; copy them again",
    ),
    (
        lambda path: (unnamed(path), (path / "added_tokens.json").write_text('{"eng_Latn": 999}')),
        r"sentencepiece.bpe.model: expected pieces with ids from 0 to",
    ),
    (
        change_json("config.json", model_type="mbart"),
        r"no counterpart of model_type mbart, not m2m_100",
    ),
    (change_json("config.json", tie_word_embeddings=False), r"embeddings that are not shared"),
    (change_json("config.json", pad_token_id=None), r"a model without pad_token_id"),
    (change_tensors(**{NORM: None}), rf"the weights have no tensor {NORM}"),
    (change_tensors(**{NORM: torch.zeros(3)}), r"has the shape \[3\], not \[16\]"),
]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "model"
    m2m_model(path)
    return path


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_cannot_be_imported_is_refused_in_one_line(
    change: Callable[[Path], object], message: str, sound: Path, tmp_path: Path
) -> None:
    import shutil

    shutil.copytree(sound, tmp_path / "model")
    change(tmp_path / "model")
    with pytest.raises(NmtError, match=message) as error:
        import_model(tmp_path / "model", tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_fine_tuning_continues_from_an_import_and_adds_a_language(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nmt: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    m2m_model(tmp_path / "nllb")
    assert nmt("import", "nllb", "--output", "run").status == 0
    for name, lines in {"eng_Latn": ENGLISH, "deu_Latn": GERMAN, "bar_Latn": GERMAN}.items():
        Path(f"text.{name}").write_text("".join(f"{line}\n" for line in lines))

    def translate(run: str, *flags: str) -> str:
        done = nmt("translate", "-m", run, "-s", "eng_Latn", "text.eng_Latn", *flags)
        assert done.status == 0, done.err
        assert done.out.strip()
        return str(done.out)

    def trained(run: str, target: str, subwords: str, rate: float) -> str:
        files = ("-s", "eng_Latn", "-t", target, "--train", "text", "--valid", "text")
        data = ("--output-dir", f"{run}-bin", f"--{subwords}", "run")
        assert (done := nmt("preprocess", *files, *data)).status == 0, done.err
        limits = ("--max-updates", 3, "--valid-every", 3, "--save-every", 3, "--warmup-updates", 1)
        place = ("--data", f"{run}-bin", "--init-from", "run", "--save-dir", run)
        metric = ("--set", "train.valid_metrics=[]", "--set", "train.best_metric=loss")
        done = nmt("train", *place, "--lr", rate, *limits, *metric)
        assert done.status == 0, done.err
        return str(done.err)

    before = translate("run", "-t", "deu_Latn")
    trained("still", "deu_Latn", "subword-model", 1e-12)
    assert translate("still", "-t", "deu_Latn") == before
    trained("moved", "deu_Latn", "subword-model", 0.01)
    assert translate("moved", "-t", "deu_Latn") != before
    trained("extended", "bar_Latn", "extend-vocabulary", 1e-12)
    assert translate("extended", "-t", "deu_Latn") == before
    assert translate("extended", "-t", "bar_Latn") != before


@pytest.mark.full
def test_an_import_takes_little_more_memory_than_the_weights(tmp_path: Path) -> None:
    sizes = {"d_model": 256, "encoder_ffn_dim": 12_000, "decoder_ffn_dim": 12_000}
    model, _ = m2m_model(tmp_path / "model", **sizes)
    (tmp_path / "model" / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "model" / "pytorch_model.bin")
    arguments = (tmp_path / "model", tmp_path / "run")
    # With a fixed threshold glibc returns what is freed; else chance decides how much it keeps.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"}
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, *arguments], capture_output=True, check=True, env=environment
    )
    before, after = (1024 * int(peak) for peak in done.stdout.split())
    size = (tmp_path / "model" / "pytorch_model.bin").stat().st_size
    assert size > 100e6
    assert after - before < 1.5 * size + 16e6  # of code that the import loads
