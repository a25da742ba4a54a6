"""The model card of an export, ``README.md``: languages, use, training data, recipe and scores.

Hubs show the page, and read the YAML at its beginning (Mitchell et al. 2019, *Model Cards for Model
Reporting*). The licence is for the owner of the model to fill in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from nmt.data.dataset import Dataset
from nmt.errors import NmtError
from nmt.evaluation.metrics import Metric
from nmt.recipe.config import build
from nmt.runs import LoadedModel
from nmt.runs.exports import Stored
from nmt.subwords.tags import directions_of

MODEL_CARD = "README.md"
"""Name of the file."""


def model_card(
    loaded: LoadedModel, format_: str, stored: Stored, use: str, metadata: Mapping[str, str]
) -> str:
    """Return the page of an exported model.

    Args:
        loaded: the exported model.
        format_: name of the format.
        stored: data type of the stored weights.
        use: Markdown that says how to translate with the export.
        metadata: keys and values for hubs.
    """
    run = loaded.run
    directions = directions_of(loaded.subwords, run.languages)
    # Not written by hand, because the code of Norwegian is false to YAML.
    languages = yaml.safe_dump([*dict.fromkeys(chain(*directions.trained))])
    keys = "".join(f"{key}: {value}\n" for key, value in metadata.items())
    rows = "".join(f"| {name} | {value} |\n" for name, value in _facts(loaded))
    return (
        f"---\nlanguage:\n{languages}license: unknown\n{keys}pipeline_tag: translation\n"
        f"tags:\n- translation\n---\n\n# Translation from {run.source_lang} to "
        f"{run.target_lang}\n\nA model of nmt, exported to {format_} in {stored}.\n\n"
        f"## Use\n\n{use}\n## Training\n\n| | |\n|---|---|\n{rows}\n"
        f"`recipe.yaml` has all settings.\n{_scores(loaded)}\n## Licence\n\n"
        "To fill in: the licence of the weights, here and as `license` in the first lines of this "
        "file; the licence and the source of the training data.\n"
    )


def _facts(loaded: LoadedModel) -> Iterator[tuple[str, str]]:
    """Yield what the run knows of data, model and training."""
    run, model, checkpoint = loaded.run, loaded.recipe["model"], loaded.checkpoint
    if origin := run.recipe.get("imported"):
        yield "imported from", f"{origin['source']} ({origin['format']})"
    if run.data:
        yield "dataset", f"fingerprint `{run.data}`"
        yield from _data(loaded)
    subwords = loaded.subwords
    sizes = (
        {subwords.source_size} if subwords.shared else (subwords.source_size, subwords.target_size)
    )
    yield "subwords", " and ".join(f"{size:,}" for size in sizes)
    named = ("encoder_layers", "decoder_layers", "d_model", "d_ff", "heads")
    shape = "".join(f", {name} {model[name]}" for name in named if name in model)
    yield "model", f"`{model['arch']}`, {loaded.model.num_parameters():,} weights{shape}"
    train = loaded.recipe.get("train") or {}
    if checkpoint.update:
        tokens = train.get("tokens_per_update")
        size = f" of {tokens:,} target tokens" if tokens else ""
        seconds = checkpoint.trainer_state.get("seconds")
        time = f", {seconds / 60:,.1f} minutes" if seconds else ""
        yield "training", f"{checkpoint.update:,} updates{size}{time}"
    if parent := train.get("init_from"):
        yield "started from", str(parent)


def _data(loaded: LoadedModel) -> Iterator[tuple[str, str]]:
    """Yield the corpora and their sizes, if the dataset of the run is still where it was."""
    try:
        path = Path((loaded.recipe.get("train") or {})["data"])
        manifest = Dataset.open(path).manifest
    except (KeyError, NmtError, OSError):
        return
    if manifest.fingerprint != loaded.run.data:
        return
    for split, counts in manifest.splits.items():
        corpora = manifest.recipe.get(split)
        names = [_name(corpus) for corpus in (corpora if isinstance(corpora, list) else [corpora])]
        yield (
            f"{split} data",
            f"{', '.join(names)}: {counts.pairs:,} pairs, {counts.source_tokens:,} source and "
            f"{counts.target_tokens:,} target tokens",
        )


def _name(corpus: Any) -> str:
    return str(corpus.get("path") if isinstance(corpus, dict) else corpus)


def _scores(loaded: LoadedModel) -> str:
    """Return the section with the scores of the validation set; empty without a validation."""
    if not loaded.checkpoint.scores:
        return ""
    signatures = dict(_signatures(loaded))
    rows = "".join(
        # The name of a score may end with a direction.
        f"| {name} | {value:.3f} | {signatures.get(name.partition('/')[0], '')} |\n"
        for name, value in loaded.checkpoint.scores.items()
    )
    return f"\n## Validation\n\n| metric | value | signature |\n|---|---|---|\n{rows}"


def _signatures(loaded: LoadedModel) -> Iterator[tuple[str, str]]:
    """Yield the name and the signature of each metric of the validation."""
    for value in (loaded.recipe.get("train") or {}).get("valid_metrics", ()):
        try:
            metric: Metric = build(Metric, value, "train.valid_metrics")  # type: ignore[type-abstract]
            yield metric.name, metric.for_language(loaded.run.target_lang).signature()
        except (ImportError, NmtError):  # of a plugin or a package that is missing here
            continue
