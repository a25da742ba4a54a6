"""M2M-100 and NLLB in the format of Hugging Face's transformers: models of 100 and 200 languages.

A directory holds what ``M2M100ForConditionalGeneration.save_pretrained`` writes, a SentencePiece
model and the files of ``M2M100Tokenizer`` or ``NllbTokenizer``. Each source begins with the token
of its language, and each target with the token of its own. The import makes tags of these tokens,
so ``eng_Latn`` of NLLB and ``__en__`` of M2M-100 become ``>>eng_Latn<<`` and ``>>en<<``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from nmt.data.directions import Directions
from nmt.data.vocabulary import SPECIAL_PIECES, Vocabulary
from nmt.errors import NmtError
from nmt.formats.huggingface import (
    SHARED_MODEL,
    HuggingFaceImport,
    MarianSettings,
    Weights,
    optional_json,
    vocabulary,
)
from nmt.formats.importing import (
    ReorderedVocabulary,
    import_formats,
    read_json,
    read_sentencepiece,
)
from nmt.models.transformer.model import TransformerConfig
from nmt.models.transformer.positions import Layout, PositionPart
from nmt.recipe.config import build
from nmt.subwords.model_pieces import CONTROL, Piece
from nmt.subwords.segmenters import TAG, load_processor
from nmt.subwords.subwords import Subwords
from nmt.subwords.tags import language_tag

LANGUAGE = re.compile(r"^(?:__([a-z]{2,3})__|([a-z]{3}_[A-Z][a-z]{3}))$")
"""Token of a language: ``__en__`` of M2M-100, ``eng_Latn`` of NLLB."""

FIRST_PIECES = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
"""fairseq's special ids. NLLB's other ids are the ids of SentencePiece plus 1."""

CODES = {
    "m2m100": "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga "
    "gd gl gu ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml "
    "mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn "
    "tr uk ur uz vi wo xh yi yo zh zu",
    "wmt21": "en ha is ja cs ru zh de",
}
"""Languages of M2M-100 (Fan et al. 2020) and of its successor (Tran et al. 2021) in the order of
their tokens, by ``language_codes``: transformers 5 writes no list into the files of
``M2M100Tokenizer``."""


@dataclass(frozen=True, kw_only=True)
class M2M100Settings(MarianSettings):
    """The keys of ``config.json``, with the defaults of ``M2M100Config``."""

    model_type: str = "m2m_100"
    vocab_size: int = 128112
    activation_function: str = "relu"
    attention_dropout: float = 0.1
    decoder_start_token_id: int = 2
    scale_embedding: bool = True
    pad_token_id: int | None = 1
    eos_token_id: int = 2
    alignment_head: int | None = None

    def obstacle(self) -> str | None:
        """Return what this toolkit lacks for the model, by its name in the file."""
        if not (self.tie_word_embeddings and self.share_encoder_decoder_embeddings):
            return "embeddings that are not shared"
        if self.pad_token_id is None:
            return "a model without pad_token_id"
        return super().obstacle()

    def transformer(self, positions: tuple[PositionPart, Layout]) -> TransformerConfig:
        """Return the recipe's section ``model``."""
        alignment_layer = self.alignment_layer
        config = super().transformer(positions)
        return replace(config, residual="pre_norm", alignment_layer=alignment_layer)

    def take_rest(
        self, source: Path, tensors: Weights, weights: dict[str, Tensor]
    ) -> tuple[PositionPart, Layout]:
        """Take the norms at the end of the stacks; positions follow the id of padding."""
        assert self.pad_token_id is not None
        for stack in ("encoder", "decoder"):
            # Files of older versions hold the table that transformers computes.
            if (table := f"model.{stack}.embed_positions.weights") in tensors:
                tensors.pop(table)
            for kind in ("weight", "bias"):
                norm = tensors.take(f"model.{stack}.layer_norm.{kind}", self.d_model)
                weights[f"{stack}_end.{kind}"] = norm
        values = {"name": "sinusoidal", "offset": self.pad_token_id + 1}
        return build(PositionPart, values, "positions"), "concatenated"


