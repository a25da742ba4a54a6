"""Annotations of training pairs, in files next to the text or in its last columns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nmt.errors import NmtError
from nmt.io.lines import COMPRESSED


@dataclass(frozen=True, kw_only=True)
class Annotation:
    """A kind of annotation of pairs, in the file PREFIX.ENDING or in a column of FILE.tsv."""

    ending: str
    """Ending of the name of the file."""
    key: str
    """Key of the recipe's section ``preprocess`` that turns the annotation on."""
    column: str
    """Content of the column in a file with columns."""
    line: str
    """Required content of line n of the file."""
    remedy: str
    """Remedy if the file is missing."""

    def find(self, path: str) -> Path:
        """Return the file next to a text.

        Raises:
            NmtError: there is none.
        """
        try:
            return find(f"{path}.{self.ending}")
        except NmtError as error:
            raise NmtError(f"preprocess.{self.key}: {error}; {self.remedy}") from None


LINKS = Annotation(
    ending="align",
    key="alignments",
    column="S-T links",
    line="the links of pair n, or be empty",
    remedy="make it with nmt align, or leave alignments out",
)

WEIGHTS = Annotation(
    ending="weights",
    key="sentence_weights",
    column="the weight",
    line="the weight of pair n",
    remedy="write a number on each line, or leave the key out",
)

DOCUMENT_IDS = Annotation(
    ending="docid",
    key="document_ids",
    column="the id of the document",
    line="the id of the document of pair n",
    remedy="write an id on each line, or leave the key out for blank lines between documents",
)


def find(name: str) -> Path:
    """Return the file of a name, plain or compressed.

    Raises:
        NmtError: there is none.
    """
    for suffix in ("", *COMPRESSED):
        if (path := Path(name + suffix)).is_file():
            return path
    raise NmtError(f"no such file: {name}, nor the same name with .gz, .xz or .zst")
