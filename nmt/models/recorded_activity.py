"""Gates and states of layers that mix tokens without attention, read from a forward pass by hooks.

No layer computes more than it needs itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nmt.data.vocabulary import PAD


@dataclass(frozen=True)
class ActivityMap:
    """Values of one layer that mixes tokens without attention, for whole sources and targets."""

    kind: Literal["encoder", "decoder"]
    """Stack of the layer."""

    layer: int
    """Number of the layer in its stack, from 1."""

    name: Literal["gate", "state"]
    """A gate, in [0, 1]: how much of its state a recurrence keeps, or how much of its output a
    gated convolution lets through. A state: what a recurrence knows after each token, or what a
    convolution adds to the stream."""

    values: Tensor
    """[B, S, W] in the encoder, [B, T, W] in the decoder, without dropout; 0 at padding."""

    reach: tuple[int, int] | None = None
    """How many positions before and after its own, of its side, the value of a convolution depends
    on, through all layers up to it; None for a recurrence."""


@dataclass(frozen=True)
class Probe:
    """Where a forward pass computes an :class:`ActivityMap`, and how to read it.

    The first fields are those of the map.
    """

    kind: Literal["encoder", "decoder"]
    layer: int
    name: Literal["gate", "state"]
    module: nn.Module
    """The module that is called with all positions at once, or with one after another."""
    read: Callable[[Any, Any], Tensor]
    """Returns the values [B, positions, W] of a call, from its arguments and its output."""
    reach: tuple[int, int] | None = None


def recorded_activity(
    probes: Sequence[Probe], source: Tensor, target: Tensor, run: Callable[[], object]
) -> list[ActivityMap]:
    """Return the activity of layers in a forward pass on padded sentences.

    Args:
        probes: the layers.
        source: [B, S] int64.
        target: [B, T] int64.
        run: the forward pass.
    """
    calls: dict[nn.Module, list[tuple[Any, Any]]] = {probe.module: [] for probe in probes}

    def record(module: nn.Module, arguments: Any, output: Any) -> None:
        calls[module].append((arguments, output))

    hooks = [module.register_forward_hook(record) for module in calls]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    maps = []
    for probe in probes:
        tokens = (source if probe.kind == "encoder" else target) != PAD
        values = torch.cat([probe.read(*call) for call in calls[probe.module]], dim=1)
        values = values[:, : tokens.shape[1]].masked_fill(~tokens[..., None], 0.0)
        maps.append(ActivityMap(probe.kind, probe.layer, probe.name, values, probe.reach))
    return maps


def convolution_probes(
    name: Literal["gate", "state"],
    read: Callable[[Any, Any], Tensor],
    encoder: Sequence[tuple[nn.Module, int]],
    decoder: Sequence[tuple[nn.Module, int]],
) -> list[Probe]:
    """Return the probes of two stacks of convolutions, of which the decoder's are causal.

    Args:
        name: what the probes read.
        read: see :class:`Probe`.
        encoder: for each layer the module, and how many neighbours its convolution spans.
        decoder: as `encoder`.
    """
    probes, reach = [], 0
    for number, (module, span) in enumerate(encoder, 1):
        reach += span // 2
        probes.append(Probe("encoder", number, name, module, read, (reach, reach)))
    reach = 0
    for number, (module, span) in enumerate(decoder, 1):
        reach += span
        probes.append(Probe("decoder", number, name, module, read, (reach, 0)))
    return probes


def output_of(_: Any, output: Any) -> Tensor:
    """Return the output of a module, or the first of its outputs."""
    values: Tensor = output[0] if isinstance(output, tuple) else output
    return values
