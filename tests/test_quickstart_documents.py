"""The documents of the quickstart: a pronoun has the gender of a noun in the sentence before."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from pathlib import Path

QUICKSTART = Path(__file__).resolve().parents[1] / "examples" / "quickstart"
sys.path.insert(0, str(QUICKSTART))
try:
    documents = importlib.import_module("documents")
    lexicon = importlib.import_module("lexicon")
finally:
    sys.path.remove(str(QUICKSTART))


def test_a_pronoun_has_the_gender_of_a_noun_in_the_sentence_before(tmp_path: Path) -> None:
    documents.main(["--output-dir", str(tmp_path), "--train-documents", "600"])
    english, german = (
        (tmp_path / f"train.{language}").read_text("utf-8").split("\n\n")
        for language in ("en", "de")
    )
    assert len(english) == len(german) == 600
    pronouns = Counter()
    for document in zip(english, german, strict=True):
        sides = [side.splitlines() for side in document]
        assert len(sides[0]) == len(sides[1]) in (2, 4, 6)
        for first, second, german_second in zip(
            sides[0][::2], sides[0][1::2], sides[1][1::2], strict=True
        ):
            assert second.startswith("It ")
            noun = lexicon.nouns()[first.rstrip(".").split()[-1]]
            pronoun = german_second.split()[0]
            assert pronoun == {"m": "Er", "f": "Sie"}[noun.gender]
            pronouns[pronoun] += 1
    assert abs(pronouns["Er"] - pronouns["Sie"]) < 0.1 * pronouns.total()


def test_the_same_seed_gives_the_same_documents(tmp_path: Path) -> None:
    for name in ("one", "two"):
        documents.main(["--output-dir", str(tmp_path / name), "--train-documents", "20"])
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()
