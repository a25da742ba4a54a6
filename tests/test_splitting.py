"""Where a line is divided into sentences, and what their translations are together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from nmt.data.context import DocumentContext
from nmt.data.vocabulary import EOS
from nmt.inference import LineTranslator, Request, SearchConfig
from nmt.inference.markup.lines import translate_markup
from nmt.inference.request import Sentence
from nmt.inference.splitting import split_sentences
from nmt.languages import has_spaces_between_sentences
from nmt.recipe.config import build
from nmt.search import Hypothesis

TEXTS = Path(__file__).parent / "data" / "sentences.txt"


def texts() -> Iterator[tuple[str, str, set[int], set[int]]]:
    """The language and line of each text, and where its sentences end or may end.

    Ends are numbers of characters without white space.
    """
    _, *blocks = TEXTS.read_text(encoding="utf-8").strip().split("\n\n")
    for block in blocks:
        head, *sentences = block.split("\n")
        language = head.removeprefix("# ")
        space = " " * has_spaces_between_sentences(language)
        parts = [re.split(r" ?\| ?", sentence) for sentence in sentences]
        joined = [space.join(sentence) for sentence in parts]
        line = space.join(joined)
        yield language, line, ends(joined), ends([part for row in parts for part in row])


def ends(parts: list[str]) -> set[int]:
    lengths = [len("".join(part.split())) for part in parts]
    return {sum(lengths[:number]) for number in range(1, len(parts))}


def test_60_texts_in_12_languages_are_divided_as_a_person_does() -> None:
    right, missed, wrong, whole = Counter[str](), Counter[str](), Counter[str](), 0
    numbers = Counter[str]()
    for language, line, wanted, possible in texts():
        found = ends(split_sentences(line, language))
        numbers[language] += 1
        right[language] += len(found & wanted)
        missed[language] += len(wanted - found)
        wrong[language] += len(found - possible)
        whole += wanted <= found <= possible
    assert numbers == dict.fromkeys("en de fr es it pl cs ru zh ja ar hi".split(), 5)  # noqa: SIM905
    assert right.total() + missed.total() == 156
    assert (right.total() >= 153, wrong.total() <= 11, whole >= 48) == (True, True, True), (
        right,
        missed,
        wrong,
    )
    # Without abbreviations that it does not know, a language is divided without mistakes.
    assert not any(
        missed[language] + wrong[language] for language in ("en", "es", "it", "cs", "ar")
    )


@given(st.text(), st.sampled_from(["en", "ja", "deu_Latn", ""]))
def test_the_sentences_are_the_line(line: str, language: str) -> None:
    sentences = split_sentences(line, language)
    assert "".join(sentences) == line
    assert len(sentences) == 1 or all(map(str.strip, sentences))


@for_each(
    ("line", "sentences"),
    [
        ("One.  Two.\u00a0Three. ", ["One.", "  Two.", "\u00a0Three. "]),
        ("", [""]),
        (" ", [" "]),
        ("...", ["..."]),
        ('"Who?" she said. He left.', ['"Who?" she said.', " He left."]),
        ("who? she said. he left.", ["who?", " she said.", " he left."]),
        ("He paid approx. 20. They left.", ["He paid approx. 20.", " They left."]),
        ("Mr. M. Dupont saw J.-P. Sartre.", ["Mr. M. Dupont saw J.-P. Sartre."]),
        ("You and I. We left.", ["You and I.", " We left."]),
        ("Use Node.JS today. Or not.", ["Use Node.JS today.", " Or not."]),
        ("Bye! 😀 See you.", ["Bye!", " 😀 See you."]),
        ("Bye! 😀", ["Bye! 😀"]),
        ("1. One. Two.", ["1. One.", " Two."]),
        ("今天。明天！", ["今天。", "明天！"]),
    ],
)
def test_an_end_needs_letters_on_both_sides_and_a_capital_after_it(
    line: str, sentences: list[str]
) -> None:
    assert split_sentences(line, "en") == sentences


@pytest.mark.parametrize("language", ["de", "de_AT", "de-DE", "deu", "deu_Latn", "DE"])
def test_codes_of_a_language_are_alike(language: str) -> None:
    line = "Sie zahlt bzgl. Miete nichts. Er auch."
    assert split_sentences(line, language) == ["Sie zahlt bzgl. Miete nichts.", " Er auch."]
    assert len(split_sentences(line, "en")) == len(split_sentences(line, "xx")) == 3


def test_japanese_speech_stays_with_its_verb() -> None:
    line = "「行くの？」と聞いた。「行く。」雨だ。"
    expected = ["「行くの？」と聞いた。", "「行く。」", "雨だ。"]
    assert split_sentences(line, "ja") == expected


class Characters:
    """An id for each character but the spaces around a line; see :class:`Capitals`."""

    context = extremes = directions = None
    tags: tuple[list[int], list[int]] = ([], [])
    target_order = "left_to_right"

    def encode_source(self, lines: list[str]) -> list[list[int]]:
        return [[10 + ord(character) for character in line.strip()] for line in lines]

    def decode_target(self, ids: list[list[int]]) -> list[str]:
        return ["".join(chr(token - 10) for token in row) for row in ids]

    def source_offsets(self, lines: list[str]) -> list[list[int]]:
        starts = [len(line) - len(line.lstrip()) for line in lines]
        return [
            [start + at for at in range(len(line.strip()))]
            for start, line in zip(starts, lines, strict=True)
        ]

    def target_offsets(self, ids: list[list[int]]) -> list[list[int]]:
        return [[*range(len(row))] for row in ids]

    def target_pieces(self, ids: list[int]) -> list[str]:
        return ["</s>" if token == EOS else chr(token - 10) for token in ids]


class Capitals(LineTranslator):
    """Translates to capitals or, as the second best, to small letters; remembers the sentences."""

    survives_fork = False

    def __init__(self, **keys: object) -> None:
        config = build(SearchConfig, {"split_sentences": True, **keys}, "search")
        super().__init__(Characters(), config, ("en", "de"))  # type: ignore[arg-type]
        self.searched: list[str] = []

    def search_alone(self) -> None: ...

    def find(
        self, sentences: dict[int, Sentence], count: int = 1
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        for at, sentence in sentences.items():
            [text] = self.subwords.decode_target([sentence.source[:-1]])
            self.searched.append(text)
            yield (
                at,
                [
                    Hypothesis(self.subwords.encode_source([form])[0], -1.0, -1.0, True)
                    for form in (text.upper(), text.lower())[:count]
                ],
            )

    def log_probabilities(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]]
    ) -> list[list[float]]:
        return [[-0.5] * len(target) for target in targets]

    def attention(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]]
    ) -> list[NDArray[np.float32]]:
        return [np.eye(len(target), dtype=np.float32) for target in targets]


def test_alignments_scores_and_n_best_of_sentences_are_of_the_line() -> None:
    translator = Capitals()
    line = "One two.  Three four! Five."
    [[best, second]] = translator.translations([line], count=2, scored=True, aligned="words")
    assert translator.searched == ["One two.", "Three four!", "Five."]
    assert (best.text, second.text) == (line.upper(), line.lower())
    assert best.alignment() == [(at, at) for at in range(5)]
    assert best.units() == (line.split(), line.upper().split())
    fields = translator.fields(best, "words")
    assert fields["tokens"] == [*"ONE TWO.", "</s>", *"THREE FOUR!", "</s>", *"FIVE.", "</s>"]
    assert len(fields["token_log_probabilities"]) == len(fields["tokens"])
    assert (fields["log_probability"], fields["finished"]) == (-3.0, True)


@for_each(
    ("line", "expected"),
    [
        ("<b>One two. Three</b> four.", "<b>ONE TWO. THREE</b> FOUR."),
        ("One <b>two.</b> <i>Three.</i>", "ONE <b>TWO.</b> <i>THREE.</i>"),
        ("One. <br> Two. Three", "ONE. <br> TWO. THREE"),
        ("<p>One.  <a href='x'>Two. Three.</a></p>", "<p>ONE.  <a href='x'>TWO. THREE.</a></p>"),
        ("Say {name}. Go <b>on</b>.", "SAY {name}. GO <b>ON</b>."),
    ],
)
def test_tags_stay_around_the_sentences_of_an_element(line: str, expected: str) -> None:
    translator = Capitals()
    assert list(translate_markup(translator, [line])) == [expected]
    assert len(translator.searched) > 1


def test_a_model_of_documents_reads_whole_lines() -> None:
    translator = Capitals()
    translator.subwords.context = DocumentContext()
    assert not translator._splits(Request("One. Two.", split_sentences=True))


def test_150_sentences_are_one_line() -> None:
    translator = Capitals()
    line = " ".join(f"Sentence {number} is here." for number in range(150))
    assert list(translator.translate([line])) == [line.upper()]
    assert len(translator.searched) == 150


def test_white_space_that_is_not_ascii_before_a_full_stop_divides_nothing() -> None:
    for space in "\u00a0\u2009\u3000":
        line = f"See plan B{space}. Then go."
        assert "".join(split_sentences(line, "en")) == line
