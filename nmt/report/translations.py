"""The translations of the validation set that a run keeps: statistics, and the worst ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nmt.data.dataset import Dataset
from nmt.evaluation.metrics import metrics
from nmt.languages import count_words, has_spaces
from nmt.runs import Run
from nmt.runs.translations import kept_translations, read_translations

WORST = 20
"""Number of sentences with the lowest chrF that are shown."""

NGRAM = 4
"""Words, or characters of a language without spaces, of a repetition."""


@dataclass(frozen=True)
class Translations:
    """The validation set of a run, and its translations after some updates."""

    target_lang: str
    sources: Sequence[str]
    references: Sequence[str]
    by_update: Mapping[int, Sequence[str]]

    @classmethod
    def of(cls, run: Run, dataset: Dataset) -> Translations | None:
        """Read the translations that a run keeps; None if there are none.

        Raises:
            NmtError: a file is damaged.
        """
        updates = kept_translations(run.path)
        if not updates:
            return None
        split = dataset.split("valid")
        texts = {update: read_translations(run.path, update, len(split)) for update in updates}
        sources, references = split.source_text(), split.reference_text()
        return cls(run.target_lang, sources, references, texts)

    def facts(self) -> dict[str, Any]:
        """Return plain values: statistics of each validation, and the worst last translations."""
        last = self.by_update[max(self.by_update)]
        chrf = metrics["chrf"].for_sentences()
        scores = [
            chrf.score([hypothesis], [reference]).value
            for hypothesis, reference in zip(last, self.references, strict=True)
        ]
        order = sorted(range(len(scores)), key=scores.__getitem__)
        return {
            "updates": {
                update: self._statistics(texts) for update, texts in self.by_update.items()
            },
            "worst": [
                {
                    "line": at + 1,
                    "chrf": scores[at],
                    "source": self.sources[at],
                    "reference": self.references[at],
                    "translations": {up: texts[at] for up, texts in self.by_update.items()},
                }
                for at in order[:WORST]
            ],
        }

    def _statistics(self, texts: Sequence[str]) -> dict[str, Any]:
        words = sum(map(count_words, self.references))
        unspaced = not has_spaces(self.target_lang)
        pairs = zip(texts, self.references, strict=True)
        return {
            "chrf": metrics["chrf"].score(texts, self.references).value,
            "length_ratio": sum(map(count_words, texts)) / max(1, words),
            "repeating": sum(repeats(text, other, unspaced) for text, other in pairs),
            "empty": sum(not text.strip() for text in texts),
        }


def repeats(text: str, reference: str, unspaced: bool = False) -> bool:
    """Return whether an n-gram occurs twice in a translation, and not twice in the reference.

    Args:
        text: the translation.
        reference: its reference.
        unspaced: whether to count n-grams of characters in place of words.
    """
    units = [[*line] if unspaced else line.split() for line in (text, reference)]
    counts, allowed = (
        Counter(tuple(line[at : at + NGRAM]) for at in range(len(line) - NGRAM + 1))
        for line in units
    )
    return any(count > max(1, allowed[ngram]) for ngram, count in counts.items())
