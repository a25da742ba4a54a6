"""Where a line that is too long is split."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.inference.long_lines import parts


@given(st.text(), st.integers(1, 9))
def test_parts_fit_and_are_the_line(line: str, most: int) -> None:
    divided = parts(line, lambda it: len(it) <= most)
    assert "".join(divided) == line
    assert all(len(part) <= most for part in divided)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("One two. Three, four five six.", ["One two.", " Three, four five six."]),
        ("One two. Three! Four, five six?", ["One two. Three!", " Four, five six?"]),
        ("one two three, four five six seven", ["one two three,", " four five six seven"]),
        ("one two three four five", ["one two three", " four five"]),
        (
            "一二三四五六七八九。一二三四五六七八九十一二三",
            ["一二三四五六七八九。", "一二三四五六七八九十一二三"],
        ),
        ("x" * 40, ["x" * 20, "x" * 20]),
        ("short", ["short"]),
        ("", [""]),
    ],
)
def test_the_ends_of_sentences_come_before_those_of_clauses_and_words(
    line: str, expected: list[str]
) -> None:
    assert parts(line, lambda it: len(it) <= 22) == expected
