"""Output forms of ``nmt translate``: text, n-best lists, JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from nmt.errors import NmtError

if TYPE_CHECKING:
    from nmt.inference import LineTranslator, Request, Translation
    from nmt.inference.alignment import Unit
    from nmt.markup import Dialect

Form = Callable[["LineTranslator", Sequence["str | Request"], Iterable[int]], list[str]]
"""Function of a translator, lines and their numbers (from 0): the output for each line."""


def chosen(count: int | None, is_json: bool, aligned: Unit | None, dialect: Dialect | None) -> Form:
    """Return the form that flags choose.

    Args:
        count: number of translations of a line; None for one without a list.
        is_json: whether to write JSON.
        aligned: unit to align, in JSON.
        dialect: markup of the lines.
    """
    if is_json:
        return as_json(count or 1, aligned)
    if dialect:
        return with_markup(dialect)
    return n_best(count) if count else plain


def plain(
    translator: LineTranslator, lines: Sequence[str | Request], numbers: Iterable[int]
) -> list[str]:
    """Return the best translation of each line."""
    return list(translator.translate(lines))


def with_markup(dialect: Dialect) -> Form:
    """Return the form of lines with markup, which are translated without their tags."""

    def write(
        translator: LineTranslator, lines: Sequence[str | Request], numbers: Iterable[int]
    ) -> list[str]:
        """Return the translation of each line, with the line's tags."""
        from nmt.inference.markup import translate_markup

        if translator.subwords.context:
            raise NmtError("--markup: the model translates lines in their context, without tags")
        return list(translate_markup(translator, map(str, lines), dialect))

    return write


def n_best(count: int) -> Form:
    """Return the form of Moses: ``id ||| text ||| features ||| score``, one translation a line."""

    def write(
        translator: LineTranslator, lines: Sequence[str | Request], numbers: Iterable[int]
    ) -> list[str]:
        """Return the translations of each line, each with the number of the line."""
        return [
            "\n".join(f"{number} ||| {_moses(translation)}" for translation in of_line)
            for number, of_line in zip(numbers, translator.translations(lines, count), strict=False)
        ]

    return write


def as_json(count: int, aligned: Unit | None = None) -> Form:
    """Return the form of JSON: an object for each line, with up to `count` translations."""

    def write(
        translator: LineTranslator, lines: Sequence[str | Request], numbers: Iterable[int]
    ) -> list[str]:
        """Return an object for each line."""
        written = []
        by_line = translator.translations(lines, count, scored=True, aligned=aligned)
        for number, (best, *others) in zip(numbers, by_line, strict=False):
            values = {"id": number, **translator.fields(best, aligned)}
            if aligned:
                values[f"source_{aligned}"] = best.units()[0]
            if count > 1 or others:
                values["others"] = [translator.fields(other, aligned) for other in others]
            written.append(json.dumps(values, ensure_ascii=False))
        return written

    return write


def _moses(translation: Translation) -> str:
    hypothesis = translation.hypothesis
    features = f"LogProbability= {hypothesis.log_probability:.6f} Length= {len(hypothesis.output)}"
    return f"{translation.text} ||| {features} ||| {hypothesis.score:.6f}"
