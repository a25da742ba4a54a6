"""Sentences with numbers: prices, dates, times of day, ages, populations.

Each function draws a pair of translations; its description is a sentence that it could draw.
"""

from collections.abc import Callable

import inflection
import phrases
from clauses import Clause, Tense
from lexicon import Case, Pair, adverbials, names, verbs
from simple_sentences import finished, main_clause, topic
from writer import Writer


def year(writer: Writer, earliest: int = 1900) -> int:
    """Gives a year up to 2024."""
    return writer.dice.between(earliest, 2024)


def thousands(writer: Writer) -> Pair:
    """Gives a round number in digits: 1,250 and 1.250."""
    value = 50 * writer.dice.between(21, 199) * writer.dice.choose((1, 1, 10))
    return Pair(f"{value:,}", inflection.digits(f"{value:,}"))


def price(writer: Writer) -> Pair:
    """The leather bag costs 12.50 euros."""
    phrase, noun = topic(writer, ("thing", "clothes", "food", "furniture", "device", "vehicle"))
    amount = thousands(writer)
    if noun.category != "vehicle":
        cents = 10 * writer.dice.between(1, 9)
        value = f"{writer.dice.between(2, 99)}.{cents}"
        amount = Pair(value, inflection.digits(value))
    predicate = Pair(f"{amount.english} euros", f"{amount.german} Euro")
    clause = Clause(subject=phrase, verb=verbs()["cost"], predicate=predicate)
    return finished(main_clause(clause))


def population(writer: Writer) -> Pair:
    """In 1987, 3,450 people lived in Kaltenbach."""
    town, people, when = writer.town(), thousands(writer), year(writer)
    if writer.dice.chance(0.5):
        return finished(
            Pair(
                f"{town.english} has {people.english} inhabitants",
                f"{town.german} hat {people.german} Einwohner",
            )
        )
    return finished(
        Pair(
            f"in {when}, {people.english} people lived in {town.english}",
            f"im Jahr {when} haben {people.german} Menschen in {town.german} gewohnt",
        )
    )


def building_date(writer: Writer) -> Pair:
    """The old bridge was built in 1868."""
    noun = writer.noun(("building", "building", "church", "theatre", "museum", "school", "station"))
    phrase = phrases.noun_phrase("the", noun, writer.adjective(noun, 0.4))
    town, when = writer.town(), year(writer, 1650)
    return finished(
        Pair(
            f"{phrase.english} in {town.english} was built in {when}",
            f"{phrase.german[Case.NOMINATIVE]} in {town.german} wurde {when} gebaut",
        )
    )


def birthday(writer: Writer) -> Pair:
    """Clara Novak was born on 3 May 1956."""
    kind = writer.dice.choose(("female", "male"))
    first = writer.dice.favour(names()[kind])
    last = writer.dice.favour(names()[writer.dice.choose(("surname", "built surname"))])
    day, when = writer.date(), year(writer)
    name = f"{first.english} {last.english}"
    return finished(
        Pair(
            f"{name} was born on {day.english} {when}",
            f"{name} wurde am {day.german} {when} geboren",
        )
    )


def age(writer: Writer) -> Pair:
    """My grandmother is eighty-three years old."""
    value = phrases.number(writer.dice.between(18, 99))
    predicate = Pair(f"{value.english} years old", f"{value.german} Jahre alt")
    tense = writer.story_tense()
    clause = Clause(subject=writer.subject(), verb=verbs()["be"], tense=tense, predicate=predicate)
    return finished(main_clause(clause))


def event_date(writer: Writer) -> Pair:
    """The concert takes place on 3 May."""
    phrase, _ = topic(writer, ("event",))
    day = writer.date()
    when = writer.dice.choose((Pair(f"on {day.english}", f"am {day.german}"), writer.clock_time()))
    tense = writer.dice.choose((Tense.PRESENT, Tense.PAST, Tense.FUTURE))
    clause = Clause(subject=phrase, verb=verbs()["take place"], tense=tense, time=when)
    return finished(main_clause(clause))


def timetable(writer: Writer) -> Pair:
    """The train to Berlin leaves at 7:45."""
    noun = writer.noun(("train", "bus", "ship", "ferry"))
    phrase = phrases.noun_phrase("the", noun)
    town = writer.town()
    kind = writer.dice.choose(("leave at", "arrive at"))
    preposition = Pair("to", "nach") if kind == "leave at" else Pair("from", "aus")
    to_town = Pair(f"{preposition.english} {town.english}", f"{preposition.german} {town.german}")
    tense = writer.dice.choose((Tense.PRESENT, Tense.PAST, Tense.FUTURE))
    clause = Clause(
        subject=phrases.narrowed(phrase, to_town),
        verb=verbs()[kind],
        tense=tense,
        time=writer.clock_time(),
    )
    return finished(main_clause(clause))


def routine(writer: Writer) -> Pair:
    """Mr Novak always gets up at half past six."""
    verb = verbs()[writer.dice.choose(("get up", "wake up", "arrive", "leave", "fall asleep"))]
    tense = writer.story_tense()
    often = writer.dice.choose(adverbials()["frequency"]) if tense is Tense.PRESENT else None
    clause = Clause(
        subject=writer.subject(),
        verb=verb,
        tense=tense,
        frequency=often,
        time=writer.clock_time(),
    )
    return finished(main_clause(clause))


def lasting_state(writer: Writer) -> Pair:
    """She has lived in Kaltenbach for three years: German uses the present."""
    verb = verbs()[writer.dice.choose(("live", "work", "wait", "sit"))]
    span = writer.span()
    clause = Clause(
        subject=writer.subject(),
        verb=verb,
        tense=Tense.LASTING,
        place=writer.place(verb.objects),
        time=Pair(f"for {span.english}", f"seit {span.german}"),
    )
    return finished(main_clause(clause))


def journey(writer: Writer) -> Pair:
    """Tomorrow, we will travel to Berlin by train: time, manner, place."""
    tense = writer.dice.choose((Tense.PRESENT, Tense.PAST, Tense.FUTURE))
    clause = Clause(
        subject=writer.subject(),
        verb=verbs()[writer.dice.choose(("travel", "come", "return"))],
        tense=tense,
        manner=writer.dice.choose(adverbials()["vehicle"]),
        place=writer.goal(("town", "town", "city", "village", "airport", "beach", "island")),
        time=writer.time(tense),
        fronted=writer.dice.choose(("", "time")),
    )
    return finished(main_clause(clause))


PATTERNS: tuple[tuple[Callable[[Writer], Pair], int], ...] = (
    (price, 25),
    (population, 15),
    (building_date, 12),
    (birthday, 12),
    (age, 15),
    (event_date, 15),
    (timetable, 20),
    (routine, 15),
    (lasting_state, 20),
    (journey, 25),
)
"""The patterns and how often each is drawn."""
