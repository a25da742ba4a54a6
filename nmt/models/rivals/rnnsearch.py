"""RNNsearch (Bahdanau et al. 2015, *Neural Machine Translation by ... Align and Translate*).

A bidirectional GRU reads the source. The decoder's GRU attends with its previous state, and a
maxout layer reads the previous state, the previous word and the context.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nmt.data.vocabulary import PAD
from nmt.models.base import Model, ModelConfig, State, architectures, check_rates, check_sizes
from nmt.models.layers.basic import Dropout, TokenEmbedding
from nmt.models.layers.cache import RecurrentState
from nmt.models.rivals.recurrent import AdditiveAttention, BothDirections


@architectures.register("rnnsearch")
@dataclass(frozen=True, kw_only=True)
class RNNsearchConfig(ModelConfig):
    """The sizes of RNNsearch; the defaults are the paper's."""

    embedding_width: int = 620
    """m, of word embeddings."""
    hidden_width: int = 1000
    """n, of the decoder and of each direction of the encoder."""
    attention_width: int = 1000
    """n', of the hidden layer of the attention."""
    maxout_width: int = 500
    """l, of the maxout layer before the vocabulary."""
    dropout: float = 0.0
    """Dropout rate on embeddings and on the maxout layer; the paper has none."""

    def __post_init__(self) -> None:
        check_sizes(self, "embedding_width", "hidden_width", "attention_width", "maxout_width")
        check_rates(self, "dropout")

    def build(self, source_vocabulary: int, target_vocabulary: int, shared: bool) -> Model:
        """Return a freshly initialised RNNsearch; each language has its own embeddings."""
        return RNNsearch(self, source_vocabulary, target_vocabulary)


class GatedUnit(nn.Module):
    """GRU of the decoder, which reads a word embedding and a context (appendix A.2.2)."""

    def __init__(self, config: RNNsearchConfig) -> None:
        super().__init__()
        width = config.hidden_width
        self.width = width
        self.word = nn.Linear(config.embedding_width, 3 * width)  # W_z, W_r, W
        self.context = nn.Linear(2 * width, 3 * width, bias=False)  # C_z, C_r, C
        self.gates = nn.Linear(width, 2 * width, bias=False)  # U_z, U_r
        self.candidate = nn.Linear(width, width, bias=False)  # U

    def forward(self, state: Tensor, word: Tensor, context: Tensor) -> Tensor:
        """Return the next state [B, K, n].

        Args:
            state: [B, K, n].
            word: [B, K, 3n], from ``self.word``.
            context: [B, K, 2n].
        """
        inputs = word + self.context(context)
        gates, candidate = torch.split(inputs, [2 * self.width, self.width], dim=-1)
        update, reset = torch.sigmoid(gates + self.gates(state)).chunk(2, dim=-1)
        proposed = torch.tanh(candidate + self.candidate(reset * state))
        # (1 - z) * s + z * s', in one product less.
        return state + update * (proposed - state)


class RNNsearch(Model):
    """The model of the paper's figure 1."""

    def __init__(
        self, config: RNNsearchConfig, source_vocabulary: int, target_vocabulary: int
    ) -> None:
        super().__init__()
        words, width = config.embedding_width, config.hidden_width
        self.source_embedding = TokenEmbedding(source_vocabulary, words)
        self.target_embedding = TokenEmbedding(target_vocabulary, words)
        self.encoder = BothDirections(nn.GRU, words, width)
        self.initial = nn.Linear(width, width)  # W_s
        self.attention = AdditiveAttention(width, 2 * width, config.attention_width)
        self.unit = GatedUnit(config)
        # Twice the width, of which maxout keeps the half.
        self.readout = nn.Linear(width + words + 2 * width, 2 * config.maxout_width)  # U_o V_o C_o
        self.output = nn.Linear(config.maxout_width, target_vocabulary)
        self.dropout = Dropout(config.dropout)
        self._initialise()

    def _initialise(self) -> None:
        """Initialise all weights (the paper's appendix B.1)."""
        for name, weight in self.named_parameters():
            if name.startswith("attention"):
                nn.init.normal_(weight, std=0.001)
            elif "bias" in name:
                nn.init.zeros_(weight)
            elif "weight_hh" in name or name.startswith(("unit.gates", "unit.candidate")):
                # Several square matrices stand above one another; each must be orthogonal by
                # itself.
                for matrix in torch.split(weight.detach(), weight.shape[1]):
                    nn.init.orthogonal_(matrix)
            else:
                nn.init.normal_(weight, std=0.01)
        # Zero scores: attention begins uniform.
        nn.init.zeros_(self.attention.score.weight)
        nn.init.zeros_(self.attention.query.bias)

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return keys [B, S, A], values [B, S, 2n], mask [B, S] and first decoder state [B, n]."""
        mask = source != PAD
        states = self.encoder(self.dropout(self.source_embedding(source)), mask)
        # The layer from the right has read the whole source when it is at the first word.
        from_the_right = states[:, 0].chunk(2, dim=-1)[1]
        return self.attention.project(states), states, mask, self.initial(from_the_right).tanh()

    def decode(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the maxout layer's output [B, T, l] for whole targets."""
        return self._maxout(*self._unroll(target, *self.encode(source)))

    def source_attention(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the attention weights [B, T, S]; the query is the state before each step."""
        keys, values, mask, first = self.encode(source)
        before, _, _ = self._unroll(target, keys, values, mask, first)
        return self.attention.weights_of_all(before, keys, mask)

    def _unroll(
        self, target: Tensor, keys: Tensor, values: Tensor, mask: Tensor, first: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the state before each step [B, T, n], word [B, T, m] and context [B, T, 2n]."""
        words = self.dropout(self.target_embedding(target))
        state, states, contexts = first[:, None], [], []
        for word in torch.split(self.unit.word(words), 1, dim=1):  # [B, 1, 3n]
            # The paper's order (section 3.1): the state *before* the step is the query.
            context = self.attention(state, keys, values, mask)
            states.append(state)
            contexts.append(context)
            state = self.unit(state, word, context)
        return torch.cat(states, dim=1), words, torch.cat(contexts, dim=1)

    def start(self, source: Tensor) -> RecurrentState:
        """Return the encoded sources, and the decoder's first state."""
        *memory, first = self.encode(source)
        return RecurrentState(tuple(memory), [first])

    def decode_step(self, tokens: Tensor, state: State) -> Tensor:
        """Return the decoder output [B, K, D] after `tokens` [B, K]; advances the state."""
        assert isinstance(state, RecurrentState)
        before = state.rows[0].view(*tokens.shape, -1)  # [B, K, n]
        words = self.target_embedding(tokens)
        context = self.attention(before, *state.source)
        state.rows = [self.unit(before, self.unit.word(words), context).flatten(0, 1)]
        return self._maxout(before, words, context)

    def _maxout(self, states: Tensor, words: Tensor, contexts: Tensor) -> Tensor:
        """Return the maximum of every two neighbours of the deep output: [..., l]."""
        # One product for U_o, V_o and C_o: their sum is a matrix times the concatenated inputs.
        pairs = self.readout(torch.cat((states, words, contexts), dim=-1)).unflatten(-1, (-1, 2))
        greater: Tensor = self.dropout(pairs.amax(dim=-1))
        return greater


# For small corpora and two CPU cores.
architectures.add(
    "rnnsearch_small",
    RNNsearchConfig(
        embedding_width=256, hidden_width=256, attention_width=256, maxout_width=256, dropout=0.2
    ),
)
