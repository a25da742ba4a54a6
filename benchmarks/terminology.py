"""Terms kept, BLEU and CPU time with a glossary and without it; German as the target language.

    python benchmarks/terminology.py --model RUN --train corpus/train --valid corpus/valid

The glossary has the nouns of the training pairs, German words with a capital within a sentence,
each with the source word of the highest Dice coefficient, if the two choose each other. A term
counts where the line has it and the reference has its translation.
"""

from __future__ import annotations

import argparse
import re
import resource
import tempfile
from collections import Counter
from itertools import product
from pathlib import Path

import sacrebleu

import nmt
from nmt.inference.terms import Terms

WORD, NOUN = re.compile(r"\w{2,}"), re.compile(r"(?<=\w )[A-ZÄÖÜ]\w+")


def read(prefix: str) -> tuple[list[str], list[str]]:
    """Return the lines of both sides."""
    source, target = (
        Path(f"{prefix}.{code}").read_text().split("\n")[:-1] for code in ("en", "de")
    )
    return source, target


def glossary(sources: list[str], targets: list[str], least: int, most: int) -> dict[str, str]:
    """Return nouns that occur in at least `least` and at most `most` pairs, by source word."""
    counts: tuple[Counter[str], Counter[str]] = Counter(), Counter()
    both: Counter[tuple[str, str]] = Counter()
    for source, target in zip(sources, targets, strict=True):
        sides = {*WORD.findall(source.lower())}, {*NOUN.findall(target)}
        for count, side in zip(counts, sides, strict=True):
            count.update(side)
        both.update(product(*sides))
    dice = {pair: 2 * n / sum(counts[at][pair[at]] for at in (0, 1)) for pair, n in both.items()}
    chosen: list[dict[str, tuple[str, str]]] = [{}, {}]
    for _, pair in sorted((value, pair) for pair, value in dice.items()):
        for at in (0, 1):
            chosen[at][pair[at]] = pair
    return {
        term: noun
        for term, noun in chosen[0].values()
        if chosen[1][noun] == (term, noun)
        and dice[term, noun] >= 0.5
        and least <= counts[1][noun] <= most
    }


def main() -> None:
    """Translates the validation set, and prints a row for each of the two translations."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--train", required=True, help="prefix of .en and .de")
    parser.add_argument("--valid", required=True)
    parser.add_argument("--least", type=int, default=3, help="training pairs with a noun")
    parser.add_argument("--most", type=int, default=1 << 30)
    parser.add_argument("--beam", type=int, default=4)
    arguments = parser.parse_args()
    terms = glossary(*read(arguments.train), arguments.least, arguments.most)
    sources, references = read(arguments.valid)
    required = [Terms(terms).required(line, "en") for line in sources]
    has_terms = [at for at, nouns in enumerate(required) if nouns]
    counted = [
        (at, noun)
        for at in has_terms
        for noun in required[at]
        if noun in WORD.findall(references[at])
    ]
    print(
        f"{len(terms)} terms; in {len(has_terms)} of {len(sources)} lines; counted: {len(counted)}"
    )
    print("| glossary | terms kept | as whole words | BLEU | BLEU of lines with terms | CPU s |")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "terms.tsv"
        path.write_text("".join(f"{term}\t{noun}\n" for term, noun in terms.items()))
        for name, terminology in (("without", None), ("with", path)):
            strategy = {"name": "beam", "beam": arguments.beam}
            execution = {"device": "cpu", "threads": 1, "terminology": terminology}
            translator = nmt.Translator(arguments.model, strategy=strategy, **execution)
            list(translator.translate(sources[:64]))  # loads both engines
            start = resource.getrusage(resource.RUSAGE_SELF).ru_utime
            texts = list(translator.translate(sources))
            seconds = resource.getrusage(resource.RUSAGE_SELF).ru_utime - start
            contained = sum(noun in texts[at] for at, noun in counted) / len(counted)
            whole = sum(noun in WORD.findall(texts[at]) for at, noun in counted) / len(counted)
            bleu = [
                sacrebleu.corpus_bleu(
                    [texts[at] for at in lines], [[references[at] for at in lines]]
                ).score
                for lines in (range(len(sources)), has_terms)
            ]
            print(
                f"| {name} | {contained:.1%} | {whole:.1%} | {bleu[0]:.2f} | {bleu[1]:.2f} | "
                f"{seconds:.1f} |"
            )


if __name__ == "__main__":
    main()
