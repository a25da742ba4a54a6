"""Subwords of both sides: text to token ids and back, and the files that store the subwords.

A SentencePiece model is also the vocabulary. Imported models are an exception: a list of pieces
gives their ids, and codes of BPE may replace the SentencePiece model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from nmt.data.context import CONTEXT_FILE, CONTEXTS, DocumentContext
from nmt.data.directions import DIRECTIONS, DIRECTIONS_FILE, Directions
from nmt.data.extremes import EXTREMES, EXTREMES_FILE, Extremes
from nmt.data.manifest import REMEDY
from nmt.data.vocabulary import BOS, EOS, PAD, SPACE, UNK, VOCABULARIES, Vocabulary
from nmt.errors import NmtError
from nmt.io import documents
from nmt.io.documents import DocumentFormat, FileFacts
from nmt.lazy import np
from nmt.subwords.bpe import BPE_CODES, BpeCodes, BpePieces
from nmt.subwords.casing import cased
from nmt.subwords.model_pieces import symbols_of
from nmt.subwords.segmenters import (
    SEPARATOR,
    ListedPieces,
    Segmenter,
    SentencePiece,
    load_processor,
)
from nmt.subwords.wrappers import (
    ORDER_FILE,
    TARGET_ORDER,
    JoinedSegmenter,
    ReversedSegmenter,
    TargetOrder,
    TokenOrder,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from nmt.data.dataset import Dataset

SENTENCE_ENDS = tuple(".!?…。！？।؟")


class Subwords:
    """Text to token ids and back, for both sides."""

    def __init__(
        self,
        source: SubwordModel,
        target: SubwordModel | None = None,
        num_threads: int = -1,
        vocabularies: Sequence[Vocabulary] = (),
        directions: Directions | None = None,
        target_order: TokenOrder = "left_to_right",
        context: DocumentContext | None = None,
    ) -> None:
        """Load trained models.

        Args:
            source: serialised SentencePiece model of the source side, or codes of BPE.
            target: the model of the target side; None if both sides share one.
            num_threads: threads for encoding and decoding; -1 for all cores.
            vocabularies: one list of pieces for both sides, or one for each side. Without lists the
                models are the vocabularies; codes always need lists.
            directions: directions of a multilingual model.
            target_order: order of the tokens of target sentences.
            context: context of the sentences of documents.
        """
        models = (source,) if target is None else (source, target)
        self._models = models[0], models[-1]
        self.vocabularies = tuple(vocabularies)
        self.shared = len(vocabularies or models) == 1
        """Whether both sides have the same ids."""
        texts = [VOCABULARIES.text(vocabulary).encode() for vocabulary in vocabularies]
        names = (CODES if isinstance(source, BpeCodes) else MODELS)[len(models)]
        self._files = dict(zip(names, map(model_content, models), strict=True)) | dict(
            zip(LISTS[len(vocabularies)], texts, strict=True)
        )
        lists = (vocabularies[0], vocabularies[-1]) if vocabularies else (None, None)
        sides = zip(self._models, lists, strict=True)
        # Shared subwords are one object, so that both sides share the cache of an encoder.
        segmenters = [segmenter_of(*side) for side in list(sides)[: len(self._files)]]
        self.source, self.target = segmenters[0], segmenters[-1]
        self.target_order = target_order
        """Order of the tokens of target sentences; see :mod:`nmt.subwords.wrappers`."""
        if target_order == "right_to_left":
            self.target = ReversedSegmenter(self.target)
            # Among the files, so that subwords of another order are other subwords.
            text = TARGET_ORDER.text(TargetOrder(order=target_order))
            self._files[ORDER_FILE] = text.encode()
        self._num_threads = num_threads
        self.directions = directions
        """Directions of a multilingual model; None for a single direction."""
        self.context = context
        """Context of the sentences of documents; None for single sentences."""
        self.extremes: Extremes | None = None
        """Extremes of the training sentences of a model; None if unknown."""
        self.tags: tuple[list[int], list[int]] = [], []
        """Ids before every sentence of source and target; see :mod:`nmt.subwords.tags`."""

    @classmethod
    def load(cls, path: Path, num_threads: int = -1) -> Subwords:
        """Load the subwords of a directory, or one model file for both sides.

        Raises:
            NmtError: there is no model, or its special ids differ from the format's.
        """
        if not path.is_dir():
            # Without names the reader asks for a single model, which is this file.
            return cls._read((), lambda name: (bounded(path), path), num_threads)
        present = [name for name in FILES if (path / name).exists()]
        if not present and any((path.parent / name).exists() for name in FILES):
            raise NmtError(f"{path}: no subword model; give {path.parent}, which has one")
        return cls._read(present, lambda name: (bounded(path / name), path / name), num_threads)

    @classmethod
    def from_dataset(cls, dataset: Dataset, num_threads: int = -1) -> Subwords:
        """Return the subwords of a dataset, checked against its manifest.

        Raises:
            NmtError: the models are missing, have changed, or do not fit the manifest.
        """
        manifest = dataset.manifest

        def read(name: str) -> tuple[bytes, Path]:
            return dataset.read(name), dataset.first_part / name

        subwords = cls._read(list(manifest.files), read, num_threads)
        if (subwords.source_size, subwords.target_size, subwords.shared) != (
            manifest.source_vocabulary,
            manifest.target_vocabulary,
            manifest.shared_vocabulary,
        ):
            raise NmtError(
                f"{dataset.path}: its subwords are not as many as its manifest says; {REMEDY}"
            )
        return subwords

    @classmethod
    def load_checked(cls, directory: Path, facts: Mapping[str, FileFacts], remedy: str) -> Subwords:
        """Load the subwords of a directory, checked against a table of its files.

        Args:
            directory: where the models are.
            facts: size and checksum of each file, by name.
            remedy: end of an error message: what the user should do.

        Raises:
            NmtError: a model is missing or has changed.
        """

        def read(name: str) -> tuple[bytes, Path]:
            path = directory / name
            if name not in facts:
                raise NmtError(f"{path}: no such subword model; {remedy}")
            return documents.read_checked(path, facts[name], remedy), path

        return cls._read(list(facts), read)

    @classmethod
    def _read(
        cls,
        present: Sequence[str],
        read: Callable[[str], tuple[bytes, Path]],
        num_threads: int = -1,
    ) -> Subwords:
        """Return the subwords of some files.

        Args:
            present: names of files; unknown names are ignored.
            read: returns the content and the path of a file, by its name.
            num_threads: threads for encoding and decoding; -1 for all cores.
        """
        parts = read_parts(present, read)
        subwords = cls(
            *parts.models,
            num_threads,
            parts.vocabularies,
            parts.directions,
            parts.target_order,
            parts.context,
        )
        subwords.extremes = parts.extremes
        return subwords

    def in_order(self, target_order: TokenOrder) -> Subwords:
        """Return the subwords with another order of the tokens of target sentences."""
        # By identity, because __init__ makes one object of a shared model.
        source, target = self._models
        models = source, None if target is source else target
        return Subwords(
            *models,
            self._num_threads,
            self.vocabularies,
            self.directions,
            target_order,
            self.context,
        )

    @property
    def has_codes(self) -> bool:
        """Whether the subwords are codes of BPE instead of SentencePiece models."""
        return isinstance(self._models[0], BpeCodes)

    @property
    def models(self) -> tuple[bytes, bytes]:
        """The serialised SentencePiece models of source and target.

        Raises:
            NmtError: the subwords are codes of BPE.
        """
        source, target = self._models
        if not isinstance(source, bytes) or not isinstance(target, bytes):
            raise NmtError(
                "a vocabulary of BPE codes cannot be extended, only one of SentencePiece models; "
                "replace --extend-vocabulary by --subword-model"
            )
        return source, target

    def is_same_as(self, other: Subwords) -> bool:
        """Return whether both segment every text into the same ids, with the same tags."""
        # By their bytes: equal pieces with other scores segment differently.
        return self._files == other._files and self.directions == other.directions

    def extends(self, old: Subwords) -> bool:
        """Return whether these are the old subwords, perhaps with new pieces at the end."""
        return (
            # Another form, or another order of the target, is no extension: all ids would change.
            self._files.keys() == old._files.keys()
            and all(map(model_extends, self._models, old._models))
            and all(
                new.pieces[: len(before.pieces)] == before.pieces
                for new, before in zip(self.vocabularies, old.vocabularies, strict=True)
            )
        )

    @property
    def fingerprint(self) -> str:
        """A hash of the files: equal for equal subwords."""
        # A digest each: joined contents would not tell where a file ends.
        digests = [hashlib.sha256(content).digest() for content in self._files.values()]
        return hashlib.sha256(b"".join(digests)).hexdigest()

    def save(self, directory: Path) -> list[Path]:
        """Write the files into an existing directory, replacing any subwords there.

        Files of other forms (shared, separate or listed) are removed first, so that a kill never
        leaves two forms.

        Returns:
            The paths written.
        """
        written = dict(self._files)
        if self.directions:
            written[DIRECTIONS_FILE] = DIRECTIONS.text(self.directions).encode()
        if self.context:
            written[CONTEXT_FILE] = CONTEXTS.text(self.context).encode()
        if self.extremes:
            written[EXTREMES_FILE] = EXTREMES.text(self.extremes).encode()
        for name in FILES:
            if name not in written:
                (directory / name).unlink(missing_ok=True)
        for name, content in written.items():
            (directory / name).write_bytes(content)
        return [directory / name for name in written]

    @property
    def source_size(self) -> int:
        """Number of source token ids."""
        return self.source.size

    @property
    def target_size(self) -> int:
        """Number of target token ids."""
        return self.target.size

    def encode_source(self, lines: list[str]) -> list[list[int]]:
        """Return the ids of every line, without BOS and EOS; none for a line of white space."""
        return self.source.encode(lines, self._num_threads)

    def encode_target(self, lines: list[str]) -> list[list[int]]:
        """Return the ids of every line, without BOS and EOS; none for a line of white space."""
        return self.target.encode(lines, self._num_threads)

    def encode_phrases(self, phrases: list[str]) -> list[list[int]]:
        """Return the ids of every phrase, as they are within a target sentence."""
        return self.target.encode_phrases(phrases, self._num_threads)

    def decode_source(self, ids: list[list[int]]) -> list[str]:
        """Return the text of every sentence, one line each, without special ids other than UNK."""
        return self._decode(self.source, ids)

    def decode_target(self, ids: list[list[int]]) -> list[str]:
        """Return the text of every sentence, one line each, without special ids other than UNK."""
        return self._decode(self.target, ids)

    def source_pieces(self, ids: list[int]) -> list[str]:
        """Return the pieces of the ids; "▁" stands for a space."""
        return self.source.pieces(ids)

    def target_pieces(self, ids: list[int]) -> list[str]:
        """Return the pieces of the ids; "▁" stands for a space."""
        return self.target.pieces(ids)

    @cached_property
    def sentence_ends(self) -> frozenset[int]:
        """Source ids of the pieces that may end a sentence."""
        pieces = enumerate(self.source.pieces([*range(self.source_size)]))
        return frozenset(id_ for id_, piece in pieces if piece.endswith(SENTENCE_ENDS))

    @cached_property
    def begins_word(self) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Whether each source id and each target id begins a word, with a space before it.

        Raises:
            NmtError: the ids do not tell.
        """
        if not (self.source.marks_word_begins and self.target.marks_word_begins):
            raise NmtError(
                "word alignments of training pairs need SentencePiece models without casing: "
                "other subwords divide text into other words; leave out --alignments"
            )
        source, target = (
            np.array([piece.startswith(SPACE) for piece in side.pieces([*range(side.size)])])
            for side in (self.source, self.target)
        )
        return source, target

    def source_offsets(self, lines: list[str]) -> list[list[int]]:
        """Return the offset in each line, in characters, of the pieces of :meth:`encode_source`."""
        return self.source.line_offsets(lines, self._num_threads)

    def target_line_offsets(self, lines: list[str]) -> list[list[int]]:
        """Return the offset in each line, in characters, of the pieces of :meth:`encode_target`."""
        return self.target.line_offsets(lines, self._num_threads)

    def target_offsets(self, ids: list[list[int]]) -> list[list[int]]:
        """Return the offset, in characters, of the pieces in the text of :meth:`decode_target`."""
        return self.target.text_offsets(ids, self._num_threads)

    def _decode(self, segmenter: Segmenter, ids: list[list[int]]) -> list[str]:
        lines = segmenter.decode(ids, self._num_threads)
        if segmenter.separator is not None:
            return lines
        return [line.replace("\n", " ") for line in lines]  # byte pieces can spell a line feed


