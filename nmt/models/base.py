"""The contract of a model: what training, search and scoring may ask of it.

Training asks ``forward``; search asks ``start``, then ``step`` and ``state.select`` in turn. The
law, tested for every registered model: stepping through a target gives the logits of ``forward``,
before and after any ``select``; a later target token never moves an earlier logit; padding never
moves anything. Masks are derived from padding here and below, and are nobody else's business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor, nn

from nmt.errors import NmtError
from nmt.recipe.registry import Registry


class State(Protocol):
    """What a model remembers of the sentences it is decoding: B sentences with K rows each."""

    def select(self, rows: Tensor) -> None:
        """Keeps, repeats, reorders or drops rows, in place.

        Args:
            rows: [B', K'] int64; the flat index (sentence * K + row) of the old row that each new
                row continues. The rows of one new sentence all come from one old sentence. So
                ``arange(B)[:, None].expand(B, K)`` opens a beam on a fresh state, a permutation
                within sentences follows it, and leaving a sentence out drops it.
        """


class Model(nn.Module, ABC):
    """Maps a source and the target so far to logits of the next token."""

    output: nn.Linear
    """The last layer [V, D]. Losses use it directly, so that they need not hold all logits."""

    def fsdp_modules(self) -> Iterable[nn.Module]:
        """Modules that a forward pass calls equally often, whatever is in its batch.

        Their weights can be gathered from several processes one by one when they are needed.
        """
        return ()

    @abstractmethod
    def states(self, source: Tensor, target: Tensor) -> Tensor:
        """The decoder's last hidden states, the input of the output layer.

        Args:
            source: [B, S] int64, each row ends with EOS, padded on the right.
            target: [B, T] int64, each row begins with BOS, padded on the right.

        Returns:
            [B, T, D] float.
        """

    def project(self, states: Tensor) -> Tensor:
        """Logits [..., V] of hidden states [..., D]."""
        logits: Tensor = self.output(states)
        return logits

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits [B, T, V]: at position t, those of the token that follows ``target[:, t]``."""
        return self.project(self.states(source, target))

    def source_attention(self, source: Tensor, target: Tensor) -> Tensor:
        """Where the model looks in the source as it gives each target token.

        A pass over whole targets, as :meth:`states`; search has no need of it.

        Returns:
            [B, T, S] float: at position t, the weights by which the step that reads that target
            token, and gives the next one, attends to the source. Over the tokens of the source they
            sum to 1, at padding they are 0. The mean over heads, of the layer that the model names.

        Raises:
            NmtError: the model has no attention.
        """
        raise NmtError(
            f"{type(self).__name__} has no attention, which word alignments and the coverage "
            "penalty are made of; do without them, or use another architecture"
        )

    def align_by(self, layer: int) -> None:
        """Has :meth:`source_attention` look at a decoder layer, from 1.

        Raises:
            NmtError: the model has no such layer, or no choice.
        """
        raise NmtError(
            f"{type(self).__name__} has no decoder layers to choose from for alignments; leave the "
            "layer out"
        )

    def auxiliary_loss(self) -> Tensor | float:
        """What the last :meth:`states` in training adds to the loss of every target token."""
        return 0.0

    @abstractmethod
    def start(self, source: Tensor, max_steps: int) -> State:
        """The state before any target token, with one row per sentence.

        Args:
            source: [B, S] int64, as for :meth:`states`.
            max_steps: the most steps that will follow; caches are allocated once.
        """

    @abstractmethod
    def decode_step(self, tokens: Tensor, state: State) -> Tensor:
        """The last hidden states [B, K, D] after `tokens` [B, K] int64; moves the state one step.

        The first step of every sentence is given BOS.
        """

    def step(self, tokens: Tensor, state: State) -> Tensor:
        """Logits [B, K, V] of the token after `tokens` [B, K]; moves the state one step."""
        return self.project(self.decode_step(tokens, state))

    def num_parameters(self) -> int:
        """The number of trained numbers, tied ones counted once."""
        return sum(weight.numel() for weight in self.parameters() if weight.requires_grad)


@dataclass(frozen=True, kw_only=True)
class ModelConfig(ABC):
    """The sizes and parts of a model; a registered architecture is a full set of these values."""

    registry: ClassVar[Registry[ModelConfig]]

    arch: str = ""
    """Name of the architecture whose values the other keys override."""

    def resolved(self) -> ModelConfig:
        """The same, with values in place of those that others decide; a run keeps these."""
        return self

    @abstractmethod
    def build(self, source_vocabulary: int, target_vocabulary: int, shared: bool) -> Model:
        """A freshly initialised model (from torch's global generator).

        Args:
            source_vocabulary: number of source token ids.
            target_vocabulary: number of target token ids.
            shared: whether the two vocabularies are one.

        Raises:
            NmtError: the parts do not go together.
        """


def check_sizes(config: ModelConfig, *names: str) -> None:
    """Raises a ValueError that names the first of these fields that is below 1."""
    for name in names:
        if getattr(config, name) < 1:
            raise ValueError(f"{name} must be at least 1, not {getattr(config, name)}")


def check_rates(config: ModelConfig, *names: str) -> None:
    """Raises a ValueError that names the first of these fields that is no dropout rate."""
    for name in names:
        if not 0.0 <= getattr(config, name) < 1.0:
            raise ValueError(f"{name} lies in [0, 1), not {getattr(config, name)}")


architectures: Registry[ModelConfig] = Registry("architecture", "arch", "--arch")
ModelConfig.registry = architectures
