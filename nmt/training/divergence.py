"""Detection of gradients that are not finite, and of the module that caused one.

The optimizer skips such an update on the device, so no update waits for the host. The host learns
of the failure without waiting: at once on a CPU, one update later on a GPU.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")


class FiniteWatch(Generic[T]):
    """Finds the updates (or other work) whose gradient norm was not finite."""

    def __init__(self) -> None:
        self._pending: deque[tuple[T, Tensor, torch.cuda.Event | None]] = deque()

    def after(self, work: T, is_finite: Tensor) -> list[T]:
        """Add a piece of work, and return all work now known to have failed.

        Args:
            work: the work just done.
            is_finite: bool scalar on the device, whether its gradient norm was finite.
        """
        event = None
        if is_finite.device.type == "cuda":
            # Read one update later, when the copy has arrived; asking now would stop the GPU's
            # queue.
            is_finite = is_finite.to("cpu", non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self._pending.append((work, is_finite, event))
        return self._failed(unknown=0 if event is None else 1)

    def rest(self) -> list[T]:
        """Return the failed work not returned yet; waits for the device."""
        return self._failed(unknown=0)

    def _failed(self, unknown: int) -> list[T]:
        failed = []
        while len(self._pending) > unknown:
            done, was_finite, waited_for = self._pending.popleft()
            if waited_for is not None:
                waited_for.synchronize()
            if not was_finite:
                failed.append(done)
        return failed


class FirstNonFinite:
    """Within the context, records the first module of a model whose output is not finite."""

    def __init__(self, model: nn.Module) -> None:
        self.name: str | None = None
        self._names = {module: name for name, module in model.named_modules() if name}
        self._handles: list[torch.utils.hooks.RemovableHandle] = []

    def __enter__(self) -> FirstNonFinite:
        # Inner modules call their hooks before the modules around them, so the innermost is found.
        self._handles = [module.register_forward_hook(self._look) for module in self._names]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _look(self, module: nn.Module, _: object, output: object) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        tensors = [value for value in outputs if isinstance(value, Tensor)]
        # Waits for the GPU at every module, so hooks are set only after an update has failed.
        if self.name is None and not all(bool(value.isfinite().all()) for value in tensors):
            self.name = self._names[module]