SubwordModel = bytes | BpeCodes
"""A serialised SentencePiece model, or codes of BPE."""


def model_extends(new: SubwordModel, old: SubwordModel) -> bool:
    """Return whether a model is the old model, perhaps with new pieces at the end."""
    if isinstance(new, bytes) and isinstance(old, bytes):
        # New pieces are appended bytes, so an extended model begins with the bytes of the old
        # model.
        return new.startswith(old)
    return new == old


def model_content(model: SubwordModel) -> bytes:
    """Return the content of the file of a model."""
    return model if isinstance(model, bytes) else BPE_CODES.text(model).encode()


def segmenter_of(model: SubwordModel, vocabulary: Vocabulary | None) -> Segmenter:
    """Return the segmenter of a model; the vocabulary is a list of pieces, if there is one."""
    if not isinstance(model, bytes):
        assert vocabulary is not None
        return BpePieces(model, vocabulary)
    segmenter = (
        ListedPieces(model, vocabulary)
        if vocabulary
        else cased(SentencePiece(model), symbols_of(model))
    )
    # A cheap look first, because `tags` reads every piece.
    if SEPARATOR.encode() in model and SEPARATOR in segmenter.tags:
        return JoinedSegmenter(segmenter, segmenter.tags[SEPARATOR])
    return segmenter


