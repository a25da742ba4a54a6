"""Encode blocks of text as token ids on all cores, in the order of the text.

Encoded pairs are *spooled*: appended to plain files, from which a killed run resumes.
"""

from __future__ import annotations

import gc
import hashlib
import itertools
import json
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from nmt.data.columns import Sentences
from nmt.data.manifest import LINK_TYPE
from nmt.errors import NmtError, UnfinishedError
from nmt.io import files
from nmt.preprocess.annotations import LINKS
from nmt.preprocess.cleaning import Cleaning, CleaningResult, CleaningStats, judge
from nmt.preprocess.corpus import CHUNK, Block, Chunk
from nmt.preprocess.duplicates import Keys, joined, mark_repeated, open_marks
from nmt.preprocess.joining import Joiner, document_numbers
from nmt.preprocess.links import count_words, read_links
from nmt.preprocess.near_duplicates import Signatures, mark_similar, signatures
from nmt.preprocess.subwords import Subwords
from nmt.preprocess.tags import Tags
from nmt.preprocess.weights import read_weights
from nmt.preprocess.words import Encode, encoders
from nmt.runtime.processes import end_with_parent, starting_workers

NUMBERS = ("keys", "signatures", "weights")
"""Fields of :class:`Encoded` with numbers of each pair; empty where they are not needed."""


@dataclass(frozen=True)
class Encoded:
    """The pairs of a block that are kept, encoded."""

    source: Sentences
    target: Sentences
    keys: Keys
    """Hashes of the pairs [n, 2], equal for equal pairs; [0, 2] if they are not needed."""
    signatures: Signatures
    """Signatures of the pairs, similar for similar pairs; none if they are not needed."""
    weights: npt.NDArray[np.float32]
    """Weights of the pairs in the loss; none if there are none."""
    stats: CleaningStats
    block: Block
    """The block, without its text."""
    links: Sentences | None = None
    """Word alignments, if there are any: numbers of source and target words in turn."""


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
        cleaning = self.cleanings[block.corpus]
        chunk = block.decode(cleaning.on_invalid_utf8)
        stats, numbers = CleaningStats(), None
        source, target = chunk.source, chunk.target
        if self.joiner:
            numbers = document_numbers(chunk)
            source, target = ([*itertools.compress(side, numbers)] for side in (source, target))
        lines, *pairs = cleaning.cleaned(source, target, self.held_out, stats)
        if numbers is not None:
            lines = np.flatnonzero(numbers)[lines]
        is_counted = block.first // CHUNK % self.shards == self.shard - 1
        keys = np.empty((0, 2), np.uint64)
        if cleaning.drops_duplicates or (self.shards > 1 and not self.joiner):
            # Pairs with tags of different languages are not equal.
            language = block.bitext.direction[1] if self.subwords.directions else ""
            keys = _keys(pairs[0], pairs[1], language)
        if self.shards > 1:
            in_shard = np.full(len(lines), is_counted)
            if not self.joiner:
                in_shard = keys[:, 1] % np.uint64(self.shards) == self.shard - 1
                keys = keys[in_shard]
            lines = lines[in_shard]
            pairs = [list(itertools.compress(side, in_shard)) for side in pairs]
            if not is_counted:
                stats = CleaningStats()  # every shard cleans every block, but only one counts it
        sides = [encode(side) for encode, side in zip(self._encode, pairs, strict=True)]
        kept = self._kept(block, lines, pairs, sides, stats)
        if len(keys):
            keys = keys[kept]
        links = None
        if LINKS in chunk.annotations:
            links = self._links(chunk, lines, sides).keep(kept)
        source_ids, target_ids = (side.keep(kept) for side in sides)
        if self.joiner and numbers is not None:
            of_document = numbers[lines[kept]]
            source_ids, target_ids = self.joiner.examples(source_ids, target_ids, of_document)
        tags = self.tags[block.corpus]
        source_ids, target_ids = source_ids.begun(tags[0]), target_ids.begun(tags[1])
        empty = replace(block, source=b"", target=b"", beside=())
        similar = signatures([], [])
        if cleaning.near_duplicates:
            similar = signatures(*(list(itertools.compress(side, kept)) for side in pairs))
        weights = read_weights(chunk)
        if len(weights):
            weights = weights[lines][kept]
        return Encoded(source_ids, target_ids, keys, similar, weights, stats, empty, links)

    def _kept(
        self,
        block: Block,
        lines: npt.NDArray[np.intp],
        pairs: list[list[str]],
        sides: list[Sentences],
        stats: CleaningStats,
    ) -> npt.NDArray[np.bool_]:
        """Return whether each pair is within the limits in tokens, and count the others."""
        cleaning = self.cleanings[block.corpus]
        results = judge(sides[0].lengths, sides[1].lengths, cleaning)
        for reason in list(CleaningResult)[1:]:
            dropped = np.flatnonzero(results == reason)
            if reason == CleaningResult.EMPTY and dropped.size and cleaning.on_empty == "error":
                raise NmtError(
                    f"{block.bitext}: a side of line {block.first + lines[dropped[0]]} is empty; "
                    "mend it or set on_empty to drop"
                )
            examples = ([side[i] for side in pairs] for i in dropped)
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


