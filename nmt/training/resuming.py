"""Resuming: reading the checkpoint from which all processes of a training continue.

The main process chooses the checkpoint, and the others read the same one. Where each machine looked
for itself, one that reads files over a network could miss the newest checkpoint for a while.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from nmt.errors import NmtError
from nmt.messages import warn
from nmt.runs import Checkpoint, Run
from nmt.runtime.distributed import World
from nmt.training.state import TrainerState
from nmt.training.trainer import Trainer


@dataclass(frozen=True)
class SavedTraining:
    """The content of a checkpoint, read and checked."""

    checkpoint: Checkpoint
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: TrainerState

    @classmethod
    def read(cls, path: Path) -> SavedTraining:
        """Read a checkpoint.

        Raises:
            NmtError: the checkpoint is missing or damaged, or has no state of the optimizer.
            OSError: a file cannot be read.
        """
        checkpoint = Checkpoint.open(path)
        weights, optimizer = checkpoint.weights(), checkpoint.optimizer()
        return cls(checkpoint, weights, optimizer, TrainerState.from_checkpoint(checkpoint))

    def resume(self, trainer: Trainer) -> dict[str, float]:
        """Restore a trainer, and return the scores of its last update; empty if not validated."""
        trainer.restore(self.weights, self.optimizer, self.state)
        if trainer.world.is_main:
            # A kill may have come between saving and linking.
            trainer.run.link(self.checkpoint, self.state.is_at_best)
        return self.checkpoint.scores


def read_newest(run: Run, world: World) -> SavedTraining | None:
    """Read the newest checkpoint that is undamaged for the main process; None without checkpoints.

    All processes must call this, and get the same checkpoint.

    Raises:
        NmtError: there are checkpoints, but none can be resumed, or another process cannot read the
            one that the main process resumes.
        OSError: a file cannot be read by the main process.
    """
    names = world.gather([path.name for path in run.checkpoint_paths()])[0]
    for name in reversed(names):
        path, saved, problem = run.path / name, None, None
        try:
            saved = SavedTraining.read(path)
        except (NmtError, OSError) as error:
            problem = error
        problems = world.gather(problem)
        if not isinstance(problems[0], NmtError):
            _check_all_read(path, problems)
            return saved
        if world.is_main:
            warn(str(problems[0]))
    if names:
        raise NmtError(
            f"{run.path}: none of its {len(names)} checkpoints can be resumed; begin again "
            f"with another --save-dir, and --init-from {run.path} if its weights are sound"
        )
    return None


def _check_all_read(path: Path, problems: list[NmtError | OSError | None]) -> None:
    """Raise an error if a process could not read a checkpoint.

    Args:
        path: the checkpoint.
        problems: of each process, in rank order.
    """
    if isinstance(problems[0], OSError):
        raise problems[0]
    for rank, problem in enumerate(problems):
        if problem is not None:
            raise NmtError(
                f"rank {rank}: cannot read {path}, from which rank 0 resumes ({problem}); make its "
                "machine see the same files, and run the same command again on all machines"
            )