T = TypeVar("T")

MODELS: tuple[tuple[str, ...], ...] = (
    (),
    ("subwords.model",),
    ("subwords.source.model", "subwords.target.model"),
)
"""Names of the model files, by their number."""

CODES: tuple[tuple[str, ...], ...] = (
    (),
    ("subwords.codes.json",),
    ("subwords.source.codes.json", "subwords.target.codes.json"),
)
"""Names of the files with codes of BPE, by their number."""

LISTS: tuple[tuple[str, ...], ...] = (
    (),
    ("vocabulary.json",),
    ("vocabulary.source.json", "vocabulary.target.json"),
)
"""Names of the files with lists of pieces, by their number."""

FILES = (
    *(name for names in (*MODELS, *CODES, *LISTS) for name in names),
    DIRECTIONS_FILE,
    ORDER_FILE,
    CONTEXT_FILE,
    EXTREMES_FILE,
)
"""Names of all files that subwords may consist of."""


@dataclass(frozen=True)
class SubwordParts:
    """Content of the files; :class:`nmt.subwords.subwords.Subwords` describes the parts."""

    models: tuple[SubwordModel, SubwordModel | None]
    vocabularies: tuple[Vocabulary, ...]
    directions: Directions | None
    target_order: TokenOrder
    context: DocumentContext | None
    extremes: Extremes | None


