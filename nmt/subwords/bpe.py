"""Byte-pair encoding by a list of merges (Sennrich et al. 2016), as in subword-nmt and fastBPE.

The text may be tokenised by Moses first, and is then detokenised afterwards. Pieces that do not end
a word end with "@@".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any, Literal

from nmt.data.vocabulary import UNK, Vocabulary
from nmt.errors import NmtError
from nmt.io.documents import DocumentFormat
from nmt.subwords.segmenters import SILENT, Segmenter, with_silent

END = "</w>"
"""Marks the end of a word in merges."""

JOINED = "@@"
"""Marks the end of a piece that does not end its word."""

MAX_WORD_LENGTH = 512
"""Characters of the longest word that is merged whole; longer words are divided first."""

MAX_WORDS = 1 << 18
"""Words in the cache before it is emptied."""

NEAR = 8
"""A word is looked for up to this many characters after the previous word and white space."""


@dataclass(frozen=True, kw_only=True)
class BpeCodes:
    """Merges in their order, and the tokenisation before them."""

    merges: tuple[str, ...]
    """Two symbols with a space between; "</w>" is the end of a word."""
    end_is_symbol: bool = False
    """Whether the end of a word is a symbol of its own, as in subword-nmt 0.1, or is part of the
    last character."""
    tokenizer: Literal["moses", "none"] = "moses"
    """Tokenisation of the text before the merges: by Moses, or at white space."""
    dash_splits: bool = True
    """Whether Moses separates hyphens within words, as "@-@"."""
    escape: bool = True
    """Whether Moses writes special characters as in XML, such as "&amp;"."""
    language: str = "en"
    """The language of the text, for Moses."""

    def __post_init__(self) -> None:
        for number, merge in enumerate(self.merges, 1):
            if len([symbol for symbol in merge.split(" ") if symbol]) != 2 or merge.count(" ") != 1:
                raise ValueError(f"merge {number} must be two symbols, not {merge[:99]!r}")


BPE_CODES = DocumentFormat(
    kind=BpeCodes, name="nmt-bpe", version=1, remedy="restore it, or import the model again"
)


def parse_codes(text: str, **tokenisation: Any) -> BpeCodes:
    """Return the codes in a file of subword-nmt, of version 0.1 or 0.2, or of fastBPE.

    Args:
        text: lines of two symbols. Files of fastBPE add a count to each line; files of subword-nmt
            0.2 begin with a line with the version.
        tokenisation: the other fields of :class:`BpeCodes`.

    Raises:
        ValueError: a line is not of that format.
    """
    lines = [line.rstrip("\r ") for line in text.split("\n")]
    if lines[-1] == "":
        lines.pop()
    version = "0.1"
    if lines and lines[0].startswith("#version:"):
        version = lines.pop(0).partition(":")[2].strip()
    if version not in ("0.1", "0.2"):
        raise ValueError(f"version {version[:20]!r} of the codes, not 0.1 or 0.2")
    rows = [line.split(" ") for line in lines]
    # fastBPE writes how often each merge was seen.
    has_counts = bool(rows) and len(rows[0]) == 3
    for number, row in enumerate(rows, 1):
        if len(row) != 2 + has_counts or not all(row) or (has_counts and not row[2].isdigit()):
            raise ValueError(f"merge {number} is {' '.join(row)[:99]!r}, not two symbols")
    if not rows:
        raise ValueError("there are no merges")
    return BpeCodes(
        merges=tuple(" ".join(row[:2]) for row in rows),
        end_is_symbol=version == "0.1" and not has_counts,
        **tokenisation,
    )


class BpePieces(Segmenter):
    """Codes that segment, and a list of pieces with the ids. A piece not in the list is UNK."""

    def __init__(self, codes: BpeCodes, vocabulary: Vocabulary) -> None:
        """Segment by the codes into the pieces of a vocabulary."""
        self._codes = codes
        self._names = vocabulary.pieces
        self._ids = vocabulary.ids
        merges = [tuple(merge.split(" ")) for merge in codes.merges]
        # Reversed, so that a merge that is listed twice keeps its first rank.
        self._ranks = {merge: rank for rank, merge in reversed([*enumerate(merges)])}
        self._known: dict[str, list[str]] = {}
        if codes.tokenizer == "moses":
            from sacremoses import MosesDetokenizer, MosesTokenizer  # takes a third of a second

            self._moses = MosesTokenizer(codes.language), MosesDetokenizer(codes.language)

    @property
    def size(self) -> int:
        """Number of pieces."""
        return len(self._names)

    @property
    def marks_word_begins(self) -> bool:
        """Return False: only the previous piece tells whether a piece begins a word."""
        return False

    def encode(self, lines: list[str], num_threads: int = 1) -> list[list[int]]:
        """Return the ids of every line."""
        known = self._ids.get
        return [
            [known(piece, UNK) for word in self._words(line) for piece in self._cut(word)]
            for line in lines
        ]

    def sample(self, line: str, alpha: float, draw: Random) -> list[int]:
        """Raise an NmtError: these codes have one segmentation only."""
        raise NmtError(
            "subword sampling needs SentencePiece models, and this dataset has BPE codes; "
            "leave out train.subword_sampling"
        )

    def decode(self, ids: list[list[int]], num_threads: int = 1) -> list[str]:
        """Return the text of every sentence; "<unk>" for UNK."""
        return [self._joined(self.pieces(_spoken(row))) for row in ids]

    def pieces(self, ids: list[int]) -> list[str]:
        """Return the pieces of the ids; "@@" at the end of a piece stands for no space after it."""
        return [self._names[token] for token in ids]

    def line_offsets(self, lines: list[str], num_threads: int = 1) -> list[list[int]]:
        """Return the offset of each piece in its line."""
        return [
            self._offsets([piece for word in self._words(line) for piece in self._cut(word)], line)
            for line in lines
        ]

    def text_offsets(self, ids: list[list[int]], num_threads: int = 1) -> list[list[int]]:
        """Return the offset of each piece in its text; special ids are where the next piece is."""
        return [
            with_silent(row, self._offsets(self.pieces(_spoken(row)), text), len(text))
            for row, text in zip(ids, self.decode(ids), strict=True)
        ]

    def _words(self, line: str) -> list[str]:
        if self._codes.tokenizer == "none":
            return line.split()
        words: list[str] = self._moses[0].tokenize(
            line, aggressive_dash_splits=self._codes.dash_splits, escape=self._codes.escape
        )
        return words

    def _joined(self, pieces: list[str]) -> str:
        # The space after the last piece lets one replacement do for all pieces.
        text = f"{' '.join(pieces)} ".replace(f"{JOINED} ", "").rstrip()
        if self._codes.tokenizer == "none":
            return text
        line: str = self._moses[1].detokenize(text.split())
        return line

    def _cut(self, word: str) -> list[str]:
        """Return the pieces of a word."""
        pieces = self._known.get(word)
        if pieces is None:
            if len(self._known) > MAX_WORDS:
                # Emptied as a whole: the frequent words are back after a few lines.
                self._known.clear()
            # Merging takes quadratic time in the length of a word.
            parts = [word[at : at + MAX_WORD_LENGTH] for at in range(0, len(word), MAX_WORD_LENGTH)]
            symbols = [symbol for part in parts for symbol in self._merged(part)]
            pieces = [*(symbol + JOINED for symbol in symbols[:-1]), symbols[-1]]
            self._known[word] = pieces
        return pieces

    def _merged(self, word: str) -> list[str]:
        """Return the symbols of a word after all merges, without the mark of its end."""
        last = [word[-1], END] if self._codes.end_is_symbol else [word[-1] + END]
        symbols = [*word[:-1], *last]
        while len(symbols) > 1:
            # Looked up by the pairs of the word, because the list of merges is much longer.
            pairs = set(pairwise(symbols)) & self._ranks.keys()
            if not pairs:
                break
            symbols = _merge(symbols, min(pairs, key=self._ranks.__getitem__))
        symbols[-1] = symbols[-1].removesuffix(END)
        # The end alone has no text.
        return symbols if symbols[-1] else symbols[:-1]

    def _offsets(self, pieces: list[str], text: str) -> list[int]:
        """Return where pieces begin in a text that has their words in their order."""
        offsets: list[int] = []
        place = 0
        for word in _grouped(pieces):
            plain = self._plain("".join(word))
            place += len(text) - place - len(text[place:].lstrip())
            # Moses changes spaces and quotes, so a word is looked for near the end of the word
            # before.
            begin = max(place, text.find(plain, place, place + NEAR + len(plain)))
            place = min(begin + len(plain), len(text))
            piece_end = begin
            for piece in word:
                # Escapes make a word longer than its text; no piece begins after the word's last
                # character.
                offsets.append(min(piece_end, max(begin, place - 1)))
                piece_end += len(piece)
        return offsets

    def _plain(self, word: str) -> str:
        """Return the characters of the text that became a word."""
        if self._codes.tokenizer == "none":
            return word
        if word == "@-@":
            return "-"
        plain: str = self._moses[1].unescape_xml(word)
        return plain


def _merge(symbols: Sequence[str], pair: tuple[str, ...]) -> list[str]:
    """Return the symbols after merging each occurrence of a pair, from the left."""
    merged: list[str] = []
    at = 0
    while at < len(symbols):
        size = 2 if tuple(symbols[at : at + 2]) == pair else 1
        merged.append("".join(symbols[at : at + size]))
        at += size
    return merged


def _grouped(pieces: list[str]) -> list[list[str]]:
    """Return the pieces of each word, without the marks of joining."""
    words: list[list[str]] = []
    is_inside = False
    for piece in pieces:
        if not is_inside:
            words.append([])
        is_inside = piece.endswith(JOINED)
        words[-1].append(piece.removesuffix(JOINED))
    return words


def _spoken(ids: list[int]) -> list[int]:
    return [token for token in ids if token not in SILENT]
