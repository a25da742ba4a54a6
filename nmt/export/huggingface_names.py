"""The weights of Hugging Face's ``MarianMTModel`` by name, and their names in this toolkit."""

from __future__ import annotations

from collections.abc import Iterator

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "swish": "swish",
    "silu": "swish",
}
"""Names of ``activation_function``, and of the feed-forward layer with that activation."""

EMBEDDINGS = {
    "source": "model.encoder.embed_tokens.weight",
    "target": "model.decoder.embed_tokens.weight",
    "shared": "model.shared.weight",
    "output": "lm_head.weight",
}
BIAS = "final_logits_bias"
POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")

_ENCODER = {
    "attention.project_in": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.attend.output": ("self_attn.out_proj",),
    "attention_residual.norm": ("self_attn_layer_norm",),
    "feed_forward.inner": ("fc1",),
    "feed_forward.outer": ("fc2",),
    "feed_forward_residual.norm": ("final_layer_norm",),
}
_DECODER = {
    **_ENCODER,
    "cross.project_query": ("encoder_attn.q_proj",),
    "cross.project_memory": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "cross.attend.output": ("encoder_attn.out_proj",),
    "cross_residual.norm": ("encoder_attn_layer_norm",),
}


def layer_weights(
    encoder_layers: int, decoder_layers: int
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the name of each weight of the layers, and the names whose rows together make it up."""
    for stack, count, parts in (
        ("encoder", encoder_layers, _ENCODER),
        ("decoder", decoder_layers, _DECODER),
    ):
        for layer in range(count):
            for part, theirs in parts.items():
                for kind in ("weight", "bias"):
                    names = (f"model.{stack}.layers.{layer}.{name}.{kind}" for name in theirs)
                    yield f"{stack}.{layer}.{part}.{kind}", tuple(names)
