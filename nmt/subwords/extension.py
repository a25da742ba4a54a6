"""Extension of a vocabulary: append new pieces to the old pieces.

Old ids stay, and a text without new pieces is segmented as before: the new pieces are appended to
the SentencePiece model, and to the list of pieces of an imported model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from nmt.data.vocabulary import SPACE, SPECIAL_PIECES, Vocabulary
from nmt.errors import NmtError
from nmt.io import documents
from nmt.subwords.casing import CasedSegmenter, in_lower_case
from nmt.subwords.learning import SubwordTraining, train_subwords
from nmt.subwords.model_pieces import CONTROL, NORMAL, USER_DEFINED, Piece, pieces_of
from nmt.subwords.random_segmentation import are_ranks
from nmt.subwords.segmenters import Segmenter, WrappedSegmenter, load_processor
from nmt.subwords.subwords import Subwords

MAX_BYTES = 1 << 24
"""Largest file of new pieces, in bytes."""

AS_IT_STANDS = b"\x1a\x04\x18\x00\x20\x00"
"""Appended to a model, the bytes of ``normalizer_spec { add_dummy_prefix: false
remove_extra_whitespaces: false }`` leave the spaces at the beginning of a text as they are."""

Pieces = Mapping[str, float | None]
"""New pieces with their scores; None for a piece that the algorithm never chooses."""


def read_pieces(path: Path) -> list[str]:
    """Return the pieces in a file, one on each line; spaces become "▁".

    Raises:
        NmtError: the file is missing, not UTF-8 or without a piece, or a piece is a special piece,
            is twice in the file, or has characters that no text has.
    """
    try:
        text = documents.read_bounded(path, MAX_BYTES).decode("utf-8-sig")
    except FileNotFoundError:
        raise NmtError(f"{path}: no such file of new pieces; mend --new-pieces") from None
    except UnicodeDecodeError:
        raise NmtError(f"{path}: not UTF-8; write one new piece on each line") from None
    pieces: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        piece = SPACE.join(line.split())
        if not piece:
            continue
        if not piece.isprintable() or piece in (*SPECIAL_PIECES, SPACE):
            raise NmtError(f"{path}: line {number}: {piece!r} cannot be a new piece; remove it")
        if piece in pieces:
            raise NmtError(
                f"{path}: line {number}: {piece!r} is on line {pieces[piece]}, too; remove one"
            )
        pieces[piece] = number
    if not pieces:
        raise NmtError(f"{path}: has no piece; write one new piece on each line")
    return list(pieces)


def with_pieces(subwords: Subwords, pieces: Sequence[str]) -> Subwords:
    """Return the subwords with new pieces on each side, which are matched before all old pieces.

    A side skips pieces that it already has. With casing, new pieces are in lower case, too.
    """
    new: list[Pieces] = [
        dict.fromkeys(_as_cut(side, pieces)[1]) for side in (subwords.source, subwords.target)
    ]
    return _extended(subwords, (new[0], new[1]))


def with_tags(subwords: Subwords, source: Sequence[str], target: Sequence[str]) -> Subwords:
    """Return the subwords with new tags on each side, which no text spells."""
    if subwords.shared:
        source = target = [*source, *target]
    return _extended(subwords, (dict.fromkeys(source), dict.fromkeys(target)), CONTROL)


def with_learned_pieces(
    subwords: Subwords, source: list[str], target: list[str], training: SubwordTraining
) -> Subwords:
    """Return the subwords with pieces for the characters that they lack, learned from text.

    A new piece consists of such characters alone, perhaps after a space, and so all other text is
    segmented as before.

    Args:
        subwords: the subwords to extend.
        source: lines of the source.
        target: lines of the target.
        training: settings; `vocab_size` is the size of each vocabulary with the new pieces.

    Raises:
        NmtError: the text has no such characters, or `vocab_size` leaves no room for them.
    """
    # Normalised first, because only then spaces alone divide words.
    normalized = map(_normalized, subwords.models, (source, target))
    (source_side, source), (target_side, target) = map(
        _as_cut, (subwords.source, subwords.target), normalized
    )
    sides, texts = (source_side, target_side), (source, target)
    if subwords.shared:
        learned = [_learned(sides, texts[0] + texts[1], subwords.models[0], training)] * 2
    else:
        sides_of_text = zip(sides, texts, subwords.models, strict=True)
        learned = [_learned((side,), text, model, training) for side, text, model in sides_of_text]
    if not any(learned):
        raise NmtError(
            "preprocess: the training text has no character that the vocabulary lacks, so there "
            "are no pieces to learn; give new pieces with --new-pieces FILE"
        )
    return _extended(subwords, (learned[0], learned[1]))


def added_pieces(subwords: Subwords, old: Subwords) -> tuple[list[list[int]], list[list[int]]]:
    """Return the old ids of each new piece, source and target, in the order of the new ids.

    Args:
        subwords: extended subwords; see :meth:`Subwords.extends`.
        old: the subwords before the extension.
    """
    if subwords.is_same_as(old):
        return [], []  # always the case for codes of BPE
    # Protocol buffers take the last value of a field, so appending bytes changes a setting.
    models = [model + AS_IT_STANDS for model in old.models]
    inner = Subwords(models[0], models[1], 1, old.vocabularies)
    return (
        inner.encode_source(
            subwords.source_pieces([*range(old.source_size, subwords.source_size)])
        ),
        inner.encode_target(
            subwords.target_pieces([*range(old.target_size, subwords.target_size)])
        ),
    )


def _extended(
    subwords: Subwords, pieces: tuple[Pieces, Pieces], unchosen: int = USER_DEFINED
) -> Subwords:
    """Return the subwords with new pieces of source and target.

    Args:
        subwords: the subwords to extend.
        pieces: new pieces of each side.
        unchosen: type of the pieces without a score.
    """
    models, lists = [], []
    sides = zip(subwords.models, (subwords.source, subwords.target), pieces, strict=True)
    for model, side, wanted in sides:
        ids = set(side.pieces([*range(side.size)]))
        new = [piece for piece in wanted if piece not in ids]
        # A list of an imported model may lack pieces that its SentencePiece model has.
        segmented = {piece.text for piece in pieces_of(model)}
        scores = _scores(model)
        records = [
            _scored(piece, wanted[piece], scores, unchosen).record()
            for piece in new
            if piece not in segmented
        ]
        models.append(b"".join([model, *records]))
        lists.append(new)
    vocabularies = [
        Vocabulary(pieces=(*vocabulary.pieces, *new))
        for vocabulary, new in zip(subwords.vocabularies, lists, strict=False)
    ]
    has_one_model = subwords.models[0] is subwords.models[1]
    target = None if has_one_model else models[1]
    kept = subwords.directions, subwords.target_order, subwords.context
    return Subwords(models[0], target, 1, vocabularies, *kept)


def _learned(
    sides: Sequence[Segmenter], lines: list[str], old: bytes, training: SubwordTraining
) -> Pieces:
    """Return pieces of the characters that no side spells, with scores, learned from text.

    Args:
        sides: segmenters of one vocabulary.
        lines: normalised text.
        old: a SentencePiece model of the vocabulary, which says how pieces are learned.
        training: settings; `vocab_size` is the size of the vocabulary with the new pieces.
    """
    missing = _missing_characters(sides, lines)
    if not missing:
        return {}
    old_size = sides[0].size
    if training.vocab_size <= old_size:
        raise NmtError(
            f"preprocess: vocab_size {training.vocab_size} leaves no room after the {old_size} "
            "pieces of the vocabulary; give a larger --vocab-size, or --new-pieces FILE"
        )
    # Known characters become spaces, so that only pieces of new ones are learned.
    known = re.compile(f"[^{re.escape(''.join(missing))}]+")
    shared = {*SPECIAL_PIECES, SPACE}  # pieces of every vocabulary, also of the old one
    learned = train_subwords(
        [text for line in lines if (text := known.sub(" ", line).strip())],
        SubwordTraining(
            vocab_size=training.vocab_size - old_size + len(shared),
            model_type="bpe" if are_ranks(_scores(old)) else "unigram",
            character_coverage=training.character_coverage,
            byte_fallback=False,
            # The old model has normalised the lines already.
            normalization="identity",
            subword_sample=training.subword_sample,
            seed=training.seed,
        ),
        old_size - len(shared),
    )
    return {piece.text: piece.score for piece in pieces_of(learned) if piece.text not in shared}


def _as_cut(segmenter: Segmenter, lines: Sequence[str]) -> tuple[Segmenter, list[str]]:
    """Return the innermost segmenter, and lines as it cuts them: with casing, in lower case."""
    lines = list(lines)
    while isinstance(segmenter, WrappedSegmenter):
        if isinstance(segmenter, CasedSegmenter):
            lines = [in_lower_case(line)[0] for line in lines]
        segmenter = segmenter.inner
    return segmenter, lines


def _missing_characters(sides: Sequence[Segmenter], lines: list[str]) -> list[str]:
    """Return the characters of normalised lines that no side has a piece for, in their order."""
    characters = sorted({*"".join(lines)} - {SPACE})
    spelled = set()
    for side in sides:
        spelled |= {
            character
            for character, ids in zip(characters, side.encode(characters), strict=True)
            # SentencePiece puts a space before a text, also before a single character.
            if "".join(side.pieces(ids)).removeprefix(SPACE) == character
        }
    return [character for character in characters if character not in spelled]


def _normalized(model: bytes, lines: list[str]) -> list[str]:
    """Return the lines as a SentencePiece model normalises them, with "▁" for spaces."""
    processor = load_processor(model)
    return [processor.normalize(line) for line in lines]


def _scores(model: bytes) -> list[float]:
    """Return the scores of the pieces that a model's algorithm may choose."""
    return [piece.score for piece in pieces_of(model) if piece.kind == NORMAL]


def _scored(text: str, score: float | None, old: Sequence[float], unchosen: int) -> Piece:
    """Return a new piece, whose kind is `unchosen` without a score.

    Learned ranks come after the old ranks. A learned log-probability stays within the range of the
    old scores, because SentencePiece derives the scores of user-defined and unknown pieces from the
    least and the greatest score.
    """
    if score is None:
        return Piece(text, kind=unchosen)
    if are_ranks(old):
        # After all old merges, so that old text is cut as before.
        return Piece(text, min(old) - 1 + score)
    return Piece(text, min(max(score, min(old)), max(old)))
