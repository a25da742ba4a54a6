from __future__ import annotations

import gzip
import io
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any
from unittest import mock

import fake_comet
import pytest
import typer
from for_each import for_each
from typer.testing import CliRunner, Result

from nmt.cli.score import command as score
from nmt.cli.score.by_model import load_in_torch, open_model
from nmt.data.columns import RaggedArray
from nmt.data.writer import DatasetWriter, staging
from nmt.errors import NmtError
from nmt.evaluation.metrics import metrics
from nmt.inference.execution import ON_CPU

OUTPUTS = (Path(__file__).parents[1] / "docs/outputs.md").read_text(encoding="utf-8")
BLEU = (
    "bleu = 66.87 80.0/75.0/66.7/50.0 (BP = 1.000 ratio = 1.000 hyp_len = 5 ref_len = 5) "
    f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{version('sacrebleu')}\n"
)
CHRF = (  # 4/5, 3/4, 2/3, 1/2 and 0/1 of the n-grams of 1 to 5 characters, on average
    "chrf = 54.33 (chrF2) "
    f"beta:2|nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{version('sacrebleu')}\n"
)
TER = (
    "ter = 20.00 (edits = 1 ref_len = 5) "
    f"nrefs:1|case:lc|tok:tercom|norm:no|punct:yes|asian:no|version:{version('sacrebleu')}\n"
)


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("output.txt").write_text("a b c d e\n")
    Path("test.de").write_text("a b c d f\n")
    return tmp_path


def test_without_a_choice_bleu_and_chrf_are_printed():
    assert output("--reference", "test.de", "output.txt") == BLEU + CHRF


def test_the_example_of_the_help_runs():
    program, command, *arguments = score.EXAMPLE.removeprefix("Example: ").split()
    assert (program, command) == ("nmt", "score")
    assert output(*arguments) == BLEU + TER


def test_translations_come_from_stdin_when_no_file_is_named():
    assert output("--reference", "test.de", "--metric", "ter", stdin="a b c d e\n") == TER
    assert output("--reference", "test.de", "--metric", "ter", "-", stdin="a b c d e\n") == TER


def test_compressed_files_are_read_as_plain_ones():
    Path("output.gz").write_bytes(gzip.compress(b"a b c d e\n"))
    Path("test.gz").write_bytes(gzip.compress(b"a b c d f\n"))
    assert output("--reference", "test.gz", "--metric", "ter", "output.gz") == TER


def test_json_has_one_object_a_line_with_the_documented_fields():
    lines = output(
        "--reference", "test.de", "--json", "--metric", "ter", "--metric", "chrf", "output.txt"
    )
    ter, chrf = map(json.loads, lines.splitlines())
    assert ter == {
        "system": "output.txt",
        "metric": "ter",
        "value": 20.0,
        "details": "(edits = 1 ref_len = 5)",
        "signature": TER.split()[-1],
        "higher_is_better": False,
    }
    assert chrf["metric"] == "chrf"
    assert chrf["higher_is_better"] is True
    assert all(f"`{field}`" in OUTPUTS for field in ter)


def test_the_help_names_every_metric():
    text = output("--help")
    assert all(name in text for name in metrics)


def test_the_recipe_chooses_the_metrics_and_a_flag_wins_over_it():
    Path("nmt.yaml").write_text("score: {metrics: [{name: ter, lowercase: false}]}")
    assert "case:mixed|tok:tercom" in output("--reference", "test.de", "output.txt")
    assert output("--reference", "test.de", "--metric", "bleu", "output.txt") == BLEU


def test_the_settings_of_a_metric_are_set_on_the_command_line():
    chosen = "score.metrics=[{name: bleu, lowercase: true}]"
    assert "case:lc" in output("--reference", "test.de", "--set", chosen, "output.txt")


def test_lines_end_at_a_newline_alone():
    Path("output.txt").write_bytes("a\u2028b\x0b c\rd\n\ne f".encode())
    Path("test.de").write_bytes("a\u2028b\x0b c\rd\n\ne f\n".encode())
    assert "ter = 0.00" in output("--reference", "test.de", "--metric", "ter", "output.txt")


