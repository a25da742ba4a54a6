"""The weights of a checkpoint of fairseq by this toolkit's names."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from nmt.errors import NmtError
from nmt.export.huggingface_names import layer_weights
from nmt.imports.base import concatenate
from nmt.imports.fairseq_settings import Settings
from nmt.imports.fairseq_text import PAD
from nmt.imports.vocabularies import ReorderedVocabulary
from nmt.models.transformer import TransformerConfig

EMBEDDINGS = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
POSITIONS = ("encoder.embed_positions.weight", "decoder.embed_positions.weight")
TABLES = {
    "source_embedding": EMBEDDINGS[0],
    "target_embedding": EMBEDDINGS[1],
    "output": "decoder.output_projection.weight",
}
"""The matrices that a Transformer may tie."""

OLD_NORMS = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}
"""Names of the norms of a layer, which had numbers in 2018."""

COPIES = ("in_proj", "out_proj", "fc1", "fc2")
"""Weights of an encoder layer that fairseq 0.12 saves twice, and does not read."""


class TransformerWeights:
    """The weights of a Transformer's checkpoint, taken one after the other."""

    def __init__(self, path: Path, settings: Settings, tensors: dict[str, Tensor]) -> None:
        self.path, self.settings, self.tensors = path, settings, _of_today(path, tensors)

    def config(self) -> TransformerConfig:
        """Return the recipe's section ``model``, before the weights are taken."""
        is_learned = self.settings.positions == "learned"
        return self.settings.transformer(self._count_positions() if is_learned else 0)

    def sizes(self) -> tuple[int, int]:
        """Return the sizes of the dictionaries, by the tables of vectors."""
        source, target = (len(self._table(name)) for name in EMBEDDINGS)
        return source, target

    def weights(
        self, source: ReorderedVocabulary, target: ReorderedVocabulary
    ) -> dict[str, Tensor]:
        """Return the weights by this toolkit's names, and leave none over."""
        settings, width = self.settings, self.settings.width
        tables = {name: self._table(theirs) for name, theirs in TABLES.items()}
        tied = {"all": [*TABLES], "decoder": ["target_embedding", "output"], "none": []}
        for name in tied[settings.tied]:
            if not torch.equal(tables[name], tables["target_embedding"]):
                raise NmtError(f"{self.path}: {TABLES[name]} is tied, but has vectors of its own")
        weights = {
            f"{name}.weight": (source if name == "source_embedding" else target).reorder(table)
            for name, table in tables.items()
            if name == "target_embedding" or name not in tied[settings.tied]
        }
        bias = torch.zeros(len(tables["output"]))
        weights["output.bias"] = target.reorder_bias(bias)
        for theirs in TABLES.values():
            del self.tensors[theirs]
        if settings.positions == "learned":
            names = ("source_positions.table.weight", "positions.table.weight")
            rows = PAD + 1
            weights |= {
                name: self._take(theirs)[rows:]
                for name, theirs in zip(names, POSITIONS, strict=True)
            }
        for name, parts in layer_weights(settings.encoder_layers, settings.decoder_layers):
            taken = {
                part: self._take(part) for part in (theirs.partition(".")[2] for theirs in parts)
            }
            weights[name] = concatenate(self.path, taken)
        if settings.is_pre_norm:
            for stack in ("encoder", "decoder"):
                for kind in ("weight", "bias"):
                    weights[f"{stack}_end.{kind}"] = self._take(f"{stack}.layer_norm.{kind}", width)
        if self.tensors:
            raise NmtError(f"{self.path}: nmt has no place for the tensor {min(self.tensors)[:99]}")
        return weights

    def _count_positions(self) -> int:
        """Return the rows of the learned tables of positions.

        fairseq numbers positions from the id after that of padding.
        """
        counts = {len(self._table(name)) - (PAD + 1) for name in POSITIONS}
        if len(counts) > 1 or min(counts) < 1:
            raise NmtError(f"{self.path}: nmt has no counterpart of tables of other positions")
        return counts.pop()

    def _table(self, name: str) -> Tensor:
        """Return a table with vectors of the width of the embeddings."""
        table = self.tensors.get(name)
        width = self.settings.width
        if table is None or table.dim() != 2 or table.shape[1] != width:
            shape = "missing" if table is None else f"of the shape {list(table.shape)}"
            raise NmtError(f"{self.path}: {name} is {shape}, not a table of width {width}")
        return table

    def _take(self, name: str, *shape: int) -> Tensor:
        """Remove a tensor, which must have the shape if there is one, and return it."""
        if name not in self.tensors:
            raise NmtError(f"{self.path}: has no tensor {name}")
        tensor = self.tensors.pop(name)
        if shape and tuple(tensor.shape) != shape:
            raise NmtError(
                f"{self.path}: {name} has the shape {list(tensor.shape)}, not {list(shape)}"
            )
        return tensor


def _of_today(path: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors by the names of today, without those that fairseq itself passes over."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        stack, _, rest = name.partition(".")
        parts = rest.split(".")
        is_layer = len(parts) > 2 and parts[0] == "layers"
        if rest in ("version", "embed_positions._float_tensor", "embed_positions.weights"):
            continue
        if is_layer and len(parts) == 3 and parts[2].rpartition("_")[0] in COPIES:
            continue
        if is_layer and parts[2] == "layer_norms" and parts[3:4] and parts[3].isdecimal():
            norms = OLD_NORMS.get(stack, ())
            parts[2:4] = [dict(enumerate(norms)).get(int(parts[3][:9]), "layer_norms")]
            name = ".".join((stack, *parts))
        if is_layer and parts[-1] in ("in_proj_weight", "in_proj_bias"):
            before, kind = name.rpartition(".")[0], parts[-1].rpartition("_")[2]
            thirds = tensor.chunk(3) if tensor.dim() else [tensor]
            for letter, part in zip("qkv", thirds, strict=False):
                renamed[f"{before}.{letter}_proj.{kind}"] = part
            continue
        renamed[name] = tensor
    embedded = renamed.pop("decoder.embed_out", renamed.get(TABLES["target_embedding"]))
    if embedded is not None:
        renamed.setdefault(TABLES["output"], embedded)
    return renamed
