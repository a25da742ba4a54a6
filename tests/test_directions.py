"""Several languages in one dataset and one model: tags, validation, translation, refusals."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import RECIPE
from trained_runs import assert_same_checkpoint, records

import nmt as package
from nmt.data.dataset import Dataset, Subset
from nmt.data.directions import Directions
from nmt.errors import NmtError
from nmt.inference import Request
from nmt.inference.alternatives import alternatives
from nmt.inference.engines import load_translator
from nmt.runs import Run
from nmt.runs.calibration import Calibration
from nmt.subwords.subwords import Subwords
from nmt.subwords.tags import tags_of

Command = Callable[..., Any]

WORDS = {
    "en": ["one", "two", "three", "four", "five", "six"],
    "de": ["eins", "zwei", "drei", "vier", "fünf", "sechs"],
    "fr": ["un", "deux", "trois", "quatre", "cinq", "six"],
}
DIRECTIONS = [("en", "de"), ("de", "en"), ("en", "fr")]


def entries(path: Path, directions: list[tuple[str, str]], **more: object) -> list[dict[str, Any]]:
    return [
        {"path": str(path), "source_lang": source, "target_lang": target, **more}
        for source, target in directions
    ]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a corpus of numbers in three languages."""
    directory = tmp_path_factory.mktemp("numbers")
    for seed, (split, pairs) in enumerate({"train": 90, "valid": 12}.items()):
        draw = random.Random(seed)
        sentences = [draw.choices(range(6), k=draw.randint(1, 9)) for _ in range(pairs)]
        for language, words in WORDS.items():
            lines = (" ".join(words[n] for n in sentence) + "\n" for sentence in sentences)
            (directory / f"{split}.{language}").write_text("".join(lines))
    return directory


@pytest.fixture(scope="module")
def write(here: Path) -> Callable[..., Path]:
    """Writes a recipe with these keys of the section preprocess."""

    def write(name: str, train: Any, **keys: object) -> Path:
        recipe = yaml.safe_load(RECIPE)
        for key in ("source_lang", "target_lang"):
            del recipe["preprocess"][key]
        place = {"output_dir": str(here / name), "valid": str(here / "valid"), "train": train}
        recipe["preprocess"] |= place | keys
        recipe["train"] |= {"data": str(here / name), "max_updates": 4}
        (here / f"{name}.yaml").write_text(yaml.safe_dump(recipe))
        return here / f"{name}.yaml"

    return write


@pytest.fixture(scope="module")
def preprocess(write: Callable[..., Path], nmt: Command) -> Callable[..., Dataset]:
    """Makes a dataset."""

    def make(name: str, train: Any, *flags: object, **keys: object) -> Dataset:
        path = write(name, train, **keys)
        done = nmt("preprocess", "--config", path, "--workers", 1, *flags)
        assert done.status == 0, done.err
        return Dataset.open(path.with_suffix(""))

    return make


@pytest.fixture(scope="module")
def many(here: Path, preprocess: Callable[..., Dataset]) -> Dataset:
    return preprocess("many", entries(here / "train", DIRECTIONS))


@pytest.fixture(scope="module")
def run(here: Path, many: Dataset, nmt: Command) -> Path:
    """A trained run of the dataset, with validation by BLEU."""
    metrics = ("--set", "train.valid_metrics=[bleu]", "--set", "train.best_metric=bleu")
    recipe = here / "many.yaml"
    done = nmt("train", "--config", recipe, "--save-dir", here / "run", *metrics)
    assert done.status == 0, done.err
    return here / "run"


def test_a_confidence_is_of_all_directions(
    run: Path, here: Path, many: Dataset, nmt: Command, tmp_path: Path
) -> None:
    copied = shutil.copytree(run, tmp_path / "run", symlinks=True)
    done = nmt("calibrate", "--model", copied, "--data", many.path)
    assert done.status == 0, done.err
    confidence = Calibration.load(copied).confidence  # type: ignore[union-attr]
    assert confidence is not None
    assert sum(one.lines for one in confidence.bins) == 3 * 12


