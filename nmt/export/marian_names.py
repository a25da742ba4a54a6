"""The weights and settings of Marian's Transformers by name, and their names in this toolkit."""

from __future__ import annotations

from collections.abc import Iterator

from nmt.models.residual import Placement
from nmt.models.transformer import TransformerConfig

Names = Iterator[tuple[str, list[str]]]
"""Names of weights, and the names whose tensors, side by side, make them up."""

BIAS = "decoder_ff_logit_out_b"
OUTPUT = "decoder_ff_logit_out_W"
EMBEDDINGS = {"source": "encoder_Wemb", "target": "decoder_Wemb", "shared": "Wemb"}

CONFIGURATION = "special:model.yml"
"""Name of the array that holds the configuration."""

RESIDUALS: dict[tuple[str, ...], Placement] = {
    ("", "an", ""): "post_norm",
    ("n", "a", "n"): "pre_norm",
}
"""Operations before and after a sublayer, and after a stack, without dropout."""

PATTERNS = {"self-attention": "full", "average-attention": "average", "rnn": "ssru"}
"""Values of ``transformer-decoder-autoreg``, and what the decoder has in this toolkit."""


def _attention(prefix: str, part: str, projections: dict[str, str]) -> Names:
    for name, letters in projections.items():
        for kind, symbol in (("weight", "W"), ("bias", "b")):
            yield f"{part}.{name}.{kind}", [f"{prefix}_{symbol}{letter}" for letter in letters]


def _norm(prefix: str, part: str, suffix: str) -> Names:
    for kind, symbol in (("weight", "scale"), ("bias", "bias")):
        yield f"{part}.{kind}", [f"{prefix}_ln_{symbol}{suffix}"]


def _feed_forward(prefix: str) -> Names:
    for number, name in (("1", "inner"), ("2", "outer")):
        for kind, symbol in (("weight", "W"), ("bias", "b")):
            yield f"feed_forward.{name}.{kind}", [f"{prefix}_{symbol}{number}"]


def _self_attention(prefix: str, pattern: str, suffix: str) -> Names:
    """Yield the weights of what mixes the tokens of one side: attention or a recurrence."""
    if pattern == "ssru":
        yield "attention.project_in.weight", [f"{prefix}_rnn_Wf", f"{prefix}_rnn_W"]
        yield "attention.forget_bias", [f"{prefix}_rnn_bf"]
        norm = f"{prefix}_rnn" if suffix else f"{prefix}_rnn_ffn"
    elif pattern == "average":
        for ours, theirs in (("inner", "1"), ("outer", "2")):
            yield f"attention.{ours}.weight", [f"{prefix}_aan_W{theirs}"]
            yield f"attention.{ours}.bias", [f"{prefix}_aan_b{theirs}"]
        yield "attention.gate.weight", [f"{prefix}_aan_Wi", f"{prefix}_aan_Wf"]
        yield "attention.gate.bias", [f"{prefix}_aan_bi", f"{prefix}_aan_bf"]
        norm = f"{prefix}_aan_ffn"
    else:
        names = {"project_in": "qkv", "attend.output": "o"}
        yield from _attention(f"{prefix}_self", "attention", names)
        norm = f"{prefix}_self_Wo"
    yield from _norm(norm, "attention_residual.norm", suffix)


def _layer(prefix: str, pattern: str, is_decoder: bool, suffix: str) -> Names:
    yield from _self_attention(prefix, pattern, suffix)
    if is_decoder:
        context = {"project_query": "q", "project_memory": "kv", "attend.output": "o"}
        yield from _attention(f"{prefix}_context", "cross", context)
        yield from _norm(f"{prefix}_context_Wo", "cross_residual.norm", suffix)
    yield from _feed_forward(f"{prefix}_ffn")
    yield from _norm(f"{prefix}_ffn_ffn", "feed_forward_residual.norm", suffix)


def layer_weights(config: TransformerConfig) -> Names:
    """Yield the name of each weight of the layers, and the names that make it up side by side."""
    is_pre_norm = config.residual == "pre_norm"
    suffix = "_pre" if is_pre_norm else ""
    for stack in ("encoder", "decoder"):
        pattern = getattr(config, f"{stack}_attention").name
        for number in range(getattr(config, f"{stack}_layers")):
            prefix = f"{stack}_l{number + 1}"
            for ours, theirs in _layer(prefix, pattern, stack == "decoder", suffix):
                yield f"{stack}.{number}.{ours}", theirs
        if is_pre_norm:
            yield from _norm(f"{stack}_top", f"{stack}_end", "")
