"""Cost of training in floating-point operations, counted for the recipes that are given.

    python benchmarks/flops.py examples/wmt14/*.yaml examples/rivals/*.yaml
    python benchmarks/flops.py --kernels transformer_base transformer_big

The model trains on one batch on torch's meta device, which computes nothing but shapes, and torch
counts the operations of all matrix products and convolutions, forward and backward. Elementwise
operations are not counted, nor are samples of losses of whole translations. The batch has no
padding; its sentences have the given lengths.

``--kernels`` counts operations and bytes of device memory of all kernels of an update in bf16, and
the least time in which an H200 can do either, by the ceilings that were measured there.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, cast

import torch
from torch.utils.flop_counter import FlopCounterMode

from nmt.cli.recipe import load
from nmt.models import ModelConfig, architectures
from nmt.models.transformer.model import TransformerConfig
from nmt.recipe.config import build
from nmt.training.config import TrainConfig
from nmt.training.losses.output_layer import SLICE_ELEMENTS

SENTENCES = 4

FLOP_PER_SECOND, BYTES_PER_SECOND = 790e12, 4.3e12
"""Ceilings of an H200: of the product of two bf16 matrices of 8,192, and of a large copy."""


class Kernels(NamedTuple):
    """Kernels of one kind: what they compute and move in an update, at least."""

    name: str
    flop: float
    bytes: float
    floor: float
    """Seconds, of each kernel the longer of its two times."""
    fused: float | None = None
    """Seconds with this project's own kernels; None where there are none."""


def products(name: str, layers: Iterable[tuple[float, int, int, int]]) -> Kernels:
    """Return the three products of linear layers: (rows, inputs, outputs, number of layers)."""
    flop = moved = floor = 0.0
    for rows, inputs, outputs, count in layers:
        each = 2.0 * rows * inputs * outputs
        # Forward, and the gradients of inputs and weights: each product has these three matrices.
        matrices = 2.0 * (rows * inputs + inputs * outputs + rows * outputs)
        flop += 3 * count * each
        moved += 3 * count * matrices
        floor += 3 * count * max(each / FLOP_PER_SECOND, matrices / BYTES_PER_SECOND)
    return Kernels(name, flop, moved, floor)


def passes(name: str, moved: float, fused: float | None = None) -> Kernels:
    """Return kernels that are bound by memory: bytes, and bytes with our own kernels."""
    least = None if fused is None else fused / BYTES_PER_SECOND
    return Kernels(name, 0.0, moved, moved / BYTES_PER_SECOND, least)


