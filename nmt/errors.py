"""Exceptions for the user, and explanations of operating system errors."""

from __future__ import annotations

import errno

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of writing to a full disk or beyond a quota."""

FULL_OR_FAILING = (*FULL, errno.EIO)
"""Error numbers after which the same command can resume, once there is room or another disk."""

_REMEDIES = {
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "make room there, or raise the quota",
    errno.EFBIG: "raise the limit of the size of a file (ulimit -f)",
    errno.EIO: "check the disk",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path",
    errno.EISDIR: "give the path of a file",
    errno.EACCES: "change its permissions, or choose another place",
    errno.EPERM: "change its permissions, or choose another place",
    errno.EROFS: "choose a place that can be written to",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit of open files (fs.file-max)",
}


class NmtError(Exception):
    """A mistake that the user can correct: one line that says where, what, and the remedy.

    The command line prints it as ``nmt: error: ...`` without a traceback and exits with status 1.
    """


class UnknownKeyError(NmtError):
    """A key that a part of the recipe does not have.

    Attributes:
        where: the part, such as ``train``.
        key: the key as written.
    """

    def __init__(self, where: str, key: str, problem: str) -> None:
        # All arguments, because an exception is pickled by them between processes.
        super().__init__(where, key, problem)
        self.where, self.key, self.problem = where, key, problem

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}"


class UnfinishedError(NmtError):
    """An interrupted task: its results so far are kept, and the same command resumes it."""

    @classmethod
    def by_disk(cls, error: OSError, again: str = "to resume") -> UnfinishedError:
        """Return the error of a task that a full or failing disk interrupted.

        Args:
            error: the error of the disk.
            again: what the same command does, after the words "run the same command again".
        """
        return cls(f"{explain(error)}, and run the same command again {again}")


class TerminatedError(KeyboardInterrupt):
    """SIGTERM, which ends a command like Ctrl-C: incomplete results are removed or resumed."""


class LostPeerError(NmtError):
    """Other processes are missing; the message names their ranks.

    The command line ends the process at once: threads of PyTorch may wait for the missing processes
    for as long as the network lets them.
    """


def install(extra: str) -> str:
    """Return the remedy for missing packages: how to install an extra of this distribution."""
    return f"pip install 'nmt-toolkit[{extra}]', or -e '.[{extra}]' in a clone"


def explain(error: OSError) -> str:
    """Return one line: where an operation of the system failed, why, and what to do."""
    place = f"{error.filename}: " if error.filename else ""
    if place and error.errno in FULL:
        place += "cannot be written: "
    remedy = _REMEDIES.get(error.errno or 0)
    return f"{place}{error.strerror or error}" + (f"; {remedy}" if remedy else "")
