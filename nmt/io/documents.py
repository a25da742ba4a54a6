"""JSON documents such as a dataset's manifest, and files with checks of type, size and checksum.

A document is a frozen dataclass. Its file holds the fields, and the keys ``format``, ``version``
and ``checksum``: the SHA-256 of all other keys as JSON with sorted keys. An invalid document is an
:class:`NmtError` of one line.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Generic, TypeVar

from nmt.errors import NmtError
from nmt.messages import encodable
from nmt.recipe.config import build, dump

T = TypeVar("T")

MAX_BYTES = 1 << 24
"""Bytes of the largest document that is read; memory is bounded by a small multiple."""


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
        return self.parse(read_bounded(path, MAX_BYTES), str(path))

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
        # Not isinstance, because True is an int.
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
        # A recipe may leave keys out, but a file that nmt wrote has all of them.
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
        if value is None and key not in document:  # added to the format later
            continue
        # Compared as JSON, because Python takes 1, 1.0 and True for equal.
        if key not in document or _canonical(document[key]) != _canonical(value):
            raise _DamageError(f"values.{key}: a value is missing or of another type")


def _checksum(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(document).encode()).hexdigest()


def _canonical(value: object) -> str:
    # Sorted, so that the order of keys does not change a checksum.
    return json.dumps(value, sort_keys=True)


_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class FileFacts:
    """Size and checksum of a file."""

    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        if self.bytes < 0:
            raise ValueError(f"bytes must be at least 0, not {self.bytes}")
        if not _SHA256.fullmatch(self.sha256):
            raise ValueError("sha256 must be 64 hexadecimal digits")

    @classmethod
    def from_file(cls, path: Path) -> FileFacts:
        """Return the current size and checksum of a file."""
        return cls(bytes=path.stat().st_size, sha256=sha256(path))


def check_inside(names: Iterable[str]) -> None:
    """Raise a ValueError for the first name that is not a relative path inside a directory."""
    for name in names:
        path = PurePosixPath(name)
        # Names in a file from elsewhere must not reach out of its directory.
        # A name such as a//b or ./a differs from its path, and is refused, too.
        if str(path) != name or path.is_absolute() or {"..", "\0"} & {*path.parts, *name}:
            raise ValueError(f"{name!r} is not the name of a file in the directory")


def open_checked(path: Path, facts: FileFacts, remedy: str) -> BinaryIO:
    """Open a file of the expected size.

    Raises:
        NmtError: the file is missing, is not a regular file, or has another size.
    """
    try:
        file = open_regular(path)
    except FileNotFoundError:
        raise NmtError(f"{path}: missing; {remedy}") from None
    # Of the opened file, which nobody can exchange between check and reading.
    size = os.fstat(file.fileno()).st_size
    if size != facts.bytes:
        file.close()
        raise NmtError(f"{path}: {size} bytes instead of {facts.bytes}; {remedy}")
    return file


def read_checked(path: Path, facts: FileFacts, remedy: str) -> bytes:
    """Return the content of a file of the expected size and checksum.

    Raises:
        NmtError: the file is missing, is not a regular file, or has changed.
    """
    with open_checked(path, facts, remedy) as file:
        content = file.read(facts.bytes)
    check_digest(hashlib.sha256(content).hexdigest(), path, facts, remedy)
    return content


def check(path: Path, facts: FileFacts, remedy: str) -> None:
    """Read a file in bounded memory and compare its size and checksum with the expected values.

    Raises:
        NmtError: the file is missing, is not a regular file, or has changed.
    """
    with open_checked(path, facts, remedy) as file:
        check_digest(_digest(file), path, facts, remedy)


def check_digest(sha256: str, path: Path, facts: FileFacts, remedy: str) -> None:
    """Raise an :class:`NmtError` unless the checksum of a file is the expected one."""
    if sha256 != facts.sha256:
        raise NmtError(f"{path}: the content has changed since it was written; {remedy}")


def read_bounded(path: Path, most: int) -> bytes:
    """Return the content of a regular file of at most `most` bytes.

    Raises:
        OSError: the file cannot be read.
        NmtError: the file is larger, or is not a regular file.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise NmtError(
                f"{path}: {size:,} bytes, but such a file has at most {most:,}; check the path"
            )
        return file.read(size)


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file, or a link to one, for reading; never wait for a pipe or a device.

    Raises:
        OSError: the file cannot be opened.
        NmtError: `path` is a directory, a pipe, a device or a socket.
    """
    return open(path, "rb", opener=_open_regular)


def _open_regular(path: str, flags: int) -> int:
    # Opening a named pipe would otherwise wait for a writer.
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NmtError(f"{path}: not a regular file; put the file itself there")
    return descriptor


def sha256(path: Path) -> str:
    """Return the checksum of a file, in hexadecimal."""
    with path.open("rb") as file:
        return _digest(file)


def _digest(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    # A megabyte at a time, so that files of any size fit.
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()
