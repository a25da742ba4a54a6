"""Training throughput: this engine, a plain PyTorch loop, and the machine's ceiling, in one run.

    python benchmarks/training.py --data data-bin --set model.arch=transformer_base

The engine and a plain loop around ``torch.nn.Transformer`` of the same sizes, in processes of their
own, take turns on updates of the same size, so that a noisy machine is noisy for both; medians over
the rounds are compared. With ``--peer`` so does the MarianMTModel of transformers, where it is
installed, in the engine's precision. With ``--bucketed``, ``--padded`` and ``--compiled`` so does
the engine with updates of similar lengths, with padding, and compiled by torch. ``--alone`` leaves
the plain loop out. Without a dataset, sentences of random tokens with WMT14-like lengths are made.

The model's work per target token is 6 FLOP for each weight that a token is multiplied by: 2 forward
and 4 backward. Attention's products of queries, keys and values are not counted. The ceiling is the
measured speed of a plain matrix product in the same precision: on a GPU of square matrices of
8,192, on a CPU of the model's own feed-forward product.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import socket
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from nmt.cli.recipe import load
from nmt.data.batches import Batch
from nmt.data.columns import RaggedArray
from nmt.data.dataset import Dataset
from nmt.data.loader import BatchLoader, Update
from nmt.data.sampler import BucketSampler
from nmt.data.vocabulary import BOS, EOS, PAD
from nmt.data.writer import DatasetWriter, staging
from nmt.models import Model, ModelConfig
from nmt.models.transformer.model import Transformer, TransformerConfig
from nmt.recipe.config import build
from nmt.runtime.distributed import World, join, pick_device
from nmt.runtime.machine import keep_few_kernels, keep_freed_memory
from nmt.runtime.precision import autocast, low_dtype, pick_precision
from nmt.training.config import TrainConfig
from nmt.training.kernel_trial import choose_own_kernels
from nmt.training.reporting.report import peak_memory_mb
from nmt.training.trainer import Trainer

Step = Callable[[Update], object]
"""Trains on one update."""

SYNTHETIC_PAIRS = 100_000
KERNELS = 80
"""Number of kernels that a profile names."""


@dataclass
class Plain:
    """The loop that one writes by hand: nn.Transformer, CrossEntropyLoss, Adam."""

    config: TransformerConfig
    train: TrainConfig
    vocabulary: int
    world: World

    def __post_init__(self) -> None:
        config = self.config
        self.embedding = nn.Embedding(self.vocabulary, config.d_model, padding_idx=PAD)
        nn.init.normal_(self.embedding.weight, std=config.d_model**-0.5)
        self.transformer = nn.Transformer(
            config.d_model,
            config.heads,
            config.encoder_layers,
            config.decoder_layers,
            config.d_ff,
            config.dropout,
            batch_first=True,
        )
        self.modules = nn.ModuleList([self.embedding, self.transformer]).to(self.world.device)
        self.optimizer = torch.optim.Adam(
            self.modules.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9
        )
        self.loss = nn.CrossEntropyLoss(label_smoothing=0.1, ignore_index=PAD, reduction="sum")

    def step(self, update: Update) -> None:
        """One optimizer update."""
        for batch in update.batches:
            batch = batch.to(self.world.device)
            with autocast(self.train.precision, self.world.device):
                target = batch.packing.target
                logits = self.logits(target.pad(batch.target_input), batch)
                loss = self.loss(logits.flatten(0, 1), target.pad(batch.target_output).flatten())
            (loss / update.target_tokens).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def logits(self, target: Tensor, batch: Batch) -> Tensor:
        """Logits [B, T, V] of padded target inputs [B, T]."""
        source = batch.packing.source.pad(batch.source)
        scale = math.sqrt(self.config.d_model)
        causal = nn.Transformer.generate_square_subsequent_mask(
            target.shape[1], device=self.world.device
        )
        padding = torch.zeros(source.shape, device=self.world.device)
        padding = padding.masked_fill(source == PAD, float("-inf"))
        states = self.transformer(
            self.embedding(source) * scale,
            self.embedding(target) * scale,
            tgt_mask=causal,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return states @ self.embedding.weight.t()


class Peer(Plain):
    """The same loop at its best around transformers' MarianMTModel, which must be installed."""

    def __post_init__(self) -> None:
        from transformers import MarianConfig, MarianMTModel

        config = self.config
        sizes = {
            f"{stack}_{name}": value
            for stack in ("encoder", "decoder")
            for name, value in {
                "layers": getattr(config, f"{stack}_layers"),
                "attention_heads": config.heads,
                "ffn_dim": config.d_ff,
            }.items()
        }
        self.modules = MarianMTModel(
            MarianConfig(
                vocab_size=self.vocabulary,
                d_model=config.d_model,
                dropout=config.dropout,
                activation_function="relu",
                scale_embedding=True,
                pad_token_id=PAD,
                decoder_start_token_id=BOS,
                eos_token_id=EOS,
                forced_eos_token_id=EOS,
                **sizes,
            )
        ).to(self.world.device)
        self.modules.train()
        self.optimizer = torch.optim.Adam(
            self.modules.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True
        )
        self.loss = nn.CrossEntropyLoss(label_smoothing=0.1, ignore_index=PAD, reduction="sum")

    def logits(self, target: Tensor, batch: Batch) -> Tensor:
        """Logits [B, T, V] of padded target inputs [B, T]."""
        source = batch.packing.source.pad(batch.source)
        return self.modules(
            input_ids=source,
            attention_mask=source != PAD,
            decoder_input_ids=target,
            use_cache=False,
        ).logits


