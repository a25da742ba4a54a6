"""Sentences with their context: datasets, training, translation of documents, refusals."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import ENGLISH, GERMAN, RECIPE

from nmt.data.columns import RaggedArray
from nmt.data.context import DocumentContext
from nmt.data.dataset import Dataset
from nmt.data.sampler import in_length_order
from nmt.data.vocabulary import EOS
from nmt.errors import NmtError
from nmt.inference import Request, Translation
from nmt.inference.documents import check_form, fit, in_documents
from nmt.inference.engines import load_translator
from nmt.inference.lines import LineTranslator
from nmt.inference.request import TranslationOptions
from nmt.preprocess.corpus import Chunk
from nmt.preprocess.documents import Joiner, joined
from nmt.runs.translations import read_translations
from nmt.search import Hypothesis
from nmt.subwords.segmenters import SEPARATOR
from nmt.subwords.subwords import Subwords
from nmt.subwords.wrappers import JoinedSegmenter
from nmt.training.augmentation import SampledSplit

Command = Callable[..., Any]

KINDS: dict[str, dict[str, Any]] = {
    "both": {"context": 2, "max_tokens": 40},
    "source": {"context": 1, "sides": "source"},
    "whole": {"whole": True, "max_tokens": 25},
}


def documents(count: int, seed: int) -> list[list[list[int]]]:
    """Documents of sentences of numbers."""
    draw = random.Random(seed)
    return [
        [draw.choices(range(6), k=draw.randint(1, 6)) for _ in range(draw.randint(1, 6))]
        for _ in range(count)
    ]


def text(words: list[str], number: int, seed: int) -> str:
    """Documents as text, with a blank line between two of them."""
    return "\n".join(
        "".join(" ".join(words[n] for n in sentence) + "\n" for sentence in sentences)
        for sentences in documents(number, seed)
    )


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with documents in two languages, and recipes for all kinds of context."""
    directory = tmp_path_factory.mktemp("documents")
    for seed, (split, number) in enumerate({"train": 30, "valid": 6}.items()):
        for language, words in (("en", ENGLISH), ("de", GERMAN)):
            (directory / f"{split}.{language}").write_text(text(words, number, seed))
    for name, keys in {**KINDS, "plain": None}.items():
        recipe = yaml.safe_load(RECIPE)
        recipe["preprocess"] |= {
            "train": [str(directory / "train")],
            "valid": str(directory / "valid"),
            "documents": keys,
            "output_dir": str(directory / f"{name}-bin"),
            "workers": 1,
        }
        recipe["train"] |= {
            "data": str(directory / f"{name}-bin"),
            "save_dir": str(directory / name),
            "valid_metrics": ["bleu"],
            "max_updates": 4,
        }
        (directory / f"{name}.yaml").write_text(yaml.safe_dump(recipe))
    return directory


@pytest.fixture(scope="module")
def dataset(here: Path, nmt: Command) -> Callable[[str], Dataset]:
    """Makes the dataset of a kind of context, once."""

    def make(kind: str) -> Dataset:
        if not (here / f"{kind}-bin").exists():
            done = nmt("preprocess", "--config", here / f"{kind}.yaml")
            assert done.status == 0, done.err
            assert ("joined source tokens: mean" in done.err) == (kind != "plain")
        return Dataset.open(here / f"{kind}-bin")

    return make


@pytest.fixture(scope="module")
def run(here: Path, dataset: Callable[[str], Dataset], nmt: Command) -> Callable[[str], Path]:
    """Trains the run of a kind of context, once; it learns next to nothing."""

    def make(kind: str) -> Path:
        if not (here / kind).exists():
            dataset(kind)
            done = nmt("train", "--config", here / f"{kind}.yaml")
            assert done.status == 0, done.err
        return here / kind

    return make


def pairs(data: Dataset, split: str = "train") -> list[tuple[str, str]]:
    """The pairs of a split, joined sentences as lines."""
    subwords, stored = Subwords.from_dataset(data), data.split(split)
    sides = [
        decode([side(at).tolist()[:-1] for at in range(len(stored))])
        for side, decode in (
            (stored.source, subwords.decode_source),
            (stored.target, subwords.decode_target),
        )
    ]
    return list(zip(*sides, strict=True))


