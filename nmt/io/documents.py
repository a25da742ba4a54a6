"""JSON documents such as a dataset's manifest: versioned, checksummed, validated when read.

A document is a frozen dataclass. Its file holds the fields, and the keys ``format``, ``version``
and ``checksum``: the SHA-256 of all other keys as JSON with sorted keys. A document is valid if
:func:`nmt.recipe.config.build` and the class itself accept it. An invalid one is an
:class:`NmtError` of one line.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from nmt.errors import NmtError
from nmt.io import reading
from nmt.messages import encodable
from nmt.recipe.config import build, dump

T = TypeVar("T")

MAX_BYTES = 1 << 24
"""Bytes of the largest document that is read; memory is bounded by a small multiple of that."""


@dataclass(frozen=True, kw_only=True)
class DocumentFormat(Generic[T]):
    """The format of one kind of document."""

    kind: type[T]
    """The dataclass whose instances are stored."""
    name: str
    """Value of the key ``format``, such as ``nmt-dataset``."""
    version: int
    """Version of the format; a document of another version is refused."""
    remedy: str
    """Remedy for a document that cannot be used, such as "make the dataset again"."""

    def document(self, value: T) -> dict[str, Any]:
        """Return the keys and plain values of the document that stores `value`."""
        document = {"format": self.name, "version": self.version, **dump(value)}
        return document | {"checksum": _checksum(document)}

    def text(self, value: T) -> str:
        """Return the JSON text of the document that stores `value`."""
        return encodable(json.dumps(self.document(value), indent=1, ensure_ascii=False) + "\n")

    def read(self, path: Path) -> T:
        """Return the value stored in a file.

        Raises:
            OSError: the file cannot be read.
            NmtError: the file is damaged, not of this format, or of another version.
        """
        return self.parse(reading.read_bounded(path, MAX_BYTES), str(path))

    def parse(self, text: str | bytes, where: str) -> T:
        """Return the value stored in a JSON text.

        Args:
            text: the JSON text.
            where: the name of the document; messages begin with it.

        Raises:
            NmtError: the text is damaged, not of this format, or of another version.
        """
        try:
            return self._built(json.loads(text), where)
        except RecursionError:
            problem = "nested too deeply"
        except ValueError:
            problem = "not JSON"
        except _DamageError as error:
            problem = str(error)
        raise NmtError(f"{where}: damaged: {problem}; {self.remedy}")

    def _built(self, document: object, where: str) -> T:
        if not isinstance(document, dict):
            raise _DamageError("expected keys and values")
        name, version = document.pop("format", self.name), document.pop("version", None)
        if name != self.name or type(version) is not int:
            raise _DamageError(f"not a document of format {self.name}")
        if version != self.version:
            raise NmtError(
                f"{where}: format version {version}, but this nmt reads version {self.version}; "
                f"{self.remedy}"
            )
        checksum = document.pop("checksum", None)
        try:
            value = build(self.kind, document, "values")
        except NmtError as error:
            raise _DamageError(str(error)) from None
        _check_as_written(document, dump(value))
        if checksum != _checksum({"format": name, "version": version, **document}):
            raise _DamageError("its checksum does not match")
        return value


def finite(values: Mapping[str, T]) -> dict[str, T | None]:
    """Return values by name, with None for infinity and NaN, which JSON lacks."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }


class _DamageError(Exception):
    """A document differs from what was written."""


def _check_as_written(document: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Refuse missing values and numbers as text, which :func:`build` accepts in a recipe.

    Raises:
        _DamageError: a value of `expected` is missing, or is stored as another type.
    """
    for key, value in expected.items():
        if key not in document or _canonical(document[key]) != _canonical(value):
            raise _DamageError(f"values.{key}: a value is missing or of another type")


def _checksum(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(document).encode()).hexdigest()


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True)
