"""Students for Bergamot's engines: Firefox Translations, translateLocally, browsermt's packages.

The model is Marian's with 8-bit weights, and with the multipliers of the inputs of each product.
``marian-conv`` of browsermt/marian-dev writes the same files: weights by
``expression_graph_packable.h``, multipliers by ``extract_stats.py``, shortlists by
``shortlist.cpp``.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import yaml
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.data.batches import make_batch
from nmt.data.dataset import Split
from nmt.data.shortlist import Shortlist
from nmt.data.vocabulary import BOS, EXCLUDED, PAD
from nmt.errors import NmtError
from nmt.formats.exporting import constraints_of, distinct, export_formats
from nmt.formats.marian import (
    BIAS,
    CONFIGURATION,
    EMBEDDINGS,
    END,
    MarianExport,
    exported_arrays,
    layer_weights,
    model_settings,
    token_orders,
)
from nmt.formats.marian_files import FLOATS, INTGEMM8, Item, write_binary
from nmt.models.base import Model
from nmt.models.transformer.model import Transformer, TransformerConfig
from nmt.runs import LoadedModel, weights_of
from nmt.runs.calibration import Calibration, Range
from nmt.runs.exports import Stored
from nmt.subwords.model_pieces import reordered

CONFIG = "config.intgemm8bitalpha.yml"
"""Name of the configuration that translateLocally expects."""

WIDTHS, ROWS = 64, 8
"""Numbers that divide the inner width and the number of outputs of each product of the engine."""


@export_formats.register("bergamot")
@dataclass(frozen=True, kw_only=True)
class BergamotExport(MarianExport):
    """The files that Bergamot's engines read: 8-bit weights, vocabularies, and the shortlist."""

    refusal: ClassVar[str] = "Bergamot's engines have no counterpart of {}"
    stored: ClassVar[Stored] = "int8"
    precisions: ClassVar[Collection[str]] = ("int8",)
    known: ClassVar[Mapping[str, Collection[Any]]] = {
        **MarianExport.known,
        "feed_forward": ("relu",),
        "decoder_attention": ("ssru",),
        "residual": ("post_norm",),
        "tied_embeddings": ("all", "decoder"),
    }

    def use(self, loaded: LoadedModel) -> str:
        """Return the programs that read the directory."""
        return (
            f"translateLocally finds this directory where it is started. In browsers the package "
            f"`@browsermt/bergamot-translator` reads `{CONFIG}`.\n"
        )

    def write(self, loaded: LoadedModel, stored: Stored, directory: Path) -> None:
        """Write the weights, the vocabularies, the shortlist if the run has one, and settings."""
        config, model = self.checked(loaded, stored)
        orders = token_orders(loaded)
        multipliers = dict(_multipliers(config, _ranges(loaded)))
        arrays = exported_arrays(config, weights_of(model), orders)
        forbidden, _ = constraints_of(loaded.recipe.get("search") or {})
        # The engine's search has no such rules, so the weights have them.
        for token in forbidden | {PAD, BOS}:
            if token in orders[1]:
                arrays[BIAS][0, orders[1].index(token)] = EXCLUDED
        settings = model_settings(config, _fill_up(arrays))
        pair = "".join(loaded.run.languages)
        names = {"models": [f"model.{pair}.intgemm.alphas.bin"]}
        write_binary(
            directory / names["models"][0],
            [*_quantised(arrays, multipliers), Item.of_text(CONFIGURATION, settings)],
        )
        names["vocabs"] = _write_vocabularies(loaded, orders, directory, pair)
        if loaded.run.has_shortlist:
            names["shortlist"] = [f"lex.{pair}.s2t.bin"]
            content = shortlist_bytes(loaded.run.shortlist, orders)
            (directory / names["shortlist"][0]).write_bytes(content)
        text = yaml.safe_dump({"relative-paths": True, **names, **SEARCH}, sort_keys=False)
        (directory / CONFIG).write_text(text, encoding="utf-8")
        (directory / "model_info.json").write_text(_card(loaded.run.languages), encoding="utf-8")

    def missing_parts(self, config: TransformerConfig, model: Transformer) -> Iterator[str]:
        """Yield what the engines lack, by the names of the recipe."""
        yield from super().missing_parts(config, model)
        for name in ("d_model", "d_ff"):
            if (width := getattr(config, name)) % WIDTHS:
                yield f"{name} {width}, which {WIDTHS} does not divide"


