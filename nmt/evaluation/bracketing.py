"""Labelled bracketing F1 of constituency trees, by the rules of EVALB with COLLINS.prm.

A bracket is (label, first word, last word) of a phrase; preterminals and the root have no bracket.
Traces are removed, punctuation is not counted among the words, PRT is the same label as ADVP, and
functional tags (NP-SBJ) are ignored. Four differences from EVALB:

- S1, ROOT and an empty label are roots, too. With COLLINS.prm EVALB only knows TOP, and counts a
  bracket for any other root.
- The tags of the gold tree decide which words of both trees are punctuation. EVALB uses the tags of
  each tree, and skips a sentence if the two trees then have different words.
- A tree whose words differ from the gold tree is an error. EVALB skips the sentence, and stops
after MAX_ERROR sentences.
- All sentences count. EVALB also prints the numbers for sentences of up to 40 words.
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
# Trees are walked by recursion, which Python limits.
MAX_DEPTH = 400
"""Largest depth of nested brackets."""


@dataclass(frozen=True)
class Tree:
    """A phrase with its children, or a preterminal with its word."""

    label: str
    children: tuple[Tree, ...] = ()
    word: str | None = None
    """The word of a preterminal; a preterminal has no children."""

    def __str__(self) -> str:
        inside = self.word if self.word is not None else " ".join(map(str, self.children))
        return f"({self.label} {inside})"

    def preterminals(self) -> Iterator[Tree]:
        """Yield the preterminals, from left to right."""
        if self.word is not None:
            yield self
        for child in self.children:
            yield from child.preterminals()

    def words(self) -> list[str]:
        """Return the words, from left to right."""
        return [str(leaf.word) for leaf in self.preterminals()]


def read_trees(text: str, where: str) -> Iterator[Tree]:
    """Yield the trees of a text in bracket notation; a tree may take several lines.

    Raises:
        NmtError: brackets do not match or are nested too deeply, or a word stands outside of a
            preterminal.
    """
    open_: list[tuple[str, list[Tree], list[str]]] = []
    tokens = re.findall(r"[()]|[^()\s]+", text)
    for at, token in enumerate(tokens):
        if token == "(":
            label = tokens[at + 1] if at + 1 < len(tokens) else ""
            # The outermost brackets of the Penn Treebank have no label.
            open_.append(("" if label in "()" else label, [], []))
            if len(open_) > MAX_DEPTH:
                raise NmtError(f"{where}: brackets are nested more than {MAX_DEPTH} deep")
        elif token != ")":
            if not open_:
                raise NmtError(f"{where}: {token!r} stands outside of every tree")
            open_[-1][2].append(token)  # the label first, then the word
        elif not open_:
            raise NmtError(f"{where}: a closing bracket without an opening bracket")
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
    """Return the label without functional tags and indices: NP for NP-SBJ-1; -NONE- is kept."""
    return label if label.startswith("-") else re.split(r"[-=]", label, maxsplit=1)[0]


def brackets(tree: Tree, counted: Sequence[bool]) -> Counter[tuple[str, int, int]]:
    """Return the brackets of a tree, each with the number of its occurrences.

    Args:
        tree: a tree without traces.
        counted: for each word of the tree, whether the word counts; punctuation does not.
    """
    spans: Counter[tuple[str, int, int]] = Counter()
    words = iter(counted)

    def walk(node: Tree, start: int) -> int:
        """Count the brackets of a tree whose first counted word is `start`; return its end."""
        if node.word is not None:
            return start + next(words)
        end = start
        for child in node.children:
            end = walk(child, end)
        label = plain_label(node.label)
        # A phrase of punctuation alone holds no counted word.
        if label not in ROOTS and end > start:
            spans[SAME.get(label, label), start, end] += 1
        return end

    walk(tree, 0)
    return spans


def without_traces(tree: Tree) -> Tree | None:
    """Return the tree without -NONE- and without empty phrases; None if nothing is left."""
    if tree.word is not None:
        return None if tree.label == "-NONE-" else tree
    children = tuple(kept for child in tree.children if (kept := without_traces(child)))
    return Tree(tree.label, children) if children else None


@dataclass(frozen=True)
class Bracketing:
    """Numbers of brackets over a set of sentences."""

    sentences: int
    matched: int
    """Brackets in both trees."""
    gold: int
    proposed: int
    complete: int
    """Sentences whose brackets all match."""

    @property
    def precision(self) -> float:
        """Matched brackets in per cent of the proposed brackets."""
        return 100 * self.matched / self.proposed if self.proposed else 0.0

    @property
    def recall(self) -> float:
        """Matched brackets in per cent of the gold brackets."""
        return 100 * self.matched / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall, in per cent."""
        total = self.gold + self.proposed
        return 200 * self.matched / total if total else 0.0


def score_brackets(gold: Sequence[Tree], proposed: Sequence[Tree]) -> Bracketing:
    """Compare the proposed trees with the gold trees of the same sentences.

    Raises:
        NmtError: the numbers of trees differ, or the words of a tree and its gold tree do.
    """
    if len(gold) != len(proposed):
        raise NmtError(f"{len(proposed)} trees for {len(gold)} gold trees; give one tree for each")
    matched = num_gold = num_proposed = complete = 0
    for number, pair in enumerate(zip(gold, proposed, strict=True), 1):
        gold_tree, proposed_tree = (without_traces(tree) or Tree("") for tree in pair)
        if gold_tree.words() != proposed_tree.words():
            raise NmtError(f"tree {number}: its words differ from the words of the gold tree")
        counted = [leaf.label not in PUNCTUATION for leaf in gold_tree.preterminals()]
        gold_spans, spans = brackets(gold_tree, counted), brackets(proposed_tree, counted)
        # Multisets, because a chain of single children may repeat a bracket.
        both = (gold_spans & spans).total()
        matched += both
        num_gold += gold_spans.total()
        num_proposed += spans.total()
        complete += both == gold_spans.total() == spans.total()
    return Bracketing(len(gold), matched, num_gold, num_proposed, complete)
