"""Work of the processes: lines of many clients, translated by one model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nmt.errors import NmtError
from nmt.inference import LineTranslator, Request
from nmt.inference.alignment import Unit
from nmt.inference.alternatives import alternatives
from nmt.inference.markup import translate_markup
from nmt.markup import Dialect

Pair = tuple[str, str]
"""Source and target language."""

Fields = dict[str, Any]
"""A translation in JSON; always with its ``text``."""


@dataclass(frozen=True)
class Wish:
    """Languages and form of translations; only lines with the same wish travel together."""

    pair: Pair
    """Languages."""
    count: int = 1
    """Number of distinct translations, or of next tokens to try for alternatives."""
    scored: bool = False
    """Whether to add scores and tokens."""
    aligned: Unit | None = None
    """Unit to align with the source; None for no alignments."""
    dialect: Dialect | None = None
    """Markup of the lines; None for plain text."""
    alternatives: bool = False
    """Whether to find translations that differ in the next word after the prefix."""


@dataclass(frozen=True)
class Batch:
    """Lines that are translated at once."""

    wish: Wish
    requests: list[Request]


class Translating:
    """Translates batches by the model of their languages; runs in the worker processes."""

    def __init__(self, translators: Mapping[Pair, LineTranslator]) -> None:
        self.translators = translators

    def __call__(self, batch: Batch) -> list[list[Fields]]:
        """Return the translations of each line, best first.

        Raises:
            NmtError: the models loaded last have other languages, or cannot do what is wished.
        """
        wish, translator = batch.wish, self.translators.get(batch.wish.pair)
        if translator is None:
            raise NmtError(f"{'-'.join(wish.pair)} is not served any more")
        if wish.dialect:
            lines = [request.text for request in batch.requests]
            return [[{"text": text}] for text in translate_markup(translator, lines, wish.dialect)]
        if wish.alternatives:
            proposed = alternatives(translator, batch.requests, wish.count)
            return [[vars(alternative) for alternative in line] for line in proposed]
        by_line = translator.translations(batch.requests, wish.count, wish.scored, wish.aligned)
        if not wish.scored:
            return [[{"text": translation.text} for translation in line] for line in by_line]
        written = []
        for line in by_line:
            fields = [translator.fields(translation, wish.aligned) for translation in line]
            if wish.aligned:
                fields[0][f"source_{wish.aligned}"] = line[0].units()[0]
            written.append(fields)
        return written
