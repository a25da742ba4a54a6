"""Subwords that are cut anew in each epoch: a function of seed, epoch and sentence alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from trained_runs import assert_resumes_as_if_it_never_stopped

from nmt.data.batches import make_batch
from nmt.data.columns import RaggedArray
from nmt.data.dataset import Dataset
from nmt.data.loader import BatchLoader
from nmt.data.sampler import RandomSampler
from nmt.data.vocabulary import EOS, PAD, UNK
from nmt.data.writer import DatasetWriter, staging
from nmt.subwords.learning import SubwordTraining, train_subwords
from nmt.subwords.subwords import Subwords
from nmt.training.augmentation import SampledSplit
from nmt.training.augmented_split import growth

NOUNS = ("house", "boat", "tree", "work", "shop", "garden")
TEXT = [
    f"{who} {does} the {one}{other}s ."
    for who, does in (("Ann", "sees"), ("Bob", "mends"))
    for one in NOUNS
    for other in NOUNS
]


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def sampled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("sampled") / "data"
    size = 80 if request.param == "bpe" else 41
    settings = SubwordTraining(vocab_size=size, model_type=request.param, byte_fallback=False)
    subwords = Subwords(train_subwords(TEXT, settings))
    with staging(path) as directory:
        subwords.save(directory)
        writer = DatasetWriter(directory, ("en", "de"), (subwords.source_size,) * 2)
        for name in ("train", "valid"):
            with writer.split(name) as out:
                ids = subwords.encode_source([*TEXT, " ".join(TEXT[:3]), "Ann sees % .", ""])
                out.append(RaggedArray.from_sentences(ids), RaggedArray.from_sentences(ids[::-1]))
        writer.finish(shared_vocabulary=True, recipe={})
    split = Dataset.open(path).split("train")
    return SampledSplit(split=split, subwords=subwords, alpha=0.3, seed=1)


def rows(split: Any, side: str, indices: Any) -> list[list[int]]:
    return [[it for it in row if it != PAD] for row in split.padded(side, indices).tolist()]


def test_tokens_are_counted_as_they_were_cut(sampled: Any) -> None:
    split = sampled.split
    order = RandomSampler(split.source_lengths, split.target_lengths, 200, seed=1)
    loader = BatchLoader(split=split, sampler=order, max_tokens=200, in_epoch=lambda _: sampled)
    for batch in loader.update(1).batches:
        sides = (
            (batch.packing.source, batch.source),
            (batch.packing.target, batch.target_output),
        )
        padded = [pack.pad(tokens) for pack, tokens in sides]
        assert batch.num_tokens == sum(int((side != PAD).sum()) for side in padded)
    stored = make_batch(split, np.arange(5))
    assert make_batch(sampled, np.arange(5)).num_tokens > stored.num_tokens


def test_a_sentence_is_cut_in_other_ways_and_spells_the_same(sampled: Any) -> None:
    everything = np.arange(len(sampled.split))
    stored = rows(sampled.split, "source", everything)
    epochs = [rows(replace(sampled, epoch=it), "source", everything) for it in range(4)]
    longest = max(map(len, stored))
    for epoch in epochs:
        assert all(row[-1] == EOS and len(row) <= longest for row in epoch)
        text = sampled.subwords.decode_source([row[:-1] for row in epoch[:-3]])
        assert text == TEXT
        assert epoch[-2:] == stored[-2:]
    assert UNK in stored[-2]
    changed = sum(one != other for one, other in zip(epochs[0], epochs[1], strict=True))
    assert changed > len(TEXT) / 2
    assert rows(replace(sampled, seed=2), "source", everything) != epochs[0]
    mirrored = rows(sampled, "target", everything)[::-1]
    assert mirrored != epochs[0]
    assert sampled.subwords.decode_target([row[:-1] for row in mirrored[:-3]]) == TEXT


def test_how_a_sentence_is_cut_does_not_depend_on_those_beside_it(sampled: Any) -> None:
    everything = rows(sampled, "target", np.arange(len(sampled.split)))
    some = np.array([7, 30, 2])
    assert rows(sampled, "target", some) == [everything[it] for it in some]


def test_micro_batches_have_room_for_sentences_that_become_longer(
    sampled: Any, request: pytest.FixtureRequest
) -> None:
    split, longest = sampled.split, 200
    order = RandomSampler(split.source_lengths, split.target_lengths, 2000, seed=1)
    loader = BatchLoader(
        split=split, sampler=order, max_tokens=longest, packs=True, in_epoch=lambda _: sampled
    )
    grown = replace(loader, growth=growth(loader.in_epoch, split))
    assert 1 < grown.growth < 3

    def sizes(loader: BatchLoader) -> list[int]:
        batches = loader.update(1).batches
        return [max(len(batch.source), len(batch.target_output)) for batch in batches]

    assert 0.7 * longest < max(sizes(grown)) < 1.1 * longest
    if "bpe" in request.node.name:  # the sentences of the other one grow by a tenth
        assert max(sizes(loader)) > 1.1 * longest


def test_bpe_without_dropout_is_what_is_stored(sampled: Any) -> None:
    if sampled.subwords.source.processor.get_score(10).is_integer():
        everything = np.arange(len(sampled.split))
        same = replace(sampled, alpha=0.0).padded("source", everything)
        assert np.array_equal(same, sampled.split.padded("source", everything))


def test_processes_together_are_fed_what_one_is(sampled: Any) -> None:
    split = sampled.split
    order = RandomSampler(split.source_lengths, split.target_lengths, 100, seed=1)

    def in_epoch(epoch: int) -> SampledSplit:
        return replace(sampled, epoch=epoch)

    alone = BatchLoader(split=split, sampler=order, max_tokens=30, in_epoch=in_epoch)
    pair = [replace(alone, process=it, num_processes=2) for it in range(2)]

    def sources(*feeds: BatchLoader, update: int) -> list[list[int]]:
        batches = [batch for loader in feeds for batch in loader.update(update).batches]
        rows = [
            row.tolist()
            for batch in batches
            for row in torch.split(batch.source, batch.packing.source.lengths.tolist())
        ]
        return sorted(row for row in rows if row != [EOS])

    for update in (1, 2, order.updates_per_epoch + 1):
        assert sources(alone, update=update) == sources(*pair, update=update)
    first, again = (
        sorted(
            row
            for update in range(order.updates_per_epoch)
            for row in sources(alone, update=epoch * order.updates_per_epoch + update + 1)
        )
        for epoch in (0, 1)
    )
    assert first != again


def test_a_resumed_run_with_sampled_subwords_is_the_one_that_never_stopped(
    train: Any, tmp_path: Path
) -> None:
    assert_resumes_as_if_it_never_stopped(train, tmp_path, "--subword-sampling", 0.2)


def test_a_share_is_between_none_and_all(train: Any, tmp_path: Path) -> None:
    for share in (0.0, 1.5):
        done = train(tmp_path / "run", "--subword-sampling", share)
        assert done.status == 1
        said = f"subword_sampling lies in (0, 1], not {share}; leave it out for none\n"
        assert done.err.endswith(said)