def test_a_window_takes_the_sentences_before_as_far_as_they_fit() -> None:
    context = DocumentContext(context=2, max_tokens=10)
    assert context.examples([3, 3, 3, 5, 9]) == [(0, 1), (0, 2), (0, 3), (2, 4), (4, 5)]
    one = DocumentContext(max_tokens=10)
    assert one.examples([5, 5, 3, 2, 9]) == [(0, 1), (0, 2), (1, 3), (2, 4), (4, 5)]
    assert one == DocumentContext(context=1, max_tokens=10)


def test_whole_documents_come_in_parts_that_fit_and_in_halves_of_these() -> None:
    context = DocumentContext(whole=True, max_tokens=10)
    assert context.parts([3, 3, 4, 1, 12, 2]) == [(0, 3), (3, 4), (4, 5), (5, 6)]
    assert context.parts([3, 3, 4, 1, 2, 8]) == [(0, 3), (3, 5), (5, 6)]
    spans = [(0, 1), (0, 2), (0, 3), (1, 2), (2, 3), (3, 4)]
    assert context.examples([3, 3, 4, 1]) == spans


def test_joined_sentences_have_separators_where_they_would_end() -> None:
    sentences = RaggedArray.from_sentences([[4], [5, 6], [7]])
    tokens, lengths = joined(sentences, np.array([0, 2]), np.array([2, 3]), 9)
    assert tokens.tolist() == [4, 9, 5, 6, EOS, 7, EOS]
    assert lengths.tolist() == [5, 2]
    nothing = np.array([], np.int64)
    assert len(joined(RaggedArray.from_sentences([]), nothing, nothing, 9).lengths) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_dataset_holds_the_joined_sentences_of_each_document(
    kind: str, here: Path, dataset: Callable[[str], Dataset]
) -> None:
    data = dataset(kind)
    subwords, context = Subwords.from_dataset(data), DocumentContext(**KINDS[kind])
    assert subwords.context == context
    wanted = []
    for sentences in documents(30, 0):
        lines = [
            [" ".join(words[n] for n in one) for one in sentences] for words in (ENGLISH, GERMAN)
        ]
        sides = zip(subwords.encode_source(lines[0]), subwords.encode_target(lines[1]), strict=True)
        lengths = [1 + max(map(len, pair)) for pair in sides]
        for start, end in context.examples(lengths):
            begin = end - 1 if context.sides == "source" else start
            wanted.append(("\n".join(lines[0][start:end]), "\n".join(lines[1][begin:end])))
    assert pairs(data) == wanted
    assert any("\n" in source for source, _ in wanted)
    assert any("\n" in target for _, target in wanted) == (kind != "source")
    # As text, joined sentences have the same ids.
    texts, split = [source for source, _ in wanted], data.split("train")
    ids = [split.source(at).tolist()[:-1] for at in range(len(split))]
    assert subwords.encode_source(texts) == ids


@pytest.mark.parametrize("kind", KINDS)
def test_a_held_out_split_keeps_its_lines_and_joins_each_sentence_once(
    kind: str, here: Path, dataset: Callable[[str], Dataset]
) -> None:
    split = dataset(kind).split("valid")
    lines = (here / "valid.en").read_text().splitlines()
    assert split.source_text() == lines
    stored = pairs(dataset(kind), "valid")
    last = [target.split("\n")[-1] for _, target in stored if target]
    if kind == "whole":
        target = "\n".join(part for _, part in stored if part)
        assert target.split("\n") == [line for line in split.reference_text() if line]
    else:
        assert last == [line for line in split.reference_text() if line]
    # Blank pairs do not count for the loss.
    scored = np.concatenate(in_length_order(split, 100))
    assert sorted(scored.tolist()) == [at for at, (source, _) in enumerate(stored) if source]


