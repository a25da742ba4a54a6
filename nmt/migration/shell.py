"""The commands of a toolkit in a command line or a script of a POSIX shell."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import PurePath

from nmt.errors import NmtError

PROGRAMS: Mapping[str, Mapping[str, str]] = {
    "fairseq": {
        "fairseq-train": "train",
        "fairseq-hydra-train": "train",
        "fairseq-preprocess": "preprocess",
        "fairseq-generate": "translate",
        "fairseq-interactive": "translate",
        "fairseq-score": "score",
    },
    "marian": {
        "marian": "train",
        "marian-decoder": "translate",
        "marian-server": "translate",
        "marian-scorer": "score",
    },
    "sockeye": {
        "sockeye-train": "train",
        "sockeye-prepare-data": "preprocess",
        "sockeye-translate": "translate",
        "sockeye-score": "score",
    },
    "opennmt": {"onmt-train": "train", "onmt-translate": "translate"},
}
"""The programs of each toolkit, and the commands of nmt that do the same."""

LAUNCHER = re.compile(
    r"python[\d.]*|torchrun|accelerate|deepspeed|mpirun|srun|env|nohup|time|exec|sudo|timeout"
    r"|numactl|nice|uv|poetry|conda|docker"
)
"""Programs that run another one, behind options of their own."""

KEYWORD = re.compile(r"if|then|elif|else|while|until|do|[!{$>]")
"""Words of the shell, and prompts, that a command follows at once."""

ASSIGNMENT = re.compile(r"(\w+)(\+?)=(.*)", re.DOTALL)

ARRAY = re.compile(r"\w+\+?=")
"""The beginning of an array, before its parenthesis."""

DECLARATION = re.compile(r"export|local|readonly|declare|typeset|-\w+")
"""Words before assignments."""

WORD = r"""(?:'[^']*'|"(?:\\.|[^"\\])*"|\\[^\r\n]|`[^`]*`|[$<>]\((?:[^()]|\([^()]*\))*\)"""
WORD += r"""|[^\s;|&<>()'"`\\])+"""
"""Text without spaces outside of quotes and substitutions."""

TOKEN = re.compile(
    # A here-document.
    r"<<-?[ \t]*(['\"]?)(?P<end>\w+)\1[^\n]*\n(?:.*?\n)??[ \t]*(?P=end)(?=\r?\n|\Z)"
    r"|\(\((?:[^()]|\([^()]*\))*\)\)"  # arithmetic
    r"|[ \t\r]+|\\\r?(?:\n|\Z)|\n(?=[ \t]*-)|\#[^\n]*"  # a line of options continues a command
    r"|(?P<prompt>(?:^|(?<=\n))[ \t]*[$>](?=[ \t]))"
    rf"|(?:\d+|&)?[<>]{{1,3}}[&|]?[ \t]*(?!-)(?![\w./-]+>){WORD}"  # a redirection
    r"|(?P<operator>[;|&)\n]+|\(\)?)"
    rf"|(?P<word><[\w./-]+>|{WORD})"
    r"|(?P<quote>['\"`\\])",  # without another one
    re.DOTALL,
)

PIECE = re.compile(r"""'([^']*)'|\\(.)|"((?:\\.|[^"\\])*)"|([^'"\\]+)""", re.DOTALL)
"""A part of a word: in single quotes, one quoted character, in double quotes, or without quotes."""

VARIABLE = re.compile(
    r"\\[$`\"\\]|\$(?:(?P<bare>\w+)|\{(?P<name>\w+)(?:\[[@*]\])?(?:(?P<colon>:?)-(?P<default>[^{}]*))?\})"
)
"""A variable, as ``$NAME``, ``${NAME:-default}`` or ``${NAME[@]}``; or a quoted character."""

ELEMENTS = re.compile(r'"\$\{(\w+)\[@\]\}"')
"""All words of an array, which may have spaces."""

UNKNOWN = re.compile(r"(?:\$(?:\w+|[@*#]|\{[^{}]*\}|\([^()]*\))|`[^`]*`)+")
"""What a shell alone can replace: a variable without a value here, or the output of a command."""

WHICH = re.compile(r"(?:\$\(|`)which\s+([^\s()`]+)\s*[)`]")
"""The path of a program, as a substitution."""


Variables = dict[str, list[str]]
"""The words of arrays, and the values of other variables, by name."""


@dataclass(frozen=True)
class Command:
    """A command of a toolkit."""

    toolkit: str
    program: str
    """Name in the form of `PROGRAMS`."""
    words: list[str]
    """Words behind the program."""
    devices: int | None
    """Number of GPUs that the words before the program say."""
    loops: Sequence[str] = ()
    """Loops over several values before the command, of which the first is taken."""


def commands_of(text: str, toolkit: str) -> list[Command]:
    """Return the commands of a toolkit in a text, at least one.

    Raises:
        NmtError: there is none, or the text cannot be read.
    """
    commands: list[Command] = []
    exported: list[str] = []
    loops: list[str] = []
    for words in simple_commands(text):
        if command := _command(words, toolkit, exported):
            commands.append(replace(command, loops=tuple(filter(None, loops))))
        elif _loop(words) or words[0] in ("while", "until"):
            loops.append(" ".join(words) if _loop(words) and len(words) > 4 else "")
        elif words[0] == "done":
            loops[-1:] = []
        elif _assigned(words, {}):
            exported += words
    if chosen := [command for command in commands if command.toolkit == toolkit]:
        return chosen
    if commands:
        program, other = commands[0].program, commands[0].toolkit
        raise NmtError(f"{program} is a program of {other}; use --from {other}")
    known = ", ".join(PROGRAMS[toolkit])
    raise NmtError(f"no program of {toolkit} to convert; give a command line of one of {known}")


