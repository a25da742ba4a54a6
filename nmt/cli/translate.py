"""``nmt translate``: translate lines; one line of output for each, in the same order."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from nmt.cli import forms
from nmt.cli.chosen_model import default_run
from nmt.cli.console import check_output, check_stdin
from nmt.cli.direction import SourceLang, TargetLang
from nmt.cli.flags import SEARCH_FLAGS, Settings, recipe_flags
from nmt.cli.habits import ONE_TEXT
from nmt.cli.requests import Requests
from nmt.cli.search import number_format, search_settings
from nmt.cli.stream import translate_stream, writer
from nmt.cli.translate_options import (
    SPEED,
    Alignments,
    AlignmentUnit,
    AsJson,
    Avoid,
    Compile,
    Device,
    Engine,
    Input,
    JsonInput,
    Markup,
    Models,
    NBest,
    Output,
    PrecisionName,
    Prefix,
    Require,
    Shortlist,
    Text,
    Workers,
)
from nmt.messages import say, warn

if TYPE_CHECKING:
    import torch

    from nmt.inference import Execution, LineTranslator, engines

WAIT_MINUTES = 60.0 * 24 * 7
"""Minutes that processes wait for each other; long, because a person may type the lines."""

EXAMPLE = "Example: nmt translate --model checkpoints < input.txt > output.txt"

FLAGS = {
    "Search": {
        **SEARCH_FLAGS,
        "--stop": "search.strategy.stop",
        "--mbr": "search.mbr",
        "--max-length-offset": "search.max_length_offset",
    },
    "Sampling": {
        "--temperature": "search.strategy.temperature",
        "--top-k": "search.strategy.top_k",
        "--top-p": "search.strategy.top_p",
        "--seed": "search.strategy.seed",
    },
    "Unusual lines": {
        "--on-long-line": "search.on_long_line",
        "--on-invalid-utf8": "search.on_invalid_utf8",
    },
    SPEED: {
        "--batch-tokens": "search.batch_tokens",
        "--window": "search.window",
    },
}


@recipe_flags(FLAGS)
def translate(
    text: Text = None,
    input_: Input = None,
    output: Output = None,
    model: Models = None,
    prefix: Prefix = None,
    require: Require = None,
    avoid: Avoid = None,
    json_input: JsonInput = False,
    n_best: NBest = None,
    as_json: AsJson = False,
    alignments: Alignments = False,
    alignment_unit: AlignmentUnit = None,
    markup: Markup = None,
    source_lang: SourceLang = None,
    target_lang: TargetLang = None,
    *,
    settings: Settings,
    engine: Engine = None,
    device: Device = "auto",
    precision: PrecisionName = "fp32",
    shortlist: Shortlist = False,
    compile: Compile = False,
    workers: Workers = None,
) -> None:
    """Translate text, line by line.

    Prints a line for each input line, in order. Flags override nmt.yaml, which overrides the
    model's recipe. docs/outputs.md describes the terminal, --n-best, --json and unusual input.
    """
    wishes = json_input or prefix or require or avoid
    _check_form(as_json, alignments, alignment_unit, markup, wishes or n_best or as_json)
    lines = _requests(text, input_, json_input, prefix, require, avoid)
    check_output(output, *lines.paths)
    from nmt.runtime.distributed import join
    from nmt.runtime.memory import keep_few_kernels

    keep_few_kernels()
    recipe = settings.load()  # imports the plugins, which the model may need
    keeps = as_json or not n_best  # a list takes several lines, and could be cut
    with join(device, WAIT_MINUTES) as world, writer(output, world.is_main, keeps) as target:
        models = model or [default_run(recipe)]
        workers = _num_workers(workers or (1 if lines.is_typed else None), world.device)
        execution = _execution(world.device, precision, workers, shortlist, compile)
        chosen = _engine(engine, models, wishes or alignments or markup, execution, world.is_main)
        opened = chosen(models, execution, settings.trust_plugins)
        search = search_settings(settings, opened.recipe, n_best or 1)
        translator = _into(opened.translator(search), target_lang, source_lang, json_input)
        unit = alignment_unit or translator.usual_unit if alignments else None
        form = forms.chosen(n_best, as_json, unit, markup)
        lines.configure(translator.config, translator.subwords.context is not None)
        translate_stream(translator, lines, target, world, form)


def _into(
    translator: LineTranslator, target: str | None, source: str | None, is_json: bool
) -> LineTranslator:
    """Return the translator of a direction; without one, lines of JSON choose theirs."""
    return translator if is_json and not (target or source) else translator.into(target, source)


def _engine(
    name: str | None,
    models: list[Path],
    needs_nmt: object,
    execution: Execution,
    is_main: bool,
) -> type[engines.Engine]:
    """Return the engine of the models; warns of a slow precision.

    Args:
        name: what --engine names.
        models: runs, or an export.
        needs_nmt: whether a flag is given that only the engine nmt has.
        execution: settings of how the models are run.
        is_main: whether this process is the one that warns.
    """
    from nmt.inference.engines import pick_engine
    from nmt.inference.kernels import choose_attention

    choose_attention(execution.device)
    for path in models:
        listed = "," in str(path) and not path.exists()
        _refuse(listed, f"{path} does not exist; give each model its own --model")
    if name == "auto" and needs_nmt:
        name = "nmt"
        say("engine nmt: CTranslate2 has no requirements on single lines, and no alignments")
    chosen = pick_engine(name, models)
    if (warning := chosen.check_precision(execution)) and is_main:
        warn(f"--precision {warning}")
    return chosen


def _requests(
    text: Path | None, other: Path | None, is_json: bool, *beside: Path | None
) -> Requests:
    """Open the files of lines and of wishes beside them, of which one may be stdin."""
    _refuse(text and other, "give either TEXT or --input")
    _refuse(text and text.is_dir(), f"{text} is a directory; {ONE_TEXT}")
    _refuse(
        is_json and any(beside),
        "--json-input goes without --prefix, --require and --avoid, which its objects contain",
    )
    inputs = (text or other or Path("-"), *beside)
    check_stdin(*inputs)
    return Requests.open(*inputs, is_json=is_json)


def _check_form(
    as_json: bool, alignments: bool, unit: object, markup: object, others: object
) -> None:
    """Refuse forms of the output that do not go together."""
    _refuse(alignments and not as_json, "--alignments needs --json, in which they are written")
    _refuse(unit and not alignments, "--alignment-unit needs --alignments")
    _refuse(
        markup and others,
        "--markup goes without --prefix, --require, --avoid, --json-input, --n-best and --json",
    )


def _refuse(is_wrong: object, message: str) -> None:
    """Refuse flags that do not go together."""
    if is_wrong:
        raise typer.BadParameter(message)


def _execution(
    device: torch.device, precision: str, workers: int, shortlist: bool, compile: bool
) -> Execution:
    from nmt.inference import Execution

    return Execution(
        device=device,
        precision=number_format(precision),
        workers=workers,
        shortlist=shortlist,
        compile=compile,
    )


def _num_workers(wanted: int | None, device: torch.device) -> int:
    """Return the number of processes that share the batches; several have one thread each."""
    import torch

    from nmt.runtime.processes import available_cores

    count = wanted or (available_cores() if device.type == "cpu" else 1)
    if count > 1:
        torch.set_num_threads(1)  # of this process, too, which translates single batches
    return count
