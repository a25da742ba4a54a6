"""Warnings about schedules of the learning rate that do not fit the time of training."""

from __future__ import annotations

from datetime import timedelta

from nmt.training.schedules import Schedule

LONGEST_WARMUP = timedelta(hours=3)
"""Duration of a warm-up that is most likely not meant."""

TRIAL = 5
"""Training of at most so many updates tries a command out; it is not meant to learn."""


def misfit(warmup_updates: int, updates: int, seconds: float, limit: float) -> str | None:
    """Return a warning if training is likely to end before the model learns, else None.

    Args:
        warmup_updates: updates of warm-up.
        updates: updates of the whole training.
        seconds: estimated seconds of an update.
        limit: seconds after which training ends; infinite without a limit.
    """
    if updates <= TRIAL:
        return None
    possible = min(updates, limit / seconds)
    remedy = "write a recipe that fits with `nmt init`, or take --warmup-updates {}"
    warm_up = f"warm-up ends after {_in_words(warmup_updates * seconds)} on this machine"
    if possible < warmup_updates:
        end = _in_words(limit) if limit / seconds < updates else f"{updates:,} updates"
        fitting = max(1, int(possible) // 10)
        return f"{warm_up}, training after {end}, before it learns: {remedy.format(fitting)}"
    if warmup_updates * seconds > LONGEST_WARMUP.total_seconds():
        fitting = max(1, int(LONGEST_WARMUP.total_seconds() / seconds))
        return f"{warm_up}: {remedy.format(fitting)}"
    return None


FINISHED = 0.1
"""Share of the highest learning rate by which a decay may miss its end."""


def unfinished_decay(schedule: Schedule, updates: int, seconds: float, limit: float) -> str | None:
    """Return a warning if time is likely to end training far from the end of its decay, else None.

    Args:
        schedule: of the learning rate.
        updates: updates of the whole training.
        seconds: estimated seconds of an update.
        limit: seconds after which training ends; infinite without a limit.
    """
    possible = limit / seconds
    if updates <= TRIAL or not schedule.depends_on_max_updates:
        return None
    if not schedule.warmup_updates <= possible < updates:  # it ends in warm-up, or in time
        return None
    left = schedule.decay(int(possible), updates)
    if left - schedule.decay(updates, updates) < FINISHED:
        return None
    return (
        f"max_minutes ends training after about {possible:,.0f} of {updates:,} updates, with "
        f"{left:.0%} of the highest learning rate; for the {schedule.name} schedule to reach its "
        f"end, take --max-updates {max(1, int(possible))}"
    )


def _in_words(seconds: float) -> str:
    """Return a duration in its largest unit."""
    units = {"day": 86400, "hour": 3600, "minute": 60, "second": 1}
    unit, size = next((unit for unit in units.items() if seconds >= 2 * unit[1]), ("second", 1))
    count = max(1, round(seconds / size))
    return f"{count:,} {unit}" + "s" * (count != 1)