def simple_commands(text: str) -> list[list[str]]:
    """Return the words of each command of a text, without quotes, redirections and comments.

    Variables have the values that assignments before them give, of two branches those of the last,
    of a loop that of the first round; others stay as they are.

    Raises:
        NmtError: quotes or parentheses do not match.
    """
    commands: list[list[str]] = [[]]
    variables: Variables = {}
    array = ""
    for token in TOKEN.finditer(text):
        words = commands[-1]
        if token["word"]:
            words += _words(token["word"], variables | _assigned(words, variables))
        elif token["quote"]:
            raise NmtError("the command line cannot be read: No closing quotation; mend its quotes")
        elif token["operator"] == "(" and words and ARRAY.fullmatch(words[-1]):
            array = words.pop()
            commands.append([])
        elif token["operator"] == "(" and words:
            raise NmtError(
                f"the command line cannot be read: ( behind {words[-1]}; give the commands alone, "
                "with their parentheses in quotes"
            )
        elif array and ")" in (token["operator"] or ""):
            name = array.rstrip("+=")
            variables[name] = [*(variables.get(name, []) if "+" in array else []), *words]
            array, commands[-1] = "", []
        elif token["operator"] and not array:
            variables |= _assigned(words, variables)
            commands.append([])
    return [words for words in commands if words]


def _words(word: str, variables: Variables) -> list[str]:
    """Return what a word stands for: several words if it is a variable without quotes."""
    plain = WHICH.sub(r"\1", word)
    elements = ELEMENTS.fullmatch(plain)
    if elements and elements[1] in variables:
        return variables[elements[1]]
    whole = VARIABLE.fullmatch(plain)
    if whole and whole[0][0] == "$":
        return _filled(plain, variables).split()
    parts = (
        part[1] or part[2] or _filled(part[3] or part[4] or "", variables)
        for part in PIECE.finditer(plain)
    )
    return ["".join(parts)]


def _filled(text: str, variables: Variables) -> str:
    """Return a text with the values of its variables, or their defaults; others stay."""

    def value(match: re.Match[str]) -> str:
        """Return what takes the place of a variable or of a quoted character."""
        if match[0][0] == "\\":
            return match[0][1:]
        known = variables.get(match["bare"] or match["name"])
        is_missing = known is None or (match["colon"] and not any(known))
        if match["default"] is not None and is_missing:
            return _filled(match["default"], variables)
        return match[0] if known is None else " ".join(known)

    return VARIABLE.sub(value, text)


def _assigned(words: list[str], variables: Variables) -> Variables:
    """Return the variables that a loop, or a command of assignments alone, sets."""
    assigned: Variables = {}
    if _loop(words):
        return {} if UNKNOWN.fullmatch(words[3]) else {words[1]: [words[3]]}
    for word in words:
        match = ASSIGNMENT.fullmatch(word)
        if match:
            name, is_added, value = match.groups()
            before = assigned.get(name) or variables.get(name) or [""]
            assigned[name] = [*before[:-1], before[-1] + value] if is_added else [value]
        elif not KEYWORD.fullmatch(word) and not DECLARATION.fullmatch(word):
            return {}
    return assigned


def _loop(words: list[str]) -> bool:
    """Return whether words are the beginning of a loop, ``for NAME in VALUE ...``."""
    return words[:1] == ["for"] and words[2:3] == ["in"] and len(words) > 3


def _command(words: list[str], toolkit: str, exported: list[str]) -> Command | None:
    """Return the command of a known program that a simple command runs, if it does."""
    is_launched, chosen = False, None
    for place, word in enumerate(words):
        if ASSIGNMENT.fullmatch(word) or KEYWORD.fullmatch(word):
            continue
        for program in _names(word, toolkit):
            for other, programs in PROGRAMS.items():
                # A value of a launcher's option may be the name of another toolkit's program.
                if program in programs and (chosen is None or other == toolkit):
                    devices = _devices([*exported, *words[:place]])
                    chosen = Command(other, program, words[place + 1 :], devices)
        is_launched = is_launched or bool(LAUNCHER.fullmatch(PurePath(word).name))
        if not is_launched or (chosen and chosen.toolkit == toolkit):
            break
    return chosen


def _names(word: str, toolkit: str) -> list[str]:
    """Return the names that the program of a word may have in `PROGRAMS`.

    A module such as ``fairseq_cli.train`` or ``onmt.bin.train`` is the program with dashes, and a
    script such as ``train.py`` the one of the toolkit.
    """
    path = PurePath(word)
    name = re.sub(r"[._](?:(?:cli|bin)\.)?", "-", re.sub(r"\.(py|exe)$", "", path.name))
    first = next(iter(PROGRAMS[toolkit])).partition("-")[0]
    return [name, f"{first}-{name}"] if path.suffix == ".py" else [name]


def _devices(words: list[str]) -> int | None:
    """Return the number of GPUs that environment variables and options of launchers say."""
    settings: dict[str, str] = {}
    for word, value in pairwise([*words, ""]):
        name, equals, assigned = word.partition("=")
        settings[name.replace("_", "-")] = assigned if equals else value
    visible = settings.get("CUDA-VISIBLE-DEVICES", "")
    processes, nodes = (
        int(value) if re.fullmatch(r"[1-9]\d{0,5}", value) else None
        for value in (settings.get("--nproc-per-node", ""), settings.get("--nnodes", ""))
    )
    if processes is None and re.fullmatch(r"[\w-]+(?:,[\w-]+)*", visible):
        processes = visible.count(",") + 1
    return processes and processes * (nodes or 1)
