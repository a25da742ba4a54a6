"""Table 1 of *Attention Is All You Need*, measured: one layer of each kind over the length n.

    python benchmarks/layers.py --output work/layers

times a forward and a backward pass of a sentence of n states of width d, counts the bytes kept for
the backward pass, and fits exponents: seconds ~ n^a over the longer half of the lengths. It prints
a table, and writes ``layers.json`` and a picture, ``layers.svg``. Everything else should be quiet:
each time is the median of its repetitions, the kinds taking turns.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from nmt.models.layers.attention import AttentionConfig
from nmt.models.layers.sentences import Padded
from nmt.models.rivals.convolution import windows
from nmt.models.transformer.multi_head import SelfAttention
from nmt.models.transformer.patterns import NeighbourhoodAttention

Layer = Callable[[Tensor], Tensor]
COMPLEXITY = {
    "self-attention": "O(n^2 d)",
    "restricted": "O(r n d)",
    "recurrent": "O(n d^2)",
    "convolutional": "O(k n d^2)",
    "separable": "O(k n d + n d^2)",
}
"""The paper's column "complexity per layer"; separable convolutions are in its section 4. Not in
it are the projections of an attention, which are O(n d^2) and at small n most of the work."""
COLOURS = ("#c0392b", "#2980b9", "#27ae60", "#8e44ad", "#d68910")


class Attention(nn.Module):
    """Multi-head self-attention with its projections."""

    def __init__(self, width: int, attention_fn: nn.Module | None) -> None:
        super().__init__()
        head = width // 8
        config = AttentionConfig(
            d_model=width, heads=8, d_k=head, d_v=head, bias=False, dropout=0.0
        )
        self.attention = SelfAttention(config, attention_fn)

    def forward(self, x: Tensor) -> Tensor:
        """[B, n, d] to the same."""
        return self.attention(x, Padded())


class Recurrence(nn.Module):
    """An LSTM, by the fused kernel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """[B, n, d] to the same."""
        return self.lstm(x)[0]


class Convolution(nn.Module):
    """A convolution over k neighbours."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.kernel = kernel
        self.linear = nn.Linear(kernel * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, n, d] to the same."""
        return self.linear(windows(x, self.kernel))


class Separable(nn.Module):
    """A convolution of every feature by itself, then a product over features."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)
        self.pointwise = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, n, d] to the same."""
        return self.pointwise(self.depthwise(x.transpose(1, 2)).transpose(1, 2))


