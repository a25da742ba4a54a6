"""Tags in translations of Salesforce's localisation sets: kept, well-formed, as in the reference.

    git clone https://github.com/salesforce/localization-xml-mt
    python benchmarks/markup.py SOURCE.json REFERENCE.json --model RUN

Only lines with tags count (Hashimoto et al. 2019). A translation keeps its tags if it has each as
often as its source. Its structure is that of the reference if both have the same elements, in the
same order and nested alike, whatever the text between them.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

TAG = re.compile(r"<[^<>]+>")


def structure(line: str) -> str | None:
    """Return the elements of a line without text, or None if the line is not well-formed."""
    try:
        root = ElementTree.fromstring(f"<line>{line}</line>")
    except ElementTree.ParseError:
        return None
    for element in root.iter():
        element.text = element.tail = None
    return ElementTree.tostring(root, encoding="unicode")


def share(name: str, hits: Sequence[bool]) -> None:
    """Print how many lines are so."""
    print(f"{name:<45}{100 * sum(hits) / len(hits):6.2f} %  ({sum(hits)} of {len(hits)})")


def main() -> None:
    """Translate the source and print the shares."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("reference", type=Path)
    parser.add_argument("--model", required=True)
    arguments = parser.parse_args()
    source, reference = (
        [*json.loads(path.read_text("utf-8"))["text"].values()]
        for path in (arguments.source, arguments.reference)
    )
    rows = [row for row, line in enumerate(source) if structure(line) != structure("")]
    lines = [source[row].replace("\n", " ") for row in rows]
    command = (
        "nmt",
        "translate",
        "--model",
        arguments.model,
        "--markup",
        "html",
        "--split-sentences",
    )
    done = subprocess.run(
        command, input="\n".join(lines) + "\n", check=True, stdout=subprocess.PIPE, text=True
    )
    translations = done.stdout.splitlines()
    references = [structure(reference[row]) for row in rows]
    counts = [[Counter(TAG.findall(line)) for line in side] for side in (lines, translations)]
    found = [*map(structure, translations)]
    share("tags kept", [one == other for one, other in zip(*counts, strict=True)])
    share("well-formed", [one is not None for one in found])
    share("structure of the reference", [a == b for a, b in zip(found, references, strict=True)])
    own = [structure(line) == other for line, other in zip(lines, references, strict=True)]
    share("source: structure of the reference", own)


if __name__ == "__main__":
    main()
