"""Where a line that is too long is split."""

from __future__ import annotations

from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st

from nmt.inference.splitting import parts, space_before


@given(st.text(), st.integers(1, 9))
def test_parts_fit_and_are_the_line(line: str, most: int) -> None:
    divided = parts(line, lambda it: len(it) <= most)
    assert "".join(divided) == line
    assert all(len(part) <= most for part in divided)


@for_each(
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
        ('She said "One, two." He did.', ['She said "One, two."', " He did."]),
        ("„Eins, zwei.“ Dann drei.", ["„Eins, zwei.“", " Dann drei."]),
        ("»Eins, zwei.« Dann drei.", ["»Eins, zwei.«", " Dann drei."]),
        ("Eins zwei. »Drei vier?«", ["Eins zwei.", " »Drei vier?«"]),
        ("« Un, deux. » Puis trois.", ["« Un, deux. »", " Puis trois."]),
        (
            "一二三「四五六，」七八九十一二三四五六七八九十",
            ["一二三「四五六，」", "七八九十一二三四五六七八九十"],
        ),
        *(
            ("👩" * 11 + tone + "👩" * 11, ["👩" * 10, f"👩{tone}" + "👩" * 11])
            for tone in "🏻🏽🏿"
        ),
        ("(One, two.) Three; four (five).", ["(One, two.)", " Three; four (five)."]),
        (
            "一二三「四五六。」七八九十一二三四五六七八九十",
            ["一二三「四五六。」", "七八九十一二三四五六七八九十"],
        ),
        ("ก" * 10 + "ึ" * 3 + "ก" * 11, ["ก" * 10 + "ึ" * 3, "ก" * 11]),
        ("👩" * 11 + "\u200d👩" * 6, ["👩" * 10, "👩" + "\u200d👩" * 6]),
        ("क" * 10 + "ा" * 3 + "क" * 11, ["क" * 10 + "ा" * 3, "क" * 11]),
        ("x" * 9 + "👩\u200d👩" + "x" * 11, ["x" * 9 + "👩\u200d👩", "x" * 11]),
        ("\u0301" * 24, ["\u0301" * 12] * 2),
        ("one two three four five. ", ["one two three", " four five. "]),
        (
            "一二三四五六七八九十一二三四五六七八九十一二三。",
            ["一二三四五六七八九十一二", "三四五六七八九十一二三。"],
        ),
        ("short", ["short"]),
        ("", [""]),
    ],
)
def test_the_ends_of_sentences_come_before_those_of_clauses_and_words(
    line: str, expected: list[str]
) -> None:
    assert parts(line, lambda it: len(it) <= 22) == expected


@for_each(
    ("begin", "rest"),
    [
        *((f"one two{mark}", " three, four five six") for mark in ".!?…"),
        *((f"one two.{mark}", " three, four five six") for mark in "»›\"'”’“‘«‹)]"),
        *((f"one two. {mark}", " three, four five six") for mark in "»›"),
        *((f"one two{mark}", " three four five six") for mark in ",;:–—"),
        *((f"一二三{mark}", "四五六七八九十，一二三四五六七八九十一二") for mark in "。！？"),
        *((f"一二三。{mark}", "四五六七八九十，一二三四五六七八九十一二") for mark in "」』”’）"),
        *((f"一二三{mark}", "四五六七八九十一二三四五六七八九十一二") for mark in "，；：、"),
    ],
)
def test_every_mark_ends_a_sentence_or_clause(begin: str, rest: str) -> None:
    assert parts(begin + rest, lambda it: len(it) <= 22) == [begin, rest]


def test_a_character_that_does_not_fit_is_a_part() -> None:
    refusals = iter([False] * 9)
    assert parts("ab", lambda it: next(refusals)) == ["a", "b"]


@for_each(
    ("part", "source", "target", "space"),
    [
        (" Two.", "en", "de", " "),
        ("\u00a0Two.", "", "", "\u00a0"),
        ("word", "en", "de", ""),
        (" Two.", "en", "zh", ""),
        (" Two.", "ko", "ja_JP", ""),
        ("二。", "zh", "en", " "),
        ("\u3000二。", "ja", "en", " "),
        ("二。", "zh", "ja", ""),
        (" Two.", "en", "th", " "),
        ("二。", "zh", "th", " "),
        (" สอง", "th", "en", " "),
    ],
)
def test_translations_of_parts_are_joined_as_the_target_language_writes_sentences(
    part: str, source: str, target: str, space: str
) -> None:
    assert space_before(part, (source, target)) == space
