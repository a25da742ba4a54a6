"""Encode blocks of text as token ids on all cores, in the order of the text."""

from __future__ import annotations

import gc
import hashlib
import itertools
import multiprocessing
import signal
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from nmt.data.columns import Sentences
from nmt.data.manifest import Ids
from nmt.errors import NmtError, UnfinishedError
from nmt.preprocess.annotations import LINKS
from nmt.preprocess.cleaning import Cleaning, CleaningResult, CleaningStats, judge
from nmt.preprocess.corpus import Block, Chunk
from nmt.preprocess.duplicates import Keys, joined
from nmt.preprocess.joining import Joiner, document_numbers
from nmt.preprocess.links import count_words, read_links
from nmt.preprocess.subwords import Subwords
from nmt.preprocess.tags import Tags
from nmt.preprocess.weights import read_weights
from nmt.preprocess.words import Encode, encoders
from nmt.runtime.processes import end_with_parent, starting_workers


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """The pairs of a block that are kept, encoded."""

    source: Sentences
    target: Sentences
    keys: Keys
    """Hashes of the pairs [n, 2], equal for equal pairs; [0, 2] if they are not needed."""
    weights: npt.NDArray[np.float32]
    """Weights of the pairs in the loss; none if there are none."""
    stats: CleaningStats
    block: Block
    """The block, without its text."""
    links: Sentences | None = None
    """Word alignments, if there are any: numbers of source and target words in turn."""


@dataclass(frozen=True)
class CleanedPairs:
    """Cleaned pairs of a block."""

    lines: npt.NDArray[np.intp]
    """Number of each pair's line in the block [n], from 0."""
    texts: tuple[list[str], list[str]]
    """Both sides."""
    keys: Keys = field(default_factory=lambda: np.empty((0, 2), np.uint64))
    """As those of :class:`Encoded`."""

    def keep(self, kept: npt.NDArray[np.bool_]) -> CleanedPairs:
        """Return the pairs where `kept` [n] is True."""
        if kept.all():
            return self
        source, target = (list(itertools.compress(side, kept)) for side in self.texts)
        return CleanedPairs(
            self.lines[kept], (source, target), self.keys[kept] if len(self.keys) else self.keys
        )


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """Cleans and encodes a block of training text."""

    cleanings: tuple[Cleaning, ...]
    """Cleaning of each corpus."""
    tags: tuple[Tags, ...]
    """Tags of each corpus, before each source and each target."""
    subwords: Subwords
    held_out: frozenset[str]
    joiner: Joiner | None = None
    """Joins the sentences of documents; None for single sentences."""
    shard: int = 1
    shards: int = 1

    @cached_property
    def _encode(self) -> tuple[Encode, Encode]:
        return encoders(self.subwords)

    def __call__(self, block: Block) -> Encoded:
        """Return the pairs of the block that are kept and belong to the shard.

        Equal pairs belong to the same shard, whichever machine reads them. So if each shard is
        free of duplicates, the whole dataset is. Of documents, each belongs to one shard.

        Raises:
            NmtError: the text cannot be decoded, or a side is empty and `on_empty` is "error".
        """
        cleaning, tags = self.cleanings[block.corpus], self.tags[block.corpus]
        chunk = block.decode(cleaning.on_invalid_utf8)
        documents = document_numbers(chunk) if self.joiner else None
        pairs, stats = self._cleaned(block, chunk, documents)
        sides = [encode(side) for encode, side in zip(self._encode, pairs.texts, strict=True)]
        is_kept = self._within_limits(block, pairs, sides, stats)
        links = None
        if LINKS in chunk.annotations:
            links = self._links(chunk, pairs.lines, sides).keep(is_kept)
        pairs = pairs.keep(is_kept)
        source, target = (side.keep(is_kept) for side in sides)
        if self.joiner and documents is not None:
            source, target = self.joiner.examples(source, target, documents[pairs.lines])
        weights = read_weights(chunk)
        return Encoded(
            source=source.begun(tags[0]),
            target=target.begun(tags[1]),
            keys=pairs.keys,
            weights=weights[pairs.lines] if len(weights) else weights,
            stats=stats,
            block=replace(block, source=b"", target=b"", beside=()),
            links=links,
        )

    def _cleaned(
        self, block: Block, chunk: Chunk, documents: Ids | None
    ) -> tuple[CleanedPairs, CleaningStats]:
        """Return the cleaned pairs of the shard, and what cleaning has done to the block.

        Args:
            block: the block.
            chunk: its text.
            documents: number of the document of each line, 0 between documents; None for single
                sentences.
        """
        cleaning, stats = self.cleanings[block.corpus], CleaningStats()
        source, target = chunk.source, chunk.target
        if documents is not None:
            source, target = ([*itertools.compress(side, documents)] for side in (source, target))
        lines, source, target = cleaning.cleaned(source, target, self.held_out, stats)
        if documents is not None:
            lines = np.flatnonzero(documents)[lines]
        pairs = CleanedPairs(lines, (source, target))
        if cleaning.drops_duplicates or (self.shards > 1 and not self.joiner):
            # Pairs with tags of different languages are not equal.
            language = block.bitext.direction[1] if self.subwords.directions else ""
            pairs = replace(pairs, keys=_keys(source, target, language))
        if self.shards > 1:
            is_counted = block.shard(self.shards) == self.shard
            in_shard = np.full(len(lines), is_counted)
            if not self.joiner:
                in_shard = pairs.keys[:, 1] % np.uint64(self.shards) == self.shard - 1
            pairs = pairs.keep(in_shard)
            if not is_counted:
                stats = CleaningStats()  # every shard cleans every block, but only one counts it
        return pairs, stats

    def _within_limits(
        self, block: Block, pairs: CleanedPairs, sides: list[Sentences], stats: CleaningStats
    ) -> npt.NDArray[np.bool_]:
        """Return whether each pair is within the limits in tokens, and count the others."""
        cleaning = self.cleanings[block.corpus]
        results = judge(sides[0].lengths, sides[1].lengths, cleaning)
        for reason in list(CleaningResult)[1:]:
            dropped = np.flatnonzero(results == reason)
            if reason == CleaningResult.EMPTY and dropped.size and cleaning.on_empty == "error":
                raise NmtError(
                    f"{block.bitext}: a side of line {block.first + pairs.lines[dropped[0]]} is "
                    "empty; mend it or set on_empty to drop"
                )
            examples = ([side[i] for side in pairs.texts] for i in dropped)
            stats.drop(reason.name.lower(), len(dropped), examples)
        kept: npt.NDArray[np.bool_] = results == CleaningResult.KEPT
        return kept

    def _links(
        self, chunk: Chunk, lines: npt.NDArray[np.intp], sides: list[Sentences]
    ) -> Sentences:
        """Return the links of these lines of a chunk, none where the subwords have other words."""
        given = chunk.source, chunk.target
        fits = np.ones(len(lines), np.bool_)
        for side, text, begins in zip(sides, given, self.subwords.begins_word, strict=True):
            fits &= count_words(side, begins) == [len(text[line].split()) for line in lines]
        links = read_links(chunk).take(lines)
        kept = np.repeat(fits, links.lengths)
        return Sentences(links.tokens[kept], np.where(fits, links.lengths, 0))


