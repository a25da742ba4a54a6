"""Input of ``nmt translate``: lines, files beside them with wishes for each line, or JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from nmt.errors import NmtError
from nmt.io.lines import Lines
from nmt.messages import warn

if TYPE_CHECKING:
    from nmt.inference import Request, SearchConfig

BLOCK = 1024
"""Lines to read at once from the files beside the input."""


class Requests:
    """Lines to translate, with what is wanted of each translation.

    Attributes:
        name: name of the lines, for messages.
        paths: the files that were opened; None where there is none, or for stdin.
    """

    def __init__(self, lines: Lines, beside: Mapping[str, Lines], is_json: bool = False) -> None:
        """Keep the files; reading begins later.

        Args:
            lines: lines to translate.
            beside: by the field of :class:`nmt.inference.Request` that line n of a file gives for
                line n: `prefix`, or `phrases` and `avoid`, separated by tabs.
            is_json: whether each line is a request as a JSON object.
        """
        self.name = lines.name
        self._lines, self._beside, self._is_json = lines, beside, is_json
        self.paths: Sequence[Path | None] = ()
        self._config: SearchConfig | None = None
        self._has_context = False

    @classmethod
    def open(
        cls, lines: Path | None, *beside_lines: Path | None, is_json: bool = False
    ) -> Requests:
        """Open the files: lines (None for stdin), prefixes, phrases, phrases to avoid."""
        paths = zip(("prefix", "phrases", "avoid"), beside_lines, strict=False)
        beside = {field: Lines.open(path) for field, path in paths if path is not None}
        requests = cls(Lines.open(lines), beside, is_json)
        requests.paths = (lines, *beside_lines)
        return requests

    @property
    def is_typed(self) -> bool:
        """Whether a person types the lines at a terminal."""
        return self._lines.is_typed

    def configure(self, config: SearchConfig, has_context: bool = True) -> None:
        """Set the settings of the search, which requests may override.

        Args:
            config: the settings.
            has_context: whether the model was trained with context.
        """
        self._config, self._has_context = config, has_context
        for lines in (self._lines, *self._beside.values()):
            lines.on_invalid_utf8 = config.on_invalid_utf8

    def arriving(self, most: int) -> Iterator[list[str] | list[Request]]:
        """Yield blocks of at most `most` lines, as :meth:`nmt.io.lines.Lines.arriving` does.

        Raises:
            NmtError: a file beside the lines has another number of lines, or a line of JSON is no
                request.
        """
        if self._is_json:
            yield from self._objects(most)
        elif self._beside:
            yield from self._with_wishes(most)
        else:
            yield from self._lines.arriving(most)

    def _objects(self, most: int) -> Iterator[list[Request]]:
        from nmt.inference import Request

        assert self._config is not None
        number = 0
        for block in self._lines.arriving(most):
            requests = []
            for line in block:
                number += 1
                where = f"{self.name}, line {number}"
                try:
                    value = _parsed(line, where)
                    requests.append(Request.read(value, where, self._config, self._has_context))
                except NmtError:
                    if requests:
                        yield requests
                    raise
            yield requests

    def _with_wishes(self, most: int) -> Iterator[list[Request]]:
        from nmt.inference import Request

        if self._has_context:
            warn(
                "the model was trained on sentences with their context; with --prefix, --require "
                "or --avoid each line is alone"
            )
        files = {
            field: chain.from_iterable(lines.blocks(BLOCK)) for field, lines in self._beside.items()
        }
        for block in self._lines.arriving(most):
            requests = []
            for text in block:
                wishes = {field: self._next(field, lines) for field, lines in files.items()}
                phrases, avoid = (
                    wishes.get(field, "").split("\t") for field in ("phrases", "avoid")
                )
                prefix = wishes.get("prefix", "")
                requests.append(Request(text, prefix, tuple(phrases), tuple(avoid)))
            yield requests
        for field, lines in files.items():
            if next(lines, None) is not None:
                raise self._uneven(field)

    def _next(self, field: str, lines: Iterator[str]) -> str:
        line = next(lines, None)
        if line is None:
            raise self._uneven(field)
        return line

    def _uneven(self, field: str) -> NmtError:
        return NmtError(
            f"{self.name} and {self._beside[field].name} differ in their number of lines; "
            "line n of one must belong to line n of the other"
        )


def _parsed(line: str, where: str) -> object:
    """Return a JSON value; that of a blank line is a request for nothing, which is a line, too."""
    if not line.strip():
        return {"text": ""}
    try:
        value = json.loads(line)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # as JSON allows: "\ud800"
        raise NmtError(f"{where}: has half a character, which is no text") from None
    except RecursionError:
        raise NmtError(f"{where}: expected an object, not brackets within brackets") from None
    except ValueError as error:
        raise NmtError(
            f'{where}: not JSON: {error}; a line is an object such as {{"text": "..."}}'
        ) from None
    return value
