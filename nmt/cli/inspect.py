"""``nmt inspect``: describe a dataset or a run."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmt.cli.console import show
from nmt.cli.documents import check_kind, write_document
from nmt.errors import NmtError

if TYPE_CHECKING:
    from nmt.data.context import DocumentContext
    from nmt.data.dataset import Dataset, Split
    from nmt.data.directions import Directions
    from nmt.runs import Checkpoint, Run
    from nmt.subwords.subwords import Subwords

EXAMPLE = "Example: nmt inspect data-bin"

MOST_DIRECTIONS = 20
"""Number of directions above which only the directions with pairs are printed."""

EXAMPLES = 3
"""Number of examples to print for each effect of cleaning. The page and the JSON have all stored
examples."""


def inspect(
    path: Annotated[Path, typer.Argument(help="Dataset, or run.")],
    examples: Annotated[
        int, typer.Option(metavar="N", help="Training pairs to show, as pieces.")
    ] = 2,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every file and compare its checksum.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the description as it is stored, as JSON.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write one HTML page about a dataset: splits, and what cleaning dropped and "
            "rewrote, with examples.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show what a dataset or a run holds.

    For a dataset: the pairs, tokens and lengths of every split, the effect of cleaning, the first
    training pairs, and the fingerprint. For a run: languages, architecture, data, and each
    checkpoint with its validation scores. docs/outputs.md describes the lines.
    """
    if html is not None and as_json:
        raise typer.BadParameter("give either --json or --html")
    check_kind(html, "html")
    if (path / "run.json").exists():
        if html is not None:
            raise NmtError(f"{path}: a run, but --html is for a dataset; use nmt report for runs")
        _run(path, verify, as_json)
        return
    # Imported here, because the description of a run needs no dataset.
    from nmt.data.dataset import Dataset, shards_of
    from nmt.data.manifest import MANIFEST, MANIFESTS
    from nmt.recipe.config import json_values

    if not (path / MANIFEST).exists() and not shards_of(path):
        raise NmtError(f"{path}: {_what_else(path)}; give a dataset or a run")

    dataset = Dataset.open(path)
    if verify:
        dataset.verify()
    if as_json:
        print(json.dumps(json_values(MANIFESTS.document(dataset.manifest)), ensure_ascii=False))
        return
    if html is not None:
        from nmt.report.page import dataset_page

        write_document(html, dataset_page(dataset).encode())
        return
    _show_dataset(dataset, examples)
    if verify:
        print("checksums: as written")


def _what_else(path: Path) -> str:
    from nmt.runs.exports import Export

    if not path.exists():
        return "does not exist"
    if (path / "checkpoint.json").exists():
        return f"a checkpoint, not its run ({path.absolute().parent})"
    return (
        "an export"
        if Export.exists(path)
        else "made neither by `nmt preprocess` nor by `nmt train`"
    )


def _show_dataset(dataset: "Dataset", examples: int) -> None:
    from nmt.cli.preprocess import report
    from nmt.data.dataset import length_statistics
    from nmt.data.manifest import SIDES, VERSION
    from nmt.subwords.subwords import Subwords

    manifest = dataset.manifest
    show(f"dataset of format {VERSION}, {manifest.source_lang} to {manifest.target_lang}")
    show(report(manifest))
    for name in manifest.splits:
        for side in SIDES:
            lengths = length_statistics(dataset, name, side) or "none"
            show(f"{name} {manifest.language(side)} tokens a sentence: {lengths}")
    for reason, shown in manifest.splits["train"].examples.items():
        for one, other in shown[:EXAMPLES]:
            show(f"{reason}: {one!r} | {other!r}")
    subwords = Subwords.from_dataset(dataset)
    train = dataset.split("train")
    if subwords.directions:
        _show_directions(
            subwords.directions, {name: dataset.split(name) for name in manifest.splits}
        )
    _show_order(subwords)
    if subwords.context:
        _show_context(subwords.context)
    for index in range(min(examples, len(train))):
        source = " ".join(subwords.source_pieces(train.source(index).tolist()))
        target = " ".join(subwords.target_pieces(train.target(index).tolist()))
        show(f"pair {index}: {source} | {target}")
    show(f"fingerprint: {manifest.fingerprint}")


def _show_directions(directions: "Directions", splits: "Mapping[str, Split] | None" = None) -> None:
    """Print each direction, with its pairs in the splits of a dataset, and the place of tags."""
    import numpy as np

    pairs = {
        name: np.bincount(split.directions, minlength=len(directions.trained))
        for name, split in (splits or {}).items()
        if split.directions is not None
    }
    is_long = len(directions.trained) > MOST_DIRECTIONS
    if is_long:
        show(f"{len(directions.trained):,} directions, {' to '.join(directions.names)}")
    for number, direction in enumerate(directions.trained):
        if is_long and not any(counts[number] for counts in pairs.values()):
            continue
        counts = "".join(f" | {name} {counts[number]:,} pairs" for name, counts in pairs.items())
        show(f"direction {' to '.join(direction)}{counts}")
    if directions.tags == "both":
        show("tags: of its own language, before each source and target")
    else:
        show(f"tags: of the target language, before each {directions.tags}")


