"""Training as its command shows it: resuming, refusing, validating, reporting, stopping."""

from __future__ import annotations

import json
import math
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from for_each import for_each
from trained_runs import assert_same_checkpoint, records

from nmt.data.dataset import Dataset
from nmt.data.vocabulary import BOS
from nmt.evaluation.metrics import metrics
from nmt.inference.translator import Translator
from nmt.runs import Checkpoint, Run, load_model
from nmt.runs.locking import locked
from nmt.runs.recipe import write_recipe
from nmt.runtime.distributed import World
from nmt.runtime.precision import check_precision
from nmt.search.config import SearchConfig
from nmt.training.config import TrainConfig
from nmt.training.loop import StopRequests, Stopwatch, TrainingLoop
from nmt.training.losses.token import losses
from nmt.training.reporting.report import TrainingReport, peak_memory_mb, sparkline
from nmt.training.trainer import Trainer, TrainerState
from nmt.training.validation import Validation

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"


def test_a_resumed_run_ends_as_one_that_was_never_stopped(train: Any, tmp_path: Path) -> None:
    # The stop is in the middle of an epoch of 8 updates, and of a report of 4.
    often = ("--set", "train.log_every=4", "--valid-every", 3, "--save-every", 5)
    assert train(tmp_path / "whole", *often, "--max-updates", 12).status == 0
    for updates in (6, 12):
        assert train(tmp_path / "parts", *often, "--max-updates", updates).status == 0
    assert records(tmp_path / "parts") == records(tmp_path / "whole")
    assert_same_checkpoint(tmp_path / "parts" / "last", tmp_path / "whole" / "last")
    weights = [Checkpoint.open(tmp_path / "parts" / name).weights() for name in ("last", "best")]
    before = Checkpoint.open(tmp_path / "parts" / "update_0000006").weights()
    assert any(not torch.equal(weights[0][name], before[name]) for name in before)


@pytest.mark.parametrize(
    ("reason", "options"),
    [
        ("max_updates", ("--max-updates", 3)),
        ("max_epochs", ("--max-epochs", 1, "--max-updates", 99)),
        ("max_minutes", ("--max-minutes", 1e-9)),
        ("patience", ("--patience", 1, "--valid-every", 1, "--lr", 1e-30)),
    ],
)
def test_a_training_that_ends_before_its_first_report_reports_at_its_end(
    train: Any, tmp_path: Path, reason: str, options: tuple[object, ...]
) -> None:
    done = train(tmp_path / "run", "--set", "train.log_every=100", *options)
    assert f"\ntraining ended: {reason}\n" in done.err
    [report] = [line for line in records(tmp_path / "run") if line["record"] == "train"]
    assert report["update"] == Checkpoint.open(tmp_path / "run/last").update
    assert re.search(rf" \| update {report['update']}[/ ]", done.err)
    assert report["loss"] > 0


def test_the_report_at_the_end_of_a_training_changes_none_after_it(
    train: Any, tmp_path: Path
) -> None:
    options = ("--set", "train.log_every=4", "--valid-every", 3)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert train(whole, *options).status == 0
    for updates in (3, 6):
        assert train(parts, *options, "--max-updates", updates).status == 0
    extra = [line for line in records(parts) if line not in records(whole)]
    assert [(line["record"], line["update"]) for line in extra] == [("train", 3)]
    assert [line for line in records(parts) if line not in extra] == records(whole)
    assert_same_checkpoint(parts / "last", whole / "last")


def test_training_is_the_same_twice_and_differs_with_the_seed(
    train: Any, trained: Path, tmp_path: Path
) -> None:
    assert train(tmp_path / "again").status == 0
    assert train(tmp_path / "other", "--seed", 2).status == 0
    assert records(tmp_path / "again") == records(trained)
    assert_same_checkpoint(tmp_path / "again" / "last", trained / "last")
    assert records(tmp_path / "other") != records(trained)


def test_an_update_is_the_same_however_it_is_cut_into_micro_batches(
    train: Any, tmp_path: Path
) -> None:
    for name, max_tokens in (("one", 4096), ("many", 20)):
        options = ("--dropout", 0, "--max-tokens", max_tokens)
        assert train(tmp_path / name, *options).status == 0
    one, many = (Checkpoint.open(tmp_path / name / "last") for name in ("one", "many"))
    assert one.scores["loss"] == pytest.approx(many.scores["loss"], abs=1e-5)
    for record, other in zip(records(one.path.parent), records(many.path.parent), strict=True):
        if record["record"] == "train":
            assert record["loss"] == pytest.approx(other["loss"], abs=1e-5)
            assert record["padding"] == other["padding"] == 0.0


def test_a_run_that_is_done_stays_as_it_is(train: Any, run: Path) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*.safetensors")}
    done = train(run)
    assert done.status == 0
    assert (
        "nothing to do after update 6: to continue, raise --max-updates, or start a new run with "
        "--init-from this one\ntraining ended: max_updates\n"
    ) in done.err
    assert {path: path.read_bytes() for path in run.rglob("*.safetensors")} == before


