"""Checkpoint averaging: the mean of weights, and the run that holds it."""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Command

from nmt.errors import NmtError
from nmt.runs import Checkpoint, Run, average, load_model, weights_of
from nmt.runs.checkpoint import similarity
from nmt.subwords.subwords import Subwords
from nmt.training.average import average_run, pick_best, pick_last


def save(
    run: Run, update: int, values: list[float], dtype: torch.dtype = torch.float32, **scores: float
) -> Path:
    weights = {"a": torch.tensor(values, dtype=dtype)}
    return run.save(update, weights, None, {}, scores, best=False).path


@pytest.fixture
def empty(tmp_path: Path, dataset: Path) -> Run:
    return create(tmp_path / "empty", "abc", dataset)


def create(path: Path, identity: str, dataset: Path, **changes: Any) -> Run:
    values: dict[str, Any] = {
        "languages": ("en", "de"),
        "recipe": {"train": {"valid_metrics": ["bleu"], "best_metric": "bleu"}},
    }
    subwords = Subwords.load(dataset)
    return Run.create(path, identity=identity, data="def", subwords=subwords, **values | changes)


def test_the_mean_of_known_weights(empty: Run) -> None:
    paths = [save(empty, 1, [1.0, 2.0]), save(empty, 2, [3.0, 8.0]), save(empty, 3, [5.0, -4.0])]
    mean = average([Checkpoint.open(path) for path in paths])
    assert mean["a"].tolist() == [3.0, 2.0]


def test_the_mean_is_taken_in_float32(empty: Run) -> None:
    small = 2.0**-10  # the least step of float16 above 1, so that its half is none
    paths = [
        save(empty, 1, [1.0, 60000.0], torch.float16),
        save(empty, 2, [1.0 + small, 60000.0], torch.float16),
    ]
    mean = average([Checkpoint.open(path) for path in paths])
    assert mean["a"].dtype == torch.float32
    assert mean["a"].tolist() == [1.0 + small / 2, 60000.0]
    assert average([Checkpoint.open(paths[0])])["a"].dtype == torch.float32


def test_the_mean_of_one_checkpoint_is_itself(trained: Path) -> None:
    checkpoint = Checkpoint.open(trained / "update_0000004")
    mean, weights = average([checkpoint]), checkpoint.weights()
    assert all(torch.equal(mean[name], weights[name]) for name in weights)


def test_different_shapes_are_refused_with_the_name_of_the_weight(empty: Run) -> None:
    paths = [save(empty, 1, [1.0, 2.0]), save(empty, 2, [1.0])]
    with pytest.raises(NmtError) as error:
        average_run(paths, None)
    assert str(error.value) == f"different shapes: a is [2] in {paths[0]} and [1] in {paths[1]}"
    assert not (empty.path / "averaged").exists()


def test_a_checkpoint_given_twice_is_refused(run: Path) -> None:
    newest = (run / "last").resolve()
    with pytest.raises(NmtError) as error:
        average_run([run / "last", newest], None)
    assert str(error.value) == f"{newest}: is {newest.name}, which is given already; leave it out"


@pytest.fixture(scope="module")
def siblings(
    tmp_path_factory: pytest.TempPathFactory, trained: Path, train: Command
) -> tuple[Path, Path]:
    """Two runs that began with the weights of the same run."""
    directory = tmp_path_factory.mktemp("siblings")
    first, second = directory / "first", directory / "second"
    for path, key in ((first, "train.seed=7"), (second, "model.dropout=0.3")):
        done = train(path, "--init-from", trained, "--set", key)
        assert done.status == 0, done.err
    return first, second


