"""Write words and phones of SIGMORPHON 2020's task 1 as parallel text.

    python prepare.py DIRECTORY OUTPUT [--form NFC]

reads DIRECTORY/LANG_train.tsv, LANG_dev.tsv and LANG_test.tsv of each language: a word, a tab and
its phones on each line. It writes OUTPUT/train.LANG with the letters of a word between spaces,
OUTPUT/train.LANG_ipa with its phones, and so on.

In Unicode's form NFD, the default, a letter and its accent are two symbols, and a syllable of
Hangul is two or three letters. The data is in NFC.
"""

from __future__ import annotations

import argparse
import unicodedata
from collections.abc import Iterable
from pathlib import Path


def main() -> None:
    """Write the files of all languages."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--form", choices=["NFC", "NFD"], default="NFD")
    options = parser.parse_args()
    files = sorted(options.directory.glob("*_*.tsv"))
    if not files:
        parser.error(f"{options.directory} has no files LANG_train.tsv")
    options.output.mkdir(parents=True, exist_ok=True)
    for file in files:
        language, split = file.stem.split("_")
        rows = [line.split("\t") for line in file.read_text("utf-8").splitlines()]
        words = (" ".join(unicodedata.normalize(options.form, word)) for word, _ in rows)
        write(options.output / f"{split}.{language}", words)
        write(options.output / f"{split}.{language}_ipa", (phones for _, phones in rows))


def write(path: Path, lines: Iterable[str]) -> None:
    """Write lines."""
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")


if __name__ == "__main__":
    main()
