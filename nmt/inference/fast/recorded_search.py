"""Greedy and beam search whose steps are recorded as CUDA graphs.

A step of one sentence launches some three hundred kernels, which take a GPU less time than the host
needs to launch them. A graph launches them at once, but it reads and writes fixed places in memory.
So every tensor of a recorded step has a fixed size: sentences, source length and number of steps
are rounded up to powers of two. A search moves to another step where its sentences outgrow one, and
where half of them are finished. Without a GPU the same steps run unrecorded, for tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.data.vocabulary import EOS, PAD, UNK
from nmt.errors import NmtError
from nmt.models.base import Model
from nmt.models.transformer.fixed_state import FixedState
from nmt.models.transformer.model import Transformer
from nmt.models.transformer.multi_head import SelfAttention
from nmt.search import Beam, Constraint, Greedy, Hypothesis, Strategy
from nmt.search.base import SearchState, check_lengths, diverged
from nmt.search.hypotheses import Continuations, Hypotheses

STEPS = 32
"""Steps for which a search has room at first; each time they are used up it gets twice as many."""

LEAST_SOURCE = 16
"""Least length to which sources are padded."""

MOST_RECORDINGS = 64
"""Number of recorded steps from which all are dropped, as each keeps memory."""


@dataclass(frozen=True)
class FixedHypotheses(Hypotheses):
    """Hypotheses in a window of fixed size: padding, then the tokens, the newest one last."""

    count: Tensor  # [1] int64, the number of tokens of each row

    @property
    def length(self) -> Tensor:
        """[1] int64, the number of tokens of each row."""
        return self.count

    def extend(
        self,
        tokens: Tensor,
        log_probabilities: Tensor,
        scores: Tensor,
        parents: Tensor | None = None,
    ) -> FixedHypotheses:
        """Append one token to each row; see :meth:`Hypotheses.extend`."""
        longer = super().extend(tokens, log_probabilities, scores, parents)
        return replace(self._cut(longer), count=self.count + 1)

    def padded(self) -> FixedHypotheses:
        """Append padding to each row."""
        return self._cut(super().padded())

    def _cut(self, longer: Hypotheses) -> FixedHypotheses:
        assert isinstance(longer, FixedHypotheses)
        return replace(longer, tokens=longer.tokens[..., 1:])


Key = tuple[Strategy, int, int, int, int]
"""Strategy, requested hypotheses, sentences, length of sources, and steps."""


class RecordedSearch:
    """Searches of one model, whose steps are recorded when their size first occurs."""

    def __init__(self, model: Model) -> None:
        """Hold the model.

        Raises:
            NmtError: the steps of the model have no fixed size.
        """
        is_plain = isinstance(model, Transformer) and all(
            isinstance(layer.attention, SelfAttention) and layer.attention.is_plain
            for layer in model.decoder
        )
        if not is_plain:
            raise NmtError(
                "cuda_graphs is for single Transformers with plain attention in the decoder; leave "
                "it out"
            )
        assert isinstance(model, Transformer)
        self.model = model
        self._steps: dict[Key, _Step] = {}
        self._pool: object = None
        """Memory that all graphs share, as they run one after another."""

    def search(
        self,
        strategy: Strategy,
        source: Tensor,
        max_lengths: Tensor,
        constraints: Sequence[Constraint] = (),
        phrases: Tensor | None = None,
        count: int = 1,
    ) -> list[list[Hypothesis]]:
        """Search like :meth:`nmt.search.Strategy.search`, by recorded steps where they can do it.

        Other strategies than greedy and beam search, constraints and phrases have their own steps.

        Raises:
            ValueError: a length or the count is below 1.
            NmtError: the model's logits are NaN.
        """
        # The first step has rows without a sequence, which must not become candidates.
        is_wide = self.model.target_embedding.num_embeddings > 2 * strategy.rows_per_sentence + 2
        is_plain = is_wide and not constraints and phrases is None
        if type(strategy) not in (Beam, Greedy) or not is_plain:
            return strategy.search(self.model, source, max_lengths, constraints, phrases, count)
        longest = check_lengths(max_lengths, count)
        size = _power_of_two(len(source)), max(LEAST_SOURCE, _power_of_two(source.shape[1]))
        steps = min(STEPS, _power_of_two(longest))
        step = self._step((strategy, count, *size, steps))
        step.open(source, max_lengths)
        unfinished = list(range(len(source)))  # the sentence in each place
        results: dict[int, list[Hypothesis]] = {}
        for number in range(1, longest + 1):
            if number > steps:
                steps *= 2
                step = self._moved(step, (strategy, count, *size, steps), range(len(unfinished)))
            step.run()
            outcomes = step.outcomes.tolist()  # waits for the device
            places = [at for at, sentence in enumerate(unfinished) if sentence not in results]
            if any(outcomes[place] == _Step.NAN for place in places):
                raise diverged(number)
            done = [place for place in places if outcomes[place] == _Step.DONE]
            if done:
                lists = step.hypotheses(done)
                results.update(zip((unfinished[place] for place in done), lists, strict=True))
            staying = [place for place in places if outcomes[place] != _Step.DONE]
            if not staying:
                break
            # Finished sentences stay where they are until a step of half the size will do.
            if (fewer := _power_of_two(len(staying))) < size[0]:
                size = fewer, size[1]
                step = self._moved(step, (strategy, count, *size, steps), staying)
                unfinished = [unfinished[place] for place in staying]
        return [results[sentence] for sentence in range(len(source))]

    def _moved(self, step: _Step, key: Key, places: Sequence[int]) -> _Step:
        other = self._step(key)
        other.resume(step, places)
        return other

    def _step(self, key: Key) -> _Step:
        if key not in self._steps:
            if len(self._steps) >= MOST_RECORDINGS:
                self._steps.clear()
                self._pool = None  # torch refuses a pool whose graphs are all gone
            if self._pool is None and self.model.target_embedding.weight.is_cuda:
                self._pool = torch.cuda.graph_pool_handle()
            self._steps[key] = _Step(self.model, key, self._pool)
        return self._steps[key]


class _Step:
    """One step of a search, with all tensors that it reads and writes."""

    DONE, NAN = 1, 2

    @torch.no_grad()
    def __init__(self, model: Transformer, key: Key, pool: object) -> None:
        strategy, count, sentences, length, steps = key
        device = model.target_embedding.weight.device
        self.model = model
        self.size = sentences, length
        # The model alone knows the sizes and dtypes of its memory.
        source = torch.full((sentences, length), EOS, device=device)
        rows = strategy.rows_per_sentence
        self.state = FixedState(model.encode(source), rows, steps, len(model.decoder))
        self.max_lengths = torch.ones(sentences, dtype=torch.int64, device=device)
        self.outcomes = torch.zeros(sentences, dtype=torch.int64, device=device)
        self.search_state = strategy.open(source, self.max_lengths, count)
        for name, hypotheses in _hypotheses(self.search_state).items():
            places = hypotheses.scores.shape[1] if name == "finished" else rows
            tokens = torch.full((sentences, places, steps + 1), PAD, device=device)
            # A tensor for each field, because all are written.
            log_probs, scores = (torch.zeros(sentences, places, device=device) for _ in range(2))
            number = torch.ones(1, dtype=torch.int64, device=device)
            window = FixedHypotheses(tokens, log_probs, scores, count=number)
            setattr(self.search_state, name, window)
        self._strategy, self._count = strategy, count
        self._advance()  # allocates the past, and loads kernels
        self.run: Callable[[], None] = self._advance
        if device.type == "cuda":
            self.run = recorded(self._advance, pool)

    def open(self, source: Tensor, max_lengths: Tensor) -> None:
        """Begin a search; arguments as for :meth:`nmt.search.Strategy.search`."""
        sentences, length = self.size
        # Sentences that fill the batch are copies of the last one.
        places = torch.arange(sentences, device=source.device).clamp(max=len(source) - 1)
        source = F.pad(source[places], (0, length - source.shape[1]), value=PAD)
        self.max_lengths.copy_(max_lengths[places])
        self.state.restart(self.model.encode(source))
        begun = self._strategy.open(source, self.max_lengths, self._count)
        for name, window in _hypotheses(self.search_state).items():
            opened = getattr(begun, name)
            window.tokens.fill_(PAD)
            window.tokens[..., -1:] = opened.tokens
            window.log_probabilities.fill_(float("-inf"))
            window.scores.fill_(float("-inf"))
            width = opened.scores.shape[1]
            window.log_probabilities[:, :width] = opened.log_probabilities
            window.scores[:, :width] = opened.scores
            window.count.fill_(1)
        _copy(_numbers(self.search_state), _numbers(begun))

    def resume(self, step: _Step, places: Sequence[int]) -> None:
        """Resume the search of another step, with the sentences at some places."""
        device = self.max_lengths.device
        filled = [*places, *[places[-1]] * (self.size[0] - len(places))]
        sentences = torch.tensor(filled, device=device)
        self.state.resume(step.state, sentences)
        self.max_lengths.copy_(step.max_lengths[sentences])
        others = _hypotheses(step.search_state)
        for name, window in _hypotheses(self.search_state).items():
            other = others[name].select_sentences(sentences)
            window.tokens.fill_(PAD)
            window.tokens[..., -other.tokens.shape[-1] :] = other.tokens
            window.log_probabilities.copy_(other.log_probabilities)
            window.scores.copy_(other.scores)
            window.count.copy_(others[name].count)
        numbers = [number[sentences] for number in _numbers(step.search_state)]
        _copy(_numbers(self.search_state), numbers)

    def hypotheses(self, places: Sequence[int]) -> list[list[Hypothesis]]:
        """Return the hypotheses of the sentences at some places, best first."""
        sentences = torch.tensor(places, device=self.max_lengths.device)
        return self.search_state.select_sentences(sentences).hypotheses()

    def _advance(self) -> None:
        """Extend all sequences by a token, in place; the same as in ``Strategy.search``."""
        search_state = copy(self.search_state)
        last = search_state.alive.tokens[:, :, -1]
        last = last.masked_fill((last == EOS) | (last == PAD), UNK)
        logits = self.model.step(last, self.state)
        parents = search_state.advance(Continuations.from_logits(logits))
        if parents is not None:
            self.state.select(parents)
        steps = self.state.ancestry.newest + 1
        done = search_state.is_done() | (self.max_lengths <= steps)
        is_nan = search_state.alive.log_probabilities.isnan().any(1)
        self.outcomes.copy_(done * self.DONE)
        self.outcomes.masked_fill_(is_nan, self.NAN)
        new = _hypotheses(search_state)
        for name, window in _hypotheses(self.search_state).items():
            _copy(_of(window), _of(new[name]))
        _copy(_numbers(self.search_state), _numbers(search_state))


def recorded(run: Callable[[], None], pool: object) -> Callable[[], None]:
    """Return the replay of a CUDA graph of a function that has run once."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):  # type: ignore[arg-type]
        run()
    return graph.replay


def _hypotheses(state: SearchState) -> dict[str, FixedHypotheses]:
    """Return the hypotheses of a search, by the names of their fields."""
    values = {field.name: getattr(state, field.name) for field in fields(state)}  # type: ignore[arg-type]
    return {name: value for name, value in values.items() if isinstance(value, Hypotheses)}  # type: ignore[misc]


def _numbers(state: SearchState) -> list[Tensor]:
    """Return the tensors of a search that are not its hypotheses."""
    values = [getattr(state, field.name) for field in fields(state)]  # type: ignore[arg-type]
    return [value for value in values if isinstance(value, Tensor)]


def _of(window: FixedHypotheses) -> list[Tensor]:
    return [window.tokens, window.log_probabilities, window.scores, window.count]


def _copy(to: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for stored, value in zip(to, values, strict=True):
        # What did not change is the stored tensor itself.
        if stored is not value:
            stored.copy_(value)


def _power_of_two(number: int) -> int:
    """Return the least power of two that is not below a number."""
    return 1 << (number - 1).bit_length()