def test_runs_that_began_with_the_same_weights_can_be_averaged(
    siblings: tuple[Path, Path], tmp_path: Path, nmt: Command
) -> None:
    output = tmp_path / "averaged"
    runs = [f"--run={path}" for path in siblings]
    assert nmt("average-checkpoints", *runs, "--last", 2).status == 1
    done = nmt("average-checkpoints", *runs, "--last", 2, "--output", output)
    assert done.status == 0, done.err
    names = ["first/update_0000004", "first/update_0000006"]
    names += [name.replace("first", "second") for name in names]
    assert done.err.splitlines()[-1] == "averaged " + ", ".join(names)
    parts = [Checkpoint.open(siblings[0].parent / name).weights() for name in names]
    averaged = Run.open(output)
    assert averaged.recipe["averaged"] == names
    for name, weight in averaged.checkpoints()[0].weights().items():
        torch.testing.assert_close(weight, sum(part[name] for part in parts) / 4)


def test_an_average_of_several_runs_needs_a_name(siblings: tuple[Path, Path]) -> None:
    with pytest.raises(NmtError) as error:
        average_run([path / "last" for path in siblings], None)
    assert str(error.value) == (
        "the checkpoints are of several runs; name the new run with --output"
    )


def test_unrelated_runs_are_refused(
    siblings: tuple[Path, Path], tmp_path: Path, train: Command
) -> None:
    assert train(tmp_path / "other", "--set", "train.seed=9").status == 0
    with pytest.raises(NmtError) as error:
        average_run([siblings[0] / "last", tmp_path / "other" / "last"], tmp_path / "averaged")
    assert re.sub(r"-?0\.0\d", "X", str(error.value)) == (
        f"{siblings[0]} and {tmp_path / 'other'} have unrelated weights (similarity X), whose mean "
        "is no model; average runs that began with the same --init-from, or translate with an "
        "ensemble, by a --model for each"
    )
    assert not (tmp_path / "averaged").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"languages": ("en", "fr")}, "differ in languages or subwords"),
        ({"recipe": {"model": {"heads": 8}}}, "are different models: model.heads is 4 and 8"),
    ],
)
def test_runs_that_differ_are_refused(
    tmp_path: Path, dataset: Path, changes: dict[str, object], message: str
) -> None:
    recipe = {"recipe": {"model": {"heads": 4, "dropout": 0.1}}}
    runs = [
        create(tmp_path / "one", "abc", dataset, **recipe),
        create(tmp_path / "other", "xyz", dataset, **recipe | changes),
    ]
    paths = [run.save(1, {"a": torch.ones(2, 2)}, None, {}, {}, best=False).path for run in runs]
    with pytest.raises(NmtError, match=f"one and .*other {message}"):
        average_run(paths, tmp_path / "averaged")


def test_similarity_is_computed_in_float32() -> None:
    large = {"a": torch.full((2, 2), 300.0, dtype=torch.float16)}  # whose squares are too large
    assert similarity(large, large) == pytest.approx(1.0)


def test_vectors_do_not_make_weights_similar() -> None:
    generator = torch.Generator().manual_seed(1)
    first, second = (
        {"matrix": torch.randn(100, 100, generator=generator), "scale": torch.ones(1_000_000)}
        for _ in range(2)
    )
    assert abs(similarity(first, second)) < 0.05
    assert similarity(first, first) == pytest.approx(1)
    opposite = {name: -2 * weight for name, weight in first.items()}
    assert similarity(first, opposite) == pytest.approx(-1)


def test_copies_of_one_run_are_one_run(empty: Run, tmp_path: Path) -> None:
    save(empty, 1, [1.0])
    copy = Path(shutil.copytree(empty.path, tmp_path / "copy", symlinks=True))
    averaged = average_run([empty.path / "last", save(Run.open(copy), 2, [2.0])], None)
    assert averaged.checkpoints()[0].weights()["a"].tolist() == [1.5]


def test_the_last_are_the_newest_and_the_best_are_those_with_the_best_score(empty: Run) -> None:
    bleu = {1: 20.0, 2: 30.0, 3: 25.0, 4: 10.0}
    paths = {update: save(empty, update, [1.0], bleu=value) for update, value in bleu.items()}
    paths[5] = save(empty, 5, [1.0])  # which was not validated
    assert pick_last(empty.path, 2) == [paths[4], paths[5]]
    assert pick_best(empty.path, 2) == [paths[3], paths[2]]
    assert pick_best(empty.path, 4) == [paths[4], paths[1], paths[3], paths[2]]


