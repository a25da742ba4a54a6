"""Test sets by name: sacreBLEU's own code, with an archive on this disk for the network."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path
from typing import Any

import pytest
from sacrebleu.dataset import DATASETS, base
from sacrebleu.dataset.plain_text import PlainTextDataset

from nmt.errors import NmtError
from nmt.evaluation import testsets

SOURCE, REFERENCE = "one two\nthree\n", "eins zwei\ndrei\n"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    for suffix, text in (("en", SOURCE), ("de", REFERENCE), ("de2", REFERENCE)):
        (tmp_path / f"t.{suffix}").write_text(text)
    path = tmp_path / "t.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for suffix in ("en", "de", "de2"):
            tar.add(tmp_path / f"t.{suffix}", f"t.{suffix}")
    return path


@pytest.fixture
def home(tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where sacreBLEU keeps what it fetches; it knows one test set, and one with a wrong sum."""
    kept = tmp_path / "home"
    monkeypatch.setattr(base, "SACREBLEU_DIR", str(kept))
    monkeypatch.setattr("sacrebleu.utils.SACREBLEU_DIR", str(kept))
    digest = hashlib.md5(archive.read_bytes()).hexdigest()
    for name, checksum in (("tiny/full", digest), ("wrong", "0" * 32)):
        entry = PlainTextDataset(
            name,
            data=[archive.as_uri()],
            md5=[checksum],
            langpairs={"en-de": ["t.en", "t.de"], "en-cs": ["t.en", "t.de"]},
        )
        monkeypatch.setitem(DATASETS, name, entry)
    return kept


def test_a_test_set_is_fetched_once(home: Path, archive: Path) -> None:
    found = testsets.by_name("tiny/full", "en-de")
    assert (found.sources, found.references) == (["one two", "three"], ["eins zwei", "drei"])
    assert str(found) == "tiny/full en-de, 2 lines"
    archive.unlink()
    assert testsets.by_name("tiny/full", "en-de") == found


def test_translations_of_it_are_scored(home: Path, nmt: Any, tmp_path: Path) -> None:
    (tmp_path / "output").write_text("eins zwei\nvier\n")
    named = nmt("score", "--testset", "tiny/full", "-l", "en-de", tmp_path / "output")
    given = nmt("score", "--reference", tmp_path / "t.de", tmp_path / "output")
    assert named.out == given.out != ""


@pytest.mark.parametrize(
    ("name", "pair", "message"),
    [
        ("wmt14/ful", "en-de", "unknown test set 'wmt14/ful'; did you mean 'wmt14/full'?"),
        ("tiny/full", "en-df", "tiny/full: unknown language pair 'en-df'; did you mean 'en-de'?"),
    ],
)
def test_unknown_names_are_answered(home: Path, name: str, pair: str, message: str) -> None:
    with pytest.raises(NmtError) as error:
        testsets.by_name(name, pair)
    assert str(error.value) == message


def test_a_network_that_does_not_allow_it_costs_one_line(home: Path, archive: Path) -> None:
    archive.unlink()
    with pytest.raises(NmtError) as error:
        testsets.by_name("tiny/full", "en-de")
    told = str(error.value)
    assert told.startswith("tiny/full: cannot be fetched: ")
    assert told.endswith(
        f"; remove {home / 'tiny/full'} before another attempt; without network access, copy "
        f"{home} from another machine, or give the files with --reference"
    )
    assert "\n" not in told


def test_a_wrong_checksum_is_refused(home: Path) -> None:
    with pytest.raises(NmtError) as error:
        testsets.by_name("wrong", "en-de")
    assert str(error.value).startswith(
        "wrong: cannot be fetched: the downloaded file does not match its checksum; "
    )


@pytest.mark.parametrize("kept", ["", "eins zwei\n"])
def test_text_that_was_cut_short_is_damaged(home: Path, kept: str) -> None:
    testsets.by_name("tiny/full", "en-de")
    (home / "tiny/full/tiny_full.en-de.ref").write_text(kept)
    with pytest.raises(NmtError) as error:
        testsets.by_name("tiny/full", "en-de")
    assert str(error.value) == (
        f"tiny/full: damaged; remove {home / 'tiny/full'}, so that it is fetched again"
    )


def test_an_archive_whose_unpacking_was_cut_short_is_damaged(home: Path) -> None:
    testsets.by_name("tiny/full", "en-de")
    for path in (home / "tiny/full/raw/t.en", home / "tiny/full/tiny_full.en-de.src"):
        path.unlink()
    with pytest.raises(NmtError, match=r"^tiny/full: damaged; remove .*tiny/full, so that"):
        testsets.by_name("tiny/full", "en-de")


def test_a_test_set_may_have_several_references(
    home: Path, nmt: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.de2").write_text("eins zwei\nvier\n")
    many = [str(tmp_path / name) for name in ("t.de", "t.de2")]
    monkeypatch.setattr(DATASETS["tiny/full"], "get_reference_files", lambda pair: many)
    (tmp_path / "output").write_text("eins zwei\nvier\n")
    flags = ("--metric", "ter", tmp_path / "output")
    named = nmt("score", "--testset", "tiny/full", "-l", "en-de", *flags)
    assert named.out.startswith("ter = 0.00 (edits = 0 ref_len = 3) nrefs:2|")
    assert named.out == nmt("score", "-r", many[0], "-r", many[1], *flags).out
