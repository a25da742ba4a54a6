"""The run directory: only this package reads and writes its files.

    run.json            format, version, languages, identity of the run and of its data
    recipe.yaml         the resolved recipe
    subwords.model      (or subwords.source.model and subwords.target.model)
    plugins/            copies of the plugins that the recipe names, and plugins.json
    log.jsonl           one record per report
    update_0001000/     a checkpoint: model.safetensors, optimizer.safetensors, checkpoint.json
    validation/         translations of the validation set after some updates
    last, best          links to checkpoints
    exports/            exports of checkpoints for CTranslate2, which ``translate`` made
    shortlist.safetensors   likely target tokens of each source token, if ``shortlist`` made them
    base.json           the checkpoint that the run adapts, if the run has an adaptation
    calibration.json    confidence in translations, if ``calibrate`` measured it

A run holds everything that ``translate`` needs, and can be moved or copied. A checkpoint appears
whole or not at all, and each of its files has a checksum. No file is ever unpickled.
"""

from nmt.runs.checkpoint import (
    Base,
    Checkpoint,
    average,
    check_same_shapes,
    set_weights,
    weights_of,
)
from nmt.runs.loading import LoadedModel, complete_model, find_checkpoint, load_model
from nmt.runs.run import LOG, Run

__all__ = [
    "LOG",
    "Base",
    "Checkpoint",
    "LoadedModel",
    "Run",
    "average",
    "check_same_shapes",
    "complete_model",
    "find_checkpoint",
    "load_model",
    "set_weights",
    "weights_of",
]
