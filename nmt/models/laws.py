"""The contract of models, checked on two short sentences: for the models of plugins."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from nmt.data.packing import Packing
from nmt.data.vocabulary import BOS, EOS, UNK
from nmt.errors import NmtError
from nmt.models.base import Model

# Unequal lengths, so that padding occurs on both sides.
LENGTHS = np.array([[5, 3], [4, 2]])
"""Tokens of the two sources and of the two targets."""


@torch.no_grad()
def broken_laws(
    model: Model, source_vocabulary: int, target_vocabulary: int, tolerance: float = 1e-3
) -> list[str]:
    """Return, in words, the laws of :mod:`nmt.models.base` that a model breaks.

    Args:
        model: on any device; its training mode is restored.
        source_vocabulary: number of source token ids.
        target_vocabulary: number of target token ids.
        tolerance: greatest difference between equal outputs, as a share of the largest one.

    Raises:
        NmtError: a part of the model is missing, or has another shape than the contract says.
    """
    output = getattr(model, "output", None)
    if not isinstance(output, nn.Linear) or output.out_features != target_vocabulary:
        raise NmtError(f"output must be an nn.Linear of {target_vocabulary} outputs, not {output}")
    was_training = model.training
    model.eval()
    try:
        compared = _compared(model, (source_vocabulary, target_vocabulary))
    finally:
        model.train(was_training)
    return [law for law, pair in compared.items() if not _are_near(*pair, tolerance)]


def _compared(model: Model, sizes: tuple[int, int]) -> dict[str, tuple[Tensor, Tensor]]:
    """Return two outputs for each law, which are equal if the model obeys it.

    Args:
        model: in evaluation mode.
        sizes: numbers of source and target token ids.
    """
    packing = Packing.from_lengths(*LENGTHS)
    ends = [np.cumsum(lengths) - 1 for lengths in LENGTHS]
    begins = [0, *ends[1][:-1] + 1]
    packed_source, packed_target = (
        # A vocabulary may have special ids alone.
        torch.from_numpy(np.resize(np.arange(EOS + 1, size) if size > EOS + 1 else UNK, count))
        for size, count in zip(sizes, LENGTHS.sum(1), strict=True)
    )
    packed_source[ends[0]], packed_target[begins] = EOS, BOS
    device = model.output.weight.device
    packed_source, packed_target = packed_source.to(device), packed_target.to(device)
    source, target = packing.source.pad(packed_source), packing.target.pad(packed_target)
    (sentences, length), width = target.shape, model.output.in_features
    decoded = _shaped("decode", model.decode(source, target), sentences, length, width)
    outputs = packing.target.unpad(decoded)
    packed = model.decode_packs(packed_source, packed_target, packing)
    _shaped("decode_packs", packed, len(packed_target), width)
    state = model.start(source)
    steps: list[Tensor] = []
    for tokens in target.T[..., None]:
        # A beam from the second step on, so that steps after a `select` are compared, too.
        rows = tokens.expand(-1, 2) if steps else tokens
        step = model.decode_step(rows, state)
        # The last row is a copy that `select` made.
        steps.append(_shaped("decode_step", step, *rows.shape, width)[:, -1])
        if len(steps) == 1:
            state.select(torch.tensor([[0, 0], [1, 1]], device=device))  # opens a beam
    stepped = packing.target.unpad(torch.stack(steps, 1))
    other = target.clone()
    # Only the last token differs, so all outputs before it must be equal.
    other[0, -1] = EOS
    # The shorter pair, without its padding.
    alone = model.decode(source[1:, : LENGTHS[0, 1]], target[1:, : LENGTHS[1, 1]])
    return {
        "decode_packs and decode give different outputs": (packed, outputs),
        "decode_step and decode give different outputs, so a search uses another model than the "
        "one that is trained": (stepped, outputs),
        "an output of decode depends on later target tokens, which a search does not know": (
            model.decode(source, other)[0, :-1],
            decoded[0, :-1],
        ),
        "an output of decode depends on padding": (alone[0], decoded[1, : alone.shape[1]]),
    }


def _shaped(method: str, output: object, *shape: int) -> Tensor:
    if isinstance(output, Tensor) and output.shape == shape:
        return output
    given = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
    raise NmtError(f"{method} must return {list(shape)}, not {given}")


def _are_near(one: Tensor, two: Tensor, tolerance: float) -> bool:
    difference = (one.float() - two.float()).abs().max()
    # Relative: the magnitude of an output is the model's own choice.
    return bool(difference <= tolerance * two.float().abs().max())
