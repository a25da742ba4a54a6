"""Constraints, token by token."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from for_each import for_each
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nmt.data.vocabulary import BOS, EOS, PAD, UNK
from nmt.errors import NmtError
from nmt.recipe.config import build
from nmt.search import Constraint
from nmt.search.constraints import Forbidden, MaxLength, MinLength, NoRepeatNgram, Prefixes


def forbidden(constraint: Constraint, *tokens: int) -> set[int]:
    """What may not follow the tokens, of the ids below 10."""
    logits = torch.zeros(1, 1, 10)
    constraint.mask_continuations(logits, torch.tensor([[[BOS, *tokens]]]))
    return {*logits[0, 0].isneginf().nonzero()[:, 0].tolist()} - {0}


def test_what_followed_the_same_tokens_may_not_follow_them_again() -> None:
    assert forbidden(NoRepeatNgram(size=2), 4, 5, 4) == {5}
    assert forbidden(NoRepeatNgram(size=2), 4, 5, 4, 6, 4) == {5, 6}
    assert forbidden(NoRepeatNgram(size=2), 4, 5, 6) == set()
    assert forbidden(NoRepeatNgram(size=3), 4, 5, 6, 4, 5) == {6}
    assert forbidden(NoRepeatNgram(size=3), 4, 5) == set()
    assert forbidden(NoRepeatNgram(size=1), 4, 5) == {4, 5}


def test_prefixes_leave_their_next_token_and_nothing_of_the_size_of_the_vocabulary() -> None:
    class Sizes(TorchDispatchMode):
        """Notes the sizes of new tensors."""

        def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if isinstance(result, Tensor) and result.data_ptr() != logits.data_ptr():
                sizes.append(result.numel())
            return result

    prefixes = torch.tensor([[4, 5], [6, PAD], [UNK, EOS]])
    constraint = Prefixes(tokens=prefixes, others=[Forbidden(tokens=(UNK, 6))])
    for step in range(4):
        before, sizes = torch.randn(3, 2, 50), [0]
        logits, tokens = before.clone(), torch.full((3, 2, 1 + step), 7)
        with Sizes():
            constraint.mask_continuations(logits, tokens)
        for sentence, prefix in enumerate(prefixes.tolist()):
            wanted = prefix[step] if step < 2 else PAD
            rest = {*range(50)} - {UNK, 6} if wanted == PAD else {wanted}
            expected = [[at in rest for at in range(50)]] * 2
            assert (~logits[sentence].isneginf()).tolist() == expected
        assert ((logits == before) | logits.isneginf()).all()
        assert max(sizes) < before.numel()


def test_the_given_tokens_of_a_prefix_are_certain() -> None:
    constraint = Prefixes(tokens=torch.tensor([[4, 5], [6, 7]]), num_given=1)
    for step, tokens in enumerate(([4, 6], [5, 7])):
        logits = torch.randn(2, 1, 9)
        before = logits.clone()
        constraint.mask_continuations(logits, torch.full((2, 1, 1 + step), BOS))
        for sentence, token in enumerate(tokens):
            expected = torch.zeros(1) if step == 0 else before[sentence, :, token]
            assert torch.equal(logits[sentence, :, token], expected)
            assert logits[sentence].isneginf().sum() == 8


def test_constraints_after_a_prefix_follow_its_sentences_and_ids() -> None:
    inner = Prefixes(tokens=torch.tensor([[4, 5], [6, 7], [8, 9]]))
    outer = Prefixes(tokens=torch.tensor([[4], [6], [8]]), others=[inner])
    chosen = outer.select_sentences(torch.tensor([2, 0]))
    assert chosen.tokens.tolist() == [[8], [4]]
    assert chosen.others[0].tokens.tolist() == [[8, 9], [4, 5]]
    reduced = chosen.to_reduced_ids(torch.tensor([PAD, UNK, BOS, EOS, 4, 5, 8, 9]))
    assert reduced.tokens.tolist() == [[6], [4]]
    assert reduced.others[0].tokens.tolist() == [[6, 7], [4, 5]]


def test_the_end_waits_for_the_least_length() -> None:
    assert forbidden(MinLength(length=2), 4) == {EOS}
    assert forbidden(MinLength(length=2), 4, 5) == set()


def test_the_end_follows_the_greatest_length() -> None:
    assert forbidden(MaxLength(length=2), 4) == set()
    assert forbidden(MaxLength(length=2), 4, 5) == {*range(1, 10)} - {EOS}


def test_forbidden_tokens_that_the_vocabulary_lacks_are_no_matter() -> None:
    assert forbidden(Forbidden()) == {UNK}
    assert forbidden(Forbidden(tokens=(PAD, 4, 10, 99))) == {4}
    reduced = Forbidden(tokens=(4, 6)).to_reduced_ids(torch.tensor([PAD, UNK, BOS, EOS, 5, 6]))
    assert forbidden(reduced) == {5}


@for_each(
    ("values", "message"),
    [
        ({"name": "forbidden", "tokens": [3]}, "tokens are ids from 0 and not 3, the end of the"),
        ({"name": "forbidden", "tokens": [-1]}, "tokens are ids from 0 and not 3, the end of the"),
        ({"name": "min_length", "length": 0}, "length must be at least 1, not 0"),
        ({"name": "max_length", "length": 0}, "length must be at least 1, not 0"),
        ({"name": "no_repeat_ngram", "size": 0}, "size must be at least 1, not 0"),
    ],
)
def test_a_mistaken_value_is_one_line(values: dict[str, object], message: str) -> None:
    with pytest.raises(NmtError) as error:
        build(Constraint, values, "c")  # type: ignore[type-abstract]
    assert str(error.value).startswith(f"c: {message}")
