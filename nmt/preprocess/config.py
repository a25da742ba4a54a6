"""The recipe's section ``preprocess``, and its differences from the settings of a dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from nmt.data.context import DocumentContext
from nmt.data.directions import Direction, TagSide
from nmt.data.manifest import MANIFEST, Manifest, check_language
from nmt.errors import NmtError
from nmt.preprocess.annotations import DOCUMENT_IDS, LINKS, WEIGHTS, Annotation
from nmt.preprocess.cleaning.pipeline import Cleaning
from nmt.preprocess.corpus import Corpus, ParallelText
from nmt.recipe.config import build, dump
from nmt.subwords.learning import SubwordTraining
from nmt.subwords.wrappers import TokenOrder

TextType = TypeVar("TextType", bound=ParallelText)


@dataclass(frozen=True, kw_only=True)
class PreprocessConfig(Cleaning, SubwordTraining):
    """The recipe's ``preprocess`` section.

    A corpus is given by its prefix: PREFIX stands for the files PREFIX.SOURCE_LANG and
    PREFIX.TARGET_LANG, plain or compressed, with ``.gz``, ``.xz`` or ``.zst`` at the end of the
    name.
    """

    source_lang: str = ""
    """Language to translate from, as the file names of corpora end; required, unless each entry of
    `train` has its own."""

    target_lang: str = ""
    """Language to translate into, as the file names of corpora end; required, unless each entry of
    `train` has its own."""

    train: tuple[str | Corpus, ...] = ()
    """Training corpus, required: the files PREFIX.LANG of both languages, one sentence a line,
    plain or .gz, .xz, .zst; or FILE.tsv with source, tab, target on a line; or - for such lines
    from stdin. Several corpora are read one after the other. To use more or less of a corpus, write
    ``{path: PREFIX, weight: 0.5, max_pairs: 1000000}``: ``weight`` is how often each of its pairs
    is in the dataset (2: twice; 0.5: a random half of the pairs); ``max_pairs`` is the largest
    number of pairs to take, at random if the corpus has more. Entries with different
    ``source_lang`` and ``target_lang`` make a multilingual dataset. With ``tag: bt`` each source of
    an entry begins with a tag, as for back-translated text (Caswell et al. 2019). `train.stages`
    chooses entries by their ``name``."""

    valid: str | tuple[ParallelText, ...] | None = None
    """Corpus for validation during training, required: the PREFIX of its files. In a multilingual
    dataset the PREFIX stands for the files of every direction, or a list has an entry
    ``{path: PREFIX, source_lang: en, target_lang: de}`` for each."""

    test: str | tuple[ParallelText, ...] | None = None
    """Corpus for the final scores, given as `valid`."""

    tags: TagSide = "source"
    """Side whose sentences begin with the tag of the target language in a multilingual dataset:
    source (Johnson et al. 2017) or target; or both, where sources begin with the tag of their own
    language, as in M2M-100 (Fan et al. 2020). Tags are pieces of the vocabulary, such as
    ``>>de<<``, that no text spells."""

    target_order: TokenOrder = "left_to_right"
    """Order of the tokens of target sentences: left_to_right, or right_to_left for a model that
    writes the last token first, for use with `nmt rescore` on the translations of another model.
    Text, translations and scores have their usual order."""

    documents: DocumentContext | None = None
    """Translate sentences with their context: blank lines on both sides divide the corpora into
    documents, and sentences are joined by a separator. ``{context: 2}`` joins the two previous
    sentences to each sentence (Tiedemann and Scherrer 2017), on both ``sides`` or on the source
    alone (both, source). ``{whole: true}`` joins whole documents, and their halves, quarters and so
    on (Sun et al. 2022). Joined sentences have at most ``max_tokens`` tokens, 512 by default."""

    document_ids: bool = False
    """Divide the corpora by ids instead of blank lines: read the id of the document of each pair
    from the file PREFIX.docid, or from a last column of FILE.tsv and of stdin. An id that differs
    from the id of the previous line begins a document."""

    alignments: bool = False
    """Read word alignments of the training pairs, for `train.guided_alignment`: from the file
    PREFIX.align, or from a third column of FILE.tsv and of stdin. Each line holds the links of its
    pair, ``S-T``: numbers of words, from 0, between spaces of the corpus as given."""

    sentence_weights: bool = False
    """Read a weight of each training pair in the loss: from the file PREFIX.weights, a number on
    each line, or from a last column of FILE.tsv and of stdin. A pair with weight 2 counts in the
    loss twice, and a pair with weight 0 not at all."""

    output_dir: str = "data-bin"
    """Directory to write; an older dataset there is replaced once the new dataset is complete."""

    separate_vocabularies: bool = False
    """Learn subwords for each language by itself; the paper shares one vocabulary."""

    subword_model: str | None = None
    """Existing subwords to use instead of learning any: a ``.model`` file for both sides, or the
    directory of a dataset or a run. The settings for learning then have no effect."""

    extend_vocabulary: str | None = None
    """Existing subwords to which new pieces are appended, named as in `subword_model`; old ids
    stay. ``nmt train --init-from`` begins the new pieces with the mean of the old pieces that spell
    them. The new pieces come from the file `new_pieces`. Without a file, pieces are learned from
    the training text for characters that the old pieces lack, up to `vocab_size` pieces in all."""

    new_pieces: str | None = None
    """File of new pieces for `extend_vocabulary`, one on each line. A new piece is matched wherever
    it occurs, before all old pieces. A piece that begins with "▁" is matched only at the beginning
    of a word."""

    workers: int = 0
    """Processes that clean and encode; 0 for one per core that this process may use. The dataset is
    the same for any number."""

    shard: str | None = None
    """Make the I-th of N parts of the dataset, for instance on one of N machines; ``auto`` takes
    I/N from torchrun or a Slurm array. A part is output_dir/shard-I-of-N; when all are there,
    output_dir is the dataset."""

    def __post_init__(self) -> None:
        # By name, because neither base class calls the other one's.
        Cleaning.__post_init__(self)
        SubwordTraining.__post_init__(self)
        if self.workers < 0:
            raise ValueError(f"workers must be at least 0, not {self.workers}")
        for source, target in ((self.source_lang, self.target_lang), *self.directions):
            if source and source == target:
                raise ValueError(
                    f"source_lang and target_lang are both {source!r}; files are told apart by them"
                )
            for key, language in (("source_lang", source), ("target_lang", target)):
                if language:
                    check_language(key, language)
        if self.alignments and self.target_order == "right_to_left":
            raise ValueError(
                "alignments go with target_order left_to_right alone; leave out one of them"
            )
        if self.documents:
            self._check_documents()
        elif self.document_ids:
            raise ValueError("document_ids needs documents; set documents, or unset document_ids")
        if self.extend_vocabulary and self.subword_model:
            raise ValueError("extend_vocabulary and subword_model are both set; unset one of them")
        if self.new_pieces and not self.extend_vocabulary:
            raise ValueError(
                "new_pieces needs extend_vocabulary: the run whose subwords they extend"
            )
        # Raises an error now if the shard is malformed.
        _ = self.part

    def _check_documents(self) -> None:
        assert self.documents
        if self.documents.whole and self.documents.context is not None:
            raise ValueError("documents: whole joins all sentences of a document; unset context")
        if self.drops_duplicates:
            raise ValueError("documents: clean has duplicates, which would tear documents apart")
        if self.alignments or self.sentence_weights:
            conflict = "alignments" if self.alignments else "sentence_weights"
            raise ValueError(f"documents go without {conflict}; unset one of them")
        if self.target_order == "right_to_left":
            raise ValueError("documents go with target_order left_to_right alone; unset one")

    @property
    def corpora(self) -> list[Corpus]:
        """The training corpora, each as a :class:`Corpus` with its languages."""
        return [
            self._with_languages(Corpus(path=corpus) if isinstance(corpus, str) else corpus)
            for corpus in self.train
        ]

    @property
    def annotations(self) -> tuple[Annotation, ...]:
        """The annotations of the training corpora."""
        return tuple(kind for kind in (LINKS, WEIGHTS, DOCUMENT_IDS) if getattr(self, kind.key))

    @property
    def held_out_annotations(self) -> tuple[Annotation, ...]:
        """The annotations of the splits valid and test."""
        return (DOCUMENT_IDS,) if self.document_ids else ()

    @property
    def directions(self) -> tuple[Direction, ...]:
        """Source and target language of the training corpora, each direction once."""
        return tuple(dict.fromkeys(corpus.direction for corpus in self.corpora))

    def for_direction(self, direction: Direction) -> PreprocessConfig:
        """Return the settings, with the cleaning steps adapted to the languages."""
        # Steps such as script know their languages only now.
        return replace(self, clean=tuple(step.for_languages(*direction) for step in self.clean))

    def held_out(self, split: str) -> list[ParallelText]:
        """Return the corpora of the split valid or test, each with its languages."""
        texts = getattr(self, split)
        if isinstance(texts, str):
            return [
                ParallelText(path=texts, source_lang=source, target_lang=target)
                for source, target in self.directions
            ]
        return [self._with_languages(text) for text in texts or ()]

    def _with_languages(self, text: TextType) -> TextType:
        """Return the text with the section's languages where it has none."""
        return replace(
            text,
            source_lang=text.source_lang or self.source_lang,
            target_lang=text.target_lang or self.target_lang,
        )

    @property
    def part(self) -> tuple[int, int]:
        """Number of the shard to make, from 1, and number of shards; 1 and 1 without shards."""
        if self.shard is None:
            return 1, 1
        if self.shard == "auto":
            return _part_of_environment()
        number, _, count = self.shard.partition("/")
        if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
            raise ValueError(f"shard must be I/N with I from 1 to N, or auto, not {self.shard!r}")
        return int(number), int(count)


