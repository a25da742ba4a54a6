"""The training loop: set the rate, accumulate, clip, step, report, validate, save, stop."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from nmt.data.batching import Batch, Feed, Order, Update, make_batch, prefetch
from nmt.data.dataset import Split
from nmt.distributed import World
from nmt.errors import NmtError
from nmt.evaluation.metrics import Metric, metrics
from nmt.models import Model
from nmt.precision import Precision, autocast, pick_precision
from nmt.runs import Run, set_weights, weights_of
from nmt.training.divergence import FiniteWatch, FirstNonFinite
from nmt.training.freezing import freeze
from nmt.training.loss_scale import LossScale
from nmt.training.losses import Loss, losses
from nmt.training.moving_average import MovingAverage
from nmt.training.optimizers import OptimizerConfig, optimizers
from nmt.training.parallel import Sharding, parallelize, whole
from nmt.training.report import Report, Window, summarize
from nmt.training.schedules import Schedule, schedules
from nmt.training.signals import StopRequests
from nmt.training.stopwatch import Stopwatch
from nmt.training.validation import Validation

OWN = "weight"
"""With a moving average, the optimizer's name for the weights that it is the average of."""

PLANNED = ("max_updates", "max_epochs", "max_minutes")
"""Reasons to stop at which the last update is validated, too."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The recipe's section ``train``; the defaults are the paper's base model."""

    data: str = "data-bin"
    """Dataset directory, made by ``nmt preprocess``."""
    save_dir: str = "checkpoints"
    """Run directory; a run that is there is resumed."""
    tokens_per_update: int = 25000
    """Target tokens of one optimizer update, without padding, over all processes; met on average.
    Which sentences make up an update depends on this and the seed, not on the machine."""
    max_tokens: Literal["auto"] | int = 4096
    """Positions of one side of a micro-batch, padding included, and of all passes or samples where
    the loss takes several; bounds the memory of a device.
    "auto" tries what fits a GPU before the first update, and again where the run is resumed on
    other GPUs; it is 4096 on a CPU."""
    max_updates: int = 100_000
    """Optimizer updates after which training ends. A resumed run may raise it, unless the schedule
    depends on it, as linear and cosine do."""
    max_epochs: int | None = None
    """Epochs after which training ends, if `max_updates` is not reached before. What holds of
    `max_updates` in a resumed run holds of this."""
    init_from: str | None = None
    """Run or checkpoint whose weights a new run begins with; its counters begin anew. The
    vocabulary must be the same: preprocess with `subword_model` set to that run."""
    freeze: tuple[str, ...] = ()
    """Names of weights that are not trained, as shell patterns, such as "encoder.*", in quotes
    where they begin with `*`; the names are those in `model.safetensors`."""
    max_minutes: float | None = None
    """Minutes of training, over all resumes, after which it ends."""
    subword_sampling: float | None = None
    """Cuts the training text into other subwords in every epoch (subword regularisation): 0.1, say,
    leaves out that share of BPE's merges (BPE-dropout); for unigram models it is the exponent of
    their probabilities, less for more variety. Sentences become longer than `max_tokens` and
    `tokens_per_update` count, and the loss is per token as they count. None for none."""
    optimizer: OptimizerConfig = optimizers["adam"]
    """How gradients move weights."""
    schedule: Schedule = schedules["inverse_sqrt"]
    """The learning rate of each update."""
    loss: Loss = losses["label_smoothed_cross_entropy"]
    """What is minimised."""
    clip_norm: float = 0.0
    """Greatest norm of the gradient, larger ones are scaled down; 0 for none, as in the paper."""
    ema_decay: float = 0.0
    """What is kept, per update, of the exponential moving average of the weights, such as 0.9999;
    validation, checkpoints and so translations then use the average. 0 for none."""
    max_skipped: int = 10
    """Updates that are skipped because their gradient is not finite before training ends."""
    seed: int = 1
    """Of initialisation, data order, dropout and samples."""
    precision: Precision = "auto"
    """Of matrix products: fp32, bf16, fp16 with a scaled loss, or auto, what the hardware is good
    at. Weights and the optimizer's state are float32 in each."""
    compile: bool = False
    """Whether the model is compiled (torch.compile): minutes at the start for fewer kernels, then
    faster on a GPU; slower on a CPU."""
    sharding: Sharding = "none"
    """"full" splits weights, gradients and the optimizer's state over the processes, for models
    whose training is larger than a GPU; the bare weights must fit, for validation. "none" keeps
    all of them on each."""
    device: str = "auto"
    """cpu, cuda, cuda:N, or auto, a GPU where there is one."""
    valid_every: int = 1000
    """Updates between validations."""
    valid_minutes: float | None = None
    """Minutes of training between validations, besides those of `valid_every`."""
    valid_metrics: tuple[Metric, ...] = (metrics["bleu"],)
    """Metrics of translations of the validation set; may be empty."""
    best_metric: str = "bleu"
    """What the best checkpoint is best by: loss, perplexity, or one of `valid_metrics`."""
    patience: int | None = None
    """Validations in a row without a new best after which training ends."""
    save_every: int = 1000
    """Updates between checkpoints."""
    save_minutes: float | None = None
    """Minutes between checkpoints, besides those of `save_every`."""
    keep_last: int = 5
    """Newest checkpoints that are kept; the best is always kept."""
    log_every: int = 100
    """Updates between reports."""
    tensorboard: bool = False
    """Whether the reports go to TensorBoard, too; needs the extra ``nmt-toolkit[tensorboard]``."""
    timeout_minutes: float = 10.0
    """How long a process waits for the others, before training ends with the name of who is late;
    more than a checkpoint takes to be written."""

    def __post_init__(self) -> None:
        for name in (
            "tokens_per_update",
            "max_tokens",
            "max_updates",
            "valid_every",
            "save_every",
            "keep_last",
            "log_every",
        ):
            if getattr(self, name) != "auto" and getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("clip_norm", "seed", "max_skipped"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, is {getattr(self, name)}")
        for name in (
            "max_epochs",
            "max_minutes",
            "valid_minutes",
            "save_minutes",
            "patience",
            "timeout_minutes",
        ):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be more than 0, is {value}")
        if self.subword_sampling is not None and not 0.0 <= self.subword_sampling <= 1.0:
            raise ValueError(f"subword_sampling lies in [0, 1], not {self.subword_sampling}")
        if not 0.0 <= self.ema_decay < 1.0:
            raise ValueError(f"ema_decay lies in [0, 1), not {self.ema_decay}")
        if self.ema_decay and self.sharding == "full":
            raise ValueError("ema_decay needs all weights in every process; take sharding none")
        if self.sharding == "full" and not self.optimizer.can_be_sharded:
            raise ValueError(f"{self.optimizer.name} cannot be split; take adam, or sharding none")
        if self.sharding == "full" and self.max_tokens == "auto":
            raise ValueError(
                "max_tokens auto is found by each process alone; with sharding give it"
            )
        if self.loss.translates and self.init_from is None:
            raise ValueError(
                f"loss {self.loss.name} goes on from a trained model; give its run as init_from"
            )
        if self.loss.translates and self.sharding == "full":
            raise ValueError(f"loss {self.loss.name} needs all weights; take sharding none")
        names = [metric.name for metric in self.valid_metrics]
        if len(set(names)) < len(names):
            raise ValueError(f"valid_metrics names a metric twice: {', '.join(names)}")
        self.schedule.peak(d_model=1)  # refuses a schedule that lacks its learning rate
        choices = ["loss", "perplexity", *(metric.name for metric in self.valid_metrics)]
        if self.best_metric not in choices:
            raise ValueError(f"best_metric {self.best_metric!r} is not among {', '.join(choices)}")

    def merit(self, value: float | None, loss: float | None) -> tuple[float, float]:
        """What validations are ranked by, more being better.

        Args:
            value: of the best metric; None and NaN are worse than all others.
            loss: decides between equal values.
        """
        if value is None or math.isnan(value):
            return (-math.inf, -math.inf)
        ascending = any(
            metric.name == self.best_metric and metric.higher_is_better
            for metric in self.valid_metrics
        )
        return (value if ascending else -value, -math.inf if loss is None else -loss)


@dataclass
class Progress:
    """What is counted across resumes."""

    update: int = 0
    seconds: float = 0.0
    """Of training, without validation and saving."""
    lap_seconds: float = 0.0
    """Of these, since the last report."""
    best: float | None = None
    best_loss: float | None = None
    """Of the best validation; of two equally good ones, that with the lower loss is better."""
    best_update: int = 0
    mark: float | None = None
    mark_loss: float | None = None
    """Of the best regular validation. The extra one at the end of training is none: a run that
    goes on must not differ from one that never stopped."""
    stale: int = 0
    """Regular validations since the best of them."""
    plateaus: int = 0
    """How often the schedule took this for a reason to lower the learning rate."""
    skipped: int = 0
    """Updates whose gradient was not finite."""
    saved_seconds: float = 0.0
    """Seconds of training at the last checkpoint."""
    valid_seconds: float = 0.0
    """Seconds of training at the last validation."""
    windows: list[dict[str, float]] = field(default_factory=list)
    """Sums since the last report, of each process."""
    loss_scale: list[float] = field(default_factory=list)
    """In fp16, what the loss is multiplied by, and the updates since that last changed."""
    max_tokens: int = 0
    """Positions of a micro-batch, where they were found by trial."""
    max_tokens_devices: list[str] = field(default_factory=list)
    """Kinds of devices on which they were."""


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
        self.order = Order(
            split.source_lengths, split.target_lengths, config.tokens_per_update, config.seed
        )
        self.feed = Feed(
            split=split,
            order=self.order,
            max_tokens=4096 if config.max_tokens == "auto" else config.max_tokens,
            rows=config.loss.rows,
            process=world.rank,
            num_processes=world.size,
            pinned=world.device.type == "cuda",
        )
        freeze(model, config.freeze)
        self.average = MovingAverage(model, config.ema_decay) if config.ema_decay else None
        self.own_objective = config.loss.objective(model, run, config.compile)
        self.parallel = parallelize(self.own_objective, model.evenly_used(), config.sharding, world)
        is_fp16 = pick_precision(config.precision, world.device) == "fp16"
        self.scale = LossScale(is_fp16, world.device)
        self.optimizer = config.optimizer.build(
            [weight for weight in model.parameters() if weight.requires_grad]
        )
        self.progress = Progress()
        self.window = Window()
        self.watch: FiniteWatch[Update] = FiniteWatch()
        self.stopwatch = Stopwatch()
        self.scores: dict[str, float] = {}  # of the current update, where it was validated

    def restore(
        self,
        weights: dict[str, Tensor],
        optimizer: dict[str, Tensor],
        progress: dict[str, Any],
        scores: dict[str, float],
    ) -> None:
        """Continues from a checkpoint's content."""
        self.scores = scores
        own = dict(self.model.named_parameters())
        share = self.parallel.share
        if self.average:
            self.average.load(weights)
            weights = {name: optimizer[f"{name}/{OWN}"] for name in weights}
        set_weights(self.model, {name: share(weights[name], own[name]) for name in weights})
        for name, weight in own.items():
            if not weight.requires_grad:
                continue
            self.optimizer.state[weight] = {
                path.rpartition("/")[2]: share(value, weight)
                for path, value in optimizer.items()
                if path.rpartition("/")[0] == name and not path.endswith(f"/{OWN}")
            }
        self.progress = Progress(**progress)
        self.scale.restore(self.progress.loss_scale)
        found, tried_on = self.progress.max_tokens, self.progress.max_tokens_devices
        self.progress.max_tokens, self.progress.max_tokens_devices = 0, []
        if self.config.max_tokens == "auto" and found and self.world.device_kinds() == tried_on:
            self.fit_micro_batches(found)
        self.stopwatch = Stopwatch(self.progress.seconds, self.progress.lap_seconds)
        # Of as many processes as there were; there may be more or fewer now.
        for sums in self.progress.windows[self.world.rank :: self.world.size]:
            self.window.restore(sums)

    @property
    def last_update(self) -> int:
        """Return the update after which training ends at the latest."""
        epochs, updates = self.config.max_epochs, self.config.max_updates
        return min(updates, epochs * self.order.updates_per_epoch) if epochs else updates

    @property
    def is_at_best(self) -> bool:
        """Whether the validation of the current update is the best so far."""
        return self.progress.best_update == self.progress.update

    def fit_micro_batches(self, max_tokens: int) -> None:
        """Cuts updates into micro-batches of at most so many positions from now on."""
        self.feed = replace(self.feed, max_tokens=max_tokens)
        if self.config.max_tokens == "auto":
            self.progress.max_tokens = max_tokens
            self.progress.max_tokens_devices = self.world.device_kinds()

    @property
    def needs_trial(self) -> bool:
        """Whether the size of a micro-batch is still to be found on these devices."""
        is_gpu = self.world.device.type == "cuda"
        return is_gpu and self.config.max_tokens == "auto" and not self.progress.max_tokens

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
            measured = self.own_objective(batch.to(self.world.device))
        measured["loss"].backward()
        self.parallel.clear(self.optimizer)

    def train(self, validation: Validation, report: Report) -> str:
        """Trains until there is a reason to stop, and says which.

        Returns:
            "max_updates", "max_epochs", "max_minutes", "patience", or "signal N".
        """
        self.model.train()
        self.try_batch(make_batch(self.feed.split, np.array([], np.int64)))  # sharding needs one
        self.stopwatch.start()
        report.begin()
        reason = self._reason_to_stop(0)
        if self._is_validation_due(reason) and not self.scores:
            # An interruption prevented it.
            self._save(report, self._validate(validation, report))
            reason = reason or self._out_of_patience()
        updates = prefetch(self.feed.updates(self.progress.update + 1))
        with StopRequests(report.acknowledge) as requests, contextlib.closing(updates):
            while reason is None:
                update = next(updates)
                rate = self.config.schedule.rate(
                    update.number,
                    self.model.output.in_features,
                    self.last_update,
                    self.progress.plateaus,
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
        self.window.add(update, is_finite, grad_norm=norm, **sums)
        self.progress.update = update.number
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
        self.own_objective.draw = _mix(self.config.seed, update.number)

    def _accumulate(self, update: Update) -> dict[str, Tensor]:
        """Adds up the gradients of an update's batches, and what else the objective gives."""
        sums: dict[str, Tensor] = {}
        for batch in update.batches:
            with self.parallel.accumulating(is_last=batch is update.batches[-1]):
                with autocast(self.config.precision, self.world.device):
                    measured = self.parallel.objective(batch.to(self.world.device))
                # The gradients' mean over processes will be taken; what is wanted is the sum.
                factor = self.world.size / update.target_tokens
                (measured["loss"] * (factor * self.scale.value)).backward()
            for name, value in measured.items():
                sums[name] = sums.get(name, 0.0) + value.detach()
        return sums

    def _note_failure(self, update: Update, report: Report) -> None:
        """Says which update was skipped and where it went wrong; gives up after too many."""
        self.progress.skipped += 1
        where = self._origin(update)
        sentences = sum(len(batch.source) for batch in update.batches)
        report.skipped(update.number, where, sentences)
        if self.progress.skipped > self.config.max_skipped:
            raise NmtError(
                f"update {update.number}: training diverged: {self.progress.skipped} updates had a "
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
                    nats += self.own_objective(batch.to(self.world.device))["loss"]
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
        own = self.window.sums()
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
        self.window = Window()

    def _reason_to_stop(self, stop_signal: int) -> str | None:
        config, progress = self.config, self.progress
        # Signals may reach one process alone, and clocks differ: the highest count for all.
        stop, progress.seconds = self.world.max([stop_signal, self.stopwatch.total])
        if stop:
            return f"signal {stop:.0f}"
        if progress.update >= self.last_update:
            return "max_updates" if progress.update >= config.max_updates else "max_epochs"
        if config.max_minutes is not None and progress.seconds >= 60 * config.max_minutes:
            return "max_minutes"
        return self._out_of_patience()

    def _is_validation_due(self, reason: str | None) -> bool:
        return self.progress.update > 0 and (self._is_validation_regular() or reason in PLANNED)

    def _is_validation_regular(self) -> bool:
        config, progress = self.config, self.progress
        minutes = (progress.seconds - progress.valid_seconds) / 60
        by_clock = config.valid_minutes is not None and minutes >= config.valid_minutes
        return by_clock or progress.update % config.valid_every == 0

    def _out_of_patience(self) -> str | None:
        patience = self.config.patience
        return "patience" if patience is not None and self.progress.stale >= patience else None

    def _validate(self, validation: Validation, report: Report) -> bool:
        """Validates; whether this is the best so far."""
        progress, merit = self.progress, self.config.merit
        with self.stopwatch.paused(), self.parallel.evaluating(), self._averaged():
            self.scores = validation()
        value, loss = self.scores[self.config.best_metric], self.scores["loss"]
        is_best = merit(value, loss) > merit(progress.best, progress.best_loss)
        if is_best:
            progress.best, progress.best_loss = value, loss
            progress.best_update = progress.update
        if self._is_validation_regular():
            self._count(value, loss)
        report.validation(progress.update, self.scores, is_best)
        return is_best

    def _count(self, value: float, loss: float) -> None:
        """Notes a regular validation, by which patience and plateaus go."""
        progress, merit = self.progress, self.config.merit
        progress.valid_seconds = progress.seconds
        progress.stale += 1
        if merit(value, loss) > merit(progress.mark, progress.mark_loss):
            progress.mark, progress.mark_loss = value, loss
            progress.stale = 0
        progress.plateaus += self.config.schedule.is_plateau(progress.stale)

    def _is_save_due(self) -> bool:
        config, progress = self.config, self.progress
        minutes = (progress.seconds - progress.saved_seconds) / 60
        by_clock = config.save_minutes is not None and minutes >= config.save_minutes
        return by_clock or progress.update % config.save_every == 0

    def _save(self, report: Report, is_best: bool) -> None:
        for failed in self.watch.rest():  # so that none is forgotten by a resumed run
            self._note_failure(failed, report)
        self.progress.saved_seconds = self.progress.seconds
        self.progress.lap_seconds = self.stopwatch.since_lap
        self.progress.windows = self.world.gather(self.window.sums())
        self.progress.loss_scale = self.scale.state() if self.scale.wanted else []
        with self.stopwatch.paused():
            weights = whole(self.parallel, weights_of(self.model), self.world.is_first)
            optimizer = whole(self.parallel, self._optimizer_state(), self.world.is_first)
            if self.world.is_first:
                self.run.save(
                    self.progress.update,
                    self.average.values if self.average else weights,
                    optimizer,
                    dict(vars(self.progress)),
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
