"""Attention weights of modules, computed by the attention functions that the modules call.

Hooks read the arguments of a forward pass, so no layer computes more than it needs itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nmt.models.base import AttentionMap
from nmt.models.layers.attention import AttentionInput, FullAttention, MultiHeadAttention
from nmt.models.transformer.layers import DecoderLayer, EncoderLayer
from nmt.models.transformer.multi_head import SelfAttention

Place = tuple[Literal["encoder", "decoder", "cross"], int, MultiHeadAttention]
"""Kind, number of the layer from 1, and its attention."""


def recorded_attention(
    encoder: Sequence[EncoderLayer],
    decoder: Sequence[EncoderLayer | DecoderLayer],
    run: Callable[[], object],
) -> list[AttentionMap]:
    """Return the attention of all layers in a forward pass on padded sentences.

    Layers that do not attend to tokens, such as recurrences, have no map. A model that
    was converted for inference calls no hooks.
    """
    places = [*_self_attention("encoder", encoder), *_self_attention("decoder", decoder)]
    places += [
        ("cross", number, layer.cross)
        for number, layer in enumerate(decoder, 1)
        if isinstance(layer, DecoderLayer)  # or a language model's, without a source
    ]
    weights: dict[nn.Module, Tensor] = {}
    inputs: dict[nn.Module, AttentionInput] = {}

    def record_weights(function: nn.Module, arguments: Any, _: Tensor) -> None:
        weights[function] = weights_of(function, arguments[0])

    def record_inputs(function: nn.Module, arguments: Any) -> None:
        (inputs[function],) = arguments

    functions = [attention.attention_fn for _, _, attention in places]
    plain = [_innermost(function) for function in functions]
    hooks = [function.register_forward_hook(record_weights) for function in functions]
    hooks += [function.register_forward_pre_hook(record_inputs) for function in plain]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    maps = []
    for (kind, layer, _), function, inner in zip(places, functions, plain, strict=True):
        # A subclass may have other scores.
        if type(inner) is FullAttention:
            queries, keys, *_ = inputs[inner]
            # Heads that share keys may be queries of one head, in the same order.
            scores = (queries @ keys.transpose(-1, -2)).reshape(weights[function].shape)
            maps.append(AttentionMap(kind, layer, weights[function], scores, keys.shape[-1]))
        else:
            maps.append(AttentionMap(kind, layer, weights[function]))
    return maps


def weights_of(function: nn.Module, inputs: AttentionInput) -> Tensor:
    """Return the weights [B, H, Q, S] that an attention function gives to the values.

    The function gets unit vectors as values, in groups as large as a value is wide. Terms that the
    function adds to the weighted means, such as relative positions, are subtracted.
    """
    values = inputs.values
    length, width = values.shape[2:]
    units = torch.eye(length, dtype=values.dtype, device=values.device)
    # Up to whole groups of as many unit vectors as a value is wide.
    units = nn.functional.pad(units, (0, -length % width))

    def attended(columns: Tensor) -> Tensor:
        changed = inputs._replace(values=columns.expand_as(values), dropout=0.0)
        result: Tensor = function.forward(changed)  # without the hooks of the function
        return result

    added = attended(torch.zeros_like(values))
    parts = [attended(columns) - added for columns in torch.split(units, width, 1)]
    return torch.cat(parts, dim=-1)[..., :length]


def _self_attention(
    stack: Literal["encoder", "decoder"], layers: Sequence[EncoderLayer | DecoderLayer]
) -> Iterator[Place]:
    for number, layer in enumerate(layers, 1):
        if isinstance(layer.attention, SelfAttention):
            yield stack, number, layer.attention


def _innermost(function: nn.Module) -> nn.Module:
    """Return the attention function that groups of heads and encodings of positions wrap."""
    while isinstance(inner := getattr(function, "inner", None), nn.Module):
        function = inner
    return function