def kernels_of_update(
    config: TransformerConfig, vocabulary: int, source: int, target: int, length: int
) -> list[Kernels]:
    """Count the kernels of an update in bf16 without ``torch.compile``.

    Each kernel reads each input and writes each output once. Weights, their gradients and the
    residual stream are float32.

    Args:
        config: a Transformer with post-norm, ReLU and tied embeddings, as in the paper.
        vocabulary: number of tokens.
        source: source tokens of the update.
        target: target tokens of the update.
        length: tokens of a sentence.
    """
    d, inner, encoder, decoder = (
        *(config.d_model, config.d_ff, config.encoder_layers, config.decoder_layers),
    )
    projections = [
        *[(source, d, 3 * d, encoder), (source, d, d, encoder), (source, d, 2 * d, decoder)],
        *[(target, d, 3 * d, decoder), (target, d, d, 3 * decoder)],
    ]
    rows = [(source, encoder), (target, decoder)]
    feed_forward = [
        (tokens, *shape, layers) for tokens, layers in rows for shape in ((d, inner), (inner, d))
    ]
    activations = inner * (encoder * source + decoder * target)
    queries = encoder * source + 2 * decoder * target
    sublayers = d * (2 * encoder * source + 3 * decoder * target)
    embedded, table, logits = d * (source + target), vocabulary * d, vocabulary * target
    weights = (
        sum(inputs * outputs * count for _, inputs, outputs, count in projections + feed_forward)
        + table
    )
    biased = sum(count * tokens * outputs for tokens, _, outputs, count in projections)
    slices = -(-logits // SLICE_ELEMENTS["cuda"])
    # Queries, keys, values, outputs, and their gradients; two products forward and five backward.
    attention = 24.0 * d * queries
    return [
        products("products of projections", projections),
        products("products of feed-forward layers", feed_forward),
        products("products of the output layer", [(target, d, vocabulary, 1)]),
        Kernels(
            *("attention", 14.0 * d * length * queries, attention, attention / BYTES_PER_SECOND)
        ),
        # Forward: dropout 5, sum 10, norm 8, cast 6. Backward: cast 6, sum 12, norm 20, cast 6,
        # dropout 5. With the own kernel forward 10 and 6, backward 6, 12 and 16.
        passes("residual, dropout and norm", 78.0 * sublayers, 50.0 * sublayers),
        # ReLU 4, its gradient 6, that of the bias 2; with the own kernel 6.
        passes("ReLU and bias of feed-forward layers", 12.0 * activations, 6.0 * activations),
        passes("gradients of other biases", 2.0 * (biased + activations * d / inner)),
        passes("loss", 4.0 * logits),
        passes("sums over slices of the loss", 8.0 * table * (slices + 1)),
        passes("embeddings", 62.0 * embedded + 32.0 * table),
        passes("casts and sums of weights and gradients", 28.0 * weights),
        passes("norm of the gradient, Adam", 32.0 * weights),
    ]


def print_kernels(archs: Iterable[str], vocabulary: int, tokens: int, length: int) -> None:
    """Print a table for each architecture."""
    for arch in archs:
        config = cast("TransformerConfig", architectures[arch])
        counted = kernels_of_update(config, vocabulary, tokens, tokens, length)
        print(f"| {arch}, {tokens:,} tokens | TFLOP | GB | floor, ms | with own kernels, ms |")
        print("|---|---|---|---|---|")
        for it in counted:
            fused = "" if it.fused is None else f"{1e3 * it.fused:.2f}"
            row = f"{it.flop / 1e12:.2f} | {it.bytes / 1e9:.2f} | {1e3 * it.floor:.2f}"
            print(f"| {it.name} | {row} | {fused} |")
        flop, moved, floor = (
            sum(getattr(it, name) for it in counted) for name in ("flop", "bytes", "floor")
        )
        fused = sum(it.floor if it.fused is None else it.fused for it in counted)
        row = f"{flop / 1e12:.2f} | {moved / 1e9:.2f} | {1e3 * floor:.2f} | {1e3 * fused:.2f}"
        print(f"| all | {row} |\n")


def flops_per_target_token(
    config: ModelConfig, vocabulary: int, shared: bool, source: int, target: int
) -> float:
    """Count the operations of a training step, for each target token.

    Args:
        config: the architecture.
        vocabulary: number of tokens, of each side.
        shared: whether both sides share the vocabulary.
        source: length of each source sentence in tokens, with EOS.
        target: length of each target sentence in tokens, with EOS.
    """
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        model = config.build(vocabulary, vocabulary, shared)
        sources, targets = (
            torch.ones(SENTENCES, length, dtype=torch.int64) for length in (source, target)
        )
        model(sources, targets).sum().backward()
    return float(counter.get_total_flops()) / (SENTENCES * target)


def main() -> None:
    """Print a table, a row for each recipe."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("recipes", nargs="*", type=Path)
    parser.add_argument("--kernels", nargs="+", metavar="ARCH", help="count kernels of these")
    parser.add_argument("--tokens", type=int, default=25_000, help="of each side of an update")
    parser.add_argument("--vocabulary", type=int, default=37_000, help="for --kernels")
    parser.add_argument("--source-length", type=int, default=28, help="tokens of a source sentence")
    parser.add_argument("--target-length", type=int, default=28, help="tokens of a target sentence")
    arguments = parser.parse_args()
    if arguments.kernels:
        sizes = arguments.vocabulary, arguments.tokens, arguments.target_length
        print_kernels(arguments.kernels, *sizes)
        return
    print("| recipe | GFLOP per target token | target tokens | FLOP |")
    print("|---|---|---|---|")
    for path in arguments.recipes:
        recipe = load(path, None, {})
        model, train = (
            build(kind, recipe.section(name), name)
            for name, kind in (("model", ModelConfig), ("train", TrainConfig))
        )
        preprocess = recipe.section("preprocess")
        cost = flops_per_target_token(
            model,
            preprocess["vocab_size"],
            not preprocess.get("separate_vocabularies", False),
            arguments.source_length,
            arguments.target_length,
        )
        cost *= train.loss.passes
        tokens = train.tokens_per_update * train.max_updates
        print(f"| {path.stem} | {cost / 1e9:.3g} | {tokens:.3g} | {cost * tokens:.2g} |")


if __name__ == "__main__":
    main()
