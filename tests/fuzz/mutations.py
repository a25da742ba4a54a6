"""What happens to a file: its bytes, its structure, or what stands in its place."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from fuzz.seals import join_safetensors, split_safetensors

Draw = random.Random
OfBytes = Callable[[bytes, Draw], bytes]
OfPlace = Callable[[Path, Draw], None]


# Bytes


def flip_bits(data: bytes, draw: Draw) -> bytes:
    """A few bits are other ones."""
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 8)) if data else 0):
        changed[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def truncate(data: bytes, draw: Draw) -> bytes:
    """The end is missing."""
    return data[: draw.choice((0, 1, len(data) - 1, draw.randrange(len(data) + 1)))]


def extend(data: bytes, draw: Draw) -> bytes:
    """Something comes behind the end."""
    return data + draw.choice((b"\0", b"\n", b"{}", data[:9], draw.randbytes(16), bytes(1 << 20)))


def insert(data: bytes, draw: Draw) -> bytes:
    """Something is between."""
    at = draw.randrange(len(data) + 1)
    between = (draw.randbytes(4), b"\0", b"\xff\xfe", b"\n", b"\r", "\u2028".encode(), b"9" * 5000)
    return data[:at] + draw.choice(between) + data[at:]


def remove(data: bytes, draw: Draw) -> bytes:
    """A range is missing."""
    start, end = _range(data, draw)
    return data[:start] + data[end:]


def zero(data: bytes, draw: Draw) -> bytes:
    """A range is zeros, as after a crash of a file system."""
    start, end = _range(data, draw)
    return data[:start] + bytes(end - start) + data[end:]


def move(data: bytes, draw: Draw) -> bytes:
    """A range is somewhere else."""
    start, end = _range(data, draw)
    rest = data[:start] + data[end:]
    at = draw.randrange(len(rest) + 1)
    return rest[:at] + data[start:end] + rest[at:]


def noise(data: bytes, draw: Draw) -> bytes:
    """Nothing is as it was, but the size."""
    return draw.randbytes(len(data))


def brackets(data: bytes, draw: Draw) -> bytes:
    """A hundred thousand open brackets, as no parser by recursion can follow."""
    return draw.choice((b"[", b'{"a":', b"- ", b"? ", b"&a [", b"(")) * 100_000


def _range(data: bytes, draw: Draw) -> tuple[int, int]:
    start, end = sorted(draw.randrange(len(data) + 1) for _ in range(2))
    return start, end


BYTES: tuple[OfBytes, ...] = (
    *(flip_bits, truncate, extend, insert),
    *(remove, zero, move, noise, brackets),
)


# Structure


def _placeholder(text: str) -> str:
    return f"@{text}@"


DEEP, DIGITS = _placeholder("deep"), _placeholder("digits")
"""Values that no writer of JSON or YAML writes; the text for them is put in afterwards."""

_TEXTS = {DEEP: "[" * 50_000 + "]" * 50_000, DIGITS: "9" * 5000}

HOSTILE: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 3, 2**31, 2**63, -(2**63), 10**18, 1e308, -0.5),
    *(float("nan"), float("inf"), "", " ", "x", "\x1b[31mred", "a\nb", "\u202e", "1e9", "yes"),
    *("../../../../../../etc/passwd", "/dev/zero", "..", "\0", "%s", "x" * 100_000),
    *([], {}, [[]], {"": None}, [None], {"name": {}}, ["../x"], [".x"], DEEP, DIGITS),
)
"""Values in the place of others."""


def change_tree(tree: Any, draw: Draw) -> Any:
    """Plain values, one of which is missing, another, or under another name."""
    places = list(_places(tree))
    if not places:
        return draw.choice(HOSTILE)
    inside, key = draw.choice(places)
    change = draw.randrange(6)
    if change == 0:
        del inside[key]
    elif change == 1 and isinstance(inside, dict):
        inside[str(draw.choice(HOSTILE))[:100]] = inside.pop(key)
    elif change == 2:
        other, there = draw.choice(places)
        inside[key] = json.loads(json.dumps(other[there]))
    elif change == 3 and type(inside[key]) in (int, float):
        inside[key] = _other_number(inside[key], draw)
    else:
        inside[key] = draw.choice(HOSTILE)
    return tree


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """All containers in a tree with each of their keys."""
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree)
    found = []
    for key, value in list(inner):
        found.append((tree, key))
        if isinstance(value, (dict, list)):
            found += _places(value)
    return found


def _other_number(number: float, draw: Draw) -> float:
    return draw.choice(
        (number + 1, number - 1, -number, number * 1000, number * 10**12, number / 2)
    )


def _with_texts(text: str) -> str:
    for placeholder, instead in _TEXTS.items():
        text = text.replace(f'"{placeholder}"', instead).replace(f"'{placeholder}'", instead)
    return text


def change_json(data: bytes, draw: Draw) -> bytes:
    """JSON in which a value is another one, or missing."""
    return _with_texts(json.dumps(change_tree(json.loads(data), draw))).encode()


def change_json_lines(data: bytes, draw: Draw) -> bytes:
    """Lines of JSON, one of which is changed."""
    lines = data.split(b"\n")
    at = draw.randrange(len(lines) - 1)
    lines[at] = change_json(lines[at], draw)
    return b"\n".join(lines)


def change_yaml(data: bytes, draw: Draw) -> bytes:
    """YAML in which a value is another one, or missing."""
    return _with_texts(yaml.safe_dump(change_tree(yaml.safe_load(data), draw))).encode()


def hostile_yaml(data: bytes, draw: Draw) -> bytes:
    """YAML that grows when it is read, or asks for objects of Python."""
    layers = "".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9)}]\n" for n in range(1, 10))
    bomb = f"x0: &x0 [x, x]\n{layers}"
    bombs = (
        bomb.encode() + data,
        data + bomb.encode(),
        data.replace(b": 16", b": " + b"[" * 2000 + b"]" * 2000),
        b"model: &m {arch: transformer_tiny, d_model: *m}\n",
        b"model: &m\n  arch: *m\n",
        b"model: !!python/object/apply:os.system [true]\n",
        data + data,
        b"%YAML 9.9\n---\n" + data,
        data + b"\n---\n" + data,
        b"<<: *nothing\n",
        data + b"\ntrain: {<<: {<<: {seed: 1}}}\n",
        b"model: {d_model: 2001-02-30}\n",
        b"model: {d_model: 1:99:99}\n",
        b"? [a, {b: c}]\n: d\n",
        b"model: {? {a: b} : c}\n",
    )
    return draw.choice(bombs)


def change_safetensors(data: bytes, draw: Draw) -> bytes:
    """Tensors with another header, or one that is not as long as it says."""
    header, body = split_safetensors(data)
    if draw.random() < 0.2:
        size = draw.choice((0, 1, len(data), 10**8, 2**62, 2**64 - 1))
        return struct.pack("<Q", size) + data[8:]
    metadata = header.get("__metadata__", {})
    if "description" in metadata and draw.random() < 0.5:
        metadata["description"] = change_json(metadata["description"].encode(), draw).decode()
        return join_safetensors(json.dumps(header), body)
    return join_safetensors(_with_texts(json.dumps(change_tree(header, draw))), body)


def change_values(data: bytes, draw: Draw) -> bytes:
    """Tensors in which some values are no numbers, or far too large."""
    header, body = split_safetensors(data)
    values = np.frombuffer(body, "<u4").copy()
    if len(values):
        bits = draw.choice((0x7FC00000, 0x7F800000, 0xFFFFFFFF, 0x7F7FFFFF, 0))
        values[draw.randrange(len(values)) :: draw.choice((1, 7, len(values)))] = bits
    return join_safetensors(json.dumps(header), values.tobytes())


def change_checkpoint(data: bytes, draw: Draw) -> bytes:
    """A file of torch whose pickle, or another member, is damaged in an archive that is sound."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    pickles = [name for name in members if name.endswith(".pkl")]
    name = draw.choice(pickles if draw.random() < 0.8 else list(members))
    members[name] = draw.choice(BYTES)(members[name], draw)
    changed = io.BytesIO()
    with zipfile.ZipFile(changed, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    return changed.getvalue()


def _change_array(dtype: str) -> OfBytes:
    def change_array(data: bytes, draw: Draw) -> bytes:
        """One number of an array is another one."""
        size = np.dtype(dtype).itemsize
        array = np.frombuffer(data[: len(data) // size * size], dtype).copy()
        if len(array):
            limits = np.iinfo(array.dtype)
            near = int(array[draw.randrange(len(array))])
            values = (0, 1, 2, 3, limits.min, limits.max, limits.max // 2, near + 1, near - 1, 1000)
            value = min(max(draw.choice(values), int(limits.min)), int(limits.max))
            array[draw.randrange(len(array))] = value
        return array.tobytes()

    return change_array


STRUCTURED: dict[str, tuple[OfBytes, ...]] = {
    ".json": (change_json,),
    ".jsonl": (change_json_lines,),
    ".yaml": (change_yaml, change_yaml, hostile_yaml),
    ".safetensors": (change_safetensors, change_values),
    ".pt": (change_checkpoint,) * 9,
    ".offsets": (_change_array("<i8"),),
    ".tokens": (_change_array("<u2"),),
}
"""Changes that know what a file is, by the end of its name."""


# Places


def delete(path: Path, draw: Draw) -> None:
    """Nothing is there."""
    _clear(path)


def directory(path: Path, draw: Draw) -> None:
    """A directory is there."""
    _clear(path)
    path.mkdir()


def named_pipe(path: Path, draw: Draw) -> None:
    """A named pipe is there, to which nobody writes."""
    _clear(path)
    os.mkfifo(path)


def link(path: Path, draw: Draw) -> None:
    """A symbolic link is there: to nothing, to itself, to a directory, or to a terminal."""
    _clear(path)
    path.symlink_to(draw.choice(("nowhere", path.name, ".", "/dev/tty")))


def endless(path: Path, draw: Draw) -> None:
    """A link to a device that never ends is there."""
    _clear(path)
    path.symlink_to("/dev/zero")


def swap(path: Path, draw: Draw) -> None:
    """Another file of the directory is there."""
    others = [it for it in sorted(path.parent.iterdir()) if it.is_file() and it != path]
    if others:
        other = draw.choice(others).read_bytes()
        _clear(path)
        path.write_bytes(other)


def _clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def stray(path: Path, draw: Draw) -> None:
    """Something that does not belong there is beside it."""
    names = (
        *("shard-1-of-99999999999", "shard-2-of-2", "update_", "update_x", "update_9" + "9" * 30),
        *(".run.partial-1", "\x1b[31m", "subwords.source.model", "subwords.target.model", "train"),
    )
    beside = path.with_name(draw.choice(names))
    if draw.random() < 0.5:
        beside.mkdir()
    else:
        beside.write_bytes(draw.randbytes(8))


PLACES: tuple[OfPlace, ...] = (delete, directory, link, swap, stray)
STREAMS: tuple[OfPlace, ...] = (named_pipe, endless)


def damage(path: Path, draw: Draw, streams: bool) -> str:
    """Damages what is at a path as accidents do; gives what was done to it.

    Args:
        path: of a file, or of a link to a directory.
        draw: decides.
        streams: whether a stream that never ends may take the place of the file.
    """
    if not path.is_file() or draw.random() < 0.2:
        change = draw.choice((*PLACES, *STREAMS) if streams else PLACES)
        change(path, draw)
        return change.__name__
    return _rewrite(path, draw, (*BYTES, *STRUCTURED.get(path.suffix, ())))


def forge(path: Path, draw: Draw) -> str:
    """Changes the file at a path as somebody would who knows what it is."""
    return _rewrite(path, draw, STRUCTURED.get(path.suffix) or BYTES)


def _rewrite(path: Path, draw: Draw, changes: tuple[OfBytes, ...]) -> str:
    data, change = path.read_bytes(), draw.choice(changes)
    path.write_bytes(change(data, draw))
    return change.__name__
