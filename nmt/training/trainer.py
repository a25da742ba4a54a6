"""The trainer: runs one update after another.

The random numbers of an update depend on the seed, the update and the process alone. An interrupted
and resumed run therefore computes the same updates as a run that never stopped.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from nmt.data.batches import Batch
from nmt.data.dataset import Split
from nmt.data.loader import BatchLoader, Update
from nmt.data.sampler import BatchSampler, DirectionSampler, samplers
from nmt.data.stages import StageSampler
from nmt.errors import NmtError
from nmt.models import Model
from nmt.models.adaptation import adaptation_weights
from nmt.models.kernels.packs import is_compilable
from nmt.models.layers.basic import set_cutoff
from nmt.recipe.config import build
from nmt.runs import Checkpoint, Run
from nmt.runs.checkpoint import copy_weights
from nmt.runtime.distributed import World
from nmt.runtime.own_kernels import choose_kernels, has_own_kernels
from nmt.runtime.precision import Precision, autocast, pick_precision
from nmt.training.augmented_split import growth, sentences_of_epochs
from nmt.training.config import TrainConfig
from nmt.training.divergence import FiniteWatch, FirstNonFinite
from nmt.training.fp8 import use_fp8
from nmt.training.losses.guided_alignment import GuidedCriterion, WordLinks
from nmt.training.model_options import (
    checkpoint_activations,
    drop_layers,
    freeze,
    round_linear_layers,
)
from nmt.training.optim.moving_average import MovingAverage, WeightAverage
from nmt.training.optim.optimizers import trainable
from nmt.training.optim.schedule_free import ScheduleFreeAdamW, ScheduleFreeAverage
from nmt.training.parallel.cuda_graphs import RecordedProcess, check_recordable
from nmt.training.parallel.processes import Parallelism, gather_tensors, parallelize
from nmt.training.reporting.report import RunningStats

TRAINED_WEIGHT = "weight"
"""Key of the trained weights among a checkpoint's optimizer tensors, with an average of weights.

