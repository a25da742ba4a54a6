"""The sampler that a recipe asks for: which pairs of a split make up each update."""

from __future__ import annotations

from nmt.data.dataset import Split
from nmt.data.direction_sampler import DirectionSampler
from nmt.data.sampler import BatchSampler, samplers
from nmt.data.stages import StageSampler
from nmt.errors import NmtError
from nmt.training.config import TrainConfig


def sampler_of(config: TrainConfig, split: Split) -> BatchSampler:
    """Return the sampler of the training pairs.

    Raises:
        NmtError: the dataset lacks the directions or corpora that the recipe chooses among.
    """
    if config.loss.translates and split.weights is not None:
        raise NmtError(
            f"train.loss: {config.loss.name} samples translations, and the dataset has weights of "
            "pairs, which are for losses of tokens; take another loss or dataset"
        )
    known = split.source_lengths, split.target_lengths, config.tokens_per_update, config.seed
    if config.stages:
        if not split.corpora:
            raise NmtError(
                "train.stages: the corpora of the dataset have no names; give the entries of "
                "preprocess.train a name, and make it again"
            )
        return StageSampler(*known, split.corpora, config.stages)
    if config.direction_temperature == 1:
        return samplers[config.batching](*known)
    if split.directions is None:
        raise NmtError("train.direction_temperature: the dataset has one direction; leave it out")
    return DirectionSampler(*known, split.directions, config.direction_temperature)
