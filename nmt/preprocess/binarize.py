"""Make a dataset from parallel text: learn the subwords, then clean and encode every split."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import sentencepiece
from tqdm import tqdm

from nmt.data.columns import Sentences
from nmt.data.dataset import Dataset, shard_directory, shards_of
from nmt.data.manifest import MANIFEST, Manifest, reasons
from nmt.data.writer import DatasetWriter, staging
from nmt.errors import FULL, NmtError, explain
from nmt.io import files
from nmt.messages import say
from nmt.preprocess.cleaning import Cleaning, CleaningStats
from nmt.preprocess.config import PreprocessConfig
from nmt.preprocess.corpus import STDIN, Bitext, Block, Chunk
from nmt.preprocess.encoding import Encoded, Encoder, Spool, encode
from nmt.preprocess.extension import read_pieces, with_learned_pieces, with_pieces
from nmt.preprocess.learning import train_subwords
from nmt.preprocess.reservoir import reservoir
from nmt.preprocess.selection import select_pairs
from nmt.preprocess.subwords import FILES, Subwords
from nmt.recipe.config import dump
from nmt.runtime.processes import available_cores

SCRATCH = "encoded"
"""Subdirectory of an unfinished dataset, for files that are needed only to make it."""

SAVE_EVERY = 50
"""Number of blocks between saves of the progress of encoding."""


def preprocess(config: PreprocessConfig) -> Manifest:
    """Write the dataset that `config` describes, or one shard.

    The same text and settings give the same bytes, in every run, for any number of workers, and
    after any number of kills: the same call resumes the killed one. Memory is bounded by the
    sample from which subwords are learned.

    Returns:
        The manifest of the dataset.

    Raises:
        NmtError: a setting or file is missing or cannot be used. Nothing is written.
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
            is_filled = (
                directory / MANIFEST
            ).exists()  # the earlier run was killed after writing it
            manifest = Manifest.read(directory) if is_filled else _fill(directory, config, corpora)
            scratch = directory / SCRATCH
            if scratch.exists():  # without a manifest a killed run resumes from it
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
        _copy_of_stdin(scratch, config) if str(bitext.source) == STDIN else bitext
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
    spool = Spool(scratch, writer.dtypes, config.alignments)
    if not spool.progress.is_done:
        number, count = config.part
        encoder = Encoder(
            cleaning=config, subwords=subwords, held_out=lines, shard=number, shards=count
        )
        spool.fill(_encoded(train, spool, encoder, config), SAVE_EVERY)
    with writer.split("train", config.alignments) as split:
        select_pairs(spool, config, subwords, split)
        counts = split.counts()
    if not counts.pairs:
        raise _nothing_left(counts.dropped)
    if config.alignments:
        _report_links(split.linked_pairs, counts.pairs)
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


def _report_links(linked: int, pairs: int) -> None:
    if not linked:
        raise NmtError(
            "preprocess.alignments: no training pair has a link left; align the words of this very "
            "text, and clean the text before that, not here"
        )
    say(f"word alignments: {linked:,} of {pairs:,} training pairs have links")


def _recipe(config: PreprocessConfig) -> dict[str, object]:
    recipe: dict[str, object] = dump(config)
    for key in ("output_dir", "workers", "shard"):
        del recipe[key]  # they do not change the data, or only select a part
    return recipe


def _shard(config: PreprocessConfig) -> str | None:
    number, count = config.part
    return f"{number}/{count}" if count > 1 else None


def _identity(config: PreprocessConfig, corpora: dict[str, list[Bitext]]) -> str:
    """Return a hash of the settings and of the names, sizes and times of all input files."""
    read = [path for bitexts in corpora.values() for bitext in bitexts for path in bitext.files]
    if model := _given_subwords(config):
        read += [model, *(model / name for name in FILES)]
    if config.new_pieces:
        read.append(Path(config.new_pieces))
    stats = [(str(path), path.stat()) for path in read if path.exists()]
    shown = [
        _recipe(config),
        config.part,
        sentencepiece.__version__,
        [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats],
    ]
    return hashlib.sha256(json.dumps(shown).encode()).hexdigest()[:16]


