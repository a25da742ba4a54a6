"""Counts for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


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


class Counted:
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
            path = getattr(scope.get("route"), "path", "other")
            self.metrics.requests.labels(path, status).inc()
            self.metrics.seconds.observe(time.monotonic() - start)

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                count(message["status"])
            await send(message)

        try:
            await self.app(scope, receive, counted)
        except Exception:  # which Starlette answers outside of all middleware
            if not has_begun:
                count(500)
            raise
