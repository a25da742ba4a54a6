"""The training loop: updates, and between them reports, validations and checkpoints.

:meth:`TrainingLoop.run` repeats these steps until there is a reason to stop:

1. Take the next update from the batch loader, and its learning rate from the schedule.
2. Let the trainer run the update (:mod:`nmt.training.trainer`).
3. Every `log_every` updates, report loss, perplexity and speed. A training that ends before the
   first report reports at its end.
4. If a validation is due (:mod:`nmt.training.milestones`), validate, and remember the best score.
5. If a checkpoint is due, or the score is the best so far, write a checkpoint.
"""

from __future__ import annotations

import contextlib
import math

import numpy as np

from nmt.data.batches import make_batch
from nmt.data.loader import Update, prefetch
from nmt.errors import NmtError
from nmt.runs.translations import write_translations
from nmt.training.milestones import Milestones
from nmt.training.report import Report, RunningStats, summarize
from nmt.training.signals import StopRequests
from nmt.training.stopwatch import Stopwatch
from nmt.training.trainer import Trainer
from nmt.training.validation_by_direction import Validations


class TrainingLoop:
    """Lets a trainer run updates, and reports, validates and saves between them."""

    def __init__(
        self,
        trainer: Trainer,
        validation: Validations,
        report: Report,
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
        trainer.try_batch(no_sentences)  # initialises sharding
        self.stopwatch.start()
        self.report.begin()
        reason = milestones.reason_to_stop()  # of the checkpoint, without this start's time
        updates = prefetch(trainer.loader.updates(trainer.state.update + 1))
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
        """Write a checkpoint of the current update."""
        trainer, state = self.trainer, self.trainer.state
        for failed in trainer.watch.rest():  # so that a resumed run knows all failures
            self._note_failure(failed)
        state.saved_seconds = state.seconds
        state.seconds_since_report = self.stopwatch.seconds_since_report
        with self.stopwatch.paused():
            weights, optimizer = trainer.snapshot()
            if trainer.world.is_main:
                trainer.run.save(
                    state.update, weights, optimizer, dict(vars(state)), self.scores, is_best
                )
                trainer.run.prune(trainer.config.keep_last)
            trainer.world.barrier()
