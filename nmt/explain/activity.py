"""Gates and states of layers without attention, made small enough for a page."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from nmt.models.recorded_activity import ActivityMap

FEATURES = 64
"""Most columns of a heat map; neighbouring features are averaged."""


@dataclass(frozen=True)
class Activity:
    """One layer in one sentence of T tokens; the first fields are those of `ActivityMap`."""

    kind: str
    layer: int
    name: str
    reach: tuple[int, int] | None
    mean: Tensor
    """[T], over all features."""
    norm: Tensor
    """[T], Euclidean."""
    features: Tensor
    """[T, at most `FEATURES`], means of neighbouring features."""
    similarity: Tensor
    """[T, T], cosine of the vectors of two tokens."""


def activity(part: ActivityMap) -> Activity:
    """Return what a page shows of the map of a single sentence without padding."""
    values = part.values[0].float()
    width = min(FEATURES, values.shape[1])
    directions = F.normalize(values, dim=-1)
    return Activity(
        part.kind,
        part.layer,
        part.name,
        part.reach,
        values.mean(-1),
        values.norm(dim=-1),
        F.adaptive_avg_pool1d(values[None], width)[0],
        directions @ directions.T,
    )
