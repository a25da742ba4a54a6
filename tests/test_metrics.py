from __future__ import annotations

import logging
import math
import random
import sys
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import version
from io import StringIO

import pytest
import sacrebleu
from for_each import for_each
from sacrebleu.metrics import BLEU, CHRF, TER
from sacremoses import MosesPunctNormalizer, MosesTokenizer
from tqdm import tqdm

from nmt.errors import NmtError
from nmt.evaluation.metrics import (
    Bleu,
    Chrf,
    Metric,
    PaperBleu,
    ScoreConfig,
    Ter,
    metrics,
    split_compounds,
)
from nmt.evaluation.rewards import Gleu
from nmt.recipe.config import build, dump

BY_REFERENCE = [name for name in metrics if not metrics[name].needs_source]
HYPOTHESIS = ["a b c d e"]
REFERENCE = ["a b c d f"]  # of the hypothesis's n-grams, 4/5, 3/4, 2/3 and 1/2 are in it


def test_bleu_is_the_geometric_mean_of_the_four_precisions():
    score = metrics["bleu"].score(HYPOTHESIS, REFERENCE)
    assert score.value == pytest.approx(100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** (1 / 4))
    assert score.details == (
        "80.0/75.0/66.7/50.0 (BP = 1.000 ratio = 1.000 hyp_len = 5 ref_len = 5)"
    )
    assert score.signature == (
        f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{version('sacrebleu')}"
    )


def test_bleu_pays_for_brevity():
    score = metrics["bleu"].score(["a b c d"], ["a b c d e"])
    assert score.value == pytest.approx(100 * math.exp(1 - 5 / 4))
    assert score.details == (
        "100.0/100.0/100.0/100.0 (BP = 0.779 ratio = 0.800 hyp_len = 4 ref_len = 5)"
    )


def test_bleu_heeds_case_unless_told_otherwise():
    assert metrics["bleu"].score(["A B C D"], ["a b c d"]).value == 0
    ignoring = Bleu(lowercase=True).score(["A B C D"], ["a b c d"])
    assert ignoring.value == pytest.approx(100)
    assert "case:lc" in ignoring.signature


def test_bleu_smooths_an_order_without_a_match_and_multi_bleu_does_not():
    hypothesis, reference = ["a b c x e"], ["a b c d e"]  # no 4-gram in common
    smoothed = metrics["bleu"].score(hypothesis, reference)
    assert smoothed.value == pytest.approx(100 * (4 / 5 * 2 / 4 * 1 / 3 * 1 / (2 * 2)) ** (1 / 4))
    assert metrics["tokenized_bleu"].score(hypothesis, reference).value == 0


@for_each("seed", range(20))
def test_tokenized_bleu_is_multi_bleu_on_the_words_as_they_are(seed: int):
    rng = random.Random(seed)
    hypotheses = [random_line(rng, ["a", "b", "A", "b.", "(b"]) for _ in range(5)]
    references = [random_line(rng, ["a", "b", "A", "b.", "(b"]) for _ in range(5)]
    score = metrics["tokenized_bleu"].score(hypotheses, references)
    assert score.value == pytest.approx(multi_bleu(hypotheses, references))
    assert "case:mixed" in score.signature
    assert "tok:none|smooth:none" in score.signature


SACREBLEU = {
    "bleu": BLEU(),
    "tokenized_bleu": BLEU(tokenize="none", smooth_method="none", force=True),
    "chrf": CHRF(),
    "chrf++": CHRF(word_order=2),
    "ter": TER(),
}


@for_each(
    ("name", "most"), [(name, most) for name in (*SACREBLEU, "paper_bleu") for most in (1, 2, 3, 0)]
)
def test_several_references_are_scored_as_sacrebleu_does(name: str, most: int):
    """Zero: some sentences have fewer references."""
    rng = random.Random(most)
    words = ["der", "Hund", "bellt", "laut", "und", "lang"]
    hypotheses, *streams = ([random_line(rng, words) for _ in range(20)] for _ in range(most or 3))
    streams.append([f"{line} heute" for line in hypotheses])
    theirs: list[list[str | None]] = [[*stream] for stream in streams]
    if not most:
        theirs[0][:7], theirs[1][:4] = [None] * 7, [None] * 4
    ours = [[line for line in row if line is not None] for row in zip(*theirs, strict=True)]
    score = metrics[name].score(hypotheses, ours)
    scorer = SACREBLEU.get(name, SACREBLEU["tokenized_bleu"])
    assert score.value == scorer.corpus_score(hypotheses, theirs).score  # type: ignore[arg-type]
    number = f"nrefs:{most or 'var'}|"
    assert number in score.signature
    assert number in str(scorer.get_signature())
    if name in SACREBLEU:
        assert score.signature.removeprefix("beta:2|") == str(scorer.get_signature())
    alone = metrics[name].score(hypotheses, streams[-1])
    assert "nrefs:1|" in alone.signature  # whatever was scored before


