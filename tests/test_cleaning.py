import sys

import numpy as np
import pytest
from for_each import for_each

from nmt.errors import NmtError
from nmt.preprocess.cleaning.pipeline import Cleaning, CleaningStats, nothing_left
from nmt.preprocess.cleaning.steps import CleaningStep, Filtering, Rewriting, steps
from nmt.preprocess.cleaning.tokenization import LEAST_LINES, kind_of
from nmt.preprocess.config import PreprocessConfig
from nmt.recipe.config import build, dump


def cleaned(*pairs, clean, held_out=()):
    """The pairs that a recipe's steps leave, and what they counted."""
    config = build(PreprocessConfig, {"clean": clean}, "preprocess")
    tally = CleaningStats()
    lines, source, target = config.cleaned(
        [one for one, _ in pairs], [other for _, other in pairs], frozenset(held_out), tally
    )
    assert len(lines) == len(source)
    return list(zip(source, target, strict=True)), tally


def rewritten(text, step):
    ((pair,), _) = cleaned((text, "x"), clean=[step])
    return pair[0]


@for_each(
    ("step", "before", "after"),
    [
        ("unicode", "e\u0301 ﬁ", "é ﬁ"),
        ({"name": "unicode", "form": "NFKC"}, "e\u0301 ﬁ Ａ", "é fi A"),
        ("control_characters", "a\x00b\tc\u2028d\x85e", "a b c d e"),
        ("control_characters", "\ufeffa\u200bb\u00adc", "abc"),
        ("control_characters", "\u200ea\u202eb\u202c\u2066c\u2067d\u2068e\u2069f\u061c", "abcdef"),
        ("punctuation", "„so“ – ‘it’s’… «a»\u00a0b", '"so" - \'it\'s\'... "a" b'),
        ("punctuation", "好，对！", "好,对!"),
        ("spaces", "  a \u00a0 b\tc ", "a b c"),
        ("spaces", " ", ""),
        ("detokenize", "he said : &quot; so , it is ! &quot;", 'he said: "so, it is!"'),
        ("detokenize", "un@@ believ@@ able , really@@", "unbelievable, really"),
        ("detokenize", "▁un believ able , ▁real ly", "unbelievable, really"),
        (
            "detokenize",
            "私 は NTT 研究 所 で 、 3 月 に 本 を 読む ！",
            "私はNTT研究所で、3月に本を読む！",
        ),
    ],
)
def test_a_step_that_rewrites(step, before, after):
    assert rewritten(before, step) == after


def test_each_side_is_detokenized_by_the_rules_of_its_language():
    step = build(CleaningStep, "detokenize", "step").for_languages("en", "fr")
    assert step.lines(["It is !"], "source") == ["It is!"]
    assert step.lines(["C' est bon !"], "target") == ["C'est bon !"]
    step = build(CleaningStep, "detokenize", "step").for_languages("en", "ja")
    assert step.lines(["で Deep Learning を", "oh , no"], "target") == [
        "でDeep Learningを",
        "oh, no",
    ]


EN = ["He said: yes, I do.", "It costs 3.5 %, Mr. Smith."]
FR = ["Oui, « bon » ; et toi ?", "C'est vrai."]
JA = ["彼は東京に住んでいます。", "はい。", "それはＮＴＴの 本です。"]
TH = ["ผมอยู่ที่กรุงเทพ และทำงานที่นี่", "เขาไปตลาด"]


@for_each(
    ("lines", "kind"),
    [
        *((lines, None) for lines in (EN, FR, JA, TH, ["no marks", "at all"])),
        (["he said : yes , i do .", "it costs 3.5 % , mr. smith ."], "tokenised"),
        (["彼 は 東京 に 住ん で い ます 。", "そ れ は 本 で す 。"], "segmented"),
        (["ผม อยู่ ที่ กรุงเทพ และ ทำงาน ที่นี่"], "segmented"),
        (["he li@@ ves here", "in Ber@@ lin"], "cut into subwords"),
        (["▁he ▁li ves ▁here"], "cut into subwords"),
    ],
)
def test_text_that_was_tokenised_or_segmented_is_recognised(lines, kind):
    assert kind_of(lines * LEAST_LINES) == kind
    assert kind_of(lines) is None  # too few lines to judge


