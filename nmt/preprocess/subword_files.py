"""The files of subwords in a dataset, a run or an export."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from nmt.data.context import CONTEXT_FILE, CONTEXTS, DocumentContext
from nmt.data.directions import DIRECTIONS, DIRECTIONS_FILE, Directions
from nmt.data.vocabulary import BOS, EOS, PAD, UNK, VOCABULARIES, Vocabulary
from nmt.errors import NmtError
from nmt.io import reading
from nmt.io.documents import DocumentFormat
from nmt.preprocess.bpe import BPE_CODES
from nmt.preprocess.order import ORDER_FILE, TARGET_ORDER, TokenOrder
from nmt.preprocess.segmenters import load_processor
from nmt.preprocess.subword_models import SubwordModel

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
"""Names of the files with codes of BPE in the place of models, by their number."""

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
)
"""Names of all files that subwords may consist of."""


@dataclass(frozen=True)
class SubwordParts:
    """Content of the files; :class:`nmt.preprocess.subwords.Subwords` describes the parts."""

    models: tuple[SubwordModel, SubwordModel | None]
    vocabularies: tuple[Vocabulary, ...]
    directions: Directions | None
    target_order: TokenOrder
    context: DocumentContext | None


def read_parts(present: Sequence[str], read: Callable[[str], tuple[bytes, Path]]) -> SubwordParts:
    """Return the parts of subwords, checked.

    Args:
        present: names of files, of which others are ignored.
        read: returns the content and the path of a file, by its name.

    Raises:
        NmtError: a file is damaged, or the special ids differ from the format's.
    """
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
    )


MAX_BYTES = 1 << 28
"""Largest subword model that is read, in bytes."""


def bounded(path: Path) -> bytes:
    """Return the content of a model's file, if it is not too large."""
    try:
        return reading.read_bounded(path, MAX_BYTES)
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
    if not is_listed and ids != [PAD, UNK, BOS, EOS]:
        raise NmtError(
            f"{path}: its ids of pad, unk, bos and eos are {', '.join(map(str, ids))}, not "
            f"{PAD}, {UNK}, {BOS}, {EOS}; train it with --pad_id={PAD} --unk_id={UNK} "
            f"--bos_id={BOS} --eos_id={EOS}"
        )
    return content
