"""The one exception that is addressed to the user."""

from __future__ import annotations


class NmtError(Exception):
    """A mistake the user can mend: one line that says where, what, and the remedy.

    The command line prints it as ``nmt: error: ...`` without a traceback and exits with status 1.
    """


class UnfinishedError(NmtError):
    """What was done so far is kept, and the same command goes on from there."""


class LostPeerError(NmtError):
    """Other processes are missing; the message names their ranks.

    The command line ends the process at once: threads of PyTorch may wait for the missing processes
    for as long as the network lets them.
    """
