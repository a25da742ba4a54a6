"""Cleaning steps, each chosen by name."""

from __future__ import annotations

import re
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, Literal

import numpy as np

from nmt import languages
from nmt.errors import NmtError, install
from nmt.languages import count_words
from nmt.preprocess.cleaning.tokenization import detokenized
from nmt.recipe.registry import Registry

Side = Literal["source", "target"]


@dataclass(frozen=True, kw_only=True)
class CleaningStep:
    """One step of cleaning the training text; of held-out text only `detokenize` is a step."""

    registry: ClassVar[Registry[CleaningStep]]

    name: str = ""
    """Registered name of the step."""

    def for_languages(self, source_lang: str, target_lang: str) -> CleaningStep:
        """Return the step with the settings of the languages where none are given."""
        return self


steps: Registry[CleaningStep] = Registry("cleaning step")

CleaningStep.registry = steps


@dataclass(frozen=True, kw_only=True)
class Rewriting(CleaningStep, ABC):
    """A step that changes text."""

    @abstractmethod
    def rewrite(self, text: str) -> str:
        """Return the changed text, with an unchanged number of line feeds."""

    def lines(self, lines: list[str], side: Side) -> list[str]:
        """Return the lines of a side, rewritten; the same list if nothing changes."""
        # One call for a block of lines is far cheaper than one for each line.
        text = "\n".join(lines)
        changed = self.rewrite(text)
        return lines if changed == text else changed.split("\n")


@dataclass(frozen=True, kw_only=True)
class Filtering(CleaningStep, ABC):
    """A step that drops pairs."""

    @abstractmethod
    def keep(self, source: list[str], target: list[str], held_out: frozenset[str]) -> list[bool]:
        """Return for every pair whether it is kept.

        Args:
            source: lines of text.
            target: the line that belongs to each line of the source.
            held_out: every line of the held-out splits, rewritten like the training text.
        """


@steps.register("detokenize")
@dataclass(frozen=True, kw_only=True)
class Detokenize(Rewriting):
    """Undoes tokenisation, segmentation and subwords (``@@``, ``▁``), also in held-out text.

    Moses's detokeniser joins the words, and spaces of languages without them are removed.
    """

    source: str = ""
    """Language of the source; by default the source language."""
    target: str = ""
    """Language of the target; by default the target language."""

    def for_languages(self, source_lang: str, target_lang: str) -> Detokenize:
        """Return the step with the languages of the recipe where none are set."""
        return replace(self, source=self.source or source_lang, target=self.target or target_lang)

    def rewrite(self, text: str) -> str:
        """Return the text as `lines` does, by the rules for the source."""
        return "\n".join(self.lines(text.split("\n"), "source"))

    def lines(self, lines: list[str], side: Side) -> list[str]:
        """Return the lines as plain text."""
        return [detokenized(line, getattr(self, side)) for line in lines]


@steps.register("unicode")
@dataclass(frozen=True, kw_only=True)
class Unicode(Rewriting):
    """Brings characters that have several spellings into one form."""

    form: Literal["NFC", "NFKC"] = "NFC"
    """NFC composes letters and accents; NFKC also replaces ligatures and wide forms."""

    def rewrite(self, text: str) -> str:
        """Return the text in the normal form."""
        return unicodedata.normalize(self.form, text)


@steps.register("control_characters")
@dataclass(frozen=True, kw_only=True)
class ControlCharacters(Rewriting):
    """Replaces control characters and line separators by spaces, and drops invisible characters.

    Invisible are byte order marks, zero-width spaces, soft hyphens and marks of direction.
    """

    def rewrite(self, text: str) -> str:
        """Return the text without control and invisible characters."""
        return _CONTROL.sub(lambda match: "" if match[0] in _INVISIBLE else " ", text)


@steps.register("punctuation")
@dataclass(frozen=True, kw_only=True)
class Punctuation(Rewriting):
    """Replaces typographic quotes, dashes, dots, spaces and wide forms by ASCII characters.

    Similar to Moses's normalize-punctuation.perl, in every language alike.
    """

    def rewrite(self, text: str) -> str:
        """Return the text with plain punctuation."""
        return _TYPOGRAPHIC.sub(lambda match: _PLAIN[match[0]], text)


