"""Print sacreBLEU's warnings in the form of nmt's: each once, and above any progress bar."""

from __future__ import annotations

import logging
import sys

from tqdm import tqdm


class Teller(logging.Handler):
    """Logging handler that prints each message once on stderr, above any progress bar."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._told: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Print the message of a record as a line, unless it was printed before."""
        message = record.getMessage()
        if message not in self._told:
            self._told.add(message)
            tqdm.write(f"nmt: warning: sacreBLEU: {message}\n", file=sys.stderr, end="")


logging.getLogger("sacrebleu").addHandler(Teller())
