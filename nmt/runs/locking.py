"""Lock the directory of a run during training, and clear it if no training begins."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nmt.data.manifest import MANIFEST
from nmt.errors import FULL_OR_FAILING, NmtError, UnfinishedError
from nmt.io import files
from nmt.messages import warn
from nmt.runs.checkpoint import checkpoints_in
from nmt.runs.recipe import PLUGINS, RECIPE
from nmt.runs.run import LINKS, LOG, SHORTLIST, Run, make_directory
from nmt.runs.translations import DIRECTORY as TRANSLATIONS
from nmt.subwords.subwords import FILES as SUBWORDS

LOCK = "run.lock"


@contextmanager
def locked_for_training(path: Path, dry_run: bool, by_this_process: bool = True) -> Iterator[None]:
    """Lock the directory of a run, and remove new files in it if no training begins there.

    Args:
        path: directory of the run, which need not exist yet.
        dry_run: whether to remove a new run in any case.
        by_this_process: False in the peers of the process that holds the lock for all, which do not
            even look for the directory: NFS caches for a while that a directory is missing.

    Raises:
        NmtError: see :func:`locked`.
        UnfinishedError: the disk is full or fails.
    """
    if not by_this_process:
        yield
        return
    before = {*path.iterdir()} if path.is_dir() else None
    with locked(path):
        try:
            yield
        except OSError as error:
            if error.errno not in FULL_OR_FAILING:
                raise
            raise UnfinishedError.by_disk(error, _again(path)) from None
        finally:
            # A command that fails at once leaves nothing that would stop the next attempt.
            new = {*path.iterdir()} - (before or set())
            has_begun = not new.isdisjoint([path / LOG, *checkpoints_in(path)])
            is_new = path / "run.json" not in (before or ())
            if is_new and (dry_run or not has_begun):
                with suppress(OSError):  # NFS, for example, keeps the file of the lock
                    for entry in new:
                        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
                    if before is None:
                        path.rmdir()


def _again(path: Path) -> str:
    """Return what the same command does in the directory of a run."""
    if checkpoints := checkpoints_in(path):
        return f"to resume after update {int(checkpoints[-1].name.removeprefix('update_'))}"
    return "to begin anew, as there is no checkpoint yet"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a directory for one training, and remove the half-written files of a killed training.

    The directory is created if missing.

    Raises:
        NmtError: another process holds the lock, the directory cannot be created, or it holds no
            run, but files that a run would replace.
    """
    make_directory(path)
    _check_is_free(path)
    with (path / LOCK).open("w") as lock:
        try:
            # The kernel releases the lock of a killed process, which a file with a number would
            # not.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NmtError(
                f"{path}: another process is training here; "
                "wait for it, or choose another --save-dir"
            ) from None
        except OSError as error:  # a file system without locks
            warn(f"{path}: cannot be locked: {error.strerror}")
        # Under the lock: half-written files can only be a dead process's now.
        files.sweep(path)
        yield


def _check_is_free(path: Path) -> None:
    """Raise an NmtError if a directory without a run holds files that a run would replace.

    A run begins with its lock. A run with checkpoints but without `run.json` is refused when it is
    opened.
    """
    if (path / LOCK).exists() or Run.exists(path) or checkpoints_in(path):
        return
    for name in (MANIFEST, RECIPE, LOG, SHORTLIST, PLUGINS, TRANSLATIONS, *LINKS, *SUBWORDS):
        if os.path.lexists(path / name):
            what = "is a dataset" if name == MANIFEST else f"is not a run, but holds {name}"
            raise NmtError(f"{path}: {what}; choose another --save-dir for a new run")
