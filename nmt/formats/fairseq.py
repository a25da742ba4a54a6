"""Transformers of fairseq: a checkpoint, two dictionaries, and the subwords of the text."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from nmt.errors import NmtError
from nmt.formats.fairseq_settings import FairseqSettings
from nmt.formats.huggingface import layer_weights
from nmt.formats.importing import (
    MAX_JSON,
    Imported,
    ImportFormat,
    ReorderedVocabulary,
    concatenate,
    import_formats,
    read_sentencepiece,
)
from nmt.formats.torch_files import float_tensors, load_plain
from nmt.io import documents
from nmt.models.transformer.model import TransformerConfig
from nmt.subwords.bpe import BpeCodes, parse_codes
from nmt.subwords.subwords import Subwords

NAMES = ("model.pt", "checkpoint_best.pt")
"""Names of the checkpoint to import if there are several."""


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
        # Before fairseq 0.10 a checkpoint held its settings as a Namespace.
        loaded = load_plain(path, [Namespace])
        if not isinstance(loaded, dict) or not isinstance(loaded.get("model"), Mapping):
            raise NmtError(f"{path}: not a checkpoint of fairseq, which holds a model")
        settings = FairseqSettings.from_checkpoint(path, loaded)
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
        # The target's order has a row for BOS, which the source's order lacks.
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
            f"{source}: several checkpoints: {shown}; import each model of an ensemble from its "
            "own directory, with the dictionaries and the subwords"
        )
    if not paths:
        raise NmtError(f"{source}: holds no checkpoint, such as model.pt")
    return (preferred or paths)[0]


BEGIN, PAD, END, UNKNOWN = range(4)
"""fairseq's special ids. The decoder begins with the end of a sentence."""

OVERWRITES = "#fairseq:overwrite"
"""Mark of a line whose piece replaces an earlier, equal piece."""

SENTENCEPIECE = ("sentencepiece.bpe", "sentencepiece", "spm")
"""Names of a SentencePiece model, without ``.model``."""

CODES = ("bpecodes", "code", "codes")
"""Names of a file with BPE codes."""


def dictionary(path: Path, size: int, is_target: bool) -> ReorderedVocabulary:
    """Return the vocabulary of a dictionary.

    Args:
        path: of a file with a piece and its count in each line.
        size: number of vectors of the model.
        is_target: whether the decoder reads it.

    Raises:
        NmtError: the file is missing or damaged, or of another size.
    """
    lines = _lines(path)
    names = {BEGIN: "<s>"}
    for number, line in enumerate(lines, 1):
        piece, _, count = line.removesuffix(f" {OVERWRITES}").rpartition(" ")
        if not piece or not count.isascii() or not count.isdecimal():
            raise NmtError(f"{path}:{number}: expected a piece and a count, not {line[:99]!r}")
        if line.endswith(OVERWRITES):
            if piece == names[BEGIN]:
                continue
            # The mark lets this line replace an earlier one.
            names = {earlier: name for earlier, name in names.items() if name != piece}
        names[UNKNOWN + number] = piece
    if len(lines) + UNKNOWN + 1 != size:
        raise NmtError(
            f"{path}: {len(lines)} pieces and 4 special pieces, but the model has {size} vectors"
        )
    start = END if is_target else None
    try:
        return ReorderedVocabulary.from_names(names, size, PAD, UNKNOWN, start, END)
    except ValueError as error:
        raise NmtError(f"{path}: {error}") from None


def read_segmenter(
    source: Path, language: str, tokenisation: Mapping[str, Any]
) -> tuple[Path, bytes | BpeCodes]:
    """Return the SentencePiece model or the BPE codes of a language, and the path of their file.

    Args:
        source: directory of the model.
        language: files of this language are preferred to files for both languages.
        tokenisation: before BPE codes.

    Raises:
        NmtError: there are none, or they are damaged.
    """
    for name in SENTENCEPIECE:
        for path in (source / f"{name}.{language}.model", source / f"{name}.model"):
            if path.exists():
                return path, read_sentencepiece(path)
    for name in CODES:
        for path in (source / f"{name}.{language}", source / name):
            if path.exists():
                text = "\n".join(_lines(path))
                try:
                    return path, parse_codes(text, language=language, **tokenisation)
                except ValueError as error:
                    raise NmtError(f"{path}: {error}; copy the codes again") from None
    names = ", ".join((*(f"{name}.model" for name in SENTENCEPIECE), *CODES))
    raise NmtError(f"{source}: holds no subwords of {language}: none of {names}")


def _lines(path: Path) -> list[str]:
    """Return the lines of a file."""
    try:
        text = documents.read_bounded(path, MAX_JSON).decode()
    except FileNotFoundError:
        raise NmtError(f"{path}: missing; the import needs it") from None
    except UnicodeDecodeError:
        raise NmtError(f"{path}: not UTF-8") from None
    return [line.rstrip() for line in text.removesuffix("\n").split("\n")] if text else []


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

    def __init__(self, path: Path, settings: FairseqSettings, tensors: dict[str, Tensor]) -> None:
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
        """Return all weights by this toolkit's names; an unknown weight is an error."""
        settings, width = self.settings, self.settings.width
        tables = {name: self._table(theirs) for name, theirs in TABLES.items()}
        tied = {"all": [*TABLES], "decoder": ["target_embedding", "output"], "none": []}
        for name in tied[settings.tied]:
            # A checkpoint holds a tied table several times, and may contradict its settings.
            if not torch.equal(tables[name], tables["target_embedding"]):
                raise NmtError(f"{self.path}: {TABLES[name]} is tied, but has vectors of its own")
        weights = {
            f"{name}.weight": (source if name == "source_embedding" else target).reorder(table)
            for name, table in tables.items()
            if name == "target_embedding" or name not in tied[settings.tied]
        }
        # fairseq's output layer has no bias; this one only excludes ids.
        bias = torch.zeros(len(tables["output"]))
        weights["output.bias"] = target.reorder_bias(bias)
        # Removed like every weight that was read: what is left in the end is unknown.
        for theirs in TABLES.values():
            del self.tensors[theirs]
        if settings.positions == "learned":
            names = ("source_positions.table.weight", "positions.table.weight")
            # fairseq numbers positions from the id of padding plus one, so earlier rows are never
            # read.
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

        fairseq numbers positions from the id of padding plus one.
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
    """Return the tensors by current names, without the tensors that fairseq itself ignores."""
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
        # Older checkpoints hold queries, keys and values in one matrix.
        if is_layer and parts[-1] in ("in_proj_weight", "in_proj_bias"):
            before, kind = name.rpartition(".")[0], parts[-1].rpartition("_")[2]
            thirds = tensor.chunk(3) if tensor.dim() else [tensor]
            for letter, part in zip("qkv", thirds, strict=False):
                renamed[f"{before}.{letter}_proj.{kind}"] = part
            continue
        renamed[name] = tensor
    # Before the name output_projection, an untied output layer was embed_out, and a tied one had no
    # name.
    embedded = renamed.pop("decoder.embed_out", renamed.get(TABLES["target_embedding"]))
    if embedded is not None:
        renamed.setdefault(TABLES["output"], embedded)
    return renamed
