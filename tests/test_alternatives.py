"""Translations with another next word."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import GERMAN
from for_each import for_each
from table_model import TableModel
from torch import Tensor

from nmt import Translator
from nmt.errors import NmtError
from nmt.formats import export_formats, export_run
from nmt.inference import Request, SearchConfig
from nmt.inference import Translator as ModelTranslator
from nmt.inference.alternatives import alternatives
from nmt.inference.request import Sentence
from nmt.search import Hypothesis

LINES = ["one two three", "", "four five"]


def test_alternatives_go_on_after_the_prefix_each_with_another_word(trained: Path) -> None:
    translator = Translator(trained, device="cpu")
    best = list(translator.translate(LINES))
    results = alternatives(translator, [Request(line) for line in LINES])
    assert results[1] == []
    for text, found in zip(best, results, strict=True):
        assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
        assert len({one.next for one in found}) == len(found)
        assert all(one.text.split()[0] == one.next for one in found)
        assert not text or text in [one.text for one in found]
    assert len(results[0]) > 1
    [after_two] = alternatives(translator, [Request(LINES[0], "zwei drei ")], 20)
    assert after_two
    assert all(one.text.startswith(f"zwei drei {one.next}") for one in after_two)
    assert all(" " not in one.next for one in after_two)


def test_each_alternative_is_the_translation_with_its_beginning(trained: Path) -> None:
    translator = Translator(trained, device="cpu")
    line, prefix = LINES[0], "zwei "
    [found] = alternatives(translator, [Request(line, prefix)])
    whole = [one for one in found if one.next in GERMAN]
    assert whole
    longer = [Request(line, prefix + one.next) for one in whole]
    assert list(translator.translate(longer)) == [one.text for one in whole]
    together = alternatives(translator, [Request("six"), Request(line, prefix)])
    assert [one.text for one in together[1]] == [one.text for one in found]


def test_in_text_without_spaces_pieces_are_the_alternatives(trained: Path) -> None:
    translator = Translator(trained, device="cpu", engine="nmt")
    translator.languages = ("en", "ja")
    [found] = alternatives(translator, [Request(LINES[0], "zwei dr")], 20)
    assert all(one.text.startswith("zwei dr") for one in found)
    assert any(len(one.next) < 3 for one in found)


class Pieces:
    """A word, three of which one continues the word before, and another word."""

    PIECES = ("one", " two", "x", " three", " four")  # ids 4 to 8
    begins_word = (np.array([True] * 9), np.array([True] * 6 + [False] + [True] * 2))
    context = directions = extremes = None
    tags: tuple[list[int], list[int]] = ([], [])
    target_order = "left_to_right"

    def encode_source(self, lines: list[str]) -> list[list[int]]:
        return [[4] for _ in lines]

    def encode_phrases(self, texts: list[str]) -> list[list[int]]:
        return [[4] if text else [] for text in texts]

    def decode_target(self, ids: list[list[int]]) -> list[str]:
        return ["".join(self.PIECES[it - 4] for it in line).strip() for line in ids]

    def target_offsets(self, ids: list[list[int]]) -> list[list[int]]:
        return [
            [len(self.decode_target([line[:at]])[0]) for at in range(len(line))] for line in ids
        ]


class Given(ModelTranslator):
    """A translator with given probabilities of the next token, whose searches add no other."""

    def __init__(self, languages: tuple[str, str]) -> None:
        subwords: Any = Pieces()
        super().__init__(TableModel(0), subwords, SearchConfig(), languages=languages)

    def next_log_probabilities(self, source: list[int], prefix: list[int]) -> Tensor:
        return torch.tensor([0, 0, 0, 0, 0.0012, 0.3, 0.5, 0.198, 0.0008]).log()

    def find(
        self, sentences: dict[int, Sentence], count: int = 1
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        for at, sentence in sentences.items():
            yield at, [Hypothesis([*sentence.prefix], -at, -at, finished=True)]


@for_each(
    ("prefix", "languages", "count", "words"),
    [
        ("one ", ("en", "de"), 2, ["two", "three"]),  # "x" would continue the first word
        ("one ", ("ja", "de"), 2, ["two", "three"]),
        ("one", ("en", "ja"), 2, ["x", "two"]),  # text without spaces has no words
        ("", ("en", "de"), 2, ["x", "two"]),  # any piece may begin a line
        ("", ("en", "de"), 8, ["x", "two", "three", "one"]),  # a thousandth is the least
    ],
)
def test_the_likeliest_tokens_are_tried_that_begin_a_word_after_a_prefix(
    prefix: str, languages: tuple[str, str], count: int, words: list[str]
) -> None:
    [found] = alternatives(Given(languages), [Request("line", prefix)], count)
    assert [one.next for one in found] == words


def test_an_export_alone_has_no_alternatives(trained: Path, tmp_path: Path) -> None:
    export_run(trained, export_formats["ctranslate2"], "fp32", tmp_path / "export")
    with pytest.raises(NmtError, match="an export cannot do this; give the run"):
        alternatives(Translator(tmp_path / "export", device="cpu"), [])
