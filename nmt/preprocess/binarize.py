"""Make a dataset from parallel text: learn the subwords, then clean and encode every split."""

from __future__ import annotations

import hashlib
import json
import shutil
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from nmt import __version__
from nmt.data.columns import RaggedArray
from nmt.data.dataset import CORPORA, CORPORA_FILE, Corpora, shard_directory
from nmt.data.directions import Direction
from nmt.data.manifest import MANIFEST, SPLITS, Manifest
from nmt.data.writer import DatasetWriter, SplitWriter, staging
from nmt.errors import FULL_OR_FAILING, NmtError, UnfinishedError
from nmt.io import files
from nmt.io.lines import open_stdin
from nmt.messages import say
from nmt.preprocess.cleaning.pipeline import Cleaning, nothing_left
from nmt.preprocess.cleaning.tokenization import kind_of, warn_of_tokens
from nmt.preprocess.config import PreprocessConfig
from nmt.preprocess.corpus import STDIN, Bitext, Chunk, ParallelText, watched
from nmt.preprocess.dataset_subwords import SCRATCH, find_subwords, given_subwords
from nmt.preprocess.documents import (
    Joiner,
    document_numbers,
    joiner_of,
    warn_of_undivided,
    with_blank_lines,
)
from nmt.preprocess.encoding import Encoded, Encoder, PairStore, encode
from nmt.preprocess.selection import select_pairs
from nmt.recipe.config import dump
from nmt.runtime.processes import available_cores
from nmt.subwords.subwords import FILES, Subwords
from nmt.subwords.tags import tagged, tags_of

SAVE_EVERY = 50
"""Number of blocks between saves of the progress of encoding."""


def preprocess(config: PreprocessConfig, warns: bool = True) -> Manifest:
    """Write the dataset that `config` describes, or one shard.

    Args:
        config: the settings.
        warns: whether to warn of text that was tokenised or segmented before.

    The same text and settings give the same bytes, in every run, for any number of workers, and
    after any number of kills: the same call resumes the killed one. Memory is bounded by the
    sample from which subwords are learned.

    Returns:
        The manifest of the dataset.

    Raises:
        NmtError: a setting or file is missing or cannot be used. Nothing is written.
    """
    corpora = find_corpora(config)
    if len(config.directions) == 1:
        config = config.for_direction(config.directions[0])
    number, count = config.part
    path = Path(config.output_dir)
    if count > 1:
        if (path / MANIFEST).exists():
            raise NmtError(
                f"{path}: holds a whole dataset and cannot hold a part, too; give another "
                "--output-dir for the parts"
            )
        path = shard_directory(path, number, count)
    # Standard input cannot be read twice, so such a run has no identity to resume by.
    reads_stdin = STDIN in (corpus.path for corpus in config.corpora)
    try:
        with staging(path, None if reads_stdin else _identity(config, corpora)) as directory:
            # An earlier run may have been killed after writing the manifest.
            is_filled = (directory / MANIFEST).exists()
            manifest = (
                Manifest.read(directory) if is_filled else _fill(directory, config, corpora, warns)
            )
            scratch = directory / SCRATCH
            if scratch.exists():  # without a manifest a killed run resumes from it
                shutil.rmtree(scratch)
            return manifest
    except OSError as error:
        # What was read from standard input is gone, so such a run cannot resume.
        if reads_stdin or error.errno not in FULL_OR_FAILING:
            raise
        raise UnfinishedError.by_disk(error) from error


