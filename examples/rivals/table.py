"""Prints, as Markdown, what the systems of ``run.sh`` came to, or what ``speeds.sh`` measured."""

import argparse
import itertools
import json
import math
import re
from pathlib import Path

from safetensors import safe_open


def main() -> None:
    """Reads the directories that the scripts left, one a system; the highest BLEU comes first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path, help="directory that the scripts wrote")
    parser.add_argument("systems", nargs="*", help="named below the table if they are missing")
    parser.add_argument(
        "--updates", type=float, metavar="MINUTES", help="print SYSTEM=UPDATES instead"
    )
    arguments = parser.parse_args()
    if arguments.updates:
        for system in arguments.systems:
            per_second, _ = training_speed(arguments.work / system)
            print(f"{system}={60 * arguments.updates * per_second:.0f}")
        return
    done = [path.parent for path in arguments.work.glob("*/scores.jsonl")]
    print("| system | BLEU | chrF | parameters | updates | target tokens/s | sentences/s |")
    print("|---|---|---|---|---|---|---|")
    for row in sorted(map(row_of, done), key=lambda row: -float(row[1])):
        print(f"| {' | '.join(row)} |")
    missing = sorted({*arguments.systems} - {path.name for path in done})
    if missing:
        print(f"\nNot there yet: {', '.join(missing)}.")


def row_of(system: Path) -> list[str]:
    """Gives the cells of a system: tokens/s of training, sentences/s of translating."""
    scores = {line["metric"]: line["value"] for line in records(system / "scores.jsonl")}
    translated = (system / "translate.log").read_text(encoding="utf-8")
    sentences = re.findall(r"([\d.,]+) sentences/s", translated)[-1]
    return [
        system.name,
        f"{scores['bleu']:.2f}",
        f"{scores['chrf']:.2f}",
        f"{parameters(system / 'run/last/model.safetensors'):,}",
        f"{int((system / 'run/last').resolve().name.rpartition('_')[2]):,}",
        f"{training_speed(system)[1]:,.0f}",
        sentences,
    ]


def training_speed(system: Path) -> tuple[float, float]:
    """Gives updates/s and target tokens/s after the first report, by ``speeds.sh`` if it ran."""
    measured = system.parent.parent / "speeds" / system.name
    lines = records((measured if measured.exists() else system) / "run/log.jsonl")
    first, *rest = [line for line in lines if line["record"] == "train"] or [{}]
    if not rest:
        return math.nan, math.nan
    seconds = rest[-1]["seconds"] - first["seconds"]
    updates = rest[-1]["update"] - first["update"]
    ends = [line["seconds"] for line in (first, *rest)]
    times = [end - start for start, end in itertools.pairwise(ends)]
    tokens = sum(
        time * line["target_tokens_per_second"] for time, line in zip(times, rest, strict=True)
    )
    return updates / seconds, tokens / seconds


def records(path: Path) -> list[dict]:
    """Gives the lines of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def parameters(path: Path) -> int:
    """Counts the weights of a checkpoint, tied ones once."""
    total = 0
    with safe_open(path, "numpy") as weights:
        for name in weights.keys():  # noqa: SIM118 (it is no mapping)
            size = 1
            for length in weights.get_slice(name).get_shape():
                size *= length
            total += size
    return total


if __name__ == "__main__":
    main()
