"""``nmt preprocess``: make a dataset from parallel text."""

from pathlib import Path
from typing import TYPE_CHECKING

from nmt.cli.options import RecipeSettings, recipe_flags
from nmt.errors import NmtError
from nmt.messages import say
from nmt.recipe.config import build

if TYPE_CHECKING:
    from nmt.data.manifest import Manifest
    from nmt.preprocess.config import PreprocessConfig

EXAMPLE = (
    "Example:\n\n"
    "  nmt preprocess -s en -t de --train corpus/train --valid corpus/valid --vocab-size 1000"
)


FLAGS = {
    "Input and output": {
        "--source-lang -s LANG": "preprocess.source_lang",
        "--target-lang -t LANG": "preprocess.target_lang",
        "--train PREFIX": "preprocess.train",
        "--valid PREFIX": "preprocess.valid",
        "--test PREFIX": "preprocess.test",
        "--alignments/--no-alignments": "preprocess.alignments",
        "--output-dir DIR": "preprocess.output_dir",
    },
    "Subwords": {
        "--vocab-size PIECES": "preprocess.vocab_size",
        "--model-type": "preprocess.model_type",
        "--character-coverage SHARE": "preprocess.character_coverage",
        "--byte-fallback/--no-byte-fallback": "preprocess.byte_fallback",
        "--user-symbol TEXT": "preprocess.user_defined_symbols",
        "--separate-vocabularies": "preprocess.separate_vocabularies",
        "--subword-model PATH": "preprocess.subword_model",
        "--extend-vocabulary PATH": "preprocess.extend_vocabulary",
        "--new-pieces FILE": "preprocess.new_pieces",
        "--seed N": "preprocess.seed",
    },
    "Cleaning": {
        "--clean STEP": "preprocess.clean",
    },
    "Speed": {
        "--workers PROCESSES": "preprocess.workers",
        "--shard I/N": "preprocess.shard",
    },
}


@recipe_flags(FLAGS)
def preprocess(*, settings: RecipeSettings) -> None:
    """Make a dataset from parallel text: learn subwords, clean, and encode.

    Prints the directory of the dataset. Run the same command again to resume after a kill or an
    interruption. Limits of length and other settings are keys of the recipe, for instance
    --set preprocess.max_tokens_per_sentence=100. docs/outputs.md describes the report on stderr;
    nmt inspect prints it again with examples.
    """
    recipe = settings.load()

    from nmt.preprocess.binarize import find_corpora
    from nmt.preprocess.binarize import preprocess as binarize
    from nmt.preprocess.config import PreprocessConfig

    config = build(PreprocessConfig, recipe.section("preprocess"), "preprocess")
    find_corpora(config)  # fails before any message
    if config.shard is None:
        _announce_replacement(Path(config.output_dir))
    say(report(binarize(config)))
    if config.documents:
        _say_longest(config)
    print(config.output_dir)


def _say_longest(config: "PreprocessConfig") -> None:
    """Print how many tokens joined sentences have, for the limits of models and of updates."""
    from nmt.data.dataset import Dataset, length_statistics, shard_directory
    from nmt.data.manifest import SIDES

    assert config.documents
    path, (number, count) = Path(config.output_dir), config.part
    dataset = Dataset.open(shard_directory(path, number, count) if count > 1 else path)
    for side in SIDES:
        lengths = length_statistics(dataset, "train", side)
        say(f"joined {side} tokens: {lengths}; at most {config.documents.max_tokens:,} are joined")


def _announce_replacement(path: Path) -> None:
    from nmt.data.dataset import Dataset

    try:
        there = Dataset.open(path).manifest
    except NmtError:  # there is no dataset to replace
        return
    pairs = there.splits["train"].pairs
    languages = f"{there.source_lang} to {there.target_lang}"
    say(f"{path}: the dataset there, {languages}, {pairs:,} pairs, will be replaced at the end")


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
