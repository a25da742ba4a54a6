"""Encode blocks of text as token ids on all cores, in the order of the text.

Encoded pairs are stored in plain files, from which a killed preprocessing resumes. A cache of words
makes encoding several times faster than SentencePiece, with the same ids.
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
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from sentencepiece import SentencePieceProcessor

from nmt.data.columns import RaggedArray
from nmt.data.manifest import LINK_TYPE, Ids
from nmt.data.vocabulary import SPACE, UNK
from nmt.errors import NmtError, UnfinishedError
from nmt.io import files
from nmt.preprocess.annotations import LINKS
from nmt.preprocess.cleaning.duplicates import Keys, joined, mark_repeated, open_marks
from nmt.preprocess.cleaning.pipeline import Cleaning, CleaningResult, CleaningStats, judge
from nmt.preprocess.corpus import Chunk, TextBlock
from nmt.preprocess.documents import Joiner, document_numbers
from nmt.preprocess.links import count_words, read_links, read_weights
from nmt.runtime.processes import end_with_parent, starting_workers
from nmt.subwords.segmenters import Segmenter, SentencePiece
from nmt.subwords.subwords import Subwords
from nmt.subwords.tags import Tags
from nmt.subwords.words import words
from nmt.subwords.wrappers import JoinedSegmenter


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """The pairs of a block that are kept, encoded."""

    source: RaggedArray
    target: RaggedArray
    keys: Keys
    """Hashes of the pairs [n, 2], equal for equal pairs; [0, 2] if they are not needed."""
    weights: npt.NDArray[np.float32]
    """Weights of the pairs in the loss; empty if all weights are 1."""
    stats: CleaningStats
    block: TextBlock
    """The block, without its text."""
    links: RaggedArray | None = None
    """Word alignments, if there are any: numbers of source and target words in turn."""


@dataclass(frozen=True)
class CleanedPairs:
    """Cleaned pairs of a block."""

    lines: npt.NDArray[np.intp]
    """Number of each pair's line in the block [n], from 0."""
    texts: tuple[list[str], list[str]]
    """Both sides."""
    keys: Keys = field(default_factory=lambda: np.empty((0, 2), np.uint64))
    """See :class:`Encoded`."""

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

    def __call__(self, block: TextBlock) -> Encoded:
        """Return the pairs of the block that are kept and belong to the shard.

        Equal pairs belong to the same shard, whichever machine reads them. So if each shard is free
        of duplicates, the whole dataset is. Each document belongs to one shard.

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
            source=source.with_prefix(tags[0]),
            target=target.with_prefix(tags[1]),
            keys=pairs.keys,
            weights=weights[pairs.lines] if len(weights) else weights,
            stats=stats,
            # Without its text, which would be pickled back to the parent for nothing.
            block=replace(block, source=b"", target=b"", annotation_lines=()),
            links=links,
        )

    def _cleaned(
        self, block: TextBlock, chunk: Chunk, documents: Ids | None
    ) -> tuple[CleanedPairs, CleaningStats]:
        """Return the cleaned pairs of the shard, and the statistics of cleaning.

        Args:
            block: the block.
            chunk: its text.
            documents: number of the document of each line, 0 between documents; None for single
                sentences.
        """
        cleaning, stats = self.cleanings[block.corpus], CleaningStats()
        source, target = chunk.source, chunk.target
        if documents is not None:
            # 0 stands between documents.
            source, target = ([*itertools.compress(side, documents)] for side in (source, target))
        lines, source, target = cleaning.cleaned(source, target, self.held_out, stats)
        if documents is not None:
            # From places among the lines of documents back to lines of the block.
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
                # By the hash of the pair: equal pairs meet in one shard, so removing duplicates
                # needs no messages between machines.
                in_shard = pairs.keys[:, 1] % np.uint64(self.shards) == self.shard - 1
            pairs = pairs.keep(in_shard)
            if not is_counted:
                stats = CleaningStats()  # every shard cleans every block, but only one counts it
        return pairs, stats

    def _within_limits(
        self, block: TextBlock, pairs: CleanedPairs, sides: list[RaggedArray], stats: CleaningStats
    ) -> npt.NDArray[np.bool_]:
        """Return whether each pair is within the limits in tokens, and count the dropped pairs."""
        cleaning = self.cleanings[block.corpus]
        results = judge(sides[0].lengths, sides[1].lengths, cleaning)
        # All but KEPT.
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
        self, chunk: Chunk, lines: npt.NDArray[np.intp], sides: list[RaggedArray]
    ) -> RaggedArray:
        """Return the links of these lines of a chunk; no links if the subwords have other words."""
        given = chunk.source, chunk.target
        fits = np.ones(len(lines), np.bool_)
        for side, text, begins in zip(sides, given, self.subwords.begins_word, strict=True):
            pairs = ((text[line].split(), words(text[line])) for line in lines)
            # Links number the words of `split`; as many words may still be other words.
            fits &= count_words(side, begins) == [len(w) if w == read else -1 for w, read in pairs]
        links = read_links(chunk).take(lines)
        kept = np.repeat(fits, links.lengths)
        return RaggedArray(links.tokens[kept], np.where(fits, links.lengths, 0))


def _keys(source: list[str], target: list[str], language: str) -> Keys:
    end = (language,) if language else ()
    digests = b"".join(
        # 128 bits, so that billions of different pairs do not collide.
        hashlib.blake2b(joined(one, other, *end), digest_size=16).digest()
        for one, other in zip(source, target, strict=True)
    )
    return np.frombuffer(digests, "<u8").reshape(-1, 2)


def encode(blocks: Iterable[TextBlock], encoder: Encoder, workers: int) -> Iterator[Encoded]:
    """Yield the encoded blocks, in their order, from that many processes.

    Raises:
        UnfinishedError: a worker process was killed.
    """
    if workers == 1:
        yield from map(encoder, blocks)
        return
    # Forking shares the subword models and the held-out lines.
    kind = "fork" if sys.platform == "linux" else "spawn"
    context = multiprocessing.get_context(kind)
    with starting_workers():
        # The encoder goes to each worker once, not with each block.
        executor = ProcessPoolExecutor(workers, context, _begin_worker, (encoder,))
    with executor as pool:
        waiting: deque[Future[Encoded]] = deque()
        try:
            for block in blocks:
                waiting.append(pool.submit(_encode, block))
                # Two blocks for each worker keep all busy and the memory bounded.
                if len(waiting) > 2 * workers:
                    # The oldest first, so that blocks keep their order.
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise UnfinishedError(
                "preprocess: a worker process was killed, most likely because memory ran out; "
                "run the same command again to resume, perhaps with fewer --workers"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


_process_encoder: Encoder


def _begin_worker(encoder: Encoder) -> None:
    global _process_encoder
    _process_encoder = encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops the workers
    gc.disable()  # nothing here is cyclic, and a search for cycles in lists of ids is slow
    # Otherwise the workers of a killed preprocessing would keep running.
    end_with_parent()


def _encode(block: TextBlock) -> Encoded:
    return _process_encoder(block)


NUMBERS = ("keys", "weights")
"""Fields of :class:`~nmt.preprocess.encoding.Encoded` with numbers of each pair; empty where they
are not needed."""


@dataclass
class Progress:
    """Progress of encoding, as saved for a later run to resume from."""

    lines: list[int] = field(default_factory=list)
    """Lines read of each corpus begun; all but the last are read to the end."""
    pairs: list[int] = field(default_factory=list)
    """Stored pairs of each corpus begun."""
    tally: CleaningStats = field(default_factory=CleaningStats)
    sizes: dict[str, int] = field(default_factory=dict)
    """Bytes of each file of the store when this progress was saved; later bytes are ignored."""
    is_done: bool = False


class PairStore:
    """Encoded pairs in the order of the text: tokens, lengths and keys in plain files.

    Links are stored like tokens.
    """

    def __init__(self, directory: Path, dtypes: tuple[str, str], has_links: bool = False) -> None:
        """Open a store, or begin one.

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
        """Append all encoded blocks, and mark the store as done.

        Args:
            encoded: the blocks after the blocks that :attr:`progress` counts.
            save_every: number of blocks between saves of the progress.
        """
        progress = self.progress
        with ExitStack() as stack:
            out = {name: stack.enter_context(self._open(name)) for name in [*self._names, *NUMBERS]}

            def save() -> None:
                """Write the progress, after the data that it counts."""
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
                    sentences: RaggedArray = getattr(block, side)
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
    def reader(self) -> Iterator[Callable[[int], list[RaggedArray]]]:
        """Yield a function that reads source, target and perhaps links of the next `n` pairs."""
        with ExitStack() as stack:
            opened = {
                name: stack.enter_context((self.directory / name).open("rb"))
                for name in self._names
            }

            def column(name: str, pairs: int) -> RaggedArray:
                """Return the next sentences of a column."""
                counts = np.fromfile(opened[f"{name}.lengths"], "<i4", pairs).astype(np.int64)
                dtype = self._dtypes[name]
                return RaggedArray(
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

    def _open(self, name: str) -> BinaryIO:
        file = (self.directory / name).open("ab")
        # Bytes after the last saved progress belong to blocks that will be encoded again.
        file.seek(file.truncate(self.progress.sizes.get(name, 0)))
        return file


Encode = Callable[[list[str]], RaggedArray]

MAX_WORDS = 1 << 18
"""Words in the cache before it is emptied; about 50 MiB."""

MAX_TOKENS = 1 << 20
"""Tokens of these words; in text without spaces, a word may be a whole line."""


def encoders(subwords: Subwords) -> tuple[Encode, Encode]:
    """Return functions that encode lines of the source and of the target."""
    source = _encode_words(subwords.source)
    return source, source if subwords.target is subwords.source else _encode_words(subwords.target)


def _encode_words(segmenter: Segmenter) -> Encode:
    if isinstance(segmenter, JoinedSegmenter):
        segmenter = segmenter.inner  # lines are single sentences
    if isinstance(segmenter, SentencePiece) and cuts_at_spaces(segmenter.processor):
        return WordEncoder(segmenter.processor)
    return lambda lines: RaggedArray.from_sentences(segmenter.encode(lines))


def cuts_at_spaces(processor: SentencePieceProcessor) -> bool:
    """Return whether the ids of every line are the ids of its words, one after the other.

    This holds if a space occurs only at the beginning of pieces and is a piece itself, and if
    pieces are merged by rank, as in BPE. A unigram model adds up scores from the beginning of the
    line, so rounding decides between two segmentations of a word with nearly equal scores.
    """
    ids = range(len(processor))
    return (
        processor.normalize("  a  b ") == f"{SPACE}a{SPACE}b"
        and processor.piece_to_id(SPACE) != UNK
        and not any({" ", SPACE} & set(processor.id_to_piece(token)[1:]) for token in ids)
        and all(processor.get_score(token).is_integer() for token in ids)
    )


class WordEncoder:
    """Encodes lines, with a cache of their words.

    Text repeats its words. If no piece crosses a space, the ids of a line are the ids of its words,
    one after the other, and each distinct word needs to be segmented only once.
    """

    def __init__(self, processor: SentencePieceProcessor) -> None:
        """Begin with an empty cache; :func:`cuts_at_spaces` must hold for the processor."""
        self._processor = processor
        self._numbers = _Numbers()
        self._words = RaggedArray.from_lists([])

    def __call__(self, lines: list[str]) -> RaggedArray:
        """Return the sentences of the lines, each with EOS."""
        if not lines:
            return RaggedArray.from_sentences([])
        joined = "\n".join(lines)
        if SPACE in joined:  # a model takes it for a space if its normalisation keeps it
            return RaggedArray.from_sentences(self._processor.encode(lines, num_threads=1))
        text = joined.encode()  # bytes are split faster than str
        letters = np.frombuffer(text, np.uint8)
        # One entry for each word: True where it ends its line.
        ends = letters[(letters == ord(" ")) | (letters == ord("\n"))] == ord("\n")
        first = np.concatenate(([0], np.flatnonzero(ends) + 1))
        tokens, lengths = self._take(text.replace(b"\n", b" ").split(b" "))
        # The tokens of a line are as many as the tokens of its words together.
        return RaggedArray(tokens, np.add.reduceat(lengths, first)).with_eos()

    def _take(self, words: list[bytes]) -> RaggedArray:
        if len(self._numbers) > MAX_WORDS or len(self._words.tokens) > MAX_TOKENS:
            self._numbers, self._words = _Numbers(), RaggedArray.from_lists([])
        known = len(self._numbers)
        numbers = np.fromiter(map(self._numbers.__getitem__, words), np.int64, len(words))
        # New words are the last keys, because a dict keeps the order of insertion.
        if new := list(islice(reversed(self._numbers), len(self._numbers) - known)):
            ids = self._processor.encode(new[::-1], num_threads=1)
            both = zip(self._words, RaggedArray.from_lists(ids), strict=True)
            self._words = RaggedArray(*map(np.concatenate, both))
        return self._words.take(numbers)


class _Numbers(dict[bytes, int]):
    """Number of each word, from 0, in the order of first use; a new word gets the next number."""

    def __missing__(self, word: bytes) -> int:
        number = self[word] = len(self)
        return number