def read_parts(present: Sequence[str], read: Callable[[str], tuple[bytes, Path]]) -> SubwordParts:
    """Return the parts of subwords, checked.

    Args:
        present: names of files; unknown names are ignored.
        read: returns the content and the path of a file, by its name.

    Raises:
        NmtError: a file is damaged, or the special ids differ from the format's.
    """
    # The single model is the default, whose name the message has if no file is there.
    forms = (*CODES[1:], MODELS[2])
    names = next((names for names in forms if names[0] in present), MODELS[1])
    lists = next((names for names in LISTS if names and names[0] in present), ())
    vocabularies = tuple(
        VOCABULARIES.parse(content, str(path)) for content, path in map(read, lists)
    )
    source, *target = (
        _checked(content, path, bool(vocabularies)) for content, path in map(read, names)
    )

    def document(name: str, form: DocumentFormat[T]) -> T | None:
        if name not in present:
            return None
        content, path = read(name)
        return form.parse(content, str(path))

    order = document(ORDER_FILE, TARGET_ORDER)
    return SubwordParts(
        (source, target[0] if target else None),
        vocabularies,
        document(DIRECTIONS_FILE, DIRECTIONS),
        order.order if order else "left_to_right",
        document(CONTEXT_FILE, CONTEXTS),
        document(EXTREMES_FILE, EXTREMES),
    )


MAX_BYTES = 1 << 28
"""Largest subword model that is read, in bytes."""


def bounded(path: Path) -> bytes:
    """Return the content of a model's file, if it is not too large."""
    try:
        return documents.read_bounded(path, MAX_BYTES)
    except FileNotFoundError:
        raise NmtError(f"{path}: no such subword model") from None


def _checked(content: bytes, path: Path, is_listed: bool) -> SubwordModel:
    """Return a model or codes after checking it, with its special ids where its ids are used."""
    if path.name in (*CODES[1], *CODES[2]):
        if not is_listed:
            raise NmtError(f"{path}: codes without {LISTS[1][0]}; import the model again")
        return BPE_CODES.parse(content, str(path))
    try:
        processor = load_processor(content)
        ids = [processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id()]
    except RuntimeError:
        raise NmtError(f"{path}: not a SentencePiece model") from None
    # The special ids are constants of the format, for which no other part asks.
    if not is_listed and ids != [PAD, UNK, BOS, EOS]:
        raise NmtError(
            f"{path}: its ids of pad, unk, bos and eos are {', '.join(map(str, ids))}, not "
            f"{PAD}, {UNK}, {BOS}, {EOS}; train it with --pad_id={PAD} --unk_id={UNK} "
            f"--bos_id={BOS} --eos_id={EOS}"
        )
    return content
