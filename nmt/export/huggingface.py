"""Models for Hugging Face's transformers: ``MarianMTModel`` and ``MarianTokenizer``.

The weights keep their values and get other names. The special ids of a trained run stay what they
are. An imported model gets the layout of OPUS-MT again, in which padding begins the decoder.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from nmt.export.base import Stored, export_formats
from nmt.export.huggingface_files import Layout, max_positions, write_files
from nmt.export.huggingface_names import ACTIVATIONS, BIAS, EMBEDDINGS, POSITIONS, layer_weights
from nmt.export.transformer_format import (
    TransformerFormat,
    large_epsilon,
    unsupported,
    unsupported_widths,
)
from nmt.models.positions import position_parts
from nmt.models.transformer import Transformer, TransformerConfig
from nmt.runs import LoadedModel, weights_of
from nmt.runs.weights import write_tensors

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@export_formats.register("huggingface")
@dataclass(frozen=True, kw_only=True)
class HuggingFaceFormat(TransformerFormat):
    """The directory that ``from_pretrained`` of transformers reads."""

    refusal: ClassVar[str] = "MarianMTModel has no counterpart of {}"
    precisions: ClassVar[Collection[str]] = tuple(DTYPES)

    def write(self, loaded: LoadedModel, stored: Stored, directory: Path) -> None:
        """Write weights, configurations, tokenizer and model card."""
        config, model = self.checked(loaded, stored)
        layout = Layout.of(loaded)
        weights = _weights(model, config, layout)
        tensors = {name: tensor.to(DTYPES[stored]) for name, tensor in weights.items()}
        write_tensors(directory / "model.safetensors", tensors, {"format": "pt"})
        dtype = str(DTYPES[stored]).removeprefix("torch.")
        write_files(loaded, config, layout, directory, dtype)
        (directory / "README.md").write_text(_model_card(loaded), encoding="utf-8")

    def missing_parts(self, config: TransformerConfig, model: Transformer) -> Iterator[str]:
        """Yield what transformers' Marian lacks, by the names of the recipe."""
        parts = {
            "feed_forward": ACTIVATIONS.values(),
            "positions": ("none", "sinusoidal", "learned"),
            "residual": ("post_norm",),
            "norm": ("layer_norm",),
            "encoder_attention": ("full",),
            "decoder_attention": ("full",),
        }
        yield from unsupported(config, parts)
        yield from unsupported_widths(config)
        yield from unsupported(config, {"key_value_heads": (None, config.heads)})
        yield from large_epsilon(config)
        yield from unsupported(config, {"attention_bias": (True,), "decoder_feed_forward": (True,)})


def _weights(model: Transformer, config: TransformerConfig, layout: Layout) -> dict[str, Tensor]:
    """Return the weights by transformers' names; tied ones once."""
    ours = weights_of(model)
    if config.tied_embeddings == "all":
        tables = {"shared": "target_embedding"}
    else:
        tables = {"source": "source_embedding", "target": "target_embedding"}
    if config.tied_embeddings == "none":
        tables["output"] = "output"
    weights = {
        EMBEDDINGS[theirs]: layout.reorder(ours[f"{name}.weight"])
        for theirs, name in tables.items()
    }
    bias = ours.get("output.bias", torch.zeros(len(layout.target)))
    weights[BIAS] = layout.reorder(bias)[None]
    for name, theirs in layer_weights(config.encoder_layers, config.decoder_layers):
        for their_name, part in zip(theirs, ours[name].chunk(len(theirs)), strict=True):
            weights[their_name] = part.clone()
    if (config.positions, config.sinusoids) != (position_parts["sinusoidal"], "halves"):
        for name, encoding in zip(
            POSITIONS, (model.source_positions, model.positions), strict=True
        ):
            table = encoding(0, max_positions(config), torch.device("cpu"))
            weights[name] = table.expand(max_positions(config), config.d_model).clone()
    return weights


def _model_card(loaded: LoadedModel) -> str:
    """Return the page that a hub shows: languages, architecture, origin and scores."""
    run = loaded.run
    origin = run.recipe.get("imported")
    data = f"imported from {origin['source']}" if origin else f"dataset with fingerprint {run.data}"
    scores = "".join(
        f"| {name} | {value:.3f} |\n" for name, value in loaded.checkpoint.scores.items()
    )
    table = f"\n## Validation\n\n| metric | value |\n|---|---|\n{scores}" if scores else ""
    return (
        f"---\nlanguage:\n- {run.source_lang}\n- {run.target_lang}\nlicense: unknown\n"
        "library_name: transformers\npipeline_tag: translation\ntags:\n- translation\n- marian\n"
        f"---\n\n# Translation from {run.source_lang} to {run.target_lang}\n\n"
        f"A Transformer with {loaded.model.num_parameters():,} weights, exported by nmt after "
        f"{loaded.checkpoint.update:,} updates. Training data: {data}. `recipe.yaml` has all "
        f"settings.\n{table}"
    )
