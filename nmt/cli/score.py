"""``nmt score``: how near translations are to the references, with the signature of the number.

Or how likely a model finds them.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from nmt.cli.recipe import ConfigFlag, SetFlag, load
from nmt.cli.score_by_model import score_by_model
from nmt.config import build
from nmt.errors import NmtError
from nmt.lines import Lines

EXAMPLE = "Example: nmt score --reference test.de --metric bleu --metric ter output.txt"


def score(
    hypotheses: Annotated[
        Path | None,
        typer.Argument(
            help="Translations, detokenised, one a line; plain or .gz. Default, and -: stdin.",
            show_default=False,
        ),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(help="References, untouched text; plain or .gz.", show_default=False),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Binarized data whose raw references to use.", show_default=False),
    ] = None,
    split: Annotated[str, typer.Option(help="Which part of --data: test or valid.")] = "test",
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="bleu, chrf, chrf++, ter, tokenized_bleu (text as it is, like multi-bleu.perl) or "
            "paper_bleu (Moses-tokenised, compounds split); may be given several times. "
            "Default: score.metrics of the recipe, or bleu and chrf.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            help="A run or checkpoint: print the log-probability it gives to each translation.",
            show_default=False,
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(help="With --model, what was translated; plain or .gz.", show_default=False),
    ] = None,
    device: Annotated[str, typer.Option(help="With --model: cpu, cuda, cuda:N or auto.")] = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per line of the output.")
    ] = False,
    config: ConfigFlag = None,
    set_: SetFlag = None,
) -> None:
    """Score translations against references, or by a model.

    Prints one line per metric: its name and value, what the value is made of, and the signature.
    Values with different signatures must not be compared. Settings of a metric are set in the
    recipe, or with --set "score.metrics=[{name: bleu, lowercase: true}]".

    BLEU is made of the precisions of 1- to 4-grams in per cent, the brevity penalty (BP), and the
    lengths of hypotheses and references in tokens (hyp_len, ref_len, and their ratio); TER of the
    number of edits and the length of the references in words; chrF is followed by its full name.

    With --json a line is an object with the fields metric, value (in per cent, not rounded),
    details (what it is made of), signature, and higher_is_better (false for an error rate).

    With --model a line is printed for each translation: the natural logarithm of the probability
    that the model gives to it and its end, after the line of --source. With --json it is an object
    with the fields log_probability, mean_log_probability (per token, the end included), tokens
    (pieces; the last is the end), token_log_probabilities, words (of the text, as spaces divide
    it), and word_log_probabilities (without the end).
    """
    if [reference, data, model].count(None) != 2:
        raise typer.BadParameter("give either --reference or --data, or a --model")
    if model is not None:
        if source is None:
            raise typer.BadParameter("--model needs --source, the text that was translated")
        score_by_model(model, Lines.open(source), Lines.open(hypotheses), device, as_json)
        return
    from nmt.evaluation import ScoreConfig

    recipe = load(config, set_, {"score.metrics": metric or None})
    settings = build(ScoreConfig, recipe.section("score"), "score")
    references = _references(reference, data, split)
    translations = Lines.open(hypotheses).read()
    for chosen in settings.metrics:
        result = chosen.score(translations, references)
        print(json.dumps(asdict(result)) if as_json else result)


def _references(reference: Path | None, data: Path | None, split: str) -> list[str]:
    if data is None:
        return Lines.open(reference).read()
    from nmt.data.format import Dataset

    held_out = Dataset.open(data).split(split)
    try:
        return held_out.reference_text()
    except ValueError as error:
        raise NmtError(f"{data}: {error}; choose one with --split") from None
