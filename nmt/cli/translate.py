"""``nmt translate``: lines in, translations out, as many and in the same order."""

import os
import queue
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, cast, get_args

import typer

from nmt import files
from nmt.cli.console import say, warn
from nmt.cli.recipe import ConfigFlag, SetFlag, load
from nmt.config import build
from nmt.errors import NmtError
from nmt.registry import unknown

if TYPE_CHECKING:
    from nmt.inference import Translator

EXAMPLE = "Example: nmt translate --model checkpoints < input.txt > output.txt"


def translate(
    model: Annotated[
        Path,
        typer.Option(
            envvar="NMT_MODEL",
            help="A run (its best checkpoint) or one of its checkpoints.",
        ),
    ] = Path("checkpoints"),
    input_: Annotated[
        Path | None,
        typer.Option(
            "--input", help="Text, one sentence a line. Default: stdin.", show_default=False
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="File that appears when all is translated. Default: stdout.", show_default=False
        ),
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="beam (default) or greedy.", show_default=False),
    ] = None,
    beam: Annotated[
        int | None, typer.Option(help="Width of the beam. Default: 4.", show_default=False)
    ] = None,
    length_penalty: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="gnmt (default), power or none.", show_default=False),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(
            help="Exponent of the length penalty; more prefers longer outputs. "
            "Default: 0.6 of gnmt, 1 of power.",
            show_default=False,
        ),
    ] = None,
    max_length_offset: Annotated[
        int | None,
        typer.Option(
            help="Pieces that a translation may be longer than its source. Default: 50.",
            show_default=False,
        ),
    ] = None,
    batch_tokens: Annotated[
        int | None,
        typer.Option(
            help="Source tokens in a batch, times the beam. Default: 16384.", show_default=False
        ),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(help="Lines that are sorted together. Default: 4096.", show_default=False),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:N or auto.")] = "auto",
    precision: Annotated[
        str, typer.Option(help="What the model computes in: fp32, bf16, or auto, the faster one.")
    ] = "fp32",
    config: ConfigFlag = None,
    set_: SetFlag = None,
) -> None:
    """Translate text, line by line.

    Every line gives one line, in the same order, and a blank one gives an empty one. Lines end
    with a line feed, a carriage return before it is dropped; no other character ends a line. Text
    is UTF-8. From a terminal or a pipe, what has been written so far is answered at once.

    Settings come from the model's own recipe, then nmt.yaml, then flags. At the end the number of
    lines, the seconds and the rates are printed on stderr.
    """
    from nmt.checkpoint import load_model
    from nmt.distributed import pick_device
    from nmt.inference import SearchConfig, Translator
    from nmt.memory import keep_freed_memory
    from nmt.precision import Precision

    if precision not in get_args(Precision):
        raise NmtError(f"--precision: {unknown('value', precision, get_args(Precision))}")
    flags = {
        "search.strategy": strategy,
        "search.strategy.beam": beam,
        "search.strategy.length_penalty": length_penalty,
        "search.strategy.length_penalty.alpha": alpha,
        "search.max_length_offset": max_length_offset,
        "search.batch_tokens": batch_tokens,
        "search.window": window,
    }
    source = _open(input_)
    with _writer(output) as target:
        place = pick_device(device)
        keep_freed_memory()
        loaded = load_model(model, place)
        base = {"search": loaded.recipe.get("search") or {}}
        values = load(config, set_, flags, base).section("search")
        search = build(SearchConfig, values, "search")
        translator = Translator(
            loaded.model, loaded.subwords, search, place, cast("Precision", precision)
        )
        translate_stream(translator, source, target)


def translate_stream(translator: "Translator", source: IO[bytes], target: IO[bytes]) -> None:
    """Translates all lines of a stream, and says on stderr how that went.

    Raises:
        NmtError: a line is not UTF-8, or the lines written are not as many as those read.
    """
    start, lines, written = time.monotonic(), 0, 0
    name = "stdin" if isinstance(source.name, int) else source.name
    for round_ in rounds(source, translator.config.window):
        texts = [_decode(line, f"{name}:{at}") for at, line in enumerate(round_, lines + 1)]
        lines += len(texts)
        for text in translator.translate(texts):
            target.write(text.encode() + b"\n")
            written += 1
        target.flush()
    if written != lines:
        raise NmtError(
            f"{name}: {lines} lines gave {written} translations; do not use them, and report this"
        )
    seconds = max(time.monotonic() - start, 1e-9)
    say(
        f"translated {lines} lines in {seconds:.1f} s: {lines / seconds:.1f} sentences/s, "
        f"{translator.target_tokens / seconds:.1f} target tokens/s"
    )
    if translator.truncated:
        warn(
            f"{translator.truncated} lines were cut to {translator.config.max_source_length} "
            "pieces; split them, or raise search.max_source_length"
        )


def rounds(stream: IO[bytes], most: int) -> Iterator[list[bytes]]:
    """The lines of a stream, as many at a time as there are, at most `most`.

    Of a file, all there are. Of a terminal or pipe, those that have arrived: one that was typed is
    not kept waiting for the next, and a full pipe still fills a round.
    """
    if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        while round_ := list(islice(stream, most)):
            yield round_
        return
    end = b""  # which is no line
    waiting: queue.Queue[bytes] = queue.Queue(most)
    failures: list[OSError] = []

    def read() -> None:
        try:
            for line in stream:
                waiting.put(line)
        except OSError as error:
            failures.append(error)
        waiting.put(end)

    threading.Thread(target=read, daemon=True).start()
    ended = False
    while not ended:
        round_ = [waiting.get()]
        while len(round_) < most and not waiting.empty():
            round_.append(waiting.get())
        if ended := round_[-1] == end:
            round_.pop()
        if round_:
            yield round_
    if failures:
        raise failures[0]


def _open(path: Path | None) -> IO[bytes]:
    """A file or stdin, open for as long as the process lives.

    To close it would be to wait for the thread that may be reading it, hence for the next line.
    """
    if path is None:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    return path.open("rb")


@contextmanager
def _writer(path: Path | None) -> Iterator[IO[bytes]]:
    """Stdout, or a file that appears whole at the end of the context."""
    if path is None:
        yield sys.stdout.buffer
    elif path.exists() and not path.is_file():  # a device or a named pipe
        with path.open("wb") as stream:
            yield stream
    else:
        with files.whole_file(path) as partial, partial.open("wb") as stream:
            yield stream


def _decode(line: bytes, where: str) -> str:
    try:
        return line.removesuffix(b"\n").removesuffix(b"\r").decode()
    except UnicodeDecodeError as error:
        byte = line[error.start]
        raise NmtError(f"{where}: byte 0x{byte:02x} is not UTF-8; convert it with iconv") from None