def find_corpora(config: PreprocessConfig) -> dict[str, list[Bitext]]:
    """Return the files of every split; all of them exist.

    Raises:
        NmtError: a required setting or a file is missing.
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
            else Bitext.find(path, *languages, has_links=config.alignments and split == "train")
            for path in prefixes
        ]
        for split, prefixes in paths.items()
        if prefixes
    }


def _copy_of_stdin(directory: Path, config: PreprocessConfig) -> Bitext:
    """Copy standard input to a file, because learning subwords reads the text twice."""
    path = directory / "stdin.tsv"
    with path.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return Bitext(path, None, is_stdin=True, has_links=config.alignments)


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
    """Return the given subwords, or learn them from the training text; save them."""
    if path := _given_subwords(config):
        is_dataset = (path / MANIFEST).is_file()
        subwords = Subwords.of(Dataset.open(path), 1) if is_dataset else Subwords.load(path, 1)
        if subwords.shared and config.separate_vocabularies:
            key = "subword_model" if config.subword_model else "extend_vocabulary"
            raise NmtError(
                f"preprocess: separate_vocabularies is set, but {key} {path} is one for both "
                "sides; unset one of them"
            )
        if config.extend_vocabulary:
            subwords = _with_new_pieces(subwords, train, held_out, config)
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


def _with_new_pieces(
    old: Subwords, train: list[Bitext], held_out: frozenset[str], config: PreprocessConfig
) -> Subwords:
    """Return the given subwords with the pieces of a file, or with pieces learned from the text."""
    if config.new_pieces:
        subwords = with_pieces(old, read_pieces(Path(config.new_pieces)))
        if subwords.is_same_as(old):
            raise NmtError(
                f"{config.new_pieces}: {config.extend_vocabulary} has all these pieces; add new "
                "ones, or use --subword-model"
            )
    else:
        subwords = with_learned_pieces(old, *_sample(train, held_out, config), config)
    numbers = [subwords.source_size - old.source_size, subwords.target_size - old.target_size]
    sides = ["source and target"] if subwords.shared else ["source", "target"]
    counts = ", ".join(
        f"{number:,} of {side}" for number, side in zip(numbers, sides, strict=False)
    )
    say(f"new pieces behind those of {config.extend_vocabulary}: {counts}")
    return subwords


def _given_subwords(config: PreprocessConfig) -> Path | None:
    """Return the path of the given subwords, if any; the first shard of a sharded dataset."""
    if not (given := config.subword_model or config.extend_vocabulary):
        return None
    path = Path(given)
    return next(iter(shards_of(path)), path)


def _sample(
    train: list[Bitext], held_out: frozenset[str], config: PreprocessConfig
) -> tuple[list[str], list[str]]:
    """Return both sides of a random sample of the training pairs, cleaned."""
    size = config.subword_sample
    if not config.separate_vocabularies:
        size = -(-size // 2)  # the sentences of both sides are learned from
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
    stats = CleaningStats()
    _, source, target = config.cleaned(source, target, held_out, stats)
    if not source:
        raise _nothing_left(stats.dropped)
    return source, target


def _nothing_left(dropped: dict[str, int]) -> NmtError:
    """Return the error for cleaning that dropped every pair; `dropped` has pairs by reason."""
    total = sum(dropped.values())
    return NmtError(
        f"preprocess: cleaning dropped {total:,} of {total:,} training pairs: {reasons(dropped)}; "
        "leave out that step of preprocess.clean, or set its limits wider"
    )


def _encoded(
    train: list[Bitext], spool: Spool, encoder: Encoder, config: PreprocessConfig
) -> Iterator[Encoded]:
    """Yield the blocks that are not in the spool yet, encoded."""
    blocks = _watched("encoding", train, spool.progress.lines)
    return encode(blocks, encoder, config.workers or available_cores())


def _watched(doing: str, bitexts: list[Bitext], done: Sequence[int] = ()) -> Iterator[Block]:
    """Yield the blocks of all bitexts after the `done` lines of each, with a progress bar.

    The bar is shown on a terminal only. It counts bytes on disk, because the number of pairs is
    unknown before the end.
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
