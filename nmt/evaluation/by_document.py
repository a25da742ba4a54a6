"""Documents scored as if they were sentences, as in d-BLEU (Liu et al. 2020).

Blank lines of the references divide a test set into documents. The lines of each are joined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from nmt.errors import NmtError
from nmt.evaluation.metrics import Score
from nmt.evaluation.testsets import TestSet
from nmt.messages import warn


def by_document(
    test_set: TestSet, systems: Mapping[str, Sequence[str]]
) -> tuple[TestSet, dict[str, list[str]]]:
    """Return the test set and the lines of each system with a line for each document.

    Raises:
        NmtError: a system or the source has another number of lines than the references, or text
            where these are blank.
    """
    has_text = [bool(line.strip()) for line in test_set.references]
    groups = groupby(range(len(has_text)), key=has_text.__getitem__)
    documents = [[*lines] for is_document, lines in groups if is_document]
    if documents and all(has_text):
        warn(f"no blank line is in {test_set.name}: all of it is scored as one document")

    def joined(name: str, side: Sequence[str]) -> list[str]:
        if len(side) != len(has_text):
            raise NmtError(
                f"{name} has {len(side)} lines, but {test_set.name} has {len(has_text)}; "
                "line n of both must belong to the same sentence"
            )
        for number, (line, is_sentence) in enumerate(zip(side, has_text, strict=True), 1):
            if line.strip() and not is_sentence:
                raise NmtError(
                    f"{name}: line {number} has text, but that line of {test_set.name} is blank; "
                    "the blank lines between documents must be in the same places"
                )
        return [" ".join(side[at] for at in lines) for lines in documents]

    sources = test_set.sources
    return (
        replace(
            test_set,
            name=f"documents of {test_set.name}",
            references=joined(test_set.name, test_set.references),
            sources=None if sources is None else joined(f"source of {test_set.name}", sources),
        ),
        {name: joined(name, lines) for name, lines in systems.items()},
    )


def marked(score: Score) -> Score:
    """Return a score with documents in its signature, because it is not that of the lines."""
    return replace(score, signature=f"{score.signature}|unit:document")
