import importlib.util
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from for_each import for_each

from nmt.data.padding import as_rows
from nmt.data.vocabulary import EOS
from nmt.errors import NmtError
from nmt.evaluation.bracketing import read_trees
from nmt.models.transformer.model import architectures
from nmt.search.base import strategies
from nmt.subwords.learning import SubwordTraining, train_subwords
from nmt.subwords.subwords import Subwords


def example(name: str):
    """A module of the example."""
    path = Path(__file__).parents[1] / f"examples/parsing/{name}.py"
    spec = importlib.util.spec_from_file_location(f"parsing_{name}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


trees, tree_beam = example("trees"), example("tree_beam")
# The plugin would be one of the strategies that other tests walk through.
del strategies._entries["tree_beam"]

JOHN = "(TOP (S (NP (NNP John)) (VP (VBZ has) (NP (DT a) (NN dog))) (. .)))"
SYMBOLS = "(S (NP NNP NP) (VP VBZ (NP DT NN NP) VP) . S)"
WORDS = ["John", "has", "a", "dog", "."]


def test_a_leaf_is_a_tag_a_placeholder_or_the_word() -> None:
    (tree,) = read_trees(JOHN, "here")
    assert " ".join(trees.linearise(tree, "tags")) == SYMBOLS
    assert " ".join(trees.linearise(tree, "xx")) == "(S (NP XX NP) (VP XX (NP XX XX NP) VP) XX S)"
    words = "(S (NP John NP) (VP has (NP a dog NP) VP) . S)"
    assert " ".join(trees.linearise(tree, "words")) == words


def test_each_symbol_is_aligned_to_the_word_that_comes_next() -> None:
    (tree,) = read_trees(JOHN, "here")
    symbols = SYMBOLS.split()
    links = [tuple(map(int, link.split("-"))) for link in trees.links(tree).split()]
    assert [symbol for _, symbol in links] == list(range(len(symbols)))
    pairs = [(WORDS[word], symbols[symbol]) for word, symbol in links]
    assert pairs == [
        *(("John", "(S"), ("John", "(NP"), ("John", "NNP"), ("has", "NP)"), ("has", "(VP")),
        *(("has", "VBZ"), ("a", "(NP"), ("a", "DT"), ("dog", "NN"), (".", "NP)"), (".", "VP)")),
        *((".", "."), (".", "S)")),
    ]


@for_each(
    "text",
    [
        JOHN,
        "(TOP (NP (NP (NP (NN dog)))))",
        "(TOP (NN dog))",
        "(TOP (NP (NN dog)) (. .))",
        "(TOP (S (NP (-LRB- -LRB-) (NN dog) (-RRB- -RRB-)) (VP (VB go))))",
    ],
)
def test_restoring_is_the_inverse_of_linearising(text: str) -> None:
    (tree,) = read_trees(text, "here")
    restored, is_whole = trees.restore(tree.words(), trees.linearise(tree, "tags"))
    assert str(restored) == text
    assert is_whole


@for_each(
    ("symbols", "restored"),
    [
        (f"VP) {SYMBOLS} NN NN", JOHN),
        (f"{SYMBOLS[:-3]} (NP NP) S)", JOHN),
        (SYMBOLS.replace("NN NP) VP)", "NN VP)"), JOHN),
        (
            "(S (NP NNP NP) (VP VBZ",
            "(TOP (S (NP (NNP John)) (VP (VBZ has)) (XX a) (XX dog) (XX .)))",
        ),
        ("(NP NNP NP) VBZ", "(TOP (S (NP (NNP John)) (VBZ has) (XX a) (XX dog) (XX .)))"),
        ("", "(TOP (S (XX John) (XX has) (XX a) (XX dog) (XX .)))"),
    ],
)
def test_what_is_ill_formed_is_repaired_and_keeps_the_words(symbols: str, restored: str) -> None:
    tree, is_whole = trees.restore(WORDS, symbols.split())
    assert str(tree) == restored
    assert not is_whole


def test_a_treebank_is_split_by_file_and_scored(tmp_path: Path) -> None:
    traced = "( (S (NP-SBJ-1 (NNP John)) (VP (VBZ has) (NP (DT a) (NN dog) (-NONE- *))) (. .)) )\n"
    for number in range(1, 31):
        (tmp_path / f"wsj_{number:04}.mrg").write_text(2 * traced)
    trees.split(tmp_path, tmp_path / "out", "tags")
    counts = {
        name: len((tmp_path / f"out/{name}.word").read_text().splitlines())
        for name in ("train", "valid", "test")
    }
    assert counts == {"train": 20, "valid": 20, "test": 20}
    assert (tmp_path / "out/test.tree").read_text() == 20 * f"{SYMBOLS}\n"
    result = trees.score(tmp_path / "out/test.trees", tmp_path / "out/test.tree")
    assert result == (
        "labelled bracketing F1 = 100.00 (precision 100.00, recall 100.00), complete 100.0%, "
        "well-formed 100.0% of 20 trees"
    )


def test_brackets_are_counted_as_pyevalb_counts_them_but_for_repeated_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("PYEVALB", reason="pip install PYEVALB")
    monkeypatch.syspath_prepend(Path(str(trees.__file__)).parent)
    compare = importlib.import_module("compare")
    noun, particle = "(NP (NP (NN {0})) (, ,))", "(VP (VB {0}) (PRT (RP {0})))"
    gold = [
        tree
        for word in ("up", "out", "in")
        for tree in read_trees(f"(TOP (S {noun} {particle} (. .)))".format(word), "here")
    ]
    result = compare.compare(gold, compare.damaged(gold))
    matched, *totals = result.ours
    assert result.theirs == (matched - result.repeated, *totals)
    # The noun phrase within the noun phrase is at the same words when the comma does not count.
    assert compare.compare(gold, gold) == compare.Comparison((15, 15, 15), (12, 15, 15), 3)


def test_a_directory_without_trees_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NmtError, match=r"no files wsj_\*.mrg"):
        trees.split(tmp_path, tmp_path / "out", "words")


