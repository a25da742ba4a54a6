"""Reading of files with checks of type, size and checksum."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from nmt.errors import NmtError

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
    def of(cls, path: Path) -> FileFacts:
        """Return the current size and checksum of a file."""
        return cls(bytes=path.stat().st_size, sha256=sha256(path))


def check_inside(names: Iterable[str]) -> None:
    """Raise a ValueError for the first name that is not a relative path inside a directory."""
    for name in names:
        path = PurePosixPath(name)
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
    """Read a file in bounded memory and compare its size and checksum with the expected ones.

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
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()
