"""A language without spaces between words, from text to scores."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Command

pytestmark = pytest.mark.full

NOUNS = {"cat": "猫", "dog": "犬", "bird": "カナリア"}
VERBS = {"sees": "見る", "likes": "好む"}


def write(prefix: Path, pairs: list[tuple[str, str]]) -> None:
    for language, lines in zip(("en", "ja"), zip(*pairs, strict=True), strict=True):
        Path(f"{prefix}.{language}").write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture(scope="module")
def japanese(tmp_path_factory: pytest.TempPathFactory, recipe: Path, nmt: Command) -> Path:
    """A directory with a dataset of English and Japanese, and a run trained on it by BLEU."""
    directory = tmp_path_factory.mktemp("japanese")
    pairs = [
        (f"the {one} {verb} the {other}", f"{NOUNS[one]}は{NOUNS[other]}を{VERBS[verb]}。")
        for one, verb, other in itertools.product(NOUNS, VERBS, NOUNS)
    ]
    write(directory / "train", 8 * pairs)
    write(directory / "valid", pairs[::2])
    places = [f"--{split}={directory / split}" for split in ("train", "valid")]
    made = nmt(
        *("preprocess", "--config", recipe, *places, "-t", "ja", "--clean", "script"),
        *("--vocab-size", 46, "--output-dir", directory / "data"),
    )
    assert made.status == 0, made.err
    assert "dropped from train: nothing" in made.err
    by_bleu = ("--set", "train.valid_metrics=[bleu]", "--set", "train.best_metric=bleu")
    trained = nmt(
        *("train", "--config", recipe, "--data", directory / "data"),
        *("--save-dir", directory / "run", "--max-updates", 60, "--valid-every", 20, *by_bleu),
        *("--set", "train.save_every=20", "--set", "search.max_length_offset=4"),
    )
    assert trained.status == 0, trained.err
    return directory


def validations(run: Path) -> list[dict[str, Any]]:
    records = map(json.loads, (run / "log.jsonl").read_text().splitlines())
    return [record for record in records if record["record"] == "validation"]


def test_identical_text_scores_100_and_the_same_by_spaces_scores_nothing(
    japanese: Path, nmt: Command
) -> None:
    reference = japanese / "valid.ja"
    by_spaces = ("--set", "score.metrics=[{name: bleu, tokenize: 13a}]")
    for place in (("--data", japanese / "data", "--split", "valid"), ("--reference", reference)):
        scored = nmt("score", *place, "--metric", "bleu", reference)
        assert scored.out.startswith("bleu = 100.00 ")
        assert "|tok:char|" in scored.out or "|tok:ja-mecab-" in scored.out
        assert nmt("score", *place, *by_spaces, reference).out.startswith("bleu = 0.00 ")


def test_the_best_checkpoint_is_best_by_a_bleu_that_sees_words(
    japanese: Path, nmt: Command
) -> None:
    found = {record["update"]: record["bleu"] for record in validations(japanese / "run")}
    best = max(found, key=lambda update: found[update])
    assert min(found.values()) > 0
    assert len({*found.values()}) == 3
    assert (japanese / "run" / "best").readlink() == Path(f"update_{best:07}")
    translated = nmt(
        *("translate", "--model", japanese / "run", "--output", japanese / "valid.hyp"),
        japanese / "valid.en",
    )
    assert translated.status == 0, translated.err
    data = ("--data", japanese / "data", "--split", "valid")
    scored = nmt("score", *data, "--metric", "bleu", "--json", japanese / "valid.hyp")
    assert json.loads(scored.out)["value"] == pytest.approx(found[best])


def test_consensus_and_rewards_see_words_too(japanese: Path, nmt: Command) -> None:
    run = japanese / "run"
    agreed = nmt(
        *(
            "translate",
            "--model",
            run,
            "--strategy",
            "sample",
            "--set",
            "search.strategy.samples=8",
        ),
        *("--mbr", "bleu", "--json", japanese / "valid.en"),
    )
    assert agreed.status == 0, agreed.err
    # By 13a a sample agrees with equal ones alone: 8 samples, each all or nothing.
    scores = [json.loads(line)["score"] for line in agreed.out.splitlines()]
    assert any(score % 12.5 for score in scores)
    rewarded = nmt(
        *("train", "--config", run / "recipe.yaml", "--data", japanese / "data"),
        *("--save-dir", japanese / "rewarded", "--init-from", run, "--max-updates", 2),
        *("--set", "train.loss={name: minimum_risk, samples: 4}"),
    )
    assert rewarded.status == 0, rewarded.err
    written = (japanese / "rewarded" / "recipe.yaml").read_text()
    assert "tokenize: auto" not in written


def test_pieces_are_aligned_where_a_language_has_no_spaces(japanese: Path, nmt: Command) -> None:
    command = ("translate", "--model", japanese / "run", "--json", "--alignments")
    by_pieces, by_words = (
        [json.loads(line) for line in nmt(*command, *unit, japanese / "valid.en").out.splitlines()]
        for unit in ((), ("--alignment-unit", "words"))
    )
    for pieces, words in zip(by_pieces, by_words, strict=True):
        assert "".join(pieces["pieces"]) == pieces["text"] == words["text"]
        assert [target for _, target in pieces["alignment"]] == [*range(len(pieces["pieces"]))]
        assert all(source < len(pieces["source_pieces"]) for source, _ in pieces["alignment"])
        assert words["words"] == [words["text"]]
        assert len(words["alignment"]) == 1
    assert max(len(line["pieces"]) for line in by_pieces) > 2
