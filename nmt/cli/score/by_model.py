"""``nmt score --model``: a model's log-probabilities of given translations."""

from __future__ import annotations

import json
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt.errors import NmtError
from nmt.io.lines import Lines
from nmt.messages import warn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nmt.inference import Execution, LineTranslator, SearchConfig, Translator
    from nmt.inference.engines import Engine
    from nmt.subwords.subwords import Subwords

BLOCK = 1024
"""Pairs to read and score at once."""


def score_by_model(
    translator: LineTranslator, sources: Lines, targets: Lines, as_json: bool
) -> None:
    """Print the natural log-probability that a model gives to each translation.

    Raises:
        NmtError: sources and targets differ in their number of lines.
    """
    from nmt.data.vocabulary import EOS

    ended: list[str] = []
    subwords = translator.subwords
    blocks = sources.blocks(BLOCK), targets.blocks(BLOCK)
    # zip would end with the shorter file, and hide that lines are missing.
    for source, target in zip_longest(*blocks, fillvalue=ended):
        if len(source) != len(target):
            raise unequal_lines(sources, targets)
        log_probs = translator.score(source, target)
        if not as_json:
            print(*(f"{sum(values):.6f}" for values in log_probs), sep="\n")
            continue
        encoded, offsets = subwords.encode_target(target), subwords.target_line_offsets(target)
        for text, tokens, begins, values in zip(target, encoded, offsets, log_probs, strict=True):
            pieces = subwords.target_pieces([*tokens, EOS])
            print(json.dumps(_fields(text, pieces, begins, values), ensure_ascii=False))


def unequal_lines(*files: Lines) -> NmtError:
    """Return the error for files with different numbers of lines."""
    return NmtError(
        f"{' and '.join(lines.name for lines in files)} differ in their number of lines; "
        "line n of each must belong to the same sentence"
    )


def load_fastest_scorer(
    paths: Sequence[Path], search: SearchConfig, execution: Execution, trust_plugins: bool = False
) -> LineTranslator:
    """Load one run or checkpoint into CTranslate2 if it can run the model, else into this package.

    Raises:
        NmtError: the model cannot be loaded.
    """
    from nmt.inference.engines import load_fastest

    return load_fastest(paths, search, execution, trust_plugins, load_in_torch)


def open_model(
    model: Path,
    device: str,
    trust_plugins: bool,
    target_lang: str | None = None,
    source_lang: str | None = None,
    load: Engine = load_fastest_scorer,
) -> LineTranslator:
    """Load a model that scores and aligns given translations.

    Args:
        model: run, checkpoint or export.
        device: cpu, cuda, cuda:N or auto.
        trust_plugins: whether to import the Python modules that the model names as plugins.
        target_lang: target language of a model with several.
        source_lang: source language of a model with several; None for any.
        load: engine.

    Raises:
        NmtError: the model cannot be loaded, or does not have the languages.
    """
    from nmt.inference import Execution, SearchConfig
    from nmt.runtime.distributed import pick_device
    from nmt.runtime.processes import available_cores
    from nmt.search import Greedy

    place = pick_device(device)
    workers = available_cores() if place == "cpu" else 1
    # Nothing is searched, and CTranslate2 has this search.
    search = SearchConfig(strategy=Greedy(name="greedy"))
    general = load([model], search, Execution(device=place, workers=workers), trust_plugins)
    warn_of_context(general.subwords)
    return general.for_direction(target_lang, source_lang)


def load_in_torch(
    paths: Sequence[Path], search: SearchConfig, execution: Execution, trust_plugins: bool = False
) -> Translator:
    """Load one run or checkpoint, also of a language model, into this package for scoring.

    Raises:
        NmtError: the model cannot be loaded.
    """
    import torch

    from nmt.inference import Translator
    from nmt.runs import load_model
    from nmt.runtime.machine import keep_freed_memory

    keep_freed_memory()
    loaded = load_model(paths[0], torch.device(execution.device), trust_plugins)
    languages = loaded.run.languages
    return Translator(loaded.model, loaded.subwords, search, execution, languages=languages)


def warn_of_context(subwords: Subwords) -> None:
    """Print a warning if a model was trained with context, which the command does not pass on."""
    if subwords.context:
        warn("the model was trained on sentences with their context; here each line is alone")


def _fields(
    text: str, pieces: list[str], offsets: list[int], values: list[float]
) -> dict[str, Any]:
    """Return the fields of a text.

    Args:
        text: a translation.
        pieces: its pieces, with tags and the EOS.
        offsets: offsets of the pieces in the text, without tags and the EOS. A tag belongs to the
            first word.
        values: the log-probability of each piece.
    """
    from nmt.inference.alignment import words_of_pieces
    from nmt.subwords.words import words

    word_values = [0.0] * len(words(text))
    tags = [0] * (len(pieces) - 1 - len(offsets))
    if word_values:
        numbers = tags + words_of_pieces(text, offsets)
        # The EOS belongs to no word.
        for number, value in zip(numbers, values[:-1], strict=True):
            word_values[number] += value
    return {
        "log_probability": sum(values),
        "mean_log_probability": sum(values) / len(values),
        "tokens": pieces,
        "token_log_probabilities": values,
        "words": words(text),
        "word_log_probabilities": word_values,
    }