@dataclass
class Progress:
    """Progress of encoding, as saved for a later run to resume from."""

    lines: list[int] = field(default_factory=list)
    """Lines read of each corpus begun; all but the last are read to the end."""
    pairs: list[int] = field(default_factory=list)
    """Pairs spooled of each corpus begun."""
    tally: CleaningStats = field(default_factory=CleaningStats)
    sizes: dict[str, int] = field(default_factory=dict)
    """Bytes of each file of the spool; bytes after these were written after this was saved."""
    is_done: bool = False


class Spool:
    """Encoded pairs in the order of the text: tokens, lengths and keys in plain files.

    Links are stored like tokens.
    """

    def __init__(self, directory: Path, dtypes: tuple[str, str], has_links: bool = False) -> None:
        """Open a spool, or begin one.

        Args:
            directory: for the files; made if missing.
            dtypes: types of the token ids of the source and of the target.
            has_links: whether the pairs have word alignments.
        """
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self._dtypes = {"source": dtypes[0], "target": dtypes[1]}
        if has_links:
            self._dtypes["links"] = LINK_TYPE
        self._names = [f"{side}.{kind}" for side in self._dtypes for kind in ("tokens", "lengths")]
        self._saved = directory / "progress.json"
        self.progress = Progress()
        if self._saved.exists():
            values = json.loads(self._saved.read_bytes())
            self.progress = Progress(**values | {"tally": CleaningStats(**values["tally"])})

    def fill(self, encoded: Iterable[Encoded], save_every: int) -> None:
        """Append all encoded blocks, and mark the spool as done.

        Args:
            encoded: the blocks after those that :attr:`progress` counts.
            save_every: number of blocks between saves of the progress.
        """
        progress = self.progress
        with ExitStack() as stack:
            out = {name: stack.enter_context(self._open(name)) for name in [*self._names, *NUMBERS]}

            def save() -> None:
                """Write the progress, behind all that it counts."""
                for name, file in out.items():
                    file.flush()
                    os.fsync(file.fileno())
                    progress.sizes[name] = file.tell()
                with files.whole_file(self._saved) as path:
                    path.write_text(json.dumps(asdict(progress)), encoding="utf-8")

            for count, block in enumerate(encoded, 1):
                corpus = block.block.corpus
                while len(progress.lines) <= corpus:
                    progress.lines.append(0)
                    progress.pairs.append(0)
                for side, dtype in self._dtypes.items():
                    sentences: Sentences = getattr(block, side)
                    out[f"{side}.tokens"].write(sentences.tokens.astype(dtype).tobytes())
                    out[f"{side}.lengths"].write(sentences.lengths.astype("<i4").tobytes())
                for name in NUMBERS:
                    out[name].write(getattr(block, name).tobytes())
                progress.lines[corpus] += block.block.lines
                progress.pairs[corpus] += len(block.source.lengths)
                progress.tally.add(block.stats)
                if count % save_every == 0:
                    save()
            progress.is_done = True
            save()

    @contextmanager
    def reader(self) -> Iterator[Callable[[int], list[Sentences]]]:
        """Yield a function that reads source, target and perhaps links of the next `n` pairs."""
        with ExitStack() as stack:
            opened = {
                name: stack.enter_context((self.directory / name).open("rb"))
                for name in self._names
            }

            def column(name: str, pairs: int) -> Sentences:
                """Return the next sentences of a column."""
                counts = np.fromfile(opened[f"{name}.lengths"], "<i4", pairs).astype(np.int64)
                dtype = self._dtypes[name]
                return Sentences(
                    np.fromfile(opened[f"{name}.tokens"], dtype, int(counts.sum())), counts
                )

            yield lambda pairs: [column(name, pairs) for name in self._dtypes]

    def weights(self, first: int, last: int) -> npt.NDArray[np.float32]:
        """Return the weights of the pairs from `first` to `last`, which have weights."""
        path = self.directory / "weights"
        return np.fromfile(path, np.float32, last - first, offset=first * 4)

    def repeated(self) -> npt.NDArray[np.bool_]:
        """Return for every pair [n] whether an equal pair came before, mapped from a file."""
        scratch, marks = self.directory / "parts", self.directory / "repeated"
        mark_repeated(self.directory / "keys", marks, scratch)
        return open_marks(marks)

    def similar(
        self, repeated: npt.NDArray[np.bool_] | None, min_similarity: float
    ) -> npt.NDArray[np.bool_]:
        """Return for every pair [n] whether a similar one came before, mapped from a file.

        Args:
            repeated: pairs that are dropped already, which are not marked; None for none.
            min_similarity: see :class:`nmt.preprocess.near_duplicates.NearDuplicates`.
        """
        path = self.directory / "similar"
        path.write_bytes(bytes(sum(self.progress.pairs)))
        marks = open_marks(path)
        if repeated is not None:
            marks[:] = repeated
        mark_similar(self.directory / "signatures", marks, self.directory / "parts", min_similarity)
        if repeated is not None:
            marks ^= repeated
        return marks

    def _open(self, name: str) -> BinaryIO:
        file = (self.directory / name).open("ab")
        file.seek(file.truncate(self.progress.sizes.get(name, 0)))
        return file
