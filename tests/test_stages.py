"""Stages of training: what is drawn from each corpus, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import RECIPE
from for_each import for_each
from trained_runs import assert_same_checkpoint, records

from nmt.data.dataset import Dataset
from nmt.data.sampler import packed_micro_batches
from nmt.data.stages import Stage, StageSampler, check_stages
from nmt.errors import NmtError

Command = Callable[..., Any]

SIZES = {"clean": 700, "back": 2500, "rare": 40}
STARTS = dict(zip(SIZES, (0, 700, 3200), strict=True))
CORPORA = {name: np.arange(STARTS[name], STARTS[name] + size) for name, size in SIZES.items()}
LENGTHS = np.random.default_rng(1).integers(2, 12, sum(SIZES.values()))
MIXES = (
    {"clean": 0.7, "back": 0.3},
    {"clean": 0.25, "back": 0.7, "rare": 0.05},
    {"clean": 1.0},
)
ENDS = (47, 148, 161)


def sampler(ends: tuple[int | None, ...] = ENDS, seed: int = 1, tokens: int = 200) -> StageSampler:
    stages = [Stage(until=end, mix=mix) for end, mix in zip(ends, MIXES, strict=True)]
    return StageSampler(LENGTHS, LENGTHS + 1, tokens, seed, CORPORA, stages)


def drawn(order: StageSampler, first: int, last: int) -> np.ndarray:
    """The pairs of some updates, one update after the other."""
    return np.concatenate([order.update(update)[0] for update in range(first, last + 1)])


def counts(pairs: np.ndarray) -> dict[str, int]:
    return {name: int(np.isin(pairs, indices).sum()) for name, indices in CORPORA.items()}


@for_each("tokens", [3, 20, 200, 3000, 30_000])
def test_what_is_drawn_in_each_stage_equals_the_ratios(tokens: int) -> None:
    order = sampler(tokens=tokens)
    for first, last, mix in zip((1, 48, 149), ENDS, MIXES, strict=True):
        pairs = drawn(order, first, last)
        of = counts(pairs)
        assert of == {name: pytest.approx(mix.get(name, 0) * len(pairs), abs=2) for name in SIZES}
        sizes = [len(order.update(update)[0]) for update in range(first, last + 1)]
        assert min(sizes) >= 1
        if tokens >= 200:
            per_update = (LENGTHS[pairs] + 1).sum() / (last + 1 - first)
            assert per_update == pytest.approx(tokens, rel=0.05)


def test_a_corpus_is_read_whole_before_it_is_read_again_also_across_stages() -> None:
    everything = drawn(sampler(), 1, ENDS[-1])
    for indices in CORPORA.values():
        times = np.bincount(everything, minlength=len(LENGTHS))[indices]
        # An update is shuffled within its epoch, so count at the end alone.
        assert times.max() - times.min() <= 1
        assert times.max() >= 1


def test_an_update_is_a_function_of_its_number_and_the_seed() -> None:
    one, other = sampler(), sampler(seed=2)
    last_stage_open = sampler((*ENDS[:2], None))
    for update in (161, 48, 47, 149, 100, 1):
        [pairs] = sampler().update(update)  # that has computed nothing before
        assert one.update(update)[0].tolist() == pairs.tolist()
        assert last_stage_open.update(update)[0].tolist() == pairs.tolist() or update > 148
        assert other.update(update)[0].tolist() != pairs.tolist()


def test_each_reading_of_a_corpus_and_each_seed_has_an_order_of_its_own() -> None:
    corpora = {"short": np.arange(100), "long": np.arange(100, 300)}
    stages = [Stage(mix={"short": 0.5, "long": 0.5})]
    lengths = np.full(300, 10)

    def read(seed: int, epoch: int) -> set[int]:
        """The pairs of the long corpus in an epoch, which reads half of the corpus."""
        order = StageSampler(lengths, lengths, 200, seed, corpora, stages)
        return {*np.concatenate(order.epoch(epoch)).tolist()} - {*range(100)}

    assert read(1, 1) | read(1, 2) == {*range(100, 300)} == read(1, 3) | read(1, 4)
    assert read(1, 1) != read(1, 3)
    assert read(1, 1) != read(2, 1)


def test_processes_together_get_what_one_gets() -> None:
    order = sampler()
    for update in (1, 47, 48, 161):
        shares = packed_micro_batches(order.update(update), order, 60, processes=3)
        together = np.concatenate([batch for share in shares for batch in share])
        assert sorted(together) == sorted(order.update(update)[0])


def test_epochs_are_counted_over_stages_and_a_stage_may_end_within_one() -> None:
    order = sampler()
    epochs = [order.epoch_of(update) for update in range(1, ENDS[-1] + 1)]
    assert epochs == sorted(epochs)
    assert set(epochs) == set(range(1, epochs[-1] + 1))
    for end in ENDS[:2]:
        assert epochs[end] == epochs[end - 1] + 1
    for epoch in set(epochs):
        updates = [update for update, of in enumerate(epochs, 1) if of == epoch]
        assert order.first_of(epoch) == updates[0]
        assert len(order.epoch(epoch)) == len(updates)
    assert 47 % order.updates_per_epoch
    first_stage = sampler((2, *ENDS[1:]))  # which ends within its first epoch
    assert first_stage.updates_per_epoch == len(first_stage.epoch(1)) == 2 < order.updates_per_epoch


def test_updates_behind_the_last_stage_can_be_tried() -> None:
    ended, endless = sampler(), sampler((*ENDS[:2], None))
    for update in range(1, ENDS[1] + 1):
        assert np.array_equal(ended.update(update)[0], endless.update(update)[0])
    for update in range(ENDS[-1] + 1, ENDS[-1] + 9):
        assert len(ended.update(update)[0])


@for_each(
    ("ends", "problem"),
    [
        ((20, 20, None), "a stage after update 20 ends at 20; let until increase"),
        ((20, 10, 30), "a stage after update 20 ends at 10; let until increase"),
        ((0, 10, 30), "a stage after update 0 ends at 0; let until increase"),
        ((None, 10, 30), "only the last stage may leave out until; add until to every other"),
        ((10, None, None), "only the last stage may leave out until; add until to every other"),
        ((10, 20, 99), "end at update 99, but max_updates is 100; leave out the last until"),
    ],
)
def test_stages_follow_each_other_to_the_end(ends: Any, problem: str) -> None:
    stages = [Stage(until=end, mix=mix) for end, mix in zip(ends, MIXES, strict=True)]
    with pytest.raises(ValueError, match=problem):
        check_stages(stages, max_updates=100)


@for_each("end", [100, 101, None])
def test_the_last_stage_may_end_with_the_training_or_later(end: int | None) -> None:
    check_stages([Stage(until=20, mix=MIXES[0]), Stage(until=end, mix=MIXES[1])], max_updates=100)


def test_an_unknown_corpus_and_one_without_pairs_are_refused() -> None:
    known = {"clean": np.arange(5), "back": np.arange(0)}
    for name, problem in (("claen", "did you mean 'clean'?"), ("back", "has no pair of")):
        with pytest.raises(NmtError, match=problem):
            StageSampler(LENGTHS, LENGTHS, 50, 1, known, [Stage(mix={name: 1.0})])


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory, nmt: Command, write_numbers: Any) -> Path:
    """A directory with a recipe, and a dataset in two shards of three corpora."""
    here = tmp_path_factory.mktemp("mixed")
    for seed, (name, pairs) in enumerate({"a": 30, "b": 120, "c": 9, "valid": 12}.items()):
        write_numbers(here / name, pairs, seed)
    recipe = yaml.safe_load(RECIPE)
    recipe["preprocess"] |= {
        "train": [
            {"path": str(here / "a"), "name": "clean", "weight": 2},
            {"path": str(here / "b"), "name": "back", "max_pairs": 100},
            str(here / "c"),
            {"path": str(here / "c"), "name": "clean"},
        ],
        "valid": str(here / "valid"),
        "output_dir": str(here / "data"),
    }
    recipe["train"] |= {"data": str(here / "data"), "max_updates": 12}
    recipe["train"]["stages"] = [
        {"until": 5, "mix": {"clean": 0.7, "back": 0.3}},
        {"mix": {"back": 1}},
    ]
    (here / "nmt.yaml").write_text(yaml.safe_dump(recipe))
    for shard in ("1/2", "2/2"):
        done = nmt("preprocess", "--config", here / "nmt.yaml", "--shard", shard)
        assert done.status == 0, done.err
    return here


def test_a_dataset_knows_the_pairs_of_its_corpora(mixed: Path) -> None:
    split = Dataset.open(mixed / "data").split("train")
    corpora = split.corpora
    assert {name: len(pairs) for name, pairs in corpora.items()} == {"clean": 69, "back": 100}
    assert len(split) == 69 + 100 + 9
    pairs = np.concatenate([*corpora.values()])
    assert len(set(pairs.tolist())) == len(pairs)
    files = [*mixed.glob("data/shard-*/train.corpora.json")]
    assert len(files) == 2
    files[0].write_text(files[0].read_text().replace("clean", "clear"))
    with pytest.raises(NmtError, match=r"train\.corpora\.json: the content has changed"):
        _ = Dataset.open(mixed / "data").split("train").corpora
    files[0].write_text(files[0].read_text().replace("clear", "clean"))


def test_a_training_resumed_in_each_stage_is_the_one_that_never_stopped(
    mixed: Path, nmt: Command, tmp_path: Path
) -> None:
    command = ("train", "--config", mixed / "nmt.yaml", "--save-dir")
    assert nmt(*command, tmp_path / "whole").status == 0
    for updates in (2, 6, 12):
        assert nmt(*command, tmp_path / "parts", "--max-updates", updates).status == 0
    assert records(tmp_path / "parts") == records(tmp_path / "whole")
    assert_same_checkpoint(tmp_path / "parts" / "last", tmp_path / "whole" / "last")


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("stages=[{mix: {clean: 0.7, bakc: 0.3}}]", "unknown corpus 'bakc'; did you mean 'back'?"),
        ("stages=[{mix: {clean: 0.7, back: 0.2}}]", "mix must sum to 1, not 0.9: clean 0.7, back"),
        ("stages=[{mix: {clean: 1, back: 0}}]", "mix needs shares above 0, not clean 1, back 0"),
        ("stages=[{until: 5, mix: {clean: 1}}]", "stages end at update 5, but max_updates is 12"),
        ("direction_temperature=5", "stages balance directions that have names"),
        ("batching=bucketed", "stages decide which pairs are drawn"),
    ],
)
def test_a_mistake_costs_one_line(
    mixed: Path, nmt: Command, tmp_path: Path, key: str, problem: str
) -> None:
    command = ("train", "--config", mixed / "nmt.yaml", "--save-dir", tmp_path / "run")
    done = nmt(*command, "--set", f"train.{key}")
    assert done.status == 1
    [line] = done.err.splitlines()
    assert "train" in line
    assert problem in line


def test_a_dataset_without_names_has_no_corpora(train: Any, dataset: Path, tmp_path: Path) -> None:
    assert not (dataset / "train.corpora.json").exists()
    done = train(tmp_path / "run", "--set", "train.stages=[{mix: {clean: 1}}]")
    assert done.status == 1
    assert "train.stages: the corpora of the dataset have no names" in done.err
