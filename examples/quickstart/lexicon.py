"""The words of the quickstart corpus, read from the tables under `words/`.

Each table explains its own line format; here every line becomes one frozen record. A compound such
as "kitchen table" = "Küchentisch" is made from its two parts, as German makes it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import NamedTuple

WORDS = Path(__file__).resolve().parent / "words"
VOWELS = "aeiouyäöü"
HISSES = ("s", "ß", "x", "z", "sch", "st")
LONG_GENITIVES = {"Mann", "Sohn", "Buch", "Dach"}


class Case(IntEnum):
    """The German cases, as places in a tuple of four forms."""

    NOMINATIVE = 0
    ACCUSATIVE = 1
    DATIVE = 2
    GENITIVE = 3


class Pair(NamedTuple):
    """An English string and its German translation."""

    english: str
    german: str


@dataclass(frozen=True, kw_only=True)
class Noun:
    """A noun in both languages."""

    english: str
    """The English singular."""
    english_plural: str
    """The English plural; of a mass noun the singular, which is never used as a plural."""
    german: str
    """The German nominative singular."""
    german_plural: str
    """The German nominative plural; empty for a mass noun."""
    genitive: str
    """The German genitive singular."""
    gender: str
    """"m", "f" or "n"."""
    is_weak: bool
    """Whether it takes the n-declension: den Studenten."""
    category: str
    """What it denotes: "person", "text", "place"; verbs and adjectives choose by it."""
    head: str
    """The English noun that says what kind of thing it is: of "kitchen table", "table"."""

    @property
    def is_mass(self) -> bool:
        """Whether it has neither plural nor indefinite article: milk, bread."""
        return not self.german_plural


@dataclass(frozen=True, kw_only=True)
class Adjective:
    """An adjective in both languages, with comparatives."""

    english: str
    english_comparative: str
    german: str
    german_stem: str
    """What endings are added to: of "teuer", "teur"."""
    german_comparative: str
    """Empty for what has no degrees: red, broken."""
    categories: tuple[str, ...]
    """The categories of noun that it can describe."""


@dataclass(frozen=True, kw_only=True)
class Verb:
    """A verb in both languages, with what it governs."""

    base: str
    past: str
    english_participle: str
    particle: str = ""
    """What follows a noun object but a pronoun precedes: "turn on the lamp", "turn it on"."""
    preposition: str = ""
    """The English preposition before the object: "wait for"."""
    german: str
    """The infinitive without separable prefix."""
    prefix: str = ""
    """The separable prefix: of "aufmachen", "auf"."""
    changed_stem: str = ""
    """The stem of the second and third person singular, where the vowel changes: "lies"."""
    participle: str
    is_sein_verb: bool = False
    """Whether "sein" and not "haben" makes the perfect."""
    is_reflexive: bool = False
    german_preposition: str = ""
    """The German preposition before the object: "warten auf"."""
    case: Case = Case.ACCUSATIVE
    """The case of the object."""
    objects: tuple[str, ...] = ()
    """Categories of noun, or single nouns, that can be its object or, of a staying verb, place."""
    frame: str
    """The section of the table: "object", "handling", "giving", "moving", "staying", "alone"."""

    @property
    def phrase(self) -> str:
        """The English verb with what belongs to it: "turn on", "wait for"."""
        return " ".join(filter(None, (self.base, self.particle, self.preposition)))

    @property
    def has_visible_past(self) -> bool:
        """Whether "they read" and its like can be told from the present."""
        return self.base != self.past


class PlacePrepositions(NamedTuple):
    """How one place is spoken of at rest and as a goal."""

    english: str
    rest: str
    """German preposition, with the dative."""
    direction: str
    """German preposition, with the dative if it is "zu", otherwise with the accusative."""


def read_table(name: str) -> Iterator[tuple[str, str]]:
    """Gives the (section, line) pairs of a table, without comments and empty lines."""
    section = ""
    for line in (WORDS / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            yield section, line


def split_fields(text: str, separator: str) -> list[str]:
    """Splits at a separator and strips the blanks around each part."""
    return [part.strip() for part in text.split(separator)]


@cache
def nouns() -> dict[str, Noun]:
    """Gives the simple nouns by their English singular."""
    records = (parse_noun(section, line) for section, line in read_table("nouns.txt"))
    return {noun.english: noun for noun in records}


def parse_noun(category: str, line: str) -> Noun:
    """Reads one line of `nouns.txt`."""
    english, german = split_fields(line, "=")
    singular, _, plural = english.partition("/")
    article_and_noun, *rest = split_fields(german, ",")
    article, word = article_and_noun.split()
    gender = {"der": "m", "die": "f", "das": "n"}[article]
    is_weak = "weak" in rest
    german_plural = rest[0] if rest else ""
    return Noun(
        english=singular,
        english_plural=plural or with_s(singular),
        german=word,
        german_plural=german_plural,
        genitive=german_plural if is_weak else genitive_singular(word, gender),
        gender=gender,
        is_weak=is_weak,
        category=category,
        head=singular,
    )


def with_s(word: str) -> str:
    """Adds the English ending of plurals and of verbs after "she": libraries, boxes, tries."""
    if word.endswith("y") and word[-2] not in VOWELS:
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "sh", "ch", "x", "o")) else "s")


def genitive_singular(word: str, gender: str) -> str:
    """Gives the genitive of a strong noun: -es after a hiss and for many short words, else -s."""
    if gender == "f":
        return word
    if word == "Bus":
        return "Busses"
    is_short = sum(letter in VOWELS for letter in word.lower().replace("ie", "i")) == 1
    takes_es = word.endswith(HISSES) or word in LONG_GENITIVES
    takes_es = takes_es or (is_short and word.endswith(("d", "t", "g", "b", "f")))
    return word + ("es" if takes_es and word != "Chef" else "s")


@cache
def compounds() -> tuple[Noun, ...]:
    """Gives every compound noun that `compounds.txt` allows."""
    modifiers: dict[str, list[Pair]] = {}
    made: list[Noun] = []
    for section, line in read_table("compounds.txt"):
        kind, _, listing = line.partition(": ")
        if kind == "modifiers":
            pairs = [Pair(*split_fields(item, "=")) for item in listing.split(",")]
            modifiers.setdefault(section, []).extend(pairs)
        else:
            heads = [nouns()[head] for head in split_fields(listing, ",")]
            made += [compound(part, head) for part in modifiers[section] for head in heads]
    return tuple(made)


def compound(modifier: Pair, head: Noun) -> Noun:
    """Joins a modifier to its head: garden, Garten + table, Tisch = garden table, Gartentisch."""

    def join(word: str) -> str:
        return modifier.german + word.lower() if word else ""

    return replace(
        head,
        english=f"{modifier.english} {head.english}",
        english_plural=f"{modifier.english} {head.english_plural}",
        german=join(head.german),
        german_plural=join(head.german_plural),
        genitive=join(head.genitive),
    )


@cache
def nouns_by_key(*, is_compound: bool) -> dict[str, list[Noun]]:
    """Gives the simple or compound nouns by category and by head noun."""
    index: dict[str, list[Noun]] = {}
    for noun in compounds() if is_compound else nouns().values():
        index.setdefault(noun.category, []).append(noun)
        index.setdefault(noun.head, []).append(noun)
    return index


@cache
def adjectives() -> dict[str, Adjective]:
    """Gives the adjectives by their English form."""
    records = (parse_adjective(line) for _, line in read_table("adjectives.txt"))
    return {adjective.english: adjective for adjective in records}


def parse_adjective(line: str) -> Adjective:
    """Reads one line of `adjectives.txt`."""
    forms, categories = split_fields(line, "|")
    english, german = split_fields(forms, "=")
    english, _, english_comparative = english.partition("/")
    positive, _, german_comparative = german.partition(", ")
    word, _, stem = positive.partition(" ")
    return Adjective(
        english=english,
        english_comparative=english_comparative or f"more {english}",
        german=word,
        german_stem=stem or word,
        german_comparative=german_comparative,
        categories=tuple(categories.split()),
    )


@cache
def adjectives_for(category: str, head: str) -> list[Adjective]:
    """Gives the adjectives that can describe a noun of this category and head."""
    return [word for word in adjectives().values() if {category, head} & set(word.categories)]


@cache
def verbs() -> dict[str, Verb]:
    """Gives the verbs by their English phrase: "open", "turn on", "look forward to"."""
    records = (parse_verb(frame, line) for frame, line in read_table("verbs.txt"))
    return {verb.phrase: verb for verb in records}


def parse_verb(frame: str, line: str) -> Verb:
    """Reads one line of `verbs.txt`."""
    forms, _, objects = line.partition(" | ")
    english, german = split_fields(forms, "=")
    base, past, english_participle, *others = english.split()
    infinitive, participle, *government = split_fields(german, ",")
    prefix_and_verb, _, changed_stem = infinitive.removeprefix("sich ").partition(" ")
    prefix, _, stem_verb = prefix_and_verb.rpartition("|")
    preposition, _, case = " ".join(government).rpartition(" ")
    return Verb(
        base=base,
        past=past,
        english_participle=english_participle,
        particle=" ".join(word[1:] for word in others if word.startswith("+")),
        preposition=" ".join(word for word in others if not word.startswith("+")),
        german=stem_verb,
        prefix=prefix,
        changed_stem=changed_stem,
        participle=participle.removeprefix("ist "),
        is_sein_verb=participle.startswith("ist "),
        is_reflexive=infinitive.startswith("sich "),
        german_preposition=preposition,
        case=Case.DATIVE if case == "dat" else Case.ACCUSATIVE,
        objects=tuple(objects.split()),
        frame=frame,
    )


@cache
def verbs_by_frame() -> dict[str, list[Verb]]:
    """Gives the verbs by their frame."""
    index: dict[str, list[Verb]] = {}
    for verb in verbs().values():
        index.setdefault(verb.frame, []).append(verb)
    return index


@cache
def places() -> dict[str, PlacePrepositions]:
    """Gives the prepositions of each noun of the category "place"."""
    lines = (split_fields(line, "=") for _, line in read_table("places.txt"))
    return {place: PlacePrepositions(*split_fields(words, ",")) for place, words in lines}


@cache
def adverbials() -> dict[str, tuple[Pair, ...]]:
    """Gives the fixed adverbials by kind: "past", "manner", "month"."""
    sections: dict[str, list[Pair]] = {}
    for section, line in read_table("adverbials.txt"):
        sections.setdefault(section, []).append(Pair(*split_fields(line, "=")))
    return {section: tuple(pairs) for section, pairs in sections.items()}


@cache
def names() -> dict[str, tuple[Pair, ...]]:
    """Gives the names by kind; those built from two parts are listed whole, as the others are."""
    sections: dict[str, list[Pair]] = {}
    for section, line in read_table("names.txt"):
        for name in line.split():
            english, _, german = name.partition("=")
            sections.setdefault(section, []).append(Pair(english, german or english))
    for kind in ("surname", "town"):
        beginnings, endings = sections.pop(f"{kind} beginning"), sections.pop(f"{kind} ending")
        made = [first.english + last.english for first in beginnings for last in endings]
        sections[f"built {kind}"] = [Pair(name, name) for name in made]
    return {section: tuple(pairs) for section, pairs in sections.items()}
