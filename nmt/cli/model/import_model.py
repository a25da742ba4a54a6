"""``nmt import``: convert a model of another toolkit to a run."""

from pathlib import Path
from typing import Annotated

import typer

from nmt.cli.recipe import PluginFlag, import_named
from nmt.messages import say

EXAMPLE = "Example: nmt import opus-mt-en-de --output runs/opus-mt-en-de"


def import_model(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="DIRECTORY|OWNER/NAME",
            help="Directory of the model, or its name on the Hugging Face hub, which "
            "huggingface_hub fetches.",
            show_default=False,
        ),
    ],
    output: Annotated[Path, typer.Option(help="Run to write; an older import is replaced.")],
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME",
            help="huggingface, m2m100, marian, fairseq or fairseq_tokenized.  [default: detected "
            "from the files]",
        ),
    ] = None,
    source_lang: Annotated[
        str | None,
        typer.Option(
            "--source-lang",
            "-s",
            help="Source language, if the files do not say; of M2M-100 and NLLB the only one to "
            "keep.",
        ),
    ] = None,
    target_lang: Annotated[
        str | None,
        typer.Option("--target-lang", "-t", help="Target language, likewise."),
    ] = None,
    plugin: PluginFlag = None,
) -> None:
    """Convert a model of another toolkit to a run.

    The run translates, scores, exports and joins ensembles like any other run, and "nmt train
    --init-from" fine-tunes it. Nothing in the model is executed. The path of the run is printed on
    stdout.
    """
    from nmt.formats import import_formats, import_model
    from nmt.inference.pretrained import fetched, is_hub_name

    import_named(plugin)  # a plugin may register the format
    kind = import_formats[format_] if format_ else None
    name = str(source) if is_hub_name(str(source)) else None
    directory = source if name is None else fetched(name)
    run = import_model(directory, output, kind, source_lang, target_lang, name)
    say(f"imported {source}, {run.source_lang} to {run.target_lang}")
    print(run.path)
