"""The output layer and the loss at once, a slice of tokens at a time.

The logits [P, V] of a micro-batch would take more memory than the model. :func:`sliced_loss` is the
one loop over slices of tokens: it computes the logits of a slice, and a function maps them to their
cost and to its gradient, from which the gradients of decoder output and weights follow. There are
three such functions:

- :func:`cross_entropy`, with label smoothing;
- :func:`agreement` of two passes, for R-Drop and SimCut;
- :func:`distillation`, with a mixture of labels and teachers' predictions.

:func:`log_probabilities` returns a value for each token, for losses of whole translations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from nmt.data.vocabulary import PAD
from nmt.runtime.own_kernels import has_own_kernels
from nmt.training.fp8 import Fp8Logits, Fp8Output, Slots

SLICE_ELEMENTS = {"cpu": 1 << 23, "cuda": 1 << 27}
"""Number of logits of a slice of tokens, by device; in float32 they take 32 MiB and 512 MiB.

Slices are large enough to keep the device busy. Logits have the dtype of the matrix products.
"""

MIXED_SUMS = hasattr(torch.ops.aten.addmm, "dtype_out")
"""Whether this torch adds a product in half precision to a float32 matrix: from 2.8, on a GPU."""

MIN_PROBABILITY = torch.finfo(torch.float32).tiny
"""Least probability whose logarithm is taken; 0 adds nothing to an entropy."""


class TargetDistribution(NamedTuple):
    """Probabilities that a model should predict, whose sum over the vocabulary is usually 1."""

    label: float
    """Of the token to predict."""
    other: float
    """Of every token that is neither label nor padding."""
    pad: float
    """Of padding."""


class Slice(NamedTuple):
    """R of the P tokens of a batch."""

    part: slice
    """Their indices."""
    labels: Tensor
    """[R] int64."""
    weights: Tensor | None
    """[R] float32, factors of the tokens' costs and gradients; None for 1."""
    wants_gradient: bool


class Cost(NamedTuple):
    """A cost of tokens, given their logits."""

    differentiate: Callable[[Slice, list[Tensor]], tuple[Tensor, Tensor, list[Tensor]]]
    """Maps a slice and its logits, [R, V] of each of N passes, to

    - costs, times the tokens' weights, in any shape: their sum is minimised;
    - the negative log-likelihood of each label, without weights: [N, R];
    - the gradient of the summed costs with respect to the logits: [R, V] of each pass.
    """
    in_place: bool = False
    """Whether logits of the only pass are overwritten; if not, a slice takes some four float32
    tables [R, V] of each pass."""
    uniform: float = 0.0
    """Nats to subtract for each logit, which `differentiate` leaves out."""


Layer = tuple[Tensor, Tensor, Tensor | None]
"""Inputs of an output layer [..., D], its weight [V, D], and its bias [V] or None."""


def sliced_loss(
    decoder_output: Tensor,
    output: nn.Linear,
    labels: Tensor,
    weights: Tensor | None,
    cost: Cost,
) -> tuple[Tensor, Tensor]:
    """Return the summed cost, with a gradient, and the negative log-likelihood of each pass [N].

    Args:
        decoder_output: of N passes, [N, P, D].
        output: the model's output layer [V, D].
        labels: [P] int64.
        weights: [P] float32, factors of the tokens' costs; None if all are 1.
        cost: what the tokens cost.
    """
    wants_gradient = torch.is_grad_enabled()
    is_fp8 = isinstance(output, Fp8Output) and wants_gradient and cost.in_place
    loss, nll = SlicedLoss.apply(  # type: ignore[no-untyped-call]
        *(decoder_output, output.weight, output.bias, labels, weights),
        *(cost, wants_gradient, output.slots if is_fp8 else None),
    )
    return loss, nll


