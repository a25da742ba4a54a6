"""GNMT (Wu et al. 2016, *Google's Neural Machine Translation System*).

Deep LSTMs with residual connections from the third layer. The encoder's bottom layer reads in both
directions. The decoder's bottom layer attends to the source, and all layers read its context.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.data.vocabulary import PAD
from nmt.models.base import Model, ModelConfig, State, architectures, check_rates, check_sizes
from nmt.models.layers.basic import Dropout, TokenEmbedding
from nmt.models.layers.cache import RecurrentState
from nmt.models.rivals.recurrent import AdditiveAttention, BothDirections, LSTMStack

Memory = tuple[Tensor, Tensor, Tensor]
"""Keys [B, S, A], values [B, S, D], mask [B, S]."""


@architectures.register("gnmt")
@dataclass(frozen=True, kw_only=True)
class GNMTConfig(ModelConfig):
    """The sizes of GNMT; the defaults are the paper's for English-French."""

    encoder_layers: int = 8
    """Layers of the encoder, including the bidirectional layer; at least 2."""
    decoder_layers: int = 8
    """Layers of the decoder, including the layer with attention; at least 2."""
    width: int = 1024
    """Width of embeddings, LSTMs and the hidden layer of the attention."""
    attention_query: Literal["previous", "current"] = "previous"
    """Output of the bottom layer that is the query for the context of the layers above: the output
    of the previous step, as in the paper, or of the current step, as in gnmt_v2."""
    dropout: float = 0.2
    """Dropout rate on the input of every LSTM and of the output layer; the paper's for
    English-German is 0.3."""
    initial_range: float = 0.04
    """Initial weights are uniform between minus this value and this value."""

    def __post_init__(self) -> None:
        check_sizes(self, "width")
        check_rates(self, "dropout")
        for name in ("encoder_layers", "decoder_layers"):
            if getattr(self, name) < 2:
                raise ValueError(f"{name} must be at least 2, not {getattr(self, name)}")
        if not 0 < self.initial_range < math.inf:
            raise ValueError(
                f"initial_range must be more than 0 and finite, not {self.initial_range}"
            )

    def build(self, source_vocabulary: int, target_vocabulary: int, shared: bool) -> Model:
        """Return a freshly initialised GNMT; embeddings and output layer are three matrices."""
        return GNMT(self, source_vocabulary, target_vocabulary)


