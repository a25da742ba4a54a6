import io
import pickle
import random
import re
import unicodedata
from collections import Counter
from dataclasses import replace

import pytest
import sentencepiece
from for_each import for_each
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.errors import NmtError
from nmt.subwords.learning import SubwordTraining, reservoir, train_subwords
from nmt.subwords.subwords import Subwords

ENGLISH = [f"the {noun} sees {count} cats" for noun in ("dog", "man", "child") for count in "2359"]
GERMAN = [f"der {noun} sieht {n} Kätzchen" for noun in ("Hund", "Mann", "Junge") for n in "2359"]
SMALL = {"vocab_size": 36, "byte_fallback": False, "character_coverage": 1.0}


@pytest.fixture(scope="module")
def shared() -> Subwords:
    return Subwords(train_subwords(ENGLISH + GERMAN, SubwordTraining(vocab_size=320)))


@pytest.fixture(scope="module")
def separate() -> Subwords:
    training = SubwordTraining(**SMALL)
    return Subwords(train_subwords(ENGLISH, training), train_subwords(GERMAN, training))


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_training_text_survives_encoding_and_decoding(model_type):
    training = SubwordTraining(**SMALL, model_type=model_type)
    subwords = Subwords(train_subwords(ENGLISH + GERMAN, training))
    assert subwords.source_size == subwords.target_size == SMALL["vocab_size"]
    assert subwords.decode_target(subwords.encode_target(GERMAN)) == GERMAN


@settings(max_examples=50)
@given(st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters="\u2581")))
def test_with_byte_fallback_text_of_any_script_survives(shared, text):
    (ids,) = shared.encode_target([text])
    assert not {0, 1, 2, 3} & set(ids)
    (decoded,) = shared.decode_target([ids])
    assert decoded == shared.decode_target(shared.encode_target([decoded]))[0]
    if unicodedata.is_normalized("NFKC", text) and text.isalnum():
        assert decoded == text


def test_shared_subwords_are_the_same_for_both_sides(shared):
    assert shared.shared
    assert shared.source_size == shared.target_size == 320
    assert shared.encode_source(ENGLISH) == shared.encode_target(ENGLISH)


def test_separate_subwords_know_their_own_side(separate):
    assert not separate.shared
    (ids,) = separate.encode_source(["der Hund sieht"])
    assert 1 in ids  # UNK, for the capital H that no English line has
    (ids,) = separate.encode_target(["der Hund sieht"])
    assert "".join(separate.target_pieces(ids)) == "▁der▁Hund▁sieht"
    (ids,) = separate.encode_source(["the dog"])
    assert "".join(separate.source_pieces(ids)) == "▁the▁dog"


def test_lines_of_white_space_have_no_ids_and_nothing_has_no_lines(shared):
    assert shared.encode_source(["", " ", "\u3000\t"]) == [[], [], []]
    assert shared.encode_source([]) == []
    assert shared.decode_target([]) == []
    assert shared.decode_target([[], [4 + ord("A")], []]) == ["", "A", ""]


def test_special_ids_leave_no_trace_in_text_but_unknown_does(shared):
    (ids,) = shared.encode_target(["der Hund"])
    assert shared.decode_target([[2, *ids, 3, 0, 0]]) == ["der Hund"]
    assert "⁇" in shared.decode_target([[1]])[0]


def test_no_sequence_of_ids_spells_two_lines(shared):
    line_feed = 4 + ord("\n")  # byte pieces follow the special ones
    assert shared.target_pieces([line_feed]) == ["<0x0A>"]
    assert shared.decode_target([[line_feed, 4 + ord("A")]]) == [" A"]


def test_the_same_text_gives_the_same_model_for_any_number_of_threads():
    training = SubwordTraining(**SMALL, model_type="bpe")
    model = train_subwords(iter(ENGLISH), training)
    assert model == train_subwords(ENGLISH, training)
    lines = ENGLISH * 20
    assert Subwords(model, num_threads=1).encode_source(lines) == Subwords(
        model, num_threads=3
    ).encode_source(lines)


