"""``make fuzz``: damages files, runs commands, and prints a table of their outcomes.

A case is a kind of file and a number, by which it can be replayed.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import os
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from random import Random

import ctranslate2  # noqa: F401 -- imported once, for all that are forked
from tqdm import tqdm

from fuzz import material
from fuzz.child import Done
from fuzz.kinds import KINDS, Kind, Reading
from fuzz.mutations import damage
from fuzz.seals import can_be_sealed, seal

OUTCOMES = ("same result", "one line", "other result")
FAULTS = ("silent change", "traceback", "hang", "flood", "unreadable")
FORGED = 0.4
"""Share of the mutations after which the checksums are made to match again."""

BY_NAME = {kind.name: kind for kind in KINDS}


@dataclass(frozen=True)
class Case:
    """A mutation of a file, and a command that reads it."""

    kind: str
    number: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.number}"

    @classmethod
    def parse(cls, text: str) -> Case:
        kind, _, number = text.rpartition(":")
        return cls(kind, int(number))


@dataclass(frozen=True)
class Outcome:
    """What became of a case."""

    case: Case
    name: str
    """One of OUTCOMES or FAULTS."""
    what: str
    """File and command."""
    done: Done


def run_case(case: Case, source: Path) -> Outcome:
    """Damages a copy of the material, and runs a command on it."""
    kind, draw = BY_NAME[case.kind], Random(str(case))
    reading = draw.choice(kind.readings)
    with tempfile.TemporaryDirectory(prefix="nmt-fuzz-") as place:
        copy = Path(shutil.copytree(source, Path(place) / "work", symlinks=True))
        path = draw.choice(sorted(it for each in reading.files for it in copy.glob(each)))
        is_forged = can_be_sealed(path) and draw.random() < FORGED
        keeps_size = is_forged and path.suffix == ".safetensors"
        damage(path, draw, keeps_size, streams=not kind.is_stream)
        if is_forged and path.is_file():
            seal(path)
        done, result = run_reading(reading, copy)
        name = path.relative_to(copy)
    what = f"{'forged ' if is_forged else ''}{name}; nmt {reading.arguments}"
    return Outcome(case, _name(done, result, kind, reading, source, is_forged), what, done)


def _name(
    done: Done, result: bytes, kind: Kind, reading: Reading, source: Path, is_forged: bool
) -> str:
    if done.fault is not None:
        return done.fault
    if done.status != 0:
        return "one line"
    if result == undamaged(reading, source):
        return "same result"
    return "silent change" if kind.has_checksums and not is_forged else "other result"


def run_reading(reading: Reading, directory: Path) -> tuple[Done, bytes]:
    """Runs a command; gives how it ended, and its result."""
    done = material.run(reading.arguments, directory)
    digest = hashlib.sha256(done.out)
    for path in sorted(directory.glob(reading.results) if reading.results else []):
        digest.update(path.name.encode() + path.read_bytes())
    return done, digest.digest()


@cache
def undamaged(reading: Reading, source: Path) -> bytes:
    """The result of a command where nothing is damaged."""
    with tempfile.TemporaryDirectory(prefix="nmt-fuzz-") as place:
        copy = Path(shutil.copytree(source, Path(place) / "work", symlinks=True))
        done, result = run_reading(reading, copy)
    if done.status != 0:
        raise RuntimeError(f"nmt {reading.arguments}: {done.err}")
    return result


def table(outcomes: list[Outcome]) -> str:
    """The number of each outcome for each kind, in Markdown."""
    counts: Counter[tuple[str, str]] = Counter()
    columns = ("mutations", *OUTCOMES, *FAULTS)
    for outcome in outcomes:
        for kind in (outcome.case.kind, "all"):
            counts[kind, "mutations"] += 1
            counts[kind, outcome.name] += 1
    rows = [kind for kind in (*BY_NAME, "all") if counts[kind, "mutations"]]
    lines = [f"| kind | {' | '.join(columns)} |", "|---|" + "--:|" * len(columns)]
    for kind in rows:
        lines.append(f"| {kind} | {' | '.join(f'{counts[kind, it]:,}' for it in columns)} |")
    return "\n".join(lines)


def main() -> None:
    """Parses the command line; exit status 1 where there was a fault."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--mutations", type=int, default=6_000, help="of all kinds together")
    parser.add_argument("--kind", action="append", choices=BY_NAME, help="only these kinds")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--material", type=Path, default=Path("build/fuzz"), metavar="DIR")
    parser.add_argument("--replay", type=Case.parse, metavar="KIND:NUMBER", nargs="+")
    options = parser.parse_args()
    source = options.material.resolve()
    if options.replay:
        for case in options.replay:
            outcome = run_case(case, source)
            print(f"{case}: {outcome.name}: {outcome.what}\n{outcome.done.err}", end="")
        return
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    material.make(source)
    kinds, first = options.kind or list(BY_NAME), options.first
    wanted = [
        Case(kinds[number % len(kinds)], first + number // len(kinds))
        for number in range(options.mutations)
    ]
    outcomes = []
    gc.freeze()  # or collecting would copy the pages of every fork
    with get_context("fork").Pool(options.jobs) as pool:
        done = pool.imap_unordered(_run, [(case, source) for case in wanted])
        for outcome in tqdm(done, total=len(wanted), unit=" mutations", disable=None):
            outcomes.append(outcome)
            if outcome.name in FAULTS:
                last = outcome.done.err.strip().split("\n")[-1][:300]
                print(f"{outcome.case}: {outcome.name}: {outcome.what}: {last!r}", file=sys.stderr)
    print(table(outcomes))
    sys.exit(any(outcome.name in FAULTS for outcome in outcomes))


def _run(case_and_source: tuple[Case, Path]) -> Outcome:
    return run_case(*case_and_source)


if __name__ == "__main__":
    main()