def pieces(dataset: Dataset, side: str, index: int, split: str = "train") -> list[str]:
    subwords, pairs = Subwords.from_dataset(dataset), dataset.split(split)
    ids = (pairs.source if side == "source" else pairs.target)(index).tolist()
    return (subwords.source_pieces if side == "source" else subwords.target_pieces)(ids)


def test_sources_begin_with_the_tag_of_the_target_language(many: Dataset) -> None:
    for split, count in (("train", 90), ("valid", 12)):
        pairs = many.split(split)
        assert pairs.directions is not None
        assert pairs.directions.tolist() == np.repeat([0, 1, 2], count).tolist()
        for number, (_, target) in enumerate(DIRECTIONS):
            assert pieces(many, "source", number * count, split)[0] == f">>{target}<<"
            assert pieces(many, "target", number * count, split)[0].startswith("▁")
    assert (many.manifest.source_lang, many.manifest.target_lang) == ("en+de", "de+en+fr")
    text = Subset.of_direction(many.split("valid"), 2)
    assert (text.source_text()[0].split()[0], text.reference_text()[0].split()[0]) in zip(
        WORDS["en"], WORDS["fr"], strict=True
    )


def test_no_text_spells_a_tag(many: Dataset) -> None:
    subwords = Subwords.from_dataset(many)
    [tag], none = tags_of(subwords, ("en", "de"))
    assert none == []
    [ids] = subwords.encode_source([">>de<< one"])
    assert tag not in ids
    assert subwords.decode_source([[tag, *subwords.encode_source(["one"])[0]]]) == ["one"]


def test_a_request_chooses_its_target_language(
    here: Path, run: Path, nmt: Command, tmp_path: Path
) -> None:
    lines = [("one two", "de"), ("eins zwei", "en"), ("one two", "fr"), ("", None), ("six", "de")]
    wishes = [{"text": text, "target_lang": language} for text, language in lines]
    (tmp_path / "in").write_text("".join(json.dumps(wish) + "\n" for wish in wishes))
    command = ("translate", "--model", run, "--json-input", tmp_path / "in", "--workers", 1)
    done = nmt(*command, "-t", "fr")
    assert done.status == 0, done.err
    alone = []
    for text, language in lines:
        translator = load_translator(run, target_lang=language or "fr")
        alone += translator.translate([text])
    assert done.out.splitlines() == alone
    assert "translated 5 lines" in done.err
    translator = load_translator(run, target_lang="fr")
    list(translator.translate(["one two"]))
    before = translator.counts.target_tokens
    list(translator.translate([Request("one two", target_lang="de")]))
    assert translator.counts.target_tokens > before > 0
    requests = [Request("one two", target_lang=language) for language in ("de", "fr", None)]
    german, *french = alternatives(translator, requests)
    assert french[0] == french[1] == alternatives(translator, [Request("one two")])[0]
    into_german = load_translator(run, target_lang="de")
    assert [german] == alternatives(into_german, [Request("one two")]) != french[:1]
    # Without -t every line that is not blank needs a language.
    assert nmt(*command).out.splitlines() == alone
    (tmp_path / "in").write_text(json.dumps({"text": "one"}))
    done = nmt(*command)
    assert done.status == 1
    assert "the model translates into de, en and fr; choose one with -t" in done.err
    (tmp_path / "in").write_text(json.dumps(wishes[0]))
    assert nmt(*command).out.splitlines() == alone[:1]
    (tmp_path / "in").write_text(json.dumps({"text": "one", "target_lang": "it"}))
    done = nmt(*command, "-t", "fr")
    assert done.status == 1
    assert done.err.splitlines()[-1].endswith(
        "the model does not translate into 'it', only into de, en and fr (line 'one')"
    )