def test_what_a_metric_does_not_take_as_references_is_refused():
    metrics["bleu"].score(["a"], [["b", "a"]])
    for name, references, told in (
        ("bleu", ["a", []], "sentence 2 has no reference; give one or more"),
        ("bleu", [["a", "b"]], "2 hypotheses but 1 references"),
        (
            "one",
            [["a", "b"], "a"],
            "one takes one reference for each sentence; give one, or choose",
        ),
    ):
        metric = metrics["bleu"] if name == "bleu" else One(name=name)
        with pytest.raises(NmtError, match=told):
            metric.score(["a", "b"], references)
    assert One(name="one").score(["a", "b"], [["a"], "c"]).value == 50


@dataclass(frozen=True, kw_only=True)
class One(Metric):
    """Per cent of the translations that equal their only reference."""

    def counts(self, hypotheses, references, sources):
        return [[float(one == other)] for one, other in zip(hypotheses, references, strict=True)]

    def compute(self, counts):
        return 100 * sum(row[0] for row in counts) / len(counts), ""

    def signature(self):
        return "nrefs:1|version:1"


def test_chrf_of_single_characters_is_their_f_score():
    score = Chrf(char_order=1).score(["ab"], ["acde"])
    precision, recall = 1 / 2, 1 / 4
    assert score.value == pytest.approx(100 * 5 * precision * recall / (4 * precision + recall))
    assert score.signature.startswith("beta:2|nrefs:1|case:mixed|eff:yes|nc:1|nw:0|space:no|")


def test_chrf_plus_plus_counts_words_too():
    assert metrics["chrf++"].score(HYPOTHESIS, REFERENCE).details == "(chrF2++)"
    assert metrics["chrf"].score(HYPOTHESIS, REFERENCE).details == "(chrF2)"


def test_chrf_ignores_case_when_told_to():
    assert Chrf(lowercase=True).score(["AB"], ["ab"]).value == pytest.approx(100)
    assert Chrf().score(["AB"], ["ab"]).value == 0


def test_ter_counts_edits_per_reference_word_and_less_is_better():
    score = metrics["ter"].score(HYPOTHESIS, REFERENCE)
    assert score.value == pytest.approx(100 / 5)
    assert score.details == "(edits = 1 ref_len = 5)"
    assert not score.higher_is_better
    assert f"case:lc|tok:tercom|norm:no|punct:yes|asian:no|version:{version('sacrebleu')}" in (
        score.signature
    )


def test_ter_settings_reach_sacrebleu():
    assert metrics["ter"].score(["A b"], ["a b"]).value == 0
    assert Ter(lowercase=False).score(["A b"], ["a b"]).value == pytest.approx(50)
    assert Ter(normalize=True).score(["a b ."], ["a b."]).value == 0
    assert "asian:yes" in Ter(asian=True).score(["a"], ["a"]).signature


@for_each(
    ("line", "split"),
    [
        ("rich-text format", "rich ##AT##-##AT## text format"),
        ("a-b-c", "a ##AT##-##AT## b-c"),
        ("ab-cd-ef", "ab ##AT##-##AT## cd ##AT##-##AT## ef"),
        ("vor- und nach -", "vor- und nach -"),
        ("-a", "-a"),
        ("Über-Ärger", "Über ##AT##-##AT## Ärger"),
        ("a--b", "a ##AT##-##AT## -b"),
    ],
)
def test_a_compound_is_split_at_a_hyphen_whose_letters_are_not_yet_used(line: str, split: str):
    assert split_compounds(line) == split
    assert split_at_hyphens(line) == split


