"""Writes a corpus of documents in which the gender of a pronoun depends on the sentence before.

    python examples/quickstart/documents.py --output-dir data/documents

"Anna bought the lamp. It was dear." is "Anna hat die Lampe gekauft. Sie war teuer.": the second
sentence alone does not say whether "it" is "er" or "sie", and both are equally frequent. The
sentences come from the grammar beside this file. Blank lines divide the documents. The same seed
gives the same bytes on every machine, and no first sentence of a document occurs in another one.
"""

import argparse
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import phrases
from clauses import Clause, Tense
from corpus import write_sides
from dice import Dice
from lexicon import Noun, Pair, nouns_by_key, verbs_by_frame
from simple_sentences import INANIMATE, finished, main_clause, predication
from writer import OBJECT_FRAMES, Writer

GENDERS = ("m", "f")
BLANK = Pair("", "")
NUM_HELD_OUT_DOCUMENTS = 250
DEFAULT_SEED = 1
DEFAULT_TRAIN_DOCUMENTS = 8000


def thing(writer: Writer, key: str) -> Noun:
    """Gives a noun of a category or head, of either gender equally often."""
    gender = writer.dice.choose(GENDERS)
    return writer.dice.choose(
        [noun for noun in nouns_by_key(is_compound=False)[key] if noun.gender == gender]
    )


def has_both_genders(key: str) -> bool:
    """Gives whether a category or head has nouns of both genders, none of them a mass noun."""
    nouns = nouns_by_key(is_compound=False).get(key, [])
    countable = not any(noun.is_mass for noun in nouns)
    return countable and {noun.gender for noun in nouns}.issuperset(GENDERS)


def story(writer: Writer) -> list[Pair]:
    """Gives two sentences: Anna bought the lamp. It was too expensive."""
    keys = [key for key in INANIMATE if has_both_genders(key)]
    verbs = [
        verb
        for frame in OBJECT_FRAMES
        for verb in verbs_by_frame()[frame]
        if verb.has_visible_past and set(keys).intersection(verb.objects)
    ]
    verb = writer.dice.choose(verbs)
    noun = thing(writer, writer.dice.choose([key for key in verb.objects if key in keys]))
    phrase = phrases.noun_phrase("the", noun, writer.adjective(noun, 0.3))
    first = Clause(subject=writer.subject(), verb=verb, tense=Tense.PAST, object=phrase)
    pronoun = phrases.pronoun(phrase.person)
    second = predication(writer, pronoun, noun, writer.story_tense())
    return [finished(main_clause(clause)) for clause in (first, second)]


def documents(seed: int) -> Iterator[list[Pair]]:
    """Gives documents of one to three stories without end, none of which has been given before."""
    writer = Writer(Dice(seed))
    seen: set[str] = set()
    while True:
        stories = [story(writer) for _ in range(writer.dice.between(1, 3))]
        if seen.isdisjoint(first.english for first, _ in stories):
            seen.update(first.english for first, _ in stories)
            yield [pair for pairs in stories for pair in pairs]


def write_documents(path: Path, written: Sequence[Sequence[Pair]]) -> None:
    """Writes PATH.en and PATH.de, with a blank line between two documents."""
    write_sides(path, [pair for pairs in written for pair in (*pairs, BLANK)][:-1])


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description="Write English-German documents whose pronouns need the sentence before.",
        epilog="example: python examples/quickstart/documents.py --output-dir data/documents",
    )
    parser.add_argument("--output-dir", type=Path, required=True, help="directory for six files")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="default: %(default)s")
    parser.add_argument(
        "--train-documents", type=int, default=DEFAULT_TRAIN_DOCUMENTS, help="default: %(default)s"
    )
    options = parser.parse_args(arguments)
    drawn = documents(options.seed)
    options.output_dir.mkdir(parents=True, exist_ok=True)
    for split in ("test", "valid"):
        write_documents(options.output_dir / split, list(islice(drawn, NUM_HELD_OUT_DOCUMENTS)))
    write_documents(options.output_dir / "train", list(islice(drawn, options.train_documents)))


if __name__ == "__main__":
    main()
