"""Learning of subwords with SentencePiece, from a uniform sample of the training text."""

from __future__ import annotations

import io
import itertools
import math
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import sentencepiece

from nmt.data.vocabulary import BOS, EOS, PAD, SPACE, SPECIAL_PIECES, UNK
from nmt.errors import NmtError
from nmt.subwords.casing import MARKS, in_lower_case, in_upper_case


@dataclass(frozen=True, kw_only=True)
class SubwordTraining:
    """Settings for learning a subword model."""

    vocab_size: int = 0
    """Number of token ids, including the four special ids; the size of each vocabulary if source
    and target have separate ones. 0 takes 2,000 below 20,000 training pairs, 8,000 below
    100,000, 10,000 below a million, else 32,000."""

    model_type: Literal["bpe", "unigram"] = "bpe"
    """Kind of subwords: bpe, as in the paper (section 5.1), or unigram, which learns more slowly
    and encodes faster."""

    character_coverage: float = 0.9995
    """Share of all characters that get a piece of their own; rarer characters become bytes or
    UNK."""

    byte_fallback: bool = True
    """Spell characters without a piece in bytes, at the cost of 256 pieces, so that no text becomes
    UNK. Turn it off for vocabularies of a few hundred pieces."""

    normalization: Literal["nmt_nfkc", "nmt_nfkc_cf", "nfkc", "nfkc_cf", "identity"] = "nmt_nfkc"
    """SentencePiece's rule for the text before it is cut; "_cf" also folds case."""

    casing: Literal["none", "inline"] = "none"
    """inline writes words in lower case after a mark, a token of the vocabulary. So `Man`, `MAN`
    and `man` share their pieces, also in text that is all in capitals. Translation restores the
    case."""

    user_defined_symbols: tuple[str, ...] = ()
    """Strings that are always one piece, for instance tags."""

    subword_sample: int = 1_000_000
    """Sentences, drawn at random, from which subwords are learned; bounds time and memory."""

    seed: int = 1
    """Random seed of the sample from which subwords are learned, and of samples of corpora."""

    def __post_init__(self) -> None:
        if self.vocab_size and self.vocab_size <= len(SPECIAL_PIECES):
            raise ValueError(
                f"vocab_size must be 0 or more than the {len(SPECIAL_PIECES)} special pieces, "
                f"not {self.vocab_size}"
            )
        if self.subword_sample < 1:
            raise ValueError(f"subword_sample must be at least 1, not {self.subword_sample}")
        if self.seed < 0:
            raise ValueError(f"seed must be at least 0, not {self.seed}")
        if not 0.98 <= self.character_coverage <= 1:
            raise ValueError(
                f"character_coverage must be from 0.98 to 1, not {self.character_coverage}"
            )
        given = self.user_defined_symbols
        for symbol, shown in zip(self.symbols, given, strict=True):
            if shown != shown.strip(" ") or "  " in shown:
                raise ValueError(
                    f"user_defined_symbols: {shown!r} begins or ends with a space, or has two "
                    "spaces in a row; leave out these spaces"
                )
            if not symbol or [*SPECIAL_PIECES, *self.symbols].count(symbol) > 1:
                raise ValueError(
                    f"user_defined_symbols must differ from each other, from nothing and from "
                    f"{' '.join(SPECIAL_PIECES)}, unlike {shown!r}"
                )

        if self.casing == "inline" and self.normalization.endswith("_cf"):
            raise ValueError(
                f"normalization {self.normalization} folds case before casing inline could mark "
                f"it; use {self.normalization.removesuffix('_cf')}"
            )
        if self.casing == "inline" and any(" " in symbol for symbol in given):
            raise ValueError("user_defined_symbols with spaces need casing none")

    @property
    def symbols(self) -> list[str]:
        """The user-defined symbols as pieces."""
        return [symbol.replace(" ", SPACE) for symbol in self.user_defined_symbols]


