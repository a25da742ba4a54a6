"""Models prepared for inference: packed weights, low precision and direct calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from nmt.models.layers.basic import Dropout, TokenEmbedding
from nmt.runtime.precision import (
    LOW,
    InferencePrecision,
    check_precision,
    low_dtype,
    onednn_computes_in,
    pick_precision,
)


def convert(model: nn.Module, precision: InferencePrecision, device: torch.device) -> None:
    """Convert a model for inference, once and in place.

    Weights of linear layers are stored in the layout of the fastest product, calls of modules
    bypass torch's hooks, and Dropout is removed. Normalised weights, which ConvS2S has, are
    computed once. For bf16 and fp16, weights are converted once, which :func:`autocast` would
    repeat for every batch. The model cannot be trained afterwards: no weight has gradients.

    Args:
        model: model or ensemble.
        precision: precision of the computation.
        device: device of the model.

    Raises:
        NmtError: the precision is int8.
    """
    precision = pick_precision(precision, device)
    check_precision(precision, device.type)
    for module in list(model.modules()):
        # Weights are final, so gain and direction become one matrix.
        if parametrize.is_parametrized(module, "weight"):
            parametrize.remove_parametrizations(module, "weight")
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, Dropout):
                setattr(module, name, nn.Identity())
            elif type(child) is nn.Linear:  # a subclass may do more than multiply
                setattr(module, name, _converted(child, precision, device))
            elif isinstance(child, nn.RNNBase) and _is_kept_low(precision, device):
                child.to(low_dtype(precision))
    model.requires_grad_(False)
    _call_directly(model)


def is_converted(model: nn.Module) -> bool:
    """Return whether :func:`convert` has converted a model, whose hooks no longer run."""
    return "__call__" in vars(type(model))


def choose_attention(kind: str) -> None:
    """Let torch take the attention that is fastest for the few queries of a decoding step.

    For commands that translate: it concerns the whole process. torch would take kernels that
    compute 64 or 128 queries at once; on an H200 they take up to twice the time of the
    memory-efficient one for beams of 4. Does nothing on a CPU.
    """
    if kind == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)
        torch.backends.cuda.enable_flash_sdp(False)


def _call_directly(model: nn.Module) -> None:
    """Remove the overhead of calls of modules, such as hooks, and of attribute lookup.

    For one sentence on a CPU this overhead takes as long as the computation.
    """
    modules = list(model.modules())
    # One class for all modules of a kind: Python caches where it finds an attribute of a class.
    kinds = {
        kind: type(kind.__name__, (kind,), {"__call__": _FUNCTIONS.get(kind, kind.forward)})
        for kind in {type(module) for module in modules}
    }
    for module in modules:
        module.__class__ = kinds[type(module)]
        # torch looks submodules up in a dictionary by __getattr__, which Python cannot cache.
        vars(module).update(module._modules, **module._parameters)


def _normalise(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    return torch.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


def _embed(table: TokenEmbedding, tokens: Tensor) -> Tensor:
    return table.with_zeros(torch.embedding(table.weight, tokens), tokens)


_FUNCTIONS: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.LayerNorm: _normalise,
    TokenEmbedding: _embed,
}
"""Functions that compute modules without torch's checks of the arguments in Python."""


class OutputSubsets:
    """The output layer of a model, of which each batch needs different outputs."""

    @torch.no_grad()
    def __init__(self, linear: nn.Linear, precision: InferencePrecision) -> None:
        """Keep the weights of a layer that was not converted, in the precision of the products."""
        weight = linear.weight
        dtype = low_dtype(pick_precision(precision, weight.device)) or torch.float32
        self._is_packed = _is_packed(dtype, weight.device)
        self._weight = weight.to(dtype)
        self._bias = None if linear.bias is None else linear.bias.to(dtype)

    def select(self, outputs: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the linear layer with the outputs at some indices [n] int64."""
        weight = self._weight.index_select(0, outputs)
        bias = None if self._bias is None else self._bias.index_select(0, outputs)
        if self._is_packed:
            return PackedLinear(weight, bias)
        return partial(F.linear, weight=weight, bias=bias)


def _converted(linear: nn.Linear, precision: InferencePrecision, device: torch.device) -> nn.Module:
    """Return the fastest replacement of a linear layer, or the layer itself."""
    dtype = low_dtype(precision) or torch.float32
    if _is_packed(dtype, device):
        bias = None if linear.bias is None else linear.bias.detach().to(dtype)
        return PackedLinear(linear.weight.detach().to(dtype), bias)
    if dtype != torch.float32:
        linear.weight = _constant(linear.weight.to(dtype))
        linear.bias = None if linear.bias is None else _constant(linear.bias.to(dtype))
    return linear


def _is_kept_low(precision: InferencePrecision, device: torch.device) -> bool:
    """Return whether recurrent layers compute in a precision of 16 bits; see `recurrent.recur`."""
    return precision in LOW and (device.type == "cpu" or precision == "fp16")


def _is_packed(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether oneDNN multiplies by packed weights of a dtype on a device."""
    return device.type == "cpu" and dtype != torch.float16 and onednn_computes_in(dtype)


class PackedLinear(nn.Module):
    """A linear layer with weights packed for oneDNN's product.

    On a CPU this is up to four times as fast for a few rows, and a tenth to a third faster for
    many. With up to 1,024 inputs the output of a row does not depend on the number of rows; with
    more, oneDNN adds up the products of a single row in another order.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Pack the weights [out, in] and the bias [out], whose dtype the layer computes in."""
        super().__init__()
        self.dtype = weight.dtype
        self._packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        self._bias = bias
        # `_op` skips the argument checks that torch makes in Python.
        self._multiply: Any = torch.ops.mkldnn._linear_pointwise.default._op

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer: [..., in] to [..., out] of the layer's dtype."""
        *shape, inputs = x.shape
        rows = prod(shape)
        # oneDNN makes a kernel for each number of rows, and keeps a part of it for ever. With all
        # numbers of rows a process that translates grew by half a gigabyte in ten minutes. So the
        # number becomes a multiple of a power of two, and at most an eighth larger.
        if spare := -rows % (1 << max(0, (rows - 1).bit_length() - 4)):
            padded = x.new_empty(rows + spare, inputs)  # F.pad would fill all of it first
            padded[:rows], padded[rows:] = x.reshape(rows, inputs), 0.0
            x = padded
        product: Tensor = self._multiply(x.to(self.dtype), self._packed, self._bias, "none", [], "")
        return product[:rows].view(*shape, -1) if spare else product


def _constant(values: Tensor) -> nn.Parameter:
    return nn.Parameter(values, requires_grad=False)