SEARCH = {
    "beam-size": 1,
    "normalize": 1.0,
    "word-penalty": 0.0,
    "max-length-break": 128,
    "mini-batch-words": 1024,
    "workspace": 128,
    "max-length-factor": 2.0,
    "skip-cost": True,
    "alignment": "soft",
    "gemm-precision": "int8shiftAlphaAll",
}
"""Settings of browsermt's students; the engine of a browser has its own."""


def _ranges(loaded: LoadedModel) -> dict[str, Range]:
    """Return the smallest and the largest input of each layer."""
    path, checkpoint = loaded.run.path, loaded.checkpoint
    calibration = Calibration.load(path)
    if calibration is None or calibration.weights != checkpoint.digest:
        raise NmtError(
            f"{path}: has no calibration of {checkpoint.path.name}, which Bergamot's engines need; "
            f"run `nmt calibrate --model {path}` first"
        )
    return calibration.ranges


BATCH = 64
"""Sentence pairs of a batch."""


@torch.no_grad()
def measure_ranges(model: Model, split: Split, sentences: int) -> dict[str, Range]:
    """Return the smallest and the largest input of each linear layer, by name.

    Args:
        model: on a CPU, in evaluation mode.
        split: sentence pairs, which the model reads with their references.
        sentences: largest number of pairs, spread over the split.
    """
    ranges: dict[str, Range] = {}
    hooks = [
        module.register_forward_pre_hook(partial(_note, ranges, name))
        for name, module in model.named_modules()
        if type(module) is nn.Linear
    ]
    # A split may have fewer pairs than are wanted.
    indices = np.unique(np.linspace(0, len(split) - 1, sentences).astype(np.int64))
    for start in range(0, len(indices), BATCH):
        batch = make_batch(split, indices[start : start + BATCH])
        model.project(model.decode_packs(batch.source, batch.target_input, batch.packing))
    for hook in hooks:
        hook.remove()
    return ranges


def _note(
    ranges: dict[str, Range], name: str, module: nn.Module, arguments: tuple[Tensor, ...]
) -> None:
    if not arguments[0].numel():  # an expert without a token
        return
    low, high = torch.stack(arguments[0].aminmax()).tolist()
    before = ranges.get(name, (low, high))
    ranges[name] = min(before[0], low), max(before[1], high)


def _multipliers(
    config: TransformerConfig, ranges: Mapping[str, Range]
) -> Iterator[tuple[str, float]]:
    """Yield the name of each matrix, and the number that makes its inputs integers of 8 bits."""
    # The engine calls the matrix of an output layer with a shortlist "none".
    table = EMBEDDINGS["shared" if config.tied_embeddings == "all" else "target"]
    for name, theirs in chain([("output.weight", ["none", table])], layer_weights(config)):
        if name.endswith(".weight") and "norm" not in name:
            limits = ranges[name.removesuffix(".weight")]
            for other in theirs:
                yield other, 127 / max(*map(abs, limits), 1e-10)


def _fill_up(arrays: dict[str, Tensor]) -> list[int]:
    """Add target tokens that are never predicted, and return the sizes of both vocabularies."""
    source, *_, target = [name for name in EMBEDDINGS.values() if name in arrays] * 2
    missing = -arrays[BIAS].shape[1] % ROWS
    arrays[BIAS] = F.pad(arrays[BIAS], (0, missing), value=EXCLUDED)
    arrays[target] = F.pad(arrays[target], (0, 0, 0, missing))
    return [len(arrays[source]), len(arrays[target])]


