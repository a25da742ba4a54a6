"""``nmt translate`` at a terminal: lines, commands, and mistakes that end nothing."""

from __future__ import annotations

import os
import pty
import re
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from nmt.cli import forms
from nmt.cli.app import main
from nmt.cli.flags import Settings
from nmt.cli.interactive import HELP, PROMPT, WELCOME, Session, converse
from nmt.cli.search import search_settings
from nmt.cli.translate import FLAGS
from nmt.errors import NmtError, TerminatedError
from nmt.inference import Translator
from nmt.runs import load_model


@pytest.fixture(scope="module")
def session(trained: Path) -> Session:
    loaded = load_model(trained)

    def load(settings: Settings) -> Translator:
        return Translator(loaded.model, loaded.subwords, search_settings(settings, {}))

    settings = Settings(flags={"search.strategy.beam": 3, "search.strategy": None})
    return Session(load, load(settings), settings, FLAGS, forms.plain)


def answered(session: Session, line: str) -> list[str]:
    return "\n".join(session.answers(line)).split("\n")


def test_a_line_is_translated_and_has_alternatives(session: Session) -> None:
    translator = session._translator
    assert answered(session, "one two") == list(translator.translate(["one two"]))
    assert answered(session, "  ") == [""]
    lines = answered(session, ":alternatives")
    [candidates] = translator.translations(["one two"], 3)
    assert lines == [f"{one.hypothesis.score:9.4f}  {one.text}" for one in candidates]
    assert len(answered(session, ":alternatives 1")) == 1
    assert answered(session, ":help") == HELP.split("\n")
    with pytest.raises(EOFError):
        list(session.answers(":quit"))
    assert answered(session, " :quit") == list(translator.translate([" :quit"]))


def test_a_line_with_markup_is_translated_as_in_a_file(session: Session) -> None:
    form = forms.with_markup("html")
    marked = Session(session._load, session._translator, session._settings, FLAGS, form)
    line = "one <b>two</b>"
    assert answered(marked, line) == form(session._translator, [line], [0])


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        (":set beam=8", "strategy.beam", 8),
        (":set --beam-size = 2", "strategy.beam", 2),
        (":set strategy.beam=5", "strategy.beam", 5),
        (":set coverage_penalty=0.2", "coverage_penalty", 0.2),
        (":set search.max_length_offset=7", "max_length_offset", 7),
        (":set strategy=greedy", "strategy.name", "greedy"),
        (":set strategy=beam", "strategy.name", "beam"),
    ],
)
def test_any_setting_of_the_search_can_be_set(
    session: Session, line: str, key: str, value: object
) -> None:
    [said] = answered(session, line)
    assert said.startswith("search.")
    assert f"{key} = {value}" in answered(session, ":set")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (":set beam=0", "search.strategy: beam must be at least 1, not 0"),
        (":set beam=many", "search.strategy.beam: expected"),
        (":set baem=8", "search: unknown key 'baem'"),
        (":set beam", ":set beam: expected NAME=VALUE, as beam=8"),
        (":set beam=[", ":set beam: line 1: not valid YAML"),
        (":sett beam=8", ":sett: no such command; :help lists them"),
        (":alternatives few", ":alternatives few: expected a number"),
        (":alternatives 100", "100 translations of a line: beam finds at most"),
    ],
)
def test_a_mistake_changes_nothing(session: Session, line: str, message: str) -> None:
    answered(session, "one")
    before = answered(session, ":set")
    with pytest.raises(NmtError, match=re.escape(message)):
        answered(session, line)
    assert answered(session, ":set") == before


def test_sigterm_ends_the_session_and_ctrl_c_the_line(
    session: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = iter([KeyboardInterrupt, TerminatedError, EOFError])

    def interrupted(_: str) -> str:
        raise next(typed)

    monkeypatch.setattr("builtins.input", interrupted)
    with pytest.raises(TerminatedError):
        converse(session)
    assert (capsys.readouterr().out, next(typed)) == ("\n", EOFError)


def test_a_line_that_is_not_utf8_costs_one_line(
    session: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # In the locales C and C.UTF-8 wrong bytes arrive as surrogates, in others as an error.
    typed = iter(["\udcff bad", UnicodeDecodeError("utf-8", b"\xff", 0, 1, "wrong"), EOFError()])

    def read(_: str) -> str:
        if isinstance(line := next(typed), str):
            return line
        raise line

    monkeypatch.setattr("builtins.input", read)
    converse(session)
    assert capsys.readouterr().err.count("nmt: error: the line is not valid UTF-8\n") == 2


def test_there_are_no_alternatives_of_nothing(session: Session) -> None:
    empty = Session(
        session._load, session._translator, replace(session._settings), FLAGS, forms.plain
    )
    with pytest.raises(NmtError, match="there is no line yet"):
        answered(empty, ":alternatives")


def test_a_terminal_has_a_prompt_history_and_lines_that_can_be_cancelled(trained: Path) -> None:
    process, terminal = at_a_terminal("translate", "--model", str(trained), "--strategy", "beam")

    def answer(keys: bytes, end: str = f"\n{PROMPT}") -> str:
        """What the terminal shows up to `end` after keys are typed."""
        # A Ctrl-C before Python waits for keys, or with others, is heard at the next key only.
        while Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "S":
            time.sleep(0.01)
        os.write(terminal, keys)
        return shown(terminal, end)

    try:
        assert WELCOME in shown(terminal, f"\n{PROMPT}")
        first = answer(b"one two\n")
        assert first.startswith("one two")  # echoed, with the translation below
        answer(b"thr", "thr")
        answer(b"\x03")
        assert "nmt: error: search.strategy: beam must be" in answer(b":set beam=0\n")
        assert answer(b":set beam=3\n").endswith("search.strategy.beam = 3")
        # Ctrl-P: the first line again, from the history; blanks may erase a longer line before
        recalled = answer(b"\x10\x10\x10\n")
        assert re.sub(r" *\x08+", "", recalled).endswith(first)
        assert len(re.findall(r"^ +-\d", answer(b":alternatives\n"), re.MULTILINE)) == 3
        os.write(terminal, b"\x04")
        assert os.waitpid(process, 0)[1] == 0
    finally:
        os.close(terminal)  # which ends the process, if it has not ended


def at_a_terminal(*arguments: str) -> tuple[int, int]:
    """Run a command in a new process with a terminal; returns both, the terminal as a file."""
    process, terminal = pty.fork()
    if process:
        return process, terminal
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ["TERM"] = "dumb"
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
        sys.argv = ["nmt", *arguments]
        main()
    except SystemExit as end:
        status = int(end.code or 0)
    finally:
        os._exit(status)


def shown(terminal: int, end: str) -> str:
    """What the terminal shows before `end`."""
    text = ""
    while end not in text:
        text += os.read(terminal, 4096).decode().replace("\r", "")
    return text.partition(end)[0]
