"""German inflection: nouns, articles and adjectives by gender and case, verbs, numbers."""

from typing import NamedTuple

from clauses import Agreement, Forms
from lexicon import Adjective, Case, Noun, Verb

CASES = tuple(Case)

DEFINITE_ARTICLES = {
    "m": ("der", "den", "dem", "des"),
    "f": ("die", "die", "der", "der"),
    "n": ("das", "das", "dem", "des"),
    "p": ("die", "die", "den", "der"),
}
RELATIVE_PRONOUNS = {
    "m": ("der", "den", "dem", "dessen"),
    "f": ("die", "die", "der", "deren"),
    "n": ("das", "das", "dem", "dessen"),
    "p": ("die", "die", "denen", "deren"),
}
DER_WORD_ENDINGS = {
    "m": ("er", "en", "em", "es"),
    "f": ("e", "e", "er", "er"),
    "n": ("es", "es", "em", "es"),
    "p": ("e", "e", "en", "er"),
}
EIN_WORD_ENDINGS = {**DER_WORD_ENDINGS, "m": ("", "en", "em", "es"), "n": ("", "", "em", "es")}

WEAK_ENDINGS = {
    "m": ("e", "en", "en", "en"),
    "f": ("e", "e", "en", "en"),
    "n": ("e", "e", "en", "en"),
    "p": ("en", "en", "en", "en"),
}
MIXED_ENDINGS = {**WEAK_ENDINGS, "m": ("er", "en", "en", "en"), "n": ("es", "es", "en", "en")}
STRONG_ENDINGS = {
    **DER_WORD_ENDINGS,
    "m": ("er", "en", "em", "en"),
    "n": ("es", "es", "em", "en"),
}


class Determiner(NamedTuple):
    """What opens a noun phrase, and which adjective endings it calls for."""

    english: str
    german: str
    """The form that endings are added to; of the definite article unused."""
    kind: str
    """"definite", "der-word", "ein-word", "strong" (endings of its own, adjective strong too) or
    "bare" (no endings, adjective strong)."""


DETERMINERS = {
    determiner.english: determiner
    for determiner in (
        Determiner("the", "", "definite"),
        Determiner("this", "dies", "der-word"),
        Determiner("these", "dies", "der-word"),
        Determiner("every", "jed", "der-word"),
        Determiner("which", "welch", "der-word"),
        Determiner("all", "all", "der-word"),
        Determiner("a", "ein", "ein-word"),
        Determiner("no", "kein", "ein-word"),
        Determiner("my", "mein", "ein-word"),
        Determiner("your", "dein", "ein-word"),
        Determiner("his", "sein", "ein-word"),
        Determiner("her", "ihr", "ein-word"),
        Determiner("our", "unser", "ein-word"),
        Determiner("their", "ihr", "ein-word"),
        Determiner("many", "viel", "strong"),
        Determiner("some", "einig", "strong"),
        Determiner("", "", "bare"),
    )
}
ADJECTIVE_ENDINGS = {
    "definite": WEAK_ENDINGS,
    "der-word": WEAK_ENDINGS,
    "ein-word": MIXED_ENDINGS,
    "strong": STRONG_ENDINGS,
    "bare": STRONG_ENDINGS,
}


def determiner_form(determiner: Determiner, gender: str, case: Case) -> str:
    """Gives the form of a determiner: "des", "diesem", "keine"; empty for none."""
    if determiner.kind == "definite":
        return DEFINITE_ARTICLES[gender][case]
    if determiner.kind == "bare":
        return determiner.german
    table = EIN_WORD_ENDINGS if determiner.kind == "ein-word" else DER_WORD_ENDINGS
    return determiner.german + table[gender][case]


def adjective_form(adjective: Adjective, kind: str, gender: str, case: Case) -> str:
    """Gives an adjective before a noun, after a determiner of this kind."""
    return adjective.german_stem + ADJECTIVE_ENDINGS[kind][gender][case]


def noun_form(noun: Noun, case: Case, *, is_plural: bool) -> str:
    """Gives a noun in a case: des Hauses, den Häusern, den Studenten."""
    if is_plural:
        needs_n = case is Case.DATIVE and not noun.german_plural.endswith(("n", "s"))
        return noun.german_plural + ("n" if needs_n else "")
    if case is Case.GENITIVE:
        return noun.genitive
    return noun.german_plural if noun.is_weak and case is not Case.NOMINATIVE else noun.german


SPECIAL_VERBS: dict[str, tuple[Forms, Forms]] = {
    "sein": (("bin", "bist", "ist", "sind"), ("war", "warst", "war", "waren")),
    "haben": (("habe", "hast", "hat", "haben"), ("hatte", "hattest", "hatte", "hatten")),
    "werden": (("werde", "wirst", "wird", "werden"), ("wurde", "wurdest", "wurde", "wurden")),
    "wissen": (("weiß", "weißt", "weiß", "wissen"), ("wusste", "wusstest", "wusste", "wussten")),
    "können": (("kann", "kannst", "kann", "können"), ("konnte", "konntest", "konnte", "konnten")),
    "müssen": (("muss", "musst", "muss", "müssen"), ("musste", "musstest", "musste", "mussten")),
    "wollen": (("will", "willst", "will", "wollen"), ("wollte", "wolltest", "wollte", "wollten")),
    "dürfen": (("darf", "darfst", "darf", "dürfen"), ("durfte", "durftest", "durfte", "durften")),
    "sollten": (("sollte", "solltest", "sollte", "sollten"),) * 2,
    "möchten": (("möchte", "möchtest", "möchte", "möchten"),) * 2,
}
"""Present and preterite of the verbs that are not conjugated by rule."""


def present(verb: Verb, agreement: Agreement) -> str:
    """Gives the present tense, without a separable prefix: ich warte, du liest, sie arbeitet."""
    if verb.german in SPECIAL_VERBS:
        return SPECIAL_VERBS[verb.german][0][agreement]
    if agreement is Agreement.PLURAL:
        return verb.german
    stem = verb.german.removesuffix("n").removesuffix("e")
    if agreement is Agreement.FIRST:
        return stem + "e"
    needs_e = not verb.changed_stem and stem.endswith(("d", "t", "chn", "ffn"))
    stem = verb.changed_stem or stem
    swallows_s = agreement is Agreement.SECOND and stem.endswith(("s", "ß", "z", "x"))
    ending = "st" if agreement is Agreement.SECOND and not swallows_s else "t"
    return stem + ("e" if needs_e else "") + ending


def preterite(infinitive: str, agreement: Agreement) -> str:
    """Gives the simple past of an auxiliary or modal: sie war, wir mussten."""
    return SPECIAL_VERBS[infinitive][1][agreement]


def digits(value: str) -> str:
    """Turns English digits into German: 1,250 into 1.250, and 12.50 into 12,50."""
    return value.translate(str.maketrans(",.", ".,"))
