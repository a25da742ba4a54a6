"""Models prepared for inference: packed weights, low precision and direct calls."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nmt.inference.calibrated import Ranges, convert_calibrated
from nmt.inference.int8 import Int8Linear
from nmt.models.transformer import Transformer
from nmt.runtime.precision import (
    LOW,
    InferencePrecision,
    check_precision,
    onednn_computes_in,
    pick_precision,
)


def convert(
    model: nn.Module,
    precision: InferencePrecision,
    device: torch.device,
    ranges: Ranges | None = None,
) -> None:
    """Convert a model for inference, once and in place.

    Weights of linear layers are stored in the layout of the fastest product, and calls of modules
    bypass torch's hooks. For bf16 and fp16, weights are converted once, which :func:`autocast`
    would repeat for every batch. int8 is torch's dynamic quantisation: weights per output row,
    inputs per tensor, products in integers; everything else stays float32. With `ranges` inputs are
    quantised by ranges, and results do not depend on the batch. The model cannot be trained
    afterwards: no weight has gradients.

    Args:
        model: model or ensemble.
        precision: precision of the computation.
        device: device of the model.
        ranges: smallest and largest input of each linear layer of Transformers, for int8.

    Raises:
        NmtError: int8 on another device than a CPU, or on a CPU without int8 kernels.
    """
    precision = pick_precision(precision, device)
    check_precision(precision, device)
    if ranges:
        for transformer in [part for part in model.modules() if isinstance(part, Transformer)]:
            convert_calibrated(transformer, ranges)
        precision = "fp32"  # of layers without a range
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Linear:  # a subclass may do more than multiply
                setattr(module, name, _converted(child, precision, device))
            elif isinstance(child, nn.RNNBase) and precision in LOW:
                child.to(LOW[precision])
    model.requires_grad_(False)
    _call_directly(model)


def _call_directly(model: nn.Module) -> None:
    """Remove the overhead of calls of modules, such as hooks, and of attribute lookup.

    For one sentence on a CPU this overhead takes as long as the computation.
    """
    for module in model.modules():
        kind = type(module)
        module.__class__ = type(kind.__name__, (kind,), {"__call__": kind.forward})
        vars(module).update(module._modules, **module._parameters)


def some_outputs(
    linear: nn.Linear, outputs: Tensor, precision: InferencePrecision, device: torch.device
) -> nn.Module:
    """Return a linear layer with only some outputs of another layer, converted for inference.

    For int8 the new layer computes as for "auto": packing 8-bit weights takes longer than the
    products of a sentence or two.

    Args:
        linear: layer that was not converted.
        outputs: [n] int64, indices of the outputs.
        precision: precision of the computation.
        device: device of the layer.
    """
    subset = nn.Linear(linear.in_features, len(outputs), linear.bias is not None, device="meta")
    subset.weight = _constant(linear.weight.detach()[outputs])
    if linear.bias is not None:
        subset.bias = _constant(linear.bias.detach()[outputs])
    fast = "auto" if precision == "int8" else precision
    return _converted(subset, pick_precision(fast, device), device)


def _converted(linear: nn.Linear, precision: InferencePrecision, device: torch.device) -> nn.Module:
    """Return the fastest replacement of a linear layer, or the layer itself."""
    if precision == "int8":
        return Int8Linear(linear)
    dtype = LOW.get(precision, torch.float32)
    if device.type == "cpu" and dtype != torch.float16 and onednn_computes_in(dtype):
        return PackedLinear(linear, dtype)
    if dtype != torch.float32:
        linear.weight = _constant(linear.weight.to(dtype))
        linear.bias = None if linear.bias is None else _constant(linear.bias.to(dtype))
    return linear


class PackedLinear(nn.Module):
    """A linear layer with weights packed for oneDNN's product.

    On a CPU this is up to four times as fast for a few rows, and a tenth to a third faster for
    many. The output of a row does not depend on the number of rows.
    """

    def __init__(self, linear: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        weight = linear.weight.detach().to(dtype)
        self._packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        self._bias = None if linear.bias is None else linear.bias.detach().to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer: [..., in] to [..., out] of the layer's dtype."""
        product: Tensor = torch.ops.mkldnn._linear_pointwise.default(
            x.to(self.dtype), self._packed, self._bias, "none", [], ""
        )
        return product


def _constant(values: Tensor) -> nn.Parameter:
    return nn.Parameter(values, requires_grad=False)
