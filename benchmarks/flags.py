"""The share of broken translations, and of sound translations, that get a flag.

    python benchmarks/flags.py --model RUN --source test.en --reference test.de

Sound are the references of the first --lines lines. References of at least four words are broken in
two ways; the model also translates only the first half of each line. Flags are counted without
attention, and with the attention of --alignments. Then come the model's translations of whole
lines, before and after --retry.
"""

from __future__ import annotations

import argparse
import random
from itertools import islice
from pathlib import Path
from statistics import fmean

from nmt.data.vocabulary import EOS
from nmt.evaluation.metrics import metrics
from nmt.inference import LineTranslator
from nmt.inference.engines import load_translator
from nmt.inference.flags import flags_of, is_untranslated
from nmt.search import Hypothesis


def repeated(text: str, draw: random.Random) -> str:
    """Writes a phrase of two to four words four times."""
    words = text.split()
    size = draw.randint(2, 4)
    start = draw.randint(0, len(words) - size)
    stop = start + size
    return " ".join([*words[:stop], *3 * words[start:stop], *words[stop:]])


def first_half(text: str) -> str:
    """Keeps half of the words."""
    words = text.split()
    return " ".join(words[: len(words) // 2])


def flagged(translator: LineTranslator, sources: list[str], texts: list[str]) -> list[list[bool]]:
    """Whether each translation is flagged: without attention, and with it."""
    subwords = translator.subwords
    rows = [[*ids, EOS] for ids in subwords.encode_source(sources)]
    targets = subwords.encode_target(texts)
    attention = translator.text_attention(rows, [[*ids, EOS] for ids in targets])
    plain = [
        bool(flags_of(row, Hypothesis(tokens, 0.0, 0.0, finished=True), subwords.extremes))
        for row, tokens in zip(rows, targets, strict=True)
    ]
    pairs = zip(plain, attention, strict=True)
    return [plain, [found or is_untranslated(weights) for found, weights in pairs]]


def main() -> None:
    """Prints two tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--lines", type=int, default=1000)
    arguments = parser.parse_args()
    translator, draw = load_translator(arguments.model, threads=1), random.Random(1)
    sources, references = (
        [line.rstrip("\n") for line in islice(path.open(encoding="utf-8"), arguments.lines)]
        for path in (arguments.source, arguments.reference)
    )
    pairs = [
        pair
        for pair in zip(sources, references, strict=True)
        if min(len(text.split()) for text in pair) >= 4
    ]
    long = [source for source, _ in pairs]
    broken = {
        "a phrase four times": [repeated(text, draw) for _, text in pairs],
        "second half dropped": [first_half(text) for _, text in pairs],
        "first half translated": list(translator.translate(map(first_half, long))),
    }
    false = [sum(found) for found in flagged(translator, sources, references)]
    print(
        "| translations | lines | flagged | and with attention | precision |\n|---|---|---|---|---|"
    )
    shares = " | ".join(f"{count / len(sources):.1%}" for count in false)
    print(f"| references | {len(sources)} | {shares} | |")
    for name, texts in broken.items():
        hits = [sum(found) for found in flagged(translator, long, texts)]
        shares = " | ".join(f"{count / len(long):.1%}" for count in hits)
        precision = [f"{hit / (hit + wrong):.1%}" for hit, wrong in zip(hits, false, strict=True)]
        print(f"| {name} | {len(long)} | {shares} | {', '.join(precision)} |")
    chrf = metrics["chrf"].for_sentences()
    print("\n| search | flagged | mean chrF | of flagged lines |\n|---|---|---|---|")
    for retry in (False, True):
        best = [first for first, *_ in translator.translations(sources, retry=retry)]
        scores = [
            chrf.score([one.text], [reference]).value
            for one, reference in zip(best, references, strict=True)
        ]
        of_flagged = [score for one, score in zip(best, scores, strict=True) if one.flags]
        means = f"{fmean(scores):.1f} | {fmean(of_flagged or [0.0]):.1f}"
        print(f"| {'--retry' if retry else 'usual'} | {len(of_flagged)} | {means} |")


if __name__ == "__main__":
    main()
