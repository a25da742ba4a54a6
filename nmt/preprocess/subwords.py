"""Subwords with SentencePiece. Its model is also the vocabulary: there is no second dictionary."""

from __future__ import annotations

import hashlib
import io
import itertools
import math
import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import sentencepiece

from nmt.data.dataset import Dataset
from nmt.data.manifest import REMEDY
from nmt.data.vocabulary import BOS, EOS, PAD, UNK
from nmt.errors import NmtError
from nmt.io import files
from nmt.io.files import FileFacts

SHARED = "subwords.model"
SEPARATE = ("subwords.source.model", "subwords.target.model")

_SPECIAL_PIECES = ("<pad>", "<unk>", "<s>", "</s>")

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class SubwordTraining:
    """Settings for learning a subword model."""

    vocab_size: int = 32000
    """Number of token ids, including the four special ones; of each side if they are separate."""

    model_type: Literal["bpe", "unigram"] = "bpe"
    """Kind of subwords: bpe, as in the paper (section 5.1), or unigram, which learns more slowly
    and encodes faster."""

    character_coverage: float = 0.9995
    """Share of all characters that get a piece of their own; rarer ones become bytes or UNK."""

    byte_fallback: bool = True
    """Spell characters without a piece in bytes, at the cost of 256 pieces, so that no text becomes
    UNK. Turn it off for vocabularies of a few hundred pieces."""

    normalization: Literal["nmt_nfkc", "nmt_nfkc_cf", "nfkc", "nfkc_cf", "identity"] = "nmt_nfkc"
    """SentencePiece's rule for the text before it is cut; "_cf" also folds case."""

    user_defined_symbols: tuple[str, ...] = ()
    """Strings that are always one piece, for instance tags."""

    subword_sample: int = 1_000_000
    """Sentences, drawn at random, from which subwords are learned; bounds time and memory."""

    seed: int = 1
    """Random seed of the sample from which subwords are learned, and of samples of corpora."""

    def __post_init__(self) -> None:
        if self.vocab_size <= len(_SPECIAL_PIECES):
            raise ValueError(
                f"vocab_size must be more than the {len(_SPECIAL_PIECES)} special pieces, "
                f"not {self.vocab_size}"
            )
        if self.subword_sample < 1:
            raise ValueError(f"subword_sample must be at least 1, not {self.subword_sample}")
        if not 0.98 <= self.character_coverage <= 1:
            raise ValueError(
                f"character_coverage must be from 0.98 to 1, not {self.character_coverage}"
            )
        symbols = [*_SPECIAL_PIECES, *self.user_defined_symbols]
        for symbol in self.user_defined_symbols:
            if not symbol or symbols.count(symbol) > 1:
                raise ValueError(
                    f"user_defined_symbols must differ from each other, from nothing and from "
                    f"{' '.join(_SPECIAL_PIECES)}, unlike {symbol!r}"
                )


