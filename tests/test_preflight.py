import json
import math
import re
import shutil
import time
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from for_each import for_each
from fuzz.seals import seal
from trained_runs import trainer_state

from nmt.data.batches import Batch
from nmt.data.dataset import Dataset
from nmt.errors import NmtError
from nmt.runs import Run, locking
from nmt.runs.locking import locked_for_training
from nmt.runtime.distributed import World
from nmt.training import preflight
from nmt.training.config import TrainConfig
from nmt.training.optim.schedules import schedules
from nmt.training.preflight import (
    ORDINARY,
    fit_micro_batches,
    longest_batch,
    misfit,
    time_ordinary_batches,
    try_checkpoint,
    unfinished_decay,
)
from nmt.training.reporting.report import TrainingReport
from nmt.training.trainer import Trainer
from nmt.training.validation import Validation


def test_a_dry_run_tries_everything_says_what_it_takes_and_trains_nothing(
    train, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    done = train(run, "--dry-run")
    assert (done.status, done.out) == (0, "")
    for name in ("parameters", "target tokens per update", "updates per epoch", "disk", "about"):
        assert f"\n{name}" in done.err
    assert "training ended: dry run" in done.err
    assert not run.exists()
    failed = train(run, "--dry-run", "--init-from", tmp_path / "missing")
    assert (failed.status, run.exists()) == (1, False)
    run.mkdir()
    assert train(run, "--dry-run").out == ""
    assert [*run.iterdir()] == []


def test_a_run_that_could_not_begin_is_not_in_the_way_of_a_corrected_command(
    train, trained: Path, tmp_path: Path
) -> None:
    begun = ("--max-updates", 1, "--init-from", trained)
    for run in (tmp_path / "run", tmp_path / "made"):
        exists = run.name == "made"
        if exists:
            run.mkdir()
        failed = train(run, *begun, "--set", "model.d_ff=48")
        assert f"--init-from {trained}: different shapes" in failed.err
        assert (failed.status, run.exists()) == (1, exists)
        done = train(run, *begun)
        assert (done.status, done.out) == (0, f"{run}\n"), done.err


def test_a_dry_run_leaves_the_new_run_of_another_process(
    train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"

    def locked(directory: Path) -> None:
        directory.mkdir()
        raise NmtError("another training has begun here")

    monkeypatch.setattr(locking, "locked", locked)
    assert train(run, "--dry-run").err.endswith("another training has begun here\n")
    assert run.exists()


def test_a_process_looks_for_a_new_run_only_after_the_main_one_has_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Path] = []
    is_dir = Path.is_dir
    monkeypatch.setattr(Path, "is_dir", lambda path: looked.append(path) or is_dir(path))
    with locked_for_training(tmp_path / "run", dry_run=False, by_this_process=False):
        assert looked == []
    with locked_for_training(tmp_path / "run", dry_run=False):
        assert tmp_path / "run" in looked


def test_a_dry_run_leaves_the_log_of_a_run_as_it_is(train, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(run, "--max-updates", 2).status == 0
    before = (run / "log.jsonl").read_bytes()
    done = train(run, "--max-updates", 4, "--dry-run")
    assert "resumed after update 2" in done.err
    assert (run / "log.jsonl").read_bytes() == before


def test_a_limit_of_time_says_how_many_updates_fit(train, tmp_path: Path) -> None:
    flags = ("--dry-run", "--max-updates", 10**8)
    free, limited = (
        train(tmp_path / "run", *flags, *limit).err for limit in ((), ("--max-minutes", 1))
    )
    assert re.search(r"updates to go: +100,000,000\n", free)
    assert re.search(
        r"updates to go: +100,000,000, of which about [\d,]+ fit into max_minutes\n", limited
    )
    assert re.search(r"about: +0:01:00 of training\n", limited)


def test_a_resumed_run_has_the_rest_of_its_minutes(train, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(run, "--max-updates", 2).status == 0
    described = json.loads((run / "last" / "checkpoint.json").read_text())
    minutes = described["trainer_state"]["seconds"] / 60
    flags = ("--dry-run", "--max-updates", 10**8, "--max-minutes")
    for limit, shown in ((minutes + 1, "0:01:00"), (minutes / 2, "0:00:00")):
        done = train(run, *flags, limit)
        assert re.search(rf"about: +{shown} of training\n", done.err), done.err


def test_a_training_that_would_never_end_is_given_the_longest_time(train, tmp_path: Path) -> None:
    done = train(tmp_path / "run", "--max-updates", 10**17, "--dry-run")
    assert re.search(r"about: +999999999 days, 0:00:00 of training\n", done.err), done.err
    assert TrainingReport(tmp_path / "log.jsonl", 10**30, 0).to_go(1, 0).days == 999_999_999


def test_frozen_weights_are_parameters_that_are_not_trained(train, tmp_path: Path) -> None:
    whole, frozen = (
        train(tmp_path / name, "--dry-run", *flags).err
        for name, flags in (("whole", ()), ("frozen", ("--set", "train.freeze=[encoder.*]")))
    )
    count = re.search(r"parameters: +([\d,]+)\n", whole)
    assert count is not None
    assert re.search(rf"parameters: +{count[1]}, of which [\d,]+ are trained\n", frozen)


def test_a_disk_too_small_for_the_checkpoints_is_an_error_before_the_first_update(
    train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")(100, 90, 10**5)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    done = train(tmp_path / "run")
    assert done.status == 1
    assert "the checkpoints of --keep-last 5 need" in done.err
    assert re.search(r"need 0\.\d MB, but 0\.1 MB are free", done.err)


@pytest.mark.parametrize(
    "settings",
    [
        ("train.optimizer=adam",),
        ("train.optimizer=sgd",),
        ("train.optimizer=adafactor",),
        ("train.optimizer=muon",),
        ("train.optimizer=schedule_free_adamw", "train.schedule.name=constant"),
        ("train.ema_decay=0.9",),
        ("train.freeze=[encoder.*]",),
    ],
)
def test_the_room_for_checkpoints_is_that_of_the_optimizer(
    train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: tuple[str, ...]
) -> None:
    needed = []

    def note(trainer: Trainer) -> int:
        needed.append(try_checkpoint(trainer))
        return needed[0]

    monkeypatch.setattr(preflight, "try_checkpoint", note)
    flags = [flag for setting in settings for flag in ("--set", setting)]
    done = train(tmp_path / "run", "--keep-last", 3, "--max-updates", 1, *flags)
    assert done.status == 0, done.err
    checkpoint = Run.open(tmp_path / "run").checkpoints()[-1]
    of_optimizer = sum(value.nbytes for value in checkpoint.optimizer().values())
    assert needed == [5 * checkpoint.files["model.safetensors"].bytes + 3 * of_optimizer]


def test_a_batch_or_a_validation_that_does_not_fit_a_gpu_is_an_error_with_the_key_to_lower(
    train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(Validation, "try_largest", full)
        done = train(tmp_path / "run")
    assert done.err.endswith(
        "nmt: error: validation does not fit the device's memory together with training; "
        "lower search.batch_tokens from 16384, or --max-tokens\n"
    )
    monkeypatch.setattr(Trainer, "try_batch", full)
    done = train(tmp_path / "run")
    assert done.status == 1
    assert "; lower --max-tokens from 100: the update stays the same" in done.err


@pytest.mark.parametrize(
    ("max_tokens", "remedy"),
    [
        (400, "lower --max-tokens from 400: the update stays"),
        (
            100,
            "lower train.loss.samples from 4, or preprocess with a lower preprocess.max_tokens_per",
        ),
    ],
)
def test_samples_of_one_pair_that_do_not_fit_a_gpu_are_named_as_what_to_lower(
    train,
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    max_tokens: int,
    remedy: str,
) -> None:
    def full(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Trainer, "try_batch", full)
    loss = ("--set", "train.loss={name: minimum_risk, samples: 4}", "--init-from", trained)
    done = train(tmp_path / "run", *loss, "--max-tokens", max_tokens)
    assert done.status == 1
    assert f"does not fit the memory of the device; {remedy}" in done.err


@pytest.mark.parametrize(("cuda_graphs", "copies"), [(False, 1), (True, 2)])
def test_micro_batches_are_as_large_as_fits_and_the_trial_is_no_peak_of_training(
    cuda_graphs: bool, copies: int, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []
    device, reset = torch.device("cuda:0"), []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", reset.append)

    def memory_of_2000_positions(batch: Batch) -> None:
        tried.append(batch.num_positions)
        if batch.num_positions > 2000:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    trainer = SimpleNamespace(
        config=SimpleNamespace(tokens_per_update=100_000, cuda_graphs=cuda_graphs),
        loader=SimpleNamespace(
            split=Dataset.open(dataset).split("train"), rows_per_sentence=1, link=None
        ),
        world=World(place=str(device)),
        allocate=lambda: None,
        try_batch=memory_of_2000_positions,
        set_max_tokens=lambda tokens: chosen.append(tokens),
    )
    chosen: list[int] = []
    fit_micro_batches(trainer)  # type: ignore[arg-type]
    assert tried == sorted(tried)
    assert tried[-1] > 2000 >= tried[-2]
    positions = 2 * copies * chosen[0]
    assert positions * 1.5 * 8 / 7 > 2000 > positions
    assert reset == [device]


def test_the_time_of_ordinary_batches_on_a_gpu_does_not_include_work_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: done.append("wait"))
    monkeypatch.setattr(time, "perf_counter", lambda: float(len(done)))
    trainer = SimpleNamespace(
        loader=SimpleNamespace(
            update=lambda _: SimpleNamespace(batches=[SimpleNamespace(num_tokens=2)])
        ),
        try_batch=lambda _: done.append("batch"),
        world=World(place="cuda"),
    )
    seconds = time_ordinary_batches(trainer)  # type: ignore[arg-type]
    assert done == ["wait", *["batch"] * ORDINARY, "wait"]
    assert seconds == (ORDINARY + 1) / (2 * ORDINARY)


@for_each(
    ("device", "changes", "expected"),
    [
        ("cuda", {}, True),
        ("cpu", {}, False),
        ("cuda", {"max_tokens": 4096}, False),
        ("cuda", {"sharding": "full"}, False),
    ],
)
def test_a_gpu_is_tried_unless_micro_batches_are_given_or_processes_wait_for_shards(
    device: str, changes: dict[str, Any], expected: bool
) -> None:
    trainer = SimpleNamespace(
        config=TrainConfig(**changes),
        state=SimpleNamespace(max_tokens=0),
        world=World(place=device),
    )
    assert Trainer.needs_trial.__get__(trainer) is expected


def as_on_a_gpu(trainer: Trainer) -> bool:
    return trainer.config.max_tokens == "auto" and not trainer.state.max_tokens


def test_other_devices_try_again_what_fits(
    train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "needs_trial", property(as_on_a_gpu))
    run, line = tmp_path / "run", "micro-batches of up to"
    for updates, device, is_tried in [
        (2, "GPU A, 8 bytes", False),  # by the preflight check, which has a line of its own
        (4, "GPU A, 8 bytes", False),
        (6, "GPU A, 9 bytes", True),
        (8, "GPU A, 9 bytes", False),
    ]:
        monkeypatch.setattr(World, "device_kinds", lambda _, device=device: [device])
        done = train(run, "--max-tokens", "auto", "--max-updates", updates)
        assert done.status == 0, done.err
        assert (line in done.err) == is_tried
        counted = trainer_state(run / "last")
        assert counted["max_tokens_devices"] == [device]
        assert counted["max_tokens"] > 0
    done = train(run, "--max-tokens", 50, "--max-updates", 10)
    assert trainer_state(run / "last")["max_tokens_devices"] == []
    monkeypatch.undo()
    assert World().device_kinds() == ["cpu"]


def test_other_activations_try_again_what_fits(
    train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "needs_trial", property(as_on_a_gpu))
    run, line = tmp_path / "run", "micro-batches of up to"
    for updates, part, is_tried in [
        (2, "layers", False),
        (4, "layers", False),
        (6, "none", True),
        (8, "none", False),
    ]:
        part_flag = ("--set", f"train.checkpoint_activations={part}")
        done = train(run, "--max-tokens", "auto", "--max-updates", updates, *part_flag)
        assert done.status == 0, done.err
        assert (line in done.err) == is_tried
        assert trainer_state(run / "last")["max_tokens_activations"] == part
    newest = run / "update_0000008" / "checkpoint.json"
    values = json.loads(newest.read_text())
    del values["trainer_state"]["max_tokens_activations"]  # as older versions wrote it
    newest.write_text(json.dumps(values))
    seal(newest)
    done = train(run, "--max-tokens", "auto", "--max-updates", 10, *part_flag)
    assert "resumed after update 8" in done.err
    assert line not in done.err


def test_the_longest_batch_holds_the_longest_pairs_that_fit(dataset: Path) -> None:
    split = Dataset.open(dataset).split("train")
    longer = np.maximum(split.source_lengths, split.target_lengths)
    batch = longest_batch(split, max_tokens=3 * int(longer.max()))
    assert batch.num_sentences == 3
    assert max(batch.packing.source.longest, batch.packing.target.longest) == longer.max()
    assert longest_batch(split, max_tokens=1).num_sentences == 1
    assert longest_batch(split, max_tokens=10**9).num_sentences == len(split)


@for_each(
    ("updates", "seconds", "limit", "warning"),
    [
        (100_000, 10.0, 600.0, "11 hours on this machine, training after 10 minutes, before it"),
        (300, 10.0, math.inf, "11 hours on this machine, training after 300 updates, before it"),
        (3999, 0.1, math.inf, "7 minutes on this machine, training after 3,999 updates, before"),
        (100_000, 10.0, math.inf, "11 hours on this machine: write a recipe that fits"),
        (100_000, 60.0, math.inf, "3 days on this machine: write a recipe that fits"),
        (4000, 0.1, math.inf, None),
        (5, 0.1, math.inf, None),
        (100_000, 0.1, 3600.0, None),
    ],
)
def test_a_recipe_that_does_not_fit_the_time_is_a_warning(
    updates: int, seconds: float, limit: float, warning: str | None
) -> None:
    said = misfit(4000, updates, seconds, limit)
    if warning is None:
        assert said is None
    else:
        assert said is not None
        assert said.startswith(f"warm-up ends after {warning}")


def test_the_remedy_of_a_long_warm_up_fits_the_time() -> None:
    said = misfit(4000, 100_000, 10.0, 600.0)
    assert said is not None
    assert said.endswith("with `nmt init`, or take --warmup-updates 6")
    assert misfit(6, 100_000, 10.0, 600.0) is None
    said = misfit(4000, 100_000, 10.0, math.inf)
    assert said is not None
    assert misfit(int(said.split()[-1]), 100_000, 10.0, math.inf) is None


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_a_decay_that_time_cuts_short_is_a_warning_with_the_number_of_updates(name: str) -> None:
    schedule = replace(schedules[name], lr=1e-3, warmup_updates=100)
    said = unfinished_decay(schedule, 10_000, 0.1, 505.0)
    assert said is not None
    assert said.startswith(
        "max_minutes ends training after about 5,050 of 10,000 updates, with 50%"
    )
    assert said.endswith("--max-updates 5050")
    assert unfinished_decay(schedule, 5050, 0.1, 505.0) is None
    assert unfinished_decay(schedule, 5100, 0.1, 505.0) is None  # nearly at its end
    assert unfinished_decay(schedule, 10_000, 0.1, math.inf) is None


def test_a_decay_that_does_not_depend_on_the_last_update_is_never_cut_short() -> None:
    schedule = replace(schedules["inverse_sqrt"], lr=1e-3, warmup_updates=100)
    assert unfinished_decay(schedule, 10_000, 0.1, 500.0) is None


def test_a_training_whose_time_ends_before_its_decay_begins_with_a_warning(
    train, tmp_path: Path
) -> None:
    linear = ("--set", "train.schedule={name: linear, lr: 0.001, warmup_updates: 1}")
    updates = ("--max-updates", 10**6, "--max-minutes", 5)
    done = train(tmp_path / "cut", *linear, *updates, "--dry-run")
    assert done.status == 0
    (line,) = [line for line in done.err.splitlines() if line.startswith("nmt: warning: ")]
    assert "of the highest learning rate; for the linear schedule to reach its end" in line
    run = tmp_path / "resumed"
    assert train(run, *linear, "--max-updates", 10**6, "--max-minutes", 0.001).status == 0
    resumed = train(run, *linear, *updates, "--dry-run")
    assert resumed.status == 0
    assert "nmt: warning: " not in resumed.err  # no remedy is left


def test_a_training_that_ends_before_its_warm_up_begins_with_a_warning(
    train, tmp_path: Path
) -> None:
    short = train(tmp_path / "short", "--warmup-updates", 4000, "--dry-run")
    assert short.status == 0
    (line,) = [line for line in short.err.splitlines() if line.startswith("nmt: warning: ")]
    assert "on this machine, training after 6 updates, before it learns: " in line
    assert "nmt: warning: " not in train(tmp_path / "fitting", "--dry-run").err


@pytest.mark.parametrize("name", ["recipe.yaml", "log.jsonl", "subwords.model", "manifest.json"])
def test_a_new_run_replaces_no_file_that_is_not_of_a_run(train, tmp_path: Path, name: str) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / name).write_text("mine\n")
    for flags in ((), ("--dry-run",)):
        done = train(place, *flags)
        assert (done.status, [*place.iterdir()]) == (1, [place / name])
        what = "is a dataset" if name == "manifest.json" else f"is not a run, but holds {name}"
        assert done.err == (
            f"nmt: error: {place}: {what}; choose another --save-dir for a new run\n"
        )
    assert (place / name).read_text() == "mine\n"


def test_a_dry_run_leaves_a_directory_as_it_was(train, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "train.err").write_text("")
    assert train(place, "--dry-run").status == 0
    assert [*place.iterdir()] == [place / "train.err"]
