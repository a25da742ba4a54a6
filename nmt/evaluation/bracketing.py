"""Labelled bracketing F1 of constituency trees, by the rules of EVALB with COLLINS.prm.

Brackets are (label, first word, last word) of phrases; preterminals are none. Traces are taken out,
punctuation is not counted among the words, the root is no bracket, ADVP is PRT, and functional tags
(NP-SBJ) say nothing. This departs from EVALB in four things:

- S1, ROOT and an empty label are roots, too. With COLLINS.prm EVALB knows TOP alone, and counts a
  bracket for any other root.
- The gold tree's tags say what is punctuation in both trees. EVALB goes by the tags of each tree,
  and skips a sentence in which they leave different words.
- A tree of other words is an error. EVALB skips the sentence, and gives up after MAX_ERROR of them.
- All sentences count. EVALB also prints the numbers of those up to 40 words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nmt.errors import NmtError

ROOTS = frozenset({"", "TOP", "S1", "ROOT"})
PUNCTUATION = frozenset({",", ":", "``", "''", "."})
SAME = {"PRT": "ADVP"}


@dataclass(frozen=True)
class Tree:
    """A phrase with its parts, or a preterminal with its word."""

    label: str
    children: tuple[Tree, ...] = ()
    word: str | None = None
    """Of a preterminal, which has no children."""

    def __str__(self) -> str:
        inside = self.word if self.word is not None else " ".join(map(str, self.children))
        return f"({self.label} {inside})"

    def preterminals(self) -> Iterator[Tree]:
        """The preterminals, from left to right."""
        if self.word is not None:
            yield self
        for child in self.children:
            yield from child.preterminals()

    def words(self) -> list[str]:
        """The words, from left to right."""
        return [str(leaf.word) for leaf in self.preterminals()]


def read_trees(text: str, where: str) -> Iterator[Tree]:
    """The trees of a text in bracket notation, over as many lines as they take.

    Raises:
        NmtError: brackets do not match, or something stands where it cannot.
    """
    open_: list[tuple[str, list[Tree], list[str]]] = []
    tokens = re.findall(r"[()]|[^()\s]+", text)
    for at, token in enumerate(tokens):
        if token == "(":
            label = tokens[at + 1] if at + 1 < len(tokens) else ""
            open_.append(("" if label in "()" else label, [], []))
        elif token != ")":
            if not open_:
                raise NmtError(f"{where}: {token!r} stands outside of every tree")
            open_[-1][2].append(token)  # the label first, and then the word
        elif not open_:
            raise NmtError(f"{where}: a closing bracket without an opening one")
        else:
            label, children, names = open_.pop()
            words = names[1:] if label else names
            if len(words) > 1 or bool(words) == bool(children):
                raise NmtError(f"{where}: ({label}: a bracket holds one word, or other brackets")
            tree = Tree(label, tuple(children), words[0] if words else None)
            if open_:
                open_[-1][1].append(tree)
            else:
                yield tree
    if open_:
        raise NmtError(f"{where}: {len(open_)} brackets are not closed")


def plain_label(label: str) -> str:
    """The label without functional tags and indices: NP of NP-SBJ-1; -NONE- and -LRB- stay."""
    return label if label.startswith("-") else re.split(r"[-=]", label, maxsplit=1)[0]


def brackets(tree: Tree, counted: Sequence[bool]) -> Counter[tuple[str, int, int]]:
    """The brackets that count, each as often as it occurs.

    Args:
        tree: without traces.
        counted: of each of its words, whether it counts; punctuation does not.
    """
    found: Counter[tuple[str, int, int]] = Counter()
    words = iter(counted)

    def walk(node: Tree, start: int) -> int:
        if node.word is not None:
            return start + next(words)
        end = start
        for child in node.children:
            end = walk(child, end)
        label = plain_label(node.label)
        if label not in ROOTS and end > start:
            found[SAME.get(label, label), start, end] += 1
        return end

    walk(tree, 0)
    return found


def without_traces(tree: Tree) -> Tree | None:
    """The tree without -NONE- and the phrases that held nothing else; None if nothing is left."""
    if tree.word is not None:
        return None if tree.label == "-NONE-" else tree
    children = tuple(kept for child in tree.children if (kept := without_traces(child)))
    return Tree(tree.label, children) if children else None


@dataclass(frozen=True)
class Bracketing:
    """Counts over a set of sentences."""

    sentences: int
    matched: int
    """Brackets that are in both trees."""
    gold: int
    proposed: int
    complete: int
    """Sentences of which all brackets match."""

    @property
    def precision(self) -> float:
        """Per cent of the proposed brackets."""
        return 100 * self.matched / self.proposed if self.proposed else 0.0

    @property
    def recall(self) -> float:
        """Per cent of the gold brackets."""
        return 100 * self.matched / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of both."""
        total = self.gold + self.proposed
        return 200 * self.matched / total if total else 0.0


def score_brackets(gold: Sequence[Tree], proposed: Sequence[Tree]) -> Bracketing:
    """How well the proposed trees agree with the gold ones of the same sentences.

    Raises:
        NmtError: there is not one tree for every gold tree, or its words are others.
    """
    if len(gold) != len(proposed):
        raise NmtError(f"{len(proposed)} trees for {len(gold)} gold trees; give one for each")
    matched = num_gold = num_proposed = complete = 0
    for number, pair in enumerate(zip(gold, proposed, strict=True), 1):
        right, tried = (without_traces(tree) or Tree("") for tree in pair)
        if right.words() != tried.words():
            raise NmtError(f"tree {number}: its words are not those of the gold tree")
        counted = [leaf.label not in PUNCTUATION for leaf in right.preterminals()]
        own, other = brackets(right, counted), brackets(tried, counted)
        both = (own & other).total()
        matched += both
        num_gold += own.total()
        num_proposed += other.total()
        complete += both == own.total() == other.total()
    return Bracketing(len(gold), matched, num_gold, num_proposed, complete)
