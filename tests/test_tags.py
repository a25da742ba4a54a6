"""Tags before sentences: segmentation, sampling, imported models, other engines, the server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from foreign_models import ENGLISH, MODELS, UNION, marian_model
from test_serve import call, server

from nmt.data.columns import RaggedArray
from nmt.data.context import DocumentContext
from nmt.data.dataset import Dataset
from nmt.data.directions import Directions
from nmt.data.vocabulary import EOS, PAD, Vocabulary
from nmt.data.writer import DatasetWriter, staging
from nmt.errors import NmtError
from nmt.inference import Request, SearchConfig, Translator
from nmt.inference.engines import load_translator
from nmt.models.base import ModelConfig
from nmt.preprocess.corpus import Corpus
from nmt.preprocess.dataset_subwords import needed_tags
from nmt.recipe.config import build, dump
from nmt.runs import Run, weights_of
from nmt.subwords.learning import SubwordTraining, train_subwords
from nmt.subwords.segmenters import SEPARATOR
from nmt.subwords.subwords import Subwords
from nmt.subwords.tags import TaggedSegmenter, directions_of, tagged, tags_of
from nmt.training.augmentation import SampledSplit

LINES = ["one two two", "", "three", " ", "two one"]
DIRECTIONS = Directions(trained=(("en", "de"), ("de", "en"), ("en", "fr")))


def subwords_of(directions: Directions) -> Subwords:
    training = SubwordTraining(vocab_size=25, byte_fallback=False, model_type="unigram")
    tags = [">>de<<", ">>en<<", ">>fr<<", "<bt>"]
    model = train_subwords(["one two three four five six"] * 9, training, tags=tags)
    return Subwords(model, directions=directions)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained multilingual run."""
    path, subwords = tmp_path_factory.mktemp("model") / "run", subwords_of(DIRECTIONS)
    arch = {"arch": "transformer_tiny", "d_model": 16, "d_ff": 16}
    config = build(ModelConfig, arch, "model")  # type: ignore[type-abstract]
    torch.manual_seed(1)
    model = config.build(subwords.source_size, subwords.target_size, subwords.shared)
    search = {"strategy": {"name": "beam", "stop": "first_beam"}, "max_length_offset": 4}
    recipe = {
        "model": dump(config),
        "train": {},
        "search": dump(build(SearchConfig, search, "search")),
    }
    languages = DIRECTIONS.names
    created = Run.create(
        path, languages=languages, identity="1", data="1", recipe=recipe, subwords=subwords
    )
    created.save(1, weights_of(model), None, {}, {}, True)
    return path


@pytest.mark.parametrize(
    "general",
    [subwords_of(DIRECTIONS), Subwords(*MODELS, vocabularies=[Vocabulary.from_pieces(UNION)])],
    ids=["own", "listed"],
)
def test_a_tagged_segmenter_adds_tags_and_nothing_else(general: Subwords) -> None:
    plain = general.source
    tag = plain.tags[next(iter(plain.tags))]
    segmenter = TaggedSegmenter(plain, [tag])
    encoded = segmenter.encode(LINES)
    for ids, bare, line in zip(encoded, plain.encode(LINES), LINES, strict=True):
        assert ids == ([tag, *bare] if bare else [])
        assert bool(ids) == bool(line.strip())
    assert segmenter.decode(encoded) == plain.decode(plain.encode(LINES))
    assert segmenter.line_offsets(LINES) == plain.line_offsets(LINES)
    assert segmenter.text_offsets(encoded) == plain.text_offsets(plain.encode(LINES))
    assert segmenter.sample("one two", 0.5, Random(1))[0] == tag
    assert segmenter.size == plain.size
    assert segmenter.pieces([tag]) == plain.pieces([tag])


def test_the_tags_of_a_direction_are_looked_up_on_the_side_that_has_them() -> None:
    general = subwords_of(DIRECTIONS)
    known = general.source.tags
    assert tags_of(general, ("en", "fr"), "bt") == ([known[">>fr<<"], known["<bt>"]], [])
    on_target = subwords_of(Directions(tags="target", trained=DIRECTIONS.trained))
    assert tags_of(on_target, ("en", "fr"), "bt") == ([known["<bt>"]], [known[">>fr<<"]])
    french = tagged(on_target, ("en", "fr"))
    assert french.encode_source(["one"]) == on_target.encode_source(["one"])
    [plain] = on_target.encode_target(["one"])
    assert french.encode_target(["one"]) == [[known[">>fr<<"], *plain]]
    on_both = subwords_of(Directions(tags="both", trained=DIRECTIONS.trained))
    tags = [known[">>en<<"], known["<bt>"]], [known[">>fr<<"]]
    assert tags_of(on_both, ("en", "fr"), "bt") == tags
    assert tags_of(subwords_of(None), ("en", "xx")) == ([], [])  # type: ignore[arg-type]
    with pytest.raises(NmtError, match="lacks the tag >>it<<"):
        tags_of(general, ("en", "it"))
    with pytest.raises(NmtError, match="lacks the tag <noise>"):
        tags_of(general, ("en", "de"), "noise")


