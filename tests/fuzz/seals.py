"""Checksums, recomputed after a file was changed, as ``docs/formats.md`` describes them."""

from __future__ import annotations

import hashlib
import json
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

DESCRIPTIONS = ("manifest.json", "run.json", "checkpoint.json", "export.json")
"""Documents that hold the checksums of the files beside them, and one of their own."""

_NOT_THE_FORMAT = (KeyError, TypeError, ValueError, AttributeError, RecursionError, struct.error)
"""Errors of a file that was changed too much to have checksums."""


def can_be_sealed(path: Path) -> bool:
    """Whether a file has a checksum somewhere."""
    return path.suffix == ".safetensors" or _description(path) is not None


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
        facts = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        values["files"][changed.name] = facts
    if "fingerprint" in values:
        lines = (f"{facts['sha256']}  {name}\n" for name, facts in sorted(values["files"].items()))
        values["fingerprint"] = hashlib.sha256("".join(lines).encode()).hexdigest()
    values.pop("checksum", None)
    text = json.dumps(values, sort_keys=True)
    values["checksum"] = hashlib.sha256(text.encode()).hexdigest()
    description.write_text(json.dumps(values))


def _seal_recipe(recipe: Path) -> None:
    _, _, rest = recipe.read_bytes().partition(b"\n")
    digest = hashlib.sha256(rest).hexdigest()
    recipe.write_bytes(f"# SHA-256 of the lines below: {digest}\n".encode() + rest)


def _seal_shortlist(shortlist: Path) -> None:
    header, body = split_safetensors(shortlist.read_bytes())
    description = json.loads(header["__metadata__"]["description"])
    digest = hashlib.sha256(json.dumps(description["origin"], sort_keys=True).encode())
    for name in ("frequent", "candidates"):
        start, end = header[name]["data_offsets"]
        digest.update(f"{name} <i4 {tuple(header[name]['shape'])}".encode() + body[start:end])
    description["sha256"] = digest.hexdigest()
    header["__metadata__"]["description"] = json.dumps(description)
    shortlist.write_bytes(join_safetensors(json.dumps(header), body))


def split_safetensors(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The header of a safetensors file, and the bytes of its tensors."""
    (size,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def join_safetensors(header: str, body: bytes) -> bytes:
    """A safetensors file."""
    text = header.encode()
    return struct.pack("<Q", len(text)) + text + body
