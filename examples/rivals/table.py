"""Prints, as Markdown, what the systems of ``run.sh`` came to."""

import argparse
import json
import re
import statistics
from pathlib import Path

from safetensors import safe_open


def main() -> None:
    """Reads the directories that ``run.sh`` left, one a system; the highest BLEU comes first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path, help="directory that run.sh wrote")
    done = [path.parent for path in parser.parse_args().work.glob("*/scores.jsonl")]
    print("| system | BLEU | chrF | parameters | updates | target tokens/s | sentences/s |")
    print("|---|---|---|---|---|---|---|")
    for row in sorted(map(row_of, done), key=lambda row: -float(row[1])):
        print(f"| {' | '.join(row)} |")


def row_of(system: Path) -> list[str]:
    """Gives the cells of a system: tokens/s of training, sentences/s of translating."""
    scores = {line["metric"]: line["value"] for line in records(system / "scores.jsonl")}
    reports = [line for line in records(system / "run/log.jsonl") if line["record"] == "train"]
    speed = statistics.median(report["target_tokens_per_second"] for report in reports)
    translated = (system / "translate.log").read_text(encoding="utf-8")
    sentences = re.findall(r"([\d.,]+) sentences/s", translated)[-1]
    return [
        system.name,
        f"{scores['bleu']:.2f}",
        f"{scores['chrf']:.2f}",
        f"{parameters(system / 'run/last/model.safetensors'):,}",
        f"{reports[-1]['update']:,}",
        f"{speed:,.0f}",
        sentences,
    ]


def records(path: Path) -> list[dict[str, object]]:
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
