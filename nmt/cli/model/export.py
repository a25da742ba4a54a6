"""``nmt export``: write a trained run for another engine."""

from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from nmt.cli.options import model_or_default
from nmt.cli.recipe import PluginFlag, TrustFlag, import_named
from nmt.errors import NmtError
from nmt.messages import say
from nmt.recipe.registry import unknown

EXAMPLE = "Example: nmt export --format ctranslate2 --model checkpoints --output exported"


def export(
    output: Annotated[Path, typer.Option(help="Directory to write; an older export is replaced.")],
    model: Annotated[
        list[Path] | None,
        typer.Option(
            "--model",
            "-m",
            metavar="PATH",
            envvar="NMT_MODEL",
            help="A run (its best checkpoint) or one of its checkpoints.  [default: "
            "train.save_dir of nmt.yaml]",
            show_default=False,
        ),
    ] = None,
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="NAME",
            help="ctranslate2, huggingface, marian, bergamot, onnx or argos.",
        ),
    ] = "ctranslate2",
    stored: Annotated[
        str | None,
        typer.Option(
            "--precision",
            help="Number format of the stored weights: fp32, fp16, bf16 or int8. The engine "
            "chooses its number format when it loads them.  [default: fp32; int8 for bergamot]",
            show_default=False,
        ),
    ] = None,
    plugin: PluginFlag = None,
    trust_plugins: TrustFlag = False,
) -> None:
    """Write a trained model for another engine.

    The directory holds the engine's files, the subwords and the recipe. It does not depend on the
    run, and "nmt translate --model exported" reads it, too. Its path is printed on stdout.
    """
    from nmt.formats import export_formats, export_run
    from nmt.runs.exports import Stored

    kinds = get_args(Stored)
    if stored is not None and stored not in kinds:
        raise NmtError(f"--precision: {unknown('value', stored, kinds)}")
    import_named(plugin)  # a plugin may register the format
    kind = export_formats[format_]
    run = model_or_default(model)
    precision = cast("Stored", stored or kind.stored)
    exported = export_run(run, kind, precision, output, trust_plugins)
    say(f"exported {run} to {exported.format}")
    print(exported.path)
