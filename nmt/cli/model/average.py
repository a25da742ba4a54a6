"""The command ``nmt average-checkpoints``."""

from pathlib import Path
from typing import Annotated

import typer

from nmt.cli.options import default_run
from nmt.cli.recipe import PluginFlag, TrustFlag, import_named
from nmt.messages import say

EXAMPLE = """Example:

  nmt average-checkpoints --run checkpoints --last 2 --output averaged"""


def average_checkpoints(
    checkpoints: Annotated[
        list[Path] | None, typer.Argument(help="Checkpoints, or use --last, --best.")
    ] = None,
    run: Annotated[
        list[Path] | None,
        typer.Option(
            help="Run directory, for --last and --best; repeat for the checkpoints of several runs "
            "that began with the same weights.  [default: train.save_dir of nmt.yaml]"
        ),
    ] = None,
    last: Annotated[int | None, typer.Option(min=1, help="Average the newest N of a run.")] = None,
    best: Annotated[
        int | None,
        typer.Option(min=1, help="Average the N kept checkpoints that validated best."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Run directory to write.  [default: RUN/averaged]")
    ] = None,
    plugin: PluginFlag = None,
    trust_plugins: TrustFlag = False,
) -> None:
    """Average the weights of checkpoints, in float32, into a new run directory.

    If the run has LoRA or adapters (model.adaptation), the new run is complete: LoRA is merged into
    the weights of its base model, and adapters are stored next to these weights.
    """
    if sum(choice is not None for choice in (checkpoints or None, last, best)) != 1:
        raise typer.BadParameter("give checkpoints, or --last N, or --best N")
    if checkpoints and run:
        raise typer.BadParameter("--run goes with --last or --best; checkpoints say their run")
    for path in checkpoints or ():
        if (path / "run.json").exists():
            raise typer.BadParameter(
                f"{path} is a run, not a checkpoint; use --run {path} --last N, or --best N"
            )
    from nmt.training.average import average_run, pick_best, pick_last

    import_named(plugin)
    chosen = list(checkpoints or ())
    for path in [] if chosen else run or [default_run()]:
        if last is not None:
            chosen += pick_last(path, last)
        elif best is not None:
            chosen += pick_best(path, best, trust_plugins)
    averaged = average_run(chosen, output, trust_plugins)
    if len(averaged.recipe["averaged"]) > 1 and averaged.recipe["train"].get("ema_decay"):
        say(
            "the checkpoints hold moving averages already (train.ema_decay): compare the best "
            "checkpoint with this average on the validation set"
        )
    say("averaged " + ", ".join(averaged.recipe["averaged"]))
    print(averaged.path)
