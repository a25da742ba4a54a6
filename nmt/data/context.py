"""The context of sentences: which sentences of a document are one source and one target.

A model translates a sentence together with the sentences before it (Tiedemann and Scherrer 2017,
*Neural Machine Translation with Extended Context*), or whole documents and their parts (Sun et al.
2022, *Rethinking Document-level Neural Machine Translation*).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from nmt.io.documents import DocumentFormat

CONTEXT_FILE = "context.json"
"""Name of the file in a dataset, a run or an export. Directories for single sentences have no such
file."""

Span = tuple[int, int]
"""First sentence of a document that is joined, and the sentence after the last."""


@dataclass(frozen=True, kw_only=True)
class DocumentContext:
    """Content of ``context.json``, and the key ``preprocess.documents``."""

    context: int | None = None
    """Number of previous sentences that are joined to each sentence; None for 1, and with
    `whole`."""
    sides: Literal["both", "source"] = "both"
    """Sides with the context."""
    whole: bool = False
    """Whether documents are joined as a whole, and as halves, quarters and so on."""
    max_tokens: int = 512
    """Maximum length of joined sentences; fewer are joined if they are longer."""

    def __post_init__(self) -> None:
        if self.context is None and not self.whole:
            object.__setattr__(self, "context", 1)  # equal to one that says so
        for key in ("context", "max_tokens"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise ValueError(f"{key} must be at least 1, not {value}")
        if self.whole and self.sides == "source":
            raise ValueError("whole documents are joined on both sides; unset sides or whole")

    @property
    def most_before(self) -> int:
        """Largest number of previous sentences that are joined to a sentence, without `whole`."""
        return self.context or 1

    def examples(self, lengths: Sequence[int]) -> list[Span]:
        """Return the spans of a document that training joins.

        Args:
            lengths: length of each sentence in tokens with EOS, of the longer side.
        """
        if not self.whole:
            return [(self.first(lengths, at), at + 1) for at in range(len(lengths))]
        spans = self.parts(lengths)
        for start, end in spans:  # which grows
            if end - start > 1:
                # Halves teach the model to translate parts, which long documents need (Sun et al.
                # 2022).
                spans += [(start, half(start, end)), (half(start, end), end)]
        return sorted(spans)

    def first(self, lengths: Sequence[int], at: int) -> int:
        """Return the first of the sentences that are joined to the sentence `at`."""
        first, length = at, lengths[at]
        least = max(0, at - self.most_before)
        while first > least and length + lengths[first - 1] <= self.max_tokens:
            first -= 1
            length += lengths[first]
        return first

    def parts(self, lengths: Sequence[int]) -> list[Span]:
        """Divide a document into parts that fit, each as long as possible."""
        starts, total = [0], 0
        for at, length in enumerate(lengths):
            # A sentence that is too long by itself is a part by itself.
            if at > starts[-1] and total + length > self.max_tokens:
                starts.append(at)
                total = 0
            total += length
        return list(zip(starts, [*starts[1:], len(lengths)], strict=True))


def half(start: int, end: int) -> int:
    """Return where a span is divided in two; the first half is not the shorter one."""
    return (start + end + 1) // 2


CONTEXTS = DocumentFormat(
    kind=DocumentContext,
    name="nmt-context",
    version=1,
    remedy="copy the directory again from where it came from, or make it again",
)
