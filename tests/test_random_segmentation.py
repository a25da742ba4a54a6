"""Random segmentations: their distribution, and the same ones in every process."""

from __future__ import annotations

import io
import math
import subprocess
import sys
from collections import Counter
from itertools import combinations, pairwise
from pathlib import Path
from random import Random

import pytest
import sentencepiece
from for_each import for_each

from nmt.subwords.extension import with_pieces
from nmt.subwords.segmenters import SentencePiece
from nmt.subwords.subwords import Subwords

TEXT = [f"the {a}{b}s are in {b}{a} <x>{b}" for a in ("house", "boat", "é") for b in "abcdefgh"]
LINES = [*TEXT, "", " ", "<x><x> <x>es", "a\u2581b  c", "ﬁne", "日本"]


def trained(kind: str, byte_fallback: bool = True, **options: object) -> SentencePiece:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT),
        model_writer=model,
        vocab_size=320,
        hard_vocab_limit=False,
        model_type=kind,
        byte_fallback=byte_fallback,
        minloglevel=2,
        **options,
    )
    return SentencePiece(model.getvalue())


OPTIONS = [
    {},
    {"user_defined_symbols": ["<x>", "<x>es"]},
    {"user_defined_symbols": ["oat", "th", "oats"]},
    {"split_by_whitespace": False},
    {"treat_whitespace_as_suffix": True},
    {"normalization_rule_name": "identity", "remove_extra_whitespaces": False},
]


@for_each("options", OPTIONS)
def test_bpe_that_leaves_no_merge_out_gives_the_ids_of_sentencepiece(
    options: dict[str, object],
) -> None:
    segmenter = trained("bpe", **options)
    assert [segmenter.sample(line, 0.0, Random(1)) for line in LINES] == segmenter.encode(LINES)
    letters = segmenter.pieces(segmenter.sample("houses", 1.0, Random(1)))
    assert set("".join(letters)) >= set("houses")
    assert all(len(letter) == 1 for letter in letters)


@for_each("options", [*OPTIONS, {"user_defined_symbols": ["日"]}])
def test_a_run_of_unknown_characters_is_one_unknown_piece_as_in_sentencepiece(
    options: dict[str, object],
) -> None:
    segmenter = trained("bpe", byte_fallback=False, **options)
    lines = ["日本語 the", "日本 語語 x", "a日b本本", "日本日本本", "本<x>本語"]
    assert [segmenter.sample(line, 0.0, Random(1)) for line in lines] == segmenter.encode(lines)
    unigram, draw = trained("unigram", byte_fallback=False, **options), Random(1)
    for line, encoded in zip(lines, unigram.encode(lines), strict=True):
        for _ in range(5):
            assert unigram.sample(line, 0.2, draw).count(0) == encoded.count(0)


@for_each("options", OPTIONS)
@for_each("kind", ["bpe", "unigram"])
def test_all_segmentations_spell_the_line(kind: str, options: dict[str, object]) -> None:
    segmenter, draw = trained(kind, **options), Random(1)
    whole = segmenter.decode(segmenter.encode(LINES))
    for _ in range(20):
        assert segmenter.decode([segmenter.sample(line, 0.2, draw) for line in LINES]) == whole


def test_a_symbol_of_the_user_stays_whole() -> None:
    symbols = ["<x>", "<x>es"]
    for kind in ("bpe", "unigram"):
        segmenter, draw = trained(kind, user_defined_symbols=symbols), Random(1)
        for _ in range(20):
            pieces = segmenter.pieces(segmenter.sample("a<x> <x>es", 0.4, draw))
            assert [piece for piece in pieces if "<" in piece] == symbols


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_new_piece_whose_parts_are_pieces_stays_whole(kind: str) -> None:
    model = trained(kind).processor.serialized_model_proto()
    side, draw = with_pieces(Subwords(model, None, 1), ["use"]).source, Random(1)
    for alpha in [0.0, *[0.4] * 20]:
        assert "use" in side.pieces(side.sample("the houses", alpha, draw))


def test_unigram_segmentations_have_the_powers_of_their_probabilities() -> None:
    segmenter, alpha, count = trained("unigram"), 0.3, 20_000
    word = "\u2581houses"
    scores = {
        segmenter.processor.id_to_piece(token): segmenter.processor.get_score(token)
        for token in range(segmenter.size)
    }
    weights = {}
    for cuts in range(len(word)):
        for places in combinations(range(1, len(word)), cuts):
            ends = [0, *places, len(word)]
            pieces = tuple(word[a:b] for a, b in pairwise(ends))
            if all(piece in scores for piece in pieces):
                weights[pieces] = math.exp(alpha * sum(scores[piece] for piece in pieces))
    draw = Random(1)
    drawn = Counter(
        tuple(segmenter.pieces(segmenter.sample("houses", alpha, draw))) for _ in range(count)
    )
    assert len(weights) > 3
    assert drawn.keys() <= weights.keys()
    for pieces, weight in weights.items():
        share = weight / sum(weights.values())
        assert abs(drawn[pieces] - count * share) < 5 * math.sqrt(count * share) + 5


def test_a_merge_is_left_out_with_a_probability_in_each_step() -> None:
    """Of two letters with one merge, that probability is the share of those that stay apart."""
    segmenter, draw = trained("bpe"), Random(1)
    assert segmenter.pieces(segmenter.encode(["th"])[0])[-1].endswith("th")
    count = 20_000
    apart = sum(
        segmenter.pieces(segmenter.sample("es", 0.1, draw))[-1] == "s" for _ in range(count)
    )
    assert abs(apart - 0.1 * count) < 5 * math.sqrt(0.09 * count)


PROGRAM = """
import sys
from pathlib import Path
from random import Random
from nmt.subwords.segmenters import SentencePiece
segmenter = SentencePiece(Path(sys.argv[1]).read_bytes())
print(*segmenter.sample("the houses are in a boat", 0.2, Random(5)))
"""


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_another_process_draws_the_same(kind: str, tmp_path: Path) -> None:
    segmenter = trained(kind)
    (tmp_path / "model").write_bytes(segmenter.processor.serialized_model_proto())
    drawn = segmenter.sample("the houses are in a boat", 0.2, Random(5))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path / "model"], capture_output=True, text=True
    )
    assert done.stdout.split() == [str(token) for token in drawn], done.stderr
