"""Cost of training in floating-point operations, counted for the recipes that are given.

    python benchmarks/flops.py examples/wmt14/*.yaml examples/rivals/*.yaml

The model trains on one batch on torch's meta device, which computes nothing but shapes, and torch
counts the operations of all matrix products and convolutions, forward and backward. Elementwise
operations are not counted, nor are samples of losses of whole translations. The batch has no
padding; its sentences have the given lengths.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from nmt.cli.recipe import load
from nmt.models import ModelConfig
from nmt.recipe.config import build
from nmt.training.config import TrainConfig

SENTENCES = 4


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
    parser.add_argument("recipes", nargs="+", type=Path)
    parser.add_argument("--source-length", type=int, default=28, help="tokens of a source sentence")
    parser.add_argument("--target-length", type=int, default=28, help="tokens of a target sentence")
    arguments = parser.parse_args()
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
