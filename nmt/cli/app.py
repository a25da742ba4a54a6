"""The program ``nmt``: registers the commands, formats their help, and prints errors as one line.

At a terminal the help lists options in panels by subject, elsewhere in one list.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from itertools import takewhile
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from nmt import __version__
from nmt.cli.console import STDOUT, write_utf8
from nmt.cli.hints import answer, answer_arguments, answer_command, answer_key, answer_single_dash
from nmt.cli.interruption import INTERRUPTED, raise_at_interrupt, terminable
from nmt.errors import LostPeerError, NmtError, TerminatedError, UnknownKeyError, explain
from nmt.io.files import named
from nmt.messages import one_line, redirect_to_null, say
from nmt.runtime.machine import is_out_of_memory

_NOTE = re.compile(r"\[(?:default: |env var: |required|x[<>]|\w+ only)[^\]]*\]")

_SHORT_NOTE = re.compile(r"\[default: [^\] ]{,20}\]")

Rows = list[tuple[str, str]]
"""Options or commands, each with its help."""


class Command(TyperCommand):
    """A command whose options are in panels at a terminal."""

    allow_extra_args = True  # `invoke` refuses them

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; an error of the parser names this command."""
        ours = [name for parameter in self.params for name in parameter.opts]
        for word in takewhile(lambda word: word != "--", args):
            if message := answer_single_dash(word, ours):
                ctx.fail(message)
        try:
            rest: list[str] = super().parse_args(ctx, args)
        except Exception as error:
            if getattr(error, "ctx", ctx) is None:
                error.ctx = ctx  # type: ignore[attr-defined]
            raise
        return rest

    def invoke(self, ctx: Any) -> Any:
        """Run the command, unless there are more arguments than it takes."""
        if ctx.args:
            ours = [name for parameter in self.params for name in parameter.opts]
            ctx.fail(answer_arguments(ctx.info_name, ctx.args, ours))
        return super().invoke(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options."""
        if sys.stdout.isatty():
            formatter.write(
                in_panels(options_by_subject(self.get_params(ctx), ctx), formatter.width)
            )
        else:
            super().format_options(ctx, formatter)


class CommandGroup(TyperGroup):
    """A program whose options and commands are in panels at a terminal."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options and the commands."""
        if sys.stdout.isatty():
            panels = options_by_subject(self.get_params(ctx), ctx)
            panels["Commands"] = [
                (name, command.get_short_help_str(1000)) for name, command in self.commands.items()
            ]
            formatter.write(in_panels(panels, formatter.width))
        else:
            super().format_options(ctx, formatter)


def options_by_subject(parameters: Iterable[Any], context: Any) -> dict[str, Rows]:
    """Return the options and arguments that are not hidden, by the titles of their panels."""
    panels: dict[str, Rows] = {}
    for parameter in parameters:
        if record := parameter.get_help_record(context):
            panels.setdefault(parameter.rich_help_panel or "Options", []).append(record)
    return panels


def in_panels(panels: Mapping[str, Rows], width: int) -> str:
    """Return a panel for each subject, with the colours that the terminal has."""
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    console = Console()
    # click's formatter is two columns narrower than the terminal.
    console.width = min(console.width, width + 2)
    names = [name for rows in panels.values() for name, _ in rows]
    widest = min(max(map(len, names)), console.width // 3)
    with console.capture() as written:
        console.print()
        for subject, rows in panels.items():
            table = Table.grid(padding=(0, 2, 0, 0))
            table.add_column(width=widest)
            table.add_column()
            for name, meaning in rows:
                meaning = " ".join(meaning.split())
                option, text = Text(name, "yellow"), Text(_SHORT_NOTE.sub(_unbroken, meaning))
                option.highlight_regex(r"(?<!\S)-[-\w]+|^\w[\w-]*$", "bold cyan")
                text.highlight_regex(_NOTE, "dim")
                table.add_row(option, text)
            console.print(Panel(table, title=subject, title_align="left", border_style="dim"))
    return written.get()


def _unbroken(text: re.Match[str]) -> str:
    return text[0].replace(" ", "\N{NO-BREAK SPACE}")


def _as_written(text: str) -> str:
    """Return the text with click's mark against wrapping, so that examples can be copied."""
    return "\n\n".join(
        f"\b\n{paragraph}" if paragraph.startswith((" ", "Example")) else paragraph
        for paragraph in text.split("\n\n")
    )


OUT_OF_MEMORY = (
    "out of memory; lower --batch-tokens of nmt translate or --max-tokens of nmt train, use fewer "
    "--workers, or raise the limit if one is set (ulimit -v)"
)

REPEATABLE = f"{INTERRUPTED}; run the same command again"

INTERRUPTIONS = {
    "preprocess": f"{REPEATABLE} to resume",
    "train": f"{REPEATABLE}, which resumes from the last checkpoint, if there is one",
}
"""Messages for the commands that resume; training says more if it can still save."""

WORDING = {
    "Input should be greater than or equal to": "must be at least",
    "Input should be less than or equal to": "must be at most",
    ", unable to parse string as an integer": "",
    ", unable to parse string as a number": "",
    "Input should be a valid integer": "must be a whole number",
    "Input should be a valid number": "must be a number",
    "Input should be": "must be",
}
"""Our words for pydantic's, in order."""


class _ReaderLeftError(Exception):
    """The reader of stdout is gone. Typer would turn BrokenPipeError into status 1."""


class _InterruptedError(Exception):
    """Ctrl-C or SIGTERM. Typer would turn KeyboardInterrupt into status 130 without a message.

    Attributes:
        status: exit status, 128 + the number of the signal.
    """

    def __init__(self, message: str, number: signal.Signals) -> None:
        super().__init__(message)
        self.status = 128 + number


COMMANDS = {
    "init": "init.init",
    "recipe": "convert_recipe.convert",
    "preprocess": "preprocess.preprocess",
    "inspect": "inspect.inspect",
    "train": "train.train",
    "average-checkpoints": "model.average.average_checkpoints",
    "shortlist": "model.shortlist.shortlist",
    "calibrate": "model.calibrate.calibrate",
    "export": "model.export.export",
    "import": "model.import_model.import_model",
    "translate": "translate.command.translate",
    "serve": "serve.serve",
    "align": "align.align",
    "explain": "explain.explain",
    "report": "report.report",
    "rescore": "score.rescore.rescore",
    "tune": "score.tune.tune",
    "filter": "filter.filter_pairs",
    "score": "score.command.score",
}
"""Module and function of each command, in the order of ``nmt --help``."""

FINISH_AT_SIGTERM = ("train", "serve")
"""Commands that finish their current work at SIGTERM."""


@functools.cache
def _command(name: str) -> Any:
    """Return a command, after importing its module."""
    where, _, function = COMMANDS[name].rpartition(".")
    module = importlib.import_module(f"nmt.cli.{where}")
    command = getattr(module, function)
    interrupted = INTERRUPTIONS.get(name, INTERRUPTED)
    at_sigterm = nullcontext if name in FINISH_AT_SIGTERM else terminable

    @functools.wraps(command)
    def run(*arguments: object, **options: object) -> None:
        """Run the command; name standard output in its errors, and tell how it was interrupted."""
        message = INTERRUPTED if options.get("dry_run") else interrupted
        try:
            # The imports are done: Ctrl-C now unwinds, so that partial files are removed.
            raise_at_interrupt()
            with named(STDOUT), at_sigterm():  # errors about files already name the file
                command(*arguments, **options)
                # Within `named`, so that a full disk is reported here and not at the end of Python.
                sys.stdout.flush()
        except BrokenPipeError:
            raise _ReaderLeftError from None
        except TerminatedError:
            raise _InterruptedError(message, signal.SIGTERM) from None
        except KeyboardInterrupt:
            raise _InterruptedError(message, signal.SIGINT) from None

    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    summary, _, _ = str(command.__doc__).partition("\n")
    single.command(name, cls=Command, short_help=summary, epilog=_as_written(module.EXAMPLE))(run)
    # Of a single command Typer makes that command and no group.
    return typer.main.get_command(single)


class _Commands(Mapping[str, Any]):
    """The commands by name; each is imported when it is looked up."""

    def __getitem__(self, name: str) -> Any:
        return _command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Program(CommandGroup):
    """The program with its commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "commands": _Commands()})

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the requested command; refuse another toolkit's name for a command."""
        if message := answer_command(*args):
            ctx.fail(message)
        return super().resolve_command(ctx, args)

    def get_params(self, ctx: Any) -> Any:
        """Return the options of the program, which are flags."""
        flags = super().get_params(ctx)
        for flag in flags:
            flag.default = False  # to convert None, Typer would import pydantic, which takes long
        return flags


app = typer.Typer(
    name="nmt",
    cls=_Program,
    help="Train, average, translate with and score neural machine translation models.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"nmt {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _nmt(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def main() -> None:
    """Run a command. A user's mistake prints one line on stderr and no traceback.

    Exit status: 0 success; 1 a mistake in data, recipe or files; 2 a mistake in the command line;
    130 interrupted; 141 the reader of stdout is gone; 143 ended by SIGTERM.
    """
    if sys.stderr is None:  # closed by the shell; print would write to stdout instead
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 -- open until the process ends
    if sys.stdout is None:
        sys.exit(_fail("stdout is closed; use > /dev/null where results are not wanted", 1))
    write_utf8(sys.stdout, sys.stderr)
    try:
        # In standalone mode click would print errors itself, in several lines.
        status = app(prog_name="nmt", standalone_mode=False)
        # What click prints itself, such as help, may still be buffered.
        sys.stdout.flush()
    except LostPeerError as error:
        # Without clean-up, because torch's destructors may wait for the lost peers, too.
        os._exit(_fail(str(error), 1))
    except UnknownKeyError as error:
        status = _fail(answer_key(error), 1)
    except NmtError as error:
        status = _fail(str(error), 1)
    except _InterruptedError as error:
        status = _fail(str(error), error.status)
    except (KeyboardInterrupt, typer.Abort):
        status = _fail(INTERRUPTED, 130)
    except (_ReaderLeftError, BrokenPipeError):
        _drop_stdout()
        status = 141
    except Exception as error:
        if is_out_of_memory(error):
            sys.exit(_fail(OUT_OF_MEMORY, 1))
        if isinstance(error, OSError):
            if error.filename == STDOUT:
                _drop_stdout()
            sys.exit(_fail(explain(error), 1))
        # Typer has its own copy of click, so errors are recognised by their attributes.
        if not hasattr(error, "format_message"):
            raise
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "nmt"
        message = _in_our_words(error.format_message())
        if context and hasattr(error, "possibilities"):  # no such option
            known = [name for parameter in context.command.params for name in parameter.opts]
            message = answer(context.info_name, error.option_name, known)  # type: ignore[attr-defined]
        if context and hasattr(error, "param_type"):  # a missing option or argument
            example = re.search("nmt .*", context.command.epilog or "")
            message = f"{message.rstrip('.')}; for example: {example[0]}" if example else message
        status = _fail(f"{message} (see {command} --help)", 2)
    sys.exit(status or 0)


def _in_our_words(message: str) -> str:
    """Return a message of click without its prefix, and without pydantic's words."""
    for theirs, ours in WORDING.items():
        message = message.replace(theirs, ours)
    return message.removeprefix("Invalid value: ")  # else it names the option


def _drop_stdout() -> None:
    """Redirect stdout to the null device, so that the flush at exit does not fail again."""
    redirect_to_null(sys.stdout.fileno())


def _fail(message: str, status: int) -> int:
    say(one_line(f"nmt: error: {message}"))
    return status
