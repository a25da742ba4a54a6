"""Which words belong to which, by attention to pieces."""

from __future__ import annotations

import random
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import numpy as np
from for_each import for_each

from nmt.data.vocabulary import EOS
from nmt.inference import Translation
from nmt.inference.alignment import linked, piece_starts, token_starts, words_of_pieces
from nmt.inference.lines import LineTranslator
from nmt.search import Hypothesis
from nmt.subwords.learning import SubwordTraining, train_subwords
from nmt.subwords.subwords import Subwords


@for_each(
    ("text", "offsets", "words"),
    [
        ("ab cd", [0, 1, 2, 3, 4], [0, 0, 1, 1, 1]),
        ("  ab  cd ", [0, 2, 4, 7, 8, 9], [0, 0, 1, 1, -1, -1]),
        ("", [0], [-1]),
        ("\u3000a\u2028b", [0, 2], [0, 1]),
        ("a\x85b\x1c \x1c c\u200bd", [0, 1, 2, 4, 8], [0, 0, 0, 1, 2]),
    ],
)
def test_a_piece_belongs_to_the_word_in_which_it_begins(
    text: str, offsets: list[int], words: list[int]
) -> None:
    assert words_of_pieces(text, offsets) == words


@for_each(
    ("text", "starts"),
    [
        ("ab1, c_d", [0, 3, 5]),
        ("++…… ¿a", [0, 1, 2, 3, 5, 6]),  # punctuation marks and symbols of ASCII stand alone
        ("😀😀 ☂x", [0, 3, 4]),
        ("a\u200cb a\u200db a\u0301b", [0, 4, 8]),
        ("\u200ca\x85b\x1cc\u200b\x1cd", [1, 2, 3, 5, 8]),
        ("a \u0301b", [0, 2, 3]),  # a mark after white space belongs to no token before it
    ],
)
def test_a_token_is_a_word_or_a_run_of_symbols_or_a_punctuation_mark(
    text: str, starts: list[int]
) -> None:
    assert token_starts(text) == starts


def test_a_piece_belongs_to_the_token_in_which_it_begins() -> None:
    assert words_of_pieces("a.b", [0, 1, 2], token_starts("a.b")) == [0, 1, 2]


def test_pieces_of_a_word_attend_together() -> None:
    # "der Hund" is "d" "er" "Hund" </s>; it was made of "the" "d" "og" </s>
    weights = np.array(
        [
            [0.5, 0.1, 0.0, 0.4],  # "d": to "the"
            [0.1, 0.2, 0.1, 0.6],  # "er": to "dog", but less; and most to the end, which is no word
            [0.3, 0.2, 0.2, 0.3],  # "Hund": to "dog" by its two pieces
            [0.0, 0.0, 0.0, 1.0],
        ]
    )
    found = linked("the dog", [0, 3, 5], "der Hund", [0, 1, 3], weights)
    assert found == ((0, 0), (4, 4))


def test_of_a_source_that_was_cut_only_what_the_model_saw_is_linked() -> None:
    weights = np.array([[0.9, 0.1], [0.2, 0.8]])
    assert linked("one two three", [0, 3, 7], "eins zwei", [0, 4], weights) == ((0, 0), (0, 5))


def test_pieces_are_linked_one_by_one_and_the_bytes_of_a_character_together() -> None:
    # "猫が" is "猫" "が", of which the second is spelt in two bytes; it was made of "the" " cat".
    weights = np.array(
        [
            [0.2, 0.7, 0.1],
            [0.5, 0.4, 0.1],
            [0.3, 0.6, 0.1],  # so the two bytes attend to "cat" by 1.0, and to "the" by 0.8
            [0.0, 0.0, 1.0],
        ]
    )
    found = linked("the cat", [0, 3], "猫が", [0, 1, 1], weights, "pieces")
    assert found == ((3, 0), (3, 1))
    assert piece_starts([0, 1, 1]) == [0, 1]


@for_each(
    ("source", "text", "unit", "links"),
    [
        (("a b", [0, 2]), ("c.", [0, 1]), "words", ((2, 0),)),
        (("a.", [0, 1]), ("c.", [0, 1]), "tokens", ((1, 0), (1, 1))),
        (("a  ", [0, 2]), ("c", [0]), "words", ((0, 0),)),  # the space at the end is no word
        (("a", [0]), ("c d", [0]), "words", ((0, 0),)),  # "d" has no piece of its own
        (("a", [0]), (" ", [0]), "words", ()),
        (("", []), ("c", [0]), "words", ()),
    ],
)
def test_units_are_linked_by_the_pieces_that_begin_in_them(
    source: tuple[str, list[int]], text: tuple[str, list[int]], unit: Any, links: Any
) -> None:
    weights = np.array([[0.1, 0.6, 0.3], [0.1, 0.6, 0.3]])[:, : len(source[1]) + 1]
    assert linked(*source, *text, weights, unit) == links