def test_a_search_with_random_weights_finds_well_formed_trees_alone(tmp_path: Path) -> None:
    labels = ["NP", "VP", "S"]
    brackets = [f"▁{piece}" for label in labels for piece in (f"({label}", f"{label})")]
    training = SubwordTraining(
        vocab_size=45, normalization="identity", byte_fallback=False, user_defined_symbols=brackets
    )
    lines = ["(S (NP the dog NP) (VP sees (NP a cat NP) VP) S)", "the cat and a dog see the tree"]
    (tmp_path / "subwords.model").write_bytes(train_subwords(lines, training))
    subwords = Subwords((tmp_path / "subwords.model").read_bytes())
    sentences = ["the dog sees", "a", "a cat and the dog see the tree and a tree"]
    encoded = [[*tokens, EOS] for tokens in subwords.encode_source(sentences)]
    source = as_rows(encoded)
    strategy = tree_beam.TreeBeam(
        name="tree_beam", beam=3, subwords=str(tmp_path / "subwords.model")
    )
    config = replace(architectures["transformer_tiny"], d_model=16, d_ff=16, heads=2)
    longest = tree_beam.MOST_OPENED
    for seed in range(5):
        torch.manual_seed(seed)
        size = subwords.target_size
        model = config.build(size, size, True).eval()
        limits = torch.tensor([len(tokens) + 12 * seed for tokens in encoded])
        with torch.no_grad():
            found = strategy.search(model, source, limits, count=3)
        for sentence, hypotheses in zip(sentences, found, strict=True):
            for hypothesis in hypotheses:
                assert hypothesis.finished
                [text] = subwords.decode_target([hypothesis.tokens])
                tree, is_whole = trees.restore(sentence.split(), text.split())
                assert is_whole
                assert tree.words() == sentence.split()
                openings = ["".join(run) for run in re.findall(r"(?:\(\w+ )+", text)]
                assert max((run.count("(") for run in openings), default=0) <= longest


def test_a_search_for_trees_needs_a_model_with_brackets(tmp_path: Path) -> None:
    with pytest.raises(NmtError, match=r"no SentencePiece model '.*'; set its key subwords"):
        tree_beam.brackets_of(str(tmp_path / "missing.model"))
