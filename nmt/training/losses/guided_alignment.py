"""Guided alignment: attention to the source is trained towards given word alignments.

Chen et al. 2016 (*Guided Alignment Training for Topic-Aware Neural Machine Translation*) add the
cross-entropy between alignments and attention to the loss; Garg et al. 2019 (*Jointly Learning to
Align and Translate with Transformer Models*) do so for one head of one layer. A target token whose
word has links should attend equally to all source tokens of the words that it is linked to. Other
target tokens, and the end of the sentence, attend to what they like.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.data.batches import Batch, TokenLinks
from nmt.data.columns import RaggedArray
from nmt.data.dataset import Split
from nmt.data.packing import Packing
from nmt.data.sampler import Indices
from nmt.data.vocabulary import PAD
from nmt.errors import NmtError
from nmt.preprocess.links import words_of_subwords
from nmt.subwords.subwords import Subwords
from nmt.training.losses.criterion import Criterion

MIN_ATTENTION = 1e-30
"""Least attention whose logarithm is taken."""


@dataclass(frozen=True)
class WordLinks:
    """Converts the word alignments of a split to links between the tokens of a batch.

    The words are found in the tokens of the batch, so subwords may be sampled anew in each epoch.
    """

    split: Split
    subwords: Subwords

    def __post_init__(self) -> None:
        if not self.split.has_links:
            raise NmtError(
                "train.guided_alignment: the dataset has no word alignments; write them with "
                "nmt align, and make the dataset again with nmt preprocess --alignments"
            )

    def __call__(
        self, indices: Indices, source: NDArray[np.int64], target: NDArray[np.int64]
    ) -> TokenLinks:
        """Return the links of the pairs at `indices` [B].

        Args:
            indices: of the pairs in the split.
            source: [B, S], padded on the right.
            target: [B, T], padded on the right.
        """
        links = self.split.links(indices)
        pair = np.repeat(np.arange(len(indices)), links.lengths // 2)
        (sources, s_count), (targets, t_count) = (
            _tokens_of_words(rows, begins, pair, words)
            for rows, begins, words in zip(
                (source, target),
                self.subwords.begins_word,
                links.tokens.reshape(-1, 2).T,
                strict=True,
            )
        )
        sizes = s_count * t_count  # each token of one word is linked to each of the other
        at = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        of_target, of_source = np.divmod(at, np.repeat(s_count, sizes))
        tokens = np.stack(
            (np.repeat(sources, sizes) + of_source, np.repeat(targets, sizes) + of_target)
        )
        if self.subwords.shared:  # each token of a word that is copied is linked to its copy alone
            link, is_diagonal = np.repeat(np.arange(len(sizes)), sizes), of_source == of_target
            is_equal = source[source != PAD][tokens[0]] == target[target != PAD][tokens[1]]
            equal = np.bincount(link[is_equal & is_diagonal], minlength=len(sizes))
            is_copy = (equal == s_count) & (equal == t_count)
            tokens = tokens[:, is_diagonal | ~is_copy[link]]
        # Each target token counts once, however many source tokens it is linked to.
        shares = 1 / np.bincount(tokens[1])[tokens[1]]
        return TokenLinks(torch.from_numpy(tokens), torch.from_numpy(shares.astype(np.float32)))


def _tokens_of_words(
    rows: NDArray[np.int64],
    begins_word: NDArray[np.bool_],
    sentences: NDArray[np.int64],
    words: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first token of each word, by its index without padding, and their number.

    Args:
        rows: [B, L], padded on the right.
        begins_word: whether each id begins a word.
        sentences: [n], the row of each word.
        words: [n], the number of each word in its sentence.
    """
    lengths = (rows != PAD).sum(1)
    numbers = words_of_subwords(RaggedArray(rows[rows != PAD], lengths), begins_word)
    width = rows.shape[1] + 1  # more than any number of words
    numbers[numbers < 0] = width - 1  # the end of the sentence belongs to no word
    keys = np.repeat(np.arange(len(rows)), lengths) * width + numbers
    # Kept below the number that the end of the sentence has: a missing word has no token.
    wanted = sentences * width + np.minimum(words, width - 2)
    # Keys rise, as words do in a sentence and sentences in the batch.
    first = np.searchsorted(keys, wanted)
    return first, np.searchsorted(keys, wanted, "right") - first


class GuidedCriterion(Criterion):
    """Adds the cost of guided alignment to another criterion, from the same forward pass."""

    def __init__(self, criterion: Criterion, weight: float) -> None:
        """Guide the first forward pass of each batch.

        Args:
            criterion: the criterion to add to.
            weight: of the alignment's cross-entropy.
        """
        super().__init__(criterion.model)
        self.criterion = criterion
        self.weight = weight
        self._links = torch.empty(2, 0, dtype=torch.int64)
        self._attention: Tensor | None = None
        # The inner criterion runs the forward pass; this one only listens, so it costs no second
        # pass.
        criterion.decoder_output = self._decode

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the sums of the other criterion, and "alignment" and "linked_tokens"."""
        nothing = torch.empty(2, 0, dtype=torch.int64), torch.empty(0)
        none = TokenLinks(*(part.to(batch.source.device) for part in nothing))
        links = batch.links or none
        self._links, self._attention = links.tokens, None
        sums: dict[str, Tensor] = self.criterion(batch)
        attention: Tensor | None = self._attention
        self._attention = None
        assert attention is not None
        if not len(attention):  # of a layer that was left out, which neither costs nor counts
            links = none
        # Cross-entropy with the links as targets (Chen et al. 2016).
        costs = -links.shares * attention.clamp_min(MIN_ATTENTION).log()
        measured = {"alignment": costs.detach().sum(), "linked_tokens": links.shares.sum()}
        if batch.weights is not None:
            costs = costs * batch.weights[links.tokens[1]]
        return {**sums, "loss": sums["loss"] + self.weight * costs.sum(), **measured}

    def _decode(self, source: Tensor, target: Tensor, packing: Packing) -> Tensor:
        """Return the decoder output; the first one of a batch leaves its attention."""
        if self._attention is not None:
            return self.model.decode_packs(source, target, packing)
        output, self._attention = self.model.decode_links(source, target, packing, self._links)
        return output
