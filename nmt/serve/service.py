"""The part that all interfaces share: languages, limits, batches, and counts for Prometheus."""

from __future__ import annotations

import time
from collections import Counter as Tallies
from collections.abc import Callable, Sequence
from itertools import chain

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.requests import Request as HttpRequest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nmt.errors import NmtError
from nmt.inference import Request
from nmt.inference.markup import Dialect
from nmt.languages import NAMES, scripts, share_of_letters
from nmt.messages import warn
from nmt.serve.batching import Batcher, QueueFullError
from nmt.serve.limits import Keys, Limits, RefusedError, key_in_header, with_timeout
from nmt.serve.models import Models
from nmt.serve.workers import BatchOptions, Fields, LineBatch, Pair, WorkerKilledError

EXAMINED = 1000
"""Characters of a text from which its language is detected."""
PAUSE = 0.002
"""Seconds for which an incomplete batch waits for other clients."""

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Service:
    """Checks keys and limits, translates and counts."""

    def __init__(self, models: Models, limits: Limits, keys: Keys, batch_lines: int) -> None:
        self.models = models
        self.limits = limits
        self.keys = keys
        self.metrics = Metrics()
        slots = max(1, models.processes)
        self.batcher = Batcher(self._translate, slots, batch_lines, limits.queue, PAUSE)
        self.metrics.watch(lambda: self.batcher.num_waiting)

    async def _translate(self, batch: LineBatch) -> list[list[Fields]]:
        self.metrics.batches.observe(len(batch.requests))
        # A second after the limit, all clients of the batch have got 503.
        return await with_timeout(self.limits.seconds + 1, self.models.translate(batch))

    def admit(self, client: HttpRequest, key: object = None) -> None:
        """Check the key of a client: from its header Authorization, or else `key`.

        Raises:
            RefusedError: the key is missing or unknown.
        """
        if not self.keys.admit(key_in_header(client) or key):
            raise RefusedError(403, "this server wants an API key: Authorization: Bearer KEY")

    def pair(self, source: str, target: str, text: str = "") -> Pair:
        """Return the languages of a model.

        Args:
            source: language, or "auto" to detect it from the text.
            target: language.
            text: the text to translate.

        Raises:
            RefusedError: no model has these languages.
        """
        pairs = self.models.pairs
        if source == "auto":
            fitting = [language for language in self.detect(text) if (language, target) in pairs]
            if len(fitting) > 1:
                raise RefusedError(400, f"source: name the language; {' or '.join(fitting)}?")
            source = fitting[0] if fitting else source
        if (source, target) not in pairs:
            known = ", ".join("-".join(pair) for pair in pairs)
            raise RefusedError(400, f"{source}-{target} is not served; there is {known}")
        return source, target

    def detect(self, text: str) -> dict[str, float]:
        """Return the source languages in whose letters a text is written, with their share.

        Languages that share their letters are not told apart.
        """
        sources = dict.fromkeys(source for source, _ in self.models.pairs)
        shares = {source: share_of_letters(text[:EXAMINED], source) for source in sources}
        most = max(shares.values())
        return {source: share for source, share in shares.items() if share == most}

    def confidence(self, text: str, code: str) -> float:
        """Return the percentage with which a text is in a language, by its letters alone.

        The languages that are written in the same letters, served or not, share the certainty.
        """
        begin = text[:EXAMINED]
        share = share_of_letters(begin, code)
        known = {*NAMES, *(source for source, _ in self.models.pairs)}
        by_scripts = Tallies(map(scripts, known))
        rivals = sum(
            count
            for names, count in by_scripts.items()
            # "x" is no language: the code names scripts alone.
            if share_of_letters(begin, "-".join(("x", *names))) >= share
        )
        return round(100 * share / max(rivals, 1), 1)

    def check(self, requests: Sequence[Request], dialect: Dialect | None = None) -> None:
        """Refuse more or longer lines than the limits allow.

        Args:
            requests: requests of one line each.
            dialect: markup of the lines, whose fragments may have line feeds.

        Raises:
            RefusedError: there are too many lines or characters, half a character, or a line feed
                in a line.
        """
        limits = self.limits
        self.check_count(len(requests))
        for number, request in enumerate(requests, start=1):
            where = f"line {number}" if len(requests) > 1 else "the line"
            terms = chain.from_iterable(request.terminology.items())
            others = (request.prefix, *request.phrases, *request.avoid, *terms)
            whole = "".join((*request.sentences, *others))
            if len(whole) > limits.characters:
                count = f"{len(whole):,} characters" + ", prefix and phrases included" * any(others)
                raise RefusedError(413, f"{where} has {count}; at most {limits.characters:,}")
            try:
                whole.encode()
            except UnicodeEncodeError:  # as JSON allows: "\\ud800"
                raise RefusedError(
                    400, f"{where} has half a character, which is not text"
                ) from None
            if dialect is None and "\n" in request.text:
                raise RefusedError(
                    400, f"line {number}: text is several lines; make a request of each"
                )

    def check_count(self, lines: int) -> None:
        """Refuse more lines than a request may have.

        Raises:
            RefusedError: there are too many.
        """
        if lines > self.limits.lines:
            raise RefusedError(413, f"{lines:,} lines; at most {self.limits.lines:,}")

    async def translate(
        self, requests: Sequence[Request], options: BatchOptions
    ) -> list[list[Fields]]:
        """Return the translations of each line, best first.

        Raises:
            RefusedError: the client sends too much, too many lines wait, the model does not support
                the options, or a batch takes too long.
        """
        self.check(requests, options.dialect)
        try:
            # Before the batcher takes a line, so that a refused request leaves nothing in the
            # queue.
            self.batcher.check_room(len(requests))
        except QueueFullError as error:
            raise RefusedError(429, str(error), error.seconds) from None
        try:
            translations = await self.batcher.translate(requests, options)
        except NmtError as error:
            raise RefusedError(400, str(error)) from None
        except WorkerKilledError as error:
            count = "1 line" if len(requests) == 1 else f"{len(requests)} lines"
            warn(f"{error}, twice, a request of {count}; perhaps memory is short")
            raise RefusedError(500, f"{error}; send fewer or shorter lines") from None
        self.metrics.lines.labels(*options.pair).inc(len(requests))
        return translations