def _part_of_environment() -> tuple[int, int]:
    """Return this process's number, from 1, and the number of processes.

    Both numbers come from torchrun or from a Slurm array.

    Raises:
        ValueError: neither started this process, or the array has gaps.
    """
    environ = os.environ
    try:
        if "SLURM_ARRAY_TASK_COUNT" in environ:
            first = int(environ["SLURM_ARRAY_TASK_MIN"])
            # Arrays may begin at any number.
            number = int(environ["SLURM_ARRAY_TASK_ID"]) - first
            count = int(environ["SLURM_ARRAY_TASK_COUNT"])
        else:
            number, count = int(environ["RANK"]), int(environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        raise ValueError(
            "shard is auto, but neither torchrun nor a Slurm array started this; give I/N"
        ) from None
    # As with --array=1,3, where a number would be above the count.
    if not 0 <= number < count:
        raise ValueError(f"shard is auto, but the Slurm array is not {count} tasks in a row")
    return number + 1, count


NOT_IN_THE_DATA = {"output_dir", "workers", "shard"}
"""Keys that do not change a dataset, or only select a part of it."""

MAX_SHOWN = 80
"""Characters of the longest values that a difference shows."""


def differences(file: Path, section: Mapping[str, Any], dataset: Path) -> list[str]:
    """Return the keys of a recipe that differ from the settings of its dataset.

    Each key comes with both values, if the values are short. A recipe older than the dataset has no
    differences: the settings may come from flags of ``nmt preprocess``.

    Args:
        file: the recipe.
        section: values of its section ``preprocess``.
        dataset: directory of a dataset; if the recipe writes another dataset, nothing differs.

    Raises:
        NmtError: the section is not valid.
    """
    values = {key: value for key, value in section.items() if key not in NOT_IN_THE_DATA}
    config = build(PreprocessConfig, values, "preprocess")
    written = Path(str(section.get("output_dir", PreprocessConfig.output_dir)))
    # The dataset was made with an older recipe.
    if not _is_newer(file, dataset / MANIFEST) or written.resolve() != dataset.resolve():
        return []
    try:
        # A dataset that lacks a key was made with the default of the key.
        made = _comparable({**dump(PreprocessConfig()), **Manifest.read(dataset).recipe})
    except NmtError:  # training reports the problem of the dataset
        return []
    wanted = _comparable(dump(config))
    return [
        _difference(f"preprocess.{key}", made.get(key), wanted.get(key))
        for key in values
        if wanted.get(key) != made.get(key)
    ]


def _difference(key: str, before: object, after: object) -> str:
    values = f" was {before}, is {after}"
    return key + values if len(values) <= MAX_SHOWN else key


def _is_newer(file: Path, other: Path) -> bool:
    try:
        return file.stat().st_mtime_ns > other.stat().st_mtime_ns
    except OSError:
        return False


def _comparable(value: Any) -> Any:
    """Return the values that are not None; a dataset may leave out None."""
    if isinstance(value, dict):
        return {key: _comparable(item) for key, item in value.items() if item is not None}
    return [_comparable(item) for item in value] if isinstance(value, list) else value