def _keys(source: list[str], target: list[str], language: str) -> Keys:
    end = (language,) if language else ()
    digests = b"".join(
        hashlib.blake2b(joined(one, other, *end), digest_size=16).digest()
        for one, other in zip(source, target, strict=True)
    )
    return np.frombuffer(digests, "<u8").reshape(-1, 2)


def encode(blocks: Iterable[Block], encoder: Encoder, workers: int) -> Iterator[Encoded]:
    """Yield the encoded blocks, in their order, from that many processes.

    Raises:
        UnfinishedError: a worker process was killed.
    """
    if workers == 1:
        yield from map(encoder, blocks)
        return
    kind = "fork" if sys.platform == "linux" else "spawn"
    context = multiprocessing.get_context(kind)
    with starting_workers():
        executor = ProcessPoolExecutor(workers, context, _begin_worker, (encoder,))
    with executor as pool:
        waiting: deque[Future[Encoded]] = deque()
        try:
            for block in blocks:
                waiting.append(pool.submit(_encode, block))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise UnfinishedError(
                "preprocess: a worker process was killed, most likely for want of memory; "
                "run the same command again to resume, perhaps with fewer --workers"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


_encoder: Encoder


def _begin_worker(encoder: Encoder) -> None:
    global _encoder
    _encoder = encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops the workers
    gc.disable()  # nothing here is cyclic, and a search for cycles in lists of ids is slow
    end_with_parent()


def _encode(block: Block) -> Encoded:
    return _encoder(block)
