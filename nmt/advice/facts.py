"""Facts about a parallel corpus, in one pass and in bounded memory, and its held-out sets.

Validation and test sets are found next to the training text, or chosen from its pairs.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from nmt.advice.rules import CLEANING
from nmt.errors import NmtError
from nmt.io.files import whole_file
from nmt.io.lines import COMPRESSED
from nmt.messages import warn
from nmt.preprocess.cleaning.duplicates import joined
from nmt.preprocess.cleaning.pipeline import Cleaning, CleaningStats
from nmt.preprocess.corpus import Bitext, Chunk
from nmt.recipe.config import build

SAMPLE = 20_000
"""Distinct pairs of the sample from which lengths and speeds are measured."""

COUNTED = 8_000_000
"""Up to this many pairs, distinct pairs are counted, with 8 bytes for each. With more, their number
is estimated."""

_HASHES = 1 << 64


@dataclass(frozen=True)
class Pair:
    """A pair of the corpus."""

    source: str
    target: str


@dataclass(frozen=True)
class Survey:
    """Size of a corpus, and a random sample of its distinct pairs."""

    pairs: int
    """Number of lines of each side."""
    distinct: int
    """Number of distinct pairs; an estimate if there are more than `COUNTED` pairs."""
    sample: list[Pair]
    """At most `SAMPLE` distinct pairs, in the order of their hashes."""

    @property
    def is_whole(self) -> bool:
        """Whether the sample holds every distinct pair."""
        return self.distinct == len(self.sample)

    @property
    def is_counted(self) -> bool:
        """Whether `distinct` is exact."""
        return self.pairs <= COUNTED or self.is_whole


class Sketch:
    """The distinct pairs with the smallest hashes: a random sample.

    Up to `COUNTED` pairs, distinct pairs are counted by their hashes. Beyond, the number is
    estimated from the largest hash kept (Bar-Yossef et al. 2002, "Counting Distinct Elements in a
    Data Stream"). The same text gives the same sample, in any order.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.total = 0
        self._kept: dict[int, Pair] = {}
        self._bound = _HASHES
        # A set of Python's integers would take several times the memory.
        self._hashes = array("Q")

    def add(self, source: str, target: str) -> None:
        """Count a pair."""
        self.total += 1
        key = _hash(source, target)
        if self.total <= COUNTED:
            self._hashes.append(key)
        if key >= self._bound:
            return
        self._kept[key] = Pair(source, target)
        # Only at twice the size, so that sorting is rare.
        if len(self._kept) == 2 * self.size:
            self._prune()

    def _prune(self) -> None:
        smallest = sorted(self._kept)[: self.size]
        self._kept = {key: self._kept[key] for key in smallest}
        self._bound = smallest[-1]

    def survey(self) -> Survey:
        """Return the size of the text and the sample."""
        if len(self._kept) > self.size:
            self._prune()
        keys = sorted(self._kept)
        sample = [self._kept[key] for key in keys]
        if self.total <= COUNTED:
            distinct = len(np.unique(np.asarray(self._hashes)))
        elif self._bound < _HASHES:
            # Of n uniform hashes the k-th smallest is near k / n; k - 1 makes the estimate
            # unbiased.
            distinct = min(self.total, round((self.size - 1) * _HASHES / keys[-1]))
        else:
            distinct = len(keys)
        return Survey(self.total, distinct, sample)


def _hash(source: str, target: str) -> int:
    digest = hashlib.blake2b(joined(source, target), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def survey(bitexts: Iterable[Bitext], size: int = SAMPLE) -> Survey:
    """Return the number of pairs of a corpus and a sample of its distinct pairs.

    Raises:
        NmtError: a file is empty or damaged, or two files differ in their number of lines.
    """
    sketch = Sketch(size)
    for chunk in _watched("reading the corpus", bitexts):
        for source, target in zip(chunk.source, chunk.target, strict=True):
            sketch.add(source, target)
    return sketch.survey()


def compatibility_characters(lines: Iterable[str]) -> float:
    """Return the share of characters that Unicode's form NFKC replaces, such as ``，`` by ``,``.

    Spaces, and what already NFC replaces, are left to the cleaning steps.
    """
    text = unicodedata.normalize("NFC", "".join("".join(lines).split()))
    counts = Counter(text)
    replaced = sum(
        count for char, count in counts.items() if unicodedata.normalize("NFKC", char) != char
    )
    return replaced / max(1, len(text))


def lines_that_occur_once(bitexts: Iterable[Bitext], pairs: Sequence[Pair]) -> set[str]:
    """Return the lines of these pairs that the whole corpus has exactly once, on either side."""
    asked = {line for pair in pairs for line in (pair.source, pair.target)}
    counts: Counter[str] = Counter()
    for chunk in _watched("looking for repeated lines", bitexts):
        for side in (chunk.source, chunk.target):
            # Only lines that are asked for, so that memory does not grow with the corpus.
            counts.update(line for line in side if line in asked)
    return {line for line, count in counts.items() if count == 1}


def has_most(bitexts: Iterable[Bitext], pairs: set[tuple[str, str]]) -> bool:
    """Return whether the corpus has at least half of these pairs."""
    missing = set(pairs)
    for chunk in _watched("looking for held-out pairs", bitexts):
        missing.difference_update(zip(chunk.source, chunk.target, strict=True))
        if 2 * len(missing) <= len(pairs):
            return True
    return False


def _watched(doing: str, bitexts: Iterable[Bitext]) -> Iterator[Chunk]:
    """Yield the pairs of all bitexts, with a count of them on a terminal."""
    with tqdm(desc=doing, unit=" pairs", unit_scale=True, disable=None, leave=False) as bar:
        for bitext in bitexts:
            for chunk in bitext.chunks(on_invalid_utf8=None):  # a recipe could not replace it
                yield chunk
                bar.update(len(chunk.source))


Languages = tuple[str, str]

NAMES = {"valid": ("valid", "val", "dev", "validation"), "test": ("test",)}
"""Usual names of held-out sets, by split."""

DIRECTORY = Path("held-out")
"""Directory of the held-out sets that `nmt init` makes."""

SHARE = 40
"""One pair in so many becomes a held-out pair of each set."""

MAX_PAIRS = 1000
"""Largest number of pairs of a held-out set that is made."""

ENOUGH_PAIRS = 100
"""A held-out set needs at least this many suitable pairs of the sample."""


def find(
    split: str,
    train: Sequence[str],
    bitexts: Sequence[Bitext],
    languages: Languages,
    others: Sequence[Bitext] = (),
) -> str | None:
    """Return the path of a held-out set: made before, or under a usual name next to a corpus.

    Training text is never a held-out set, whatever its name. The sets in `others`, and sets that
    were made from another corpus, are ignored. A set that lacks a side is ignored with a warning.
    """
    # Resolved, because a link may lead to the training text.
    used = {file.resolve() for bitext in (*bitexts, *others) for file in bitext.files}
    usual = (path for prefix in train for path in _usual_paths(split, Path(prefix)))
    for path in itertools.chain([str(DIRECTORY / split)], usual):
        is_made = path == str(DIRECTORY / split)
        try:
            bitext = Bitext.find(path, *languages)
        except NmtError as error:
            if not is_made and _has_a_side(path, languages):
                warn(f"{path} is not taken as the {split} set: {error}")
            continue
        if is_made and not _is_from(bitexts, bitext):
            continue
        if used.isdisjoint(file.resolve() for file in bitext.files):
            return path
    return None


def given_set(
    path: str, bitexts: Sequence[Bitext], others: Sequence[Bitext], languages: Languages
) -> Bitext:
    """Return a held-out set that is given.

    Raises:
        NmtError: the set is missing, is training text, or is given for both splits.
    """
    given = Bitext.find(path, *languages)
    for sets, problem in (
        (bitexts, "is training text; give a held-out set"),
        (others, "is given as --valid and --test; leave out one of them, and nmt init makes it"),
    ):
        used = {file.resolve() for bitext in sets for file in bitext.files}
        for file in given.files:
            if file.resolve() in used:
                raise NmtError(f"{file}: {problem}")
    return given


def _has_a_side(path: str, languages: Languages) -> bool:
    """Return whether there is a file of at least one of the languages."""
    files = (f"{path}.{language}{end}" for language in languages for end in ("", *COMPRESSED))
    return any(Path(file).exists() for file in files)


def _is_from(bitexts: Sequence[Bitext], made: Bitext) -> bool:
    """Return whether the corpus has most pairs of a set; some may have been removed since."""
    chunks = made.chunks(on_invalid_utf8=None)
    pairs = {pair for text in chunks for pair in zip(text.source, text.target, strict=True)}
    return has_most(bitexts, pairs)


def _usual_paths(split: str, train: Path) -> Iterator[str]:
    """Yield the usual paths: ``val.tok`` next to ``train.tok``, else ``val`` in the directory.

    Next to ``crawl.tsv.gz``, ``val.tsv`` comes before ``val``.
    """
    if train.suffix in COMPRESSED:
        train = train.with_suffix("")  # another set may be plain, or compressed otherwise
    for name in NAMES[split]:
        if "train" in train.name:
            yield str(train.with_name(re.sub("train(ing)?", name, train.name)))
    for name in NAMES[split]:
        if train.suffix == ".tsv":
            yield str(train.with_name(f"{name}.tsv"))
        yield str(train.with_name(name))


def check_free(splits: Iterable[str], languages: Languages) -> None:
    """Raise an NmtError if a new set would replace a file, such as a set of another corpus."""
    for file in (file for split in splits for file in _files(split, languages)):
        if file.exists():
            raise NmtError(
                f"{file}: exists already, but was not set aside from this corpus; call nmt init in "
                f"another directory, or move {DIRECTORY} away"
            )


def _files(split: str, languages: Languages) -> list[Path]:
    return [DIRECTORY / f"{split}.{language}" for language in languages]


def size(distinct: int) -> int:
    """Return the number of pairs of a held-out set that is made."""
    return max(1, min(MAX_PAIRS, distinct // SHARE))


def choose(
    survey: Survey, bitexts: Sequence[Bitext], splits: Sequence[str]
) -> dict[str, list[Pair]]:
    """Return the pairs of new held-out sets, by split.

    Only pairs that the cleaning steps of the recipe keep are chosen. Pairs with a repeated line are
    chosen only if there are too few pairs without. A set may become smaller than :func:`size`.

    Raises:
        NmtError: the corpus has too few pairs.
    """
    wanted = size(survey.distinct) * len(splits)
    # More than wanted, because many may share a line with other pairs.
    candidates = _cleaned(survey.sample)[: 4 * wanted]
    once = lines_that_occur_once(bitexts, candidates)
    candidates.sort(key=lambda pair: not once.issuperset((pair.source, pair.target)))  # stable
    chosen: list[Pair] = []
    seen: set[str] = set()
    for pair in candidates:
        if len(chosen) < wanted and seen.isdisjoint((pair.source, pair.target)):
            chosen.append(pair)
            seen |= {pair.source, pair.target}
    missing = " and ".join(splits)
    if survey.distinct < 10 * len(splits):
        raise NmtError(
            f"too few distinct pairs to set some aside for {missing}: {survey.distinct:,}; give "
            "the model more text"
        )
    if len(chosen) < min(wanted, ENOUGH_PAIRS * len(splits)):
        raise NmtError(
            "too many pairs share a source or a target, or are dropped by cleaning, to set "
            f"{wanted:,} aside for {missing}; put files named {missing} next to the training text"
        )
    # In turn, so that the pairs with repeated lines, which come last, are shared out equally.
    return {split: chosen[number :: len(splits)] for number, split in enumerate(splits)}


def _cleaned(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs that the cleaning steps of the recipe keep, as they are."""
    cleaning = build(Cleaning, {"clean": [step for step, _ in CLEANING]}, "preprocess")
    sides = [pair.source for pair in pairs], [pair.target for pair in pairs]
    indices, _, _ = cleaning.cleaned(*sides, frozenset(), CleaningStats())
    return [pairs[index] for index in indices]


@contextmanager
def written(sets: Mapping[str, Sequence[Pair]], languages: Languages) -> Iterator[list[Path]]:
    """Write held-out sets and yield their files; remove them if the context fails."""
    paths = [path for split in sets for path in _files(split, languages)]
    try:
        for split, pairs in sets.items():
            _write(split, pairs, languages)
        yield paths
    except BaseException:
        # Also at Ctrl-C: a later call would take the sets for sets of another corpus.
        for path in paths:
            path.unlink(missing_ok=True)
        with suppress(OSError):  # other sets are in it, or it could not be made
            DIRECTORY.rmdir()
        raise


def _write(split: str, pairs: Sequence[Pair], languages: Languages) -> None:
    DIRECTORY.mkdir(exist_ok=True)
    sides = ([pair.source for pair in pairs], [pair.target for pair in pairs])
    for path, lines in zip(_files(split, languages), sides, strict=True):
        with whole_file(path) as partial:
            partial.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
