"""``nmt serve``: translate over HTTP."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmt.cli.options import (
    SEARCH_FLAGS,
    RecipeSettings,
    Terminology,
    default_run,
    number_format,
    recipe_flags,
    search_settings,
)
from nmt.errors import NmtError, install
from nmt.messages import say, warn

if TYPE_CHECKING:
    from nmt.inference import Execution, LineTranslator

EXAMPLE = "Example: nmt serve --model runs/en-de --model runs/de-en"

INPUT = "Models and addresses"
LIMITS = "Limits"
SPEED = "Speed"

FLAGS = {
    "Search": {
        **SEARCH_FLAGS,
        "--split-sentences/--no-split-sentences": "search.split_sentences",
    }
}


def _ensemble(context: typer.Context, models: list[Path] | None) -> list[Path] | None:
    """Return the models; the variable NMT_MODEL names the members of one ensemble."""
    source = context.get_parameter_source("model")
    if models and source is not None and source.name == "ENVIRONMENT":
        return [Path(",".join(map(str, models)))]
    return models


Models = Annotated[
    list[Path] | None,
    typer.Option(
        "--model",
        "-m",
        metavar="PATH[,PATH]",
        callback=_ensemble,
        envvar="NMT_MODEL",
        help="A run, one of its checkpoints, or an export; several with commas between them form "
        "an ensemble. Give a --model for each pair of languages.  [default: the "
        "recipe's train.save_dir]",
        show_default=False,
        rich_help_panel=INPUT,
    ),
]
Host = Annotated[str, typer.Option(help="Address to listen at.", rich_help_panel=INPUT)]
Port = Annotated[
    int,
    typer.Option(min=0, max=65535, help="Port; 0 for any free port.", rich_help_panel=INPUT),
]
Origin = Annotated[
    list[str] | None,
    typer.Option(
        metavar="URL",
        help="Origin whose pages may use the server (CORS).  [default: none]",
        show_default=False,
        rich_help_panel=INPUT,
    ),
]
AllowedHost = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Host that requests may name, such as the name of a proxy; repeat for more.  "
        "[default: localhost and the address of --host]",
        show_default=False,
        rich_help_panel=INPUT,
    ),
]
ApiKeys = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File of API keys, one a line; without it everybody may translate.",
        show_default=False,
        rich_help_panel=LIMITS,
    ),
]
Lines = Annotated[int, typer.Option(min=1, help="Most lines in a request.", rich_help_panel=LIMITS)]
Characters = Annotated[
    int, typer.Option(min=1, help="Most characters in a line.", rich_help_panel=LIMITS)
]
Queue = Annotated[
    int,
    typer.Option(
        min=1, help="Most waiting lines; more are answered with 429.", rich_help_panel=LIMITS
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        min=0.1, help="Seconds after which a request is given up.", rich_help_panel=LIMITS
    ),
]
Device = Annotated[
    str, typer.Option(metavar="NAME", help="cpu, cuda, cuda:N or auto.", rich_help_panel=SPEED)
]
Engine = Annotated[
    str, typer.Option(metavar="NAME", help="nmt, ctranslate2 or auto.", rich_help_panel=SPEED)
]
Precision = Annotated[
    str,
    typer.Option(metavar="NAME", help="fp32, bf16, fp16, int8 or auto.", rich_help_panel=SPEED),
]
Shortlist = Annotated[
    bool,
    typer.Option(
        "--shortlist",
        help="Search only among the tokens of each run's shortlist.",
        rich_help_panel=SPEED,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Processes of one thread each that translate (with CTranslate2, parallel decoders).  "
        "[default: one per core of a CPU, 1 on a GPU]",
        show_default=False,
        rich_help_panel=SPEED,
    ),
]
BatchLines = Annotated[
    int, typer.Option(min=1, help="Most lines in a batch.", rich_help_panel=SPEED)
]
LogRequests = Annotated[
    bool,
    typer.Option(
        "--log-requests",
        help="Log client, method, path and status of each request, never its text.",
        rich_help_panel=INPUT,
    ),
]


@recipe_flags(FLAGS)
def serve(
    model: Models = None,
    host: Host = "127.0.0.1",
    port: Port = 5000,
    allow_origin: Origin = None,
    allow_host: AllowedHost = None,
    log_requests: LogRequests = False,
    api_keys: ApiKeys = None,
    max_lines: Lines = 2000,
    max_characters: Characters = 20_000,
    max_waiting: Queue = 10_000,
    timeout: Timeout = 120.0,
    terminology: Terminology = None,
    *,
    settings: RecipeSettings,
    device: Device = "auto",
    engine: Engine = "auto",
    precision: Precision = "fp32",
    shortlist: Shortlist = False,
    workers: Workers = None,
    batch_lines: BatchLines = 128,
) -> None:
    """Translate over HTTP.

    Lines of all clients that wait at the same time are translated together, each sentence by itself
    unless --no-split-sentences is given. At SIGTERM the server answers the accepted requests, then
    ends; SIGHUP loads the models again. The address is printed on stdout when the server is ready.
    docs/guides/server.md describes the interfaces: LibreTranslate's interface, and an interface for
    lines.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # it waits until the server is ready
    from nmt.inference import Execution
    from nmt.runtime.distributed import pick_device
    from nmt.runtime.machine import keep_few_kernels
    from nmt.runtime.processes import available_cores

    gc.disable()  # the imports leave no garbage, and looking for it takes a twelfth of their time
    try:
        from nmt.serve.limits import Keys, Limits
        from nmt.serve.models import Models
        from nmt.serve.server import listen, run
        from nmt.serve.service import Service
    except ImportError as error:
        raise NmtError(f"serve needs more packages ({error.name}); {install('serve')}") from None

    gc.enable()
    gc.freeze()  # else parsing many JSON lists scans all imports again and again, for a second
    keep_few_kernels()
    listen(host, port).close()  # else a port in use would show only after the models are loaded
    limits = Limits(lines=max_lines, characters=max_characters, queue=max_waiting, seconds=timeout)
    keys = Keys(api_keys)
    recipe = settings.load()  # imports the plugins, which the models may need
    groups = _groups(model) or [[default_run(recipe)]]
    place = pick_device(device)
    on_cpu = place == "cpu"
    execution = Execution(
        device=place,
        precision=number_format(precision),
        workers=workers or (available_cores() if on_cpu else 1),
        threads=1 if on_cpu else None,
        shortlist=shortlist,
    )
    models = Models(_loader(groups, settings, engine, execution, terminology), execution.workers)
    service = Service(models, limits, keys, batch_lines)
    run(service, host, port, allow_origin or (), log_requests, allow_host or ())


