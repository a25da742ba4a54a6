"""Alignment error rate of word alignments against gold alignments (Och and Ney 2003, section 5).

A line holds the links of one sentence pair: ``S-T`` for the word S of the source and the word T of
the target, both from 0. In gold alignments ``S-T`` is a sure link and ``S?T`` a possible link.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from nmt.errors import NmtError
from nmt.evaluation.metrics import Counts, Metric

Link = tuple[int, int]

# At most nine digits, because int() refuses a number of thousands of digits.
LINK = re.compile(r"([0-9]{1,9})([-?])([0-9]{1,9})")


def parse(line: str, place: str) -> tuple[set[Link], set[Link]]:
    """Return the sure links and the possible links of a line; sure links are possible, too.

    Raises:
        NmtError: a word of the line is not a link; the message begins with `place`.
    """
    sure, possible = set(), set()
    for word in line.split():
        match = LINK.fullmatch(word)
        if match is None:
            raise NmtError(
                f'{place}: "{word[:40]}" is not a link; write S-T, or S?T for a possible link, '
                "where S and T are numbers of words, from 0"
            )
        link = int(match[1]), int(match[3])
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    return sure, possible


def check_lines(files: Mapping[str, Iterable[str]]) -> None:
    """Check that every word of every file is a link.

    Raises:
        NmtError: a word is not a link; the message names its file and line.
    """
    for name, lines in files.items():
        for number, line in enumerate(lines, start=1):
            parse(line, f"{name}:{number}")


@dataclass(frozen=True, kw_only=True)
class AlignmentErrorRate(Metric):
    """1 - (|A and S| + |A and P|) / (|A| + |S|) of links A, sure links S and possible links P."""

    higher_is_better: ClassVar[bool] = False

    name: str = "aer"

    def counts(
        self, hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str]
    ) -> Counts:
        """Return for each sentence |A|, |S|, |A and S| and |A and P|."""
        counts = []
        pairs = zip(hypotheses, references, strict=True)
        for number, (hypothesis, reference) in enumerate(pairs, start=1):
            _, links = parse(hypothesis, f"line {number} of the alignments")
            sure, possible = parse(reference, f"line {number} of the gold alignments")
            sets = (links, sure, links & sure, links & possible)
            counts.append([float(len(links_of_kind)) for links_of_kind in sets])
        return counts

    def compute(self, counts: Counts) -> tuple[float, str]:
        """Return the rate in per cent, and precision |A and P| / |A| and recall |A and S| / |S|."""
        links, sure, hits, possible_hits = (sum(column) for column in zip(*counts, strict=True))
        error = 1 - (hits + possible_hits) / (links + sure) if links + sure else 0.0
        precision = possible_hits / links if links else 0.0
        recall = hits / sure if sure else 0.0
        details = (
            f"(precision = {100 * precision:.2f} recall = {100 * recall:.2f} "
            f"links = {links:.0f} sure = {sure:.0f})"
        )
        return 100 * error, details

    def signature(self) -> str:
        """Return the kinds of links; there are no settings."""
        return "links:sure+possible"
