"""The commands of a toolkit in a command line or a script of a POSIX shell."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
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

ASSIGNMENT = re.compile(r"\w+=.*", re.DOTALL)

WORD = r"""(?:'[^']*'|"(?:\\.|[^"\\])*"|\\[^\r\n]|`[^`]*`|[$<>]\((?:[^()]|\([^()]*\))*\)"""
WORD += r"""|[^\s;|&<>()'"`\\])+"""
"""Text without spaces outside of quotes and substitutions."""

TOKEN = re.compile(
    r"[ \t\r]+|\\\r?(?:\n|\Z)|\n(?=[ \t]*-)|\#[^\n]*"  # a line of options continues a command
    r"|(?P<prompt>(?:^|(?<=\n))[ \t]*[$>](?=[ \t]))"
    rf"|(?:\d+|&)?[<>]{{1,3}}[&|]?[ \t]*(?!-)(?![\w./-]+>){WORD}"  # a redirection
    r"|(?P<operator>[;|&)\n]+|\(\)?)"
    rf"|(?P<word><[\w./-]+>|{WORD})"
    r"|(?P<quote>['\"`\\])",  # without another one
    re.DOTALL,
)

PIECE = re.compile(r"""'([^']*)'|\\(.)|"((?:\\.|[^"\\])*)"|([^'"\\]+)""", re.DOTALL)
"""A part of a word: in single quotes, one quoted character, in double quotes, or without quotes."""

VARIABLE = re.compile(r"\\[$`\"\\]|\$(?:(\w+)|\{(\w+)(?:\[[@*]\])?(?::?-([^{}]*))?\})")
"""A variable, as ``$NAME``, ``${NAME:-default}`` or ``${NAME[@]}``; or a quoted character."""

ARRAY = re.compile(r'"(\$\{\w+\[@\]\})"')
"""All words of an array, which stay apart in spite of the quotes."""

WHICH = re.compile(r"(?:\$\(|`)which\s+([^\s()`]+)\s*[)`]")
"""The path of a program, as a substitution."""


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


def commands_of(text: str, toolkit: str) -> list[Command]:
    """Return the commands of a toolkit in a text, at least one.

    Raises:
        NmtError: there is none, or the text cannot be read.
    """
    commands: list[Command] = []
    exported: list[str] = []
    for words in simple_commands(text):
        if command := _command(words, toolkit, exported):
            commands.append(command)
        elif words[0] == "export" or all(map(ASSIGNMENT.fullmatch, words)):
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

    Variables have the values that earlier commands assign to them; others stay as they are.

    Raises:
        NmtError: quotes or parentheses do not match.
    """
    commands: list[list[str]] = [[]]
    variables: dict[str, str] = {}
    for token in TOKEN.finditer(text):
        if token["word"]:
            commands[-1] += _words(token["word"], variables)
        elif token["quote"]:
            raise NmtError("the command line cannot be read: No closing quotation; mend its quotes")
        elif token["operator"] == "(" and commands[-1] and commands[-1][-1].endswith("="):
            commands.append([f"{commands[-1].pop()}("])  # an array
        elif token["operator"] == "(" and commands[-1]:
            raise NmtError(
                f"the command line cannot be read: ( behind {commands[-1][-1]}; give the commands "
                "alone, with their parentheses in quotes"
            )
        elif token["operator"] and (")" in token["operator"] or not _is_array(commands[-1])):
            variables |= _assigned(commands[-1])
            commands.append([])
    return [words for words in commands if words]


def _words(word: str, variables: Mapping[str, str]) -> list[str]:
    """Return what a word stands for: several words if it is a variable without quotes."""

    def filled(text: str) -> str:
        return VARIABLE.sub(lambda match: _value(match, variables), text)

    plain = ARRAY.sub(r"\1", WHICH.sub(r"\1", word))
    whole = VARIABLE.fullmatch(plain)
    if whole and whole[0][0] == "$":
        return filled(plain).split()
    pieces = PIECE.finditer(plain)
    return ["".join(part[1] or part[2] or filled(part[3] or part[4] or "") for part in pieces)]


def _value(match: re.Match[str], variables: Mapping[str, str]) -> str:
    """Return the value of a variable, its default or, without both, its name as it stands."""
    if match[0][0] == "\\":
        return match[0][1:]
    default = match[0] if match[3] is None else match[3]
    return variables.get(match[1] or match[2], default)


def _assigned(words: list[str]) -> dict[str, str]:
    """Return the variables that a command sets for those after it, by name."""
    if _is_array(words):
        return {words[0][:-2]: " ".join(words[1:])}
    settings = words[1:] if words[:1] == ["export"] else words
    if not all(map(ASSIGNMENT.fullmatch, settings)):
        return {}
    return dict(setting.split("=", 1) for setting in settings)


def _is_array(words: list[str]) -> bool:
    return bool(words) and words[0].endswith("=(")


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
