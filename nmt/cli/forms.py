"""The forms in which ``nmt translate`` writes translations: text, n-best lists, JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nmt.inference import LineTranslator, Request, Translation
    from nmt.inference.alignment import Unit

Form = Callable[["LineTranslator", Sequence["str | Request"], Iterable[int]], list[str]]
"""What is written for each of some lines, which have these numbers, counted from 0."""


def plain(
    translator: LineTranslator, lines: Sequence[str | Request], numbers: Iterable[int]
) -> list[str]:
    """The best translation of each line."""
    return list(translator.translate(lines))


def n_best(count: int) -> Form:
    """The form of Moses: ``id ||| text ||| features ||| score``, a line for each translation."""

    def write(
        translator: LineTranslator, lines: Sequence[str | Request], numbers: Iterable[int]
    ) -> list[str]:
        return [
            "\n".join(f"{number} ||| {_moses(each)}" for each in found)
            for number, found in zip(numbers, translator.translations(lines, count), strict=False)
        ]

    return write


def as_json(count: int, aligned: Unit | None = None) -> Form:
    """An object for each line, with as many other translations as `count` allows."""

    def write(
        translator: LineTranslator, lines: Sequence[str | Request], numbers: Iterable[int]
    ) -> list[str]:
        written = []
        all_found = translator.translations(lines, count, scored=True, aligned=aligned)
        for number, (best, *others) in zip(numbers, all_found, strict=False):
            values = {"id": number, **_fields(translator, best, aligned)}
            if aligned:
                values[f"source_{aligned}"] = best.units()[0]
            if count > 1:
                values["others"] = [_fields(translator, each, aligned) for each in others]
            written.append(json.dumps(values, ensure_ascii=False))
        return written

    return write


def _moses(each: Translation) -> str:
    hypothesis = each.hypothesis
    features = f"LogProbability= {hypothesis.log_probability:.6f} Length= {len(hypothesis.output)}"
    return f"{each.text} ||| {features} ||| {hypothesis.score:.6f}"


def _fields(translator: LineTranslator, each: Translation, aligned: Unit | None) -> dict[str, Any]:
    hypothesis = each.hypothesis
    units = {aligned: each.units()[1], "alignment": each.alignment()} if aligned else {}
    return {
        "text": each.text,
        "score": hypothesis.score,
        "log_probability": hypothesis.log_probability,
        "finished": hypothesis.finished,
        "tokens": translator.subwords.target_pieces(hypothesis.output),
        "token_log_probabilities": list(each.token_log_probabilities),
        **units,
    }
