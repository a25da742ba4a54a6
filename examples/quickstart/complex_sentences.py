"""Sentences of several clauses: subordinate, relative and infinitive clauses, coordination.

Each function draws a pair of translations; its description is a sentence that it could draw.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import english
import german
import phrases
from clauses import Clause, NounPhrase, Tense, join
from inflection import Determiner
from lexicon import Case, Noun, Pair, Verb, nouns, verbs_by_frame
from simple_sentences import INANIMATE, finished, main_clause, predication, topic
from writer import OBJECT_FRAMES, Writer

BECAUSE, ALTHOUGH = Pair("because", "weil"), Pair("although", "obwohl")
BEFORE, AFTER, WHILE = Pair("before", "bevor"), Pair("after", "nachdem"), Pair("while", "während")
WHEN_IN_PAST, WHENEVER, IF = Pair("when", "als"), Pair("when", "wenn"), Pair("if", "wenn")
WEATHER = (Pair("it rains", "es regnet"), Pair("it snows", "es schneit"),
           Pair("the sun shines", "die Sonne scheint"))  # fmt: skip
TIMES = (
    ((WHEN_IN_PAST, Tense.PAST, Tense.PAST), 4),
    ((WHENEVER, Tense.PRESENT, Tense.PRESENT), 2),
    ((IF, Tense.PRESENT, Tense.FUTURE), 4),
    ((BEFORE, Tense.PAST, Tense.PAST), 3),
    ((AFTER, Tense.PLUPERFECT, Tense.PAST), 4),
    ((WHILE, Tense.PAST_PROGRESSIVE, Tense.PAST), 3),
)
"""Conjunction, tense under it and tense of the main clause, with their weight."""
ASKING = {"ask", "know", "understand", "forget", "remember", "explain", "discuss"}
"""After these, "if" and "when" could open an indirect question, so that they come first instead."""
THAT, WHETHER = Pair("that", "dass"), Pair("whether", "ob")
REPORTED_TENSES = ((Tense.PRESENT, 2), (Tense.PAST, 2), (Tense.FUTURE, 2))
OBJECT_VERBS = (("object", 3), ("handling", 2))


def subordinate_clause(conjunction: Pair, clause: Clause) -> Pair:
    """Gives a clause under a conjunction: because she came, weil sie gekommen ist."""
    return Pair(
        f"{conjunction.english} {english.statement(clause)}",
        f"{conjunction.german} {german.subordinate(clause)}",
    )


def combined(main: Clause, subordinate: Pair, *, is_subordinate_first: bool) -> Pair:
    """Joins a main clause and a subordinate one; after the latter, German inverts the former."""
    if is_subordinate_first:
        return Pair(
            f"{subordinate.english}, {english.statement(main)}",
            f"{subordinate.german}, {german.inverted(main)}",
        )
    return Pair(
        f"{english.statement(main)} {subordinate.english}",
        f"{german.statement(main)}, {subordinate.german}",
    )


def two_subjects(writer: Writer) -> tuple[NounPhrase, NounPhrase]:
    """Gives a subject and either the pronoun that refers to it or somebody else."""
    first = writer.subject()
    if writer.dice.chance(0.5):
        return first, phrases.pronoun(first.person)
    return first, writer.subject()


def reason(writer: Writer) -> Pair:
    """Because she was very tired, Anna did not go to the party."""
    subject, other = two_subjects(writer)
    tense = writer.story_tense()
    conjunction = writer.dice.choose((BECAUSE, ALTHOUGH))
    is_negated = writer.dice.chance(0.25)
    main = writer.bare_clause(subject, tense, is_negated=is_negated)
    if writer.dice.chance(0.5):
        under = predication(writer, other, nouns()["woman"], tense)
    else:
        under = writer.bare_clause(other, tense, is_negated=writer.dice.chance(0.2))
    inner = subordinate_clause(conjunction, under)
    return finished(combined(main, inner, is_subordinate_first=writer.dice.chance(0.4)))


def time_clause(writer: Writer) -> Pair:
    """After he had closed the door, the baker went to the station."""
    conjunction, inner_tense, tense = writer.dice.weigh(TIMES)
    subject, other = two_subjects(writer)
    main = writer.bare_clause(subject, tense)
    inner = subordinate_clause(conjunction, writer.bare_clause(other, inner_tense))
    is_main = main.verb.base in ASKING or writer.dice.chance(0.5)
    return finished(combined(main, inner, is_subordinate_first=is_main))


def weather(writer: Writer) -> Pair:
    """If it rains, we will stay in the hotel."""
    state = writer.dice.choose(WEATHER)
    main = writer.bare_clause(writer.subject(), Tense.FUTURE)
    inner = Pair(f"if {state.english}", f"wenn {state.german}")
    is_main = main.verb.base in ASKING or writer.dice.chance(0.5)
    return finished(combined(main, inner, is_subordinate_first=is_main))


def reported(writer: Writer) -> Pair:
    """The doctor believes that his patients will sleep."""
    verb = writer.dice.choose(verbs_by_frame()["saying"])
    speaker, subject = two_subjects(writer)
    tense = writer.story_tense()
    is_question = verb.preposition == "whether" or (verb.base == "know" and writer.dice.chance(0.5))
    is_negated = is_question and verb.base == "know"
    main = Clause(subject=speaker, verb=verb, tense=tense, is_negated=is_negated)
    inner_tense = Tense.PAST if tense is Tense.PAST else writer.dice.weigh(REPORTED_TENSES)
    if writer.dice.chance(0.25) and inner_tense is not Tense.FUTURE:
        inner = predication(writer, subject, nouns()["woman"], inner_tense)
    else:
        inner = writer.clause(subject, inner_tense)
    conjunction = WHETHER if is_question else THAT
    under = subordinate_clause(conjunction, replace(inner, fronted=""))
    return finished(combined(main, under, is_subordinate_first=False))


def object_with_relative(writer: Writer) -> Pair:
    """She knows the boy who lives in Kaltenbach."""
    tense = writer.story_tense()
    verb = writer.verb(OBJECT_VERBS, tense)
    subject = writer.subject()
    described = with_relative(writer, verb.objects)
    clause = Clause(subject=subject, verb=verb, tense=tense, object=described)
    return finished(main_clause(clause))


def subject_with_relative(writer: Writer) -> Pair:
    """The woman whom we met yesterday works in the library."""
    tense = writer.story_tense()
    subject = with_relative(writer, ("person",))
    return finished(main_clause(writer.bare_clause(subject, tense)))


def topic_with_relative(writer: Writer) -> Pair:
    """The lamp that Anna bought is very beautiful."""
    noun = writer.noun((writer.dice.choose(INANIMATE),))
    phrase = described(writer, noun)
    clause = predication(writer, phrase, noun, writer.story_tense())
    return finished(main_clause(clause))


def with_relative(writer: Writer, keys: Sequence[str]) -> NounPhrase:
    """Gives a noun phrase of these keys with a relative clause."""
    return described(writer, writer.noun((writer.dice.choose(keys),)))


def described(writer: Writer, noun: Noun) -> NounPhrase:
    """Gives a noun phrase with a relative clause."""
    is_plural = not noun.is_mass and writer.dice.chance(0.25)
    opening = "the" if noun.is_mass or is_plural else writer.dice.choose(("the", "the", "a"))
    adjective = writer.adjective(noun, 0.2)
    phrase = phrases.noun_phrase(opening, noun, adjective, is_plural=is_plural)
    return replace(phrase, relative=relative(writer, phrase, noun))


def relative(writer: Writer, phrase: NounPhrase, noun: Noun) -> Pair:
    """Gives a relative clause of one of three kinds: who came, whom she met, whose car is old."""
    word, tense = phrases.relative_pronoun(phrase), writer.story_tense()
    kind = writer.dice.weigh((("subject", 6), ("object", 4), ("whose", 1)))
    if not phrase.is_human or kind == "object":
        suitable = verbs_for(noun)
        verb = writer.dice.choose(suitable)
        tense = tense if verb.has_visible_past else Tense.FUTURE
        clause = Clause(subject=writer.subject(), verb=verb, tense=tense, object=word)
        return phrases.object_relative(clause)
    if kind == "whose":
        owned = writer.noun(("animal", "vehicle", "clothes", "building"))
        opening = Determiner("whose", word.german[Case.GENITIVE], "bare")
        subject = phrases.noun_phrase(opening, owned)
        return phrases.subject_relative(predication(writer, subject, owned, tense))
    return phrases.subject_relative(writer.bare_clause(word, tense))


def verbs_for(noun: Noun) -> list[Verb]:
    """Gives the verbs that can have the noun as their object."""
    candidates = [verb for frame in OBJECT_FRAMES for verb in verbs_by_frame()[frame]]
    return [verb for verb in candidates if {noun.category, noun.head} & set(verb.objects)]


def intention(writer: Writer) -> Pair:
    """My aunt forgot to turn off the radio."""
    tense = writer.story_tense()
    verb = writer.dice.choose(verbs_by_frame()["intending"])
    main = Clause(subject=writer.subject(), verb=verb, tense=tense)
    return finished(with_infinitive(writer, main, Pair("", "")))


def purpose(writer: Writer) -> Pair:
    """We travelled to Berlin in order to visit our grandmother."""
    tense = writer.dice.choose((Tense.PRESENT, Tense.PAST, Tense.FUTURE))
    verb = writer.dice.choose(verbs_by_frame()["moving"])
    main = Clause(subject=writer.subject(), verb=verb, tense=tense, place=writer.goal(verb.objects))
    return finished(with_infinitive(writer, main, Pair("in order", "um")))


def with_infinitive(writer: Writer, main: Clause, opening: Pair) -> Pair:
    """Adds an infinitive clause with the same subject to a clause."""
    verb = writer.verb(OBJECT_VERBS, Tense.FUTURE)
    goal = writer.complete(Clause(subject=main.subject, verb=verb))
    words, inner = main_clause(main), Pair(english.infinitive(goal), german.infinitive(goal))
    return Pair(
        join(words.english, opening.english, inner.english),
        f"{words.german}, {join(opening.german, inner.german)}",
    )


def coordination(writer: Writer) -> Pair:
    """Peter opened the window, but I closed the door."""
    tense = writer.dice.choose((Tense.PRESENT, Tense.PAST, Tense.FUTURE))
    conjunction = writer.dice.choose((Pair(", and", " und"), Pair(", but", ", aber")))
    is_negated = conjunction.english == ", but" and writer.dice.chance(0.5)
    first = writer.bare_clause(writer.subject(), tense)
    second = writer.bare_clause(writer.subject(), tense, is_negated=is_negated)
    one, two = main_clause(first), main_clause(second)
    return finished(
        Pair(
            f"{one.english}{conjunction.english} {two.english}",
            f"{one.german}{conjunction.german} {two.german}",
        )
    )


def cause_in_object(writer: Writer) -> Pair:
    """Anna bought the lamp because it was cheap: German "it" has the gender of the lamp."""
    tense = writer.story_tense()
    verb = writer.verb(OBJECT_VERBS, tense)
    noun = writer.noun(verb.objects)
    if noun.category not in INANIMATE:
        return cause_in_object(writer)
    phrase = phrases.noun_phrase(writer.dice.choose(("the", "this")), noun, is_plural=False)
    main = Clause(subject=writer.subject(), verb=verb, tense=tense, object=phrase)
    under = predication(writer, phrases.pronoun(phrase.person), noun, tense)
    return finished(combined(main, subordinate_clause(BECAUSE, under), is_subordinate_first=False))


def topic_taken_up(writer: Writer) -> Pair:
    """The shoes were beautiful, but he did not buy them."""
    tense = writer.story_tense()
    phrase, noun = topic(writer, INANIMATE)
    verb = writer.dice.choose([verb for verb in verbs_for(noun) if verb.has_visible_past])
    taken_up = Clause(
        subject=writer.subject(),
        verb=verb,
        tense=tense,
        object=phrases.pronoun(phrase.person),
        is_negated=writer.dice.chance(0.5),
    )
    if verb.german_preposition:
        return topic_taken_up(writer)
    one = main_clause(predication(writer, phrase, noun, tense))
    two = main_clause(taken_up)
    return finished(Pair(f"{one.english}, but {two.english}", f"{one.german}, aber {two.german}"))


PATTERNS: tuple[tuple[Callable[[Writer], Pair], int], ...] = (
    (reason, 80),
    (time_clause, 70),
    (weather, 12),
    (reported, 70),
    (object_with_relative, 45),
    (subject_with_relative, 35),
    (topic_with_relative, 25),
    (intention, 35),
    (purpose, 25),
    (coordination, 45),
    (cause_in_object, 25),
    (topic_taken_up, 25),
)
"""The patterns and how often each is drawn."""