The checkpoint's model weights are then the average.
"""


class Trainer:
    """Runs the updates that train a model on the pairs of a split.

    Its parts, in the order in which an update meets them: `sampler` decides which pairs make up the
    update, and `loader` reads them as micro-batches. `criterion` is the model with its loss;
    `parallel` wraps it for several processes. `scale` multiplies the loss in fp16. `optimizer`
    moves the weights, and `average` follows them. `watch` finds gradients that are not finite.
    `running_stats` collects the numbers of the next report. `state` holds the counters that a
    checkpoint stores, such as the number of the last update.

    :meth:`snapshot` gives the content of a checkpoint, and :meth:`restore` resumes from it.
    """

    def __init__(
        self, run: Run, config: TrainConfig, model: Model, split: Split, world: World
    ) -> None:
        """Prepare the first update.

        Args:
            run: the run directory; a loss may read its recipe, and sampling its subwords.
            config: the recipe's section ``train``.
            model: on the world's device, with the same weights on all processes.
            split: the training pairs.
            world: this process among its peers.
        """
        self.run = run
        self.config = config
        self.model = model
        self.world = world
        self._autocast = partial(autocast, config.precision, world.device)
        self.sampler = sampler_of(config, split)
        in_epoch = sentences_of_epochs(config, split, run)
        self.loader = BatchLoader(
            split=split,
            sampler=self.sampler,
            # "auto" until a trial has run; a CPU has no trial.
            max_tokens=4096 if config.max_tokens == "auto" else config.max_tokens,
            rows_per_sentence=config.loss.rows_per_sentence,
            # Compiled, a model may need padding that it does not need by itself.
            packs=model.packs and (not config.compile or self._compiles_packs()),
            process=world.rank,
            num_processes=world.size,
            pinned=world.device.type == "cuda",
            weights=split.weights,
            in_epoch=in_epoch,
            growth=growth(in_epoch, split) if in_epoch else 1.0,
        )
        # Before the optimizer, which takes the trainable weights alone.
        freeze(model, config.freeze)
        checkpoint_activations(model, config.checkpoint_activations)
        drop_layers(model, config.layer_dropout)
        if config.quantization == "int8":
            round_linear_layers(model)
        if config.token_dropout:
            set_cutoff(model, config.token_dropout)
        self.fp8 = use_fp8(model, world.device) if config.precision == "fp8" else None
        self.criterion = config.loss.criterion(model, run, config.compile)
        if config.guided_alignment:
            self.criterion = GuidedCriterion(self.criterion, config.guided_alignment)
            self.loader = replace(self.loader, link=WordLinks(split, run.subwords))
        self.parallel = self._parallelism(model)
        self.scale = LossScale(is_fp16(config.precision, world), world.device)
        # After sharding: the optimizer's state is sharded as its weights are.
        self.optimizer = config.optimizer.build(model)
        # With an adaptation, checkpoints hold the weights of its parts alone.
        self.weights = adaptation_weights(model) or dict(model.named_parameters())
        self.average: WeightAverage | None = None
        if isinstance(self.optimizer, ScheduleFreeAdamW):
            self.average = ScheduleFreeAverage(self.weights, self.optimizer)
        elif config.ema_decay:
            self.average = MovingAverage(self.weights, config.ema_decay)
        self.state = TrainerState()
        choose_kernels(())
        self.running_stats = RunningStats()
        self.watch: FiniteWatch[Update] = FiniteWatch()

    def _parallelism(self, model: Model) -> Parallelism:
        """Return how processes train together; a single one may record its micro-batches."""
        config, world = self.config, self.world
        if not config.cuda_graphs:
            return parallelize(self.criterion, model.fsdp_modules(), config.sharding, world)
        with self._autocast():
            check_recordable(self.criterion, model, world)
        return RecordedProcess(self.criterion, trainable(model))

    def _compiles_packs(self) -> bool:
        """Return whether a compiled model computes no padding."""
        with self._autocast():
            return is_compilable(self.model, self.world.device)

    def restore(
        self, weights: dict[str, Tensor], optimizer: dict[str, Tensor], state: TrainerState
    ) -> None:
        """Resume from the content of a checkpoint.

        Args:
            weights: by name; the averaged weights if there is an average.
            optimizer: the optimizer's tensors by "WEIGHT/KEY".
            state: the counters.
        """
        shard = self.parallel.shard
        states: dict[str, dict[str, Tensor]] = defaultdict(dict)
        for path, value in optimizer.items():
            name, _, key = path.rpartition("/")
            states[name][key] = value
        if self.average:
            self.average.load(weights)
            # With an average, the checkpoint's weights are the average; the trained ones lie with
            # the optimizer's state.
            weights = {name: states[name].pop(TRAINED_WEIGHT) for name in weights}
        sharded = {name: shard(weight, self.weights[name]) for name, weight in weights.items()}
        # In place, because the optimizer and the average hold these tensors.
        copy_weights(sharded, self.weights)
        for name, weight in self.weights.items():
            if weight.requires_grad:
                self.optimizer.state[weight] = {
                    key: shard(value, weight) for key, value in states[name].items()
                }
        self.state = state
        self.scale.restore(self.state.loss_scale)
        if self.fp8 and state.fp8_history:
            self.fp8.restore(state.fp8_history[self.world.rank % len(state.fp8_history)])
        self._restore_micro_batches()
        # The same kernels as before, for the same bits.
        is_known = state.own_kernels_devices == self.world.device_kinds()
        choose_kernels(state.own_kernels if is_known else ())
        # One entry per process of the interrupted run; there may be more or fewer processes now.
        for sums in self.state.running_stats[self.world.rank :: self.world.size]:
            self.running_stats.restore(sums)

    def _restore_micro_batches(self) -> None:
        """Keep the `max_tokens` of a trial in the checkpoint, unless the trial is outdated."""
        state, config = self.state, self.config
        max_tokens, devices = state.max_tokens, state.max_tokens_devices
        activations = state.max_tokens_activations or config.checkpoint_activations
        wants_memory = activations, state.max_tokens_recorded
        # Forgotten, unless all conditions of the trial still hold.
        state.max_tokens, state.max_tokens_devices, state.max_tokens_activations = 0, [], ""
        state.max_tokens_recorded = False
        if config.max_tokens != "auto" or not max_tokens:
            return
        if wants_memory != (config.checkpoint_activations, config.cuda_graphs):
            return
        if self.world.device_kinds() == devices:
            self.set_max_tokens(max_tokens)

    @property
    def last_update(self) -> int:
        """Return the number of the last update, by `max_updates` and `max_epochs`."""
        epochs, updates = self.config.max_epochs, self.config.max_updates
        return min(updates, self.sampler.first_of(epochs + 1) - 1) if epochs else updates

    def set_max_tokens(self, max_tokens: int) -> None:
        """Cut updates into micro-batches of at most `max_tokens` tokens from now on."""
        self.loader = replace(self.loader, max_tokens=max_tokens)
        if self.config.max_tokens == "auto":
            self.state.max_tokens = max_tokens
            self.state.max_tokens_devices = self.world.device_kinds()
            self.state.max_tokens_activations = self.config.checkpoint_activations
            self.state.max_tokens_recorded = self.config.cuda_graphs

    @property
    def needs_trial(self) -> bool:
        """Return whether `max_tokens` is "auto" and no trial has found it for this training."""
        is_gpu = self.world.device.type == "cuda"
        # If one process alone ran out of memory, the other processes would wait for its shards.
        is_alone = self.config.sharding == "none"
        return (
            is_gpu and is_alone and self.config.max_tokens == "auto" and not self.state.max_tokens
        )

    @property
    def needs_kernel_trial(self) -> bool:
        """Return whether no trial on these devices has chosen among the optional kernels."""
        is_tried = self.state.own_kernels_devices == self.world.device_kinds()
        is_possible = self.world.device.type == "cuda" and self.config.sharding == "none"
        # torch.compile fuses these kernels itself.
        return not is_tried and is_possible and not self.config.compile and has_own_kernels()

    def set_own_kernels(self, names: list[str]) -> None:
        """Compute by these of the optional kernels, also in a resumed run on the same devices."""
        choose_kernels(names)
        self.state.own_kernels = names
        self.state.own_kernels_devices = self.world.device_kinds()

    def allocate(self) -> None:
        """Allocate the optimizer's state, so that a memory trial includes it; no weight changes."""
        for group in self.optimizer.param_groups:
            for weight in group["params"]:
                # Optimizers allocate their state in the first step.
                weight.grad = torch.zeros_like(weight)
        self.optimizer.found_inf = torch.ones((), device=self.world.device)  # type: ignore[attr-defined]
        self.optimizer.step()  # skips the step because of `found_inf`
        self.parallel.clear(self.optimizer)

    def try_batch(self, batch: Batch) -> None:
        """Run a batch forward and backward, and drop the gradients."""
        with self._differentiated(batch.to(self.world.device)):
            pass

    def gradients(self, batch: Batch) -> list[Tensor]:
        """Return the gradients of a batch, in order of the weights; the trainer drops them."""
        with self._differentiated(batch):
            every = (weight.grad for weight in self.weights.values())
            return [gradient.clone() for gradient in every if gradient is not None]

    @contextmanager
    def _differentiated(self, batch: Batch) -> Iterator[None]:
        """Run a batch forward and backward; drop the gradients at the end, also after an error."""
        try:
            with self._autocast():
                measured = self.criterion(batch)
            measured["loss"].backward()
            yield
        finally:
            self.parallel.clear(self.optimizer)

    def step(self, update: Update, rate: float) -> list[Update]:
        """Run one update, and return the updates now known to have failed.

        On a GPU the host learns of a failure one update later (:mod:`nmt.training.divergence`).
        """
        # Anew for each update, so no generator's state needs to be saved.
        self._seed(update)
        # Set here instead of by torch's schedulers, whose state a checkpoint would have to hold.
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        if self.fp8:
            self.fp8.begin()
        sums = self._accumulate(update)
        norm = self._scale_gradients()
        # Reports sum over processes, and all processes count the same updates.
        if self.world.is_main:
            sums |= {"updates": torch.ones_like(norm), "grad_norm": norm}
        is_finite = norm.isfinite()
        # Skips the step on the device; the host learns of it one update later.
        self.optimizer.found_inf = (~is_finite).float()  # type: ignore[attr-defined]
        self.optimizer.step()  # does nothing where `found_inf` is one
        self.parallel.clear(self.optimizer)
        if self.fp8:
            is_new = self.fp8.is_new
            self.fp8.end()
            # A CUDA graph that was recorded in the first update has the scales of that update.
            if is_new and isinstance(self.parallel, RecordedProcess):
                self.parallel.forget()
        if self.average:
            self.average.add(update.number, is_finite)
        self.running_stats.add(update, is_finite, **sums)
        self.state.update = update.number
        # Before the scale changes: the old one decides whether it explains the overflow.
        is_no_failure = is_finite | self.scale.is_overflow(is_finite)
        self.scale.update(is_finite)
        return self.watch.after(update, is_no_failure)

    def _scale_gradients(self) -> Tensor:
        """Undo the loss scale, clip the gradients, and return their norm before clipping."""
        gradients = [weight.grad for weight in self.weights.values() if weight.grad is not None]
        # Of sharded gradients the norm is a DTensor.
        norm = self.parallel.full_tensor(torch.nn.utils.get_total_norm(gradients))
        # The gradients are still multiplied by the scale; the norm of the log must not be.
        norm = norm / self.scale.value
        factor = 1 / self.scale.value
        if self.config.clip_norm:
            # Unscaling and clipping in one multiplication.
            factor = factor * (self.config.clip_norm / norm).clamp(max=1.0)
        # Otherwise the factor is 1, and a pass over all gradients would be for nothing.
        if self.config.clip_norm or self.scale.wanted:
            for gradient in gradients:
                gradient.mul_(factor)
        return norm

    def _seed(self, update: Update) -> None:
        """Set the seeds of an update: one per process for dropout, and one for sampling."""
        # With the rank: processes have different sentences, which need different dropout.
        torch.manual_seed(_mix(self.config.seed, update.number, self.world.rank))
        # Without the rank: a sentence has the same samples in whichever process it is.
        self.criterion.sampling_seed = _mix(self.config.seed, update.number)

    def _accumulate(self, update: Update) -> dict[str, Tensor]:
        """Accumulate an update's gradients, and return the sums of the criterion's outputs."""
        sums: dict[str, Tensor] = {}
        for batch in update.batches:
            with self.parallel.accumulating(is_last=batch is update.batches[-1]):
                # `parallel` averages gradients over processes; times `size`, that is their sum.
                # Divided by the tokens of the whole update, so micro-batches and processes change
                # only rounding.
                factor = self.world.size / update.target_tokens * self.scale.value
                measured = self.parallel.run(batch.to(self.world.device), factor, self._autocast)
            for name, value in measured.items():
                sums[name] = sums.get(name, 0.0) + value
        return sums

    def origin(self, update: Update) -> str:
        """Return the module, and the rank, whose output in an update was first not finite."""
        # The same dropout as before, or the failure may not show again.
        self._seed(update)
        nats = torch.zeros((), device=self.world.device)
        # As in validation: weights gathered for a pass without gradients are resharded afterwards.
        with self.parallel.evaluating(), FirstNonFinite(self.model) as first, torch.no_grad():
            for batch in update.batches:
                batch = self.parallel.prepared(batch.to(self.world.device))
                with self._autocast():
                    nats += self.criterion(batch)["loss"]
        # The loss applies the output layer itself, so no module outputs the logits.
        here = first.name or (None if nats.isfinite() else "the logits or the loss")
        origins = [(rank, origin) for rank, origin in enumerate(self.world.gather(here)) if origin]
        if not origins:
            return "in the backward pass"
        rank, origin = origins[0]
        return f"first in {origin}" + (f" on rank {rank}" if self.world.size > 1 else "")

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the weights and the optimizer's tensors for a checkpoint, and complete `state`.

        All processes must call this. Only the main process gets the tensors, in CPU memory.
        """
        self.state.running_stats = self.world.gather(self.running_stats.sums())
        self.state.loss_scale = self.scale.state() if self.scale.wanted else []
        self.state.fp8_history = self.world.gather(self.fp8.values()) if self.fp8 else []
        weights = self.average.values if self.average else self.stored_weights()
        return (
            gather_tensors(self.parallel, weights, self.world.is_main),
            gather_tensors(self.parallel, self._optimizer_state(), self.world.is_main),
        )

    @property
    def optimizer_bytes(self) -> int:
        """Return the bytes of the optimizer's tensors in a checkpoint, once they are allocated."""
        return sum(value.numel() * value.itemsize for value in self._optimizer_state().values())

    def stored_weights(self) -> dict[str, Tensor]:
        """Return the weights that checkpoints hold, as trained: an adaptation's weights, or all."""
        return {name: weight.detach() for name, weight in self.weights.items()}

    def _optimizer_state(self) -> dict[str, Tensor]:
        state = {
            # By name, not by position, so that a checkpoint survives a change of the order of
            # weights.
            f"{name}/{key}": value
            for name, weight in self.weights.items()
            for key, value in self.optimizer.state.get(weight, {}).items()
            if isinstance(value, Tensor)
        }
        if self.average:  # the checkpoint's model weights are the average
            weights = self.stored_weights()
            state.update({f"{name}/{TRAINED_WEIGHT}": weight for name, weight in weights.items()})
        return state

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Give the model the weights to validate within the context: unsharded and averaged."""
        averaged = self.average.in_place_of_the_weights() if self.average else nullcontext()
        with self.parallel.evaluating(), averaged:
            yield


def _mix(*numbers: int) -> int:
    """Return a 64-bit seed that depends on all numbers."""
    # SeedSequence hashes, so consecutive updates have unrelated seeds.
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


MEASURED = ("best", "best_loss", "patience_best", "patience_best_loss")
"""Results of validation, which may be negative, unlike all counters."""


@dataclass
class TrainerState:
    """Counters of training that continue across resumes."""

    update: int = 0
    seconds: float = 0.0
    """Seconds of training, without validation and saving."""
    seconds_since_report: float = 0.0
    """Those of `seconds` since the last report."""
    best: float | None = None
    best_loss: float | None = None
    """Loss of the best validation; breaks ties, lower is better."""
    best_update: int = 0
    patience_best: float | None = None
    patience_best_loss: float | None = None
    """Loss of the best regular validation. The final validation does not count: a resumed run must
    not differ from one that never stopped."""
    validations_since_best: int = 0
    """Regular validations since the best one."""
    plateaus: int = 0
    """Plateaus so far: the schedule lowers the learning rate at each."""
    skipped: int = 0
    """Updates whose gradient was not finite."""
    saved_seconds: float = 0.0
    """Seconds of training at the last checkpoint."""
    valid_seconds: float = 0.0
    """Seconds of training at the last validation."""
    running_stats: list[dict[str, float]] = field(default_factory=list)
    """Sums since the last report, of each process."""
    loss_scale: list[float] = field(default_factory=list)
    """In fp16, the loss scale, and the updates in a row without an overflow."""
    fp8_history: list[list[list[float]]] = field(default_factory=list)
    """In fp8, the largest values of each tensor in the last updates, of each process."""
    max_tokens: int = 0
    """Tokens of a micro-batch, with padding if there is any, that a trial found; 0 without one."""
    max_tokens_devices: list[str] = field(default_factory=list)
    """Kinds of devices on which the trial ran."""
    max_tokens_activations: str = ""
    """`checkpoint_activations` of the trial; "" in checkpoints of older versions."""
    max_tokens_recorded: bool = False
    """`cuda_graphs` of the trial."""
    own_kernels: list[str] = field(default_factory=list)
    """Optional kernels that a trial chose."""
    own_kernels_devices: list[str] = field(default_factory=list)
    """Kinds of devices on which that trial ran."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name not in MEASURED and isinstance(value, (int, float)) and value < 0:
                raise ValueError(f"{name} must be at least 0, not {value}")

    @property
    def is_at_best(self) -> bool:
        """Return whether the current update has the best validation so far."""
        return self.best_update == self.update

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> TrainerState:
        """Return the state that a checkpoint holds.

        Raises:
            NmtError: the stored state is invalid, or of another update.
        """
        place = f"{checkpoint.path}: trainer_state"
        values = {
            name: None if _is_nan(value) else value
            for name, value in checkpoint.trainer_state.items()
        }
        state = build(cls, values, place)
        # A directory that was renamed or mixed by hand.
        if state.update != checkpoint.update:
            raise NmtError(f"{place}.update: {state.update} instead of {checkpoint.update}")
        return state


