"""Word alignments against gold ones: alignment error rate (Och and Ney 2003, section 5).

A line holds the links of one pair of sentences: ``S-T`` for the word S of the source and the word T
of the target, both from 0. In gold alignments these are sure links, and ``S?T`` are possible ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from nmt.errors import NmtError
from nmt.evaluation.metrics import Counts, Metric

Link = tuple[int, int]

LINK = re.compile(r"([0-9]{1,9})([-?])([0-9]{1,9})")


def parse(line: str, place: str) -> tuple[set[Link], set[Link]]:
    """Return the sure links of a line and the possible ones, to which the sure ones belong.

    Raises:
        NmtError: a word of the line is no link; the message begins with `place`.
    """
    sure, possible = set(), set()
    for word in line.split():
        match = LINK.fullmatch(word)
        if match is None:
            raise NmtError(
                f'{place}: "{word[:40]}" is no link; write S-T, or S?T for a possible one, '
                "where S and T are numbers of words, from 0"
            )
        link = int(match[1]), int(match[3])
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    return sure, possible


def check_lines(files: Mapping[str, Iterable[str]]) -> None:
    """Raises an NmtError that names file and line of the first word that is no link."""
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
        """Links, sure links, and how many links are sure and possible ones."""
        found = []
        pairs = zip(hypotheses, references, strict=True)
        for number, (hypothesis, reference) in enumerate(pairs, start=1):
            _, links = parse(hypothesis, f"line {number} of the alignments")
            sure, possible = parse(reference, f"line {number} of the gold alignments")
            sets = (links, sure, links & sure, links & possible)
            found.append([float(len(each)) for each in sets])
        return found

    def compute(self, counts: Counts) -> tuple[float, str]:
        """The rate in per cent, precision |A and P| / |A| and recall |A and S| / |S|."""
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
        """Only the links matter."""
        return "links:sure+possible"