def _groups(models: list[Path] | None) -> list[list[Path]]:
    """Return the members of each model; an ensemble has several members."""
    return [[Path(path) for path in str(group).split(",")] for group in models or ()]


def _loader(
    groups: list[list[Path]],
    settings: RecipeSettings,
    engine: str,
    execution: Execution,
    terminology: Path | None,
) -> Callable[[], list[LineTranslator]]:
    """Return a function that loads the models anew."""
    from nmt.inference.engines import pick_engine, recipe_of

    def load_one(paths: list[Path]) -> LineTranslator:
        """Return the translator of a model or an ensemble."""
        load_translator, warning = pick_engine(engine, paths, execution)
        if warning:
            warn(f"--precision {warning}")
        recipe = recipe_of(paths[0], settings.trust_plugins)
        # Clients send whole texts, whatever the run was evaluated on.
        of_run = {**(recipe.get("search") or {}), "split_sentences": True}
        search = search_settings(settings, {"search": of_run})
        return load_translator(paths, search, execution, settings.trust_plugins)

    def load() -> list[LineTranslator]:
        """Return a translator for each direction of each model, and print the directions."""
        translators = [one for group in groups for one in load_one(group).by_direction()]
        if terminology:
            from nmt.inference.terminology import use_terminology

            use_terminology(terminology, translators)
        for translator in translators:
            alone = "; without context, a line is alone" if translator.subwords.context else ""
            say(f"serves {' to '.join(translator.languages)}{alone}; engine {translator.engine}")
        return translators

    return load
