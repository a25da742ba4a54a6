"""Word alignment of a line and its translation by the model's attention, and forced decoding.

Words are divided as the model reads them, in the line and in the detokenised text. A token belongs
to the word in which it begins. In text without spaces between words, the tokens themselves are
aligned.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, get_args

from nmt.data.padding import as_rows, target_input
from nmt.data.vocabulary import BOS
from nmt.errors import NmtError
from nmt.lazy import np, torch
from nmt.subwords.words import WORD, word_starts

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from nmt.models.base import Model

Unit = Literal["words", "tokens", "pieces"]
"""Words are as :mod:`nmt.subwords.words` divides them; tokens are words without punctuation, and
punctuation."""

JOINERS = "\u200c\u200d"
"""Characters that join or divide letters and emoji within a word."""

Links = tuple[tuple[int, int], ...]
"""Aligned units: pairs of the offsets, in source and text, at which both units begin."""


def check_unit(unit: Unit | None) -> None:
    """Raise an NmtError for anything but a unit, or None."""
    if unit is not None and unit not in get_args(Unit):
        raise NmtError(f"aligned: unknown unit {unit!r}; choose words, tokens, pieces or None")


def token_starts(text: str) -> list[int]:
    """Return the offsets at which the tokens of a text begin.

    A token is a run of letters and digits, a run of symbols such as emoji, or one punctuation mark.
    Combining marks and joiners belong to the token before them.
    """
    starts, kind = [], "space"
    for offset, character in enumerate(text):
        before, category = kind, unicodedata.category(character)
        # An accent or a joiner belongs to the letter before it.
        if before != "space" and (category.startswith("M") or character in JOINERS):
            continue
        if not WORD.match(character):
            kind = "space"
        elif character.isalnum() or character == "_":
            kind = "word"
        else:
            kind = "mark" if category.startswith("P") or character.isascii() else "symbol"
        if kind != "space" and (kind != before or kind == "mark"):
            starts.append(offset)
    return starts


def words_of_pieces(
    text: str, offsets: Sequence[int], starts: Sequence[int] | None = None
) -> list[int]:
    """Return the index of the word to which each piece belongs, from 0; -1 for none.

    Args:
        text: as it was encoded or decoded.
        offsets: the offset at which each piece begins; white space before a word belongs to the
            word.
        starts: the offsets at which the words begin; by default as in :mod:`nmt.subwords.words`.
    """
    starts = word_starts(text) if starts is None else starts
    words = []
    for offset in offsets:
        word = WORD.search(text, offset)
        words.append(bisect_right(starts, word.start()) - 1 if word else -1)
    return words


def piece_starts(offsets: Sequence[int]) -> list[int]:
    """Return the offsets at which pieces begin; the bytes of one character share one offset."""
    return sorted({*offsets})


def linked(
    source: str,
    source_offsets: list[int],
    text: str,
    offsets: list[int],
    weights: NDArray[np.float32],
    unit: Unit = "words",
) -> Links:
    """Align each unit of the text with the unit of the source that has the most attention.

    Args:
        source: a line.
        source_offsets: offsets at which the S pieces of the source begin.
        text: translation of the line.
        offsets: offsets at which the T pieces of the text begin.
        weights: [at least T, S' + 1], the attention of each piece of the text to each piece of the
            source. S' is below S if the source was cut; the last column belongs to the EOS.
        unit: units to align.

    Returns:
        The aligned units, in the order of the text.
    """
    (source_starts, of_source), (starts, of_text) = (
        units_of_pieces(line, begins, unit)
        for line, begins in ((source, source_offsets), (text, offsets))
    )
    # Leave out the EOS: it attracts the attention of tokens that have no counterpart.
    columns = np.array(of_source[: weights.shape[1] - 1], np.int64)
    rows = np.array(of_text, np.int64)
    is_word = rows >= 0, columns >= 0
    piece_weights = weights[: len(rows), : len(columns)][is_word[0]][:, is_word[1]]
    rows, columns = rows[is_word[0]], columns[is_word[1]]
    if not piece_weights.size:
        return ()
    sums = np.zeros((len(starts), len(source_starts)))
    # `sums[rows, columns] +=` would add only one of several pieces of a word.
    np.add.at(sums, (rows[:, None], columns[None]), piece_weights)
    # One source word for each target word: attention tells which word was read, not which were not.
    best = sums.argmax(1).tolist()
    return tuple((source_starts[best[row]], starts[row]) for row in sorted({*rows.tolist()}))


def numbered(links: Links, starts: tuple[Sequence[int], Sequence[int]]) -> list[tuple[int, int]]:
    """Convert links to pairs of unit indices, from 0; `starts` are the offsets of all units."""
    pairs = {
        (bisect_right(starts[0], source) - 1, bisect_right(starts[1], target) - 1)
        for source, target in links
    }
    return sorted(pairs, key=lambda pair: (pair[1], pair[0]))


def units_of_pieces(text: str, offsets: list[int], unit: Unit) -> tuple[list[int], list[int]]:
    """Return the offsets of the units of a text, and the unit index of each piece, -1 for none."""
    if unit != "pieces":
        begins = word_starts(text) if unit == "words" else token_starts(text)
        return begins, words_of_pieces(text, offsets, begins)
    starts = piece_starts(offsets)
    return starts, [bisect_right(starts, offset) - 1 for offset in offsets]


POSITIONS = 1024
"""Maximum number of source positions and of target positions in a batch of several pairs: each
target position holds the logits of the whole vocabulary."""


def token_log_probabilities(
    model: Model, sources: Sequence[list[int]], targets: Sequence[list[int]], device: torch.device
) -> list[list[float]]:
    """Return the log-probability of each target token, natural logarithm, as a search sums them.

    Args:
        model: used in its current mode, under the caller's gradient and precision contexts.
        sources: token ids, each with its EOS.
        targets: token ids, one list per source; with EOS to score the EOS, too.
        device: device of the model.
    """
    results: list[list[float]] = [[] for _ in sources]
    for batch, source, inputs, target in _batches(sources, targets, device):
        logits = model(source, inputs).float()  # [B, T, V]
        # One number for each token; log_softmax would write the whole vocabulary.
        log_probs = logits.gather(-1, target[..., None]) - logits.logsumexp(-1, keepdim=True)
        for at, row in zip(batch, log_probs[..., 0].tolist(), strict=True):
            results[at] = row[: len(targets[at])]
    return results


def next_log_probabilities(
    model: Model, source: list[int], prefix: list[int], device: torch.device
) -> Tensor:
    """Return the log-probability [V] of each token after the prefix of a target.

    Args:
        model: used in its current mode, under the caller's gradient and precision contexts.
        source: token ids with EOS.
        prefix: token ids.
        device: device of the model.
    """
    logits = model(as_rows([source]).to(device), as_rows([[BOS, *prefix]]).to(device))  # [1, T, V]
    return logits[0, -1].float().log_softmax(-1).cpu()  # type: ignore[no-any-return]


def attention_weights(
    model: Model, sources: Sequence[list[int]], targets: Sequence[list[int]], device: torch.device
) -> list[NDArray[np.float32]]:
    """Return the attention of each target token to each source token: [T, S] for each pair.

    The arguments are the same as for :func:`token_log_probabilities`.

    Raises:
        NmtError: the model has no attention.
    """
    results = [np.zeros(0, np.float32)] * len(sources)
    for batch, source, inputs, _ in _batches(sources, targets, device):
        attention = model.source_attention(source, inputs).float().cpu().numpy()
        for at, weights in zip(batch, attention, strict=True):
            results[at] = weights[: len(targets[at]), : len(sources[at])]
    return results


def _batches(
    sources: Sequence[list[int]], targets: Sequence[list[int]], device: torch.device
) -> Iterator[tuple[list[int], Tensor, Tensor, Tensor]]:
    """Yield batches: indices of the pairs, sources [B, S], target inputs and targets [B, T]."""
    pairs = zip(sources, targets, strict=True)
    # Pairs of equal shapes become neighbours, so that batches hold little padding.
    lengths = [(max(map(len, pair)), *map(len, pair)) for pair in pairs]
    by_length = sorted(range(len(targets)), key=lengths.__getitem__)
    while by_length:
        widest, *_ = lengths[by_length[-1]]
        size = max(1, POSITIONS // widest)
        batch, by_length = by_length[-size:], by_length[:-size]
        source = as_rows([sources[at] for at in batch]).to(device)
        target = as_rows([targets[at] for at in batch]).to(device)
        yield batch, source, target_input(target), target