@pytest.fixture
def data_bin(files: Path) -> Path:
    return write_dataset(files / "data-bin", "test")


def write_dataset(path: Path, held_out: str) -> Path:
    """Writes a dataset with the split train and a held-out one."""
    pairs = RaggedArray.from_sentences([[4, 5], [6]])
    with staging(path) as directory:
        writer = DatasetWriter(directory, ("en", "de"), (8, 8))
        for name in ("train", held_out):
            with writer.split(name) as split:
                split.append(pairs, pairs)
                if name != "train":
                    split.append_text(["one two", "three"], ["a b c d f", "Ü"])
        writer.finish(shared_vocabulary=True, recipe={})
    return path


def test_the_references_may_be_those_of_a_dataset(data_bin: Path):
    printed = output("--data", "data-bin", "--metric", "ter", stdin="a b c d f\nÜ\n")
    assert printed.startswith("ter = 0.00 (edits = 0 ref_len = 6)")


def test_a_split_without_text_cannot_be_scored(data_bin: Path):
    assert message("--data", "data-bin", "--split", "train", "output.txt") == (
        "data-bin: the split 'train' keeps no text, only held-out splits do; "
        "choose one with --split"
    )
    assert "unknown split 'tset'; did you mean 'test'?" in message(
        "--data", "data-bin", "--split", "tset", "output.txt"
    )


def test_a_dataset_without_a_test_set_is_scored_by_its_validation_set(files: Path):
    write_dataset(files / "data-bin", "valid")
    assert message("--data", "data-bin", "output.txt") == (
        "data-bin: has no test set; give --split valid, or preprocess it again with --test"
    )
    assert message("--data", "data-bin", "--split", "test", "output.txt") == (
        "data-bin: unknown split 'test'; known: valid"
    )
    valid = ("--data", "data-bin", "--split", "valid", "--metric", "ter")
    assert output(*valid, stdin="a b c d f\nÜ\n").startswith("ter = 0.00")


@for_each(
    "flags",
    [
        ("--reference", "test.zh"),
        ("--reference", "test.zh.gz"),
        ("--reference", "test.txt", "--target-lang", "zh_CN"),
        ("--reference", "test.de", "-t", "zho_Hans"),
    ],
)
def test_bleu_is_tokenised_by_the_language_that_is_given_or_ends_the_name(flags: tuple[str, ...]):
    lines = "我喜欢猫。\n"
    for name in ("test.zh", "test.txt", "test.de"):
        Path(name).write_text(lines)
    Path("test.zh.gz").write_bytes(gzip.compress(lines.encode()))
    printed = output(*flags, "--metric", "bleu", stdin=lines)
    assert printed.startswith("bleu = 100.00 ")
    assert "|tok:zh|" in printed


def test_text_without_spaces_in_a_language_with_them_is_warned_of():
    Path("test.txt").write_text("我喜欢猫。\n")
    arguments = ("--reference", "test.txt", "--metric", "bleu")
    result = run(*arguments, stdin="我喜欢猫。\n")
    assert result.stdout.startswith("bleu = 0.00 ")
    assert result.stderr == (
        "nmt: warning: test.txt: the text has no spaces between words, so bleu takes a line for a "
        "word; give its language with --target-lang\n"
    )
    assert run(*arguments, "-t", "zh", stdin="我喜欢猫。\n").stderr == ""
    assert run("--reference", "test.txt", "--metric", "chrf", stdin="我喜欢猫。\n").stderr == ""


def test_both_numbers_of_lines_are_named_when_they_differ():
    Path("output.txt").write_text("a\nb\nc\n")
    assert message("--reference", "test.de", "output.txt") == (
        "output.txt has 3 lines, but test.de has 1; line n of both must belong to the same sentence"
    )


