"""Gated linear recurrences, which take the place of a decoder's self-attention.

Their state has a fixed size: a step costs the same whether it is the first or the thousandth. No
gate depends on the state, so training computes all steps of a sentence in a parallel scan.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.models.layers.attention import AttentionConfig
from nmt.models.layers.basic import glorot
from nmt.models.layers.cache import BeamAncestry, Cache, TokenMixer
from nmt.models.layers.sentences import SentenceLayout
from nmt.models.transformer.patterns import AttentionPattern, patterns
from nmt.models.transformer.positions import PositionPart


class Recurrence(TokenMixer):
    """A recurrence h_t = decay_t * h_{t-1} + input_t that replaces causal self-attention."""

    @abstractmethod
    def gates(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the decays, in [0, 1], and the inputs of the recurrence, float32.

        Args:
            x: [..., D], the sublayer's input.
            positions: of the tokens in their sentences, from 0; [..., 1].
        """

    @abstractmethod
    def read(self, x: Tensor, hidden: Tensor) -> Tensor:
        """Return the sublayer's output [..., D] for its input `x` and the states `hidden`."""

    def forward(self, x: Tensor, sentences: SentenceLayout, causal: bool = True) -> Tensor:
        """Mix each token with the tokens before it; see :meth:`TokenMixer.forward`."""
        positions = sentences.positions(x)[:, None]
        decay, inputs = self.gates(x, positions)
        decay = decay.masked_fill(positions == 0, 0.0)  # no state leaves its sentence
        return self.read(x, linear_scan(decay, inputs, sentences.longest(x)))

    def step(self, x: Tensor, hidden: Tensor | None, position: int) -> tuple[Tensor, Tensor]:
        """Compute one step.

        Args:
            x: [B, K, D].
            hidden: the state after the step before [B, K, W]; None at the first.
            position: of the step, from 0.

        Returns:
            The output [B, K, D] and the new state.
        """
        decay, inputs = self.gates(x, torch.full((1,), position, device=x.device))
        hidden = inputs if hidden is None else torch.addcmul(inputs, decay, hidden)
        return self.read(x, hidden), hidden

    def new_cache(self) -> Cache:
        """Return a cache of one state for each row."""
        return RecurrentCache()


def linear_scan(decay: Tensor, inputs: Tensor, longest: int) -> Tensor:
    """Return all states of h_t = decay_t * h_{t-1} + input_t, in log2(longest) operations.

    After k rounds each state holds its newest 2^k inputs (Hillis and Steele 1986).

    Args:
        decay: [..., T, W]; 0 at the first token of each sentence, so that no state leaves it.
        inputs: [..., T, W].
        longest: number of tokens of the longest sentence.
    """
    reach = 1
    while reach < longest:
        earlier = (0, 0, reach, 0)  # zeros in front
        # Each round doubles how far back a state sees; a loop over tokens would need `longest`
        # rounds.
        inputs = inputs + decay * F.pad(inputs[..., :-reach, :], earlier)
        decay = decay * F.pad(decay[..., :-reach, :], earlier)
        reach *= 2
    return inputs


class RecurrentCache(Cache):
    """The state of one layer's recurrence, for each row of the beam."""

    def __init__(self) -> None:
        self._hidden: Tensor | None = None  # [B, K, W]

    def attend(self, sublayer: Recurrence, x: Tensor, ancestry: BeamAncestry) -> Tensor:
        """Return the output [B, K, D] of a step; replaces the state."""
        output, self._hidden = sublayer.step(x, self._hidden, ancestry.position)
        return output

    def select(self, rows: Tensor, sentences: Tensor | None) -> None:
        """Copy the state of every row."""
        if self._hidden is not None:
            # The whole past of a row is one vector, so copying it is cheap.
            self._hidden = self._hidden.flatten(0, 1)[rows]


@dataclass(frozen=True, kw_only=True)
class RecurrencePart(AttentionPattern):
    """A recurrence that a recipe can choose as `decoder_attention`."""

    is_bidirectional: ClassVar[bool] = False

    zero_bos: bool = False
    """Whether the decoder's first input is a vector of zeros instead of the embedding of BOS, as in
    Marian. An export for Marian or Bergamot needs it."""

    def sublayer(self, config: AttentionConfig, positions: PositionPart) -> Recurrence:
        """Return the recurrence; encodings of positions that wrap attention do not apply to it."""
        return self.recurrence(config.d_model)

    @abstractmethod
    def recurrence(self, width: int) -> Recurrence:
        """Return a new sublayer of this width."""


