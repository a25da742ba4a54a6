"""Losses of whole translations: the model translates while it learns, and is told how well it did.

A likelihood knows the reference alone. Here the model's own samples are rewarded, each as a whole:
by minimum risk training (Shen et al. 2016), or by the expected reward of GNMT (Wu et al. 2016).
Both begin with a trained model, for the samples of an untrained one are all equally bad.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from typing import ClassVar

import torch
from torch import Tensor

from nmt.data.batches import Batch, as_rows, batch_of
from nmt.data.vocabulary import PAD
from nmt.evaluation.rewards import Reward, rewards
from nmt.models import Model
from nmt.runs import Run
from nmt.search.sample import Sample
from nmt.training.criterion import Criterion
from nmt.training.fused_loss import log_probabilities
from nmt.training.losses import Loss, losses

MAX_RATIO = 2
"""A sample is cut where it is so many times as long as its reference."""

Tokens = tuple[int, ...]
Decode = Callable[[list[list[int]]], list[str]]


@dataclass(frozen=True, kw_only=True)
class SequenceLoss(Loss):
    """The cost of sampled translations, by their rewards, for each sentence.

    Samples are drawn from the model without dropout, anew in every update, and are cut where they
    are twice as long as the reference.
    """

    translates: ClassVar[bool] = True

    samples: int = 20
    """Translations that are drawn of each sentence."""
    reward: Reward = rewards["gleu"]
    """What makes a translation a good one."""
    likelihood: float = 0.0
    """Weight of the negative log-likelihood of the reference, which is added."""

    def __post_init__(self) -> None:
        if self.samples < 2:
            raise ValueError(f"samples must be at least 2, not {self.samples}")
        if self.likelihood < 0.0:
            raise ValueError(f"likelihood must not be negative, is {self.likelihood}")

    def for_language(self, target_lang: str) -> SequenceLoss:
        """With the reward's settings for the language."""
        return replace(self, reward=self.reward.for_language(target_lang))

    @property
    def rows(self) -> int:
        """The samples and the reference."""
        return self.samples + 1

    def criterion(self, model: Model, run: Run, compile: bool = False) -> Criterion:
        """Samples, rewards, and their cost."""
        return SequenceCriterion(model, self, run.subwords.decode_target, compile)

    @abstractmethod
    def cost(self, log_probabilities: Tensor, candidates: Candidates) -> Tensor:
        """What is minimised for each sentence: [B] float32.

        Args:
            log_probabilities: [B, C] float32, of whole candidates; 0 where there is none.
            candidates: as many, with their rewards.
        """


