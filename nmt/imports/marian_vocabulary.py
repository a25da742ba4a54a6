"""Marian's vocabularies: files of YAML or JSON with the id of each piece, or lists of pieces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml

from nmt.errors import NmtError
from nmt.imports.base import MAX_JSON, read_json
from nmt.io import reading

_Loader: type = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
"""libyaml's parser, where PyYAML has it: it takes a tenth of the time."""

MOST_DIGITS = 10
"""No id has as many digits."""


def read_pieces(path: Path) -> dict[int, str]:
    """Return the piece of each id in a file; one without a suffix of YAML or JSON is a list.

    Raises:
        NmtError: the file is missing, or has something other than pieces with their ids.
    """
    if path.suffix == ".json":
        ids = read_json(path)
    elif path.suffix in (".yml", ".yaml"):
        ids = _ids(path)
    else:
        lines = read_text(path).removesuffix("\n").split("\n")  # a piece may be another line end
        return dict(enumerate(line.removesuffix("\r") for line in lines))
    if not all(type(token) is int for token in ids.values()):
        raise _mistaken(path)
    return {token: piece for piece, token in ids.items()}


def _ids(path: Path) -> dict[str, object]:
    """Return the ids in a file of YAML by their pieces.

    YAML takes ``no`` for a truth value and ``007`` for 7. Here a piece is the text as it stands.
    """
    ids: dict[str, object] = {}
    scalars = _scalars(path)
    for piece in scalars:
        if piece in ids:
            raise NmtError(f"{path}: the piece {piece!r} is given twice")
        token = next(scalars)
        is_number = token.isascii() and token.isdecimal() and len(token) < MOST_DIGITS
        ids[piece] = int(token) if is_number else token
    return ids


def _scalars(path: Path) -> Iterator[str]:
    """Yield the keys and values of one mapping of YAML in turn, as text.

    Raises:
        NmtError: the file is not YAML, or not a mapping between scalars.
    """
    kinds = (yaml.StreamStartEvent, yaml.DocumentStartEvent, yaml.MappingStartEvent)
    ends = (yaml.MappingEndEvent, yaml.DocumentEndEvent, yaml.StreamEndEvent)
    try:
        events = yaml.parse(read_text(path), Loader=_Loader)
        if not all(isinstance(next(events, None), kind) for kind in kinds):
            raise _mistaken(path)
        for event in events:
            if isinstance(event, yaml.ScalarEvent):
                yield event.value
            elif not isinstance(event, ends):
                raise _mistaken(path)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" line {mark.line + 1}:" if mark else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", "cannot be read")
        raise NmtError(f"{path}:{place} not valid YAML: {problem}") from None


def _mistaken(path: Path) -> NmtError:
    return NmtError(f"{path}: expected pieces with their ids")


def read_text(path: Path) -> str:
    """Return the text of a file, with U+FFFD for what is not UTF-8.

    Raises:
        NmtError: the file is missing.
    """
    try:
        return reading.read_bounded(path, MAX_JSON).decode("utf-8", "replace")
    except FileNotFoundError:
        raise NmtError(f"{path}: missing; the import needs it") from None