def test_an_empty_test_set_is_refused():
    Path("output.txt").write_text("")
    Path("test.de").write_text("")
    assert message("--reference", "test.de", "output.txt") == (
        "nothing to score: no lines in test.de and output.txt; give files with text"
    )
    assert message("--reference", "test.de", "test.de") == (
        "nothing to score: no lines in test.de; give files with text"
    )


def test_bytes_that_are_not_utf8_are_named_by_file_and_line():
    Path("output.txt").write_bytes(b"gut\nm\xfcde\n")
    assert message("--reference", "test.de", "output.txt") == (
        "output.txt:2: byte 0xfc is not UTF-8; convert it with iconv"
    )
    result = run("--reference", "test.de", stdin=b"m\xfcde\n")
    assert str(result.exception).startswith("stdin:1: byte 0xfc")


ZIPPED = gzip.compress(b"a b c d e\n" * 99, mtime=0)


@pytest.mark.parametrize("content", [ZIPPED[:-9], ZIPPED[:10] + b"\xff" + ZIPPED[11:]])
def test_a_damaged_gzip_file_is_refused(content: bytes):
    Path("output.gz").write_bytes(content)
    assert message("--reference", "test.de", "output.gz") == (
        "output.gz: the gzip file is truncated or damaged; fetch or compress it again"
    )


def test_an_unknown_metric_is_answered_with_the_nearest():
    assert message("--reference", "test.de", "--metric", "blue", "output.txt") == (
        "score.metrics: unknown metric 'blue'; did you mean 'bleu'?"
    )


@for_each(
    ("arguments", "told"),
    [
        ([], "give one of --reference, --data, --testset, --alignments and --model"),
        (
            ["--reference", "test.de", "--data", "data-bin"],
            "give only one of --reference, --data, --testset, --alignments and --model "
            "(given: --reference, --data)",
        ),
        (["--model", "run"], "with --model, give one of --source, --data and --testset"),
        (
            ["--model", "run", "--source", "a", "--testset", "b", "-l", "en-de"],
            "with --model, give only one of --source, --data and --testset "
            "(given: --source, --testset)",
        ),
    ],
)
def test_the_other_side_comes_from_one_place(arguments: list[str], told: str):
    result = run(*arguments, "output.txt")
    assert result.exit_code == 2
    assert f"Invalid value: {told}\n" in result.stderr


@pytest.fixture
def two() -> list[str]:
    """Arguments that compare two systems on twenty lines."""
    lines = [f"a b c d {number}" for number in range(20)]
    for name, text in (("test.de", lines), ("good.txt", lines), ("bad.txt", ["a c b"] * 20)):
        Path(name).write_text("".join(f"{line}\n" for line in text))
    return ["--reference", "test.de", "bad.txt", "good.txt"]


def test_references_may_be_several(two: list[str]):
    Path("second.de").write_text("a c b\na b c d 1\n" + "a c\n" * 18)
    both = (*two, "--reference", "second.de")
    line, _ = output(*both, "--metric", "ter", "--json").splitlines()
    found = json.loads(line)
    sides = [Path(name).read_text().splitlines() for name in ("test.de", "second.de")]
    references = [*zip(*sides, strict=True)]
    expected = metrics["ter"].score(["a c b"] * 20, references)
    assert (found["value"], found["signature"]) == (expected.value, expected.signature)
    assert "|" not in found["signature"].partition("nrefs:2|")[0]
    table = output(*both, "--paired", "bs", "--samples", "50")
    assert "\ntest set: test.de + second.de, 20 lines\n" in table
    assert table.count("nrefs:2|") == 2  # BLEU and chrF
    first = output(*both, "--metric", "ter", "--sentence-level").splitlines()[0]
    assert first == "0.00\t0.00"
    Path("short.de").write_text("a\n" * 19)
    assert message(*two, "--reference", "short.de") == (
        "test.de and short.de differ in their number of lines; "
        "line n of each must belong to the same sentence"
    )


