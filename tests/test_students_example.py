"""The workflow of examples/students: at tiny size, killed and resumed, and as a plan."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import nmt as package
from nmt.data.dataset import Dataset
from nmt.subwords.subwords import Subwords

pytestmark = pytest.mark.full

pytest.importorskip("snakemake")
ROOT = Path(__file__).parents[1] / "examples/students"
SETTINGS = """
preprocess.vocab_size=60 preprocess.model_type=bpe preprocess.byte_fallback=false
model.d_model=32 model.d_ff=32 model.encoder_layers=1 model.decoder_layers=1 model.heads=2
train.max_updates=6 train.save_every=1 train.valid_every=2 train.precision=fp32 train.device=cpu
train.max_tokens=200 train.tokens_per_update=150 train.schedule.warmup_updates=4
train.valid_metrics=[] train.best_metric=loss
"""
TINY = " ".join(f"--set {setting}" for setting in SETTINGS.split())


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def place(tmp_path: Path, corpus: Path) -> Path:
    """A directory with a corpus, whose path has a space, and a configuration of tiny models."""
    (tmp_path / "the corpus").symlink_to(corpus)
    (tmp_path / "tiny.yml").write_text(
        f"corpus: {tmp_path}/the corpus\nshards: 3\nn_best: 3\nthreads: 1\n"
        f'teacher_flags: "{TINY}"\nstudent_flags: "{TINY}"\n'
    )
    return tmp_path


def snakemake(place: Path, programs: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start Snakemake in a directory, with the program nmt of another."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")]
    where = ["--directory", str(place), "--configfile", str(place / "tiny.yml")]
    return subprocess.Popen(
        [*command, *where, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(place)},
        start_new_session=True,
    )


@pytest.fixture
def start(programs: Path) -> Start:
    """Starts Snakemake in a directory, with commands that do not import torch anew."""
    return lambda place, *arguments: snakemake(place, programs, *arguments)


def finished(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate()
    assert process.returncode == 0, out
    return out


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def contents(place: Path) -> dict[str, bytes]:
    """The bytes of all that does not hold a time or the random identity of a run."""
    names = ["distilled.en", "distilled.de", "distilled.align", "quality.txt", "test/student.de"]
    names += ["package/shortlist.safetensors", "n-best/0.txt", "n-best/2.txt"]
    (checkpoint,) = (place / "work/package").glob("update_*")
    weights = {"weights": (checkpoint / "model.safetensors").read_bytes()}
    return weights | {name: (place / "work" / name).read_bytes() for name in names}


def test_a_plan_names_every_step(place: Path, start: Start) -> None:
    plan = finished(start(place, "--cores", "1", "--dry-run"))
    for step, count in {"teacher": 2, "translate": 3, "pick": 3, "student": 1, "verify": 1}.items():
        assert any(line.split() == [step, str(count)] for line in plan.splitlines())
    assert not (place / "work").exists()


def test_runs_that_are_trained_are_not_trained_again(place: Path, start: Start) -> None:
    given = ("--config", "teacher_runs=[first,second]", "translate_flags=--precision bf16")
    plan = finished(start(place, "--cores", "1", "--dry-run", "--printshellcmds", *given))
    assert not [line for line in plan.splitlines() if line.startswith("rule teacher")]
    assert "nmt translate --model first --model second --strategy beam" in plan
    assert plan.count("--n-best 3 --precision bf16 --output") == 3
    assert "nmt translate --model first --output work/test/teacher.de" in plan


BRANCHES = ("monolingual=mono.de", "filter_keep=0.5")


def test_optional_branches_are_in_the_plan(place: Path, corpus: Path, start: Start) -> None:
    shutil.copyfile(corpus / "valid.de", place / "mono.de")
    dry = ("--cores", "1", "--dry-run", "--printshellcmds")
    plan = finished(start(place, *dry, "--config", *BRANCHES))
    steps = {"auxiliary": 2, "filter": 1, "back_translate": 3, "teacher": 2, "translate": 3}
    for step, count in steps.items():
        assert any(line.split() == [step, str(count)] for line in plan.splitlines())
    assert "'preprocess.train=[work/filtered, {path: work/back, tag: bt}]'" in plan
    assert "work/shards/0.en" in plan
    assert plan.count(f"--train '{place}/the corpus/train' ") == 2  # of the auxiliary models
    trained = ("forward_run=first", "reverse_run=second", "back_translate_flags=--strategy sample")
    plan = finished(start(place, *dry, "--config", *BRANCHES, *trained))
    assert not [line for line in plan.splitlines() if line.startswith("rule auxiliary")]
    assert "--forward first --reverse second --keep 0.5" in plan
    assert plan.count("nmt translate --model second --strategy sample") == 3


def test_teachers_learn_filtered_pairs_and_tagged_back_translations(
    place: Path, corpus: Path, start: Start
) -> None:
    shutil.copyfile(corpus / "valid.de", place / "mono.de")
    finished(start(place, "--cores", "1", "--until", "teacher_data", "--config", *BRANCHES))
    work = place / "work"
    pairs = set(zip(*(lines(corpus / f"train.{side}") for side in ("en", "de")), strict=True))
    kept = list(zip(*(lines(work / f"filtered.{side}") for side in ("en", "de")), strict=True))
    assert len(kept) == 100
    assert {*kept} <= pairs
    assert sorted(lines(work / "back.de")) == sorted(lines(corpus / "valid.de"))
    assert len(lines(work / "back.en")) == 20
    dataset = Dataset.open(work / "teacher-bin")
    split, subwords = dataset.split("train"), Subwords.from_dataset(dataset)
    first = subwords.source_pieces([int(split.source(at)[0]) for at in range(len(split))])
    assert [piece == "<bt>" for piece in first] == [False] * 100 + [True] * 20


def test_a_cluster_gets_the_same_plan(place: Path, start: Start) -> None:
    pytest.importorskip("snakemake_executor_plugin_slurm")
    plan = finished(start(place, "--profile", str(ROOT / "slurm"), "--dry-run"))
    assert any(line.split() == ["translate", "3"] for line in plan.splitlines())


@pytest.mark.slow
def test_a_killed_workflow_goes_on_and_ends_in_the_same_bytes(
    place: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    programs = Path(sys.executable).parent  # processes of the group that is killed
    other = tmp_path_factory.mktemp("whole")
    (other / "tiny.yml").write_text((place / "tiny.yml").read_text())
    finished(snakemake(other, programs, "--cores", "1"))
    go_on = ("--cores", "1", "--rerun-incomplete")
    for step in ("teacher1/update_0000002", "n-best/1.txt", "student/update_0000003"):
        killed = snakemake(place, programs, *go_on)
        while not (place / "work" / step).exists():
            assert killed.poll() is None
            time.sleep(0.02)
        os.killpg(killed.pid, signal.SIGKILL)
        killed.communicate()
        finished(snakemake(place, programs, "--unlock"))
    finished(snakemake(place, programs, *go_on))
    assert contents(place) == contents(other)


def test_the_workflow_makes_a_package_that_translates(
    place: Path, corpus: Path, start: Start
) -> None:
    finished(start(place, "--cores", "2", "--config", "quantized_updates=4"))
    translator = package.Translator(
        place / "work/package", device="cpu", precision="int8", shortlist=True
    )
    lines = (corpus / "test.en").read_text().splitlines()
    expected = (place / "work/test/student.de").read_text().splitlines()
    assert list(translator.translate(lines)) == expected
    assert "quantization: int8" in (place / "work/package/recipe.yaml").read_text()
    assert "quantization: none" in (place / "work/student/recipe.yaml").read_text()
    quality = (place / "work/quality.txt").read_text()
    assert "teacher" in quality
    assert "student" in quality
    assert "package" in (place / "work/package.txt").read_text().splitlines()[-1]
