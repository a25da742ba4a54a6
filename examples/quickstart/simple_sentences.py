"""Sentences of one clause: statements, descriptions, comparisons, questions.

Each function draws a pair of translations; its description is a sentence that it could draw.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import english
import german
import phrases
from clauses import HE, Clause, NounPhrase, Tense, join
from inflection import DETERMINERS, Determiner
from lexicon import Adjective, Case, Noun, Pair, Verb, adjectives, adjectives_for, nouns, verbs
from writer import OBJECT_FRAMES, Writer

TENSES = ((Tense.PRESENT, 5), (Tense.PAST, 9), (Tense.FUTURE, 4), (Tense.PROGRESSIVE, 1))
QUESTION_TENSES = ((Tense.PRESENT, 2), (Tense.PAST, 4), (Tense.FUTURE, 1))
PERSONAL = ("person", "kin")
INANIMATE = (
    "text", "thing", "furniture", "clothes", "device", "vehicle", "building", "event", "food",
    "openable",
)  # fmt: skip
DEGREES = (Pair("", ""), Pair("very", "sehr"), Pair("too", "zu"))
FEATURES = {
    "colour": (("thing", "clothes", "vehicle"), ("beautiful", "ugly", "strange")),
    "price": (("thing", "device", "vehicle", "building"), ("high", "low")),
    "roof": (("building", "church", "school", "museum"), ("red", "green", "old", "high")),
    "end": (("text", "film", "concert", "game"), ("boring", "strange", "funny", "exciting")),
    "beginning": (("text", "film", "concert", "game"), ("boring", "funny", "difficult")),
    "title": (("text", "film"), ("long", "short", "strange", "funny")),
}
"""What has each feature, and what the feature can be."""
WHERE = (
    ("go", "wohin"),
    ("drive", "wohin"),
    ("travel", "wohin"),
    ("run", "wohin"),
    ("live", "wo"),
    ("stay", "wo"),
    ("work", "wo"),
    ("wait", "wo"),
)
"""Verbs, and the German "where" that they call for."""

WHO = NounPhrase(
    english="who", english_object="whom", german=("wer", "wen", "wem"), person=HE, is_pronoun=True
)
WHAT = NounPhrase(
    english="what", english_object="what", german=("was", "was"), person=HE, is_pronoun=True
)


def finished(words: Pair, mark: str = ".") -> Pair:
    """Finishes both sentences with capital and closing mark."""
    return Pair(english.sentence(words.english, mark), german.sentence(words.german, mark))


def main_clause(clause: Clause) -> Pair:
    """Gives a clause as a main clause."""
    return Pair(english.statement(clause), german.statement(clause))


def statement(writer: Writer) -> Pair:
    """My brother will visit you tomorrow."""
    clause = writer.clause(writer.subject(), writer.dice.weigh(TENSES))
    return finished(main_clause(clause))


def description(writer: Writer) -> Pair:
    """The birthday cake was too sweet."""
    phrase, noun = topic(writer)
    return finished(main_clause(predication(writer, phrase, noun, writer.story_tense())))


def topic(
    writer: Writer, categories: Sequence[str] = PERSONAL + INANIMATE
) -> tuple[NounPhrase, Noun]:
    """Gives a thing or person with a definite determiner, and its noun."""
    noun = writer.noun((writer.dice.choose(categories),))
    is_plural = not noun.is_mass and writer.dice.chance(0.25)
    openings = {"kin": ("my", "your", "her"), "person": ("the", "the", "this")}
    opening = writer.dice.choose(openings.get(noun.category, ("the", "the", "this", "our")))
    if is_plural and opening == "this":
        opening = "these"
    return phrases.noun_phrase(opening, noun, is_plural=is_plural), noun


def predication(writer: Writer, subject: NounPhrase, noun: Noun, tense: Tense) -> Clause:
    """Gives a clause that says what a subject is like, of which the noun could be said."""
    adjective = writer.dice.choose(adjectives_for(noun.category, noun.head))
    degree = writer.dice.choose(DEGREES) if adjective.german_comparative else DEGREES[0]
    words = Pair(join(degree.english, adjective.english), join(degree.german, adjective.german))
    return Clause(
        subject=subject,
        verb=verbs()["be"],
        tense=tense,
        predicate=words,
        is_negated=not degree.english and writer.dice.chance(0.3),
    )


def comparison(writer: Writer) -> Pair:
    """These shoes are more expensive than the leather bag."""
    phrase, noun = topic(writer)
    opening = "my" if noun.category == "kin" else writer.dice.choose(("the", "this"))
    standard = phrases.noun_phrase(opening, writer.noun((noun.category,)))
    if standard.english == phrase.english:
        return comparison(writer)
    candidates = adjectives_for(noun.category, noun.head)
    fitting = [word for word in candidates if word.german_comparative]
    clause = Clause(
        subject=phrase,
        verb=verbs()["be"],
        tense=writer.story_tense(),
        predicate=compared(writer.dice.choose(fitting), standard, is_equal=writer.dice.chance(0.3)),
    )
    return finished(main_clause(clause))


def compared(adjective: Adjective, standard: NounPhrase, *, is_equal: bool) -> Pair:
    """Gives "older than my brother" or "as old as my brother"."""
    words, form = standard.english, standard.german[Case.NOMINATIVE]
    if is_equal:
        return Pair(f"as {adjective.english} as {words}", f"so {adjective.german} wie {form}")
    return Pair(
        f"{adjective.english_comparative} than {words}",
        f"{adjective.german_comparative} als {form}",
    )


def existence(writer: Writer) -> Pair:
    """There is an old church in Kaltenbach."""
    keys = ("church", "museum", "park", "restaurant", "hotel", "library", "castle", "bakery",
            "bridge", "theatre", "market", "factory")  # fmt: skip
    noun = writer.noun(keys)
    is_plural = writer.dice.chance(0.5)
    count = phrases.counted(writer.count())
    plural_openings = (DETERMINERS["many"], DETERMINERS["no"], count)
    opening = writer.dice.choose(plural_openings) if is_plural else DETERMINERS["a"]
    found = phrases.noun_phrase(opening, noun, writer.adjective(noun, 0.5), is_plural=is_plural)
    place = writer.place(("city", "village", "island"))
    form = found.german[Case.ACCUSATIVE]
    verb_words = "are" if is_plural else "is"
    if writer.dice.chance(0.25) and not is_plural:
        return finished(
            Pair(f"is there {found.english} {place.english}", f"gibt es {place.german} {form}"), "?"
        )
    words = f"there {verb_words} {found.english} {place.english}"
    return finished(Pair(words, f"{place.german} gibt es {form}"))


def liking(writer: Writer) -> Pair:
    """Anna liked the film: in German it is the film that pleases Anna."""
    admirer, tense = writer.subject(), writer.story_tense()
    noun = writer.noun(("text", "clothes", "building", "event", "film", "picture"))
    is_plural = writer.dice.chance(0.25)
    opening = writer.dice.choose(("the", "my", "your", "his", "our"))
    liked = phrases.noun_phrase(opening, noun, writer.adjective(noun, 0.4), is_plural=is_plural)
    is_negated = writer.dice.chance(0.25)
    verb = verbs()["like"]
    seen = Clause(subject=admirer, verb=verb, object=liked, tense=tense, is_negated=is_negated)
    pleasing = Clause(subject=liked, verb=verb, tense=tense, is_negated=is_negated)
    words = f"{admirer.german[Case.DATIVE]} {german.inverted(pleasing)}"
    return finished(Pair(english.statement(seen), words))


def feature(writer: Writer) -> Pair:
    """The roof of the station is green."""
    name = writer.dice.choose(tuple(FEATURES))
    wholes, adjectives_of_it = FEATURES[name]
    whole = phrases.noun_phrase(writer.dice.choose(("the", "this")), writer.noun(wholes))
    adjective = adjectives()[writer.dice.choose(adjectives_of_it)]
    clause = Clause(
        subject=phrases.of(phrases.noun_phrase("the", nouns()[name]), whole),
        verb=verbs()["be"],
        tense=writer.story_tense(),
        predicate=Pair(adjective.english, adjective.german),
        is_negated=writer.dice.chance(0.3),
    )
    return finished(main_clause(clause))


def yes_no_question(writer: Writer) -> Pair:
    """Did you open the window yesterday?"""
    clause = question_clause(writer)
    return finished(Pair(english.question(clause), german.inverted(clause)), "?")


def question_clause(writer: Writer) -> Clause:
    """Gives a clause to ask about, with nothing fronted."""
    clause = writer.clause(writer.subject(), writer.dice.weigh(QUESTION_TENSES))
    return replace(clause, fronted="")


def why_question(writer: Writer) -> Pair:
    """Why do they have to work in the garden?"""
    clause = question_clause(writer)
    words = Pair(f"why {english.question(clause)}", f"warum {german.inverted(clause)}")
    return finished(words, "?")


def who_question(writer: Writer) -> Pair:
    """Who turned on the radio?"""
    clause = writer.clause(WHO, writer.dice.weigh(QUESTION_TENSES))
    return finished(main_clause(replace(clause, fronted="")), "?")


def where_question(writer: Writer) -> Pair:
    """Where did the tourists go yesterday?"""
    tense = writer.dice.weigh(QUESTION_TENSES)
    verb, word = writer.dice.choose(WHERE)
    clause = Clause(
        subject=writer.subject(),
        verb=verbs()[verb],
        tense=tense,
        time=writer.time(tense) if writer.dice.chance(0.6) else None,
    )
    words = Pair(f"where {english.question(clause)}", f"{word} {german.inverted(clause)}")
    return finished(words, "?")


def object_question(writer: Writer) -> Pair:
    """Which book did your aunt read?"""
    tense = writer.dice.weigh(QUESTION_TENSES)
    verb = writer.verb(tuple((frame, 1) for frame in OBJECT_FRAMES), tense)
    if verb.preposition or verb.german_preposition or verb.case is Case.DATIVE:
        return object_question(writer)
    has_time = not verb.particle and writer.dice.chance(0.5)  # not "turn on on Monday"
    clause = Clause(
        subject=writer.subject(),
        verb=verb,
        tense=tense,
        time=writer.time(tense) if has_time else None,
    )
    asked = asked_object(writer, verb)
    words = Pair(
        f"{asked.english_object} {english.question(clause)}",
        f"{asked.german[verb.case]} {german.inverted(clause)}",
    )
    return finished(words, "?")


def asked_object(writer: Writer, verb: Verb) -> NounPhrase:
    """Gives "what", "whom", "which book" or "how many books"."""
    noun = writer.noun(verb.objects)
    kind = writer.dice.choose(("bare", "which", "how many"))
    if kind == "bare":
        return WHO if noun.category in PERSONAL else WHAT
    if kind == "which" or noun.is_mass or noun.category == "kin":
        return phrases.noun_phrase("which", noun)
    return phrases.noun_phrase(Determiner("how many", "wie viel", "strong"), noun, is_plural=True)


PATTERNS: tuple[tuple[Callable[[Writer], Pair], int], ...] = (
    (statement, 150),
    (description, 20),
    (comparison, 20),
    (existence, 18),
    (liking, 25),
    (feature, 14),
    (yes_no_question, 35),
    (why_question, 20),
    (who_question, 15),
    (where_question, 15),
    (object_question, 25),
)
"""The patterns and how often each is drawn."""
