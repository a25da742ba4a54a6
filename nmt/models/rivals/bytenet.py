"""ByteNet (Kalchbrenner et al. 2016, *Neural Machine Translation in Linear Time*).

Residual blocks with dilated convolutions and no attention: position t of the decoder reads position
t of the encoder. The paper does not say how the encoder's output and the target embedding are
combined; this implementation adds them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.data.packing import Pack, Packing
from nmt.data.vocabulary import PAD
from nmt.models.base import Model, ModelConfig, State, architectures, check_rates, check_sizes
from nmt.models.kernels.packs import filled_if_costly
from nmt.models.layers.basic import Dropout, embedding, glorot
from nmt.models.layers.cache import RecurrentState
from nmt.models.rivals.convolution import extend_past, no_past, windows


@architectures.register("bytenet")
@dataclass(frozen=True, kw_only=True)
class ByteNetConfig(ModelConfig):
    """The sizes of ByteNet; the defaults are the paper's, for characters."""

    width: int = 800
    """d, of the dilated convolutions; between blocks there are 2d."""
    sets: int = 6
    """Sets of blocks, of the encoder and of the decoder; each set has every dilation once."""
    dilations: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Distances between the inputs of the convolutions, one for each block of a set."""
    kernel: int = 3
    """Inputs of a convolution, odd."""
    length_ratio: float = 1.2
    """a: the source is encoded for a target of up to a |s| + b positions."""
    length_offset: int = 0
    """b."""
    dropout: float = 0.0
    """Dropout rate on the output of every block; the paper has none."""

    def __post_init__(self) -> None:
        check_sizes(self, "width", "sets", "kernel")
        check_rates(self, "dropout")
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel must be odd, to have a middle, not {self.kernel}")
        if not self.dilations or min(self.dilations) < 1:
            raise ValueError("dilations must be one or more distances of at least 1")
        if self.length_ratio < 1 or self.length_offset < 0:
            raise ValueError("length_ratio and length_offset must not make a source shorter")
        if self.length_ratio == math.inf:
            raise ValueError("length_ratio must be finite")

    def build(self, source_vocabulary: int, target_vocabulary: int, shared: bool) -> Model:
        """Return a freshly initialised ByteNet; embeddings and output layer are three matrices."""
        return ByteNet(self, source_vocabulary, target_vocabulary)


class ResidualBlock(nn.Module):
    """A residual block with ReLUs (the paper's figure 3, left)."""

    def __init__(self, config: ByteNetConfig, dilation: int) -> None:
        super().__init__()
        width, kernel = config.width, config.kernel
        self.width, self.kernel, self.dilation = width, kernel, dilation
        self.norms = nn.ModuleList(nn.LayerNorm(size) for size in (2 * width, width, width))
        # A convolution of kernel 1 is a linear layer.
        self.reduce = glorot(nn.Linear(2 * width, width))
        self.convolution = glorot(nn.Linear(kernel * width, width))
        self.expand = glorot(nn.Linear(width, 2 * width))
        self.dropout = Dropout(config.dropout)

    def inputs(self, x: Tensor) -> Tensor:
        """Return the input [..., d] of the convolution for the residual stream [..., 2d]."""
        # Norm and ReLU stand before the products: the residual stream itself is never normalised.
        return F.relu(self.norms[1](self.reduce(F.relu(self.norms[0](x)))))

    def outputs(self, x: Tensor, window: Tensor) -> Tensor:
        """Add the block's output for the windows [..., kernel * d] to the stream [..., 2d]."""
        output: Tensor = self.expand(F.relu(self.norms[2](self.convolution(window))))
        added: Tensor = x + self.dropout(output)
        return added

    def encode(self, x: Tensor, sentences: Tensor | Pack) -> Tensor:
        """Apply the block to all positions, not causally.

        Args:
            x: [B, T, 2d], or a pack [P, 2d].
            sentences: [B, T, 1], 1 at positions and 0 elsewhere; or the pack.
        """
        window = windows(self.inputs(x), self.kernel, self.dilation, sentences=sentences)
        return self.outputs(x, window)

    def decode(self, x: Tensor, pack: Pack | None = None) -> Tensor:
        """Apply the block to all positions of `x` [B, T, 2d], or of a pack [P, 2d], causally."""
        window = windows(self.inputs(x), self.kernel, self.dilation, causal=True, sentences=pack)
        return self.outputs(x, window)

    def step(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the block to one position of N rows [N, 2d]; also returns the new past."""
        window, past = extend_past(past, self.inputs(x), self.dilation)
        return self.outputs(x, window), past


class ByteNet(Model):
    """The model of the paper's figure 1."""

    packs = True

    def __init__(
        self, config: ByteNetConfig, source_vocabulary: int, target_vocabulary: int
    ) -> None:
        super().__init__()
        stream = 2 * config.width
        self.config = config
        # Embeddings are scaled as in the Transformer, so that Adam's steps of one size move them.
        # On Multi30k the small model's perplexity after 500 updates was 35 with N(0, 1), and is 25.
        self.scale = math.sqrt(stream)
        self.source_embedding = embedding(source_vocabulary, stream)
        self.target_embedding = embedding(target_vocabulary, stream)
        self.encoder = self._blocks(config)
        self.decoder = self._blocks(config)
        self.last = glorot(nn.Linear(stream, stream))  # a convolution of kernel 1, and a ReLU
        self.output = nn.Linear(stream, target_vocabulary)
        nn.init.normal_(self.output.weight, std=0.01)  # the stream grows with every block
        nn.init.zeros_(self.output.bias)

    @staticmethod
    def _blocks(config: ByteNetConfig) -> list[ResidualBlock]:
        blocks = [
            ResidualBlock(config, dilation)
            for _ in range(config.sets)
            for dilation in config.dilations
        ]
        return cast("list[ResidualBlock]", nn.ModuleList(blocks))

    def encode(self, source: Tensor) -> Tensor:
        """Return the encoder's stream [B, U, 2d] for U target positions; zero at padding."""
        tokens = source != PAD
        lengths = self._unfolded(tokens.sum(1, keepdim=True))
        unfolded = int(self._unfolded(torch.tensor(source.shape[1])))
        mask = torch.arange(unfolded, device=source.device) < lengths  # [B, U]
        mask = mask[..., None].to(self.source_embedding.weight.dtype)
        # Padding must look like the zeros beyond a sentence, or it would change the result.
        x = self._embed(self.source_embedding, source) * tokens[..., None]
        # Dynamic unfolding: the target may be longer than the source and needs columns to read.
        x = F.pad(x, (0, 0, 0, unfolded - source.shape[1]))
        for block in self.encoder:
            x = block.encode(x, mask)
        # Biases reach positions beyond a sentence, which a pack does not have.
        return x * mask

    def _unfolded(self, lengths: Tensor) -> Tensor:
        """Return for how many positions the encoder unfolds sources of these lengths.

        1.2 times 25 are 30: what rounding adds does not count.
        """
        # A little less: a product that should be a whole number may come out just above it.
        unfolded = self.config.length_ratio * lengths.double() - 1e-6
        return unfolded.ceil().long() + self.config.length_offset

    def decode(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the decoder output [B, T, 2d] for whole targets."""
        encoded = self.encode(source)
        missing = target.shape[1] - encoded.shape[1]
        # Columns beyond the unfolded source are zero, as in a step of the search.
        encoded = F.pad(encoded, (0, 0, 0, missing))  # cuts, if negative
        return self._decode(self._embed(self.target_embedding, target) + encoded)

    def decode_packs(self, source: Tensor, target: Tensor, packing: Packing) -> Tensor:
        """Return the decoder output [P, 2d] at the target's tokens; computes no padding."""
        tokens = len(target)
        source, target, packing = filled_if_costly(source, target, packing)
        # Each sentence unfolds by its own length, so a pack of sources grows sentence by sentence.
        lengths = self._unfolded(torch.from_numpy(packing.source.lengths)).numpy()
        unfolded = Pack(lengths, packing.source.rows, source.device)
        x = unfolded.take(self._embed(self.source_embedding, source), packing.source)
        for block in self.encoder:
            x = block.encode(x, unfolded)
        y = self._embed(self.target_embedding, target) + packing.target.take(x, unfolded)
        return self._decode(y, packing.target)[:tokens]

    def _decode(self, x: Tensor, pack: Pack | None = None) -> Tensor:
        """Return the decoder output of an input [B, T, 2d], or of a pack's input [P, 2d]."""
        for block in self.decoder:
            x = block.decode(x, pack)
        return F.relu(self.last(x))

    def start(self, source: Tensor) -> RecurrentState:
        """Return the encoder's stream, and empty pasts."""
        encoded = self.encode(source)
        pasts = [
            no_past(len(source), block.width, block.kernel, block.dilation, like=encoded)
            for block in self.decoder
        ]
        return RecurrentState((encoded,), pasts)

    def decode_step(self, tokens: Tensor, state: State) -> Tensor:
        """Return the decoder output [B, K, D] after `tokens` [B, K]; advances the state."""
        assert isinstance(state, RecurrentState)
        x = self._embed(self.target_embedding, tokens)  # [B, K, 2d]
        (encoded,) = state.source
        # Beyond the unfolded source there is nothing left to read, only the past.
        if state.position < encoded.shape[1]:
            x = x + encoded[:, None, state.position]
        x = x.flatten(0, 1)
        for at, block in enumerate(self.decoder):
            x, state.rows[at] = block.step(x, state.rows[at])
        state.position += 1
        return F.relu(self.last(x)).view(*tokens.shape, -1)

    def _embed(self, table: nn.Embedding, tokens: Tensor) -> Tensor:
        embedded: Tensor = table(tokens) * self.scale
        return embedded


# For subwords, small corpora and two CPU cores.
architectures.add(
    "bytenet_small", ByteNetConfig(width=192, sets=2, dilations=(1, 2, 4), dropout=0.3)
)
