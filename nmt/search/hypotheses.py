"""Hypotheses: one as a list of tokens, or all hypotheses of a batch as tensors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nmt.data.vocabulary import BOS, EOS, PAD, UNK
from nmt.lazy import F, torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Hypothesis:
    """One output of a search."""

    tokens: list[int]
    """Target ids, without BOS and EOS."""

    log_probability: float
    """Natural logarithm, summed over the tokens and, where finished, the EOS."""

    score: float
    """Ranking score: the log-probability after any length penalty and coverage penalty; with
    `search.mbr` the expected utility, in per cent."""

    finished: bool
    """Whether the hypothesis ended with EOS; otherwise it was cut at the maximum length."""

    @property
    def output(self) -> list[int]:
        """Target ids, with EOS if the hypothesis is finished."""
        return [*self.tokens, EOS] if self.finished else self.tokens


@dataclass(frozen=True)
class Hypotheses:
    """R sequences for each of B sentences."""

    tokens: Tensor  # [B, R, T] int64, BOS first, PAD after EOS
    log_probabilities: Tensor  # [B, R] float32
    scores: Tensor  # [B, R] float32; minus infinity where there is no sequence

    @classmethod
    def open(cls, source: Tensor) -> Hypotheses:
        """Return one row per sentence, which contains only BOS."""
        tokens = source.new_full((len(source), 1, 1), BOS)
        zeros = torch.zeros(tokens.shape[:2], device=source.device)
        # Both fields may share a tensor, because no method writes into them.
        return cls(tokens, zeros, zeros)

    def extend(
        self,
        tokens: Tensor,
        log_probabilities: Tensor,
        scores: Tensor,
        parents: Tensor | None = None,
    ) -> Hypotheses:
        """Append one token to each row, or to the rows `parents`; all arguments are [B, R']."""
        before = self.tokens
        if parents is not None:
            before = before.gather(1, parents[..., None].expand(-1, -1, before.size(-1)))
        longer = torch.cat((before, tokens[..., None]), dim=-1)
        return replace(self, tokens=longer, log_probabilities=log_probabilities, scores=scores)

    @property
    def length(self) -> int | Tensor:
        """Number of tokens of each row, with BOS and padding: T, or a tensor [1] int64."""
        return self.tokens.size(-1)

    def padded(self) -> Hypotheses:
        """Append padding to each row."""
        return replace(self, tokens=F.pad(self.tokens, (0, 1), value=PAD))

    def take(self, index: Tensor) -> Hypotheses:
        """Select the rows `index` [B, R'] of each sentence."""
        # expand copies nothing.
        wide = index[..., None].expand(-1, -1, self.tokens.size(-1))
        return replace(
            self,
            tokens=self.tokens.gather(1, wide),
            log_probabilities=self.log_probabilities.gather(1, index),
            scores=self.scores.gather(1, index),
        )

    def select_sentences(self, sentences: Tensor) -> Hypotheses:
        """Select all rows of the given sentences: indices [B'] int64."""
        return replace(
            self,
            tokens=self.tokens[sentences],
            log_probabilities=self.log_probabilities[sentences],
            scores=self.scores[sentences],
        )

    def without(self, pruned: Tensor) -> Hypotheses:
        """Set scores and log-probabilities to minus infinity where `pruned` [B, R] is True."""
        never = float("-inf")
        return replace(
            self,
            log_probabilities=self.log_probabilities.masked_fill(pruned, never),
            scores=self.scores.masked_fill(pruned, never),
        )

    def hypotheses(self) -> list[list[Hypothesis]]:
        """Return the rows of each sentence in order, without rows scored minus infinity."""
        sentences = zip(
            self.tokens.tolist(),
            self.log_probabilities.tolist(),
            self.scores.tolist(),
            strict=True,
        )
        lists: list[list[Hypothesis]] = []
        for sentence in sentences:
            lists.append([])
            for tokens, log_probability, score in zip(*sentence, strict=True):
                if score > float("-inf"):
                    finished = EOS in tokens
                    # Rows of a batch are equally long: after EOS there is only padding.
                    end = tokens.index(EOS) if finished else len(tokens)
                    output = tokens[tokens.index(BOS) + 1 : end]
                    lists[-1].append(Hypothesis(output, log_probability, score, finished))
        return lists


def best_first(hypotheses: Iterable[Hypothesis], count: int) -> list[Hypothesis]:
    """Sort hypotheses by score, finished ones first.

    Cut hypotheses are returned only if fewer than `count` are finished.
    """
    # A cut output has no probability of its end, so its score looks better than it is.
    ranked = sorted(hypotheses, key=lambda hypothesis: (not hypothesis.finished, -hypothesis.score))
    finished = sum(hypothesis.finished for hypothesis in ranked)
    return ranked[:finished] if finished >= count else ranked


@dataclass(frozen=True)
class Continuations:
    """The tokens that may follow each row."""

    log_probabilities: Tensor
    """[B, K, V] float32, from the model; minus infinity for tokens that may not follow, such as PAD
    and BOS."""

    @classmethod
    def from_logits(cls, logits: Tensor) -> Continuations:
        """Normalise the model's logits: [B, K, V] of any floating dtype."""
        # On a CPU log_softmax takes half the time of logsumexp, though it writes all values.
        log_probabilities = logits.log_softmax(-1, dtype=torch.float32)
        # One slice with a step sets PAD and BOS in a single operation.
        log_probabilities[..., PAD : BOS + 1 : BOS - PAD] = float("-inf")
        return cls(log_probabilities)

    def likeliest(self, count: int) -> tuple[Tensor, Tensor]:
        """Return the likeliest tokens of each row.

        Args:
            count: number of tokens per row.

        Returns:
            float32 log-probabilities and int64 tokens, both [B, K, C]: the `count` likeliest
            tokens, or the whole vocabulary. If more tokens are as likely as the last of these, any
            of them are returned. Tokens ascend, so that a caller that takes the first of equals
            takes the lowest id of those returned. A token that may not follow is replaced by UNK
            with minus infinity.
        """
        values, tokens = top(self.log_probabilities, min(count, self.log_probabilities.size(-1)))
        # By id, so that a later stable sort breaks ties by the lowest id: topk promises no order.
        tokens, order = tokens.sort(-1)  # [B, K, C]
        values = values.gather(-1, order)
        return values, tokens.masked_fill(values.isneginf(), UNK)

    def of_tokens(self, tokens: Tensor) -> Tensor:
        """Return the log-probability of one token per row, [B, K'] float32.

        Args:
            tokens: [B, K'] int64; K' equals K unless K is 1.
        """
        log_probabilities = self.log_probabilities.expand(-1, tokens.size(1), -1)
        return log_probabilities.gather(-1, tokens[..., None])[..., 0]


BLOCK = 64
"""Width of the blocks of which :func:`top` first takes the maxima: a few of the widest vectors."""

FEW = 1 << 16
"""Number of values up to which a CPU finds the largest ones sooner without blocks."""


def top(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest values along the last dimension and their indices, like ``topk``.

    On a CPU this takes from a quarter to three quarters of the time of ``topk``.
    """
    is_small = values.numel() <= FEW and not values.is_cuda
    # For narrow rows finding the maxima of blocks costs more than it saves.
    if is_small or values.size(-1) < 2 * BLOCK * count:
        return values.topk(count)
    return top_by_blocks(values, count, are_strided=values.is_cuda)


def top_by_blocks(values: Tensor, count: int, are_strided: bool) -> tuple[Tensor, Tensor]:
    """Return what :func:`top` does: the largest values lie in the blocks with the largest maxima.

    Args:
        values: [..., V], with more than `count` blocks.
        count: number of values.
        are_strided: whether the values of a block lie apart. A GPU then finds the maxima in a
            seventh of the time, because neighbouring threads read neighbouring values; a CPU takes
            longer.
    """
    width = values.size(-1)
    blocks = width // BLOCK
    whole = blocks * BLOCK  # the last values, too few for a block, are searched in any case
    shape, axis, step, stride = (blocks, BLOCK), -1, BLOCK, 1
    if are_strided:
        shape, axis, step, stride = (BLOCK, blocks), -2, 1, blocks
    maxima = values[..., :whole].view(*values.shape[:-1], *shape).amax(axis)  # [..., n]
    # Unsorted, because the second topk sorts what it finds.
    chosen = maxima.topk(count, sorted=False).indices * step  # [..., count]
    inside = torch.arange(0, BLOCK * stride, stride, device=values.device)
    last = torch.arange(whole, width, device=values.device)
    places = (chosen[..., None] + inside).flatten(-2)
    places = torch.cat((places, last.expand(*places.shape[:-1], -1)), -1)
    largest, at = values.gather(-1, places).topk(count)
    return largest, places.gather(-1, at)
