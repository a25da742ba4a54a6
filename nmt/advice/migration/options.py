"""Options of another toolkit's command, and the recipe made from these options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import takewhile
from pathlib import PurePath
from typing import Any

from nmt.advice.migration.hints import HINTS
from nmt.errors import NmtError
from nmt.recipe.config import set_path

TOKENS_PER_SENTENCE = 25
"""Assumed target tokens of a sentence where a batch is counted in sentences."""

MAX_NUMBER = 1e15
"""Numbers of options are smaller."""

JOINED = re.compile(r"^(-[A-Za-z])([-+.]?\d)")
"""The beginning of a short option with its value in the same word, such as ``-b12``."""

REDIRECTION = re.compile(r"\d?>{1,2}[\w./-]*|<")
"""A word after which files follow, not options."""

SECTIONS = {
    "preprocess": ("preprocess",),
    "train": ("preprocess", "model", "train", "search"),
    "translate": ("search",),
}
"""Sections of the recipe that a command sets."""

LIMITS = {
    f"train.{key}"
    for key in ("keep_last", "log_every", "max_epochs", "patience", "save_every", "valid_every")
}
"""Keys with numbers from 1; other toolkits write 0 or -1 for no limit."""


@dataclass
class Options:
    """Options of a command by name; each option is consumed at most once."""

    command: str
    """Command of nmt that does the same."""
    values: dict[str, list[Any]]
    """Values by name, such as ``--max-tokens`` or ``-b``; none for a switch."""
    positional: list[str] = field(default_factory=list)
    devices: int | None = None
    """Number of GPUs that the user gives."""
    assumed: dict[str, Any] = field(default_factory=dict)
    """Defaults of the toolkit by name, for options that are not given."""

    @classmethod
    def of_command_line(cls, text: str, programs: Mapping[str, str]) -> Options:
        r"""Return the options of a command line, which ``\`` continues at the end of a line.

        Args:
            text: the command line; lines without one of the programs are ignored.
            programs: the command of nmt by the name of the program.

        Raises:
            NmtError: the text has no such command line, or several, or an incomplete command line.
        """
        commands: list[tuple[str, list[str]]] = []
        # A line that begins with an option continues the command, also without a backslash.
        for line in re.sub(r"\\\r?\n|\n(?=[ \t]*-)", " ", text).splitlines():
            if line.lstrip().startswith("#") or not any(name in line for name in programs):
                continue
            for words in _commands(line):
                names = [PurePath(word.strip("()")).name for word in words]
                place = next((n for n, name in enumerate(names) if name in programs), None)
                if place is not None:
                    commands.append((names[place], words[place + 1 :]))
        if not commands:
            known = ", ".join(programs)
            raise NmtError(f"no command to convert; give a command line of one of {known}")
        if len(commands) > 1:
            listed = ", ".join(name for name, _ in commands)
            raise NmtError(f"several commands: {listed}; give one command at a time")
        [(program, words)] = commands
        options = cls(programs[program], {})
        current = options.positional
        for word in words:
            if re.search(r"\$[\w{(]|`", word):
                raise NmtError(f"{word}: the shell replaces it; write its value instead")
            name, equals, value = JOINED.sub(r"\1=\2", word).partition("=")
            if re.match(r"--?[A-Za-z]", name):
                # Some toolkits take dashes and underscores alike.
                current = options.values[name.replace("_", "-")] = [value] if equals else []
            else:
                current.append(word)
        return options

    @classmethod
    def of_configuration(cls, values: Mapping[Any, Any]) -> Options:
        """Return the options of a configuration: keys are names without dashes."""
        options: dict[str, list[Any]] = {}
        for key, value in values.items():
            if value is False or value is None:
                continue
            listed = [] if value is True else value if isinstance(value, list) else [value]
            options[f"--{key}".replace("_", "-")] = listed
        return cls("train", options)

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def take(self, *names: str) -> list[Any] | None:
        """Return the values of the first name that is present, and remove all the names."""
        values = [self.values.pop(name) for name in names if name in self.values]
        return values[0] if values else None

    def assume(self, name: str, value: Any) -> Any:
        """Return the toolkit's default of an option that is not given, and note it for the user."""
        self.assumed[name] = value
        return value

    def text(self, *names: str, default: str = "", assumed: str | None = None) -> str:
        """Return the value of an option, or the default; note an assumed default for the user."""
        if values := self.take(*names):
            return str(values[0])
        return default if assumed is None else str(self.assume(names[0], assumed))

    def switch(self, *names: str) -> bool:
        """Return whether a switch is on."""
        values = self.take(*names)
        return values is not None and [str(value).lower() for value in values] != ["false"]

    def number(
        self, *names: str, default: float | None = None, assumed: float | None = None
    ) -> Any:
        """Return the number of an option, an int if it is whole, or the default.

        An assumed default is noted for the user.

        Raises:
            NmtError: the value is not a number.
        """
        if values := self.take(*names):
            return number_of(names[0], values[0])
        return default if assumed is None else self.assume(names[0], assumed)

    def numbers(self, name: str) -> list[Any]:
        """Return the numbers of an option, none without the option.

        Raises:
            NmtError: a value is not a number.
        """
        return [number_of(name, value) for value in self.take(name) or []]


