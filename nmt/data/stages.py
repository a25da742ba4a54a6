"""Stages of training: the shares in which the named corpora are mixed, by update.

The idea and the terms come from OpusTrainer (Bogoychev et al. 2023, *OpusCleaner and OpusTrainer,
open source toolkits for training Machine Translation and Large language models*).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmt.data.sampler import Indices, RandomSampler
from nmt.errors import NmtError
from nmt.recipe.registry import unknown


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stage of training."""

    mix: dict[str, float]
    """Share of the pairs of each corpus, by its name in `preprocess.train`; the sum is 1."""

    until: int | None = None
    """Last update of the stage; None, for the last stage only, until training ends."""

    def __post_init__(self) -> None:
        shown = ", ".join(f"{name} {share:g}" for name, share in self.mix.items())
        if not all(share > 0 for share in self.mix.values()):
            raise ValueError(f"mix needs shares above 0, not {shown}")
        if not math.isclose(sum(self.mix.values()), 1, abs_tol=1e-6):
            raise ValueError(f"mix must sum to 1, not {sum(self.mix.values()):g}: {shown}")


def check_stages(stages: Sequence[Stage], max_updates: int) -> None:
    """Raise a ValueError if the stages are not one after the other until training ends."""
    if any(stage.until is None for stage in stages[:-1]):
        raise ValueError(
            "stages: only the last stage may leave out until; add until to every other stage"
        )
    ends = [math.inf if stage.until is None else stage.until for stage in stages]
    for before, end in zip([0, *ends], ends, strict=False):
        if end <= before:
            raise ValueError(
                f"stages: a stage after update {before} ends at {end}; let until increase"
            )
    # Found now and not when the last stage runs out, after days.
    if ends and ends[-1] < max_updates:
        raise ValueError(
            f"stages end at update {ends[-1]}, but max_updates is {max_updates}; leave out the "
            "last until, or lower max_updates"
        )


class _Span(NamedTuple):
    """The updates of a stage."""

    first: int
    end: float
    """The update after the last one."""
    first_epoch: int
    updates_per_epoch: int
    rates: dict[str, float]
    """Pairs of each corpus in an update, on average."""
    drawn: dict[str, int]
    """Pairs of each corpus that were drawn before the stage."""

    def drawn_before(self, name: str, update: int) -> int:
        """Return how many pairs of a corpus were drawn before an update of the stage."""
        before = self.drawn.get(name, 0)
        # Rounded from the first update of the stage: remainders are never lost from update to
        # update.
        return before + math.floor(self.rates.get(name, 0) * (update - self.first) + 0.5)


class StageSampler(RandomSampler):
    """Updates of random sentences, mixed from the corpora in the shares of each stage.

    A corpus is read in random order, again and again; the next stage continues where a stage
    stopped. An epoch ends when a corpus of the stage has been read once, or the stage ends. So the
    sentences of an update follow from its number, and no stage depends on what was trained.
    """

    def __init__(
        self,
        source_lengths: NDArray[np.integer],
        target_lengths: NDArray[np.integer],
        tokens_per_update: int,
        seed: int,
        corpora: Mapping[str, Indices],
        stages: Sequence[Stage],
    ) -> None:
        """Prepare the stages.

        Args:
            source_lengths: [n], tokens of each source with EOS.
            target_lengths: [n], tokens of each target with EOS.
            tokens_per_update: target tokens of one update, without padding, on average.
            seed: changes only the order.
            corpora: indices of the pairs of each corpus.
            stages: at least one stage, in order; the last stage continues after its end.

        Raises:
            NmtError: a stage names an unknown corpus, or one without pairs.
        """
        for name in (name for stage in stages for name in stage.mix):
            if name not in corpora:
                raise NmtError(f"train.stages: {unknown('corpus', name, corpora)}")
            if not len(corpora[name]):
                raise NmtError(f"train.stages: the dataset has no pair of the corpus {name!r}")
        self._corpora = corpora
        # Updates after the last stage are not trained, but the preflight check and read-ahead ask
        # for them.
        self._stages = [*stages, replace(stages[-1], until=None)]
        self._readings: dict[str, tuple[int, Indices]] = {}
        super().__init__(source_lengths, target_lengths, tokens_per_update, seed)

    def _prepare(self) -> int:
        self._spans: list[_Span] = []
        first, epoch, drawn = 1, 1, dict.fromkeys(self._corpora, 0)
        for stage in self._stages:
            mean = sum(
                share * self.target_lengths[self._corpora[name]].mean()
                for name, share in stage.mix.items()
            )
            # Each update gets a sentence, however the shares are rounded.
            pairs = max(self.tokens_per_update / mean, len(stage.mix) + 1)
            # Pairs of an epoch: until one corpus of the stage has been read once.
            reading = min(len(self._corpora[name]) / share for name, share in stage.mix.items())
            updates = max(1, round(reading / pairs))
            rates = {name: share * pairs for name, share in stage.mix.items()}
            end = math.inf if stage.until is None else stage.until + 1
            span = _Span(first, end, epoch, updates, rates, drawn)
            self._spans.append(span)
            if stage.until is not None:
                first = stage.until + 1
                # A stage that ends in the middle of an epoch ends the epoch.
                epoch += -(-(first - span.first) // updates)
                drawn = {name: span.drawn_before(name, first) for name in self._corpora}
        return self.first_of(2) - 1

    def epoch_of(self, update: int) -> int:
        """Return the epoch (from 1) of an update (from 1)."""
        span = next(span for span in reversed(self._spans) if span.first <= update)
        return span.first_epoch + (update - span.first) // span.updates_per_epoch

    def first_of(self, epoch: int) -> int:
        """Return the first update of an epoch (from 1)."""
        span = self._span(epoch)
        return span.first + (epoch - span.first_epoch) * span.updates_per_epoch

    def _span(self, epoch: int) -> _Span:
        return next(span for span in reversed(self._spans) if span.first_epoch <= epoch)

    def _divide(self, random: np.random.Generator, epoch: int) -> list[Indices]:
        """Draw the sentences of an epoch, and cut them into updates."""
        span, first = self._span(epoch), self.first_of(epoch)
        end = int(min(first + span.updates_per_epoch, span.end))
        drawn = [
            self._read(name, span.drawn_before(name, first), span.drawn_before(name, end))
            for name in span.rates
        ]
        return self._cut(random.permutation(np.concatenate(drawn)), end - first)

    def _read(self, name: str, start: int, end: int) -> Indices:
        """Return the pairs from `start` to `end` of a corpus that is read again and again."""
        size = len(self._corpora[name])
        parts = []
        while start < end:
            # A corpus is an endless sequence of readings, addressed by how many pairs were drawn
            # before.
            reading, place = divmod(start, size)
            parts.append(self._reading(name, reading)[place : place + end - start])
            start += len(parts[-1])
        # The empty slice gives the type of an array where nothing is drawn.
        return np.concatenate([self._corpora[name][:0], *parts])

    def _reading(self, name: str, reading: int) -> Indices:
        """Return a corpus in the random order of a reading, counted from 0."""
        if self._readings.get(name, (-1,))[0] != reading:
            # Epochs count from 1, so the 0 keeps these seeds apart from the seeds of epochs.
            key = [self.seed, 0, [*self._corpora].index(name), reading]
            random = np.random.Generator(np.random.PCG64(key))
            self._readings[name] = reading, random.permutation(self._corpora[name])
        return self._readings[name][1]
