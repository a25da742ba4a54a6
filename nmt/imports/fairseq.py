"""Transformers of fairseq: a checkpoint, two dictionaries, and subwords."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nmt.errors import NmtError
from nmt.imports.base import Imported, ImportFormat, import_formats
from nmt.imports.fairseq_settings import Settings
from nmt.imports.fairseq_text import dictionary, read_segmenter
from nmt.imports.fairseq_weights import TransformerWeights
from nmt.imports.torch_files import float_tensors, load_plain
from nmt.preprocess.subwords import Subwords

NAMES = ("model.pt", "checkpoint_best.pt")
"""Names of the checkpoint to take where there are several."""


@import_formats.register("fairseq")
@dataclass(frozen=True, kw_only=True)
class FairseqFormat(ImportFormat):
    """A directory with ``model.pt``, ``dict.SRC.txt``, ``dict.TGT.txt`` and the subwords."""

    tokenizer: Literal["moses", "none"] = "moses"
    """Tokenisation before BPE codes, where the checkpoint names none."""

    def recognises(self, source: Path) -> bool:
        """Return whether there are a checkpoint and a dictionary."""
        return all(next(source.glob(name), None) for name in ("*.pt", "dict.*.txt"))

    def read(self, source: Path) -> Imported:
        """Read a checkpoint, its dictionaries and its subwords."""
        path = _checkpoint_path(source)
        loaded = load_plain(path, [Namespace])
        if not isinstance(loaded, dict) or not isinstance(loaded.get("model"), Mapping):
            raise NmtError(f"{path}: not a checkpoint of fairseq, which holds a model")
        settings = Settings.of(path, loaded)
        tensors = float_tensors(path, loaded["model"])
        model = TransformerWeights(path, settings, tensors)
        config, sizes = model.config(), model.sizes()
        languages = settings.text("source_lang"), settings.text("target_lang")
        paths = [source / f"dict.{language}.txt" for language in languages]
        orders = [
            dictionary(dictionary_path, size, is_target=side == 1 or settings.tied == "all")
            for side, (dictionary_path, size) in enumerate(zip(paths, sizes, strict=True))
        ]
        if settings.tied == "all" and orders[0].vocabulary != orders[1].vocabulary:
            raise NmtError(f"{source}: dictionaries of embeddings that are tied differ")
        is_shared = orders[0].vocabulary == orders[1].vocabulary and sizes[0] == sizes[1]
        orders = [orders[1]] * 2 if is_shared else orders
        weights = model.weights(*orders)
        tokenisation = settings.tokenisation(self.tokenizer)
        models = [read_segmenter(source, language, tokenisation) for language in languages]
        used = [segmenter_path for segmenter_path, _ in models]
        is_one = is_shared and models[0][1] == models[1][1]
        subwords = Subwords(
            models[0][1],
            None if is_one else models[1][1],
            vocabularies=[order.vocabulary for order in orders[: 1 if is_shared else 2]],
        )
        return Imported(
            config=config,
            weights=weights,
            subwords=subwords,
            search=settings.search(),
            settings=path,
            languages=languages,
            read=(path, *paths, *used),
        )


import_formats.add("fairseq_tokenized", FairseqFormat(tokenizer="none"))


def _checkpoint_path(source: Path) -> Path:
    paths = sorted(source.glob("*.pt"))
    preferred = [path for name in NAMES for path in paths if path.name == name]
    if len(paths) > 1 and not preferred:
        shown = ", ".join(path.name for path in paths)
        raise NmtError(
            f"{source}: several checkpoints: {shown}; import each of an ensemble from a directory "
            "of its own, with the dictionaries and the subwords"
        )
    if not paths:
        raise NmtError(f"{source}: holds no checkpoint, such as model.pt")
    return (preferred or paths)[0]
