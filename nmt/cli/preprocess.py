"""``nmt preprocess``: make a dataset from parallel text."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmt.cli.plugins import PluginFlag, TrustFlag
from nmt.cli.recipe import ConfigFlag, SetFlag, load
from nmt.errors import NmtError
from nmt.messages import say
from nmt.recipe.config import build

if TYPE_CHECKING:
    from nmt.data.manifest import Manifest

EXAMPLE = (
    "Example:\n\n"
    "  nmt preprocess -s en -t de --train corpus/train --valid corpus/valid --vocab-size 1000"
)


def preprocess(
    source_lang: Annotated[
        str | None,
        typer.Option("--source-lang", "-s", metavar="LANG", help="Language to translate from."),
    ] = None,
    target_lang: Annotated[
        str | None,
        typer.Option("--target-lang", "-t", metavar="LANG", help="Language to translate into."),
    ] = None,
    train: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PREFIX",
            help="Training corpus: the files PREFIX.LANG of both languages, one sentence a line, "
            "plain or .gz, .xz, .zst; or FILE.tsv with source, tab, target on a line; or - for "
            "such lines from stdin; may be given several times.",
        ),
    ] = None,
    valid: Annotated[
        str | None, typer.Option(metavar="PREFIX", help="Corpus that training is watched with.")
    ] = None,
    test: Annotated[
        str | None, typer.Option(metavar="PREFIX", help="Corpus for the final scores; optional.")
    ] = None,
    vocab_size: Annotated[
        int | None,
        typer.Option(metavar="PIECES", help="Number of subwords to learn. Default: 32000."),
    ] = None,
    model_type: Annotated[
        str | None, typer.Option(metavar="NAME", help="bpe or unigram. Default: bpe.")
    ] = None,
    character_coverage: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Share of all characters that get a piece of their own. Default: 0.9995.",
        ),
    ] = None,
    byte_fallback: Annotated[
        bool | None,
        typer.Option(
            "--byte-fallback/--no-byte-fallback",
            help="Spell other characters in bytes, which takes 256 pieces, or make them unknown. "
            "Default: in bytes.",
            show_default=False,
        ),
    ] = None,
    user_symbol: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="Text that is always one piece, such as a tag; may be given several times.",
        ),
    ] = None,
    separate_vocabularies: Annotated[
        bool | None,
        typer.Option(
            "--separate-vocabularies",
            help="Learn subwords for each language by itself. Default: one vocabulary for both.",
            show_default=False,
        ),
    ] = None,
    subword_model: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Use these subwords: a SentencePiece .model, or a directory (dataset or run).",
        ),
    ] = None,
    output_dir: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="Dataset to write; an older one is replaced. Default: data-bin."
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="PROCESSES",
            help="Processes that clean and encode. Default: 0, one for each core it may use.",
        ),
    ] = None,
    clean: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STEP",
            help="Clean the training text: unicode, control_characters, punctuation, spaces, "
            "identical, length, script, held_out, duplicates; may be given several times. Their "
            "settings are set in the recipe. Default: none.",
        ),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="Make the I-th of N parts, for instance on one of N machines; auto takes the "
            "place from torchrun or a Slurm array. Default: the whole.",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Of the sample from which subwords are learned. Default: 1."
        ),
    ] = None,
    config: ConfigFlag = None,
    set_: SetFlag = None,
    plugin: PluginFlag = None,
    trust_plugins: TrustFlag = False,
) -> None:
    """Make a dataset of parallel text: learn subwords, clean, and encode.

    Prints the directory of the dataset on stdout. Prints on stderr, for every split, the pairs
    kept, the tokens of each language (including the end of sentence) and the per cent of unknown
    tokens; then the training pairs dropped, by reason, and the lines rewritten, by cleaning step.
    nmt inspect prints the same with examples. Every pair of --valid and --test is kept. Limits of
    length and other settings are keys of the recipe, for instance --set
    preprocess.max_tokens_per_sentence=100.

    Run the same command again to resume after a kill or an interruption.
    """
    given = {
        "source_lang": source_lang,
        "target_lang": target_lang,
        "train": train,
        "valid": valid,
        "test": test,
        "vocab_size": vocab_size,
        "model_type": model_type,
        "character_coverage": character_coverage,
        "byte_fallback": byte_fallback,
        "user_defined_symbols": user_symbol or None,
        "separate_vocabularies": separate_vocabularies,
        "subword_model": subword_model,
        "output_dir": output_dir,
        "workers": workers,
        "clean": clean or None,
        "shard": shard,
        "seed": seed,
    }
    flags = {f"preprocess.{key}": value for key, value in given.items()}
    recipe = load(config, set_, flags, plugins=plugin, trust_plugins=trust_plugins)

    from nmt.preprocess.binarize import find_corpora
    from nmt.preprocess.binarize import preprocess as binarize
    from nmt.preprocess.config import PreprocessConfig

    settings = build(PreprocessConfig, recipe.section("preprocess"), "preprocess")
    find_corpora(settings)  # fails before any message
    if settings.shard is None:
        _announce_replacement(Path(settings.output_dir))
    say(report(binarize(settings)))
    print(settings.output_dir)


def _announce_replacement(path: Path) -> None:
    from nmt.data.dataset import Dataset

    try:
        there = Dataset.open(path).manifest
    except NmtError:  # no dataset that would be replaced
        return
    pairs = there.splits["train"].pairs
    languages = f"{there.source_lang} to {there.target_lang}"
    say(f"{path}: the dataset there, {languages}, {pairs:,} pairs, will be replaced")


def report(manifest: "Manifest") -> str:
    """Return a table of the splits, for people."""
    source, target = manifest.source_lang, manifest.target_lang
    rows = [("split", "pairs", f"{source} tokens", "unknown", f"{target} tokens", "unknown")]
    for name, split in manifest.splits.items():
        rows.append(
            (
                name,
                f"{split.pairs:,}",
                f"{split.source_tokens:,}",
                f"{split.source_unknown / max(1, split.source_tokens):.2%}",
                f"{split.target_tokens:,}",
                f"{split.target_unknown / max(1, split.target_tokens):.2%}",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    ]
    sizes = f"{manifest.source_vocabulary:,} shared"
    if not manifest.shared_vocabulary:
        sizes = f"{manifest.source_vocabulary:,} {source}, {manifest.target_vocabulary:,} {target}"
    train = manifest.splits["train"]
    lines.append(f"dropped from train: {train.why_dropped()}")
    if counts := [f"{n:,} by {step}" for step, n in train.rewritten.items() if n]:
        lines.append(f"lines rewritten: {', '.join(counts)}")
    lines.append(f"vocabulary: {sizes}")
    return "\n".join(lines)
