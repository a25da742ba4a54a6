"""Beam search on one device by batch size: target tokens a second, and where the time goes.

    python benchmarks/translation_batches.py --arch transformer_base --batches 1 8 64 512

Weights are random without --model, and sources random tokens with lengths like those of WMT14.
Every output has --length tokens, as the end of a sentence is made unlikely. The share of time
outside matrix products is that of the whole wall clock, in which a device may also wait for its
next kernel.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from nmt.data.vocabulary import EOS, PAD
from nmt.inference.ensembles import compile_steps
from nmt.inference.fast.kernels import choose_attention, convert
from nmt.inference.fast.recorded_search import RecordedSearch
from nmt.models import Model, ModelConfig
from nmt.recipe.config import build
from nmt.runs import load_model
from nmt.runtime.distributed import pick_device
from nmt.runtime.machine import keep_freed_memory
from nmt.runtime.precision import InferencePrecision, autocast, pick_precision
from nmt.search import Beam, Greedy

PRODUCTS = (
    *("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"),
    *("mkldnn::_linear_pointwise", "quantized::linear_dynamic"),
)
FUSED_ATTENTION = ("flash_attention", "efficient_attention", "cudnn_attention")
"""Kernels that multiply and take a softmax between; counted as products."""


def random_model(architecture: str, vocabulary: int) -> Model:
    """A model with random weights."""
    config = build(ModelConfig, {"arch": architecture}, "model")  # type: ignore[type-abstract]
    torch.manual_seed(1)
    return config.build(vocabulary, vocabulary, True)


def without_end(model: Model) -> Model:
    """The model, with outputs that never end, for evaluation."""
    output = nn.Linear(model.output.in_features, model.output.out_features)
    nn.init.zeros_(output.bias)
    output.weight = model.output.weight
    with torch.no_grad():
        output.bias[EOS] = -1e4
    model.output = output
    return model.eval()


def sources(count: int, vocabulary: int, device: torch.device) -> Tensor:
    """Sentences [count, S] of random tokens, sorted by length as a translator would have them."""
    random = np.random.default_rng(1)
    pool = np.sort(np.clip(random.lognormal(3.2, 0.55, 4096), 1, 200).astype(int))
    middle = (len(pool) - count) // 2
    lengths = pool[middle : middle + count]
    rows = torch.full((count, int(lengths.max()) + 1), PAD, dtype=torch.int64)
    for row, length in zip(rows, lengths.tolist(), strict=True):
        row[:length] = torch.from_numpy(random.integers(4, vocabulary, length))
        row[length] = EOS
    return rows.to(device)


def timed(run: Callable[[], object], device: torch.device) -> float:
    """Seconds of one run."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def outside_products(run: Callable[[], object], device: torch.device) -> float:
    """The share of a run's time in which no matrix product is computed.

    The profiler itself slows the run down on the CPU, so that seconds of products are set against
    the seconds of a profiled run there, and against those of a plain one on a GPU.
    """
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_gpu
    seconds = timed(run, device)
    with profile(activities=activities) as profiler:
        profiled_seconds = timed(run, device)
    products = 0.0
    for event in profiler.key_averages():
        if event.key in PRODUCTS or any(name in event.key for name in FUSED_ATTENTION):
            products += event.self_device_time_total if on_gpu else event.self_cpu_time_total
    return 1 - products / 1e6 / (seconds if on_gpu else profiled_seconds)


def main() -> None:
    """Measures, and prints one JSON object for each size of a batch."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--arch", default="transformer_base")
    parser.add_argument("--model", type=Path, help="run with the weights [random]")
    parser.add_argument("--vocabulary", type=int, default=37000)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--beam", type=int, default=4, help="1 for greedy search")
    parser.add_argument("--length", type=int, default=32, help="of every output")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 8, 32, 128, 512])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compile", action="store_true", help="as nmt translate --compile")
    parser.add_argument("--cuda-graphs", action="store_true", help="as nmt translate --cuda-graphs")
    parser.add_argument("--no-profile", action="store_true", help="no share outside products")
    arguments = parser.parse_args()
    keep_freed_memory()
    device = torch.device(pick_device(arguments.device))
    choose_attention(device.type)
    precision = cast(InferencePrecision, pick_precision(arguments.precision, device))
    if arguments.model is None:
        model = random_model(arguments.arch, arguments.vocabulary)
    else:
        model = load_model(arguments.model, device).model
    vocabulary = model.output.out_features
    model = without_end(model).to(device)
    convert(model, precision, device)
    if arguments.compile:
        compile_steps(model)
    strategy = Beam(beam=arguments.beam) if arguments.beam > 1 else Greedy()
    search = partial(strategy.search, model)
    if arguments.cuda_graphs:
        search = partial(RecordedSearch(model).search, strategy)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    for size in arguments.batches:
        source = sources(size, vocabulary, device)
        lengths = torch.full((size,), arguments.length, device=device)

        def run(source: Tensor = source, lengths: Tensor = lengths) -> object:
            with torch.inference_mode(), autocast(precision, device):
                return search(source, lengths)

        timed(run, device)  # warms up
        seconds = statistics.median(timed(run, device) for _ in range(arguments.rounds))
        row = {
            "device": name,
            "arch": arguments.arch,
            "precision": precision,
            "compiled": arguments.compile,
            "cuda_graphs": arguments.cuda_graphs,
            "beam": arguments.beam,
            "sentences": size,
            "milliseconds": round(1000 * seconds, 1),
            "target_tokens_per_second": round(size * arguments.length / seconds),
        }
        if not arguments.no_profile:
            row["outside_matrix_products"] = round(outside_products(run, device), 3)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
