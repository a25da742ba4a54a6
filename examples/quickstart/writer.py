"""Draws noun phrases, adverbials and clauses at random, each in both languages at once."""

from collections.abc import Sequence
from dataclasses import replace

import phrases
from clauses import HE, SHE, Clause, Modal, NounPhrase, Tense
from dice import Dice
from inflection import Determiner
from lexicon import (
    Adjective,
    Noun,
    Pair,
    Verb,
    adjectives_for,
    adverbials,
    names,
    nouns_by_key,
    verbs_by_frame,
)

PAST_MODALS = (
    Modal(base="can", past="could", is_auxiliary=True, german="können"),
    Modal(base="have", past="had", rest="to", german="müssen"),
    Modal(base="want", past="wanted", rest="to", german="wollen"),
    Modal(base="be", past="was", rest="allowed to", german="dürfen"),
)
MODALS = (
    *PAST_MODALS,
    Modal(base="should", past="should", is_auxiliary=True, german="sollten"),
    Modal(base="would", past="would", rest="like to", is_auxiliary=True, german="möchten"),
)
OBJECT_FRAMES = ("object", "handling")
ALL_FRAMES = (
    ("object", 40),
    ("handling", 24),
    ("giving", 9),
    ("moving", 11),
    ("staying", 8),
    ("alone", 8),
)
LIVELY_FRAMES = (("handling", 10), ("alone", 4))
DEFINITE = (("the", 10), ("my", 1), ("your", 1), ("his", 1), ("her", 1), ("our", 1), ("their", 1))
KIN = (("my", 5), ("your", 4), ("his", 4), ("her", 4), ("our", 3), ("their", 3))
SUBJECTS = (
    ("pronoun", 30),
    ("name", 22),
    ("titled", 9),
    ("kin", 12),
    ("person", 17),
    ("plural", 7),
    ("pair", 4),
)
HUMAN_OBJECTS = (
    ("pronoun", 5),
    ("name", 4),
    ("titled", 2),
    ("kin", 4),
    ("person", 4),
    ("plural", 2),
)
OPENINGS = (("definite", 22), ("a", 12), ("this", 3), ("owned", 4), ("plural", 9))
EXTRAS = (
    ("none", 25),
    ("time", 30),
    ("front time", 20),
    ("frequency", 15),
    ("place", 12),
    ("front place", 6),
    ("manner", 15),
)


