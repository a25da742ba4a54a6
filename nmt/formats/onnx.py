"""Models in ONNX, for ONNX Runtime and transformers.js: an encoder, and a decoder of one step.

Files, inputs and outputs have the names that Hugging Face's optimum uses for Marian models. The
decoder is one graph for all steps. In the first step the past has length 0, and the graph projects
all positions of the source to keys and values. Later steps reuse these.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from nmt.data.vocabulary import EOS, PAD, UNK
from nmt.errors import NmtError, install
from nmt.formats.exporting import TransformerFormat, export_formats
from nmt.formats.tokenizer_files import TokenLayout, max_positions, tokenizer_json, write_files
from nmt.models.layers.cache import BeamAncestry, KeyValueCache, Memory, OrderedCache, SharedCache
from nmt.models.layers.sentences import Padded
from nmt.models.transformer.layers import TransformerState
from nmt.models.transformer.model import Transformer, TransformerConfig
from nmt.models.transformer.positions import SinusoidalPositions, sinusoids
from nmt.models.transformer.recurrences import RecurrentCache
from nmt.runs import LoadedModel
from nmt.runs.exports import Stored

DIRECTORY = "onnx"
"""Where optimum and transformers.js look for graphs in the directory of a model."""

LayerPast = tuple[Tensor, Tensor, Tensor, Tensor]
"""Keys and values of a decoder layer: of its past [B, H, P, C], and of the source [B, H, S', C]. A
recurrence replaces the first two by its state [B, 1, W] and a tensor that counts steps, [B, 1, P,
1].
"""

# All different and above 1: torch takes 1 for a constant, and equal sizes for one size.
BATCH, LENGTH, STEPS, PROJECTED = 2, 7, 5, 3
"""Sizes of the examples that torch traces: numbers of sentences, of tokens in the source, of
earlier steps, and of source positions that are already projected."""

PAST = ("decoder.key", "decoder.value", "encoder.key", "encoder.value")
"""Names of the tensors of a :data:`LayerPast`."""


@export_formats.register("onnx")
@dataclass(frozen=True, kw_only=True)
class OnnxFormat(TransformerFormat):
    """The directory that transformers.js and ``ORTModelForSeq2SeqLM`` of optimum read."""

    refusal: ClassVar[str] = "no model with {} can be exported to onnx"
    codes: ClassVar[str] = "BPE codes"  # the tokenizer's files have no place for them

    def use(self, loaded: LoadedModel) -> str:
        """Return code for JavaScript."""
        return (
            '```js\nimport { pipeline } from "@huggingface/transformers";\n\n'
            'const translate = await pipeline("translation", "NAME", { dtype: "fp32" });\n'
            'console.log(await translate("One sentence."));\n```\n'
        )

    def write(self, loaded: LoadedModel, stored: Stored, directory: Path) -> None:
        """Write both graphs, configurations and tokenizer."""
        if find_spec("onnxscript") is None:
            raise NmtError(f"exporting to onnx needs onnxscript; {install('onnx')}")
        config, model = self.checked(loaded, stored)
        layout = TokenLayout.from_model(loaded)
        positions = model.positions
        if isinstance(positions, SinusoidalPositions):  # the graph holds its table
            count = positions.offset + max_positions(config)
            positions.table = sinusoids(count, positions.width, positions.layout)
        graphs = directory / DIRECTORY
        graphs.mkdir()
        try:
            _export_encoder(model, layout, config, graphs / "encoder_model.onnx")
            _export_decoder(model, layout, config, graphs / "decoder_model_merged.onnx")
        except torch.onnx.OnnxExporterError as error:
            reason = str(error.__cause__ or error).strip().partition("\n")[0]
            raise NmtError(
                f"{loaded.run.path}: torch cannot export the model to onnx: {reason}"
            ) from None
        write_files(loaded, config, layout, directory, "float32")
        # A fast tokenizer has one vocabulary for both sides.
        if loaded.subwords.shared:
            text = json.dumps(tokenizer_json(loaded.subwords.models[0], layout), ensure_ascii=False)
            (directory / "tokenizer.json").write_text(text, encoding="utf-8")

    def missing_parts(self, config: TransformerConfig, model: Transformer) -> Iterator[str]:
        """Yield the parts that no graph can hold, by the names of the recipe."""
        if config.encoder_attention.name == "neighbourhood":  # torch finds no size for its blocks
            yield f"encoder_attention {config.encoder_attention.name}"
        for stack, layers in (("encoder", model.encoder), ("decoder", model.decoder)):
            # A plugin's cache has no counterpart in a graph.
            if any(type(layer.attention.new_cache()) not in _CACHES for layer in layers):
                yield f"{stack}_attention {getattr(config, f'{stack}_attention').name}"


class _Encoder(nn.Module):
    """The encoder of a Transformer, with the ids of the export."""

    def __init__(self, model: Transformer, layout: TokenLayout) -> None:
        super().__init__()
        self.model = model
        size = len(layout.source)
        # OPUS-MT's ids: EOS is first, UNK second and padding last.
        order = (EOS, UNK, *range(EOS + 1, size), *[PAD] * layout.num_pads(size))
        self.ids = None if layout.order is None else torch.tensor(order)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the encoder's output [B, S, D] of padded sources [B, S] with their mask [B, S]."""
        source = input_ids if self.ids is None else self.ids[input_ids]
        return self.model.encode_tokens(source, Padded(attention_mask.bool()[:, None, None]))


class _Decoder(nn.Module):
    """One step of a Transformer's decoder, with the ids of the export."""

    def __init__(self, model: Transformer, layout: TokenLayout) -> None:
        super().__init__()
        self.model = model
        self.ids = None if layout.order is None else torch.tensor(layout.order)

    def forward(
        self, attention_mask: Tensor, tokens: Tensor, encoded: Tensor, past: list[LayerPast]
    ) -> tuple[Tensor, list[LayerPast]]:
        """Return the logits of the next token [B, 1, V], and the past with this step.

        Args:
            attention_mask: of the sources, [B, S] int64, 1 at tokens.
            tokens: the last token [B, 1].
            encoded: output of the encoder [B, S, D].
            past: of each layer.
        """
        model, memory, caches = self.model, [], []
        for layer, (keys, values, *projected) in zip(model.decoder, past, strict=True):
            # All of the source in the first step, and nothing in later ones.
            rest = layer.cross.project(encoded[:, projected[0].shape[2] :], Padded())
            both = [torch.cat(pair, 2) for pair in zip(projected, rest, strict=True)]
            memory.append((both[0], both[1]))
            caches.append(_CACHES[type(layer.attention.new_cache())](keys, values))
        state = TransformerState(Memory(memory, None), caches)
        # Set afterwards: `settle` reads the values of a mask, which a graph does not know.
        state.memory.mask = attention_mask.bool()[:, None, None]
        # By the second tensor, which has a step for each token in recurrences, too.
        state.ancestry = BeamAncestry(past[0][1].shape[2])
        logits = model.step(tokens if self.ids is None else self.ids[tokens], state)
        if self.ids is not None:
            logits = logits[..., self.ids]
        present = [
            (*cache.past, *keys_values) for cache, keys_values in zip(caches, memory, strict=True)
        ]
        return logits, present


class _ConcatenatedCache(KeyValueCache):
    """Keys and values of the past, as tensors without spare room."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.past = keys, values

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values [G, H, n, C]; returns all keys and values so far."""
        self.past = torch.cat((self.past[0], keys), 2), torch.cat((self.past[1], values), 2)
        return self.past


class _ConcatenatedShared(_ConcatenatedCache, SharedCache):
    pass


class _ConcatenatedOrdered(_ConcatenatedCache, OrderedCache):
    pass


class _CountedCache(RecurrentCache):
    """The state of a recurrence, and a tensor that is longer by one after each step."""

    def __init__(self, hidden: Tensor, steps: Tensor) -> None:
        super().__init__()
        self._hidden: Tensor = hidden
        self._steps = steps

    @property
    def past(self) -> tuple[Tensor, Tensor]:
        """The state after a step, and one more step."""
        # A graph knows the number of steps by a shape alone.
        step = self._steps.new_zeros(self._steps.shape[0], 1, 1, 1)
        return self._hidden, torch.cat((self._steps, step), 2)


_CACHES: dict[type, type[_ConcatenatedShared | _ConcatenatedOrdered | _CountedCache]] = {
    SharedCache: _ConcatenatedShared,
    OrderedCache: _ConcatenatedOrdered,
    RecurrentCache: _CountedCache,
}
"""What replaces a cache in an export."""


def _export_encoder(
    model: Transformer, layout: TokenLayout, config: TransformerConfig, path: Path
) -> None:
    """Write the graph of the encoder."""
    sizes = _Sizes(max_positions(config))
    tokens = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    _export(
        _Encoder(model, layout),
        path,
        (tokens, torch.ones_like(tokens)),  # torch would take one tensor for one input
        (sizes.source, sizes.source),
        ["input_ids", "attention_mask"],
        ["last_hidden_state"],
    )


def _export_decoder(
    model: Transformer, layout: TokenLayout, config: TransformerConfig, path: Path
) -> None:
    """Write the graph of a step of the decoder."""
    sizes = _Sizes(max_positions(config))
    past, shapes = [], []
    for layer in model.decoder:
        cross = layer.cross
        tensors = [
            torch.zeros(BATCH, heads, length, size // heads)
            for length in (STEPS, PROJECTED)
            for size, heads in zip(cross.qkv_sizes[1:], cross.qkv_heads[1:], strict=True)
        ]
        of_self: Any = sizes.past
        if type(layer.attention.new_cache()) is RecurrentCache:
            tensors[0] = torch.zeros(BATCH, 1, config.d_model)
            tensors[1] = torch.zeros(BATCH, 1, STEPS, 1)
            of_self = {0: sizes.batch}
        past.append(tuple(tensors))
        shapes.append((of_self, sizes.past, sizes.projected, sizes.projected))
    tokens = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    names = [f"{layer}.{name}" for layer in range(len(past)) for name in PAST]
    _export(
        _Decoder(model, layout),
        path,
        (tokens, tokens[:, :1], torch.zeros(BATCH, LENGTH, config.d_model), past),
        (sizes.source, {0: sizes.batch}, sizes.source, shapes),
        [
            "encoder_attention_mask",
            "input_ids",
            "encoder_hidden_states",
            *(f"past_key_values.{name}" for name in names),
        ],
        ["logits", *(f"present.{name}" for name in names)],
    )


class _Sizes:
    """The dimensions that vary, by the names that optimum gives them."""

    def __init__(self, longest: int) -> None:
        self.batch = torch.export.Dim("batch_size")
        # The step itself takes the last position.
        steps = torch.export.Dim("past_decoder_sequence_length", max=longest - 1)
        self.source = {
            0: self.batch,
            1: torch.export.Dim("encoder_sequence_length", max=longest),
        }
        self.past = {0: self.batch, 2: steps}
        self.projected = {0: self.batch, 2: torch.export.Dim("past_encoder_sequence_length")}


def _export(
    module: nn.Module,
    path: Path,
    inputs: tuple[Any, ...],
    shapes: tuple[Any, ...],
    input_names: list[str],
    output_names: list[str],
) -> None:
    """Write a graph.

    Args:
        module: what the graph computes.
        path: the file.
        inputs: examples of the inputs.
        shapes: the dimensions of the inputs that vary.
        input_names: of all tensors of the inputs.
        output_names: of all tensors of the outputs.
    """
    # torch reports the conversion on pages that say nothing to a user.
    logger = logging.getLogger("torch")
    level = logger.level
    try:
        logger.setLevel(logging.CRITICAL)
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            stack.enter_context(redirect_stdout(StringIO()))  # of an error, torch prints the graph
            stack.enter_context(redirect_stderr(StringIO()))
            program = torch.onnx.export(
                module.eval(),
                inputs,
                dynamo=True,
                dynamic_shapes=shapes,
                input_names=input_names,
                output_names=output_names,
                external_data=False,
                verbose=False,
            )
    finally:
        logger.setLevel(level)
    assert program is not None
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()  # stack traces with paths of this machine
    program.save(path)
