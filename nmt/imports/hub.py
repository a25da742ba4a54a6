"""Models of the Hugging Face hub, fetched by its own package."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from nmt.errors import NmtError, install

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

WANTED = (
    "*.json",
    "*.yml",
    "*.yaml",
    "*.spm",
    "*.npz",
    "*.safetensors",
    "*.bin",
    "*.pt",
    "dict.*.txt",
    "*.model",
    "code*",
    "bpecodes*",
    "plugins/*",
)
"""Files that an import reads, or that a run consists of; other formats of weights are left out."""


def is_hub_name(name: str) -> bool:
    """Return whether a name can be that of a model of the hub, and no path exists by that name."""
    return _NAME.fullmatch(name) is not None and not Path(name).exists()


def fetched(name: str) -> Path:
    """Return the directory of a model of the hub, after fetching what is not in the hub's cache.

    Args:
        name: ``OWNER/NAME``.

    Raises:
        NmtError: huggingface_hub is not installed, or the model cannot be fetched.
    """
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError:
        raise NmtError(
            f"{name}: no such directory, and to fetch a model of the Hugging Face hub needs "
            f"huggingface_hub; {install('hub')}"
        ) from None
    try:
        return Path(hub.snapshot_download(repo_id=name, allow_patterns=list(WANTED)))
    except (OSError, ValueError, RuntimeError) as error:  # its errors, and those of its clients
        reason = str(error).strip().partition("\n")[0]
        raise NmtError(
            f"{name}: no such directory, and the Hugging Face hub does not give it: {reason}; "
            "mend the name, or give a directory"
        ) from None
