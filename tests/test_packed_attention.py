"""Which models train on packs of sentences of any lengths."""

from __future__ import annotations

from for_each import for_each

from nmt.models import ModelConfig
from nmt.recipe.config import build


@for_each(
    ("changes", "packs"),
    [
        ({}, True),
        ({"dropout": 0.3, "attention_dropout": 0.1, "residual": "pre_norm"}, True),
        ({"positions": "rotary"}, True),
        ({"positions": "learned"}, True),
        ({"positions": "alibi"}, False),
        ({"key_value_heads": 2}, True),
        ({"d_v": 16}, True),
        ({"encoder_attention": "neighbourhood"}, False),
    ],
)
def test_only_the_plain_attention_mixes_lengths_in_a_micro_batch(
    changes: dict[str, object], packs: bool
) -> None:
    """Another one pads its sentences, and its memory would not be bounded."""
    config: ModelConfig = build(ModelConfig, {"arch": "transformer_tiny", **changes}, "model")  # type: ignore[type-abstract]
    assert config.build(50, 50, True).packs is packs
