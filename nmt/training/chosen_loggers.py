"""The loggers that a recipe turns on."""

from __future__ import annotations

from collections.abc import Callable

from nmt.errors import NmtError
from nmt.training.loggers import Logger
from nmt.training.tensorboard import Board
from nmt.training.trainer import Trainer
from nmt.training.wandb import WandbLogger


def open_loggers(trainer: Trainer) -> list[Logger]:
    """Open the loggers that the recipe turns on.

    Raises:
        NmtError: a package is not installed, or a logger cannot begin.
    """
    run, update = trainer.run, trainer.state.update
    openers: dict[str, Callable[[], Logger]] = {
        Board.name: lambda: Board(run.path / "tensorboard", update),
        WandbLogger.name: lambda: WandbLogger(run),
    }
    loggers = []
    for name, begin in openers.items():
        if getattr(trainer.config, name):
            try:
                loggers.append(begin())
            except NmtError:
                raise
            except Exception as error:
                why = " ".join(str(error).split())
                remedy = f"mend that, or leave it out: --set train.{name}=false"
                raise NmtError(f"train.{name}: {why}; {remedy}") from None
    return loggers