def test_a_single_direction_gives_the_same_bytes_in_either_form(
    here: Path, preprocess: Callable[..., Dataset]
) -> None:
    languages = {"source_lang": "en", "target_lang": "de"}
    plain = preprocess("plain", [str(here / "train")], **languages)
    named = preprocess("named", entries(here / "train", DIRECTIONS[:1]))
    assert plain.manifest.files == named.manifest.files
    assert "tags" not in plain.manifest.recipe
    assert pieces(plain, "source", 0)[0].startswith("▁")


def test_tags_of_the_target_side_and_two_vocabularies(
    here: Path, preprocess: Callable[..., Dataset], nmt: Command, tmp_path: Path
) -> None:
    keys = {"tags": "target", "separate_vocabularies": True, "vocab_size": 40}
    made = preprocess("targets", entries(here / "train", DIRECTIONS), **keys)
    assert pieces(made, "target", 100)[0] == ">>en<<"
    assert pieces(made, "source", 100)[0].startswith("▁")
    assert not any(
        ">>" in piece for piece in Subwords.from_dataset(made).source_pieces([*range(40)])
    )
    untied = ("--set", "model.tied_embeddings=decoder", "--save-dir", tmp_path / "run")
    risk = ("--set", "train.loss=minimum_risk", "--init-from", tmp_path / "run")
    refused = nmt("train", "--config", here / "targets.yaml", *untied, *risk)
    assert "loss minimum_risk samples without tags; take preprocess.tags source" in refused.err
    done = nmt("train", "--config", here / "targets.yaml", *untied)
    assert done.status == 0, done.err
    translator = load_translator(
        tmp_path / "run", target_lang="fr", max_length_offset=4, engine="nmt"
    )
    [[one]] = translator.translations(["one two"], scored=True)
    fields = translator.fields(one)
    assert fields["tokens"][0] == ">>fr<<"
    assert ">>" not in fields["text"]
    assert len(fields["token_log_probabilities"]) == len(fields["tokens"])
    [scored] = translator.score(["one two"], [one.text])
    assert len(scored) == len(Subwords.from_dataset(made).encode_target([one.text])[0]) + 2
    assert len(translator.align(["one two"], ["un deux"])[0]) == 2
    for kind in ("ctranslate2", "huggingface", "marian", "onnx"):
        place = tmp_path / kind
        refused = nmt("export", "--model", tmp_path / "run", "--format", kind, "--output", place)
        assert refused.status == 1
        assert "preprocess.tags target" in refused.err
        assert not place.exists()


def test_back_translated_text_begins_with_its_tag(
    here: Path, preprocess: Callable[..., Dataset]
) -> None:
    train = [
        *entries(here / "train", DIRECTIONS),
        *entries(here / "train", DIRECTIONS[:1], tag="bt"),
    ]
    made = preprocess("tagged", train)
    assert pieces(made, "source", 270)[:2] == [">>de<<", "<bt>"]
    assert pieces(made, "source", 0)[1] != "<bt>"
    single = [str(here / "train"), *entries(here / "train", DIRECTIONS[:1], tag="bt")]
    made = preprocess("single", single, source_lang="en", target_lang="de")
    assert pieces(made, "source", 90)[0] == "<bt>"
    assert Subwords.from_dataset(made).directions is None
    assert pieces(made, "source", 0, "valid")[0] != "<bt>"


def test_validation_is_by_direction_and_its_mean_chooses_the_best(run: Path) -> None:
    scores = [line for line in records(run) if line["record"] == "validation"]
    assert scores
    for line in scores:
        for name in ("loss", "bleu"):
            parts = [line[f"{name}/{source}-{target}"] for source, target in DIRECTIONS]
            assert line[name] == pytest.approx(sum(parts) / 3)
        assert line["perplexity"] == pytest.approx(np.exp(line["loss"]))
    kept = (run / "validation" / "update_0000004.txt").read_text().splitlines()
    assert len(kept) == 36


