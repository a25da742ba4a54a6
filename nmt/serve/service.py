"""The part that all interfaces share: languages, limits and batches."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from starlette.requests import Request as HttpRequest

from nmt.errors import NmtError
from nmt.inference import Request
from nmt.languages import share_of_letters
from nmt.markup import Dialect
from nmt.messages import warn
from nmt.serve.access import Keys, Limits
from nmt.serve.batching import Batcher, QueueFullError
from nmt.serve.bodies import RefusedError, within
from nmt.serve.metrics import Metrics
from nmt.serve.models import Models
from nmt.serve.processes import WorkerKilledError
from nmt.serve.work import Batch, Fields, Pair, Wish

EXAMINED = 1000
"""Characters of a text that tell its language."""
PAUSE = 0.002
"""Seconds for which a batch that is not full waits for other clients."""


class Service:
    """Translates for clients that may, within the limits."""

    def __init__(self, models: Models, limits: Limits, keys: Keys, batch_lines: int) -> None:
        self.models = models
        self.limits = limits
        self.keys = keys
        self.metrics = Metrics()
        slots = max(1, models.processes)
        self.batcher = Batcher(self._translate, slots, batch_lines, limits.queue, PAUSE)
        self.metrics.watch(lambda: self.batcher.num_waiting)

    async def _translate(self, batch: Batch) -> list[list[Fields]]:
        self.metrics.batches.observe(len(batch.requests))
        # Its clients came before it, and all have their answer, 503, a second after the limit.
        return await within(self.limits.seconds + 1, self.models.translate(batch))

    def admit(self, client: HttpRequest, key: object = None) -> None:
        """Check the key of a client: the one in its header Authorization, or else `key`.

        Raises:
            RefusedError: the key is missing or unknown.
        """
        if not self.keys.admit(key_in_header(client) or key):
            raise RefusedError(403, "this server wants an API key: Authorization: Bearer KEY")

    def pair(self, source: str, target: str, text: str = "") -> Pair:
        """Return the languages of a model.

        Args:
            source: language, or "auto" for that of the text.
            target: language.
            text: what is to be translated.

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

    def check(self, requests: Sequence[Request], dialect: Dialect | None = None) -> None:
        """Refuse requests with more lines, or longer ones, than the limits allow.

        Args:
            requests: a line each.
            dialect: markup of the lines, whose fragments may have line feeds.

        Raises:
            RefusedError: there are too many lines or characters, half a character, or several lines
                in one.
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
                raise RefusedError(400, f"{where} has half a character, which is no text") from None
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

    async def translate(self, requests: Sequence[Request], wish: Wish) -> list[list[Fields]]:
        """Return the translations of each line, best first.

        Raises:
            RefusedError: the client sends too much, too many lines wait, the model cannot do what
                is wished, or a batch takes too long.
        """
        self.check(requests, wish.dialect)
        try:
            self.batcher.check_room(len(requests))
        except QueueFullError as error:
            raise RefusedError(429, str(error), error.seconds) from None
        try:
            translations = await self.batcher.translate(requests, wish)
        except NmtError as error:
            raise RefusedError(400, str(error)) from None
        except WorkerKilledError as error:
            count = "1 line" if len(requests) == 1 else f"{len(requests)} lines"
            warn(f"{error}, twice, a request of {count}; perhaps memory is short")
            raise RefusedError(500, f"{error}; send fewer or shorter lines") from None
        self.metrics.lines.labels(*wish.pair).inc(len(requests))
        return translations


def key_in_header(client: HttpRequest) -> str | None:
    """Return the API key in the header Authorization of a client, if there is one."""
    kind, _, key = client.headers.get("authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else None