@patterns.register("ssru")
@dataclass(frozen=True, kw_only=True)
class SSRUPart(RecurrencePart):
    """Simpler simple recurrent unit, for fast decoders (Kim et al. 2019).

    f = sigmoid(W_f x + b_f), h_t = f * h_{t-1} + (1 - f) * W x, output ReLU(h_t).
    """

    def recurrence(self, width: int) -> Recurrence:
        """Return an SSRU."""
        return SSRU(width)


class SSRU(Recurrence):
    """See :class:`SSRUPart`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project_in = glorot(nn.Linear(width, 2 * width, bias=False))
        # Only the gate f has a bias, so the fused projection has none.
        self.forget_bias = nn.Parameter(torch.zeros(width))

    def fused_matrices(self) -> Iterator[tuple[Tensor, Sequence[int]]]:
        """Yield W_f and W."""
        yield self.project_in.weight, 2 * [self.project_in.in_features]

    def gates(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the forget gate f, and the projection times 1 - f."""
        # float32, because the scan multiplies many gates near 1.
        forget, new = self.project_in(x).float().chunk(2, dim=-1)
        forget = torch.sigmoid(forget + self.forget_bias)
        return forget, (1 - forget) * new

    def step(self, x: Tensor, hidden: Tensor | None, position: int) -> tuple[Tensor, Tensor]:
        """Compute one step in few operators; see :meth:`Recurrence.step`."""
        forget, new = self.project_in(x).float().chunk(2, dim=-1)
        # In place: a step keeps no gradients.
        forget = (forget + self.forget_bias).sigmoid_()
        # f * h + (1 - f) * new
        hidden = torch.lerp(new, torch.zeros_like(new) if hidden is None else hidden, forget)
        return self.read(x, hidden), hidden

    def read(self, x: Tensor, hidden: Tensor) -> Tensor:
        """Return ReLU of the state."""
        return hidden.relu().to(x.dtype)


@patterns.register("average")
@dataclass(frozen=True, kw_only=True)
class AveragePart(RecurrencePart):
    """Average attention: the mean of all inputs so far, with gates (Zhang et al. 2018)."""

    d_hidden: int | None = None
    """Width of the hidden layer that the mean passes through; null for four times the model's."""
    activation: Literal["relu", "swish"] = "relu"
    """Activation of that layer; Marian's is swish."""

    def __post_init__(self) -> None:
        if self.d_hidden is not None and self.d_hidden < 1:
            raise ValueError(f"d_hidden must be at least 1, is {self.d_hidden}")

    def recurrence(self, width: int) -> Recurrence:
        """Return an average attention."""
        return AverageAttention(width, self.d_hidden or 4 * width, self.activation)


class AverageAttention(Recurrence):
    """i * x + f * g, where g = FFN(mean of the inputs) and i, f = sigmoid(W [x; g])."""

    def __init__(self, width: int, hidden: int, activation: Literal["relu", "swish"]) -> None:
        super().__init__()
        self.activation = F.silu if activation == "swish" else F.relu
        self.inner = glorot(nn.Linear(width, hidden))
        self.outer = glorot(nn.Linear(hidden, width))
        self.gate = glorot(nn.Linear(2 * width, 2 * width))

    def fused_matrices(self) -> Iterator[tuple[Tensor, Sequence[int]]]:
        """Yield the matrix of both gates."""
        yield self.gate.weight, 2 * [self.gate.out_features // 2]

    def gates(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights that make the state the mean of all inputs so far."""
        count = positions + 1.0
        # The mean of t inputs from the mean of t - 1, so a step needs no earlier inputs.
        return ((count - 1) / count).expand_as(x), x.float() / count

    def read(self, x: Tensor, hidden: Tensor) -> Tensor:
        """Return the input and the transformed mean, each times its gate."""
        mean = self.outer(self.activation(self.inner(hidden.to(x.dtype))))
        present, past = torch.sigmoid(self.gate(torch.cat((x, mean), dim=-1))).chunk(2, dim=-1)
        output: Tensor = present * x + past * mean
        return output
