"""Training throughput: this engine, a plain PyTorch loop, and the machine's ceiling, in one run.

    python benchmarks/training.py --data data-bin --set model.arch=transformer_base

The engine and a plain loop around ``torch.nn.Transformer`` of the same sizes take turns on the same
batches, so that a noisy machine is noisy for both; medians over the rounds are compared. Without a
dataset, sentences of random tokens with WMT14-like lengths are made.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor, nn

from nmt.cli.recipe import load
from nmt.config import build
from nmt.data.batching import Batch, Update
from nmt.data.format import PAD, Dataset, DatasetWriter, Sentences, staging
from nmt.distributed import World, pick_device
from nmt.models import ModelConfig
from nmt.models.transformer import TransformerConfig
from nmt.precision import autocast, pick_precision
from nmt.training.trainer import TrainConfig, Trainer

SYNTHETIC_PAIRS = 100_000


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
                loss = self.loss(self.logits(batch).flatten(0, 1), batch.target_output.flatten())
            (loss / update.target_tokens).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def logits(self, batch: Batch) -> Tensor:
        """Logits [B, T, V]."""
        scale = math.sqrt(self.config.d_model)
        causal = nn.Transformer.generate_square_subsequent_mask(
            batch.target_input.shape[1], device=self.world.device
        )
        padding = torch.zeros(batch.source.shape, device=self.world.device)
        padding = padding.masked_fill(batch.source == PAD, float("-inf"))
        states = self.transformer(
            self.embedding(batch.source) * scale,
            self.embedding(batch.target_input) * scale,
            tgt_mask=causal,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return states @ self.embedding.weight.t()


def main() -> None:
    """Measures, and prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, help="dataset directory; synthetic without")
    parser.add_argument("--vocabulary", type=int, default=37000, help="of synthetic data")
    parser.add_argument("--config", type=Path, help="recipe")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--rounds", type=int, default=6, help="turns of each side")
    parser.add_argument("--updates", type=int, default=5, help="updates per turn")
    arguments = parser.parse_args()
    recipe = load(arguments.config, arguments.set, {}, base={"model": {"arch": "transformer_base"}})
    model_config = build(ModelConfig, recipe.section("model"), "model")
    assert isinstance(model_config, TransformerConfig), "the plain loop is a Transformer"
    train_config = build(TrainConfig, recipe.section("train"), "train")
    world = World(device=pick_device(train_config.device))
    with TemporaryDirectory() as scratch:
        path = arguments.data or synthetic(Path(scratch) / "data", arguments.vocabulary)
        result = measure(
            model_config,
            train_config,
            Dataset.open(path),
            world,
            arguments.rounds,
            arguments.updates,
        )
    print(json.dumps(result, indent=1))


def measure(
    model_config: TransformerConfig,
    config: TrainConfig,
    dataset: Dataset,
    world: World,
    rounds: int,
    updates: int,
) -> dict[str, object]:
    """Target tokens per second and peak memory of both sides, and the share of the ceiling."""
    torch.manual_seed(config.seed)
    vocabulary = dataset.manifest.source_vocabulary
    model = model_config.build(vocabulary, vocabulary, True).to(world.device)
    split = dataset.split("train")
    trainer = Trainer(None, config, model, split, world)  # type: ignore[arg-type]
    model.train()
    plain = Plain(model_config, config, vocabulary, world)
    stream = trainer.feed.updates(1)
    sides: dict[str, Callable[[Update], object]] = {
        "engine": lambda update: trainer._step(update, 1e-4),
        "plain": plain.step,
    }
    speeds: dict[str, list[float]] = {name: [] for name in sides}
    memory: dict[str, float] = {}
    for round_ in range(rounds + 1):
        work = list(islice(stream, updates))
        for name, step in sides.items():
            seconds, megabytes = timed(step, work, world)
            if round_:  # the first round warms up
                speeds[name].append(sum(update.target_tokens for update in work) / seconds)
                memory[name] = max(memory.get(name, 0.0), megabytes)
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    peak = ceiling(model_config, config, world)
    source_share = float(split.source_lengths.sum() / split.target_lengths.sum())
    flops = 6 * weights_touched(model_config, vocabulary, source_share)
    return {
        "device": torch.cuda.get_device_name() if world.device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "precision": pick_precision(config.precision, world.device),
        "parameters": model.num_parameters(),
        "tokens_per_update": config.tokens_per_update,
        "target_tokens_per_second": {name: round(value) for name, value in medians.items()},
        "range": {name: [round(min(v)), round(max(v))] for name, v in speeds.items()},
        "engine_over_plain": round(medians["engine"] / medians["plain"], 2),
        "peak_memory_mb": {name: round(value) for name, value in memory.items()},
        "model_gflop_per_target_token": round(flops / 1e9, 4),
        "matrix_gflop_per_second": round(peak / 1e9),
        "engine_share_of_matrix_ceiling": round(medians["engine"] * flops / peak, 3),
    }


def timed(
    step: Callable[[Update], object], work: list[Update], world: World
) -> tuple[float, float]:
    """Seconds that the updates take, and on a GPU the peak of megabytes meanwhile."""
    on_gpu = world.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
    start = time.perf_counter()
    for update in work:
        step(update)
    if on_gpu:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    return seconds, torch.cuda.max_memory_allocated() / 1e6 if on_gpu else 0.0


def weights_touched(config: TransformerConfig, vocabulary: int, source_share: float) -> float:
    """Weights in matrix products per target token, with `source_share` source tokens to it."""
    attention = 4 * config.d_model**2
    feed_forward = 2 * config.d_model * config.d_ff
    encoder = config.encoder_layers * (attention + feed_forward)
    # A decoder layer's keys and values of the memory are made per source token.
    memory = config.decoder_layers * attention / 2
    decoder = config.decoder_layers * (1.5 * attention + feed_forward)
    return source_share * (encoder + memory) + decoder + vocabulary * config.d_model


def ceiling(config: TransformerConfig, train: TrainConfig, world: World) -> float:
    """FLOP/s of the model's own feed-forward product, the median of 20."""
    low = pick_precision(train.precision, world.device) == "bf16"
    dtype = torch.bfloat16 if low else torch.float32
    rows = min(train.max_tokens, train.tokens_per_update)
    a = torch.randn(rows, config.d_model, dtype=dtype, device=world.device)
    b = torch.randn(config.d_model, config.d_ff, dtype=dtype, device=world.device)
    times = []
    for _ in range(25):
        if world.device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        _ = a @ b
        if world.device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return 2 * rows * config.d_model * config.d_ff / statistics.median(times[5:])


def synthetic(path: Path, vocabulary: int) -> Path:
    """A dataset of random tokens whose lengths are distributed like those of WMT14 en-de."""
    random = np.random.default_rng(1)
    target = np.clip(random.lognormal(3.2, 0.55, SYNTHETIC_PAIRS), 1, 200).astype(int)
    source = np.clip(target * random.normal(0.97, 0.15, SYNTHETIC_PAIRS), 1, 200).astype(int)

    def sentences(lengths: np.ndarray) -> Iterator[list[int]]:
        for length in lengths:
            yield random.integers(4, vocabulary, length).tolist()

    with staging(path) as directory:
        writer = DatasetWriter(
            directory, languages=("en", "de"), vocabularies=(vocabulary, vocabulary)
        )
        with writer.split("train") as split:
            split.append(
                Sentences.of(list(sentences(source))), Sentences.of(list(sentences(target)))
            )
        writer.finish(shared_vocabulary=True, recipe={})
    return path


if __name__ == "__main__":
    main()