@steps.register("spaces")
@dataclass(frozen=True, kw_only=True)
class Spaces(Rewriting):
    """Leaves one space where there are several, and none at the ends of a line."""

    def rewrite(self, text: str) -> str:
        """Return the text with single spaces."""
        for space in _OTHER_SPACES:
            text = text.replace(space, " ")  # faster than one regular expression for all of them
        text = _SPACES.sub(" ", text)
        # Line feeds around the text, so that the first and the last line are trimmed, too.
        return f"\n{text}\n".replace("\n ", "\n").replace(" \n", "\n")[1:-1]


@steps.register("identical")
@dataclass(frozen=True, kw_only=True)
class Identical(Filtering):
    """Drops pairs whose sides are the same text."""

    def keep(self, source: list[str], target: list[str], held_out: frozenset[str]) -> list[bool]:
        """Return for every pair whether the sides differ."""
        return [one != other for one, other in zip(source, target, strict=True)]


@steps.register("length")
@dataclass(frozen=True, kw_only=True)
class Length(Filtering):
    """Drops pairs by their length before subwords."""

    unit: Literal["words", "characters"] = "words"
    """Words between spaces, or characters. In a script without spaces between
    words, such as Chinese, each character is a word."""
    min: int = 1
    """Pairs with a shorter side are dropped."""
    max: int = 250
    """Pairs with a longer side are dropped."""
    max_ratio: float | None = None
    """Pairs whose longer side is more than this many times the shorter side are dropped."""

    def __post_init__(self) -> None:
        if not 0 <= self.min <= self.max:
            raise ValueError(f"min must be from 0 to max, not {self.min} with max {self.max}")
        if self.max_ratio is not None and self.max_ratio < 1:
            raise ValueError(f"max_ratio must be at least 1, not {self.max_ratio}")

    def keep(self, source: list[str], target: list[str], held_out: frozenset[str]) -> list[bool]:
        """Return for every pair whether both sides are within the limits."""
        sides = [
            np.fromiter(
                map(count_words if self.unit == "words" else len, side),
                np.int64,
                len(side),
            )
            for side in (source, target)
        ]
        shorter, longer = np.minimum(*sides), np.maximum(*sides)
        kept = (shorter >= self.min) & (longer <= self.max)
        if self.max_ratio is not None:
            kept &= longer <= self.max_ratio * shorter
        return list(map(bool, kept))


@steps.register("script")
@dataclass(frozen=True, kw_only=True)
class Script(Filtering):
    """Drops pairs with a side that is written in a script of another language."""

    source: tuple[str, ...] = ()
    """Scripts of the source, as the names of their letters in Unicode begin: LATIN, CYRILLIC,
    GREEK, ARABIC, DEVANAGARI, CJK, HIRAGANA, KATAKANA, HANGUL, ...; by default the scripts of the
    source language: for ja Han, Hiragana and Katakana, for sr_Latn LATIN; LATIN for a language that
    is not known."""
    target: tuple[str, ...] = ()
    """Scripts of the target; by default the scripts of the target language."""
    min_share: float = 0.5
    """At least this share of a side's letters must be of its scripts; a side without letters
    passes. Letters of no script, as in formulas, are not counted."""

    def __post_init__(self) -> None:
        if not 0 <= self.min_share <= 1:
            raise ValueError(f"min_share must be from 0 to 1, not {self.min_share}")

    def for_languages(self, source_lang: str, target_lang: str) -> Script:
        """Return the step with the scripts of the languages where none are set."""
        return replace(
            self,
            source=self.source or languages.letters(source_lang),
            target=self.target or languages.letters(target_lang),
        )

    def keep(self, source: list[str], target: list[str], held_out: frozenset[str]) -> list[bool]:
        """Return for every pair whether enough letters of both sides are of their scripts."""
        scripts = [side or languages.letters("") for side in (self.source, self.target)]
        one, other = map(_letters, scripts)
        return [
            self._passes(s, one) and self._passes(t, other)
            for s, t in zip(source, target, strict=True)
        ]

    def _passes(self, line: str, letters: Mapping[int, str]) -> bool:
        # str.translate runs in C; a loop over characters would take most of the time of cleaning.
        marks = line.translate(letters)
        in_script, foreign = marks.count("1"), marks.count("0")
        # Without letters both counts are 0, and the side passes.
        return in_script >= self.min_share * (in_script + foreign)


