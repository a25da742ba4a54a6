"""Options of another toolkit, and the recipe that is made of them."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nmt.errors import NmtError
from nmt.migration.shell import PROGRAMS, UNKNOWN, Command, commands_of
from nmt.recipe.config import set_path

TOKENS_PER_SENTENCE = 25
"""Target tokens of a sentence that are assumed where a batch is counted in sentences."""

JOINED = re.compile(r"^(-[A-Za-z])([-+.]?\d|[$`])")
"""The beginning of a short option with its value in the same word, such as ``-b12``."""

MAX_NUMBER = 1e15
"""Numbers of options are smaller."""


@dataclass
class Options:
    """Options of a command by name, each taken at most once."""

    command: str
    """Command of nmt that does the same."""
    values: dict[str, list[Any]]
    """Values by name, such as ``--max-tokens`` or ``-b``; none for a switch."""
    positional: list[str] = field(default_factory=list)
    devices: int | None = None
    """Number of GPUs that the command line says before the program."""
    program: str = ""
    """Name of the program; empty for a configuration."""
    beside: Collection[str] = ()
    """Commands of nmt that the other commands of a script have for counterparts."""
    unknown: list[tuple[str, str]] = field(default_factory=list)
    """Words that a shell alone can replace, each with its option; they are left out."""
    loops: Sequence[str] = ()
    """Loops of the script over several values, of which the first is taken."""
    assumed: dict[str, Any] = field(default_factory=dict)
    """Defaults of the toolkit by name, for options that are not given."""

    @classmethod
    def of_script(cls, text: str, toolkit: str) -> list[Options]:
        """Return the options of each command of a toolkit in a text in the syntax of a POSIX shell.

        Raises:
            NmtError: the text has no command of the toolkit, or cannot be read.
        """
        commands = [cls._of_command(command) for command in commands_of(text, toolkit)]
        for options in commands:
            options.beside = {other.command for other in commands if other is not options}
        return commands

    @classmethod
    def _of_command(cls, command: Command) -> Options:
        ours = PROGRAMS[command.toolkit][command.program]
        options = cls(ours, {}, devices=command.devices, program=command.program)
        options.loops = command.loops
        current, option = options.positional, ""
        for word in command.words:
            word = JOINED.sub(r"\1=\2", word)
            name, equals, value = word.partition("=")
            if re.match(r"--?[A-Za-z]", word):
                option = _normal(name)
                current = options.values.setdefault(option, [])
                current.clear()
                if not equals:
                    continue
                word = value
            if UNKNOWN.fullmatch(word):
                options.unknown.append((option, word))
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
            options[_normal(f"--{key}")] = listed
        return cls("train", options)

    def __contains__(self, name: str) -> bool:
        return name in self.values and not self._lacks_value(name)

    def _lacks_value(self, name: str) -> bool:
        """Return whether no value of an option is known, which may also be a switch."""
        return not self.values[name] and any(option == name for option, _ in self.unknown)

    def take(self, *names: str) -> list[Any] | None:
        """Return the values of the first of some names that is there, and forget all of them."""
        known = [self.values[name] for name in names if name in self]
        for name in names:
            self.values.pop(name, None)
        return known[0] if known else None

    def assume(self, name: str, value: Any) -> Any:
        """Return the toolkit's default of an option that is not given, and note it for the user."""
        self.assumed[name] = value
        return value

    def text(self, *names: str, default: str = "", assumed: str | None = None) -> str:
        """Return the value of an option, or the default; an assumed one is noted for the user."""
        if values := self.take(*names):
            return str(values[0])
        return default if assumed is None else str(self.assume(names[0], assumed))

    def switch(self, *names: str) -> bool:
        """Return whether a switch is on."""
        values = [self.values.pop(name) for name in names if name in self.values]
        return bool(values) and [str(value).lower() for value in values[0]] != ["false"]

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

    def rest(self) -> Iterator[tuple[str, list[Any]]]:
        """Yield the options that have not been taken."""
        yield from ((name, values) for name, values in self.values.items() if name in self)


@dataclass
class Draft:
    """A recipe in the making."""

    recipe: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """What was assumed, and what the recipe does not hold, line by line."""

    def set(self, **values: Any) -> None:
        """Set keys of the recipe; ``train__lr`` stands for ``train.lr``. None sets nothing."""
        for name, value in values.items():
            if value is not None:
                set_path(self.recipe, name.replace("__", "."), value)

    def note(self, line: str) -> None:
        """Add a line for the user."""
        self.notes.append(line)

    def set_vocabulary(self, *sizes: int | None) -> None:
        """Set the size of both vocabularies to the largest of some sizes; 0 and None are none."""
        known = set(filter(None, sizes))
        self.set(preprocess__vocab_size=max(known, default=None))
        if len(known) > 1:
            self.note(f"vocab_size {max(known)}: both vocabularies have one size, the larger one")

    def peak(self, name: str, lr: float, warmup_updates: int) -> float:
        """Return the highest rate of a schedule that is `lr` / sqrt(max(update, warm-up)).

        Args:
            name: option with the rate, for a note.
            lr: its value.
            warmup_updates: updates of the warm-up, at least 1.
        """
        peak = float(f"{lr / math.sqrt(warmup_updates):.6g}")
        self.note(
            f"lr {peak:g}: {name} {lr:g}, divided by the square root of warmup_updates "
            f"{warmup_updates}, is the peak"
        )
        return peak

    def set_batch(
        self, tokens: float | None, sentences: float | None, accumulated: float, devices: int | None
    ) -> None:
        """Set the size of an update from that of a device's batch, and say what is assumed.

        Args:
            tokens: tokens of a device's batch; None where it is counted in sentences.
            sentences: sentences of a device's batch.
            accumulated: batches of a device in one update.
            devices: number of devices; None where nothing says.
        """
        gpus = f"{devices or 1} GPU" + ("s" if (devices or 1) > 1 else "")
        without = "" if devices else ", as assumed without --gpus N"
        factors = f" x {accumulated:g} batch{'es' if accumulated > 1 else ''} x {gpus}{without}"
        self.set_update(tokens, sentences, accumulated * (devices or 1), factors)

    def set_update(
        self, tokens: float | None, sentences: float | None, factor: float, remark: str
    ) -> None:
        """Set the size of an update from that of a batch, and say what is assumed.

        Args:
            tokens: tokens of a batch; None where it is counted in sentences.
            sentences: sentences of a batch.
            factor: batches in one update.
            remark: for a note, why there are so many.
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


def parallel(source: object, target: object) -> tuple[str, str, str] | None:
    """Return the prefix and the endings of two files of parallel text, perhaps compressed.

    Returns:
        Prefix, source language and target language; None if the files have other names.
    """
    names = [re.sub(r"\.(gz|xz|zst)$", "", str(path)) for path in (source, target)]
    (one, source_lang), (other, target_lang) = (split_ending(name) for name in names)
    is_pair = one == other and source_lang and target_lang and source_lang != target_lang
    return (one, source_lang, target_lang) if is_pair else None


def split_ending(name: str) -> tuple[str, str]:
    """Return a name without its ending, and the ending; both empty if there is none."""
    match = re.fullmatch(r"(.*)\.([^./]+)", name)
    return (match[1], match[2]) if match else ("", "")


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


def _normal(name: str) -> str:
    return name.replace("_", "-")
