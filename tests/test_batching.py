from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.data.batches import Batch, make_batch
from nmt.data.columns import RaggedArray
from nmt.data.dataset import Dataset, Split
from nmt.data.loader import BatchLoader, Update, prefetch
from nmt.data.packing import Packing
from nmt.data.padding import as_groups, as_rows, target_input
from nmt.data.sampler import (
    BatchSampler,
    BucketSampler,
    RandomSampler,
    in_length_order,
    micro_batches,
    packed_micro_batches,
)
from nmt.data.vocabulary import BOS, EOS, PAD
from nmt.data.writer import DatasetWriter, staging

LENGTHS = st.lists(st.tuples(st.integers(2, 60), st.integers(2, 60)), min_size=1, max_size=200)


def arrays(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    source, target = np.array(pairs).T
    return source, target


def everything(order: BatchSampler, epoch: int) -> list[int]:
    return sorted(int(index) for bucket in order.epoch(epoch) for index in bucket)


SAMPLERS = pytest.mark.parametrize("sampler", [RandomSampler, BucketSampler])


@SAMPLERS
@given(LENGTHS, st.integers(1, 20_000), st.integers(0, 5))
@settings(max_examples=50)
def test_an_epoch_holds_every_sentence_once(
    sampler: type[BatchSampler], pairs: list[tuple[int, int]], tokens_per_update: int, seed: int
) -> None:
    order = sampler(*arrays(pairs), tokens_per_update, seed)
    for epoch in (1, 2):
        assert everything(order, epoch) == list(range(len(pairs)))
        first = (epoch - 1) * order.updates_per_epoch + 1
        updates = range(first, first + order.updates_per_epoch)
        assert all(sum(map(len, order.update(update))) for update in updates)
        assert {order.epoch_of(update) for update in updates} == {epoch}
        seen = sorted(int(i) for u in updates for bucket in order.update(u) for i in bucket)
        assert seen == list(range(len(pairs)))


def test_rows_are_filled_up_on_the_right_to_the_longest() -> None:
    assert as_rows([[5, 6, EOS], [7]]).tolist() == [[5, 6, EOS], [7, PAD, PAD]]
    assert as_rows([(), ()]).tolist() == [[PAD], [PAD]]
    assert as_rows([[True, True], [True]], False).tolist() == [[True, True], [True, False]]
    assert as_rows([[0.5], []], 0.0).tolist() == [[0.5], [0.0]]
    nothing = as_rows([])
    assert (nothing.shape, nothing.dtype) == ((0, 1), torch.int64)


def test_groups_have_rows_of_padding_up_to_the_largest() -> None:
    groups = [[[5, 6, 7], [8]], [], [[9]]]
    assert as_groups(groups).tolist() == [
        [[5, 6, 7], [8, PAD, PAD]],
        [[PAD, PAD, PAD], [PAD, PAD, PAD]],
        [[9, PAD, PAD], [PAD, PAD, PAD]],
    ]


def test_a_model_reads_bos_and_all_but_the_last_token() -> None:
    finished, longer, cut = [5, EOS, PAD], [5, 6, EOS], [5, 6, 7]
    read = target_input(torch.tensor([finished, longer, cut]))
    assert read.tolist() == [[BOS, 5, PAD], [BOS, 5, 6], [BOS, 5, 6]]


def lengths_like_a_corpus(count: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(7)
    target = random.lognormal(3.0, 0.5, count).astype(np.int64) + 2
    source = np.maximum(2, (target * random.normal(1, 0.15, count)).astype(np.int64))
    return source, target


@SAMPLERS
def test_updates_hold_the_stated_number_of_target_tokens(sampler: type[BatchSampler]) -> None:
    source, target = lengths_like_a_corpus(40_000)
    for tokens_per_update in (1000, 4096, 25_000):
        order = sampler(source, target, tokens_per_update, seed=1)
        sizes = [
            sum(int(target[bucket].sum()) for bucket in order.update(update))
            for update in range(1, order.updates_per_epoch)
        ]
        assert np.mean(sizes) == pytest.approx(tokens_per_update, rel=0.02)
        assert max(sizes) < 1.2 * tokens_per_update


@SAMPLERS
def test_an_update_is_a_function_of_its_number_and_the_seed(sampler: type[BatchSampler]) -> None:
    source, target = lengths_like_a_corpus(2000)
    one, same = (sampler(source, target, 1000, seed=1) for _ in range(2))
    other = sampler(source, target, 1000, seed=2)
    far = 3 * one.updates_per_epoch + 2
    assert [b.tolist() for b in one.update(far)] == [b.tolist() for b in same.update(far)]
    assert [b.tolist() for b in one.update(far)] != [b.tolist() for b in other.update(far)]
    assert one.epoch(1)[0].tolist() != one.epoch(2)[0].tolist()


def test_the_updates_of_an_epoch_follow_its_buckets() -> None:
    order = BucketSampler(*lengths_like_a_corpus(2000), 8000, seed=1)
    assert order.updates_per_epoch > 2 <= order.buckets_per_update
    for epoch in (1, 3):
        first = order.first_of(epoch)
        updates = [order.update(first + at) for at in range(order.updates_per_epoch)]
        buckets = [bucket.tolist() for update in updates for bucket in update]
        assert buckets == [bucket.tolist() for bucket in order.epoch(epoch)]


def test_sentences_of_like_length_share_a_bucket() -> None:
    source, target = lengths_like_a_corpus(200_000)
    order = BucketSampler(source, target, 25_000, seed=1)
    padded = sum(
        len(bucket) * int(side[bucket].max())
        for bucket in order.epoch(1)
        for side in (source, target)
    )
    assert 1 - (source.sum() + target.sum()) / padded < 0.03


def test_a_bucket_of_two_target_lengths_holds_sources_of_similar_length() -> None:
    source, target = np.tile(np.arange(5, 45), 2), np.repeat([10, 11], 40)
    order = BucketSampler(source, target, 84, seed=1)
    mixed = [bucket for bucket in order.epoch(1) if len({*target[bucket]}) == 2]
    assert len(mixed) == 1
    assert np.ptp(source[mixed[0]]) < 10


@pytest.mark.parametrize(("sentences", "tokens_per_update"), [(200_000, 1000), (800_000, 25_000)])
def test_random_updates_are_alike(sentences: int, tokens_per_update: int) -> None:
    """The variance of mean lengths is that of independent draws, within a tenth."""
    source, target = lengths_like_a_corpus(sentences)
    order = RandomSampler(source, target, tokens_per_update, seed=1)
    updates = [target[order.update(update)[0]] for update in range(1, order.updates_per_epoch + 1)]
    between = sum(len(it) * (it.mean() - target.mean()) ** 2 for it in updates)
    assert between / target.var() / len(updates) == pytest.approx(1, abs=0.1)


@given(LENGTHS, st.integers(20, 500), st.integers(1, 5))
@settings(max_examples=50)
def test_micro_batches_share_out_an_update_evenly_and_within_the_limit(
    pairs: list[tuple[int, int]], max_tokens: int, processes: int
) -> None:
    source, target = arrays(pairs)
    longer = np.maximum(source, target)
    sampler = RandomSampler(source, target, 500, seed=1)
    [update] = sampler.update(1)
    for divide in (micro_batches, packed_micro_batches):
        shares = divide([update], sampler, max_tokens, processes)
        assert len({len(share) for share in shares}) == 1
        dealt = [int(index) for share in shares for part in share for index in part]
        assert sorted(dealt) == sorted(update.tolist())
        for part in (part for share in shares for part in share if len(part) > 1):
            padded = len(part) * longer[part].max()
            packed = max(source[part].sum(), target[part].sum())
            assert (padded if divide is micro_batches else packed) <= max_tokens


def test_of_too_few_micro_batches_for_the_processes_the_largest_is_halved() -> None:
    sampler = RandomSampler(np.full(25, 10), np.full(25, 10), 500, seed=1)
    buckets = [np.arange(16), np.arange(16, 22), np.arange(22, 25)]
    shares = micro_batches(buckets, sampler, 160, processes=2)
    assert sorted(len(part) for share in shares for part in share) == [3, 6, 8, 8]


def test_a_micro_batch_that_is_mostly_padding_is_divided() -> None:
    lengths = np.repeat([2, 20], 8)
    sampler = RandomSampler(lengths, lengths, 500, seed=1)
    for longest, parts in ((20, [8, 8]), (3, [16])):
        sampler.longer_lengths = np.minimum(lengths, longest)
        [found] = micro_batches([np.arange(16)], sampler, 4096)
        assert [len(part) for part in found] == parts


def test_packed_micro_batches_fill_their_memory() -> None:
    source, target = lengths_like_a_corpus(10_000)
    sampler = RandomSampler(source, target, 25_000, seed=1)
    for update in range(1, 6):
        parts = packed_micro_batches(sampler.update(update), sampler, 4096)[0]
        assert len(parts) in (7, 8)
        tokens = [int((source + target)[part].sum()) for part in parts]
        assert max(tokens) - min(tokens) < 2 * (source + target).max()


@pytest.mark.parametrize("processes", [1, 3])
def test_a_sentence_longer_than_a_micro_batch_leaves_the_others_together(processes: int) -> None:
    source, target = lengths_like_a_corpus(10_000)
    target[::100] = 5000
    sampler = RandomSampler(source, target, 25_000, seed=1)
    [update] = sampler.update(1)
    longer = sampler.longer_lengths[update]
    shares = packed_micro_batches([update], sampler, 4096, processes)
    parts = [part for share in shares for part in share]
    alone, others = (longer > 4096).sum(), longer[longer <= 4096].sum()
    assert alone
    assert len(parts) <= alone + others / 4096 + 1 + processes


@given(LENGTHS, st.integers(1, 3))
@settings(max_examples=50)
def test_rows_hold_every_token_once(pairs: list[tuple[int, int]], heads: int) -> None:
    packing = Packing.from_lengths(*arrays(pairs))
    for side in (packing.source, packing.target):
        rows, length = side.shape
        assert rows == packing.source.shape[0]
        count = int(side.lengths.sum())
        for parts in (1, 3):
            vectors = torch.arange(count * parts * heads)
            arranged = vectors[side.to_rows(parts, heads)]
            assert len(arranged) == parts * rows * heads * length
            assert torch.equal(arranged[side.from_rows(parts, heads)], vectors)
        assert int((side.sentences >= 0).sum()) == count
        assert len(side.empty_places(heads)) == heads * (rows * length - count)
        assert torch.equal(side.unpad(side.pad(torch.arange(count))), torch.arange(count))
        assert side.mask.sum(1).tolist() == side.lengths.tolist()


def test_rows_of_ordinary_sentences_are_nearly_full() -> None:
    source, target = lengths_like_a_corpus(150)
    for side in (packing := Packing.from_lengths(source, target)).source, packing.target:
        rows, length = side.shape
        assert side.lengths.sum() > 0.8 * rows * length


def test_neighbours_before_and_after_are_told_apart() -> None:
    pack = Packing.from_lengths(np.array([2, 1]), np.array([1, 1])).source
    assert pack.has_neighbour(1).tolist() == [True, False, False]
    assert pack.has_neighbour(-1).tolist() == [False, True, False]


def test_a_sentence_of_several_rows_takes_their_room_in_a_micro_batch(split: Split) -> None:
    order = RandomSampler(split.source_lengths, split.target_lengths, 100, seed=1)
    one, two = (
        BatchLoader(split=split, sampler=order, max_tokens=16, rows_per_sentence=rows)
        for rows in (1, 2)
    )
    assert [batch.num_sentences for batch in one.update(1).batches] == [3]
    assert sorted(batch.num_sentences for batch in two.update(1).batches) == [1, 2]
    many = replace(one, rows_per_sentence=17)
    assert [batch.num_sentences for batch in many.update(1).batches] == [1, 1, 1]
    assert make_batch(split, np.array([], np.int64)).num_sentences == 0


@pytest.fixture
def split(tmp_path: Path) -> Split:
    path = tmp_path / "data"
    with staging(path) as directory:
        writer = DatasetWriter(directory, languages=("en", "de"), vocabularies=(10, 10))
        for name in ("train", "valid"):
            with writer.split(name) as out:
                out.append(
                    RaggedArray.from_sentences([[4, 5], [6], [7, 8, 9]]),
                    RaggedArray.from_sentences([[5], [6, 7], [8, 9, 4]]),
                )
        writer.finish(shared_vocabulary=True, recipe={})
    return Dataset.open(path).split("train")


def test_a_batch_begins_with_bos_and_predicts_up_to_eos(split: Split) -> None:
    batch = make_batch(split, np.array([2, 0]))
    assert batch.source.tolist() == [7, 8, 9, EOS, 4, 5, EOS]
    assert batch.target_input.tolist() == [BOS, 8, 9, 4, BOS, 5]
    assert batch.target_output.tolist() == [8, 9, 4, EOS, 5, EOS]
    padded = batch.packing.target.pad(batch.target_input)
    assert padded.tolist() == [[BOS, 8, 9, 4], [BOS, 5, PAD, PAD]]
    assert batch.num_positions == 16
    assert batch.num_tokens == 13


def test_a_batch_of_nothing_has_nothing_to_predict(split: Split) -> None:
    batch = make_batch(split, np.array([], dtype=np.int64))
    assert batch.source.tolist() == [EOS]
    assert len(batch.target_output) == 0


def test_validation_batches_hold_every_sentence_in_order_of_length(split: Split) -> None:
    batches = in_length_order(split, max_tokens=7)  # lengths 3, 3 and 4
    assert [batch.tolist() for batch in batches] == [[0], [1], [2]]
    assert [batch.tolist() for batch in in_length_order(split, max_tokens=12)] == [[0, 1, 2]]


def test_prefetching_gives_the_items_in_order_and_hands_on_an_error() -> None:
    def items():
        yield from range(5)
        raise RuntimeError("the disk is gone")

    seen = []
    with pytest.raises(RuntimeError, match="the disk is gone"):
        seen.extend(prefetch(items()))
    seen = []
    stream = prefetch(iter(range(5)))
    seen.append(next(stream))
    stream.close()
    assert seen == [0]
    assert list(prefetch(iter(range(5)))) == [0, 1, 2, 3, 4]


def test_tensors_of_a_batch_are_whole_numbers_of_64_bits(split: Split) -> None:
    batch = make_batch(split, np.array([0, 1, 2]))
    for tensor in (batch.source, batch.target_input, batch.target_output):
        assert tensor.dtype == torch.int64


def sentences(batch: Batch) -> tuple[torch.Tensor, ...]:
    return torch.split(batch.source, batch.packing.source.lengths.tolist())


def test_two_processes_are_fed_the_sentences_that_one_is(split: Split) -> None:
    def sources(update: Update) -> list[list[int]]:
        rows = [row for batch in update.batches for row in sentences(batch)]
        return sorted(row.tolist() for row in rows)

    order = RandomSampler(split.source_lengths, split.target_lengths, 100, seed=1)
    alone = BatchLoader(split=split, sampler=order, max_tokens=8)
    pair = [replace(alone, process=process, num_processes=2) for process in range(2)]
    one, first, second = (next(loader.updates(3)) for loader in (alone, *pair))
    together = [row for row in sources(first) + sources(second) if row != [EOS]]
    assert sources(one) == sorted(together) == [[4, 5, EOS], [6, EOS], [7, 8, 9, EOS]]
    assert one.target_tokens == first.target_tokens == second.target_tokens == 9
    tokens = [sum(batch.num_tokens for batch in it.batches) for it in (one, first, second)]
    assert tokens[0] == 18
    assert tokens[1] + tokens[2] - tokens[0] == sources(first).count([EOS])  # of an empty batch
