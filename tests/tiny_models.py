"""Every registered architecture at tiny size, and the plain Transformer with each other part."""

import dataclasses
from collections.abc import Iterable
from itertools import cycle, product

import torch
from torch import Tensor

from nmt.data.vocabulary import EOS, PAD
from nmt.models import Model, ModelConfig, architectures
from nmt.models.adaptation import adaptation_weights
from nmt.models.layers.feed_forward import feed_forwards
from nmt.models.transformer.patterns import patterns
from nmt.models.transformer.positions import position_parts
from nmt.recipe.config import build, dump
from nmt.search import strategies

VOCABULARY = 23
TINY = {
    "d_model": 16,
    "d_ff": 24,
    "heads": 4,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "dropout": 0.3,
    "width": 16,
    "embedding_width": 12,
    "hidden_width": 16,
    "attention_width": 8,
    "maxout_width": 8,
    "output_width": 8,
    "encoder": ((1, 12, 3), (2, 16, 5)),
    "decoder": ((1, 12, 3), (1, 16, 2)),
    "sets": 2,
    "dilations": (1, 2),
}
"""Sizes that make any architecture small; those that an architecture has no field for are left."""

PARTS: dict[str, dict[str, object]] = {
    **{f"positions {name}": {"positions": name} for name in position_parts},
    "separate positions": {"positions": {"name": "learned", "separate": True}},
    "positions from 2": {"positions": {"name": "sinusoidal", "offset": 2}},
    **{f"feed-forward {name}": {"feed_forward": name} for name in feed_forwards},
    "pre-norm": {"residual": "pre_norm"},
    "deep norm": {"residual": "deep_norm"},
    "rms norm": {"norm": "rms_norm"},
    "multi-query": {"key_value_heads": 1},
    **{
        f"encoder {name}": {"encoder_attention": name}
        for name in patterns
        if patterns[name].is_bidirectional
    },
    **{
        f"decoder {name}": {"decoder_attention": name}
        for name in patterns
        if not patterns[name].is_bidirectional
    },
    "no feed-forward": {"decoder_attention": "ssru", "decoder_feed_forward": False},
    "neighbours": {
        "encoder_attention": {"name": "neighbourhood", "radius": 2},
        "decoder_attention": {"name": "neighbourhood", "radius": 2},
    },
    "today's": {
        "residual": "pre_norm",
        "norm": "rms_norm",
        "positions": "rotary",
        "feed_forward": "swiglu",
        "key_value_heads": 2,
        "attention_bias": False,
        "decoder_attention": {"name": "neighbourhood", "radius": 3},
    },
}
"""What may stand in the plain Transformer's place, by a name of its own."""


LORA = {"name": "lora", "rank": 2, "alpha": 2}
ADAPTERS = {"name": "adapters", "d_bottleneck": 4}
ADAPTED: dict[str, dict[str, object]] = {
    **{
        f"lora on {arch}": {"arch": arch, "adaptation": LORA}
        for arch in ("transformer_base", "rnnsearch", "gnmt_small", "conv_s2s", "bytenet")
    },
    "adapters": {"adaptation": ADAPTERS},
    "adapters in pre-norm": {"residual": "pre_norm", "norm": "rms_norm", "adaptation": ADAPTERS},
    "adapters behind cross-attention": {**PARTS["no feed-forward"], "adaptation": ADAPTERS},
}
"""Models with parts that were put on them, by a name of their own."""


COMBINED = [
    "positions alibi + feed-forward gelu + multi-query",
    "positions learned + deep norm",
    "positions none + feed-forward relu",
    "positions relative + feed-forward swiglu",
    "positions rotary + feed-forward swish + rms norm + encoder neighbourhood",
    "separate positions + pre-norm",
    "positions from 2 + feed-forward gelu_tanh + decoder average",
]
"""Models with several parts at once, by the names of the parts."""


def distinct(names: Iterable[str]) -> list[str]:
    """The names without those of models that are, at tiny size, an earlier one with other rates."""
    models: dict[str, str] = {}
    for name in names:
        values = dump(tiny(name)).items()
        key = {name: value for name, value in values if name != "arch" and "dropout" not in name}
        models.setdefault(f"{type(tiny(name))} {key}", name)
    return list(models.values())


def tiny(name: str) -> ModelConfig:
    changes: dict[str, object] = {"arch": name}
    for part in name.split(" + "):
        changes |= {**PARTS, **ADAPTED}.get(part, {})
    if changes["arch"] not in architectures:
        changes["arch"] = "transformer_base"
    fields = {field.name for field in dataclasses.fields(architectures[str(changes["arch"])])}
    sizes = {key: size for key, size in TINY.items() if key in fields}
    return build(ModelConfig, {**sizes, **changes}, "model")


KINDS = distinct(architectures)
"""The architectures that differ at tiny size."""
COMBINED += [name for name in PARTS if not any(name in model.split(" + ") for model in COMBINED)]
KINDS_AND_STRATEGIES = sorted(
    {*product(KINDS, ["beam"]), *product(["transformer_base"], strategies)}
    | {*zip(KINDS, cycle(strategies), strict=False)}
)
"""Each kind of model with the beam and another strategy, and a Transformer with each."""
PLAIN = distinct([*KINDS, *COMBINED])
"""Every kind of model and every part, without anything put on it."""


def tiny_model(name: str) -> Model:
    """A model in evaluation; parts that were put on it have an effect, as after training."""
    torch.manual_seed(1)
    model = tiny(name).build_adapted(VOCABULARY, VOCABULARY, True).eval()
    with torch.no_grad():
        for weight in adaptation_weights(model).values():
            weight.add_(torch.randn_like(weight), alpha=0.1)
    return model


def some_sources() -> Tensor:
    generator = torch.Generator().manual_seed(2)
    source = torch.randint(EOS + 1, VOCABULARY, (3, 7), generator=generator)
    for row, length in enumerate((7, 4, 2)):
        source[row, length - 1] = EOS
        source[row, length:] = PAD
    return source
