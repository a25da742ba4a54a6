"""The BLEU of *Attention Is All You Need* for English-German.

The protocol is older than the paper (GNMT and ConvS2S report on it too): Moses tokenisation, then
compounds split at their hyphens, then multi-bleu.perl. Never compare it with sacreBLEU: the same
translations have 29.3 on this scale and 28.6 on the other (Ott et al. 2018).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from sacrebleu.metrics.bleu import BLEU

from nmt.evaluation.metrics import Metric, Score, bleu_details, metrics


@metrics.register("paper_bleu")
@dataclass(frozen=True, kw_only=True)
class PaperBleu(Metric):
    """BLEU of Moses-tokenised, compound-split text; both sides are given as plain text."""

    target_lang: str = "de"
    """Language of the tokeniser's rules for apostrophes and abbreviations."""
    split_compounds: bool = True
    """Whether ``rich-text`` counts as ``rich ##AT##-##AT## text``."""
    normalize_reference: bool = False
    """Whether typographic punctuation becomes ASCII in the reference too; the protocol does that
    to the hypothesis alone."""

    def compute(self, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
        """BLEU in per cent, case kept, not smoothed."""
        from sacremoses import MosesPunctNormalizer, MosesTokenizer  # third of a second to import

        moses = MosesTokenizer(self.target_lang)
        normalize: Callable[[str], str] = MosesPunctNormalizer().replace_unicode_punct

        def tokenize(line: str) -> str:
            # Escaping (&quot;) would rename tokens on both sides alike, and BLEU would not see it.
            text: str = moses.tokenize(line, escape=False, return_str=True)
            return split_compounds(text) if self.split_compounds else text

        if self.normalize_reference:
            references = [normalize(line) for line in references]
        bleu = BLEU(tokenize="none", smooth_method="none", force=True)
        result = bleu.corpus_score(
            [tokenize(normalize(line)) for line in hypotheses],
            [[tokenize(line) for line in references]],
        )
        return Score(
            metric=self.name,
            value=result.score,
            details=bleu_details(result),
            signature=self._signature(),
            higher_is_better=self.higher_is_better,
        )

    def _signature(self) -> str:
        steps = {
            "nrefs": 1,
            "case": "mixed",
            "eff": "no",
            "unicode-punctuation": "both" if self.normalize_reference else "hypothesis",
            "tok": f"moses-{self.target_lang}",
            "compounds": "split" if self.split_compounds else "whole",
            "smooth": "none",
            "sacremoses": version("sacremoses"),
            "version": version("sacrebleu"),
        }
        return "|".join(f"{step}:{value}" for step, value in steps.items())


def split_compounds(line: str) -> str:
    """The line with every hyphen inside a word set apart, as ``##AT##-##AT##``.

    Like the protocol's own pattern, it does not look again at the letter after a hyphen: ``a-b-c``
    becomes ``a ##AT##-##AT## b-c``, while ``ab-cd-ef`` is split twice.
    """
    return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", line)