def test_ter_splits_chinese_and_japanese_unless_told_otherwise():
    hypothesis, reference = ["我爱猫。"], ["我爱狗。"]
    split = [(language, "yes", 25) for language in ("zh", "zh-TW", "zh_Hant", "ja")]
    for language, asian, value in [*split, ("de", "no", 100)]:
        score = metrics["ter"].for_language(language).score(hypothesis, reference)
        assert score.value == pytest.approx(value)
        assert f"norm:{asian}|punct:yes|asian:{asian}" in score.signature
    whole = Ter(normalize=False, asian=False).for_language("zh")
    assert whole.score(hypothesis, reference).value == pytest.approx(100)


def test_ter_keeps_the_tokenisation_that_is_asked_for():
    for language, other in (("zh", False), ("de", True)):
        asked = Ter(normalize=other).for_language(language)
        assert (asked.normalize, asked.asian) == (other, not other)
        asked = Ter(asian=other).for_language(language)
        assert (asked.normalize, asked.asian) == (not other, other)


def test_paper_bleu_of_a_checkable_pair():
    # Gut ##AT##-##AT## Haus , ja ! against Gut ##AT##-##AT## Hof , ja !
    score = metrics["paper_bleu"].score(["Gut-Haus, ja!"], ["Gut-Hof, ja!"])
    assert score.value == pytest.approx(100 * (5 / 6 * 3 / 5 * 1 / 4 * 0) ** (1 / 4))
    assert score.details == "83.3/60.0/25.0/0.0 (BP = 1.000 ratio = 1.000 hyp_len = 6 ref_len = 6)"
    assert score.signature == (
        "nrefs:1|case:mixed|eff:no|unicode-punctuation:hypothesis|tok:moses-de|compounds:split|"
        f"smooth:none|sacremoses:{version('sacremoses')}|version:{version('sacrebleu')}"
    )


def test_paper_bleu_normalises_the_hypothesis_and_the_reference_only_on_demand():
    quoted, plain = ["er sagt “ja” und geht"], ['er sagt "ja" und geht']
    assert PaperBleu().score(quoted, plain).value == pytest.approx(100)
    assert PaperBleu().score(plain, quoted).value < 100
    both = PaperBleu(normalize_reference=True).score(plain, quoted)
    assert both.value == pytest.approx(100)
    assert "unicode-punctuation:both" in both.signature


def test_paper_bleu_can_leave_compounds_whole():
    whole = PaperBleu(split_compounds=False).score(["ein b-c d e"], ["ein b-c d f"])
    assert "hyp_len = 4 ref_len = 4" in whole.details
    assert "compounds:whole" in whole.signature


def test_paper_bleu_tokenises_by_the_rules_of_the_target_language():
    french = PaperBleu(target_lang="fr").score(["l'eau"], ["l'eau"])
    assert "hyp_len = 2 " in french.details  # l' eau
    assert "tok:moses-fr" in french.signature
    assert "hyp_len = 3 " in PaperBleu().score(["l'eau"], ["l'eau"]).details  # l ' eau


@for_each("seed", range(20))
def test_paper_bleu_is_the_protocol_step_by_step(seed: int):
    rng = random.Random(seed)
    pieces = [
        "Haus",
        "z.B.",
        "Tür-an-Tür",
        "a-b-c",
        "3,5",
        '"x"',
        "l'eau",
        "“so”",
        "…",
        "<&>-|[",
        ".",
    ]
    hypotheses = [random_line(rng, pieces) for _ in range(8)]
    references = [random_line(rng, pieces) for _ in range(8)]
    moses = MosesTokenizer("de")
    normalise = MosesPunctNormalizer().replace_unicode_punct

    def tokenise(line: str) -> str:  # escaped, as tokenizer.perl writes it
        return split_at_hyphens(moses.tokenize(line, return_str=True))

    expected = sacrebleu.corpus_bleu(
        [tokenise(normalise(line)) for line in hypotheses],
        [[tokenise(line) for line in references]],
        tokenize="none",
        smooth_method="none",
        force=True,
    )
    assert metrics["paper_bleu"].score(hypotheses, references).value == expected.score


@for_each("name", BY_REFERENCE)
def test_a_perfect_translation_scores_best(name: str):
    metric = metrics[name]
    lines = ["Das ist ein kleiner Test .", "Und noch ein zweiter !"]
    score = metric.score(lines, lines)
    assert score.value == pytest.approx(100 if metric.higher_is_better else 0)
    assert score.metric == name
    assert score.higher_is_better == metric.higher_is_better


