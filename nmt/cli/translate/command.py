"""``nmt translate``: translate lines; one line of output for each, in the same order."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nmt.cli.console import check_output, check_stdin
from nmt.cli.hints import ONE_TEXT
from nmt.cli.options import (
    SEARCH_FLAGS,
    RecipeSettings,
    SourceLang,
    TargetLang,
    Terminology,
    default_run,
    number_format,
    recipe_flags,
    search_settings,
)
from nmt.cli.translate.io import Form, Requests, translate_stream, writer
from nmt.messages import warn

if TYPE_CHECKING:
    from nmt.inference import Execution, engines
    from nmt.runtime.distributed import World

INPUT = "Input and output"

SPEED = "Speed"

UNUSUAL = "Unusual lines"

Text = Annotated[
    Path | None,
    typer.Argument(
        metavar="TEXT",
        help="Text, one sentence a line; plain, .gz, .xz or .zst; - for stdin.  [default: -]",
        show_default=False,
        rich_help_panel=INPUT,
    ),
]

Input = Annotated[
    Path | None,
    typer.Option(
        "--input",
        "-i",
        metavar="FILE",
        help="Another way to give TEXT.",
        show_default=False,
        rich_help_panel=INPUT,
    ),
]

Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="File that appears when all lines are translated.  [default: stdout]",
        show_default=False,
        rich_help_panel=INPUT,
    ),
]

Models = Annotated[
    list[Path] | None,
    typer.Option(
        "--model",
        "-m",
        metavar="PATH",
        envvar="NMT_MODEL",
        help="A run (its best checkpoint), one of its checkpoints, or an export. Several models, "
        "each with a --model of its own, form an ensemble.  [default: the recipe's "
        "train.save_dir]",
        show_default=False,
        rich_help_panel=INPUT,
    ),
]

Engine = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Engine that searches: nmt; ctranslate2 (whose beam search stops as first_beam does); "
        "or auto: ctranslate2 on a CPU where all settings mean the same there, else nmt.",
        rich_help_panel=SPEED,
    ),
]

Prefix = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Beginnings of translations: line n is a prefix of the translation of line n, or "
        "empty. The translation may extend the last word of a prefix.",
        show_default=False,
        rich_help_panel=INPUT,
    ),
]

Require = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Phrases that must appear: line n holds the phrases for translation n, separated by "
        "tabs. "
        "Needs --strategy lexical_beam.",
        show_default=False,
        rich_help_panel=INPUT,
    ),
]

Avoid = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Phrases that must not appear: line n holds the phrases for translation n, separated "
        "by tabs.",
        show_default=False,
        rich_help_panel=INPUT,
    ),
]

JsonInput = Annotated[
    bool,
    typer.Option(
        "--json-input",
        help="Read a JSON object from each line: a text, and the requirements on its translation. "
        "docs/outputs.md describes the fields.",
        rich_help_panel=INPUT,
    ),
]

NBest = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Write N different translations of each line, or fewer if the model has no more. N is "
        "at most the beam size or the number of samples.",
        show_default=False,
        rich_help_panel=INPUT,
    ),
]

AsJson = Annotated[
    bool,
    typer.Option("--json", help="Write a JSON object for each line.", rich_help_panel=INPUT),
]

Alignments = Annotated[
    bool,
    typer.Option(
        "--alignments",
        help="Add word alignments to the JSON objects, by the model's attention.",
        rich_help_panel=INPUT,
    ),
]

AlignmentUnit = Annotated[
    Literal["words", "pieces"] | None,
    typer.Option(
        help="Units that --alignments links.  [default: pieces if a language of the model has no "
        "spaces between words, else words]",
        show_default=False,
        rich_help_panel=INPUT,
    ),
]

Markup = Annotated[
    Literal["html", "xliff"] | None,
    typer.Option(
        help="Markup of the lines: html, or the inline elements of xliff. The text is translated "
        "without tags, and the tags are put around the words they belong to.",
        show_default=False,
        rich_help_panel=INPUT,
    ),
]

Retry = Annotated[
    bool,
    typer.Option(
        "--retry",
        help="Search lines whose translation has flags again, without repeated n-grams and with "
        "the coverage penalty, and keep the better translation.",
        rich_help_panel=UNUSUAL,
    ),
]

Device = Annotated[
    str, typer.Option(metavar="NAME", help="cpu, cuda, cuda:N or auto.", rich_help_panel=SPEED)
]

PrecisionName = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Precision of the computation: fp32, bf16, fp16, int8 (CTranslate2 alone), or auto: "
        "bf16 or fp16 on a device that is fast at it, else fp32. A line's translation is "
        "independent of its batch only with fp32.",
        rich_help_panel=SPEED,
    ),
]

Shortlist = Annotated[
    bool,
    typer.Option(
        "--shortlist",
        help="Search only among the tokens of the run's shortlist, which nmt shortlist learns. "
        "CTranslate2 joins the lists of a batch. An ensemble uses the shortlist of its first run.",
        rich_help_panel=SPEED,
    ),
]

Compile = Annotated[
    bool,
    typer.Option(
        "--compile",
        help="Compile the model's step on a GPU (torch.compile), which takes minutes.",
        rich_help_panel=SPEED,
    ),
]

CudaGraphs = Annotated[
    bool,
    typer.Option(
        "--cuda-graphs",
        help="Launch each step of greedy and beam search on a GPU as one CUDA graph.",
        rich_help_panel=SPEED,
    ),
]

Workers = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Processes of one thread each that share the batches (with CTranslate2, parallel "
        "decoders).  [default: one per core of a CPU, 1 on a GPU]",
        show_default=False,
        rich_help_panel=SPEED,
    ),
]

Threads = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Instead of --workers: threads of a single process, which compute each batch "
        "together.  [default: one per core for typed lines, else 1]",
        show_default=False,
        rich_help_panel=SPEED,
    ),
]

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
    UNUSUAL: {
        "--split-sentences/--no-split-sentences": "search.split_sentences",
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
    retry: Retry = False,
    source_lang: SourceLang = None,
    target_lang: TargetLang = None,
    terminology: Terminology = None,
    *,
    settings: RecipeSettings,
    engine: Engine = "auto",
    device: Device = "auto",
    precision: PrecisionName = "fp32",
    shortlist: Shortlist = False,
    compile: Compile = False,
    cuda_graphs: CudaGraphs = False,
    workers: Workers = None,
    threads: Threads = None,
) -> None:
    """Translate text, line by line.

    Prints a line for each input line, in order. Flags override nmt.yaml, which overrides the
    model's recipe. docs/outputs.md describes the terminal, --n-best, --json and unusual input.
    """
    requirements = json_input or prefix or require or avoid
    others = requirements or n_best or as_json or retry
    _check_form(as_json, alignments, alignment_unit, markup, others)
    _refuse(workers and threads, "give either --workers, of one thread each, or --threads")
    lines = _requests(text, input_, json_input, prefix, require, avoid)
    check_output(output, *lines.paths, terminology)
    # Imported after the checks, so that a wrong option is refused at once.
    from nmt.runtime.distributed import join
    from nmt.runtime.machine import keep_few_kernels

    keep_few_kernels()
    recipe = settings.load()  # imports the plugins, which the model may need
    keeps = as_json or not n_best  # a list takes several lines, and could be cut
    with join(device, WAIT_MINUTES) as world, writer(output, world.is_main, keeps) as target:
        from nmt.inference import Execution
        from nmt.inference.engines import recipe_of
        from nmt.runtime.processes import available_cores

        models = model or [default_run(recipe)]
        if lines.is_typed and not workers:
            threads = threads or available_cores()  # a line alone has no batches to share
        on_cpu = world.place == "cpu"
        execution = Execution(
            device=world.place,
            precision=number_format(precision),
            workers=workers or (available_cores() if on_cpu and not threads else 1),
            threads=threads or (1 if on_cpu else None),
            shortlist=shortlist,
            compile=compile,
            cuda_graphs=cuda_graphs,
        )
        load = _engine(engine, models, execution, world)
        trained_with = recipe_of(models[0], settings.trust_plugins)
        search = search_settings(settings, trained_with, n_best or 1)
        translator = load(models, search, execution, settings.trust_plugins)
        if not json_input or target_lang or source_lang:  # else each JSON object names its language
            translator = translator.for_direction(target_lang, source_lang)
        if terminology:
            from nmt.inference.terminology import use_terminology

            use_terminology(terminology, [translator])
        if search.split_sentences and translator.subwords.context is not None and world.is_main:
            warn("--split-sentences: the model was trained on documents, and reads lines whole")
        unit = alignment_unit or translator.usual_unit if alignments else None
        form = Form(count=n_best, is_json=as_json, aligned=unit, dialect=markup, retry=retry)
        lines.configure(translator.config, translator.subwords.context is not None)
        chosen = translator.engine if engine == "auto" else ""
        translate_stream(translator, lines, target, world, form, chosen)


def _engine(
    name: str,
    models: list[Path],
    execution: Execution,
    world: World,
) -> engines.Engine:
    """Return the engine of the models; warns of a slow precision.

    Args:
        name: value of --engine.
        models: runs, or an export.
        execution: settings of how the models are run.
        world: processes, of which the first one warns.
    """
    from nmt.inference.engines import pick_engine

    for path in models:
        listed = "," in str(path) and not path.exists()
        _refuse(listed, f"{path} does not exist; give each model its own --model")
    load, warning = pick_engine(name, models, execution)
    if warning and world.is_main:
        warn(f"--precision {warning}")
    return load


def _requests(
    text: Path | None, other: Path | None, is_json: bool, *requirements: Path | None
) -> Requests:
    """Open the files of lines and of requirements for each line, of which one may be stdin."""
    _refuse(text and other, "give either TEXT or --input")
    _refuse(text and text.is_dir(), f"{text} is a directory; {ONE_TEXT}")
    _refuse(
        is_json and any(requirements),
        "--json-input goes without --prefix, --require and --avoid; the objects have fields for "
        "them",
    )
    inputs = (text or other or Path("-"), *requirements)
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
        "--markup goes without --prefix, --require, --avoid, --json-input, --n-best, --json and "
        "--retry",
    )


def _refuse(is_wrong: object, message: str) -> None:
    """Refuse flags that do not go together."""
    if is_wrong:
        raise typer.BadParameter(message)
