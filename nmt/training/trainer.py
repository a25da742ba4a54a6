"""The training loop: set the rate, accumulate, clip, step, report, validate, save, stop."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from nmt.data.batches import Batch, make_batch
from nmt.data.dataset import Split
from nmt.data.loader import BatchLoader, Update, prefetch
from nmt.data.sampler import BatchSampler
from nmt.errors import NmtError
from nmt.models import Model
from nmt.runs import Run, set_weights, weights_of
from nmt.runtime.distributed import World
from nmt.runtime.precision import autocast, pick_precision
from nmt.training.config import TrainConfig
from nmt.training.divergence import FiniteWatch, FirstNonFinite
from nmt.training.freezing import freeze
from nmt.training.loss_scale import LossScale
from nmt.training.moving_average import MovingAverage
from nmt.training.parallel import gather_tensors, parallelize
from nmt.training.report import Report, RunningStats, summarize
from nmt.training.signals import StopRequests
from nmt.training.state import TrainerState
from nmt.training.stopwatch import Stopwatch
from nmt.training.validation import Validation

OWN = "weight"
"""With a moving average, the optimizer's name for the weights that it is the average of."""

PLANNED = ("max_updates", "max_epochs", "max_minutes")
"""Reasons to stop at which the last update is validated, too."""


