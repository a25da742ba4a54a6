"""Scores trees by nmt and by PYEVALB (``pip install PYEVALB``) and prints the counts of both.

    python compare.py work/corpus/test.trees work/test.hyp.tree
    python compare.py work/corpus/train.trees

Without proposed trees, the gold ones are scored with a twentieth of their symbols left out.

PYEVALB knows no COLLINS.prm: it counts punctuation as words, the root as a bracket, and ADVP and
PRT as two labels. So both are given trees in which these rules change nothing: without punctuation,
with one label for the two; the root, which always matches, is taken off. What is left is one known
difference: of a bracket that occurs twice at the same words, PYEVALB matches one.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PYEVALB import parser as pyevalb_parser
from PYEVALB.scorer import Scorer
from trees import linearise, restore

from nmt.evaluation.bracketing import (
    PUNCTUATION,
    ROOTS,
    SAME,
    Tree,
    brackets,
    read_trees,
    score_brackets,
)


@dataclass(frozen=True)
class Comparison:
    """Matched, gold and proposed brackets by each, and the matches that only repeat another."""

    ours: tuple[int, int, int]
    theirs: tuple[int, int, int]
    repeated: int


def compare(gold: Sequence[Tree], proposed: Sequence[Tree]) -> Comparison:
    """Counts the brackets of all pairs of trees by both; trees without a bracket are left out."""
    ours, theirs, repeated = [0, 0, 0], [0, 0, 0], 0
    for right, tried in zip(gold, proposed, strict=True):
        counted = [leaf.label not in PUNCTUATION for leaf in right.preterminals()]
        pair = [without_punctuation(tree, counted) for tree in (right, tried)]
        if not any(counted):
            continue
        score = score_brackets([right], [tried])
        found = Scorer().score_trees(
            *(pyevalb_parser.create_from_bracket_string(str(tree)) for tree in pair)
        )
        for total, counts in (
            (ours, (score.matched, score.gold, score.proposed)),
            (
                theirs,
                (found.matched_brackets - 1, found.gold_brackets - 1, found.test_brackets - 1),
            ),
        ):
            total[:] = map(sum, zip(total, counts, strict=True))
        both = brackets(right, counted) & brackets(tried, counted)
        repeated += both.total() - len(both)
    return Comparison(tuple(ours), tuple(theirs), repeated)  # type: ignore[arg-type]


def without_punctuation(tree: Tree, counted: Sequence[bool]) -> Tree:
    """The tree below a root TOP without the words that do not count, and phrases of them alone."""
    words = iter(counted)

    def keep(node: Tree) -> Tree | None:
        if node.word is not None:
            return node if next(words) else None
        children = tuple(kept for child in node.children if (kept := keep(child)))
        return Tree(SAME.get(node.label, node.label), children) if children else None

    below = tree.children if tree.label in ROOTS else (tree,)
    return Tree("TOP", tuple(kept for child in below if (kept := keep(child))))


def damaged(trees: Sequence[Tree]) -> list[Tree]:
    """The trees that are restored when a twentieth of the symbols is missing."""
    chance = random.Random(1)
    return [
        restore(tree.words(), [it for it in linearise(tree, "tags") if chance.random() >= 0.05])[0]
        for tree in trees
    ]


def main() -> None:
    """Compares both on the trees of two files."""
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("gold", type=Path, help="a .trees file that trees.py split wrote")
    arguments.add_argument("proposed", type=Path, nargs="?", help="a line of symbols for each tree")
    given = arguments.parse_args()
    gold = list(read_trees(given.gold.read_text(encoding="utf-8"), str(given.gold)))
    if given.proposed:
        lines = given.proposed.read_text(encoding="utf-8").splitlines()
        proposed = [
            restore(tree.words(), line.split()) for tree, line in zip(gold, lines, strict=True)
        ]
    else:
        proposed = damaged(gold)
    result = compare(gold, proposed)
    for name, counts in (("nmt", result.ours), ("PYEVALB", result.theirs)):
        print(f"{name:<8} {counts[0]:,} matched, {counts[1]:,} gold, {counts[2]:,} proposed")
    print(f"matches that repeat another one: {result.repeated:,}")


if __name__ == "__main__":
    main()