@for_each(
    ("step", "kept", "dropped"),
    [
        ("identical", ("a", "b"), ("a", "a")),
        ("identical", ("US", "us"), ("us", "us")),
        ({"name": "length", "max": 2}, ("a b", "c"), ("a b c", "d")),
        ({"name": "length", "min": 2}, ("a b", "c d"), ("a b", "c")),
        ({"name": "length", "max_ratio": 2}, ("a b", "c"), ("a b c", "d")),
        ({"name": "length", "unit": "characters", "max": 3}, ("a b", "好"), ("a bc", "d")),
        ({"name": "script", "target": "CYRILLIC"}, ("one, 1", "один OK"), ("one", "two OK")),
        ("script", ("12:30", "–"), ("один", "one")),
        ({"name": "length", "max": 3}, ("a b", "好的吗"), ("a", "好的吗！")),
        ({"name": "length", "max_ratio": 2}, ("a b", "好的吗！"), ("a", "好的吗")),
        ("held_out", ("a b", "c"), ("secret line", "c")),
        ({"name": "held_out", "min_words": 2}, ("yes", "c"), ("a", "secret line")),
        ("numbers", ("3 dogs", "3 Hunde"), ("3 dogs", "4 Hunde")),
        ({"name": "numbers", "max_word": 0}, ("3 dogs", "3 Hunde"), ("3 dogs", "drei Hunde")),
    ],
)
def test_a_step_that_filters(step, kept, dropped):
    pairs, tally = cleaned(kept, dropped, clean=[step], held_out=["secret line", "yes"])
    name = step if isinstance(step, str) else step["name"]
    if name == "held_out" and step == "held_out":
        assert cleaned(("yes", "c"), clean=[step], held_out=["yes"])[0] == []
    assert pairs == [kept]
    assert tally.dropped == {name: 1}
    assert tally.examples == {name: [list(dropped)]}


@for_each(
    ("source", "target", "kept"),
    [
        ("1,000 men in 2010", "2010: 1.000 Mann", True),
        ("1 000", "1'000", True),
        ("0.5 of 1,000.50", "0,5 von 1.000,50", True),
        ("12/31/2020", "31.12.2020", True),
        ("at 07:30", "um 7.30", True),
        ("٣٤", "34", True),
        ("2010 300 men", "2010 300 Mann", True),
        ("two dogs, 3 cats", "2 Hunde, drei Katzen", False),  # 2 and 3 may be each other's change
        ("two dogs", "2 Hunde", True),
        ("twenty dogs", "20 Hunde", False),
        ("12", "21", False),
        ("3 and 3", "3", True),
        ("30 and 30", "30", False),
        ("9" * 9000, "9" * 9000, True),
    ],
)
def test_numbers_of_the_sides_are_compared(source, target, kept):
    assert steps["numbers"].keep([source], [target], frozenset()) == [kept]


@for_each(
    ("language", "own", "foreign"),
    [
        ("ja", "ラーメンを食べる。", "я ем"),
        ("ja", "ﾗｰﾒﾝ々人々", "한국어"),
        ("jpn_Jpan", "東京タワー", "Tokyo Tower"),
        ("ko", "大韓民國의 국민", "カタカナ"),
        ("zh-CN", "我们吃ＡＢ面。", "Wir essen"),
        ("ru", "это x = 𝑥𝑦𝑧𝑎𝑏𝑐𝑑𝑒 µµµµ", "this is x"),
        ("sr", "ovo je", "αυτό"),
        ("sr", "ово је", "αυτό"),
        ("sr_Latn", "ovo je", "ово је"),
        ("th", "ฉันชอบแมว", "I like cats"),
        ("de", "Äh, ﬁx! ＡＢ ʼnª", "ああ"),
    ],
)
def test_a_side_is_in_the_script_of_its_language(language, own, foreign):
    script = steps["script"].for_languages("en", language)
    assert script.keep(["one"] * 2, [own, foreign], frozenset()) == [True, False]
    script = steps["script"].for_languages(language, "en")
    assert script.keep([own, foreign], ["one"] * 2, frozenset()) == [True, False]


def test_scripts_that_are_given_stay():
    script = build(CleaningStep, {"name": "script", "target": "GREEK"}, "step").for_languages(
        "ja", "ru"
    )
    assert script.target == ("GREEK",)
    assert "HIRAGANA" in script.source


