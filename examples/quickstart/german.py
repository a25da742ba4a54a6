"""German: the order of words in a clause.

The finite verb comes second in a statement, first in a question and last in a subordinate clause;
infinitives, participles and separable prefixes close the clause. Between them stand pronouns,
time, objects, "nicht", manner and place.
"""

import re
from typing import NamedTuple

from clauses import Clause, NounPhrase, Tense, join
from inflection import SPECIAL_VERBS, present, preterite
from lexicon import Case, Verb

CONTRACTIONS = {
    "an dem": "am", "an das": "ans", "bei dem": "beim", "in dem": "im", "in das": "ins",
    "von dem": "vom", "zu dem": "zum", "zu der": "zur",
}  # fmt: skip


class VerbGroup(NamedTuple):
    """The verb forms of a clause."""

    finite: str
    closing: str
    """What closes the clause: a participle, an infinitive or a separable prefix."""
    is_prefix: bool = False
    """Whether `closing` is a prefix, which joins the finite verb where that comes last too."""


def verb_group(clause: Clause) -> VerbGroup:
    """Gives the verb forms for the tense and modal of a clause."""
    verb, tense, agreement = clause.verb, clause.tense, clause.subject.agreement
    infinitive = verb.prefix + verb.german
    is_past = tense in (Tense.PAST, Tense.PAST_PROGRESSIVE)
    if clause.modal:
        forms = SPECIAL_VERBS[clause.modal.german][1 if is_past else 0]
        return VerbGroup(forms[agreement], infinitive)
    if tense is Tense.FUTURE:
        return VerbGroup(SPECIAL_VERBS["werden"][0][agreement], infinitive)
    perfect_auxiliary = "sein" if verb.is_sein_verb else "haben"
    if tense is Tense.PLUPERFECT:
        return VerbGroup(preterite(perfect_auxiliary, agreement), verb.participle)
    if is_past and verb.german in SPECIAL_VERBS:
        return VerbGroup(preterite(verb.german, agreement), "")
    if is_past:
        return VerbGroup(SPECIAL_VERBS[perfect_auxiliary][0][agreement], verb.participle)
    return VerbGroup(present(verb, agreement), verb.prefix, is_prefix=True)


def prepositional(preposition: str, words: str) -> str:
    """Puts a preposition before a noun phrase and contracts it with the article: in dem, im."""
    phrase = join(preposition, words)
    for full, short in CONTRACTIONS.items():
        if phrase.startswith(full + " "):
            return short + phrase.removeprefix(full)
    return phrase


def governed(verb: Verb, phrase: NounPhrase, *, is_negated: bool = False) -> str:
    """Gives an object in the case, and with the preposition, that the verb asks for."""
    forms = phrase.german_if_negated if is_negated and phrase.german_if_negated else phrase.german
    if verb.german_preposition:
        return prepositional(verb.german_preposition, forms[verb.case])
    return forms[verb.case]


def middle(clause: Clause) -> str:
    """Gives what stands between subject and closing verb."""
    verb, obj, indirect = clause.verb, clause.object, clause.indirect
    object_words = governed(verb, obj, is_negated=clause.is_negated) if obj else ""
    receiver = indirect.german[Case.DATIVE] if indirect else ""
    is_bare_object = bool(obj) and not verb.german_preposition
    pronoun = object_words if obj and obj.is_pronoun and is_bare_object else ""
    plain_object = object_words if is_bare_object and not pronoun else ""
    receiver_pronoun = receiver if indirect and indirect.is_pronoun else ""
    says_kein = bool(obj and obj.german_if_negated)
    return join(
        pronoun,
        receiver_pronoun,
        clause.subject.person.reflexive if verb.is_reflexive else "",
        clause.frequency.german if clause.frequency else "",
        clause.time.german if clause.time and clause.time is not clause.front else "",
        "gerade" if clause.tense is Tense.PROGRESSIVE else "",
        "" if receiver_pronoun else receiver,
        plain_object,
        "nicht" if clause.is_negated and not says_kein else "",
        clause.manner.german if clause.manner else "",
        clause.place.german if clause.place and clause.place is not clause.front else "",
        "" if is_bare_object else object_words,
        clause.predicate.german if clause.predicate else "",
    )


def subject(clause: Clause) -> str:
    """Gives the subject with its relative clause between commas."""
    phrase = clause.subject
    words = phrase.german[Case.NOMINATIVE]
    return f"{words}, {phrase.relative.german}," if phrase.relative else words


def after_verb(clause: Clause) -> str:
    """Gives the relative clause of the object, which follows the closing verb."""
    obj = clause.object
    return f", {obj.relative.german}" if obj and obj.relative else ""


def inverted(clause: Clause) -> str:
    """Gives the clause with its finite verb first: a question, or what follows a fronted part."""
    verbs = verb_group(clause)
    words = join(verbs.finite, subject(clause), middle(clause), verbs.closing)
    return words + after_verb(clause)


def statement(clause: Clause) -> str:
    """Gives the clause with its finite verb second."""
    if clause.front:
        return join(clause.front.german, inverted(clause))
    verbs = verb_group(clause)
    words = join(subject(clause), verbs.finite, middle(clause), verbs.closing)
    return words + after_verb(clause)


def predicate_last(clause: Clause) -> str:
    """Gives everything but the subject, with the finite verb last."""
    verbs = verb_group(clause)
    closing = verbs.closing + ("" if verbs.is_prefix else " ") + verbs.finite
    return join(middle(clause), closing.strip()) + after_verb(clause)


def subordinate(clause: Clause) -> str:
    """Gives the clause with its finite verb last, without its conjunction."""
    return join(subject(clause), predicate_last(clause))


def infinitive(clause: Clause) -> str:
    """Gives the clause as infinitive with "zu", without its subject: die Tür aufzumachen."""
    verb = clause.verb
    closing = f"{verb.prefix}zu{verb.german}" if verb.prefix else f"zu {verb.german}"
    return join(middle(clause), closing) + after_verb(clause)


def sentence(words: str, mark: str = ".") -> str:
    """Finishes a sentence: no doubled comma, none before the closing mark, a capital."""
    text = re.sub(r"(\s*,)+", ",", words).removesuffix(",")
    return text[0].upper() + text[1:] + mark
