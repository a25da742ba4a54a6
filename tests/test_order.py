"""Models from right to left: segmentation, the dataset, translation, scores, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foreign_models import MODELS, UNION

from nmt.data.dataset import Dataset
from nmt.data.vocabulary import EOS, Vocabulary
from nmt.errors import NmtError
from nmt.inference import Request
from nmt.inference.alternatives import alternatives
from nmt.inference.engines import load_translator
from nmt.subwords.subwords import Subwords
from nmt.subwords.wrappers import ReversedSegmenter
from nmt.training.augmentation import SampledSplit

Command = Callable[..., Any]

LINES = ["one two two", "", "three", "two one six"]
BEAM = ("--strategy", "beam")


@pytest.fixture(scope="module")
def here(
    tmp_path_factory: pytest.TempPathFactory,
    recipe: Path,
    corpus: Path,
    dataset: Path,
    nmt: Command,
) -> Path:
    """A dataset from right to left, with the subwords of the other one, and a run of it."""
    directory = tmp_path_factory.mktemp("right")
    flags = [f"--{split}={corpus / split}" for split in ("train", "valid", "test")]
    flags += ["--subword-model", str(dataset), "--output-dir", str(directory / "data-bin")]
    order = ("--set", "preprocess.target_order=right_to_left")
    done = nmt("preprocess", "--config", recipe, *flags, *order)
    assert done.status == 0, done.err
    places = ("--data", directory / "data-bin", "--save-dir", directory / "run")
    done = nmt("train", "--config", recipe, *places, "--max-updates", 30)
    assert done.status == 0, done.err
    return directory


@pytest.mark.parametrize(
    "general",
    [Subwords(*MODELS[:1]), Subwords(*MODELS, vocabularies=[Vocabulary.from_pieces(UNION)])],
    ids=["own", "listed"],
)
def test_a_reversed_segmenter_turns_tokens_and_offsets_but_no_text(general: Subwords) -> None:
    plain = general.target
    segmenter = ReversedSegmenter(plain)
    encoded = segmenter.encode(LINES)
    assert encoded == [ids[::-1] for ids in plain.encode(LINES)]
    assert segmenter.decode(encoded) == plain.decode(plain.encode(LINES))
    assert segmenter.line_offsets(LINES) == [row[::-1] for row in plain.line_offsets(LINES)]
    offsets = plain.text_offsets(plain.encode(LINES))
    assert segmenter.text_offsets(encoded) == [row[::-1] for row in offsets]


def test_the_dataset_has_the_same_tokens_in_the_other_order(here: Path, dataset: Path) -> None:
    there, other = Dataset.open(here / "data-bin"), Dataset.open(dataset)
    for split in ("train", "valid"):
        for index in range(20):
            turned, usual = there.split(split), other.split(split)
            assert turned.source(index).tolist() == usual.source(index).tolist()
            assert turned.target(index).tolist() == [*usual.target(index)[-2::-1].tolist(), EOS]
    assert there.split("valid").reference_text() == other.split("valid").reference_text()
    assert there.manifest.recipe["target_order"] == "right_to_left"
    assert "target_order" not in other.manifest.recipe
    assert (
        Subwords.from_dataset(there)
        .in_order("left_to_right")
        .is_same_as(Subwords.from_dataset(other))
    )
    assert not Subwords.from_dataset(there).is_same_as(Subwords.from_dataset(other))


def test_sampled_subwords_spell_the_text_from_its_end(here: Path) -> None:
    data = Dataset.open(here / "data-bin")
    subwords, split = Subwords.from_dataset(data), data.split("train")
    sampled = SampledSplit(split=split, subwords=subwords, alpha=0.5, seed=1)
    indices = np.arange(20)
    rows = [row[row > EOS].tolist() for row in sampled.padded("target", indices)]
    stored = [split.target(index).tolist()[:-1] for index in range(20)]
    assert rows != stored
    assert subwords.decode_target(rows) == subwords.decode_target(stored)


def test_a_translation_is_text_in_its_usual_order(here: Path, corpus: Path) -> None:
    translator = load_translator(here / "run", strategy="beam")
    lines = (corpus / "test.en").read_text().splitlines()
    for [best] in translator.translations(lines, aligned="words"):
        pieces = translator.subwords.target_pieces(best.hypothesis.tokens)
        assert "".join(pieces[::-1]).replace("▁", " ").strip() == best.text
        assert all(start < len(best.text) for _, start in best.links)
    lexical = load_translator(here / "run", strategy="lexical_beam")
    [texts] = lexical.translations([Request("one two", phrases=("drei vier",))])
    assert "drei vier" in texts[0].text


def test_scores_are_those_of_the_search(
    here: Path, corpus: Path, dataset: Path, nmt: Command, tmp_path: Path
) -> None:
    translate = ("translate", corpus / "test.en", "--model", here / "run", *BEAM)
    (tmp_path / "list").write_text(nmt(*translate, "--n-best", "2").out)
    flags = ("rescore", tmp_path / "list", "--model", here / "run", "--source", corpus / "test.en")
    done = nmt(*flags, "--feature", "Again")
    assert done.status == 0, done.err
    scored = [
        {name: float(words[at + 1]) for at, name in enumerate(words) if name.endswith("=")}
        for words in (line.split(" ||| ")[2].split() for line in done.out.splitlines())
    ]
    agree = [it["Again="] == pytest.approx(it["LogProbability="], abs=1e-4) for it in scored]
    assert sum(agree) > 0.5 * len(agree)  # others are cut into other pieces, or had no end
    text = corpus / "test.de"
    done = nmt("score", "--model", here / "run", "--source", corpus / "test.en", "--json", text)
    words = [json.loads(line)["words"] for line in done.out.splitlines()]
    assert words == [line.split() for line in text.read_text().splitlines()]
    assert "target order: right to left" in nmt("inspect", here / "data-bin").out
    assert "target order: right to left" in nmt("inspect", here / "run").out
    assert "target order" not in nmt("inspect", dataset).out


def test_ctranslate2_turns_translations_round_as_nmt_does(
    here: Path, corpus: Path, nmt: Command, tmp_path: Path
) -> None:
    pytest.importorskip("ctranslate2")
    assert nmt("export", "--model", here / "run", "--output", tmp_path / "made").status == 0
    flags = (*BEAM, "--set", "search.strategy.stop=first_beam", corpus / "test.en")
    plain, other = (
        nmt("translate", "-m", path, *flags) for path in (here / "run", tmp_path / "made")
    )
    assert other.status == 0, other.err
    assert plain.out == other.out


def test_what_needs_the_beginning_first_is_refused(
    here: Path, trained: Path, recipe: Path, corpus: Path, nmt: Command, tmp_path: Path
) -> None:
    translator = load_translator(here / "run")
    with pytest.raises(NmtError, match="from right to left writes the end first"):
        list(translator.translations([Request("one two", prefix="eins")]))
    with pytest.raises(NmtError, match="from right to left writes the end first"):
        alternatives(translator, [Request("one two")])
    places = ("--model", here / "run", "--output", tmp_path / "made")
    refused = nmt("export", *places, "--format", "huggingface")
    assert refused.status == 1
    assert "writes from right to left, which no engine but ctranslate2 and nmt" in refused.err
    refused = nmt("translate", "-m", trained, "-m", here / "run", corpus / "test.en")
    assert f"{here / 'run'}: its target_order differs from {trained}'s" in refused.err
    assert "score an n-best list of one by the other with nmt rescore" in refused.err
    order = ("--set", "preprocess.target_order=right_to_left")
    refused = nmt(
        "preprocess", "--config", recipe, "--train", corpus / "train", "--alignments", *order
    )
    assert "alignments go with target_order left_to_right alone" in refused.err
