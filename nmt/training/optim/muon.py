"""Muon for the hidden matrices of a model, with AdamW for its other weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from nmt.models.layers.basic import HoldsMatrices
from nmt.runtime.precision import pick_precision

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic polynomial (Jordan et al. 2024), steep at zero."""

SHARE_OF_RMS = 0.2
"""Root mean square of a step of Muon at learning rate 1 (Liu et al. 2025, section 2.2)."""


def hidden_matrices(model: nn.Module) -> dict[nn.Parameter, Sequence[int]]:
    """Return the trainable weights of a model's linear and recurrent layers that are matrices.

    Each has the numbers of rows of the matrices that it holds side by side, usually one.

    Excluded are the output layer and matrices that are tied to an embedding. Matrices with weight
    normalisation are no weights themselves, so they are excluded, too.
    """
    layers = (nn.Linear, nn.RNNBase, nn.RNNCellBase)
    # Rows of embeddings get gradients one by one; orthogonal steps are for dense matrices.
    excluded = {id(layer.weight) for layer in model.modules() if isinstance(layer, nn.Embedding)}
    if isinstance(output := getattr(model, "output", None), nn.Linear):
        excluded.add(id(output.weight))
    matrices = {
        id(weight): weight
        for layer in model.modules()
        if isinstance(layer, layers)
        for weight in layer.parameters(recurse=False)
        if weight.ndim == 2 and weight.requires_grad and id(weight) not in excluded
    }
    shared = side_by_side(model)
    return {weight: shared.get(weight, [len(weight)]) for weight in matrices.values()}


def side_by_side(model: nn.Module) -> dict[Tensor, Sequence[int]]:
    """Return the numbers of rows of the matrices that share a weight, for each such weight.

    Queries, keys and values, and the gates of a layer, are matrices of their own, which one weight
    computes together for speed. Apart, their steps are better
    (verenalabs.com/posts/evaluating_muon__moe_in_llms).
    """
    shared: dict[Tensor, Sequence[int]] = {}
    for part in model.modules():
        if isinstance(part, HoldsMatrices):
            shared.update(part.fused_matrices())
        elif isinstance(part, (nn.RNNBase, nn.RNNCellBase)):  # torch's layers, one matrix per gate
            for weight in part.parameters(recurse=False):
                if weight.ndim == 2:
                    shared[weight] = len(weight) // part.hidden_size * [part.hidden_size]
    return shared


def orthogonalize(matrix: Tensor, iterations: int) -> Tensor:
    """Return a matrix with the same singular vectors whose singular values are all near 1.

    The Newton-Schulz iteration computes in bfloat16 if that is fast on the device, else in float32,
    since emulated products of bfloat16 are slow. With 5 iterations singular values end between
    about 0.7 and 1.2; values below about 1/500 of the matrix's norm end lower, and zeros stay
    zeros.

    Args:
        matrix: [R, C].
        iterations: number of iterations; 5 is usual.

    Returns:
        [R, C] in the data type of `matrix`.
    """
    is_tall = matrix.shape[0] > matrix.shape[1]
    is_fast = pick_precision("auto", matrix.device) == "bf16"
    wide = (matrix.T if is_tall else matrix).to(torch.bfloat16 if is_fast else torch.float32)
    # The iteration converges only for singular values up to 1.
    wide = wide / wide.norm().clamp(min=1e-7)
    a, b, c = NEWTON_SCHULZ
    for _ in range(iterations):
        # Always the smaller of the two products: wide matrices make a small Gram matrix.
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return (wide.T if is_tall else wide).to(matrix.dtype)


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024) for some matrices, and fused AdamW for all other weights.

    ``torch.optim.Muon`` computes the same steps, but cannot skip a step on the device.
    """

    found_inf: Tensor | None = None
    """One to skip the next step, without waiting for the device; None or zero otherwise."""

    def __init__(
        self,
        matrices: Mapping[nn.Parameter, Sequence[int]],
        others: Iterable[nn.Parameter],
        momentum: float,
        iterations: int,
        weight_decay: float,
        betas: tuple[float, float],
        eps: float,
    ) -> None:
        """Prepare the first step; the learning rate of both groups is set before each step.

        Args:
            matrices: the weights for Muon, each with the numbers of rows of the matrices that it
                holds side by side; weight decay applies to these alone.
            others: the weights for AdamW.
            momentum: share of the running mean of gradients that is kept; Nesterov's form.
            iterations: of :func:`orthogonalize`.
            weight_decay: share of each matrix taken off per step, times the learning rate.
            betas: AdamW's decay rates.
            eps: AdamW's addend.
        """
        super().__init__([{"params": list(matrices)}, {"params": list(others)}], {"lr": 0.0})
        self._matrices = matrices
        self._momentum, self._iterations, self._weight_decay = momentum, iterations, weight_decay
        self._adamw = torch.optim.AdamW(
            self.param_groups[1:], lr=0.0, betas=betas, eps=eps, weight_decay=0.0, fused=True
        )
        self._adamw.param_groups = self.param_groups[1:]  # the same groups and the same state
        self._adamw.state = self.state

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Step all weights that have a gradient, unless `found_inf` is one."""
        # Fused AdamW reads the flag on the device and skips its step there.
        self._adamw.found_inf = self.found_inf  # type: ignore[attr-defined]
        self._adamw.step()
        matrices = self.param_groups[0]
        for weight in matrices["params"]:
            if weight.grad is not None:
                self._step_matrix(weight, weight.grad, matrices["lr"])

    def _step_matrix(self, weight: nn.Parameter, gradient: Tensor, lr: float) -> None:
        """Step a matrix. To skip the step, its tensors change by zero times a finite number."""
        state = self.state[weight]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(weight)
        found_inf = weight.new_zeros(()) if self.found_inf is None else self.found_inf
        taken = 1.0 - found_inf
        # NaN times zero is NaN, so bad gradients are replaced before they are weighted.
        gradient = gradient.masked_fill(found_inf.bool(), 0.0)
        mean = state["momentum_buffer"].lerp_(gradient, taken * (1.0 - self._momentum))
        # Nesterov's form looks one momentum ahead.
        wanted = gradient.lerp(mean, self._momentum)
        # Queries, keys and values share a tensor but are three matrices.
        parts = torch.split(wanted, list(self._matrices[weight]))
        # Decoupled decay before the step, as in AdamW.
        weight.mul_(1.0 - taken * (lr * self._weight_decay))
        weight.sub_(torch.cat([self._direction(part) for part in parts]) * (taken * lr))

    def _direction(self, wanted: Tensor) -> Tensor:
        """Return the step of a matrix at learning rate 1."""
        # Steps as large as Adam's, so that both groups share one learning rate (Liu et al. 2025).
        scale = SHARE_OF_RMS * math.sqrt(max(wanted.shape))
        return orthogonalize(wanted, self._iterations) * scale