def test_a_model_that_names_no_directions_has_its_own_and_those_of_its_tags() -> None:
    unnamed = subwords_of(None)  # type: ignore[arg-type]
    assert directions_of(unnamed, ("en", "de")).trained == (
        ("en", "de"),
        ("en", "en"),
        ("en", "fr"),
    )
    assert directions_of(subwords_of(DIRECTIONS), ("en", "xx")) == DIRECTIONS


def test_each_tag_and_separator_is_needed_once_on_its_side() -> None:
    corpora = [Corpus(path="a", tag="bt"), Corpus(path="b"), Corpus(path="c", tag="bt")]
    both, source = DocumentContext(), DocumentContext(sides="source")
    languages = [">>de<<", ">>en<<", ">>fr<<"]
    assert needed_tags(DIRECTIONS, corpora, both) == ([*languages, "<bt>", SEPARATOR], [SEPARATOR])
    assert needed_tags(None, corpora, source) == (["<bt>", SEPARATOR], [])
    on_target = Directions(tags="target", trained=DIRECTIONS.trained)
    assert needed_tags(on_target, corpora, both) == (
        ["<bt>", SEPARATOR],
        [*languages, SEPARATOR],
    )
    on_both = Directions(tags="both", trained=DIRECTIONS.trained)
    assert needed_tags(on_both, corpora, None) == ([">>en<<", ">>de<<", "<bt>"], languages)


def test_a_tag_of_the_source_must_be_chosen_where_there_are_several() -> None:
    trained = (("en", "de"), ("fr", "de"), ("de", "en"))
    assert Directions(trained=trained).choose("de") == ("en", "de")
    directions = Directions(tags="both", trained=trained)
    assert directions.choose("en") == ("de", "en")
    assert directions.choose("de", "fr") == ("fr", "de")
    with pytest.raises(NmtError, match="into 'de' from en and fr; choose one with -s"):
        directions.choose("de")


def test_directions_among_many_are_numbered_chosen_and_shortened() -> None:
    names = [f"l{n}" for n in range(20)]
    directions = Directions(tags="both", trained=tuple(permutations(names, 2)))
    assert directions.number(("l19", "l18")) == 20 * 19 - 1
    assert directions.among("l1", None).trained == tuple(("l1", n) for n in names if n != "l1")
    assert directions.among("l1", "l2").trained == (("l1", "l2"),)
    first = ", ".join(names[1:9])
    with pytest.raises(NmtError, match=f"into 'x', only into {first} and 12 more"):
        directions.choose("x")
    with pytest.raises(NmtError, match="no direction from l1 into x; the model translates from l0"):
        directions.among("l1", "x")


def test_sampled_subwords_keep_their_tags(tmp_path: Path) -> None:
    general = subwords_of(DIRECTIONS)
    directed = tagged(general, ("en", "de"))
    lines = ["one two three four"] * 19 + ["five six " * 6]
    with staging(tmp_path / "data") as directory:
        general.save(directory)
        writer = DatasetWriter(directory, ("en", "de"), (general.source_size,) * 2)
        with writer.split("train", has_directions=True) as out:
            ids = RaggedArray.from_sentences(directed.encode_source(lines))
            out.append(ids, ids, 1)
        writer.finish(shared_vocabulary=True, recipe={})
    split = Dataset.open(tmp_path / "data").split("train")
    assert split.directions is not None
    assert split.directions.tolist() == [1] * 20
    sampled = SampledSplit(split=split, subwords=general, alpha=0.1, seed=1)
    rows = sampled.padded("source", np.arange(20))
    assert (rows[:, 0] == general.source.tags[">>de<<"]).all()
    texts = directed.decode_source([[t for t in row[1:] if t not in (PAD, EOS)] for row in rows])
    assert texts == [line.strip() for line in lines]
    assert len({tuple(row) for row in rows.tolist()}) > 2


def test_tags_need_no_room_in_alignments_and_go_before_prefixes(run: Path) -> None:
    translator = load_translator(run, target_lang="fr", engine="nmt")
    source, target = translator.subwords.encode_source(["one two"]), [[5, 6, EOS]]
    [[*ids]] = source
    [weights] = translator.text_attention([[*ids, EOS]], target)
    assert weights.shape == (3, len(ids))  # without the tag, with EOS
    on_target = Subwords(
        *[translator.subwords.models[0]],
        directions=Directions(tags="target", trained=DIRECTIONS.trained),
    )
    assert isinstance(translator, Translator)
    general = Translator(translator.model, on_target, translator.config, languages=("a", "b"))
    directed = general.for_direction("de")
    tag = on_target.target.tags[">>de<<"]
    [[*two], [*one]] = (on_target.encode_target([text])[0] for text in ("two", "one"))
    sentences = directed.encode([Request("one"), Request("one", "two", ("one",))])
    assert (sentences[0].prefix, [*sentences[0].phrases]) == ([tag], [])
    assert (sentences[1].prefix, [*sentences[1].phrases]) == ([tag, *two], [one])
    for [translation] in directed.translations([Request("one"), Request("one", "two")]):
        assert translation.hypothesis.tokens[0] == tag
        assert ">>" not in translation.text