@for_each("name", BY_REFERENCE)
def test_a_score_is_printed_with_its_name_and_whole_signature(name: str):
    score = metrics[name].score(HYPOTHESIS, REFERENCE)
    assert str(score) == f"{name} = {score.value:.2f} {score.details} {score.signature}"
    # wer and per count tokens and nothing else, so their signatures are whole without a version.
    assert name in ("wer", "per") or f"version:{version('sacrebleu')}" in score.signature


@for_each("name", BY_REFERENCE)
def test_empty_translations_are_scored_as_any_other(name: str):
    metric = metrics[name]
    worst = metric.score(["", ""], ["ein Satz", "noch einer"])
    assert worst.value == pytest.approx(0 if metric.higher_is_better else 100)


@for_each("name", BY_REFERENCE)
def test_hypotheses_and_references_must_pair_up(name: str):
    with pytest.raises(NmtError, match=r"^3 hypotheses but 2 references; line n of both"):
        metrics[name].score(["a", "b", "c"], ["a", "b"])


@for_each("name", BY_REFERENCE)
def test_an_empty_test_set_has_no_score(name: str):
    with pytest.raises(NmtError, match=r"^nothing to score: no hypotheses and no references$"):
        metrics[name].score([], [])


class Exact(Metric):
    needs_source = True

    def counts(self, hypotheses, references, sources):
        return [[float(h == r), 1.0] for h, r in zip(hypotheses, references, strict=True)]

    def compute(self, counts):
        matches, lines = map(sum, zip(*counts, strict=True))
        return 100 * matches / lines, f"({matches:.0f} of {lines:.0f})"

    def signature(self):
        return "exact"


def test_a_new_metric_is_what_it_counts_what_that_makes_and_a_signature():
    score = Exact(name="mine").score(["a", "b"], ["a", "c"], ["x", "y"])
    assert str(score) == "mine = 50.00 (1 of 2) exact"


