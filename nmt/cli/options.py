"""Flags that several commands share: recipe keys, languages, model and dataset, and search.

A flag that sets a key of the recipe takes its type, help and default from the field of the key.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from nmt.cli.recipe import (
    RECIPE,
    ConfigFlag,
    PluginFlag,
    Recipe,
    SetFlag,
    TrustFlag,
    load,
    read,
)
from nmt.errors import NmtError
from nmt.messages import warn
from nmt.recipe.config import build
from nmt.recipe.keys import Key, keys
from nmt.recipe.registry import unknown

if TYPE_CHECKING:
    from nmt.inference import SearchConfig
    from nmt.runtime.precision import InferencePrecision

Table = Mapping[str, Mapping[str, str]]
"""For each panel of the help: dotted keys by flags.

Flags are the names, separated by spaces, and perhaps a word in capitals for the value in the help:
``"--source-lang -s LANG"``.
"""

SEARCH_FLAGS = {
    "--strategy": "search.strategy",
    "--beam --beam-size -b": "search.strategy.beam",
    "--length-penalty": "search.strategy.length_penalty",
    "--alpha": "search.strategy.length_penalty.alpha",
}
"""Flags of commands that search."""

_LONGEST = 140
"""Help up to this many characters has more than the first sentence of the docstring."""


@dataclass(frozen=True, kw_only=True)
class RecipeSettings:
    """The part of a command line that concerns the recipe."""

    flags: Mapping[str, object]
    """Values of the recipe flags by dotted key; None for a flag that is not given."""
    config: Path | None = None
    assignments: list[str] | None = None
    plugins: list[str] | None = None
    trust_plugins: bool = False

    def load(self, base: Mapping[str, Any] | None = None) -> Recipe:
        """Load the recipe; `base` holds values that the recipe overrides."""
        return load(
            self.config, self.assignments, self.flags, base, self.plugins, self.trust_plugins
        )


def recipe_flags(table: Table) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator for a command with a parameter `settings`: :class:`RecipeSettings`.

    On the command line, the flags of the table replace that parameter, and the flags of every
    recipe (--config, --set and the flags of plugins) come last.
    """
    flags = list(flags_of(table))
    last = {"config": ConfigFlag, "set_": SetFlag, "plugin": PluginFlag}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        # Annotations are strings in some modules, and Typer needs the types.
        signature = inspect.signature(command, eval_str=True)

        @functools.wraps(command)
        def run(*arguments: object, **options: Any) -> None:
            settings = RecipeSettings(
                flags={flag.path: _given(options.pop(flag.name, None)) for flag in flags},
                config=options.pop("config", None),
                assignments=options.pop("set_", None),
                plugins=options.pop("plugin", None),
                trust_plugins=options.pop("trust_plugins", False),
            )
            command(*arguments, **options, settings=settings)

        parameters: list[inspect.Parameter] = []
        for name, parameter in signature.parameters.items():
            if name == "settings":
                parameters += [_parameter(flag.name, flag.annotation(flags)) for flag in flags]
            else:
                parameters.append(parameter.replace(kind=parameter.POSITIONAL_OR_KEYWORD))
        parameters += [_parameter(name, annotation) for name, annotation in last.items()]
        parameters.append(_parameter("trust_plugins", TrustFlag, False))
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return run

    return decorate


@dataclass(frozen=True)
class Flag:
    """A flag that sets a key of the recipe."""

    names: list[str]
    """All names, a long name first, and perhaps a placeholder in capitals."""
    path: str
    """The dotted key."""
    panel: str

    @property
    def name(self) -> str:
        """Name of the command's parameter."""
        return self.long.removeprefix("--").replace("-", "_")

    @property
    def long(self) -> str:
        """The first name, such as ``--beam``."""
        return self.names[0].partition("/")[0]

    def annotation(self, flags: list[Flag]) -> object:
        """Return the annotation from which Typer makes the option."""
        key = keys()[self.path]
        placeholder = self.names[-1] if self.names[-1].isupper() else None

        def complete(incomplete: str) -> list[str]:
            return [value for value in key.values if value.startswith(incomplete)]

        option = typer.Option(
            *[name for name in self.names if name.startswith("-")],
            metavar=placeholder or ("NAME" if key.values else None),
            help=help_text(key, {flag.path: flag.long for flag in flags}),
            # The help ends with the default of the recipe's field.
            show_default=False,
            autocompletion=complete if key.values else None,
            rich_help_panel=self.panel,
        )
        annotation: Any = list[key.type] if key.is_list else key.type  # type: ignore[name-defined]
        # None tells a flag that is not given from one with the value of the default.
        return Annotated[annotation | None, option]