def test_runs_are_averaged_by_group(two: list[str]):
    del two[2:]
    for name, edits in (("base1", 2), ("base2", 4), ("base-large1", 1), ("base-large2", 3)):
        lines = [f"a b c d {'x' if number < edits else number}" for number in range(20)]
        Path(f"{name}.de").write_text("".join(f"{line}\n" for line in lines))
    files = ("base1.de", "base-large2.de", "base2.de", "base-large1.de", "-m", "ter", "-m", "bleu")
    groups = ("--group", "base", "--group", "base-l")
    table = output(*two, *files, *groups)
    rows = [line.split() for line in table.splitlines()]
    assert rows[0] == ["system", "runs", "ter", "sd", "se", "p", "bleu", "sd", "se", "p"]
    assert rows[2][:6] == ["base", "2", "3.00", "1.41", "1.00", "-"]
    assert rows[3][:6] == ["base-l", "2", "2.00", "1.41", "1.00", "0.5528"]
    assert "\nbase-l: base-large2.de, base-large1.de\n" in table
    lines = [json.loads(line) for line in output(*two, *files, *groups, "--json").splitlines()]
    assert [(it["metric"], it["system"]) for it in lines] == [
        (metric, group) for metric in ("ter", "bleu") for group in ("base", "base-l")
    ]
    assert lines[1].pop("p_value") == pytest.approx(1 - 1 / math.sqrt(5))
    assert lines[1].pop("standard_error") == pytest.approx(1.0)
    assert lines[1].pop("standard_deviation") == pytest.approx(math.sqrt(2))
    assert lines[1].pop("signature").startswith("nrefs:1|case:lc|")
    assert lines[1] == {
        "system": "base-l",
        "metric": "ter",
        "value": 2.0,
        "details": "(runs: 2)",
        "higher_is_better": False,
        "baseline": "base",
        "runs": ["base-large2.de", "base-large1.de"],
        "values": [3.0, 1.0],
    }
    assert all(f"`{field}`" in OUTPUTS for field in json.loads(json.dumps(lines[0])))
    path = Path("base1.de").absolute()  # the directory does not count
    alone = output(*two, str(path), *files[1:], "--group", "base-l", "--group", "base")
    assert alone.splitlines()[3].split()[:3] == ["base", "2", "3.00"]
    for flags, told in (
        (("--group", "b", "--group", "x"), "--group x: begins the names of 0 of the files; give"),
        (("--group", "base1"), "--group base1: begins the names of 1 of the files; give"),
        (("--group", "b", "--paired", "bs"), "--group goes with no --paired, --confidence or"),
    ):
        result = run(*two, *files, *flags)
        assert (result.exit_code, result.stdout) == (2, "")
        assert told in result.stderr


def test_several_systems_make_a_table(two: list[str]):
    table = output(*two, "--metric", "ter")
    rows = [line.split() for line in table.splitlines()]
    assert [rows[0], *rows[2:4]] == [
        ["system", "ter"],
        ["bad.txt", "60.00"],
        ["good.txt", "0.00"],
    ]
    assert "test set: test.de, 20 lines\n" in table
    assert table.count("tok:tercom") == 1
    assert output(*two, "--metric", "ter", "--table", "text") == table


def test_a_table_may_have_one_system():
    flags = ("--reference", "test.de", "--metric", "ter", "output.txt")
    assert output(*flags, "--table", "markdown").startswith(
        "| system     |   ter |\n| ---------- | ----: |\n| output.txt | 20.00 |\n\n"
    )
    assert output(*flags, "--table", "latex").startswith("\\begin{tabular}{lr}\n")


def test_systems_are_compared_with_the_first(two: list[str]):
    flags = ("--metric", "chrf", "--paired", "ar", "--samples", "99", "--seed", "3", "--json")
    bad, good = map(json.loads, output(*two, *flags, "--confidence").splitlines())
    assert (bad["system"], good["system"], good["baseline"]) == ("bad.txt", "good.txt", "bad.txt")
    assert "p_value" not in bad
    assert good["p_value"] == pytest.approx(1 / 100)
    assert good["samples"] == bad["samples"] == "ar:99|bs:1000|seed:3"
    assert (good["mean"], good["interval"]) == (pytest.approx(100), pytest.approx(0))
    assert all(f"`{field}`" in OUTPUTS for field in good)