def test_no_text_spells_the_separator_and_sampled_subwords_keep_it(
    dataset: Callable[[str], Dataset],
) -> None:
    data = dataset("both")
    subwords, split = Subwords.from_dataset(data), data.split("train")
    separator = subwords.source.tags[SEPARATOR]
    assert separator not in subwords.encode_source([f"one {SEPARATOR} two"])[0]
    sampled = SampledSplit(split=split, subwords=subwords, alpha=0.3, seed=1)
    rows = sampled.padded("source", np.arange(len(split)))
    stored = split.padded("source", np.arange(len(split)))
    assert rows.shape != stored.shape or (rows != stored).any()
    assert ((rows == separator).sum(1) == (stored == separator).sum(1)).all()


def test_a_line_that_is_blank_on_one_side_is_an_error(here: Path, nmt: Command) -> None:
    for language, end in (("en", "one\n\ntwo\n"), ("de", "eins\nzwei\n\n")):
        (here / f"uneven.{language}").write_text(end)
    done = nmt("preprocess", "--config", here / "both.yaml", "--train", here / "uneven",
               "--output-dir", here / "uneven-bin")  # fmt: skip
    assert (done.status, len(done.err.splitlines())) == (1, 1)
    assert "uneven.de: line 2 is blank on one side only" in done.err


def test_files_without_blank_lines_cost_one_warning(here: Path, nmt: Command) -> None:
    for name in ("undivided", "divided"):
        for language in ("en", "de"):
            lines = (here / f"valid.{language}").read_text().splitlines()
            kept = lines if name == "divided" else filter(None, lines)
            (here / f"{name}.{language}").write_text("".join(f"{line}\n" for line in kept))
    command = ("preprocess", "--config", here / "both.yaml", "--output-dir", here / "undivided-bin")
    train = f"preprocess.train=[{here}/undivided, {here}/divided]"
    done = nmt(*command, "--set", train, "--valid", here / "undivided")
    assert done.status == 0, done.err
    [warning] = (line for line in done.err.splitlines() if "warning" in line)
    name = f"{here}/undivided.en"
    assert f"no blank line is in {name}, {name}: the whole file is one document; write" in warning
    done = nmt(*command, "--train", here / "divided")
    assert (done.status, "warning" in done.err) == (0, False)


