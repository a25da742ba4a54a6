"""Attention as an SVG picture in the style of the paper's figures 3 to 5."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from nmt.errors import NmtError
from nmt.explain.explanation import Explanation

COLOURS = ("#d9480f", "#1c7ed6", "#2f9e44", "#9c36b5", "#c08a00", "#0c8599", "#e03131", "#6741d9")
"""Colours of the heads, in turn."""

STEP, MARGIN, GAP = 26, 20, 170
"""Pixels between two words, around the picture, and between the two rows."""

LETTER = 7.5
"""Mean width of a letter in pixels."""

LEAST = 0.02
"""Weights below are not drawn."""


def figure(
    explanation: Explanation,
    kind: str,
    layer: int,
    heads: Sequence[int] | None = None,
    piece: str | None = None,
) -> str:
    """Return lines from each query, above, to the keys, below; thicker for greater weights.

    Args:
        explanation: the sentence.
        kind: "encoder", "decoder" or "cross".
        layer: number of the layer, from 1.
        heads: numbers of the heads, from 1; None for all.
        piece: the only query whose lines are drawn, with or without its "▁"; None for all.

    Raises:
        NmtError: there is no such layer, head or piece.
    """
    weights = _weights(explanation, kind, layer)  # [H][Q][S]
    chosen = list(heads) if heads else list(range(1, len(weights) + 1))
    for head in chosen:
        if not 1 <= head <= len(weights):
            raise NmtError(f"head {head}: layer {layer} has heads 1 to {len(weights)}")
    read = ["<s>", *explanation.target.pieces[:-1]]
    source, target = explanation.source.pieces, explanation.target.pieces
    queries, keys = {"encoder": (source, source), "decoder": (read, read)}.get(
        kind, (target, source)
    )
    drawn = [at for at, name in enumerate(queries) if piece in (None, name, name.removeprefix("▁"))]
    if not drawn:
        raise NmtError(f"no piece {piece!r} among the queries; there are: {' '.join(queries)}")
    longest = [LETTER * max(map(len, names)) for names in (queries, keys)]
    top = MARGIN + longest[0]
    lines = [
        f'<line x1="{_x(query)}" y1="{top:.0f}" x2="{_x(key)}" y2="{top + GAP:.0f}" '
        f'stroke="{COLOURS[(head - 1) % len(COLOURS)]}" stroke-width="{1 + 5 * weight:.2f}" '
        f'stroke-opacity="{0.15 + 0.75 * weight:.2f}"/>'
        for head in chosen
        for query in drawn
        for key, weight in enumerate(weights[head - 1][query])
        if weight >= LEAST
    ]
    words = [
        *(_word(name, _x(at), top - 6, "start") for at, name in enumerate(queries)),
        *(_word(name, _x(at), top + GAP + 6, "end") for at, name in enumerate(keys)),
    ]
    width = 2 * MARGIN + STEP * max(len(queries), len(keys))
    height = top + GAP + longest[1] + MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" '
            f'width="{width}" height="{height:.0f}" font-family="sans-serif" font-size="14">',
            f"<title>{escape(f'{kind} attention, layer {layer}')}</title>",
            '<rect width="100%" height="100%" fill="white"/>',
            *lines,
            *words,
            "</svg>\n",
        ]
    )


def _weights(explanation: Explanation, kind: str, layer: int) -> list[list[list[float]]]:
    for part in explanation.attention:
        if (part.kind, part.layer) == (kind, layer):
            weights: list[list[list[float]]] = part.weights[0].tolist()
            return weights
    layers = ", ".join(f"{part.kind}:{part.layer}" for part in explanation.attention)
    raise NmtError(f"no attention {kind}:{layer}; the model has {layers or 'none'}")


def _x(at: int) -> float:
    return MARGIN + STEP * (at + 0.5)


def _word(name: str, x: float, y: float, anchor: str) -> str:
    """Return a word that reads upwards, above the lines, or ends at them from below."""
    place = f'transform="translate({x + 5} {y:.0f}) rotate(-90)"'
    return f'<text {place} text-anchor="{anchor}">{escape(name.removeprefix("▁"))}</text>'
