"""Quality of translations: metrics, each with a signature of its settings and versions."""

from nmt.evaluation.comet import Comet
from nmt.evaluation.error_rates import PhoneErrorRate, WordErrorRate
from nmt.evaluation.metrics import Metric, PaperBleu, Score, ScoreConfig

__all__ = [
    "Comet",
    "Metric",
    "PaperBleu",
    "PhoneErrorRate",
    "Score",
    "ScoreConfig",
    "WordErrorRate",
]
