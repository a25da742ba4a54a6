"""Speed of the data loader alone: sentence pairs a second on one core, without a model.

    python benchmarks/loader.py --seconds 20

The pairs are random tokens with lengths like those of WMT14, unless a dataset is given. Loaders
for packs, for padding, and of updates bucketed by length are measured one after another. 35,000
pairs are about a million target tokens.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from training import synthetic

from nmt.data.dataset import Dataset, Split
from nmt.data.loader import BatchLoader
from nmt.data.sampler import samplers


def speed(
    split: Split, batching: str, packs: bool, tokens: int, seconds: float
) -> dict[str, object]:
    """Return the speed of one kind of loader, after the first update."""
    start = time.perf_counter()
    loader = BatchLoader(
        split=split,
        sampler=samplers[batching](split.source_lengths, split.target_lengths, tokens, 1),
        max_tokens=tokens * 5 // 4,
        packs=packs,
        pinned=torch.cuda.is_available(),
    )
    updates = loader.updates(1)
    next(updates)
    began = time.perf_counter()
    pairs = target_tokens = 0
    while time.perf_counter() - began < seconds:
        update = next(updates)
        pairs += sum(batch.num_sentences for batch in update.batches)
        target_tokens += update.target_tokens
    passed = time.perf_counter() - began
    return {
        "batching": batching,
        "packs": packs,
        "first_update_seconds": round(began - start, 3),
        "pairs_per_second": round(pairs / passed),
        "target_tokens_per_second": round(target_tokens / passed),
    }


def main() -> None:
    """Measures, and prints one JSON object for each kind of loader."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, help="dataset directory; synthetic without")
    parser.add_argument("--pairs", type=int, default=100_000, help="of synthetic data")
    parser.add_argument("--tokens-per-update", type=int, default=25_000)
    parser.add_argument("--seconds", type=float, default=20.0, help="in all")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    kinds = [("random", True), ("random", False), ("bucketed", False)]
    with TemporaryDirectory() as scratch:
        path = arguments.data or synthetic(Path(scratch) / "data", 37000, arguments.pairs)
        split = Dataset.open(path).split("train")
        for batching, packs in kinds:
            measured = speed(
                split, batching, packs, arguments.tokens_per_update, arguments.seconds / len(kinds)
            )
            print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main()