def test_a_line_without_spaces_is_held_out_if_it_has_enough_characters():
    step = {"name": "held_out", "min_words": 4}
    pairs = [("a", "はい"), ("b", "猫が好きです")]
    held_out = ["はい", "猫が好きです"]
    assert cleaned(*pairs, clean=[step], held_out=held_out)[0] == [("a", "はい")]


def test_steps_are_done_in_the_order_of_the_recipe():
    pair = ("a\u00a0", "a")
    assert cleaned(pair, clean=["identical", "spaces"])[0] == [("a", "a")]
    assert cleaned(pair, clean=["spaces", "identical"])[0] == []


def test_rewritten_lines_are_counted_with_the_first_examples_of_before_and_after():
    pairs, tally = cleaned(*[(f"{i}  x", f"{i}") for i in range(19)], clean=["spaces"])
    assert pairs[18] == ("18 x", "18")
    assert tally.rewritten == {"spaces": 19}
    assert tally.examples == {"spaces": [[f"{i}  x", f"{i} x"] for i in range(10)]}


def test_tallies_add_up():
    whole = CleaningStats()
    for number in range(5):
        part = CleaningStats()
        part.drop("empty", 4, [[f"{number}", letter] for letter in "abcd"])
        part.rewrite("spaces", 3)
        whole.add(part)
    assert (whole.dropped, whole.rewritten) == ({"empty": 20}, {"spaces": 15})
    shown = [f"{one}{other}" for one, other in whole.examples["empty"]]
    assert shown == ["0a", "0b", "0c", "0d", "1a", "1b", "1c", "1d", "2a", "2b"]


@for_each("name", list(steps))
def test_every_step_is_built_from_what_it_dumps(name):
    assert build(CleaningStep, dump(steps[name]), "step") == steps[name]


@for_each("name", list(steps))
def test_no_step_makes_lines_or_loses_them(name):
    lines = ["", " ", "\x00\u2028\x85", "a\r", "ﬁ\u0301", "好", "\ud7ff", "🙂 x"]
    step = steps[name]
    if isinstance(step, Rewriting):
        assert len(step.lines(lines, "source")) == len(lines)
    if isinstance(step, Filtering):
        assert len(step.keep(lines, lines[::-1], frozenset())) == len(lines)


@for_each(
    ("clean", "message"),
    [
        (["duplicate"], "unknown cleaning step 'duplicate'; did you mean 'duplicates'"),
        ([{"name": "length", "min": 9, "max": 3}], "min must be from 0 to max, not 9 with max 3"),
        ([{"name": "length", "max_ratio": 0.5}], "max_ratio must be at least 1, not 0.5"),
        ([{"name": "script", "min_share": 50}], "min_share must be from 0 to 1, not 50"),
        ([{"name": "numbers", "max_word": -1}], "max_word must be at least 0, not -1"),
        (
            ["unicode", "held_out", "identical", "spaces"],
            "clean has spaces after held_out, but held_out compares the lines after the last "
            "rewriting step; put held_out after spaces",
        ),
    ],
)
def test_a_step_that_cannot_be_is_answered(clean, message):
    with pytest.raises(NmtError, match=message):
        build(PreprocessConfig, {"clean": clean}, "preprocess")


def test_nothing_is_cleaned_unasked():
    source = ["a\x00", "same", "same"]
    lines, *pairs = Cleaning().cleaned(source, source, frozenset(["same"]), CleaningStats())
    assert pairs == [source, source]
    assert np.array_equal(lines, [0, 1, 2])


def test_spaces_of_every_kind_are_one_space():
    kinds = [it for it in map(chr, range(sys.maxunicode + 1)) if it.isspace() and it != "\n"]
    assert len(kinds) > 20
    for kind in kinds:
        assert rewritten(f"{kind}a{kind}b {kind}", "spaces") == "a b"


def test_a_part_of_the_text_whose_pairs_were_all_dropped_is_not_taken_for_an_empty_one():
    assert "no training pair belongs to part 1/2" in str(nothing_left({}, "1/2"))
    dropped = str(nothing_left({"empty": 3, "length": 1}, "1/2"))
    assert dropped.startswith("preprocess: cleaning dropped 4 of 4 training pairs: ")
