"""The contract of an import format, and the run that an import writes.

Models of other toolkits are untrusted input: nothing in them is executed, and every value is
checked.
"""

from __future__ import annotations

import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from nmt.data.manifest import check_language
from nmt.data.vocabulary import EXCLUDED, Vocabulary
from nmt.errors import NmtError
from nmt.io import documents, files
from nmt.models import ModelConfig
from nmt.recipe.config import build, dump
from nmt.recipe.registry import Registry
from nmt.runs import Run
from nmt.runs.building import build_for
from nmt.runs.checkpoint import Tensors
from nmt.search.config import SearchConfig
from nmt.subwords.segmenters import load_processor
from nmt.subwords.subwords import MAX_BYTES, Subwords

MAX_JSON = 1 << 26
"""Bytes of the largest JSON file that is read."""

ORIGIN = "imported"
"""Section of the recipe that says where an imported run comes from."""


@dataclass(frozen=True)
class Imported:
    """A model of another toolkit in the terms of this toolkit."""

    config: ModelConfig
    weights: Tensors
    """Weights by this toolkit's names; tied weights once."""
    subwords: Subwords
    search: Mapping[str, Any]
    """The recipe's section ``search``: the other toolkit's defaults for this model."""
    settings: Path
    """The file that the section ``search`` is made from."""
    languages: tuple[str | None, str | None]
    """Source and target, where the files say; unread if the subwords have directions."""
    read: tuple[Path, ...]
    """The files that were read."""


@dataclass(frozen=True, kw_only=True)
class ImportFormat(ABC):
    """A format of models of another toolkit."""

    registry: ClassVar[Registry[ImportFormat]]

    is_multilingual: ClassVar[bool] = False
    """Whether the files name all directions of a model."""

    name: str = ""
    """Name of the format."""

    @abstractmethod
    def recognises(self, source: Path) -> bool:
        """Return whether a directory looks like a model of this format."""

    @abstractmethod
    def read(self, source: Path) -> Imported:
        """Read the model in a directory.

        Raises:
            NmtError: a file is missing or damaged, or the model has a part that this toolkit lacks.
        """


import_formats: Registry[ImportFormat] = Registry("import format", flag="--format")

ImportFormat.registry = import_formats


def import_model(
    source: Path,
    output: Path,
    format_: ImportFormat | None = None,
    source_lang: str | None = None,
    target_lang: str | None = None,
    name: str | None = None,
) -> Run:
    """Write a run with the model of another toolkit, replacing an older import.

    Args:
        source: directory of the model.
        output: directory of the run; it appears whole or not at all.
        format_: format of the model; None to detect the format.
        source_lang: source language; None for the language in the files of the model. The run of a
            model of many languages has its directions from this one, or from all.
        target_lang: target language, likewise.
        name: name of the model, which the recipe of the run holds; None for the name of its
            directory.

    Raises:
        NmtError: the model is missing, damaged or of no known format, has parts that this toolkit
            lacks or no languages, or `output` holds something other than an imported run.
    """
    if not _may_be_replaced(output):
        raise NmtError(
            f"{output}: holds something other than an imported run; choose another --output"
        )
    format_ = format_ or find_format(source)
    imported = format_.read(source)
    _check_search(imported)
    config, subwords = imported.config.resolved(), imported.subwords
    wanted = source_lang, target_lang
    if subwords.directions:
        try:
            subwords.directions = subwords.directions.among(*wanted)
        except NmtError as error:
            raise NmtError(f"{source}: {error}") from None
        languages = subwords.directions.names
    else:
        languages = _languages(source, wanted, imported.languages)
    sizes = (subwords.source_size, subwords.target_size, subwords.shared)
    try:
        # Built once now: weights of wrong shapes are refused before anything is written.
        build_for(lambda: config.build(*sizes), imported.weights)
    except NmtError as error:
        raise NmtError(f"{source}: {error}") from None
    origin = {
        "format": format_.name,
        "source": name or source.resolve().name,
        "files": {path.name: documents.sha256(path) for path in imported.read},
    }
    search = dict(imported.search)
    recipe = {"model": dump(config), "train": {}, "search": search, ORIGIN: origin}
    with files.whole_directory(output.resolve()) as partial:
        run = Run.create(
            partial,
            languages=languages,
            identity=secrets.token_hex(8),
            # The fingerprint of no dataset.
            data="",
            recipe=recipe,
            subwords=subwords,
        )
        run.save(0, imported.weights, None, {}, {}, best=True)
    return Run.open(output)


def find_format(source: Path) -> ImportFormat:
    """Return the format of the model in a directory.

    Raises:
        NmtError: there is no model of a known format.
    """
    if not source.is_dir():
        raise NmtError(
            f"{source}: {'is a file' if source.exists() else 'does not exist'}; give the directory "
            "of a model, or OWNER/NAME, the name of a model of the Hugging Face hub"
        )
    for name in import_formats:
        if import_formats[name].recognises(source):
            return import_formats[name]
    raise NmtError(
        f"{source}: looks like none of the formats {', '.join(import_formats)}; give the directory "
        "of a model"
    )


