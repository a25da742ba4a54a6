"""Alignment error rate, and word alignments by the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from for_each import for_each

from nmt.errors import NmtError
from nmt.evaluation.alignments import AlignmentErrorRate, parse

GOLD = ["0-0 1-1 1?2", "0-1"]


def scored(*lines: str) -> tuple[float, str]:
    score = AlignmentErrorRate().score(lines, GOLD)
    return round(score.value, 2), score.details


def test_links_are_sure_or_possible() -> None:
    assert parse("0-0 12?3", "f:1") == ({(0, 0)}, {(0, 0), (12, 3)})
    assert parse("", "f:1") == (set(), set())


def test_the_error_rate_is_that_of_och_and_ney() -> None:
    right = "(precision = 100.00 recall = 100.00 links = 4 sure = 3)"
    assert scored("0-0 1-1 1-2", "0-1") == (0.0, right)
    # 2 of 3 links are possible, 1 of them sure: 1 - (1 + 2) / (3 + 3)
    assert scored("0-0 1-2 2-2", "") == (
        50.0,
        "(precision = 66.67 recall = 33.33 links = 3 sure = 3)",
    )
    assert scored("", "")[0] == 100.0


def test_a_possible_link_of_a_hypothesis_counts() -> None:
    assert AlignmentErrorRate().score(["0-0 1?1"], ["0-0 1-1"]).value == 0


def test_nothing_to_link_and_nothing_linked_is_no_error() -> None:
    score = AlignmentErrorRate().score([""], [""])
    assert (score.value, score.higher_is_better) == (0.0, False)


@for_each("word", ["0", "0-", "-1-2", "0-0-0", "a-b", "0!1", "²-0", f"{10**9}-0"])
def test_a_word_that_is_no_link_is_an_error_with_its_line(word: str) -> None:
    with pytest.raises(NmtError) as error:
        AlignmentErrorRate().score(["0-0", f"0-0 {word}"], GOLD)
    assert str(error.value) == (
        f'line 2 of the alignments: "{word}" is not a link; write S-T, or S?T for a possible link, '
        "where S and T are numbers of words, from 0"
    )


@pytest.fixture
def gold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gold").write_text("0-0 1-1 1?2\n0-1\n")
    Path("found").write_text("0-0 1-2 2-2\n\n")


@pytest.mark.usefixtures("gold")
def test_the_command_prints_the_error_rate(nmt: Callable[..., Any]) -> None:
    done = nmt("score", "--alignments", "gold", "found")
    assert done.out == (
        "aer = 50.00 (precision = 66.67 recall = 33.33 links = 3 sure = 3) links:sure+possible\n"
    )
    fields = json.loads(nmt("score", "--alignments", "gold", "found", "--json").out)
    assert (fields["system"], fields["metric"]) == ("found", "aer")
    assert (fields["value"], fields["higher_is_better"]) == (50.0, False)


@pytest.mark.usefixtures("gold")
@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        ("0-0\n0_1\n", [], 'found:2: "0_1" is not a link; write S-T, or S?T for a possible link'),
        ("0-0\n", [], "found has 1 lines, but gold has 2; "),
        ("0-0\n\n", ["--metric", "bleu"], "--alignments goes with no --metric: the metric of "),
        ("0-0\n\n", ["--reference", "gold"], "give only one of --reference, --data, --testset, "),
    ],
)
def test_a_mistake_costs_one_line(
    text: str, flags: list[str], message: str, nmt: Callable[..., Any]
) -> None:
    Path("found").write_text(text)
    done = nmt("score", "--alignments", "gold", "found", *flags)
    assert done.status in (1, 2)
    assert message in done.err
    assert done.err.count("\n") == 1


def test_given_translations_are_aligned_word_by_word(
    trained: Path, corpus: Path, tmp_path: Path, nmt: Callable[..., Any]
) -> None:
    flags = ("align", "--model", trained, "--source", corpus / "test.en")
    done = nmt(*flags, "--target", corpus / "test.de")
    assert done.status == 0, done.err
    pairs = zip(
        (corpus / "test.en").read_text().splitlines(),
        (corpus / "test.de").read_text().splitlines(),
        done.out.splitlines(),
        strict=True,
    )
    for source, target, line in pairs:
        _, links = parse(line, "")
        assert sorted(at for _, at in links) == list(range(len(target.split())))
        assert {at for at, _ in links} <= {*range(len(source.split()))}
    (tmp_path / "short").write_text("eins\n")
    failed = nmt(*flags, "--target", tmp_path / "short")
    assert failed.status == 1
    assert "short differ in their number of lines" in failed.err


def test_a_translation_is_aligned_as_the_search_aligns_it(
    trained: Path, corpus: Path, tmp_path: Path, nmt: Callable[..., Any]
) -> None:
    flags = ("--model", trained)
    found = nmt("translate", corpus / "test.en", *flags, "--json", "--alignments").out.splitlines()
    lines = [json.loads(line) for line in found]
    (tmp_path / "found").write_text("".join(f"{line['text']}\n" for line in lines))
    given = nmt("align", *flags, "--source", corpus / "test.en", "--target", tmp_path / "found")
    wanted = [" ".join(f"{s}-{t}" for s, t in line["alignment"]) for line in lines]
    same = [one == other for one, other in zip(given.out.splitlines(), wanted, strict=True)]
    assert sum(same) > 0.5 * len(same)  # others are cut into other pieces, or had no end


def test_a_layer_is_chosen_among_those_of_the_decoder(
    trained: Path, corpus: Path, nmt: Callable[..., Any]
) -> None:
    files = ("--source", corpus / "test.en", "--target", corpus / "test.de")
    flags = ("align", "--model", trained, *files)
    assert nmt(*flags, "--layer", "1").status == 0
    done = nmt(*flags, "--layer", "9")
    assert done.status == 1
    assert "nmt: error: layer 9: the decoder has " in done.err