def main() -> None:
    """Measures, prints a table, and writes the numbers and the picture."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--width", type=int, default=512, help="d")
    parser.add_argument("--radius", type=int, default=32, help="r of the restricted attention")
    parser.add_argument("--kernel", type=int, default=3, help="k of the convolutions")
    parser.add_argument("--longest", type=int, default=8192, help="largest n, from 32 in doubles")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", type=Path, required=True, help="directory to write")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    layers = make_layers(arguments.width, arguments.radius, arguments.kernel)
    for layer in layers.values():
        layer.to(device)
    lengths = [32 << power for power in range(int(math.log2(arguments.longest // 32)) + 1)]
    result = measure(layers, lengths, arguments.width, arguments.repetitions, device)
    result |= {key: getattr(arguments, key) for key in ("width", "radius", "kernel")}
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "layers.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
    (arguments.output / "layers.svg").write_text(picture(result), encoding="utf-8")
    print(table(result))


def make_layers(width: int, radius: int, kernel: int) -> dict[str, nn.Module]:
    """One layer of each kind, by the name that it has in the table."""
    return {
        "self-attention": Attention(width, None),
        "restricted": Attention(width, NeighbourhoodAttention(radius)),
        "recurrent": Recurrence(width),
        "convolutional": Convolution(width, kernel),
        "separable": Separable(width, kernel),
    }


def measure(
    layers: dict[str, nn.Module],
    lengths: list[int],
    width: int,
    repetitions: int,
    device: torch.device,
) -> dict[str, object]:
    """Seconds and bytes of every layer at every length, and the exponents of both."""
    seconds: dict[str, list[float]] = {name: [] for name in layers}
    kept: dict[str, list[int]] = {name: [] for name in layers}
    for length in lengths:
        x = torch.randn(1, length, width, device=device, requires_grad=True)
        times: dict[str, list[float]] = {name: [] for name in layers}
        for repetition in range(repetitions + 1):
            for name, layer in layers.items():
                taken = timed(layer, x)
                if repetition:  # the first one warms up
                    times[name].append(taken)
        for name, layer in layers.items():
            seconds[name].append(statistics.median(times[name]))
            kept[name].append(bytes_kept(layer, x))
    return {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "lengths": lengths,
        "seconds": seconds,
        "bytes": kept,
        "exponent": {name: exponent(lengths, values) for name, values in seconds.items()},
        "exponent_of_bytes": {name: exponent(lengths, values) for name, values in kept.items()},
    }


def timed(layer: Layer, x: Tensor) -> float:
    """Seconds of a forward and a backward pass."""
    if x.device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    layer(x).sum().backward()
    if x.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def bytes_kept(layer: nn.Module, x: Tensor) -> int:
    """Bytes that the forward pass keeps for the backward pass beside weights, each storage once."""
    storages: dict[int, int] = {}
    weights = {weight.untyped_storage().data_ptr() for weight in layer.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = layer(x)  # alive until counted, so that no address is given twice
    total = sum(size for place, size in storages.items() if place not in weights)
    del output
    return total


def exponent(lengths: list[int], values: list[float] | list[int]) -> float:
    """The slope of log value over log length, by least squares over the longer half."""
    half = len(lengths) // 2
    x = [math.log(length) for length in lengths[half:]]
    y = [math.log(value) for value in values[half:]]
    return statistics.linear_regression(x, y).slope if len(x) > 1 else math.nan


def table(result: dict[str, object]) -> str:
    """The exponents beside the paper's column, and milliseconds at every length, as Markdown."""
    lengths = result["lengths"]
    head = ["layer", "paper", "n^", "bytes n^", *(f"{length} (ms)" for length in lengths)]
    rows = [head, ["---"] * len(head)]
    for name, seconds in result["seconds"].items():
        fits = (result["exponent"][name], result["exponent_of_bytes"][name])
        times = [f"{1000 * value:.2f}" for value in seconds]
        rows.append([name, COMPLEXITY[name], *(f"{fit:.2f}" for fit in fits), *times])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def picture(result: dict[str, object]) -> str:
    """Seconds over n, both logarithmic, as SVG; the paper's column and the fit in the legend."""
    lengths = result["lengths"]
    every = [value for values in result["seconds"].values() for value in values]
    low, high = math.floor(math.log10(min(every))), math.ceil(math.log10(max(every)))
    width, height, left, top = 480, 360, 60, 20

    def x(length: int) -> float:
        span = math.log(lengths[-1] / lengths[0]) or 1.0
        return left + width * math.log(length / lengths[0]) / span

    def y(value: float) -> float:
        return top + height * (high - math.log10(value)) / max(1, high - low)

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 430" font-family="sans-serif" '
        'font-size="12">',
        f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#888"/>',
        f'<text x="{left + width / 2}" y="{top + height + 40}" text-anchor="middle">n</text>',
    ]
    for length in lengths:
        place = f'x="{x(length):.1f}" y="{top + height + 18}" text-anchor="middle"'
        parts.append(f"<text {place}>{length}</text>")
    for power in range(low, high + 1):
        place = f'x="{left - 6}" y="{y(10.0**power) + 4:.1f}" text-anchor="end"'
        parts.append(f"<text {place}>1e{power} s</text>")
    for at, (name, values) in enumerate(result["seconds"].items()):
        points = " ".join(
            f"{x(length):.1f},{y(value):.1f}" for length, value in zip(lengths, values, strict=True)
        )
        line = f'fill="none" stroke="{COLOURS[at]}" stroke-width="2"'
        parts.append(f'<polyline points="{points}" {line}/>')
        legend = f"{name}: {COMPLEXITY[name]}; n^{result['exponent'][name]:.2f}"
        place = f'x="{left + width + 16}" y="{top + 20 + 22 * at}" fill="{COLOURS[at]}"'
        parts.append(f"<text {place}>{legend}</text>")
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    main()
