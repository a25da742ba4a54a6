"""Names and docstrings speak plain English, with the terms of the field."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "nmt").rglob("*.py"))

OPENINGS = {"What", "Which", "Of", "How", "As", "That", "Those", "To"}
"""Words with which a relative clause begins; a docstring says at once what a thing does or is."""

RETIRED = {
    "Frontier": "SearchState",
    "Lineage": "BeamAncestry",
    "SourceAndRows": "RecurrentState",
    "Few": "ReducedVocabulary",
    "voters": "ensemble members",
    "Feed": "BatchLoader",
    "Order": "BatchSampler",
    "step_states": "decode_step",
    "evenly_used": "fsdp_modules",
    "mixer": "attention_fn",
    "mix_values": "FullAttention",
    "mix_packs": "attend_padded",
    "Attend": "MultiHeadAttention",
    "Alone": "SingleProcess",
    "Replicated": "DataParallel",
    "Sharded": "FullyShardedDataParallel",
    "is_first": "is_main",
    "Objective": "Criterion",
    "Window": "RunningStats",
    "stale": "validations_since_best",
    "merit": "sort_key",
    "gains": "log_probs",
    "Tally": "CleaningStats",
    "Verdict": "CleaningResult",
    "since_lap": "seconds_since_report",
    "bars": "logits_mask",
    "forbid": "mask_continuations",
    "own_criterion": "criterion",
    "GO_ON": "REMEDIES",
    "GOES_ON": "RESUMABLE",
    "Own": "Self",
    "it": "the noun",
    "each": "the noun",
    "own": "the noun",
    "found": "the noun",
}
"""Names that were ours alone, and the term of the field that took the place of each."""


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """The line number and the text of every docstring."""
    for node in ast.walk(ast.parse(source)):
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), text


def identifiers(source: str) -> set[str]:
    """All names in the code, not in its comments and strings."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.string for token in tokens if token.type == tokenize.NAME}


def test_docstrings_begin_with_what_a_thing_does_or_is():
    odd = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for path in MODULES
        for line, text in docstrings(path.read_text(encoding="utf-8"))
        if (first := re.match(r"\w+", text)) and first[0] in OPENINGS
    ]
    assert odd == []


def test_retired_names_do_not_come_back():
    retired = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in MODULES
        for name in identifiers(path.read_text(encoding="utf-8")) & RETIRED.keys()
    ]
    assert retired == []


def test_the_checks_see_what_they_look_for():
    source = 'class Frontier:\n    """What a strategy holds."""\n# Objective\n'
    assert list(docstrings(source)) == [(1, "What a strategy holds.")]
    assert identifiers(source) & RETIRED.keys() == {"Frontier"}