def test_one_system_has_an_interval(two: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SACREBLEU_SEED", "5")
    line = output("--reference", "test.de", "bad.txt", "--metric", "ter", "--confidence")
    assert line.startswith("ter = 60.00 (μ = 60.00 ± 0.00) (edits = 60 ref_len = 100) nrefs:1|")
    assert line.endswith("|bs:1000|seed:5\n")


@for_each("flags", [("--confidence",), ("--paired", "bs"), ("--paired", "ar")])
def test_a_single_line_is_not_resampled(flags: tuple[str, ...]):
    Path("other.txt").write_text("a b\n")
    systems = ("--reference", "test.de", "output.txt", "other.txt")
    told = (
        "--confidence and --paired need more than one line to draw samples from; give a larger "
        "test set, or leave them out"
    )
    assert message(*systems, *flags) == told
    assert message(*systems, "--by-document", *flags) == told


def test_two_settings_of_a_metric_have_columns_of_their_own(two: list[str]):
    chosen = "score.metrics=[bleu, {name: bleu, lowercase: true}]"
    table = output(*two, "--set", chosen)
    assert table.splitlines()[0].split() == ["system", "bleu", "[1]", "bleu", "[2]"]
    assert "\nbleu [1]: nrefs:1|case:mixed|" in table
    assert "\nbleu [2]: nrefs:1|case:lc|" in table


def test_every_sentence_has_a_line(two: list[str]):
    flags = ("--sentence-level", "--metric", "ter", "--metric", "bleu")
    done = run(*two, *flags)
    assert done.exit_code == 0
    assert done.stdout == "60.00\t20.37\t0.00\t100.00\n" * 20
    brevity, precisions = math.exp(1 - 5 / 3), (1, 1 / 4, 1 / 4)  # by exponential smoothing
    assert 100 * brevity * math.prod(precisions) ** (1 / 3) == pytest.approx(20.37, abs=0.005)
    columns = done.stderr.splitlines()
    assert [line.partition(", nrefs")[0] for line in columns] == [
        "column 1: bad.txt, ter",
        "column 2: bad.txt, bleu",
        "column 3: good.txt, ter",
        "column 4: good.txt, bleu",
    ]
    assert "eff:yes" in columns[1]
    objects = [json.loads(line) for line in output(*two, *flags, "--json").splitlines()]
    assert [it["line"] for it in objects] == [number for number in range(1, 21) for _ in range(4)]
    assert objects[2] == {
        "system": "good.txt",
        "line": 1,
        "metric": "ter",
        "value": 0.0,
        "details": "(edits = 0 ref_len = 5)",
        "signature": TER.split()[-1],
        "higher_is_better": False,
    }


@pytest.fixture
def documents(files: Path) -> tuple[str, ...]:
    """References and two systems of three documents; blank lines also begin and end the files."""
    lines = {
        "test.de": ["", "a b c d e", "f g h", "", "", "i j k l m", "", "n o p q", "r s t u", " "],
        "good.txt": ["", "a b c d e", "f h", "", "", "i j k l", "", "n o p q", "r s t u", ""],
        "bad.txt": ["", "a b x d e", "", "", " ", "i j k", "", "n p o q", "r t s u", ""],
    }
    for name, text in lines.items():
        Path(name).write_text("".join(f"{line}\n" for line in text))
        found = [part.strip().replace("\n", " ") for part in Path(name).read_text().split("\n\n")]
        Path(f"joined.{name}").write_text("".join(f"{part}\n" for part in found if part))
    return "--reference", "test.de", "bad.txt", "good.txt"


@pytest.mark.parametrize(
    "flags", [("--paired", "bs", "--samples", "50"), (), ("--sentence-level",)]
)
def test_documents_are_scored_as_if_they_were_sentences(
    documents: tuple[str, ...], flags: tuple[str, ...]
):
    chosen = ("--metric", "bleu", "--metric", "ter", "--json", *flags)
    found = output(*documents, "--by-document", *chosen)
    joined = [name if name.startswith("-") else f"joined.{name}" for name in documents]
    expected = output(*joined, *chosen).replace("joined.", "")
    assert found.count('|unit:document"') == found.count("\n") == expected.count("\n")
    assert found.replace("|unit:document", "") == expected
    assert output(*documents, *chosen) != found


def test_documents_have_the_same_blank_lines_on_all_sides(documents: tuple[str, ...]):
    done = run(*documents, "--by-document", "--table", "text")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.count("|unit:document") == 2  # BLEU and chrF
    assert "documents of test.de, 3 lines" in done.stdout
    Path("bad.txt").write_text("a\n" * 10)
    assert message(*documents, "--by-document") == (
        "bad.txt: line 1 has text, but the same line of test.de is blank; the blank lines between "
        "documents must be in the same places"
    )
    for lines in (9, 11):
        Path("test.en").write_text("a\n" * lines)
        assert message(*documents[:2], "good.txt", "--source", "test.en", "--by-document") == (
            f"source of test.de has {lines} lines, but test.de has 10; "
            "line n of both must belong to the same sentence"
        )
    Path("blank.de").write_text("\n" * 10)
    assert message(*documents, "--reference", "blank.de", "--by-document") == (
        "test.de + blank.de: line 2 is blank in some references only; the blank lines between "
        "documents must be in the same places"
    )
    Path("test.de").write_text("a\n" * 10)
    done = run("--reference", "test.de", "bad.txt", "--by-document")
    assert (done.exit_code, done.stderr) == (
        0,
        "nmt: warning: no blank line is in test.de: all of it is scored as one document\n",
    )


def test_a_protocol_for_test_sets_scores_no_sentences():
    flags = ("--reference", "test.de", "output.txt", "--sentence-level", "--metric", "paper_bleu")
    assert message(*flags).startswith(
        "paper_bleu: a BLEU that is not smoothed says nothing about one"
    )


def test_comet_takes_the_source_from_where_it_is(data_bin: Path, monkeypatch: pytest.MonkeyPatch):
    fake_comet.install(monkeypatch)
    flags = ("--metric", "comet", "output.txt")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "comet", None)
        assert message("--reference", "test.de", *flags).startswith(
            "comet needs the package unbabel"
        )
    assert message("--reference", "test.de", *flags) == (
        "comet needs the text that was translated; give --source"
    )
    twice = ("--reference", "test.de", "--reference", "test.de", "--source", "output.txt")
    assert message(*twice, *flags) == (
        "comet takes one reference for each sentence; give one, or choose another metric, such as "
        "bleu or chrf"
    )
    Path("test.en").write_text("a b c d e\n")  # the translation is a copy of it
    given = ("--reference", "test.de", "--source", "test.en")
    assert output(*given, *flags).startswith("comet = 0.00 (1 sentences)")
    Path("output.txt").write_text("one two\nÜ\n")  # the first is a copy here
    assert output("--data", "data-bin", *flags).startswith("comet = 50.00 (2 sentences)")
    Path("test.en").write_text("a\nb\n")
    Path("output.txt").write_text("a\n")
    assert message(*given, *flags).startswith("2 source lines but 1 references")
    result = run("--data", "data-bin", "--source", "test.en", *flags)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--source goes with --reference or --model" in result.stderr


