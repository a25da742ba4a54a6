"""The models of the server, in processes of their own; they can be replaced while it runs."""

from __future__ import annotations

import asyncio
from asyncio import wrap_future
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from nmt.errors import NmtError
from nmt.inference import LineTranslator, SearchConfig
from nmt.serve.workers import BatchTranslator, Fields, LineBatch, Pair, Processes

Load = Callable[[], Sequence[LineTranslator]]


class Models:
    """Translators by their languages, in processes forked from this one.

    The processes share the memory of weights in torch. A GPU, which does not survive a fork, gets a
    thread instead.
    """

    def __init__(self, load: Load, processes: int) -> None:
        """Load the models and start the processes.

        Args:
            load: returns a translator for each pair of languages.
            processes: number of processes, or of CTranslate2's decoders.

        Raises:
            NmtError: a model cannot be loaded, or two models have the same languages.
        """
        self._load = load
        self._wanted = processes
        self._running = self._start()

    async def reload(self) -> None:
        """Load the models again. The old models finish the batches that they have begun.

        Raises:
            NmtError: a model cannot be loaded; the old models stay.
        """
        # In a thread, because the old models answer meanwhile.
        started = await asyncio.to_thread(self._start)
        old, self._running = self._running, started
        old.retire()

    async def translate(self, batch: LineBatch) -> list[list[Fields]]:
        """Let a process translate a batch.

        Raises:
            WorkerKilledError: the process was killed.
        """
        return await self._running.apply(batch)

    @property
    def pairs(self) -> list[Pair]:
        """Source and target language of each model."""
        return self._running.pairs

    def config(self, pair: Pair) -> SearchConfig:
        """Settings of the search of the model of two languages."""
        return self._running.configs[pair]

    def has_context(self, pair: Pair) -> bool:
        """Return whether the model of two languages was trained with context."""
        return pair in self._running.with_context

    @property
    def processes(self) -> int:
        """Number of batches that are translated at the same time."""
        return self._running.processes

    def close(self) -> None:
        """End the processes."""
        self._running.close()

    def _start(self) -> _Running:
        by_pair: dict[Pair, LineTranslator] = {}
        for translator in self._load():
            if translator.languages in by_pair:
                raise NmtError(
                    f"two models translate {' to '.join(translator.languages)}; give the members "
                    "of an ensemble in one --model, with commas between them"
                )
            by_pair[translator.languages] = translator
        can_fork = all(one.survives_fork for one in by_pair.values())
        for one in by_pair.values() if can_fork else ():
            # Workers of a worker would share its core.
            one.search_alone()
        return _Running(by_pair, self._wanted if can_fork else 1, can_fork)


class _Running:
    """Loaded models with their processes, or their threads."""

    def __init__(self, by_pair: dict[Pair, LineTranslator], processes: int, can_fork: bool) -> None:
        self.pairs = list(by_pair)
        self.configs = {pair: translator.config for pair, translator in by_pair.items()}
        self.with_context = {pair for pair, one in by_pair.items() if one.subwords.context}
        self.processes = processes
        translator = BatchTranslator(by_pair)
        self.apply: Callable[[LineBatch], Awaitable[list[list[Fields]]]]
        self.retire: Callable[[], None]
        self.close: Callable[[], None]
        if can_fork:
            pool = Processes(translator, processes)
            self.apply, self.retire, self.close = pool.apply, pool.retire, pool.close
        else:
            # One, because such an engine itself uses the GPU or all cores.
            thread = ThreadPoolExecutor(1)
            self.apply = lambda batch: wrap_future(thread.submit(translator, batch))
            self.retire = self.close = partial(thread.shutdown, wait=False)
