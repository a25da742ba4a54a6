"""Models for Hugging Face's transformers: ``MarianMTModel`` and ``MarianTokenizer``.

The weights keep their values and get other names. The special ids of a trained run stay what they
are. An imported model gets the layout of OPUS-MT again, in which padding begins the decoder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from nmt.errors import NmtError
from nmt.export.base import MOST_EPSILON, ExportFormat, Stored, export_formats
from nmt.export.huggingface_files import Layout, max_positions, write_files
from nmt.export.huggingface_names import ACTIVATIONS, BIAS, EMBEDDINGS, POSITIONS, layer_weights
from nmt.models import ModelConfig
from nmt.models.positions import position_parts
from nmt.models.transformer import Transformer, TransformerConfig
from nmt.preprocess.casing import CasedSegmenter
from nmt.preprocess.subwords import Subwords
from nmt.recipe.config import build
from nmt.runs import LoadedModel, weights_of

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@export_formats.register("huggingface")
@dataclass(frozen=True, kw_only=True)
class HuggingFaceFormat(ExportFormat):
    """The directory that ``from_pretrained`` of transformers reads."""

    def write(self, loaded: LoadedModel, stored: Stored, directory: Path) -> None:
        """Write weights, configurations, tokenizer and model card."""
        config: ModelConfig = build(ModelConfig, loaded.recipe["model"], "model")  # type: ignore[type-abstract]
        if obstacles := ", ".join(_obstacles(config, stored, loaded.subwords)):
            raise NmtError(
                f"{loaded.run.path}: MarianMTModel has no counterpart of {obstacles}; translate "
                "with nmt itself"
            )
        assert isinstance(config, TransformerConfig)
        assert isinstance(loaded.model, Transformer)
        layout = Layout.of(loaded)
        weights = _weights(loaded.model, config, layout)
        tensors = {name: tensor.to(DTYPES[stored]) for name, tensor in weights.items()}
        save_file(tensors, directory / "model.safetensors", {"format": "pt"})
        (directory / "model.safetensors").chmod(0o644)
        dtype = str(DTYPES[stored]).removeprefix("torch.")
        write_files(loaded, config, layout, directory, dtype)
        (directory / "README.md").write_text(_model_card(loaded), encoding="utf-8")


def _obstacles(config: ModelConfig, stored: Stored, subwords: Subwords) -> Iterator[str]:
    """Yield what transformers' Marian lacks, by the names of the recipe."""
    if isinstance(subwords.source, CasedSegmenter):
        yield "preprocess.casing inline"
    if subwords.has_codes:
        yield "BPE codes, but of SentencePiece models alone"
    if stored not in DTYPES:
        yield f"--precision {stored}"
    if not isinstance(config, TransformerConfig):
        yield f"arch {config.arch}"
        return
    if config.feed_forward.name not in ACTIVATIONS.values():
        yield f"feed_forward {config.feed_forward.name}"
    if config.positions.name not in ("none", "sinusoidal", "learned"):
        yield f"positions {config.positions.name}"
    for key, value in (("residual", "post_norm"), ("norm", "layer_norm")):
        if getattr(config, key) != value:
            yield f"{key} {getattr(config, key)}"
    for stack in ("encoder", "decoder"):
        if (pattern := getattr(config, f"{stack}_attention").name) != "full":
            yield f"{stack}_attention {pattern}"
    heads = config.attention
    if {heads.key_width * heads.count, heads.value_width * heads.count} != {config.d_model}:
        yield "d_k or d_v other than d_model / heads"
    if config.key_value_heads not in (None, config.heads):
        yield f"key_value_heads {config.key_value_heads}"
    if config.norm_epsilon > MOST_EPSILON:
        yield f"norm_epsilon {config.norm_epsilon:g}"
    for key in ("attention_bias", "decoder_feed_forward"):
        if not getattr(config, key):
            yield f"{key} false"


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