def test_of_equally_good_checkpoints_the_better_has_the_lower_loss_and_is_the_older(
    empty: Run,
) -> None:
    losses = {1: 3.0, 2: 2.0, 3: 2.5, 4: 2.0}
    paths = {n: save(empty, n, [1.0], bleu=20.0, loss=value) for n, value in losses.items()}
    save(empty, 5, [1.0], bleu=math.nan, loss=1.0)
    assert pick_best(empty.path, 4) == [paths[1], paths[3], paths[4], paths[2]]
    with pytest.raises(NmtError, match="5 checkpoints wanted, but 4 can be used; average fewer"):
        pick_best(empty.path, 5)


def test_the_best_of_a_loss_is_the_lowest(trained: Path) -> None:
    scores = {c.scores["loss"]: c.path for c in Run.open(trained).checkpoints()}
    assert len(scores) == 3
    assert pick_best(trained, 2) == [scores[loss] for loss in sorted(scores)[1::-1]]


@pytest.mark.parametrize("count", [0, -1, 4])
def test_more_checkpoints_than_there_are_or_none_are_refused(trained: Path, count: int) -> None:
    for pick in (pick_last, pick_best):
        with pytest.raises(NmtError, match=f"{count} checkpoints wanted, but 3 can be used"):
            pick(trained, count)


def test_the_averaged_run_can_translate_and_its_ties_are_ties(run: Path) -> None:
    averaged = average_run(pick_last(run, 3), None)
    assert averaged.path == run / "averaged"
    loaded = load_model(averaged.path)
    names = ["update_0000002", "update_0000004", "update_0000006"]
    assert averaged.recipe["averaged"] == names
    assert loaded.checkpoint.update == 6
    parts = [Checkpoint.open(run / name).weights() for name in names]
    for name, weight in weights_of(loaded.model).items():
        torch.testing.assert_close(weight, sum(part[name] for part in parts) / 3)
    assert loaded.model.output.weight.data_ptr() == (
        loaded.model.get_parameter("target_embedding.weight").data_ptr()
    )


def test_an_average_replaces_an_older_average(run: Path, tmp_path: Path) -> None:
    output = tmp_path / "averaged"
    average_run(pick_last(run, 1), output)
    averaged = average_run([run / "update_0000002", run / "update_0000004"], output)
    assert [checkpoint.update for checkpoint in averaged.checkpoints()] == [4]
    assert load_model(output).checkpoint.update == 4


def test_an_average_never_replaces_a_trained_run(run: Path, trained: Path) -> None:
    with pytest.raises(NmtError) as error:
        average_run(pick_last(trained, 2), run)
    assert str(error.value) == message(run)
    assert len(Run.open(run).checkpoints()) == 3


def test_an_average_never_replaces_what_is_no_average(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory" / "file").write_text("mine")
    for output in (tmp_path / "file", tmp_path / "directory"):
        with pytest.raises(NmtError) as error:
            average_run(pick_last(trained, 2), output)
        assert str(error.value) == message(output)
    files = sorted(path.name for path in tmp_path.rglob("*"))
    assert files == ["directory", "file", "file"]


def message(output: Path) -> str:
    return f"{output}: holds something else than an average; choose another --output"


def test_a_damaged_checkpoint_is_not_averaged(run: Path) -> None:
    (run / "update_0000004" / "model.safetensors").write_bytes(b"")
    with pytest.raises(NmtError, match=r"update_0000004/model\.safetensors: 0 bytes instead of"):
        average_run(pick_last(run, 3), None)
    assert not (run / "averaged").exists()


def test_a_damaged_checkpoint_is_not_passed_over(run: Path) -> None:
    (run / "update_0000006" / "checkpoint.json").write_text("{}")
    for pick in (pick_last, pick_best):
        with pytest.raises(NmtError, match=r"update_0000006/checkpoint\.json: damaged"):
            pick(run, 2)
