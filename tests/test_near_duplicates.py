import random

import numpy as np
import pytest

from nmt.data.dataset import Dataset
from nmt.preprocess import near_duplicates
from nmt.preprocess.binarize import preprocess
from nmt.preprocess.config import PreprocessConfig
from nmt.preprocess.near_duplicates import BANDS, ROWS, mark_similar, signatures
from nmt.recipe.config import build

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def similarity(*pairs):
    """The share of equal hashes of two pairs."""
    one, other = signatures(*map(list, zip(*pairs, strict=True)))
    return np.mean(one == other)


def words(count, draw):
    return ["".join(draw.choices(LETTERS, k=6)) for _ in range(count)]


def test_the_share_of_equal_hashes_estimates_the_share_of_common_ngrams():
    draw = random.Random(1)
    for kept in (5, 10, 15, 18, 20):
        line = words(20, draw)
        changed = " ".join(line[:kept] + words(20 - kept, draw))
        pairs = [(" ".join(line), "x"), (changed, "x")]
        grams = [{f"{s}\nx"[at : at + 5] for at in range(len(s) + 2)} for s, _ in pairs]
        expected = len(grams[0] & grams[1]) / len(grams[0] | grams[1])
        assert abs(similarity(*pairs) - expected) < 0.19  # three standard errors at most


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (("A man, 3 dogs!", "Ein Mann"), ("a man -- 44 DOGS", "ein mann"), True),
        (("12:30", "12.30"), ("12:45", "12.45"), False),
        (("", ""), ("", ""), True),
        (("\0", "a"), ("\0", "a"), True),
        (("ab", "c"), ("a", "bc"), False),
        (("猫が好きです", "a"), ("犬が好きです", "a"), False),
        (("लड़का", "मुलगा"), ("लड़की", "मुलगी"), False),
        (("m\u00e1", "a"), ("ma\u0301", "a"), True),
        (("ma\u0301", "a"), ("ma\u0323", "a"), False),
        (("a_b \u0661 c", "«d»"), ("a b c", "d"), True),
    ],
)
def test_case_digits_and_punctuation_do_not_count(one, other, equal):
    assert bool(similarity(one, other) == 1) is equal


def test_a_signature_does_not_depend_on_the_other_pairs(monkeypatch):
    draw = random.Random(2)
    source = [" ".join(words(draw.randint(0, 30), draw)) for _ in range(50)]
    target = source[::-1]
    whole = signatures(source, target)
    assert whole.shape == (50, BANDS * ROWS)
    monkeypatch.setattr(near_duplicates, "CHUNK", 100)
    assert np.array_equal(signatures(source, target), whole)
    alone = [signatures([s], [t])[0] for s, t in zip(source, target, strict=True)]
    assert np.array_equal(alone, whole)


@pytest.mark.parametrize("block", [1 << 17, 3])
def test_the_later_of_similar_pairs_are_marked(tmp_path, monkeypatch, block):
    monkeypatch.setattr(near_duplicates, "BLOCK", block)
    draw = random.Random(3)
    lines = [words(15, draw) for _ in range(40)]
    texts = [" ".join(line) for line in lines]
    texts += [" ".join([*line[:-1], "changed"]) for line in lines[:20]]  # similarity near 0.87
    texts += [" ".join([*line[:7], *words(8, draw)]) for line in lines[20:]]  # near 0.3
    signatures(texts, texts).tofile(tmp_path / "signatures")
    marks = np.zeros(80, np.bool_)
    mark_similar(tmp_path / "signatures", marks, tmp_path / "scratch", 0.7)
    assert np.flatnonzero(marks).tolist() == list(range(40, 60))


@pytest.mark.parametrize("workers", [1, 2])
def test_near_duplicates_are_dropped_and_counted_beside_equal_pairs(tmp_path, monkeypatch, workers):
    monkeypatch.chdir(tmp_path)
    draw = random.Random(4)
    lines = [" ".join(words(9, draw)) for _ in range(30)]
    pairs = [*lines, lines[3], lines[5].upper() + "!", lines[7], lines[5]]
    for name, text in (("train", pairs), ("valid", lines[:2])):
        for side in ("en", "de"):
            (tmp_path / f"{name}.{side}").write_text("".join(f"{line}\n" for line in text))
    settings = {"source_lang": "en", "target_lang": "de", "train": ["train"], "valid": "valid",
                "vocab_size": 330, "workers": workers}  # fmt: skip

    def made(*clean):
        config = build(PreprocessConfig, {**settings, "clean": clean}, "preprocess")
        train = preprocess(config).splits["train"]
        return train.pairs, {reason: pairs for reason, pairs in train.dropped.items() if pairs}

    both = made("near_duplicates", "duplicates")
    assert both == (30, {"duplicates": 3, "near_duplicates": 1})
    kept = Dataset.open(tmp_path / "data-bin").manifest.splits["train"].examples
    assert kept["near_duplicates"][0][0].endswith("!")
    assert made("near_duplicates") == (30, {"near_duplicates": 4})
    assert made("duplicates") == (31, {"duplicates": 3})