def test_a_multilingual_run_resumes_exactly(
    here: Path, preprocess: Callable[..., Dataset], nmt: Command
) -> None:
    train = entries(here / "train", DIRECTIONS[:2])
    train += entries(here / "train", DIRECTIONS[2:], max_pairs=20)
    preprocess("uneven", train)

    def trained(place: str, temperature: int, *updates: int) -> list[float]:
        command = ("train", "--config", here / "uneven.yaml", "--save-dir", here / place)
        key = f"train.direction_temperature={temperature}"
        for last in updates:
            assert nmt(*command, "--set", key, "--max-updates", last).status == 0
        return [line["loss"] for line in records(here / place)]

    assert trained("whole", 5, 4) == trained("parts", 5, 2, 4)
    assert_same_checkpoint(here / "parts" / "last", here / "whole" / "last")
    assert trained("whole", 5, 4) != trained("as they are", 1, 4)


def test_a_direction_whose_validation_set_is_blank_is_refused(
    here: Path, preprocess: Callable[..., Dataset], nmt: Command
) -> None:
    for language in ("en", "fr"):
        (here / f"blank.{language}").write_text("\n\n")
    valid = entries(here / "valid", DIRECTIONS[:2]) + entries(here / "blank", DIRECTIONS[2:])
    preprocess("blank", entries(here / "train", DIRECTIONS), valid=valid)
    done = nmt("train", "--config", here / "blank.yaml", "--save-dir", here / "of blank")
    assert (done.status, done.err.splitlines()[-1]) == (
        1,
        "nmt: error: the validation set of en-fr has only blank lines, so there is nothing to "
        "score; run `nmt preprocess` again with other validation text",
    )


def test_translate_takes_a_target_language_and_refuses_others(
    here: Path, run: Path, nmt: Command
) -> None:
    def translate(*flags: str) -> Any:
        return nmt("translate", "--model", run, here / "valid.en", "--json", *flags)

    done = {target: translate("-t", target) for target in ("de", "fr")}
    assert [one.status for one in done.values()] == [0, 0]
    assert done["de"].out != done["fr"].out
    assert "zero-shot" not in done["de"].err
    for flags, message in (
        (
            (),
            "the model translates into de, en and fr; choose one with -t (in Python target_lang)",
        ),
        (("-t", "it"), "the model does not translate into 'it', only into de, en and fr"),
        (("-t", "", "-s", "en"), "the model does not translate into '', only into de, en and fr"),
        (("-t", "de", "-s", "fr"), "the model does not translate from 'fr', only from en and de"),
        (("-t", "de", "-s", "de"), "source and target language are both 'de'; choose two"),
    ):
        refused = translate(*flags)
        assert (refused.status, refused.out) == (1, "")
        assert refused.err == f"nmt: error: {message}\n"


def test_a_direction_that_was_not_trained_is_translated_with_a_warning(
    here: Path, run: Path, nmt: Command
) -> None:
    command = ("translate", "--model", run, here / "valid.de", "-t", "fr")
    done, unknown = nmt(*command, "-s", "de"), nmt(*command)
    warning = "nmt: warning: de to fr was not trained: the translation is zero-shot\n"
    assert done.err.count(warning) == 1
    assert warning not in unknown.err
    assert done.out == unknown.out


def test_python_and_the_other_commands_take_the_same_languages(
    here: Path, run: Path, nmt: Command, tmp_path: Path
) -> None:
    translator = load_translator(run, target_lang="fr")
    assert translator.languages == ("en", "fr")
    lines = (here / "valid.en").read_text().splitlines()
    expected = nmt("translate", "--model", run, here / "valid.en", "-t", "fr").out.splitlines()
    assert list(translator.translate(lines)) == expected
    assert list(translator.translate([""])) == [""]
    by_direction = [one.languages for one in load_translator(run, target_lang="de").by_direction()]
    assert by_direction == DIRECTIONS
    with pytest.raises(NmtError, match="choose one with -t"):
        load_translator(run)
    pretrained = package.Translator.from_pretrained(run, source_lang="en", target_lang="fr")
    assert list(pretrained.translate(lines)) == expected

    pair = ("--source", here / "valid.en", here / "valid.fr")
    scored = nmt("score", "--model", run, *pair, "-t", "fr").out.splitlines()
    sums = map(sum, translator.score(lines, (here / "valid.fr").read_text().splitlines()))
    assert [float(one) for one in scored] == pytest.approx(list(sums), abs=1e-5)
    assert nmt("score", "--model", run, *pair, "-t", "en").out.splitlines() != scored

    references = ("score", "--data", here / "many", "--split", "valid", here / "valid.fr")
    assert "bleu = 100.00" in nmt(*references, "-t", "fr").out
    assert (
        "there are no pairs of de-fr, only of en-de, de-en and en-fr"
        in nmt(*references, "-t", "fr", "-s", "de").err
    )
    explained = nmt("explain", "--model", run, here / "valid.en", "-t", "fr", "--json")
    assert json.loads(explained.out)["models"][0]["languages"] == ["en", "fr"]


