"""Constituency parsing as translation: trees to lines of symbols and back, and their score.

    python trees.py split TREEBANK work/corpus --leaves words
    python trees.py score work/corpus/test.trees work/test.hyp.tree

A phrase is linearised as ``(NP``, its children and ``NP)``, after Vinyals et al. 2015. A leaf is
one of

- ``tags``: the tag of the word, as in tensor2tensor, and so in *Attention Is All You Need*;
- ``xx``: XX for each word, as in Vinyals et al. 2015;
- ``words``: the word itself, so that attention can follow the sentence by its words.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from nmt.errors import NmtError
from nmt.evaluation.bracketing import Tree, plain_label, read_trees, score_brackets, without_traces

PHRASES = frozenset(
    """
    ADJP ADVP CONJP FRAG INTJ LST NAC NP NX PP PRN PRT QP RRC S SBAR SBARQ SINV SQ UCP VP
    WHADJP WHADVP WHNP WHPP X ADVP|PRT PRT|ADVP
    """.split()  # noqa: SIM905 (one label a word is easier to read)
)
"""The phrases of the Penn Treebank; a symbol without such a label and a bracket is a leaf."""

LEAVES: dict[str, Callable[[Tree], str]] = {
    "tags": lambda leaf: leaf.label,
    "xx": lambda leaf: "XX",
    "words": lambda leaf: str(leaf.word),
}
"""The symbol of a leaf, by the value of ``--leaves``."""


def plain(tree: Tree) -> Tree:
    """Return the tree without functional tags."""
    return Tree(plain_label(tree.label), tuple(map(plain, tree.children)), tree.word)


def linearise(tree: Tree, leaves: str) -> list[str]:
    """Return the symbols of all that is below the root; `leaves` is a key of ``LEAVES``."""
    symbols = []
    for child in tree.children:
        if child.word is None:
            symbols += [f"({child.label}", *linearise(child, leaves), f"{child.label})"]
        else:
            symbols.append(LEAVES[leaves](child))
    return symbols


def links(tree: Tree) -> str:
    """Return word alignments in Pharaoh format: from the word that comes next to each symbol.

    A leaf is aligned to its own word, and a bracket to the word that follows the bracket, or to the
    last word. Attention that is guided so keeps the place in the sentence.
    """
    last = len(tree.words()) - 1
    consumed, pairs = 0, []
    for place, symbol in enumerate(linearise(tree, "xx")):
        pairs.append(f"{min(consumed, last)}-{place}")
        consumed += symbol == "XX"
    return " ".join(pairs)


def restore(words: Sequence[str], symbols: Sequence[str]) -> tuple[Tree, bool]:
    """Return the tree of a sentence, whatever the symbols are, and whether they needed no repair.

    A closing symbol closes the phrases within its phrase, too, or is ignored if its phrase is not
    open. Leaves beyond the words are dropped, and words beyond the leaves are added at the end.
    Phrases that are still open are closed, and empty phrases are dropped.
    """
    root: tuple[str, list[Tree]] = ("TOP", [])
    open_ = [root]
    waiting = list(reversed(words))
    is_whole = True

    def close() -> bool:
        label, children = open_.pop()
        if children:
            open_[-1][1].append(Tree(label, tuple(children)))
        return bool(children)

    for symbol in symbols:
        if symbol.startswith("(") and symbol[1:] in PHRASES:
            open_.append((symbol[1:], []))
        elif symbol.endswith(")") and symbol[:-1] in PHRASES:
            is_open = symbol[:-1] in [label for label, _ in open_[1:]]
            is_whole &= is_open and open_[-1][0] == symbol[:-1]
            while is_open and open_[-1][0] != symbol[:-1]:
                close()
            is_whole &= is_open and close()
        elif waiting:
            open_[-1][1].append(Tree(symbol, word=waiting.pop()))
        else:
            is_whole = False
    is_whole &= len(open_) == 1 and not waiting
    while len(open_) > 1:
        close()
    missing = [Tree("XX", word=word) for word in reversed(waiting)]
    if missing and len(root[1]) == 1 and root[1][0].word is None:
        root[1][0] = Tree(root[1][0].label, (*root[1][0].children, *missing))
    elif missing:
        root[1][:] = [Tree("S", (*root[1], *missing))]
    return Tree("TOP", tuple(root[1])), is_whole


def split(treebank: Path, output: Path, leaves: str) -> None:
    """Write train, valid and test: words, symbols, gold trees and alignments, a sentence a line.

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
            "tree": [" ".join(linearise(tree, leaves)) for tree in trees],
            "trees": [str(tree) for tree in trees],
            "align": [links(tree) for tree in trees],
        }
        for suffix, texts in lines.items():
            text = "".join(f"{line}\n" for line in texts)
            (output / f"{name}.{suffix}").write_text(text, encoding="utf-8")
        print(f"{name}: {len(trees):,} sentences of {part[0].stem} to {part[-1].stem}")


def sentences(path: Path) -> Iterator[Tree]:
    """Yield the trees of a file, without traces and functional tags, below a root TOP."""
    for tree in read_trees(path.read_text(encoding="utf-8"), str(path)):
        kept = without_traces(tree)
        if kept is not None:
            yield Tree("TOP", plain(kept).children)


def score(gold_path: Path, proposed_path: Path) -> str:
    """Return F1 and the share of well-formed lines of symbols."""
    gold = list(read_trees(gold_path.read_text(encoding="utf-8"), str(gold_path)))
    lines = [line.split() for line in proposed_path.read_text(encoding="utf-8").splitlines()]
    if len(lines) != len(gold):
        raise NmtError(f"{proposed_path}: {len(lines)} lines for {len(gold)} trees")
    restored = [restore(tree.words(), line) for tree, line in zip(gold, lines, strict=True)]
    result = score_brackets(gold, [tree for tree, _ in restored])
    well_formed = sum(is_whole for _, is_whole in restored)
    return (
        f"labelled bracketing F1 = {result.f1:.2f} (precision {result.precision:.2f}, recall "
        f"{result.recall:.2f}), complete {100 * result.complete / result.sentences:.1f}%, "
        f"well-formed {100 * well_formed / result.sentences:.1f}% of {result.sentences} trees"
    )


def main() -> None:
    """Run one of the two commands."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    splitting = commands.add_parser("split", help="trees to train, valid and test")
    splitting.add_argument("treebank", type=Path, help="directory with wsj_0001.mrg and others")
    splitting.add_argument("output", type=Path)
    splitting.add_argument("--leaves", choices=LEAVES, default="tags", help="symbols of words")
    scoring = commands.add_parser("score", help="F1 of translated symbols")
    scoring.add_argument("gold", type=Path, help="a .trees file that split wrote")
    scoring.add_argument("proposed", type=Path, help="a line of symbols for each tree")
    arguments = parser.parse_args()
    try:
        if arguments.command == "split":
            split(arguments.treebank, arguments.output, arguments.leaves)
        else:
            print(score(arguments.gold, arguments.proposed))
    except NmtError as error:
        parser.exit(1, f"trees.py: error: {error}\n")


if __name__ == "__main__":
    main()
