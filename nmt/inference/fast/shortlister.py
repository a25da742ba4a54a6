"""Search in a reduced vocabulary: the tokens of a shortlist, and the forced tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from nmt.data.shortlist import Shortlist
from nmt.inference.fast.kernels import OutputSubsets
from nmt.models.base import Model
from nmt.models.ensemble import members_of, shortlisted
from nmt.runtime.precision import InferencePrecision
from nmt.search import Constraint, Hypothesis, Strategy


class Shortlister:
    """Selects the reduced vocabulary of a batch."""

    def __init__(
        self, shortlist: Shortlist, model: Model, precision: InferencePrecision = "fp32"
    ) -> None:
        """Keep the output layers of a model before the model is converted for inference.

        Args:
            shortlist: shortlist of the model's subwords.
            model: model or ensemble that :func:`nmt.inference.fast.kernels.convert` has not
                converted.
            precision: precision of the computation.
        """
        self.shortlist = shortlist
        self.model = model
        self._outputs: dict[nn.Module, OutputSubsets] = {
            member: OutputSubsets(member.output, precision) for member in members_of(model)
        }

    def choose(self, source: Tensor, forced: Tensor) -> ReducedVocabulary:
        """Select the reduced vocabulary of a batch.

        Args:
            source: [B, S] int64, padded.
            forced: [B, n] int64, padded: tokens that the reduced vocabulary must contain for each
                sentence.
        """
        chosen = self.shortlist.chosen(source.cpu().numpy(), forced.cpu().numpy())
        allowed = torch.from_numpy(chosen).to(source.device)  # [B, V]
        # The union of the batch: one product serves all sentences.
        tokens = allowed.any(0).nonzero()[:, 0]
        return ReducedVocabulary(
            tokens, shortlisted(self.model, self._narrow, tokens, allowed[:, tokens])
        )

    def _narrow(self, model: Model, tokens: Tensor) -> Callable[[Tensor], Tensor]:
        return self._outputs[model].select(tokens)


@dataclass(frozen=True)
class ReducedVocabulary:
    """The tokens of the sentences of a batch, and a model over these tokens."""

    tokens: Tensor
    """Ids of the tokens: [U] int64, ascending. Reduced ids are indices into this tensor."""

    model: Model
    """Model over reduced ids, which masks the tokens outside a sentence's own shortlist."""

    def search(
        self,
        strategy: Strategy,
        source: Tensor,
        max_lengths: Tensor,
        constraints: Sequence[Constraint],
        phrases: Tensor | None,
        count: int = 1,
    ) -> list[list[Hypothesis]]:
        """Search like :meth:`nmt.search.Strategy.search`, but over reduced ids.

        Arguments and results contain vocabulary ids.
        """
        reduced = [constraint.to_reduced_ids(self.tokens) for constraint in constraints]
        if phrases is not None:
            # Forced tokens are always among the tokens, so each is found.
            phrases = torch.searchsorted(self.tokens, phrases)
        results = strategy.search(self.model, source, max_lengths, reduced, phrases, count)
        ids = self.tokens.tolist()
        return [
            [
                replace(hypothesis, tokens=[ids[token] for token in hypothesis.tokens])
                for hypothesis in hypotheses
            ]
            for hypotheses in results
        ]