@for_each(
    ("flags", "told"),
    [
        (["--paired", "bs", "a"], "--paired compares systems: give two or more, the baseline"),
        (["--samples", "9", "a", "b"], "--samples goes with --paired or --confidence"),
        (["--json", "--table", "text", "a"], "give either --json or --table"),
        (["--sentence-level", "--confidence", "a"], "--sentence-level goes with no --paired"),
        (["-l", "en-de", "a"], "--testset and --language-pair go together"),
        (["output.txt", "output.txt"], "output.txt is given twice; give each system once"),
        (["--split", "valid", "a"], "--split goes with --data, whose split it names"),
        (["--split", "", "a"], "--split goes with --data, whose split it names"),
        (["--device", "cuda", "a"], "--device goes with --model"),
        (["--device", "", "a"], "--device goes with --model"),
        (["--seed", "0", "a"], "Invalid value for '--seed'"),
        (["--confidence", "--samples", "1000001", "a"], "Invalid value for '--samples'"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(flags: list[str], told: str):
    result = run("--reference", "test.de", *flags)
    assert (result.exit_code, result.stdout) == (2, "")
    assert told in result.stderr


def test_a_test_set_needs_its_language_pair():
    result = run("--testset", "wmt14/full", "output.txt")
    assert result.exit_code == 2
    assert "--testset and --language-pair go together" in result.stderr
    assert message("--testset", "wmt14/ful", "-l", "en-de", "output.txt") == (
        "unknown test set 'wmt14/ful'; did you mean 'wmt14/full'?"
    )


def test_a_model_gives_the_log_probability_that_its_search_gave(
    trained: Path, corpus: Path, nmt: Callable[..., Any]
) -> None:
    found = nmt("translate", corpus / "test.en", "--model", trained, "--json").out
    translations = [json.loads(line) for line in found.splitlines()]
    Path("output.txt").write_text("".join(f"{it['text']}\n" for it in translations))
    flags = ("score", "output.txt", "--model", trained, "--source", corpus / "test.en")
    plain, objects = nmt(*flags).out.splitlines(), nmt(*flags, "--json").out.splitlines()
    for translation, value, line in zip(translations, plain, objects, strict=True):
        scored = json.loads(line)
        assert float(value) == pytest.approx(scored["log_probability"], abs=1e-6)
        assert scored["words"] == translation["text"].split()
        words = sum(scored["word_log_probabilities"]) + scored["token_log_probabilities"][-1]
        assert words == pytest.approx(scored["log_probability"])
        assert scored["mean_log_probability"] == pytest.approx(
            scored["log_probability"] / len(scored["tokens"])
        )
        if scored["tokens"] == translation["tokens"]:  # the text may be cut into others
            assert float(value) == pytest.approx(translation["log_probability"], abs=1e-4)
    assert all(f"`{field}`" in OUTPUTS for field in scored)


def test_a_model_scores_pairs_of_lines(trained: Path, nmt: Callable[..., Any]) -> None:
    done = nmt("score", "output.txt", "test.de", "--model", trained, "--source", "test.de")
    assert (done.status, done.out) == (2, "")
    assert "--model scores one file at a time" in done.err
    refused = {
        "--metric": ("bleu",),
        "--paired": ("bs",),
        "--confidence": (),
        "--samples": (100,),
        "--by-document": (),
        "--sentence-level": (),
        "--table": ("latex",),
    }
    for flag, value in refused.items():
        flags = ("--model", trained, "--source", "test.de", flag, *value)
        done = nmt("score", "output.txt", *flags)
        assert (done.status, done.out) == (2, "")
        message = done.err.partition("--model goes with no --reference, ")[2]
        assert flag in message
    Path("source.txt").write_text("one\ntwo\n")
    done = nmt("score", "output.txt", "--model", trained, "--source", "source.txt")
    assert (done.status, done.out) == (1, "")
    assert done.err == (
        "nmt: error: source.txt and output.txt differ in their number of lines; "
        "line n of each must belong to the same sentence\n"
    )


def test_a_model_scores_translations_of_what_a_dataset_holds(
    trained: Path, dataset: Path, corpus: Path, nmt: Callable[..., Any]
) -> None:
    for split in ("test", "valid"):
        flags = ("score", corpus / f"{split}.de", "--model", trained)
        expected = nmt(*flags, "--source", corpus / f"{split}.en")
        assert expected.status == 0
        assert re.fullmatch(f"engine ctranslate2: {trained}/exports/.*\n", expected.err)
        assert nmt(*flags, "--data", dataset, "--split", split) == expected
    done = nmt(*flags, "--data", dataset)
    assert (done.status, done.out) == (1, "")
    assert f"test of {dataset} and {corpus / 'valid.de'} differ in their number" in done.err


def test_ctranslate2_scores_and_aligns_as_torch(
    trained: Path, corpus: Path, tmp_path: Path
) -> None:
    sources, targets = (
        (corpus / f"test.{language}").read_text().splitlines()[:20] for language in ("en", "de")
    )
    sources[3], targets[4] = (" ".join([line] * 300) for line in (sources[3], targets[4]))
    auto = open_model(trained, "cpu", False)
    export = open_model(Path(auto.engine.removeprefix("ctranslate2: ")), "cpu", False)
    assert auto.engine == export.engine
    in_torch = load_in_torch([trained], auto.config, ON_CPU)
    for pairs in ((sources[:3], targets[:3]), (sources, targets)):
        assert list(chain(*auto.score(*pairs))) == pytest.approx(
            list(chain(*in_torch.score(*pairs))), abs=1e-5
        )
        assert auto.align(*pairs) == in_torch.align(*pairs)
    assert auto.score(sources[:3], targets[:3]) == export.score(sources[:3], targets[:3])
    # CTranslate2 has positions up to 2,048.
    with pytest.raises(NmtError, match="an export cannot do this; give the run"):
        export.score(sources, targets)


def test_a_model_of_the_other_direction_scores_no_translations_of_a_dataset(
    trained: Path, corpus: Path, recipe: Path, tmp_path: Path, nmt: Callable[..., Any]
) -> None:
    reverse = tmp_path / "reverse"
    flags = [f"--{split}={corpus / split}" for split in ("train", "valid", "test")]
    flags += ["--config", recipe, "--output-dir", reverse]
    assert nmt("preprocess", *flags, "--source-lang", "de", "--target-lang", "en").status == 0
    scored = ("score", corpus / "test.de", "--model", trained)
    done = nmt(*scored, "--data", reverse)
    assert (done.status, done.out) == (1, "")
    assert done.err == (
        f"nmt: error: test of {reverse}: its references are in en, from which {trained} "
        "translates; give a test set of the model's direction, or its text with --source\n"
    )
    assert nmt(*scored, "--source", corpus / "test.en").status == 0


def test_an_empty_name_of_a_device_or_a_split_is_none_of_them(
    trained: Path, dataset: Path, corpus: Path, nmt: Callable[..., Any]
) -> None:
    flags = ("score", corpus / "test.de", "--data", dataset)
    done = nmt(*flags, "--split", "")
    assert (done.status, done.out) == (1, "")
    assert "unknown split ''" in done.err
    done = nmt(*flags, "--model", trained, "--device", "")
    assert (done.status, done.out) == (1, "")
    assert "unknown device ''" in done.err


def test_scoring_does_not_wait_for_torch(data_bin: Path):
    Path("two.de").write_text("a b c d e\na\n")
    program = (
        "import sys; from nmt.cli.score.command import score; from pathlib import Path\n"
        "score([Path('two.de')], reference=[Path('two.de')], confidence=True)\n"
        "score([Path('data-bin/test.de')], data=Path('data-bin'), metric=['paper_bleu'])\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.DEVNULL)
    assert done.returncode == 0


def run(*arguments: str, stdin: str | bytes = "") -> Result:
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command(epilog=score.EXAMPLE)(score.score)
    typed = io.BytesIO(stdin.encode() if isinstance(stdin, str) else stdin)
    with mock.patch("nmt.io.lines.open_stdin", return_value=typed):
        return CliRunner().invoke(app, arguments)


def output(*arguments: str, stdin: str = "") -> str:
    result = run(*arguments, stdin=stdin)
    assert result.exception is None, result.exception
    assert result.exit_code == 0
    return result.stdout


def message(*arguments: str) -> str:
    result = run(*arguments)
    assert isinstance(result.exception, NmtError), result.exception
    assert result.stdout == ""
    return str(result.exception)
