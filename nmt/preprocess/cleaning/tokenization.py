"""Recognise text that was tokenised, segmented or cut into subwords, and undo it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

from nmt.languages import has_spaces, is_unspaced
from nmt.messages import warn

if TYPE_CHECKING:
    from sacremoses import MosesDetokenizer

_SUBWORDS = re.compile("@@(?: |$)|▁")

# After letters alone, because numbers hold points and commas themselves.
_DETACHED, _ATTACHED = re.compile(r"(?<=[^\W\d]) [.,](?= |$)"), re.compile(r"[^\W\d][.,](?= |$)")

_BETWEEN_WORDS = re.compile("(?<=[^ -~]) (?=[^ -~])")

_OF_SEGMENTATION = re.compile("(?<![ -~]) +| +(?![ -~])")
"""Spaces, except between two ASCII characters."""

LONGEST_WORD = 6
"""Mean characters from space to space in segmented text, at most; Thai text, which has spaces
between clauses, has some 20."""

LEAST_LINES = 20
"""Number of lines that a judgement needs."""

SHARE = 0.8
"""Share of the telling lines that are of one kind; abbreviations make some lines of tokenised text
look plain."""


def kind_of(lines: Iterable[str]) -> str | None:
    """Return "tokenised", "segmented" or "cut into subwords", or None for plain text."""
    kinds = Counter(filter(None, map(_kind_of_line, lines)))
    for kind, count in kinds.most_common(1):
        if kind != "plain" and count >= max(LEAST_LINES, SHARE * kinds.total()):
            return kind
    return None


def _kind_of_line(line: str) -> str | None:
    """Return what a line tells; None if it tells nothing."""
    if _SUBWORDS.search(line):
        return "cut into subwords"
    line = line.strip()
    if is_unspaced(line):
        if len(line) <= LONGEST_WORD:
            return None
        between = len(_BETWEEN_WORDS.findall(line))
        return "segmented" if (between + 1) * (LONGEST_WORD + 1) > len(line) else "plain"
    # No other marks: French text has spaces before them.
    detached, attached = len(_DETACHED.findall(line)), len(_ATTACHED.findall(line))
    if not detached + attached:
        return None
    return "tokenised" if detached >= attached else "plain"


def warn_of_tokens(name: str, kind: str) -> None:
    """Warn what text that is not plain means for translation, and how to undo it."""
    warn(
        f"{name} is {kind}: a model of it needs input that is {kind} alike, and writes such "
        "output; to train on plain text, put detokenize first in preprocess.clean"
    )


def detokenized(line: str, language: str) -> str:
    """Return the line as plain text; see the cleaning step ``detokenize``."""
    if "▁" in line:
        line = line.replace(" ", "").replace("▁", " ").strip()
    elif "@@" in line:
        line = _SUBWORDS.sub("", line)
    if is_unspaced(line) or not has_spaces(language):
        line = _OF_SEGMENTATION.sub("", line)
    plain: str = _moses(re.split("[-_]", language)[0]).detokenize(line.split())
    return plain


@cache
def _moses(language: str) -> MosesDetokenizer:
    from sacremoses import MosesDetokenizer  # takes a third of a second

    return MosesDetokenizer(language)
