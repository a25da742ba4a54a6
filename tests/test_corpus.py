import gzip
import random

import numpy as np
import pytest
from for_each import for_each

from nmt.errors import NmtError
from nmt.preprocess.annotations import DOCUMENT_IDS
from nmt.preprocess.cleaning.pipeline import Cleaning, CleaningResult, judge
from nmt.preprocess.corpus import Bitext, Corpus


def bitext(directory, source: bytes, target: bytes = b"") -> Bitext:
    (directory / "c.en").write_bytes(source)
    (directory / "c.de").write_bytes(target or source)
    return Bitext.find(str(directory / "c"), "en", "de")


def sources(files: Bitext, **options) -> list[str]:
    return [line for chunk in files.chunks(**options) for line in chunk.source]


@pytest.mark.parametrize(
    ("name", "there"),
    [("c.en", "c.en"), ("c.de.gz", "c.de.gz"), ("c.en", "c.en.gz"), ("c.en.gz", "c.en")],
)
def test_a_file_in_the_place_of_a_prefix_is_answered_with_the_prefix(tmp_path, name, there):
    (tmp_path / there).touch()
    with pytest.raises(NmtError) as error:
        Bitext.find(str(tmp_path / name), "en", "de")
    assert str(error.value) == (
        f"{tmp_path / name}: a file of one language; give the prefix: {tmp_path / 'c'}"
    )


def test_a_prefix_may_be_the_name_of_a_file(tmp_path):
    for name in ("c.en", "c.en.en", "c.en.de"):
        (tmp_path / name).touch()
    found = Bitext.find(str(tmp_path / "c.en"), "en", "de")
    assert found.names == [str(tmp_path / "c.en.en"), str(tmp_path / "c.en.de")]


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\nb", ["a", "b"]),
        (b"a\n\nb\n\n", ["a", "", "b", ""]),
        (b"\n", [""]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\r\nb\r", ["a", "b"]),
        (b"a\rb\r\r\n", ["a\rb\r"]),
        (b"a\x00b\x0bc\x1cd\n", ["a\x00b\x0bc\x1cd"]),
        ("a\u2028b\u2029c\x85d\n".encode(), ["a\u2028b\u2029c\x85d"]),
    ],
)
def test_a_line_ends_at_a_line_feed_and_nowhere_else(tmp_path, content, lines):
    files = bitext(tmp_path, content)
    assert sources(files) == lines
    assert sources(files, size=1) == lines


def test_chunks_are_of_the_given_size_and_know_their_first_line(tmp_path):
    files = bitext(tmp_path, b"a\nb\nc\n", b"x\ny\nz\n")
    first, second = files.chunks(size=2)
    assert (first.source, first.target, first.first) == (["a", "b"], ["x", "y"], 1)
    assert (second.source, second.target, second.first) == (["c"], ["z"], 3)


def test_a_byte_order_mark_is_no_text_at_the_beginning_of_a_file(tmp_path):
    files = bitext(tmp_path, "\ufeffa\n\ufeffb\n".encode(), "\ufeff\nd\n".encode())
    assert [(chunk.source, chunk.target) for chunk in files.chunks()] == [
        (["a", "\ufeffb"], ["", "d"])
    ]
    ((_, second),) = [[block.source for block in files.blocks(1)]]
    assert [block.source for block in files.blocks(1, skip=1)] == [second]


def test_compressed_files_are_read_like_plain_ones(tmp_path):
    (tmp_path / "c.en.gz").write_bytes(gzip.compress(b"a\nb\n"))
    (tmp_path / "c.de").write_bytes(b"x\ny\n")
    (chunk,) = Bitext.find(str(tmp_path / "c"), "en", "de").chunks()
    assert (chunk.source, chunk.target) == (["a", "b"], ["x", "y"])


def test_a_prefix_may_hold_the_suffix_of_another_format(tmp_path):
    for language in ("en", "de"):
        (tmp_path / f"c.tsv.clean.{language}").write_bytes(b"a\n")
    (tmp_path / "d.tsv.gz").write_bytes(gzip.compress(b"a\tx\n"))
    for path in ("c.tsv.clean", "d.tsv", "d.tsv.gz"):
        (chunk,) = Bitext.find(str(tmp_path / path), "en", "de").chunks()
        assert chunk.source == ["a"]