class SlicedLoss(torch.autograd.Function):
    """Autograd's side of :func:`sliced_loss`, whose arguments it takes.

    The forward pass computes the gradients at once, so that it need not keep the logits.
    """

    @staticmethod
    def forward(
        ctx: Any,
        decoder_output: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        weights: Tensor | None,
        cost: Cost,
        wants_gradient: bool,
        slots: Slots | None,
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and the negative log-likelihoods, and keep the loss's gradients."""
        (passes, tokens, _), device = decoder_output.shape, decoder_output.device.type
        layer = inputs, matrix, offset = in_autocast_dtype(decoder_output, weight, bias)
        rows = max(1, SLICE_ELEMENTS[device] // ((1 if cost.in_place else 4) * len(weight)))
        gradients = Gradients(layer, weight, bias) if wants_gradient else None
        # In float64, because a float32 sum over many tokens loses the last digits of each.
        loss, nll = (inputs.new_zeros(size, dtype=torch.float64) for size in ((), passes))
        room = inputs.new_empty(min(rows, tokens), len(weight))
        in_fp8 = Fp8Logits(inputs[0], weight, slots) if slots and tokens else None
        with torch.autocast(device, enabled=False):
            for first in range(0, tokens, rows):
                part = slice(first, min(first + rows, tokens))
                table, gold = room[: part.stop - first], labels[part]  # [R, V], [R]
                if cost.in_place:
                    if in_fp8 is None:
                        torch.mm(inputs[0, part], matrix.t(), out=table)
                    else:
                        table = in_fp8.of(part, room.dtype)
                    logits = [table]
                    if offset is not None:
                        table += offset
                else:
                    logits = [F.linear(states[part], matrix, offset) for states in inputs]
                share = None if weights is None else weights[part]
                chosen = Slice(part, gold, share, wants_gradient)
                costs, likelihoods, d_logits = cost.differentiate(chosen, logits)
                if weights is not None:  # labels that fill up a batch are PAD
                    likelihoods = likelihoods * (gold != PAD)
                loss += costs.sum(dtype=torch.float64)
                nll += likelihoods.sum(1, dtype=torch.float64)
                if gradients is not None:
                    for number, d_table in enumerate(d_logits):
                        # The logits are used up, so their table is free for a gradient in another
                        # dtype.
                        gradients.add((number, part), d_table, table)
        if cost.uniform:
            loss -= _sum_of_logits(layer, weight, weights, cost.uniform, gradients)
        if gradients is not None:
            ctx.save_for_backward(gradients.inputs, gradients.weight, gradients.bias)
            ctx.dtypes = decoder_output.dtype, weight.dtype
        loss, nll = loss.float(), nll.float()
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """Return the kept gradients times the gradient of the loss, which is a scalar."""
        d_inputs, d_weight, d_bias = ctx.saved_tensors
        inputs_dtype, weight_dtype = ctx.dtypes
        return (
            (d_inputs * d_loss).to(inputs_dtype),
            (d_weight * d_loss).to(weight_dtype),
            None if d_bias is None else d_bias * d_loss,
            *(None,) * 5,
        )


class Gradients:
    """Gradients of a sliced loss with respect to the output layer's inputs, weight and bias."""

    def __init__(self, layer: Layer, weight: Tensor, bias: Tensor | None) -> None:
        """Make room for the gradients.

        Args:
            layer: the tensors of the matrix products.
            weight: the trained weight [V, D].
            bias: the trained bias [V], or None.
        """
        self.layer = layer
        self.inputs = torch.empty_like(layer[0])  # each slice sets its rows
        self.weight = torch.zeros_like(weight, dtype=torch.float32)
        self.bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)

    def add(self, part: tuple[int, slice], d_logits: Tensor, room: Tensor) -> None:
        """Add the gradients of a slice of tokens.

        Args:
            part: pass and indices of the tokens.
            d_logits: the gradient with respect to their logits, [R, V] in any floating dtype.
            room: [R, V] in the dtype of the matrix products; overwritten.
        """
        inputs, matrix, _ = self.layer
        if self.bias is not None:
            self.bias += d_logits.sum(0, dtype=torch.float32)
        if d_logits.dtype != room.dtype:
            d_logits = room.copy_(d_logits)
        torch.mm(d_logits, matrix, out=self.inputs[part])
        if d_logits.is_cuda and d_logits.dtype != torch.float32 and MIXED_SUMS:
            # Sums of many slices in bf16 would lose small gradients.
            torch.addmm(
                self.weight, d_logits.t(), inputs[part], out_dtype=torch.float32, out=self.weight
            )
        else:
            self.weight += d_logits.t() @ inputs[part]


def _sum_of_logits(
    layer: Layer,
    weight: Tensor,
    weights: Tensor | None,
    factor: float,
    gradients: Gradients | None,
) -> Tensor:
    """Return the sum of all logits [P, V], times the tokens' weights and a factor, in float64.

    The sum is the product of two sums, over tokens and over the vocabulary, so it needs no logits.
    Its gradient is subtracted from `gradients`.
    """
    inputs, _, bias = layer
    tokens: Tensor | int = inputs.shape[1]
    shares: Tensor | float = 1.0
    if weights is not None:
        tokens, shares = weights.sum(), weights[:, None]
        inputs = inputs * shares
    weight_sum, input_sum = weight.sum(0), inputs[0].sum(0, dtype=torch.float32)
    total = input_sum.double() @ weight_sum.double()
    if bias is not None:
        total += tokens * bias.sum(dtype=torch.float64)
    if gradients is not None:
        gradients.inputs -= factor * weight_sum * shares
        gradients.weight -= factor * input_sum
        if gradients.bias is not None:
            gradients.bias -= factor * tokens
    return factor * total


def cross_entropy(
    target: TargetDistribution, tokens: Slice, logits: list[Tensor]
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return cost, likelihoods and gradient of a cross-entropy: a :class:`Cost`, in place.

    The gradient of -sum_v q(v) log p(v) with respect to the logits is p - q, with the predictions p
    and the target distribution q. `target.other` times the sum of all logits is left out.
    """
    (table,), (_, labels, weights, wants_gradient) = logits, tokens
    differentiate: Callable[..., tuple[Tensor, Tensor]] = differentiate_
    if table.is_cuda and has_own_kernels():
        from nmt.training.losses import kernels

        differentiate = kernels.differentiate_
    on_label, on_pad = target.label - target.other, target.pad - target.other
    terms, d_logits = differentiate(table, labels, weights, on_label, on_pad, wants_gradient)
    nll, log_z, pad_logits = (terms if weights is None else terms * weights).double()
    # -sum_v q(v) log p(v), as terms of the label, of all tokens, and of padding.
    cost = on_label * nll + target.other * table.shape[1] * log_z + on_pad * (log_z - pad_logits)
    return cost, terms[:1], [d_logits]


def differentiate_(
    logits: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    on_label: float,
    on_pad: float,
    wants_gradient: bool,
) -> tuple[Tensor, Tensor]:
    """Compute the terms of the cross-entropy of some tokens, and its gradient.

    Args:
        logits: [R, V] in the dtype of the matrix products; overwritten.
        labels: [R] int64.
        weights: [R] float32, factors of the tokens' gradients; None for 1.
        on_label: target probability of the label, less the one of any other token.
        on_pad: target probability of padding, less the one of any other token.
        wants_gradient: whether the gradient is needed.

    Returns:
        [3, R] float32: each token's negative log-likelihood, the logarithm of the sum of the
        exponentials of its logits, and the logit of padding. And if it is wanted, the gradient
        [R, V], in the dtype of `logits` or in float32, except the constant of all tokens of the
        vocabulary, which is subtracted later (:func:`_sum_of_logits`).
    """
    labels = labels[:, None]
    label_logits, pads = logits.gather(1, labels).float(), logits[:, PAD].clone().float()
    # Before the softmax overwrites the logits.
    highest = logits.amax(1, keepdim=True).float()
    # fp16 would round small probabilities to 0.
    p = logits.float() if logits.dtype == torch.float16 else logits
    torch.softmax(p, dim=-1, out=p)
    highest_p, label_p = p.amax(1, keepdim=True).float(), p.gather(1, labels).float()
    # bf16 rounds a probability near 1 to 1, so sum the other probabilities.
    p.scatter_(1, labels, 0.0)
    total = label_p + p.sum(1, keepdim=True).float()
    # Use the likeliest token: its probability is never too small for a logarithm.
    log_z = highest - (highest_p / total).log()
    if wants_gradient:
        p.scatter_(1, labels, (label_p - on_label * total).to(p.dtype))
        p[:, PAD] -= on_pad
        if weights is not None:
            p *= weights[:, None]
    return torch.stack(((log_z - label_logits).squeeze(1), log_z.squeeze(1), pads)), p


def agreement(
    target: TargetDistribution,
    cross_entropies: Sequence[float],
    divergences: Sequence[float],
    tokens: Slice,
    logits: list[Tensor],
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return cost, likelihoods and gradients of two passes that should agree: a :class:`Cost`.

    The cost of a pass is a * CE(q, p1) + b * KL(p1 || p2), with its predictions p1, the other
    pass's predictions p2, and the target distribution q.

    Args:
        target: q.
        cross_entropies: the factor a of each pass.
        divergences: the factor b of each pass.
        tokens: the slice.
        logits: of two passes, each [R, V].
    """
    gold = tokens.labels[:, None]
    log_p = [table.log_softmax(-1, dtype=torch.float32) for table in logits]
    p = [table.exp() for table in log_p]
    costs, likelihoods, gradients = [], [], []
    for one, two in ((0, 1), (1, 0)):
        nll = -log_p[one].gather(1, gold)
        cross_entropy = (target.label - target.other) * nll
        cross_entropy -= target.other * log_p[one].sum(1, keepdim=True)
        cross_entropy -= (target.pad - target.other) * log_p[one][:, PAD, None]
        ratio = log_p[one] - log_p[two]
        divergence = (p[one] * ratio).sum(1, keepdim=True)
        a, b, other_b = cross_entropies[one], divergences[one], divergences[two]
        cost = a * cross_entropy + b * divergence
        # The gradient of both passes' costs with respect to this pass's logits, in place: tables
        # [R, V] are what fills the memory.
        d_logits = ratio.mul_(b)
        d_logits += a + other_b - b * divergence
        d_logits *= p[one]
        d_logits -= other_b * p[two]
        d_logits -= a * target.other
        d_logits[:, PAD] -= a * (target.pad - target.other)
        label = torch.full_like(nll, -a * (target.label - target.other))
        d_logits.scatter_add_(1, gold, label)
        if tokens.weights is not None:
            cost *= tokens.weights[:, None]
            d_logits *= tokens.weights[:, None]
        costs.append(cost)
        likelihoods.append(nll[:, 0])
        gradients.append(d_logits)
    return torch.stack(costs), torch.stack(likelihoods), gradients


def distillation(
    target: TargetDistribution,
    teacher_weight: float,
    teachers: Sequence[Layer],
    tokens: Slice,
    logits: list[Tensor],
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return cost, likelihoods and gradient of word-level distillation: a :class:`Cost`.

    The cost is the cross-entropy of the target distribution plus w times the teachers' mean
    prediction t, minus the part w * H(t) that has no gradient, so that KL(t || p) remains.

    Args:
        target: of the labels, with a sum of 1 - w.
        teacher_weight: w.
        teachers: output layer of each teacher.
        tokens: the slice.
        logits: of one pass, [R, V].
    """
    gold = tokens.labels[:, None]
    q = _mean_prediction(teachers, tokens.part)
    logs = q.clamp_min(MIN_PROBABILITY).log_()
    q *= teacher_weight
    entropy = -logs.mul_(q).sum(1, keepdim=True)
    q += target.other
    q[:, PAD] += target.pad - target.other
    q.scatter_add_(1, gold, torch.full_like(gold, target.label - target.other, dtype=q.dtype))
    log_p = logits[0].log_softmax(-1, dtype=torch.float32)
    cost = -(q * log_p).sum(1, keepdim=True) - entropy
    nll = -log_p.gather(1, gold)
    d_logits = log_p.exp_().sub_(q)
    if tokens.weights is not None:
        cost *= tokens.weights[:, None]
        d_logits *= tokens.weights[:, None]
    return cost, nll.T, [d_logits]


def _mean_prediction(teachers: Sequence[Layer], part: slice) -> Tensor:
    """Return the mean of the teachers' probabilities of a slice of tokens: [R, V] float32."""
    predictions = (
        F.linear(inputs[part], matrix, offset).softmax(-1, dtype=torch.float32)
        for inputs, matrix, offset in teachers
    )
    mean = next(predictions)
    for prediction in predictions:
        mean += prediction
    return mean.div_(len(teachers))


def log_probabilities(decoder_output: Tensor, output: nn.Linear, labels: Tensor) -> Tensor:
    """Return the log-probability of each label, in nats: [P] float32.

    Computes the logits of one slice of tokens at a time, and again for the gradient.

    Args:
        decoder_output: decoder output [P, D].
        output: the model's output layer [V, D].
        labels: [P] int64.
    """
    rows = max(1, SLICE_ELEMENTS[decoder_output.device.type] // output.out_features)
    parts = [
        checkpoint(
            _log_probabilities,
            *(decoder_output[first : first + rows], output.weight, output.bias),
            labels[first : first + rows],
            use_reentrant=False,
            # There is no dropout in here, so the second pass needs no generator's state.
            preserve_rng_state=False,
        )
        # At least one slice, so that an empty batch has a gradient, too.
        for first in range(0, max(1, len(decoder_output)), rows)
    ]
    return torch.cat(parts)


def _log_probabilities(
    decoder_output: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor
) -> Tensor:
    layer = in_autocast_dtype(decoder_output, weight, bias)
    with torch.autocast(decoder_output.device.type, enabled=False):
        return -F.cross_entropy(F.linear(*layer).float(), labels, reduction="none")


def in_autocast_dtype(decoder_output: Tensor, weight: Tensor, bias: Tensor | None) -> Layer:
    """Return decoder output, weight and bias in the dtype that autocast would use."""
    device = decoder_output.device.type
    low = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if low else weight.dtype
    return decoder_output.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