class AskingLayer(nn.Module):
    """Bottom layer of the decoder: an LSTM with attention to the source.

    The layer's state is [hidden, cell], [B, K, D] each.
    """

    def __init__(self, config: GNMTConfig) -> None:
        super().__init__()
        width = config.width
        self.attention = AdditiveAttention(width, width, width)
        self.word = nn.Linear(width, 4 * width)
        self.recurrent = nn.Linear(2 * width, 4 * width, bias=False)  # of context and hidden state

    def start(self, values: Tensor) -> list[Tensor]:
        """Return the state before the first step, with one row per sentence."""
        # Zeros, unlike google/nmt, whose decoder begins with the encoder's last states.
        zeros = torch.zeros_like(values[:, :1])
        return [zeros, zeros]

    def forward(
        self, word: Tensor, state: list[Tensor], memory: Memory
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Compute one step: output and context [B, K, D] for the layers above, and the new state.

        Args:
            word: [B, K, 4D], from ``self.word``.
            state: from :meth:`start` or the step before.
            memory: keys, values and mask of the source.
        """
        hidden, cell = state
        # The query is the previous output, so the context can enter this step's LSTM.
        context = self.attention(hidden, *memory)
        hidden, cell = self._lstm(word, context, hidden, cell)
        return hidden, context, [hidden, cell]

    def queries(self, outputs: Tensor) -> Tensor:
        """Return the attention query of each step [B, T, D], for the outputs of all steps."""
        # Step t asks with the output of step t - 1; the first one asks with zeros.
        return F.pad(outputs, (0, 0, 1, 0))[:, :-1]

    def _lstm(
        self, word: Tensor, context: Tensor, hidden: Tensor, cell: Tensor
    ) -> tuple[Tensor, Tensor]:
        gates = word + self.recurrent(torch.cat((context, hidden), dim=-1))
        # PyTorch's order of an LSTM's gates, as in the layers above.
        write, keep, new, read = gates.chunk(4, dim=-1)
        cell = torch.sigmoid(keep) * cell + torch.sigmoid(write) * torch.tanh(new)
        return torch.sigmoid(read) * torch.tanh(cell), cell


class AskingLayerV2(AskingLayer):
    """Bottom layer of gnmt_v2, whose query is the new output; state [hidden, cell, context].

    The paper's query is the previous output. Google's tutorial code takes the current one, so the
    layers above read a context that is one step newer.
    """

    def start(self, values: Tensor) -> list[Tensor]:
        """Return zeros, for the first context too."""
        return [*super().start(values), torch.zeros_like(values[:, :1])]

    def queries(self, outputs: Tensor) -> Tensor:
        """Return the outputs unchanged."""
        return outputs

    def forward(
        self, word: Tensor, state: list[Tensor], memory: Memory
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Compute one step, like :meth:`AskingLayer.forward`."""
        hidden, cell, context = state
        hidden, cell = self._lstm(word, context, hidden, cell)
        context = self.attention(hidden, *memory)
        return hidden, context, [hidden, cell, context]


class GNMT(Model):
    """The model of the paper's figure 1."""

    def __init__(self, config: GNMTConfig, source_vocabulary: int, target_vocabulary: int) -> None:
        super().__init__()
        width = config.width
        self.source_embedding = TokenEmbedding(source_vocabulary, width)
        self.target_embedding = TokenEmbedding(target_vocabulary, width)
        self.dropout = Dropout(config.dropout)
        self.encoder_bottom = BothDirections(nn.LSTM, width, width)
        # The second layer reads both directions of the first, so its input is twice as wide.
        above = [2 * width] + [width] * (config.encoder_layers - 2)
        # From the third layer: this stack begins with the second one.
        self.encoder = LSTMStack(above, width, first_residual=1, dropout=config.dropout)
        layer = {"previous": AskingLayer, "current": AskingLayerV2}[config.attention_query]
        self.decoder_bottom = layer(config)
        above = [width] * (config.decoder_layers - 1)
        self.decoder = LSTMStack(
            above, width, first_residual=1, dropout=config.dropout, context=width
        )
        self.output = nn.Linear(width, target_vocabulary)
        # The paper draws all parameters from one range, biases, too.
        for weight in self.parameters():
            nn.init.uniform_(weight, -config.initial_range, config.initial_range)

    def encode(self, source: Tensor) -> Memory:
        """Return keys of the attention, encoder output and mask."""
        mask = source != PAD
        x = self.encoder_bottom(self.dropout(self.source_embedding(source)), mask)
        values, _ = self.encoder(x)
        return self.decoder_bottom.attention.project(values), values, mask

    def decode(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the output of the decoder's top layer [B, T, D] for whole targets."""
        top, _ = self.decoder(*self._unroll_bottom(target, self.encode(source)))
        last: Tensor = self.dropout(top)
        return last

    def source_attention(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the weights of the only attention; [B, T, S]."""
        # Only the bottom layer attends, so the layers above need not be computed.
        memory = self.encode(source)
        outputs, _ = self._unroll_bottom(target, memory)
        queries = self.decoder_bottom.queries(outputs)
        return self.decoder_bottom.attention.weights_of_all(queries, memory[0], memory[2])

    def _unroll_bottom(self, target: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """Return outputs and contexts [B, T, D] of the bottom layer for whole targets."""
        # One product for the words of all steps: only the rest of the gates depends on the step
        # before.
        words = self.decoder_bottom.word(self.dropout(self.target_embedding(target)))
        state, outputs, contexts = self.decoder_bottom.start(memory[1]), [], []
        for word in torch.split(words, 1, dim=1):  # [B, 1, 4D]
            output, context, state = self.decoder_bottom(word, state, memory)
            outputs.append(output)
            contexts.append(context)
        return torch.cat(outputs, dim=1), torch.cat(contexts, dim=1)

    def start(self, source: Tensor) -> RecurrentState:
        """Return the encoded sources, and hidden states and cells of zeros."""
        memory = self.encode(source)
        bottom = [tensor.flatten(0, 1) for tensor in self.decoder_bottom.start(memory[1])]
        above = [torch.zeros_like(bottom[0]) for _ in range(2 * len(self.decoder.layers))]
        return RecurrentState(memory, bottom + above)

    def decode_step(self, tokens: Tensor, state: State) -> Tensor:
        """Return the decoder output [B, K, D] after `tokens` [B, K]; advances the state."""
        assert isinstance(state, RecurrentState)
        # A layer above the bottom keeps a hidden state and a cell; the bottom layer may keep a
        # third tensor.
        above = 2 * len(self.decoder.layers)
        bottom = [tensor.view(*tokens.shape, -1) for tensor in state.rows[:-above]]  # [B, K, D]
        word = self.decoder_bottom.word(self.target_embedding(tokens))
        output, context, bottom = self.decoder_bottom(word, bottom, cast("Memory", state.source))
        flat = [tensor.flatten(0, 1)[:, None] for tensor in (output, context)]  # [N, 1, D]
        top, after = self.decoder(*flat, state.rows[-above:])
        state.rows = [tensor.flatten(0, 1) for tensor in bottom] + after
        last: Tensor = top.view_as(output)
        return last


# Sizes and initial range of google/nmt's wmt16_gnmt_8_layer, and its query of the attention. Its
# attention is normalised, though, its forget gates begin open, and its decoder begins with the
# encoder's last states.
architectures.add("gnmt_v2", GNMTConfig(attention_query="current", initial_range=0.1))
# For small corpora and two CPU cores.
architectures.add(
    "gnmt_small",
    GNMTConfig(encoder_layers=3, decoder_layers=3, width=256, dropout=0.2, initial_range=0.2),
)