@pytest.mark.parametrize("counts", [[[1.0]], [[1.0], [1.0, 2.0]], [1.0, 1.0], [[1.0]] * 3])
def test_counts_are_equally_many_for_each_sentence(
    counts: list[list[float]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Exact, "counts", lambda *given: counts)
    with pytest.raises(NmtError, match="equally many numbers for each of 2 sentences"):
        Exact().score(["a", "b"], ["a", "b"], ["x", "y"])


def test_a_metric_that_needs_the_source_says_so():
    with pytest.raises(NmtError, match=r"^mine needs the text that was translated; give --source$"):
        Exact(name="mine").score(["a"], ["a"])
    with pytest.raises(NmtError, match=r"^2 source lines but 1 references; line n of both"):
        Exact(name="mine").score(["a"], ["a"], ["x", "y"])


@for_each("name", ["bleu", "chrf", "chrf++", "ter"])
def test_the_score_of_one_sentence_is_what_sacrebleu_gives_it(name: str):
    rng = random.Random(name)
    theirs = {
        "bleu": BLEU(effective_order=True),
        "chrf": CHRF(),
        "chrf++": CHRF(word_order=2),
        "ter": TER(),
    }[name]
    words = ["der", "die", "das", "Hund", ".", "Katze"]
    hypotheses, references = ([random_line(rng, words) for _ in range(20)] for _ in range(2))
    metric = metrics[name].for_sentences()
    counts = metric.checked_counts(hypotheses, references)
    values = [metric.total([row]).value for row in counts]
    assert len(set(values)) > 10
    assert values == [
        theirs.sentence_score(hypothesis, [reference]).score
        for hypothesis, reference in zip(hypotheses, references, strict=True)
    ]
    assert metric.total(counts).value == metric.score(hypotheses, references).value


def test_a_bleu_of_sentences_is_another_than_that_of_a_test_set():
    assert "eff:yes" in metrics["bleu"].for_sentences().signature()
    assert "eff:no" in metrics["bleu"].signature()


@pytest.mark.parametrize("name", ["paper_bleu", "tokenized_bleu"])
def test_a_bleu_that_is_not_smoothed_is_not_for_sentences(name: str):
    with pytest.raises(NmtError) as error:
        metrics[name].for_sentences()
    assert str(error.value) == (
        f"{name}: a BLEU that is not smoothed says nothing about one sentence; choose bleu or chrf"
    )


def test_the_section_names_bleu_and_chrf_by_default():
    assert ScoreConfig().metrics == (metrics["bleu"], metrics["chrf"])


def test_the_section_takes_names_and_mappings():
    values = {"metrics": ["ter", {"name": "bleu", "tokenize": "intl"}]}
    config = build(ScoreConfig, values, "score")
    assert config.metrics == (metrics["ter"], Bleu(name="bleu", tokenize="intl"))
    assert build(ScoreConfig, dump(config), "score") == config


def test_the_section_takes_a_single_name():
    assert build(ScoreConfig, {"metrics": "ter"}, "score").metrics == (metrics["ter"],)


@for_each(
    ("values", "message"),
    [
        ({"metrics": []}, "score: metrics must name at least one of bleu, chrf, chrf++"),
        ({"metrics": ["bluu"]}, "unknown metric 'bluu'; did you mean 'bleu'?"),
        ({"metrics": [{"name": "bleu", "tokenise": "13a"}]}, "did you mean 'tokenize'?"),
        (
            {"metrics": [{"name": "bleu", "tokenize": "13b"}]},
            "unknown tokenizer '13b'; known: ",
        ),
        ({"metrics": [{"name": "bleu", "smoothing": "epx"}]}, "'epx'; did you mean 'exp'?"),
        ({"metrics": [{"name": "chrf", "char_order": 0}]}, "char_order must be at least 1, not 0"),
        (
            {"metrics": [{"name": "chrf", "word_order": -1}]},
            "word_order must be at least 0, not -1",
        ),
        ({"metrics": [{"name": "chrf", "beta": 0}]}, "beta must be at least 1, not 0"),
    ],
)
def test_the_section_refuses_what_cannot_be_computed(values: object, message: str):
    with pytest.raises(NmtError) as error:
        build(ScoreConfig, values, "score")
    assert message in str(error.value)
    assert str(error.value).startswith("score")


def test_a_tokenizer_whose_package_is_missing_costs_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_ja_mecab.MeCab", None)
    message = r"tokenizer ja-mecab: Japanese tokenization .* pip install sacrebleu\[ja\]$"
    with pytest.raises(NmtError, match=f"^bleu: {message}"):
        Bleu(name="bleu", tokenize="ja-mecab").score(["a"], ["a"])
    with pytest.raises(NmtError, match=f"^{message}"):
        Gleu(tokenize="ja-mecab")("a", "a")


def random_line(rng: random.Random, words: list[str]) -> str:
    return " ".join(rng.choices(words, k=rng.randint(1, 12)))


def multi_bleu(hypotheses: list[str], references: list[str]) -> float:
    """BLEU by its definition, with no smoothing."""
    logs = 0.0
    for n in range(1, 5):
        found = total = 0
        for hypothesis, reference in zip(hypotheses, references, strict=True):
            ours, theirs = ngrams(hypothesis.split(), n), ngrams(reference.split(), n)
            found += (ours & theirs).total()
            total += ours.total()
        if found == 0:
            return 0.0
        logs += math.log(found / total) / 4
    hyp_len = sum(len(line.split()) for line in hypotheses)
    ref_len = sum(len(line.split()) for line in references)
    return 100 * math.exp(logs + min(0.0, 1 - ref_len / hyp_len))


def ngrams(words: list[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def split_at_hyphens(line: str) -> str:
    """The compound split without a regular expression: a match uses up both its letters."""
    out, at = "", 0
    while at < len(line):
        before, hyphen, after = line[at], line[at + 1 : at + 2], line[at + 2 : at + 3]
        if hyphen == "-" and not before.isspace() and after and not after.isspace():
            out += f"{before} ##AT##-##AT## {after}"
            at += 3
        else:
            out += before
            at += 1
    return out


def test_warnings_of_sacrebleu_are_lines_of_their_own_and_each_is_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    (teller,) = logging.getLogger("sacrebleu").handlers
    monkeypatch.setattr(teller, "_told", set())
    with tqdm(total=9, file=screen) as bar:
        for _ in range(2):
            bar.update()
            metrics["bleu"].score(["a ."] * 101, ["a ."] * 101)
    lines = [line.rpartition("\r")[2] for line in screen.getvalue().splitlines()]
    assert [line for line in lines if "warning" in line] == [
        "nmt: warning: 100 or more translations end in ' .', like tokenised text, whose BLEU is "
        "wrong; give plain text, or, if the references are tokenised too, take the metric "
        "tokenized_bleu"
    ]
    assert "tokenized period" not in screen.getvalue()
    assert "`force`" not in screen.getvalue()
    logging.getLogger("sacrebleu").warning("something new")
    assert screen.getvalue().endswith("nmt: warning: sacreBLEU: something new\n")