def test_symbols_of_the_user_are_one_piece_each():
    training = SubwordTraining(**SMALL, user_defined_symbols=("<2de>", "<a,b>", "New York"))
    subwords = Subwords(train_subwords(ENGLISH, training))
    (ids,) = subwords.encode_source(["<2de> the <a,b> in New York"])
    assert {"<2de>", "<a,b>", "New▁York"} <= set(subwords.source_pieces(ids))
    assert subwords.decode_source([ids]) == ["<2de> the <a,b> in New York"]


def test_normalization_is_the_one_asked_for():
    text = ["ｆｕｌｌ Ⅳ"] * 5
    folded = SubwordTraining(normalization="nmt_nfkc_cf")
    plain = SubwordTraining(normalization="identity")
    for training, expected in ((folded, "full iv"), (plain, "ｆｕｌｌ Ⅳ")):
        subwords = Subwords(train_subwords(text, largest(text, training)))
        assert subwords.decode_target(subwords.encode_target(text[:1])) == [expected]


def largest(text, training: SubwordTraining) -> SubwordTraining:
    """The training with the largest vocabulary that the text allows, as the message has it."""
    too_many = replace(training, vocab_size=30_000)
    with pytest.raises(NmtError, match="vocab_size 30000 is more than the text allows") as error:
        train_subwords(text, too_many)
    return replace(training, vocab_size=int(re.search(r"at most (\d+)", str(error.value))[1]))


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_the_largest_size_that_a_message_names_can_be_used(model_type):
    training = largest(ENGLISH, SubwordTraining(model_type=model_type))
    assert Subwords(train_subwords(ENGLISH, training)).source_size == training.vocab_size


@pytest.mark.parametrize("byte_fallback", [True, False])
def test_the_smallest_size_that_a_message_names_can_be_used(byte_fallback):
    with pytest.raises(NmtError, match="vocab_size 5 is too small for the characters") as error:
        train_subwords(ENGLISH, SubwordTraining(vocab_size=5, byte_fallback=byte_fallback))
    assert ("turn byte_fallback off" in str(error.value)) == byte_fallback
    size = int(re.search(r"at least (\d+)", str(error.value))[1])
    model = train_subwords(ENGLISH, SubwordTraining(vocab_size=size, byte_fallback=byte_fallback))
    assert Subwords(model).source_size == size


@for_each("sentences", [[], ["", " "], ["a " * 2097]])
def test_text_without_text_is_refused(sentences):
    with pytest.raises(NmtError) as error:
        train_subwords(sentences, SubwordTraining(vocab_size=300))
    assert str(error.value) == (
        "no subwords can be learned from the training text: all its lines are blank, or longer "
        "than 4,192 bytes; give files with one sentence on each line"
    )


@for_each(
    ("setting", "message"),
    [
        ({"vocab_size": 4}, "vocab_size must be 0 or more than the 4 special pieces, not 4"),
        ({"subword_sample": 0}, "subword_sample must be at least 1, not 0"),
        ({"character_coverage": 1.5}, r"character_coverage must be from 0.98 to 1, not 1\.5"),
        ({"user_defined_symbols": ("<a>", "<a>")}, "must differ from each other.*unlike '<a>'"),
        ({"user_defined_symbols": ("<s>",)}, "must differ from each other.*unlike '<s>'"),
        ({"user_defined_symbols": ("a b", "a▁b")}, "must differ from each other.*unlike 'a b'"),
        ({"user_defined_symbols": (" ",)}, "' ' begins or ends with a space"),
        ({"user_defined_symbols": ("York ",)}, "'York ' begins or ends with a space"),
        ({"user_defined_symbols": ("New  York",)}, "has two spaces in a row; leave out"),
        ({"user_defined_symbols": ("",)}, "must differ from each other.*unlike ''"),
    ],
)
def test_settings_that_mean_nothing_are_refused(setting, message):
    with pytest.raises(ValueError, match=message):
        SubwordTraining(**setting)


