"""The training loop: runs updates, and reports, validates and saves between them."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType, TracebackType

import numpy as np

from nmt.data.batches import make_batch
from nmt.data.loader import Update, prefetch
from nmt.errors import NmtError
from nmt.messages import redirect_to_null
from nmt.runs.translations import write_translations
from nmt.training.config import TrainConfig
from nmt.training.reporting.report import RunningStats, TrainingReport, summarize
from nmt.training.trainer import Trainer, TrainerState
from nmt.training.validation import Validations


class TrainingLoop:
    """Lets a trainer run updates, and reports, validates and saves between them.

    A checkpoint follows a validation, so that it holds the score.
    """

    def __init__(
        self,
        trainer: Trainer,
        validation: Validations,
        report: TrainingReport,
        scores: dict[str, float] | None = None,
    ) -> None:
        """Prepare to train after the trainer's last update.

        Args:
            trainer: new, or restored from a checkpoint.
            validation: computes the scores of the validation set.
            report: the log.
            scores: of the trainer's last update; None or empty if it was not validated.
        """
        self.trainer = trainer
        self.validation = validation
        self.report = report
        self.scores = scores or {}  # of the current update
        self.saved_update = trainer.state.update  # 0 before the first checkpoint
        self.milestones = Milestones(trainer.config, trainer.state, trainer.last_update)
        self.stopwatch = Stopwatch(trainer.state.seconds, trainer.state.seconds_since_report)

    def run(self) -> str:
        """Train until there is a reason to stop.

        Returns:
            The reason: "max_updates", "max_epochs", "max_minutes", "patience", or "signal N".

        Raises:
            NmtError: more than `max_skipped` updates had a gradient that is not finite.
        """
        trainer, milestones = self.trainer, self.milestones
        trainer.model.train()
        no_sentences = make_batch(trainer.loader.split, np.array([], np.int64))
        # FSDP sets up its shards in the first forward pass, which must not happen in validation.
        trainer.try_batch(no_sentences)  # initialises sharding
        self.stopwatch.start()
        self.report.begin()
        reason = milestones.reason_to_stop()  # of the checkpoint, without this start's time
        # A thread makes the next batches while the device computes this one.
        updates = prefetch(trainer.loader.updates(trainer.state.update + 1))
        # Closing ends the loader's thread, also when an error ends training.
        with StopRequests(self.report.acknowledge) as requests, contextlib.closing(updates):
            if milestones.is_validation_due(reason) and not self.scores:
                # The interruption came before the validation of this update.
                self._save(self._validate())
                reason = reason or milestones.out_of_patience()
                reason = reason or self._reason_to_stop(requests.received)
            while reason is None:
                update = next(updates)
                rate = self._run_update(update)
                reason = self._close_update(requests)
                if self._is_unreported(update, reason):
                    # The checkpoint holds the sums, so reports after a resume are the same.
                    self._report_training(update, rate)
        return reason

    def _close_update(self, requests: StopRequests) -> str | None:
        """Validate and save where that is due; return the reason to stop, if there is one."""
        milestones = self.milestones
        reason = self._reason_to_stop(requests.received)
        # The clock of `save_minutes` is reset by saving, so it is asked only once.
        is_save_due = reason is not None or milestones.is_save_due()  # before `_save`
        is_best = False
        if milestones.is_validation_due(reason):
            if is_save_due:
                self._save(is_best)  # validation may outlast a launcher's grace time
            is_best = self._validate()
            reason = reason or milestones.out_of_patience()
            reason = reason or self._reason_to_stop(requests.received)
        if reason or is_best or is_save_due:
            self._save(is_best)
        return reason

    def _is_unreported(self, update: Update, reason: str | None) -> bool:
        """Return whether training ends, other than by a signal, before the first report."""
        is_end = reason is not None and not reason.startswith("signal")
        return is_end and update.number < self.trainer.config.log_every

    def _run_update(self, update: Update) -> float:
        """Run an update, and report the updates since the last report if that is due.

        Returns:
            The learning rate of the update.
        """
        config = self.trainer.config
        rate = config.schedule.rate(
            update.number,
            self.trainer.model.output.in_features,
            self.trainer.last_update,
            self.trainer.state.plateaus,
        )
        if not 0.0 <= rate < math.inf:
            raise NmtError(
                f"update {update.number}: the schedule {config.schedule.name} gives a learning "
                f"rate of {rate}; correct its method decay, or choose another schedule"
            )
        # The next checkpoint must not get the scores of an earlier update.
        self.scores = {}
        for failed in self.trainer.step(update, rate):
            self._note_failure(failed)
        self.report.advance(update.number, self.stopwatch.total)
        if update.number % config.log_every == 0:
            self._report_training(update, rate)
        return rate

    def _note_failure(self, update: Update) -> None:
        """Report a skipped update with its origin; raise an NmtError after `max_skipped`."""
        trainer, state = self.trainer, self.trainer.state
        state.skipped += 1
        # Runs the update again, which is worth its time: a module's name tells what to change.
        where = trainer.origin(update)
        sentences = sum(batch.num_sentences for batch in update.batches)
        self.report.skipped(update.number, where, sentences)
        if state.skipped > trainer.config.max_skipped:
            raise NmtError(
                f"update {update.number}: training diverged: {state.skipped} updates had a "
                f"gradient that is not finite, {where}; the last checkpoint is "
                f"{(trainer.run.path / 'last').resolve()}. Begin again in another --save-dir with "
                "a lower --lr, a longer --warmup-updates or train.clip_norm=1; or, if these were "
                "accidents, resume with a higher train.max_skipped"
            )

    def _report_training(self, update: Update, rate: float) -> None:
        """Report the sums since the last report over all processes, and reset them."""
        world = self.trainer.world
        local = self.trainer.running_stats.sums()
        # One exchange for all numbers.
        sums = dict(zip(local, world.sum(list(local.values())), strict=True))
        if not sums["updates"]:  # all were skipped
            return
        record = summarize(
            sums,
            update=update.number,
            epoch=update.epoch,
            lr=rate,
            seconds=self.stopwatch.lap(),
            total=self.stopwatch.total,
            device=world.device,
            has_reward=self.trainer.config.loss.translates,
        )
        self.report.training(record)
        self.trainer.running_stats = RunningStats()

    def _reason_to_stop(self, stop_signal: int) -> str | None:
        # A signal may reach only one process, and clocks differ: all take the maximum.
        signal, seconds = self.trainer.world.max([stop_signal, self.stopwatch.total])
        self.trainer.state.seconds = seconds
        return f"signal {signal:.0f}" if signal else self.milestones.reason_to_stop()

    def _validate(self) -> bool:
        """Validate, and return whether the score is the best so far."""
        with self.stopwatch.paused(), self.trainer.evaluating():
            self.scores = self.validation()
        is_best = self.milestones.count_validation(self.scores)
        if self.validation.translations:
            state, translations = self.trainer.state, self.validation.translations
            write_translations(self.trainer.run.path, state.update, translations, state.best_update)
        metric = self.trainer.config.best_metric
        self.report.validation(self.trainer.state.update, self.scores, is_best, metric)
        return is_best

    def _save(self, is_best: bool) -> None:
        """Write a checkpoint of the current update, or amend it after a validation."""
        trainer, state = self.trainer, self.trainer.state
        for failed in trainer.watch.rest():  # so that a resumed run knows all failures
            self._note_failure(failed)
        state.saved_seconds = state.seconds
        state.seconds_since_report = self.stopwatch.seconds_since_report
        with self.stopwatch.paused():
            if state.update == self.saved_update:  # a validation changes no weight
                if trainer.world.is_main:
                    trainer.run.amend(state.update, dict(vars(state)), self.scores, is_best)
            else:
                weights, optimizer = trainer.snapshot()
                if trainer.world.is_main:
                    trainer.run.save(
                        state.update, weights, optimizer, dict(vars(state)), self.scores, is_best
                    )
            self.saved_update = state.update
            if trainer.world.is_main:
                # After the new checkpoint is whole, so that there always is one to resume from.
                trainer.run.prune(trainer.config.keep_last)
            # If a process ended now, torchrun would end the process that is still writing the
            # checkpoint.
            trainer.world.barrier()


PLANNED = ("max_updates", "max_epochs", "max_minutes")
"""Stop reasons that trigger a final validation."""


@dataclass(frozen=True)
class Milestones:
    """Decides what is due after an update, and counts validations towards patience."""

    config: TrainConfig
    state: TrainerState
    """The trainer's state, which each update and :meth:`count_validation` change."""
    last_update: int
    """Number of the last update of the training."""

    def reason_to_stop(self) -> str | None:
        """Return why training ends after this update, or None if it continues."""
        config, state = self.config, self.state
        if state.update >= self.last_update:
            return "max_updates" if state.update >= config.max_updates else "max_epochs"
        # Seconds of all resumes together, without validation and saving.
        if config.max_minutes is not None and state.seconds >= 60 * config.max_minutes:
            return "max_minutes"
        return self.out_of_patience()

    def out_of_patience(self) -> str | None:
        """Return "patience" if the last `patience` validations were not the best, else None."""
        patience = self.config.patience
        is_out = patience is not None and self.state.validations_since_best >= patience
        return "patience" if is_out else None

    def is_validation_due(self, reason: str | None) -> bool:
        """Return whether to validate after this update; `reason` says why training ends, if so."""
        return self.state.update > 0 and (self._is_regular_validation() or reason in PLANNED)

    def is_save_due(self) -> bool:
        """Return whether to write a regular checkpoint after this update."""
        config, state = self.config, self.state
        minutes = (state.seconds - state.saved_seconds) / 60
        by_clock = config.save_minutes is not None and minutes >= config.save_minutes
        return by_clock or state.update % config.save_every == 0

    def count_validation(self, scores: dict[str, float]) -> bool:
        """Count a validation of this update, and return whether its score is the best so far."""
        state, sort_key = self.state, self.config.sort_key
        value, loss = scores[self.config.best_metric], scores["loss"]
        is_best = sort_key(value, loss) > sort_key(state.best, state.best_loss)
        if is_best:
            state.best, state.best_loss = value, loss
            state.best_update = state.update
        # The final validation does not count towards patience: a resumed run must decide as an
        # uninterrupted one would, which has no validation there.
        if self._is_regular_validation():
            self._count_towards_patience(value, loss)
        return is_best

    def _is_regular_validation(self) -> bool:
        config, state = self.config, self.state
        minutes = (state.seconds - state.valid_seconds) / 60
        by_clock = config.valid_minutes is not None and minutes >= config.valid_minutes
        return by_clock or state.update % config.valid_every == 0

    def _count_towards_patience(self, value: float, loss: float) -> None:
        """Count a regular validation towards patience and plateaus."""
        state, sort_key = self.state, self.config.sort_key
        state.valid_seconds = state.seconds
        state.validations_since_best += 1
        if sort_key(value, loss) > sort_key(state.patience_best, state.patience_best_loss):
            state.patience_best, state.patience_best_loss = value, loss
            state.validations_since_best = 0
        state.plateaus += self.config.schedule.is_plateau(state.validations_since_best)