def read_json(path: Path) -> dict[str, Any]:
    """Return the mapping in a JSON file.

    Raises:
        NmtError: the file is missing or not a mapping in JSON.
    """
    try:
        value = json.loads(documents.read_bounded(path, MAX_JSON))
    except FileNotFoundError:
        raise NmtError(f"{path}: missing; the import needs it") from None
    # Deep nesting exhausts the parser's recursion.
    except (ValueError, RecursionError):
        raise NmtError(f"{path}: not JSON") from None
    if not isinstance(value, dict):
        raise NmtError(f"{path}: expected keys and values")
    return value


def read_sentencepiece(path: Path) -> bytes:
    """Return a serialised SentencePiece model.

    Raises:
        NmtError: the file is missing or not a SentencePiece model.
    """
    try:
        model = documents.read_bounded(path, MAX_BYTES)
        processor = load_processor(model)
        for token in range(len(processor)):
            processor.id_to_piece(token)  # which may be no text
    except FileNotFoundError:
        raise NmtError(f"{path}: missing; the import needs it") from None
    except (RuntimeError, UnicodeDecodeError):
        raise NmtError(f"{path}: not a SentencePiece model") from None
    return model


def concatenate(path: Path, parts: Mapping[str, Tensor], axis: int = 0) -> Tensor:
    """Return tensors concatenated along an axis.

    Args:
        path: where the tensors come from, for messages.
        parts: tensors by their names in the file.
        axis: axis along which their sizes may differ.

    Raises:
        NmtError: the shapes differ along another axis, or a tensor has no such axis.
    """
    sizes = {name: list(part.shape) for name, part in parts.items()}
    first = next(iter(sizes))
    for name, size in sizes.items():
        others = [[*shape[:axis], *shape[axis + 1 :]] for shape in (sizes[first], size)]
        if len(size) <= axis or others[0] != others[1]:
            raise NmtError(
                f"{path}: {name} has the shape {size}, which does not fit {first} of the shape "
                f"{sizes[first]}; copy or convert the model again"
            )
    return torch.cat([*parts.values()], axis)


def _check_search(imported: Imported) -> None:
    try:
        build(SearchConfig, imported.search, "search")
    except NmtError as error:
        raise NmtError(
            f"{imported.settings}: not a search that nmt can do: {error}; change that value"
        ) from None


def _languages(
    source: Path, wanted: tuple[str | None, str | None], known: tuple[str | None, str | None]
) -> tuple[str, str]:
    languages = []
    for flag, language, other in zip(("source", "target"), wanted, known, strict=True):
        if not (language := language or other):
            raise NmtError(
                f"{source}: its files name no {flag} language; give it with --{flag}-lang"
            )
        try:
            check_language(f"{flag}_lang", language)
        except ValueError as error:
            raise NmtError(f"{source}: {error}; give it with --{flag}-lang") from None
        languages.append(language)
    return languages[0], languages[1]


def _may_be_replaced(output: Path) -> bool:
    if Run.exists(output):
        return ORIGIN in Run.open(output).recipe
    return not output.exists() or (output.is_dir() and not any(output.iterdir()))


@dataclass(frozen=True)
class ReorderedVocabulary:
    """A foreign vocabulary, reordered so that its special tokens get this toolkit's ids."""

    vocabulary: Vocabulary
    rows: tuple[int | None, ...]
    """The foreign id of each id; None where the foreign vocabulary has no such token."""
    excluded: tuple[int, ...]
    """Ids that the model never predicts: ids that have no foreign id, or share a foreign id with
    another id."""

    @classmethod
    def from_names(
        cls,
        names: Mapping[int, str],
        size: int,
        pad: int | None,
        unk: int,
        start: int | None,
        end: int,
    ) -> ReorderedVocabulary:
        """Return the vocabulary in which special tokens come first and the rest keeps its order.

        Args:
            names: the piece of each foreign id; an id without a piece gets a name of its own.
            size: number of foreign ids.
            pad: id of padding; None if padding has no id, or shares it with another special token.
            unk: id of unknown pieces.
            start: id that the decoder starts with; None on the source side.
            end: id of the end of a sentence.

        Raises:
            ValueError: an id is outside the vocabulary, or two pieces have the same name.
        """
        # In the order PAD, UNK, BOS, EOS. OPUS-MT's padding begins the decoder, so BOS gets its
        # row.
        special = (None if pad in (unk, start, end) else pad, unk, start, end)
        for token in special:
            if token is not None and not 0 <= token < size:
                raise ValueError(f"a special id is {token}, but there are {size} pieces")
        others = [token for token in range(size) if token not in special]
        pieces = [names.get(token, f"<unused {token}>") for token in others]
        rows = (*special, *others)
        excluded = tuple(
            token
            for token in range(len(special))
            # Of ids that share a row, such as fairseq's BOS and EOS, only the last one is
            # predicted.
            if rows[token] is None or rows[token] in rows[token + 1 : len(special)]
        )
        return cls(Vocabulary.from_pieces(pieces), rows, excluded)

    def reorder(self, table: Tensor) -> Tensor:
        """Return the rows of a table [foreign ids, ...] in the order of our ids; 0 if missing."""
        # Row 0 stands in where there is none, and is zeroed below.
        index = torch.tensor([0 if row is None else row for row in self.rows])
        reordered = table[index]
        reordered[[token for token, row in enumerate(self.rows) if row is None]] = 0
        return reordered

    def reorder_bias(self, bias: Tensor) -> Tensor:
        """Return the biases of the output layer in the order of the ids."""
        reordered = self.reorder(bias)
        reordered[list(self.excluded)] = EXCLUDED
        return reordered