@dataclass(frozen=True)
class Setting:
    """Settings of every process of the benchmark."""

    model: TransformerConfig
    train: TrainConfig
    data: Path
    threads: int

    def engine(self, world: World) -> tuple[Step, Iterator[Update]]:
        """A step of this engine, and its updates."""
        keep_freed_memory()  # as the command does
        keep_few_kernels()
        dataset, model = self._dataset_and_model()
        model.train()
        split = dataset.split("train")
        trainer = Trainer(None, self.train, model.to(world.device), split, world)  # type: ignore[arg-type]
        if trainer.needs_kernel_trial:  # as the command does
            print(json.dumps({"own_kernels": choose_own_kernels(trainer)}), flush=True)
        return lambda update: trainer.step(update, 1e-4), trainer.loader.updates(1)

    def bucketed(self, world: World) -> tuple[Step, Iterator[Update]]:
        """A step of this engine, and updates of sentences of similar length."""
        return replace(self, train=replace(self.train, batching="bucketed")).engine(world)

    def compiled(self, world: World) -> tuple[Step, Iterator[Update]]:
        """A step of this engine, compiled, and its updates."""
        return replace(self, train=replace(self.train, compile=True)).engine(world)

    def padded(self, world: World) -> tuple[Step, Iterator[Update]]:
        """A step of this engine with padding, and random updates in one micro-batch each."""
        Transformer.decode_packs = Model.decode_packs  # type: ignore[method-assign]
        return self.engine(world)

    def plain(self, world: World, kind: type[Plain] = Plain) -> tuple[Step, Iterator[Update]]:
        """A step of the plain loop, and updates bucketed by length, as such loops have them."""
        dataset, _ = self._dataset_and_model()
        loop = kind(self.model, self.train, dataset.manifest.source_vocabulary, world)
        split = dataset.split("train")
        lengths = split.source_lengths, split.target_lengths
        order = BucketSampler(*lengths, self.train.tokens_per_update, self.train.seed)
        loader = BatchLoader(
            split=split,
            sampler=order,
            max_tokens=4096 if self.train.max_tokens == "auto" else self.train.max_tokens,
            pinned=world.device.type == "cuda",
        )
        return loop.step, loader.updates(1)

    def peer(self, world: World) -> tuple[Step, Iterator[Update]]:
        """A step of the loop around transformers' model, and updates as of the plain loop."""
        return self.plain(world, Peer)

    def _dataset_and_model(self) -> tuple[Dataset, Model]:
        dataset = Dataset.open(self.data)
        torch.manual_seed(self.train.seed)
        vocabulary = dataset.manifest.source_vocabulary
        return dataset, self.model.build(vocabulary, vocabulary, True)


class Side:
    """The processes of one side: they work when they are asked to, and sleep in between."""

    def __init__(self, name: str, setting: Setting, processes: int) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        context = multiprocessing.get_context("forkserver")  # imports torch once
        self.pipes = []
        for rank in range(processes):
            pipe, end = context.Pipe()
            arguments = (name, setting, rank, processes, port, end)
            context.Process(target=work, args=arguments, daemon=True).start()
            self.pipes.append(pipe)

    def turn(self, updates: int) -> tuple[float, float]:
        """Target tokens per second over some updates; peak megabytes of all processes so far.

        No updates end the processes.
        """
        for pipe in self.pipes:
            pipe.send(updates)
        if not updates:
            return 0.0, 0.0
        answers = [pipe.recv() for pipe in self.pipes]
        seconds = max(answer["seconds"] for answer in answers)
        return answers[0]["target_tokens"] / seconds, sum(it["megabytes"] for it in answers)

    def profile(self, updates: int) -> dict[str, object]:
        """The time of an update by kernel on the first process, of a side that has warmed up."""
        for pipe in self.pipes:
            pipe.send(-updates)
        [times, *_] = [pipe.recv() for pipe in self.pipes]
        dearest = list(times.items())[:KERNELS]
        return {
            "milliseconds_of_an_update": round(sum(times.values()) / updates, 2),
            "kernels": [[name[:160], round(spent / updates, 3)] for name, spent in dearest],
        }