class Subwords:
    """Text to token ids and back, for both sides."""

    def __init__(self, source: bytes, target: bytes | None = None, num_threads: int = -1) -> None:
        """Load trained models.

        Args:
            source: serialised SentencePiece model of the source side.
            target: the model of the target side; None if both sides share one.
            num_threads: threads for encoding and decoding; -1 for all cores.
        """
        self.shared = target is None
        self._models = (source,) if target is None else (source, target)
        processors = [_processor(model) for model in self._models]
        self.source, self.target = processors[0], processors[-1]
        self._num_threads = num_threads

    @classmethod
    def load(cls, path: Path, num_threads: int = -1) -> Subwords:
        """Load the subwords of a directory, or one model file for both sides.

        Raises:
            NmtError: there is no model, or its special ids differ from the format's.
        """
        if not path.is_dir():
            return cls(_read_model(path), num_threads=num_threads)
        if (path / SEPARATE[0]).exists():
            source, target = (_read_model(path / name) for name in SEPARATE)
            return cls(source, target, num_threads)
        return cls(_read_model(path / SHARED), num_threads=num_threads)

    @classmethod
    def of(cls, dataset: Dataset, num_threads: int = -1) -> Subwords:
        """Return the subwords of a dataset, checked against its manifest.

        Raises:
            NmtError: the models are missing, have changed, or do not fit the manifest.
        """
        manifest = dataset.manifest
        names = (SHARED,) if manifest.shared_vocabulary else SEPARATE
        source, *target = (
            _checked(dataset.read(name), dataset.first_part / name) for name in names
        )
        subwords = cls(source, target[0] if target else None, num_threads)
        if (subwords.source_size, subwords.target_size) != (
            manifest.source_vocabulary,
            manifest.target_vocabulary,
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
        names = SEPARATE if SEPARATE[0] in facts else (SHARED,)
        for name in names:
            if name not in facts:
                raise NmtError(f"{directory / name}: no such subword model; {remedy}")
        paths = [directory / name for name in names]
        source, *target = (
            _checked(files.read_checked(path, facts[path.name], remedy), path) for path in paths
        )
        return cls(source, target[0] if target else None)

    def is_same_as(self, other: Subwords) -> bool:
        """Return whether both segment every text into the same ids."""
        return self._models == other._models

    @property
    def fingerprint(self) -> str:
        """A hash of the models: equal for equal subwords."""
        digests = [hashlib.sha256(model).digest() for model in self._models]
        return hashlib.sha256(b"".join(digests)).hexdigest()

    def save(self, directory: Path) -> list[Path]:
        """Write the model files into an existing directory, replacing any models there.

        Files of the other form (shared or separate) are removed first, so that a kill never leaves
        both forms.

        Returns:
            The paths written.
        """
        names, others = ((SHARED,), SEPARATE) if self.shared else (SEPARATE, (SHARED,))
        for name in others:
            (directory / name).unlink(missing_ok=True)
        for name, model in zip(names, self._models, strict=True):
            (directory / name).write_bytes(model)
        return [directory / name for name in names]

    @property
    def source_size(self) -> int:
        """Number of source token ids."""
        return int(self.source.get_piece_size())

    @property
    def target_size(self) -> int:
        """Number of target token ids."""
        return int(self.target.get_piece_size())

    def encode_source(self, lines: list[str]) -> list[list[int]]:
        """Return the ids of every line, without BOS and EOS; none for a line of white space."""
        return self._encode(self.source, lines)

    def encode_target(self, lines: list[str]) -> list[list[int]]:
        """Return the ids of every line, without BOS and EOS; none for a line of white space."""
        return self._encode(self.target, lines)

    def decode_source(self, ids: list[list[int]]) -> list[str]:
        """Return the text of every sentence, one line each, without special ids other than UNK."""
        return self._decode(self.source, ids)

    def decode_target(self, ids: list[list[int]]) -> list[str]:
        """Return the text of every sentence, one line each, without special ids other than UNK."""
        return self._decode(self.target, ids)

    def source_pieces(self, ids: list[int]) -> list[str]:
        """Return the pieces of the ids; "▁" stands for a space."""
        return [self.source.id_to_piece(token) for token in ids]

    def target_pieces(self, ids: list[int]) -> list[str]:
        """Return the pieces of the ids; "▁" stands for a space."""
        return [self.target.id_to_piece(token) for token in ids]

    @cached_property
    def begins_word(self) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Whether each source id and each target id begins a word, with a space before it."""
        source, target = (
            np.array([processor.id_to_piece(token).startswith("▁") for token in range(size)])
            for processor, size in (
                (self.source, self.source_size),
                (self.target, self.target_size),
            )
        )
        return source, target

    def source_offsets(self, lines: list[str]) -> list[list[int]]:
        """Return the offset in each line, in characters, of the pieces of :meth:`encode_source`."""
        return self._line_offsets(self.source, lines)

    def target_line_offsets(self, lines: list[str]) -> list[list[int]]:
        """Return the offset in each line, in characters, of the pieces of :meth:`encode_target`."""
        return self._line_offsets(self.target, lines)

    def _line_offsets(
        self, processor: sentencepiece.SentencePieceProcessor, lines: list[str]
    ) -> list[list[int]]:
        encoded = processor.encode(
            lines, return_type="offset_mapping", num_threads=self._num_threads
        )
        return _offsets(encoded)

    def target_offsets(self, ids: list[list[int]]) -> list[list[int]]:
        """Return the offset, in characters, of the pieces in the text of :meth:`decode_target`."""
        if not ids:
            return []
        decoded = self.target.decode(
            ids, return_type="offset_mapping", num_threads=self._num_threads
        )
        return _offsets(decoded)

    def _encode(
        self, processor: sentencepiece.SentencePieceProcessor, lines: list[str]
    ) -> list[list[int]]:
        ids: list[list[int]] = processor.encode(lines, num_threads=self._num_threads)
        return ids

    def _decode(
        self, processor: sentencepiece.SentencePieceProcessor, ids: list[list[int]]
    ) -> list[str]:
        if not ids:
            return []  # SentencePiece would take it for one empty sentence
        lines: list[str] = processor.decode(ids, num_threads=self._num_threads)
        return [line.replace("\n", " ") for line in lines]  # byte pieces can spell a line feed


def _offsets(mapped: list[dict[str, Any]]) -> list[list[int]]:
    return [[begin for begin, _ in sentence["offsets"]] for sentence in mapped]


def train_subwords(sentences: Iterable[str], training: SubwordTraining) -> bytes:
    """Learn a SentencePiece model; the same for the same sentences on every machine.

    Returns:
        The serialised model.

    Raises:
        NmtError: the sentences allow no vocabulary of that size, or hold no text at all.
    """
    sample = reservoir(sentences, training.subword_sample, training.seed)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sample),
            model_writer=model,
            vocab_size=training.vocab_size,
            model_type=training.model_type,
            character_coverage=training.character_coverage,
            byte_fallback=training.byte_fallback,
            normalization_rule_name=training.normalization,
            user_defined_symbols=list(training.user_defined_symbols),
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise NmtError(_explain(str(error), training)) from None
    return model.getvalue()


def reservoir(items: Iterable[T], size: int, seed: int) -> list[T]:
    """Return a uniform sample of at most `size` items, in one pass over an unknown number of items.

    Vitter's reservoir sampling with Li's skips ("Algorithm L", 1994): draws random numbers only for
    replacements, not for every item.
    """
    generator = random.Random(seed)
    items = iter(items)
    sample = list(itertools.islice(items, size))
    weight = 1.0
    while len(sample) == size:
        weight *= math.exp(math.log1p(-generator.random()) / size)
        skip = math.floor(math.log1p(-generator.random()) / math.log1p(-weight))
        chosen = list(itertools.islice(items, skip, skip + 1))
        if not chosen:
            break
        sample[generator.randrange(size)] = chosen[0]
    return sample


def _explain(error: str, training: SubwordTraining) -> str:
    """Return SentencePiece's error as a sentence with a remedy."""
    if largest := re.search(r"too high .*<= (\d+)", error):
        return (
            f"vocab_size {training.vocab_size} is more than the text allows; "
            f"use at most {largest[1]}, or more text"
        )
    bytes_off = ", or turn byte_fallback off" if training.byte_fallback else ""
    if smallest := re.search(r"smaller than required_chars. \d+ vs (\d+)", error):
        return (
            f"vocab_size {training.vocab_size} is too small for the characters of the text; use "
            f"at least {smallest[1]}, or lower character_coverage{bytes_off}"
        )
    return f"no subwords can be learned from the training text; SentencePiece says: {error.strip()}"


def _processor(model: bytes) -> sentencepiece.SentencePieceProcessor:
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(model)  # the constructor would accept an empty model
    return processor


MAX_BYTES = 1 << 28
"""Largest subword model that is read, in bytes."""


def _read_model(path: Path) -> bytes:
    try:
        return _checked(files.read_bounded(path, MAX_BYTES), path)
    except FileNotFoundError:
        raise NmtError(f"{path}: no such subword model") from None


def _checked(model: bytes, path: Path) -> bytes:
    """Return a serialised model after checking that its special ids are those of the format."""
    try:
        processor = _processor(model)
        ids = [processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id()]
    except RuntimeError:
        raise NmtError(f"{path}: not a SentencePiece model") from None
    if ids != [PAD, UNK, BOS, EOS]:
        raise NmtError(
            f"{path}: its ids of pad, unk, bos and eos are {', '.join(map(str, ids))}, not "
            f"{PAD}, {UNK}, {BOS}, {EOS}; train it with --pad_id={PAD} --unk_id={UNK} "
            f"--bos_id={BOS} --eos_id={EOS}"
        )
    return model
