"""The interface of a model, used by training, search and scoring.

Criteria call ``decode_packs``. Search calls ``start``, then ``step`` and ``state.select`` in turn.
``laws.py`` states what every model must obey.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from torch import Tensor, nn

from nmt.data.packing import Packing
from nmt.errors import NmtError
from nmt.models.adaptation import Adaptation
from nmt.models.layers.basic import ResidualModule
from nmt.recipe.registry import Registry

ResidualPart = Literal["layers", "attention"]


@dataclass(frozen=True)
class AttentionMap:
    """Attention weights of one layer, for whole sources and targets."""

    kind: Literal["encoder", "decoder", "cross"]
    """Self-attention of the encoder or of the decoder, or attention of the decoder to the
    source."""

    layer: int
    """Number of the layer in its stack, from 1."""

    weights: Tensor
    """[B, H, Q, S]: the weights by which the layer mixes values, without dropout. The weights of
    a query that is a token sum to 1, and are 0 at padding and, in the decoder, after the query."""

    scores: Tensor | None = None
    """[B, H, Q, S]: products of queries and keys, if the weights are the softmax of these products
    divided by the square root of `key_width`; without a mask."""

    key_width: int | None = None
    """Width of a head's queries and keys, if there are scores."""


class State(Protocol):
    """Decoder state: the memory of a model about B sentences with K rows each."""

    def select(self, rows: Tensor) -> None:
        """Keep, repeat, reorder or drop rows, in place.

        Args:
            rows: [B', K'] int64; the flat index (sentence * K + row) of the old row that each new
                row continues. The rows of one new sentence all come from one old sentence, and
                sentences keep their order. ``arange(B)[:, None].expand(B, K)`` opens a beam on a
                fresh state. A permutation within sentences reorders the beam. Omitting a sentence
                drops the sentence.
        """


