"""``nmt filter``: keep the pairs of a corpus that models of both directions like best."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmt.cli.console import check_output
from nmt.cli.recipe import PluginFlag, TrustFlag, import_named
from nmt.cli.score.by_model import open_model
from nmt.cli.translate.io import check_directories, is_written_in_place, writer
from nmt.errors import FULL_OR_FAILING, NmtError, UnfinishedError
from nmt.io.files import named
from nmt.io.lines import open_stdin
from nmt.messages import say

if TYPE_CHECKING:
    from nmt.inference.filtering import Cut
    from nmt.preprocess.corpus import Bitext

EXAMPLE = "Example: nmt filter crawl.tsv --forward forward --reverse reverse --keep 0.5 -o best.tsv"

WAIT_MINUTES = 60.0
"""Minutes for which processes wait for each other."""


CorpusPath = Annotated[
    str,
    typer.Argument(
        help="FILE.tsv with source, tab and target on a line; or the PREFIX of two files, as in "
        "nmt preprocess --train; plain, .gz, .xz or .zst; or - for a TSV from stdin."
    ),
]
Forward = Annotated[
    Path, typer.Option(help="Run or checkpoint that translates source into target.")
]
Reverse = Annotated[
    Path, typer.Option(help="Run or checkpoint that translates target into source.")
]
Keep = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE", min=0, max=1, help="Share of the pairs to keep.", show_default=False
    ),
]
Threshold = Annotated[
    float | None,
    typer.Option(metavar="SCORE", min=0, max=1, help="Least score to keep.", show_default=False),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="File for the pairs kept; resumes after a kill.  [default: stdout]",
        show_default=False,
    ),
]
ScoresPath = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write the score of every pair, too.", show_default=False),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:N or auto.")]


def filter_pairs(
    corpus: CorpusPath,
    forward: Forward,
    reverse: Reverse,
    keep: Keep = None,
    threshold: Threshold = None,
    output: Output = None,
    scores: ScoresPath = None,
    device: Device = "auto",
    plugin: PluginFlag = None,
    trust_plugins: TrustFlag = False,
) -> None:
    """Keep the pairs that models of both directions find likely.

    Writes the pairs that are kept, with a tab between source and target, in their order. The score
    of a pair is its dual conditional cross-entropy (Junczys-Dowmunt 2018), from 0 to 1: high if
    both models assign the pair a similar, high probability. With torchrun all processes share the
    pairs.
    """
    _check(keep, threshold, output, scores)
    import_named(plugin)
    # Before torch is imported, because the descriptions of the runs are enough.
    languages, identity = _opposite(forward, reverse)
    from nmt.inference.filtering import Cut, dual_scorer, score_corpus, write_kept
    from nmt.preprocess.corpus import STDIN, Bitext
    from nmt.runtime.distributed import join

    bitext = None if corpus == STDIN else Bitext.find(corpus, *languages)
    for flag, written in {"--output": output, "--scores": scores}.items():
        check_output(written, *(bitext.files if bitext else ()), flag=flag)
    with join(device, WAIT_MINUTES) as world:
        if world.is_main:
            # Now, and not after hours of scoring.
            check_directories(output, scores)
        models = [open_model(path, world.place, trust_plugins) for path in (forward, reverse)]
        with _scratch(output, bitext, identity, world.is_main) as (path, copied):
            score_corpus(copied, dual_scorer(*models), path, world)
            if not world.is_main:
                return
            cut = Cut(path, keep, threshold)
            with writer(output, is_main=True) as stream:
                kept = write_kept(copied, cut, stream)
            if scores is not None:
                with writer(scores, is_main=True) as stream:
                    for values, _ in cut.masks():
                        # Nine digits tell all numbers of float32 apart.
                        stream.writelines(f"{value:.9g}\n".encode() for value in values)
    if bitext is None or len(bitext.files) == 1:
        say("the first column was taken as {}, the second as {}".format(*languages))
    for model in models:
        say(f"engine {model.engine}")
    _report(kept, cut)


def _opposite(forward: Path, reverse: Path) -> tuple[tuple[str, str], list[str]]:
    """Return the languages of the first model, and the checksums of both.

    Raises:
        NmtError: they do not translate in opposite directions.
    """
    from nmt.data.directions import DIRECTIONS_FILE
    from nmt.runs import find_checkpoint

    runs = [find_checkpoint(path) for path in (forward, reverse)]
    for run, _ in runs:
        if DIRECTIONS_FILE in run.files:
            raise NmtError(f"{run.path}: translates several directions; give a model of one")
    languages, back = (run.languages for run, _ in runs)
    if languages != back[::-1]:
        raise NmtError(
            f"--forward translates {' to '.join(languages)}, but --reverse {' to '.join(back)}; "
            "give models of opposite directions"
        )
    return languages, [checkpoint.digest for _, checkpoint in runs]


def _report(kept: int, cut: Cut) -> None:
    """Print how many pairs are kept, and their least score."""
    least = f", with scores of {cut.least:.6g} and more" if kept else ""
    say(f"kept {kept:,} of {cut.pairs:,} pairs{least}")


def _check(
    keep: float | None, threshold: float | None, output: Path | None, scores: Path | None
) -> None:
    """Raise a BadParameter if options do not go together."""
    if (keep is None) == (threshold is None):
        raise typer.BadParameter("give either --keep or --threshold")
    if output is not None and scores is not None and output.resolve() == scores.resolve():
        raise typer.BadParameter("--output and --scores are the same file; give two")


@contextmanager
def _scratch(
    output: Path | None, bitext: Bitext | None, models: list[str], is_main: bool
) -> Iterator[tuple[Path, Bitext]]:
    """Yield a file for the scores, and the corpus to read; the file is removed at the end.

    With an output and a corpus in files, an interrupted command leaves the file next to the output,
    and the same command finds it again.

    Raises:
        UnfinishedError: the disk is full or fails, and the file stays.
    """
    from nmt.preprocess.corpus import Bitext

    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        if output is not None and bitext and is_main and not is_written_in_place(output):
            # Sizes and times, because checksums would read gigabytes once more.
            stats = [(str(file), file.stat()) for file in bitext.files]
            shown = [models, [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]]
            digest = hashlib.sha256(json.dumps(shown).encode()).hexdigest()[:16]
            path = output.with_name(f".{output.name}.scores-{digest}")
            try:
                with named(output, path):
                    yield path, bitext
            except OSError as error:
                if error.errno not in FULL_OR_FAILING:
                    raise
                raise UnfinishedError.by_disk(error) from None
            except UnfinishedError:
                raise
            except NmtError:  # for example of the corpus, which the user will mend
                path.unlink(missing_ok=True)
                raise
            path.unlink(missing_ok=True)
            return
        # Also for all processes but the first, which write nothing into their file.
        with named(directory.parent, directory):
            if bitext is None:
                bitext = Bitext(directory / "stdin.tsv", None, is_stdin=True)
                if is_main:
                    with bitext.source.open("wb") as file:
                        shutil.copyfileobj(open_stdin(), file)
            yield directory / "scores", bitext
