"""Scripts of languages, by language code, and word counts for scripts with and without spaces.

A code is an ISO 639 code (``ja``, ``jpn``). A script of ISO 15924 or a region may follow, after a
hyphen or an underscore (``zh-CN``, ``zh_Hant``, ``srp_Latn``).
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from itertools import groupby

_HAN = ("CJK", "IDEOGRAPHIC")

LETTERS: dict[str, tuple[str, ...]] = {
    "Arab": ("ARABIC",),
    "Armn": ("ARMENIAN",),
    "Beng": ("BENGALI",),
    "Cans": ("CANADIAN SYLLABICS",),
    "Cher": ("CHEROKEE",),
    "Cyrl": ("CYRILLIC",),
    "Deva": ("DEVANAGARI",),
    "Ethi": ("ETHIOPIC",),
    "Geor": ("GEORGIAN",),
    "Grek": ("GREEK",),
    "Gujr": ("GUJARATI",),
    "Guru": ("GURMUKHI",),
    "Hang": ("HANGUL",),
    "Hani": _HAN,
    "Hans": _HAN,
    "Hant": _HAN,
    "Hebr": ("HEBREW",),
    "Jpan": (*_HAN, "HIRAGANA", "HENTAIGANA", "KATAKANA"),
    "Khmr": ("KHMER",),
    "Knda": ("KANNADA",),
    "Kore": (*_HAN, "HANGUL"),
    "Laoo": ("LAO",),
    "Latn": ("LATIN",),
    "Mlym": ("MALAYALAM",),
    "Mong": ("MONGOLIAN",),
    "Mtei": ("MEETEI MAYEK",),
    "Mymr": ("MYANMAR",),
    "Nkoo": ("NKO",),
    "Olck": ("OL CHIKI",),
    "Orya": ("ORIYA",),
    "Sinh": ("SINHALA",),
    "Syrc": ("SYRIAC",),
    "Taml": ("TAMIL",),
    "Telu": ("TELUGU",),
    "Tfng": ("TIFINAGH",),
    "Thaa": ("THAANA",),
    "Thai": ("THAI",),
    "Tibt": ("TIBETAN",),
}
"""Scripts of ISO 15924, each with the prefixes of the Unicode names of its letters."""

_LANGUAGES = {
    "Arab": "ar ara arb acm acq aeb ajp apc ars ary arz azb bal ckb fa fas glk khw ks kas lrc mzn "
    "per pes pnb prs ps pus pbt sd snd skr ug uig ur urd",
    "Armn": "hy hye arm",
    "Beng": "as asm bn ben",
    "Cans": "cr cre iu iku",
    "Cher": "chr",
    "Cyrl": "ab abk ady alt av ava ba bak be bel bg bul bua bxr ce che chm mhr mrj cu chu cv chv "
    "inh kbd kk kaz kjh krc kum kv kom koi kpv ky kir lbe lez mdf mk mkd mac mn mon khk myv nog os "
    "oss ru rue rus sah sr srp tg tgk tt tat tyv udm uk ukr uz uzb xal",
    "Deva": "awa bho brx doi gom hi hin hne kok ks kas mag mai mr mar ne nep new npi sa san",
    "Ethi": "am amh ti tir",
    "Geor": "ka kat geo",
    "Grek": "el ell gre",
    "Gujr": "gu guj",
    "Guru": "pa pan",
    "Hani": "zh zho chi cmn gan lzh wuu yue",
    "Hebr": "he heb iw yi yid ydd",
    "Jpan": "ja jpn",
    "Khmr": "km khm",
    "Knda": "kn kan",
    "Kore": "ko kor",
    "Laoo": "lo lao",
    "Latn": "sr srp uz uzb",
    "Mlym": "ml mal",
    "Mymr": "my mya bur shn",
    "Nkoo": "nqo",
    "Olck": "sat",
    "Orya": "or ori ory",
    "Sinh": "si sin",
    "Syrc": "aii syc syr",
    "Taml": "ta tam",
    "Telu": "te tel",
    "Tfng": "zgh",
    "Thaa": "dv div",
    "Thai": "th tha",
    "Tibt": "bo bod tib dz dzo",
}
"""Languages written in each script; a language without an entry is written in Latin."""

NAMES = {
    "af": "Afrikaans",
    "ar": "Arabic",
    "az": "Azerbaijani",
    "be": "Belarusian",
    "bg": "Bulgarian",
    "bn": "Bengali",
    "ca": "Catalan",
    "cs": "Czech",
    "cy": "Welsh",
    "da": "Danish",
    "de": "German",
    "el": "Greek",
    "en": "English",
    "eo": "Esperanto",
    "es": "Spanish",
    "et": "Estonian",
    "eu": "Basque",
    "fa": "Persian",
    "fi": "Finnish",
    "fr": "French",
    "ga": "Irish",
    "gl": "Galician",
    "gu": "Gujarati",
    "he": "Hebrew",
    "hi": "Hindi",
    "hr": "Croatian",
    "hu": "Hungarian",
    "hy": "Armenian",
    "id": "Indonesian",
    "is": "Icelandic",
    "it": "Italian",
    "ja": "Japanese",
    "ka": "Georgian",
    "kk": "Kazakh",
    "ko": "Korean",
    "lt": "Lithuanian",
    "lv": "Latvian",
    "mk": "Macedonian",
    "ms": "Malay",
    "nb": "Norwegian Bokmål",
    "ne": "Nepali",
    "nl": "Dutch",
    "pl": "Polish",
    "pt": "Portuguese",
    "ro": "Romanian",
    "ru": "Russian",
    "sk": "Slovak",
    "sl": "Slovenian",
    "sq": "Albanian",
    "sr": "Serbian",
    "sv": "Swedish",
    "sw": "Swahili",
    "ta": "Tamil",
    "te": "Telugu",
    "th": "Thai",
    "tl": "Tagalog",
    "tr": "Turkish",
    "uk": "Ukrainian",
    "ur": "Urdu",
    "vi": "Vietnamese",
    "zh": "Chinese",
}
"""English names of common languages."""

_UNSPACED = frozenset({"Hani", "Hans", "Hant", "Jpan", "Khmr", "Laoo", "Mymr", "Thai", "Tibt"})

_UNSPACED_SENTENCES = frozenset({"Hani", "Hans", "Hant", "Jpan"})

_UNSPACED_CHARACTER = re.compile(
    "[\u0e00-\u0fff"  # Thai, Lao, Tibetan
    "\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f"  # Myanmar
    "\u1780-\u17ff"  # Khmer
    "\u2e80-\u2fdf\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
    "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f\U0001aff0-\U0001b16f]"  # Hiragana, Katakana
)


@cache
def combining_marks() -> str:
    r"""Return the ranges of all combining marks, for use in the brackets of a pattern.

    A mark, such as a vowel sign of an Indic script, belongs to the letter before it; ``\w`` leaves
    marks out.
    """
    # Unicode has combining marks in these ranges alone.
    codes = [*range(0x300, 0x1F000), *range(0xE0100, 0xE01F0)]
    kinds = groupby(codes, lambda code: unicodedata.category(chr(code)).startswith("M"))
    runs = [[*run] for is_mark, run in kinds if is_mark]
    return "".join(f"{chr(run[0])}-{chr(run[-1])}" for run in runs)


@cache
def scripts(code: str) -> tuple[str, ...]:
    """Return the scripts of a language, as keys of :data:`LETTERS`, the usual script first."""
    language, *subtags = re.split("[-_]", code)
    # The script in a code wins: sr_Latn is Serbian in Latin letters.
    if explicit := [tag.title() for tag in subtags if tag.title() in LETTERS]:
        return tuple(explicit)
    # In the order of the table, in which Serbian is Cyrillic before it is Latin.
    usual = [script for script, codes in _LANGUAGES.items() if language.lower() in codes.split()]
    return tuple(usual) or ("Latn",)


def letters(code: str) -> tuple[str, ...]:
    """Return the prefixes of the Unicode names of all letters of a language."""
    return tuple(name for script in scripts(code) for name in LETTERS[script])


def share_of_letters(line: str, code: str) -> float:
    """Return the share of the letters of a line that belong to the scripts of a language, or 0."""
    names = [unicodedata.name(character, "") for character in line if character.isalpha()]
    return sum(name.startswith(letters(code)) for name in names) / len(names) if names else 0.0


def name_of(code: str) -> str:
    """Return the English name of a language, such as "Chinese (Hant)" for zh-Hant, or its code."""
    language, *subtags = re.split("[-_]", code)
    name = NAMES.get(language.lower(), code)
    return f"{name} ({'-'.join(subtags)})" if subtags and name != code else name


def has_spaces(code: str) -> bool:
    """Whether a language puts spaces between its words."""
    return scripts(code)[0] not in _UNSPACED


def has_spaces_between_sentences(code: str) -> bool:
    """Whether a language puts spaces between its sentences, as Thai does."""
    return scripts(code)[0] not in _UNSPACED_SENTENCES


def is_unspaced(line: str) -> bool:
    """Whether most characters of a line belong to scripts without spaces between words."""
    # White space belongs to no script.
    return 2 * len(_UNSPACED_CHARACTER.findall(line)) > len("".join(line.split()))


def count_words(line: str) -> int:
    """Count the words of a line; each character of a script without spaces counts as one word."""
    if not line.isascii() and _UNSPACED_CHARACTER.search(line):
        line = _UNSPACED_CHARACTER.sub(" x ", line)
    return len(line.split())
