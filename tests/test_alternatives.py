"""Translations with another next word."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import GERMAN

from nmt import Translator
from nmt.errors import NmtError
from nmt.inference import Request
from nmt.inference.alternatives import alternatives

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
    translator = Translator(trained, device="cpu")
    translator.languages = ("en", "ja")
    [found] = alternatives(translator, [Request(LINES[0], "zwei dr")], 20)
    assert all(one.text.startswith("zwei dr") for one in found)
    assert any(len(one.next) < 3 for one in found)


def test_another_engine_has_no_alternatives() -> None:
    with pytest.raises(NmtError, match="use --engine nmt"):
        alternatives(object(), [])  # type: ignore[arg-type]