@losses.register("minimum_risk")
@dataclass(frozen=True, kw_only=True)
class MinimumRisk(SequenceLoss):
    """Minimum risk training (Shen et al. 2016): the mean of 1 - reward over likely translations.

    Those are the different samples and the reference, each as likely among them as the model finds
    it, to the power of `sharpness`. The authors take 100 samples and smoothed sentence BLEU.
    """

    sharpness: float = 0.005
    """Exponent of probabilities (the authors' alpha): less is nearer to all being equal."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sharpness <= 0.0:
            raise ValueError(f"sharpness must be more than 0, is {self.sharpness}")

    def cost(self, log_probabilities: Tensor, candidates: Candidates) -> Tensor:
        """The risk, from 0 to 1."""
        powers = self.sharpness * log_probabilities
        shares = powers.masked_fill(~candidates.exist, -math.inf).softmax(-1)
        return (shares * (1 - candidates.rewards)).sum(-1)


@losses.register("expected_reward")
@dataclass(frozen=True, kw_only=True)
class ExpectedReward(SequenceLoss):
    """The reward that a sample has on average, by policy gradient (Wu et al. 2016).

    A sample is made likelier by as much as its reward is above the mean of its sentence's samples.
    The values are GNMT's.
    """

    samples: int = 15
    """Translations that are drawn of each sentence."""
    likelihood: float = 0.017
    """Weight of the negative log-likelihood of the reference, which is added."""

    def cost(self, log_probabilities: Tensor, candidates: Candidates) -> Tensor:
        """1 - mean reward, from 0 to 1, with the gradient of the expected one."""
        shares = candidates.counts / self.samples
        mean = (shares * candidates.rewards).sum(-1, keepdim=True)
        ratios = (log_probabilities - log_probabilities.detach()).exp()  # 1, with a gradient
        return 1 - mean[:, 0] - (shares * ratios * (candidates.rewards - mean)).sum(-1)


@dataclass(frozen=True)
class Candidates:
    """Different translations of B sentences, at most C of each, the reference first."""

    tokens: list[list[Tokens]]
    """Of each sentence; each ends with EOS, unless it is a sample that was cut."""
    exist: Tensor  # [B, C] bool, which places hold a translation
    counts: Tensor  # [B, C] int64, how often each was sampled
    rewards: Tensor  # [B, C] float32, 0 where there is none

    def batch(self, source: Tensor) -> Batch:
        """All translations, N of them, beside their sources, of sources [B, S]."""
        target = as_rows([tokens for each in self.tokens for tokens in each])
        return batch_of(source.repeat_interleave(self.exist.sum(1), 0), target).to(source.device)

    def table(self, values: Tensor) -> Tensor:
        """The values [N] of all translations as [B, C], 0 where there is none."""
        return values.new_zeros(self.exist.shape).masked_scatter(self.exist, values)


class SequenceCriterion(Criterion):
    """Translations are sampled, rewarded, and made likelier or less likely."""

    def __init__(
        self, model: Model, loss: SequenceLoss, decode: Decode, compile: bool = False
    ) -> None:
        """An objective.

        Args:
            model: which is sampled from, and in whose parameters the gradient will be.
            loss: how many samples, what they are worth, and what that costs.
            decode: from the ids of translations to their text.
            compile: whether the model's states are compiled.
        """
        super().__init__(model, compile)
        self.loss = loss
        self.decode = decode

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The costs of the batch's sentences; the likelihood is that of their references."""
        candidates = self.draw_candidates(batch)
        log_probabilities = candidates.table(self._score(candidates.batch(batch.source)))
        is_sentence = candidates.counts.any(1)  # which those of an empty batch are not
        cost = self.loss.cost(log_probabilities, candidates)[is_sentence].sum()
        nll = -log_probabilities[:, 0].sum()
        penalty = len(batch.target_positions) * self.model.auxiliary_loss()
        return {
            "loss": cost + self.loss.likelihood * nll + penalty,
            "nll": nll.detach(),
            "reward": (candidates.counts * candidates.rewards).sum() / self.loss.samples,
        }

    def draw_candidates(self, batch: Batch) -> Candidates:
        """Samples of every sentence and its reference; no samples where there is no sentence."""
        references = [tuple(row[row != PAD].tolist()) for row in batch.target_output.cpu()]
        nothing = [Counter[Tokens]() for _ in references]
        samples = self._sample(batch) if len(batch.target_positions) else nothing
        counts = [{own: 0} | found for own, found in zip(references, samples, strict=True)]
        tokens = [list(each) for each in counts]
        return Candidates(
            tokens,
            exist=as_rows([[True] * len(each) for each in tokens], False).to(batch.source.device),
            counts=as_rows([list(each.values()) for each in counts], 0).to(batch.source.device),
            rewards=as_rows(self._rewards(tokens), 0.0).to(batch.source.device),
        )

    def _rewards(self, tokens: list[list[Tokens]]) -> list[list[float]]:
        """What every translation is worth, where the first of each sentence is its reference."""
        texts = iter(self.decode([list(row) for each in tokens for row in each]))
        of_sentences = [list(islice(texts, len(each))) for each in tokens]
        return [[self.loss.reward(text, each[0]) for text in each] for each in of_sentences]

    def _sample(self, batch: Batch) -> list[Counter[Tokens]]:
        """How often each translation was sampled, for each sentence."""
        strategy = Sample(samples=self.loss.samples, seed=self.sampling_seed)
        max_lengths = MAX_RATIO * (batch.target_output != PAD).sum(1)
        was_training = self.model.training
        self.model.eval()
        with torch.no_grad():
            found = strategy.search(self.model, batch.source, max_lengths)
        self.model.train(was_training)
        torch.clear_autocast_cache()  # it holds weights that were cast without a gradient
        return [Counter(tuple(it.output) for it in samples) for samples in found]

    def _score(self, rows: Batch) -> Tensor:
        """The log-probability of every translation: [N] float32."""
        states = self.states(rows.source, rows.target_input).flatten(0, 1)  # [N x T, D]
        labels = rows.target_output.flatten()
        log_probs = log_probabilities(
            states.index_select(0, rows.target_positions),
            self.model.output,
            labels.index_select(0, rows.target_positions),
        )
        by_token = log_probs.new_zeros(labels.shape).index_copy(0, rows.target_positions, log_probs)
        return by_token.view(rows.target_output.shape).sum(1)
