"""Training for equal minutes by nmt, a plain PyTorch loop, and transformers' Trainer.

    python benchmarks/same_minutes.py --config examples/classical_chinese/nmt.yaml --minutes 9

One after the other, each side trains a Transformer of the recipe's sizes in the recipe's precision,
with its schedule and label smoothing, and validates as often. nmt is the command ``nmt train``. The
plain loop is that of ``training.py`` with sinusoidal positions, around ``torch.nn.Transformer``;
the Trainer has transformers' MarianMTModel, and needs transformers and accelerate. These two read
the same updates, bucketed by length, each in one padded batch. The loss is of the validation set,
in nats per target token without smoothing; target tokens a second are of all minutes, with data,
validation and saving.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset
from training import Peer, Plain

from nmt.cli.recipe import load
from nmt.data.dataset import Dataset
from nmt.data.loader import BatchLoader
from nmt.data.sampler import BucketSampler
from nmt.data.vocabulary import PAD
from nmt.models import ModelConfig
from nmt.models.transformer.model import TransformerConfig
from nmt.models.transformer.positions import sinusoids
from nmt.recipe.config import build
from nmt.runtime.distributed import World, join
from nmt.runtime.precision import autocast
from nmt.training.config import TrainConfig


class WithPositions(Plain):
    """The plain loop with the paper's positions, which a test of speed does not need."""

    def __post_init__(self) -> None:
        super().__post_init__()
        table = sinusoids(1024, self.config.d_model).to(self.world.device)
        # The embeddings are scaled by their user, and the positions are not.
        table /= self.config.d_model**0.5
        self.embedding.register_forward_hook(lambda _, args, x: x + table[: args[0].shape[1]])


@dataclass
class Rival:
    """A training of another kind, for some minutes."""

    model: TransformerConfig
    train: TrainConfig
    data: Dataset
    minutes: float
    world: World
    kind: type[Plain]
    losses: list[tuple[float, float]] = field(default_factory=list)
    """Minutes since the start, and the loss of the validation set then."""
    target_tokens: int = 0

    def __post_init__(self) -> None:
        torch.manual_seed(self.train.seed)
        vocabulary = self.data.manifest.source_vocabulary
        self.loop = self.kind(self.model, self.train, vocabulary, self.world)
        self.start = time.monotonic()

    def loader(self, split: str) -> BatchLoader:
        """Return the updates of a split, each of one batch."""
        part = self.data.split(split)
        lengths = part.source_lengths, part.target_lengths
        size = self.train.tokens_per_update
        order = BucketSampler(*lengths, size, self.train.seed)
        return BatchLoader(split=part, sampler=order, max_tokens=16 * size)

    def has_ended(self, update: int) -> bool:
        """Whether the minutes are over, after an update; validates now and then."""
        passed = (time.monotonic() - self.start) / 60
        if is_over := passed >= self.minutes or update % self.train.valid_every == 0:
            self.losses.append((round(passed, 2), round(self.loss(), 3)))
        return passed >= self.minutes and is_over

    def loss(self) -> float:
        """Return the loss of the validation set."""
        self.loop.modules.eval()
        nll, tokens = torch.zeros((), device=self.world.device), 0
        loader = self.loader("valid")
        with torch.no_grad(), autocast(self.train.precision, self.world.device):
            for number in range(1, 1 + loader.sampler.updates_per_epoch):
                update = loader.update(number)
                tokens += update.target_tokens
                for batch in update.batches:
                    here = batch.to(self.world.device)
                    target = here.packing.target
                    logits = self.loop.logits(target.pad(here.target_input), here).flatten(0, 1)
                    expected = target.pad(here.target_output).flatten()
                    rules: dict[str, Any] = {"ignore_index": PAD, "reduction": "sum"}
                    nll += nn.functional.cross_entropy(logits.float(), expected, **rules)
        self.loop.modules.train()
        return float(nll) / tokens

    def by_hand(self) -> None:
        """Train with the loop's own steps."""
        for update in self.loader("train").updates(1):
            rate = self.train.schedule.rate(update.number, self.model.d_model, 10**9)
            self.loop.optimizer.param_groups[0]["lr"] = rate
            self.loop.step(update)
            self.target_tokens += update.target_tokens
            if self.has_ended(update.number):
                break

    def by_trainer(self) -> None:
        """Train with transformers' Trainer."""
        from transformers import Trainer, TrainerCallback, TrainingArguments

        rival, device = self, self.world.device

        class Updates(IterableDataset[dict[str, Tensor]]):
            def __iter__(self) -> Iterator[dict[str, Tensor]]:
                for update in rival.loader("train").updates(1):
                    rival.target_tokens += update.target_tokens
                    (batch,) = update.batches
                    source, target = batch.packing.source, batch.packing.target
                    labels = target.pad(batch.target_output)
                    yield {
                        "input_ids": source.pad(batch.source),
                        "attention_mask": source.pad(batch.source) != PAD,
                        "decoder_input_ids": target.pad(batch.target_input),
                        "labels": labels.masked_fill(labels == PAD, -100),
                    }

        class Stop(TrainerCallback):  # type: ignore[misc]
            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                control.should_training_stop = rival.has_ended(state.global_step)

        class Batches(Trainer):  # type: ignore[misc]
            def get_train_dataloader(self) -> DataLoader[Any]:
                return DataLoader(Updates(), batch_size=None)

        schedule = self.train.schedule
        with TemporaryDirectory() as scratch:
            settings = TrainingArguments(
                scratch,
                max_steps=10**6,
                learning_rate=schedule.peak(self.model.d_model),
                lr_scheduler_type="inverse_sqrt",
                warmup_steps=schedule.warmup_updates,
                label_smoothing_factor=0.1,
                bf16=self.train.precision == "bf16",
                use_cpu=device.type == "cpu",
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
            )
            Batches(self.loop.modules, settings, callbacks=[Stop()]).train()


