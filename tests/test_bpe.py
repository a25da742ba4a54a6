"""BPE by codes, against pieces that subword-nmt 0.3.8 and fastBPE 0.1 gave."""

import pickle
from random import Random

import pytest
from for_each import for_each

from nmt.data.vocabulary import BOS, EOS, PAD, UNK, Vocabulary
from nmt.errors import NmtError
from nmt.subwords.bpe import BPE_CODES, BpePieces, parse_codes
from nmt.subwords.subwords import Subwords

CODES = "#version: 0.2\nt h\nth e</w>\ni n\nin g</w>\na n\nan d</w>\no u\nou r</w>\n"
OLD = "t h\ne </w>\nth e</w>\ni n\nin g\ning </w>\n"
COUNTED = "t h 9\nth e</w> 8\ni n 7\nin g</w> 7\na n 5\nan d</w> 5\n"


def pieces_of(codes: str, text: str, **tokenisation: object) -> list[str]:
    letters = [
        letter + mark for letter in "abcdefghijklmnopqrstuvwxyz.,-<>é" for mark in ("", "@@")
    ]
    longer = [
        "the",
        "th@@",
        "in@@",
        "ing",
        "ing@@",
        "and",
        "an@@",
        "ou@@",
        "our",
        "in",
        "@-@",
        "&lt;",
    ]
    vocabulary = Vocabulary.from_pieces([*letters, *longer])
    segmenter = BpePieces(parse_codes(codes, **tokenisation), vocabulary)
    [ids] = segmenter.encode([text])
    return segmenter.pieces(ids)


@for_each(
    ("codes", "text", "expected"),
    [
        (CODES, "the thing and our hour", "the th@@ ing and our h@@ our"),
        (CODES, "thin ingthe é", "th@@ i@@ n in@@ g@@ the é"),
        (OLD, "the thing in", "the th@@ ing in"),
        (OLD, "thin inging", "th@@ in ing@@ ing"),
        (COUNTED, "the thing and ann", "the th@@ ing and an@@ n"),
    ],
)
def test_pieces_are_those_of_the_tools_that_wrote_the_codes(codes, text, expected):
    assert pieces_of(codes, text, tokenizer="none") == expected.split()


def test_of_two_merges_that_overlap_the_earlier_one_is_made():
    assert pieces_of("#version: 0.2\na n\nn d</w>\n", "and", tokenizer="none") == ["an@@", "d"]
    assert pieces_of("#version: 0.2\nn d</w>\na n\n", "and", tokenizer="none")[0] == "a@@"


def subwords(**tokenisation: object) -> Subwords:
    names = {**tokenisation}
    codes = CODES + "@ -\n@- @</w>\n"
    source, target = (parse_codes(codes, **names, language=language) for language in ("en", "de"))
    letters = "abcdefghijklmnopqrstuvwxyz.,-<>\"'&;@DK"
    pieces = [
        *letters,
        *(f"{letter}@@" for letter in letters),
        "the",
        "th@@",
        "in@@",
        "ing",
        "ing@@",
        "our",
    ]
    pieces += ["&lt;", "@-@", "and", "an@@", "ou@@"]
    return Subwords(source, target, vocabularies=[Vocabulary.from_pieces(pieces)])


TEXT = ["the <hour> and, the a-b thing.", 'he said "an hour", isn\'t that the thing?', "a & b @-@"]


def test_raw_text_comes_back_and_offsets_are_those_of_the_pieces():
    both = subwords()
    line = "the <hour>, and a-b thing."
    [ids] = both.encode_source([line])
    cut = "the &@@ l@@ t@@ ;  h@@ our &@@ g@@ t@@ ; , and a @-@ b th@@ ing ."
    assert both.source_pieces(ids) == cut.split()
    assert both.decode_source([ids]) == ["the < hour >, and a-b thing."]  # as Moses detokenises
    [begins] = both.source_offsets([line])
    shown = [(piece, line[begin]) for piece, begin in zip(cut.split(), begins, strict=True)]
    assert shown[0] == ("the", "t")
    assert ("h@@", "h") in shown
    assert ("@-@", "-") in shown
    assert ("ing", "i") in shown
    assert {char for piece, char in shown if piece in ("&@@", "l@@", "t@@", ";", "g@@")} == {*"<>"}
    row = [BOS, *both.encode_target(["the thing."])[0], UNK, PAD, EOS]
    [text], [begins] = both.decode_target([row]), both.target_offsets([row])
    assert text == "the thing. <unk>"
    assert begins == [0, 0, 4, 6, 9, 11, 16, 16]


def test_white_space_alone_may_divide_words():
    both = subwords(tokenizer="none")
    line = "the  hour\t&lt; a-b"
    assert both.decode_source(both.encode_source([line])) == ["the hour &lt; a-b"]
    [begins] = both.source_offsets([line])
    assert [line[begin] for begin in begins] == [*"tho&lt;a-b"]
    assert both.encode_source(["", " \t"]) == [[], []]
    assert both.source_offsets([""]) == [[]]


def test_escapes_and_hyphens_are_left_on_request():
    both = subwords(escape=False, dash_splits=False)
    [ids] = both.encode_source(["a-b <"])
    assert both.source_pieces(ids) == ["a@@", "-@@", "b", "<"]


def test_a_very_long_word_takes_no_quadratic_time():
    both = subwords(tokenizer="none")
    [ids] = both.encode_source(["thing" * 40_000])
    text = both.decode_source([ids])[0]
    assert text == "thing" * 40_000


def test_codes_are_saved_with_their_lists(tmp_path):
    both = subwords()
    Subwords(parse_codes(CODES), vocabularies=[Vocabulary.from_pieces(["a"])]).save(tmp_path)
    paths = both.save(tmp_path)
    assert {*tmp_path.iterdir()} == {*paths}
    for copy in (Subwords.load(tmp_path), pickle.loads(pickle.dumps(both))):
        assert copy.is_same_as(both)
        assert copy.shared
        assert copy.encode_source(TEXT) == both.encode_source(TEXT)
        assert copy.encode_target(TEXT) == both.encode_target(TEXT)
    (tmp_path / "vocabulary.json").unlink()
    with pytest.raises(NmtError, match=r"subwords.source.codes.json: codes without vocabulary"):
        Subwords.load(tmp_path)


def test_what_codes_cannot_do_is_refused():
    both = subwords()
    with pytest.raises(NmtError, match=r"needs SentencePiece.* leave out train\.sub"):
        both.source.sample("the hour", 0.1, Random(1))
    with pytest.raises(NmtError, match="word alignments of training pairs need SentencePiece"):
        _ = both.begins_word


@for_each(
    ("text", "message"),
    [
        ("", "there are no merges"),
        ("#version: 0.2\n", "there are no merges"),
        ("#version: 0.3\na b\n", "version '0.3' of the codes, not 0.1 or 0.2"),
        ("a b\na\n", "merge 2 is 'a', not two symbols"),
        ("a b 3\nc d\n", "merge 2 is 'c d', not two symbols"),
        ("a b 3\nc d x\n", "merge 2 is 'c d x', not two symbols"),
        ("a  b\n", "merge 1 is 'a  b', not two symbols"),
        ("a b c d\n", "merge 1 is 'a b c d', not two symbols"),
    ],
)
def test_damaged_codes_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_codes(text)


def test_stored_codes_are_checked():
    document = BPE_CODES.text(parse_codes(CODES))
    assert BPE_CODES.parse(document, "codes") == parse_codes(CODES)
    with pytest.raises(NmtError, match="codes: damaged"):
        BPE_CODES.parse(document.replace("t h", "t  h"), "codes")