class Stopwatch:
    """Counts seconds while running, and the seconds of the current lap."""

    def __init__(self, before: float = 0.0, seconds_since_report: float = 0.0) -> None:
        """Make a stopped stopwatch.

        Args:
            before: seconds already counted.
            seconds_since_report: the seconds that belong to the current lap.
        """
        self._counted = before
        self._lap = before - seconds_since_report
        self._since: float | None = None

    def start(self) -> None:
        """Start counting."""
        # The wall clock may be set while training runs.
        self._since = time.monotonic()

    @property
    def total(self) -> float:
        """Return the seconds counted so far."""
        running = 0.0 if self._since is None else time.monotonic() - self._since
        return self._counted + running

    @property
    def seconds_since_report(self) -> float:
        """Return the seconds of the current lap."""
        return self.total - self._lap

    def lap(self) -> float:
        """End the current lap, and return its seconds."""
        now = self.total
        seconds, self._lap = now - self._lap, now
        return seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop counting within the context."""
        # Time of validation says nothing about the speed of training.
        self._counted, self._since = self.total, None
        try:
            yield
        finally:
            self.start()


CAUGHT = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
"""Signals that Slurm, torchrun, users and terminals that close send; the exit status is 128 plus
the number."""


class StopRequests:
    """Within the context, records stop signals instead of ending the process.

    The first Ctrl-C restores the former handler, so that a second one raises KeyboardInterrupt at
    once. Repetitions of other signals change nothing, because launchers repeat signals. SIGHUP
    stays ignored where it is, as with nohup.
    """

    def __init__(self, acknowledge: Callable[[signal.Signals], None] | None = None) -> None:
        """Prepare to catch signals; the context manager installs the handlers.

        Args:
            acknowledge: called with the first signal, inside the signal handler.
        """
        self.received = 0
        self._acknowledge = acknowledge
        self._before: dict[int, object] = {}
        # Asked now, because a terminal that has closed no longer counts as one.
        self._terminals = [output for output in (1, 2) if os.isatty(output)]

    def __enter__(self) -> StopRequests:
        for number in CAUGHT:
            # nohup ignores SIGHUP on purpose.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        is_first_signal, self.received = not self.received, number
        if number == signal.SIGHUP:  # nothing more can be written to the terminal
            redirect_to_null(*self._terminals)
        if number == signal.SIGINT:
            signal.signal(number, self._before[number])  # type: ignore[arg-type]
        if is_first_signal and self._acknowledge:
            self._acknowledge(signal.Signals(number))
