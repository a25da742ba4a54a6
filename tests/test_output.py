"""Files of ``--output``: complete or absent, written through links and into open streams."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nmt.cli.translate.io import is_written_in_place, writer


def write(path: Path, text: bytes) -> None:
    with writer(path, is_main=True) as stream:
        stream.write(text)


@pytest.mark.parametrize("exists", [False, True])
def test_an_output_is_written_through_a_link(tmp_path: Path, exists: bool) -> None:
    (tmp_path / "real").mkdir()
    written, link = tmp_path / "real" / "out.txt", tmp_path / "link"
    if exists:
        written.write_bytes(b"old")
    link.symlink_to("real/out.txt")
    with pytest.raises(ValueError), writer(link, is_main=True) as stream:  # noqa: PT011, PT012
        stream.write(b"half")
        raise ValueError
    assert not exists or written.read_bytes() == b"old"
    write(link, b"new")
    assert (link.is_symlink(), written.read_bytes()) == (True, b"new")
    assert sorted(os.listdir(tmp_path)) == ["link", "real"]
    assert os.listdir(tmp_path / "real") == ["out.txt"]


def test_an_output_goes_to_an_open_pipe_or_behind_the_text_of_an_open_file(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    write(Path(f"/dev/fd/{writing}"), b"text")
    os.close(writing)
    with open(reading, "rb") as pipe:
        assert pipe.read() == b"text"
    with (tmp_path / "log").open("ab") as file:
        file.write(b"before ")
        file.flush()
        (tmp_path / "link").symlink_to(f"/proc/self/fd/{file.fileno()}")
        for path in (Path(f"/dev/fd/{file.fileno()}"), tmp_path / "link"):
            write(path, b"text ")
    assert (tmp_path / "log").read_bytes() == b"before text text "


def test_a_device_is_written_in_place_and_a_loop_of_links_is_not(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for path in (Path(os.devnull), Path("/dev/stdout")):
        assert is_written_in_place(path)
    for path in (tmp_path / "a", tmp_path / "file", tmp_path / "none" / "file"):
        assert not is_written_in_place(path)
    write(Path(os.devnull), b"text")
