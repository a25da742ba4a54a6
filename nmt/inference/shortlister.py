"""Search among few tokens: those of a shortlist, and those that a sentence has or must have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from nmt.data.shortlist import Shortlist
from nmt.inference.kernels import some_outputs
from nmt.models.base import Model
from nmt.models.ensemble import members_of
from nmt.models.shortlisted import shortlisted
from nmt.runtime.precision import InferencePrecision
from nmt.search import Constraint, Hypothesis, Strategy


class Shortlister:
    """Chooses the tokens of every sentence of a batch."""

    def __init__(
        self, shortlist: Shortlist, model: Model, precision: InferencePrecision = "fp32"
    ) -> None:
        """A shortlister for a model that :func:`nmt.runtime.precision.convert` has not changed yet.

        Args:
            shortlist: of the model's subwords.
            model: or ensemble, whose output layers are kept as they are now.
            precision: what the model computes in.
        """
        self.shortlist = shortlist
        self.model = model
        self.precision = precision
        self._outputs: dict[nn.Module, nn.Linear] = {it: it.output for it in members_of(model)}

    def choose(self, source: Tensor, forced: Tensor) -> ReducedVocabulary:
        """What to search among.

        Args:
            source: [B, S] int64, padded.
            forced: [B, n] int64, padded: tokens that each sentence's outputs must be able to have.
        """
        chosen = self.shortlist.chosen(source.cpu().numpy(), forced.cpu().numpy())
        allowed = torch.from_numpy(chosen).to(source.device)  # [B, V]
        tokens = allowed.any(0).nonzero()[:, 0]
        return ReducedVocabulary(
            tokens, shortlisted(self.model, self._narrow, tokens, allowed[:, tokens])
        )

    def _narrow(self, model: Model, tokens: Tensor) -> nn.Module:
        return some_outputs(self._outputs[model], tokens, self.precision, tokens.device)


@dataclass(frozen=True)
class ReducedVocabulary:
    """The tokens that any sentence of a batch may have, and a model of them."""

    tokens: Tensor
    """Their ids [U] int64, ascending."""

    model: Model
    """To which they are places in `tokens`, and which keeps every sentence to its own."""

    def search(
        self,
        strategy: Strategy,
        source: Tensor,
        max_lengths: Tensor,
        constraints: Sequence[Constraint],
        phrases: Tensor | None,
        count: int = 1,
    ) -> list[list[Hypothesis]]:
        """As :meth:`nmt.search.Strategy.search`, with ids in all that goes in and comes out."""
        few = [constraint.to_reduced_ids(self.tokens) for constraint in constraints]
        if phrases is not None:
            phrases = torch.searchsorted(self.tokens, phrases)
        found = strategy.search(self.model, source, max_lengths, few, phrases, count)
        ids = self.tokens.tolist()
        return [
            [replace(it, tokens=[ids[place] for place in it.tokens]) for it in hypotheses]
            for hypotheses in found
        ]
