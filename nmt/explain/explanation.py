"""Explanations: everything that a model computes for a sentence and its translation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from nmt.data.padding import target_input
from nmt.data.vocabulary import BOS, EOS, PAD
from nmt.errors import NmtError
from nmt.explain.summaries import Node, Traced, rollout, tree
from nmt.inference import SearchConfig, Translator
from nmt.inference.alignment import linked, numbered, piece_starts, units_of_pieces
from nmt.inference.fast.kernels import is_converted
from nmt.models.base import AttentionMap, Model
from nmt.models.ensemble import members_of
from nmt.models.layers.basic import TokenEmbedding
from nmt.models.transformer.positions import LearnedPositions, SinusoidalPositions
from nmt.search import Constraint, Hypothesis, Prefixes
from nmt.search.ranking import with_coverage
from nmt.subwords.words import word_starts

LIKELIEST = 10
"""Number of tokens shown for each step."""


@dataclass(frozen=True)
class Side:
    """A text in tokens, the EOS last."""

    text: str
    ids: list[int]
    pieces: list[str]
    """Pieces of the ids; "▁" stands for a space."""
    words: list[int]
    """The word to which each piece belongs, from 0; the EOS is a word of its own."""


@dataclass(frozen=True)
class Continuation:
    """A token that may follow."""

    id: int
    piece: str
    log_probability: float


@dataclass(frozen=True)
class PredictionStep:
    """The prediction of one target token."""

    log_probability: float
    """Log-probability of the target's token."""
    rank: int
    """Rank of the target's token among all tokens, from 1."""
    likeliest: list[Continuation]
    """The likeliest tokens, best first."""


@dataclass(frozen=True)
class Candidate:
    """A hypothesis at the end of the search."""

    text: str
    length: int
    """Tokens, including the EOS."""
    log_probability: float
    length_penalty: float | None
    """Divisor of the log-probability in the score; None with a coverage penalty or minimum Bayes
    risk, where the score is not a quotient."""
    score: float
    """See :class:`nmt.search.Hypothesis`."""
    rank_by_log_probability: int
    """Rank without penalties, from 1."""


@dataclass(frozen=True)
class Branch:
    """A hypothesis that the search kept after a step; see :class:`~nmt.explain.summaries.Node`."""

    parent: int | None
    step: int
    piece: str
    log_probability: float
    score: float
    finished: bool
    is_best: bool


@dataclass(frozen=True)
class Explanation:
    """A sentence, its translation, and what the model computed."""

    source: Side
    target: Side
    """The tokens that the steps predict. A step reads the previous token; the first step reads
    BOS."""
    steps: list[PredictionStep]
    attention: list[AttentionMap]
    """Attention of every layer and head, in a batch of one."""
    rollout: dict[str, Tensor]
    """See :func:`nmt.explain.summaries.rollout`."""
    embeddings: dict[str, Tensor]
    """See :func:`nmt.explain.explanation.forward_with_embeddings`."""
    alignment: list[tuple[int, int]]
    """Pairs of a source word and a target word, from 0."""
    hypotheses: list[Candidate]
    """Hypotheses of the search, best first; none for a given translation."""
    beam: list[Branch]
    """The tree of the search; empty for a given translation."""


@dataclass(frozen=True)
class Translated:
    """A line and its translation, found or given."""

    line: str
    text: str
    ids: list[int]
    """Tokens of the translation, the EOS last."""
    offsets: list[int]
    """Where the pieces of the translation begin, see :mod:`nmt.inference.alignment`."""
    hypotheses: list[Candidate] = field(default_factory=list)
    beam: list[Branch] = field(default_factory=list)