class Writer:
    """Draws the parts of sentences."""

    def __init__(self, dice: Dice) -> None:
        self.dice = dice

    def noun(self, keys: Sequence[str]) -> Noun:
        """Gives a noun of one of these categories or heads; now and then a compound."""
        key = self.dice.choose(keys)
        made = nouns_by_key(is_compound=True).get(key, [])
        if made and self.dice.chance(0.25):
            return self.dice.favour(made)
        return self.dice.favour(nouns_by_key(is_compound=False)[key])

    def adjective(self, noun: Noun, probability: float) -> Adjective | None:
        """Gives an adjective that can describe the noun, this often, or none."""
        fitting = adjectives_for(noun.category, noun.head)
        return self.dice.favour(fitting) if fitting and self.dice.chance(probability) else None

    def thing(self, keys: Sequence[str], *, is_plain: bool = False) -> NounPhrase:
        """Gives a noun phrase about a noun of these keys; a plain one can stand under "not"."""
        noun = self.noun(keys)
        adjective = self.adjective(noun, 0.3)
        if noun.category == "kin":
            return phrases.noun_phrase(self.dice.weigh(KIN), noun, adjective)
        if noun.is_mass:
            return phrases.noun_phrase(self.dice.choose(("the", "the", "", "my")), noun, adjective)
        kind = self.dice.weigh(OPENINGS)
        if kind == "owned":
            return phrases.possessed(self.owner(), noun, adjective)
        if kind == "plural":
            opening = self.plural_opening(is_plain=is_plain)
            return phrases.noun_phrase(opening, noun, adjective, is_plural=True)
        opening = self.dice.weigh(DEFINITE) if kind == "definite" else kind
        return phrases.noun_phrase(opening, noun, adjective)

    def plural_opening(self, *, is_plain: bool = False) -> str | Determiner:
        """Gives what a plural noun phrase begins with: an article, a quantity, nothing."""
        kind = self.dice.weigh((("definite", 5), ("", 3), ("these", 1), ("many", 1), ("number", 3)))
        if kind == "definite" or (is_plain and kind in ("many", "number")):
            return self.dice.weigh(DEFINITE)
        if kind == "many":
            return self.dice.choose(("many", "some", "all"))
        return phrases.counted(self.count()) if kind == "number" else kind

    def count(self) -> int:
        """Gives how many there are of something: few more often than many."""
        return self.dice.between(2, self.dice.choose((12, 12, 99)))

    def owner(self) -> NounPhrase:
        """Gives someone who can own a thing: Anna, my brother, the teacher."""
        if self.dice.chance(0.5):
            return self.name()
        if self.dice.chance(0.5):
            return phrases.noun_phrase(self.dice.weigh(KIN), self.noun(("kin",)))
        return phrases.noun_phrase("the", self.noun(("person",)))

    def name(self) -> NounPhrase:
        """Gives a first name."""
        kind, who = self.dice.choose((("female", SHE), ("male", HE)))
        return phrases.proper_name(self.dice.favour(names()[kind]), who)

    def titled_name(self) -> NounPhrase:
        """Gives Mr or Mrs and a surname."""
        surname = self.dice.favour(names()[self.dice.choose(("surname", "built surname"))])
        return phrases.titled_name(surname, self.dice.choose((HE, SHE)))

    def subject(self) -> NounPhrase:
        """Gives a human subject."""
        kind = self.dice.weigh(SUBJECTS)
        if kind == "pronoun":
            return phrases.pronoun(self.dice.choose(tuple(phrases.PRONOUNS.values())))
        if kind == "pair":
            kin = phrases.noun_phrase(self.dice.weigh(KIN), self.noun(("kin",)))
            return phrases.coordinated(self.name(), kin)
        return self.third_person(kind)

    def third_person(self, kind: str = "") -> NounPhrase:
        """Gives a human noun phrase that is no pronoun."""
        kind = kind or self.dice.weigh((("name", 4), ("titled", 2), ("kin", 3), ("person", 4)))
        if kind == "name":
            return self.name()
        if kind == "titled":
            return self.titled_name()
        if kind == "plural":
            noun = self.noun(("person",))
            adjective = self.adjective(noun, 0.25)
            opening = self.plural_opening() or "the"
            return phrases.noun_phrase(opening, noun, adjective, is_plural=True)
        noun = self.noun((kind,))
        opening = self.dice.weigh(KIN if kind == "kin" else (("the", 8), ("a", 1), ("this", 1)))
        return phrases.noun_phrase(opening, noun, self.adjective(noun, 0.25))

    def governed(self, verb: Verb, subject: NounPhrase, *, is_plain: bool = False) -> NounPhrase:
        """Gives an object that suits the verb: a thing, a person, a pronoun."""
        key = self.dice.choose(verb.objects)
        if key not in ("person", "kin"):
            return self.thing((key,), is_plain=is_plain)
        kind = self.dice.weigh(HUMAN_OBJECTS)
        return self.object_pronoun(subject) if kind == "pronoun" else self.third_person(kind)

    def object_pronoun(self, subject: NounPhrase) -> NounPhrase:
        """Gives a pronoun that is not the subject's own."""
        others = [who for who in phrases.PRONOUNS.values() if who != subject.person]
        return phrases.pronoun(self.dice.choose(others))

    def town(self) -> Pair:
        """Gives the name of a town or city."""
        kind = self.dice.weigh((("built town", 5), ("town", 3), ("city", 3)))
        return self.dice.favour(names()[kind])

    def place(self, keys: Sequence[str] = ("place", "town")) -> Pair:
        """Gives where something happens: in Berlin, at the old station."""
        key = self.dice.choose(keys)
        if key == "town":
            town = self.town()
            return Pair(f"in {town.english}", f"in {town.german}")
        noun = self.noun((key,))
        return phrases.at_rest(self.place_phrase(noun), noun.head)

    def goal(self, keys: Sequence[str]) -> Pair:
        """Gives where someone goes: to Berlin, to the old station."""
        key = self.dice.choose(keys)
        if key == "town":
            town = self.town()
            return Pair(f"to {town.english}", f"nach {town.german}")
        noun = self.noun((key,))
        return phrases.towards(self.place_phrase(noun), noun.head)

    def place_phrase(self, noun: Noun) -> NounPhrase:
        """Gives a place as a noun phrase."""
        opening = self.dice.weigh((("the", 8), ("a", 1), ("this", 1)))
        return phrases.noun_phrase(opening, noun, self.adjective(noun, 0.25))

    def time(self, tense: Tense) -> Pair | None:
        """Gives when something happens, if the tense leaves room for it."""
        if tense is Tense.PRESENT:
            return self.dice.choose(adverbials()["habitual"])
        if tense is Tense.PAST:
            return self.past_time()
        return self.future_time() if tense is Tense.FUTURE else None

    def story_tense(self) -> Tense:
        """Gives present or past."""
        return self.dice.choose((Tense.PRESENT, Tense.PAST))

    def past_time(self) -> Pair:
        """Gives a time in the past: yesterday, three weeks ago, in May, in 1987."""
        kind = self.dice.weigh((("past", 6), ("ago", 2), ("day", 1), ("month", 1), ("year", 1)))
        if kind == "past":
            return self.dice.choose(adverbials()["past"])
        if kind == "year":
            year = self.dice.between(1900, 2024)
            return Pair(f"in {year}", f"im Jahr {year}")
        if kind == "ago":
            span = self.span()
            return Pair(f"{span.english} ago", f"vor {span.german}")
        return self.day_or_month(kind)

    def future_time(self) -> Pair:
        """Gives a time to come: tomorrow, in three weeks, on Monday."""
        kind = self.dice.weigh((("future", 6), ("in", 2), ("day", 1), ("month", 1)))
        if kind == "future":
            return self.dice.choose(adverbials()["future"])
        if kind == "in":
            span = self.span()
            return Pair(f"in {span.english}", f"in {span.german}")
        return self.day_or_month(kind)

    def day_or_month(self, kind: str) -> Pair:
        """Gives a weekday or a month: on Monday, am Montag; in May, im Mai."""
        if kind == "month":
            month = self.dice.choose(adverbials()["month"])
            return Pair(f"in {month.english}", f"im {month.german}")
        day = self.dice.choose(adverbials()["weekday"])
        return Pair(f"on {day.english}", f"am {day.german}")

    def span(self) -> Pair:
        """Gives a length of time, in German in the dative: three years, drei Jahren."""
        unit = self.dice.choose(adverbials()["unit"])
        value = phrases.number(self.dice.between(2, 12))
        plural = unit.german.split()[1]
        dative = plural if plural.endswith("n") else plural + "n"
        return Pair(f"{value.english} {unit.english}s", f"{value.german} {dative}")

    def clock_time(self) -> Pair:
        """Gives a time of day: at 7:45, at half past six, at a quarter to nine."""
        hour, kind = self.dice.between(1, 12), self.dice.choose(("digits", "half", "past", "to"))
        if kind == "digits":
            minute = 5 * self.dice.between(0, 11)
            hour = self.dice.between(0, 23)
            return Pair(f"at {hour}:{minute:02}", f"um {hour}.{minute:02} Uhr")
        if kind == "half":
            spelt, following = phrases.hour(hour), phrases.hour(hour % 12 + 1)
            return Pair(f"at half past {spelt.english}", f"um halb {following.german}")
        preposition = "nach" if kind == "past" else "vor"
        return Pair(
            f"at a quarter {kind} {phrases.hour(hour).english}",
            f"um Viertel {preposition} {phrases.hour(hour).german}",
        )

    def date(self) -> Pair:
        """Gives a day of a month: 3 May, 3. Mai."""
        day, month = self.dice.between(1, 28), self.dice.choose(adverbials()["month"])
        return Pair(f"{day} {month.english}", f"{day}. {month.german}")

    def verb(self, frames: Sequence[tuple[str, int]], tense: Tense) -> Verb:
        """Gives a verb of one of the frames whose English past can be told from its present."""
        verb = self.dice.choose(verbs_by_frame()[self.dice.weigh(frames)])
        if tense is Tense.PAST and not verb.has_visible_past:
            return self.verb(frames, tense)
        return verb

    def bare_clause(self, subject: NounPhrase, tense: Tense, *, is_negated: bool = False) -> Clause:
        """Gives a clause with only what its verb needs: an object, a receiver, a place."""
        lively = tense in (Tense.PROGRESSIVE, Tense.PAST_PROGRESSIVE)
        verb = self.verb(LIVELY_FRAMES if lively else ALL_FRAMES, tense)
        clause = Clause(subject=subject, verb=verb, tense=tense, is_negated=is_negated)
        return self.complete(clause)

    def complete(self, clause: Clause) -> Clause:
        """Adds what the verb of a clause needs."""
        verb, subject, is_plain = clause.verb, clause.subject, clause.is_negated
        if verb.frame in OBJECT_FRAMES:
            return replace(clause, object=self.governed(verb, subject, is_plain=is_plain))
        if verb.frame == "giving":
            given = self.thing(verb.objects, is_plain=is_plain)
            is_named = self.dice.chance(0.6)
            receiver = self.third_person() if is_named else self.object_pronoun(subject)
            return replace(clause, indirect=receiver, object=given)
        if verb.frame == "moving":
            return replace(clause, place=self.goal(verb.objects))
        if verb.frame == "staying":
            return replace(clause, place=self.place(verb.objects))
        return clause

    def clause(self, subject: NounPhrase, tense: Tense) -> Clause:
        """Gives a clause with or without modal, negation and adverbials."""
        clause = self.bare_clause(subject, tense, is_negated=self.dice.chance(0.15))
        return self.with_adverbials(replace(clause, modal=self.modal(tense)))

    def modal(self, tense: Tense) -> Modal | None:
        """Gives now and then a modal that has this tense."""
        if tense not in (Tense.PRESENT, Tense.PAST) or not self.dice.chance(0.25):
            return None
        return self.dice.choose(PAST_MODALS if tense is Tense.PAST else MODALS)

    def with_adverbials(self, clause: Clause) -> Clause:
        """Adds time, place, manner or frequency to a clause, where they suit it."""
        kind = self.dice.weigh(EXTRAS)
        if kind in ("time", "front time"):
            fronted = "time" if kind == "front time" else ""
            return replace(clause, time=self.time(clause.tense), fronted=fronted)
        if kind == "frequency" and clause.tense is Tense.PRESENT and not clause.is_negated:
            return replace(clause, frequency=self.dice.choose(adverbials()["frequency"]))
        if clause.is_negated or clause.place or clause.verb.frame in ("giving", "object"):
            return clause
        if kind == "manner" and clause.verb.frame == "handling":
            return replace(clause, manner=self.dice.choose(adverbials()["manner"]))
        if kind in ("place", "front place"):
            fronted = "place" if kind == "front place" else ""
            return replace(clause, place=self.place(), fronted=fronted)
        return clause