def nmt(arguments: argparse.Namespace, train: TrainConfig) -> dict[str, object]:
    """Train with the command, and return what its log says."""
    with TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        command = [sys.executable, "-m", "nmt", "train", f"--config={arguments.config}"]
        command += [part for value in arguments.set for part in ("--set", value)]
        limits = f"--max-minutes={arguments.minutes}", f"--save-dir={run}"
        subprocess.run([*command, *limits], check=True, stdout=subprocess.DEVNULL)
        records = [*map(json.loads, (run / "log.jsonl").read_text().splitlines())]
    trained = [record for record in records if record["record"] == "train"]
    losses = [it for it in records if it["record"] == "validation"]
    speeds = sorted(record["target_tokens_per_second"] for record in trained)
    updates = losses[-1]["update"]
    return {
        "updates": updates,
        "target_tokens_per_second": round(
            updates * train.tokens_per_update / (60 * arguments.minutes)
        ),
        "target_tokens_per_second_between_validations": round(speeds[len(speeds) // 2]),
        "losses": [(it["update"], round(it["loss"], 3)) for it in losses],
    }


def main() -> None:
    """Train each side, and print one JSON object for each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", type=Path, required=True, help="recipe")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--minutes", type=float, default=9.0, help="of each side")
    parser.add_argument("--sides", nargs="+", default=["nmt", "plain", "trainer"])
    arguments = parser.parse_args()
    recipe = load(arguments.config, arguments.set, {})
    model = build(ModelConfig, recipe.section("model"), "model")  # type: ignore[type-abstract]
    assert isinstance(model, TransformerConfig), "the rivals are Transformers"
    train = build(TrainConfig, recipe.section("train"), "train")
    for side in arguments.sides:
        if side == "nmt":
            print(json.dumps({"side": side, **nmt(arguments, train)}), flush=True)
            continue
        with join(train.device) as world:
            data = Dataset.open(Path(train.data))
            kind = Peer if side == "trainer" else WithPositions
            rival = Rival(model, train, data, arguments.minutes, world, kind)
            rival.by_trainer() if side == "trainer" else rival.by_hand()
            speed = round(rival.target_tokens / (60 * arguments.minutes))
            found = {"target_tokens_per_second": speed, "losses": rival.losses}
            print(json.dumps({"side": side, **found}), flush=True)


if __name__ == "__main__":
    main()
