"""The recipe's section ``train``.

All settings of a training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from nmt.data.stages import Stage, check_stages
from nmt.evaluation.metrics import Metric, metrics
from nmt.models import ModelConfig
from nmt.recipe.config import MayChange, dump
from nmt.runtime.precision import Precision
from nmt.search.config import SearchConfig
from nmt.training.augmentation import Augmentation
from nmt.training.losses.token import Loss, losses
from nmt.training.model_options import CheckpointedPart
from nmt.training.optim.optimizers import OptimizerConfig, optimizers
from nmt.training.optim.schedules import Schedule, schedules
from nmt.training.parallel.processes import Sharding

LONGEST_TIMEOUT = 525_600
"""Most minutes that a process waits for other processes; PyTorch counts nanoseconds."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The recipe's section ``train``; the defaults train the paper's base model."""

    data: MayChange[str] = "data-bin"
    """Dataset directory, made by ``nmt preprocess``; by default the recipe's
    `preprocess.output_dir`, if it is given."""
    save_dir: MayChange[str] = "checkpoints"
    """Run directory; an existing run is resumed."""
    tokens_per_update: int = 25000
    """Average target tokens of one optimizer update, without padding, over all processes. The
    sentences of an update depend on this and the seed, not on the machine."""
    batching: Literal["random", "bucketed"] = "random"
    """Sentences of an update: random sentences of the corpus, or sentences bucketed by length.
    Random updates resemble each other. Buckets need less padding, as in other toolkits, but a small
    update then holds sentences of a single length, and a model learns less from it."""
    direction_temperature: float = 1.0
    """Temperature T by which the directions of a multilingual dataset are sampled. An epoch has as
    many pairs as the dataset. A direction with D pairs gets a share in proportion to D^(1/T)
    (Arivazhagan et al. 2019 take 5). 1 for all pairs as they are."""
    stages: tuple[Stage, ...] = ()
    """Stages of training, as in OpusTrainer: ``[{until: 20000, mix: {clean: 0.7, back: 0.3}}, {mix:
    {clean: 1}}]``. Until update `until`, the pairs of the corpora with these names in
    `preprocess.train` are drawn in these shares. The last stage lasts until training ends. Empty
    for all pairs as they are."""
    max_tokens: MayChange[Literal["auto"] | int] = "auto"
    """Size of a micro-batch in tokens of one side, or auto: the largest size that fits the GPUs.
    It bounds the memory of a device; a larger size keeps a GPU busier. A longer pair is a
    micro-batch by itself. All passes or samples of the loss count, and so does padding, if the
    model needs any. "auto" tries sizes before the first update, and again if the run is resumed on
    other GPUs or with another `checkpoint_activations`. On a CPU, and with `sharding`, it is
    4096."""
    max_updates: MayChange[int] = 100_000
    """Optimizer updates after which training ends. A resumed run may raise it, unless the schedule
    depends on it, as linear and cosine do."""
    max_epochs: MayChange[int | None] = None
    """Epochs after which training ends, if `max_updates` is not reached before. A resumed run may
    raise it under the same condition as `max_updates`."""
    init_from: MayChange[str | None] = None
    """Run or checkpoint whose weights a new run starts from; the counters start at 0, and `model`
    and `search` have its values where the recipe has none. The vocabulary must be the same, or have
    new pieces after the old pieces: preprocess with `subword_model` or `extend_vocabulary` set to
    that run. A resumed run may leave it out."""
    freeze: tuple[str, ...] = ()
    """Weights that are not trained: shell patterns of their names in `model.safetensors`, such as
    "encoder.*". Put a pattern that begins with `*` in quotes."""
    max_minutes: MayChange[float | None] = None
    """Minutes of training, over all resumes, after which training ends."""
    token_dropout: float = 0.0
    """Probability with which the embedding of a token, of the source or of the target so far, is
    zero in training: word dropout (Sennrich and Zhang 2019)."""
    layer_dropout: float = 0.0
    """Probability with which a Transformer's layer is left out of a micro-batch in training:
    LayerDrop (Fan et al. 2020), stochastic depth (Huang et al. 2016)."""
    subword_sampling: float | None = None
    """Subword regularisation: segments the training text differently in each epoch; 0.1 is usual.
    For BPE, the share of merges that are left out (BPE-dropout). For unigram models, the exponent
    of the probabilities; a smaller one gives more variety. `tokens_per_update` and the divisor of
    the loss count the tokens of the stored, shorter segmentation. null for none."""
    augmentation: tuple[Augmentation, ...] = ()
    """Random changes to training pairs, drawn anew in each epoch and applied in order: ``[{name:
    upper_case, share: 0.05}, typos]``. `tokens_per_update` and the divisor of the loss count the
    stored tokens. Empty for none."""
    quantization: Literal["none", "int8"] = "none"
    """Quantisation-aware training (Jacob et al. 2018). int8 rounds weights and inputs of linear
    layers, except the output layer, to 8 bits. Use it for a few hundred updates from `init_from`,
    with a small learning rate."""
    guided_alignment: float = 0.0
    """Weight of guided alignment (Chen et al. 2016): adds to the loss the cross-entropy between the
    dataset's word alignments and the attention of `model.alignment_layer`, or of its head
    `model.alignment_head`. Garg et al. (2019) take one head and 0.05. 0 for none."""
    optimizer: OptimizerConfig = optimizers["adam"]
    """Optimizer."""
    schedule: Schedule = schedules["inverse_sqrt"]
    """Learning-rate schedule."""
    loss: Loss = losses["label_smoothed_cross_entropy"]
    """Loss to minimise."""
    clip_norm: float = 0.0
    """Greatest norm of the gradient; a larger gradient is scaled down. 0 for no clipping, as in the
    paper."""
    ema_decay: float = 0.0
    """Decay per update of an exponential moving average of the weights, such as 0.9999.
    Validation, checkpoints and therefore translations then use the average. 0 for none."""
    max_skipped: MayChange[int] = 10
    """Largest number of updates skipped because their gradient is not finite; one more ends
    training."""
    seed: int = 1
    """Random seed of initialisation, data order, dropout and samples."""
    precision: Precision = "auto"
    """Precision of matrix products: fp32, bf16, fp16 (with loss scaling), fp8, or auto, the fastest
    of the first three on the hardware. fp8 is bf16 with fp8 in feed-forward layers and logits, for
    GPUs from compute capability 8.9. Weights and the optimizer's state are always float32."""
    compile: bool = False
    """Compile the model (torch.compile), layer by layer where it has layers. Takes a minute or more
    at the start; training is then faster on a GPU, but slower on a CPU."""
    cuda_graphs: MayChange[bool] = False
    """Launch each micro-batch as a whole, as a CUDA graph. This saves time of the host, on a fast
    GPU for all but large models. Works for one process, Transformers with plain attention, and
    losses of one pass. Micro-batches get some padding, and the graphs keep about as much memory as
    the largest micro-batch takes."""
    sharding: MayChange[Sharding] = "none"
    """Sharding of weights, gradients and optimizer state over the processes: none (DDP) or full
    (FSDP2, ZeRO-3). "full" is for models whose training does not fit one GPU; the weights alone
    must fit, for validation."""
    checkpoint_activations: MayChange[CheckpointedPart] = "none"
    """Activations that the backward pass computes again instead of keeping them: none, all layers,
    or attention alone. Results stay the same. Training needs less memory, so a larger `max_tokens`
    fits. An update takes more time: about a fifth more on a CPU for all layers."""
    device: MayChange[str] = "auto"
    """Device: cpu, cuda, cuda:N, or auto, a GPU if there is one."""
    valid_every: MayChange[int] = 1000
    """Updates between validations."""
    valid_minutes: MayChange[float | None] = None
    """Minutes of training between validations, in addition to the validations of `valid_every`."""
    valid_metrics: tuple[Metric, ...] = (metrics["bleu"],)
    """Metrics of translations of the validation set; may be empty."""
    best_metric: str = "bleu"
    """Score that decides the best checkpoint: loss, perplexity, or one of `valid_metrics`."""
    patience: MayChange[int | None] = None
    """Training ends after this many validations in a row without a new best score."""
    save_every: MayChange[int] = 1000
    """Updates between checkpoints."""
    save_minutes: MayChange[float | None] = None
    """Minutes of training between checkpoints, in addition to the checkpoints of `save_every`."""
    keep_last: MayChange[int] = 5
    """Number of newest checkpoints to keep; the best one is always kept."""
    log_every: MayChange[int] = 100
    """Updates between reports."""
    tensorboard: MayChange[bool] = False
    """Whether to write reports to TensorBoard, too; needs the extra
    ``nmt-toolkit[tensorboard]``."""
    wandb: MayChange[bool] = False
    """Whether to send reports and the recipe to Weights & Biases, too; needs the extra
    ``nmt-toolkit[wandb]``. Set the destination by its environment variables, such as
    ``WANDB_PROJECT``."""
    timeout_minutes: MayChange[float] = 10.0
    """Minutes that a process waits for other processes. After that, training ends and names the
    ranks of the late processes. Must be longer than the work of the first process alone: writing a
    checkpoint, and the metrics of a validation, which take long for COMET on a CPU."""

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
        for name in ("clip_norm", "seed", "max_skipped", "guided_alignment"):
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
        # Otherwise PyTorch's count of nanoseconds overflows.
        if self.timeout_minutes > LONGEST_TIMEOUT:
            raise ValueError(
                f"timeout_minutes must be at most {LONGEST_TIMEOUT:,}, a year, "
                f"is {self.timeout_minutes}"
            )
        if self.subword_sampling is not None and not 0.0 < self.subword_sampling <= 1.0:
            raise ValueError(
                f"subword_sampling lies in (0, 1], not {self.subword_sampling}; leave it out for "
                "none"
            )
        if not 0 < self.direction_temperature < math.inf:
            raise ValueError(
                f"direction_temperature must be more than 0, is {self.direction_temperature}"
            )
        for name in ("ema_decay", "token_dropout", "layer_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name} lies in [0, 1), not {getattr(self, name)}")
        names = [metric.name for metric in self.valid_metrics]
        if len(set(names)) < len(names):
            raise ValueError(f"valid_metrics names a metric twice: {', '.join(names)}")
        self.schedule.peak(d_model=1)  # refuses a schedule that lacks its learning rate
        choices = ["loss", "perplexity", *(metric.name for metric in self.valid_metrics)]
        if self.best_metric not in choices:
            raise ValueError(f"best_metric {self.best_metric!r} is not among {', '.join(choices)}")
        self._check_parts()

    def _check_parts(self) -> None:
        """Raise a ValueError if settings do not fit together."""
        if self.direction_temperature != 1 and self.batching != "random":
            raise ValueError("direction_temperature draws sentences anew; take batching random")
        if self.stages and (self.direction_temperature != 1 or self.batching != "random"):
            raise ValueError(
                "stages decide which pairs are drawn; set batching to random, and leave out "
                "direction_temperature: stages balance directions that have names in "
                "preprocess.train"
            )
        check_stages(self.stages, self.max_updates)
        if self.ema_decay and self.optimizer.averages_weights:
            raise ValueError(f"{self.optimizer.name} averages the weights itself; take ema_decay 0")
        if self.ema_decay and self.sharding == "full":
            raise ValueError("ema_decay needs all weights in every process; take sharding none")
        if self.sharding == "full" and not self.optimizer.can_be_sharded:
            raise ValueError(f"{self.optimizer.name} cannot be split; take adam, or sharding none")
        # All processes must gather a layer's weights at the same time.
        if self.sharding == "full" and self.layer_dropout:
            raise ValueError("sharding needs every layer; take layer_dropout 0, or sharding none")
        for name in ("checkpoint_activations", "layer_dropout"):
            if self.compile and getattr(self, name) not in ("none", 0.0):
                raise ValueError(f"{name} is for models that are not compiled; take compile false")
        # A recording launches the same kernels in each replay.
        for name in ("checkpoint_activations", "layer_dropout", "guided_alignment"):
            if self.cuda_graphs and getattr(self, name) not in ("none", 0.0):
                raise ValueError(f"{name} does not work with cuda_graphs; take cuda_graphs false")
        if self.guided_alignment and (self.compile or self.loss.translates):
            raise ValueError(
                "guided_alignment is for models that are not compiled and for losses of the "
                "reference's tokens; take compile false and another loss"
            )
        if self.precision == "fp8" and (self.quantization != "none" or self.sharding == "full"):
            raise ValueError(
                "precision fp8 rounds whole weights itself; take quantization none and sharding "
                "none, or precision bf16"
            )
        if self.loss.translates and self.init_from is None:
            raise ValueError(
                f"loss {self.loss.name} needs a trained model; give its run as init_from"
            )
        # Samples of processes differ in length, so their steps could not gather weights together.
        if self.loss.translates and self.sharding == "full":
            raise ValueError(f"loss {self.loss.name} needs all weights; take sharding none")

    def sort_key(self, value: float | None, loss: float | None) -> tuple[float, float]:
        """Return the sort key of a validation; a greater key is better.

        Args:
            value: score by `best_metric`; None and NaN are worse than all numbers.
            loss: breaks ties; lower is better.
        """
        # NaN compares false with everything, and would stay the best score for ever.
        if value is None or math.isnan(value):
            return (-math.inf, -math.inf)
        ascending = any(
            metric.name == self.best_metric and metric.higher_is_better
            for metric in self.valid_metrics
        )
        return (value if ascending else -value, -math.inf if loss is None else -loss)


@dataclass(frozen=True)
class Experiment:
    """A model, how to train it, and how to validate it."""

    model: ModelConfig
    train: TrainConfig
    search: SearchConfig
    plugins: tuple[str, ...] = ()
    """Modules that registered names used in the sections."""

    def for_language(self, target_lang: str, is_only: bool = True) -> Experiment:
        """Return the experiment with loss and metrics set for a target language.

        Metrics are set later, by direction, if the language is not the only one.
        """
        metrics = self.train.valid_metrics
        if is_only:
            # Chinese and Japanese need a tokenizer of their own; with several directions each
            # chooses.
            metrics = tuple(metric.for_language(target_lang) for metric in metrics)
        loss = self.train.loss.for_language(target_lang)
        config = replace(self.train, valid_metrics=metrics, loss=loss)
        return replace(self, model=self.model.resolved(), train=config)

    def recipe(self) -> dict[str, Any]:
        """The resolved values, as a recipe file holds them."""
        return {
            "plugins": list(self.plugins),
            "model": dump(self.model),
            "train": dump(self.train),
            "search": dump(self.search),
        }
