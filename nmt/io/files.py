"""Atomic writing of files and directories, and locks of processes that write."""

from __future__ import annotations

import fcntl
import glob
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile

from nmt.errors import FULL, FULL_OR_FAILING, NmtError, UnfinishedError
from nmt.messages import one_line, say


@contextmanager
def whole_directory(path: Path, identity: str | None = None) -> Iterator[Path]:
    """Yield a directory to fill, and rename it to `path` at the end of the context.

    The partial directory is next to `path`. At the end it is synced to the disk and renamed, and
    replaces an older directory. If the context fails, the partial directory is removed, unless it
    has an `identity`. Partial directories of killed processes are removed, too.

    Args:
        path: the final path.
        identity: letters and digits that identify the content, so that a later process can resume
            a partial directory of the same identity. A partial directory is kept if the process was
            killed or interrupted, if the disk was full or failed, or if the context raised
            :class:`UnfinishedError`.

    Raises:
        NmtError: another process is filling a directory for `path`, or `path` is a mount point.
    """
    if path.is_mount():
        raise NmtError(f"{path}: a mount point, which cannot be replaced; choose a directory in it")
    # Next to `path`, because a rename is atomic only within a file system.
    partial = path.with_name(f".{path.name}.partial-{identity or os.getpid()}")
    old = path.with_name(f".{path.name}.old-{os.getpid()}")
    busy = NmtError(f"{path}: another process is writing it; wait for it or stop it")
    # Of any identity: two processes must not fill directories for one path.
    if any(map(_is_held, path.parent.glob(f".{glob.escape(path.name)}.partial-*"))):
        raise busy
    # A dead process may have had this process's number.
    if identity is None:
        shutil.rmtree(partial, ignore_errors=True)
    with named(path, partial):
        partial.mkdir(parents=True, exist_ok=True)
    locks = [_hold(partial)]
    if locks == [None]:
        raise busy
    stays = False
    try:
        sweep(path.parent, glob.escape(path.name), partial)
        with named(path, partial):
            yield partial
            # Each by itself, because syncing a directory syncs only its names.
            for file in partial.rglob("*"):
                sync(file)
            sync(partial)
            if path.exists():
                locks.append(
                    _hold(path)
                )  # otherwise a sweep would take `old` for a dead process's directory
                path.rename(old)
            # Renaming is atomic: a reader sees a whole directory. When an old one is replaced, a
            # reader may see none for a moment, because the old one is renamed away first.
            partial.rename(path)
            # The name itself must be on the disk, or a power cut could undo the renaming.
            sync(path.parent)
    except (KeyboardInterrupt, OSError, UnfinishedError) as error:
        can_be_mended = not isinstance(error, OSError) or error.errno in FULL_OR_FAILING
        stays = identity is not None and can_be_mended
        raise
    finally:
        # Between the two renamings `path` is missing; an error there must not lose the old one.
        if old.exists() and not path.exists():
            old.rename(path)
        if not stays:
            shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
        for lock in locks:
            if lock is not None:
                os.close(lock)


def _hold(path: Path) -> int | None:
    """Lock a path; return a descriptor to close, or None if another process has the lock."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # The kernel releases flock when a process dies, even by SIGKILL.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        pass  # a file system without locks
    return descriptor


def _is_held(path: Path) -> bool:
    """Return whether another process has locked a path; False if it is gone meanwhile."""
    with suppress(OSError):
        # A lock and not the number of a process, which another machine may have, too.
        if (lock := _hold(path)) is None:
            return True
        os.close(lock)
    return False


@contextmanager
def locked(path: Path, work: str) -> Iterator[None]:
    """Hold the lock of a directory or a file; other processes print what they wait for, and wait.

    A file that does not exist is created. On a file system without locks, no process waits.

    Args:
        path: the directory or the file.
        work: the work that the lock protects, such as "fetches wmt14".
    """
    kind = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
    descriptor = os.open(path, kind, 0o666)
    try:
        with suppress(OSError):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(one_line(f"waiting for another process that {work}"))
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def remove_directory(path: Path) -> None:
    """Remove a directory: rename it first, so `path` never names a half-removed directory.

    Files that NFS keeps because another process has them open stay until :func:`sweep`.
    """
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    # A sweep finishes what a kill interrupts here.
    path.rename(partial)
    shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def whole_file(path: Path, rescue: Callable[[Path], None] | None = None) -> Iterator[Path]:
    """Yield a partial path to write to, and rename it to `path` at the end of the context.

    Partial files of killed processes are removed, if the file system has locks.

    Args:
        path: the file.
        rescue: called with the partial path before it is removed, if a signal or an error of the
            system ends the context or the file cannot be completed; the function may rename it.
    """
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    lock = None
    try:
        with named(path, partial):
            partial.touch()
            # Locked before the sweep: other processes remove unlocked partial files.
            lock = _hold(partial)
            _sweep_files(path)
            yield partial
            sync(partial)
            # After the data are on the disk: a rename may reach it before them.
            partial.replace(path)
            sync(path.parent)
    except (KeyboardInterrupt, OSError):
        if rescue and partial.exists():
            rescue(partial)
        raise
    finally:
        partial.unlink(missing_ok=True)
        if lock is not None:
            os.close(lock)


def _sweep_files(path: Path) -> None:
    """Remove the partial files of a file that no live process has locked."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.partial-*"):
        with suppress(OSError), left.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink()