def test_shards_hold_whole_blocks_and_together_everything(
    here: Path, dataset: Callable[[str], Dataset], nmt: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmt.preprocess.corpus.CHUNK", 40)
    monkeypatch.setattr("nmt.preprocess.corpus.Bitext.blocks.__defaults__", (40, 0))
    held = []
    for shard in ("1/2", "2/2"):
        flags = ("--subword-model", here / "both-bin", "--output-dir", here / "parts")
        dataset("both")
        done = nmt("preprocess", "--config", here / "both.yaml", "--shard", shard, *flags)
        assert done.status == 0, done.err
        number = shard.replace("/", "-of-")
        held.append(pairs(Dataset.open(here / "parts" / f"shard-{number}")))
    ends = [[target.split("\n")[-1] for _, target in part] for part in held]
    assert all(ends)
    lines = filter(None, (here / "train.de").read_text().splitlines())
    assert sorted(ends[0] + ends[1]) == sorted(lines)


def with_ids(here: Path, directory: Path, name: str, as_columns: bool = False) -> str:
    """Write a corpus without its blank lines, and the ids of documents; return its path."""
    sides = [(here / f"{name}.{end}").read_text().split("\n\n") for end in ("en", "de")]
    rows = [
        (source, target, f"{number % 7}")  # an id may come again later
        for number, document in enumerate(zip(*sides, strict=True))
        for source, target in zip(*map(str.splitlines, document), strict=True)
    ]
    if as_columns:
        (directory / f"{name}.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
        return str(directory / f"{name}.tsv")
    for end, column in zip(("en", "de", "docid"), zip(*rows, strict=True), strict=True):
        (directory / f"{name}.{end}").write_text("".join(f"{cell}\n" for cell in column))
    return str(directory / name)


@pytest.mark.parametrize("size", [8, 10_000])
@pytest.mark.parametrize("as_columns", [False, True])
def test_ids_divide_documents_like_blank_lines(
    as_columns: bool,
    size: int,
    here: Path,
    dataset: Callable[[str], Dataset],
    nmt: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nmt.preprocess.corpus.Bitext.blocks.__defaults__", (size, 0))
    monkeypatch.setattr("nmt.preprocess.corpus.Bitext.chunks.__defaults__", ("error", size))
    train, valid = (with_ids(here, tmp_path, name, as_columns) for name in ("train", "valid"))
    corpora = ("--train", train, "--valid", valid, "--set", "preprocess.document_ids=true")
    command = ("preprocess", "--config", here / "both.yaml", "--output-dir", tmp_path / "bin")
    done = nmt(*command, *corpora)
    assert (done.status, "warning" in done.err) == (0, False), done.err
    made = Dataset.open(tmp_path / "bin")
    for split in ("train", "valid"):
        assert pairs(made, split) == pairs(dataset("both"), split)
    assert made.split("valid").source_text() == dataset("both").split("valid").source_text()


@pytest.mark.parametrize("has_ids", [False, True])
def test_a_document_does_not_continue_in_the_next_text(
    has_ids: bool, here: Path, dataset: Callable[[str], Dataset], nmt: Command, tmp_path: Path
) -> None:
    train, valid = here / "train", here / "valid"
    if has_ids:
        train, valid = (Path(with_ids(here, tmp_path, name)) for name in ("train", "valid"))
    settings = (f"valid=[{{path: {valid}}}, {{path: {valid}}}]", f"document_ids={has_ids}")
    flags = [flag for setting in settings for flag in ("--set", f"preprocess.{setting}")]
    command = ("preprocess", "--config", here / "both.yaml", "--output-dir", tmp_path / "bin")
    done = nmt(*command, "--train", train, *flags)
    assert done.status == 0, done.err
    once = dataset("both").split("valid")
    twice = Dataset.open(tmp_path / "bin").split("valid")
    assert twice.source_text() == [*once.source_text(), "", *once.source_text()]
    assert len(twice) == 2 * len(once) + 1


def test_a_mistake_in_ids_costs_one_line(here: Path, nmt: Command, tmp_path: Path) -> None:
    train = with_ids(here, tmp_path, "train")
    keys = ("--set", "preprocess.document_ids=true", "--output-dir", tmp_path / "bin")
    command = ("preprocess", "--config", here / "both.yaml", "--train", train, *keys)

    def message(*more: object) -> str:
        done = nmt(*command, *more)
        assert done.status == 1
        return str(done.err.splitlines()[-1])

    assert "preprocess.document_ids: no such file: " in message()  # of the validation set
    command += ("--valid", with_ids(here, tmp_path, "valid"))
    path = Path(f"{train}.docid")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:6], " \n", *lines[7:]]))
    assert "train.docid: line 7 has no id of a document; write an id on each line" in message()
    path.write_text("".join(lines[1:]))
    assert "line n must hold the id of the document of pair n" in message()
    assert "document_ids needs documents" in message("--set", "preprocess.documents=null")


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_documents_are_whole_wherever_they_stand_in_a_corpus(
    kind: str,
    workers: int,
    here: Path,
    dataset: Callable[[str], Dataset],
    nmt: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = [pairs(dataset(kind), split) for split in ("train", "valid")]
    monkeypatch.setattr("nmt.preprocess.corpus.Bitext.blocks.__defaults__", (8, 0))
    monkeypatch.setattr("nmt.preprocess.corpus.Bitext.chunks.__defaults__", ("error", 8))
    flags = ("--output-dir", here / "small", "--workers", workers)
    done = nmt("preprocess", "--config", here / f"{kind}.yaml", *flags)
    assert done.status == 0, done.err
    assert [pairs(Dataset.open(here / "small"), split) for split in ("train", "valid")] == wanted


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"documents": {"context": 0}}, "context must be at least 1, not 0"),
        ({"documents": {"whole": True, "sides": "source"}}, "joined on both sides"),
        ({"documents": {"whole": True, "context": 1}}, "whole joins all sentences of a document"),
        ({"documents": {}, "clean": ["duplicates"]}, "clean has duplicates, which would tear"),
        ({"documents": {}, "target_order": "right_to_left"}, "target_order left_to_right alone"),
        ({"documents": {}, "sentence_weights": True}, "documents go without sentence_weights"),
        ({"documents": {}, "alignments": True}, "documents go without alignments"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    keys: dict[str, Any], message: str, here: Path, nmt: Command, tmp_path: Path
) -> None:
    recipe = yaml.safe_load((here / "plain.yaml").read_text())
    recipe["preprocess"] |= keys
    (tmp_path / "nmt.yaml").write_text(yaml.safe_dump(recipe))
    done = nmt("preprocess", "--config", tmp_path / "nmt.yaml")
    assert (done.status, len(done.err.splitlines())) == (1, 1)
    assert message in done.err