class Model(nn.Module, ABC):
    """Encoder-decoder that maps a source and the target so far to logits of the next token."""

    output: nn.Linear
    """The output layer [V, D]. Losses use the layer directly, to avoid storing all logits."""

    reads_source: ClassVar[bool] = True
    """Whether the logits depend on the source; a language model has no source."""

    packs: bool = False
    """Whether :meth:`decode_packs` needs no padding anywhere, so that a micro-batch may hold
    sentences of any lengths. Otherwise a micro-batch holds sentences of similar lengths."""

    def fsdp_modules(self) -> Iterable[nn.Module]:
        """Return modules that every forward pass calls equally often, whatever the batch holds.

        FSDP gathers the weights of these modules one by one, when a forward pass needs them.
        """
        return ()

    def residual_modules(self, part: ResidualPart) -> Iterable[ResidualModule]:
        """Return the layers, or the attention in them; none contains another one."""
        return ()

    @abstractmethod
    def decode(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the decoder output for whole targets: the input of the output layer.

        Args:
            source: [B, S] int64, each row ends with EOS, padded on the right.
            target: [B, T] int64, each row begins with BOS, padded on the right.

        Returns:
            [B, T, D] float.
        """

    def decode_packs(self, source: Tensor, target: Tensor, packing: Packing) -> Tensor:
        """Return the decoder output at the target's tokens, for whole targets.

        Models with :attr:`packs` compute it without padding. The default computes :meth:`decode` of
        padded sentences, with the same result.

        Args:
            source: [P'] int64, the source's tokens, one sentence after another.
            target: [P] int64, the target's input tokens; each sentence begins with BOS.
            packing: the lengths of the sentences.

        Returns:
            [P, D] float.
        """
        # Models that cannot work without padding, such as recurrent ones, compute here.
        padded = self.decode(packing.source.pad(source), packing.target.pad(target))
        return packing.target.unpad(padded)

    def project(self, decoder_output: Tensor) -> Tensor:
        """Return the logits [..., V] of a decoder output [..., D]."""
        logits: Tensor = self.output(decoder_output)
        return logits

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return logits [B, T, V]; position t predicts the token that follows ``target[:, t]``."""
        return self.project(self.decode(source, target))

    def source_attention(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the attention of each target position to the source, for whole targets.

        Args:
            source: [B, S] int64, as for :meth:`decode`.
            target: [B, T] int64, as for :meth:`decode`.

        Returns:
            [B, T, S] float. Row t holds the attention weights of the step that reads target token t
            and predicts token t + 1. The weights sum to 1 over the tokens of the source and are 0
            at padding. The model chooses one layer, and takes one head or the mean over heads.

        Raises:
            NmtError: the model has no attention.
        """
        raise NmtError(
            f"{type(self).__name__} has no attention, which word alignments and the coverage "
            "penalty are made of; do without them, or use another architecture"
        )

    def attention_maps(self, source: Tensor, target: Tensor) -> list[AttentionMap]:
        """Return the attention of every layer and head, for whole targets.

        The default is :meth:`source_attention` as one head of one layer.

        Args:
            source: [B, S] int64, as for :meth:`decode`.
            target: [B, T] int64, as for :meth:`decode`.

        Returns:
            One map for each layer that attends to tokens, from the bottom, the encoder's first;
            none for models without attention.
        """
        try:
            weights = self.source_attention(source, target)
        # A model without attention says so by an error; here that is an answer.
        except NmtError:
            return []
        return [AttentionMap("cross", 1, weights[:, None])]

    def decode_links(
        self, source: Tensor, target: Tensor, packing: Packing, links: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the decoder output, and the attention of some target tokens to source tokens.

        The default runs the model twice.

        Args:
            source: [P'] int64, as for :meth:`decode_packs`.
            target: [P] int64, as for :meth:`decode_packs`.
            packing: the lengths of the sentences.
            links: [2, n] int64, source tokens in [P'] and target tokens in [P] of one sentence.

        Returns:
            The output of :meth:`decode_packs` [P, D], and weights [n] of :meth:`source_attention`;
            [0] if the layer that attends was left out.

        Raises:
            NmtError: the model has no attention.
        """
        padded = packing.source.pad(source), packing.target.pad(target)
        attention = self.source_attention(*padded).flatten(0, 1)  # [B * T, S]
        sources, targets = links
        weights = attention[packing.target.tokens[targets], packing.source.positions[sources]]
        return self.decode_packs(source, target, packing), weights.float()

    def align_by(self, layer: int) -> None:
        """Choose the decoder layer, from 1, that :meth:`source_attention` returns.

        Raises:
            NmtError: the model has no such layer, or no layers to choose from.
        """
        raise NmtError(
            f"{type(self).__name__} has no decoder layers to choose from for alignments; leave the "
            "layer out"
        )

    @abstractmethod
    def start(self, source: Tensor) -> State:
        """Return the state before any target token, with one row per sentence.

        Args:
            source: [B, S] int64, as for :meth:`decode`.
        """

    @abstractmethod
    def decode_step(self, tokens: Tensor, state: State) -> Tensor:
        """Return the decoder output [B, K, D] after `tokens`; advances the state one step.

        Args:
            tokens: [B, K] int64; BOS in the first step of every sentence.
            state: from :meth:`start`, changed in place.
        """

    def step(self, tokens: Tensor, state: State) -> Tensor:
        """Return logits [B, K, V] of the token after `tokens` [B, K]; advances the state.

        The tensor is a new one, which a search may change.
        """
        return self.project(self.decode_step(tokens, state))

    def num_parameters(self) -> int:
        """Return the number of trainable parameters; tied weights count once."""
        return sum(weight.numel() for weight in self.parameters() if weight.requires_grad)


@dataclass(frozen=True, kw_only=True)
class ModelConfig(ABC):
    """The sizes and parts of a model; a registered architecture is a full set of these values."""

    registry: ClassVar[Registry[ModelConfig]]

    arch: str = ""
    """Architecture, whose values the other keys of `model` override (docs/systems.md)."""
    adaptation: Adaptation | None = None
    """Parts that are added to the model of `train.init_from`. Only the parts are trained, and
    checkpoints hold nothing else (docs/guides/domain-adaptation.md). null for none."""

    def resolved(self) -> ModelConfig:
        """Return the config with derived defaults filled in, as a run stores it."""
        return self

    @abstractmethod
    def build(self, source_vocabulary: int, target_vocabulary: int, shared: bool) -> Model:
        """Return a freshly initialised model (from torch's global generator).

        Args:
            source_vocabulary: number of source token ids.
            target_vocabulary: number of target token ids.
            shared: whether the two vocabularies are one.

        Raises:
            NmtError: the parts of the config do not fit together.
        """

    def build_adapted(self, source_vocabulary: int, target_vocabulary: int, shared: bool) -> Model:
        """Return the model of :meth:`build`, with the parts of its adaptation.

        Raises:
            NmtError: as :meth:`build`; or the model has no place for the parts.
        """
        model = self.build(source_vocabulary, target_vocabulary, shared)
        # After the initialisation, so that an adapted model draws the same initial weights.
        if self.adaptation is not None:
            self.adaptation.put_on(model)
        return model


def check_sizes(config: ModelConfig, *names: str) -> None:
    """Raise a ValueError that names the first of these fields whose value is below 1."""
    for name in names:
        if getattr(config, name) < 1:
            raise ValueError(f"{name} must be at least 1, not {getattr(config, name)}")


def check_rates(config: ModelConfig, *names: str) -> None:
    """Raise a ValueError that names the first of these fields outside [0, 1)."""
    for name in names:
        if not 0.0 <= getattr(config, name) < 1.0:
            raise ValueError(f"{name} lies in [0, 1), not {getattr(config, name)}")


architectures: Registry[ModelConfig] = Registry("architecture", "arch", "--arch")
ModelConfig.registry = architectures
