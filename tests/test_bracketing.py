import pytest
from for_each import for_each

from nmt.errors import NmtError
from nmt.evaluation.bracketing import (
    Bracketing,
    Tree,
    brackets,
    plain_label,
    read_trees,
    score_brackets,
    without_traces,
)

GOLD = "(TOP (S (NP-SBJ (NNP John)) (VP (VBZ has) (NP (DT a) (NN dog))) (. .)))"


def trees(*texts: str) -> list[Tree]:
    return [tree for text in texts for tree in read_trees(text, "here")]


def test_a_tree_is_read_and_written() -> None:
    (tree,) = trees(GOLD.replace(" (", "\n  ("))
    assert str(tree) == GOLD
    assert tree.words() == ["John", "has", "a", "dog", "."]


def test_a_tree_of_many_levels_is_scored() -> None:
    deep = trees("(S " * 399 + "(NN dog)" + ")" * 399)
    assert score_brackets(deep, deep).complete == 1


def test_a_tree_matches_itself_whatever_its_root_tags_and_traces() -> None:
    traced = GOLD.replace("(TOP", "(").replace("(NN dog)", "(NN dog) (-NONE- *T*-1)")
    traced = traced.replace("(VP", "(NP (-NONE- *))  (VP")
    result = score_brackets(trees(GOLD), trees(traced))
    assert result == Bracketing(sentences=1, matched=4, gold=4, proposed=4, complete=1)
    assert result.f1 == 100.0


@for_each("root", ["", "TOP", "S1", "ROOT"])
def test_no_root_is_a_bracket_though_evalb_knows_top_alone(root: str) -> None:
    result = score_brackets(trees(GOLD), trees(GOLD.replace("TOP", root)))
    assert result == Bracketing(sentences=1, matched=4, gold=4, proposed=4, complete=1)
    other = score_brackets(trees(GOLD), trees(GOLD.replace("TOP", "FRAG")))
    assert (other.matched, other.proposed) == (4, 5)


def test_brackets_counted_by_hand() -> None:
    # Gold: S(0,4) NP(0,1) VP(1,4) NP(2,4). Proposed: S(0,4) NP(0,1) VP(1,3) NP(2,3) NP(3,4).
    proposed = "(TOP (S (NP (NNP John)) (VP (VBZ has) (NP (DT a))) (NP (NN dog)) (. .)))"
    result = score_brackets(trees(GOLD), trees(proposed))
    assert result == Bracketing(sentences=1, matched=2, gold=4, proposed=5, complete=0)
    assert result.precision == pytest.approx(40.0)
    assert result.recall == pytest.approx(50.0)
    assert result.f1 == pytest.approx(100 * 2 * 2 / 9)


def test_the_same_bracket_twice_is_matched_at_most_twice() -> None:
    once = "(TOP (NP (NN dog)))"
    twice = "(TOP (NP (NP (NN dog))))"
    assert score_brackets(trees(once), trees(twice)).matched == 1
    assert score_brackets(trees(twice), trees(twice)).matched == 2


def test_a_tree_with_more_brackets_than_gold_or_fewer_is_not_complete() -> None:
    once, twice = trees("(TOP (NP (NN dog)))"), trees("(TOP (NP (NP (NN dog))))")
    assert score_brackets(once, twice).complete == 0
    assert score_brackets(twice, once).complete == 0


def test_a_phrase_of_traces_alone_goes_with_them() -> None:
    (tree,) = trees("(TOP (S (NP (-NONE- *)) (VP (VB go))))")
    assert str(without_traces(tree)) == "(TOP (S (VP (VB go))))"
    assert without_traces(tree.children[0].children[0]) is None


def test_advp_and_prt_are_one_label_and_tags_of_words_none() -> None:
    gold = "(TOP (VP (VB give) (PRT (RP up))))"
    proposed = "(TOP (VP (NN give) (ADVP (RB up))))"
    assert score_brackets(trees(gold), trees(proposed)).complete == 1


def test_where_punctuation_hangs_does_not_matter_nor_how_it_is_tagged() -> None:
    gold = "(TOP (S (NP (NN dog) (, ,)) (VP (VB go))))"
    proposed = "(TOP (S (NP (NN dog)) (NN ,) (VP (VB go))))"
    assert score_brackets(trees(gold), trees(proposed)).complete == 1


def test_a_phrase_of_punctuation_alone_is_no_bracket() -> None:
    (tree,) = trees("(TOP (S (NP (NN a)) (PRN (, ,) (: -)) (VP (VB b))))")
    expected = {("S", 0, 2): 1, ("NP", 0, 1): 1, ("VP", 1, 2): 1}
    assert brackets(tree, [True, False, False, True]) == expected


def test_a_plain_label_is_without_functions_and_indices() -> None:
    labels = {"NP-SBJ-1": "NP", "NP=2": "NP", "-NONE-": "-NONE-", "VP": "VP"}
    assert {label: plain_label(label) for label in labels} == labels


def test_trees_without_brackets_score_nothing() -> None:
    nothing = score_brackets([Tree("TOP")], [Tree("TOP")])
    assert (nothing.precision, nothing.recall, nothing.f1) == (0.0, 0.0, 0.0)


@for_each(
    ("text", "message"),
    [
        ("(S (NN dog)", "here: 1 brackets are not closed"),
        ("(NN dog))", "here: a closing bracket without an opening bracket"),
        ("dog", "here: 'dog' stands outside of every tree"),
        ("(NN big dog)", "a bracket holds one word, or other brackets"),
        ("(S)", "a bracket holds one word, or other brackets"),
        ("((NN dog) runs)", "a bracket holds one word, or other brackets"),
        ("(S " * 401 + "(NN dog)" + ")" * 401, "here: brackets are nested more than 400 deep"),
    ],
)
def test_a_text_that_holds_no_tree_is_refused(text: str, message: str) -> None:
    with pytest.raises(NmtError, match=message):
        trees(text)


def test_trees_of_other_sentences_are_refused() -> None:
    with pytest.raises(NmtError, match="tree 1: its words differ from the words of the gold tree"):
        score_brackets(trees(GOLD), trees("(TOP (NN cat))"))
    with pytest.raises(NmtError, match="0 trees for 1 gold trees"):
        score_brackets(trees(GOLD), [])
