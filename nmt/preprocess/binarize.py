"""From parallel text to a dataset: learn the subwords, encode every split, write it all down."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from nmt.config import dump
from nmt.data.format import DatasetWriter, Manifest, Sentences, Side, SplitWriter, staging
from nmt.errors import NmtError
from nmt.preprocess.corpus import Bitext, Chunk, Cleaning, Verdict, judge
from nmt.preprocess.subwords import Subwords, SubwordTraining, train_subwords


@dataclass(frozen=True, kw_only=True)
class PreprocessConfig(Cleaning, SubwordTraining):
    """The recipe's ``preprocess`` section.

    A corpus is given by its prefix: PREFIX stands for the files PREFIX.SOURCE_LANG and
    PREFIX.TARGET_LANG, plain or with ``.gz`` behind.
    """

    source_lang: str = ""
    """Language to translate from, as file names end; needed."""

    target_lang: str = ""
    """Language to translate into, as file names end; needed."""

    train: tuple[str, ...] = ()
    """Prefixes of the training corpora, which are read one after the other; needed."""

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
    """Threads that encode; 0 means one per core. The dataset is the same for any number."""

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


def preprocess(config: PreprocessConfig) -> Manifest:
    """Writes the dataset that `config` describes.

    The same text and settings give the same bytes, in every run and for any number of workers.
    Memory is bounded by the sample from which subwords are learned.

    Raises:
        NmtError: a setting or file is missing or cannot be used; then nothing is written.
    """
    corpora = _find(config)
    with staging(Path(config.output_dir)) as directory:
        subwords = _subwords(corpora["train"], config)
        subwords.save(directory)
        writer = DatasetWriter(
            directory,
            languages=(config.source_lang, config.target_lang),
            vocabularies=(subwords.source_size, subwords.target_size),
        )
        for name, bitexts in corpora.items():
            binarize = _binarize_train if name == "train" else _binarize_held_out
            with writer.split(name) as split:
                for bitext in bitexts:
                    binarize(bitext, subwords, config, split)
                counts = split.counts()
            if not counts.pairs:
                raise NmtError(
                    f"preprocess: cleaning left no training pair (dropped: {counts.why_dropped()})"
                )
        recipe = dump(config)
        for key in ("output_dir", "workers"):
            del recipe[key]  # they do not shape the data
        return writer.finish(shared_vocabulary=subwords.shared, recipe=recipe)


def _find(config: PreprocessConfig) -> dict[str, list[Bitext]]:
    """The files of every split, all of which exist."""
    needed = ("source_lang", "target_lang", "train", "valid")
    if missing := [key for key in needed if not getattr(config, key)]:
        flags = ", ".join(f"--{key.replace('_', '-')}" for key in missing)
        raise NmtError(f"preprocess: not given: {flags}; say it there or in the recipe")
    prefixes = {"train": config.train, "valid": (config.valid,), "test": (config.test,)}
    return {
        split: [Bitext.find(it, config.source_lang, config.target_lang) for it in given if it]
        for split, given in prefixes.items()
        if any(given)  # there may be no test corpus
    }


def _subwords(bitexts: list[Bitext], config: PreprocessConfig) -> Subwords:
    """The subwords that were given, or else are learned from the training text."""
    num_threads = config.workers or -1
    if config.subword_model:
        subwords = Subwords.load(Path(config.subword_model), num_threads)
        if subwords.shared and config.separate_vocabularies:
            raise NmtError(
                f"preprocess: separate_vocabularies is set, but subword_model "
                f"{config.subword_model} is one for both sides; unset one of them"
            )
        return subwords
    if config.separate_vocabularies:
        source = train_subwords(_lines(bitexts, config, ("source",)), config)
        target = train_subwords(_lines(bitexts, config, ("target",)), config)
        return Subwords(source, target, num_threads)
    shared = train_subwords(_lines(bitexts, config, ("source", "target")), config)
    return Subwords(shared, num_threads=num_threads)


def _lines(
    bitexts: list[Bitext], config: PreprocessConfig, sides: tuple[Side, ...]
) -> Iterator[str]:
    for bitext in bitexts:
        for chunk in _read(bitext, config, "sampling"):
            for side in sides:
                yield from chunk.source if side == "source" else chunk.target


def _binarize_train(
    bitext: Bitext, subwords: Subwords, config: PreprocessConfig, split: SplitWriter
) -> None:
    for chunk in _read(bitext, config, "encoding"):
        source, target = _encode(chunk, subwords)
        verdict = judge(source.lengths, target.lengths, config)
        if config.on_empty == "error" and (empty := np.flatnonzero(verdict == Verdict.EMPTY)).size:
            raise NmtError(
                f"{bitext.source} and {bitext.target}: a side of line {chunk.first + empty[0]} "
                "is empty; mend it or set on_empty to drop"
            )
        kept = verdict == Verdict.KEPT
        split.append(source.keep(kept), target.keep(kept))
        for reason in Verdict:
            if reason != Verdict.KEPT:
                split.drop(reason.name.lower(), int(np.count_nonzero(verdict == reason)))


def _binarize_held_out(
    bitext: Bitext, subwords: Subwords, config: PreprocessConfig, split: SplitWriter
) -> None:
    for chunk in _read(bitext, config, "encoding"):
        split.append(*_encode(chunk, subwords))
        split.append_text(chunk.source, chunk.target)


def _encode(chunk: Chunk, subwords: Subwords) -> tuple[Sentences, Sentences]:
    return (
        Sentences.of(subwords.encode_source(chunk.source)),
        Sentences.of(subwords.encode_target(chunk.target)),
    )


def _read(bitext: Bitext, config: PreprocessConfig, doing: str) -> Iterator[Chunk]:
    """The pairs of a bitext, with a progress bar on stderr where a person is watching."""
    with tqdm(desc=f"{doing} {bitext.source}", unit=" pairs", disable=None, leave=False) as bar:
        for chunk in bitext.chunks(config.on_invalid_utf8):
            yield chunk
            bar.update(len(chunk.source))