def explain(
    translators: Sequence[Translator],
    sources: Sequence[str],
    targets: Sequence[str] | None = None,
) -> list[list[Explanation]]:
    """Explain how models translate the same lines; blank lines are left out.

    Args:
        translators: models to compare, with their searches.
        sources: lines.
        targets: translations to explain; None for the translations of each model.

    Returns:
        For each model the explanations of all lines. An ensemble is followed by its members, which
        read the ensemble's translations.

    Raises:
        NmtError: a model is a language model, or was converted for speed.
    """
    in_torch = [one for one in translators if isinstance(one, Translator)]
    models = [model for translator in in_torch for model in members_of(translator.model)]
    if len(in_torch) < len(translators) or any(map(is_converted, models)):
        raise NmtError(
            "a model of nmt.Translator is converted for speed and records no attention; load it by "
            "nmt.runs.load_model"
        )
    if not all(model.reads_source for model in models):
        raise NmtError("a language model reads no source to explain; leave out the language model")
    # A line counts if no model reads it as blank, so that the lists of all models correspond.
    kept = [
        at
        for at, line in enumerate(sources)
        if all(_encode(reader, line) for reader in translators)
    ]
    explanations = []
    for translator in translators:
        pairs = [
            _search(translator, sources[at])
            if targets is None
            else _given(translator, sources[at], targets[at])
            for at in kept
        ]
        explanations.append([_explained(translator, pair) for pair in pairs])
        # The search was the ensemble's, not the member's.
        alone = [replace(pair, hypotheses=[], beam=[]) for pair in pairs]
        for member in _members(translator):
            explanations.append([_explained(member, pair) for pair in alone])
    return explanations


