"""Write documents of a small language in which a pronoun depends on the sentence before.

    python tests/pronouns.py --output-dir corpus

"Anna sold the lamp. It was old." is "Anna hat die Lampe verkauft. Sie war alt.": the second
sentence alone does not say whether "it" is "er" or "sie", and both are equally frequent. Blank
lines divide the documents. The same seed gives the same bytes.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

NOUNS = {
    "er": "table=Tisch coat=Mantel key=Schlüssel letter=Brief hat=Hut bucket=Eimer",
    "sie": "lamp=Lampe bag=Tasche cup=Tasse clock=Uhr watch=Armbanduhr bottle=Flasche",
}
ARTICLES = {"er": "den", "sie": "die"}
NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Felix")
VERBS = "sold=verkauft bought=gekauft found=gefunden lost=verloren took=genommen"
ADJECTIVES = "old=alt new=neu heavy=schwer light=leicht ugly=hässlich pretty=hübsch"


def document(draw: random.Random) -> list[tuple[str, str]]:
    """Pairs of sentences: one to three times a sentence about a thing, and one about "it"."""
    pairs = []
    for _ in range(draw.randint(1, 3)):
        pronoun = draw.choice([*NOUNS])
        (noun, nomen), (verb, participle), (adjective, adjektiv) = (
            draw.choice(words.split()).split("=") for words in (NOUNS[pronoun], VERBS, ADJECTIVES)
        )
        name = draw.choice(NAMES)
        pairs += [
            (f"{name} {verb} the {noun}.", f"{name} hat {ARTICLES[pronoun]} {nomen} {participle}."),
            (f"It was {adjective}.", f"{pronoun.capitalize()} war {adjektiv}."),
        ]
    return pairs


def write(prefix: Path, documents: int, seed: int) -> None:
    """Write PREFIX.en and PREFIX.de, with a blank line between two documents."""
    draw = random.Random(seed)
    text = [document(draw) for _ in range(documents)]
    for side, language in enumerate(("en", "de")):
        written = ("".join(f"{pair[side]}\n" for pair in pairs) for pairs in text)
        Path(f"{prefix}.{language}").write_text("\n".join(written), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Write documents whose pronouns need context.")
    parser.add_argument("--output-dir", type=Path, required=True, help="directory for six files")
    output_dir = parser.parse_args(arguments).output_dir
    output_dir.mkdir(parents=True, exist_ok=True)
    for seed, (split, documents) in enumerate({"train": 2000, "valid": 100, "test": 100}.items()):
        write(output_dir / split, documents, seed)


if __name__ == "__main__":
    main()
