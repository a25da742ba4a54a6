"""Parts of recurrent models: additive attention, bidirectional layers and LSTM stacks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn

from nmt.models.layers.basic import Dropout


class AdditiveAttention(nn.Module):
    """Attention by a network of one hidden layer (Bahdanau et al. 2015, appendix A.1.2)."""

    def __init__(self, query_width: int, memory_width: int, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(query_width, width)
        self.memory = nn.Linear(memory_width, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)

    def project(self, memory: Tensor) -> Tensor:
        """Return the keys [B, S, A] of the encoder output [B, S, D]."""
        keys: Tensor = self.memory(memory)
        return keys

    def weights(self, query: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        """Return the attention weights [B, K, S] of K queries per sentence.

        Args:
            query: [B, K, Q].
            keys: [B, S, A], from :meth:`project`.
            mask: [B, S] bool, True at tokens.
        """
        # K * S * A numbers for each sentence; therefore whole targets are computed step by step.
        hidden = torch.tanh(self.query(query)[:, :, None] + keys[:, None])  # [B, K, S, A]
        scores = self.score(hidden)[..., 0].masked_fill(~mask[:, None], -math.inf)
        weights: Tensor = scores.softmax(dim=-1)
        return weights

    def forward(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Return the context [B, K, D]: the values [B, S, D] weighted by :meth:`weights`."""
        context: Tensor = self.weights(query, keys, mask).to(values.dtype) @ values
        return context

    def weights_of_all(self, queries: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        """Return :meth:`weights` [B, T, S] of the queries of T steps [B, T, Q], step by step."""
        steps = [self.weights(query, keys, mask) for query in torch.split(queries, 1, dim=1)]
        return torch.cat(steps, dim=1)


def recur(
    layer: nn.RNNBase, x: Tensor, state: tuple[Tensor, ...] | None = None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Call a recurrent layer; on a GPU that computes in bf16, in float32.

    Under bf16, autocast computes these layers in fp16 (torch 2.13). bf16 uses no loss scale, and
    without a loss scale most of their fp16 gradients would be 0.
    """
    output: tuple[Tensor, tuple[Tensor, ...]]
    if autocast_takes_fp16(x.device):
        with torch.autocast(x.device.type, enabled=False):
            output = layer(x.float(), state and tuple(part.float() for part in state))
    else:
        output = layer(x, state)
    return output


def autocast_takes_fp16(device: torch.device) -> bool:
    """Return whether autocast is to compute in bf16 and computes recurrent layers in fp16."""
    return (
        device.type == "cuda"
        and torch.is_autocast_enabled("cuda")
        and torch.get_autocast_dtype("cuda") is torch.bfloat16
    )


class BothDirections(nn.Module):
    """Bidirectional recurrent layer: one layer from the left, one from the right.

    The second layer reads every sentence reversed within its length. Padding then comes last for
    both layers, and fused kernels need no lengths.
    """

    def __init__(self, kind: type[nn.GRU] | type[nn.LSTM], inputs: int, width: int) -> None:
        super().__init__()
        # Both read the same input; padding at the end cannot reach the tokens before it.
        self.forwards = kind(inputs, width, batch_first=True)
        self.backwards = kind(inputs, width, batch_first=True)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return outputs [B, S, 2D] for the input [B, S, I]; mask [B, S] is True at tokens."""
        # Two layers instead of bidirectional=True, which skips padding only in packed sequences,
        # whose lengths must lie on the CPU.
        turned = turn_around(recur(self.backwards, turn_around(x, mask))[0], mask)
        return torch.cat((recur(self.forwards, x)[0], turned), dim=-1)


def turn_around(x: Tensor, mask: Tensor) -> Tensor:
    """Reverse the tokens of each sentence of `x` [B, S, D]; padding stays in place."""
    positions = torch.arange(x.shape[1], device=x.device).expand_as(mask)
    last = mask.sum(1, keepdim=True) - 1
    # Padding stays at the end: the layer from the right must read tokens first.
    source = torch.where(mask, last - positions, positions)
    return x.gather(1, source[..., None].expand_as(x))


class LSTMStack(nn.Module):
    """Stack of LSTM layers; every layer also reads the context, if there is one.

    Every layer from `first_residual` (counted from 0) adds its input to its output, without the
    context (Wu et al. 2016, section 3.1).
    """

    def __init__(
        self,
        widths: list[int],
        width: int,
        first_residual: int,
        dropout: float,
        context: int = 0,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.LSTM(inputs + context, width, batch_first=True) for inputs in widths
        )
        self.first_residual = first_residual
        self.dropout = Dropout(dropout)

    def forward(
        self, x: Tensor, context: Tensor | None = None, state: list[Tensor] | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the outputs of the top layer and the state after the last position.

        Args:
            x: [N, T, I].
            context: [N, T, C], if the layers read a context.
            state: hidden and cell [N, D] of each layer in turn; None for zeros.

        Returns:
            [N, T, D], and the state after the last position.
        """
        after: list[Tensor] = []
        for at, layer in enumerate(cast("Iterable[nn.LSTM]", self.layers)):
            before = None
            if state is not None:
                before = (state[2 * at][None], state[2 * at + 1][None])
            inputs = self.dropout(x)
            if context is not None:
                inputs = torch.cat((inputs, context), dim=-1)
            output, (hidden, cell) = recur(layer, inputs, before)
            # GNMT's residual connections begin above the lowest layers (Wu et al. 2016, section
            # 3.1).
            x = x + output if at >= self.first_residual else output
            after += [hidden[0], cell[0]]
        return x, after