def test_given_subwords_without_a_separator_are_refused_and_extended(
    here: Path, dataset: Callable[[str], Dataset], nmt: Command
) -> None:
    dataset("plain")
    command = ("preprocess", "--config", here / "both.yaml", "--output-dir", here / "given")
    done = nmt(*command, "--subword-model", here / "plain-bin")
    assert (done.status, len(done.err.splitlines())) == (1, 1)
    assert "the vocabulary lacks the separator <sep/>" in done.err
    done = nmt(*command, "--extend-vocabulary", here / "plain-bin")
    assert done.status == 0, done.err
    assert any("\n" in source for source, _ in pairs(Dataset.open(here / "given")))


WORDS: Any = SimpleNamespace(encode_source=lambda lines: [line.split() for line in lines])
"""Subwords that are words."""


def test_lines_arrive_as_requests_with_the_lines_before() -> None:
    context = DocumentContext(context=2)
    blocks = [["a", "b"], [], ["c", "", "d"], [Request("e")], ["f"]]
    read = list(in_documents(blocks, context, WORDS))
    assert [len(block) for block in read] == [2, 3, 1, 1]
    found = [(one.text, one.context) for block in read for one in block]
    assert found == [
        ("a", ()), ("b", ("a",)), ("c", ("a", "b")), ("", ()), ("d", ()), ("e", ()), ("f", ()),
    ]  # fmt: skip


def test_a_line_of_a_whole_document_waits_for_the_rest_of_its_part() -> None:
    context = DocumentContext(whole=True, max_tokens=6)
    blocks = [["a", "b b"], ["c", "d", "", "e"]]
    [first, second] = in_documents(blocks, context, WORDS)
    assert [one.sentences for one in first] == [("a", "b b")] * 2 + [("c", "d")] * 2 + [("",)]
    assert [(one.text, one.context) for one in first[:2]] == [("a", ()), ("b b", ("a",))]
    assert [one.sentences for one in second] == [("e",)]


def test_only_context_that_fits_is_used() -> None:
    request = Request("e", context=("a", "b b b", " ", "c", "d"), following=("f", "g g"))
    fitted = {
        name: fit([request], context, 20, WORDS)[0].sentences
        for name, context in {
            "two": DocumentContext(context=2, max_tokens=9),
            "short": DocumentContext(context=4, max_tokens=9),
            "whole": DocumentContext(whole=True, max_tokens=9),
        }.items()
    }
    assert fitted["two"] == ("c", "d", "e")
    assert fitted["short"] == ("c", "d", "e")
    assert fitted["whole"] == ("c", "d", "e", "f")
    one = DocumentContext(context=1)
    assert fit([Request("e", prefix="x", context=("d",))], one, 20, WORDS)[0].context == ()
    source = DocumentContext(context=1, sides="source")
    assert fit([Request("e", prefix="x", context=("d",))], source, 20, WORDS)[0].context == ("d",)
    assert fit([Request(" ", context=("d",))], source, 20, WORDS)[0].context == ()


class Fake:
    """A translator of joined lines that spoils those with a certain number of sentences."""

    def __init__(self, spoilt: Iterable[int] = (), separator: str = "\n") -> None:
        self.asked: list[tuple[str, ...]] = []
        self.spoilt, self.separator = set(spoilt), separator

    def translate_alone(
        self, requests: list[Request], _: TranslationOptions
    ) -> list[list[Translation]]:
        self.asked += [request.sentences for request in requests]
        return [[self._translation(request)] for request in requests]

    def _translation(self, request: Request) -> Translation:
        lines = [line.upper() for line in request.sentences]
        if len(lines) in self.spoilt:
            lines.append("?")
        nothing = Hypothesis([], 0.0, 0.0, finished=True)
        return Translation(request.text, self.separator.join(lines), nothing)