class Trainer:
    """Trains a model on a split and leaves checkpoints in a run."""

    def __init__(
        self, run: Run, config: TrainConfig, model: Model, split: Split, world: World
    ) -> None:
        """Prepares the first update; :meth:`restore` makes it a later one.

        Args:
            run: where checkpoints go.
            config: all settings.
            model: on the world's device, the same on all processes.
            split: the training pairs.
            world: this process among its peers.
        """
        self.run = run
        self.config = config
        self.model = model
        self.world = world
        self.sampler = BatchSampler(
            split.source_lengths, split.target_lengths, config.tokens_per_update, config.seed
        )
        self.loader = BatchLoader(
            split=split,
            sampler=self.sampler,
            max_tokens=4096 if config.max_tokens == "auto" else config.max_tokens,
            rows=config.loss.rows,
            process=world.rank,
            num_processes=world.size,
            pinned=world.device.type == "cuda",
        )
        freeze(model, config.freeze)
        self.average = MovingAverage(model, config.ema_decay) if config.ema_decay else None
        self.own_criterion = config.loss.criterion(model, run, config.compile)
        self.parallel = parallelize(
            self.own_criterion, model.fsdp_modules(), config.sharding, world
        )
        is_fp16 = pick_precision(config.precision, world.device) == "fp16"
        self.scale = LossScale(is_fp16, world.device)
        self.optimizer = config.optimizer.build(
            [weight for weight in model.parameters() if weight.requires_grad]
        )
        self.state = TrainerState()
        self.running_stats = RunningStats()
        self.watch: FiniteWatch[Update] = FiniteWatch()
        self.stopwatch = Stopwatch()
        self.scores: dict[str, float] = {}  # of the current update, where it was validated

    def restore(
        self,
        weights: dict[str, Tensor],
        optimizer: dict[str, Tensor],
        state: TrainerState,
        scores: dict[str, float],
    ) -> None:
        """Continues from a checkpoint's content."""
        self.scores = scores
        own = dict(self.model.named_parameters())
        shard = self.parallel.shard
        if self.average:
            self.average.load(weights)
            weights = {name: optimizer[f"{name}/{OWN}"] for name in weights}
        set_weights(self.model, {name: shard(weights[name], own[name]) for name in weights})
        for name, weight in own.items():
            if not weight.requires_grad:
                continue
            self.optimizer.state[weight] = {
                path.rpartition("/")[2]: shard(value, weight)
                for path, value in optimizer.items()
                if path.rpartition("/")[0] == name and not path.endswith(f"/{OWN}")
            }
        self.state = state
        self.scale.restore(self.state.loss_scale)
        found, tried_on = self.state.max_tokens, self.state.max_tokens_devices
        self.state.max_tokens, self.state.max_tokens_devices = 0, []
        if self.config.max_tokens == "auto" and found and self.world.device_kinds() == tried_on:
            self.fit_micro_batches(found)
        self.stopwatch = Stopwatch(self.state.seconds, self.state.seconds_since_report)
        # Of as many processes as there were; there may be more or fewer now.
        for sums in self.state.running_stats[self.world.rank :: self.world.size]:
            self.running_stats.restore(sums)

    @property
    def last_update(self) -> int:
        """Return the update after which training ends at the latest."""
        epochs, updates = self.config.max_epochs, self.config.max_updates
        return min(updates, epochs * self.sampler.updates_per_epoch) if epochs else updates

    @property
    def is_at_best(self) -> bool:
        """Whether the validation of the current update is the best so far."""
        return self.state.best_update == self.state.update

    def fit_micro_batches(self, max_tokens: int) -> None:
        """Cuts updates into micro-batches of at most so many positions from now on."""
        self.loader = replace(self.loader, max_tokens=max_tokens)
        if self.config.max_tokens == "auto":
            self.state.max_tokens = max_tokens
            self.state.max_tokens_devices = self.world.device_kinds()

    @property
    def needs_trial(self) -> bool:
        """Whether the size of a micro-batch is still to be found on these devices."""
        is_gpu = self.world.device.type == "cuda"
        return is_gpu and self.config.max_tokens == "auto" and not self.state.max_tokens

    def allocate(self) -> None:
        """Makes the optimizer hold all that it will hold, so that a trial of memory is complete."""
        for weight in self.optimizer.param_groups[0]["params"]:
            weight.grad = torch.zeros_like(weight)
        self.optimizer.found_inf = torch.ones((), device=self.world.device)  # type: ignore[attr-defined]
        self.optimizer.step()  # which does nothing else
        self.parallel.clear(self.optimizer)

    def try_batch(self, batch: Batch) -> None:
        """Takes a batch forward and backward, and keeps nothing of it."""
        with autocast(self.config.precision, self.world.device):
            measured = self.own_criterion(batch.to(self.world.device))
        measured["loss"].backward()
        self.parallel.clear(self.optimizer)

    def train(self, validation: Validation, report: Report) -> str:
        """Trains until there is a reason to stop, and says which.

        Returns:
            "max_updates", "max_epochs", "max_minutes", "patience", or "signal N".
        """
        self.model.train()
        self.try_batch(make_batch(self.loader.split, np.array([], np.int64)))  # sharding needs one
        self.stopwatch.start()
        report.begin()
        reason = self._reason_to_stop(0)
        if self._is_validation_due(reason) and not self.scores:
            # An interruption prevented it.
            self._save(report, self._validate(validation, report))
            reason = reason or self._out_of_patience()
        updates = prefetch(self.loader.updates(self.state.update + 1))
        with StopRequests(report.acknowledge) as requests, contextlib.closing(updates):
            while reason is None:
                update = next(updates)
                rate = self.config.schedule.rate(
                    update.number,
                    self.model.output.in_features,
                    self.last_update,
                    self.state.plateaus,
                )
                for failed in self._step(update, rate):
                    self._note_failure(failed, report)
                report.advance(update.number, self.stopwatch.total)
                if update.number % self.config.log_every == 0:
                    self._report(update, rate, report)
                reason = self._reason_to_stop(requests.received)
                is_best = False
                if self._is_validation_due(reason):
                    if reason or self._is_save_due():
                        self._save(report, is_best)  # validation may outlast a launcher's patience
                    is_best = self._validate(validation, report)
                    reason = reason or self._out_of_patience()
                if reason or is_best or self._is_save_due():
                    self._save(report, is_best)
        return reason

    def _step(self, update: Update, rate: float) -> list[Update]:
        """One optimizer update; gives those known by now to have failed (see `divergence`)."""
        self._seed(update)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        sums = self._accumulate(update)
        norm = self._scale_gradients()
        is_finite = norm.isfinite()
        self.optimizer.found_inf = (~is_finite).float()  # type: ignore[attr-defined]
        self.optimizer.step()  # which does nothing where `found_inf` is one
        self.parallel.clear(self.optimizer)
        if self.average:
            self.average.add(update.number, is_finite)
        self.running_stats.add(update, is_finite, grad_norm=norm, **sums)
        self.state.update = update.number
        self.scores = {}
        is_no_failure = is_finite | self.scale.is_overflow(is_finite)
        self.scale.update(is_finite)
        return self.watch.after(update, is_no_failure)

    def _scale_gradients(self) -> Tensor:
        """Undoes the scale of the loss, clips, and gives the norm before clipping."""
        gradients = [it.grad for it in self.model.parameters() if it.grad is not None]
        norm = self.parallel.whole(torch.nn.utils.get_total_norm(gradients)) / self.scale.value
        factor = 1 / self.scale.value
        if self.config.clip_norm:
            factor = factor * (self.config.clip_norm / norm).clamp(max=1.0)
        if self.config.clip_norm or self.scale.wanted:
            for gradient in gradients:
                gradient.mul_(factor)
        return norm

    def _seed(self, update: Update) -> None:
        """Sets what dropout comes from in an update, and what is drawn for its sentences."""
        torch.manual_seed(_mix(self.config.seed, update.number, self.world.rank))
        self.own_criterion.sampling_seed = _mix(self.config.seed, update.number)

    def _accumulate(self, update: Update) -> dict[str, Tensor]:
        """Adds up the gradients of an update's batches, and what else the objective gives."""
        sums: dict[str, Tensor] = {}
        for batch in update.batches:
            with self.parallel.accumulating(is_last=batch is update.batches[-1]):
                with autocast(self.config.precision, self.world.device):
                    measured = self.parallel.criterion(batch.to(self.world.device))
                # The gradients' mean over processes will be taken; what is wanted is the sum.
                factor = self.world.size / update.target_tokens
                (measured["loss"] * (factor * self.scale.value)).backward()
            for name, value in measured.items():
                sums[name] = sums.get(name, 0.0) + value.detach()
        return sums

    def _note_failure(self, update: Update, report: Report) -> None:
        """Says which update was skipped and where it went wrong; gives up after too many."""
        self.state.skipped += 1
        where = self._origin(update)
        sentences = sum(len(batch.source) for batch in update.batches)
        report.skipped(update.number, where, sentences)
        if self.state.skipped > self.config.max_skipped:
            raise NmtError(
                f"update {update.number}: training diverged: {self.state.skipped} updates had a "
                f"gradient that is not finite, {where}; the last good checkpoint is "
                f"{(self.run.path / 'last').resolve()}. Begin again in another --save-dir with a "
                "lower --lr, a longer --warmup-updates or train.clip_norm=1; or, if these were "
                "accidents, resume with a higher train.max_skipped"
            )

    def _origin(self, update: Update) -> str:
        """Where, on which process, an update first had a value that is not finite."""
        self._seed(update)
        nats = torch.zeros((), device=self.world.device)
        # As in validation: what is gathered for a pass without gradients is split again.
        with self.parallel.evaluating(), FirstNonFinite(self.model) as first, torch.no_grad():
            for batch in update.batches:
                with autocast(self.config.precision, self.world.device):
                    nats += self.own_criterion(batch.to(self.world.device))["loss"]
        # The output layer is applied inside the loss, and so is no module's output.
        own = first.name or (None if nats.isfinite() else "the logits or the loss")
        places = self.world.gather(own)
        found = [(rank, place) for rank, place in enumerate(places) if place]
        if not found:
            return "in the backward pass"
        rank, place = found[0]
        return f"first in {place}" + (f" on rank {rank}" if self.world.size > 1 else "")

    def _report(self, update: Update, rate: float, report: Report) -> None:
        """Reports the sums since the last report over all processes, and begins anew."""
        own = self.running_stats.sums()
        sums = dict(zip(own, self.world.sum(list(own.values())), strict=True))
        # Every process has seen the same updates, and the norm of the same summed gradient.
        for name in ("updates", "grad_norm"):
            sums[name] /= self.world.size
        record = summarize(
            sums,
            update=update.number,
            epoch=update.epoch,
            lr=rate,
            seconds=self.stopwatch.lap(),
            total=self.stopwatch.total,
            has_reward=self.config.loss.translates,
        )
        report.training(record)
        self.running_stats = RunningStats()

    def _reason_to_stop(self, stop_signal: int) -> str | None:
        config, state = self.config, self.state
        # Signals may reach one process alone, and clocks differ: the highest count for all.
        stop, state.seconds = self.world.max([stop_signal, self.stopwatch.total])
        if stop:
            return f"signal {stop:.0f}"
        if state.update >= self.last_update:
            return "max_updates" if state.update >= config.max_updates else "max_epochs"
        if config.max_minutes is not None and state.seconds >= 60 * config.max_minutes:
            return "max_minutes"
        return self._out_of_patience()

    def _is_validation_due(self, reason: str | None) -> bool:
        return self.state.update > 0 and (self._is_validation_regular() or reason in PLANNED)

    def _is_validation_regular(self) -> bool:
        config, state = self.config, self.state
        minutes = (state.seconds - state.valid_seconds) / 60
        by_clock = config.valid_minutes is not None and minutes >= config.valid_minutes
        return by_clock or state.update % config.valid_every == 0

    def _out_of_patience(self) -> str | None:
        patience = self.config.patience
        return (
            "patience"
            if patience is not None and self.state.validations_since_best >= patience
            else None
        )

    def _validate(self, validation: Validation, report: Report) -> bool:
        """Validates; whether this is the best so far."""
        state, sort_key = self.state, self.config.sort_key
        with self.stopwatch.paused(), self.parallel.evaluating(), self._averaged():
            self.scores = validation()
        value, loss = self.scores[self.config.best_metric], self.scores["loss"]
        is_best = sort_key(value, loss) > sort_key(state.best, state.best_loss)
        if is_best:
            state.best, state.best_loss = value, loss
            state.best_update = state.update
        if self._is_validation_regular():
            self._count(value, loss)
        report.validation(state.update, self.scores, is_best)
        return is_best

    def _count(self, value: float, loss: float) -> None:
        """Notes a regular validation, by which patience and plateaus go."""
        state, sort_key = self.state, self.config.sort_key
        state.valid_seconds = state.seconds
        state.validations_since_best += 1
        if sort_key(value, loss) > sort_key(state.patience_best, state.patience_best_loss):
            state.patience_best, state.patience_best_loss = value, loss
            state.validations_since_best = 0
        state.plateaus += self.config.schedule.is_plateau(state.validations_since_best)

    def _is_save_due(self) -> bool:
        config, state = self.config, self.state
        minutes = (state.seconds - state.saved_seconds) / 60
        by_clock = config.save_minutes is not None and minutes >= config.save_minutes
        return by_clock or state.update % config.save_every == 0

    def _save(self, report: Report, is_best: bool) -> None:
        for failed in self.watch.rest():  # so that none is forgotten by a resumed run
            self._note_failure(failed, report)
        self.state.saved_seconds = self.state.seconds
        self.state.seconds_since_report = self.stopwatch.seconds_since_report
        self.state.running_stats = self.world.gather(self.running_stats.sums())
        self.state.loss_scale = self.scale.state() if self.scale.wanted else []
        with self.stopwatch.paused():
            weights = gather_tensors(self.parallel, weights_of(self.model), self.world.is_main)
            optimizer = gather_tensors(self.parallel, self._optimizer_state(), self.world.is_main)
            if self.world.is_main:
                self.run.save(
                    self.state.update,
                    self.average.values if self.average else weights,
                    optimizer,
                    dict(vars(self.state)),
                    self.scores,
                    is_best,
                )
                self.run.prune(self.config.keep_last)
            self.world.barrier()

    def _optimizer_state(self) -> dict[str, Tensor]:
        state = {
            f"{name}/{key}": value
            for name, weight in self.model.named_parameters()
            for key, value in self.optimizer.state.get(weight, {}).items()
            if isinstance(value, Tensor)
        }
        if self.average:  # which takes the place of the weights themselves in a checkpoint
            own = weights_of(self.model)
            state.update({f"{name}/{OWN}": weight for name, weight in own.items()})
        return state

    def _averaged(self) -> contextlib.AbstractContextManager[None]:
        return self.average.in_place_of_the_weights() if self.average else contextlib.nullcontext()


def _mix(*numbers: int) -> int:
    """One 64-bit seed of several numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])
