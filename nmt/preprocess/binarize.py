"""From parallel text to a dataset: learn the subwords, encode every split, write it all down."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import sentencepiece
from tqdm import tqdm

from nmt import files
from nmt.config import dump
from nmt.data.columns import Sentences
from nmt.data.dataset import Dataset, shard_directory, shards_of
from nmt.data.format import MANIFEST, Manifest, check_language, reasons
from nmt.data.writer import DatasetWriter, SplitWriter, staging
from nmt.errors import FULL, NmtError, explain
from nmt.preprocess.cleaning import MAX_EXAMPLES, Cleaning, Tally
from nmt.preprocess.corpus import STDIN, Bitext, Block, Chunk, Corpus
from nmt.preprocess.encoding import Encoded, Encoder, Spool, encode
from nmt.preprocess.subwords import (
    SEPARATE,
    SHARED,
    Subwords,
    SubwordTraining,
    reservoir,
    train_subwords,
)
from nmt.processes import available_cores

SCRATCH = "encoded"
"""Directory in that of the dataset, until this is whole."""

SAVE_EVERY = 50
"""Blocks after which it is saved how far encoding has come."""

SELECTED_AT_ONCE = 100_000
"""Pairs that are copied at once from what was encoded to the dataset."""


@dataclass(frozen=True, kw_only=True)
class PreprocessConfig(Cleaning, SubwordTraining):
    """The recipe's ``preprocess`` section.

    A corpus is given by its prefix: PREFIX stands for the files PREFIX.SOURCE_LANG and
    PREFIX.TARGET_LANG, plain or with ``.gz``, ``.xz`` or ``.zst`` behind. A training corpus may
    also be one file FILE.tsv (or FILE.tsv.gz, ...) with source, tab and target on a line, or ``-``,
    which reads such lines from the standard input.
    """

    source_lang: str = ""
    """Language to translate from, as file names end; needed."""

    target_lang: str = ""
    """Language to translate into, as file names end; needed."""

    train: tuple[str | Corpus, ...] = ()
    """The training corpora, which are read one after the other; needed. One of which more or less
    is to be used is written as ``{path: PREFIX, weight: 0.5, max_pairs: 1000000}``: ``weight`` is
    how often each of its pairs is in the dataset, twice for 2, a random half of them for 0.5;
    ``max_pairs`` the most pairs it gives, of more a random sample."""

    valid: str | None = None
    """Prefix of the corpus that training is watched with; needed."""

    test: str | None = None
    """Prefix of a corpus for the final scores."""

    output_dir: str = "data-bin"
    """Directory to write; a dataset that is there is replaced once the new one is whole."""

    separate_vocabularies: bool = False
    """Whether each side learns subwords of its own; the paper shares one vocabulary."""

    subword_model: str | None = None
    """Existing subwords to use instead of learning any: a ``.model`` file for both sides, or the
    directory of a dataset or a run. The settings for learning then say nothing."""

    workers: int = 0
    """Processes that clean and encode; 0 means one for each core that this one may use. The dataset
    is the same for any number."""

    shard: str | None = None
    """``I/N``: make the I-th of N parts of the dataset, each perhaps on another machine, in
    output_dir/shard-I-of-N; when all are there, output_dir is the dataset. ``auto`` takes I and N
    from torchrun or from a Slurm array."""

    def __post_init__(self) -> None:
        Cleaning.__post_init__(self)
        SubwordTraining.__post_init__(self)
        if self.workers < 0:
            raise ValueError(f"workers must be at least 0, not {self.workers}")
        if self.source_lang and self.source_lang == self.target_lang:
            raise ValueError(
                f"source_lang and target_lang are both {self.source_lang!r}; files are told apart "
                "by them"
            )
        for key in ("source_lang", "target_lang"):
            if language := getattr(self, key):
                check_language(key, language)
        _ = self.part

    @property
    def corpora(self) -> list[Corpus]:
        """The training corpora."""
        return [Corpus(path=it) if isinstance(it, str) else it for it in self.train]

    @property
    def part(self) -> tuple[int, int]:
        """The number of the shard to make, from 1, and of all; 1 of 1 for a dataset in one."""
        if self.shard is None:
            return 1, 1
        if self.shard == "auto":
            return _part_of_environment()
        number, _, count = self.shard.partition("/")
        if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
            raise ValueError(f"shard must be I/N with I from 1 to N, or auto, not {self.shard!r}")
        return int(number), int(count)


def _part_of_environment() -> tuple[int, int]:
    """The place of this process among those that torchrun or a Slurm array has started."""
    environ = os.environ
    try:
        if "SLURM_ARRAY_TASK_COUNT" in environ:
            first = int(environ["SLURM_ARRAY_TASK_MIN"])
            number = int(environ["SLURM_ARRAY_TASK_ID"]) - first
            count = int(environ["SLURM_ARRAY_TASK_COUNT"])
        else:
            number, count = int(environ["RANK"]), int(environ["WORLD_SIZE"])
    except KeyError:
        raise ValueError(
            "shard is auto, but neither torchrun nor a Slurm array started this; give I/N"
        ) from None
    if not 0 <= number < count:
        raise ValueError(f"shard is auto, but the Slurm array is not {count} tasks in a row")
    return number + 1, count


def preprocess(config: PreprocessConfig) -> Manifest:
    """Writes the dataset that `config` describes, or the shard of it.

    The same text and settings give the same bytes, in every run, for any number of workers, and
    after any number of kills: the same call goes on where the killed one was. Memory is bounded by
    the sample from which subwords are learned.

    Raises:
        NmtError: a setting or file is missing or cannot be used; then nothing is written.
    """
    corpora = find_corpora(config)
    languages = (config.source_lang, config.target_lang)
    config = replace(config, clean=tuple(step.for_languages(*languages) for step in config.clean))
    number, count = config.part
    path = Path(config.output_dir)
    if count > 1:
        path = shard_directory(path, number, count)
    reads_stdin = STDIN in (corpus.path for corpus in config.corpora)
    try:
        with staging(path, None if reads_stdin else _identity(config, corpora)) as directory:
            is_filled = (directory / MANIFEST).exists()  # it was killed after that
            manifest = Manifest.read(directory) if is_filled else _fill(directory, config, corpora)
            scratch = directory / SCRATCH
            if scratch.exists():  # which without a manifest is what a killed run goes on from
                shutil.rmtree(scratch)
            return manifest
    except OSError as error:
        if error.errno not in (*FULL, errno.EIO):
            raise
        raise NmtError(f"{explain(error)}, and run the same command again to resume") from None


def _fill(directory: Path, config: PreprocessConfig, corpora: dict[str, list[Bitext]]) -> Manifest:
    files.sweep(directory)
    scratch = directory / SCRATCH
    scratch.mkdir(exist_ok=True)
    train = [
        _copy_of_stdin(scratch) if str(bitext.source) == STDIN else bitext
        for bitext in corpora.pop("train")
    ]
    held_out = {
        name: [chunk for bitext in bitexts for chunk in bitext.chunks(config.on_invalid_utf8)]
        for name, bitexts in corpora.items()
    }
    lines = _held_out_lines(held_out.values(), config)
    subwords = _subwords(directory, train, lines, config)
    writer = DatasetWriter(
        directory,
        languages=(config.source_lang, config.target_lang),
        vocabularies=(subwords.source_size, subwords.target_size),
    )
    spool = Spool(scratch, writer.dtypes)
    if not spool.progress.is_done:
        number, count = config.part
        encoder = Encoder(
            cleaning=config, subwords=subwords, held_out=lines, shard=number, shards=count
        )
        spool.fill(_encoded(train, spool, encoder, config), SAVE_EVERY)
    with writer.split("train") as split:
        _select(spool, config, subwords, split)
        counts = split.counts()
    if not counts.pairs:
        raise _nothing_left(counts.dropped)
    for name, chunks in held_out.items():
        with writer.split(name) as split:
            for chunk in chunks:
                split.append(
                    Sentences.of(subwords.encode_source(chunk.source)),
                    Sentences.of(subwords.encode_target(chunk.target)),
                )
                split.append_text(chunk.source, chunk.target)
    return writer.finish(
        shared_vocabulary=subwords.shared, recipe=_recipe(config), shard=_shard(config)
    )


def _recipe(config: PreprocessConfig) -> dict[str, object]:
    recipe: dict[str, object] = dump(config)
    for key in ("output_dir", "workers", "shard"):
        del recipe[key]  # they do not shape the data, or only which part of them
    return recipe


def _shard(config: PreprocessConfig) -> str | None:
    number, count = config.part
    return f"{number}/{count}" if count > 1 else None


def _identity(config: PreprocessConfig, corpora: dict[str, list[Bitext]]) -> str:
    """Letters and digits that are others for another dataset, as far as can be seen at once."""
    read = [path for bitexts in corpora.values() for bitext in bitexts for path in bitext.files]
    if model := _given_subwords(config):
        read += [model, *(model / name for name in (SHARED, *SEPARATE))]
    stats = [(str(path), path.stat()) for path in read if path.exists()]
    shown = [
        _recipe(config),
        config.part,
        sentencepiece.__version__,
        [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats],
    ]
    return hashlib.sha256(json.dumps(shown).encode()).hexdigest()[:16]


def find_corpora(config: PreprocessConfig) -> dict[str, list[Bitext]]:
    """The files of every split, all of which exist.

    Raises:
        NmtError: something that is needed was not given, or a file is missing.
    """
    needed = ("source_lang", "target_lang", "train", "valid")
    if missing := [key for key in needed if not getattr(config, key)]:
        flags = ", ".join(f"--{key.replace('_', '-')}" for key in missing)
        raise NmtError(f"preprocess: not given: {flags}; say it there or in the recipe")
    paths = {
        "train": [corpus.path for corpus in config.corpora],
        "valid": [config.valid or ""],
        "test": [config.test] if config.test else [],
    }
    if paths["train"].count(STDIN) > 1:
        raise NmtError("preprocess: train has - twice, but there is one standard input")
    languages = (config.source_lang, config.target_lang)
    return {
        split: [
            Bitext(Path(STDIN), None)
            if split == "train" and path == STDIN
            else Bitext.find(path, *languages)
            for path in given
        ]
        for split, given in paths.items()
        if given
    }


def _copy_of_stdin(directory: Path) -> Bitext:
    """What is on the standard input, as a file: it is read twice where subwords are learned."""
    path = directory / "stdin.tsv"
    with path.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return Bitext(path, None, is_stdin=True)


def _held_out_lines(splits: Iterable[list[Chunk]], config: Cleaning) -> frozenset[str]:
    return frozenset(
        line
        for chunks in splits
        for chunk in chunks
        for side in (chunk.source, chunk.target)
        for line in config.rewritten(side)
    )


def _subwords(
    directory: Path, train: list[Bitext], held_out: frozenset[str], config: PreprocessConfig
) -> Subwords:
    """The subwords that were given, or else are learned from the training text; saved."""
    if given := _given_subwords(config):
        is_dataset = (given / MANIFEST).is_file()
        subwords = Subwords.of(Dataset.open(given), 1) if is_dataset else Subwords.load(given, 1)
        if subwords.shared and config.separate_vocabularies:
            raise NmtError(
                f"preprocess: separate_vocabularies is set, but subword_model "
                f"{config.subword_model} is one for both sides; unset one of them"
            )
        subwords.save(directory)
        return subwords
    learned = directory / SCRATCH / "learned"
    if not learned.exists():
        source, target = _sample(train, held_out, config)
        with files.whole_directory(learned) as fresh:
            if config.separate_vocabularies:
                models = (train_subwords(source, config), train_subwords(target, config))
                Subwords(*models).save(fresh)
            else:
                Subwords(train_subwords(source + target, config)).save(fresh)
    subwords = Subwords.load(learned, num_threads=1)
    subwords.save(directory)
    return subwords


def _given_subwords(config: PreprocessConfig) -> Path | None:
    """Where the subwords are that were given, if any; of a dataset in shards, in the first."""
    if not config.subword_model:
        return None
    path = Path(config.subword_model)
    return next(iter(shards_of(path)), path)


def _sample(
    train: list[Bitext], held_out: frozenset[str], config: PreprocessConfig
) -> tuple[list[str], list[str]]:
    """Both sides of a random sample of the training pairs, cleaned."""
    size = config.subword_sample
    if not config.separate_vocabularies:
        size = -(-size // 2)  # both sides are sentences to learn from
    pairs = (
        pair
        for block in _watched("sampling", train)
        for chunk in [block.decode(config.on_invalid_utf8)]
        for pair in zip(chunk.source, chunk.target, strict=True)
    )
    sample = reservoir(pairs, size, config.seed)
    if not sample:
        return [], []
    source, target = map(list, zip(*sample, strict=True))
    tally = Tally()
    _, source, target = config.cleaned(source, target, held_out, tally)
    if not source:
        raise _nothing_left(tally.dropped)
    return source, target


def _nothing_left(dropped: dict[str, int]) -> NmtError:
    """The error where cleaning dropped so many pairs, by reason, and left none."""
    total = sum(dropped.values())
    return NmtError(
        f"preprocess: cleaning dropped {total:,} of {total:,} training pairs: {reasons(dropped)}; "
        "leave out that step of preprocess.clean, or set its limits wider"
    )


def _encoded(
    train: list[Bitext], spool: Spool, encoder: Encoder, config: PreprocessConfig
) -> Iterator[Encoded]:
    """What is still to be encoded."""
    blocks = _watched("encoding", train, spool.progress.lines)
    return encode(blocks, encoder, config.workers or available_cores())


def _watched(doing: str, bitexts: list[Bitext], done: Sequence[int] = ()) -> Iterator[Block]:
    """The blocks of all bitexts behind the lines done of each, with a progress bar on stderr.

    The bar is shown where a person is watching; it counts bytes as they are on the disk, for the
    number of pairs is not known before the end.
    """
    total = sum(bitext.source.stat().st_size for bitext in bitexts)
    finished, pairs, began = 0, 0, time.monotonic()
    unread = [0] * (len(bitexts) - len(done))
    with tqdm(desc=doing, total=total, unit="B", unit_scale=True, disable=None, leave=False) as bar:
        for number, (bitext, skip) in enumerate(zip(bitexts, [*done, *unread], strict=True)):
            for block in bitext.blocks(skip=skip):
                yield replace(block, corpus=number)
                pairs += block.lines
                speed = pairs / (time.monotonic() - began)
                bar.set_postfix_str(f"{speed:,.0f} pairs/s", refresh=False)
                bar.update(finished + block.position - bar.n)
            finished += bitext.source.stat().st_size


def _select(spool: Spool, config: PreprocessConfig, subwords: Subwords, split: SplitWriter) -> None:
    """Writes what was encoded, without repeated pairs, and as much of each corpus as is wanted."""
    tally = spool.progress.tally
    repeated = spool.repeated() if config.drops_duplicates else None
    start = 0
    with spool.reader() as read:
        for number, (corpus, size) in enumerate(
            zip(config.corpora, spool.progress.pairs, strict=False)
        ):
            new = size
            if repeated is not None:
                new -= int(np.count_nonzero(repeated[start : start + size]))
                tally.drop("duplicates", size - new)
            draw = _Draw(new, _wanted(corpus, new, config), (config.seed, number))
            if draw.wanted < new:
                tally.drop("not_sampled", new - draw.wanted)
            for first in range(start, start + size, SELECTED_AT_ONCE):
                last = min(first + SELECTED_AT_ONCE, start + size)
                source, target = read(last - first)
                again = np.zeros(last - first, np.bool_)
                if repeated is not None:
                    again = repeated[first:last]
                    shown = np.flatnonzero(again)[:MAX_EXAMPLES]
                    tally.drop("duplicates", 0, _text(source, target, shown, subwords))
                copies = draw.copies(~again)
                split.append(source.keep(copies), target.keep(copies))
            start += size
    split.dropped, split.rewritten, split.examples = (
        tally.dropped,
        tally.rewritten,
        tally.examples,
    )


def _wanted(corpus: Corpus, pairs: int, config: PreprocessConfig) -> int:
    """How many pairs a corpus gives to this shard, of those it has."""
    number, count = config.part
    wanted = round(corpus.weight * pairs)
    if corpus.max_pairs is not None:
        share = corpus.max_pairs // count + (number <= corpus.max_pairs % count)
        wanted = min(wanted, share)
    return wanted


class _Draw:
    """A given number of copies of a stream of pairs: equally many of each, one more of some.

    Each pair is equally likely to be among the some, which are spread evenly over the stream.
    """

    def __init__(self, pairs: int, wanted: int, seed: tuple[int, int]) -> None:
        self.wanted = wanted
        self._each, self._more = divmod(wanted, max(1, pairs))
        self._left = pairs
        self._random = np.random.Generator(np.random.PCG64(seed))

    def copies(self, present: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        """For the next places [n], how many copies; of none where no pair is present."""
        copies = np.where(present, self._each, 0)
        places = np.flatnonzero(present)
        if self._more:
            more, rest = divmod(self._more * len(places), self._left)
            more += int(self._random.integers(self._left) < rest)  # so on average exactly its share
            copies[self._random.choice(places, more, replace=False)] += 1
            self._more -= more
        self._left -= len(places)
        return copies


def _text(
    source: Sentences, target: Sentences, indices: npt.NDArray[np.intp], subwords: Subwords
) -> Iterator[list[str]]:
    """Pairs as text again."""
    for index in indices:
        one, other = (side.take(np.array([index])).tokens.tolist() for side in (source, target))
        yield [*subwords.decode_source([one]), *subwords.decode_target([other])]
