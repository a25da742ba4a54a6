"""Constituency parsing as translation: trees to lines of symbols and back, and their score.

    python trees.py split TREEBANK work/corpus
    python trees.py score work/corpus/test.trees work/test.hyp.tree

The linearisation is tensor2tensor's (after Vinyals et al. 2015): a symbol for every opening
bracket, tags of words included, and ``/LABEL`` where a phrase closes; no words.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from nmt.errors import NmtError
from nmt.evaluation.bracketing import Tree, plain_label, read_trees, score_brackets, without_traces

PHRASES = frozenset(
    """
    ADJP ADVP CONJP FRAG INTJ LST NAC NP NX PP PRN PRT QP RRC S SBAR SBARQ SINV SQ UCP VP
    WHADJP WHADVP WHNP WHPP X ADVP|PRT PRT|ADVP
    """.split()  # noqa: SIM905 (one label a word is easier to read)
)
"""The phrases of the Penn Treebank; every other symbol is the tag of a word."""


def plain(tree: Tree) -> Tree:
    """Gives the tree without functional tags."""
    return Tree(plain_label(tree.label), tuple(map(plain, tree.children)), tree.word)


def linearise(tree: Tree) -> list[str]:
    """Gives the symbols of all that is below the root."""
    symbols = []
    for child in tree.children:
        symbols.append(child.label)
        if child.word is None:
            symbols += [*linearise(child), f"/{child.label}"]
    return symbols


def restore(words: Sequence[str], symbols: Sequence[str]) -> Tree:
    """Gives the tree of a sentence, whatever the symbols are.

    What is ill-formed is repaired: a closing symbol closes what is open above its phrase too, or is
    ignored where there is none; tags beyond the words are dropped, words beyond the tags become
    nouns at the end; what is still open is closed; empty phrases are dropped.
    """
    root: tuple[str, list[Tree]] = ("TOP", [])
    open_ = [root]
    waiting = list(reversed(words))

    def close() -> None:
        label, children = open_.pop()
        if children:
            open_[-1][1].append(Tree(label, tuple(children)))

    for symbol in symbols:
        if symbol in PHRASES:
            open_.append((symbol, []))
        elif symbol.startswith("/"):
            if symbol[1:] in [label for label, _ in open_[1:]]:
                while open_[-1][0] != symbol[1:]:
                    close()
                close()
        elif waiting:
            open_[-1][1].append(Tree(symbol, word=waiting.pop()))
    while len(open_) > 1:
        close()
    missing = [Tree("NN", word=word) for word in reversed(waiting)]
    if missing and len(root[1]) == 1 and root[1][0].word is None:
        root[1][0] = Tree(root[1][0].label, (*root[1][0].children, *missing))
    elif missing:
        root[1][:] = [Tree("S", (*root[1], *missing))]
    return Tree("TOP", tuple(root[1]))


def is_well_formed(words: Sequence[str], symbols: Sequence[str]) -> bool:
    """Whether the symbols are a tree over as many words, so that nothing is repaired."""
    return linearise(restore(words, symbols)) == list(symbols) and len(words) == sum(
        symbol not in PHRASES and not symbol.startswith("/") for symbol in symbols
    )


def split(treebank: Path, output: Path) -> None:
    """Writes train, valid and test: words, symbols and gold trees, a sentence a line.

    Of the files wsj_0001 to wsj_0199 the last ten are the test set, the ten before them validation.
    """
    files = sorted(treebank.glob("wsj_*.mrg"))
    if not files:
        raise NmtError(f"{treebank}: no files wsj_*.mrg; give the directory of the trees")
    output.mkdir(parents=True, exist_ok=True)
    for name, part in (("train", files[:-20]), ("valid", files[-20:-10]), ("test", files[-10:])):
        trees = [tree for path in part for tree in sentences(path)]
        lines = {
            "word": [" ".join(tree.words()) for tree in trees],
            "tree": [" ".join(linearise(tree)) for tree in trees],
            "trees": [str(tree) for tree in trees],
        }
        for suffix, texts in lines.items():
            text = "".join(f"{line}\n" for line in texts)
            (output / f"{name}.{suffix}").write_text(text, encoding="utf-8")
        print(f"{name}: {len(trees):,} sentences of {part[0].stem} to {part[-1].stem}")


def sentences(path: Path) -> Iterator[Tree]:
    """Gives the trees of a file, without traces and functional tags, below a root TOP."""
    for tree in read_trees(path.read_text(encoding="utf-8"), str(path)):
        kept = without_traces(tree)
        if kept is not None:
            yield Tree("TOP", plain(kept).children)


def score(gold_path: Path, proposed_path: Path) -> str:
    """Gives F1 and the share of well-formed lines of symbols."""
    gold = list(read_trees(gold_path.read_text(encoding="utf-8"), str(gold_path)))
    lines = [line.split() for line in proposed_path.read_text(encoding="utf-8").splitlines()]
    if len(lines) != len(gold):
        raise NmtError(f"{proposed_path}: {len(lines)} lines for {len(gold)} trees")
    words = [tree.words() for tree in gold]
    result = score_brackets(gold, list(map(restore, words, lines)))
    well_formed = sum(map(is_well_formed, words, lines))
    return (
        f"labelled bracketing F1 = {result.f1:.2f} (precision {result.precision:.2f}, recall "
        f"{result.recall:.2f}), complete {100 * result.complete / result.sentences:.1f}%, "
        f"well-formed {100 * well_formed / result.sentences:.1f}% of {result.sentences} trees"
    )


def main() -> None:
    """Runs one of the two commands."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    splitting = commands.add_parser("split", help="trees to train, valid and test")
    splitting.add_argument("treebank", type=Path, help="directory with wsj_0001.mrg and others")
    splitting.add_argument("output", type=Path)
    scoring = commands.add_parser("score", help="F1 of translated symbols")
    scoring.add_argument("gold", type=Path, help="a .trees file that split wrote")
    scoring.add_argument("proposed", type=Path, help="a line of symbols for each tree")
    arguments = parser.parse_args()
    try:
        if arguments.command == "split":
            split(arguments.treebank, arguments.output)
        else:
            print(score(arguments.gold, arguments.proposed))
    except NmtError as error:
        parser.exit(1, f"trees.py: error: {error}\n")


if __name__ == "__main__":
    main()