def _fill(
    directory: Path, config: PreprocessConfig, corpora: dict[str, list[Bitext]], warns: bool
) -> Manifest:
    # A killed run leaves files that were being written.
    files.sweep(directory)
    scratch = directory / SCRATCH
    scratch.mkdir(exist_ok=True)
    train = [
        _copy_of_stdin(scratch, bitext.direction, config) if str(bitext.source) == STDIN else bitext
        for bitext in corpora.pop("train")
    ]
    if config.documents:
        warn_of_undivided([*train, *chain.from_iterable(corpora.values())])
    if warns:
        _warn_of_tokens(train, config)
    held_out = {name: [*_held_out(bitexts, config)] for name, bitexts in corpora.items()}
    # Before any training text: cleaning drops pairs that repeat these lines.
    lines = _held_out_lines(held_out.values(), config)
    subwords = find_subwords(directory, train, lines, config)
    directions = subwords.directions
    joiner = joiner_of(subwords.context, (subwords.source, subwords.target))
    writer = DatasetWriter(
        directory,
        languages=directions.names if directions else config.directions[0],
        vocabularies=(subwords.source_size, subwords.target_size),
    )
    # Pairs are encoded once, then selected: which ones are duplicates or sampled is known only when
    # all of them are there.
    store = PairStore(scratch, writer.dtypes, config.alignments)
    if not store.progress.is_done:
        number, count = config.part
        encoder = Encoder(
            cleanings=tuple(config.for_direction(bitext.direction) for bitext in train),
            tags=tuple(
                tags_of(subwords, corpus.direction, corpus.tag) for corpus in config.corpora
            ),
            subwords=subwords,
            held_out=lines,
            joiner=joiner,
            shard=number,
            shards=count,
        )
        store.fill(_encoded(train, store, encoder, config), SAVE_EVERY)
    numbers = bool(directions), config.sentence_weights
    with writer.split("train", config.alignments, *numbers) as split:
        pairs = select_pairs(store, config, subwords, split)
        counts = split.counts()
    if not counts.pairs:
        raise nothing_left(counts.dropped, _shard(config))
    if any(names := [corpus.name for corpus in config.corpora]):
        corpora_of_pairs = Corpora(names=tuple(names), pairs=tuple(pairs))
        (directory / CORPORA_FILE).write_text(CORPORA.text(corpora_of_pairs), encoding="utf-8")
    if config.alignments:
        _report_links(split.linked_pairs, counts.pairs)
    for name, chunks in held_out.items():
        with writer.split(name, has_directions=bool(directions)) as split:
            for direction, chunk in chunks:
                _append_held_out(split, direction, chunk, subwords, joiner)
    return writer.finish(
        shared_vocabulary=subwords.shared, recipe=_recipe(config), shard=_shard(config)
    )


def _warn_of_tokens(train: list[Bitext], config: PreprocessConfig) -> None:
    """Warn of training text that is still tokenised or segmented after cleaning."""
    for bitext in train:
        cleaning = config.for_direction(bitext.direction)
        # The first lines tell enough; reading all of them would take minutes.
        chunk = next(bitext.chunks(config.on_invalid_utf8))
        sides = (
            cleaning.rewritten(chunk.source, "source"),
            cleaning.rewritten(chunk.target, "target"),
        )
        for number, (language, lines) in enumerate(zip(bitext.direction, sides, strict=True)):
            if kind := kind_of(lines):
                name = bitext.names[number if bitext.target else 0]
                warn_of_tokens(f"{name}: the {language} text", kind)


def _held_out(bitexts: list[Bitext], config: PreprocessConfig) -> Iterator[tuple[Direction, Chunk]]:
    """Yield held-out pairs with their direction, with a blank line between texts of documents."""
    begun: set[Direction] = set()
    for bitext in bitexts:
        cleaning = config.for_direction(bitext.direction)
        for chunk in map(with_blank_lines, bitext.chunks(config.on_invalid_utf8)):
            source = cleaning.detokenized(chunk.source, "source")
            target = cleaning.detokenized(chunk.target, "target")
            chunk = replace(chunk, source=source, target=target)
            if config.documents and chunk.first == 1 and bitext.direction in begun:
                source, target = ["", *chunk.source], ["", *chunk.target]
                # The added line counts as line 0, so messages keep the numbers of the file.
                chunk = replace(chunk, source=source, target=target, first=0)
            yield bitext.direction, chunk
        begun.add(bitext.direction)


def _append_held_out(
    split: SplitWriter,
    direction: Direction,
    chunk: Chunk,
    subwords: Subwords,
    joiner: Joiner | None = None,
) -> None:
    """Append held-out pairs of a direction, with their text."""
    directed = tagged(subwords, direction)
    source, target = chunk.source, chunk.target
    if joiner:
        numbers = document_numbers(chunk)
        sides = subwords.encode_source(source), subwords.encode_target(target)
        lengths = np.maximum(*(RaggedArray.from_sentences(side).lengths for side in sides))
        source, target = joiner.held_out(chunk, numbers, lengths)
    split.append(
        RaggedArray.from_sentences(directed.encode_source(source)),
        RaggedArray.from_sentences(directed.encode_target(target)),
        subwords.directions.number(direction) if subwords.directions else 0,
    )
    split.append_text(chunk.source, chunk.target)


def _report_links(linked: int, pairs: int) -> None:
    if not linked:
        raise NmtError(
            "preprocess.alignments: no training pair has a link left; align the words of this "
            "very text; clean the text before the alignment, not here"
        )
    say(f"word alignments: {linked:,} of {pairs:,} training pairs have links")


