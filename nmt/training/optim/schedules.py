"""Learning-rate schedules: pure functions of the update (from 1) and the number of plateaus."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from nmt.recipe.registry import Registry


@dataclass(frozen=True, kw_only=True)
class Schedule(ABC):
    """A linear warm-up to the highest learning rate, followed by a decay."""

    registry: ClassVar[Registry[Schedule]]

    depends_on_max_updates: ClassVar[bool] = False
    """Whether the last update determines earlier rates, so a resumed run may not change it."""

    depends_on_validations: ClassVar[bool] = False
    """Whether validations determine rates, so a resumed run may not change when they come."""

    name: str = ""
    """Name of the schedule."""
    lr: float | None = None
    """Peak learning rate. Without it, inverse_sqrt takes the paper's; other schedules need it."""
    warmup_updates: int = 4000
    """Updates of linear warm-up from 0 to the peak learning rate."""

    def __post_init__(self) -> None:
        if self.warmup_updates < 0:
            raise ValueError(f"warmup_updates must not be negative, is {self.warmup_updates}")
        if self.lr is not None and self.lr <= 0:
            raise ValueError(f"lr must be positive, is {self.lr}")
        if self.lr == math.inf:
            raise ValueError("lr must be finite")

    def rate(self, update: int, d_model: int, max_updates: int, plateaus: int = 0) -> float:
        """Return the learning rate of an update.

        Args:
            update: number of the update, from 1.
            d_model: width of the decoder output; for an RNNsearch the width of the maxout layer.
            max_updates: number of the last update.
            plateaus: number of times that :meth:`is_plateau` has returned True.
        """
        peak = self.peak(d_model)
        # A pure function of the update, so a resumed run needs no state of the schedule.
        if update < self.warmup_updates:
            # Updates count from 1, so none has a rate of 0.
            return peak * update / self.warmup_updates
        return peak * self.decay(update, max_updates)

    def is_plateau(self, validations_since_best: int) -> bool:
        """Return whether this many validations in a row without a new best make a plateau."""
        return False

    def peak(self, d_model: int) -> float:
        """Return the learning rate at the end of the warm-up."""
        if self.lr is None:
            raise ValueError(f"the {self.name} schedule needs lr")
        return self.lr

    @abstractmethod
    def decay(self, update: int, max_updates: int) -> float:
        """Return the share of the highest learning rate at an update after the warm-up."""


schedules: Registry[Schedule] = Registry("schedule")
Schedule.registry = schedules


def _check_final_share(value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"final_share lies in [0, 1], not {value}")


@schedules.register("inverse_sqrt")
@dataclass(frozen=True, kw_only=True)
class InverseSqrt(Schedule):
    """The paper's schedule (section 5.3): linear warm-up, then the inverse square root.

    With `lr`, the peak is `lr`, as in fairseq. Without `lr`, the peak is the paper's
    factor * (d_model * warmup_updates)^-0.5.
    """

    factor: float = 1.0
    """Multiplies the paper's formula (1.0 in 2017; tensor2tensor later took 2.0)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warmup_updates == 0:
            raise ValueError("inverse_sqrt needs at least one of warmup_updates")
        if self.lr is not None and self.factor != 1.0:
            raise ValueError("lr and factor both say how high the learning rate is; give one")

    def peak(self, d_model: int) -> float:
        """Return `lr`, or without one the peak of the paper's formula."""
        if self.lr is not None:
            return self.lr
        # Equation 3 at step = warmup: d_model^-0.5 * warmup^-0.5.
        return self.factor / math.sqrt(d_model * self.warmup_updates)

    def decay(self, update: int, max_updates: int) -> float:
        """Return sqrt(warmup_updates / update)."""
        # Equation 3 relative to its peak: step^-0.5 / warmup^-0.5.
        return math.sqrt(self.warmup_updates / update)


@schedules.register("constant")
@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """The highest learning rate after the warm-up."""

    def decay(self, update: int, max_updates: int) -> float:
        """Return 1."""
        return 1.0


@schedules.register("plateau")
@dataclass(frozen=True, kw_only=True)
class Plateau(Constant):
    """The highest learning rate, lowered after validations without a new best score.

    Validations are compared by `best_metric`, as for the best checkpoint.
    """

    depends_on_validations: ClassVar[bool] = True

    shrink: float = 0.5
    """Factor of the learning rate at each plateau."""
    plateau: int = 1
    """Validations in a row without a new best score that make a plateau. Each further series of
    this length makes another."""
    final_share: float = 0.0
    """Share of the highest learning rate below which it is not lowered."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.shrink < 1.0:
            raise ValueError(f"shrink lies between 0 and 1, not {self.shrink}")
        if self.plateau < 1:
            raise ValueError(f"plateau must be at least 1, not {self.plateau}")
        _check_final_share(self.final_share)

    def rate(self, update: int, d_model: int, max_updates: int, plateaus: int = 0) -> float:
        """Return the rate of the constant schedule, times `shrink` for each plateau."""
        share = max(self.final_share, self.shrink**plateaus)
        return share * super().rate(update, d_model, max_updates)

    def is_plateau(self, validations_since_best: int) -> bool:
        """Return whether another `plateau` validations have passed without a new best."""
        # Right after a new best the remainder is 0, too.
        return validations_since_best > 0 and validations_since_best % self.plateau == 0


@schedules.register("linear")
@dataclass(frozen=True, kw_only=True)
class Linear(Schedule):
    """A straight line from the highest learning rate to zero at the last update."""

    depends_on_max_updates: ClassVar[bool] = True

    def decay(self, update: int, max_updates: int) -> float:
        """Return the share of the updates after the warm-up that remain."""
        return _remaining(update, self.warmup_updates, max_updates)


@schedules.register("cosine")
@dataclass(frozen=True, kw_only=True)
class Cosine(Schedule):
    """Half a cosine from the highest learning rate to `final_share` of that at the last update."""

    depends_on_max_updates: ClassVar[bool] = True

    final_share: float = 0.0
    """Share of the highest learning rate that is left at the last update."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_final_share(self.final_share)

    def decay(self, update: int, max_updates: int) -> float:
        """Return half a cosine over the updates after the warm-up, from 1 to `final_share`."""
        done = 1.0 - _remaining(update, self.warmup_updates, max_updates)
        return self.final_share + (1 - self.final_share) * 0.5 * (1 + math.cos(math.pi * done))


def _remaining(update: int, warmup_updates: int, max_updates: int) -> float:
    # A training that ends in its warm-up has no decay.
    span = max(1, max_updates - warmup_updates)
    return min(1.0, max(0.0, (max_updates - update) / span))
