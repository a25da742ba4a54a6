"""n-best lists with a model's score as one more feature."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_comet
import pytest
from for_each import for_each

from nmt.cli.score.rescore import NBestEntry, parse_weights, rescored
from nmt.errors import NmtError
from nmt.io.lines import Lines

LIST = [
    "1 ||| a b ||| LogProbability= -1.5 Length= 3 ||| -0.750000",
    "1 ||| abc ||| LogProbability= -2.5 Length= 2 ||| -1.250000",
    "3 |||  ||| LogProbability= -0.5 Length= 1 ||| -0.500000",
]


def lines(texts: list[str], name: str) -> Lines:
    return Lines(io.BytesIO("".join(f"{text}\n" for text in texts).encode()), name)


def by_lengths(sources: list[str], targets: list[str]) -> list[float]:
    return [
        float(10 * len(source) + len(target))
        for source, target in zip(sources, targets, strict=True)
    ]


def rescore(candidates: list[str], weights: str | None = None) -> list[list[str]]:
    sources = lines(["", "x", "", "yy", ""], "source")
    found = rescored(
        lines(candidates, "list"), [sources], by_lengths, "Model", parse_weights(weights)
    )
    return [[str(it) for it in each] for each in found]


def test_a_feature_is_added_and_all_else_stays() -> None:
    first, second, third = LIST
    assert rescore(LIST) == [
        [],
        [first.replace("3 |||", "3 Model= 13 |||"), second.replace("2 |||", "2 Model= 13 |||")],
        [],
        [third.replace("1 |||", "1 Model= 20 |||")],
        [],
    ]


def test_a_text_may_hold_bars() -> None:
    line = "0 ||| a ||| b ||| Length= 3 ||| -0.750000"
    assert NBestEntry.parse(line, "list:1").text == "a ||| b"
    assert str(NBestEntry.parse(line, "list:1")) == line


def test_a_small_score_and_white_space_of_other_kinds_stay() -> None:
    line = "0 ||| \u00a0a\u3000 ||| Length= 3 ||| 1.2e-09"
    assert NBestEntry.parse("0\t|||\ta\t|||\tF= 1\t|||\t2", "list:1").text == "a"
    candidate = NBestEntry.parse(line, "list:1")
    assert (str(candidate), candidate.text) == (line, "\u00a0a\u3000")
    candidate.weigh({"Length": 0.25}, "list:1")
    assert str(candidate).endswith(" ||| 0.750000")


def test_weights_make_a_new_score_and_a_new_order() -> None:
    found = rescore(LIST, "LogProbability=2,Length=-3")
    scores = [[line.split(" ||| ")[3] for line in each] for each in found]
    assert scores == [[], ["-11.000000", "-12.000000"], [], ["-4.000000"], []]
    assert found[1][0].startswith("1 ||| abc |||")


def test_a_feature_may_have_several_values() -> None:
    line = "0 ||| a ||| Lexical= -1 -2.25 Distortion= 0 Small= 1.2345e-07 ||| -3.000000"
    candidate = NBestEntry.parse(line, "")
    lexical = {"Lexical": [-1.0, -2.25], "Distortion": [0.0]}
    assert candidate.features == {**lexical, "Small": [1.2345e-7]}
    assert str(candidate) == line
    candidate.weigh({"Lexical": 2.0}, "")
    assert candidate.score == -6.5


@for_each(
    ("candidates", "message"),
    [
        (["a ||| b"], 'list:1: not "id ||| text ||| name= value ... ||| score", as nmt translate'),
        (["0 ||| b ||| 1 2 ||| 3"], 'list:1: not "id |||'),
        (["x ||| b ||| F= 2 ||| 3"], 'list:1: not "id |||'),
        ([*LIST, "2 ||| b ||| F= 2 ||| 3"], "list:4: number 2 comes after 3; sort the list: sort"),
        (["7 ||| b ||| F= 2 ||| 3"], "list:1: number 7, but source has 5 lines; numbers count"),
        (["-1 ||| b ||| F= 2 ||| 3"], "list:1: number -1, but numbers count from 0"),
        (
            ["0 ||| b ||| Model= 2 ||| 3"],
            "list:1: there is a feature Model already; choose another --feature",
        ),
    ],
)
def test_a_list_of_another_form_is_refused(candidates: list[str], message: str) -> None:
    with pytest.raises(NmtError) as error:
        rescore(candidates)
    assert str(error.value).startswith(message)


def test_weights_that_make_no_sense_are_refused() -> None:
    with pytest.raises(NmtError) as error:
        rescore(LIST, "Length=1,Other=2")
    assert str(error.value) == (
        "list: a translation of line 1: no feature 'Other'; there are LogProbability, Length, Model"
    )
    for text in ("Length=x", "=,"):
        with pytest.raises(NmtError) as error:
            parse_weights(text)
        assert (
            str(error.value)
            == f"--weights {text}: expected NAME=NUMBER,NAME=NUMBER,... or a file of nmt tune"
        )


def test_a_weight_that_is_given_twice_is_refused() -> None:
    with pytest.raises(NmtError) as error:
        parse_weights("Model=1,Length=2,Model=3")
    assert str(error.value) == (
        "--weights Model=1,Length=2,Model=3: a feature is given twice; give each feature once"
    )


def test_weights_that_are_no_numbers_to_add_sort_nothing(tmp_path: Path) -> None:
    path = tmp_path / "weights.yaml"
    path.write_text("Length: 1\nModel: .inf\n")
    for text, said in {
        "Length=nan": "the weight of Length is nan",
        "Length=1,Model=-inf": "the weight of Model is -inf",
        str(path): "the weight of Model is inf",
        "Model=-1e101": "the weight of Model is -1e+101",
    }.items():
        with pytest.raises(NmtError) as error:
            parse_weights(text)
        assert str(error.value) == f"--weights {text}: {said}, no number from -1e+100 to 1e+100"
    with pytest.raises(NmtError) as error:
        rescore([LIST[0], LIST[1].replace("-2.5", "nan")], "LogProbability=1")
    assert str(error.value) == (
        "list: a translation of line 1: the weighted sum is not a number; check its features"
    )


def test_a_missing_file_of_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(NmtError) as error:
        parse_weights(f"{tmp_path}/nowhere.yaml")
    assert str(error.value) == (
        f"--weights {tmp_path}/nowhere.yaml: no such file; give NAME=NUMBER,NAME=NUMBER,... or a "
        "file of nmt tune"
    )


def test_a_file_of_weights_may_have_an_equals_sign_in_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("alpha=1").write_text("Model: 2\n")
    assert parse_weights("alpha=1") == {"Model": 2}
    assert parse_weights("alpha=2") == {"alpha": 2}


def test_a_list_without_sources_leaves_out_some_lines_but_not_a_billion() -> None:
    def weighed(numbers: list[int]) -> list[int]:
        listed = lines([f"{number} ||| a ||| F= 2 ||| 1" for number in numbers], "list")
        found = rescored(listed, weights={"F": 1.0})
        return [at for at, candidates in enumerate(found) if candidates]

    assert weighed([2, 2, 5]) == [2, 5]
    with pytest.raises(NmtError) as error:
        weighed([4, 999_999_999])
    assert str(error.value) == (
        "list:2: number 999999999 leaves out 999,999,994 lines, more than 1,000,000; check the "
        "number"
    )


def test_the_command_adds_the_score_that_the_search_found(
    trained: Path, corpus: Path, tmp_path: Path, nmt: Callable[..., Any]
) -> None:
    translate = ("translate", corpus / "test.en", "--model", trained, "--strategy", "beam")
    (tmp_path / "list").write_text(nmt(*translate, "--n-best", "3").out)
    plain = nmt(*translate).out
    flags = ("rescore", tmp_path / "list", "--model", trained, "--source", corpus / "test.en")
    done = nmt(*flags, "--feature", "Again")
    assert done.status == 0, done.err
    found = [NBestEntry.parse(line, "") for line in done.out.splitlines()]
    assert len(found) == (tmp_path / "list").read_text().count("\n")
    agree = [
        it.features["Again"][0] == pytest.approx(it.features["LogProbability"][0], abs=1e-4)
        for it in found
    ]
    assert sum(agree) > 0.5 * len(found)  # others are cut into other pieces, or had no end
    assert nmt(*flags, "--best").out == plain
    best = nmt(*flags, "--weights", "Model=1", "--best").out.splitlines()
    likeliest = {}
    for it in found:
        if it.number not in likeliest or it.features["Again"] > likeliest[it.number][0]:
            likeliest[it.number] = (it.features["Again"], it.text)
    assert best == [likeliest[at][1] for at in range(len(best))]


def test_a_reverse_model_scores_the_source_of_each_translation(
    trained: Path, corpus: Path, tmp_path: Path, nmt: Callable[..., Any]
) -> None:
    # The model of the other direction is the same: the language of a text is nothing to it.
    texts = {name: corpus / f"test.{name}" for name in ("en", "de")}
    lines = (f"{at} ||| {text} ||| F= 1 ||| 1" for at, text in enumerate(texts["de"].open()))
    (tmp_path / "list").write_text("".join(line.replace("\n", "") + "\n" for line in lines))
    flags = ("rescore", tmp_path / "list", "--model", trained, "--source", texts["en"])
    done = nmt(*flags, "--reverse")
    assert done.status == 0, done.err
    scored = nmt("score", "--model", trained, "--source", texts["de"], texts["en"]).out
    found = [NBestEntry.parse(line, "").features["Reverse"] for line in done.out.splitlines()]
    assert [f"{value:.6f}" for [value] in found] == scored.splitlines()


def test_a_metric_may_read_the_source_beside_the_references(
    tmp_path: Path, nmt: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_comet.install(monkeypatch)
    (tmp_path / "list").write_text("0 ||| a ||| F= 1 ||| 1\n1 ||| one ||| F= 1 ||| 1\n")
    (tmp_path / "x.de").write_text("a\none\n")
    (tmp_path / "x.en").write_text("b\none\n")  # a copy is worth nothing
    (tmp_path / "short.en").write_text("b\n")
    flags = ("rescore", tmp_path / "list", "--reference", tmp_path / "x.de", "--metric", "comet")
    done = nmt(*flags, "--source", tmp_path / "x.en")
    assert done.out == "0 ||| a ||| F= 1 comet= 100 ||| 1\n1 ||| one ||| F= 1 comet= 0 ||| 1\n"
    assert "give --source" in nmt(*flags).err
    refused = nmt(*flags, "--source", tmp_path / "short.en")
    assert (refused.status, refused.err.count("\n")) == (1, 1)
    assert "differ in their number of lines" in refused.err


@pytest.mark.parametrize("name", ["", "a b", "a=", "a,b", "a|||b", "a\u2003b"])
def test_a_name_that_would_make_the_list_unreadable_is_refused(
    tmp_path: Path, nmt: Callable[..., Any], name: str
) -> None:
    (tmp_path / "list").write_text("0 ||| a ||| F= 1 ||| 1\n")
    (tmp_path / "x.de").write_text("a\n")
    flags = ("--reference", tmp_path / "x.de", "--feature", name)
    done = nmt("rescore", tmp_path / "list", *flags)
    assert (done.status, done.out, done.err.count("\n")) == (2, "", 1)
    assert "expected a name without white space, equals signs, commas and |||" in done.err


def test_a_metric_chooses_the_translation_nearest_to_the_reference(
    tmp_path: Path, nmt: Callable[..., Any]
) -> None:
    candidates = ["0 ||| ein Hund ||| F= 1 ||| 2", "0 ||| eine Katze ||| F= 2 ||| 1"]
    candidates += ["2 ||| zwei ||| F= 1 ||| 3", "2 ||| drei ||| F= 1 ||| 2"]
    (tmp_path / "list").write_text("".join(f"{line}\n" for line in candidates))
    (tmp_path / "x.de").write_text("eine Katze\nnichts\nzwei Hunde\n")
    flags = ("rescore", tmp_path / "list", "--reference", tmp_path / "x.de")
    for metric in ("chrf", "bleu"):
        chosen = nmt(*flags, "--metric", metric, "--weights", f"{metric}=1", "--best")
        assert (chosen.status, chosen.out) == (0, "eine Katze\n\nzwei\n")
    (tmp_path / "y.de").write_text("ein Hund\nnichts\ndrei\n")
    both = nmt(*flags, "--reference", tmp_path / "y.de").out.splitlines()
    chrf = [line.partition("chrf= ")[2] for line in both]
    assert chrf[:2] == ["100 ||| 2", "100 ||| 1"]
    assert chrf[3] == "100 ||| 2"
    listed = nmt(*flags).out.splitlines()
    assert listed[1] == "0 ||| eine Katze ||| F= 2 chrf= 100 ||| 1"
    warning = f"{tmp_path / 'list'}: lines of {tmp_path / 'x.de'} without translations: 1"
    assert warning in nmt(*flags).err
    assert nmt(*flags, "--model", tmp_path).status == 2
    assert nmt("rescore", tmp_path / "list").status == 2
    assert "unknown" in nmt(*flags, "--metric", "chrrf").err
