"""Memory and time of activation checkpointing, on random sentences of one micro-batch.

    python benchmarks/activations.py --arch transformer_base --tokens 4096

Each part of ``train.checkpoint_activations`` runs in a process of its own. Kept are the tensors
that the forward pass stores for the backward pass, without the weights; peak memory is the
process's.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from typing import get_args

import numpy as np
import torch
from torch import Tensor, nn

from nmt.data.packing import Packing
from nmt.data.vocabulary import EOS
from nmt.models import architectures
from nmt.runtime.machine import keep_few_kernels, keep_freed_memory
from nmt.runtime.precision import Precision, autocast
from nmt.training.losses.token import TokenLoss, losses
from nmt.training.model_options import CheckpointedPart, checkpoint_activations
from nmt.training.reporting.report import peak_memory_mb

CPU = torch.device("cpu")


def main() -> None:
    """Print a line for each part."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--arch", default="transformer_base", help="architecture")
    parser.add_argument("--tokens", type=int, default=4096, help="of each side")
    parser.add_argument("--vocabulary", type=int, default=37000)
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--steps", type=int, default=3, help="the first is not timed")
    options = parser.parse_args()
    print("part | kept for the gradient, MB | peak memory, MB | CPU seconds")
    for part in get_args(CheckpointedPart):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            kept, peak, seconds = pool.apply(measure, (options, part))
        print(f"{part} | {kept / 1e6:,.0f} | {peak:,.0f} | {seconds:.2f}", flush=True)


def measure(options: argparse.Namespace, part: CheckpointedPart) -> tuple[int, float, float]:
    """Return bytes kept for the gradient, peak megabytes, and the median CPU seconds of a step."""
    keep_freed_memory()
    keep_few_kernels()
    torch.manual_seed(1)
    model = architectures[options.arch].build(options.vocabulary, options.vocabulary, True)
    checkpoint_activations(model, part)
    packing = Packing.from_lengths(*random_lengths(options.tokens))
    source, target = (
        torch.randint(EOS + 1, options.vocabulary, (len(side.positions),))
        for side in (packing.source, packing.target)
    )
    loss = losses["label_smoothed_cross_entropy"]
    assert isinstance(loss, TokenLoss)
    precision: Precision = options.precision
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept: dict[int, int] = {}
    seconds = []

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    def keep_arguments(module: nn.Module, arguments: tuple[object, ...]) -> None:
        """Count what a checkpointed module keeps, which is no saved tensor of autograd."""
        for argument in arguments:
            tensors = argument if isinstance(argument, (list, tuple)) else [argument]
            for tensor in tensors:
                if isinstance(tensor, Tensor):
                    keep(tensor)

    for module in [] if part == "none" else model.residual_modules(part):
        module.register_forward_pre_hook(keep_arguments)
    for _ in range(options.steps):
        kept.clear()
        start = time.process_time()
        with autocast(precision, CPU):
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                output = model.decode_packs(source, target, packing)
            cost, _ = loss(output, model.output, target)
        cost.backward()
        seconds.append(time.process_time() - start)
    return sum(kept.values()), peak_memory_mb(CPU), float(np.median(seconds[1:]))


def random_lengths(tokens: int) -> np.ndarray:
    """Return lengths [2, B] of some 25 tokens on average, as in WMT14, that sum to `tokens`."""
    generator, lengths = np.random.default_rng(1), []
    while sum(lengths) < tokens:
        lengths.append(min(int(generator.gamma(2.0, 12.5)) + 1, tokens - sum(lengths)))
    return np.stack((lengths, generator.permutation(lengths)))


if __name__ == "__main__":
    main()
