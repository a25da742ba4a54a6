"""English: inflection and the order of words in a clause."""

import re

from clauses import Agreement, Clause, NounPhrase, Tense, join
from lexicon import with_s

DOUBLING = {"get", "plan", "run", "sit", "swim", "put", "forget", "travel"}


def with_article_before_vowel(text: str) -> str:
    """Turns "a" into "an" wherever the next word begins with a vowel sound."""
    return re.sub(r"\b([Aa])(?= (?:[aeio]|u(?!ni)|hour|honest))", r"\1n", text)


def third_person(base: str) -> str:
    """Gives the form of the present after "she": tries, goes, has."""
    return "has" if base == "have" else with_s(base)


def progressive_participle(base: str) -> str:
    """Gives the form in -ing: writing, sitting, reading."""
    if base in DOUBLING:
        return f"{base}{base[-1]}ing"
    if base.endswith("e") and not base.endswith("ee"):
        return base[:-1] + "ing"
    return base + "ing"


def be_form(agreement: Agreement, tense: Tense) -> str:
    """Gives am, are, is, was or were."""
    present, past = {
        Agreement.FIRST: ("am", "was"),
        Agreement.THIRD: ("is", "was"),
    }.get(agreement, ("are", "were"))
    return past if tense in (Tense.PAST, Tense.PAST_PROGRESSIVE) else present


def simple_form(base: str, past: str, agreement: Agreement, tense: Tense) -> str:
    """Gives the present or past of a verb other than "be"."""
    if tense is Tense.PAST:
        return past
    return third_person(base) if agreement is Agreement.THIRD else base


def verb_group(clause: Clause, *, needs_auxiliary: bool) -> tuple[str, str]:
    """Gives what moves in a question and what does not: ("will", "see"), ("", "sees").

    Where a question or a negation needs an auxiliary and there is none, it is "do".
    """
    verb, tense, agreement = clause.verb, clause.tense, clause.subject.agreement
    if tense is Tense.FUTURE:
        return "will", verb.base
    if tense is Tense.PLUPERFECT:
        return "had", verb.english_participle
    if tense is Tense.LASTING:
        return simple_form("have", "had", agreement, tense), verb.english_participle
    if tense in (Tense.PROGRESSIVE, Tense.PAST_PROGRESSIVE):
        return be_form(agreement, tense), progressive_participle(verb.base)
    base, past, rest = verb.base, verb.past, ""
    if clause.modal:
        base, past = clause.modal.base, clause.modal.past
        rest = join(clause.modal.rest, verb.base)
    if base == "be":
        return be_form(agreement, tense), rest
    if clause.modal and clause.modal.is_auxiliary:
        return past if tense is Tense.PAST else base, rest
    if needs_auxiliary:
        return simple_form("do", "did", agreement, tense), join(base, rest)
    return "", join(simple_form(base, past, agreement, tense), rest)


def with_relative(words: str, phrase: NounPhrase) -> str:
    """Adds the relative clause of a noun phrase, if it has one, to its words."""
    return join(words, phrase.relative.english if phrase.relative else "")


def verb_and_objects(clause: Clause, verb_words: str) -> str:
    """Places object, particle and preposition: turn on the lamp, turn it on, look forward to it."""
    verb, indirect = clause.verb, clause.indirect
    if clause.object is None:
        return join(verb_words, verb.particle)
    words = with_relative(clause.object.english_object, clause.object)
    if clause.object.is_pronoun and not verb.preposition:
        return join(verb_words, words, verb.particle)
    receiver = indirect.english_object if indirect else ""
    return join(verb_words, verb.particle, verb.preposition, receiver, words)


def remainder(clause: Clause, verb_words: str) -> str:
    """Gives everything after subject and auxiliary: where before how before when."""
    tail = [clause.predicate, clause.place, clause.manner, clause.time]
    shown = [part.english for part in tail if part and part is not clause.front]
    return join(verb_and_objects(clause, verb_words), *shown)


def statement(clause: Clause) -> str:
    """Gives the clause as a statement, main or subordinate, with a comma after a fronted part."""
    auxiliary, verb_words = verb_group(clause, needs_auxiliary=clause.is_negated)
    return join(
        f"{clause.front.english}," if clause.front else "",
        with_relative(clause.subject.english, clause.subject),
        auxiliary,
        "not" if clause.is_negated else "",
        clause.frequency.english if clause.frequency else "",
        remainder(clause, verb_words),
    )


def question(clause: Clause) -> str:
    """Gives the clause as a question whose auxiliary comes before the subject."""
    auxiliary, verb_words = verb_group(clause, needs_auxiliary=True)
    return join(
        auxiliary,
        with_relative(clause.subject.english, clause.subject),
        "not" if clause.is_negated else "",
        clause.frequency.english if clause.frequency else "",
        remainder(clause, verb_words),
    )


def infinitive(clause: Clause) -> str:
    """Gives the clause as "to" and infinitive, without its subject."""
    return join("to", remainder(clause, clause.verb.base))


def sentence(words: str, mark: str = ".") -> str:
    """Finishes a sentence: capital, articles, "cannot", closing mark."""
    text = with_article_before_vowel(words.replace("can not ", "cannot "))
    return text[0].upper() + text[1:] + mark
