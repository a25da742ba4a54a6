"""The command ``nmt train``."""

import os
from contextlib import nullcontext
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nmt.cli.interruption import terminable
from nmt.cli.options import RecipeSettings, recipe_flags
from nmt.cli.recipe import DEFAULT_ARCH, RECIPE
from nmt.errors import NmtError
from nmt.messages import redirect_to_null, say, warn

if TYPE_CHECKING:
    from nmt.runs import Run
    from nmt.training.config import Experiment

EXAMPLE = """Example:

  nmt train --arch transformer_tiny --tokens-per-update 4096 --max-updates 2 --save-every 1

Run the same command again to resume after an interruption. On several GPUs, with the same result:
torchrun --nproc-per-node 8 -m nmt train. SIGTERM, SIGINT and SIGHUP save a checkpoint and exit with
128 plus the number of the signal; so does SIGUSR1, which torchrun does not pass on."""


OUTPUT = "Input and output"
DEFAULT_MODEL = {"arch": DEFAULT_ARCH}

FLAGS = {
    OUTPUT: {
        "--data DIR": "train.data",
        "--save-dir DIR": "train.save_dir",
        "--init-from PATH": "train.init_from",
    },
    "Model": {
        "--arch": "model.arch",
        "--dropout": "model.dropout",
    },
    "Optimization": {
        "--lr": "train.schedule.lr",
        "--warmup-updates": "train.schedule.warmup_updates",
        "--label-smoothing": "train.loss.smoothing",
        "--tokens-per-update": "train.tokens_per_update",
        "--subword-sampling": "train.subword_sampling",
        "--seed": "train.seed",
    },
    "End of training": {
        "--max-updates": "train.max_updates",
        "--max-epochs": "train.max_epochs",
        "--max-minutes": "train.max_minutes",
        "--patience": "train.patience",
    },
    "Validation and checkpoints": {
        "--valid-every": "train.valid_every",
        "--save-every": "train.save_every",
        "--keep-last": "train.keep_last",
    },
    "Speed and memory": {
        "--device": "train.device",
        "--precision": "train.precision",
        "--max-tokens TOKENS": "train.max_tokens",
        "--sharding": "train.sharding",
        "--compile": "train.compile",
    },
}

DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Run the preflight check, print the estimated memory, disk space and time, and stop. "
        "A new run is removed.",
        rich_help_panel=OUTPUT,
    ),
]


@recipe_flags(FLAGS)
def train(*, settings: RecipeSettings, dry_run: DryRun = False) -> None:
    """Train a model on a dataset, or resume a run.

    Run the same command again to resume an interrupted run. Before the first update a preflight
    check tries everything that could fail later, and prints the estimated memory, disk space and
    time. docs/outputs.md describes the lines that are printed, and the exit status after a signal.
    """
    from nmt.runtime.distributed import join
    from nmt.runtime.machine import keep_few_kernels
    from nmt.training.run import train as run_training

    experiment = _experiment(settings)
    keep_few_kernels()
    with (
        # Rank 0 removes a new run at SIGTERM. A launcher sends that to its peers, too, when one
        # process has failed; they do not report it as an interruption.
        terminable() if os.environ.get("RANK", "0") == "0" else nullcontext(),
        join(experiment.train.device, experiment.train.timeout_minutes) as world,
    ):
        run, reason = run_training(experiment, world, dry_run, settings.trust_plugins)
    signal = _signal(reason)
    if world.is_main:
        say(f"training ended: {_in_words(reason, signal, run)}")
        if run.exists(run.path):  # else it was a dry run
            try:
                print(run.path, flush=True)
            except BrokenPipeError:
                if signal is None:
                    raise
                redirect_to_null(1)  # Ctrl-C has ended the reader, too
    if signal is not None:
        raise typer.Exit(128 + signal)


def _experiment(settings: RecipeSettings) -> "Experiment":
    """Return all settings of a training."""
    from nmt.models import ModelConfig
    from nmt.recipe.config import build
    from nmt.runs import Run
    from nmt.search.config import SearchConfig
    from nmt.training.config import Experiment, TrainConfig

    recipe = settings.load({"model": DEFAULT_MODEL})
    train = recipe.section("train")
    path = Path(str(train.get("save_dir", TrainConfig.save_dir)))
    begun = _trained(path) if Run.exists(path) else None
    parent = train.get("init_from") or (begun and begun.section("train").get("init_from"))
    if parent and (origin := begun or _trained(Path(str(parent)))):
        # The model comes from the run that is resumed or adapted; flags then override it.
        recipe = settings.load({name: origin.section(name) for name in ("model", "search")})
    if begun is None and os.environ.get("RANK", "0") == "0":
        data = Path(str(train.get("data", TrainConfig.data)))
        _compare_dataset(settings.config or RECIPE, recipe.section("preprocess"), data)
    return Experiment(
        model=build(ModelConfig, recipe.section("model"), "model"),  # type: ignore[type-abstract]
        train=build(TrainConfig, recipe.section("train"), "train"),
        search=build(SearchConfig, recipe.section("search"), "search"),
        plugins=recipe.plugins,
    )


def _compare_dataset(recipe: Path, section: dict[str, Any], dataset: Path) -> None:
    """Warn if settings of the dataset in the recipe changed after the dataset was made."""
    from nmt.preprocess.config import differences

    if different := differences(recipe, section, dataset):
        warn(
            f"{recipe} is newer than {dataset}, and differs: {'; '.join(different)}; training uses "
            "the dataset as it is, and `nmt preprocess` makes it again"
        )


def _trained(path: Path) -> "Run | None":
    """Return a trained run, or the run of a checkpoint; None if there is no run."""
    from nmt.runs import Run

    try:
        run = Run.open(path if Run.exists(path) else path.resolve().parent)
    except NmtError:  # training reports the error, if it needs the weights
        return None
    return run if run.checkpoint_paths() else None


def _signal(reason: str) -> Signals | None:
    """Return the signal that ended training, if one did."""
    return Signals(int(reason.split()[1])) if reason.startswith("signal") else None


def _in_words(reason: str, signal: Signals | None, run: "Run") -> str:
    """Return the reason why training ended; after a signal, with the last saved update."""
    if signal is None or (last := run.checkpoint("last")) is None:
        return reason
    return (
        f"interrupted by {signal.name}; all is saved after update {last.update}, "
        "and the same command resumes there"
    )