def translated(context: DocumentContext, fake: Fake, lines: list[str]) -> list[str]:
    requests = [one for block in in_documents([lines], context, WORDS) for one in block]
    translator: Any = fake
    joined = LineTranslator.translate_joined(translator, requests, context, TranslationOptions())
    return [one.text for [one] in joined]


def test_the_separators_say_which_sentence_is_which() -> None:
    lines = ["a", "b", "c", "", "d"]
    fake = Fake()
    assert translated(DocumentContext(context=1), fake, lines) == ["A", "B", "C", "", "D"]
    assert fake.asked == [("a",), ("a", "b"), ("b", "c"), ("",), ("d",)]
    fake = Fake()
    assert translated(DocumentContext(whole=True), fake, lines) == ["A", "B", "C", "", "D"]
    assert fake.asked == [("a", "b", "c"), ("",), ("d",)]  # each part once


def test_a_wrong_number_of_separators_halves_the_sentences() -> None:
    lines = ["a", "b", "c", "d", "e"]
    fake = Fake(spoilt=[5, 2])
    assert translated(DocumentContext(whole=True), fake, lines) == ["A", "B", "C", "D", "E"]
    assert fake.asked == [("a", "b", "c", "d", "e"), ("a", "b", "c"), ("d", "e"), ("d",), ("e",)]
    fake = Fake(spoilt=[3, 1])
    assert translated(DocumentContext(context=2), fake, lines[:3]) == ["A ?", "B", "C ?"]
    assert fake.asked == [("a",), ("a", "b"), ("a", "b", "c"), ("c",)]
    empty = Fake(separator="\n\n")  # each separator twice
    assert translated(DocumentContext(context=1), empty, ["a", "b"]) == ["A", "B"]


def test_the_source_alone_has_nothing_to_divide() -> None:
    def translate(requests: list[Request], _: TranslationOptions) -> list[list[Translation]]:
        nothing = Hypothesis([], 0.0, 0.0, finished=True)
        return [[Translation(one.text, f"{one.text}\n!", nothing)] for one in requests]

    translator: Any = SimpleNamespace(translate_alone=translate)
    requests = [Request("a"), Request("b", context=("a",))]
    source = DocumentContext(sides="source")
    joined = LineTranslator.translate_joined(translator, requests, source, TranslationOptions())
    found = [one.text for [one] in joined]
    assert found == ["a !", "b !"]


@pytest.mark.parametrize("kind", KINDS)
def test_translate_reads_documents_and_gives_a_line_for_a_line(
    kind: str, here: Path, run: Callable[[str], Path], nmt: Command, tmp_path: Path
) -> None:
    model = run(kind)
    lines = (here / "valid.en").read_text().splitlines()
    results = []
    for window in (4096, 3):
        flags = ("--workers", 1, "--set", f"search.window={window}")
        done = nmt("translate", "--model", model, *flags, here / "valid.en")
        assert done.status == 0, done.err
        results.append(done.out.splitlines())
    assert results[0] == results[1]
    assert not any(out for out, line in zip(results[0], lines, strict=True) if not line)
    assert len(results[0]) == len(lines)
    translator = load_translator(model)
    assert list(translator.translate(lines)) == results[0]
    # The same line with its context in a request, among others in reverse.
    requests = [one for block in translator.in_documents([lines]) for one in block]
    assert [*translator.translate(requests[::-1])][::-1] == results[0]
    # As in validation.
    assert read_translations(model, 4, len(lines)) == results[0]
    assert translator.subwords.context == DocumentContext(**KINDS[kind])


def test_context_changes_a_translation_and_only_as_much_as_the_model_takes(
    run: Callable[[str], Path],
) -> None:
    translator = load_translator(run("source"), strategy="greedy")
    contexts = [(), ("one two",), ("six five", "one two"), ("one two", "six five")]
    [alone, one, far, near] = (
        translator.encode(fit([Request("three", context=lines)], *arguments))[0].source
        for lines in contexts
        for arguments in [(DocumentContext(**KINDS["source"]), 99, translator.subwords)]
    )
    assert one == far != near
    assert one[-len(alone) :] == alone != one


