"""Sequence-level losses: sample translations from the model and reward each one as a whole.

Minimum risk training (Shen et al. 2016), and the expected reward of GNMT (Wu et al. 2016). A
likelihood only knows the reference; these losses also learn from the model's own translations.
Both start from a trained model, because the samples of an untrained model are all equally bad.
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

from nmt.data.batches import Batch, batch_of
from nmt.data.padding import as_rows
from nmt.evaluation.rewards import Reward, rewards
from nmt.models import Model
from nmt.runs import Run
from nmt.search.sample import Sample
from nmt.training.losses.criterion import Criterion
from nmt.training.losses.output_layer import log_probabilities
from nmt.training.losses.token import Loss, losses

MAX_RATIO = 2
"""Greatest length of a sample, as a multiple of its reference's length."""

Tokens = tuple[int, ...]
Decode = Callable[[list[list[int]]], list[str]]


@dataclass(frozen=True, kw_only=True)
class SequenceLoss(Loss):
    """A cost per sentence, computed from the rewards of sampled translations.

    Each update draws new samples from the model, without dropout. A sample is cut at twice the
    length of the reference.
    """

    translates: ClassVar[bool] = True

    samples: int = 20
    """Translations that are drawn of each sentence."""
    reward: Reward = rewards["gleu"]
    """Reward of a translation."""
    likelihood: float = 0.0
    """Weight of the negative log-likelihood of the reference, which is added."""

    def __post_init__(self) -> None:
        if self.samples < 2:
            raise ValueError(f"samples must be at least 2, not {self.samples}")
        if self.likelihood < 0.0:
            raise ValueError(f"likelihood must not be negative, is {self.likelihood}")

    def for_language(self, target_lang: str) -> SequenceLoss:
        """Return the loss with the reward's settings for a target language."""
        return replace(self, reward=self.reward.for_language(target_lang))

    @property
    def rows_per_sentence(self) -> int:
        """Return the number of samples plus one, for the reference."""
        return self.samples + 1

    def criterion(self, model: Model, run: Run, compile: bool = False) -> Criterion:
        """Return the criterion that samples, rewards and scores translations."""
        return SequenceCriterion(model, self, run.subwords.decode_target, compile)

    @abstractmethod
    def cost(self, log_probabilities: Tensor, candidates: Candidates) -> Tensor:
        """Return the cost of each sentence: [B] float32.

        Args:
            log_probabilities: of whole candidates, [B, C] float32; 0 without a candidate.
            candidates: the candidates, with counts and rewards [B, C].
        """