@dataclass
class Draft:
    """A recipe in the making."""

    recipe: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """Notes for the user on assumptions, and on options that the recipe does not hold."""

    def set(self, **values: Any) -> None:
        """Set keys of the recipe; ``train__lr`` stands for ``train.lr``. None sets nothing."""
        for name, value in values.items():
            if value is not None:
                set_path(self.recipe, name.replace("__", "."), value)

    def note(self, line: str) -> None:
        """Add a line for the user."""
        self.notes.append(line)

    def set_vocabulary(self, *sizes: int | None) -> None:
        """Set the size of both vocabularies to the largest size; 0 and None do not count."""
        known = set(filter(None, sizes))
        self.set(preprocess__vocab_size=max(known, default=None))
        if len(known) > 1:
            self.note(f"vocab_size {max(known)}: both vocabularies have one size, the larger size")

    def set_update(
        self, tokens: float | None, sentences: float | None, factor: float, remark: str
    ) -> None:
        """Set the size of an update from the size of a batch, and note the assumptions.

        Args:
            tokens: tokens of a batch; None if the batch is counted in sentences.
            sentences: sentences of a batch.
            factor: batches in one update.
            remark: words for the note that explain the factor.
        """
        size = tokens or (sentences or 0) * TOKENS_PER_SENTENCE
        if not size:
            return
        unit = f"{size:g} tokens" if tokens else f"{sentences:g} sentences of {TOKENS_PER_SENTENCE}"
        update = round(size * factor)
        self.set(train__tokens_per_update=max(1, update))
        self.note(
            f"tokens_per_update {update}: {unit}{remark}; nmt counts target tokens without padding"
        )

    def finish(
        self, options: Options, toolkit: str, keys: Mapping[str, str], reasons: Mapping[str, str]
    ) -> None:
        """Set the keys of the remaining options, and note the options without a key.

        Args:
            options: options that the toolkit's rules did not consume.
            toolkit: name of the toolkit, for a note.
            keys: the recipe key of an option.
            reasons: why the recipe does not hold an option.
        """
        if options.assumed:
            defaults = ", ".join(f"{name} {_shown(of)}" for name, of in options.assumed.items())
            self.note(f"not given, so {toolkit}'s defaults: {defaults}")
        hints = HINTS.get(options.command, {})
        unknown: list[str] = []
        for name, values in options.values.items():
            shown, key = " ".join([name, *map(str, values)]), keys.get(name)
            if key and key.partition(".")[0] not in SECTIONS.get(options.command, ()):
                self.note(f"{shown}: nmt {options.command} does not set {key}")
            elif key and values:
                self._carry(key, scalar(values[0]), shown, len(values))
            elif reason := reasons.get(name) or hints.get(name):
                self.note(f"{shown}: {reason}")
            elif near := get_close_matches(name, [*keys, *hints], n=1, cutoff=0.88):
                self.note(f"{shown}: unknown, not carried over; did you mean {near[0]}?")
            else:
                unknown.append(shown)
        if unknown:
            self.note(
                f"not carried over; leave out, or set what docs/recipe.md has: {', '.join(unknown)}"
            )
        for word in options.positional:
            self.note(f"{word}: not carried over; nmt reads a dataset (--data), a run or a file")

    def _carry(self, key: str, value: Any, shown: str, count: int) -> None:
        """Set a key to the value of one option."""
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_number and value < (1 if key in LIMITS else 0):
            self.note(f"{shown}: no limit or seed there; the default of {key} is taken")
            return
        set_path(self.recipe, key, value)
        if count > 1:
            self.note(f"{shown}: {key} has one value; the first is taken")


def _commands(line: str) -> list[list[str]]:
    """Return the words of each command of a line, without redirections.

    Raises:
        NmtError: a quotation has no end.
    """
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";|&")
    # A "#" within a word begins no comment.
    lexer.whitespace_split, lexer.commenters = True, ""
    commands: list[list[str]] = [[]]
    try:
        for word in lexer:
            if set(word) <= set(";|&"):
                commands.append([])
            else:
                commands[-1].append(word)
    except ValueError as error:
        raise NmtError(f"the command line cannot be read: {error}; correct it") from None
    return [[*takewhile(lambda word: not REDIRECTION.fullmatch(word), words)] for words in commands]


def _shown(value: Any) -> str:
    """Return a default in the form of a command line."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def number_of(name: str, value: Any) -> Any:
    """Return the number that a value of an option is or spells, an int if it is whole.

    Raises:
        NmtError: the value is not a finite number.
    """
    number = scalar(value)
    is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
    if is_number and abs(number) < MAX_NUMBER:  # neither infinite nor NaN
        return int(number) if number == int(number) else number
    raise NmtError(f"{name}: expected a number, not {value!r}")


def scalar(value: Any) -> Any:
    """Return the number or truth value that a text spells, else the value itself."""
    if not isinstance(value, str):
        return value
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(value.lower(), value)