def _is_nan(value: object) -> bool:
    """Return whether a value is NaN, the loss of a diverged validation; it counts as none."""
    return isinstance(value, float) and math.isnan(value)


# The first scale and the interval of torch's GradScaler.
FIRST, LEAST, INTERVAL = 2.0**16, 1.0, 2000


class LossScale:
    """The factor of the loss in fp16 (Micikevicius et al. 2018); 1 in other precisions.

    Gradients in fp16 underflow below 6e-8. If a gradient overflows, the update is skipped and the
    scale halved; after 2,000 updates without an overflow the scale is doubled.
    """

    def __init__(self, wanted: bool, device: torch.device) -> None:
        self.wanted = wanted
        self.value = torch.tensor(FIRST if wanted else 1.0, device=device)
        self.clean = torch.zeros((), device=device)
        """Updates in a row without an overflow."""

    def is_overflow(self, is_finite: Tensor) -> Tensor:
        """Return whether the scale explains a gradient that is not finite, so it is no failure."""
        return ~is_finite & (self.value > LEAST)

    def update(self, is_finite: Tensor) -> None:
        """Adapt the scale to the last gradient."""
        if not self.wanted:
            return
        self.clean = torch.where(is_finite, self.clean + 1, 0.0)
        is_due = self.clean >= INTERVAL
        factor = torch.where(is_finite, torch.where(is_due, 2.0, 1.0), 0.5)
        # torch.where on the device instead of an `if`, which would wait for the GPU.
        self.value = (self.value * factor).clamp(min=LEAST)
        self.clean = torch.where(is_due, 0.0, self.clean)

    def state(self) -> list[float]:
        """Return the scale and the updates without overflow, for a checkpoint."""
        return [float(self.value), float(self.clean)]

    def restore(self, state: list[float]) -> None:
        """Restore the state of a checkpoint."""
        # A checkpoint of another precision holds no scale.
        if len(state) == 2 and self.wanted:
            self.value, self.clean = (torch.full_like(self.value, number) for number in state)


