"""Translation of lines with markup."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import get_args

from nmt.errors import NmtError
from nmt.inference.alignment import Unit, token_starts
from nmt.inference.lines import LineTranslator
from nmt.inference.markup import Dialect, Segment, parse
from nmt.inference.request import Request, Translation
from nmt.io.lines import refuse_one_string
from nmt.recipe.registry import unknown


def translate_markup(
    translator: LineTranslator, lines: Iterable[str], dialect: Dialect = "html"
) -> Iterator[str]:
    """Yield one translation per line, in order, with the tags of the line.

    Tags are taken out, the text is translated as if there had been none, and the tags are put
    around the words that are aligned with theirs. Each line is a fragment by itself, and comes back
    well-formed: an element without an end tag gets one, and an end tag without a beginning is left
    out.

    Args:
        translator: of a model with attention.
        lines: fragments of markup.
        dialect: "html", or "xliff" for the inline elements of XLIFF.

    Raises:
        NmtError: the model has no attention, or the dialect is unknown.
        TypeError: `lines` is one string.
    """
    refuse_one_string(lines, "lines")
    if dialect not in get_args(Dialect):
        raise NmtError(unknown("dialect", str(dialect), get_args(Dialect)))
    waiting = iter(lines)
    while window := list(islice(waiting, translator.config.window)):
        fragments = [parse(line, dialect, translator.config.placeholders) for line in window]
        segments = [segment for fragment in fragments for segment in fragment.segments]
        rendered = iter(_rendered(translator, segments))
        for fragment in fragments:
            yield fragment.join(islice(rendered, len(fragment.segments)))


def _rendered(translator: LineTranslator, segments: list[Segment]) -> list[str]:
    """Return the translation of each segment with its markup; only markup needs alignments."""
    # Tags often stand between a word and its punctuation, so these are aligned separately.
    unit: Unit = "pieces" if translator.usual_unit == "pieces" else "tokens"
    results = [""] * len(segments)
    # Text without tags needs no alignments, which cost another pass of the model.
    for has_markup in (False, True):
        chosen = [at for at, segment in enumerate(segments) if segment.has_markup == has_markup]
        translations = translator.translations(
            [Request(segments[at].text) for at in chosen], aligned=unit if has_markup else None
        )
        for at, (translation, *_) in zip(chosen, translations, strict=True):
            starts = _starts(translation)
            results[at] = segments[at].rendered(translation.text, translation.links, starts)
    return results


def _starts(translation: Translation) -> tuple[list[int], list[int]]:
    """Return the offsets at which the aligned units of both sides begin."""
    if translation.piece_starts is None:
        return token_starts(translation.source), token_starts(translation.text)
    source, text = translation.piece_starts
    return list(source), list(text)
