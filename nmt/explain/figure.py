"""Attention as a picture in the style of the paper's figures 3 to 5, for papers: SVG or PNG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from nmt.errors import NmtError, install
from nmt.explain.explanation import Explanation

COLOURS = ("#d9480f", "#1c7ed6", "#2f9e44", "#9c36b5", "#c08a00", "#0c8599", "#e03131", "#6741d9")
"""Colours of the heads, in turn."""

STEP, MARGIN, GAP = 26, 20, 170
"""Pixels between two words, around the picture, and between the two rows."""

LETTER = 7.5
"""Mean width of a letter in pixels."""

MIN_WEIGHT = 0.02
"""Smaller weights are not drawn."""

SPREAD = 12
"""Pixels at a key over which the lines of the heads are spread."""

FONT = 14
"""Size of the letters in pixels."""

PIXELS, DOTS = 96, 300
"""Pixels of an SVG in an inch, and dots of a PNG."""


@dataclass(frozen=True)
class Stroke:
    """A line from a query to a key."""

    start: float
    """x, in pixels."""
    end: float
    colour: str
    weight: float

    @property
    def width(self) -> float:
        """Width in pixels."""
        return 1 + 5 * self.weight

    @property
    def opacity(self) -> float:
        """Opacity, below 1."""
        return 0.15 + 0.75 * self.weight


@dataclass(frozen=True)
class Figure:
    """Queries above, keys below, and lines between them; sizes in pixels."""

    title: str
    queries: Sequence[str]
    keys: Sequence[str]
    strokes: Sequence[Stroke]

    @property
    def top(self) -> float:
        """Upper end of the lines."""
        return MARGIN + LETTER * max(map(len, self.queries))

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        width = 2 * MARGIN + STEP * max(len(self.queries), len(self.keys))
        return width, round(self.top + GAP + LETTER * max(map(len, self.keys)) + MARGIN)

    def svg(self) -> str:
        """Return the picture as SVG."""
        (width, height), top = self.size, self.top
        lines = [
            f'<line x1="{stroke.start}" y1="{top:.0f}" x2="{stroke.end}" y2="{top + GAP:.0f}" '
            f'stroke="{stroke.colour}" stroke-width="{stroke.width:.2f}" '
            f'stroke-opacity="{stroke.opacity:.2f}"/>'
            for stroke in self.strokes
        ]
        words = [
            *(_word(name, _x(at), top - 6, "start") for at, name in enumerate(self.queries)),
            *(_word(name, _x(at), top + GAP + 6, "end") for at, name in enumerate(self.keys)),
        ]
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
                f'width="{width}" height="{height}" font-family="sans-serif" font-size="{FONT}">',
                f"<title>{escape(self.title)}</title>",
                '<rect width="100%" height="100%" fill="white"/>',
                *lines,
                *words,
                "</svg>\n",
            ]
        )

    def png(self) -> bytes:
        """Return the same picture as PNG, in 300 dots an inch.

        Raises:
            NmtError: Matplotlib is not installed.
        """
        try:
            from matplotlib import figure as drawing
            from matplotlib.collections import LineCollection
            from matplotlib.colors import to_rgba
        except ImportError:
            raise NmtError(f"--png needs Matplotlib; {install('report')}") from None
        (width, height), top, point = self.size, self.top, 72 / PIXELS
        # Not by pyplot, which would look for a display.
        drawn = drawing.Figure(figsize=(width / PIXELS, height / PIXELS))
        axes = drawn.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        # y grows downwards, as in SVG.
        axes.set(xlim=(0, width), ylim=(height, 0))
        lines = [[(stroke.start, top), (stroke.end, top + GAP)] for stroke in self.strokes]
        colours = [to_rgba(stroke.colour, stroke.opacity) for stroke in self.strokes]
        widths = [point * stroke.width for stroke in self.strokes]
        axes.add_collection(LineCollection(lines, colors=colours, linewidths=widths))
        for names, y, place in (
            (self.queries, top - 6, "bottom"),
            (self.keys, top + GAP + 6, "top"),
        ):
            for at, name in enumerate(names):
                text = name.removeprefix("▁").replace("$", r"\$")  # not a formula
                style: dict[str, Any] = {
                    "rotation": 90,
                    "size": point * FONT,
                    "ha": "center",
                    "va": place,
                }
                axes.text(_x(at), y, text, **style)
        written = io.BytesIO()
        drawn.savefig(written, format="png", dpi=DOTS, metadata={"Title": self.title})
        return written.getvalue()


def figure(
    explanation: Explanation,
    kind: str,
    layer: int,
    heads: Sequence[int] | None = None,
    piece: str | None = None,
) -> Figure:
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
    # The decoder reads BOS, then all tokens but the last.
    read = ["<s>", *explanation.target.pieces[:-1]]
    source, target = explanation.source.pieces, explanation.target.pieces
    queries, keys = {"encoder": (source, source), "decoder": (read, read)}.get(
        kind, (target, source)
    )
    drawn = [at for at, name in enumerate(queries) if piece in (None, name, name.removeprefix("▁"))]
    if not drawn:
        raise NmtError(f"no piece {piece!r} among the queries; there are: {' '.join(queries)}")
    strokes = [
        Stroke(
            _x(query),
            # Side by side, or the last head would hide the lines of the others.
            _x(key) + SPREAD * ((at + 0.5) / len(chosen) - 0.5),
            # By the number of the head, which so has one colour in all figures.
            COLOURS[(head - 1) % len(COLOURS)],
            weight,
        )
        for at, head in enumerate(chosen)
        for query in drawn
        for key, weight in enumerate(weights[head - 1][query])
        if weight >= MIN_WEIGHT
    ]
    return Figure(f"{kind} attention, layer {layer}", queries, keys, strokes)


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
