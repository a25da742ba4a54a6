from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import typer
from typer.testing import CliRunner, Result

from nmt.cli import score
from nmt.data.format import DatasetWriter, Sentences, staging
from nmt.errors import NmtError
from nmt.evaluation.metrics import metrics

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


def test_json_has_one_object_a_line_with_the_fields_of_the_help():
    lines = output(
        "--reference", "test.de", "--json", "--metric", "ter", "--metric", "chrf", "output.txt"
    )
    ter, chrf = map(json.loads, lines.splitlines())
    assert ter == {
        "metric": "ter",
        "value": 20.0,
        "details": "(edits = 1 ref_len = 5)",
        "signature": TER.split()[-1],
        "higher_is_better": False,
    }
    assert chrf["metric"] == "chrf"
    assert chrf["higher_is_better"] is True
    text = " ".join(output("--help").split())
    assert all(field in text for field in ter)


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
    pairs = Sentences.of([[4, 5], [6]])
    with staging(files / "data-bin") as directory:
        writer = DatasetWriter(directory, ("en", "de"), (8, 8))
        for name in ("train", "test"):
            with writer.split(name) as split:
                split.append(pairs, pairs)
                if name != "train":
                    split.append_text(["one two", "three"], ["a b c d f", "Ü"])
        writer.finish(shared_vocabulary=True, recipe={})
    return files / "data-bin"


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


def test_both_numbers_of_lines_are_named_when_they_differ():
    Path("output.txt").write_text("a\nb\nc\n")
    assert message("--reference", "test.de", "output.txt").startswith(
        "3 hypotheses but 1 references"
    )


def test_an_empty_test_set_is_refused():
    Path("output.txt").write_text("")
    Path("test.de").write_text("")
    assert message("--reference", "test.de", "output.txt").startswith("nothing to score")


def test_bytes_that_are_not_utf8_are_named_by_file_and_line():
    Path("output.txt").write_bytes(b"gut\nm\xfcde\n")
    assert message("--reference", "test.de", "output.txt") == (
        "output.txt:2: byte 0xfc is not UTF-8; convert it with iconv"
    )
    result = run("--reference", "test.de", stdin=b"m\xfcde\n")
    assert str(result.exception).startswith("stdin:1: byte 0xfc")


ZIPPED = gzip.compress(b"a b c d e\n" * 99)


@pytest.mark.parametrize("content", [b"a b", ZIPPED[:-9], ZIPPED[:10] + b"\xff" + ZIPPED[11:]])
def test_a_damaged_gzip_file_is_refused(content: bytes):
    Path("output.gz").write_bytes(content)
    assert message("--reference", "test.de", "output.gz") == (
        "output.gz: the gzip file is truncated or damaged; fetch or compress it again"
    )


def test_an_unknown_metric_is_answered_with_the_nearest():
    assert message("--reference", "test.de", "--metric", "blue", "output.txt") == (
        "score.metrics: unknown metric 'blue'; did you mean 'bleu'?"
    )


@pytest.mark.parametrize("arguments", [[], ["--reference", "test.de", "--data", "data-bin"]])
def test_the_references_come_from_one_place(arguments: list[str]):
    result = run(*arguments, "output.txt")
    assert result.exit_code == 2
    assert "give either --reference or --data, or a --model" in result.stderr


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
    assert all(field in " ".join(nmt("score", "--help").out.split()) for field in scored)


def test_a_model_scores_pairs_of_lines(trained: Path, nmt: Callable[..., Any]) -> None:
    done = nmt("score", "output.txt", "--model", trained)
    assert (done.status, done.out) == (2, "")
    assert "--model needs --source, the text that was translated" in done.err
    Path("source.txt").write_text("one\ntwo\n")
    done = nmt("score", "output.txt", "--model", trained, "--source", "source.txt")
    assert (done.status, done.out) == (1, "")
    assert done.err == (
        "nmt: error: source.txt and output.txt differ in their number of lines; "
        "line n of one must be the translation of line n of the other\n"
    )


def test_scoring_does_not_wait_for_torch(data_bin: Path):
    program = (
        "import sys; from nmt.cli.score import score; from pathlib import Path\n"
        "score(Path('test.de'), reference=Path('test.de'))\n"
        "score(Path('data-bin/test.de'), data=Path('data-bin'), metric=['paper_bleu'])\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.DEVNULL)
    assert done.returncode == 0


def run(*arguments: str, stdin: str | bytes = "") -> Result:
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command(epilog=score.EXAMPLE)(score.score)
    typed = io.BytesIO(stdin.encode() if isinstance(stdin, str) else stdin)
    with mock.patch("nmt.lines._stdin", return_value=typed):
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