@steps.register("held_out")
@dataclass(frozen=True, kw_only=True)
class HeldOut(Filtering):
    """Drops pairs with a side that is a line of the validation or test set, in either language.

    ``held_out`` must stand after all rewriting steps.
    """

    min_words: int = 1
    """Lines of fewer words are not compared; 4 spares common phrases, such as "Thank you"."""

    def keep(self, source: list[str], target: list[str], held_out: frozenset[str]) -> list[bool]:
        """Return for every pair whether neither side is held out."""
        # Either side: a sentence of the test set is known to the model whatever it is paired with.
        sides = [[line in held_out for line in side] for side in (source, target)]
        # Words are only counted where a side is held out, which is rare.
        return [
            not any(
                is_held and count_words(line) >= self.min_words
                for is_held, line in ((in_source, s), (in_target, t))
            )
            if in_source or in_target
            else True
            for in_source, in_target, s, t in zip(*sides, source, target, strict=True)
        ]


@steps.register("duplicates")
@dataclass(frozen=True, kw_only=True)
class Duplicates(CleaningStep):
    """Keeps only the first of equal pairs, over all corpora with the same target language.

    ``duplicates`` runs after all other steps and after the limits in tokens, wherever it stands in
    ``clean``. Pairs are compared by 128 bits of BLAKE2b.
    """


# Without the joiners U+200C and U+200D, with which Persian and Indic scripts spell words.
_INVISIBLE = frozenset(
    "\u00ad\u061c\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2061\u2062\u2063\u2064"
    "\u2066\u2067\u2068\u2069\ufeff"
)

_CONTROL = re.compile(rf"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029{''.join(_INVISIBLE)}]")

# U+3000 is the last space of Unicode.
_OTHER_SPACES = "".join(
    character
    for character in map(chr, range(ord("\u3000") + 1))
    if character.isspace() and character not in " \n"
)

_SPACES = re.compile(r"  +")

_PLAIN = {
    **dict.fromkeys("„“”«»‟″〝〞＂", '"'),
    **dict.fromkeys("‘’‚‛′‹›´`＇", "'"),
    **dict.fromkeys("–‐‑‒−－", "-"),
    **dict.fromkeys("—―", " - "),
    **dict.fromkeys("\u00a0\u2002\u2003\u2009\u202f\u3000", " "),
    "…": "...",
    # Unicode's full-width forms lie 0xFEE0 after their ASCII characters.
    **{chr(ord(plain) + 0xFEE0): plain for plain in "!#$%&()*+,./:;<=>?@[\\]^_{|}~"},
    "、": ",",
    "。": ".",
}

_TYPOGRAPHIC = re.compile(f"[{re.escape(''.join(_PLAIN))}]")

_OF_ALL_SCRIPTS = ("COMBINING", "KATAKANA-HIRAGANA", "MATHEMATICAL", "MICRO", "MODIFIER LETTER")
"""Beginnings of the Unicode names of letters that belong to no single script."""


class _Letters(dict[int, str]):
    """Table for ``str.translate``: letters of the scripts to 1, other letters to 0, else space."""

    def __init__(self, scripts: tuple[str, ...]) -> None:
        self.scripts = scripts

    def __missing__(self, code: int) -> str:
        character = chr(code)
        mark = " "
        if character.isalpha():
            plain = unicodedata.normalize("NFKC", character)[0]  # in its usual width
            names = [unicodedata.name(letter, "") for letter in (character, plain)]
            if not any(name.startswith(_OF_ALL_SCRIPTS) for name in names):
                mark = "1" if names[1].startswith(self.scripts) else "0"
        # Each character is looked up in Unicode's table once.
        self[code] = mark
        return mark


_TABLES: dict[tuple[str, ...], _Letters] = {}


def _letters(scripts: tuple[str, ...]) -> _Letters:
    return _TABLES.setdefault(scripts, _Letters(scripts))


MAX_DIGITS = 1000
"""Last digits of a number that are compared; Python refuses to convert some thousands."""

_DIGIT = re.compile(r"\d")

_NUMBER = re.compile(r"(?<!\d)\d{1,3}(?:[.,'’ \u00a0\u2009\u202f]\d{3})+(?!\d)|\d+")
"""Three-digit groups with one separator before each are one number; so is any other run of
digits."""