def test_a_line_in_another_target_language_keeps_the_chosen_source(run: Path) -> None:
    trained = (("en", "de"), ("zh", "de"), ("en", "fr"), ("zh", "fr"))
    loaded = load_translator(run, target_lang="de", engine="nmt")
    assert isinstance(loaded, Translator)
    subwords = subwords_of(Directions(trained=trained))
    general = Translator(loaded.model, subwords, loaded.config, languages=("en+zh", "de+fr"))
    assert general.for_target("fr").languages == ("en", "fr")
    chinese, english = general.for_direction("de", "zh"), general.for_direction("de", "en")
    for _ in range(2):  # made, then from the cache
        assert chinese.for_target("fr").languages == ("zh", "fr")
        assert english.for_target("fr").languages == ("en", "fr")
        assert general.for_direction("de").for_target("fr").languages == ("en", "fr")
    german = load_translator(run, target_lang="fr", source_lang="de")
    with pytest.raises(NmtError, match="source and target language are both 'de'; choose two"):
        german.for_target("de")


def test_a_model_of_opus_mt_takes_its_tags_by_a_flag_or_in_the_text(
    tmp_path: Path, nmt: Callable[..., Any]
) -> None:
    marian_model(tmp_path / "opus")
    imported = nmt(
        "import", tmp_path / "opus", "--output", tmp_path / "run", "-s", "en", "-t", "gem"
    )
    assert imported.status == 0, imported.err
    (tmp_path / "plain").write_text("".join(f"{line}\n" for line in ENGLISH))
    (tmp_path / "typed").write_text("".join(f">>deu<< {line}\n" for line in ENGLISH))

    def translate(name: str, *flags: str) -> Any:
        return nmt(
            "translate", "-m", tmp_path / "run", tmp_path / name, "--max-length-offset", 9, *flags
        )

    typed = translate("typed").out
    assert translate("plain", "-t", "deu").out == typed
    assert translate("plain", "-t", "deu", "-s", "en").out == typed
    assert translate("plain").out == translate("plain", "-t", "gem").out
    assert translate("plain", "-t", "fra").err == (
        "nmt: error: the model does not translate into 'fra', only into gem and deu\n"
    )
    parts = "--set", "search.max_source_length=6", "--on-long-line", "split"
    short = translate("typed", *parts)
    assert "split into parts of at most 6 pieces: 27" in short.err
    assert short.out == translate("plain", "-t", "deu", *parts).out
    named = [{"text": f">>gem<< {line}", "target_lang": "deu"} for line in ENGLISH]
    (tmp_path / "named").write_text("".join(f"{json.dumps(request)}\n" for request in named))
    tagged = translate("named", "--json-input", *parts)
    assert tagged.status == 0, tagged.err
    assert tagged.out != translate("plain", "-t", "gem", *parts).out


@pytest.mark.parametrize("format_", ["ctranslate2", "huggingface"])
def test_an_export_has_the_directions_of_its_run(
    run: Path, tmp_path: Path, nmt: Callable[..., Any], format_: str
) -> None:
    if format_ == "ctranslate2":
        pytest.importorskip("ctranslate2")
    done = nmt("export", "--model", run, "--format", format_, "--output", tmp_path / "export")
    assert done.status == 0, done.err
    assert Subwords.load(tmp_path / "export").directions == DIRECTIONS
    if format_ == "ctranslate2":
        one, other = (
            load_translator(path, target_lang="fr") for path in (run, tmp_path / "export")
        )
        assert list(one.translate(LINES)) == list(other.translate(LINES))


def test_an_average_has_the_directions_of_its_run(
    run: Path, tmp_path: Path, nmt: Callable[..., Any]
) -> None:
    done = nmt("average-checkpoints", "--run", run, "--last", 1, "--output", tmp_path / "mean")
    assert done.status == 0, done.err
    assert Run.open(tmp_path / "mean").subwords.directions == DIRECTIONS


@pytest.fixture
def address(run: Path) -> Iterator[str]:
    with server(run) as (address, _):
        yield address


def test_the_server_answers_for_every_trained_direction(address: str, run: Path) -> None:
    status, languages = call(f"{address}/languages")
    assert status == 200
    assert {one["code"]: one["targets"] for one in languages} == {"en": ["de", "fr"], "de": ["en"]}
    expected = list(load_translator(run, target_lang="fr").translate(["one two"]))
    wanted = {"source_lang": "en", "target_lang": "fr", "lines": ["one two"]}
    status, answer = call(f"{address}/v1/translate", wanted)
    assert [line[0]["text"] for line in answer["translations"]] == expected
    status, answer = call(f"{address}/v1/translate", {**wanted, "source_lang": "de"})
    assert (status, answer["error"]) == (
        400,
        "de-fr is not served; there is en-de, de-en, en-fr",
    )
