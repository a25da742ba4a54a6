"""The subwords of a dataset: given, extended or learned from a sample of the training text."""

from __future__ import annotations

from pathlib import Path

from nmt.data.dataset import Dataset, shards_of
from nmt.data.manifest import MANIFEST
from nmt.errors import NmtError
from nmt.io import files
from nmt.messages import say
from nmt.preprocess.cleaning import CleaningStats, nothing_left
from nmt.preprocess.config import PreprocessConfig
from nmt.preprocess.corpus import Bitext, watched
from nmt.preprocess.extension import read_pieces, with_learned_pieces, with_pieces
from nmt.preprocess.learning import train_subwords
from nmt.preprocess.reservoir import reservoir
from nmt.preprocess.subwords import Subwords

SCRATCH = "encoded"
"""Subdirectory of an unfinished dataset, for files that are needed only to make it."""


def find_subwords(
    directory: Path, train: list[Bitext], held_out: frozenset[str], config: PreprocessConfig
) -> Subwords:
    """Return the given subwords, or learn them from the training text; save them."""
    if path := given_subwords(config):
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


def given_subwords(config: PreprocessConfig) -> Path | None:
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
        for block in watched("sampling", train)
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
        raise nothing_left(stats.dropped)
    return source, target
