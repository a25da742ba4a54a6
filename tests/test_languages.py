"""Scripts of languages, and words where a script has no spaces."""

from __future__ import annotations

import re
import sys
import unicodedata

from for_each import for_each

from nmt import languages


@for_each(
    ("code", "scripts"),
    [
        ("ja", ("Jpan",)),
        ("jpn", ("Jpan",)),
        ("ja_JP", ("Jpan",)),
        ("JA-jp", ("Jpan",)),
        ("zh-CN", ("Hani",)),
        ("zh_Hant", ("Hant",)),
        ("zho_Hans", ("Hans",)),
        ("zh-hant-TW", ("Hant",)),
        ("yue", ("Hani",)),
        ("kor_Hang", ("Hang",)),
        ("my", ("Mymr",)),
        ("bur", ("Mymr",)),
        ("shn_Mymr", ("Mymr",)),
        ("ja_Latn", ("Latn",)),
        ("sr", ("Cyrl", "Latn")),
        ("srp_Latn", ("Latn",)),
        ("os", ("Cyrl",)),
        ("sah", ("Cyrl",)),
        ("mhr", ("Cyrl",)),
        ("dv", ("Thaa",)),
        ("kas", ("Arab", "Deva")),
        ("lzh", ("Hani",)),
        ("sat_Olck", ("Olck",)),
        ("taq_Tfng", ("Tfng",)),
        ("pt-BR", ("Latn",)),
        ("de", ("Latn",)),
        ("", ("Latn",)),
    ],
)
def test_a_language_is_known_by_any_of_its_codes(code: str, scripts: tuple[str, ...]) -> None:
    assert languages.scripts(code) == scripts


def test_every_script_has_letters_whose_names_begin_so() -> None:
    names = [unicodedata.name(chr(code), "") for code in range(0x1B200)]
    for script, beginnings in languages.LETTERS.items():
        for beginning in beginnings:
            assert any(name.startswith(f"{beginning} ") for name in names), script


@for_each(
    ("line", "words"),
    [
        ("a  small test.", 3),
        ("ein für alle Mal", 4),
        ("猫が好き", 4),
        ("iPhoneを買う。", 5),  # iPhone, four characters of which one is the full stop's
        ("แมว", 3),
        ("한국어 문장", 2),
        ("", 0),
    ],
)
def test_each_character_of_a_script_without_spaces_is_a_word(line: str, words: int) -> None:
    assert languages.count_words(line) == words


def test_combining_marks_are_those_of_unicode() -> None:
    inside = re.compile(f"[{languages.combining_marks()}]")
    for code in range(sys.maxunicode + 1):
        is_mark = unicodedata.category(chr(code)).startswith("M")
        assert bool(inside.match(chr(code))) == is_mark, hex(code)


def test_text_without_spaces_is_told_from_text_with_them() -> None:
    assert languages.is_unspaced("私はiPadが好きです。")
    assert languages.is_unspaced("ខ្ញុំ")
    assert not languages.is_unspaced("The word 猫 means cat.")
    assert not languages.is_unspaced("그는 학생이다")
    assert not languages.is_unspaced("")
    assert [languages.has_spaces(code) for code in ("en", "ko", "ja", "th")] == [1, 1, 0, 0]