def test_json_requests_have_context(
    run: Callable[[str], Path], nmt: Command, tmp_path: Path
) -> None:
    lines = [{"text": "one", "context": ["two", "three"]}, {"text": "four"}, {"text": ""}]
    (tmp_path / "in").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = nmt("translate", "--model", run("source"), "--json-input", tmp_path / "in")
    assert (done.status, len(done.out.splitlines())) == (0, 3), done.err
    done = nmt("translate", "--model", run("plain"), "--json-input", tmp_path / "in")
    assert done.status == 1
    assert "in, line 1: context: the model was trained on single" in done.err.splitlines()[-1]
    (tmp_path / "in").write_text(json.dumps({"text": "one", "context": ["a\nb"]}))
    done = nmt("translate", "--model", run("source"), "--json-input", tmp_path / "in")
    assert "an entry of context or following is several lines" in done.err


def test_joined_lines_of_which_one_is_empty_are_translated_again() -> None:
    nothing, tried = Hypothesis([], 0.0, 0.0, finished=True), []

    def alone(requests: list[Request], _: TranslationOptions) -> list[list[Translation]]:
        tried.extend(request.sentences for request in requests)
        texts = ["A\n " if len(request.sentences) == 2 else "B" for request in requests]
        return [[Translation("", text, nothing)] for text in texts]

    translator: Any = SimpleNamespace(translate_alone=alone)
    pair = [Request("one", following=("two",)), Request("two", context=("one",))]
    context = DocumentContext(**KINDS["both"])
    found = LineTranslator.translate_joined(translator, pair, context, TranslationOptions())
    assert [best.text for [best] in found] == ["B", "B"]
    assert tried == [("one", "two"), ("one",), ("two",)]


def test_a_line_without_context_has_every_form() -> None:
    context, options = DocumentContext(**KINDS["both"]), TranslationOptions(count=2)
    check_form([Request("two")], context, options)
    with pytest.raises(NmtError, match="without alignments, n-best lists and scores; leave"):
        check_form([Request("two", context=("one",))], context, options)


@pytest.mark.parametrize("flag", ["--n-best=2", "--json", "--markup=html"])
def test_forms_without_lines_in_context_are_refused(
    flag: str, here: Path, run: Callable[[str], Path], nmt: Command
) -> None:
    model = run("both")
    done = nmt("translate", "--model", model, "--strategy", "beam", flag, here / "valid.en")
    assert done.status == 1
    assert "context" in done.err.splitlines()[-1]
    if flag != "--markup=html":  # with context on the source alone, a line has all of these
        done = nmt(
            "translate", "--model", run("source"), "--strategy", "beam", flag, here / "valid.en"
        )
        assert done.status == 0, done.err


def test_other_commands_refuse_or_say_that_lines_are_alone(
    here: Path, run: Callable[[str], Path], nmt: Command, tmp_path: Path
) -> None:
    both, source = run("both"), run("source")
    done = nmt("export", "--model", both, "--format", "marian", "--output", tmp_path / "marian")
    assert (done.status, len(done.err.splitlines())) == (1, 1)
    assert "translates sentences in their context" in done.err
    done = nmt("score", "--model", both, "--source", here / "valid.en", here / "valid.de")
    assert "each line is alone" in done.err
    done = nmt("train", "--config", here / "both.yaml", "--save-dir", tmp_path / "augmented",
               "--set", "train.augmentation=[upper_case]")  # fmt: skip
    assert (done.status, len(done.err.splitlines())) == (1, 1)
    assert "train.augmentation changes single sentences" in done.err
    (tmp_path / "line").write_text("one two\n")
    (tmp_path / "avoid").write_text("drei\n")
    done = nmt("translate", "--model", both, tmp_path / "line", "--avoid", tmp_path / "avoid")
    assert (done.status, "each line is alone" in done.err) == (0, True), done.err
    done = nmt("translate", "--model", both, tmp_path / "line")
    assert (done.status, "each line is alone" in done.err) == (0, False), done.err
    done = nmt("translate", "--model", both, tmp_path / "line", "--split-sentences")
    assert (
        "--split-sentences: the model was trained on documents, and reads lines whole" in done.err
    )
    done = nmt("explain", "--model", both, tmp_path / "line", "--output", tmp_path / "page.html")
    assert (done.status, "each line is alone" in done.err) == (0, True), done.err
    recipe = yaml.safe_load((here / "source.yaml").read_text())
    assert both != source
    other = tmp_path / "other"
    recipe["preprocess"] |= {
        "output_dir": str(tmp_path / "bin"),
        "subword_model": str(both),
        "documents": {"context": 5},
    }
    recipe["train"] |= {"data": str(tmp_path / "bin"), "save_dir": str(other)}
    (tmp_path / "nmt.yaml").write_text(yaml.safe_dump(recipe))
    assert nmt("preprocess", "--config", tmp_path / "nmt.yaml").status == 0
    assert nmt("train", "--config", tmp_path / "nmt.yaml", "--max-updates", 1).status == 0
    done = nmt("translate", "--model", both, "--model", other, tmp_path / "line")
    assert done.status == 1
    assert "its context of sentences differs from" in done.err.splitlines()[-1]