def test_a_line_that_is_too_long_is_named_before_memory_is_full(tmp_path, monkeypatch):
    monkeypatch.setattr("nmt.io.lines.MAX_LINE_BYTES", 5)
    files = bitext(tmp_path, b"a\nlonger\n", b"x\ny\n")
    with pytest.raises(NmtError, match=r"c\.en:2: the line is longer than 5 bytes; is this text"):
        list(files.chunks())


@for_each("tag", ["s", "unk", "pad"])
def test_a_tag_that_is_a_special_piece_is_refused(tag):
    with pytest.raises(ValueError, match=f"tag {tag}: <{tag}> is a special piece"):
        Corpus(path="c", tag=tag)


def test_a_missing_file_is_named_with_its_candidates(tmp_path):
    with pytest.raises(
        NmtError, match=r"no such file: \S*/c.en, nor the same name with .gz, .xz or .zst"
    ):
        Bitext.find(str(tmp_path / "c"), "en", "de")


def test_a_block_ends_with_a_document_unless_the_document_is_longer(tmp_path):
    lines = ["a", "b", "", "c", "", "\u3000", "d", "e", "f", "g", "h", "", "i"]
    plain = bitext(tmp_path, "".join(f"{line}\n" for line in lines).encode())
    (tmp_path / "c.tsv").write_text("".join(f"{line}\t{line}\n" for line in lines), "utf-8")
    for name in ("c", "c.tsv"):
        files = Bitext.find(str(tmp_path / name), "en", "de", has_documents=True)
        chunks = list(files.chunks(size=4))
        assert [chunk.source for chunk in chunks] == [
            ["a", "b", ""], ["c", "", "\u3000"], ["d", "e", "f", "g"], ["h", "", "i"]
        ]  # fmt: skip
        assert [chunk.first for chunk in chunks] == [1, 4, 7, 11]
        for chunk, block in zip(chunks, files.blocks(size=4), strict=True):
            assert chunk.target == chunk.source
            assert next(files.blocks(size=4, skip=chunk.first - 1)).decode() == chunk
            assert block.lines == len(chunk.source)
    assert sources(plain, size=4) == lines


def test_a_block_ends_where_the_id_of_the_document_changes(tmp_path):
    ids, annotations = [*"aaabbcccccd"], (DOCUMENT_IDS,)
    lines = [f"{number}" for number in range(len(ids))]
    bitext(tmp_path, "".join(f"{line}\n" for line in lines).encode())
    (tmp_path / "c.docid").write_text("".join(f"{text}\n" for text in ids))
    rows = zip(lines, ids, strict=True)
    (tmp_path / "c.tsv").write_text("".join(f"{line}\t{line}\t{text}\n" for line, text in rows))
    for name in ("c", "c.tsv"):
        chunks = Bitext.find(str(tmp_path / name), "en", "de", annotations, True).chunks(size=4)
        found = ["".join(chunk.annotations[DOCUMENT_IDS]) for chunk in chunks]
        assert found == ["aaa", "bb", "cccc", "cd"]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize(("more", "fewer"), [(5, 3), (4, 3), (3, 0)])
def test_files_of_different_length_are_named_with_both_counts(tmp_path, size, more, fewer):
    (tmp_path / "c.en").write_bytes(b"a\n" * more)
    (tmp_path / "c.de").write_bytes(b"x\n" * fewer)
    files = Bitext.find(str(tmp_path / "c"), "en", "de")
    with pytest.raises(NmtError, match=rf"c.en has {more} lines, but \S*c.de has {fewer};"):
        list(files.chunks(size=size))
    with pytest.raises(NmtError, match=rf"c.de has {fewer} lines, but \S*c.en has {more};"):
        list(Bitext(files.target, files.source).chunks(size=size))


def test_a_side_in_utf16_is_named_before_the_numbers_of_lines(tmp_path):
    files = bitext(tmp_path, b"one\n", "eins\n".encode("utf-16"))
    with pytest.raises(NmtError, match=r"c\.de: is UTF-16, not UTF-8; convert it with iconv"):
        list(files.chunks())


@pytest.mark.parametrize("target", [b"eins\rzwei\r", b"eins\nzwei\n"])
def test_carriage_returns_without_a_line_feed_are_refused(tmp_path, target):
    with pytest.raises(NmtError) as error:
        list(bitext(tmp_path, b"one\rtwo\r", target).chunks())
    assert str(error.value) == (
        f"{tmp_path}/c.en: has carriage returns, but no line feed to end a line; convert it with "
        r"tr '\r' '\n'"
    )
    assert sources(bitext(tmp_path, b"one\r")) == ["one"]


