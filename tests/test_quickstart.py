"""The quickstart: real sentences, none of which are both trained on and tested, and its script."""

from __future__ import annotations

import lzma
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

QUICKSTART = Path(__file__).resolve().parents[1] / "examples" / "quickstart"
LANGUAGES = ("en", "de")


def lines(split: str, language: str) -> list[str]:
    """The sentences of a split in a language."""
    text = lzma.decompress((QUICKSTART / f"{split}.{language}.xz").read_bytes())
    return text.decode("utf-8").removesuffix("\n").split("\n")


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_sentence_of_the_test_set_is_in_the_training_set(language: str) -> None:
    train, dev, test = (set(lines(split, language)) for split in ("train", "dev", "test"))
    assert len(train) > 120_000
    assert len(test) > 16_000
    assert not train & test
    assert not train & dev
    assert not dev & test


@pytest.mark.parametrize(("split", "pairs"), [("train", 157_088), ("dev", 2277), ("test", 17_565)])
def test_both_sides_of_a_split_have_the_lines_that_the_readme_counts(
    split: str, pairs: int
) -> None:
    assert f" {pairs:,} " in (QUICKSTART / "README.md").read_text(encoding="utf-8")
    for language in LANGUAGES:
        sentences = lines(split, language)
        assert len(sentences) == pairs
        assert all(sentence.strip() for sentence in sentences)


def test_the_sentences_of_the_end_are_in_no_split() -> None:
    own = (QUICKSTART / "own.en").read_text(encoding="utf-8").splitlines()
    assert len(own) == 6
    for split in ("train", "dev", "test"):
        assert not {*own} & {*lines(split, "en")}


@pytest.mark.full
def test_the_script_leads_from_text_to_scores_translations_and_the_last_command(
    tmp_path: Path, programs: Path
) -> None:
    here = Path(shutil.copytree(QUICKSTART, tmp_path / "q", ignore=shutil.ignore_patterns("work")))
    for language in LANGUAGES:  # a part of the sentences, so that it takes seconds
        for split, step in (("train", 10), ("dev", 500), ("test", 2000)):
            text = "".join(f"{line}\n" for line in lines(split, language)[::step])
            (here / f"{split}.{language}.xz").write_bytes(lzma.compress(text.encode()))

    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"}

    def run(*command: str, typed: str = "") -> list[str]:
        done = subprocess.run(
            command, env=environment, input=typed, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split("\n\n")

    steps, scores, *translations, end = run(
        "bash", f"{here}/run.sh", "--max-updates", "3", "--tokens-per-update", "100"
    )
    assert steps == "work/data-bin\nwork/run"
    assert re.fullmatch(r"bleu = .*version:\S+\nchrf = .*version:\S+", scores, re.S)
    own = (here / "own.en").read_text(encoding="utf-8").splitlines()
    assert [translation.split("\n")[0] for translation in translations] == own
    said, command = end.splitlines()
    assert said == "Translate sentences of your own, one a line:"
    [answers] = run("bash", "-c", command, typed="Hello!\nHow are you?\n")
    assert answers.count("\n") == 2