def test_inspect_shows_the_context(here: Path, run: Callable[[str], Path], nmt: Command) -> None:
    assert (
        "context: 2 sentences before, on both sides; 40 tokens" in nmt("inspect", run("both")).out
    )
    assert "context: whole documents; 25 tokens" in nmt("inspect", run("whole")).out
    run("source")
    assert "sentences before, on source" in nmt("inspect", here / "source-bin").out


def test_ctranslate2_translates_documents_like_nmt(
    here: Path, run: Callable[[str], Path], nmt: Command, tmp_path: Path
) -> None:
    pytest.importorskip("ctranslate2")
    done = nmt("export", "--model", run("both"), "--output", tmp_path / "export")
    assert done.status == 0, done.err
    results = [
        list(load_translator(model, strategy="greedy").translate((here / "valid.en").open()))
        for model in (run("both"), tmp_path / "export")
    ]
    assert results[0] == results[1]


def test_a_joiner_needs_no_document() -> None:
    nothing = RaggedArray.from_sentences([])
    joiner = Joiner(DocumentContext(), (9, 9))
    source, _ = joiner.examples(nothing, nothing, np.array([], np.int64))
    assert len(source.lengths) == 0


def test_a_joiner_measures_the_longer_side_and_separates_each_by_its_own_id() -> None:
    source, target = (
        RaggedArray.from_sentences([[4], [4], [4]]),
        RaggedArray.from_sentences([[5, 5], [5], [5, 5, 5]]),
    )
    joiner = Joiner(DocumentContext(max_tokens=5), (8, 9))
    sides = joiner.examples(source, target, np.array([1, 1, 1]))
    assert sides[0].tokens.tolist() == [4, EOS, 4, 8, 4, EOS, 4, EOS]
    assert sides[1].tokens.tolist() == [5, 5, EOS, 5, 5, 9, 5, EOS, 5, 5, 5, EOS]


def test_several_blank_lines_between_documents_stay_blank() -> None:
    chunk = Chunk(["a", "", "", "b"], ["x", "", "", "y"], first=1)
    numbers, lengths = np.array([1, 0, 0, 2]), np.array([2, 1, 1, 2])
    texts = Joiner(DocumentContext(), (8, 9)).held_out(chunk, numbers, lengths)
    assert texts == (chunk.source, chunk.target)


def test_a_line_feed_that_pieces_spell_does_not_divide_a_sentence() -> None:
    texts = {(4, 5): "one", (6,): "two\nthree", (): ""}
    inner: Any = SimpleNamespace(
        separator=None, decode=lambda rows, _: [texts[tuple(row)] for row in rows]
    )
    rows = [[4, 5, 9, 6], [6], [9, 4, 5]]
    assert JoinedSegmenter(inner, 9).decode(rows) == ["one\ntwo three", "two three", "\none"]


def test_a_request_without_a_document_model_names_the_remedy(run: Callable[[str], Path]) -> None:
    translator = load_translator(run("plain"), strategy="greedy")
    with pytest.raises(NmtError, match=r"train a model with preprocess\.documents"):
        list(translator.translate([Request("one", following=("two",))]))
