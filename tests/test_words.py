import io

import pytest
import sentencepiece
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import SentencePieceTrainer

from nmt.data.columns import RaggedArray
from nmt.preprocess import encoding
from nmt.preprocess.encoding import WordEncoder, cuts_at_spaces, encoders
from nmt.subwords.learning import SubwordTraining, train_subwords
from nmt.subwords.subwords import Subwords
from nmt.subwords.words import as_read, word_starts, words

SENTENCES = [
    f"{who} {does} the {what} ."
    for who in ("Ann", "Bob")
    for does in ("sees", "mends")
    for what in ("house", "boats", "old boat", "houses", "trees", "wooden tree")
]


def test_words_are_divided_where_the_default_rule_reads_a_space():
    normalize = sentencepiece.SentencePieceNormalizer(rule_name="nmt_nfkc").normalize
    for code in (*range(1, 0xD800), *range(0xE000, 0x30000)):
        text = f"a{chr(code)}b"
        divided = normalize(text).removeprefix("▁").split("▁")
        if divided in (["a", "b"], ["ab"]):
            assert (len(words(text)), as_read(text).split()) == (len(divided), divided), hex(code)
        else:
            assert words(text) == [text], hex(code)


@for_each(
    ("line", "divided", "read"),
    [
        ("", [], ""),
        (" a  b ", ["a", "b"], "a b"),
        ("\x1ca\x1f \x1d b\x85c", ["a\x1f", "b\x85c"], "a b\x85c"),
        ("e\u0301\u00a0\ufb01\u200b\u200b.", ["e\u0301", "\ufb01", "."], "\u00e9 fi ."),
    ],
)
def test_a_word_begins_with_a_character_that_the_model_reads(line, divided, read):
    assert (words(line), as_read(line)) == (divided, read)
    assert [line[start] for start in word_starts(line)] == [word[0] for word in divided]


def subwords(**changes):
    values = {"vocab_size": 340, "character_coverage": 1.0, **changes}
    return Subwords(train_subwords(SENTENCES, SubwordTraining(**values)))


@pytest.fixture(scope="module")
def shared():
    return subwords()


def assert_same(encode, processor, lines):
    given, wanted = encode(lines), RaggedArray.from_sentences(processor.encode(lines))
    assert given.lengths.tolist() == wanted.lengths.tolist()
    assert given.tokens.tolist() == wanted.tokens.tolist()


SPACES_AND_MARKS = " \t\u00a0\u3000\u200b\u0301\u0345\u00a8\u00b4\u0385\ufdfa\u2581\r\x00"
text = st.text(
    st.one_of(st.sampled_from(SPACES_AND_MARKS + "aeinstAB."), st.characters(codec="utf-8"))
)


@pytest.mark.parametrize("normalization", ["nfkc", "identity"])
def test_a_sign_that_models_take_for_a_space_is_left_to_sentencepiece(normalization):
    processor = subwords(normalization=normalization).source.processor
    assert cuts_at_spaces(processor)
    lines = ["a boat", "\u2581 \ufb01", "a \u2581\u2581 tree\u2581 s"]
    assert_same(WordEncoder(processor), processor, lines)


@for_each("normalization", ["nmt_nfkc", "nfkc_cf", "identity"])
def test_lines_get_the_ids_that_sentencepiece_gives_them(normalization):
    processor = subwords(normalization=normalization).source.processor
    assert cuts_at_spaces(processor)

    @given(st.lists(text.map(lambda it: it.replace("\n", ""))))
    def check(lines):
        assert_same(WordEncoder(processor), processor, lines)

    check()


def test_words_are_known_again_and_forgotten_when_they_are_too_many(shared, monkeypatch):
    encode = WordEncoder(shared.source.processor)
    monkeypatch.setattr(encoding, "MAX_WORDS", 4)
    for lines in (["a tree", "", "the boats"], ["the trees"], ["a boat", "the trees"], []):
        assert_same(encode, shared.source.processor, lines)
    monkeypatch.setattr(encoding, "MAX_WORDS", 1 << 18)
    monkeypatch.setattr(encoding, "MAX_TOKENS", 9)
    for line in ("the boats", "日本の木と家", "the trees", "a boat"):
        assert_same(encode, shared.source.processor, [line])
        assert len(encode._words.tokens) < 40


@for_each(
    "setting",
    [
        {"model_type": "unigram"},
        {"user_defined_symbols": ("the house",)},
        {"split_by_whitespace": False},
        {"remove_extra_whitespaces": False},
        {"treat_whitespace_as_suffix": True},
        {"add_dummy_prefix": False},
    ],
)
def test_pieces_that_words_do_not_show_are_left_to_sentencepiece(setting):
    given = {"vocab_size": 340, "byte_fallback": True, "hard_vocab_limit": False, **setting}
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_writer=model,
        **{"model_type": "bpe", **given},
        **{"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3, "minloglevel": 2},
    )
    both = Subwords(model.getvalue())
    processor = both.source.processor
    assert not cuts_at_spaces(processor)
    assert_same(encoders(both)[0], processor, ["Ann  sees the house .", "", " a"])


def test_sides_that_share_a_model_share_its_words(shared):
    one, other = encoders(shared)
    assert one is other
    one, other = encoders(Subwords(*(shared._files["subwords.model"] for _ in range(2))))
    assert one is not other
