"""Write the chapters of NiuTrans' Classical-Modern as training, validation and test set.

    git clone https://github.com/NiuTrans/Classical-Modern
    python prepare.py Classical-Modern corpus

A chapter is a directory below 双语数据 with the files source.txt and target.txt. A hash of its path
decides on its set, so that no chapter is in two sets, and every machine has the same sets. Pairs
stay in the order of their chapter. Chapters whose files differ in their number of lines are left
out, and counted.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from contextlib import ExitStack
from pathlib import Path

FOLDER = "双语数据"
SIDES = {"source.txt": "lzh", "target.txt": "zh"}


def set_of(chapter: str) -> str:
    """Return the set of a chapter, by its path: three of a thousand are "dev", and four "test"."""
    place = int(hashlib.sha256(chapter.encode()).hexdigest(), 16) % 1000
    return "dev" if place < 3 else "test" if place < 7 else "train"


def main() -> None:
    """Write the three sets into a new directory."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("repository", type=Path)
    parser.add_argument("corpus", type=Path)
    arguments = parser.parse_args()
    root = arguments.repository / FOLDER
    chapters = sorted(path.parent for path in root.rglob("source.txt"))
    if not chapters:
        sys.exit(f"{root}: no chapters; clone https://github.com/NiuTrans/Classical-Modern")
    arguments.corpus.mkdir(parents=True)
    pairs, left_out = dict.fromkeys(("train", "dev", "test"), 0), 0
    with ExitStack() as stack:
        files = {
            (split, side): stack.enter_context((arguments.corpus / f"{split}.{lang}").open("w"))
            for split in pairs
            for side, lang in SIDES.items()
        }
        for chapter in chapters:
            texts = {
                side: path.read_text("utf-8").splitlines()
                if (path := chapter / side).exists()
                else []
                for side in SIDES
            }
            if len({*map(len, texts.values())}) != 1:
                left_out += 1
                continue
            split = set_of(str(chapter.relative_to(root)))
            pairs[split] += len(texts["source.txt"])
            for side, lines in texts.items():
                files[split, side].writelines(f"{line}\n" for line in lines)
    print(", ".join(f"{split}: {count:,} pairs" for split, count in pairs.items()))
    print(f"chapters left out: {left_out:,} of {len(chapters):,}")


if __name__ == "__main__":
    main()
