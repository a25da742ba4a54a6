"""Noun phrases and adverbials, built in both languages at once."""

from dataclasses import replace

import english
import german
import inflection
from clauses import (
    HE,
    IT_BY_GENDER,
    SHE,
    THEY,
    WE,
    YOU,
    Clause,
    Forms,
    I,
    NounPhrase,
    Person,
    join,
)
from inflection import CASES, DETERMINERS, RELATIVE_PRONOUNS, Determiner
from lexicon import Adjective, Case, Noun, Pair, adverbials, places

ZU_DATIVE = "zu"
PRONOUNS = {"I": I, "you": YOU, "he": HE, "she": SHE, "we": WE, "they": THEY}


def number(value: int) -> Pair:
    """Spells a number from 2 to 99: twenty-three, dreiundzwanzig."""
    if value < 20:
        return adverbials()["number"][value - 1]
    tens, unit = adverbials()["tens"][value // 10 - 2], value % 10
    if not unit:
        return tens
    units = adverbials()["number"][unit - 1]
    return Pair(f"{tens.english}-{units.english}", f"{units.german}und{tens.german}")


def hour(value: int) -> Pair:
    """Spells an hour of the clock, where one is "eins"."""
    return Pair("one", "eins") if value == 1 else number(value)


def counted(value: int) -> Determiner:
    """Gives a spelt number as a determiner: two, zwei."""
    return Determiner(*number(value), "bare")


def person_of(noun: Noun, *, is_plural: bool) -> Person:
    """Gives the pronouns that refer to a noun: by nature for people, by gender for things."""
    if is_plural:
        return THEY
    if noun.category in ("person", "kin"):
        return HE if noun.gender == "m" else SHE
    return IT_BY_GENDER[noun.gender]


def noun_phrase(
    determiner: str | Determiner,
    noun: Noun,
    adjective: Adjective | None = None,
    *,
    is_plural: bool = False,
) -> NounPhrase:
    """Gives determiner, adjective and noun, in agreement: the old table, dem alten Tisch."""
    opening = DETERMINERS[determiner] if isinstance(determiner, str) else determiner
    gender = "p" if is_plural else noun.gender

    def forms(opening: Determiner) -> Forms:
        return tuple(german_noun_phrase(opening, noun, adjective, gender, case) for case in CASES)

    kein = DETERMINERS["no"] if opening.english in ("a", "") else None
    words = join(
        opening.english,
        adjective.english if adjective else "",
        noun.english_plural if is_plural else noun.english,
    )
    return NounPhrase(
        english=words,
        english_object=words,
        german=forms(opening),
        person=person_of(noun, is_plural=is_plural),
        gender=gender,
        is_human=noun.category in ("person", "kin"),
        german_if_negated=forms(kein) if kein else (),
    )


def german_noun_phrase(
    determiner: Determiner, noun: Noun, adjective: Adjective | None, gender: str, case: Case
) -> str:
    """Gives one case of determiner, adjective and noun."""
    return join(
        inflection.determiner_form(determiner, gender, case),
        inflection.adjective_form(adjective, determiner.kind, gender, case) if adjective else "",
        inflection.noun_form(noun, case, is_plural=gender == "p"),
    )


def pronoun(person: Person) -> NounPhrase:
    """Gives a personal pronoun as a noun phrase."""
    return NounPhrase(
        english=person.english,
        english_object=person.english_object,
        german=person.german,
        person=person,
        is_pronoun=True,
    )


def proper_name(name: Pair, person: Person) -> NounPhrase:
    """Gives a name, the same in every case but the genitive: Anna, Annas."""
    forms = (name.german, name.german, name.german, f"{name.german}s")
    return NounPhrase(
        english=name.english,
        english_object=name.english,
        german=forms,
        person=person,
        gender="m" if person is HE else "f",
    )


def titled_name(surname: Pair, person: Person) -> NounPhrase:
    """Gives "Mr" or "Mrs" with a surname; German declines Herr: mit Herrn Novak."""
    title, *titles = ("Mr", "Herr", "Herrn", "Herrn") if person is HE else ("Mrs",) + ("Frau",) * 3
    phrase = proper_name(Pair(f"{title} {surname.english}", ""), person)
    return replace(phrase, german=tuple(f"{form} {surname.german}" for form in titles))


def possessed(owner: NounPhrase, noun: Noun, adjective: Adjective | None = None) -> NounPhrase:
    """Gives what someone owns: my brother's new car, das neue Auto meines Bruders; Annas Auto."""
    is_name = owner.german[Case.GENITIVE] == owner.german[Case.NOMINATIVE] + "s"
    opening = Determiner(f"{owner.english}'s", owner.german[Case.GENITIVE], "bare")
    if is_name:
        return noun_phrase(opening, noun, adjective)
    phrase = noun_phrase("the", noun, adjective)
    words = join(opening.english, phrase.english.removeprefix("the "))
    forms = tuple(f"{form} {opening.german}" for form in phrase.german)
    return replace(phrase, english=words, english_object=words, german=forms)


def of(phrase: NounPhrase, whole: NounPhrase) -> NounPhrase:
    """Gives a part and its whole: the roof of the house, das Dach des Hauses."""
    words = f"{phrase.english} of {whole.english}"
    forms = tuple(f"{form} {whole.german[Case.GENITIVE]}" for form in phrase.german)
    return replace(phrase, english=words, english_object=words, german=forms)


def coordinated(first: NounPhrase, second: NounPhrase) -> NounPhrase:
    """Joins two noun phrases by "and"."""
    words = f"{first.english} and {second.english_object}"
    forms = tuple(f"{one} und {two}" for one, two in zip(first.german, second.german, strict=False))
    return replace(
        first, english=words, english_object=words, german=forms, person=THEY, gender="p"
    )


def relative_pronoun(antecedent: NounPhrase) -> NounPhrase:
    """Gives "who" or "that", in agreement with what it refers to: der, die, das, denen."""
    word = "who" if antecedent.is_human else "that"
    return replace(
        antecedent,
        english=word,
        english_object="whom" if antecedent.is_human else "that",
        german=RELATIVE_PRONOUNS[antecedent.gender],
        german_if_negated=(),
        relative=None,
    )


def subject_relative(clause: Clause) -> Pair:
    """Gives a relative clause whose subject is the relative pronoun: der in Berlin wohnt."""
    return Pair(english.statement(clause), german.subordinate(clause))


def object_relative(clause: Clause) -> Pair:
    """Gives a relative clause whose object is the relative pronoun: das sie gekauft hat."""
    verb, word = clause.verb, clause.object
    if word is None:
        raise ValueError("an object relative clause needs an object, and this one has none")
    rest = replace(clause, object=None)
    opening = word.english_object
    if verb.preposition:
        opening = f"{verb.preposition} {'whom' if word.is_human else 'which'}"
    german_opening = join(verb.german_preposition, word.german[verb.case])
    return Pair(
        f"{opening} {english.statement(rest)}", f"{german_opening} {german.subordinate(rest)}"
    )


def with_preposition(words: Pair, phrase: NounPhrase, case: Case) -> Pair:
    """Puts prepositions before a noun phrase: with her brother, mit ihrem Bruder."""
    return Pair(
        f"{words.english} {phrase.english_object}",
        german.prepositional(words.german, phrase.german[case]),
    )


def at_rest(phrase: NounPhrase, head: str) -> Pair:
    """Gives where something is: at the station, am Bahnhof. The head is a key of `places.txt`."""
    word = places()[head]
    return with_preposition(Pair(word.english, word.rest), phrase, Case.DATIVE)


def towards(phrase: NounPhrase, head: str) -> Pair:
    """Gives where someone goes: to the station, zum Bahnhof; to the park, in den Park."""
    preposition = places()[head].direction
    case = Case.DATIVE if preposition == ZU_DATIVE else Case.ACCUSATIVE
    return with_preposition(Pair("to", preposition), phrase, case)


def narrowed(phrase: NounPhrase, words: Pair) -> NounPhrase:
    """Adds a prepositional phrase to a noun phrase: the train to Berlin."""
    both = f"{phrase.english} {words.english}"
    forms = tuple(f"{form} {words.german}" for form in phrase.german)
    return replace(phrase, english=both, english_object=both, german=forms)
