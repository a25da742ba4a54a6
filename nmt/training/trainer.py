"""The training loop.

:meth:`Trainer.train` repeats these steps until there is a reason to stop:

1. Take the next update from the batch loader: some 25,000 target tokens, cut into micro-batches
   that fit the device.
2. Set the learning rate from the schedule, and the random seed from the update's number.
3. Run each micro-batch forward and backward; gradients accumulate (:meth:`Trainer._accumulate`).
4. Undo the loss scale, clip the gradient norm, and let the optimizer step, unless the gradient is
   not finite (:meth:`Trainer._step`).
5. Every `log_every` updates, report loss, perplexity and speed.
6. Every `valid_every` updates, validate, and remember the best score.
7. Every `save_every` updates, or after a new best, write a checkpoint.

The random numbers of an update depend on the seed, the update and the process alone. A run that is
interrupted and resumed therefore computes the same updates as one that never stopped.
"""

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
"""Key of the trained weights among a checkpoint's optimizer tensors, with a moving average.

The checkpoint's model weights are then the average.
"""

PLANNED = ("max_updates", "max_epochs", "max_minutes")
"""Stop reasons that trigger a final validation."""


class Trainer:
    """Trains a model on the pairs of a split and writes checkpoints into a run directory.

    Its parts, in the order in which an update meets them: `sampler` decides which pairs make up the
    update, and `loader` reads them as micro-batches. `own_criterion` is the model with its loss;
    `parallel` wraps it for several processes. `scale` multiplies the loss in fp16. `optimizer`
    moves the weights, and `average` follows them. `watch` finds gradients that are not finite.
    `running_stats` and `stopwatch` collect the numbers of the next report. `state` holds the
    counters that a checkpoint stores, such as the number of the last update.

    Call :meth:`restore` to resume from a checkpoint, then :meth:`train`.
    """

    def __init__(
        self, run: Run, config: TrainConfig, model: Model, split: Split, world: World
    ) -> None:
        """Prepare the first update.

        Args:
            run: the run directory that receives the checkpoints.
            config: the recipe's section ``train``.
            model: on the world's device, with the same weights on all processes.
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
        self.scores: dict[str, float] = {}  # of the current update, if validated

    def restore(
        self,
        weights: dict[str, Tensor],
        optimizer: dict[str, Tensor],
        state: TrainerState,
        scores: dict[str, float],
    ) -> None:
        """Resume from the content of a checkpoint.

        Args:
            weights: by name; the averaged weights if there is a moving average.
            optimizer: the optimizer's tensors by "WEIGHT/KEY".
            state: the counters.
            scores: of the checkpoint's update; empty if it was not validated.
        """
        self.scores = scores
        parameters = dict(self.model.named_parameters())
        shard = self.parallel.shard
        if self.average:
            self.average.load(weights)
            weights = {name: optimizer[f"{name}/{OWN}"] for name in weights}
        set_weights(self.model, {name: shard(weights[name], parameters[name]) for name in weights})
        for name, weight in parameters.items():
            if not weight.requires_grad:
                continue
            self.optimizer.state[weight] = {
                path.rpartition("/")[2]: shard(value, weight)
                for path, value in optimizer.items()
                if path.rpartition("/")[0] == name and not path.endswith(f"/{OWN}")
            }
        self.state = state
        self.scale.restore(self.state.loss_scale)
        max_tokens, devices = self.state.max_tokens, self.state.max_tokens_devices
        self.state.max_tokens, self.state.max_tokens_devices = 0, []
        if self.config.max_tokens == "auto" and max_tokens and self.world.device_kinds() == devices:
            self.fit_micro_batches(max_tokens)
        self.stopwatch = Stopwatch(self.state.seconds, self.state.seconds_since_report)
        # One entry per process of the interrupted run; there may be more or fewer processes now.
        for sums in self.state.running_stats[self.world.rank :: self.world.size]:
            self.running_stats.restore(sums)

    @property
    def last_update(self) -> int:
        """Return the number of the last update, by `max_updates` and `max_epochs`."""
        epochs, updates = self.config.max_epochs, self.config.max_updates
        return min(updates, epochs * self.sampler.updates_per_epoch) if epochs else updates

    @property
    def is_at_best(self) -> bool:
        """Return whether the current update has the best validation so far."""
        return self.state.best_update == self.state.update

    def fit_micro_batches(self, max_tokens: int) -> None:
        """Cut updates into micro-batches of at most `max_tokens` positions from now on."""
        self.loader = replace(self.loader, max_tokens=max_tokens)
        if self.config.max_tokens == "auto":
            self.state.max_tokens = max_tokens
            self.state.max_tokens_devices = self.world.device_kinds()

    @property
    def needs_trial(self) -> bool:
        """Return whether `max_tokens` is "auto" and not found yet on these devices."""
        is_gpu = self.world.device.type == "cuda"
        return is_gpu and self.config.max_tokens == "auto" and not self.state.max_tokens

    def allocate(self) -> None:
        """Allocate the optimizer's state, so that a memory trial includes it; no weight changes."""
        for weight in self.optimizer.param_groups[0]["params"]:
            weight.grad = torch.zeros_like(weight)
        self.optimizer.found_inf = torch.ones((), device=self.world.device)  # type: ignore[attr-defined]
        self.optimizer.step()  # skips the step because of `found_inf`
        self.parallel.clear(self.optimizer)

    def try_batch(self, batch: Batch) -> None:
        """Run a batch forward and backward, and drop the gradients."""
        with autocast(self.config.precision, self.world.device):
            measured = self.own_criterion(batch.to(self.world.device))
        measured["loss"].backward()
        self.parallel.clear(self.optimizer)

    def train(self, validation: Validation, report: Report) -> str:
        """Train until there is a reason to stop.

        Returns:
            The reason: "max_updates", "max_epochs", "max_minutes", "patience", or "signal N".

        Raises:
            NmtError: more than `max_skipped` updates had a gradient that is not finite.
        """
        self.model.train()
        self.try_batch(
            make_batch(self.loader.split, np.array([], np.int64))
        )  # initialises sharding
        self.stopwatch.start()
        report.begin()
        reason = self._reason_to_stop(0)
        if self._is_validation_due(reason) and not self.scores:
            # The interruption came before the validation of this update.
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
                        self._save(
                            report, is_best
                        )  # validation may outlast a launcher's grace time
                    is_best = self._validate(validation, report)
                    reason = reason or self._out_of_patience()
                if reason or is_best or self._is_save_due():
                    self._save(report, is_best)
        return reason

    def _step(self, update: Update, rate: float) -> list[Update]:
        """Run one update, and return the updates now known to have failed.

        On a GPU the host learns of a failure one update later (:mod:`nmt.training.divergence`).
        """
        self._seed(update)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        sums = self._accumulate(update)
        norm = self._scale_gradients()
        is_finite = norm.isfinite()
        self.optimizer.found_inf = (~is_finite).float()  # type: ignore[attr-defined]
        self.optimizer.step()  # does nothing where `found_inf` is one
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
        """Undo the loss scale, clip the gradients, and return their norm before clipping."""
        gradients = [weight.grad for weight in self.model.parameters() if weight.grad is not None]
        norm = self.parallel.whole(torch.nn.utils.get_total_norm(gradients)) / self.scale.value
        factor = 1 / self.scale.value
        if self.config.clip_norm:
            factor = factor * (self.config.clip_norm / norm).clamp(max=1.0)
        if self.config.clip_norm or self.scale.wanted:
            for gradient in gradients:
                gradient.mul_(factor)
        return norm

    def _seed(self, update: Update) -> None:
        """Set the seeds of an update: that of dropout, per process, and that of sampling."""
        torch.manual_seed(_mix(self.config.seed, update.number, self.world.rank))
        self.own_criterion.sampling_seed = _mix(self.config.seed, update.number)

    def _accumulate(self, update: Update) -> dict[str, Tensor]:
        """Accumulate an update's gradients, and return the sums of the criterion's outputs."""
        sums: dict[str, Tensor] = {}
        for batch in update.batches:
            with self.parallel.accumulating(is_last=batch is update.batches[-1]):
                with autocast(self.config.precision, self.world.device):
                    measured = self.parallel.criterion(batch.to(self.world.device))
                # `parallel` averages gradients over processes; times `size`, that is their sum.
                factor = self.world.size / update.target_tokens
                (measured["loss"] * (factor * self.scale.value)).backward()
            for name, value in measured.items():
                sums[name] = sums.get(name, 0.0) + value.detach()
        return sums

    def _note_failure(self, update: Update, report: Report) -> None:
        """Report a skipped update with its origin; raise an NmtError after `max_skipped`."""
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
        """Return the module, and the rank, whose output in an update was first not finite."""
        self._seed(update)
        nats = torch.zeros((), device=self.world.device)
        # As in validation: weights gathered for a pass without gradients are resharded afterwards.
        with self.parallel.evaluating(), FirstNonFinite(self.model) as first, torch.no_grad():
            for batch in update.batches:
                with autocast(self.config.precision, self.world.device):
                    nats += self.own_criterion(batch.to(self.world.device))["loss"]
        # The loss applies the output layer itself, so no module outputs the logits.
        here = first.name or (None if nats.isfinite() else "the logits or the loss")
        places = [(rank, place) for rank, place in enumerate(self.world.gather(here)) if place]
        if not places:
            return "in the backward pass"
        rank, place = places[0]
        return f"first in {place}" + (f" on rank {rank}" if self.world.size > 1 else "")

    def _report(self, update: Update, rate: float, report: Report) -> None:
        """Report the sums since the last report over all processes, and reset them."""
        local = self.running_stats.sums()
        sums = dict(zip(local, self.world.sum(list(local.values())), strict=True))
        # Each process counts the same updates and the norm of the same gradient.
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
        # A signal may reach only one process, and clocks differ: all take the maximum.
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
        """Validate, and return whether the score is the best so far."""
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
        """Count a regular validation towards patience and plateaus."""
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
        for failed in self.watch.rest():  # so that a resumed run knows all failures
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
        if self.average:  # the checkpoint's model weights are the average
            weights = weights_of(self.model)
            state.update({f"{name}/{OWN}": weight for name, weight in weights.items()})
        return state

    def _averaged(self) -> contextlib.AbstractContextManager[None]:
        return self.average.in_place_of_the_weights() if self.average else contextlib.nullcontext()


def _mix(*numbers: int) -> int:
    """Return a 64-bit seed that depends on all numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])
