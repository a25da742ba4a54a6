"""``nmt translate`` at a terminal: a prompt with history, and commands that begin with a colon."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nmt.cli.flags import Settings, Table, flags_of
from nmt.cli.forms import Form
from nmt.errors import NmtError, TerminatedError
from nmt.messages import one_line, printable, say
from nmt.recipe.config import dump, parse_yaml

if TYPE_CHECKING:
    from nmt.inference import LineTranslator, Request

PROMPT = "> "

WELCOME = "ready; type a line to translate, :help for commands, and Ctrl-D at the end"

HELP = """\
:set NAME=VALUE      change a setting of the search, as :set beam=8 or :set coverage_penalty=0.2
:set                 show all settings of the search
:alternatives [N]    show N translations of the last line, with their scores
:help                show this help
:quit                end, as Ctrl-D does
Ctrl-C cancels a line. A line that begins with a space is never a command."""

Load = Callable[[Settings], "LineTranslator"]
"""Returns the translator with these settings of the search, or raises an NmtError."""


class Session:
    """The translator of a conversation, and its settings."""

    def __init__(
        self, load: Load, translator: LineTranslator, settings: Settings, table: Table, form: Form
    ) -> None:
        """Begin with a translator.

        Args:
            load: loads a translator for other settings.
            translator: the translator for the settings of the command line.
            settings: those settings.
            table: flags whose names, without dashes, :set knows.
            form: output form of each line.
        """
        self._load, self._translator, self._form = load, translator, form
        self._settings = settings
        self._paths = {
            name.removeprefix("--"): flag.path
            for flag in flags_of(table)
            for name in flag.names
            if name.startswith("--")
        }
        self._requests: list[str | Request] = []
        self._document: list[str] = []
        self._commands: dict[str, Callable[[str], Iterator[str]]] = {
            "set": self._set,
            "alternatives": self._alternatives,
            "help": lambda _: iter([HELP]),
        }

    def answers(self, line: str) -> Iterator[str]:
        """Yield the lines that answer a line: its translation, or what a command says.

        Raises:
            NmtError: the command is unknown or has a mistake; the settings stay as they were.
            EOFError: the line ends the session.
        """
        if not line.startswith(":"):
            if line.strip():
                self._requests.append(self._in_document(line))
                at = len(self._requests) - 1
                yield from self._form(self._translator, self._requests[-1:], [at])
            else:
                self._document.clear()
            return
        name, _, rest = line[1:].strip().partition(" ")
        if name == "quit":
            raise EOFError
        if name not in self._commands:
            raise NmtError(f":{name}: no such command; :help lists them")
        yield from self._commands[name](rest.strip())

    def _in_document(self, line: str) -> str | Request:
        """Return the line, for a model with context with those before it, up to a blank line."""
        if not self._translator.subwords.context:
            return line
        from nmt.inference import Request

        request = Request(line, context=tuple(self._document))
        self._document.append(line)
        return request

    def _set(self, text: str) -> Iterator[str]:
        if not text:
            yield from _flat(dump(self._translator.config))
            return
        name, equals, value = text.partition("=")
        if not equals:
            raise NmtError(f":set {text}: expected NAME=VALUE, as beam=8")
        path = self._path(name.strip())
        flags = {key: other for key, other in self._settings.flags.items() if key != path}
        flags[path] = parse_yaml(value, f":set {name}")
        settings = replace(self._settings, flags=flags)
        self._translator, self._settings = self._load(settings), settings
        yield f"{path} = {value.strip()}"

    def _path(self, name: str) -> str:
        """Return the dotted path of a setting of the search."""
        path = self._paths.get(name.removeprefix("--"), name)
        return path if path.startswith("search.") else f"search.{path}"

    def _alternatives(self, text: str) -> Iterator[str]:
        if not self._requests:
            raise NmtError(":alternatives: there is no line yet")
        count = int(text) if text.isdecimal() else self._translator.config.strategy.max_hypotheses
        if text and not text.isdecimal():
            raise NmtError(f":alternatives {text}: expected a number")
        [candidates] = self._translator.translations(self._requests[-1:], max(1, count))
        for translation in candidates:
            yield f"{translation.hypothesis.score:9.4f}  {translation.text}"


def converse(session: Session) -> None:
    """Read lines at the terminal and answer them, until Ctrl-D or :quit."""
    import readline  # noqa: F401 -- gives input() history and editing

    say(WELCOME)
    while True:
        try:
            line = input(PROMPT)
            line.encode()  # some locales let bytes that are not UTF-8 pass as surrogates
            for answer in session.answers(line):
                print("\n".join(map(printable, answer.split("\n"))), flush=True)
        except NmtError as error:
            say(one_line(f"nmt: error: {error}"))
        except UnicodeError:
            say("nmt: error: the line is not valid UTF-8")
        except TerminatedError:
            raise
        except KeyboardInterrupt:
            print()
        except EOFError:
            print()
            return


def _flat(values: dict[str, Any], before: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name} = {value}"