def forward_with_embeddings(
    model: Model, source: Tensor, target: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the logits of one pair, and the vectors that the model looked up.

    Args:
        model: a model; an ensemble has no vectors, but its members do.
        source: [1, S] int64.
        target: [1, T] int64.

    Returns:
        Logits [1, T, V]; and vectors "source" [S, D], "target" [T, D] and "positions" [n, D], if
        the model has them. Embeddings are not scaled.
    """
    vectors: dict[str, Tensor] = {}

    def record_tokens(_: nn.Module, arguments: Any, output: Tensor) -> None:
        for name, tokens in (("source", source), ("target", target)):
            # Told apart by their tokens, because a shared table embeds both sides.
            if arguments[0].shape == tokens.shape and bool((arguments[0] == tokens).all()):
                vectors.setdefault(name, output[0])

    def record_positions(_: nn.Module, arguments: Any, output: Tensor) -> None:
        # A shared module encodes both sides, and the longer output contains the shorter one.
        if len(output) > len(vectors.get("positions", ())):
            vectors["positions"] = output

    hooks = []
    for module in model.modules() if members_of(model) == [model] else ():
        if isinstance(module, TokenEmbedding):
            hooks.append(module.register_forward_hook(record_tokens))
        elif isinstance(module, (SinusoidalPositions, LearnedPositions)):
            hooks.append(module.register_forward_hook(record_positions))
    try:
        return model(source, target), vectors
    finally:
        for hook in hooks:
            hook.remove()


def _members(translator: Translator) -> Iterator[Translator]:
    """Yield the members of an ensemble, none for a single model."""
    members = members_of(translator.model)
    for model in members if len(members) > 1 else ():
        config, languages = translator.config, translator.languages
        yield Translator(
            model, translator.subwords, config, translator.execution, languages=languages
        )


def _encode(translator: Translator, line: str) -> list[int]:
    """Return the tokens of a line, cut as for translation, without EOS; none for a blank line."""
    [ids] = translator.subwords.encode_source([line])
    # The limit counts the EOS, too.
    return ids[: translator.config.max_source_length - 1]


def _given(translator: Translator, line: str, text: str) -> Translated:
    [ids] = translator.subwords.encode_target([text])
    [offsets] = translator.subwords.target_line_offsets([text])
    return Translated(line, text, [*ids, EOS], offsets)


@torch.inference_mode()
def _search(translator: Translator, line: str) -> Translated:
    config, model, subwords = translator.config, translator.model, translator.subwords
    source = torch.tensor([[*_encode(translator, line), EOS]], device=translator.device)
    traced = Traced(name=config.strategy.name, inner=config.strategy)
    most = torch.tensor([config.max_length(source.shape[1])], device=translator.device)
    constraints: Sequence[Constraint] = config.constraints
    if tags := subwords.tags[1]:
        # Tags of the target are tokens of the translation, which begins with them.
        prefixes = torch.tensor([tags], device=translator.device)
        constraints = [Prefixes(tokens=prefixes, others=constraints, num_given=len(tags))]
    results = traced.search(model, source, most, constraints)
    if config.coverage_penalty:
        results = with_coverage(results, model, source, config.coverage_penalty)
    [hypotheses] = translator.ranked(results)
    best = hypotheses[0]
    texts = subwords.decode_target([hypothesis.tokens for hypothesis in hypotheses])
    nodes = tree(traced.steps, best)
    # Tokens of a finished hypothesis end before its EOS.
    pieces = subwords.target_pieces([EOS if node.finished else node.tokens[-1] for node in nodes])
    [offsets] = subwords.target_offsets([best.tokens])
    beam = [_branch(node, piece) for node, piece in zip(nodes, pieces, strict=True)]
    candidates = _ranked(texts, hypotheses, config)
    return Translated(line, texts[0], best.output, offsets, candidates, beam)


def _ranked(
    texts: Sequence[str], hypotheses: Sequence[Hypothesis], config: SearchConfig
) -> list[Candidate]:
    by_log_probability = sorted(hypotheses, key=lambda hypothesis: -hypothesis.log_probability)
    is_quotient = config.mbr is None and not config.coverage_penalty
    return [
        Candidate(
            text,
            len(hypothesis.output),
            hypothesis.log_probability,
            hypothesis.log_probability / hypothesis.score
            # The score of a certain output is 0, as is its log-probability.
            if is_quotient and hypothesis.score
            else None,
            hypothesis.score,
            by_log_probability.index(hypothesis) + 1,
        )
        for text, hypothesis in zip(texts, hypotheses, strict=True)
    ]


def _branch(node: Node, piece: str) -> Branch:
    scores = node.log_probability, node.score
    return Branch(node.parent, node.step, piece, *scores, node.finished, node.is_best)


@torch.inference_mode()
def _explained(translator: Translator, pair: Translated) -> Explanation:
    line, text, ids, offsets = pair.line, pair.text, pair.ids, pair.offsets
    model, subwords, unit = translator.model, translator.subwords, translator.usual_unit
    source_ids = [*_encode(translator, line), EOS]
    source = torch.tensor([source_ids], device=translator.device)
    target = torch.tensor([ids], device=translator.device)
    inputs = target_input(target)
    logits, vectors = forward_with_embeddings(model, source, inputs)
    maps = model.attention_maps(source, inputs)
    [source_offsets] = subwords.source_offsets([line])
    units = [
        # Tags are shown with the first word.
        [0] * len(tags) + units_of_pieces(side, begins, unit)[1]
        for tags, side, begins in zip(
            subwords.tags, (line, text), (source_offsets, offsets), strict=True
        )
    ]
    del units[0][len(source_ids) - 1 :]  # pieces beyond max_source_length
    try:
        [weights] = translator.text_attention([source_ids], [ids])
        links = linked(line, source_offsets, text, offsets, weights, unit)
    except NmtError:  # the model has no attention
        links = ()
    starts = (word_starts(line), word_starts(text))
    if unit == "pieces":
        starts = (piece_starts(source_offsets), piece_starts(offsets))
    return Explanation(
        Side(line, source_ids, subwords.source_pieces(source_ids), _whole(units[0], source_ids)),
        Side(text, ids, subwords.target_pieces(ids), _whole(units[1], ids)),
        _steps(translator, logits[0].float(), ids),
        maps,
        rollout(maps),
        vectors,
        numbered(links, starts),
        pair.hypotheses,
        pair.beam,
    )


def _whole(words: list[int], tokens: list[int]) -> list[int]:
    """Return the word of each token; white space and EOS are words of their own."""
    numbers = words[: len(tokens)]
    for at in range(len(numbers)):
        if numbers[at] < 0:
            numbers[at] = max(numbers[:at], default=0)
    return [*numbers, *[max(numbers, default=-1) + 1] * (len(tokens) - len(numbers))]


def _steps(translator: Translator, logits: Tensor, ids: list[int]) -> list[PredictionStep]:
    """Return the predictions of all steps; logits [T, V]."""
    log_probs = logits.log_softmax(-1).cpu()
    log_probs[:, PAD] = log_probs[:, BOS] = float("-inf")  # never follow
    chosen = log_probs.gather(1, torch.tensor(ids)[:, None])
    ranks = (log_probs > chosen).sum(1) + 1
    # Without PAD and BOS.
    values, tokens = log_probs.topk(min(LIKELIEST, log_probs.shape[1] - 2))
    steps = []
    for log_prob, rank, *row in zip(
        chosen[:, 0].tolist(), ranks.tolist(), values.tolist(), tokens.tolist(), strict=True
    ):
        pieces = translator.subwords.target_pieces(row[1])
        likeliest = [
            Continuation(token, piece, value)
            for value, token, piece in zip(*row, pieces, strict=True)
        ]
        steps.append(PredictionStep(log_prob, rank, likeliest))
    return steps
