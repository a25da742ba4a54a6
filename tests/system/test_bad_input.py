"""What a user may do wrong: each mistake costs one line, and leaves everything as it was."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch


@dataclass(frozen=True)
class Mistake:
    """A command that must fail."""

    command: str
    message: str
    """All of it, but what Typer says of the command line (status 2) may go on."""
    prepare: Callable[[], object] = lambda: None
    """Done in the current directory before the command."""
    status: int = 1

    def pattern(self, here: Path) -> str:
        """Of what is written to stderr."""
        message = re.escape(self.message.replace("{here}", str(here)))
        message = message.replace(re.escape("{number}"), r"\d+")
        more = r".* \(see nmt.* --help\)" if self.status == 2 else ""
        return rf"nmt: error: {message}{more}\n"


def text(name: str, content: str | bytes) -> Callable[[], object]:
    """A file with that content."""
    data = content.encode() if isinstance(content, str) else content

    def write() -> None:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(data)

    return write


def edit(name: str, **values: object) -> Callable[[], object]:
    """Other values in a JSON file."""

    def write() -> None:
        path = Path(name)
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return write


def truncate(name: str, size: int) -> Callable[[], object]:
    return lambda: Path(name).write_bytes(Path(name).read_bytes()[:size])


PREPROCESS = "preprocess --train corpus/train --valid corpus/valid --output-dir fresh"
TRAIN = "train --save-dir fresh"
TRANSLATE = "translate input.txt --output fresh.txt"
AVERAGE = "average-checkpoints --output fresh"
SCORE = "score --reference corpus/test.de"
MODEL = "checkpoints/update_0000006/model.safetensors"

MISTAKES = {
    "an unknown command": Mistake("trian", "No such command 'trian'", status=2),
    "an unknown flag": Mistake(
        "train --learning-rate 3",
        "no option --learning-rate; use --lr",
        status=2,
    ),
    "a flag that is nearly right": Mistake(
        "train --max-update 3",
        "no option --max-update; use --max-updates N",
        status=2,
    ),
    "a flag without its value": Mistake(
        "train --seed", "Option '--seed' requires an argument", status=2
    ),
    "a flag of another type": Mistake(
        "train --seed x",
        "Invalid value for '--seed': ",
        status=2,
    ),
    "a recipe that is not there": Mistake(
        "train --config no.yaml",
        "no.yaml: cannot read the recipe: No such file or directory; "
        "check the path, or write one with `nmt init`",
    ),
    "a recipe that is not YAML": Mistake(
        "train",
        "nmt.yaml: line 2: not valid YAML: expected ',' or '}', but got ':'",
        text("nmt.yaml", "train: {seed: 1\nmodel: 2\n"),
    ),
    "a recipe that is not UTF-8": Mistake(
        "train",
        "nmt.yaml: cannot read the recipe: not UTF-8",
        text("nmt.yaml", b"# caf\xe9\n"),
    ),
    "an unknown section": Mistake(
        "train",
        "nmt.yaml: unknown section 'trian'; did you mean 'train'?",
        text("nmt.yaml", "trian: {seed: 1}\n"),
    ),
    "an unknown key in the recipe": Mistake(
        "train",
        "nmt.yaml: train: unknown key 'max_update'; use train.max_updates",
        text("nmt.yaml", "train: {max_update: 1}\n"),
    ),
    "an unknown key on the command line": Mistake(
        "train --set train.tokens_per_batch=1",
        "train: unknown key 'tokens_per_batch'; did you mean 'tokens_per_update'?",
    ),
    "a value of another type": Mistake(
        "train --set train.seed=many", "train.seed: expected a whole number, not 'many'"
    ),
    "a value that makes no sense": Mistake(
        "train --set train.keep_last=0", "train: keep_last must be at least 1, not 0"
    ),
    "a plugin that is not there": Mistake(
        "train --set plugins=[my_models]",
        "--set plugins: expected section.key=value",
    ),
    "an unknown architecture": Mistake(
        f"{TRAIN} --arch transformer_tinny",
        "model: unknown architecture 'transformer_tinny'; did you mean 'transformer_tiny'?",
    ),
    "parts that do not fit": Mistake(
        f"{TRAIN} --set model.heads=3", "model: d_model 16 is not divisible by 3 heads"
    ),
    "a schedule without its learning rate": Mistake(
        f"{TRAIN} --set train.schedule=cosine",
        "train: the cosine schedule needs lr",
        text("nmt.yaml", "model: {arch: transformer_tiny}\n"),
    ),
    "an unknown device": Mistake(
        f"{TRAIN} --device gpu", "unknown device 'gpu'; use cpu, cuda, cuda:N or auto"
    ),
    "an unknown precision": Mistake(
        f"{TRAIN} --precision bp16", "train.precision: unknown value 'bp16'; did you mean 'bf16'?"
    ),
    "text that is not there": Mistake(
        "preprocess --train no/train --valid corpus/valid --output-dir fresh",
        "no such file: no/train.en, nor the same name with .gz, .xz or .zst",
    ),
    "text of one language beside a dataset": Mistake(
        "preprocess --train corpus/train.en --valid corpus/valid",
        "corpus/train.en: a file of one language; give the prefix: corpus/train",
    ),
    "nothing to read beside a dataset": Mistake(
        "preprocess",
        "preprocess: not given: --train, --valid; give these options, or the keys in the recipe, "
        "which `nmt init` writes",
    ),
    "files of different length": Mistake(
        PREPROCESS,
        "corpus/train.en has 200 lines, but corpus/train.de has 2; "
        "line n of one must be the translation of line n of the other",
        text("corpus/train.de", "eins\nzwei\n"),
    ),
    "text that is not UTF-8": Mistake(
        PREPROCESS,
        "corpus/train.de:2: byte 0xfc is not UTF-8; convert it with iconv, or give --set "
        "preprocess.on_invalid_utf8=replace",
        text("corpus/train.de", b"eins\nf\xfcnf\n" + 198 * b"drei\n"),
    ),
    "a vocabulary that the text does not allow": Mistake(
        f"{PREPROCESS} --vocab-size 5000",
        "vocab_size 5000 is more than the text allows; use at most {number}, or more text",
    ),
    "a vocabulary too small for its characters": Mistake(
        f"{PREPROCESS} --vocab-size 10",
        "vocab_size 10 is too small for the characters of the text; "
        "use at least {number}, or lower character_coverage",
    ),
    "a dataset in the place of a file": Mistake(
        "preprocess --train corpus/train --valid corpus/valid --output-dir input.txt",
        "{here}/input.txt: is a file; choose another output_dir",
    ),
    "a dataset in the place of something else": Mistake(
        "preprocess --train corpus/train --valid corpus/valid --output-dir corpus",
        "{here}/corpus: is not empty and not a dataset; choose another output_dir or empty it",
    ),
    "no dataset": Mistake(
        f"{TRAIN} --data corpus",
        "corpus: not a dataset (no manifest.json); make one with `nmt preprocess`, whose recipe "
        "`nmt init` writes",
    ),
    "a dataset of another version": Mistake(
        TRAIN,
        "data-bin/manifest.json: format version 0, but this nmt reads version 3; "
        "make the dataset again with `nmt preprocess`",
        edit("data-bin/manifest.json", version=0),
    ),
    "a truncated dataset": Mistake(
        TRAIN,
        "data-bin/train.en.tokens: 10 bytes instead of {number}; "
        "make the dataset again with `nmt preprocess`",
        truncate("data-bin/train.en.tokens", 10),
    ),
    "a run in the place of a file": Mistake(
        "train --save-dir input.txt",
        "input.txt: no directory can be made there: File exists; choose another directory",
    ),
    "a run below a file": Mistake(
        "train --save-dir input.txt/run",
        "input.txt/run: no directory can be made there: Not a directory; choose another directory",
    ),
    "a run of another version": Mistake(
        "train",
        "checkpoints/run.json: format version 9, but this nmt reads version 2; "
        "copy the run again from where it came from, or train it again",
        edit("checkpoints/run.json", version=9),
    ),
    "a run begun with another recipe": Mistake(
        "train --seed 7",
        "checkpoints: the run there was begun with another recipe: train.seed was 1, is 7. "
        "Resume with the old values, or use another --save-dir for a new run; "
        "docs/recipe.md marks the keys that a resumed run may change",
    ),
    "no model": Mistake(
        f"{TRANSLATE} --model models/best",
        "models/best: not a trained model: it does not exist; "
        "give a run directory that `nmt train` has made, or one of its checkpoints",
    ),
    "a directory that is no model": Mistake(
        f"{TRANSLATE} --model corpus",
        "corpus: not a trained model: it has no run.json; "
        "give a run directory that `nmt train` has made, or one of its checkpoints",
    ),
    "a file that is no model": Mistake(
        f"{TRANSLATE} --model input.txt",
        "input.txt: not a trained model: it is a file; "
        "give a run directory that `nmt train` has made, or one of its checkpoints",
    ),
    "a checkpoint of another version": Mistake(
        TRANSLATE,
        "{here}/checkpoints/update_0000006/checkpoint.json: format version 9, but this nmt reads "
        "version 2; use another checkpoint of the run",
        edit("checkpoints/update_0000006/checkpoint.json", version=9),
    ),
    "a truncated checkpoint": Mistake(
        TRANSLATE,
        "{here}/" + MODEL + ": 100 bytes instead of {number}; use another checkpoint of the run",
        truncate(MODEL, 100),
    ),
    "a damaged description of a checkpoint": Mistake(
        TRANSLATE,
        "{here}/checkpoints/update_0000006/checkpoint.json: damaged: its checksum does not match; "
        "use another checkpoint of the run",
        edit("checkpoints/update_0000006/checkpoint.json", update=7),
    ),
    "a truncated subword model": Mistake(
        TRANSLATE,
        "checkpoints/subwords.model: 100 bytes instead of {number}; "
        "copy the run again from where it came from, or train it again",
        truncate("checkpoints/subwords.model", 100),
    ),
    "a device that is not there": Mistake(
        f"{TRANSLATE} --device cuda:77",
        "device 'cuda:77' does not exist: {number} GPUs found; use auto, or cpu",
    ),
    "an unknown search strategy": Mistake(
        f"{TRANSLATE} --strategy beem",
        "search.strategy: unknown search strategy 'beem'; did you mean 'beam'?",
    ),
    "input that is not there": Mistake(
        "translate no.txt --output fresh.txt", "no.txt: No such file or directory; check the path"
    ),
    "input that is not UTF-8": Mistake(
        f"{TRANSLATE} --engine nmt",  # which writes no export
        "input.txt:2: byte 0xe9 is not UTF-8; convert it with iconv, or give "
        "--on-invalid-utf8 replace",
        text("input.txt", b"one\ncaf\xe9\n"),
    ),
    "output in a directory that is not there": Mistake(
        "translate input.txt --output no/fresh.txt",
        "no/fresh.txt: No such file or directory; check the path",
    ),
    "an average of nothing": Mistake(
        AVERAGE,
        "give checkpoints, or --last N, or --best N",
        status=2,
    ),
    "an average of checkpoints that say their run": Mistake(
        f"{AVERAGE} checkpoints/last --run checkpoints",
        "--run goes with --last or --best; checkpoints say their run",
        status=2,
    ),
    "an average of more than there is": Mistake(
        f"{AVERAGE} --last 5",
        "checkpoints: 5 checkpoints wanted, but 3 can be used; average fewer, train "
        "longer, or train with a larger --keep-last",
    ),
    "an average of the last none": Mistake(
        f"{AVERAGE} --last 0", "Invalid value for '--last': must be at least 1", status=2
    ),
    "an average of the last in words": Mistake(
        f"{AVERAGE} --last two", "Invalid value for '--last': must be a whole number", status=2
    ),
    "an average of less than the best": Mistake(
        f"{AVERAGE} --best -1", "Invalid value for '--best': ", status=2
    ),
    "an average of no run": Mistake(
        f"{AVERAGE} --run corpus --last 1",
        "corpus/run.json: missing: corpus is not a run; give a run that `nmt train` has made",
    ),
    "an average of no checkpoint": Mistake(
        f"{AVERAGE} corpus",
        "corpus/checkpoint.json: missing: corpus is not a checkpoint; "
        "give a checkpoint that `nmt train` has made",
    ),
    "an average in the place of a file": Mistake(
        "average-checkpoints --last 2 --output input.txt",
        "input.txt: holds something else than an average; choose another --output",
    ),
    "translations that are not there": Mistake(
        f"{SCORE} no.txt", "no.txt: No such file or directory; check the path"
    ),
    "more translations than references": Mistake(
        f"{SCORE} corpus/valid.de",
        "corpus/valid.de has 20 lines, but corpus/test.de has 10; "
        "line n of both must belong to the same sentence",
    ),
    "references and translations both from stdin": Mistake(
        "score --reference -",
        "only one input can be -, which is stdin",
        status=2,
    ),
    "lines and their beginnings both from stdin": Mistake(
        "translate --prefix -",
        "only one input can be -, which is stdin",
        status=2,
    ),
    "more translations of a line than the search finds": Mistake(
        "translate --n-best 9 --strategy beam input.txt",
        "9 translations of a line: beam finds at most 4; ask for fewer, or raise "
        "search.strategy.beam to at least 9",
    ),
    "a list and its source both from stdin": Mistake(
        "rescore --model checkpoints --source -",
        "only one input can be -, which is stdin",
        status=2,
    ),
    "a look at what is not there": Mistake(
        "inspect nowhere", "nowhere: does not exist; give a dataset or a run"
    ),
    "a look at a checkpoint": Mistake(
        "inspect checkpoints/last",
        "checkpoints/last: a checkpoint, not its run ({here}/checkpoints); give a dataset or a run",
    ),
    "an unknown metric": Mistake(
        f"{SCORE} --metric blue corpus/test.de",
        "score.metrics: unknown metric 'blue'; did you mean 'bleu'?",
    ),
}


def test_a_full_device_costs_one_line(nmt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("nmt.runtime.distributed.join", fail)
    done = nmt("translate", "--input", "/dev/null")
    assert (done.status, done.out) == (1, "")
    assert done.err == (
        "nmt: error: out of memory; lower --batch-tokens of nmt translate or --max-tokens of nmt "
        "train, use fewer --workers, or raise the limit if one is set (ulimit -v)\n"
    )


@pytest.fixture
def here(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    corpus: Path,
    dataset: Path,
    trained: Path,
    recipe: Path,
) -> Path:
    """A directory in which every command works as it is."""
    for source, name in ((corpus, "corpus"), (dataset, "data-bin"), (trained, "checkpoints")):
        shutil.copytree(source, tmp_path / name, symlinks=True)
    shutil.copy(recipe, tmp_path / "nmt.yaml")
    shutil.copy(corpus / "test.en", tmp_path / "input.txt")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def everything(directory: Path) -> dict[str, bytes | None]:
    """Names and contents of all that is there."""
    paths = sorted(directory.rglob("*"))
    return {str(path): path.read_bytes() if path.is_file() else None for path in paths}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_costs_one_line_and_leaves_everything_as_it_was(
    nmt: Any, here: Path, name: str
) -> None:
    mistake = MISTAKES[name]
    mistake.prepare()
    before = everything(here)
    done = nmt(*mistake.command.split())
    assert re.fullmatch(mistake.pattern(here), done.err), done.err
    assert (done.status, done.out) == (mistake.status, "")
    assert everything(here) == before


@pytest.mark.parametrize("command", [PREPROCESS, TRAIN, TRANSLATE, f"{AVERAGE} --last 2"])
def test_without_a_mistake_the_commands_of_the_table_succeed(
    nmt: Any, here: Path, command: str
) -> None:
    done = nmt(*command.split())
    assert done.status == 0, done.err
    assert (here / "fresh").exists() or (here / "fresh.txt").exists()
