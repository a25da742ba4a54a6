"""The run directory: what is saved comes back, and what is damaged is refused."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import yaml
from conftest import files_of_at_most

from nmt.data.dataset import Dataset
from nmt.data.directions import DIRECTIONS_FILE
from nmt.errors import NmtError, explain
from nmt.io import documents, files
from nmt.runs import LOG, Checkpoint, Run, load_model, set_weights, weights_of
from nmt.runs.locking import locked, locked_for_training
from nmt.runs.recipe import PLUGINS
from nmt.runs.translations import DIRECTORY as TRANSLATIONS
from nmt.subwords.subwords import Subwords

WEIGHTS = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([[3.0], [4.0]])}
OPTIMIZER = {"a/exp_avg": torch.tensor([0.5, 0.5]), "a/step": torch.tensor(7.0)}


@pytest.fixture
def empty(tmp_path: Path, dataset: Path) -> Run:
    """A run without checkpoints."""
    return create(tmp_path / "empty", dataset)


def create(path: Path, dataset: Path, **values: Any) -> Run:
    """Return a new run, with some values in the place of the usual ones."""
    usual: dict[str, Any] = {
        "languages": ("en", "de"),
        "identity": "abc",
        "data": "def",
        "recipe": {"model": {"arch": "transformer_tiny"}},
        "subwords": Subwords.load(dataset),
    }
    return Run.create(path, **usual | values)


def save(run: Run, update: int, best: bool = False) -> Checkpoint:
    return run.save(update, WEIGHTS, OPTIMIZER, {"best": 1.5}, {"loss": 0.1}, best)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_what_is_saved_comes_back(empty: Run) -> None:
    saved = save(empty, 7)
    opened = Checkpoint.open(empty.path / "update_0000007")
    assert opened == saved
    assert (opened.update, opened.scores, opened.trainer_state) == (7, {"loss": 0.1}, {"best": 1.5})
    for found, given in ((opened.weights(), WEIGHTS), (opened.optimizer(), OPTIMIZER)):
        assert found.keys() == given.keys()
        assert all(torch.equal(found[name], given[name]) for name in given)


def test_a_run_comes_back(empty: Run) -> None:
    assert Run.open(empty.path) == empty
    assert (empty.source_lang, empty.target_lang) == ("en", "de")
    assert (empty.identity, empty.data) == ("abc", "def")


def test_a_run_that_is_created_anew_but_not_to_the_end_is_none(
    tmp_path: Path, dataset: Path
) -> None:
    path = create(tmp_path / "run", dataset).path
    assert Run.exists(path)
    with pytest.raises(yaml.YAMLError):
        create(path, dataset, recipe={"model": object()})
    assert not Run.exists(path)


def test_last_is_the_newest_and_best_is_the_newest_of_the_best(empty: Run) -> None:
    for update, best in ((1, False), (2, True), (3, False)):
        save(empty, update, best)
    assert [checkpoint.update for checkpoint in empty.checkpoints()] == [1, 2, 3]
    links = [empty.checkpoint("last"), empty.checkpoint("best")]
    assert [link.update for link in links if link] == [3, 2]


def test_before_any_validation_no_checkpoint_is_the_best(empty: Run) -> None:
    save(empty, 1)
    save(empty, 2)
    assert empty.checkpoint("best") is None
    save(empty, 3, best=True)
    save(empty, 4)
    best = empty.checkpoint("best")
    assert best is not None
    assert best.update == 3


def test_checkpoints_are_in_the_order_of_their_updates(empty: Run) -> None:
    for update in (20_000_000, 3, 9_999_999):
        save(empty, update)
    assert [checkpoint.update for checkpoint in empty.checkpoints()] == [3, 9_999_999, 20_000_000]


def test_the_newest_and_the_best_are_kept_and_two_can_be_resumed(empty: Run) -> None:
    for update in range(1, 7):
        save(empty, update, best=update == 2)
    empty.prune(keep_last=3)
    kept = {path.name: names(path) for path in empty.checkpoint_paths()}
    translatable = ["checkpoint.json", "model.safetensors"]
    assert kept == {
        "update_0000002": translatable,
        "update_0000004": translatable,
        "update_0000005": [*translatable, "optimizer.safetensors"],
        "update_0000006": [*translatable, "optimizer.safetensors"],
    }


def test_copies_of_checkpoints_under_other_names_are_left_alone(empty: Run) -> None:
    save(empty, 1)
    for name in ("update_0000001.keep", "update_best_old"):
        shutil.copytree(empty.path / "update_0000001", empty.path / name)
    (empty.path / "update_notes.txt").touch()
    (empty.path / "update_3").mkdir()
    for update in (2, 3, 4):
        save(empty, update)
    empty.prune(keep_last=2)
    assert [path.name for path in empty.checkpoint_paths()] == ["update_0000003", "update_0000004"]
    assert (empty.path / "update_0000004/optimizer.safetensors").exists()
    assert (empty.path / "update_0000001.keep/optimizer.safetensors").exists()


def test_a_run_can_be_moved(run: Path, tmp_path: Path) -> None:
    before = weights_of(load_model(run).model)
    run.rename(tmp_path / "moved")
    after = weights_of(load_model(tmp_path / "moved").model)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_run_that_was_copied_with_its_links_followed_goes_on(empty: Run, tmp_path: Path) -> None:
    for update in (1, 2):
        save(empty, update, best=update == 1)
    copy = Run.open(Path(shutil.copytree(empty.path, tmp_path / "copy")))
    save(copy, 3)
    links = [copy.checkpoint("last"), copy.checkpoint("best")]
    assert [link.update for link in links if link] == [3, 1]
    save(copy, 4, best=True)
    copy.prune(keep_last=2)
    assert [path.name for path in copy.checkpoint_paths()] == ["update_0000003", "update_0000004"]
    assert {(copy.path / name).readlink().name for name in ("last", "best")} == {"update_0000004"}


def test_a_model_is_loaded_from_its_run_or_from_one_checkpoint(trained: Path) -> None:
    best = Run.open(trained).checkpoint("best")
    assert best is not None
    assert load_model(trained).checkpoint == best
    for name in ("update_0000002", "last", "best"):
        chosen = load_model(trained / name)
        assert chosen.checkpoint.path == (trained / name).resolve()
        assert chosen.run.path == trained
        assert not any(module.training for module in chosen.model.modules())
        weights = chosen.checkpoint.weights()
        assert all(torch.equal(w, weights[name]) for name, w in weights_of(chosen.model).items())


def test_tied_weights_are_saved_once_and_stay_tied(trained: Path) -> None:
    loaded = load_model(trained)
    assert loaded.recipe["model"]["tied_embeddings"] == "all"
    assert "output.weight" not in loaded.checkpoint.weights()
    embedding = loaded.checkpoint.weights()["target_embedding.weight"]
    assert torch.equal(loaded.model.output.weight, embedding)
    with torch.no_grad():
        loaded.model.output.weight.zero_()
    assert not weights_of(loaded.model)["target_embedding.weight"].any()


@pytest.mark.parametrize("name", ["checkpoint.json", "model.safetensors", "optimizer.safetensors"])
def test_a_flipped_bit_is_detected_wherever_it_is(empty: Run, name: str) -> None:
    path = save(empty, 1).path
    content = (path / name).read_bytes()
    for at in range(len(content)):
        (path / name).write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(NmtError) as error:
            read(path)
        assert str(error.value).startswith(f"{path / name}: "), at


@pytest.mark.parametrize("name", ["checkpoint.json", "model.safetensors", "optimizer.safetensors"])
@pytest.mark.parametrize("length", [0, 30])
def test_a_truncated_file_is_detected(empty: Run, name: str, length: int) -> None:
    path = save(empty, 1).path
    whole = (path / name).read_bytes()
    (path / name).write_bytes(whole[:length])
    problem = "damaged" if name == "checkpoint.json" else f"{length} bytes instead of {len(whole)}"
    with pytest.raises(NmtError, match=rf"^{path / name}: {problem}"):
        read(path)


@pytest.mark.parametrize("name", ["checkpoint.json", "model.safetensors", "optimizer.safetensors"])
def test_a_missing_file_is_detected(empty: Run, name: str) -> None:
    path = save(empty, 1).path
    (path / name).unlink()
    with pytest.raises(NmtError, match=rf"^{path / name}: missing"):
        read(path)


def test_a_checkpoint_is_whole_without_its_optimizer_but_not_without_weights(empty: Run) -> None:
    checkpoint = save(empty, 1)
    (checkpoint.path / "optimizer.safetensors").unlink()
    checkpoint.verify()
    (checkpoint.path / "model.safetensors").unlink()
    with pytest.raises(NmtError, match=r"model\.safetensors: missing"):
        checkpoint.verify()


def read(path: Path) -> None:
    checkpoint = Checkpoint.open(path)
    checkpoint.weights()
    checkpoint.optimizer()


DESCRIPTIONS = ("run.json", "update_0000001/checkpoint.json")


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_another_version_is_refused(empty: Run, name: str) -> None:
    save(empty, 1)
    path = empty.path / name
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 1}))
    with pytest.raises(NmtError) as error:
        load_model(empty.path)
    refusal = f"{path}: format version 1, but this nmt reads version 2; "
    assert str(error.value).startswith(refusal)


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_a_file_of_another_kind_is_refused(empty: Run, name: str) -> None:
    save(empty, 1)
    for content in ("{}", "[1]", '{"format": "other", "version": 2}', "[" * 100_000):
        (empty.path / name).write_text(content)
        with pytest.raises(NmtError, match=rf"^{empty.path / name}: damaged: "):
            load_model(empty.path)


def forge(path: Path, **changes: object) -> None:
    """Changes values of a description, whose checksum fits them."""
    values = {**json.loads(path.read_text()), **changes}
    del values["checksum"]
    checksum = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({**values, "checksum": checksum}))


FACTS = {"bytes": 1, "sha256": 64 * "0"}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("run.json", {"source_lang": None}),
        ("run.json", {"identity": 5}),
        ("run.json", {"files": ["subwords.model"]}),
        ("run.json", {"files": {"../../dev/zero": FACTS}}),
        ("run.json", {"files": {"/etc/passwd": FACTS}}),
        ("run.json", {"files": {}}),
        ("checkpoint.json", {"files": {"../model.safetensors": FACTS}}),
        ("checkpoint.json", {"files": {"model.safetensors": {**FACTS, "bytes": -1}}}),
        ("checkpoint.json", {"files": {"model.safetensors": None}}),
        ("checkpoint.json", {"files": {}}),
        ("checkpoint.json", {"update": -1}),
        ("checkpoint.json", {"update": math.nan}),
        ("checkpoint.json", {"update": "1"}),
        ("checkpoint.json", {"scores": [1.0]}),
        ("checkpoint.json", {"scores": {"loss": "low"}}),
        ("checkpoint.json", {"scores": {"loss": 10**400}}),
        ("checkpoint.json", {"trainer_state": None}),
    ],
)
def test_forged_values_with_a_checksum_that_fits_cost_one_line_in_every_command(
    name: str, changes: dict[str, object], run: Path, recipe: Path, nmt: Any
) -> None:
    newest = run / "update_0000006"
    forge((run if name == "run.json" else newest) / name, **changes)
    for arguments in (
        ("inspect", run, "--verify"),
        ("average-checkpoints", "--run", run, "--last", 2),
        ("translate", "--model", newest, "--engine", "nmt"),
    ):
        done = nmt(*arguments, stdin=recipe)
        assert done.status == 1, arguments
        assert done.err.startswith("nmt: error: "), arguments
        assert done.err.count("\n") == 1, arguments


def test_training_names_a_forged_checkpoint_and_goes_on_from_the_one_before(
    run: Path, train: Any
) -> None:
    newest = run / "update_0000006" / "checkpoint.json"
    forge(newest, scores={"loss": "low"})
    done = train(run)
    assert done.status == 0, done.err
    assert f"nmt: warning: {newest}: damaged: " in done.err
    assert "resumed after update 4" in done.err


def test_a_score_that_is_no_number_is_kept(empty: Run) -> None:
    best = {"best": math.inf}
    empty.save(1, WEIGHTS, None, best, {"bleu": math.nan, "loss": 1}, best=False)
    text = (empty.path / "update_0000001" / "checkpoint.json").read_text()
    json.loads(text, parse_constant=pytest.fail)
    scores = empty.checkpoints()[0].scores
    assert math.isnan(scores["bleu"])
    assert scores["loss"] == 1.0


@pytest.mark.parametrize("content", [None, b"", b"model: [", b"caf\xe9: 1", b"just a sentence"])
def test_a_recipe_that_is_missing_or_damaged_is_refused(empty: Run, content: bytes | None) -> None:
    path = empty.path / "recipe.yaml"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(NmtError) as error:
        Run.open(empty.path)
    problem = "missing; restore it" if content is None else "changed since it was written; restore"
    assert str(error.value).startswith(f"{path}: {problem}")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- 1\n", "expected sections, not list"),
        ("model: 5\n", "model: expected keys and values"),
        ("search: [a]\n", "search: expected keys and values"),
        ("train: {}\n", "the section 'model' is missing; restore it"),
        ("model: {arch: 5}\n", "model: unknown architecture '5'"),
        ("model: {arch: transformer_tiny, encoder_layers: 10000000}\n", "the model is larger than"),
    ],
)
def test_a_forged_recipe_costs_one_line(run: Path, text: str, problem: str) -> None:
    digest = hashlib.sha256(text.encode()).hexdigest()
    (run / "recipe.yaml").write_text(f"# SHA-256 of the lines below: {digest}\n{text}")
    with pytest.raises(NmtError, match=rf"^{run / 'recipe.yaml'}: {problem}"):
        load_model(run)


def test_a_recipe_that_is_written_anew_is_read_whenever_a_kill_comes(empty: Run) -> None:
    first = empty.recipe
    second = {**first, "train": {"max_updates": 7}}
    for sync in range(3):
        with (
            mock.patch.object(files, "sync", raises_at(sync)),
            contextlib.suppress(InterruptedError),
        ):
            empty.with_recipe(second)
        assert Run.open(empty.path).recipe in (first, second)
    assert Run.open(empty.path).recipe == second


def raises_at(call: int) -> Callable[[Path], None]:
    calls = iter(range(100))

    def sync(path: Path) -> None:
        if next(calls) == call:
            raise InterruptedError

    return sync


@pytest.mark.parametrize(
    "name", ["subwords.model", "update_0000006/model.safetensors", "run.json", "recipe.yaml"]
)
def test_what_is_no_file_is_not_waited_for(run: Path, name: str) -> None:
    (run / name).unlink()
    os.mkfifo(run / name)
    with pytest.raises(NmtError, match=f"^{run / name}: not a regular file"):
        load_model(run)


def test_changed_subwords_are_refused_though_sentencepiece_reads_them(run: Path) -> None:
    path = run / "subwords.model"
    content = path.read_bytes()
    path.write_bytes(content.replace(b"drei", b"drej"))
    Subwords.load(run)
    with pytest.raises(NmtError, match=rf"^{path}: the content has changed since it was written"):
        load_model(run)


def test_a_damaged_copy_of_a_plugin_is_a_problem(tmp_path: Path, dataset: Path) -> None:
    run = create(tmp_path / "run", dataset, plugins={"extra.py": b"A = 1\n"})
    assert list(run.problems()) == []
    copy = run.path / PLUGINS / "extra.py"
    copy.write_bytes(b"A = 2\n")
    [problem] = run.problems()
    assert str(copy) in problem


def test_links_that_lead_elsewhere_are_refused(run: Path, trained: Path) -> None:
    for target, problem in (
        (trained / "update_0000002", "leads out of the run"),
        (Path("/dev/zero"), "leads out of the run"),
        (Path("update_0000099"), "leads to update_0000099, which is missing"),
    ):
        (run / "best").unlink()
        (run / "best").symlink_to(target)
        with pytest.raises(NmtError, match=rf"^{run / 'best'}: {problem}"):
            load_model(run)


def test_a_model_is_loaded_while_training_removes_its_checkpoint(run: Path) -> None:
    opened = Run.open(run)
    read = Checkpoint.weights

    def removed_first(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
        if checkpoint.path.name == "update_0000006":
            for name in ("last", "best"):
                files.point(run / name, "update_0000004")
            files.remove_directory(checkpoint.path)
        return read(checkpoint)

    assert load_model(run).checkpoint.update == 6
    with mock.patch.object(Checkpoint, "weights", removed_first):
        assert load_model(run).checkpoint.update == 4
    assert [checkpoint.update for checkpoint in opened.checkpoints()] == [2, 4]


def test_a_link_that_training_moves_meanwhile_is_followed_again(run: Path) -> None:
    opened, read = Run.open(run), Checkpoint.open

    def moved_first(path: Path) -> Checkpoint:
        if path.name == "update_0000006":
            files.point(run / "last", "update_0000004")
            files.remove_directory(path)
        return read(path)

    with mock.patch.object(Checkpoint, "open", moved_first):
        found = opened.checkpoint("last")
    assert found is not None
    assert found.update == 4


def test_a_damaged_checkpoint_is_one_problem_and_one_that_training_removes_is_none(
    run: Path,
) -> None:
    for name in ("last", "best"):
        files.point(run / name, "update_0000002")
    (run / "update_0000002" / "checkpoint.json").write_text("{}")
    problems = Run.open(run).problems()
    assert next(problems).startswith(f"{run}/update_0000002/checkpoint.json: ")
    files.remove_directory(run / "update_0000004")
    assert [*problems] == []


def test_weights_are_readable_for_others(empty: Run) -> None:
    assert (save(empty, 1).path / "model.safetensors").stat().st_mode & 0o777 == 0o644


def test_a_dataset_of_other_languages_is_that_of_a_multilingual_run_alone(empty: Run) -> None:
    here = Path("data")
    empty.check_languages(here, ("en", "de"))
    with pytest.raises(NmtError, match=r"data: is de to en, but .* is en to de; give the dataset"):
        empty.check_languages(here, ("de", "en"))
    facts = documents.FileFacts(bytes=1, sha256="0" * 64)
    replace(empty, files={DIRECTIONS_FILE: facts}).check_languages(here, ("de", "en"))


def test_a_recipe_keeps_the_order_of_its_keys(empty: Run) -> None:
    recipe = {"train": {"stages": [{"mix": {"one": 0.7, "back": 0.3}}]}, "model": {"arch": "x"}}
    empty.with_recipe(recipe)
    assert repr(Run.open(empty.path).recipe) == repr(recipe)


def test_checkpoints_that_training_removes_meanwhile_are_left_out(run: Path) -> None:
    opened = Run.open(run)
    examined = opened.examined()
    assert next(examined)[0].name == "update_0000002"
    files.remove_directory(run / "update_0000004")
    assert [path.name for path, _ in examined] == ["update_0000006"]


def test_a_run_that_was_not_validated_says_so(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load_model(run)
    assert capsys.readouterr().err == ""
    (run / "best").unlink()
    assert load_model(run).checkpoint.update == 6
    assert capsys.readouterr().err == (
        f"nmt: warning: {run}: validation has not found a best checkpoint yet; update_0000006, "
        "the last, is used\n"
    )


def test_what_is_no_model_is_refused_with_the_reason(empty: Run, tmp_path: Path) -> None:
    (exported := tmp_path / "exported").mkdir()
    (exported / "export.json").touch()
    for path, reason in (
        (tmp_path / "nothing", "not a trained model: it does not exist"),
        (tmp_path, "not a trained model: it has no run.json"),
        (exported, "is an export, which only `nmt translate` and `nmt serve` read"),
        (empty.path, "the run has no checkpoint yet"),
    ):
        with pytest.raises(NmtError) as error:
            load_model(path)
        assert str(error.value).startswith(f"{path}: {reason}")


def test_weights_of_another_shape_or_name_are_refused() -> None:
    layer = torch.nn.Linear(2, 3)
    own = weights_of(layer)
    for other, message in (
        ({**own, "bias": torch.zeros(4)}, "bias is [3] in the model and [4] in the checkpoint"),
        ({"weight": own["weight"]}, "bias is [3] in the model and missing in the checkpoint"),
        ({**own, "x": torch.zeros(1)}, "x is missing in the model and [1] in the checkpoint"),
    ):
        with pytest.raises(NmtError) as error:
            set_weights(layer, other)
        assert str(error.value) == f"different shapes: {message}"


def test_a_full_disk_costs_one_line_and_leaves_the_checkpoints_that_were_there(
    empty: Run,
) -> None:
    save(empty, 1)
    before = names(empty.path)
    with files_of_at_most(100), pytest.raises(OSError, match="File too large") as error:
        save(empty, 2)
    assert explain(error.value).startswith(f"{empty.path}/update_0000002: cannot")
    assert names(empty.path) == before
    last = empty.checkpoint("last")
    assert last is not None
    assert last.update == 1
    read(last.path)


def test_two_cannot_hold_a_run_at_once_but_one_after_the_other(empty: Run) -> None:
    with locked(empty.path), pytest.raises(NmtError) as error, locked(empty.path):
        pass
    assert str(error.value) == (
        f"{empty.path}: another process is training here; wait for it, or choose another --save-dir"
    )
    with locked(empty.path):
        pass


def test_who_holds_a_run_removes_what_a_killed_process_left_half_written(empty: Run) -> None:
    save(empty, 1)
    before = names(empty.path)
    shutil.copytree(empty.path / "update_0000001", empty.path / ".update_0000002.partial-99")
    with locked(empty.path):
        assert names(empty.path) == sorted([*before, "run.lock"])


@pytest.mark.parametrize("dry_run", [True, False])
def test_what_is_new_in_a_run_that_was_there_before_is_kept(empty: Run, dry_run: bool) -> None:
    with locked_for_training(empty.path, dry_run):
        (empty.path / "report.html").write_text("new")
    assert (empty.path / "report.html").exists()


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize("begun", [None, LOG, "update_0000001"])
def test_of_a_training_that_did_not_begin_nothing_new_stays(
    tmp_path: Path, begun: str | None, dry_run: bool
) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "notes").write_text("mine")
    (tmp_path / "empty").mkdir()
    for name in ("empty", "new", "old"):
        with locked_for_training(tmp_path / name, dry_run):
            (tmp_path / name / "plugins").mkdir()
            (tmp_path / name / "run.json").write_text("{}")
            if begun:
                (tmp_path / name / begun).write_text("")
    if begun and not dry_run:
        assert names(tmp_path / "new") == sorted(["plugins", "run.json", "run.lock", begun])
    else:
        assert names(tmp_path) == ["empty", "old"]
        assert (names(tmp_path / "empty"), names(tmp_path / "old")) == ([], ["notes"])


@pytest.mark.parametrize("name", ["run.lock", "run.json", "update_0000001"])
def test_a_directory_of_a_run_that_was_killed_is_taken_again(tmp_path: Path, name: str) -> None:
    for there in (name, "recipe.yaml", LOG):
        (tmp_path / there).write_text("")
    with locked(tmp_path):
        assert (tmp_path / "run.lock").exists()
    assert {"recipe.yaml", LOG} <= set(names(tmp_path))


def test_a_link_to_a_checkpoint_that_is_gone_is_a_file_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "last").symlink_to("update_0000001")
    with pytest.raises(NmtError, match="is not a run, but holds last"), locked(tmp_path):
        pass


def test_other_processes_of_a_training_leave_the_directory_alone(tmp_path: Path) -> None:
    with locked_for_training(tmp_path / "run", dry_run=True, by_this_process=False):
        assert not (tmp_path / "run").exists()
        (tmp_path / "run").mkdir()
    assert names(tmp_path) == ["run"]


@pytest.mark.parametrize("name", [PLUGINS, TRANSLATIONS, "last"])
def test_a_directory_without_a_run_that_holds_a_file_of_one_is_refused(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).mkdir()
    problem = f"is not a run, but holds {name}; choose another --save-dir"
    with pytest.raises(NmtError, match=problem), locked(tmp_path):
        pass


def test_a_run_knows_the_data_it_was_trained_on(trained: Path, dataset: Path) -> None:
    assert Run.open(trained).data == Dataset.open(dataset).manifest.fingerprint


def test_links_that_a_kill_left_behind_are_set_right(run: Path) -> None:
    opened = Run.open(run)
    newest = opened.checkpoints()[-1]
    for name in ("last", "best"):
        files.point(run / name, "update_0000002")
    opened.link(newest, best=False)
    assert (run / "last").readlink() == Path(newest.path.name)
    assert (run / "best").readlink() == Path("update_0000002")
    opened.link(newest, best=True)
    assert (run / "best").readlink() == Path(newest.path.name)
