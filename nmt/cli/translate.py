"""``nmt translate``: translate lines; one line of output for each, in the same order."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast, get_args

import typer

from nmt.cli import forms
from nmt.cli.console import check_output, check_stdin
from nmt.cli.plugins import PluginFlag, TrustFlag
from nmt.cli.recipe import ConfigFlag, SetFlag, load
from nmt.cli.requests import Requests
from nmt.cli.stream import translate_stream, writer
from nmt.errors import NmtError
from nmt.messages import warn
from nmt.recipe.config import build
from nmt.recipe.registry import unknown

if TYPE_CHECKING:
    from nmt.runtime.precision import InferencePrecision

WAIT_MINUTES = 60.0 * 24 * 7
"""Minutes that processes wait for each other; long, because a person may type the lines."""

EXAMPLE = "Example: nmt translate --model checkpoints < input.txt > output.txt"


def translate(
    text: Annotated[
        Path | None,
        typer.Argument(
            help="Text, one sentence a line; plain, .gz, .xz or .zst. Default, and -: stdin.",
            show_default=False,
        ),
    ] = None,
    input_: Annotated[
        Path | None,
        typer.Option("--input", "-i", help="Another way to give TEXT.", show_default=False),
    ] = None,
    model: Annotated[
        list[Path] | None,
        typer.Option(
            "--model",
            "-m",
            envvar="NMT_MODEL",
            help="A run (its best checkpoint) or one of its checkpoints; given several times, "
            "they vote as an ensemble; or an export. Default: checkpoints.",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What searches: nmt (default), or ctranslate2 (default with a model that nmt "
            "export has written), whose beam needs --stop first_beam.",
            show_default=False,
        ),
    ] = None,
    prefix: Annotated[
        Path | None,
        typer.Option(
            help="Beginnings: line n is what the translation of line n begins with, or empty; its "
            "last word may go on.",
            show_default=False,
        ),
    ] = None,
    require: Annotated[
        Path | None,
        typer.Option(
            help="Phrases that must appear: those of line n on line n, divided by tabs, or none. "
            "Needs --strategy lexical_beam.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="File that appears when all is translated. Default: stdout.",
            show_default=False,
        ),
    ] = None,
    n_best: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Write that many different translations of each line; at most the beam, or the "
            "samples, and fewer only where the model has no more.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write a JSON object for each line.")] = (
        False
    ),
    alignments: Annotated[
        bool,
        typer.Option(
            "--alignments",
            help="With --json, also which words belong to which, by the model's attention.",
        ),
    ] = False,
    alignment_unit: Annotated[
        Literal["words", "pieces"] | None,
        typer.Option(
            help="What --alignments links. Default: words, or pieces where a language of the model "
            "puts no spaces between words.",
            show_default=False,
        ),
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="beam (default), diverse_beam, lexical_beam, greedy or sample.",
            show_default=False,
        ),
    ] = None,
    beam: Annotated[
        int | None,
        typer.Option(
            "--beam", "--beam-size", "-b", help="Width of the beam. Default: 4.", show_default=False
        ),
    ] = None,
    length_penalty: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="gnmt (default), power or none.", show_default=False),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(
            help="Exponent of the length penalty; more prefers longer outputs. "
            "Default: 0.6 of gnmt, 1 of power.",
            show_default=False,
        ),
    ] = None,
    stop: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="When a beam search is done: optimistic (default), all_finished or first_beam.",
            show_default=False,
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            help="Of sampling: less draws likelier tokens. Default: 1, the model as it is.",
            show_default=False,
        ),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option(
            help="Sample from that many likeliest tokens. Default: all.", show_default=False
        ),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            help="Sample from the likeliest tokens of that probability together. Default: all.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Of sampling; equal lines give equal samples. Default: 1.", show_default=False
        ),
    ] = None,
    mbr: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="chrf, bleu or another metric: of the samples or the beam, take what agrees most "
            "with the others.",
            show_default=False,
        ),
    ] = None,
    max_length_offset: Annotated[
        int | None,
        typer.Option(
            help="Pieces that a translation may be longer than its source. Default: 50.",
            show_default=False,
        ),
    ] = None,
    batch_tokens: Annotated[
        int | None,
        typer.Option(
            help="Source tokens in a batch, times the beam. Default: 16384.", show_default=False
        ),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(help="Lines that are sorted together. Default: 4096.", show_default=False),
    ] = None,
    on_long_line: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What becomes of a line with too many pieces: it is cut (default), or split at "
            "the ends of sentences, else of clauses, else of words.",
            show_default=False,
        ),
    ] = None,
    on_invalid_utf8: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Bytes that are not UTF-8 are an error (default), or replace puts U+FFFD there.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:N or auto.")] = "auto",
    precision: Annotated[
        str,
        typer.Option(
            help="What the model computes in: fp32, bf16, fp16, int8 (linear layers, on a CPU), or "
            "auto: bf16 or fp16 where the device is good at it, else fp32. In fp32 a line is "
            "translated alike in any batch; int8 scales its inputs by the batch."
        ),
    ] = "fp32",
    shortlist: Annotated[
        bool,
        typer.Option(
            "--shortlist",
            help="Search among the tokens of the shortlist that nmt shortlist gave the run (of an "
            "ensemble, the first). Faster; probabilities are shared among those tokens.",
        ),
    ] = False,
    compile: Annotated[
        bool,
        typer.Option(
            "--compile",
            help="On a GPU, compile the model's step (torch.compile): minutes at the start for "
            "fewer kernels in each step.",
        ),
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Processes that share the batches, each with one thread; 1 is one process with "
            "all threads. Default: one for each core of a CPU, 1 on a GPU.",
            show_default=False,
        ),
    ] = None,
    config: ConfigFlag = None,
    set_: SetFlag = None,
    plugin: PluginFlag = None,
    trust_plugins: TrustFlag = False,
) -> None:
    """Translate text, line by line.

    Prints one line for each input line, in the same order; a blank line gives an empty line. Only a
    line feed ends a line; a carriage return before it is dropped. Text is UTF-8; a line has at most
    16 MiB. Lines that arrive from a terminal or a pipe are translated at once.

    With --n-best a translation is a line of the form "id ||| text ||| features ||| score": the
    number of its line, from 0; the text; LogProbability (natural logarithm) and Length in tokens,
    both including the end of sentence; and the score of the search, or with --mbr the agreement.

    With --json a line is an object with the fields id, text, score, log_probability, finished
    (whether the translation ended before the maximum length), tokens (pieces; the last is the end),
    token_log_probabilities, and with --n-best others, a list of such objects without an id.

    With --alignments an object also has source_words and words, the words of the line and of the
    text, separated by white space; and alignment, pairs of word numbers, source first, from 0: for
    each word of the text, the source word to which the model attended most while it predicted the
    word's pieces. A Transformer uses the attention of the decoder layer alignment_layer of its
    recipe. With --alignment-unit pieces the fields are source_pieces and pieces, the line and the
    text split where pieces begin, and alignment links pieces.

    With --shortlist the scores and log-probabilities of the search are normalised over the tokens
    on each line's list; token_log_probabilities, as in nmt score --model, over the whole
    vocabulary.

    With torchrun, the processes share the lines; the first process reads and writes all lines.

    Settings come from the model's recipe, then nmt.yaml, then flags; later ones override earlier
    ones. At the end the number of lines, the seconds and the rates are printed on stderr; the time
    spent waiting for typed lines does not count.
    """
    from nmt.inference import SearchConfig
    from nmt.inference.engines import pick_engine
    from nmt.runtime.distributed import join
    from nmt.runtime.precision import InferencePrecision

    precisions = get_args(InferencePrecision)
    if precision not in precisions:
        raise NmtError(f"--precision: {unknown('value', precision, precisions)}")
    number_format = cast("InferencePrecision", precision)
    flags = {
        "search.strategy": strategy,
        "search.strategy.beam": beam,
        "search.strategy.length_penalty": length_penalty,
        "search.strategy.length_penalty.alpha": alpha,
        "search.strategy.stop": stop,
        "search.strategy.temperature": temperature,
        "search.strategy.top_k": top_k,
        "search.strategy.top_p": top_p,
        "search.strategy.seed": seed,
        "search.mbr": mbr,
        "search.max_length_offset": max_length_offset,
        "search.batch_tokens": batch_tokens,
        "search.window": window,
        "search.on_long_line": on_long_line,
        "search.on_invalid_utf8": on_invalid_utf8,
    }
    if text is not None and input_ is not None:
        raise typer.BadParameter("give either TEXT or --input")
    if alignments and not as_json:
        raise typer.BadParameter("--alignments needs --json, in which they are written")
    if alignment_unit and not alignments:
        raise typer.BadParameter("--alignment-unit needs --alignments")
    inputs = (text or input_ or Path("-"), prefix, require)
    check_stdin(*inputs)
    # Report a missing file before the model is read.
    lines = Requests.open(*inputs)
    check_output(output, *inputs)
    # Import the plugins, which the model may need.
    load(config, set_, flags, plugins=plugin, trust_plugins=trust_plugins)
    with join(device, WAIT_MINUTES) as world, writer(output, world.is_main) as target:
        models = model or [Path("checkpoints")]
        chosen = pick_engine(engine, models)
        if (warning := chosen.check_precision(number_format, world.device)) and world.is_main:
            warn(f"--precision {warning}")
        opened = chosen(models, world.device, trust_plugins)
        base = {"search": opened.recipe.get("search") or {}}
        values = load(config, set_, flags, base).section("search")
        search = build(SearchConfig, values, "search")
        search.check_count(n_best or 1)
        count = _num_workers(workers, world.device.type)
        translator = opened.translator(search, number_format, count, shortlist, compile)
        lines.read_as(search.on_invalid_utf8)
        form = forms.n_best(n_best) if n_best else forms.plain
        if as_json:
            unit = alignment_unit or translator.usual_unit
            form = forms.as_json(n_best or 1, unit if alignments else None)
        translate_stream(translator, lines, target, world, form)


def _num_workers(wanted: int | None, device: str) -> int:
    """Return the number of processes that share the batches; several have one thread each."""
    import torch

    from nmt.runtime.processes import available_cores

    if device != "cpu":
        if wanted not in (None, 1):
            raise NmtError(f"--workers {wanted}: several processes on one GPU; use torchrun")
        return 1
    count = wanted or available_cores()
    if count > 1:
        torch.set_num_threads(1)  # of this process, too, which translates single batches
    return count
