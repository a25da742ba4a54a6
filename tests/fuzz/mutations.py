"""One mutator: a file gets other bytes, or something else stands in its place."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

TOKEN = re.compile(rb'"[^"\n]*"|[\w.+-]+')
"""Numbers, words and quoted texts of JSON, YAML, headers of safetensors, and text."""

HOSTILE = (
    *(b"", b"null", b"true", b"-1", b"0", b"1e308", b"NaN", b"-0.5", b"x", b"{}", b"[[]]", b"\n"),
    *(str(2**31).encode(), str(2**63).encode(), str(10**18).encode(), b"9" * 5000),
    *(b'"../../../etc/passwd"', b'"/dev/zero"', b'"\\u001b[31m"', b"\x1b[31m", b"\xff\xfe"),
    *(b"\0", "\u2028".encode(), b"x" * 100_000, b"[" * 50_000 + b"]" * 50_000),
    *(b"&a [*a]", b"{<<: *a}", b"2001-02-30", b"!!python/object/apply:os.system [true]"),
)
"""Bytes that stand for others: values of a wrong type or size, paths, escapes, deep nesting."""


def mutate(data: bytes, draw: random.Random, keeps_size: bool = False) -> bytes:
    """Data in which a token or a range of bytes is another one, or a few bits are.

    Args:
        data: what a file holds.
        draw: decides.
        keeps_size: whether all bytes keep their places, as in a file with offsets.
    """
    tokens = list(TOKEN.finditer(data, 0, 4096))
    if tokens and draw.random() < 0.6:
        start, end = draw.choice(tokens).span()
    else:
        start, end = sorted(draw.randrange(len(data) + 1) for _ in range(2))
    if draw.random() < 0.2:  # a few bits are flipped
        between = bytearray(data[start:end])
        for _ in range(draw.choice((1, 1, 8)) if between else 0):
            between[draw.randrange(len(between))] ^= 1 << draw.randrange(8)
        new = bytes(between)
    else:
        zeros, noise = bytes(end - start), draw.randbytes(end - start)
        new = draw.choice((*HOSTILE, zeros, noise, data[end:][:99]))
    if keeps_size:
        new = new[: end - start].ljust(end - start)
    rest = b"" if not keeps_size and draw.random() < 0.1 else data[end:]  # the end may be missing
    return data[:start] + new + rest


def damage(path: Path, draw: random.Random, keeps_size: bool, streams: bool) -> None:
    """Damage what is at a path.

    Args:
        path: of a file.
        draw: decides.
        keeps_size: whether the file keeps its size, and its place.
        streams: whether a stream that never ends may stand in its place.
    """
    if keeps_size or draw.random() < 0.8:
        path.write_bytes(mutate(path.read_bytes(), draw, keeps_size))
        return
    path.unlink()
    place = draw.choice(("nothing", "directory", "link", *(("pipe", "device") if streams else ())))
    if place == "directory":
        path.mkdir()
    elif place == "link":
        path.symlink_to(draw.choice(("nowhere", path.name, ".", "/dev/tty")))
    elif place == "pipe":
        os.mkfifo(path)
    elif place == "device":
        path.symlink_to("/dev/zero")