def test_pieces_are_numbered_in_the_whole_line_where_it_was_split() -> None:
    nothing = Hypothesis([], 0.0, 0.0, finished=True)
    first = Translation("a b", "猫が", nothing, (), ((1, 0), (0, 1)), ([0, 1], [0, 1]))
    second = Translation(" c", "犬", nothing, (), ((0, 0),), ([0], [0]))
    whole = first.followed_by(second, "")
    assert whole.units() == (["a", " b", " c"], ["猫", "が", "犬"])
    assert whole.alignment() == [(1, 0), (0, 1), (2, 2)]
    blank = Translation(" ", "", nothing)
    assert blank.followed_by(whole, "").alignment() == whole.alignment()
    assert whole.followed_by(blank, "").units() == (["a", " b", " c "], ["猫", "が", "犬"])


def test_each_part_of_a_line_that_was_split_keeps_its_end() -> None:
    first = Translation("a", "b", Hypothesis([4], -1.0, -1.0, finished=True), (-0.5, -0.5))
    second = Translation("c", "d", Hypothesis([5, 6], -1.0, -1.0, finished=False), (-0.5, -0.5))
    assert first.followed_by(second, " ").hypothesis.output == [4, EOS, 5, 6]
    assert second.followed_by(first, " ").hypothesis.output == [5, 6, 4, EOS]
    assert first.followed_by(first, " ").hypothesis.output == [4, EOS, 4, EOS]


def test_words_are_numbered_in_the_whole_line_where_it_was_split() -> None:
    nothing = Hypothesis([], 0.0, 0.0, finished=True)
    first = Translation("one two.", "eins zwei.", nothing, (), ((0, 0), (4, 5)))
    second = Translation(" three", "drei", nothing, (), ((1, 0),))
    assert first.followed_by(second, " ").alignment() == [(0, 0), (1, 1), (2, 2)]
    # Without white space between the parts, their words at the boundary are one.
    second = Translation("three", "drei", nothing, (), ((0, 0),))
    assert first.followed_by(second, "").alignment() == [(0, 0), (1, 1)]


def test_pieces_begin_where_the_text_says() -> None:
    text = ["the cat\u00b4s mat \u306d\u3053 and a dog"] * 9
    subwords = Subwords(train_subwords(text, SubwordTraining(vocab_size=300)))
    line = "  the  cat\u00b4s\u3000\u306d\U0001f600 dog"
    (ids,) = subwords.encode_source([line])
    (offsets,) = subwords.source_offsets([line])
    assert len(ids) == len(offsets)
    words = words_of_pieces(line, offsets)
    assert sorted({*words}) == list(range(len(line.split())))
    assert words == sorted(words)
    (made,), (offsets,) = subwords.decode_target([ids]), subwords.target_offsets([ids])
    assert len(ids) == len(offsets)
    assert sorted({*words_of_pieces(made, offsets)}) == list(range(len(made.split())))
    assert subwords.target_offsets([]) == []


def test_the_pieces_of_a_word_as_the_model_divides_it_are_linked_together() -> None:
    subwords = Subwords(train_subwords(["the cat, a dog"] * 9, SubwordTraining(vocab_size=285)))
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    parts = [
        "the",
        "dog",
        "e\u0301",
        "\u00e9",
        *" ,\x85\x1c\x1d\x1e\x1f\u00a0\u200b\u200c",
        "  ",
        " ",
    ]
    for _ in range(2000):
        line = "".join(draw.choices(parts, k=draw.randint(1, 12)))
        [ids], [offsets] = subwords.encode_source([line]), subwords.source_offsets([line])
        begins = [piece.startswith("\u2581") for piece in subwords.source_pieces(ids)]
        assert words_of_pieces(line, offsets) == [begin - 1 for begin in accumulate(begins)]
        assert len(Translation(line, "", Hypothesis([], 0.0, 0.0, True)).units()[0]) == sum(begins)


@for_each(
    ("languages", "unit"),
    [(("en", "de"), "words"), (("en", "ja"), "pieces"), (("zh", "en"), "pieces")],
)
def test_pieces_are_aligned_if_one_of_the_languages_has_no_spaces(
    languages: tuple[str, str], unit: str
) -> None:
    decoder: Any = SimpleNamespace(languages=languages)
    usual: Any = LineTranslator.usual_unit
    assert usual.fget(decoder) == unit
