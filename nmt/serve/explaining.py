"""Pages about how a model translates a sentence, as `nmt explain` writes them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nmt.errors import NmtError
from nmt.explain import explain
from nmt.explain.document import document, packed, page
from nmt.inference import Translator
from nmt.preprocess.tags import directions_of
from nmt.runs import find_checkpoint
from nmt.serve.bodies import RefusedError
from nmt.serve.processes import Processes, WorkerKilledError
from nmt.serve.work import Pair

TOKENS = 128
"""Most tokens of a sentence or its translation: a page grows with their square."""
WAITING = 4
"""Most pages that are made or wait for their turn."""

Facts = list[dict[str, Any]]
"""What a page says of a model and its members."""
Open = Callable[[Sequence[Path], Pair], tuple[Translator, Facts]]
"""Function that loads a run or an ensemble for its languages, not converted for speed."""


class Explainer:
    """Makes one page at a time, in a process that loads the model and ends with the page.

    A page takes seconds, and the memory of another copy of the model.
    """

    def __init__(self, groups: Sequence[Sequence[Path]], open_models: Open) -> None:
        """Load nothing yet.

        Args:
            groups: the paths of each model, several for an ensemble; exports are not explained.
            open_models: loads the models of a group.
        """
        self._groups = groups
        self._open = open_models
        self._turn = asyncio.Semaphore(1)
        self._num_pages = 0

    def pairs(self) -> dict[Pair, Sequence[Path]]:
        """Return the languages that runs translate, with the paths of a run or an ensemble.

        Reads them as they are now, some 10 ms each.
        """
        by_pair: dict[Pair, Sequence[Path]] = {}
        for paths in self._groups:
            with suppress(NmtError):  # an export
                run, _ = find_checkpoint(paths[0])
                for pair in directions_of(run.subwords, run.languages).trained:
                    by_pair.setdefault(pair, paths)
        return by_pair

    async def page(self, pair: Pair, line: str, translation: str = "") -> str:
        """Return the page about a line and its translation, by default the search's.

        If the caller is cancelled, the process is killed.

        Raises:
            RefusedError: no run has these languages, too many pages wait already, or the model
                cannot explain the line.
        """
        if self._num_pages >= WAITING:
            raise RefusedError(429, "too many explanations are waiting; try again in 5 s", 5)
        self._num_pages += 1
        try:
            async with self._turn:
                return await self._made((pair, line, translation))
        except WorkerKilledError:
            raise RefusedError(503, "the process was killed, perhaps for lack of memory") from None
        except NmtError as error:
            raise RefusedError(400, str(error)) from None
        finally:
            self._num_pages -= 1

    async def _made(self, wanted: tuple[Pair, str, str]) -> str:
        ignored = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        process: Processes[tuple[Pair, str, str], str] = Processes(self._make, 1, ignored)
        try:
            return await process.apply(wanted)
        finally:
            process.retire()
            process.close()

    def _make(self, wanted: tuple[Pair, str, str]) -> str:
        """Return a page; runs in the process.

        Raises:
            NmtError: no run has these languages, or the line is too long or blank.
        """
        pair, line, translation = wanted
        paths = self.pairs().get(pair)
        if paths is None:
            raise NmtError(f"{'-'.join(pair)}: only runs are explained, and this is none")
        translator, facts = self._open(paths, pair)
        subwords = translator.subwords
        for [ids] in subwords.encode_source([line]), subwords.encode_target([translation]):
            if len(ids) > TOKENS:
                raise NmtError(f"{len(ids)} tokens; at most {TOKENS} are explained")
        explanations = explain([translator], [line], [translation] if translation else None)
        if not explanations[0]:
            raise NmtError("line: give a text to explain")
        for fact in facts:
            fact["model"] = Path(fact["model"]).name  # where models are is not for clients
        title = f"How the model translates {' to '.join(pair)}"
        return page(document(explanations, facts, packed), title)
