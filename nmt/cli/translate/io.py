"""Input and output of ``nmt translate``: lines, requirements on lines, JSON, and n-best lists."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, count, repeat
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from nmt.cli.console import STDOUT
from nmt.errors import NmtError
from nmt.io import files
from nmt.io.lines import Lines
from nmt.messages import say, warn

if TYPE_CHECKING:
    from nmt.inference import LineTranslator, Request, SearchConfig, Translation
    from nmt.inference.alignment import Unit
    from nmt.inference.markup import Dialect
    from nmt.runtime.distributed import World


@dataclass(frozen=True, kw_only=True)
class Form:
    """The form in which translations are written; the default is one translation a line."""

    count: int | None = None
    """Number of translations of a line; None for one without a list."""
    is_json: bool = False
    """Whether to write a JSON object for each line."""
    aligned: Unit | None = None
    """Unit to align, in JSON."""
    dialect: Dialect | None = None
    """Markup of the lines, which are translated without their tags."""
    retry: bool = False
    """Whether to search flagged lines again."""


def translate_block(
    translator: LineTranslator,
    lines: Sequence[str | Request],
    numbers: Iterable[int],
    form: Form,
) -> list[str]:
    """Return the output for each line; `numbers` are the numbers of the lines, from 0."""
    if form.is_json:
        by_line = translator.translations(
            lines, form.count or 1, scored=True, aligned=form.aligned, retry=form.retry
        )
        # If lines are missing, `translate_stream` says how many.
        return [
            _json(translator, number, translations, form)
            for number, translations in zip(numbers, by_line, strict=False)
        ]
    if form.dialect:
        from nmt.inference.markup.lines import translate_markup

        if translator.subwords.context:
            raise NmtError("--markup: the model translates lines in their context, without tags")
        return list(translate_markup(translator, map(str, lines), form.dialect))
    if form.count:
        by_line = translator.translations(lines, form.count, retry=form.retry)
        return [
            "\n".join(f"{number} ||| {_moses(translation)}" for translation in translations)
            for number, translations in zip(numbers, by_line, strict=False)
        ]
    if form.retry:
        return [best.text for best, *_ in translator.translations(lines, retry=True)]
    return list(translator.translate(lines))


def _json(
    translator: LineTranslator, number: int, translations: list[Translation], form: Form
) -> str:
    """Return the JSON object of a line."""
    best, *others = translations
    values = {"id": number, **translator.fields(best, form.aligned)}
    if form.aligned:
        values[f"source_{form.aligned}"] = best.units()[0]
    if (form.count or 1) > 1 or others:
        values["others"] = [translator.fields(other, form.aligned) for other in others]
    return json.dumps(values, ensure_ascii=False)


def _moses(translation: Translation) -> str:
    """Return the fields of Moses: ``text ||| features ||| score``."""
    hypothesis = translation.hypothesis
    features = f"LogProbability= {hypothesis.log_probability:.6f} Length= {len(hypothesis.output)}"
    return f"{translation.text} ||| {features} ||| {hypothesis.score:.6f}"


def translate_stream(
    translator: LineTranslator,
    source: Lines | Requests,
    target: IO[bytes],
    world: World,
    form: Form = Form(),
    engine: str = "",
) -> None:
    """Translate all lines, and print speed and warnings on stderr.

    Args:
        translator: translator of this process.
        source: input, read by the first process.
        target: output, written by the first process.
        world: the processes that share the lines.
        form: output form of each line.
        engine: the engine that was chosen, which is printed at the end.

    Raises:
        NmtError: a line cannot be read, or the numbers of lines read and written differ.
    """
    seconds, lines, written, shown = 0.0, 0, 0, 0  # seconds without waiting for lines
    if source.is_typed and world.is_main:
        say("ready; type a line to translate, and Ctrl-D at the end")
    with _progress(source, target, world) as show:

        def advance() -> None:
            nonlocal shown
            # A line may have several sentences; the last of a block is counted when it is written.
            if shown < lines - 1:
                shown += 1
                show(shown)

        translator.on_sentence = advance
        for block in _shared(source, translator, world):
            start = time.monotonic()
            numbers = range(lines + world.rank, lines + len(block), world.size)
            lines += len(block)
            # In turn: neighbours in a sorted file take equally long.
            part = block[world.rank :: world.size]
            written_here = translate_block(translator, part, numbers, form)
            texts = [""] * sum(map(len, shares := world.gather(written_here)))
            for rank, share in enumerate(shares):
                texts[rank :: world.size] = share
            if world.is_main:
                target.writelines(text.encode() + b"\n" for text in texts)
                # A reader of the pipe gets these lines before more are read.
                target.flush()
            written += len(texts)
            shown = written
            show(shown)
            seconds += time.monotonic() - start
    if written != lines:
        raise NmtError(
            f"{source.name}: {lines} lines gave {written} translations; "
            "do not use them, and report this"
        )
    summed = world.sum([*map(float, vars(translator.counts).values())])
    if world.is_main:
        if engine:
            say(f"engine {engine}")
        _report(lines, max(seconds, 1e-9), summed, translator.config.max_source_length)


@contextmanager
def _progress(
    source: Lines | Requests, target: IO[bytes], world: World
) -> Iterator[Callable[[int], object]]:
    """Yield a function that shows a number of lines, if a terminal has no lines itself."""
    is_free = not source.is_typed and not target.isatty()
    if not (world.is_main and sys.stderr.isatty() and is_free):
        yield lambda count: None
        return
    from tqdm import tqdm

    with tqdm(
        total=source.count(),
        unit=" lines",
        miniters=1,
        file=sys.stderr,
        dynamic_ncols=True,
        leave=False,
    ) as bar:
        yield lambda count: bar.update(count - bar.n)


def _report(lines: int, seconds: float, counts: list[float], longest: int) -> None:
    target_tokens, truncated, split, empty, unsplittable, beyond_training, flagged = counts
    say(
        f"translated {lines} lines in {seconds:.1f} s: {lines / seconds:.1f} sentences/s, "
        f"{target_tokens / seconds:.1f} target tokens/s"
    )
    if truncated > unsplittable:
        warn(
            f"lines cut to {longest} pieces: {truncated - unsplittable:.0f}; "
            "use --on-long-line split, or raise search.max_source_length"
        )
    if unsplittable:
        warn(
            f"lines cut to {longest} pieces: {unsplittable:.0f}, each with a prefix, phrases or "
            "terminology, which no line that is split can have; give a line for each sentence, or "
            "raise search.max_source_length"
        )
    if beyond_training:
        warn(
            "lines much longer than every training sentence, or of more sentences: "
            f"{beyond_training:.0f}; use --split-sentences"
        )
    if split:
        warn(f"lines split into parts of at most {longest} pieces: {split:.0f}")
    if empty:
        warn(
            f"empty translations of lines that are not blank: {empty:.0f}; "
            "train longer, or raise --alpha"
        )
    if flagged:
        warn(
            f"translations with flags, such as a repetition or an unusual length: {flagged:.0f}; "
            "--json names the flags, and --retry searches again"
        )


def _shared(
    source: Lines | Requests, translator: LineTranslator, world: World
) -> Iterator[list[Any]]:
    """Yield in every process its share of the blocks that the first process reads."""
    blocks: Iterable[Sequence[str | Request]] = repeat([])
    if world.is_main:
        most = translator.config.window * (1 + translator.windows_ahead) * world.size
        blocks = translator.in_documents(source.arriving(most))
    # An empty block tells all processes that the input has ended.
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
        # The link stays; the file that it names is replaced.
        path = _linked(path)
        rescue = partial(_keep_lines, path) if keeps else None
        with (
            files.whole_file(path, rescue) as whole,
            files.named(path),
            whole.open("wb") as stream,
        ):
            yield stream


def _keep_lines(path: Path, partial_path: Path) -> None:
    """Keep the complete lines of a partial file in a file next to `path`, if there are any."""
    kept = _unused(path.with_name(f"{path.name}.unfinished"))
    partial_path.rename(kept)
    lines = _cut_incomplete_line(kept)
    if lines:
        shown = "line" if lines == 1 else f"{lines:,} lines"
        say(f"{kept} has the first {shown}; translate the remaining lines")
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
    """Return a path at which there is nothing: this one, or this one followed by a number."""
    paths = chain([path], (path.with_name(f"{path.name}-{number}") for number in count(2)))
    return next(other for other in paths if not os.path.lexists(other))


def check_directories(*paths: Path | None) -> None:
    """Raise an OSError that names a directory unless :func:`writer` can make its file there."""
    for path in paths:
        if path is not None and not is_written_in_place(path):
            directory = _linked(path).parent
            directory.stat()  # if it is missing, the next check is of the directory above it
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


BLOCK = 1024
"""Lines to read at once from the files with requirements."""


class Requests:
    """Lines to translate, with requirements on each translation.

    Attributes:
        name: name of the lines, for messages.
        paths: the files that were opened; None for stdin, or where no file is given.
    """

    def __init__(self, lines: Lines, fields: Mapping[str, Lines], is_json: bool = False) -> None:
        """Keep the files; reading begins later.

        Args:
            lines: lines to translate.
            fields: files whose line n is a field of the request of line n, by the name of the field
                of :class:`nmt.inference.Request`: `prefix`, or `phrases` and `avoid`, which are
                separated by tabs.
            is_json: whether each line is a request as a JSON object.
        """
        self.name = lines.name
        self._lines, self._fields, self._is_json = lines, fields, is_json
        self.paths: Sequence[Path | None] = ()
        self._config: SearchConfig | None = None
        self._has_context = False

    @classmethod
    def open(cls, lines: Path | None, *field_lines: Path | None, is_json: bool = False) -> Requests:
        """Open the files: lines (None for stdin), prefixes, phrases, phrases to avoid."""
        paths = zip(("prefix", "phrases", "avoid"), field_lines, strict=False)
        fields = {field: Lines.open(path) for field, path in paths if path is not None}
        requests = cls(Lines.open(lines), fields, is_json)
        requests.paths = (lines, *field_lines)
        return requests

    @property
    def is_typed(self) -> bool:
        """Whether a person types the lines at a terminal."""
        return self._lines.is_typed

    def count(self) -> int | None:
        """Return the number of lines before any is read; None if they cannot be read twice."""
        return self._lines.count()

    def configure(self, config: SearchConfig, has_context: bool = True) -> None:
        """Set the settings of the search, which requests may override.

        Args:
            config: the settings.
            has_context: whether the model was trained with context.
        """
        self._config, self._has_context = config, has_context
        for lines in (self._lines, *self._fields.values()):
            lines.on_invalid_utf8 = config.on_invalid_utf8

    def arriving(self, most: int) -> Iterator[list[str] | list[Request]]:
        """Yield blocks of at most `most` lines, as :meth:`nmt.io.lines.Lines.arriving` does.

        Raises:
            NmtError: a file with requirements has another number of lines, or a line of JSON is no
                request.
        """
        if self._is_json:
            yield from self._objects(most)
        elif self._fields:
            yield from self._with_requirements(most)
        else:
            yield from self._lines.arriving(most)

    def _objects(self, most: int) -> Iterator[list[Request]]:
        from nmt.inference import Request

        assert self._config is not None
        number = 0
        for block in self._lines.arriving(most):
            requests = []
            for line in block:
                number += 1
                where = f"{self.name}, line {number}"
                try:
                    value = _parsed(line, where)
                    requests.append(Request.read(value, where, self._config, self._has_context))
                except NmtError:
                    # The requests before the wrong line are translated.
                    if requests:
                        yield requests
                    raise
            yield requests

    def _with_requirements(self, most: int) -> Iterator[list[Request]]:
        from nmt.inference import Request

        if self._has_context:
            warn(
                "the model was trained on sentences with their context; with --prefix, --require "
                "or --avoid each line is alone"
            )
        files = {
            field: chain.from_iterable(lines.blocks(BLOCK)) for field, lines in self._fields.items()
        }
        for block in self._lines.arriving(most):
            requests = []
            for text in block:
                fields = {field: self._next(field, lines) for field, lines in files.items()}
                phrases, avoid = (
                    fields.get(field, "").split("\t") for field in ("phrases", "avoid")
                )
                prefix = fields.get("prefix", "")
                requests.append(Request(text, prefix, tuple(phrases), tuple(avoid)))
            yield requests
        for field, lines in files.items():
            if next(lines, None) is not None:
                raise self._uneven(field)

    def _next(self, field: str, lines: Iterator[str]) -> str:
        line = next(lines, None)
        if line is None:
            raise self._uneven(field)
        return line

    def _uneven(self, field: str) -> NmtError:
        return NmtError(
            f"{self.name} and {self._fields[field].name} differ in their number of lines; "
            "line n of one must belong to line n of the other"
        )


def _parsed(line: str, where: str) -> object:
    """Return a JSON value; for a blank line, the request of an empty translation."""
    if not line.strip():
        return {"text": ""}
    try:
        value = json.loads(line)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # as JSON allows: "\ud800"
        raise NmtError(f"{where}: has half a character, which is not text") from None
    except RecursionError:
        raise NmtError(f"{where}: expected an object, not brackets within brackets") from None
    except ValueError as error:
        raise NmtError(
            f'{where}: not JSON: {error}; a line is an object such as {{"text": "..."}}'
        ) from None
    return value
