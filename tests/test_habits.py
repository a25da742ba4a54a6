"""Options of other toolkits, and what they are answered with."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from nmt.cli.app import app
from nmt.cli.habits import GUESSES
from nmt.migration import habits
from nmt.migration.habits import HABITS, NAMES, SHARED

Command = Callable[..., Any]
DOCS = Path(__file__).parents[1] / "docs"
TABLES = (DOCS / "other_toolkits.md").read_text(encoding="utf-8")
RECIPE = (DOCS / "recipe.md").read_text(encoding="utf-8")
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
REMEDIES = [
    (command, habit.remedy)
    for table in (HABITS, SHARED)
    for command, habits in table.items()
    for habit in habits
]
REMEDIES += [(name, remedy) for name, guesses in GUESSES.items() for remedy in guesses.values()]


def options(command: str) -> set[str]:
    return {name for parameter in COMMANDS[command].params for name in parameter.opts}


def test_the_document_lists_the_options_that_are_answered() -> None:
    documented = set()
    for command, table in re.findall(
        r"^## [^\n]*: `nmt ([\w-]+)`\n\n(.*?)\n\n", TABLES, re.M | re.S
    ):
        head, _, *rows = [line.strip("|").split("|") for line in table.splitlines()]
        for row in rows:
            for toolkit, cell in zip(head[1:-1], row[1:], strict=False):
                found = re.findall(r"`(-[\w-]+)`", cell)
                documented |= {(command, toolkit.strip(), option) for option in found}
    answered = {
        (command, toolkit, option)
        for command, habits in HABITS.items()
        for habit in habits
        for toolkit, theirs in habit.toolkits()
        for option in theirs
    }
    assert documented == answered
    assert {toolkit for _, toolkit, _ in documented} == {*NAMES.values()}


@pytest.mark.parametrize("command", HABITS)
def test_no_option_of_ours_is_in_the_tables(command: str) -> None:
    theirs = {
        option.replace("_", "-")
        for habit in HABITS[command]
        for _, their_options in habit.toolkits()
        for option in their_options
    }
    assert theirs & options(command) == set()


@pytest.mark.parametrize(("command", "remedy"), REMEDIES, ids=lambda value: str(value)[:50])
def test_every_remedy_exists(command: str, remedy: str) -> None:
    known = {"--nproc-per-node", "--set", *options(command), *options("score")}
    assert set(re.findall(r"(?<!\w)--[\w-]+", remedy)) <= known
    for path in re.findall(r"--set '?([\w.]+)=", remedy):
        assert f"| `{path.rpartition('.')[2]}` |" in RECIPE


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("generate", "no command 'generate'; use nmt translate (see nmt --help)"),
        ("average_models", "no command 'average_models'; use nmt average-checkpoints (see nmt"),
        (
            "fairseq-train",
            "no command 'fairseq-train'; use nmt train; nmt recipe --from fairseq "
            "converts its options (see nmt",
        ),
        ("onmt_train", "no command 'onmt_train'; use nmt train; nmt recipe --from opennmt "),
        ("marian", "no command 'marian'; use nmt train; nmt recipe --from marian "),
        ("marian-server", "no command 'marian-server'; use nmt serve; "),
        ("sockeye-average", "no command 'sockeye-average'; use nmt average-checkpoints (see nmt"),
        ("sacrebleu", "no command 'sacrebleu'; use nmt score (see nmt --help)"),
        ("spm_train", "no command 'spm_train'; use nmt preprocess (see nmt --help)"),
        ("quantize", "no command 'quantize'; use nmt export (see nmt --help)"),
        ("watch", "no command 'watch'; use nmt report (see nmt --help)"),
        ("trian", "No such command 'trian'. Did you mean 'train'? (see nmt --help)"),
    ],
)
def test_a_command_of_another_toolkit_is_answered_with_ours(
    name: str, message: str, nmt: Command
) -> None:
    done = nmt(name, "--help")
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(f"nmt: error: {message}")


def test_no_command_has_the_name_that_another_toolkit_has_for_another_one() -> None:
    elsewhere = {name for names in habits.COMMANDS.values() for name in names.split()}
    assert habits.COMMANDS.keys() <= COMMANDS.keys()
    assert not elsewhere & COMMANDS.keys()


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("translate --lenpen 1", "--lenpen is an option of fairseq; use --length-penalty power "
         "--alpha A"),
        ("translate --num-beams 4", "--num-beams is an option of transformers; use --beam N"),
        ("translate --mini-batch 32", "--mini-batch is an option of Marian; use --batch-tokens N, "
         "which counts tokens of sources, not sentences"),
        ("translate --max-length 10", "--max-length is an option of OpenNMT and transformers; use "
         "--set 'search.constraints=[{name: max_length, length: N}]'; and of Marian; "
         "search.max_source_length limits a source"),
        ("translate --remove-bpe", "--remove-bpe is an option of fairseq; leave it out: text goes "
         "in and text comes out"),
        ("translate --nbest 3", "--nbest is an option of fairseq; use --n-best K"),
        ("train -s en", "-s is an option of fairseq; leave it out: the dataset knows its "
         "languages"),
        ("train --fp16", "--fp16 is an option of fairseq, Marian and transformers; use --precision "
         "fp16 or bf16"),
        ("train --clip-norm 1", "--clip-norm is an option of fairseq and Marian; use --set "
         "train.clip_norm=NORM"),
        ("train --workspace 9000", "--workspace is an option of Marian; use --max-tokens N, which "
         "bounds the memory of a micro-batch"),
        ("train -b 4", "-b is an option of Sockeye; use --tokens-per-update N, the target tokens "
         "of one update over all devices"),
        ("train --max-epoch 4", "--max-epoch is an option of fairseq; use --max-epochs N"),
        ("train --learning_rate 3", "--learning_rate is an option of OpenNMT and transformers; use "
         "--lr"),
        ("train --resume", "no option --resume; give the same --save-dir: the run there is "
         "resumed"),
        ("train --num_gpus 2", "no option --num_gpus; use torchrun --nproc-per-node N -m nmt "
         "train"),
        ("export --quantization int8", "no option --quantization; use --precision int8"),
        ("train --encoder-layers 3", "no option --encoder-layers; use --set "
         "model.encoder_layers=VALUE"),
        ("translate --pruning 3", "no option --pruning; use --set search.strategy.pruning=VALUE"),
        ("train --schedule cosine", "no option --schedule; use --set train.schedule=VALUE"),
        ("translate --beem 3", "no option --beem; did you mean --beam?"),
        ("train --max_updates 5", "no option --max_updates; use --max-updates"),
        ("train --frobnicate", "no option --frobnicate"),
        ("train --adam-betas 3", "--adam-betas is an option of fairseq; use --set "
         "train.optimizer.betas=[B1,B2]"),
        ("train --enc-depth 6", "--enc-depth is an option of Marian; use --set "
         "model.encoder_layers=VALUE"),
        ("train --no-progress-bar", "--no-progress-bar is an option of fairseq; nmt prints a line "
         "for each report"),
        ("train --task translation", "--task is an option of Marian; use --arch NAME; and of "
         "fairseq; nmt has translation alone"),
        ("train --dim-vocabs 9 9", "--dim-vocabs is an option of Marian; use nmt preprocess "
         "--vocab-size PIECES"),
        ("translate --dropout 0.1", "no option --dropout"),
        ("translate --task translation", "--task is an option of fairseq; nmt has translation "
         "alone"),
        ("translate -beam_size 5", "no option -beam_size; use --beam-size"),
        ("train -batch_size 5", "--batch_size is an option of fairseq, Sockeye and OpenNMT; use "
         "--tokens-per-update N, the target tokens of one update over all devices"),
        ("score --paired-bs a b", "--paired-bs is an option of sacreBLEU; use --paired bs"),
        ("score -tok 13a", "-tok is an option of sacreBLEU; use --set "
         "'score.metrics=[{name: bleu, tokenize: NAME}]'; by default the target language decides"),
        ("score -sl", "-sl is an option of sacreBLEU; use --sentence-level"),
        ("score -w 2", "-w is an option of sacreBLEU; use --json, which rounds no value"),
        ("score -m bleu,ter -r a b", "--metric bleu,ter: give each metric its own, --metric bleu "
         "--metric ter"),
        ("score -r a -m bleu chrf b", "chrf is a metric, not a file; use --metric chrf"),
        ("score -t wmt14 -l en-de", "--testset and --language-pair go together; -t is "
         "--target-lang here"),
        ("recipe --from fairseq fairseq-train data-bin --arch transformer", "no option --arch; put "
         "the command of the other toolkit in quotes"),
        ("train data-bin", "unexpected argument data-bin; use --data data-bin"),
        ("translate --model a b text", "unexpected argument text; give one file of text, and each "
         "model its own --model"),
        ("preprocess --train pairs.de data/pairs.en.gz", "unexpected argument data/pairs.en.gz; "
         "use --train data/pairs"),
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
    Path("data").mkdir()
    Path("data/pairs.en.gz").touch()
    command, *_ = words = line.split()
    done = nmt(*words)
    assert (done.status, done.out) == (2, "")
    assert done.err == f"nmt: error: {answer} (see nmt {command} --help)\n"


@pytest.mark.parametrize(
    ("assignment", "answer"),
    [
        ("train.batch_size=4", "train: 'batch_size' is an option of fairseq, Sockeye and OpenNMT; "
         "use train.tokens_per_update, the target tokens of one update over all devices"),
        ("train.lr_scheduler=cosine", "train: 'lr_scheduler' is an option of fairseq; use "
         "train.schedule"),
        ("search.lenpen=1", "search: 'lenpen' is an option of fairseq; use --length-penalty power "
         "--alpha A"),
        ("batch_size=4", "--set batch_size: 'batch_size' is an option of fairseq, Sockeye and "
         "OpenNMT; use train.tokens_per_update, the target tokens of one update over all devices"),
        ("train.dropout=0.1", "train: unknown key 'dropout'; did you mean 'model.dropout'?"),
        ("train.label_smoothing=0.1", "train: unknown key 'label_smoothing'; did you mean "
         "'loss.smoothing'?"),
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


def test_habits_that_mean_the_same_are_accepted(
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