_NOT_DIGITS = re.compile(r"\D")


@steps.register("numbers")
@dataclass(frozen=True, kw_only=True)
class Numbers(Filtering):
    """Drops pairs whose sides have different numbers, in any order.

    Separators of thousands do not count (1,000 and 1.000 and 1000 are equal), nor do leading zeros,
    nor in which script the digits are. A separator of decimals ends a number, so 1.5 and 1,5 are
    both the numbers 1 and 5.
    """

    max_word: int = 12
    """Numbers up to this value may be missing on one side, where they may be words ("two")."""

    def __post_init__(self) -> None:
        if self.max_word < 0:
            raise ValueError(f"max_word must be at least 0, not {self.max_word}")

    def keep(self, source: list[str], target: list[str], held_out: frozenset[str]) -> list[bool]:
        """Return for every pair whether the sides have the same numbers."""
        return [self._agree(one, other) for one, other in zip(source, target, strict=True)]

    def _agree(self, source: str, target: str) -> bool:
        # Most pairs have no digit, and need no search for numbers.
        if not (_DIGIT.search(source) or _DIGIT.search(target)):
            return True
        numbers, others = _numbers(source), _numbers(target)
        missing, added = numbers - others, others - numbers
        # Different numbers on both sides are a wrong translation; a missing one may be a word.
        if missing and added:
            return False
        return all(number <= self.max_word for number in (missing or added))


def _numbers(line: str) -> Counter[int]:
    """Return the numbers of a line, and how often each occurs."""
    digits = (_NOT_DIGITS.sub("", text)[-MAX_DIGITS:] for text in _NUMBER.findall(line))
    return Counter(map(int, digits))


NO_LANGUAGE = "zxx"
"""Code of text in no language, such as numbers and addresses."""


@steps.register("language")
@dataclass(frozen=True, kw_only=True)
class Language(Filtering):
    """Drops pairs with a side that is likely in a wrong language.

    py3langid (``pip install 'nmt-toolkit[language]'``) tells the language of each side.
    Short text is kept, because its language is rarely certain, and so is text in no language, such
    as numbers and addresses.
    """

    source: tuple[str, ...] = ()
    """Languages in which the source may be, as codes of py3langid (en, de, zh, ...); by default the
    source language. Give several where neighbours are hard to tell apart: [hr, bs, sr]."""
    target: tuple[str, ...] = ()
    """Languages in which the target may be; by default the target language."""
    min_probability: float = 0.5
    """A side is dropped only if another language has at least this probability."""

    def __post_init__(self) -> None:
        if not 0 < self.min_probability <= 1:
            raise ValueError(
                f"min_probability must be more than 0 and at most 1, not {self.min_probability}"
            )

    def for_languages(self, source_lang: str, target_lang: str) -> Language:
        """Return the step with the languages of the recipe where none are set.

        Raises:
            NmtError: py3langid is missing, or does not know a language.
        """
        step = replace(
            self,
            source=self.source or (_without_region(source_lang),),
            target=self.target or (_without_region(target_lang),),
        )
        for side in ("source", "target"):
            _check(side, getattr(step, side))
        return step

    def keep(self, source: list[str], target: list[str], held_out: frozenset[str]) -> list[bool]:
        """Return for every pair whether neither side is in another language."""
        return [
            self._passes(one, self.source) and self._passes(other, self.target)
            for one, other in zip(source, target, strict=True)
        ]

    def _passes(self, line: str, languages: tuple[str, ...]) -> bool:
        if not languages:
            return True
        language, probability = _identifier().classify(line)
        return language in (*languages, NO_LANGUAGE) or probability < self.min_probability


def _without_region(code: str) -> str:
    return code.replace("_", "-").partition("-")[0].lower()


def _check(side: str, languages: Iterable[str]) -> None:
    known = sorted({*_identifier().labels} - {NO_LANGUAGE})
    for language in languages:
        if language not in known:
            raise NmtError(
                f"preprocess.clean: language knows no {side} language {language!r}; set the "
                f"{side} of the step to some of {', '.join(known)}"
            )


@cache
def _identifier() -> Any:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        raise NmtError(
            f"preprocess.clean: language needs py3langid; {install('language')}"
        ) from None
    # Without norm_probs the second result is a log-likelihood.
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