def is_fp16(precision: Precision, world: World) -> bool:
    """Return whether all processes train in fp16.

    Raises:
        NmtError: only some of them do; gradients of scaled and unscaled losses cannot be added.
    """
    chosen = sorted({*world.gather(pick_precision(precision, world.device))})
    if len(chosen) > 1 and "fp16" in chosen:
        raise NmtError(
            f"train.precision: auto chooses {' and '.join(chosen)} on different devices; "
            "set train.precision to fp16 or fp32"
        )
    return chosen == ["fp16"]


def sampler_of(config: TrainConfig, split: Split) -> BatchSampler:
    """Return the sampler of the training pairs.

    Raises:
        NmtError: the dataset lacks the directions or corpora that the recipe chooses among.
    """
    if config.loss.translates and split.weights is not None:
        raise NmtError(
            f"train.loss: {config.loss.name} samples translations, and the dataset has weights of "
            "pairs, which are for losses of tokens; take another loss or dataset"
        )
    known = split.source_lengths, split.target_lengths, config.tokens_per_update, config.seed
    if config.stages:
        if not split.corpora:
            raise NmtError(
                "train.stages: the corpora of the dataset have no names; give the entries of "
                "preprocess.train a name, and make it again"
            )
        return StageSampler(*known, split.corpora, config.stages)
    if config.direction_temperature == 1:
        return samplers[config.batching](*known)
    if split.directions is None:
        raise NmtError("train.direction_temperature: the dataset has one direction; leave it out")
    return DirectionSampler(*known, split.directions, config.direction_temperature)
