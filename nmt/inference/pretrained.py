"""From a run, a model of another toolkit or one of the hub to a translator.

A model of another toolkit is imported once, into a cache, by the checksums of its files.

Models of the Hugging Face hub, fetched by its own package.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
from pathlib import Path
from typing import Any

from nmt.errors import NmtError, explain, install
from nmt.formats.importing import find_format, import_formats, import_model
from nmt.inference.engines import as_path, load_translator
from nmt.inference.lines import LineTranslator
from nmt.io import documents, files
from nmt.runs import Run
from nmt.runs.exports import Export

VERSION = 2
"""Version of what an import makes of a model; runs of other versions in the cache are not used."""


def from_pretrained(
    model: str | Path,
    source_lang: str | None = None,
    target_lang: str | None = None,
    **settings: Any,
) -> LineTranslator:
    """Return a translator with a trained model of this or another toolkit, or of a hub.

    Args:
        model: a run, a checkpoint or an export; a directory with a model of another toolkit
            (``nmt import`` says which); or ``OWNER/NAME``, a model of the Hugging Face hub, which
            huggingface_hub fetches. A model of another toolkit becomes a run in a cache, named by
            the checksums of the model's files: in the directory `NMT_CACHE`, else ``~/.cache/nmt``.
        source_lang: source language of a multilingual model; or of another toolkit's model, if its
            files do not say.
        target_lang: target language, likewise.
        settings: as of :func:`nmt.inference.engines.load_translator`: device, strategy and so on.

    Raises:
        NmtError: there is no such model, it cannot be fetched or imported, or a setting is wrong.
    """
    path = find_model(model, source_lang, target_lang)
    return load_translator(path, source_lang=source_lang, target_lang=target_lang, **settings)


class TranslatorFactory:
    """The class of ``nmt.Translator``: ``Translator(path)`` and ``Translator.from_pretrained``."""

    __call__ = staticmethod(load_translator)
    from_pretrained = staticmethod(from_pretrained)


Translator = TranslatorFactory()


def find_model(
    model: str | Path, source_lang: str | None = None, target_lang: str | None = None
) -> Path:
    """Return the path of a run, a checkpoint or an export; see :func:`from_pretrained`."""
    path = as_path(model)
    is_fetched = is_hub_name(str(model))
    if is_fetched:
        path = fetched(str(model))
    if Run.exists(path):
        links = [path / name for name in ("best", "last")]
        checkpoints = Run.open(path).checkpoint_paths()
        # A hub keeps no links.
        return path if any(map(os.path.lexists, links)) or not checkpoints else checkpoints[-1]
    if (path / "checkpoint.json").exists() or Export.exists(path) or not path.is_dir():
        return path
    if not is_fetched and not any(import_formats[name].recognises(path) for name in import_formats):
        return path  # whose error says what a model is
    return _imported(path, str(model), (source_lang, target_lang))


def _imported(source: Path, name: str, languages: tuple[str | None, str | None]) -> Path:
    """Return the run of another toolkit's model, which the cache holds or gets."""
    format_ = find_format(source)
    if format_.is_multilingual:
        languages = None, None  # one run for all directions
    digest = _digest(source, format_.name, languages)
    run = files.user_cache() / "imports" / f"{_stem(name)}-{digest}"
    try:
        run.parent.mkdir(parents=True, exist_ok=True)
        # Several processes, such as torchrun's, may ask for one model at once.
        with files.locked(run.with_name(f"{run.name}.lock"), f"imports {name}"):
            if not Run.exists(run):
                import_model(source, run, format_, *languages, name=name)
    except OSError as error:
        raise NmtError(
            f"{run.parent}: cannot be written: {explain(error)}; set {files.CACHE} to another "
            "directory"
        ) from None
    return run


def _stem(name: str) -> str:
    """Return the part of a name by which people find the run, short enough for names of files."""
    return re.sub(r"[^\w.-]+", "-", Path(name).name)[:50] or "model"


def _digest(source: Path, format_: str, languages: tuple[str | None, str | None]) -> str:
    """Return a hash of what an import depends on."""
    read = sorted(path for path in source.iterdir() if path.is_file())
    lines = [f"{documents.sha256(path)}  {path.name}" for path in read]
    # Languages that the caller names become part of the imported run.
    lines += [str(VERSION), format_, *(str(language) for language in languages)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


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
    """Return whether a name can name a model of the hub, and no path has this name."""
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
    except (OSError, ValueError, RuntimeError) as error:  # of the hub or of its HTTP client
        reason = str(error).strip().partition("\n")[0]
        raise NmtError(
            f"{name}: no such directory, and the Hugging Face hub does not give it: {reason}; "
            "mend the name, or give a directory"
        ) from None