@pytest.mark.parametrize("which", ["shared", "separate"])
def test_subwords_are_loaded_as_they_were_saved(tmp_path, which, request):
    subwords = request.getfixturevalue(which)
    subwords.save(tmp_path)
    for copy in (Subwords.load(tmp_path), pickle.loads(pickle.dumps(subwords))):
        assert copy.shared == subwords.shared
        assert copy.encode_source(ENGLISH) == subwords.encode_source(ENGLISH)
        assert copy.encode_target(GERMAN) == subwords.encode_target(GERMAN)


@pytest.mark.parametrize("which", [("shared", "separate"), ("separate", "shared")])
def test_subwords_replace_those_of_the_other_form(tmp_path, which, request):
    before, after = map(request.getfixturevalue, which)
    before.save(tmp_path)
    after.save(tmp_path)
    assert Subwords.load(tmp_path).is_same_as(after)
    assert len(list(tmp_path.iterdir())) == (1 if after.shared else 2)


def test_a_model_file_by_itself_serves_both_sides(tmp_path, shared):
    shared.save(tmp_path)
    loaded = Subwords.load(tmp_path / "subwords.model")
    assert loaded.shared
    assert loaded.encode_source(ENGLISH) == shared.encode_source(ENGLISH)


def test_a_model_with_other_special_ids_is_refused_with_the_remedy(tmp_path):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(ENGLISH), model_writer=model, vocab_size=22, minloglevel=2
    )
    (tmp_path / "their.model").write_bytes(model.getvalue())
    with pytest.raises(
        NmtError,
        match=r"their.model: its ids of pad, unk, bos and eos are -1, 0, 1, 2, not 0, 1, 2, 3; "
        "train it with --pad_id=0 --unk_id=1 --bos_id=2 --eos_id=3",
    ):
        Subwords.load(tmp_path / "their.model")


@pytest.mark.parametrize("content", [b"", b"junk"])
def test_what_is_not_a_model_is_refused(tmp_path, content):
    (tmp_path / "subwords.model").write_bytes(content)
    with pytest.raises(NmtError, match=r"subwords.model: not a SentencePiece model"):
        Subwords.load(tmp_path)


def test_missing_models_are_named(tmp_path, separate):
    with pytest.raises(NmtError, match=r"subwords.model: no such subword model"):
        Subwords.load(tmp_path)
    with pytest.raises(NmtError, match=r"other.model: no such subword model"):
        Subwords.load(tmp_path / "other.model")
    separate.save(tmp_path)
    (tmp_path / "update_0000006").mkdir()
    with pytest.raises(NmtError, match=f"^{tmp_path}/update_0000006: .*; give {tmp_path}, which"):
        Subwords.load(tmp_path / "update_0000006")
    (tmp_path / "subwords.target.model").unlink()
    with pytest.raises(NmtError, match=r"subwords.target.model: no such subword model"):
        Subwords.load(tmp_path)


def test_a_sample_holds_everything_when_it_can():
    assert reservoir(range(5), 10, seed=1) == [0, 1, 2, 3, 4]
    assert reservoir(range(5), 5, seed=1) == [0, 1, 2, 3, 4]
    assert reservoir([], 5, seed=1) == []


@given(st.integers(0, 300), st.integers(1, 50), st.integers())
def test_a_sample_has_no_item_twice_and_repeats_for_the_same_seed(total, size, seed):
    sample = reservoir(range(total), size, seed)
    assert len(sample) == len(set(sample)) == min(total, size)
    assert set(sample) <= set(range(total))
    assert sample == reservoir(iter(range(total)), size, seed)


def test_every_item_is_equally_likely_to_be_in_a_sample():
    draws = random.Random(1)
    counts = Counter(
        item for _ in range(4000) for item in reservoir(range(20), 5, draws.getrandbits(64))
    )
    # Each of 20 items is expected 1000 times with standard deviation 27; allow five.
    assert all(abs(counts[item] - 1000) < 137 for item in range(20))
