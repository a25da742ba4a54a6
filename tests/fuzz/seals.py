"""Checksums, recomputed after a file was changed, as ``docs/formats.md`` describes them."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

Seal = Callable[[Path], None]

_NOT_THE_FORMAT = (KeyError, TypeError, ValueError, AttributeError, OSError, RecursionError)
"""What a file gives that was changed too much to have checksums."""


def seal_dataset(changed: Path) -> None:
    """Makes the manifest of a dataset agree with the file that was changed."""
    with suppress(*_NOT_THE_FORMAT):
        manifest = changed.parent / "manifest.json"
        values = json.loads(manifest.read_text())
        if changed != manifest:
            values["files"][changed.name] = _facts(changed)
        lines = (f"{facts['sha256']}  {name}\n" for name, facts in sorted(values["files"].items()))
        values["fingerprint"] = hashlib.sha256("".join(lines).encode()).hexdigest()
        checked = {key: value for key, value in values.items() if key != "checksum"}
        manifest.write_text(json.dumps({**checked, "checksum": _of_json(checked)}))


def seal_run(changed: Path) -> None:
    """Makes the description of a run, or the first line of its recipe, agree with a change."""
    if changed.name == "recipe.yaml":
        _, _, rest = changed.read_bytes().partition(b"\n")
        first = f"# SHA-256 of the lines below: {hashlib.sha256(rest).hexdigest()}\n"
        changed.write_bytes(first.encode() + rest)
    else:
        _seal(changed.parent / "run.json", changed)


def seal_export(changed: Path) -> None:
    """Makes the description of an export agree with the file that was changed."""
    if changed.name == "recipe.yaml":
        seal_run(changed)
    _seal(changed.parent / "export.json", changed)


def seal_checkpoint(changed: Path) -> None:
    """Makes the description of a checkpoint agree with the file that was changed."""
    _seal(changed.parent / "checkpoint.json", changed)


def _seal(description: Path, changed: Path) -> None:
    with suppress(*_NOT_THE_FORMAT):
        values = json.loads(description.read_text())
        if changed.name in values["files"]:
            values["files"][changed.name] = _facts(changed)
        checked = {key: value for key, value in values.items() if key != "checksum"}
        description.write_text(json.dumps({**checked, "checksum": _of_json(checked)}))


def seal_shortlist(changed: Path) -> None:
    """Makes the checksum inside a shortlist agree with its tensors."""
    with suppress(*_NOT_THE_FORMAT, struct.error):
        data = changed.read_bytes()
        (size,) = struct.unpack("<Q", data[:8])
        header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
        description = json.loads(header["__metadata__"]["description"])
        digest = hashlib.sha256()
        for name in ("frequent", "candidates"):
            start, end = header[name]["data_offsets"]
            digest.update(f"{name} <i4 {tuple(header[name]['shape'])}".encode() + body[start:end])
        description["sha256"] = digest.hexdigest()
        checked = {key: value for key, value in description.items() if key != "checksum"}
        description["checksum"] = _of_json(checked)
        header["__metadata__"]["description"] = json.dumps(description)
        text = json.dumps(header).encode()
        changed.write_bytes(struct.pack("<Q", len(text)) + text + body)


def _facts(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _of_json(values: object) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
