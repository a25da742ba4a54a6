"""The recipe's section ``train``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from nmt.evaluation.metrics import Metric, metrics
from nmt.runtime.precision import Precision
from nmt.training.losses import Loss, losses
from nmt.training.optimizers import OptimizerConfig, optimizers
from nmt.training.parallel import Sharding
from nmt.training.schedules import Schedule, schedules


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

    def sort_key(self, value: float | None, loss: float | None) -> tuple[float, float]:
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
