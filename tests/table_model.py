"""A model whose logits anyone can look up: a table of (source, target so far) made from a seed."""

from __future__ import annotations

import math
import random
from functools import cache
from itertools import product

import torch
from torch import Tensor

from nmt.data.vocabulary import BOS, EOS, PAD, UNK
from nmt.models.base import Model, State

Sentence = tuple[int, ...]


class TableState:
    """The targets so far, row by row; refuses what the contract of `select` forbids."""

    def __init__(self, sentences: list[Sentence]) -> None:
        self.sentences = sentences
        self.prefixes: list[list[Sentence]] = [[()] for _ in sentences]

    def select(self, rows: Tensor) -> None:
        width = len(self.prefixes[0])
        old = [prefix for prefixes in self.prefixes for prefix in prefixes]
        for new in rows.tolist():
            assert len({row // width for row in new}) == 1, "rows of several sentences"
        self.sentences = [self.sentences[new[0] // width] for new in rows.tolist()]
        self.prefixes = [[old[row] for row in new] for new in rows.tolist()]


class TableModel(Model):
    """Random logits that depend on the source and on the whole target so far."""

    def __init__(self, seed: int, vocabulary: int = 6, spread: float = 2.0) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.steps = 0
        self.sentences_stepped = 0

        def row(sentence: Sentence, prefix: Sentence) -> list[float]:
            generator = random.Random(f"{seed} {sentence} {prefix}")
            return [generator.gauss(0, spread) for _ in range(vocabulary)]

        self.row = cache(row)

    def decode(self, source: Tensor, target: Tensor) -> Tensor:
        raise NotImplementedError

    def project(self, decoder_output: Tensor) -> Tensor:
        raise NotImplementedError

    def decode_step(self, tokens: Tensor, state: State) -> Tensor:
        raise NotImplementedError

    def start(self, source: Tensor) -> TableState:
        return TableState([unpad(row) for row in source.tolist()])

    def step(self, tokens: Tensor, state: State) -> Tensor:
        assert isinstance(state, TableState)
        assert [len(row) for row in tokens.tolist()] == [len(row) for row in state.prefixes]
        assert not (tokens == PAD).any()
        assert not (tokens == EOS).any()
        state.prefixes = [
            [(*prefix, token) for prefix, token in zip(prefixes, row, strict=True)]
            for prefixes, row in zip(state.prefixes, tokens.tolist(), strict=True)
        ]
        self.steps += 1
        self.sentences_stepped += len(tokens)
        return torch.tensor(
            [
                [self.row(sentence, prefix) for prefix in prefixes]
                for sentence, prefixes in zip(state.sentences, state.prefixes, strict=True)
            ]
        )

    def log_probabilities(self, sentence: Sentence, tokens: Sentence) -> list[float]:
        """Of every token that may follow, in plain Python."""
        logits = self.row(sentence, (BOS, *tokens))
        normaliser = math.log(sum(map(math.exp, logits)))
        return [logit - normaliser for logit in logits]

    def score(self, sentence: Sentence, tokens: Sentence) -> float:
        """The log-probability of `tokens`, which may end with EOS."""
        return sum(
            self.log_probabilities(sentence, tokens[:at])[token] for at, token in enumerate(tokens)
        )

    def all_outputs(self, max_length: int) -> list[Sentence]:
        """Every output that ends with EOS within `max_length` tokens."""
        inner = [UNK, *range(EOS + 1, self.vocabulary)]
        return [
            (*tokens, EOS)
            for length in range(max_length)
            for tokens in product(inner, repeat=length)
        ]


def unpad(row: list[int]) -> Sentence:
    return tuple(token for token in row if token != PAD)


def random_sources(seed: int, count: int) -> Tensor:
    """Sources of different lengths, padded together: [count, S]."""
    generator = random.Random(seed)
    rows = [
        [*(generator.randint(4, 99) for _ in range(generator.randint(1, 5))), EOS]
        for _ in range(count)
    ]
    width = max(map(len, rows))
    return torch.tensor([row + [PAD] * (width - len(row)) for row in rows])