@losses.register("minimum_risk")
@dataclass(frozen=True, kw_only=True)
class MinimumRisk(SequenceLoss):
    """Minimum risk training (Shen et al. 2016): the expectation of 1 - reward over candidates.

    The candidates are the distinct samples and the reference. Their probabilities are the model's,
    to the power of `sharpness`, normalised over the candidates. The authors take 100 samples and
    smoothed sentence BLEU.
    """

    sharpness: float = 0.005
    """Exponent of probabilities (the authors' alpha); 0 would make all candidates equal."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sharpness <= 0.0:
            raise ValueError(f"sharpness must be more than 0, is {self.sharpness}")

    def cost(self, log_probabilities: Tensor, candidates: Candidates) -> Tensor:
        """Return the risk of each sentence, from 0 to 1: [B] float32."""
        powers = self.sharpness * log_probabilities
        # Renormalised over the candidates: the sum over all translations cannot be computed.
        shares = powers.masked_fill(~candidates.exist, -math.inf).softmax(-1)
        return (shares * (1 - candidates.rewards)).sum(-1)


@losses.register("expected_reward")
@dataclass(frozen=True, kw_only=True)
class ExpectedReward(SequenceLoss):
    """The expected reward of a sample, maximised by policy gradient (Wu et al. 2016).

    The weight of a sample's gradient is its reward minus the mean reward of its sentence's samples.
    The default values are GNMT's.
    """

    samples: int = 15
    """Translations that are drawn of each sentence."""
    likelihood: float = 0.017
    """Weight of the negative log-likelihood of the reference, which is added."""

    def cost(self, log_probabilities: Tensor, candidates: Candidates) -> Tensor:
        """Return 1 - mean reward, [B] float32 from 0 to 1; its gradient is the policy gradient."""
        shares = candidates.counts / self.samples
        # A baseline changes no expectation, but makes the gradient vary less.
        mean = (shares * candidates.rewards).sum(-1, keepdim=True)
        ratios = (log_probabilities - log_probabilities.detach()).exp()  # 1, with a gradient
        return 1 - mean[:, 0] - (shares * ratios * (candidates.rewards - mean)).sum(-1)


@dataclass(frozen=True)
class Candidates:
    """Distinct translations of B sentences, at most C of each, the reference first."""

    tokens: list[list[Tokens]]
    """Translations of each sentence; each ends with EOS, except a sample that was cut."""
    exist: Tensor  # [B, C] bool, True for a translation
    counts: Tensor  # [B, C] int64, how often each was sampled
    rewards: Tensor  # [B, C] float32, 0 without a translation

    def batch(self, source: Tensor) -> Batch:
        """Return a batch of all N translations with their sources, given sources [B, S]."""
        target = as_rows([row for translations in self.tokens for row in translations])
        sources = source.repeat_interleave(self.exist.sum(1), 0)
        return batch_of(sources.cpu(), target).to(source.device)

    def table(self, values: Tensor) -> Tensor:
        """Return the values [N] of all translations as a table [B, C], 0 without a translation."""
        return values.new_zeros(self.exist.shape).masked_scatter(self.exist, values)


class SequenceCriterion(Criterion):
    """Samples translations, and makes them likelier or less likely according to their rewards."""

    def __init__(
        self, model: Model, loss: SequenceLoss, decode: Decode, compile: bool = False
    ) -> None:
        """Combine a model and a sequence-level loss.

        Args:
            model: the model to sample from and to train.
            loss: the number of samples, their reward, and their cost.
            decode: maps the ids of translations to text.
            compile: whether the model is compiled with ``torch.compile``, layer by layer.
        """
        super().__init__(model, compile)
        self.loss = loss
        self.decode = decode

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the summed "loss" and "reward" of sentences, and the "nll" of their references."""
        candidates = self.draw_candidates(batch)
        source = batch.packing.source.pad(batch.source)
        log_probabilities = candidates.table(self._score(candidates.batch(source)))
        is_sentence = candidates.counts.any(1)  # False for the rows of an empty batch
        cost = self.loss.cost(log_probabilities, candidates)[is_sentence].sum()
        nll = -log_probabilities[:, 0].sum()
        return {
            "loss": cost + self.loss.likelihood * nll,
            "nll": nll.detach(),
            "reward": (candidates.counts * candidates.rewards).sum() / self.loss.samples,
        }

    def draw_candidates(self, batch: Batch) -> Candidates:
        """Return the reference and the samples of each sentence; no samples for an empty batch."""
        lengths = batch.packing.target.lengths.tolist()
        references = [
            tuple(row.tolist()) for row in torch.split(batch.target_output.cpu(), lengths)
        ]
        nothing = [Counter[Tokens]() for _ in references]
        samples = self._sample(batch) if len(batch.target_output) else nothing
        # The reference is always a candidate, even if it was never sampled.
        counts = [
            {reference: 0} | sampled for reference, sampled in zip(references, samples, strict=True)
        ]
        tokens = [list(translations) for translations in counts]
        return Candidates(
            tokens,
            exist=as_rows([[True] * len(row) for row in tokens], False).to(batch.source.device),
            counts=as_rows([list(row.values()) for row in counts], 0).to(batch.source.device),
            rewards=as_rows(self._rewards(tokens), 0.0).to(batch.source.device),
        )

    def _rewards(self, tokens: list[list[Tokens]]) -> list[list[float]]:
        """Return the reward of each translation; each sentence's first one is its reference."""
        decoded = iter(self.decode([list(row) for translations in tokens for row in translations]))
        by_sentence = [list(islice(decoded, len(translations))) for translations in tokens]
        return [[self.loss.reward(text, texts[0]) for text in texts] for texts in by_sentence]

    def _sample(self, batch: Batch) -> list[Counter[Tokens]]:
        """Return the count of each sampled translation, for each sentence."""
        strategy = Sample(samples=self.loss.samples, seed=self.sampling_seed)
        source, target = batch.packing.source, batch.packing.target
        max_lengths = MAX_RATIO * torch.from_numpy(target.lengths).to(batch.source.device)
        was_training = self.model.training
        # Samples come from the model as it translates, without dropout.
        self.model.eval()
        with torch.no_grad():
            by_sentence = strategy.search(self.model, source.pad(batch.source), max_lengths)
        self.model.train(was_training)
        torch.clear_autocast_cache()  # it holds weights cast without a gradient
        return [Counter(tuple(sample.output) for sample in samples) for samples in by_sentence]

    def _score(self, rows: Batch) -> Tensor:
        """Return the log-probability of each translation: [N] float32."""
        decoder_output = self.decoder_output(rows.source, rows.target_input, rows.packing)
        by_token = log_probabilities(decoder_output, self.model.output, rows.target_output)
        return rows.packing.target.pad(by_token).sum(1)
