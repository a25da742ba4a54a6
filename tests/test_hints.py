"""Hints for commands, options and keys that ``nmt`` does not have."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from nmt.advice.migration import hints
from nmt.advice.migration.hints import HINTS
from nmt.cli.app import app

Command = Callable[..., Any]
DOCS = Path(__file__).parents[1] / "docs"
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def options(command: str) -> set[str]:
    return {name for parameter in COMMANDS[command].params for name in parameter.opts}


def test_the_page_on_migrating_shows_the_options_that_have_hints() -> None:
    page = (DOCS / "migrating.md").read_text(encoding="utf-8")
    _, _, section = page.partition("## Options\n")
    table, _, _ = section.partition("\n## ")
    rows = [line.split("|")[2:] for line in table.splitlines() if line.startswith("| ")]
    shown = {option for row in rows for cell in row for option in re.findall(r"--[\w-]+", cell)}
    assert {option.replace("_", "-") for option in shown} == {
        option for command in HINTS for option in HINTS[command]
    }


@pytest.mark.parametrize("command", HINTS)
def test_hints_are_for_options_that_are_not_ours_and_name_those_that_are(command: str) -> None:
    assert not HINTS[command].keys() & options(command)
    known = {"--nproc-per-node", "--set", *options(command)}
    recipe = (DOCS / "recipe.md").read_text(encoding="utf-8")
    for hint in HINTS[command].values():
        assert set(re.findall(r"(?<!\w)--[\w-]+", hint)) <= known
        for path in re.findall(r"--set '?([\w.]+)=", hint):
            assert f"| `{path.rpartition('.')[2]}` |" in recipe


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("generate", "no command 'generate'; use nmt translate (see nmt --help)"),
        ("fairseq-train", "no command 'fairseq-train'; use nmt train (see nmt --help)"),
        ("onmt_train", "no command 'onmt_train'; use nmt train (see nmt --help)"),
        ("marian-server", "no command 'marian-server'; use nmt serve (see nmt --help)"),
        ("finetune", "no command 'finetune'; use nmt train --set train.init_from=RUN (see"),
        ("test", "no command 'test'; use nmt translate, and nmt score (see nmt --help)"),
        ("help", "no command 'help'; use nmt --help (see nmt --help)"),
        ("trian", "No such command 'trian'. Did you mean 'train'? (see nmt --help)"),
    ],
)
def test_a_command_of_another_toolkit_is_answered_with_ours(
    name: str, message: str, nmt: Command
) -> None:
    done = nmt(name, "--help")
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(f"nmt: error: {message}")


def test_help_for_a_command_is_answered_with_its_option(nmt: Command) -> None:
    assert nmt("help", "train").err == (
        "nmt: error: no command 'help'; use nmt train --help (see nmt --help)\n"
    )


def test_commands_of_other_toolkits_are_not_ours() -> None:
    assert {ours.split()[0].strip(",") for ours in hints.COMMANDS.values()} <= COMMANDS.keys()
    assert not hints.COMMANDS.keys() & COMMANDS.keys()


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("translate --lenpen 1", "no option --lenpen; use --length-penalty power --alpha A"),
        ("translate --num_beams 4", "no option --num_beams; use --beam N"),
        ("translate --remove-bpe", "no option --remove-bpe; leave it out: text goes in and text "
         "comes out"),
        ("train --batch_size 4", "no option --batch_size; use --tokens-per-update N, the target "
         "tokens of one update over all devices"),
        ("train --encoder-layers 3", "no option --encoder-layers; use --set "
         "model.encoder_layers=VALUE"),
        ("translate --pruning 3", "no option --pruning; use --set search.strategy.pruning=VALUE"),
        ("train --schedule cosine", "no option --schedule; use --set train.schedule=VALUE"),
        ("translate --beem 3", "no option --beem; did you mean --beam?"),
        ("train --max_updates 5", "no option --max_updates; use --max-updates"),
        ("train --frobnicate", "no option --frobnicate"),
        ("translate --dropout 0.1", "no option --dropout"),
        ("translate -beam_size 5", "no option -beam_size; use --beam-size"),
        ("score -m bleu,ter -r a b", "--metric bleu,ter: give each metric its own flag, --metric "
         "bleu --metric ter"),
        ("score -r a -m bleu chrf b", "chrf is a metric, not a file; use --metric chrf"),
        ("score -t wmt14 -l en-de", "--testset and --language-pair go together; -t is "
         "--target-lang here"),
        ("recipe --from fairseq fairseq-train data-bin --arch transformer", "no option --arch; put "
         "the command of the other toolkit in quotes"),
        ("train data-bin", "unexpected argument data-bin; use --data data-bin"),
        ("train config.yaml", "unexpected argument config.yaml; use --config config.yaml"),
        ("preprocess my.YML", "unexpected argument my.YML; use --config my.YML"),
        ("inspect a b.yaml", "unexpected argument b.yaml"),
        ("translate --cpu-threads 3", "no option --cpu-threads; set OMP_NUM_THREADS=N in the "
         "environment"),
        ("translate --model a b text", "unexpected argument text; give one file of text, and each "
         "model its own --model"),
        ("preprocess --train pairs.de pairs.en", "unexpected argument pairs.en; use --train "
         "pairs.en"),
        ("inspect a b", "unexpected argument b"),
        ("align a b", "Missing option '--source'; for example: nmt align --source corpus/train.en "
         "--target corpus/train.de > corpus/train.align"),
        ("inspect", "Missing argument 'path'; for example: nmt inspect data-bin"),
        ("translate --model", "Option '--model' requires an argument."),
    ],
)  # fmt: skip
def test_an_option_or_argument_that_is_not_ours_is_answered(
    line: str, answer: str, nmt: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command, *_ = words = line.split()
    done = nmt(*words)
    assert (done.status, done.out) == (2, "")
    assert done.err == f"nmt: error: {answer} (see nmt {command} --help)\n"


@pytest.mark.parametrize(
    ("assignment", "answer"),
    [
        ("train.lr_scheduler=cosine", "train: unknown key 'lr_scheduler'; use train.schedule"),
        ("batch_size=4", "--set batch_size: unknown key 'batch_size'; use train.tokens_per_update"),
        ("search.lenpen=1", "search: unknown key 'lenpen'; use search.strategy.length_penalty"),
        ("train.dropout=0.1", "train: unknown key 'dropout'; did you mean 'model.dropout'?"),
        ("model.dilations=2", "model: transformer_base has no key 'dilations'; bytenet and "
         "bytenet_small have it: leave the key out, or use --arch bytenet"),
        ("train.patienc=1", "train: unknown key 'patienc'; did you mean 'patience'?"),
        ("train.schedule.max_update=1", "train.schedule: unknown key 'max_update'; known: "
         "factor, lr, name, warmup_updates"),
    ],
)  # fmt: skip
def test_an_unknown_key_is_answered_with_ours(
    assignment: str, answer: str, nmt: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = nmt("train", "--set", assignment)
    assert (done.status, done.out, done.err) == (1, "", f"nmt: error: {answer}\n")


def test_options_that_mean_the_same_are_accepted(
    trained: Path, corpus: Path, tmp_path: Path, nmt: Command
) -> None:
    flags = ("--model", trained, "--strategy", "beam")
    ours = nmt("translate", corpus / "test.en", *flags, "--beam", 3).out
    for size in ("-b", "--beam-size"):
        files = ("-i", corpus / "test.en", "-o", tmp_path / "out", "-m", trained)
        done = nmt("translate", *files, "--strategy", "beam", size, 3)
        assert done.status == 0, done.err
        assert (tmp_path / "out").read_text() == ours != ""
    flags = ("--reference", corpus / "test.de", "--metric", "bleu")
    assert nmt("score", "-r", corpus / "test.de", "-m", "bleu", tmp_path / "out").out == (
        nmt("score", *flags, tmp_path / "out").out
    )


def test_a_run_in_the_place_of_checkpoints_is_answered_with_the_flags(
    trained: Path, nmt: Command
) -> None:
    done = nmt("average-checkpoints", trained)
    assert (done.status, done.err) == (
        2,
        f"nmt: error: {trained} is a run, not a checkpoint; use --run {trained} "
        "--last N, or --best N (see nmt average-checkpoints --help)\n",
    )


def test_completion_is_installed_and_completes(
    tmp_path: Path, nmt: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    done = nmt("--install-completion", "bash")
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("bash completion installed in ")
    script = (tmp_path / ".bash_completions/nmt.sh").read_text()
    assert "_NMT_COMPLETE=complete_bash" in script
    monkeypatch.setenv("_NMT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "nmt tra")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert nmt().out.split() == ["train", "translate"]


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_the_help_of_the_program_is_not_cut(
    columns: int, nmt: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = nmt("--help").out
    assert "..." not in text.replace("[ARGS]...", "")
    told = " ".join(text.split())
    for command in COMMANDS.values():
        summary, _, _ = command.callback.__doc__.partition("\n")
        assert f"{command.name} {summary}" in told
