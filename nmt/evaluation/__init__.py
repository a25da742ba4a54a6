"""Quality of translations: metrics, and the signature that says exactly what each computed."""

import nmt.evaluation.sacre_log  # noqa: F401 -- which sacreBLEU's warnings go through
from nmt.evaluation.comet import Comet
from nmt.evaluation.metrics import Metric, Score, ScoreConfig
from nmt.evaluation.paper import PaperBleu

__all__ = ["Comet", "Metric", "PaperBleu", "Score", "ScoreConfig"]
