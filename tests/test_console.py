"""Results and errors are fit for a terminal."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Command

from nmt.cli.console import check_output, show, write_utf8
from nmt.errors import NmtError


def test_an_error_spells_out_the_escapes_of_a_name(nmt: Command) -> None:
    done = nmt("score", "--reference", "\x1b[31mred\n", "x")
    assert done.status == 1
    assert done.err == "nmt: error: \\x1b[31mred\\n: No such file or directory; check the path\n"


def test_results_for_people_spell_out_the_escapes_of_each_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show("a\x1b[31m\x07\x9b2J\u202eb\udcff\n▁grün 日本")
    assert capsys.readouterr().out == r"a\x1b[31m\x07\x9b2J\u202eb\udcff" + "\n▁grün 日本\n"


def test_a_closed_stdin_is_no_input_that_an_output_could_overwrite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").touch()
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(NmtError, match="stdin is closed; name a file to read"):
        check_output(tmp_path / "out", Path("-"))


def test_streams_write_utf8_in_every_locale() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), "latin-1")
    write_utf8(stream, io.StringIO())
    stream.write("▁\udcff")
    stream.flush()
    assert stream.buffer.getvalue() == "▁".encode() + rb"\udcff"  # type: ignore[attr-defined]


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_below_stdout_is_named(dataset: Path, unbuffered: str) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "nmt", "inspect", str(dataset)],
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            check=False,
        )
    line = b"nmt: error: stdout: cannot be written: No space left on device; make room there\n"
    assert (done.returncode, done.stderr) == (1, line)


@pytest.mark.parametrize("command", ["score --reference {}", "rescore --reference {}"])
def test_a_command_that_waits_at_a_terminal_says_so(
    command: str, nmt: Command, tmp_path: Path
) -> None:
    terminal, stdin = os.openpty()
    os.write(terminal, b"\x04")
    (tmp_path / "empty.de").touch()
    done = nmt(*command.format(tmp_path / "empty.de").split(), stdin=Path(os.ttyname(stdin)))
    for side in (terminal, stdin):
        os.close(side)
    assert "reads lines from the terminal; type them, and Ctrl-D at the end\n" in done.err
    assert "reads" not in nmt("score", "--reference", tmp_path / "empty.de", os.devnull).err


@pytest.mark.parametrize(
    ("command", "file"),
    [
        ("report {}", "report.html"),
        ("explain --model {}", "page.html"),
        ("explain --model {} --png cross:1", "attention.png"),
    ],
)
def test_a_page_or_an_image_is_not_written_to_a_terminal(
    command: str, file: str, trained: Path
) -> None:
    terminal, stdout = os.openpty()
    with open(terminal, "rb"), open(stdout, "wb") as stream:
        done = subprocess.run(
            [sys.executable, "-m", "nmt", *command.format(trained).split()],
            input=b"one two\n",
            stdout=stream,
            stderr=subprocess.PIPE,
            check=False,
            timeout=300,  # a page would fill the terminal, which nobody reads
        )
    assert done.returncode == 2
    said = f"the output is not for a terminal; give --output {file}, or redirect stdout"
    assert said in done.stderr.decode()


@pytest.mark.parametrize("variables", [{"PYTHONIOENCODING": "latin-1"}, {"LC_ALL": "C"}])
def test_a_dataset_is_shown_in_every_locale(dataset: Path, variables: dict[str, str]) -> None:
    environment = {**os.environ, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", **variables}
    command = [sys.executable, "-m", "nmt", "inspect", str(dataset)]
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "▁" in done.stdout.decode("utf-8")