def test_filter_refuses_a_model_of_several_directions(run: Path, nmt: Command) -> None:
    refused = nmt("filter", "crawl.tsv", "--forward", run, "--reverse", run, "--keep", 1)
    assert refused.status == 1
    assert "translates several directions; give a model of one" in refused.err


def test_marian_could_not_be_given_a_tag(run: Path, nmt: Command, tmp_path: Path) -> None:
    flags = ("--format", "marian", "--output", tmp_path / "exported")
    refused = nmt("export", "--model", run, *flags)
    assert refused.status == 1
    assert "Marian has no counterpart of preprocess.tags source" in refused.err


def test_inspect_shows_the_directions(here: Path, run: Path, nmt: Command) -> None:
    shown = nmt("inspect", here / "many").out
    assert "direction en to fr | train 90 pairs | valid 12 pairs\n" in shown
    assert "tags: of the target language, before each source\n" in nmt("inspect", run).out
    assert nmt("inspect", here / "many", "--verify").status == 0


def test_runs_with_other_tags_are_no_ensemble(
    here: Path, run: Path, nmt: Command, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(run, other, symlinks=True)
    (other / "directions.json").unlink()
    subwords = Run.open(run).subwords
    subwords.directions = Directions(trained=(("en", "de"), ("de", "en"), ("de", "fr")))
    old = Run.open(run)
    Run.create(
        other,
        languages=old.languages,
        identity="2",
        data="",
        recipe=old.recipe,
        subwords=subwords,
    )
    refused = nmt("translate", "-m", run, "-m", other, here / "valid.en", "-t", "de")
    assert refused.status == 1
    assert "the models of an ensemble must share them" in refused.err
    assert nmt("translate", "-m", run, "-m", run, here / "valid.en", "-t", "de").status == 0


def test_a_new_direction_is_added_to_a_trained_model(
    here: Path,
    run: Path,
    preprocess: Callable[..., Dataset],
    write: Callable[..., Path],
    nmt: Command,
) -> None:
    train = entries(here / "train", [("de", "fr")])
    made = preprocess("more", train, subword_model=str(run))
    directions = Subwords.from_dataset(made).directions
    assert directions is not None
    assert directions.trained == (*DIRECTIONS, ("de", "fr"))
    assert pieces(made, "source", 0)[0] == ">>fr<<"
    shutil.copy(here / "train.fr", here / "train.it")
    shutil.copy(here / "valid.fr", here / "valid.it")
    new = entries(here / "train", [("en", "it")])
    refused = nmt("preprocess", "--config", write("lacks", new, subword_model=str(run)))
    assert "the vocabulary lacks the tag >>it<<; add it by preprocess.extend_vocab" in refused.err
    made = preprocess("longer", new, extend_vocabulary=str(run))
    assert made.manifest.source_vocabulary == Run.open(run).subwords.source_size + 1
    assert pieces(made, "source", 0)[0] == ">>it<<"
    assert (
        "it"
        not in Subwords.from_dataset(made).decode_source([made.split("train").source(0).tolist()])[
            0
        ]
    )
    flags = ("--config", here / "longer.yaml", "--save-dir", here / "longer-run")
    done = nmt("train", *flags, "--init-from", run, "--max-updates", 1)
    assert done.status == 0, done.err
    assert "if that is not meant" not in done.err


def test_equal_pairs_of_different_target_languages_are_kept(
    here: Path, many: Dataset, preprocess: Callable[..., Dataset]
) -> None:
    for language in WORDS:
        (here / f"names.{language}").write_text("one eins un\n" * 2 + "sechs six\n")
    directions = [*DIRECTIONS, ("de", "fr")]
    names = entries(here / "names", directions)
    made = preprocess("names", names, clean=["duplicates"], subword_model=str(many.path))
    numbers = made.split("train").directions
    assert numbers is not None
    assert numbers.tolist() == [0, 0, 1, 1, 2, 2]
    assert made.manifest.splits["train"].dropped["duplicates"] == 6


def test_alignments_are_refused_where_given_subwords_bring_a_tag(
    here: Path, many: Dataset, write: Callable[..., Path], nmt: Command
) -> None:
    (here / "train.align").write_text("0-0\n" * 90)
    model = many.path / "subwords.model"
    one = entries(here / "train", DIRECTIONS[:1])
    refused = nmt(
        "preprocess", "--config", write("tag", one, subword_model=str(model), alignments=True)
    )
    assert refused.status == 1
    assert "alignments go without tags; leave out one of them" in refused.err


@pytest.mark.parametrize(
    ("train", "keys", "message"),
    [
        (DIRECTIONS, {"alignments": True}, "alignments go without tags; leave out one of them"),
        ([("en", "en")], {}, "source_lang and target_lang are both 'en'"),
        (
            [("en", "")],
            {},
            "not given: --target-lang; give these options, or the keys in the recipe",
        ),
    ],
)
def test_entries_that_do_not_fit_are_refused(
    here: Path, write: Callable[..., Path], nmt: Command, train: Any, keys: Any, message: str
) -> None:
    for split in ("train", "valid"):
        lines = len((here / f"{split}.en").read_text().splitlines())
        (here / f"{split}.align").write_text("0-0\n" * lines)
    refused = nmt(
        "preprocess", "--config", write("refused", entries(here / "train", train), **keys)
    )
    assert refused.status == 1
    assert message in refused.err


def test_a_held_out_entry_of_another_direction_is_refused(
    here: Path, write: Callable[..., Path], nmt: Command
) -> None:
    valid = entries(here / "valid", [("de", "fr")])
    path = write("held", entries(here / "train", DIRECTIONS), valid=valid)
    refused = nmt("preprocess", "--config", path)
    assert "is de to fr, but train has no such pairs; leave the entry out" in refused.err
    path = write(
        "held", entries(here / "train", DIRECTIONS), valid=entries(here / "valid", DIRECTIONS[1:])
    )
    assert nmt("preprocess", "--config", path, "--workers", 1).status == 0
    directions = Dataset.open(here / "held").split("valid").directions
    assert directions is not None
    assert directions.tolist() == [1] * 12 + [2] * 12


def test_a_temperature_needs_several_directions(train: Command, tmp_path: Path) -> None:
    refused = train(tmp_path / "run", "--set", "train.direction_temperature=2")
    assert refused.err.endswith(
        "train.direction_temperature: the dataset has one direction; leave it out\n"
    )


def test_damaged_directions_are_refused(
    here: Path, many: Dataset, nmt: Command, tmp_path: Path
) -> None:
    shutil.copytree(here / "many", tmp_path / "damaged")
    file = tmp_path / "damaged" / "train.directions"
    file.write_bytes(b"\xff" * file.stat().st_size)
    with pytest.raises(NmtError, match=r"train\.directions"):
        Dataset.open(tmp_path / "damaged").split("train").check()
    file.write_bytes(b"\0")
    with pytest.raises(NmtError, match=r"train\.directions"):
        Dataset.open(tmp_path / "damaged")
