"""The trainer, which runs one update after another.

:meth:`Trainer.step` runs an update of some 25,000 target tokens:

1. Set the learning rate, and the random seed from the update's number.
2. Run each micro-batch, cut to fit the device, forward and backward; gradients accumulate.
3. Undo the loss scale, and clip the gradient norm.
4. Let the optimizer step, unless the gradient is not finite; the average of the weights follows.

The random numbers of an update depend on the seed, the update and the process alone. A run that is
interrupted and resumed therefore computes the same updates as one that never stopped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from nmt.data.batches import Batch
from nmt.data.dataset import Split
from nmt.data.loader import BatchLoader, Update
from nmt.models import Model
from nmt.models.adaptation import adaptation_weights
from nmt.models.embedding import set_cutoff
from nmt.models.packed_attention import is_compilable
from nmt.runs import Run
from nmt.runs.weights import copy_weights
from nmt.runtime.distributed import World
from nmt.runtime.precision import autocast
from nmt.training.activation_checkpointing import checkpoint_activations
from nmt.training.augmented_split import growth, sentences_of_epochs
from nmt.training.config import TrainConfig
from nmt.training.cuda_graphs import RecordedProcess, check_recordable
from nmt.training.divergence import FiniteWatch, FirstNonFinite
from nmt.training.freezing import freeze
from nmt.training.guided_alignment import GuidedCriterion, WordLinks
from nmt.training.layer_dropout import drop_layers
from nmt.training.loss_scale import LossScale, is_fp16
from nmt.training.moving_average import MovingAverage, WeightAverage
from nmt.training.optimizers import trainable
from nmt.training.parallel import Parallelism, gather_tensors, parallelize
from nmt.training.quantization import round_linear_layers
from nmt.training.report import RunningStats
from nmt.training.sampling import sampler_of
from nmt.training.schedule_free import ScheduleFreeAdamW, ScheduleFreeAverage
from nmt.training.state import TrainerState

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
            max_tokens=4096 if config.max_tokens == "auto" else config.max_tokens,
            rows_per_sentence=config.loss.rows_per_sentence,
            packs=model.packs and (not config.compile or self._compiles_packs()),
            process=world.rank,
            num_processes=world.size,
            pinned=world.device.type == "cuda",
            weights=split.weights,
            in_epoch=in_epoch,
            growth=growth(in_epoch, split) if in_epoch else 1.0,
        )
        freeze(model, config.freeze)
        checkpoint_activations(model, config.checkpoint_activations)
        drop_layers(model, config.layer_dropout)
        if config.quantization == "int8":
            round_linear_layers(model)
        if config.token_dropout:
            set_cutoff(model, config.token_dropout)
        self.criterion = config.loss.criterion(model, run, config.compile)
        if config.guided_alignment:
            self.criterion = GuidedCriterion(self.criterion, config.guided_alignment)
            self.loader = replace(self.loader, link=WordLinks(split, run.subwords))
        self.parallel = self._parallelism(model)
        self.scale = LossScale(is_fp16(config.precision, world), world.device)
        self.optimizer = config.optimizer.build(model)
        self.weights = adaptation_weights(model) or dict(model.named_parameters())
        self.average: WeightAverage | None = None
        if isinstance(self.optimizer, ScheduleFreeAdamW):
            self.average = ScheduleFreeAverage(self.weights, self.optimizer)
        elif config.ema_decay:
            self.average = MovingAverage(self.weights, config.ema_decay)
        self.state = TrainerState()
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
            weights = {name: states[name].pop(TRAINED_WEIGHT) for name in weights}
        sharded = {name: shard(weight, self.weights[name]) for name, weight in weights.items()}
        copy_weights(sharded, self.weights)
        for name, weight in self.weights.items():
            if weight.requires_grad:
                self.optimizer.state[weight] = {
                    key: shard(value, weight) for key, value in states[name].items()
                }
        self.state = state
        self.scale.restore(self.state.loss_scale)
        self._restore_micro_batches()
        # One entry per process of the interrupted run; there may be more or fewer processes now.
        for sums in self.state.running_stats[self.world.rank :: self.world.size]:
            self.running_stats.restore(sums)

    def _restore_micro_batches(self) -> None:
        """Keep the `max_tokens` of a trial in the checkpoint, unless the trial is outdated."""
        state, config = self.state, self.config
        max_tokens, devices = state.max_tokens, state.max_tokens_devices
        activations = state.max_tokens_activations or config.checkpoint_activations
        wants_memory = activations, state.max_tokens_recorded
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
        # A process that ran out of memory alone would keep the others waiting for its shards.
        is_alone = self.config.sharding == "none"
        return (
            is_gpu and is_alone and self.config.max_tokens == "auto" and not self.state.max_tokens
        )

    def allocate(self) -> None:
        """Allocate the optimizer's state, so that a memory trial includes it; no weight changes."""
        for group in self.optimizer.param_groups:
            for weight in group["params"]:
                weight.grad = torch.zeros_like(weight)
        self.optimizer.found_inf = torch.ones((), device=self.world.device)  # type: ignore[attr-defined]
        self.optimizer.step()  # skips the step because of `found_inf`
        self.parallel.clear(self.optimizer)

    def try_batch(self, batch: Batch) -> None:
        """Run a batch forward and backward, and drop the gradients."""
        with self._autocast():
            measured = self.criterion(batch.to(self.world.device))
        measured["loss"].backward()
        self.parallel.clear(self.optimizer)

    def step(self, update: Update, rate: float) -> list[Update]:
        """Run one update, and return the updates now known to have failed.

        On a GPU the host learns of a failure one update later (:mod:`nmt.training.divergence`).
        """
        self._seed(update)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        sums = self._accumulate(update)
        norm = self._scale_gradients()
        if self.world.is_main:
            sums |= {"updates": torch.ones_like(norm), "grad_norm": norm}
        is_finite = norm.isfinite()
        self.optimizer.found_inf = (~is_finite).float()  # type: ignore[attr-defined]
        self.optimizer.step()  # does nothing where `found_inf` is one
        self.parallel.clear(self.optimizer)
        if self.average:
            self.average.add(update.number, is_finite)
        self.running_stats.add(update, is_finite, **sums)
        self.state.update = update.number
        is_no_failure = is_finite | self.scale.is_overflow(is_finite)
        self.scale.update(is_finite)
        return self.watch.after(update, is_no_failure)

    def _scale_gradients(self) -> Tensor:
        """Undo the loss scale, clip the gradients, and return their norm before clipping."""
        gradients = [weight.grad for weight in self.weights.values() if weight.grad is not None]
        norm = self.parallel.full_tensor(torch.nn.utils.get_total_norm(gradients))
        norm = norm / self.scale.value
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
        self.criterion.sampling_seed = _mix(self.config.seed, update.number)

    def _accumulate(self, update: Update) -> dict[str, Tensor]:
        """Accumulate an update's gradients, and return the sums of the criterion's outputs."""
        sums: dict[str, Tensor] = {}
        for batch in update.batches:
            with self.parallel.accumulating(is_last=batch is update.batches[-1]):
                # `parallel` averages gradients over processes; times `size`, that is their sum.
                factor = self.world.size / update.target_tokens * self.scale.value
                measured = self.parallel.run(batch.to(self.world.device), factor, self._autocast)
            for name, value in measured.items():
                sums[name] = sums.get(name, 0.0) + value
        return sums

    def origin(self, update: Update) -> str:
        """Return the module, and the rank, whose output in an update was first not finite."""
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
        """Return the weights that checkpoints hold, as trained: those of an adaptation, or all."""
        return {name: weight.detach() for name, weight in self.weights.items()}

    def _optimizer_state(self) -> dict[str, Tensor]:
        state = {
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
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])
