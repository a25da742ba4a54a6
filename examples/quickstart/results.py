"""Prints what the quickstart came to: the scores with their signatures, and a few translations."""

import argparse
import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

NUM_EXAMPLES = 6


def main() -> None:
    """Reads the files that ``run.sh`` left in the work directory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path, help="directory that run.sh wrote")
    arguments = parser.parse_args()
    console = Console(width=110)
    console.print(scores(arguments.work))
    console.print(examples(arguments.work))


def scores(work: Path) -> Table:
    """Gives a row for each metric, and one for the time of training without validation."""
    table = Table("metric", "value", "signature", title="Quickstart: held-out test set")
    for line in (work / "scores.jsonl").read_text(encoding="utf-8").splitlines():
        score = json.loads(line)
        table.add_row(score["metric"], f"{score['value']:.2f}", score["signature"])
    log = (work / "run/log.jsonl").read_text(encoding="utf-8").splitlines()
    seconds = max(json.loads(line).get("seconds", 0.0) for line in log)
    table.add_row("training", f"{seconds:.0f} s", "")
    return table


def examples(work: Path) -> Table:
    """Gives the first few test sentences with their references and translations."""
    table = Table("English", "German reference", "German translation", show_lines=True)
    names = ("corpus/test.en", "corpus/test.de", "test.hyp.de")
    columns = [(work / name).read_text(encoding="utf-8").split("\n") for name in names]
    for row in list(zip(*columns, strict=True))[:NUM_EXAMPLES]:
        table.add_row(*row)
    return table


if __name__ == "__main__":
    main()
