"""Quality of translations: metrics, each with a signature of its settings and versions."""

import nmt.evaluation.sacre_log  # noqa: F401 -- handles sacreBLEU's warnings
from nmt.evaluation.comet import Comet
from nmt.evaluation.metrics import Metric, Score, ScoreConfig
from nmt.evaluation.paper import PaperBleu

__all__ = ["Comet", "Metric", "PaperBleu", "Score", "ScoreConfig"]
