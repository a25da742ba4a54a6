"""Alignment error rate of ``nmt align`` and of fast_align and eflomal, on the same pairs.

    python benchmarks/alignments.py GOLD PAIRS [--more PREFIX SOURCE TARGET] [--fast-align DIR]

PAIRS has lines ``source ||| target`` and GOLD their links, in the form of Mihalcea and Pedersen
(2003) that awesome-align has: ``i-j`` is sure and ``ipj`` possible, from 1. Each aligner learns
from the pairs, lowercased, and from those of --more; directions are combined by
grow-diag-final-and. DIR has the programs fast_align and atools
(https://github.com/clab/fast_align); ``eflomal-align`` (``pip install eflomal``) is found on PATH.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from pathlib import Path


def run(*command: str | Path) -> str:
    """Return what a command prints; its messages are left out."""
    done = subprocess.run([*map(str, command)], check=True, capture_output=True, text=True)
    return done.stdout


def from_zero(links: str) -> str:
    """Return gold links as ``nmt score`` reads them."""

    def link(match: re.Match[str]) -> str:
        sign = "-" if match[2] == "-" else "?"
        return f"{int(match[1]) - 1}{sign}{int(match[3]) - 1}"

    return re.sub(r"(\d+)([-p])(\d+)", link, links)


def nmt(work: Path) -> str:
    """Return the links of IBM model 1 and the hidden Markov model."""
    return run("nmt", "align", "--source", work / "source", "--target", work / "target")


def fast_align(work: Path, programs: Path) -> str:
    """Return the links of fast_align with the options that its README recommends."""
    for name, reverse in (("forward", ()), ("reverse", ("-r",))):
        links = run(programs / "fast_align", "-i", work / "joined", "-d", "-o", "-v", *reverse)
        (work / name).write_text(links)
    files = ("-i", work / "forward", "-j", work / "reverse")
    return run(programs / "atools", *files, "-c", "grow-diag-final-and")


def eflomal(work: Path, programs: Path) -> str:
    """Return the links of eflomal's default model."""
    files = ("-f", work / "forward", "-r", work / "reverse")
    run("eflomal-align", "--overwrite", "-i", work / "joined", *files)
    files = ("-i", work / "forward", "-j", work / "reverse")
    return run(programs / "atools", *files, "-c", "grow-diag-final-and")


def main() -> None:
    """Print a line for each aligner."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("gold", type=Path)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--more", nargs=3, metavar=("PREFIX", "SOURCE", "TARGET"))
    parser.add_argument("--fast-align", type=Path, metavar="DIR")
    arguments = parser.parse_args()
    pairs = [
        tuple(side.strip().lower() for side in line.split("|||"))
        for line in arguments.pairs.read_text().splitlines()
    ]
    count = len(pairs)
    if arguments.more:
        prefix, *languages = arguments.more
        sides = [Path(f"{prefix}.{lang}").read_text().lower().splitlines() for lang in languages]
        pairs += [pair for pair in zip(*sides, strict=True) if all(map(str.strip, pair))]
    print(f"{count} pairs with links, {len(pairs):,} in all")
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        gold = work / "gold"
        gold.write_text(from_zero(arguments.gold.read_text()))
        for side, lines in zip(("source", "target"), zip(*pairs, strict=True), strict=True):
            (work / side).write_text("".join(f"{line}\n" for line in lines))
        (work / "joined").write_text("".join(f"{one} ||| {two}\n" for one, two in pairs))
        systems = {"nmt align": lambda: nmt(work)}
        if programs := arguments.fast_align:
            systems["fast_align"] = lambda: fast_align(work, programs)
            systems["eflomal"] = lambda: eflomal(work, programs)
        for system, align in systems.items():
            found = work / "links"
            found.write_text("".join(f"{line}\n" for line in align().splitlines()[:count]))
            score = run("nmt", "score", "--alignments", gold, found)
            print(f"{system:<12}{' '.join(score.split())}")


if __name__ == "__main__":
    main()
