"""Which files are of which kind, and which commands read them."""

from __future__ import annotations

from dataclasses import dataclass

TRANSLATE = "translate --workers 1 --n-best 2 --model"


@dataclass(frozen=True)
class Reading:
    """A command that reads some files."""

    arguments: str
    files: tuple[str, ...]
    """Patterns of the files that it reads, which are damaged."""
    results: str = ""
    """Pattern of the files that it writes; with stdout they are its result."""


@dataclass(frozen=True)
class Kind:
    """A kind of file."""

    name: str
    readings: tuple[Reading, ...]
    has_checksums: bool = True
    """Whether damage must be found. Of text that anyone may write it cannot be."""
    is_stream: bool = False
    """Whether it may also be a pipe or a device, which a command reads for as long as it gives."""


def _all(files: str, *commands: tuple[str, str] | str) -> tuple[Reading, ...]:
    """Commands that all read the same files; a pair has the pattern of its results."""
    pairs = ((each, "") if isinstance(each, str) else each for each in commands)
    return tuple(Reading(arguments, tuple(files.split()), results) for arguments, results in pairs)


RESUME = ("train --max-updates 62", "run/update_0000062/model.safetensors")
FRESH = "train --save-dir fresh --max-updates 2"
TINY = "--arch transformer_tiny --precision fp32 --max-tokens 100"
"""For recipes that say nothing of this any more."""
WEIGHTS = "fresh/update_*/model.safetensors"
AVERAGE = ("average-checkpoints --run run --last 2 --output fresh", WEIGHTS)
EXPORT = ("export --model run --output fresh", "fresh/*.bin")
SHORTLIST = ("shortlist --model run", "run/shortlist.safetensors")
SUBWORDS = "preprocess --output-dir fresh --subword-model "

KINDS = (
    Kind(
        "dataset",
        _all(
            "data-bin/*",
            "inspect --verify data-bin",
            (FRESH, WEIGHTS),
            "score --data data-bin text/test.de",
            SHORTLIST,
        )
        + _all("sharded/*/*", "inspect --verify sharded", (f"{FRESH} --data sharded", WEIGHTS))
        + _all("data-bin/subwords.model", (SUBWORDS + "data-bin", "fresh/train.*")),
    ),
    Kind(
        "run",
        _all(
            "run/run.json run/recipe.yaml run/subwords.model",
            "inspect --verify run",
            f"{TRANSLATE} run text/test.en",
            f"{TRANSLATE} run --json --alignments text/test.en",
            "score --model run --source text/test.en text/test.de",
            "rescore --model run --source text/test.en list.txt",
            "align --model run --source text/test.en --target text/test.de",
            RESUME,
            (f"{FRESH} --init-from run", WEIGHTS),
            AVERAGE,
            EXPORT,
            SHORTLIST,
            (SUBWORDS + "run", "fresh/train.*"),
        ),
    ),
    Kind(
        "plugins of a run",
        _all(
            "plugged/plugins/*",
            "inspect --verify plugged",
            f"{TRANSLATE} plugged --trust-plugins text/test.en",
        ),
    ),
    Kind(
        "checkpoint",
        _all(
            "run/update_*/*",
            "inspect --verify run",
            f"{TRANSLATE} run text/test.en",
            RESUME,
            AVERAGE,
            EXPORT,
        ),
    ),
    Kind(
        "shortlist",
        _all(
            "run/shortlist.safetensors",
            f"{TRANSLATE} run --shortlist text/test.en",
            "inspect --verify run",
            AVERAGE,
            EXPORT,
        ),
    ),
    Kind(
        "export",
        _all(
            "exported/*", "translate --workers 2 --engine ctranslate2 --model exported text/test.en"
        ),
    ),
    Kind(
        "model to import",
        _all("foreign/*", ("import foreign --output fresh", WEIGHTS))
        + _all("marian/*", ("import marian --output fresh -s en -t de", WEIGHTS))
        + _all("binary/*", ("import binary --output fresh -s en -t de", WEIGHTS))
        + _all("fairseq/*", ("import fairseq --output fresh", WEIGHTS)),
        has_checksums=False,
    ),
    Kind(
        "subword model",
        _all("subwords.model", (SUBWORDS + "subwords.model", "fresh/train.*")),
        has_checksums=False,
    ),
    Kind(
        "recipe",
        _all(
            "nmt.yaml",
            ("preprocess --output-dir fresh", "fresh/train.*"),
            f"{FRESH} --dry-run --data data-bin {TINY}",
            f"{TRANSLATE} run text/test.en",
            "score --reference text/test.de text/test.de",
        ),
        has_checksums=False,
    ),
    Kind(
        "n-best list",
        _all(
            "list.txt",
            "rescore --model run --source text/test.en list.txt",
            "rescore --model run --source text/test.en --weights LogProbability=1,Model=1 list.txt",
            "tune --reference text/test.de --restarts 1 list.txt",
        ),
        has_checksums=False,
        is_stream=True,
    ),
    Kind(
        "compressed text",
        _all("text/test.en.gz", f"{TRANSLATE} run text/test.en.gz")
        + _all("text/test.en.xz", f"{TRANSLATE} run text/test.en.xz")
        + _all("text/test.en.zst", f"{TRANSLATE} run text/test.en.zst"),
        is_stream=True,
    ),
    Kind(
        "text",
        _all("text/test.en", f"{TRANSLATE} run text/test.en")
        + _all("text/test.de", f"{TRANSLATE} run --prefix text/test.de text/test.en")
        + _all("text/train.* text/valid.*", ("preprocess --output-dir fresh", "fresh/train.*"))
        + _all(
            "text/test.en text/test.de",
            "score --reference text/test.de text/test.de",
            "score --model run --source text/test.en text/test.de",
            "rescore --model run --source text/test.en list.txt",
        ),
        has_checksums=False,
        is_stream=True,
    ),
)
