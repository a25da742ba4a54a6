"""Writes the English-German parallel corpus of the quickstart: training, validation and test.

    python examples/quickstart/corpus.py --output-dir data/quickstart

The sentences come from the grammar beside this file. The same seed gives the same bytes on every
machine, and no sentence of one file occurs in another, in either language. `valid.align` and
`test.align` say which words belong together: S-T, for sure, or S?T, possibly, for the numbers of an
English and a German word, from 0.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import complex_sentences
import facts
import simple_sentences
from dice import Dice
from lexicon import Pair
from links import links
from writer import Writer

PATTERNS = simple_sentences.PATTERNS + complex_sentences.PATTERNS + facts.PATTERNS
NUM_HELD_OUT_PAIRS = 500
DEFAULT_SEED = 1
DEFAULT_TRAIN_PAIRS = 24_000


def drawn_pairs(seed: int) -> Iterator[Pair]:
    """Gives sentence pairs without end, some of them more than once."""
    writer = Writer(Dice(seed))
    while True:
        yield writer.dice.weigh(PATTERNS)(writer)


def different_pairs(seed: int) -> Iterator[Pair]:
    """Gives the drawn pairs neither of whose sides has been given before."""
    seen: set[str] = set()
    for pair in drawn_pairs(seed):
        if seen.isdisjoint(pair):
            seen.update(pair)
            yield pair


def splits(seed: int, num_train_pairs: int) -> dict[str, list[Pair]]:
    """Gives the pairs of "test", "valid" and "train"; the first two depend on the seed alone."""
    pairs = different_pairs(seed)
    return {
        "test": list(islice(pairs, NUM_HELD_OUT_PAIRS)),
        "valid": list(islice(pairs, NUM_HELD_OUT_PAIRS)),
        "train": list(islice(pairs, num_train_pairs)),
    }


def write_splits(output_dir: Path, pairs_by_split: dict[str, list[Pair]]) -> None:
    """Writes one file per split and language, each whole or not at all, and gold alignments."""
    output_dir.mkdir(parents=True, exist_ok=True)
    for split, pairs in pairs_by_split.items():
        write_sides(output_dir / split, pairs)
        if split != "train":
            write_lines(output_dir / f"{split}.align", [alignment(pair) for pair in pairs])


def write_sides(path: Path, pairs: Sequence[Pair]) -> None:
    """Writes PATH.en and PATH.de, a line for each pair."""
    write_lines(path.with_name(f"{path.name}.en"), [pair.english for pair in pairs])
    write_lines(path.with_name(f"{path.name}.de"), [pair.german for pair in pairs])


def alignment(pair: Pair) -> str:
    """Gives the links of a pair as a line: 0-0 1-2 for sure ones, 1?1 for what is only possible."""
    sure, possible = links(pair)
    return " ".join(f"{i}{'-' if (i, j) in sure else '?'}{j}" for i, j in sorted(possible))


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """Writes lines in UTF-8 under another name first, then renames."""
    unfinished = path.with_name(path.name + ".tmp")
    unfinished.write_bytes("".join(f"{line}\n" for line in lines).encode("utf-8"))
    unfinished.replace(path)


def words(sentence: str) -> list[str]:
    """Splits a sentence at blanks, without the punctuation around its words."""
    return [word.strip(".,?") for word in sentence.split()]


def word_forms(sentences: Iterable[str]) -> set[str]:
    """Gives the different words of some sentences."""
    return {word for sentence in sentences for word in words(sentence)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description="Write the English-German parallel corpus of the quickstart.",
        epilog="example: python examples/quickstart/corpus.py --output-dir data/quickstart",
    )
    parser.add_argument("--output-dir", type=Path, required=True, help="directory for eight files")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="default: %(default)s")
    parser.add_argument(
        "--train-pairs", type=int, default=DEFAULT_TRAIN_PAIRS, help="default: %(default)s"
    )
    options = parser.parse_args(arguments)
    pairs_by_split = splits(options.seed, options.train_pairs)
    write_splits(options.output_dir, pairs_by_split)
    train = pairs_by_split["train"]
    counts = ", ".join(f"{len(pairs)} {split}" for split, pairs in pairs_by_split.items())
    print(
        f"{counts} pairs; word forms in training:",
        f"{len(word_forms(pair.english for pair in train))} English,",
        f"{len(word_forms(pair.german for pair in train))} German",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
