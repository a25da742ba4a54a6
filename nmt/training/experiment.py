"""All settings of a training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from nmt.inference.config import SearchConfig
from nmt.models import ModelConfig
from nmt.recipe.config import dump
from nmt.training.config import TrainConfig


@dataclass(frozen=True)
class Experiment:
    """A model, how to train it, and how to validate it."""

    model: ModelConfig
    train: TrainConfig
    search: SearchConfig
    plugins: tuple[str, ...] = ()
    """Modules that registered names used in the sections."""

    def for_language(self, target_lang: str, is_only: bool = True) -> Experiment:
        """Return the experiment with loss and metrics set for a target language.

        Metrics are set later, by direction, if the language is not the only one.
        """
        metrics = self.train.valid_metrics
        if is_only:
            metrics = tuple(metric.for_language(target_lang) for metric in metrics)
        loss = self.train.loss.for_language(target_lang)
        config = replace(self.train, valid_metrics=metrics, loss=loss)
        return replace(self, model=self.model.resolved(), train=config)

    def recipe(self) -> dict[str, Any]:
        """The resolved values, as a recipe file holds them."""
        return {
            "plugins": list(self.plugins),
            "model": dump(self.model),
            "train": dump(self.train),
            "search": dump(self.search),
        }