class Metrics:
    """The numbers at ``/metrics``."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self.requests = Counter(
            "nmt_requests", "Answers by path and status.", ["path", "status"], registry=registry
        )
        self.seconds = Histogram(
            "nmt_request_seconds", "Time to an answer.", buckets=SECONDS, registry=registry
        )
        self.lines = Counter(
            "nmt_lines", "Lines translated.", ["source", "target"], registry=registry
        )
        self.batches = Histogram(
            "nmt_batch_lines", "Lines of a batch.", buckets=SIZES, registry=registry
        )
        self._waiting = Gauge(
            "nmt_waiting_lines", "Lines that no process has yet.", registry=registry
        )

    def watch(self, num_waiting: Callable[[], int]) -> None:
        """Ask for the number of waiting lines whenever the numbers are read."""
        self._waiting.set_function(num_waiting)

    def text(self) -> bytes:
        """Return all numbers in the text format of Prometheus."""
        return generate_latest(self._registry)


class CountingMiddleware:
    """Counts the answers of an application, and the time to each."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application answer."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, has_begun = time.monotonic(), False

        def count(status: int) -> None:
            """Count the answer, once its status is known."""
            nonlocal has_begun
            has_begun = True
            # The pattern of the route, since each path as a label would take memory for ever.
            path = getattr(scope.get("route"), "path", "other")
            self.metrics.requests.labels(path, status).inc()
            self.metrics.seconds.observe(time.monotonic() - start)

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                count(message["status"])
            await send(message)

        try:
            await self.app(scope, receive, counted)
        except Exception:  # Starlette answers it outside of all middleware
            if not has_begun:
                count(500)
            raise
