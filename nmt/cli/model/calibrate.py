"""``nmt calibrate``: measure how sure to be of a translation."""

from pathlib import Path
from typing import Annotated

import typer

from nmt.cli.options import default_dataset, model_or_default
from nmt.cli.recipe import TrustFlag
from nmt.errors import NmtError
from nmt.messages import say

EXAMPLE = "Example: nmt calibrate --data data-bin --model checkpoints"


def calibrate(
    data: Annotated[
        Path | None,
        typer.Option(
            help="Dataset of the run.  [default: train.data of nmt.yaml]", show_default=False
        ),
    ] = None,
    model: Annotated[
        list[Path] | None,
        typer.Option(
            "--model",
            "-m",
            metavar="PATH",
            envvar="NMT_MODEL",
            help="Run (its best checkpoint) or checkpoint; replaces an older calibration of the "
            "run.  [default: train.save_dir of nmt.yaml]",
            show_default=False,
        ),
    ] = None,
    sentences: Annotated[
        int,
        typer.Option(
            min=1, help="Largest number of validation pairs to read, spread over the set."
        ),
    ] = 1000,
    trust_plugins: TrustFlag = False,
) -> None:
    """Measure the confidence in translations.

    Translates sources of the validation set; "nmt translate --json" then estimates the probability
    that a translation is good. Also measures the ranges of numbers that "nmt export --format
    bergamot" needs. Writes a file into the directory of the run, for one checkpoint, and prints its
    path.
    """
    from nmt.data.dataset import Dataset
    from nmt.formats.bergamot import measure_ranges
    from nmt.inference.confidence import measure_confidence
    from nmt.inference.engines import load_translator
    from nmt.runs import load_model
    from nmt.runs.calibration import Calibration
    from nmt.subwords.subwords import Subwords

    chosen, data = model_or_default(model), data or default_dataset()
    dataset, loaded = Dataset.open(data), load_model(chosen, trust_plugins=trust_plugins)
    if not Subwords.from_dataset(dataset).is_same_as(loaded.subwords):
        raise NmtError(
            f"{data}: its subwords differ from the subwords of {chosen}; give the run's own dataset"
        )
    manifest = dataset.manifest
    loaded.run.check_languages(data, (manifest.source_lang, manifest.target_lang))
    split = dataset.split("valid")
    # Measurements of damaged text would be stored without a sign of the damage.
    split.check()
    directions = loaded.subwords.directions
    source, target = directions.trained[0] if directions else (None, None)
    translator = load_translator(
        chosen,
        device="cpu",
        trust_plugins=trust_plugins,
        source_lang=source,
        target_lang=target,
    )
    confidence = measure_confidence(translator, split, sentences)
    calibration = Calibration(
        weights=loaded.checkpoint.digest,
        ranges=measure_ranges(loaded.model, split, sentences),
        confidence=confidence,
    )
    path = calibration.save(loaded.run.path)
    if confidence is not None:
        say(f"confidence: expected calibration error {confidence.calibration_error:.3f}")
    print(path)
