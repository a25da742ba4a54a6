"""Parts of recurrent models: additive attention, and both directions over padded sentences."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from nmt.models.dropout import Dropout


class AdditiveAttention(nn.Module):
    """Attention by a network of one hidden layer (Bahdanau et al. 2015, appendix A.1.2)."""

    def __init__(self, query_width: int, memory_width: int, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(query_width, width)
        self.memory = nn.Linear(memory_width, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)

    def project(self, memory: Tensor) -> Tensor:
        """Keys [B, S, A] of the states attended to [B, S, D]."""
        keys: Tensor = self.memory(memory)
        return keys

    def weights(self, query: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        """How much K queries of each sentence attend to each place: [B, K, S].

        Args:
            query: [B, K, Q].
            keys: [B, S, A], from :meth:`project`.
            mask: [B, S] bool, True at tokens.
        """
        hidden = torch.tanh(self.query(query)[:, :, None] + keys[:, None])  # [B, K, S, A]
        scores = self.score(hidden)[..., 0].masked_fill(~mask[:, None], -math.inf)
        weights: Tensor = scores.softmax(dim=-1)
        return weights

    def forward(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """What the queries find in the values [B, S, D]: [B, K, D]; else as :meth:`weights`."""
        found: Tensor = self.weights(query, keys, mask).to(values.dtype) @ values
        return found

    def weights_of_all(self, queries: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        """As :meth:`weights` for the queries of many steps [B, T, Q], one after the other."""
        steps = [self.weights(query, keys, mask) for query in torch.split(queries, 1, dim=1)]
        return torch.cat(steps, dim=1)


class BothDirections(nn.Module):
    """Two recurrent layers, one from the left and one from the right.

    The second one reads every sentence turned around within its length, so that padding comes last
    in both, and fused kernels need no lengths.
    """

    def __init__(self, kind: type[nn.GRU] | type[nn.LSTM], inputs: int, width: int) -> None:
        super().__init__()
        self.forwards = kind(inputs, width, batch_first=True)
        self.backwards = kind(inputs, width, batch_first=True)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """States [B, S, 2D] of [B, S, I]; mask [B, S] is True at tokens."""
        turned = turn_around(self.backwards(turn_around(x, mask))[0], mask)
        return torch.cat((self.forwards(x)[0], turned), dim=-1)


def turn_around(x: Tensor, mask: Tensor) -> Tensor:
    """[B, S, D] with the tokens of each sentence in reverse, and its padding where it was."""
    places = torch.arange(x.shape[1], device=x.device).expand_as(mask)
    last = mask.sum(1, keepdim=True) - 1
    source = torch.where(mask, last - places, places)
    return x.gather(1, source[..., None].expand_as(x))


class LSTMStack(nn.Module):
    """LSTM layers on top of another, each with the same context beside its input, if there is one.

    Every layer from `first_residual` (counted from 0) adds its input to its output; contexts are
    not added (Wu et al. 2016, section 3.1).
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
        """States of the top layer, and what to go on from.

        Args:
            x: [N, T, I].
            context: [N, T, C], if the layers take one.
            state: hidden and cell [N, D] of each layer in turn; zeros without.

        Returns:
            [N, T, D], and the state after the last position.
        """
        after: list[Tensor] = []
        for at, layer in enumerate(self.layers):
            before = None
            if state is not None:
                before = (state[2 * at][None], state[2 * at + 1][None])
            inputs = self.dropout(x)
            if context is not None:
                inputs = torch.cat((inputs, context), dim=-1)
            output, (hidden, cell) = layer(inputs, before)
            x = x + output if at >= self.first_residual else output
            after += [hidden[0], cell[0]]
        return x, after
