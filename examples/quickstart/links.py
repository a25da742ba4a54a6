"""Which words of a pair belong together, by the tables that its sentences are written from.

An entry has the forms of one word, or of a few, in both languages; two words are candidates where
an entry has both. A candidate is a sure link where it has no rivals, or where it alone stands
between the same neighbours in both sentences. What remains is possible, and so are the auxiliaries
of one language with those of the other, and with the verbs in their place.
"""

from collections.abc import Iterator
from functools import cache
from itertools import product

import inflection
import phrases
from clauses import IT_BY_GENDER, Agreement
from english import progressive_participle, third_person
from german import CONTRACTIONS
from inflection import DETERMINERS, RELATIVE_PRONOUNS, SPECIAL_VERBS
from lexicon import (
    Case,
    Noun,
    Pair,
    Verb,
    adjectives,
    adverbials,
    compounds,
    names,
    nouns,
    places,
    verbs,
)
from writer import MODALS

Link = tuple[int, int]
"""The numbers of an English and a German word, from 0."""

GENDERS = ("m", "f", "n", "p")
ENDINGS = ("", "e", "en", "er", "es", "em")
GROUPS = (
    "how many = wie viel viele", "cannot = nicht kann kannst können", "there is are = gibt es",
    "order = um", "in = im jahr", "at = um uhr",
)  # fmt: skip
"""Small words of which all that appear belong together."""
SMALL_WORDS = (
    "because = weil", "although = obwohl", "before = bevor", "after = nachdem", "while = während",
    "when = als wenn", "if = wenn ob", "whether = ob", "that = dass", "and = und", "but = aber",
    "not = nicht kein keine keinen keinem keiner", "very = sehr", "too = zu", "than = als",
    "as = so wie", "who = wer", "whom = wen wem", "what = was", "why = warum", "where = wo wohin",
    "it = es", "to = zu nach in", "an = ein eine einen einem einer eines", "mr = herr herrn",
    "mrs = frau", "from = aus von", "by with = mit", "for = seit", "ago = vor", "past = nach",
    "to = vor", "on = am an auf", "at = um", "in = in im", "half = halb", "quarter = viertel",
    "whose = dessen deren", "of = des der", "euros = euro", "inhabitants = einwohner",
    "people = menschen", "born = geboren", "built = gebaut", "years = jahre", "old = alt",
    "one = eins", "rains = regnet", "snows = schneit", "sun = sonne", "shines = scheint",
    "will = werde wirst wird werden",
)  # fmt: skip
ENGLISH_AUXILIARIES = {"am", "is", "are", "was", "were", "do", "does", "did", "have", "has", "had",
                       "will", "be"}  # fmt: skip
GERMAN_AUXILIARIES = {
    form for name in ("sein", "haben", "werden") for forms in SPECIAL_VERBS[name] for form in forms
}


Forms = tuple[set[str], set[str]]
"""An entry: words of both languages in lower case."""


def links(pair: Pair) -> tuple[set[Link], set[Link]]:
    """Gives the sure links of a pair and the possible ones, to which the sure ones belong."""
    english, german = ([plain(word) for word in sentence.split()] for sentence in pair)
    all_places = list(product(range(len(english)), range(len(german))))
    common = {(i, j): entries(english[i], german[j]) for i, j in all_places}
    candidates = {link for link in all_places if common[link]}
    commas = [word.endswith(",") for word in pair.german.split()]
    clauses = [sum(commas[:at]) for at in range(len(german))]

    def are_rivals(one: Link, other: Link) -> bool:
        if (one[0] == other[0]) == (one[1] == other[1]):
            return False
        is_repeated = english[one[0]] == english[other[0]] and german[one[1]] == german[other[1]]
        return is_repeated or not any(number < num_open() for number in common[one] & common[other])

    sure: set[Link] = set()
    while True:
        found = set()
        for link in candidates - sure:
            rivals = [other for other in candidates if are_rivals(link, other)]
            is_between = stands_beside(link, sure)
            if not rivals or (is_between and not any(stands_beside(it, sure) for it in rivals)):
                found.add(link)
        if not found:
            break
        sure |= found
        candidates = {
            link
            for link in candidates
            if link in sure or not any(are_rivals(link, other) for other in found)
        }
    possible = {
        (i, j)
        for i, j in all_places
        if may_share_a_verb(english[i], german[j])
        and clauses[min(sure, key=lambda link: abs(link[0] - i))[1]] == clauses[j]
    }
    return sure, sure | candidates | possible


def stands_beside(link: Link, sure: set[Link]) -> bool:
    """Tells whether the nearest words with sure links, on one side, are linked to each other."""
    after = [it for it in sure if it[0] > link[0]], [it for it in sure if it[1] > link[1]]
    before = [it for it in sure if it[0] < link[0]], [it for it in sure if it[1] < link[1]]
    return any(
        bool(here and there)
        and nearest(here, key=lambda it: it[0])[0] == nearest(there, key=lambda it: it[1])[0]
        for (here, there), nearest in ((after, min), (before, max))
    )


def plain(word: str) -> str:
    """Gives a word in lower case, without punctuation and "'s"."""
    return word.strip(".,?").removesuffix("'s").lower()


def may_share_a_verb(english: str, german: str) -> bool:
    """Tells whether a word and an auxiliary may stand for one verb: "wrote", "hat"."""
    is_verb = english in ENGLISH_AUXILIARIES or english in verb_forms()
    return is_verb and (german in GERMAN_AUXILIARIES or german == "gerade")


