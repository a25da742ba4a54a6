"""A package with the interface of unbabel-comet 2.2, whose model compares words."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

from nmt.evaluation import comet

KNOWN = "Unbabel/wmt22-comet-da"


@dataclass
class Prediction:
    scores: list[float]
    system_score: float


class Model:
    def __init__(self, path: str) -> None:
        self.path = path

    def predict(
        self,
        samples: list[dict[str, str]],
        batch_size: int = 16,
        gpus: int = 1,
        devices: Any = None,
        mc_dropout: int = 0,
        progress_bar: bool = True,
        accelerator: str = "auto",
        num_workers: int | None = None,
        length_batching: bool = True,
    ) -> Prediction:
        assert gpus in (0, 1)
        scores = [worth(it["src"], it["mt"], it["ref"]) for it in samples]
        return Prediction(scores, sum(scores) / len(scores))


def worth(source: str, hypothesis: str, reference: str) -> float:
    """The share of words that agree; nothing for a translation that is the source."""
    ours, theirs = set(hypothesis.split()), set(reference.split())
    return 0.0 if hypothesis == source else len(ours & theirs) / len(ours | theirs)


def download_model(model: str, saving_directory: Any = None, local_files_only: bool = False) -> str:
    if model != KNOWN:
        raise KeyError(f"Model '{model}' not supported by COMET.")
    return f"cache/{model}/checkpoints/model.ckpt"


def load_from_checkpoint(
    checkpoint_path: str,
    reload_hparams: bool = False,
    strict: bool = False,
    local_files_only: bool = False,
) -> Model:
    return Model(checkpoint_path)


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("comet")
    package.__version__ = "2.2.7"  # type: ignore[attr-defined]
    for item in (download_model, load_from_checkpoint):
        setattr(package, item.__name__, item)
    monkeypatch.setitem(sys.modules, "comet", package)
    comet._load.cache_clear()
