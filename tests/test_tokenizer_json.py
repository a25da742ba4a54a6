"""Fast tokenizers of Hugging Face against the subwords that they were made from."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import ENGLISH, GERMAN
from for_each import for_each

from nmt.data.vocabulary import EOS
from nmt.formats.tokenizer_files import TokenLayout, tokenizer_json
from nmt.subwords.learning import SubwordTraining, train_subwords
from nmt.subwords.subwords import Subwords

tokenizers = pytest.importorskip("tokenizers")

LINES = [
    "one two  three",
    " four, five and sixty-six ",
    "ﬁve … ｆｉｖｅ",
    "snow ☃ 中文",
    "fünf (*)",
    "a <tag> b<tag>c",
    "<tag> one <tag>",
    "",
]


@for_each(
    "settings",
    [
        {"model_type": "bpe"},
        {"model_type": "unigram"},
        {"model_type": "bpe", "normalization": "identity"},
        {"model_type": "unigram", "user_defined_symbols": ("<tag>", "(*)")},
        {"model_type": "bpe", "user_defined_symbols": ("<tag>", "(*)")},
    ],
)
def test_a_fast_tokenizer_cuts_and_joins_text_as_the_subwords_do(settings: dict[str, Any]) -> None:
    sentences = [f"{one} {two} {one}ty-{two}" for one in ENGLISH for two in GERMAN]
    model = train_subwords(sentences, SubwordTraining(vocab_size=288, **settings))
    subwords = Subwords(model, num_threads=1)
    pieces = tuple(subwords.source_pieces([*range(subwords.source_size)]))
    document = tokenizer_json(model, TokenLayout(pieces, pieces, None, {}))
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(document))
    rows = subwords.encode_source(LINES)
    assert [tokenizer.encode(line).ids for line in LINES] == [[*row, EOS] for row in rows]
    assert [tokenizer.decode(row) for row in rows] == subwords.decode_target(rows)
