"""Messages are fit for a terminal."""

from __future__ import annotations

from conftest import Command

from nmt.cli.console import LONGEST_MESSAGE, one_line


def test_an_error_spells_out_the_escapes_of_a_name(nmt: Command) -> None:
    done = nmt("score", "--reference", "\x1b[31mred\n", "x")
    assert done.status == 1
    assert done.err == "nmt: error: \\x1b[31mred\\n: No such file or directory\n"


def test_a_long_message_is_cut() -> None:
    assert one_line("é" * LONGEST_MESSAGE) == "é" * LONGEST_MESSAGE
    assert one_line("é" * (LONGEST_MESSAGE + 1)) == "é" * LONGEST_MESSAGE + " ..."
