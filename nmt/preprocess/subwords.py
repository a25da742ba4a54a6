"""Subwords with SentencePiece, whose model *is* the vocabulary: there is no second dictionary."""

from __future__ import annotations

import hashlib
import io
import itertools
import math
import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

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
    """How a subword model is learned."""

    vocab_size: int = 32000
    """Number of token ids, the four special ones included; of each side if they are separate."""

    model_type: Literal["bpe", "unigram"] = "bpe"
    """BPE, as the paper has it (section 5.1); unigram learns more slowly, encodes faster."""

    character_coverage: float = 0.9995
    """Share of all characters that get a piece of their own; rarer ones become bytes or UNK."""

    byte_fallback: bool = True
    """Whether a character without a piece is spelt in bytes, at the cost of 256 pieces, so that
    no text of any script becomes UNK. Turn it off for vocabularies of a few hundred pieces."""

    normalization: Literal["nmt_nfkc", "nmt_nfkc_cf", "nfkc", "nfkc_cf", "identity"] = "nmt_nfkc"
    """SentencePiece's rule for the text before it is cut; "_cf" also folds case."""

    user_defined_symbols: tuple[str, ...] = ()
    """Strings that are always one piece, for instance tags."""

    subword_sample: int = 1_000_000
    """Sentences, drawn at random, from which subwords are learned; bounds time and memory."""

    seed: int = 1
    """Of that draw."""

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
        """Makes the subwords of trained models.

        Args:
            source: a serialised SentencePiece model.
            target: that of the target side; None where both sides share one.
            num_threads: for encoding and decoding; -1 for all cores.
        """
        self.shared = target is None
        self._models = (source,) if target is None else (source, target)
        processors = [_processor(model) for model in self._models]
        self.source, self.target = processors[0], processors[-1]
        self._num_threads = num_threads

    @classmethod
    def load(cls, path: Path, num_threads: int = -1) -> Subwords:
        """The subwords that were saved in a directory, or one model file for both sides.

        Raises:
            NmtError: there is none, or its special ids are others than the format's.
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
            NmtError: there are none, they have changed, or they are others than the manifest says.
        """
        manifest = dataset.manifest
        names = (SHARED,) if manifest.shared_vocabulary else SEPARATE
        source, *target = (_checked(dataset.read(it), dataset.first_part / it) for it in names)
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
        """The subwords that were saved in a directory, which has a table of its files.

        Raises:
            NmtError: they are missing or have changed since; `remedy` says what to do.
        """
        names = SEPARATE if SEPARATE[0] in facts else (SHARED,)
        for name in names:
            if name not in facts:
                raise NmtError(f"{directory / name}: no such subword model; {remedy}")
        paths = [directory / name for name in names]
        source, *target = (
            _checked(files.read_checked(it, facts[it.name], remedy), it) for it in paths
        )
        return cls(source, target[0] if target else None)

    def is_same_as(self, other: Subwords) -> bool:
        """Whether both cut every text into the same ids."""
        return self._models == other._models

    @property
    def fingerprint(self) -> str:
        """A hash by which the same subwords are known again."""
        digests = [hashlib.sha256(model).digest() for model in self._models]
        return hashlib.sha256(b"".join(digests)).hexdigest()

    def save(self, directory: Path) -> list[Path]:
        """Writes the model files into an existing directory, in the place of any that are there.

        Those of the other form go first, so that no kill leaves both to choose from.
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
        """The ids of every line, without BOS and EOS; none for a line of white space."""
        return self._encode(self.source, lines)

    def encode_target(self, lines: list[str]) -> list[list[int]]:
        """The ids of every line, without BOS and EOS; none for a line of white space."""
        return self._encode(self.target, lines)

    def decode_source(self, ids: list[list[int]]) -> list[str]:
        """The text of every sentence, one line each; special ids other than UNK leave no trace."""
        return self._decode(self.source, ids)

    def decode_target(self, ids: list[list[int]]) -> list[str]:
        """The text of every sentence, one line each; special ids other than UNK leave no trace."""
        return self._decode(self.target, ids)

    def source_pieces(self, ids: list[int]) -> list[str]:
        """The pieces that the ids stand for; "▁" is a space."""
        return [self.source.id_to_piece(token) for token in ids]

    def target_pieces(self, ids: list[int]) -> list[str]:
        """The pieces that the ids stand for; "▁" is a space."""
        return [self.target.id_to_piece(token) for token in ids]

    def source_places(self, lines: list[str]) -> list[list[int]]:
        """Where the pieces of :meth:`encode_source` begin in each line."""
        return self._line_places(self.source, lines)

    def target_line_places(self, lines: list[str]) -> list[list[int]]:
        """Where the pieces of :meth:`encode_target` begin in each line."""
        return self._line_places(self.target, lines)

    def _line_places(
        self, processor: sentencepiece.SentencePieceProcessor, lines: list[str]
    ) -> list[list[int]]:
        encoded = processor.encode(
            lines, return_type="offset_mapping", num_threads=self._num_threads
        )
        return _places(encoded)

    def target_places(self, ids: list[list[int]]) -> list[list[int]]:
        """Where the pieces begin in the text that :meth:`decode_target` gives."""
        if not ids:
            return []
        decoded = self.target.decode(
            ids, return_type="offset_mapping", num_threads=self._num_threads
        )
        return _places(decoded)

    def _encode(
        self, processor: sentencepiece.SentencePieceProcessor, lines: list[str]
    ) -> list[list[int]]:
        ids: list[list[int]] = processor.encode(lines, num_threads=self._num_threads)
        return ids

    def _decode(
        self, processor: sentencepiece.SentencePieceProcessor, ids: list[list[int]]
    ) -> list[str]:
        if not ids:
            return []  # which SentencePiece takes for one empty sentence
        lines: list[str] = processor.decode(ids, num_threads=self._num_threads)
        return [line.replace("\n", " ") for line in lines]  # byte pieces can spell a line feed


def _places(mapped: list[dict[str, Any]]) -> list[list[int]]:
    return [[begin for begin, _ in each["offsets"]] for each in mapped]


def train_subwords(sentences: Iterable[str], training: SubwordTraining) -> bytes:
    """A serialised SentencePiece model, the same for the same sentences on every machine.

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
    """A uniform sample of at most `size` items, in one pass and without knowing their number.

    Vitter's sampling with Li's skips ("Algorithm L", 1994): the random numbers are as many as the
    replacements, not as many as the items.
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
    """SentencePiece's complaint as a sentence with a remedy."""
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
    processor.LoadFromSerializedProto(model)  # the constructor would pass over an empty model
    return processor


MAX_BYTES = 1 << 28
"""Size of the largest subword model that is read."""


def _read_model(path: Path) -> bytes:
    try:
        return _checked(files.read_bounded(path, MAX_BYTES), path)
    except FileNotFoundError:
        raise NmtError(f"{path}: no such subword model") from None


def _checked(model: bytes, path: Path) -> bytes:
    """Return a serialised model, whose special ids are those of the format."""
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
