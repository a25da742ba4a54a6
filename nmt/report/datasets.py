"""Facts about the dataset of a run, where it is still there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nmt.data.dataset import Dataset
from nmt.data.manifest import SIDES
from nmt.data.statistics import length_statistics, tokens_in_use
from nmt.errors import NmtError
from nmt.runs import Run


def dataset_of(run: Run) -> Dataset:
    """Return the dataset that a run was trained on.

    Raises:
        NmtError: it is not at the path that the recipe names, or it has changed.
    """
    path = Path(str(run.recipe.get("train", {}).get("data")))
    dataset = Dataset.open(path)
    if dataset.manifest.fingerprint != run.data:
        raise NmtError(f"{path}: another dataset than the one that {run.path} was trained on")
    return dataset


def facts(dataset: Dataset) -> dict[str, Any]:
    """Return plain values about a dataset: its splits, what cleaning did, and its vocabulary."""
    manifest = dataset.manifest
    train = manifest.splits["train"]
    return {
        "path": str(dataset.path),
        "fingerprint": manifest.fingerprint,
        "languages": [manifest.language(side) for side in SIDES],
        "splits": {
            name: {
                "pairs": counts.pairs,
                "tokens": [counts.source_tokens, counts.target_tokens],
                "unknown": [counts.source_unknown, counts.target_unknown],
                "lengths": [
                    vars(lengths) if (lengths := length_statistics(dataset, name, side)) else None
                    for side in SIDES
                ],
            }
            for name, counts in manifest.splits.items()
        },
        "dropped": {reason: count for reason, count in train.dropped.items() if count},
        "rewritten": {step: count for step, count in train.rewritten.items() if count},
        "examples": {reason: list(map(list, pairs)) for reason, pairs in train.examples.items()},
        "vocabulary": {
            "shared": manifest.shared_vocabulary,
            "sizes": [manifest.vocabulary(side) for side in SIDES],
            "in_use": [tokens_in_use(dataset, side) for side in SIDES],
        },
    }