def _recipe(config: PreprocessConfig) -> dict[str, Any]:
    recipe: dict[str, Any] = dump(config)
    for key in ("output_dir", "workers", "shard"):
        del recipe[key]  # they do not change the data, or only select a part
    if len(config.directions) == 1:
        del recipe["tags"]
    if config.target_order == "left_to_right":
        del recipe["target_order"]  # as before the key
    if config.casing == "none":
        del recipe["casing"]
    if not config.sentence_weights:
        del recipe["sentence_weights"]
    if config.documents is None:
        del recipe["documents"]
    if not config.document_ids:
        del recipe["document_ids"]
    for corpus in recipe["train"]:
        for key in ("source_lang", "target_lang", "name", "tag"):
            if isinstance(corpus, dict) and corpus[key] is None:
                del corpus[key]
    return recipe


def _shard(config: PreprocessConfig) -> str | None:
    number, count = config.part
    return f"{number}/{count}" if count > 1 else None


def _identity(config: PreprocessConfig, corpora: dict[str, list[Bitext]]) -> str:
    """Return a hash of the settings and of the names, sizes and times of all input files."""
    read = [path for bitexts in corpora.values() for bitext in bitexts for path in bitext.files]
    if model := given_subwords(config):
        read += [model, *(model / name for name in FILES)]
    if config.new_pieces:
        read.append(Path(config.new_pieces))
    # Sizes and times instead of contents, because reading a large corpus takes as long as the work.
    stats = [(str(path), path.stat()) for path in read if path.exists()]
    shown = [
        _recipe(config),
        config.part,
        # Another version may normalise or segment the same text differently.
        [__version__, sentencepiece.__version__, unicodedata.unidata_version],
        [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats],
    ]
    return hashlib.sha256(json.dumps(shown).encode()).hexdigest()[:16]


def find_corpora(config: PreprocessConfig) -> dict[str, list[Bitext]]:
    """Return the files of every split; all of them exist.

    Raises:
        NmtError: a required setting or a file is missing.
    """
    missing = [f"--{key}" for key in ("train", "valid") if not getattr(config, key)]
    texts: list[ParallelText] = [
        *config.corpora,
        *config.held_out("valid"),
        *config.held_out("test"),
    ]
    for key in ("target_lang", "source_lang"):
        lacking = [text.path for text in texts if not getattr(text, key)]
        if lacking or not (texts or getattr(config, key)):
            of = f" of {lacking[0]}" if len(lacking) < len(texts) else ""
            missing.insert(0, f"--{key.replace('_', '-')}{of}")
    if missing:
        flags = ", ".join(missing)
        raise NmtError(
            f"preprocess: not given: {flags}; give these options, or the keys in the recipe, which "
            "`nmt init` writes"
        )
    if [corpus.path for corpus in config.corpora].count(STDIN) > 1:
        raise NmtError("preprocess: train has - twice, but there is only one standard input")
    by_document = config.documents is not None
    train = [
        Bitext(Path(STDIN), None, direction=corpus.direction)
        if corpus.path == STDIN
        else Bitext.find(corpus.path, *corpus.direction, config.annotations, by_document)
        for corpus in config.corpora
    ]
    bitexts = {"train": train}
    for split in SPLITS[1:]:
        if texts := config.held_out(split):
            bitexts[split] = [
                Bitext.find(text.path, *text.direction, config.held_out_annotations, by_document)
                for text in texts
            ]
            for text in texts:
                if text.direction not in config.directions:
                    source, target = text.direction
                    raise NmtError(
                        f"preprocess.{split}: {text.path} is {source} to {target}, but train has "
                        "no such pairs; leave the entry out"
                    )
    return bitexts


def _copy_of_stdin(directory: Path, direction: Direction, config: PreprocessConfig) -> Bitext:
    """Copy standard input to a file, because learning subwords reads the text twice."""
    path = directory / "stdin.tsv"
    with path.open("wb") as file:
        shutil.copyfileobj(open_stdin(), file)
    return Bitext(
        path,
        None,
        is_stdin=True,
        annotations=config.annotations,
        direction=direction,
        has_documents=config.documents is not None,
    )


def _held_out_lines(
    splits: Iterable[list[tuple[Direction, Chunk]]], config: Cleaning
) -> frozenset[str]:
    return frozenset(
        line
        for chunks in splits
        for _, chunk in chunks
        for line in (
            *config.rewritten(chunk.source, "source"),
            *config.rewritten(chunk.target, "target"),
        )
    )


def _encoded(
    train: list[Bitext], store: PairStore, encoder: Encoder, config: PreprocessConfig
) -> Iterator[Encoded]:
    """Yield the blocks that are not in the store yet, encoded."""
    blocks = watched("encoding", train, store.progress.lines)
    return encode(blocks, encoder, config.workers or available_cores())