def entries(english: str, german: str) -> set[int]:
    """Gives the numbers of the entries that have both words."""
    in_english, in_german = index()
    number = inflection.digits(english).replace(":", ".")
    same = {0} if english[:1].isdigit() and german in (number, english) else set()
    return same | (in_english.get(english, set()) & in_german.get(german, set()))


@cache
def index() -> tuple[dict[str, set[int]], dict[str, set[int]]]:
    """Gives the numbers of the entries with each English and each German word."""
    found: tuple[dict[str, set[int]], dict[str, set[int]]] = ({}, {})
    for number, forms in enumerate((*open_entries(), *closed_entries())):
        for of_word, words in zip(found, forms, strict=True):
            for word in words:
                of_word.setdefault(word, set()).add(number)
    return found


@cache
def num_open() -> int:
    """Gives the number of entries all of whose words belong together; they come first."""
    return len(tuple(open_entries()))


@cache
def verb_forms() -> set[str]:
    """Gives the English forms of all verbs."""
    return {form for verb in verbs().values() for form in english_forms(verb)}


def words_of(*texts: str) -> set[str]:
    """Gives the words of some texts, in lower case."""
    return {plain(word) for text in texts for word in text.split()}


def open_entries() -> Iterator[Forms]:
    """Gives nouns, adjectives, verbs, names, adverbials and numbers."""
    for noun in (*nouns().values(), *compounds()):
        yield words_of(noun.english, noun.english_plural), words_of(*german_noun_forms(noun))
    for adjective in adjectives().values():
        yield (
            words_of(adjective.english, adjective.english_comparative),
            words_of(adjective.german, adjective.german_comparative)
            | {adjective.german_stem + ending for ending in ENDINGS},
        )
    for verb in verbs().values():
        yield english_forms(verb), german_verb_forms(verb)
    for pairs in (*names().values(), *adverbials().values()):
        for english, german in (words for pair in pairs for words in parts(pair)):
            inflected = (word + ending for word in german.split() for ending in ("", "s", "n"))
            yield words_of(english, f"{english}s"), words_of(*inflected)
    for value in range(2, 100):
        number = phrases.number(value)
        yield words_of(number.english), words_of(number.german)
    for group in GROUPS:
        english, german_words = group.split(" = ")
        yield words_of(english), words_of(german_words)


def parts(pair: Pair) -> Iterator[Pair]:
    """Gives the words of a fixed phrase: last, letzte; week, Woche. One word belongs to all."""
    english, german = pair.english.split(), pair.german.split()
    if len(english) == 1 or len(german) == 1:
        yield pair
    elif len(english) == len(german):
        yield from map(Pair, english, german)
    else:  # on Sunday evening: the first and the last words
        yield from (Pair(english[0], german[0]), Pair(english[-1], german[-1]))


def german_noun_forms(noun: Noun) -> Iterator[str]:
    """Gives a noun in every case and number."""
    for case in Case:
        yield inflection.noun_form(noun, case, is_plural=False)
        if not noun.is_mass:
            yield inflection.noun_form(noun, case, is_plural=True)


def english_forms(verb: Verb) -> set[str]:
    """Gives the forms of an English verb and its particle."""
    forms = [verb.base, verb.past, verb.english_participle, verb.particle]
    if verb.base == "be":
        forms += ["am", "is", "are", "was", "were"]
    return words_of(*forms, third_person(verb.base), progressive_participle(verb.base))


def german_verb_forms(verb: Verb) -> set[str]:
    """Gives the forms of a German verb, its separable prefix and its reflexive."""
    present = [inflection.present(verb, agreement) for agreement in Agreement]
    past = [form for forms in SPECIAL_VERBS.get(verb.german, ()) for form in forms]
    simple = [*present, *past, verb.german, f"zu{verb.german}"]
    reflexive = "sich mich dich uns" if verb.is_reflexive else ""
    prefixed = [verb.prefix + form for form in simple]
    return words_of(verb.participle, verb.prefix, reflexive, *simple, *prefixed)


def closed_entries() -> Iterator[Forms]:
    """Gives determiners, pronouns, modals, prepositions and other small words."""
    for determiner in DETERMINERS.values():
        forms = product(GENDERS, Case)
        yield (
            words_of(determiner.english),
            words_of(*(inflection.determiner_form(determiner, *form) for form in forms)),
        )
    for person in (*phrases.PRONOUNS.values(), *IT_BY_GENDER.values()):
        yield words_of(person.english, person.english_object), words_of(*person.german)
    relative = words_of(*(form for forms in RELATIVE_PRONOUNS.values() for form in forms))
    yield {"who", "whom", "that", "which", "whose"}, relative
    for modal in MODALS:
        forms = SPECIAL_VERBS[modal.german]
        rest = modal.rest.removesuffix("to")
        english = words_of(modal.base, modal.past, third_person(modal.base), rest)
        yield english, words_of(*(form for tense in forms for form in tense))
    for place in places().values():
        yield words_of(place.english), contracted(place.rest)
        yield {"to"}, contracted(place.direction)
    for verb in verbs().values():
        yield words_of(verb.preposition), contracted(verb.german_preposition)
    for small in SMALL_WORDS:
        english, german = small.split(" = ")
        yield words_of(english), set().union(*(contracted(it) for it in german.split()))
    for short in CONTRACTIONS.values():
        yield {"the"}, {short}


def contracted(preposition: str) -> set[str]:
    """Gives a preposition and the words that it becomes with an article: in, im, ins."""
    forms = [short for full, short in CONTRACTIONS.items() if full.split()[0] == preposition]
    return words_of(preposition, *forms)
