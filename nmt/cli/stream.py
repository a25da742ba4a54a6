"""The stream of ``nmt translate``: read lines, write as many, and report on stderr."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, count, repeat
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from nmt.cli import forms
from nmt.cli.console import STDOUT
from nmt.cli.requests import Requests
from nmt.errors import NmtError
from nmt.io import files
from nmt.io.lines import Lines
from nmt.messages import say, warn

if TYPE_CHECKING:
    from tqdm import tqdm

    from nmt.inference import LineTranslator, Request
    from nmt.runtime.distributed import World


def translate_stream(
    translator: LineTranslator,
    source: Lines | Requests,
    target: IO[bytes],
    world: World,
    form: forms.Form = forms.plain,
) -> None:
    """Translate all lines, and print speed and warnings on stderr.

    Args:
        translator: translator of this process.
        source: input, read by the first process.
        target: output, written by the first process.
        world: the processes that share the lines.
        form: output form of each line.

    Raises:
        NmtError: a line cannot be read, or the numbers of lines read and written differ.
    """
    seconds, lines, written = 0.0, 0, 0  # seconds without waiting for lines
    if source.is_typed and world.is_main:
        say("ready; type a line to translate, and Ctrl-D at the end")
    with _progress(source, target, world) as bar:
        for block in _shared(source, translator, world):
            start = time.monotonic()
            numbers = range(lines + world.rank, lines + len(block), world.size)
            lines += len(block)
            written_here = form(translator, block[world.rank :: world.size], numbers)
            texts = [""] * sum(map(len, shares := world.gather(written_here)))
            for rank, share in enumerate(shares):
                texts[rank :: world.size] = share
            if world.is_main:
                target.writelines(text.encode() + b"\n" for text in texts)
                target.flush()
            written += len(texts)
            bar.update(len(texts))
            seconds += time.monotonic() - start
    if written != lines:
        raise NmtError(
            f"{source.name}: {lines} lines gave {written} translations; "
            "do not use them, and report this"
        )
    summed = world.sum([*map(float, vars(translator.counts).values())])
    if world.is_main:
        _report(lines, max(seconds, 1e-9), summed, translator.config.max_source_length)


def _progress(source: Lines | Requests, target: IO[bytes], world: World) -> tqdm[Any]:
    """Return a progress bar; shown on a terminal unless lines are read or written there."""
    is_free = not source.is_typed and not target.isatty()
    is_shown = world.is_main and sys.stderr.isatty() and is_free
    from tqdm import tqdm

    return tqdm(
        unit=" lines", file=sys.stderr, dynamic_ncols=True, leave=False, disable=not is_shown
    )


def _report(lines: int, seconds: float, counts: list[float], longest: int) -> None:
    target_tokens, truncated, split, empty = counts
    say(
        f"translated {lines} lines in {seconds:.1f} s: {lines / seconds:.1f} sentences/s, "
        f"{target_tokens / seconds:.1f} target tokens/s"
    )
    if truncated:
        warn(
            f"lines cut to {longest} pieces: {truncated:.0f}; "
            "use --on-long-line split, or raise search.max_source_length"
        )
    if split:
        warn(f"lines split into parts of at most {longest} pieces: {split:.0f}")
    if empty:
        warn(
            f"empty translations of lines that are not blank: {empty:.0f}; "
            "train longer, or raise --alpha"
        )


def _shared(
    source: Lines | Requests, translator: LineTranslator, world: World
) -> Iterator[list[Any]]:
    """Yield in every process the blocks that the first process reads, a window a process."""
    blocks: Iterable[Sequence[str | Request]] = repeat([])
    if world.is_main:
        blocks = translator.in_documents(source.arriving(translator.config.window * world.size))
    for block in chain(blocks, [[]]):
        shared = world.gather(block)[0]
        if not shared:
            return
        yield list(shared)


@contextmanager
def writer(path: Path | None, is_main: bool, keeps: bool = False) -> Iterator[IO[bytes]]:
    """Yield stdout, or a file that appears complete at the end; only the first process writes.

    Args:
        path: the file; None for stdout.
        is_main: whether this is the first process.
        keeps: whether a signal or the disk leaves the complete lines in another file.
    """
    if path is None or not is_main:
        with files.named(STDOUT):
            yield sys.stdout.buffer
    elif is_written_in_place(path):
        # To append keeps what a file below /dev/stdout already holds, after >> for instance.
        with files.named(path), path.open("ab") as stream:
            yield stream
    else:
        path = _linked(path)
        rescue = partial(_keep_lines, path) if keeps else None
        with (
            files.whole_file(path, rescue) as whole,
            files.named(path),
            whole.open("wb") as stream,
        ):
            yield stream


def _keep_lines(path: Path, partial_path: Path) -> None:
    """Keep the complete lines of a partial file in a file beside `path`, if there are any."""
    kept = _unused(path.with_name(f"{path.name}.unfinished"))
    partial_path.rename(kept)
    lines = _cut_incomplete_line(kept)
    if lines:
        shown = "line" if lines == 1 else f"{lines:,} lines"
        say(f"{kept} has the first {shown}; translate the others")
    else:
        kept.unlink()


def _cut_incomplete_line(path: Path) -> int:
    """Remove an incomplete line at the end of a file, and return the number of lines."""
    lines = end = 0
    with path.open("r+b") as file:
        for line in file:
            if line.endswith(b"\n"):
                lines, end = lines + 1, end + len(line)
        file.truncate(end)
    return lines


def _unused(path: Path) -> Path:
    """Return a path at which there is nothing: this one, or one with a number behind it."""
    paths = chain([path], (path.with_name(f"{path.name}-{number}") for number in count(2)))
    return next(other for other in paths if not os.path.lexists(other))


def check_directories(*paths: Path | None) -> None:
    """Raise an OSError that names a directory unless :func:`writer` can make its file there."""
    for path in paths:
        if path is not None and not is_written_in_place(path):
            directory = _linked(path).parent
            directory.stat()  # of a missing one, the next check is of the one above it
            files.check_writable(directory)


def _linked(path: Path) -> Path:
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def is_written_in_place(path: Path) -> bool:
    """Return whether a path is a device, a named pipe, or an open file such as /dev/stdout."""
    if not path.exists():
        return False
    if not path.is_file():
        return True
    while not path.parent.resolve().is_relative_to("/proc"):
        if not path.is_symlink():
            return False
        path = path.parent / path.readlink()
    return True
