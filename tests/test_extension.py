"""Vocabularies with new pieces behind the old ones, and the weights that new pieces begin with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from for_each import for_each
from foreign_models import ENGLISH, GERMAN, MODELS, UNION, marian_model, pieces_of
from tiny_models import tiny

import nmt as nmt_api
from nmt.data.vocabulary import BOS, EOS, UNK, Vocabulary
from nmt.errors import NmtError
from nmt.formats import import_model
from nmt.models import ModelConfig
from nmt.runs import set_weights
from nmt.subwords.extension import added_pieces, read_pieces, with_learned_pieces, with_pieces
from nmt.subwords.learning import SubwordTraining, train_subwords
from nmt.subwords.subwords import Subwords
from nmt.training.start import extended_weights

PIECES = ["▁>>fra<<", "▁Aorta", "itis", "guten▁Abend", "日本", *(f"▁begriff{n}" for n in range(95))]
"""Pieces that occur in none of the old texts."""

RUSSIAN = ["привет мир", "(привет), миром", "мир the cat"] * 5


def learned(model_type: Any, size: int) -> bytes:
    training = SubwordTraining(vocab_size=size, byte_fallback=False, model_type=model_type)
    return train_subwords([*ENGLISH, *GERMAN], training)


BPE, UNIGRAM = learned("bpe", 60), learned("unigram", 33)

SUBWORDS = {
    "shared BPE": Subwords(BPE),
    "shared unigram": Subwords(UNIGRAM),
    "separate": Subwords(BPE, UNIGRAM),
    "one list": Subwords(*MODELS, vocabularies=[Vocabulary.from_pieces(UNION)]),
    "two lists": Subwords(
        *MODELS, vocabularies=[Vocabulary.from_pieces(pieces_of(it)) for it in MODELS]
    ),
    "one model and a list": Subwords(
        MODELS[0], vocabularies=[Vocabulary.from_pieces(pieces_of(MODELS[0]))]
    ),
}


@pytest.fixture(params=SUBWORDS.values(), ids=SUBWORDS.keys())
def old(request: pytest.FixtureRequest) -> Subwords:
    subwords: Subwords = request.param
    return subwords


def test_old_ids_and_segmentations_stay_and_new_pieces_are_cut(
    old: Subwords, tmp_path: Path
) -> None:
    new = with_pieces(old, PIECES)
    new.save(tmp_path)
    new = Subwords.load(tmp_path)
    assert (new.shared, new.extends(old), old.extends(new)) == (old.shared, True, False)
    for side in ("source", "target"):
        before, after = getattr(old, side), getattr(new, side)
        assert after.size == before.size + len(PIECES)
        assert after.pieces([*range(after.size)]) == before.pieces([*range(before.size)]) + PIECES
        lines = [*ENGLISH, *GERMAN, "  a  cat ", "", "zzz"]
        assert after.encode(lines) == before.encode(lines)
        first = before.size
        rows = after.encode([">>fra<< the Aorta", "Aortaitis 日本", "guten Abend"])
        assert [[token - first for token in row if token >= first] for row in rows] == [
            [0, 1],
            [1, 2, 4],
            [3],
        ]
        assert after.decode(after.encode(["guten Abend"])) == ["guten Abend"]


def test_pieces_of_new_characters_are_learned_from_text(old: Subwords) -> None:
    sizes = {old.source_size, old.target_size}
    if len(sizes) > 1:
        pytest.skip("both sides grow to one size")
    added = 20 if old.models[0] is BPE else 13
    training = SubwordTraining(vocab_size=sizes.pop() + added, byte_fallback=False)
    new = with_learned_pieces(old, RUSSIAN, RUSSIAN, training)
    assert new.extends(old)
    assert (new.source_size, new.target_size) == (training.vocab_size, training.vocab_size)
    for before, after in ((old.source, new.source), (old.target, new.target)):
        pieces = after.pieces([*range(before.size, after.size)])
        assert {"▁мир", "привет"} <= set(pieces)
        assert not any(set(piece) & set("the ca") for piece in pieces)
        assert after.encode([*ENGLISH, *GERMAN, "zzz"]) == before.encode([*ENGLISH, *GERMAN, "zzz"])
        [ids] = after.encode(["привет миром"])
        assert UNK not in ids
        assert after.decode([ids]) == ["привет миром"]


def test_learned_pieces_replace_bytes() -> None:
    training = SubwordTraining(vocab_size=320)
    old = Subwords(train_subwords([*ENGLISH, *GERMAN], training))
    new = with_learned_pieces(old, RUSSIAN, GERMAN, SubwordTraining(vocab_size=340))
    [ids] = new.encode_source(["привет"])
    assert len(ids) == 2 < len(old.encode_source(["привет"])[0])
    assert added_pieces(new, old)[0] == [
        old.source.encode([piece.replace("▁", "")])[0][not piece.startswith("▁") :]
        for piece in new.source_pieces([*range(320, 340)])
    ]


def test_pieces_are_learned_from_text_as_casing_and_order_leave_it() -> None:
    training = SubwordTraining(vocab_size=70, byte_fallback=False, casing="inline")
    model = train_subwords([*ENGLISH, *GERMAN], training)
    old = Subwords(model, train_subwords(GERMAN, replace(training, vocab_size=40)))
    old = old.in_order("right_to_left")
    upper = [line.upper() for line in ENGLISH]
    with pytest.raises(NmtError, match="no character that the vocabulary lacks"):
        with_learned_pieces(old, upper, GERMAN, replace(training, vocab_size=500))
    new = with_pieces(old, ["▁Aorta"])
    lower, title = new.encode_source(["aorta", "Aorta"])
    assert (lower, title[1:]) == ([old.source_size], lower)
    assert new.decode_source([title]) == ["Aorta"]


@for_each(
    ("lines", "size", "message"),
    [
        (RUSSIAN, 60, "vocab_size 60 leaves no room after the 60 pieces"),
        (RUSSIAN, 500, r"vocab_size 500 is more than the text allows; use at most \d\d, or"),
        (RUSSIAN, 62, r"vocab_size 62 is too small .* at least \d\d, or lower"),
        (ENGLISH, 70, "no character that the vocabulary lacks, .* --new-pieces FILE$"),
    ],
)
def test_pieces_that_cannot_be_learned(lines: list[str], size: int, message: str) -> None:
    with pytest.raises(NmtError, match=message):
        with_learned_pieces(Subwords(BPE), lines, GERMAN, SubwordTraining(vocab_size=size))


def test_a_file_of_pieces(tmp_path: Path) -> None:
    file = tmp_path / "pieces.txt"
    file.write_text("\ufeff>>de<<\r\n\n▁Herz\nguten  Abend \n", encoding="utf-8")
    assert read_pieces(file) == [">>de<<", "▁Herz", "guten▁Abend"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\n\nb\na\n", "line 4: 'a' is on line 1, too; remove one"),
        (b"a\n</s>\n", "line 2: '</s>' cannot be a new piece"),
        (b"a\0b\n", r"line 1: 'a\\x00b' cannot be a new piece"),
        ("▁".encode(), "line 1: '▁' cannot be a new piece"),
        (b"\n \n", "has no piece"),
        (b"\xff\n", "not UTF-8"),
        (None, "no such file"),
    ],
)
def test_a_damaged_file_of_pieces(tmp_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / "pieces.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(NmtError, match=message) as error:
        read_pieces(file)
    assert str(error.value).startswith(f"{file}: ")


CONFIGURATIONS = {
    **{arch: tiny(arch) for arch in ("rnnsearch_small", "gnmt_v2", "conv_s2s_wmt_en_fr_fairseq")},
    "bytenet_small": tiny("bytenet_small"),
    **{
        f"embeddings tied: {tied}": replace(tiny("transformer_base"), tied_embeddings=tied)
        for tied in ("none", "decoder", "all")
    },
    "biases": replace(tiny("transformer_base"), tied_embeddings="all", output_bias=True),
}


@for_each("config", CONFIGURATIONS.values())
@for_each("name", ["shared BPE", "separate"])
def test_a_new_piece_has_the_mean_logit_of_its_old_pieces(config: ModelConfig, name: str) -> None:
    old = SUBWORDS[name]
    if not old.shared and getattr(config, "tied_embeddings", None) == "all":
        pytest.skip("separate vocabularies have embeddings of their own")
    new = with_pieces(old, PIECES)
    torch.manual_seed(1)
    trained, model = (
        config.build(each.source_size, each.target_size, each.shared).eval() for each in (old, new)
    )
    set_weights(model, extended_weights(model, trained, old, new))
    [source], [target] = old.encode_source(ENGLISH[:1]), old.encode_target(GERMAN[:1])
    inputs = torch.tensor([[*source, EOS]]), torch.tensor([[BOS, *target]])
    with torch.no_grad():
        before, after = trained(*inputs), model(*inputs)
    torch.testing.assert_close(after[..., : old.target_size], before)
    sources, targets = added_pieces(new, old)
    means = torch.stack([before[..., ids].mean(dim=-1) for ids in targets], dim=-1)
    torch.testing.assert_close(after[..., old.target_size :], means)
    [old_table, new_table] = (
        next(weight for name, weight in each.source_embedding.named_parameters())
        for each in (trained, model)
    )
    rows = torch.stack([old_table[ids].mean(dim=0) for ids in sources])
    torch.testing.assert_close(new_table[old.source_size :], rows)


def test_an_extended_run_translates_old_text_as_before_and_learns(
    train: Any, nmt: Any, trained: Path, recipe: Path, corpus: Path, tmp_path: Path
) -> None:
    file, data = tmp_path / "pieces.txt", tmp_path / "data"
    file.write_text("\n".join(PIECES), encoding="utf-8")
    prefixes = [f"--{split}={corpus / split}" for split in ("train", "valid", "test")]
    extension = ("--extend-vocabulary", trained, "--new-pieces", file, "--output-dir", data)
    done = nmt("preprocess", "--config", recipe, *prefixes, *extension)
    assert done.status == 0, done.err
    assert f"new pieces after the pieces of {trained}: 100 of source and target\n" in done.err
    settled = ("--max-updates", 1, "--warmup-updates", 1, "--lr", 1e-30)
    done = train(tmp_path / "run", "--data", data, "--init-from", trained, *settled)
    assert done.status == 0, done.err
    test = ("translate", corpus / "test.en", "--strategy", "beam", "--model")
    assert nmt(*test, tmp_path / "run").out == nmt(*test, trained).out
    again = train(tmp_path / "back", "--init-from", tmp_path / "run")
    assert again.status == 1
    assert f"or with --extend-vocabulary {tmp_path / 'run'} to add pieces\n" in again.err
    same = nmt("preprocess", "--config", recipe, *prefixes, *extension[:-1], data.with_name("x"),
               "--extend-vocabulary", tmp_path / "run")  # fmt: skip
    assert same.status == 1
    assert f"{tmp_path / 'run'} has all these pieces; add new pieces" in same.err


@pytest.mark.parametrize("is_shared", [True, False])
def test_an_extended_import_translates_old_text_as_before(
    tmp_path: Path, is_shared: bool, nmt: Any
) -> None:
    pytest.importorskip("transformers")
    separate = {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False, "end": 0.0}
    marian_model(tmp_path / "theirs", **({} if is_shared else separate))
    run = import_model(tmp_path / "theirs", tmp_path / "imported").path
    for split in ("train", "valid"):
        for language, lines in (("en", ENGLISH), ("de", GERMAN)):
            (tmp_path / f"{split}.{language}").write_text("\n".join(lines) + "\n")
    (tmp_path / "pieces").write_text("\n".join(PIECES), encoding="utf-8")
    data = tmp_path / "data"
    made = nmt("preprocess", "-s", "en", "-t", "de", "--train", tmp_path / "train", "--valid",
               tmp_path / "valid", "--extend-vocabulary", run, "--new-pieces", tmp_path / "pieces",
               "--output-dir", data)  # fmt: skip
    assert made.status == 0, made.err
    settled = ("--data", data, "--init-from", run, "--max-updates", 1, "--warmup-updates", 1)
    values = ("--save-dir", tmp_path / "run", "--lr", 1e-30, "--device", "cpu")
    done = nmt("train", *settled, *values)
    assert done.status == 0, done.err
    search: dict[str, Any] = {
        "strategy": "greedy",
        "constraints": [],
        "max_length_ratio": 0.0,
        "max_length_offset": 20,
    }
    before, after = (
        [*nmt_api.Translator(path, **search).translate(ENGLISH[:3])]
        for path in (run, tmp_path / "run")
    )
    assert before == after
    assert len(set(before)) > 1


def test_extension_and_its_file_need_each_other(nmt: Any, corpus: Path, trained: Path) -> None:
    places = ("preprocess", "-s", "en", "-t", "de", "--train", corpus / "train")
    done = nmt(*places, "--new-pieces", "pieces.txt")
    assert (done.status, "new_pieces needs extend_vocabulary" in done.err) == (1, True)
    done = nmt(*places, "--extend-vocabulary", trained, "--subword-model", trained)
    assert (done.status, "both set; unset one" in done.err) == (1, True)
