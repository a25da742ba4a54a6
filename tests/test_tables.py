"""Tables: their three forms, letter by letter, and what they do about different signatures."""

from __future__ import annotations

from nmt.evaluation import Score
from nmt.evaluation.comparison import Result, group_results
from nmt.evaluation.tables import table

P = {"baseline": "a_b", "samples": "bs:9|seed:1"}


def result(system: str, metric: str, value: float, signature: str, **more: object) -> Result:
    score = Score(
        metric=metric,
        value=value,
        details="",
        signature=signature,
        higher_is_better=metric != "ter",
    )
    return Result(system=system, score=score, **more)  # type: ignore[arg-type]


RESULTS = [
    result("a_b", "bleu", 9.5, "s|1", mean=9.4, interval=1.25, samples="bs:9|seed:1"),
    result("longer", "bleu", 10.25, "s|1", mean=10.0, interval=1.0, p_value=0.04, **P),
    result("x|y", "bleu", 9.75, "s|1", mean=9.5, interval=1.0, p_value=0.05, **P),
    result("a_b", "ter", 50, "s|2"),
    result("longer", "ter", 49, "s|2"),
]


def test_a_table_for_people() -> None:
    assert table(RESULTS, "text", "test.de, 1,000 lines") == (
        "system   bleu    mean ± 95%        p    ter\n"
        "------  -----  ------------  -------  -----\n"
        "a_b      9.50   9.40 ± 1.25        -  50.00\n"
        "longer  10.25  10.00 ± 1.00  0.0400*  49.00\n"
        "x|y      9.75   9.50 ± 1.00  0.0500       -\n"
        "\n"
        "test set: test.de, 1,000 lines\n"
        "bleu: s|1\n"
        "ter: s|2 (lower is better)\n"
        "mean ± 95%: of bootstrap samples, bs:9|seed:1\n"
        "p: paired bootstrap resampling against a_b, bs:9|seed:1; * below 0.05"
    )


def test_a_table_in_markdown() -> None:
    assert table(RESULTS, "markdown", "test.de, 1,000 lines") == (
        "| system |  bleu |   mean ± 95% |       p |   ter |\n"
        "| ------ | ----: | -----------: | ------: | ----: |\n"
        "| a_b    |  9.50 |  9.40 ± 1.25 |       - | 50.00 |\n"
        "| longer | 10.25 | 10.00 ± 1.00 | 0.0400* | 49.00 |\n"
        "| x\\|y   |  9.75 |  9.50 ± 1.00 | 0.0500  |     - |\n"
        "\n"
        "- test set: `test.de, 1,000 lines`\n"
        "- bleu: `s|1`\n"
        "- ter: `s|2 (lower is better)`\n"
        "- mean ± 95%: `of bootstrap samples, bs:9|seed:1`\n"
        "- p: `paired bootstrap resampling against a_b, bs:9|seed:1; * below 0.05`"
    )


def test_a_table_in_latex() -> None:
    assert table(RESULTS[:2], "latex", "100% of #1") == (
        "\\begin{tabular}{lrrr}\n"
        "\\toprule\n"
        "system & BLEU & mean $\\pm$ 95\\% & p \\\\\n"
        "\\midrule\n"
        "a\\_b & 9.50 & 9.40 $\\pm$ 1.25 & - \\\\\n"
        "longer & 10.25 & 10.00 $\\pm$ 1.00 & 0.0400* \\\\\n"
        "\\bottomrule\n"
        "\\end{tabular}\n"
        "\\par{\\footnotesize test set: 100\\% of \\#1}\n"
        "\\par{\\footnotesize BLEU: s\\textbar{}1}\n"
        "\\par{\\footnotesize mean $\\pm$ 95\\%: of bootstrap samples, bs:9\\textbar{}seed:1}\n"
        "\\par{\\footnotesize p: paired bootstrap resampling against a\\_b, "
        "bs:9\\textbar{}seed:1; * below 0.05}"
    )


def test_latex_has_the_names_of_papers() -> None:
    names = ["tokenized_bleu", "bleu", "chrf", "chrf++", "ter", "comet", "aer", "exact_1"]
    drawn = table([result("a", name, 9, name) for name in names], "latex", "x")
    head = "BLEU [1] & BLEU [2] & chrF & chrF++ & TER & COMET & AER & exact\\_1"
    assert drawn.splitlines()[2] == f"system & {head} \\\\"
    assert r"BLEU [1]: tokenized\_bleu}" in drawn


def test_a_group_of_runs_has_its_errors() -> None:
    results = [
        result(system, "bleu", value, "s|1")
        for system, value in zip(("a1", "a2", "b1", "b2", "c"), (30, 32, 35, 37, 33), strict=True)
    ]
    groups = {"a": ["a1", "a2"], "b": ["b1", "b2"], "c": ["c"]}
    # t = 5 / sqrt(2); with 2 degrees of freedom p = 1 - t / sqrt(t * t + 2).
    assert table(group_results(results, groups), "text", "x") == (
        "system  runs   bleu    sd    se        p\n"
        "------  ----  -----  ----  ----  -------\n"
        "a          2  31.00  1.41  1.00        -\n"
        "b          2  36.00  1.41  1.00  0.0715\n"
        "c          1  33.00     -     -        -\n"
        "\n"
        "test set: x\n"
        "a: a1, a2\n"
        "b: b1, b2\n"
        "bleu: s|1\n"
        "sd, se: standard deviation of the runs, standard error of their mean\n"
        "p: Welch's t-test over the runs against a; * below 0.05"
    )


def test_values_of_different_signatures_never_share_a_column() -> None:
    mixed = [
        result("a", "bleu", 30, "case:mixed"),
        result("b", "bleu", 31, "case:mixed"),
        result("a", "chrf", 50, "nc:6"),
        result("b", "bleu", 33, "case:lc"),
    ]
    assert table(mixed, "text", "test.de") == (
        "system  bleu [1]   chrf  bleu [2]\n"
        "------  --------  -----  --------\n"
        "a          30.00  50.00         -\n"
        "b          31.00      -     33.00\n"
        "\n"
        "test set: test.de\n"
        "bleu [1]: case:mixed\n"
        "chrf: nc:6\n"
        "bleu [2]: case:lc"
    )


def test_a_line_feed_in_a_name_divides_no_row() -> None:
    results, test_set = [result("a\nb", "bleu", 9.5, "s|1")], "c\nd, 1 line"
    assert table(results, "text", test_set) == (
        "system  bleu\n------  ----\na\\nb    9.50\n\ntest set: c\\nd, 1 line\nbleu: s|1"
    )
    for form, rows in (
        ("markdown", "| a\\nb   | 9.50 |\n"),
        ("latex", "a\\textbackslash{}nb & 9.50"),
    ):
        assert rows in table(results, form, test_set)  # type: ignore[arg-type]
