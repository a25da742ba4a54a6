"""Checksums, recomputed after a file was changed, as ``docs/formats.md`` describes them."""

from __future__ import annotations

import hashlib
import json
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

DESCRIPTIONS = ("manifest.json", "run.json", "checkpoint.json", "export.json", "plugins.json")
"""Documents that hold the checksums of the files beside them, and one of their own."""

RECIPE_SEAL = b"# SHA-256 of the lines below: "
"""Beginning of the first line of a run's recipe."""

_NOT_THE_FORMAT = (KeyError, TypeError, ValueError, AttributeError, RecursionError, struct.error)
"""Errors of a file that was changed too much to have checksums."""


def can_be_sealed(path: Path) -> bool:
    """Whether a file has a checksum somewhere, and is no code, which may do anything."""
    return path.suffix != ".py" and (
        path.suffix == ".safetensors" or _description(path) is not None
    )


def seal(changed: Path) -> None:
    """Makes all checksums agree with a file that was changed."""
    with suppress(*_NOT_THE_FORMAT):
        if changed.name == "shortlist.safetensors":
            _seal_shortlist(changed)
        if changed.name == "recipe.yaml":
            _seal_recipe(changed)
        if description := _description(changed):
            _seal_description(description, changed)


def _description(path: Path) -> Path | None:
    beside = (path.with_name(name) for name in DESCRIPTIONS)
    return next((description for description in beside if description.is_file()), None)


def _seal_description(description: Path, changed: Path) -> None:
    values = json.loads(description.read_text())
    if changed.name in values["files"] and changed != description:
        data = changed.read_bytes()
        values["files"][changed.name] = {"bytes": len(data), "sha256": _sha256(data)}
    if "fingerprint" in values:
        lines = (f"{facts['sha256']}  {name}\n" for name, facts in sorted(values["files"].items()))
        values["fingerprint"] = _sha256("".join(lines).encode())
    description.write_text(_with_checksum(values))


def _seal_recipe(recipe: Path) -> None:
    lines = recipe.read_bytes()
    first, _, rest = lines.partition(b"\n")
    below = rest if first.startswith(RECIPE_SEAL) else lines
    recipe.write_bytes(RECIPE_SEAL + _sha256(below).encode() + b"\n" + below)


def _seal_shortlist(shortlist: Path) -> None:
    header, body = split_safetensors(shortlist.read_bytes())
    description = json.loads(header["__metadata__"]["description"])
    tensors = b""
    for name in ("frequent", "candidates"):
        start, end = header[name]["data_offsets"]
        tensors += f"{name} <i4 {tuple(header[name]['shape'])}".encode() + body[start:end]
    description["sha256"] = _sha256(tensors)
    header["__metadata__"]["description"] = _with_checksum(description)
    shortlist.write_bytes(join_safetensors(json.dumps(header), body))


def _with_checksum(values: dict[str, Any]) -> str:
    values.pop("checksum", None)
    checksum = _sha256(json.dumps(values, sort_keys=True).encode())
    return json.dumps({**values, "checksum": checksum})


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def split_safetensors(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The header of a safetensors file, and the bytes of its tensors."""
    (size,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def join_safetensors(header: str, body: bytes) -> bytes:
    """A safetensors file."""
    text = header.encode()
    return struct.pack("<Q", len(text)) + text + body
