"""``nmt shortlist``: learn the likely target tokens of each source token."""

from pathlib import Path
from typing import Annotated

import typer

from nmt.cli.options import default_dataset, model_or_default
from nmt.errors import NmtError
from nmt.messages import say

EXAMPLE = "Example: nmt shortlist --data data-bin --model checkpoints"

Data = Annotated[
    Path | None,
    typer.Option(
        help="Dataset to learn from.  [default: train.data of nmt.yaml]", show_default=False
    ),
]
Model = Annotated[
    list[Path] | None,
    typer.Option(
        "--model",
        "-m",
        metavar="PATH",
        envvar="NMT_MODEL",
        help="Run that gets the shortlist; replaces an older shortlist.  [default: "
        "train.save_dir of nmt.yaml]",
        show_default=False,
    ),
]


def shortlist(
    data: Data = None,
    model: Model = None,
    first: Annotated[
        int, typer.Option(min=1, help="Most frequent target tokens, on every line's list.")
    ] = 100,
    best: Annotated[
        int, typer.Option(min=1, help="Likeliest translations of each source token of a line.")
    ] = 100,
    max_pairs: Annotated[
        int,
        typer.Option(
            min=1, help="Largest number of training pairs to read, spread over the dataset."
        ),
    ] = 500_000,
    iterations: Annotated[
        int, typer.Option(min=1, help="Iterations of expectation maximisation (IBM model 1).")
    ] = 5,
) -> None:
    """Learn which target tokens may translate which source tokens, for faster search.

    The shortlist is written to the directory of the run, which must have the subwords of the
    dataset. Averaging the run copies the shortlist. "nmt translate --shortlist" then searches, for
    each line, only among the --best translations of its source tokens, the --first most frequent
    tokens and, if both languages share one vocabulary, the source tokens themselves. Prints the
    path of the file; docs/outputs.md describes the report on stderr.
    """
    from nmt.data.dataset import Dataset
    from nmt.preprocess.alignment.lexicon import LexiconConfig, learn_shortlist, measured
    from nmt.runs import Run
    from nmt.subwords.subwords import Subwords

    chosen, data = model_or_default(model), data or default_dataset()
    if not Run.exists(chosen):
        raise NmtError(f"{chosen}: not a run; give the directory of a run with --model")
    run, dataset = Run.open(chosen), Dataset.open(data)
    subwords = Subwords.from_dataset(dataset)
    if not subwords.is_same_as(run.subwords):
        raise NmtError(
            f"{data}: its subwords differ from the subwords of {chosen}; give the run's own dataset"
        )
    manifest = dataset.manifest
    run.check_languages(data, (manifest.source_lang, manifest.target_lang))
    config = LexiconConfig(first=first, best=best, max_pairs=max_pairs, iterations=iterations)
    # Before minutes of learning, also of the split that is read only after it.
    for name in ("train", "valid"):
        dataset.split(name).check()
    learned = learn_shortlist(dataset, subwords.fingerprint, config)
    file = run.give_shortlist(learned)
    length, share = measured(learned, dataset.split("valid"))
    say(
        f"read {learned.origin.pairs:,} pairs; valid: lists of {length:,.0f} of "
        f"{subwords.target_size:,} tokens on average, with {share:.1%} of the references' tokens"
    )
    print(file)
