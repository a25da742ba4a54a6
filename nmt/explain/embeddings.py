"""The vectors of tokens and positions that a model reads, recorded by hooks."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from nmt.models.base import Model
from nmt.models.embedding import TokenEmbedding
from nmt.models.ensemble import members_of
from nmt.models.positions import LearnedPositions, SinusoidalPositions


def forward_with_embeddings(
    model: Model, source: Tensor, target: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the logits of one pair, and the vectors that the model looked up.

    Args:
        model: a model; an ensemble has no vectors, but its members do.
        source: [1, S] int64.
        target: [1, T] int64.

    Returns:
        Logits [1, T, V]; and vectors "source" [S, D], "target" [T, D] and "positions" [n, D],
        without those that the model does not have. Embeddings are not scaled.
    """
    vectors: dict[str, Tensor] = {}

    def record_tokens(_: nn.Module, arguments: Any, output: Tensor) -> None:
        for name, tokens in (("source", source), ("target", target)):
            if arguments[0].shape == tokens.shape and bool((arguments[0] == tokens).all()):
                vectors.setdefault(name, output[0])

    def record_positions(_: nn.Module, arguments: Any, output: Tensor) -> None:
        if len(output) > len(vectors.get("positions", ())):
            vectors["positions"] = output

    hooks = []
    for module in model.modules() if members_of(model) == [model] else ():
        if isinstance(module, TokenEmbedding):
            hooks.append(module.register_forward_hook(record_tokens))
        elif isinstance(module, (SinusoidalPositions, LearnedPositions)):
            hooks.append(module.register_forward_hook(record_positions))
    try:
        return model(source, target), vectors
    finally:
        for hook in hooks:
            hook.remove()