@import_formats.register("m2m100")
@dataclass(frozen=True, kw_only=True)
class M2M100Import(HuggingFaceImport):
    """``M2M100ForConditionalGeneration`` with the tokenizer of M2M-100 or NLLB."""

    is_multilingual: ClassVar[bool] = True
    settings: ClassVar[type[MarianSettings]] = M2M100Settings

    def recognises(self, source: Path) -> bool:
        """Return whether there are a config and the SentencePiece model of all languages."""
        return (source / "config.json").exists() and (source / SHARED_MODEL).exists()

    def orders(
        self, source: Path, config: MarianSettings
    ) -> tuple[ReorderedVocabulary, ReorderedVocabulary]:
        """Return the vocabulary of all languages, whose tokens of languages are tags."""
        path = source / "vocab.json"
        if path.exists():
            pieces = read_json(path)
        else:
            path = source / SHARED_MODEL
            pieces = _fairseq_ids(path)
        tokens = {**_added_tokens(source, pieces), **pieces}
        ids = {LANGUAGE.sub(_tag_of, token): id_ for token, id_ in tokens.items()}
        if not any(map(TAG.fullmatch, ids)):
            raise NmtError(
                f"{source}: no file names the tokens of languages; copy tokenizer.json, "
                "tokenizer_config.json and special_tokens_map.json of the model, too"
            )
        start = config.decoder_start_token_id
        shared = vocabulary(path, ids, config, config.vocab_size, "<unk>", start)
        return shared, shared

    def subwords(self, source: Path, vocabularies: Sequence[Vocabulary]) -> Subwords:
        """Return the subwords of a vocabulary, for all directions between its languages."""
        [pieces] = [vocabulary.pieces[len(SPECIAL_PIECES) :] for vocabulary in vocabularies]
        model = read_sentencepiece(source / SHARED_MODEL)
        processor = load_processor(model)
        known = {processor.id_to_piece(token) for token in range(len(processor))}
        # Tags and unused ids have no text.
        silent = [Piece(piece, kind=CONTROL).record() for piece in pieces if piece not in known]
        languages = [match[1] for match in map(TAG.fullmatch, pieces) if match]
        directions = Directions(tags="both", trained=tuple(permutations(languages, 2)))
        return Subwords(
            b"".join([model, *silent]), vocabularies=vocabularies, directions=directions
        )


def _tag_of(token: re.Match[str]) -> str:
    return language_tag(token[1] or token[2])


def _fairseq_ids(path: Path) -> dict[str, int]:
    """Return the id of each piece of NLLB's SentencePiece model.

    Raises:
        NmtError: the model is missing, or its special pieces are not the first.
    """
    processor = load_processor(read_sentencepiece(path))
    special = [processor.unk_id(), processor.bos_id(), processor.eos_id()]
    if special != [0, 1, 2]:
        shown = ", ".join(map(str, special))
        raise NmtError(f"{path}: its ids of unk, bos and eos are {shown}, not 0, 1, 2 as in NLLB")
    pieces = {processor.id_to_piece(id_): id_ + 1 for id_ in range(3, len(processor))}
    return {**FIRST_PIECES, **pieces}


def _added_tokens(source: Path, pieces: Mapping[str, Any]) -> dict[str, int]:
    """Return the ids of the tokens that the tokenizer adds to its pieces.

    Raises:
        NmtError: a file does not hold tokens and ids.
    """
    settings = optional_json(source / "tokenizer_config.json")
    try:
        tokens = dict(_numbered_tokens(source, settings))
        if not any(map(LANGUAGE.fullmatch, tokens)):
            listed = map(_content, _listed_tokens(source, settings))
            tokens |= {token: id_ for id_, token in enumerate(listed, len(pieces))}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise NmtError(
            f"{source}: the files of the tokenizer do not hold tokens and their ids; copy them "
            "again"
        ) from None
    return tokens


def _numbered_tokens(source: Path, settings: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield added tokens and their ids from the files that hold both."""
    yield from optional_json(source / "added_tokens.json").items()
    for id_, token in settings.get("added_tokens_decoder", {}).items():
        yield _content(token), int(id_)
    for token in optional_json(source / "tokenizer.json").get("added_tokens", ()):
        yield _content(token), token["id"]


def _listed_tokens(source: Path, settings: Mapping[str, Any]) -> Sequence[Any]:
    """Return the tokens after the pieces, in the order of their ids."""
    for document in (settings, optional_json(source / "special_tokens_map.json")):
        if listed := document.get("additional_special_tokens"):
            return list(listed)
    if not (source / "vocab.json").exists():
        return []
    return [f"__{code}__" for code in CODES[settings.get("language_codes", "m2m100")].split()]


def _content(token: Any) -> str:
    """Return a token, which may be written as an object with its properties."""
    content = token if isinstance(token, str) else token["content"]
    if not isinstance(content, str):
        raise TypeError(content)
    return content
