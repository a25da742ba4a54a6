"""A run: a directory with a recipe, subwords, and checkpoints."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from nmt.data.shortlist import Shortlist
from nmt.errors import NmtError
from nmt.io import files
from nmt.io.documents import DocumentFormat
from nmt.io.files import FileFacts
from nmt.plugins import plugin_names
from nmt.preprocess.subwords import Subwords
from nmt.runs.checkpoint import OPTIMIZER, VERSION, WEIGHTS, Checkpoint
from nmt.runs.plugins import read_plugins, write_plugins
from nmt.runs.recipe import RECIPE, read_recipe, write_recipe
from nmt.runs.weights import Tensors

SHORTLIST = "shortlist.safetensors"

REMEDY = "copy the run again from where it came from, or train it again"

LINKS = ("last", "best")
LINK_REMEDY = "give one of the run's checkpoints instead"


@dataclass(frozen=True, kw_only=True)
class _Description:
    """The content of ``run.json``."""

    source_lang: str
    target_lang: str
    identity: str
    data: str
    files: dict[str, FileFacts]

    def __post_init__(self) -> None:
        files.check_inside(self.files)


_FORMAT = DocumentFormat(kind=_Description, name="nmt-run", version=VERSION, remedy=REMEDY)


@dataclass(frozen=True)
class Run:
    """A run directory."""

    path: Path
    source_lang: str
    target_lang: str
    identity: str
    """Distinguishes this run from every other."""
    data: str
    """Fingerprint of the dataset it was trained on."""
    recipe: dict[str, Any]
    files: dict[str, FileFacts]
    """Size and checksum of the files that stay as they are."""

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target."""
        return self.source_lang, self.target_lang

    @classmethod
    def exists(cls, path: Path) -> bool:
        """Whether there is a run in the directory."""
        return (path / "run.json").exists()

    @classmethod
    def open(cls, path: Path) -> Run:
        """The run in a directory.

        Raises:
            NmtError: there is none, or it is of another version.
        """
        try:
            found = _FORMAT.read(path / "run.json")
        except (FileNotFoundError, NotADirectoryError):
            raise NmtError(
                f"{path / 'run.json'}: missing: {path} is no run; give one that `nmt train` has "
                "made"
            ) from None
        return cls(path=path, recipe=read_recipe(path), **vars(found))

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        languages: tuple[str, str],
        identity: str,
        data: str,
        recipe: dict[str, Any],
        subwords: Subwords,
        plugins: Mapping[str, bytes] | None = None,
    ) -> Run:
        """A new run without checkpoints; `run.json` comes last, so a half-made one is none.

        Its files are the subwords, the recipe, and copies of the sources of the recipe's plugins.

        Raises:
            NmtError: there can be no directory at `path`.
        """
        _make_directory(path)
        (path / "run.json").unlink(missing_ok=True)
        with files.named(path):
            written = subwords.save(path)
        write_recipe(path, recipe)
        write_plugins(path, plugins or {})
        description = _Description(
            source_lang=languages[0],
            target_lang=languages[1],
            identity=identity,
            data=data,
            files={file.name: FileFacts.of(file) for file in written},
        )
        with files.whole_file(path / "run.json") as unfinished:
            unfinished.write_text(_FORMAT.text(description), encoding="utf-8")
        return cls.open(path)

    def with_recipe(self, recipe: dict[str, Any]) -> Run:
        """The run with another recipe, on disk too."""
        write_recipe(self.path, recipe)
        return replace(self, recipe=recipe)

    def section(self, name: str) -> dict[str, Any]:
        """Return a section of the recipe.

        Raises:
            NmtError: the recipe has none of that name.
        """
        if name not in self.recipe:
            raise NmtError(f"{self.path / RECIPE}: the section {name!r} is missing; restore it")
        section: dict[str, Any] = self.recipe[name]
        return section

    @property
    def plugins(self) -> tuple[str, ...]:
        """The modules that the recipe names as plugins.

        Raises:
            NmtError: they are no names of modules.
        """
        return plugin_names(self.recipe.get("plugins"), str(self.path / RECIPE))

    @property
    def subwords(self) -> Subwords:
        """The subword models the run was trained with.

        Raises:
            NmtError: they are missing or damaged.
        """
        return Subwords.load_checked(self.path, self.files, REMEDY)

    @property
    def has_shortlist(self) -> bool:
        """Whether one was given to the run."""
        return (self.path / SHORTLIST).exists()

    @property
    def shortlist(self) -> Shortlist:
        """The shortlist that was given to the run.

        Raises:
            NmtError: there is none, or it is damaged, of another version, or of other subwords.
        """
        if not self.has_shortlist:
            raise NmtError(
                f"{self.path}: the run has no shortlist; give it one with "
                f"`nmt shortlist --model {self.path}`"
            )
        found, subwords = Shortlist.load(self.path / SHORTLIST), self.subwords
        if not found.is_of(subwords.fingerprint, subwords.source_size, subwords.target_size):
            raise NmtError(
                f"{self.path / SHORTLIST}: of other subwords than the run; "
                f"make it again with `nmt shortlist --model {self.path}`"
            )
        return found

    def give_shortlist(self, shortlist: Shortlist) -> Path:
        """Writes a shortlist into the run, in the place of an older one; gives where."""
        shortlist.save(self.path / SHORTLIST)
        return self.path / SHORTLIST

    @staticmethod
    @contextmanager
    def locked(path: Path, by_this_process: bool = True) -> Iterator[None]:
        """Holds a directory, made where it is missing, for one training; a second one is refused.

        What a killed one left half-written is removed.

        Args:
            path: of the run, which may be still to be created.
            by_this_process: False in the peers of the process that holds it for all.
        """
        if not by_this_process:
            yield
            return
        _make_directory(path)
        with (path / "run.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise NmtError(
                    f"{path}: another process is training here; "
                    "wait for it, or choose another --save-dir"
                ) from None
            except OSError as error:  # a file system without locks
                print(f"nmt: warning: {path}: cannot be locked: {error.strerror}", file=sys.stderr)
            files.sweep(path)
            yield

    def checkpoint_paths(self) -> list[Path]:
        """Where the checkpoints are, damaged ones too, oldest first."""
        return sorted(self.path.glob("update_*"), key=lambda path: (len(path.name), path.name))

    def examined(self) -> Iterator[tuple[Path, Checkpoint | NmtError]]:
        """Yield each checkpoint, or why it cannot be read, oldest first.

        One that training removes meanwhile is left out.
        """
        for path in self.checkpoint_paths():
            try:
                yield path, Checkpoint.open(path)
            except NmtError as error:
                if path.exists():
                    yield path, error

    def checkpoints(self) -> list[Checkpoint]:
        """The checkpoints, oldest first.

        Raises:
            NmtError: the description of one is damaged.
        """
        found = []
        for _, checkpoint in self.examined():
            if isinstance(checkpoint, NmtError):
                raise checkpoint
            found.append(checkpoint)
        return found

    def target(self, name: str) -> Path | None:
        """Where a link ("best" or "last") leads, if there is one."""
        link = self.path / name
        return Path(os.path.realpath(link)) if os.path.lexists(link) else None

    def checkpoint(self, name: str) -> Checkpoint | None:
        """The one that a link ("best" or "last") points to, if there is one.

        Raises:
            NmtError: the link leads out of the run or to nothing, or the checkpoint is damaged.
        """
        link = self.path / name
        while (path := self.target(name)) is not None:
            if path.parent != self.path.resolve():
                raise NmtError(f"{link}: leads out of the run, to {path}; {LINK_REMEDY}")
            try:
                return Checkpoint.open(path)
            except NmtError:
                if path.exists():
                    raise
            if self.target(name) == path:  # else training has moved the link meanwhile
                raise NmtError(f"{link}: leads to {path.name}, which is missing; {LINK_REMEDY}")
        return None

    def problems(self) -> Iterator[str]:
        """Yield what is missing or damaged, a line each; reads every file."""
        checks: list[tuple[Path, Callable[[], object]]] = [
            (self.path, partial(files.check, self.path / name, facts, REMEDY))
            for name, facts in self.files.items()
        ]
        checks.append((self.path, lambda: self.subwords))
        checks.append((self.path, partial(read_plugins, self.path)))
        if self.has_shortlist:
            checks.append((self.path, lambda: self.shortlist))
        checks += [(path, partial(_verify, path)) for path in self.checkpoint_paths()]
        checks += [(self.path, partial(self.checkpoint, name)) for name in LINKS]
        found = set()
        for place, check in checks:
            try:
                check()
            except (NmtError, OSError) as error:
                if place.exists() and str(error) not in found:  # else training has removed it
                    found.add(str(error))
                    yield str(error)

    def save(
        self,
        update: int,
        weights: Tensors,
        optimizer: Tensors | None,
        trainer_state: dict[str, Any],
        scores: dict[str, float],
        best: bool,
    ) -> Checkpoint:
        """Writes a checkpoint, then points "last", and "best" if it is the best, to it."""
        path = self.path / f"update_{update:07d}"
        tensors = (
            {WEIGHTS: weights} if optimizer is None else {WEIGHTS: weights, OPTIMIZER: optimizer}
        )
        with files.whole_directory(path) as unfinished:
            Checkpoint.write(unfinished, update, tensors, trainer_state, scores)
        saved = Checkpoint.open(path)
        self.link(saved, best)
        return saved

    def link(self, newest: Checkpoint, best: bool) -> None:
        """Points "last" to the newest checkpoint, and "best", too, where it is the best."""
        for name in LINKS if best else LINKS[:1]:
            if self.target(name) != newest.path.resolve():
                files.point(self.path / name, newest.path.name)

    def prune(self, keep_last: int) -> None:
        """Removes all but the newest checkpoints and the best.

        Only the newest two keep their optimizer's state, two thirds of a checkpoint's size: the
        last to resume from, and the one before it in case the last is damaged.
        """
        kept = {self.target(name) for name in LINKS}
        sound = [found for _, found in self.examined() if isinstance(found, Checkpoint)]
        newest_first = sound[::-1]
        for rank, checkpoint in enumerate(newest_first):
            if rank >= keep_last and checkpoint.path.resolve() not in kept:
                files.remove_directory(checkpoint.path)
            elif rank >= 2:
                (checkpoint.path / OPTIMIZER).unlink(missing_ok=True)


def _verify(path: Path) -> None:
    Checkpoint.open(path).verify()


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NmtError(
            f"{path}: no directory can be made there: {error.strerror}; choose another one"
        ) from None
