"""Flags of lines that went wrong, and the second search for them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import Command
from for_each import for_each
from table_model import TableModel
from test_coverage import Attending
from test_translator import LETTERS, Letters

from nmt.data.dataset import Dataset
from nmt.data.extremes import Extremes
from nmt.data.vocabulary import EOS
from nmt.inference import Request, SearchConfig, Translator
from nmt.inference.engines import load_translator
from nmt.inference.flags import flags_of, is_untranslated
from nmt.inference.request import Sentence
from nmt.recipe.config import build
from nmt.runs import Run
from nmt.search import Hypothesis
from nmt.search.careful import CarefulBeam


@for_each(
    ("source", "target", "flags"),
    [
        ("abcdefgh", "abcdefgh", ()),
        ("abcdefgh", "abcabcab", ("repetition",)),
        ("abcabcab", "defdefde", ()),  # the source repeats as much
        ("abcdefgh", "abc", ("too_short",)),
        ("abc", "abcdefghijkl", ("too_long",)),
        ("abc", "abcdabcdabcd", ("repetition", "too_long")),
    ],
)
def test_repetitions_and_unusual_lengths_are_flagged(
    source: str, target: str, flags: tuple[str, ...]
) -> None:
    extremes = Extremes(
        max_tokens=9, max_sentence_ends=1, min_length_ratio=0.7, max_length_ratio=1.5
    )
    ids, tokens = ([4 + LETTERS.index(letter) for letter in text] for text in (source, target))
    whole = Hypothesis(tokens, -1.0, -1.0, finished=True)
    assert flags_of([*ids, EOS], whole, extremes) == flags
    cut = replace(whole, finished=False)
    assert flags_of([*ids, EOS], cut, None)[-1] == "unfinished"
    assert not {"too_short", "too_long"} & {*flags_of([*ids, EOS], whole, None)}


def test_much_of_the_source_without_attention_is_flagged() -> None:
    spread = np.full((4, 9), 1 / 9, np.float32)  # sums of 0.44
    half = np.zeros((4, 9), np.float32)
    half[:, :4] = 0.25
    assert (is_untranslated(spread), is_untranslated(half)) == (False, True)
    gaps = np.zeros((4, 9), np.float32)
    gaps[:, ::3] = gaps[:, 1::3] = 0.2  # a word without a counterpart here and there is usual
    assert not is_untranslated(gaps)


def test_a_run_knows_the_usual_length_ratios(trained: Path, dataset: Path) -> None:
    train = Dataset.open(dataset).split("train")
    extremes = Run.open(trained).subwords.extremes
    assert extremes is not None
    ratios = (train.target_lengths + 4) / (train.source_lengths + 4)
    wanted = np.quantile(ratios, [0.005, 0.995])
    assert [extremes.min_length_ratio, extremes.max_length_ratio] == pytest.approx(wanted)


def looping(**keys: object) -> Translator:
    """A translator whose model writes "abcabc..." for a line with "d", and else the source."""
    model = TableModel(0, vocabulary=Letters.target_size)

    def row(sentence: tuple[int, ...], prefix: tuple[int, ...]) -> list[float]:
        loops, at = 7 in sentence, len(prefix) - 1
        likely = 4 + at % 3 if loops else sentence[at] if at < len(sentence) else EOS
        values = [0.1 * token for token in range(model.vocabulary)]
        values[EOS] = 4.0
        values[likely] = 9.0
        return values

    model.row = row  # type: ignore[assignment]
    config = build(SearchConfig, {"max_length_offset": 9, **keys}, "search")
    return Translator(model, Letters(), config)  # type: ignore[arg-type]


def test_a_flagged_line_is_searched_again_and_the_better_translation_is_kept() -> None:
    translator, lines = looping(strategy="greedy"), ["abef", "abcd", "", "fe"]
    once = [best for best, *_ in translator.translations(lines)]
    assert [bool(one.flags) for one in once] == [False, True, False, False]
    assert translator.counts.flagged == 1
    again = [best for best, *_ in translator.translations(lines, retry=True)]
    assert [one.flags for one in again] == [(), (), (), ()]
    assert [one.text for one in again][::2] == [one.text for one in once][::2]
    assert (translator.counts.flagged, translator.counts.truncated) == (1, 0)
    # A prefix that repeats itself is kept, though the second search may not repeat any other.
    [[forced]] = translator.translations([Request("abcd", prefix="efgefgefg")], retry=True)
    assert forced.text.startswith("efgefgefg")


def test_the_first_translation_stays_if_the_second_is_no_better() -> None:
    unfinished = looping(strategy="greedy", max_length_ratio=0, max_length_offset=1)
    [[first]], [[second]] = (
        unfinished.translations(["abcd"], retry=retry) for retry in (False, True)
    )
    assert first.flags == ("unfinished",)
    assert first == second


def test_parts_of_a_line_share_their_flags() -> None:
    [[joined]] = looping(strategy="greedy", split_sentences=True).translations(["ef. abcd. fe"])
    assert len(joined.parts()) == 3
    assert set(joined.flags) == {"repetition", "unfinished"}


def test_the_second_search_blocks_n_grams_and_has_the_coverage_penalty() -> None:
    found = []
    for keys, strategy in (
        ({}, CarefulBeam.like(build(SearchConfig, {}, "search").strategy)),
        ({"constraints": [{"name": "no_repeat_ngram", "size": 3}], "coverage_penalty": 0.2}, None),
    ):
        beam = {"name": "beam", "stop": "all_finished"}
        config = build(SearchConfig, {"strategy": beam, "max_length_offset": 9, **keys}, "search")
        translator = Translator(Attending(3), Letters(), config)  # type: ignore[arg-type]
        found.append(dict(translator.find({0: Sentence([4, 5, 4, EOS], strategy=strategy)})))
    assert found[0] == found[1]


def test_flags_are_in_json_and_counted(trained: Path, corpus: Path, nmt: Command) -> None:
    text = corpus / "test.en"
    done = nmt("translate", "--model", trained, "--json", text)
    flags = [json.loads(line)["flags"] for line in done.out.splitlines()]
    best = [first for first, *_ in load_translator(trained).translations(text.open().readlines())]
    assert flags == [list(one.flags) for one in best]
    flagged = sum(map(bool, flags))
    assert flagged > 0
    assert f"unusual length: {flagged}; --json names the flags, and --retry" in done.err
    retried = nmt("translate", "--model", trained, "--json", "--retry", text)
    lines = [json.loads(line) for line in retried.out.splitlines()]
    assert sum(bool(line["flags"]) for line in lines) <= flagged
    plain = nmt("translate", "--model", trained, "--retry", text)
    assert plain.out.splitlines() == [line["text"] for line in lines]


@pytest.mark.full
def test_broken_lines_are_counted(trained: Path, corpus: Path) -> None:
    texts = ("--source", corpus / "test.en", "--reference", corpus / "test.de")
    script = Path(__file__).parents[1] / "benchmarks/flags.py"
    command = [sys.executable, script, "--model", trained, *texts]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [line.split(" | ") for line in done.stdout.splitlines()]
    found = {row[0].strip("| "): row[1:] for row in rows}
    long = sum(len(line.split()) >= 4 for line in (corpus / "test.en").open())
    assert found["a phrase four times"][:2] == [str(long), "100.0%"]
    assert found["references"][0] == "10"
    assert int(found["--retry"][0]) <= int(found["usual"][0])


def test_an_export_cannot_retry(trained: Path, tmp_path: Path, nmt: Command) -> None:
    pytest.importorskip("ctranslate2")
    export = tmp_path / "export"
    kind = ("--format", "ctranslate2", "--output", export)
    assert nmt("export", "--model", trained, *kind).status == 0
    (tmp_path / "in").write_text("one two\n")
    done = nmt("translate", "--model", export, "--retry", tmp_path / "in")
    assert (done.status, done.out) == (1, "")
    assert "retry: an export cannot do this; give the run, or" in done.err
