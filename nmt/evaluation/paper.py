"""The BLEU of *Attention Is All You Need* for English-German.

The protocol is older than the paper (GNMT and ConvS2S report on it too): Moses tokenisation, then
compounds split at their hyphens, then multi-bleu.perl. Never compare this BLEU with sacreBLEU's:
the same translations have 29.3 by this protocol and 28.6 by sacreBLEU (Ott et al. 2018).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from sacrebleu.metrics.bleu import BLEU, BLEUScore

from nmt.errors import NmtError
from nmt.evaluation.metrics import NOT_FOR_SENTENCES, Counts, SacreMetric, bleu_details, metrics


@metrics.register("paper_bleu")
@dataclass(frozen=True, kw_only=True)
class PaperBleu(SacreMetric):
    """BLEU of Moses-tokenised, compound-split text; both sides are given as plain text."""

    target_lang: str = "de"
    """Language of the tokeniser's rules for apostrophes and abbreviations, such as fr. The data do
    not change it, because the protocol is that of English-German."""
    split_compounds: bool = True
    """Whether ``rich-text`` counts as ``rich ##AT##-##AT## text``."""
    normalize_reference: bool = False
    """Whether typographic punctuation becomes ASCII in the reference, too; the protocol only
    normalises the hypothesis."""

    def scorer(self) -> BLEU:
        """Return the BLEU of multi-bleu.perl."""
        return BLEU(tokenize="none", smooth_method="none", force=True)

    def details(self, result: BLEUScore) -> str:
        """Return precisions, brevity penalty and lengths."""
        return bleu_details(result)

    def for_sentences(self) -> PaperBleu:
        """Raise an NmtError: the protocol does not smooth, so it cannot score sentences."""
        raise NmtError(NOT_FOR_SENTENCES.format(self.name))

    def counts(
        self, hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str]
    ) -> Counts:
        """Return the counts of multi-bleu.perl, with case, after the protocol's tokenisation."""
        from sacremoses import MosesPunctNormalizer, MosesTokenizer  # takes a third of a second

        moses = MosesTokenizer(self.target_lang)
        normalize: Callable[[str], str] = MosesPunctNormalizer().replace_unicode_punct

        def tokenize(line: str) -> str:
            # Escaping (&quot;) renames tokens on both sides alike, so it would not change BLEU.
            text: str = moses.tokenize(line, escape=False, return_str=True)
            return split_compounds(text) if self.split_compounds else text

        if self.normalize_reference:
            references = [normalize(line) for line in references]
        return super().counts(
            [tokenize(normalize(line)) for line in hypotheses],
            [tokenize(line) for line in references],
            sources,
        )

    def signature(self) -> str:
        """Return every step of the protocol, in the form of sacreBLEU's signatures."""
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
    """Return the line with hyphens inside words split off, as ``##AT##-##AT##``.

    Like the pattern of the protocol, a match consumes the letter after a hyphen: ``a-b-c`` becomes
    ``a ##AT##-##AT## b-c``, while ``ab-cd-ef`` is split twice.
    """
    return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", line)