def test_the_damage_of_the_newest_checkpoint_is_reported_and_mended(
    train: Any, trained: Path, run: Path
) -> None:
    for name in ("model.safetensors", "optimizer.safetensors", "checkpoint.json"):
        damaged = run / "update_0000006" / name
        content = damaged.read_bytes()
        damaged.write_bytes(content[: len(content) // 2])
        done = train(run)
        assert done.status == 0
        warning, *_ = done.err.splitlines()
        assert warning.startswith(f"nmt: warning: {damaged}: ")
        assert "resumed after update 4" in done.err
        assert_same_checkpoint(run / "update_0000006", trained / "update_0000006")


def test_a_run_is_never_begun_anew_over_damaged_checkpoints(train: Any, run: Path) -> None:
    for path in run.glob("update_*/checkpoint.json"):
        path.write_text("{")
    recipe = (run / "recipe.yaml").read_bytes()
    done = train(run, "--set", "search.strategy={name: beam, beam: 7}")
    assert (run / "recipe.yaml").read_bytes() == recipe
    *warnings, error = done.err.splitlines()
    assert done.status == 1
    assert [line.partition(": damaged")[0] for line in warnings] == [
        f"nmt: warning: {run}/update_000000{update}/checkpoint.json" for update in (6, 4, 2)
    ]
    assert error == (
        f"nmt: error: {run}: none of its 3 checkpoints can be resumed; "
        f"begin again with another --save-dir, and --init-from {run} if its weights are sound"
    )


def test_a_recipe_of_a_run_that_no_longer_fits_is_named(train: Any, run: Path) -> None:
    begun = Run.open(run)
    begun.recipe["train"]["schedule"]["period"] = 3
    begun.with_recipe(begun.recipe)
    done = train(run)
    assert done.status == 1
    said = f"nmt: error: {run / 'recipe.yaml'}: train.schedule: unknown key 'period'; known: "
    assert done.err.startswith(said)


def test_an_average_is_not_resumed_and_stays_as_it_is(train: Any, run: Path, nmt: Any) -> None:
    averaged = run.parent / "averaged"
    assert nmt("average-checkpoints", "--run", run, "--last", 2, "--output", averaged).status == 0
    recipe = (averaged / "recipe.yaml").read_bytes()
    done = train(averaged, "--set", "search.strategy={name: beam, beam: 7}")
    assert (done.status, done.err) == (
        1,
        f"nmt: error: {averaged}: an average of checkpoints, from which training cannot resume; "
        f"train a new run with --init-from {averaged} and another --save-dir\n",
    )
    assert (averaged / "recipe.yaml").read_bytes() == recipe


def test_a_run_without_its_description_is_refused_and_left_as_it_is(train: Any, run: Path) -> None:
    (run / "run.json").unlink()
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    done = train(run, "--max-updates", 8, "--seed", 2)
    assert (done.status, done.err) == (
        1,
        f"nmt: error: {run}/run.json: missing, but there are checkpoints next to it; copy the run "
        "again from where it came from, or take another --save-dir for a new run\n",
    )
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_run_from_before_random_batching_keeps_its_buckets(train: Any, run: Path) -> None:
    recipe = Run.open(run).recipe
    del recipe["train"]["batching"]
    write_recipe(run, recipe)
    done = train(run, "--max-updates", 7)
    assert done.status == 1
    assert "train.batching was bucketed, is random" in done.err
    done = train(run, "--max-updates", 7, "--set", "train.batching=bucketed")
    assert done.status == 0, done.err


def test_a_changed_recipe_is_refused_with_the_names_of_the_keys(train: Any, run: Path) -> None:
    done = train(run, "--dropout", 0.5, "--lr", 0.02, "--set", "model.d_ff=64", "--save-every", 1)
    assert done.status == 1
    assert done.err == (
        f"nmt: error: {run}: the run there was begun with another recipe: "
        "model.d_ff was 32, is 64; model.dropout was 0.3, is 0.5; "
        "train.schedule.lr was 0.01, is 0.02. Resume with the old values, or use another "
        "--save-dir for a new run; docs/recipe.md marks the keys that a resumed run may change\n"
    )


def test_the_last_update_may_change_only_where_the_schedule_does_not_depend_on_it(
    train: Any, tmp_path: Path
) -> None:
    cosine = (tmp_path / "run", "--set", "train.schedule.name=cosine")
    assert train(*cosine, "--max-updates", 2).status == 0
    done = train(*cosine, "--max-updates", 4)
    assert done.status == 1
    assert "another recipe: train.max_updates was 2, is 4. Resume with the old values" in done.err


def test_validations_on_which_the_rate_depends_may_not_move(train: Any, tmp_path: Path) -> None:
    plateau = (tmp_path / "run", "--set", "train.schedule={name: plateau, lr: 0.01}")
    assert train(*plateau, "--max-updates", 2).status == 0
    done = train(*plateau, "--max-updates", 4, "--valid-every", 1)
    assert done.status == 1
    assert "another recipe: train.valid_every was 2, is 1. Resume with the old values" in done.err
    assert train(*plateau, "--max-updates", 4).status == 0


def test_the_plateaus_of_a_run_are_those_of_one_that_was_never_stopped(
    train: Any, tmp_path: Path
) -> None:
    # So high a rate that validation soon finds nothing better.
    rule = "train.schedule={name: plateau, lr: 2.0, warmup_updates: 0, shrink: 0.1}"
    often = ("--set", rule, "--valid-every", 1, "--set", "train.log_every=1")
    assert train(tmp_path / "whole", *often, "--max-updates", 8).status == 0
    for updates in (4, 8):
        assert train(tmp_path / "parts", *often, "--max-updates", updates).status == 0
    assert records(tmp_path / "parts") == records(tmp_path / "whole")
    rates = {line["lr"] for line in records(tmp_path / "whole") if line["record"] == "train"}
    assert len(rates) > 1
    assert_same_checkpoint(tmp_path / "parts" / "last", tmp_path / "whole" / "last")


def test_the_extra_validation_where_a_run_was_stopped_changes_nothing_after_it(
    train: Any, tmp_path: Path
) -> None:
    rule = "train.schedule={name: plateau, lr: 2.0, warmup_updates: 0, shrink: 0.1}"
    often = ("--set", rule, "--valid-every", 3, "--set", "train.log_every=1", "--keep-last", 20)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert train(whole, *often, "--max-updates", 12).status == 0
    stops = range(1, 13)
    for updates in stops:
        assert train(parts, *often, "--max-updates", updates).status == 0
    extra = {update for update in stops if update % 3}
    lines = records(parts)
    seen = [line["update"] for line in lines if line["record"] == "validation"]
    assert seen == list(stops)  # none of which is left out
    assert {line["update"] for line in lines if line.get("best")} & extra, "one is to be the best"
    rates = [
        [(it["update"], it["lr"]) for it in records(run) if "lr" in it] for run in (whole, parts)
    ]
    assert rates[0] == rates[1]
    assert len({rate for _, rate in rates[0]}) > 1, "there is to be a plateau"
    assert_same_checkpoint(parts / "last", whole / "last")
    best = min((line["loss"], line["update"]) for line in lines if line["record"] == "validation")
    assert Checkpoint.open(parts / "best").update == best[1]


@pytest.mark.parametrize(
    "name", ["adafactor", "nag", "adadelta", "sgd", "muon", "schedule_free_adamw"]
)
def test_training_with_another_optimizer_goes_on_as_if_never_stopped(
    train: Any, tmp_path: Path, name: str
) -> None:
    options = ("--set", f"train.optimizer.name={name}", "--set", "train.loss.name=r_drop")
    assert train(tmp_path / "whole", *options, "--max-updates", 4).status == 0
    for updates in (2, 4):
        assert train(tmp_path / "parts", *options, "--max-updates", updates).status == 0
    assert records(tmp_path / "parts") == records(tmp_path / "whole")
    assert_same_checkpoint(tmp_path / "parts" / "last", tmp_path / "whole" / "last")


def test_what_a_resumed_run_may_change_it_can_change(
    train: Any, run: Path, dataset: Path, tmp_path: Path
) -> None:
    moved = shutil.copytree(dataset, tmp_path / "moved")
    done = train(
        run,
        *("--data", moved, "--max-tokens", 50, "--max-updates", 7, "--valid-every", 1),
        *("--save-every", 1, "--keep-last", 1, "--patience", 9, "--max-minutes", 60),
        *("--set", "train.log_every=1", "--set", "train.save_minutes=5"),
        *("--set", "search.strategy=beam", "--set", "model.alignment_layer=1"),
    )
    assert (done.status, done.out) == (0, f"{run}\n")
    assert Run.open(run).recipe["model"]["alignment_layer"] == 1
    assert Checkpoint.open(run / "last").update == 7


def test_a_run_without_a_checkpoint_is_begun_anew_with_another_recipe(
    train: Any, trained: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    message = f"nmt: warning: {run}: training there left no checkpoint; it begins anew\n"
    done = train(run, "--seed", 9, "--lr", 1.0, "--max-updates", 1)
    assert (done.status, message in done.err) == (0, False)
    for name in ("last", "best"):
        (run / name).unlink(missing_ok=True)
    shutil.rmtree(run / "update_0000001")  # as if it had been killed before
    log, translations = run / "log.jsonl", run / "validation" / "update_0000001.txt"
    translations.parent.mkdir(exist_ok=True)
    translations.write_text("eins\n")
    done = train(run, "--dry-run")
    assert (done.status, message in done.err) == (0, False)
    assert (log.exists(), translations.exists()) == (True, True)
    done = train(run)
    assert not translations.exists()
    assert (done.status, message in done.err) == (0, True)
    assert records(run) == records(trained)
    assert_same_checkpoint(run / "last", trained / "last")
    assert Run.open(run).recipe == {
        **Run.open(trained).recipe,
        "train": {**Run.open(trained).recipe["train"], "save_dir": str(run)},
    }


def test_other_data_are_refused(
    train: Any,
    nmt: Any,
    run: Path,
    recipe: Path,
    write_numbers: Callable[..., None],
    tmp_path: Path,
) -> None:
    write_numbers(tmp_path / "other", pairs=50, seed=99)
    prefixes = [f"--{split}={tmp_path / 'other'}" for split in ("train", "valid")]
    other = ("--output-dir", tmp_path / "data-bin", "--vocab-size", 40)
    assert nmt("preprocess", "--config", recipe, *prefixes, *other).status == 0
    done = train(run, "--data", tmp_path / "data-bin")
    assert (done.status, done.err) == (
        1,
        f"nmt: error: {run}: this run was begun on other data than {tmp_path}/data-bin; give its "
        "dataset with --data DIR, or another --save-dir\n",
    )


def test_the_dataset_of_the_other_direction_is_refused(
    train: Any, nmt: Any, run: Path, recipe: Path, corpus: Path, dataset: Path, tmp_path: Path
) -> None:
    """With a shared vocabulary its fingerprint is the same."""
    texts = [f"--{split}={corpus / split}" for split in ("train", "valid", "test")]
    texts += ["--subword-model", str(dataset)]
    languages, output = ("-s", "de", "-t", "en"), ("--output-dir", tmp_path / "reverse")
    assert nmt("preprocess", "--config", recipe, *texts, *languages, *output).status == 0
    assert Dataset.open(tmp_path / "reverse").manifest.fingerprint == Run.open(run).data
    refused = [train(run, "--data", tmp_path / "reverse", "--max-updates", 9)]
    for command in ("shortlist", "calibrate"):
        refused.append(nmt(command, "--model", run, "--data", tmp_path / "reverse"))
    assert [done.status for done in refused] == [1, 1, 1]
    message = f"reverse: is de to en, but {run} is en to de; give the dataset of the run\n"
    assert all(done.err.endswith(message) for done in refused)


def test_a_validation_set_of_blank_lines_is_refused(
    train: Any, nmt: Any, recipe: Path, corpus: Path, tmp_path: Path
) -> None:
    for language in ("en", "de"):
        (tmp_path / f"blank.{language}").write_text("\n\n")
    prefixes = (f"--train={corpus / 'train'}", f"--valid={tmp_path / 'blank'}")
    place = ("--output-dir", tmp_path / "data-bin")
    assert nmt("preprocess", "--config", recipe, *prefixes, *place).status == 0
    done = train(tmp_path / "run", "--data", tmp_path / "data-bin")
    assert (done.status, done.err) == (
        1,
        "nmt: error: the validation set has only blank lines, so there is nothing to score; run "
        "`nmt preprocess` again with other validation text\n",
    )
    assert not (tmp_path / "run").exists()


def test_a_second_training_of_the_same_run_is_refused(train: Any, run: Path) -> None:
    with locked(run):
        done = train(run, "--max-updates", 8)
    assert (done.status, done.err) == (
        1,
        f"nmt: error: {run}: another process is training here; "
        "wait for it, or choose another --save-dir\n",
    )


def test_training_stops_when_validation_finds_nothing_better(train: Any, tmp_path: Path) -> None:
    frozen = ("--lr", 1e-30, "--patience", 3, "--valid-every", 1, "--max-updates", 50)
    done = train(tmp_path / "run", *frozen)
    assert done.status == 0
    assert "training ended: patience" in done.err
    assert Checkpoint.open(tmp_path / "run" / "last").update == 4  # the first is the best
    assert Checkpoint.open(tmp_path / "run" / "best").update == 1
    assert "training ended: patience" in train(tmp_path / "run", *frozen).err


def test_of_validations_that_are_equal_the_one_with_the_lower_loss_is_the_best(
    train: Any, tmp_path: Path
) -> None:
    by_bleu = ("--set", "train.valid_metrics=[bleu]", "--set", "train.best_metric=bleu")
    run = tmp_path / "run"
    assert train(run, *by_bleu, "--valid-every", 1, "--lr", 1e-4).status == 0
    lines = [line for line in records(run) if line["record"] == "validation"]
    assert {line["bleu"] for line in lines} == {0.0}
    assert sorted((line["loss"] for line in lines), reverse=True) == [it["loss"] for it in lines]
    assert all(line["best"] for line in lines)
    assert Checkpoint.open(run / "best").update == 6


def test_validation_is_due_by_the_clock_too(train: Any, tmp_path: Path) -> None:
    rarely = ("--valid-every", 100, "--max-updates", 3)
    for name, minutes, validated in (("never", "1000", [3]), ("always", "1e-9", [1, 2, 3])):
        run = tmp_path / name
        assert train(run, *rarely, "--set", f"train.valid_minutes={minutes}").status == 0
        lines = [line for line in records(run) if line["record"] == "validation"]
        assert [line["update"] for line in lines] == validated
    assert Checkpoint.open(run / "last").trainer_state["valid_seconds"] > 0


def test_a_run_begins_with_the_weights_of_another_and_counts_anew(
    train: Any, trained: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    tuned = ("--init-from", trained / "last", "--lr", 1e-30, "--save-every", 1)
    begun = train(run, *tuned, "--max-updates", 1)
    assert begun.status == 0
    assert begun.err.startswith(f"begins with the weights of {trained / 'last'}\n")
    first, parent = (Checkpoint.open(path).weights() for path in (run / "last", trained / "last"))
    for name, weight in first.items():
        torch.testing.assert_close(weight, parent[name])
    assert Checkpoint.open(run / "last").update == 1
    moved = shutil.move(trained, tmp_path / "moved")  # nobody asks for it after the beginning
    try:
        assert "resumed after update 1" in train(run, *tuned, "--max-updates", 2).err
        changed = (*tuned[2:], "--max-updates", 3, "--set", "search.strategy=beam")
        assert "resumed after update 2" in train(run, *changed).err
    finally:
        shutil.move(moved, trained)
    recipe = Run.open(run).recipe
    assert recipe["search"]["strategy"]["name"] == "beam"
    assert recipe["train"]["max_updates"] == 3
    assert recipe["train"]["init_from"] == str(trained / "last")
    done = train(run, *tuned[2:], "--init-from", trained, "--max-updates", 4)
    assert done.status == 1
    assert f"train.init_from was {trained / 'last'}, is {trained}. Resume with" in done.err


def test_weights_of_other_languages_are_taken_with_a_warning(
    train: Any, nmt: Any, trained: Path, recipe: Path, corpus: Path, tmp_path: Path
) -> None:
    prefixes = [f"--{split}={corpus / split}" for split in ("train", "valid")]
    swapped = ("-s", "de", "-t", "en", "--output-dir", tmp_path / "swapped")
    subwords = ("--subword-model", trained)
    assert nmt("preprocess", "--config", recipe, *prefixes, *swapped, *subwords).status == 0
    short = ("--max-updates", 1, "--warmup-updates", 1)
    tuned = ("--data", tmp_path / "swapped", "--init-from", trained / "last", *short)
    begun, resumed = (train(tmp_path / "run", *tuned) for _ in range(2))
    assert (begun.status, resumed.status) == (0, 0)
    assert begun.err.startswith(
        f"nmt: warning: --init-from {trained / 'last'} translates en to de, but "
        f"{tmp_path / 'swapped'} is de to en; if that is not meant, give another --data or "
        "--init-from\nbegins with"
    )
    assert "nmt: warning" not in resumed.err
    same = train(tmp_path / "same", *tuned[2:])
    assert same.status == 0
    assert "nmt: warning" not in same.err


def test_weights_of_another_vocabulary_or_shape_are_refused(
    train: Any, nmt: Any, trained: Path, recipe: Path, corpus: Path, tmp_path: Path
) -> None:
    prefixes = [f"--{split}={corpus / split}" for split in ("train", "valid")]
    other = ("--output-dir", tmp_path / "other", "--vocab-size", 40)
    assert nmt("preprocess", "--config", recipe, *prefixes, *other).status == 0
    done = train(tmp_path / "run", "--data", tmp_path / "other", "--init-from", trained)
    assert (done.status, done.err) == (
        1,
        f"nmt: error: --init-from {trained}: its vocabulary differs from the dataset's; preprocess "
        f"the text again with --subword-model {trained}, or with --extend-vocabulary {trained} to "
        "add pieces\n",
    )
    done = train(tmp_path / "run", "--set", "model.d_ff=64", "--init-from", trained)
    assert done.status == 1
    assert f"--init-from {trained}: different shapes: " in done.err
    assert done.err.endswith("give the model section of its recipe.yaml\n")


def test_a_resumed_run_may_leave_out_the_weights_it_began_with(
    nmt: Any, dataset: Path, trained: Path, recipe: Path, tmp_path: Path
) -> None:
    rest = tmp_path / "rest.yaml"  # the model is that of the weights
    rest.write_text(re.sub(r"(?s)model:.*(?=train:)", "", recipe.read_text()))
    for number, origin in ((2, ("--init-from", trained)), (4, ())):
        options = ("--data", dataset, "--save-dir", tmp_path / "run", "--max-updates", number)
        done = nmt("train", "--config", rest, *options, *origin)
        assert done.status == 0, done.err
    assert "resumed after update 2" in done.err


def test_a_sign_of_life_is_given_where_no_report_was_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with TrainingReport(tmp_path / "log.jsonl", 900, 0) as report:
        for update, seconds in ((1, 59.0), (2, 2.0), (3, 58.0), (4, 3.0)):
            now += seconds
            report.advance(update, now)
    assert capsys.readouterr().err == (
        "update 2/900 is done, 0% of the training\nupdate 4/900 is done, 0% of the training\n"
    )
    assert not (tmp_path / "log.jsonl").exists()


def test_training_stops_when_its_time_is_up_and_can_go_on(
    train: Any, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(
            TrainingReport, "begin", lambda report: time.sleep(0.01)
        )  # longer than the limit
        assert "training ended: max_minutes" in train(run, "--max-minutes", 1e-5).err
    assert Checkpoint.open(run / "last").update == 1
    assert "training ended: max_updates" in train(run).err
    assert_same_checkpoint(run / "last", trained / "last")


def test_checkpoints_are_saved_by_updates_or_by_the_clock(train: Any, tmp_path: Path) -> None:
    rarely = ("--save-every", 100, "--valid-every", 100, "--keep-last", 9)
    for name, options, saved in (
        ("neither", (), [6]),
        ("updates", ("--save-every", 4), [4, 6]),
        ("clock", ("--set", "train.save_minutes=1e-9"), [1, 2, 3, 4, 5, 6]),
    ):
        assert train(tmp_path / name, *rarely, *options).status == 0
        checkpoints = Run.open(tmp_path / name).checkpoints()
        assert [checkpoint.update for checkpoint in checkpoints] == saved


def test_last_leads_to_a_whole_checkpoint_wherever_a_kill_comes(
    train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, moved = tmp_path / "run", list[str]()

    def kill_after(move: Any) -> Any:
        """What a kill leaves after each move: an exception would let the writer clean up."""

        def moving(self: Path, target: Path) -> Path:
            path: Path = move(self, target)
            moved.append(path.name)
            if os.path.lexists(run / "last"):
                assert Run.open(run).checkpoint("last")
            return path

        return moving

    for name in ("rename", "replace"):
        monkeypatch.setattr(Path, name, kill_after(getattr(Path, name)))
    both = ("--save-every", 1, "--valid-every", 1, "--keep-last", 9)
    done = train(run, *both, "--max-updates", 2)
    assert done.status == 0, done.err
    assert moved.count("update_0000002") == 1
    opened = Checkpoint.open(run / "last")
    assert opened.scores
    opened.verify()


def test_a_resumed_run_amends_the_checkpoint_that_was_not_validated(
    train: Any, tmp_path: Path
) -> None:
    run, never = tmp_path / "run", ("--valid-every", 100)
    assert train(run, *never, "--max-updates", 2).status == 0
    replace(Checkpoint.open(run / "last"), scores={}).describe()
    weights = run / "update_0000002" / "model.safetensors"
    before = weights.stat().st_ino
    assert train(run, *never, "--max-updates", 2).status == 0
    assert Checkpoint.open(run / "last").scores
    assert weights.stat().st_ino == before


def test_a_checkpoint_by_the_clock_holds_the_scores_of_its_validation(
    train: Any, tmp_path: Path
) -> None:
    rarely = ("--save-every", 100, "--valid-every", 100, "--keep-last", 9)
    by_clock = [("--set", f"train.{name}_minutes=1e-9") for name in ("save", "valid")]
    unchanged = ("--lr", 1e-30)  # so that validations after the first are not the best
    done = train(tmp_path / "run", *rarely, *by_clock[0], *by_clock[1], *unchanged)
    assert done.err.count("| best loss so far\n") == 1
    checkpoints = Run.open(tmp_path / "run").checkpoints()
    assert [checkpoint.update for checkpoint in checkpoints] == [1, 2, 3, 4, 5, 6]
    assert all(checkpoint.scores for checkpoint in checkpoints)


def test_the_run_is_printed_on_stdout_and_its_progress_on_stderr(
    train: Any, tmp_path: Path
) -> None:
    done = train(tmp_path / "run", "--max-updates", 2, "--warmup-updates", 2)
    assert done.out == f"{tmp_path}/run\n"
    introduction, *preflight, report, validation, end = done.err.splitlines()
    assert introduction == "transformer_tiny in fp32 on 1 x cpu, 200 training pairs"
    assert preflight[0].startswith("parameters:")
    assert "150 = 1 process x 2 micro-batches of up to 100 tokens" in preflight[1]
    assert re.fullmatch(
        TIME + r" \| epoch 1 \| update 2/2 \| loss \d\.\d{3} \| ppl \d+\.\d\d \| lr 1\.00e-02 \| "
        r"grad norm \d\.\d\d \| [\d,]+ target tokens/s \| padding \d+\.\d% \| [\d,]+ MB \| "
        r"to go 0:00:00",
        report,
    )
    assert re.fullmatch(
        TIME + r" \| validation \| update 2 \| loss \d\.\d{3} \| perplexity \d+\.\d{3} "
        r"\| best loss so far",
        validation,
    )
    assert end == "training ended: max_updates"


def test_records_carry_the_time_of_day(trained: Path) -> None:
    times = [
        datetime.fromisoformat(json.loads(line)["time"])
        for line in (trained / "log.jsonl").read_text().splitlines()
    ]
    now = datetime.now().astimezone()
    assert len(times) == 6
    assert times == sorted(times)
    assert now - timedelta(hours=3) < times[0]
    assert times[-1] <= now


def test_memory_is_that_of_the_device_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 5e6 * device.index)
    assert peak_memory_mb(torch.device("cuda:1")) == 5.0
    assert peak_memory_mb(torch.device("cpu")) > 20.0


def test_the_panel_and_the_time_to_go_begin_with_training_and_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, screen = 1000.0, StringIO()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with TrainingReport(tmp_path / "log.jsonl", 40, 10) as report:
        now += 3600  # of preflight
        report.begin()
        now += 100
        for update in range(11, 31):
            report.advance(update, 100)
        assert report.to_go(30, 100) == timedelta(seconds=50)
        report.validation(30, {"bleu": 12.5}, best=True)
        report.validation(30, {"bleu": 11.0}, best=False)
    bar, validation, best, *_ = screen.getvalue().rpartition("updates")[2].splitlines()
    assert "30/40 | 75% | 0:01:40 | to go 0:00:50" in bar
    assert "update 30 | bleu 11.000" in validation
    assert "update 30 | bleu 12.500" in best
    assert "1:01:40" not in screen.getvalue()


@for_each(
    ("max_updates", "max_seconds", "shown", "share"),
    [
        (40, math.inf, "20/40", 0.5),
        (40, 400.0, "20/40", 0.5),
        (1_000, 200.0, "20", 0.5),
        (1_000, 90.0, "20", 1.0),
    ],
)
def test_progress_follows_the_limit_that_ends_training_first(
    tmp_path: Path, max_updates: int, max_seconds: float, shown: str, share: float
) -> None:
    report = TrainingReport(tmp_path / "log.jsonl", max_updates, 0, True, max_seconds)
    assert report.share_done(20, 100.0) == share
    assert report._shown(20, 100.0) == shown


@for_each("values", [[1.0], [2.0, 2.0], [3.0, 1.0, 2.0], [0.1 * n for n in range(99)]])
def test_a_sparkline_has_the_least_and_the_greatest_bar(values: list[float]) -> None:
    line = sparkline(values, 8)
    assert len(line) == min(8, len(values))
    assert line[0] == {3.0: "█"}.get(values[0], "▁")
    if len(set(values)) > 1:
        assert min(line) == "▁"
        assert max(line) == "█"


def test_training_ends_after_a_number_of_epochs_and_resumes_exactly(
    train: Any, tmp_path: Path
) -> None:
    rarely = ("--valid-every", 100, "--max-updates", 100)
    for schedule in ("inverse_sqrt", "linear"):
        flags = (*rarely, "--set", f"train.schedule={{name: {schedule}, lr: 0.01}}")
        run = tmp_path / schedule
        done = train(run, *flags, "--max-epochs", 1)
        assert "\ntraining ended: max_epochs\n" in done.err, done.err
        (first, *_) = re.findall(r"updates per epoch: +(\d+)\nupdates to go: +(\d+)\n", done.err)
        assert first[0] == first[1]
        assert Checkpoint.open(run / "last").update == int(first[0])
        assert Checkpoint.open(run / "last").scores  # it was planned, and so validated
        again = train(run, *flags, "--max-epochs", 1).err
        assert "nothing to do after update" in again
        assert "raise --max-epochs" in again
        further = train(run, *flags, "--max-epochs", 2)
        if schedule == "linear":
            assert "another recipe: train.max_epochs was 1, is 2." in further.err
            assert records(run)[-2]["lr"] < 1e-3  # at the end of the line
        else:
            assert train(tmp_path / "whole", *flags, "--max-epochs", 2).status == 0
            assert_same_checkpoint(run / "last", tmp_path / "whole" / "last")
    done = train(tmp_path / "few", "--max-updates", 2, "--max-epochs", 5)
    assert "\ntraining ended: max_updates\n" in done.err
    assert "max_epochs must be more than 0, is 0" in train(tmp_path / "no", "--max-epochs", 0).err


def test_the_log_counts_what_the_lines_say(trained: Path) -> None:
    log = [json.loads(line) for line in (trained / "log.jsonl").read_text().splitlines()]
    kinds = [(line["record"], line["update"]) for line in log]
    assert kinds == [(kind, update) for update in (2, 4, 6) for kind in ("train", "validation")]
    for line in log:
        assert line["perplexity"] > 1
        if line["record"] == "validation":
            assert line["perplexity"] == pytest.approx(math.exp(line["loss"]))
            scores = Checkpoint.open(trained / f"update_{line['update']:07d}").scores
            assert scores == {"loss": line["loss"], "perplexity": line["perplexity"]}
        else:
            assert line["lr"] == pytest.approx(
                {2: 0.005, 4: 0.01, 6: 0.01 * (4 / 6) ** 0.5}[line["update"]]
            )
            assert line["padding"] == 0.0
    times = [line["seconds"] for line in log if line["record"] == "train"]
    assert times == sorted(times)


def test_the_loss_of_validation_is_the_mean_over_all_tokens(trained: Path, dataset: Path) -> None:
    loaded = load_model(trained / "last")
    split = Dataset.open(dataset).split("valid")
    nats, tokens = 0.0, 0
    with torch.no_grad():
        for index in range(len(split)):  # one sentence at a time, by the definition
            source, target = (
                torch.tensor(side(index)[None])
                for side in (
                    lambda i: split.source(i).astype("int64"),
                    lambda i: split.target(i).astype("int64"),
                )
            )
            given = torch.cat((torch.tensor([[BOS]]), target[:, :-1]), dim=1)
            likely = loaded.model(source, given).log_softmax(-1).gather(2, target[..., None])
            nats -= float(likely.sum())
            tokens += target.numel()
    search = SearchConfig()
    translator = Translator(loaded.model, loaded.subwords, search)
    validation = Validation(split, translator, (), World(), "fp32")
    assert validation()["loss"] == pytest.approx(nats / tokens, rel=1e-5)
    assert loaded.checkpoint.scores["loss"] == pytest.approx(nats / tokens, rel=1e-5)


def test_the_shares_of_processes_in_validation_are_put_together_in_order(
    trained: Path, dataset: Path
) -> None:
    split = Dataset.open(dataset).split("valid")
    answers = dict(zip(split.source_text(), split.reference_text(), strict=True))

    class Perfect:
        """A translator that knows the references, so that any disorder lowers the score."""

        model = load_model(trained).model

        def in_documents(self, blocks: Iterable[list[str]]) -> Iterable[list[str]]:
            return blocks

        def translate(self, lines: list[str]) -> list[str]:
            return [answers[line] for line in lines]

    def validation(world: World) -> Validation:
        return Validation(split, Perfect(), (metrics["chrf"],), world, "fp32")  # type: ignore[arg-type]

    other = validation(World(rank=1, size=2))

    class First(World):
        """The first of two processes, whose peer has translated its share."""

        def sum(self, values: list[float]) -> list[float]:
            return values

        def gather(self, value: Any) -> list[Any]:
            return [value, Perfect().translate(other.shard)]

    first = validation(First(rank=0, size=2))
    assert sorted(first.shard + other.shard) == sorted(split.source_text())
    indices = [index for it in (first, other) for batch in it.batches for index in batch]
    assert sorted(indices) == list(range(len(split)))
    assert first()["chrf"] == pytest.approx(100)


def test_the_sums_of_a_report_go_on_with_another_number_of_processes(
    trained: Path, dataset: Path
) -> None:
    loaded = load_model(trained)
    config = TrainConfig(precision="fp32", device="cpu")
    split = Dataset.open(dataset).split("train")
    trainer = Trainer(loaded.run, config, loaded.model, split, World())
    windows = [{"updates": 2.0, "loss": 3.0}, {"updates": 2.0, "loss": 5.0}]
    state = replace(TrainerState.from_checkpoint(loaded.checkpoint), running_stats=windows)
    trainer.restore(loaded.checkpoint.weights(), loaded.checkpoint.optimizer(), state)
    sums = trainer.running_stats.sums()
    assert (sums["updates"], sums["loss"], sums["tokens"]) == (4.0, 8.0, 0.0)


def test_a_model_that_has_diverged_is_not_translated_with(train: Any, tmp_path: Path) -> None:
    metrics = ("--set", "train.valid_metrics=[bleu]", "--set", "train.best_metric=bleu")
    limits = ("--max-updates", 4, "--set", "train.max_skipped=1", "--set", "train.valid_every=2")
    done = train(tmp_path / "run", "--lr", 1e30, "--warmup-updates", 1, *metrics, *limits)
    assert "validation | update 2 | loss nan | perplexity nan | bleu nan" in done.err
    assert done.status == 1
    assert "update 3: training diverged: 2 updates had a gradient that is not finite" in done.err


def test_what_all_processes_share_is_counted_by_the_first(trained: Path, dataset: Path) -> None:
    loaded = load_model(trained)
    config = TrainConfig(precision="fp32", device="cpu")
    split = Dataset.open(dataset).split("train")
    counted = []
    for rank in (0, 1):
        trainer = Trainer(loaded.run, config, loaded.model, split, World())
        trainer.world = World(rank=rank, size=2)
        trainer.step(trainer.loader.update(1), 0.0)
        counted.append(trainer.running_stats.sums())
    assert [sums["updates"] for sums in counted] == [1, 0]
    assert counted[0]["grad_norm"] > counted[1]["grad_norm"] == 0
    assert counted[0]["loss"] == counted[1]["loss"] > 0


def gradients_of(trainer: Trainer) -> list[torch.Tensor]:
    return [weight.grad for weight in trainer.weights.values() if weight.grad is not None]


def test_the_mean_gradient_of_two_processes_is_that_of_one(trained: Path, dataset: Path) -> None:
    config = TrainConfig(precision="fp32", device="cpu")
    split = Dataset.open(dataset).split("train")

    def gradients(rank: int, size: int) -> torch.Tensor:
        loaded = load_model(trained)
        trainer = Trainer(loaded.run, config, loaded.model, split, World())
        trainer.world = World(rank=rank, size=size)
        trainer.loader = replace(trainer.loader, process=rank, num_processes=size)
        trainer._accumulate(trainer.loader.update(1))
        return torch.cat([gradient.flatten() for gradient in gradients_of(trainer)])

    mean = (gradients(0, 2) + gradients(1, 2)) / 2
    torch.testing.assert_close(mean, gradients(0, 1), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("clip_norm", [1e-3, 1e6])
def test_gradients_are_of_the_mean_loss_and_clipped_if_they_are_larger(
    clip_norm: float, trained: Path, dataset: Path
) -> None:
    loaded = load_model(trained)
    config = TrainConfig(precision="fp32", device="cpu", clip_norm=clip_norm)
    split = Dataset.open(dataset).split("train")
    trainer = Trainer(loaded.run, config, loaded.model, split, World())
    update = trainer.loader.update(1)
    for batch in update.batches:
        trainer.criterion(batch)["loss"].backward()
    norm = torch.nn.utils.get_total_norm(gradients_of(trainer)) / update.target_tokens
    trainer.parallel.clear(trainer.optimizer)
    trainer._accumulate(update)
    torch.testing.assert_close(trainer._scale_gradients(), norm, atol=0.0, rtol=1e-4)
    clipped = torch.nn.utils.get_total_norm(gradients_of(trainer))
    torch.testing.assert_close(clipped, norm.clamp(max=clip_norm), atol=0.0, rtol=1e-4)


def test_a_training_that_is_interrupted_says_what_is_saved_and_how_to_resume(
    train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = TrainingReport.advance

    def advance_and_interrupt(report: TrainingReport, update: int, seconds: float) -> None:
        advance(report, update, seconds)
        if update == 3:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(TrainingReport, "advance", advance_and_interrupt)
    done = train(tmp_path / "run", "--set", "train.log_every=4")
    assert done.status == 130
    assert all(line["record"] != "train" for line in records(tmp_path / "run"))
    assert done.out == f"{tmp_path / 'run'}\n"
    assert done.err.endswith(
        "\ntraining ended: interrupted by SIGINT; all is saved after update 3, and the same "
        "command resumes there\n"
    )
    assert "resumed after update 3\n" in train(tmp_path / "run").err


def test_a_signal_during_validation_stops_before_another_update(
    train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    validate = TrainingLoop._validate

    def validate_and_interrupt(loop: TrainingLoop) -> bool:
        os.kill(os.getpid(), signal.SIGTERM)
        return validate(loop)

    options = ("--set", "train.valid_every=3", "--set", "train.save_every=6")
    assert train(tmp_path / "whole", *options).status == 0
    with monkeypatch.context() as patched:
        patched.setattr(TrainingLoop, "_validate", validate_and_interrupt)
        done = train(tmp_path / "run", *options)
    assert done.status == 128 + signal.SIGTERM
    assert "all is saved after update 3, and the same command" in done.err
    assert train(tmp_path / "run", *options).status == 0
    assert records(tmp_path / "run") == records(tmp_path / "whole")
    assert_same_checkpoint(tmp_path / "run" / "last", tmp_path / "whole" / "last")


def test_a_first_signal_is_noted_and_a_second_one_ends_the_process() -> None:
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it
    before = signal.getsignal(signal.SIGINT)
    with StopRequests() as requests:
        assert requests.received == 0
        os.kill(os.getpid(), signal.SIGINT)
        assert requests.received == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == before
    signal.signal(signal.SIGINT, inherited)


def test_the_first_signal_is_acknowledged_at_once_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, line in (
        (signal.SIGINT, "interrupted: saving after this update; Ctrl-C again ends at once, "
         "without it\n"),
        (signal.SIGTERM, "interrupted by SIGTERM: saving after this update\n"),
        (signal.SIGUSR1, "interrupted by SIGUSR1: saving after this update\n"),
    ):  # fmt: skip
        for quiet in (False, True):
            report = TrainingReport(tmp_path / "log.jsonl", 9, 0, quiet=quiet)
            with report, StopRequests(report.acknowledge):
                os.kill(os.getpid(), number)
                assert capsys.readouterr().err == ("" if quiet else line)
                os.kill(os.getpid(), signal.SIGTERM)
                assert capsys.readouterr().err == ""


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_training_goes_on_and_saves_without_a_reader_of_its_messages(
    is_interrupted: bool, recipe: Path, dataset: Path, tmp_path: Path
) -> None:
    """As with ``| tee``, which Ctrl-C ends as well."""
    command = [sys.executable, "-m", "nmt", "train", "--set", "train.log_every=1"]
    command += [
        "--config",
        str(recipe),
        "--data",
        str(dataset),
        "--save-dir",
        str(tmp_path / "run"),
    ]
    command += ["--max-updates", "5000" if is_interrupted else "12"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as started:
        assert started.stdout is not None
        assert any(b"update 2/" in line for line in started.stdout)
        started.stdout.close()
        if is_interrupted:
            started.send_signal(signal.SIGINT)
        status = started.wait(120)
    assert status == (130 if is_interrupted else 141)  # nobody reads the path
    last = Run.open(tmp_path / "run").checkpoint("last")
    assert last is not None
    assert last.update < 5000 if is_interrupted else last.update == 12


def test_a_signal_before_the_first_update_leaves_no_run(
    train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "nmt.training.run.preflight", lambda *_: os.kill(os.getpid(), signal.SIGTERM)
    )
    done = train(tmp_path / "run")
    assert done.status == 143
    assert "nmt: error: interrupted; run the same command again" in done.err
    assert not (tmp_path / "run").exists()


@pytest.fixture
def hangups() -> Iterator[None]:
    """Lets SIGHUP arrive, which nohup ignores and a server in this process may have blocked."""
    handler = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    signal.signal(signal.SIGHUP, handler)


HANGS_UP = """
import sys, time
from nmt.training.loop import StopRequests
with StopRequests(lambda number: print(number, file=sys.stderr)) as requests:
    print("ready", flush=True)
    end = time.monotonic() + 60
    while not requests.received and time.monotonic() < end:
        time.sleep(0.01)
    print("saving", flush=True)
    print("saving", file=sys.stderr, flush=True)
open(sys.argv[1], "w").write(str(requests.received))
"""


@pytest.mark.usefixtures("hangups")
def test_a_terminal_that_closes_is_a_signal_and_is_not_written_to(tmp_path: Path) -> None:
    child, terminal = pty.fork()
    if not child:
        os.execv(sys.executable, [sys.executable, "-c", HANGS_UP, str(tmp_path / "received")])
    while b"ready" not in os.read(terminal, 1000):
        pass
    os.close(terminal)
    assert os.waitpid(child, 0)[1] == 0
    assert (tmp_path / "received").read_text() == str(int(signal.SIGHUP))


@pytest.mark.usefixtures("hangups")
def test_a_hangup_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequests() as requests:
            os.kill(os.getpid(), signal.SIGHUP)
        assert not requests.received
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangups")
def test_every_signal_is_noted_by_its_number() -> None:
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT):
        with StopRequests() as requests:
            os.kill(os.getpid(), number)
        assert requests.received == number


def test_a_stopwatch_counts_only_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    watch = Stopwatch(before=5.0)
    now += 1
    assert watch.total == 5.0
    watch.start()
    now += 2
    assert (watch.total, watch.lap()) == (7.0, 2.0)
    with watch.paused():
        now += 50
        assert watch.total == 7.0
    now += 3
    assert (watch.total, watch.lap(), watch.lap()) == (10.0, 3.0, 0.0)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("train.clip_norm=-1", "clip_norm must not be negative, is -1.0"),
        ("train.seed=-1", "seed must not be negative, is -1"),
        ("train.ema_decay=1", "ema_decay lies in [0, 1), not 1.0"),
        ("train.valid_minutes=0", "valid_minutes must be more than 0, is 0.0"),
        ("train.timeout_minutes=.inf", "timeout_minutes must be at most 525,600, a year, is inf"),
        (
            "train.timeout_minutes=1e9",
            "timeout_minutes must be at most 525,600, a year, is 1000000000.0",
        ),
        ("train.patience=0", "patience must be more than 0, is 0"),
        ("train.max_minutes=-5", "max_minutes must be more than 0, is -5.0"),
        ("train.valid_metrics=[bleu, bleu]", "valid_metrics names a metric twice: bleu, bleu"),
    ],
)
def test_settings_that_do_harm_are_refused(
    train: Any, tmp_path: Path, assignment: str, message: str
) -> None:
    done = train(tmp_path / "run", "--set", assignment)
    assert (done.status, done.err) == (1, f"nmt: error: train: {message}\n")


def test_without_gradients_a_loss_makes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[torch.Size] = []
    zeros = torch.zeros_like
    monkeypatch.setattr(
        torch, "zeros_like", lambda x, **kw: (made.append(x.shape), zeros(x, **kw))[1]
    )
    output = torch.nn.Linear(8, 23, bias=False)
    with torch.no_grad():
        losses["cross_entropy"](torch.randn(3, 8), output, torch.tensor([1, 2, 3]))
    assert output.weight.shape not in made


def test_fp16_learns_what_fp32_learns_and_keeps_its_scale(train: Any, tmp_path: Path) -> None:
    ends = {}
    for precision in ("fp32", "fp16"):
        run = tmp_path / precision
        options = ("--precision", precision, "--dropout", 0, "--max-updates", 12)
        done = train(run, *options)
        assert done.status == 0
        slow = precision == "fp16" and check_precision("fp16", "cpu") is not None
        assert ("train.precision: fp16 is slower than fp32 on this processor" in done.err) == slow
        ends[precision] = [line["loss"] for line in records(run) if line["record"] == "validation"]
    assert ends["fp16"] == pytest.approx(ends["fp32"], rel=0.02)
    progress = Checkpoint.open(tmp_path / "fp16" / "last").trainer_state
    assert progress["loss_scale"][0] > 1.0
    assert sum(progress["loss_scale"]) > 2.0


@pytest.mark.full
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles for a CPU with g++")
def test_a_compiled_model_learns_the_same(train: Any, tmp_path: Path) -> None:
    losses = {}
    for options in ((), ("--compile",)):
        run = tmp_path / f"run{len(options)}"
        assert train(run, *options, "--dropout", 0, "--max-updates", 4).status == 0
        losses[options] = [line["loss"] for line in records(run)]
    assert losses["--compile",] == pytest.approx(losses[()], rel=1e-4)
    assert train(tmp_path / "dropout", "--compile", "--max-updates", 1).status == 0
