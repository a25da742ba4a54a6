"""sacreBLEU's own warnings as lines of ours: each once, and never on the line of a progress bar."""

from __future__ import annotations

import logging
import sys

from tqdm import tqdm


class Teller(logging.Handler):
    """Prints each message once on stderr, above the progress bars that are shown there."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._told: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Print the message of a record as a line, unless it was printed before."""
        message = record.getMessage()
        if message not in self._told:
            self._told.add(message)
            tqdm.write(f"nmt: warning: sacreBLEU: {message}", file=sys.stderr)


logging.getLogger("sacrebleu").addHandler(Teller())