def test_an_empty_corpus_is_refused(tmp_path):
    with pytest.raises(NmtError, match=r"c.en and \S*c.de: empty"):
        list(bitext(tmp_path, b"").chunks())


@pytest.mark.parametrize("size", [1, 2, 100])
def test_bytes_that_are_not_utf8_are_named_by_file_and_line(tmp_path, size):
    files = bitext(tmp_path, b"a\nb\nc\nd\n", "ä\nb\nx\xff\nd\n".encode("latin-1"))
    with pytest.raises(NmtError, match=r"c.de:1: byte 0xe4 is not UTF-8"):
        list(files.chunks(size=size))
    files = bitext(tmp_path, "ä\nb\nx\xff\n".encode().replace("ÿ".encode(), b"\xff"))
    with pytest.raises(NmtError, match=r"c.en:3: byte 0xff is not UTF-8"):
        list(files.chunks(size=size))


def test_bytes_that_are_not_utf8_can_be_replaced(tmp_path):
    files = bitext(tmp_path, b"a\xc3\nb\n\xff\n")
    assert sources(files, on_invalid_utf8="replace") == ["a\ufffd", "b", "\ufffd"]


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data[:-20], id="cut off"),
        pytest.param(lambda data: data[:-8] + bytes(8), id="wrong checksum"),
        pytest.param(lambda data: data[:20] + b"\xff" * 20 + data[40:], id="wrong bits"),
        pytest.param(lambda data: b"not gzip at all", id="not gzip"),
    ],
)
def test_a_damaged_gzip_file_is_named(tmp_path, damage):
    text = "\n".join(str(random.Random(1).random()) for _ in range(500)).encode()
    (tmp_path / "c.en.gz").write_bytes(damage(gzip.compress(text)))
    (tmp_path / "c.de").write_bytes(text)
    with pytest.raises(
        NmtError, match=r"c.en.gz: (the gzip file is truncated or damaged|not a gzip file);"
    ):
        list(Bitext.find(str(tmp_path / "c"), "en", "de").chunks())


def verdict(source: int, target: int, **limits) -> CleaningResult:
    """On a pair of these lengths, EOS included; the same whichever side is which."""
    there, back = (
        CleaningResult(judge(np.array([a]), np.array([b]), Cleaning(**limits))[0])
        for a, b in ((source, target), (target, source))
    )
    assert there == back
    return there


def test_only_what_training_cannot_use_is_dropped_by_default():
    assert verdict(2, 256) == CleaningResult.KEPT
    assert verdict(2, 257) == CleaningResult.TOO_LONG
    assert verdict(1, 2) == CleaningResult.EMPTY
    assert verdict(1, 1000) == CleaningResult.EMPTY


def test_limits_are_kept_to_the_token():
    assert verdict(4, 9, min_tokens_per_sentence=5) == CleaningResult.TOO_SHORT
    assert verdict(5, 9, min_tokens_per_sentence=5) == CleaningResult.KEPT
    assert verdict(5, 9, max_tokens_per_sentence=9) == CleaningResult.KEPT
    assert verdict(5, 9, max_tokens_per_sentence=8) == CleaningResult.TOO_LONG
    assert verdict(6, 9, max_length_ratio=1.5) == CleaningResult.KEPT
    assert verdict(5, 9, max_length_ratio=1.5) == CleaningResult.UNEQUAL


def test_every_pair_is_judged_by_itself():
    verdicts = judge(np.array([5, 1, 5, 300]), np.array([5, 5, 300, 5]), Cleaning())
    assert verdicts.tolist() == [
        CleaningResult.KEPT,
        CleaningResult.EMPTY,
        CleaningResult.TOO_LONG,
        CleaningResult.TOO_LONG,
    ]


@for_each(
    ("limits", "message"),
    [
        ({"min_tokens_per_sentence": 0}, "min_tokens_per_sentence must be at least 1, not 0"),
        ({"max_tokens_per_sentence": 1}, "max_tokens_per_sentence must be at least 2 .* not 1"),
        (
            {"min_tokens_per_sentence": 9, "max_tokens_per_sentence": 8},
            "max_tokens_per_sentence must be at least 2 and min_tokens_per_sentence, not 8",
        ),
        ({"max_length_ratio": 0.5}, r"max_length_ratio must be at least 1, not 0\.5"),
    ],
)
def test_limits_that_nothing_can_meet_are_refused(limits, message):
    with pytest.raises(ValueError, match=message):
        Cleaning(**limits)
