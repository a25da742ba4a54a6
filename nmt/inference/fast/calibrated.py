"""A Transformer in int8 whose results for a sentence do not depend on its batch.

Linear layers quantise their inputs by ranges that a calibration measured. The order in which sums
are rounded still depends on padding. So the encoder gets sentences of equal lengths, and
cross-attention pads keys and values to whole vectors of the processor, where zeros change no sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.data.batches import make_batch
from nmt.data.dataset import Split
from nmt.data.packing import Packing
from nmt.data.vocabulary import PAD
from nmt.errors import NmtError
from nmt.inference.fast.int8 import FewRowsLinear, ManyRowsLinear
from nmt.models.base import Model
from nmt.models.layers.attention import AttentionInput, split_heads, split_parts
from nmt.models.layers.cache import Memory
from nmt.models.layers.feed_forward import FeedForward
from nmt.models.layers.sentences import Packed, Padded, SentenceLayout
from nmt.models.transformer.model import Transformer
from nmt.models.transformer.multi_head import CrossAttention, SelfAttention
from nmt.runs.calibration import Range

VECTOR = 16
"""Numbers of the widest vectors of processors."""

Ranges = Mapping[nn.Module, Range]


def convert_calibrated(model: Transformer, ranges: Ranges) -> None:
    """Convert a Transformer to int8 in place; layers without a range stay as they are.

    Args:
        model: model that was not converted.
        ranges: smallest and largest input of each linear layer.
    """
    for layer in model.encoder:
        assert isinstance(layer.attention, SelfAttention)
        layer.attention = EqualLengthsAttention(layer.attention)  # type: ignore[assignment]
        _replace(layer, ranges, ManyRowsLinear)
    for decoder_layer in model.decoder:
        cross = decoder_layer.cross = PaddedCrossAttention(decoder_layer.cross)
        if (limits := ranges.get(cross.project_memory)) is not None:
            cross.project_memory = ManyRowsLinear(cross.project_memory, limits)  # type: ignore[assignment]
    _replace(model, ranges, FewRowsLinear)  # all other layers
    model.encode = partial(encode, model)  # type: ignore[method-assign]


def _replace(part: nn.Module, ranges: Ranges, kind: type[FewRowsLinear | ManyRowsLinear]) -> None:
    """Replace the layers of a part that have a range and are not replaced yet."""
    for name, child in part.named_children():
        if isinstance(child, FeedForward) and child.activation is torch.relu_:
            limits = ranges.get(child.inner), ranges.get(child.outer)
            if limits[0] is not None and limits[1] is not None:
                inner = kind.into(child.inner, limits[0], limits[1])
                setattr(part, name, TwoLayers(inner, kind(child.outer, limits[1])))
                continue
        # A subclass may compute more than a product.
        if type(child) is nn.Linear and child in ranges:
            setattr(part, name, kind(child, ranges[child]))
        else:
            _replace(child, ranges, kind)


class TwoLayers(nn.Module):
    """A layer that follows another one."""

    def __init__(self, inner: nn.Module, outer: nn.Module) -> None:
        super().__init__()
        self.inner, self.outer = inner, outer

    def forward(self, x: Tensor) -> Tensor:
        """Apply both layers."""
        output: Tensor = self.outer(self.inner(x))
        return output


class EqualLengthsAttention(nn.Module):
    """Self-attention within the sentences of a pack; neighbours of equal length attend at once."""

    def __init__(self, attention: SelfAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor, sentences: Packed) -> Tensor:
        """Mix the tokens of each sentence of a pack [P, D]; see :meth:`TokenMixer.forward`."""
        attention, start, attended = self.attention, 0, []
        qkv = attention.project_in(x)  # [P, W]
        if attention.rotation is not None:
            qkv = attention.rotated(qkv, sentences.positions(x))
        for length, equal in groupby(sentences.pack.lengths.tolist()):
            stop = start + length * len(list(equal))
            rows = qkv[start:stop].view(-1, length, qkv.shape[1])
            queries, keys, values = split_parts(rows, attention.qkv_sizes, attention.qkv_heads)
            # Sentences of equal length need no mask.
            equal_lengths = attention.attention_fn(AttentionInput(queries, keys, values))
            attended.append(equal_lengths.transpose(1, 2).flatten(2).flatten(0, 1))
            start = stop
        output: Tensor = attention.output(torch.cat(attended))
        return output


class PaddedCrossAttention(CrossAttention):
    """Cross-attention to keys and values that :func:`encode` pads to whole vectors.

    The memory holds the keys transposed and scaled, [B, H, C, S], and the mask is added to scores,
    [B, H, 1, S].
    """

    def __init__(self, other: CrossAttention) -> None:
        nn.Module.__init__(self)
        self.qkv_heads, self.qkv_sizes = other.qkv_heads, other.qkv_sizes
        self.project_query, self.project_memory = other.project_query, other.project_memory
        self.output = other.output

    def project(self, encoded: Tensor, sentences: SentenceLayout) -> tuple[Tensor, ...]:
        """Return keys [B, H, C, S], transposed and scaled, and values [B, H, S, C].

        Args:
            encoded: a pack [P, D].
            sentences: the pack.
        """
        assert isinstance(sentences, Packed)
        pack, (heads, shared, _) = sentences.pack, self.qkv_heads
        padded = pack.pad(self.project_memory(encoded))
        padded = F.pad(padded, (0, 0, 0, whole_vectors(pack.longest) - pack.longest))
        keys, values = split_parts(padded, self.qkv_sizes[1:], self.qkv_heads[1:])
        if heads > shared:
            keys, values = (x.repeat_interleave(heads // shared, dim=1) for x in (keys, values))
        # The 1 / sqrt(d_k) of the paper (section 3.2.1), once for the keys and not in each step.
        return (keys * keys.shape[-1] ** -0.5).transpose(2, 3), values

    def forward(self, x: Tensor, memory: Sequence[Tensor], sentences: SentenceLayout) -> Tensor:
        """Attend from padded sentences `x`; see :meth:`CrossAttention.forward`."""
        assert isinstance(sentences, Padded)
        keys, values = memory
        weights = self._scores(x, keys, sentences.mask).softmax(-1)  # [B x H, Q, S]
        attended = torch.bmm(weights, values.flatten(0, 1))  # [B x H, Q, C]
        output: Tensor = self.output(joined_heads(attended, self.qkv_heads[0]))
        return output

    def weights(self, x: Tensor, keys: Tensor, mask: Tensor, head: int | None = None) -> Tensor:
        """Return the attention weights [B, Q, S]; see :meth:`CrossAttention.weights`."""
        weights = self._scores(x, keys, mask).softmax(-1).view(*keys.shape[:2], x.shape[1], -1)
        return weights.mean(1) if head is None else weights[:, head - 1]

    def _scores(self, x: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
        assert mask is not None
        queries = divided_heads(self.project_query(x), self.qkv_heads[0])
        return torch.bmm(queries, keys.flatten(0, 1)).add_(mask.flatten(0, 1))


def divided_heads(x: Tensor, heads: int) -> Tensor:
    """Reshape [B, Q, H x C] to [B x H, Q, C]; of a single query this is a view."""
    if x.shape[1] == 1:
        return x.view(len(x) * heads, 1, -1)
    return split_heads(x, heads).flatten(0, 1)


def joined_heads(x: Tensor, heads: int) -> Tensor:
    """Reshape [B x H, Q, C] to [B, Q, H x C]; of a single query this is a view."""
    _, queries, width = x.shape
    if queries == 1:
        return x.view(-1, 1, heads * width)
    return x.view(-1, heads, queries, width).transpose(1, 2).flatten(2)


def whole_vectors(length: int) -> int:
    """Return a length rounded up to a multiple of VECTOR."""
    return -(-length // VECTOR) * VECTOR


def encode(model: Transformer, source: Tensor) -> Memory:
    """Encode like :meth:`Transformer.encode`, for a :class:`PaddedCrossAttention`."""
    lengths = (source != PAD).sum(1).numpy()
    pack = Packing.from_lengths(lengths, lengths).source
    sentences = Packed(pack)
    encoded = model.encode_tokens(source[source != PAD], sentences)
    layers = [layer.cross.project(encoded, sentences) for layer in model.decoder]
    is_padding = torch.arange(whole_vectors(pack.longest)) >= torch.from_numpy(lengths)[:, None]
    mask = torch.zeros(is_padding.shape).masked_fill_(is_padding, float("-inf"))
    heads = layers[0][0].shape[1]
    # Repeated, not expanded: flattening an expanded mask would copy it in each step.
    return Memory(layers, mask[:, None, None].repeat(1, heads, 1, 1))


BATCH = 64
"""Sentence pairs of a batch."""


@torch.no_grad()
def measure_ranges(model: Model, split: Split, sentences: int) -> dict[str, Range]:
    """Return the smallest and the largest input of each linear layer, by name.

    Args:
        model: model that was not converted; on a CPU, in evaluation mode.
        split: sentence pairs, which the model reads with their references.
        sentences: largest number of pairs, spread over the split.

    Raises:
        NmtError: the model is no Transformer.
    """
    if not isinstance(model, Transformer):
        raise NmtError(f"{type(model).__name__}: only Transformers are calibrated")
    ranges: dict[str, Range] = {}
    hooks = [
        module.register_forward_pre_hook(partial(_note, ranges, name))
        for name, module in model.named_modules()
        if type(module) is nn.Linear
    ]
    # A split may have fewer pairs than are wanted.
    indices = np.unique(np.linspace(0, len(split) - 1, sentences).astype(np.int64))
    for start in range(0, len(indices), BATCH):
        batch = make_batch(split, indices[start : start + BATCH])
        model.project(model.decode_packs(batch.source, batch.target_input, batch.packing))
    for hook in hooks:
        hook.remove()
    return ranges


def _note(
    ranges: dict[str, Range], name: str, module: nn.Module, arguments: tuple[Tensor, ...]
) -> None:
    if not arguments[0].numel():  # an expert without a token
        return
    low, high = torch.stack(arguments[0].aminmax()).tolist()
    before = ranges.get(name, (low, high))
    ranges[name] = min(before[0], low), max(before[1], high)
