"""What a sentence is made of before it has an order of words: noun phrases and clauses.

A noun phrase already holds its German forms in every case. A clause says who does what to whom,
when and where; `english.py` and `german.py` each put it into words.
"""

from dataclasses import dataclass
from enum import Enum, IntEnum, auto

from lexicon import Pair, Verb

Forms = tuple[str, ...]


def join(*parts: str) -> str:
    """Joins the parts that are not empty by blanks."""
    return " ".join(filter(None, parts))


class Agreement(IntEnum):
    """Which form of the verb a subject takes, as a place in a tuple of four forms."""

    FIRST = 0
    SECOND = 1
    THIRD = 2
    PLURAL = 3


class Tense(Enum):
    """The tenses by their English form."""

    PRESENT = auto()
    """she reads: sie liest"""
    PROGRESSIVE = auto()
    """she is reading: sie liest gerade"""
    PAST = auto()
    """she wrote: sie hat geschrieben; but she was: sie war"""
    PAST_PROGRESSIVE = auto()
    """while she was writing: während sie geschrieben hat"""
    PLUPERFECT = auto()
    """she had written: sie hatte geschrieben"""
    FUTURE = auto()
    """she will write: sie wird schreiben"""
    LASTING = auto()
    """she has lived here for a year: sie wohnt seit einem Jahr hier"""


@dataclass(frozen=True, kw_only=True)
class Person:
    """What refers back to a noun phrase: its pronouns, and the verb forms it takes."""

    english: str
    english_object: str
    possessive: str
    german: Forms
    """Nominative, accusative, dative."""
    reflexive: str
    agreement: Agreement


def person(english: str, german: str, agreement: Agreement = Agreement.THIRD) -> Person:
    """Reads "she her her", "sie sie ihr sich" into a person."""
    subject, english_object, possessive = english.split()
    *forms, reflexive = german.split()
    return Person(
        english=subject,
        english_object=english_object,
        possessive=possessive,
        german=tuple(forms),
        reflexive=reflexive,
        agreement=agreement,
    )


I = person("I me my", "ich mich mir mich", Agreement.FIRST)  # noqa: E741
YOU = person("you you your", "du dich dir dich", Agreement.SECOND)
HE = person("he him his", "er ihn ihm sich")
SHE = person("she her her", "sie sie ihr sich")
WE = person("we us our", "wir uns uns uns", Agreement.PLURAL)
THEY = person("they them their", "sie sie ihnen sich", Agreement.PLURAL)
IT_BY_GENDER = {
    "m": person("it it its", "er ihn ihm sich"),
    "f": person("it it its", "sie sie ihr sich"),
    "n": person("it it its", "es es ihm sich"),
}


@dataclass(frozen=True, kw_only=True)
class NounPhrase:
    """A noun phrase or pronoun in both languages."""

    english: str
    """As a subject."""
    english_object: str
    """As an object: differs from the subject only in pronouns."""
    german: Forms
    """The forms in the order of `Case`."""
    person: Person
    """The pronoun that would refer to it."""
    gender: str = "m"
    """"m", "f", "n", or "p" for every plural: chooses the relative pronoun."""
    is_pronoun: bool = False
    is_human: bool = True
    """Whether English refers to it by "who" and not by "that"."""
    german_if_negated: Forms = ()
    """The forms with "kein", for a phrase that takes it where a definite one leaves "nicht"."""
    relative: Pair | None = None
    """A relative clause that follows, without commas."""

    @property
    def agreement(self) -> Agreement:
        """Which form of the verb it takes as a subject."""
        return self.person.agreement


@dataclass(frozen=True, kw_only=True)
class Modal:
    """A modal verb and its English counterpart: müssen, "have to"."""

    base: str
    past: str
    rest: str = ""
    """What stands between it and the verb: of "have to", "to"."""
    is_auxiliary: bool = False
    """Whether it does without "do": "can she", but "does she have to"."""
    german: str


@dataclass(frozen=True, kw_only=True)
class Clause:
    """Who does what to whom, how, where and when, in no order yet."""

    subject: NounPhrase
    verb: Verb
    tense: Tense = Tense.PRESENT
    modal: Modal | None = None
    is_negated: bool = False
    indirect: NounPhrase | None = None
    """The receiver, of a verb of giving; German dative."""
    object: NounPhrase | None = None
    """What the verb governs, in the case or with the preposition of the verb."""
    predicate: Pair | None = None
    """What the subject is said to be, after "be"."""
    frequency: Pair | None = None
    manner: Pair | None = None
    place: Pair | None = None
    time: Pair | None = None
    fronted: str = ""
    """Which of "time" and "place" opens the sentence; empty if the subject does."""

    @property
    def front(self) -> Pair | None:
        """The adverbial that opens the sentence, if one does."""
        return {"time": self.time, "place": self.place}.get(self.fronted)
