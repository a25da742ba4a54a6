"""Forced decoding of lines: what a model says of given translations, with any engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from nmt.data.vocabulary import EOS
from nmt.inference.alignment import Unit, linked, numbered, piece_starts, word_starts
from nmt.inference.directed import Directed
from nmt.inference.translation import Translation
from nmt.io.lines import refuse_one_string
from nmt.languages import has_spaces


class ForcedDecoder(Directed, ABC):
    """Scores and aligns given translations; each engine implements the two passes of its model."""

    @property
    def usual_unit(self) -> Unit:
        """Default unit of alignments: pieces if a language has no spaces between words."""
        return "words" if all(map(has_spaces, self.languages)) else "pieces"

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[list[float]]:
        """Return the log-probability of each token of given translations, the EOS last.

        Args:
            sources: lines.
            targets: the translation of each line.

        Raises:
            TypeError: `sources` or `targets` is one string.
            ValueError: their numbers differ.
        """
        return self.log_probabilities(*self._encode_pairs(sources, targets))

    def align(self, sources: Sequence[str], targets: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Align the words of given translations with the words of the sources.

        Args:
            sources: lines.
            targets: the translation of each line.

        Returns:
            For each pair of lines, pairs of a source word and a target word, numbered from 0.

        Raises:
            TypeError: `sources` or `targets` is one string.
            ValueError: their numbers differ.
            NmtError: the model has no attention.
        """
        weights = self.text_attention(*self._encode_pairs(sources, targets))
        offsets = zip(
            self.subwords.source_offsets(list(sources)),
            self.subwords.target_line_offsets(list(targets)),
            strict=True,
        )
        return [
            numbered(
                linked(source, source_offsets, target, target_offsets, pair_weights),
                (word_starts(source), word_starts(target)),
            )
            for source, target, (source_offsets, target_offsets), pair_weights in zip(
                sources, targets, offsets, weights, strict=True
            )
        ]

    def with_scores(
        self, translations: Sequence[Translation], sources: Sequence[list[int]]
    ) -> list[Translation]:
        """Return translations with the log-probability of each token.

        Args:
            translations: what a search found.
            sources: the tokens of each source, with EOS.
        """
        outputs = [translation.hypothesis.output for translation in translations]
        return [
            replace(translation, token_log_probabilities=log_probs)
            for translation, log_probs in zip(
                translations, self.log_probabilities(sources, outputs), strict=True
            )
        ]

    def with_links(
        self, translations: Sequence[Translation], sources: Sequence[list[int]], unit: Unit
    ) -> list[Translation]:
        """Return translations whose units are aligned with those of the source.

        Args:
            translations: what a search found.
            sources: the tokens of each source, with EOS.
            unit: units to align.

        Raises:
            NmtError: the model has no attention.
        """
        outputs = [translation.hypothesis.output for translation in translations]
        weights = self.text_attention(sources, outputs)
        lines = self.subwords.source_offsets([translation.source for translation in translations])
        texts = self.subwords.target_offsets(
            [translation.hypothesis.tokens for translation in translations]
        )
        aligned = []
        for translation, line, text, pair_weights in zip(
            translations, lines, texts, weights, strict=True
        ):
            links = linked(translation.source, line, translation.text, text, pair_weights, unit)
            starts = (piece_starts(line), piece_starts(text)) if unit == "pieces" else None
            aligned.append(replace(translation, links=links, piece_starts=starts))
        return aligned

    def text_attention(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]]
    ) -> list[Tensor]:
        """Return the attention as :meth:`attention` does, without that of and to tags."""
        source, target = map(len, self.subwords.tags)
        return [weights[target:, source:] for weights in self.attention(sources, targets)]

    @abstractmethod
    def log_probabilities(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]]
    ) -> list[list[float]]:
        """Return the log-probability of each token of given targets; sources end with EOS."""

    @abstractmethod
    def attention(self, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> list[Tensor]:
        """Return the attention of each target token to each source token: [T, S] for each pair."""

    def _encode_pairs(
        self, sources: Sequence[str], targets: Sequence[str]
    ) -> tuple[list[list[int]], list[list[int]]]:
        """Return the tokens of sources and targets, each with EOS."""
        refuse_one_string(sources, "sources")
        refuse_one_string(targets, "targets")
        if len(sources) != len(targets):
            raise ValueError(f"{len(sources)} sources, but {len(targets)} targets")
        encoded = (
            self.subwords.encode_source(list(sources)),
            self.subwords.encode_target(list(targets)),
        )
        ended = [[[*tokens, EOS] for tokens in lines] for lines in encoded]
        return ended[0], ended[1]
