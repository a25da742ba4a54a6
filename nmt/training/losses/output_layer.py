"""Output layer, softmax and cross-entropy fused, a slice of tokens at a time.

Output layer and loss of two passes that are to agree (R-Drop, SimCut), in slices of tokens.

Output layer and word-level distillation, with the teachers' output layers, in slices.

Output layer and log-probabilities of labels, a slice of tokens at a time.
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
from nmt.training.losses.slices import SLICE_ELEMENTS, Gradients, Masses, Targets, in_autocast_dtype


class SlicedLoss(torch.autograd.Function):
    """Loss and gradient of a linear layer and a softmax, a slice of tokens at a time.

    The gradient with respect to the logits has a closed form: softmax minus target distribution.
    The forward pass therefore computes the gradients of decoder output and weights at once, and
    keeps no logits.
    """

    @staticmethod
    def forward(
        ctx: Any,
        decoder_output: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Targets,
        wants_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and the negative log-likelihood, and keep the loss's gradients.

        Args:
            ctx: autograd's context.
            decoder_output: decoder output [P, D].
            weight: of the output layer [V, D].
            bias: of the output layer [V], or None.
            targets: of the P tokens.
            wants_gradient: whether to compute the gradients.
        """
        labels, masses, token_weights = targets
        device = decoder_output.device.type
        inputs, matrix, offset = in_autocast_dtype(decoder_output, weight, bias)
        # Logits [P, V] of a micro-batch would take more memory than the model: they exist a slice
        # at a time, and their gradient is computed at once in their place.
        rows = max(1, SLICE_ELEMENTS[device] // len(weight))
        terms = inputs.new_empty(3, len(inputs), dtype=torch.float32)
        gradients = Gradients.zeros(inputs, weight, bias) if wants_gradient else None
        room = inputs.new_empty(min(rows, len(inputs)), len(weight))
        differentiate_ = _differentiation(decoder_output.device)
        with torch.autocast(device, enabled=False):
            for first in range(0, len(inputs), rows):
                part = slice(first, first + rows)
                gold = labels[part]
                logits = torch.mm(inputs[part], matrix.t(), out=room[: len(gold)])
                if offset is not None:
                    logits += offset
                share = None if token_weights is None else token_weights[part]
                d_logits = differentiate_(
                    logits, gold, masses, share, terms[:, part], gradients is not None
                )
                if gradients is not None:
                    gradients.add(part, d_logits, inputs, matrix, room=logits)
        weighted, likelihoods = terms, terms[0]
        if token_weights is not None:
            weighted, likelihoods = terms * token_weights, likelihoods * (labels != PAD)
        nll = likelihoods.sum(dtype=torch.float64)
        cost, log_normalisers, pad_logits = weighted.sum(1, dtype=torch.float64)
        # Label smoothing sums the log-probabilities of all tokens; the sum of logits over the
        # vocabulary is one product of sums, without a pass over [P, V].
        all_logits = _SumOfLogits(inputs, weight, offset, token_weights)
        loss = (masses.label - masses.other) * cost
        loss += masses.other * (len(weight) * log_normalisers - all_logits.value())
        loss += (masses.pad - masses.other) * (log_normalisers - pad_logits)
        if gradients is not None:
            if masses.other:
                all_logits.subtract_gradient(gradients, masses.other)
            gradients.save(ctx, decoder_output, weight)
        loss, nll = loss.float(), nll.float()
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """Return the kept gradients times the gradient of the loss."""
        return *Gradients.backward(ctx, d_loss), None, None


def _differentiation(device: torch.device) -> Callable[..., Tensor]:
    """Return :func:`differentiate_`, or the kernel that does the same."""
    if device.type == "cuda" and has_own_kernels():
        from nmt.training.losses import kernels

        return kernels.differentiate_
    return differentiate_


def differentiate_(
    logits: Tensor,
    labels: Tensor,
    masses: Masses,
    weights: Tensor | None,
    terms: Tensor,
    wants_gradient: bool,
) -> Tensor:
    """Compute the terms of the loss of some tokens, and its gradient.

    Args:
        logits: [R, V] in the dtype of the matrix products; overwritten.
        labels: [R] int64.
        masses: of the target distribution.
        weights: [R] float32, factors of the tokens' gradients; None for 1.
        terms: [3, R] float32; gets each token's negative log-likelihood, the logarithm of the sum
            of the exponentials of its logits, and the logit of padding.
        wants_gradient: whether the gradient is needed.

    Returns:
        If it is wanted, the gradient of the loss with respect to the logits, without the mass that
        is the same for all tokens of the vocabulary: [R, V], in the dtype of `logits` or in
        float32.
    """
    labels = labels[:, None]
    label_logits, pads = logits.gather(1, labels).float(), logits[:, PAD].clone().float()
    p, label_p, total, log_z = _softmax_without_label_(logits, labels)
    terms.copy_(torch.stack(((log_z - label_logits).squeeze(1), log_z.squeeze(1), pads)))
    if wants_gradient:
        p.scatter_(1, labels, (label_p - (masses.label - masses.other) * total).to(p.dtype))
        p[:, PAD] -= masses.pad - masses.other
        if weights is not None:
            p *= weights[:, None]
    return p


class _SumOfLogits:
    """The weighted sum of the logits over tokens and vocabulary: the product of two sums."""

    def __init__(
        self, inputs: Tensor, weight: Tensor, bias: Tensor | None, token_weights: Tensor | None
    ) -> None:
        self.bias, self.weight_sum = bias, weight.sum(0)
        self.shares: Tensor | float = 1.0
        self.tokens: Tensor | int = len(inputs)
        if token_weights is not None:
            self.shares, self.tokens = token_weights[:, None], token_weights.sum()
            inputs = inputs * self.shares
        self.input_sum = inputs.sum(0, dtype=torch.float32)

    def value(self) -> Tensor:
        total = self.input_sum.double() @ self.weight_sum.double()
        if self.bias is not None:
            total += self.tokens * self.bias.sum(dtype=torch.float64)
        return total

    def subtract_gradient(self, gradients: Gradients, factor: float) -> None:
        """Subtract the gradient of the sum, times a factor."""
        gradients.inputs -= factor * self.weight_sum * self.shares
        gradients.weight -= factor * self.input_sum
        if gradients.bias is not None:
            gradients.bias -= factor * self.tokens


def _softmax_without_label_(
    logits: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the softmax of each row, in place, with zero for the label, and its label apart.

    Args:
        logits: [R, V] in the dtype of the matrix products.
        labels: [R, 1] int64.

    Returns:
        The rounded probabilities [R, V] of all tokens but the label; and, each [R, 1] float32, the
        label's probability, the sum of all rounded probabilities, and the logarithm of the sum of
        the exponentials of the logits.
    """
    # Before the softmax overwrites the logits.
    highest = logits.amax(1, keepdim=True).float()
    p = _softmax_(logits)
    highest_p, label_p = p.amax(1, keepdim=True).float(), p.gather(1, labels).float()
    # bf16 rounds a probability near 1 to 1, so sum the other probabilities.
    p.scatter_(1, labels, 0.0)
    total = label_p + p.sum(1, keepdim=True).float()
    # Use the likeliest token: its probability is never too small for a logarithm.
    return p, label_p, total, highest - (highest_p / total).log()


def _softmax_(logits: Tensor) -> Tensor:
    """Return the softmax of each row, in place; fp16 is converted, as it rounds small ones to 0."""
    p = logits.float() if logits.dtype == torch.float16 else logits
    return torch.softmax(p, dim=-1, out=p)


class Shares(NamedTuple):
    """Weights of what one of two passes adds to the loss."""

    cross_entropy: float
    divergence: float
    """Of KL(p || q), with p this pass's predictions and q the other's."""


class SlicedAgreement(torch.autograd.Function):
    """Cross-entropies of two passes and divergences between them, a slice of tokens at a time.

    The passes are the halves of the decoder output [2P, D]. The logits of a slice are computed
    once; the gradient reaches both passes.
    """

    @staticmethod
    def forward(
        ctx: Any,
        decoder_output: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Targets,
        shares: tuple[Shares, Shares],
        wants_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and the negative log-likelihoods, and keep the loss's gradients.

        Args:
            ctx: autograd's context.
            decoder_output: decoder output [2P, D].
            weight: of the output layer [V, D].
            bias: of the output layer [V], or None.
            targets: of the P tokens.
            shares: what counts of each pass.
            wants_gradient: whether to compute the gradients.

        Returns:
            The loss, and the negative log-likelihood of each pass [2].
        """
        labels, masses, token_weights = targets
        device, tokens = decoder_output.device.type, len(labels)
        inputs, matrix, offset = in_autocast_dtype(decoder_output, weight, bias)
        # A slice holds two passes, and some eight tables [R, V] of float32 at a time.
        rows = max(1, SLICE_ELEMENTS[device] // (4 * len(weight)))
        sums = torch.zeros(2, 2, dtype=torch.float64, device=decoder_output.device)
        gradients = Gradients.zeros(inputs, weight, bias) if wants_gradient else None
        room = inputs.new_empty(min(rows, tokens), len(weight))
        with torch.autocast(device, enabled=False):
            for first in range(0, tokens, rows):
                gold = labels[first : first + rows, None]
                factors = (
                    None if token_weights is None else token_weights[first : first + rows, None]
                )
                parts = [slice(start, start + len(gold)) for start in (first, tokens + first)]
                log_p = [
                    F.linear(inputs[part], matrix, offset).log_softmax(-1, dtype=torch.float32)
                    for part in parts
                ]
                # Both passes of a slice side by side: each divergence needs both predictions.
                p = [table.exp() for table in log_p]
                for one, other in ((0, 1), (1, 0)):
                    pair = (log_p[one], log_p[other], p[one], p[other])
                    *costs, d_logits = _agreement(*pair, gold, masses, shares[one], shares[other])
                    if factors is not None:
                        costs[0] *= factors
                        d_logits *= factors
                    sums[one] += torch.stack([cost.sum(dtype=torch.float64) for cost in costs])
                    if gradients is not None:
                        gradients.add(parts[one], d_logits, inputs, matrix, room[: len(gold)])
        if gradients is not None:
            gradients.save(ctx, decoder_output, weight)
        loss, nll = sums[:, 0].sum().float(), sums[:, 1].float()
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """Return the kept gradients times the gradient of the loss."""
        return *Gradients.backward(ctx, d_loss), None, None, None


def _agreement(
    log_p: Tensor,
    log_q: Tensor,
    p: Tensor,
    q: Tensor,
    gold: Tensor,
    masses: Masses,
    p_shares: Shares,
    q_shares: Shares,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss of a slice of one pass, p, beside another, q, and its gradient.

    Args:
        log_p: logarithms of this pass's predictions [R, V] float32.
        log_q: those of the other pass [R, V].
        p: the predictions themselves [R, V].
        q: and the other pass's [R, V].
        gold: labels [R, 1].
        masses: of the target distribution.
        p_shares: what counts of this pass.
        q_shares: what counts of the other pass.

    Returns:
        The loss [R, 1]; the negative log-likelihood [R, 1]; and the gradient [R, V] of this loss
        and of the other pass's divergence with respect to this pass's logits.
    """
    nll = -log_p.gather(1, gold)
    cross_entropy = (masses.label - masses.other) * nll
    cross_entropy -= masses.other * log_p.sum(1, keepdim=True)
    cross_entropy -= (masses.pad - masses.other) * log_p[:, PAD, None]
    ratio = log_p - log_q
    divergence = (p * ratio).sum(1, keepdim=True)
    loss = p_shares.cross_entropy * cross_entropy + p_shares.divergence * divergence
    # In place from here on: tables [R, V] are what fills the memory.
    d_logits = ratio.mul_(p_shares.divergence)
    d_logits += p_shares.cross_entropy + q_shares.divergence - p_shares.divergence * divergence
    d_logits *= p
    d_logits -= q_shares.divergence * q
    d_logits -= p_shares.cross_entropy * masses.other
    d_logits[:, PAD] -= p_shares.cross_entropy * (masses.pad - masses.other)
    label = torch.full_like(nll, -p_shares.cross_entropy * (masses.label - masses.other))
    return loss, nll, d_logits.scatter_add_(1, gold, label)


MIN_PROBABILITY = torch.finfo(torch.float32).tiny
"""Least probability whose logarithm is taken; 0 adds nothing to an entropy."""


class Teaching(NamedTuple):
    """A teacher's predictions, as its decoder output and its output layer."""

    decoder_output: Tensor  # [P, D'], of the teacher's own width
    weight: Tensor  # [V, D']
    bias: Tensor | None  # [V]


class SlicedDistillation(torch.autograd.Function):
    """Cross-entropy with a mixture of labels and teachers' predictions, a slice at a time.

    The logits of a slice are computed once, those of the teachers beside those of the student.
    """

    @staticmethod
    def forward(
        ctx: Any,
        decoder_output: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Targets,
        teacher_weight: float,
        teachings: Sequence[Teaching],
        wants_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and the negative log-likelihood, and keep the loss's gradients.

        Args:
            ctx: autograd's context.
            decoder_output: decoder output [P, D].
            weight: of the output layer [V, D].
            bias: of the output layer [V], or None.
            targets: of the P tokens, with masses whose sum is 1 - `teacher_weight`.
            teacher_weight: share of the teachers in the target distribution; of their
                cross-entropy, the part that is their own entropy is subtracted.
            teachings: at least one.
            wants_gradient: whether to compute the gradients.
        """
        labels, masses, token_weights = targets
        device = decoder_output.device.type
        inputs, matrix, offset = in_autocast_dtype(decoder_output, weight, bias)
        teachers = [in_autocast_dtype(*teaching) for teaching in teachings]
        # A slice holds some four tables [R, V] of float32 at a time.
        rows = max(1, SLICE_ELEMENTS[device] // (4 * len(weight)))
        sums = torch.zeros(2, dtype=torch.float64, device=decoder_output.device)
        gradients = Gradients.zeros(inputs, weight, bias) if wants_gradient else None
        room = inputs.new_empty(min(rows, len(inputs)), len(weight))
        with torch.autocast(device, enabled=False):
            for first in range(0, len(labels), rows):
                part = slice(first, first + rows)
                gold = labels[part, None]
                target = _mean_prediction(teachers, part)
                logs = target.clamp_min(MIN_PROBABILITY).log_()
                target *= teacher_weight
                # KL is cross-entropy minus entropy; the entropy has no gradient but makes the loss
                # readable.
                entropy = -logs.mul_(target).sum(1, keepdim=True)
                _add_label_(target, gold, masses)
                log_p = F.linear(inputs[part], matrix, offset).log_softmax(-1, dtype=torch.float32)
                cost = -(target * log_p).sum(1, keepdim=True) - entropy
                nll = -log_p.gather(1, gold)
                d_logits = log_p.exp_().sub_(target)
                if token_weights is not None:
                    cost *= token_weights[part, None]
                    d_logits *= token_weights[part, None]
                sums += torch.stack((cost, nll)).sum((1, 2), dtype=torch.float64)
                if gradients is not None:
                    gradients.add(part, d_logits, inputs, matrix, room[: len(gold)])
        if gradients is not None:
            gradients.save(ctx, decoder_output, weight)
        loss, nll = sums.float()
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """Return the kept gradients times the gradient of the loss."""
        return *Gradients.backward(ctx, d_loss), None, None, None, None


def _mean_prediction(
    teachers: Sequence[tuple[Tensor, Tensor, Tensor | None]], part: slice
) -> Tensor:
    """Return the mean of the teachers' probabilities of a slice of tokens: [R, V] float32."""
    predictions = (
        F.linear(outputs[part], matrix, offset).softmax(-1, dtype=torch.float32)
        for outputs, matrix, offset in teachers
    )
    mean = next(predictions)
    for prediction in predictions:
        mean += prediction
    return mean.div_(len(teachers))


def _add_label_(target: Tensor, gold: Tensor, masses: Masses) -> None:
    """Add the masses of labels [R, 1], of other tokens and of padding to a table [R, V]."""
    target += masses.other
    target[:, PAD] += masses.pad - masses.other
    label = torch.full_like(gold, masses.label - masses.other, dtype=target.dtype)
    target.scatter_add_(1, gold, label)


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
            decoder_output[first : first + rows],
            output.weight,
            output.bias,
            labels[first : first + rows],
            use_reentrant=False,
            preserve_rng_state=False,
        )
        for first in range(0, max(1, len(decoder_output)), rows)
    ]
    return torch.cat(parts)


def _log_probabilities(
    decoder_output: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor
) -> Tensor:
    inputs, matrix, offset = in_autocast_dtype(decoder_output, weight, bias)
    with torch.autocast(decoder_output.device.type, enabled=False):
        logits = F.linear(inputs, matrix, offset).float()
        return -F.cross_entropy(logits, labels, reduction="none")
