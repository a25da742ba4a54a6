"""The contract of models, checked on two short sentences: for the models of plugins."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from nmt.data.packing import Packing
from nmt.data.vocabulary import BOS, EOS
from nmt.errors import NmtError
from nmt.models.base import Model

LENGTHS = np.array([[5, 3], [4, 2]])
"""Tokens of the two sources and of the two targets."""

TOLERANCE = 1e-3
"""Greatest difference between equal outputs, as a share of the largest one."""


@torch.no_grad()
def broken_laws(model: Model, source_vocabulary: int, target_vocabulary: int) -> list[str]:
    """Return, in words, the laws of :mod:`nmt.models.base` that a model breaks.

    Args:
        model: on a CPU; its training mode is restored.
        source_vocabulary: number of source token ids.
        target_vocabulary: number of target token ids.

    Raises:
        NmtError: a part of the model is missing, or has another shape than the contract says.
    """
    output = getattr(model, "output", None)
    if not isinstance(output, nn.Linear) or output.out_features != target_vocabulary:
        raise NmtError(f"output must be an nn.Linear of {target_vocabulary} outputs, not {output}")
    was_training = model.training
    model.eval()
    try:
        return _broken(model, source_vocabulary, target_vocabulary)
    finally:
        model.train(was_training)


def _broken(model: Model, source_vocabulary: int, target_vocabulary: int) -> list[str]:
    packing = Packing.of(*LENGTHS)
    ends = [np.cumsum(lengths) - 1 for lengths in LENGTHS]
    begins = [0, *ends[1][:-1] + 1]
    generator = torch.Generator().manual_seed(1)
    packed_source, packed_target = (
        torch.randint(EOS + 1, size, (int(lengths.sum()),), generator=generator)
        for size, lengths in zip((source_vocabulary, target_vocabulary), LENGTHS, strict=True)
    )
    packed_source[ends[0]], packed_target[begins] = EOS, BOS
    source, target = packing.source.pad(packed_source), packing.target.pad(packed_target)
    (sentences, length), width = target.shape, model.output.in_features
    decoded = _shaped("decode", model.decode(source, target), sentences, length, width)
    outputs = packing.target.unpad(decoded)
    packed = model.decode_packs(packed_source, packed_target, packing)
    _shaped("decode_packs", packed, len(packed_target), width)
    state = model.start(source)
    steps: list[Tensor] = []
    for tokens in target.T[..., None]:
        rows = tokens.expand(-1, 2) if steps else tokens
        step = model.decode_step(rows, state)
        steps.append(_shaped("decode_step", step, *rows.shape, width)[:, -1])
        if len(steps) == 1:
            state.select(torch.tensor([[0, 0], [1, 1]]))  # opens a beam
    stepped = packing.target.unpad(torch.stack(steps, 1))
    other = target.clone()
    other[0, -1] = EOS
    alone = model.decode(source[1:, : LENGTHS[0, 1]], target[1:, : LENGTHS[1, 1]])
    laws = {
        "decode_packs and decode give different outputs": (packed, outputs),
        "decode_step and decode give different outputs, so a search uses another model than the "
        "one that is trained": (stepped, outputs),
        "an output of decode depends on later target tokens, which a search does not know": (
            model.decode(source, other)[0, :-1],
            decoded[0, :-1],
        ),
        "an output of decode depends on padding": (alone[0], decoded[1, : alone.shape[1]]),
    }
    return [law for law, (one, two) in laws.items() if not _is_near(one, two)]


def _shaped(method: str, output: object, *shape: int) -> Tensor:
    if isinstance(output, Tensor) and output.shape == shape:
        return output
    given = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
    raise NmtError(f"{method} must return {list(shape)}, not {given}")


def _is_near(one: Tensor, two: Tensor) -> bool:
    return bool((one - two).abs().max() <= TOLERANCE * two.abs().max())