def _show_order(subwords: "Subwords") -> None:
    """Print that targets are written from right to left, if they are."""
    if subwords.target_order == "right_to_left":
        show("target order: right to left, the last token first")


def _show_context(context: "DocumentContext") -> None:
    """Print which sentences of a document are joined."""
    joined = f"{context.context} sentences before, on {context.sides.replace('both', 'both sides')}"
    show(f"context: {'whole documents' if context.whole else joined}; {context.max_tokens} tokens")


def _run(path: Path, verify: bool, as_json: bool) -> None:
    from nmt.io.documents import finite
    from nmt.recipe.config import json_values
    from nmt.runs import Run

    run = Run.open(path)
    if as_json:
        checkpoints = [
            {"update": saved.update, "scores": finite(saved.scores)} for saved in run.checkpoints()
        ]
        values = {key: value for key, value in vars(run).items() if key not in ("path", "files")}
        values["recipe"] = json_values(run.recipe)
        print(json.dumps({**values, "checkpoints": checkpoints}, ensure_ascii=False))
    else:
        _show_run(run)
    if not verify:
        return
    problems = list(run.problems())
    if not as_json:
        show("\n".join(problems or ["checksums: as written"]))
    # An error, so that a script sees it by the exit status.
    if problems:
        more = f" (and {len(problems) - 1} more)" if problems[1:] else ""
        raise NmtError(f"{problems[0]}{more}")


def _show_run(run: "Run") -> None:
    from nmt.data.context import CONTEXT_FILE
    from nmt.data.directions import DIRECTIONS_FILE
    from nmt.inference.engines import fastest_engine
    from nmt.recipe.plugins import not_imported
    from nmt.subwords.wrappers import ORDER_FILE

    show(f"run, {run.source_lang} to {run.target_lang}, {run.section('model').get('arch')}")
    # The names of files decide, because loading subwords takes longer.
    if DIRECTIONS_FILE in run.files and (directions := run.subwords.directions):
        _show_directions(directions)
    if ORDER_FILE in run.files:
        _show_order(run.subwords)
    if CONTEXT_FILE in run.files and (context := run.subwords.context):
        _show_context(context)
    if run.plugins:
        show(f"plugins, which run when they are trusted: {', '.join(run.plugins)}")
    if origin := run.recipe.get("imported"):
        show(f"imported from {origin['source']} ({origin['format']})")
    else:
        show(f"trained on the dataset with fingerprint {run.data}")
    if adaptation := _adaptation(run):
        show(adaptation)
    links = {name: run.target(name) for name in ("last", "best")}
    checkpoints = list(run.examined())
    for path, checkpoint in checkpoints:
        marks = "".join(f" | {name}" for name, target in links.items() if target == path.resolve())
        show(f"{path.name}: {_described(checkpoint)}{marks}")
    if not checkpoints:
        show("no checkpoint yet")
    elif links["best"] is None:
        show("no best checkpoint yet: validation has measured none")
    loadable = any(not isinstance(checkpoint, NmtError) for _, checkpoint in checkpoints)
    # The search or the model may be a plugin's, and inspecting a run imports no plugin.
    if loadable and not not_imported(run.plugins):
        show(f"engine on a CPU: {fastest_engine(run)}")
    if run.has_shortlist:
        show("shortlist: yes, for `nmt translate --shortlist`")
    if calibration := _calibration(run, checkpoints):
        show(f"calibration: {calibration}")


def _adaptation(run: "Run") -> str | None:
    """Return the adaptation of a run and its base; None if the run adapts no other run."""
    from nmt.runs.checkpoint import Base

    if (base := Base.load(run.path)) is None:
        return None
    return f"{run.section('model')['adaptation']['name']} put on {base.checkpoint}"


def _calibration(run: "Run", checkpoints: "list[tuple[Path, Checkpoint | NmtError]]") -> str | None:
    """Return the checkpoint that the run is calibrated for, or an error; None if it is not."""
    from nmt.runs.calibration import Calibration

    try:
        calibration = Calibration.load(run.path)
    except NmtError as error:
        return str(error)
    if calibration is None:
        return None
    for path, checkpoint in checkpoints:
        if isinstance(checkpoint, NmtError):
            continue
        if checkpoint.digest == calibration.weights:
            return f"of {path.name}, for `nmt translate --json`"
    return "for a checkpoint that the run no longer has; make it again with `nmt calibrate`"


def _described(checkpoint: "Checkpoint | NmtError") -> str:
    """Return the size and scores of a checkpoint, or the error if it cannot be read."""
    if isinstance(checkpoint, NmtError):
        return str(checkpoint)
    size = sum(facts.bytes for facts in checkpoint.files.values())
    scores = "".join(f" | {name} {value:.3f}" for name, value in checkpoint.scores.items())
    return f"{size:,} bytes{scores}"