def vocab_size_for(pairs: int) -> int:
    """Return the number of subwords for a number of training pairs.

    Rare subwords are never learned (Sennrich and Zhang 2019); 32,000 as in the paper.
    """
    sizes = {20_000: 2000, 100_000: 8000, 1_000_000: 10_000}
    return next((size for below, size in sizes.items() if pairs < below), 32_000)


class VocabSizeError(NmtError):
    """The text allows no vocabulary of that size; `possible` is the nearest size that it allows."""

    def __init__(self, message: str, possible: int) -> None:
        super().__init__(message)
        self.possible = possible


def train_subwords(
    sentences: Iterable[str],
    training: SubwordTraining,
    present: int = 0,
    tags: Sequence[str] = (),
) -> bytes:
    """Learn a SentencePiece model; the same for the same sentences on every machine.

    Args:
        sentences: text to learn from.
        training: settings, with the size of the vocabulary.
        present: number of existing pieces, for messages about the size.
        tags: pieces that no text spells.

    Returns:
        The serialised model.

    Raises:
        VocabSizeError: the sentences allow no vocabulary of that size.
        NmtError: the sentences hold no text at all.
    """
    # Sampled here, by the recipe's seed.
    sample = reservoir(sentences, training.subword_sample, training.seed)
    if training.casing == "inline":
        symbols = in_upper_case(training.symbols)
        normalizer = sentencepiece.SentencePieceNormalizer(rule_name=training.normalization)
        lines = map(normalizer.normalize, sample)
        sample = [in_lower_case(line, symbols=symbols)[0] for line in lines]
        tags = [*tags, *MARKS]
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sample),
            model_writer=model,
            vocab_size=training.vocab_size,
            model_type=training.model_type,
            character_coverage=training.character_coverage,
            byte_fallback=training.byte_fallback,
            normalization_rule_name=training.normalization,
            user_defined_symbols=training.symbols,
            # No text can spell a control symbol.
            control_symbols=list(tags),
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise _explained(str(error), training, present) from None
    return model.getvalue()


def _explained(error: str, training: SubwordTraining, present: int) -> NmtError:
    """Return SentencePiece's error as a sentence with a remedy."""
    size = training.vocab_size + present
    if largest := re.search(r"too high .*<= (\d+)", error):
        possible = int(largest[1]) + present
        return VocabSizeError(
            f"vocab_size {size} is more than the text allows; use at most {possible}, or more text",
            possible,
        )
    bytes_off = ", or turn byte_fallback off" if training.byte_fallback else ""
    if smallest := re.search(r"smaller than required_chars. \d+ vs (\d+)", error):
        possible = int(smallest[1]) + present
        return VocabSizeError(
            f"vocab_size {size} is too small for the characters of the text; use "
            f"at least {possible}, or lower character_coverage{bytes_off}",
            possible,
        )
    nothing = "no subwords can be learned from the training text"
    # SentencePiece leaves out empty and longer lines, and then finds no character in spaces.
    if "sentences_.empty()" in error or "(all_chars_count) > (0)" in error:
        return NmtError(
            f"{nothing}: all its lines are blank, or longer than 4,192 bytes; give files with one "
            "sentence on each line"
        )
    return NmtError(f"{nothing}; SentencePiece says: {error.strip()}")


T = TypeVar("T")


def reservoir(items: Iterable[T], size: int, seed: int) -> list[T]:
    """Return a uniform sample of at most `size` items, in one pass over an unknown number of items.

    Vitter's reservoir sampling with Li's skips ("Algorithm L", 1994): draws random numbers only for
    replacements, not for every item.
    """
    generator = random.Random(seed)
    items = iter(items)
    sample = list(itertools.islice(items, size))
    weight = 1.0
    while len(sample) == size:
        # log1p(-u) instead of log(u), because u may be 0.
        weight *= math.exp(math.log1p(-generator.random()) / size)
        # Algorithm L: skips many items at once instead of a random number for each.
        skip = math.floor(math.log1p(-generator.random()) / math.log1p(-weight))
        chosen = list(itertools.islice(items, skip, skip + 1))
        if not chosen:
            break
        sample[generator.randrange(size)] = chosen[0]
    return sample