def _quantised(arrays: Mapping[str, Tensor], multipliers: Mapping[str, float]) -> Iterator[Item]:
    """Yield the weights, and the multipliers of the inputs of the products."""
    for name, tensor in arrays.items():
        array = tensor.float().numpy()
        if name not in multipliers and name not in EMBEDDINGS.values():
            yield Item(name, FLOATS, array.shape, array.tobytes())
            continue
        multiplier = np.float32(127) / max(np.abs(array).max(), np.float32(1e-10))
        integers = np.rint(array * multiplier).astype(np.int8)
        # Matrices are transposed, but keep the shape of the product; embeddings are not.
        ordered = integers if name in EMBEDDINGS.values() else integers.T
        content = ordered.tobytes() + multiplier.tobytes()
        yield Item(name, INTGEMM8, array.shape, content)
    for name, value in multipliers.items():
        yield Item(f"{name}_QuantMultA", FLOATS, (1,), struct.pack("<f", value))


def _write_vocabularies(
    loaded: LoadedModel, orders: Sequence[Sequence[int]], directory: Path, pair: str
) -> list[str]:
    """Write one vocabulary, or one of each side, and return the names for source and target."""
    subwords, contents = loaded.subwords, []
    readers = (subwords.source_pieces, subwords.target_pieces)
    for read, order, model in zip(readers, orders, subwords.models, strict=True):
        vocabulary = reordered(model, distinct(read(list(order)), order))
        if vocabulary is None:
            raise NmtError(
                f"{loaded.run.path}: Bergamot's engines need SentencePiece models with the pieces "
                "of the model, and its pieces are others; translate with nmt itself"
            )
        contents.append(vocabulary)
    names = [f"{side}vocab.{pair}.spm" for side in ("src", "trg")]
    if contents[0] == contents[1]:
        names = [f"vocab.{pair}.spm"] * 2
    for name, content in zip(names, contents, strict=True):
        (directory / name).write_bytes(content)
    return names


def _card(languages: tuple[str, str]) -> str:
    """Return the description by which translateLocally lists a model."""
    name = "-".join(languages)
    card = {"modelName": name, "shortName": name, "src": languages[0], "trg": languages[1]}
    return json.dumps({**card, "type": "student", "version": 1, "API": 1}, indent=2) + "\n"


MAGIC = 0xF11A48D5013417F5
"""First number of a shortlist."""

FIRST = 2
"""Ids from 0 that the engine puts on each list: the end, and the unknown token."""


def shortlist_bytes(shortlist: Shortlist, orders: Sequence[Sequence[int]]) -> bytes:
    """Return the file of a shortlist.

    A file has six numbers of 64 bits (MAGIC, a checksum, FIRST, the most translations of a token,
    and the sizes of two arrays), then where the list of each source token begins, 64 bits each, and
    the lists, 32 bits each. The engine adds the source tokens if both sides share a vocabulary.

    Args:
        shortlist: tables of this toolkit's ids.
        orders: this toolkit's ids of source and target in the order of the foreign ids.
    """
    source, target = orders
    foreign = np.full(shortlist.origin.target_vocabulary, END, "<u4")
    foreign[list(target)] = np.arange(len(target))
    # No list is empty, because the engine takes an empty one at the end for damage.
    lists = [np.union1d(foreign[shortlist.candidates[token]], [END]) for token in source]
    # Each source ends with END, so the frequent tokens are on its list.
    lists[END] = np.union1d(lists[END], foreign[shortlist.frequent])
    offsets = np.cumsum([0, *map(len, lists)]).astype("<u8")
    tokens = np.concatenate(lists).astype("<u4")
    numbers = (FIRST, shortlist.candidates.shape[1], len(offsets), len(tokens))
    body = struct.pack("<4Q", *numbers) + offsets.tobytes() + tokens.tobytes()
    return struct.pack("<2Q", MAGIC, _checksum(body)) + body


def _checksum(body: bytes) -> int:
    """Return Marian's hash of the whole numbers of 64 bits in these bytes (``hash.h``)."""
    seed = 0
    for value in np.frombuffer(body, "<u8", len(body) // 8).tolist():
        seed ^= (value + 0x9E3779B9 + (seed << 6) + (seed >> 2)) & 0xFFFFFFFFFFFFFFFF
    return seed
