"""``nmt explain``: show how models translate sentences, as a page, as JSON or as a picture."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nmt.cli.console import OutputFlag, check_output, check_stdin, check_terminal
from nmt.cli.documents import check_kind, write_document
from nmt.cli.options import (
    SEARCH_FLAGS,
    RecipeSettings,
    SourceLang,
    TargetLang,
    default_run,
    recipe_flags,
    search_settings,
)
from nmt.cli.score.by_model import unequal_lines, warn_of_context
from nmt.errors import NmtError
from nmt.io.lines import Lines
from nmt.messages import encodable, say

if TYPE_CHECKING:
    from nmt.explain import Explanation
    from nmt.inference import Translator

EXAMPLE = "Example: nmt explain --model checkpoints < input.txt > page.html"

FLAGS = {"Search": SEARCH_FLAGS}

Text = Annotated[
    Path | None,
    typer.Argument(
        metavar="TEXT",
        help="Text, one sentence a line; plain, .gz, .xz or .zst; - for stdin.  [default: -]",
        show_default=False,
    ),
]
Input = Annotated[
    Path | None,
    typer.Option(
        "--input", "-i", metavar="FILE", help="Another way to give TEXT.", show_default=False
    ),
]
Models = Annotated[
    list[Path] | None,
    typer.Option(
        "--model",
        "-m",
        metavar="PATH",
        envvar="NMT_MODEL",
        help="A run (its best checkpoint) or one of its checkpoints. Several models, each with a "
        "--model of its own, form an ensemble.  [default: the recipe's train.save_dir]",
        show_default=False,
    ),
]
Compare = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="PATH",
        help="Another run or checkpoint to show next to the model, with its own translations. May "
        "be given several times.",
        show_default=False,
    ),
]
Target = Annotated[
    Path | None,
    typer.Option(
        help="Translations to explain, line by line.  [default: the translations that search "
        "finds]",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Write everything the page shows as JSON.")]
Svg = Annotated[
    str | None,
    typer.Option(
        metavar="KIND:LAYER",
        help="Write the attention of the first sentence as SVG: encoder:5, decoder:1 or cross:2.",
        show_default=False,
    ),
]
Png = Annotated[
    str | None,
    typer.Option(
        metavar="KIND:LAYER",
        help="Write the same picture as PNG, which needs nmt-toolkit[report].",
        show_default=False,
    ),
]
Heads = Annotated[
    str | None,
    typer.Option(
        metavar="N,...", help="Heads to draw, from 1.  [default: all]", show_default=False
    ),
]
Word = Annotated[
    str | None,
    typer.Option(
        metavar="PIECE",
        help="The only piece whose attention is drawn.  [default: all]",
        show_default=False,
    ),
]


@recipe_flags(FLAGS)
def explain(
    text: Text = None,
    input_: Input = None,
    model: Models = None,
    compare: Compare = None,
    target: Target = None,
    output: OutputFlag = None,
    as_json: AsJson = False,
    svg: Svg = None,
    png: Png = None,
    heads: Heads = None,
    word: Word = None,
    source_lang: SourceLang = None,
    target_lang: TargetLang = None,
    *,
    settings: RecipeSettings,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:N or auto.")] = "auto",
) -> None:
    """Show how models translate sentences.

    Writes one HTML page that needs no network: the attention of every layer and head, the steps
    with their likeliest tokens, the hypotheses of the search, embeddings, and alignments. Members
    of an ensemble, and models to --compare, are shown next to each other. Settings of each search
    come from the model's recipe, then nmt.yaml, then flags. docs/outputs.md describes the fields of
    --json.
    """
    picture = svg or png
    if text and input_:
        raise typer.BadParameter("give either TEXT or --input")
    if [bool(svg), bool(png), as_json].count(True) > 1:
        raise typer.BadParameter("give one of --svg, --png and --json")
    if picture and compare:
        raise typer.BadParameter("a picture shows one model; leave out --compare")
    if (heads or word) and not picture:
        raise typer.BadParameter("--heads and --word choose what --svg or --png draws")
    check_kind(output, "svg" if svg else "png" if png else "json" if as_json else "html")
    if not (svg or as_json):
        check_terminal(output, "attention.png" if png else "page.html")
    chosen = _chosen(picture, heads)
    source = text or input_ or Path("-")
    check_stdin(source, target)
    inputs = [source, *([target] if target else [])]
    lines = [Lines.open(path) for path in inputs]
    check_output(output, *inputs)
    # Imported after the checks of options: torch takes seconds, a wrong option is refused at once.
    from nmt.explain.figure import figure

    languages = target_lang, source_lang
    groups = [model or [default_run(settings.load())], *([path] for path in compare or ())]
    opened = [open_models(paths, device, settings, languages) for paths in groups]
    translators = [translator for translator, _ in opened]
    explanations = _explain(translators, lines, only_first=picture is not None)
    facts = [fact for _, facts in opened for fact in facts]
    if chosen:
        drawn = figure(explanations[0][0], *chosen, word)
        written = drawn.png() if png else drawn.svg().encode()
    else:
        written = encodable(_document(explanations, facts, as_json)).encode()
    write_document(output, written)
    count = len(explanations[0])
    say(f"explained {count} sentence{'s' * (count > 1)} in {len(written):,} bytes")


def _chosen(picture: str | None, heads: str | None) -> tuple[str, int, list[int] | None] | None:
    """Return kind, layer and heads of a picture; None without one."""
    if picture is None:
        return None
    kind, _, layer = picture.partition(":")
    numbers = heads.split(",") if heads else []
    if not all(re.fullmatch("[0-9]{1,9}", part.strip()) for part in (layer, *numbers)):
        raise typer.BadParameter(
            "a picture has a form such as encoder:5, and --heads a form such as 1,2"
        )
    return kind, int(layer), [int(number) for number in numbers] or None


def open_models(
    paths: Sequence[Path],
    device: str,
    settings: RecipeSettings,
    languages: tuple[str | None, str | None],
) -> tuple[Translator, list[dict[str, Any]]]:
    """Return the translator of a run or an ensemble, and descriptions of the members for the page.

    The models are not converted for speed, so that they record their attention. `languages` are
    target and source.
    """
    import torch

    from nmt.inference import Execution, Translator
    from nmt.inference.ensembles import load_members, one_of
    from nmt.runtime.distributed import pick_device

    settings.load()  # import the plugins, which the models may need
    place = pick_device(device)
    members = load_members(paths, torch.device(place), settings.trust_plugins)
    search = search_settings(settings, members[0].recipe)
    model = one_of(members, search).eval()
    run = members[0].run
    warn_of_context(members[0].subwords)
    general = Translator(
        model, members[0].subwords, search, Execution(device=place), languages=run.languages
    )
    translator = general.for_direction(*languages)
    facts: list[dict[str, Any]] = [
        {
            "model": str(path),
            "architecture": member.run.section("model").get("arch"),
            "languages": list(translator.languages),
            "update": member.checkpoint.update,
        }
        for path, member in zip(paths, members, strict=True)
    ]
    if len(facts) > 1:
        whole = {"model": "ensemble", "architecture": "ensemble", "update": None}
        facts.insert(0, {**facts[0], **whole})
    return translator, facts


def _explain(
    translators: list[Translator], lines: list[Lines], only_first: bool
) -> list[list[Explanation]]:
    """Explain lines with the translations of the searches or with given translations.

    Raises:
        NmtError: no line has text, or the two files differ in their number of lines.
    """
    from nmt.explain import explain

    texts = [side.read() for side in lines]
    if len({*map(len, texts)}) > 1:
        raise unequal_lines(*lines)
    ones = ([side[at : at + 1] for side in texts] for at in range(len(texts[0])))
    # A picture needs one sentence; the other ones would cost a pass of the model each.
    for part in ones if only_first else [texts]:
        explanations = explain(translators, *part)
        if explanations[0]:
            return explanations
    raise NmtError(f"{lines[0].name}: no line with text, so nothing to explain")


def _document(
    explanations: list[list[Explanation]], facts: list[dict[str, Any]], as_json: bool
) -> str:
    from nmt.explain.document import document, listed, packed, page

    if as_json:
        return json.dumps(document(explanations, facts, listed), ensure_ascii=False) + "\n"
    names = [Path(fact["model"]).absolute().name for fact in facts if fact["update"] is not None]
    *others, last = names
    named = f"{', '.join(others)} and {last} translate" if others else f"{last} translates"
    return page(document(explanations, facts, packed), f"How {named}")