def flags_of(table: Table) -> Iterator[Flag]:
    """Yield the flags of a table."""
    for panel, paths in table.items():
        for names, path in paths.items():
            yield Flag(names.split(), path, panel)


def help_text(key: Key, flags: Mapping[str, str]) -> str:
    """Return the help of a flag: the docstring of the key's field, and the default.

    Args:
        key: the key.
        flags: flags by dotted key; in the help they stand for keys of the same section.
    """
    section, _, _ = key.path.rpartition(".")

    def flag(name: re.Match[str]) -> str:
        return flags.get(f"{section}.{name[1]}", name[1])

    text = re.sub(r"`+([^`]+)`+", flag, summary(key.documentation))
    values = key.values
    # Values that the docstring names are not listed again.
    if len({*values} & {*re.findall(r"[\w+]+", text)}) < min(2, len(values)):
        *others, last = values
        text += f" One of {', '.join(others)} or {last}."
    if key.is_list:
        text += " May be given several times."
    notes = [f"{key.needs} only"] if key.needs else []
    notes += [f"default: {key.default}"] if key.default else []
    return f"{text}  [{'; '.join(notes)}]" if notes else text


def summary(documentation: str) -> str:
    """Return the first sentence of a docstring, and more sentences up to `_LONGEST` characters."""
    text, *others = re.split(r"(?<=[.!?])\s+(?=[A-Z\"`])", " ".join(documentation.split()))
    for sentence in others:
        if len(text) + 1 + len(sentence) > _LONGEST:
            break
        text += f" {sentence}"
    return text


def _given(value: object) -> object:
    """Return the value of a flag, or None if it is not given; Typer may pass an empty list."""
    return None if value == [] else value


def _parameter(name: str, annotation: object, default: object = None) -> inspect.Parameter:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


PANEL = "Languages of a multilingual model"

TargetLang = Annotated[
    str | None,
    typer.Option(
        "--target-lang",
        "-t",
        metavar="LANG",
        help="Language to translate into.  [default: the model's only target language]",
        show_default=False,
        rich_help_panel=PANEL,
    ),
]

SourceLang = Annotated[
    str | None,
    typer.Option(
        "--source-lang",
        "-s",
        metavar="LANG",
        help="Language to translate from; a warning says if the direction was not trained.  "
        "[default: any source language of the model]",
        show_default=False,
        rich_help_panel=PANEL,
    ),
]

Terminology = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Glossary whose translations must appear where a line has a term: lines with a term, "
        "a tab and its translation, or with a term that stays as it is; or TBX (.tbx, .xml).",
        show_default=False,
        rich_help_panel="Search",
    ),
]


@dataclass(frozen=True)
class Places:
    """The keys of the section ``train`` that are directories, with their defaults."""

    data: str = "data-bin"
    save_dir: str = "checkpoints"


def only_model(models: list[Path] | None) -> Path | None:
    """Return the model, or None without one; raise a BadParameter if there are several."""
    if models and len(models) > 1:
        raise typer.BadParameter(
            "--model takes one model here; run the command once for each model"
        )
    return models[0] if models else None


def model_or_default(models: list[Path] | None) -> Path:
    """Return the given model, or the run of ``nmt.yaml``."""
    return only_model(models) or default_run()


def default_run(recipe: Recipe | None = None) -> Path:
    """Return the run that a recipe trains; None for ``nmt.yaml``."""
    return Path(_places(recipe).save_dir)


def default_dataset() -> Path:
    """Return the dataset of ``nmt.yaml``."""
    return Path(_places().data)


def _places(recipe: Recipe | None = None) -> Places:
    where = "train" if recipe else f"{RECIPE}: train"
    values = (recipe or Recipe(read(None))).section("train")
    return build(Places, {key: values[key] for key in vars(Places()) if key in values}, where)


def number_format(name: str) -> InferencePrecision:
    """Return the value of --precision, checked."""
    from nmt.runtime.precision import InferencePrecision

    names = get_args(InferencePrecision)
    if name not in names:
        raise NmtError(f"--precision: {unknown('value', name, names)}")
    return cast("InferencePrecision", name)


def search_settings(
    settings: RecipeSettings, recipe: Mapping[str, Any], count: int = 1
) -> SearchConfig:
    """Return the settings of the search, which must find `count` translations of a line."""
    from nmt.inference import SearchConfig

    values = settings.load({"search": recipe.get("search") or {}}).section("search")
    search = build(SearchConfig, values, "search")
    search.check_count(count)
    if search.mbr is not None and search.strategy.max_hypotheses == 1:
        key = search.strategy.count_key
        way = f"raise search.strategy.{key}" if key else "use --strategy sample or beam"
        warn(f"--mbr: {search.strategy.name} finds one hypothesis, which agrees with itself; {way}")
    return search
