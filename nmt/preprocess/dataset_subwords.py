"""The subwords of a dataset: given, extended or learned from a sample of the training text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path

from nmt.data.context import DocumentContext
from nmt.data.dataset import Dataset, shards_of
from nmt.data.directions import Direction, Directions
from nmt.data.manifest import MANIFEST
from nmt.errors import NmtError
from nmt.io import files
from nmt.messages import say
from nmt.preprocess.cleaning.pipeline import CleaningStats, nothing_left
from nmt.preprocess.config import PreprocessConfig
from nmt.preprocess.corpus import Bitext, Chunk, Corpus, watched
from nmt.preprocess.documents import document_numbers
from nmt.subwords.casing import is_cased
from nmt.subwords.extension import read_pieces, with_learned_pieces, with_pieces, with_tags
from nmt.subwords.learning import VocabSizeError, reservoir, train_subwords, vocab_size_for
from nmt.subwords.segmenters import SEPARATOR
from nmt.subwords.subwords import Subwords
from nmt.subwords.tags import data_tag, language_tag, tags_of


def needed_tags(
    directions: Directions | None,
    corpora: Sequence[Corpus],
    context: DocumentContext | None = None,
) -> tuple[list[str], list[str]]:
    """Return the pieces that source and target need: tags, and separators of sentences."""
    targets = [] if directions is None else [*map(language_tag, directions.targets)]
    kinds = [data_tag(name) for name in dict.fromkeys(corpus.tag for corpus in corpora) if name]
    separators: tuple[list[str], list[str]] = [], []
    if context is not None:
        separators = [SEPARATOR], [SEPARATOR] if context.sides == "both" else []
    if directions is None or directions.tags == "source":
        return targets + kinds + separators[0], separators[1]
    sources = [*map(language_tag, directions.sources)] if directions.tags == "both" else []
    return sources + kinds + separators[0], targets + separators[1]


SCRATCH = "encoded"
"""Subdirectory of an unfinished dataset, for files that are needed only to make it."""


def find_subwords(
    directory: Path, train: list[Bitext], held_out: frozenset[str], config: PreprocessConfig
) -> Subwords:
    """Return the given subwords, or learn them from the training text; save them.

    If the dataset or the given subwords have several directions, the subwords have them all.

    Raises:
        NmtError: the given subwords do not fit the settings.
    """
    if path := given_subwords(config):
        # The files of a dataset are checked against its manifest.
        is_dataset = (path / MANIFEST).is_file()
        subwords = (
            Subwords.from_dataset(Dataset.open(path), 1) if is_dataset else Subwords.load(path, 1)
        )
        if subwords.shared and config.separate_vocabularies:
            key = "subword_model" if config.subword_model else "extend_vocabulary"
            raise NmtError(
                f"preprocess: separate_vocabularies is set, but {key} {path} is one model for "
                "both sides; unset one of them"
            )
        if config.casing == "inline" and not is_cased(subwords.source):
            raise NmtError(
                f"preprocess: casing is inline, but the subwords of {path} have no marks of casing"
                "; leave out casing, or learn new subwords"
            )
        subwords = subwords.in_order(config.target_order)
        subwords.directions = _directions(config, subwords.directions)
        if config.extend_vocabulary:
            subwords = _with_new_pieces(subwords, train, held_out, config)
    else:
        subwords = _learned(directory, train, held_out, config)
    tags = [tags_of(subwords, corpus.direction, corpus.tag) for corpus in config.corpora]
    if config.alignments and any(map(any, tags)):
        raise NmtError("preprocess: alignments go without tags; leave out one of them")
    subwords.context = config.documents
    subwords.extremes = None  # of the text of the model that the subwords came from
    # The files travel with the dataset, and from there to runs and exports.
    subwords.save(directory)
    return subwords


def _directions(config: PreprocessConfig, known: Directions | None = None) -> Directions | None:
    """Return the directions of the dataset and of given subwords; None for a single direction."""
    if known:
        return known.union(config.directions)
    if len(config.directions) == 1:
        return None
    return Directions(tags=config.tags, trained=config.directions)


def _learned(
    directory: Path, train: list[Bitext], held_out: frozenset[str], config: PreprocessConfig
) -> Subwords:
    """Return subwords learned from the training text, or found where a killed run left them."""
    learned = directory / SCRATCH / "learned"
    if not learned.exists():
        # A size that the user gives is kept or refused; the default one is adapted.
        learn = train_subwords if config.vocab_size else _learned_as_the_text_allows
        source, target, config = _sample(train, held_out, config)
        directions, order = _directions(config), config.target_order
        tags = needed_tags(directions, config.corpora, config.documents)
        if config.separate_vocabularies:
            models = (
                learn(source, config, tags=tags[0]),
                learn(target, config, tags=tags[1]),
            )
            subwords = Subwords(*models, directions=directions, target_order=order)
        else:
            both = list(dict.fromkeys(tags[0] + tags[1]))
            model = learn(source + target, config, tags=both)
            subwords = Subwords(model, directions=directions, target_order=order)
        # Learning takes minutes, so a resumed run finds the result here.
        with files.whole_directory(learned) as fresh:
            subwords.save(fresh)
    # Read back in any case, so that a first and a resumed run use the same bytes.
    return Subwords.load(learned, num_threads=1)


def _learned_as_the_text_allows(
    sentences: list[str], config: PreprocessConfig, *, tags: Sequence[str]
) -> bytes:
    """Return a subword model, of another size if the text does not allow the default size."""
    try:
        return train_subwords(sentences, config, tags=tags)
    except VocabSizeError as error:
        is_too_small = error.possible > config.vocab_size
        size = 2 * error.possible if is_too_small else error.possible  # with room for words
    why = "for the characters of the text" if is_too_small else "the most that the text allows"
    say(f"vocab_size: {size:,}, {why}")
    return _learned_as_the_text_allows(sentences, replace(config, vocab_size=size), tags=tags)


def _with_new_pieces(
    old: Subwords, train: list[Bitext], held_out: frozenset[str], config: PreprocessConfig
) -> Subwords:
    """Return the given subwords with the tags that they lack, and with new pieces.

    The new pieces come from a file or, if no tag was lacking, are learned from the text.
    """
    tags = needed_tags(old.directions, config.corpora, config.documents)
    subwords = with_tags(old, *tags)
    if config.new_pieces:
        subwords = with_pieces(subwords, read_pieces(Path(config.new_pieces)))
        if subwords.is_same_as(old):
            raise NmtError(
                f"{config.new_pieces}: {config.extend_vocabulary} has all these pieces; add new "
                "pieces, or use --subword-model"
            )
    elif subwords.is_same_as(old):
        subwords = with_learned_pieces(old, *_sample(train, held_out, config))
    numbers = [subwords.source_size - old.source_size, subwords.target_size - old.target_size]
    sides = ["source and target"] if subwords.shared else ["source", "target"]
    counts = ", ".join(
        f"{number:,} of {side}" for number, side in zip(numbers, sides, strict=False)
    )
    say(f"new pieces after the pieces of {config.extend_vocabulary}: {counts}")
    return subwords


def given_subwords(config: PreprocessConfig) -> Path | None:
    """Return the path of the given subwords, if any; the first shard of a sharded dataset."""
    if not (given := config.subword_model or config.extend_vocabulary):
        return None
    path = Path(given)
    return next(iter(shards_of(path)), path)


def _pairs(chunk: Chunk, config: PreprocessConfig) -> Iterator[tuple[str, str]]:
    """Return the pairs of a chunk, without the blank lines between documents."""
    pairs = zip(chunk.source, chunk.target, strict=True)
    return compress(pairs, document_numbers(chunk)) if config.documents else pairs


def _sample(
    train: list[Bitext], held_out: frozenset[str], config: PreprocessConfig
) -> tuple[list[str], list[str], PreprocessConfig]:
    """Return both sides of a random sample of the training pairs, cleaned.

    The settings are returned, too, with a size of the vocabulary.
    """
    size = config.subword_sample
    if not config.separate_vocabularies:
        size = -(-size // 2)  # the sentences of both sides are learned from
    counts = [0] * len(train)

    def pairs() -> Iterator[tuple[Direction, tuple[str, str]]]:
        for block in watched("sampling", train):
            counts[block.corpus] += block.lines
            for pair in _pairs(block.decode(config.on_invalid_utf8), config):
                yield train[block.corpus].direction, pair

    sample = reservoir(pairs(), size, config.seed)
    sources, targets, stats = [], [], CleaningStats()
    for direction in dict.fromkeys(direction for direction, _ in sample):
        of_direction = [pair for other, pair in sample if other == direction]
        source, target = map(list, zip(*of_direction, strict=True))
        # Cleaned after sampling, because cleaning all text for a sample would take too long.
        cleaning = config.for_direction(direction)
        _, source, target = cleaning.cleaned(source, target, held_out, stats)
        sources += source
        targets += target
    if sample and not sources:
        raise nothing_left(stats.dropped)
    if not config.vocab_size:
        number = sum(
            min(count * min(1, corpus.weight), corpus.max_pairs or count)
            for count, corpus in zip(counts, config.corpora, strict=True)
        )
        config = replace(config, vocab_size=vocab_size_for(round(number)))
        say(
            f"vocab_size: {config.vocab_size:,}, for {round(number):,} training pairs; another "
            "size: --vocab-size"
        )
    return sources, targets, config
