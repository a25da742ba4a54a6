import numpy as np
import pytest

from nmt.preprocess.cleaning import duplicates
from nmt.preprocess.cleaning.duplicates import joined, mark_repeated


@pytest.mark.parametrize("block", [1 << 17, 3])
def test_the_keys_that_came_before_are_marked(tmp_path, monkeypatch, block):
    monkeypatch.setattr(duplicates, "BLOCK", block)
    random = np.random.default_rng(5)
    # Few different words, so that keys often differ in one of two words only.
    keys = random.choice(np.array([1, 2, 3, 2**63, 2**64 - 1], np.uint64), (200, 2))
    keys.tofile(tmp_path / "keys")
    mark_repeated(tmp_path / "keys", tmp_path / "marks", tmp_path / "scratch")
    seen: set[tuple[int, int]] = set()
    expected = []
    for key in map(tuple, keys.tolist()):
        expected.append(key in seen)
        seen.add(key)
    assert np.fromfile(tmp_path / "marks", np.bool_).tolist() == expected
    assert list((tmp_path / "scratch").iterdir()) == []


def test_of_no_keys_none_is_marked(tmp_path):
    (tmp_path / "keys").touch()
    mark_repeated(tmp_path / "keys", tmp_path / "marks", tmp_path / "scratch")
    assert (tmp_path / "marks").read_bytes() == b""


def test_tabs_within_sides_are_no_separators():
    pairs = [("a\tb", "c"), ("a", "b\tc"), ("a", "b", "c"), ("a\tb\tc", ""), ("", "a\tb\tc")]
    assert len({joined(*pair) for pair in pairs}) == len(pairs)
    assert joined("a", "b") == b"a\tb"  # as in datasets made before