@contextmanager
def named(path: Path | str, partial: Path | None = None) -> Iterator[None]:
    """Name the user's path in errors.

    Errors of a full disk that have no name, and all errors that name a partial file, get `path`.

    Args:
        path: the name that the user knows.
        partial: the partial file or directory being written, or the beginning of its path.
    """
    try:
        yield
    except OSError as error:
        places = [str(place) for place in (error.filename, error.filename2) if place is not None]
        is_partial = partial is not None and any(str(partial) in place for place in places)
        if is_partial or (error.errno in FULL and not places):
            error.filename = str(path)
        raise


def check_writable(directory: Path) -> None:
    """Raise an :class:`OSError` that names the directory unless a file can be made in it.

    If the directory does not exist, its nearest existing parent is checked.
    """
    while not directory.exists():
        directory = directory.parent
    try:
        with TemporaryFile(dir=directory):  # never seen in the directory, where Linux allows that
            pass
    except OSError as error:
        error.filename = str(directory)
        raise


def os_error(error: Exception, path: Path) -> OSError:
    """Return the system's error that caused a library's error with the text "os error NUMBER".

    Args:
        error: the library's error.
        path: the file, for the message.
    """
    match = re.search(r"os error (\d+)", str(error))
    if match is None:
        return OSError(0, f"cannot be written: {error}", str(path))
    number = int(match[1])
    return OSError(number, os.strerror(number), str(path))


def point(link: Path, target: str) -> None:
    """Make `link` a symbolic link to a name next to it, and replace an older link atomically.

    A directory at `link` is replaced, too: a copy of a run that follows links has directories
    instead.
    """
    fresh = link.with_name(f".{link.name}.new-{os.getpid()}")
    old = link.with_name(f".{link.name}.old-{os.getpid()}")
    fresh.unlink(missing_ok=True)
    with named(link, fresh):
        fresh.symlink_to(target)
        if link.is_dir() and not link.is_symlink():
            # A link cannot replace a directory by renaming.
            link.rename(old)
        # A symbolic link cannot be changed, only replaced.
        fresh.replace(link)
        sync(link.parent)
    shutil.rmtree(old, ignore_errors=True)


def sweep(directory: Path, name: str = "*", partial: Path | None = None) -> None:
    """Remove partial files of killed processes, and restore the files that they were replacing.

    A directory that a live process has locked, as :func:`whole_directory` does, is kept.

    Args:
        directory: the directory to sweep.
        name: pattern of the final names of the files and directories.
        partial: the partial directory of this process; kept even on a file system without locks.
    """
    for kind in ("old", "partial", "new"):
        for left in directory.glob(f".{name}.{kind}-*"):
            if left == partial:
                continue
            path = directory / left.name[1:].rpartition(f".{kind}-")[0]
            if left.is_symlink() or not left.is_dir():
                left.unlink(missing_ok=True)
            elif (lock := _hold(left)) is not None:
                if kind == "old" and not path.exists():
                    left.rename(path)  # killed before the new file was renamed
                else:
                    shutil.rmtree(left, ignore_errors=True)
                os.close(lock)


def sync(path: Path) -> None:
    """Wait until a file or directory is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


CACHE = "NMT_CACHE"
"""Environment variable with the directory of the cache."""


def user_cache() -> Path:
    """Return the directory for what can be made again: `NMT_CACHE`, else ``~/.cache/nmt``."""
    if directory := os.environ.get(CACHE):
        return Path(directory)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nmt"
