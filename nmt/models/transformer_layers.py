"""The layers of a Transformer, made of their parts, and what its decoder remembers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from nmt.models.attention import CrossAttention, SelfAttention
from nmt.models.residual import (
    PostNorm,
)
from nmt.models.state import BeamAncestry, Cache, Memory, OrderedCache, SharedCache


@torch.no_grad()
def scale_for_deep_norm(layer: EncoderLayer | DecoderLayer, beta: float) -> None:
    """Multiplies by `beta` the weights of feed-forward, values and attention's output."""
    attentions: list[SelfAttention | CrossAttention] = [layer.attention]
    into_values = [layer.attention.project_in]
    if isinstance(layer, DecoderLayer):
        attentions.append(layer.cross)
        into_values.append(layer.cross.project_memory)
    for attention, project in zip(attentions, into_values, strict=True):
        project.weight[-attention.sizes[-1] :] *= beta
        attention.attend.output.weight *= beta
    for name, weight in layer.feed_forward.named_parameters():
        if weight.dim() > 1 and not name.startswith("gate"):
            weight.mul_(beta)


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward (section 3.1)."""

    def __init__(
        self, attention: SelfAttention, feed_forward: nn.Module, residual: Callable[[], PostNorm]
    ) -> None:
        super().__init__()
        self.attention = attention
        self.attention_residual = residual()
        self.feed_forward = feed_forward
        self.feed_forward_residual = residual()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """States [B, S, D] to states; mask [B, 1, 1, S] is True at tokens.

        `enter` and `leave` around each sublayer are LayerNorm(x + Dropout(sublayer(x))), or what
        the recipe puts in its place; see :mod:`nmt.models.residual`.
        """
        projected = self.attention.project(self.attention_residual.prepare(x))
        x = self.attention_residual.combine(x, self.attention.attend(*projected, mask))
        made = self.feed_forward(self.feed_forward_residual.prepare(x))
        return self.feed_forward_residual.combine(x, made)


class DecoderLayer(nn.Module):
    """Masked self-attention, attention to the encoder's output, feed-forward (section 3.1)."""

    def __init__(
        self,
        attention: SelfAttention,
        cross: CrossAttention,
        feed_forward: nn.Module,
        residual: Callable[[], PostNorm],
    ) -> None:
        super().__init__()
        self.attention = attention
        self.make_cache = OrderedCache if attention.sees_order else SharedCache
        self.attention_residual = residual()
        self.cross = cross
        self.cross_residual = residual()
        self.feed_forward = feed_forward
        self.feed_forward_residual = residual()

    def forward(self, x: Tensor, memory: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        """States [B, T, D] of whole targets to states."""
        return self._after_attention(x, self._attend_to_past(x), memory, mask)

    def source_attention(self, x: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        """How much whole targets attend to each place of the source: [B, T, S]."""
        x = self.attention_residual.combine(x, self._attend_to_past(x))
        return self.cross.weights(self.cross_residual.prepare(x), keys, mask)

    def _attend_to_past(self, x: Tensor) -> Tensor:
        projected = self.attention.project(self.attention_residual.prepare(x))
        attended: Tensor = self.attention.attend(*projected, causal=True)
        return attended

    def step(
        self,
        x: Tensor,
        memory: tuple[Tensor, Tensor],
        mask: Tensor | None,
        cache: Cache,
        ancestry: BeamAncestry,
    ) -> Tensor:
        """States [B, K, D] of one step of K rows to states; the cache grows by that step."""
        attended = cache.attend(self.attention, self.attention_residual.prepare(x), ancestry)
        return self._after_attention(x, attended, memory, mask)

    def _after_attention(
        self, x: Tensor, attended: Tensor, memory: tuple[Tensor, Tensor], mask: Tensor | None
    ) -> Tensor:
        x = self.attention_residual.combine(x, attended)
        found = self.cross(self.cross_residual.prepare(x), *memory, mask)
        x = self.cross_residual.combine(x, found)
        made = self.feed_forward(self.feed_forward_residual.prepare(x))
        return self.feed_forward_residual.combine(x, made)


class TransformerState:
    """Sources projected once per sentence, and the keys and values of the steps so far."""

    def __init__(self, memory: Memory, caches: Sequence[Cache]) -> None:
        memory.settle()
        self.memory = memory
        self.caches = caches
        self.ancestry = BeamAncestry()
        self.rows = 1
        self.position = 0

    def select(self, rows: Tensor) -> None:
        """Keeps, repeats, reorders or drops rows; see :class:`nmt.models.base.State`."""
        sentences = self._moved(rows[:, 0] // self.rows)
        if sentences is not None:
            self.memory.select(sentences)
        self.ancestry.select(rows)
        for cache in self.caches:
            cache.select(rows, sentences)
        self.rows = rows.shape[1]

    def _moved(self, sentences: Tensor) -> Tensor | None:
        """The same, or None where every sentence stays what it is."""
        # On a GPU to compare would be to wait for the device, which costs more than the copy.
        stays = torch.arange(len(self.memory))
        return None if not sentences.is_cuda and torch.equal(sentences, stays) else sentences
