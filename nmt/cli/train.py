"""The command ``nmt train``."""

from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING, Annotated

import typer

from nmt.cli.plugins import PluginFlag, TrustFlag
from nmt.cli.recipe import ConfigFlag, SetFlag, load
from nmt.errors import NmtError
from nmt.messages import say, warn

if TYPE_CHECKING:
    from nmt.runs import Run

EXAMPLE = """Example:

  nmt train --arch transformer_tiny --tokens-per-update 4096 --max-updates 2 --save-every 1

Run the same command again to go on after an interruption. On several GPUs, with the same result:
torchrun --nproc-per-node 8 -m nmt train. SIGTERM and SIGINT save a checkpoint and exit with 128
plus the number of the signal; so does SIGUSR1, which torchrun does not hand on."""


def train(
    data: Annotated[Path | None, typer.Option(help="Dataset directory [data-bin].")] = None,
    arch: Annotated[str | None, typer.Option(help="Named architecture.")] = None,
    save_dir: Annotated[Path | None, typer.Option(help="Run directory [checkpoints].")] = None,
    tokens_per_update: Annotated[
        int | None,
        typer.Option(help="Target tokens per optimizer update, over all processes [25000]."),
    ] = None,
    max_tokens: Annotated[
        str | None,
        typer.Option(
            help="Positions of a micro-batch, with padding; bounds memory. auto: all that fits a "
            "GPU [4096]."
        ),
    ] = None,
    max_updates: Annotated[int | None, typer.Option(help="Updates to train [100000].")] = None,
    max_epochs: Annotated[
        int | None, typer.Option(help="Epochs to train, if that is less [any].")
    ] = None,
    init_from: Annotated[
        Path | None, typer.Option(help="Run or checkpoint whose weights to begin with.")
    ] = None,
    max_minutes: Annotated[float | None, typer.Option(help="Minutes to train.")] = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate [paper's].")] = None,
    warmup_updates: Annotated[
        int | None, typer.Option(help="Updates of linear warm-up [4000].")
    ] = None,
    dropout: Annotated[float | None, typer.Option(help="P_drop [the architecture's].")] = None,
    label_smoothing: Annotated[float | None, typer.Option(help="epsilon_ls [0.1].")] = None,
    subword_sampling: Annotated[
        float | None,
        typer.Option(help="Cut words in other ways in each epoch: 0.1 is BPE-dropout [none]."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights, order and dropout [1].")] = None,
    precision: Annotated[
        str | None, typer.Option(help="auto, fp32, bf16 or fp16 [auto: what is fast].")
    ] = None,
    compile: Annotated[
        bool | None,
        typer.Option(
            "--compile",
            help="Compile the model: a slow start, then faster on a GPU; slower on a CPU.",
        ),
    ] = None,
    sharding: Annotated[
        str | None, typer.Option(help="full: weights are split over the processes [none].")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N [auto].")] = None,
    valid_every: Annotated[
        int | None, typer.Option(help="Updates between validations [1000].")
    ] = None,
    save_every: Annotated[
        int | None, typer.Option(help="Updates between checkpoints [1000].")
    ] = None,
    keep_last: Annotated[
        int | None, typer.Option(help="Newest checkpoints that are kept, beside the best [5].")
    ] = None,
    patience: Annotated[
        int | None, typer.Option(help="Validations without a new best before stopping.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Try everything once, say what it takes, and stop.")
    ] = False,
    plot: Annotated[
        bool, typer.Option("--plot", help="Draw the log as curves.svg in the run directory.")
    ] = False,
    config: ConfigFlag = None,
    set_: SetFlag = None,
    plugin: PluginFlag = None,
    trust_plugins: TrustFlag = False,
) -> None:
    """Train a model on a dataset, or go on training it.

    Run the same command again to resume an interrupted run. Before the first update a preflight
    check tries everything that could fail later, and prints the parameters, the tokens of an update
    and their division into processes and micro-batches, memory, disk space, and estimated time.

    Every hundred updates (train.log_every) a line shows the time of day; the epoch; the update; the
    loss per target token, in nats; ppl, the perplexity per target token from the likelihood without
    smoothing; the learning rate; grad norm, before clipping, the mean over these updates; target
    tokens per second of all processes; padding, the share of positions without a token; the peak
    memory in megabytes; and the remaining time. log.jsonl in the run directory holds the same.

    Ends with status 0. After SIGINT, SIGTERM or SIGUSR1 it finishes the update, saves a checkpoint,
    and ends with status 128 + the number of the signal.
    """
    from nmt.inference.config import SearchConfig
    from nmt.models import ModelConfig
    from nmt.recipe.config import build
    from nmt.runtime.distributed import join
    from nmt.runtime.memory import keep_few_kernels
    from nmt.training.config import TrainConfig
    from nmt.training.plot import plot as draw
    from nmt.training.run import Experiment
    from nmt.training.run import train as run_training

    recipe = load(
        config,
        set_,
        {
            "model.arch": arch,
            "model.dropout": dropout,
            "train.data": _text(data),
            "train.save_dir": _text(save_dir),
            "train.tokens_per_update": tokens_per_update,
            "train.max_tokens": max_tokens,
            "train.max_updates": max_updates,
            "train.max_epochs": max_epochs,
            "train.init_from": _text(init_from),
            "train.max_minutes": max_minutes,
            "train.schedule.lr": lr,
            "train.schedule.warmup_updates": warmup_updates,
            "train.loss.smoothing": label_smoothing,
            "train.subword_sampling": subword_sampling,
            "train.seed": seed,
            "train.precision": precision,
            "train.compile": compile,
            "train.sharding": sharding,
            "train.device": device,
            "train.valid_every": valid_every,
            "train.save_every": save_every,
            "train.keep_last": keep_last,
            "train.patience": patience,
        },
        base={"model": {"arch": "transformer_base"}},
        plugins=plugin,
        trust_plugins=trust_plugins,
    )
    experiment = Experiment(
        model=build(ModelConfig, recipe.section("model"), "model"),  # type: ignore[type-abstract]
        train=build(TrainConfig, recipe.section("train"), "train"),
        search=build(SearchConfig, recipe.section("search"), "search"),
        plugins=recipe.plugins,
    )
    keep_few_kernels()
    with join(experiment.train.device, experiment.train.timeout_minutes) as world:
        run, reason = run_training(experiment, world, dry_run, trust_plugins)
    signal = _signal(reason)
    if world.is_main:
        say(f"training ended: {_in_words(reason, signal, run)}")
        print(run.path)
        if plot:
            try:
                draw(run.path / "log.jsonl", run.path / "curves.svg")
            except NmtError as error:  # the run itself is complete
                warn(str(error))
    if signal is not None:
        raise typer.Exit(128 + signal)


def _signal(reason: str) -> Signals | None:
    """Return the signal that ended training, if one did."""
    return Signals(int(reason.split()[1])) if reason.startswith("signal") else None


def _in_words(reason: str, signal: Signals | None, run: "Run") -> str:
    """Return the reason why training ended; after a signal, with the last saved update."""
    if signal is None or (last := run.checkpoint("last")) is None:
        return reason
    return (
        f"interrupted by {signal.name}; all is saved after update {last.update}, "
        "and the same command goes on from there"
    )


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
