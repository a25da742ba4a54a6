"""Write a parallel corpus of made-up words, with lengths like those of WMT14 and Zipf's law.

    python benchmarks/replica.py --output-dir work/replica --pairs 200000

A target sentence says word for word what the source says, with each pair of neighbours swapped, so
that a model learns from the corpus, and its loss shows whether it does. `train`, `valid` and `test`
are files of plain text with the suffixes `.en` and `.de`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "ar", "el", "in")]
WORDS = 30_000


def words(seed: int) -> list[str]:
    """Different words of one to four syllables, the shortest first, as frequent words are short."""
    random = np.random.default_rng(seed)
    made: dict[str, None] = {}
    while len(made) < WORDS:
        count = 1 + min(3, len(made) // 100)
        made["".join(random.choice(SYLLABLES, count))] = None
    return list(made)


def write(directory: Path, split: str, pairs: int, seed: int) -> None:
    """Write the two files of a split."""
    random = np.random.default_rng(seed)
    english, german = (np.array(words(side)) for side in (1, 2))
    frequencies = 1 / np.arange(10, WORDS + 10)
    lengths = np.clip(random.lognormal(3.0, 0.55, pairs), 1, 120).astype(int)
    ids = random.choice(WORDS, lengths.sum(), p=frequencies / frequencies.sum())
    directory.mkdir(parents=True, exist_ok=True)
    sources, targets = (directory / f"{split}{suffix}" for suffix in (".en", ".de"))
    with sources.open("w") as source, targets.open("w") as target:
        for sentence in np.split(ids, lengths.cumsum()[:-1]):
            swapped = sentence.copy()
            even = len(sentence) // 2 * 2
            swapped[0:even:2], swapped[1:even:2] = sentence[1:even:2], sentence[0:even:2]
            source.write(" ".join(english[sentence]) + "\n")
            target.write(" ".join(german[swapped]) + "\n")


def main() -> None:
    """Write all splits."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output-dir", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=200_000, help="of the training split")
    parser.add_argument("--held-out", type=int, default=500, help="pairs of valid and of test")
    arguments = parser.parse_args()
    held_out = {"valid": arguments.held_out, "test": arguments.held_out}
    for seed, (split, pairs) in enumerate({"train": arguments.pairs, **held_out}.items()):
        write(arguments.output_dir, split, pairs, seed)


if __name__ == "__main__":
    main()