def work(
    name: str, setting: Setting, rank: int, size: int, port: int, pipe: Connection[Any, Any]
) -> None:
    """One process of a side."""
    torch.set_num_threads(max(1, setting.threads // size))
    os.environ |= {
        **{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
    }
    with join(setting.train.device) as world:
        step, stream = getattr(setting, name)(world)
        while updates := pipe.recv():
            ready = deque(islice(stream, abs(updates)))
            target_tokens = sum(update.target_tokens for update in ready)
            take = partial(take_all, step, ready)
            if updates < 0:
                pipe.send(profiled(take, world.device))
                continue
            world.barrier()
            start = time.perf_counter()
            take()
            if world.device.type == "cuda":
                torch.cuda.synchronize()
            pipe.send(
                {
                    "seconds": time.perf_counter() - start,
                    "target_tokens": target_tokens,
                    "megabytes": peak_memory_mb(world.device),
                }
            )


def take_all(step: Step, ready: deque[Update]) -> None:
    """Trains on every update and lets go of it, as training does, so that memory peaks alike."""
    while ready:
        step(ready.popleft())


def profiled(run: Callable[[], object], device: torch.device) -> dict[str, float]:
    """Milliseconds of each kernel of a GPU, or operator of a CPU; the most expensive first."""
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * on_gpu]
    with profile(activities=activities) as profiler:
        run()
        if on_gpu:
            torch.cuda.synchronize()
    times: dict[str, float] = {}
    for event in profiler.key_averages():
        is_kernel = event.device_type == (DeviceType.CUDA if on_gpu else DeviceType.CPU)
        is_span = getattr(event, "is_user_annotation", False) or event.key.startswith("Optimizer.")
        if is_kernel and not is_span:
            spent = event.self_device_time_total if on_gpu else event.self_cpu_time_total
            times[event.key] = times.get(event.key, 0.0) + spent / 1e3
    return dict(sorted(times.items(), key=lambda item: -item[1]))


def main() -> None:
    """Measures, and prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, help="dataset directory; synthetic without")
    parser.add_argument("--vocabulary", type=int, default=37000, help="of synthetic data")
    parser.add_argument("--config", type=Path, help="recipe")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--processes", type=int, default=1, help="of the engine's side")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of each side")
    parser.add_argument("--plain-precision", help="of the plain loop [the engine's]")
    parser.add_argument("--peer", action="store_true", help="transformers' MarianMTModel, too")
    parser.add_argument("--alone", action="store_true", help="without the plain loop")
    parser.add_argument("--bucketed", action="store_true", help="train.batching: bucketed, too")
    parser.add_argument("--padded", action="store_true", help="random updates with padding, too")
    parser.add_argument("--compiled", action="store_true", help="train.compile: true, too")
    parser.add_argument("--pairs", type=int, default=SYNTHETIC_PAIRS, help="of synthetic data")
    parser.add_argument("--profile", action="store_true", help="the engine's kernels, too")
    parser.add_argument("--rounds", type=int, default=6, help="turns of each side")
    parser.add_argument("--updates", type=int, default=5, help="updates per turn")
    parser.add_argument("--warm-up", type=int, default=30, help="updates before the first turn")
    arguments = parser.parse_args()
    recipe = load(arguments.config, arguments.set, {}, base={"model": {"arch": "transformer_base"}})
    model = build(ModelConfig, recipe.section("model"), "model")  # type: ignore[type-abstract]
    assert isinstance(model, TransformerConfig), "the plain loop is a Transformer"
    train = build(TrainConfig, recipe.section("train"), "train")
    with TemporaryDirectory() as scratch:
        path = arguments.data or synthetic(
            Path(scratch) / "data", arguments.vocabulary, arguments.pairs
        )
        setting = Setting(model, train, path, arguments.threads)
        low = replace(train, precision=arguments.plain_precision or train.precision)
        sides = {"engine": Side("engine", setting, arguments.processes)}
        if not arguments.alone:
            sides["plain"] = Side("plain", replace(setting, train=low), 1)
        for name in ("bucketed", "padded", "compiled", "peer"):
            if getattr(arguments, name):
                sides[name] = Side(name, setting, 1)
        for side in sides.values():
            side.turn(arguments.warm_up)  # until memory no longer grows with the shapes of batches
        measured = measure(setting, sides, arguments.rounds, arguments.updates)
        if arguments.profile:
            measured["profile"] = sides["engine"].profile(min(3, arguments.updates))
        print(json.dumps(measured, indent=1))
        for side in sides.values():
            side.turn(0)


def measure(
    setting: Setting, sides: dict[str, Side], rounds: int, updates: int
) -> dict[str, object]:
    """Target tokens per second and peak memory of both sides, and the share of the ceiling."""
    device = torch.device(pick_device(setting.train.device))
    torch.set_num_threads(setting.threads)
    speeds: dict[str, list[float]] = {name: [] for name in sides}
    memory: dict[str, float] = {}
    peaks = []
    for _ in range(rounds):
        for name, side in sides.items():
            speed, memory[name] = side.turn(updates)
            speeds[name].append(speed)
        peaks.append(ceiling(setting.model, setting.train, device))
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    split = Dataset.open(setting.data).split("train")
    vocabulary = Dataset.open(setting.data).manifest.source_vocabulary
    source_share = float(split.source_lengths.sum() / split.target_lengths.sum())
    flops = 6 * weights_touched(setting.model, vocabulary, source_share)
    peak = statistics.median(peaks)
    return {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "threads": setting.threads,
        "engine_processes": len(sides["engine"].pipes),
        "precision": pick_precision(setting.train.precision, device),
        "tokens_per_update": setting.train.tokens_per_update,
        "target_tokens_per_second": {name: round(value) for name, value in medians.items()},
        "range": {name: [round(min(v)), round(max(v))] for name, v in speeds.items()},
        "engine_over": {
            name: round(medians["engine"] / value, 2)
            for name, value in medians.items()
            if name != "engine"
        },
        "peak_memory_mb": {name: round(value) for name, value in memory.items()},
        "model_gflop_per_target_token": round(flops / 1e9, 4),
        "matrix_gflop_per_second": round(peak / 1e9),
        "engine_share_of_matrix_ceiling": round(medians["engine"] * flops / peak, 3),
    }


def weights_touched(config: TransformerConfig, vocabulary: int, source_share: float) -> float:
    """Weights in matrix products per target token, with `source_share` source tokens to it."""
    attention = 4 * config.d_model**2
    feed_forward = 2 * config.d_model * config.d_ff
    encoder = config.encoder_layers * (attention + feed_forward)
    # A decoder layer's keys and values of the memory are made per source token.
    memory = config.decoder_layers * attention / 2
    decoder = config.decoder_layers * (1.5 * attention + feed_forward)
    return source_share * (encoder + memory) + decoder + vocabulary * config.d_model


def ceiling(config: TransformerConfig, train: TrainConfig, device: torch.device) -> float:
    """FLOP/s of a matrix product in the precision of training, the median of 20."""
    low = low_dtype(pick_precision(train.precision, device)) or torch.float32
    if device.type == "cuda":
        return square_product(8192, low, device)
    rows = min(4096, train.tokens_per_update)
    a = torch.randn(rows, config.d_model, dtype=low)
    b = torch.randn(config.d_model, config.d_ff, dtype=low)
    times = []
    for _ in range(25):
        start = time.perf_counter()
        _ = a @ b
        times.append(time.perf_counter() - start)
    return 2 * rows * config.d_model * config.d_ff / statistics.median(times[5:])


def square_product(size: int, dtype: torch.dtype, device: torch.device) -> float:
    """FLOP/s of the product of two random square matrices, the median of 20 after a warm-up."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    events = [torch.cuda.Event(enable_timing=True) for _ in range(26)]
    for event in events:
        event.record()
        _ = a @ b
    events[-1].synchronize()
    times = [start.elapsed_time(end) / 1e3 for start, end in pairwise(events)]
    return 2 * size**3 / statistics.median(times[5:])


def synthetic(path: Path, vocabulary: int, pairs: int = SYNTHETIC_PAIRS) -> Path:
    """A dataset of random tokens whose lengths are distributed like those of WMT14 en-de."""
    random = np.random.default_rng(1)
    target = np.clip(random.lognormal(3.2, 0.55, pairs), 1, 200).astype(int)
    source = np.clip(target * random.normal(0.97, 0.15, pairs), 1, 200).astype(int)

    def sentences(lengths: np.ndarray) -> Iterator[list[int]]:
        for length in lengths:
            yield random.integers(4, vocabulary, length).tolist()

    with staging(path) as directory:
        writer = DatasetWriter(
            directory, languages=("en", "de"), vocabularies=(vocabulary, vocabulary)
        )
        with writer.split("train") as split:
            split.append(
                RaggedArray.from_sentences(list(sentences(source))),
                RaggedArray.from_sentences(list(sentences(target))),
            )
        writer.finish(shared_vocabulary=True, recipe={})
    return path


if __name__ == "__main__":
    main()
