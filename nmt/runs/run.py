"""A run: a directory with a recipe, subwords, and checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt.data.directions import DIRECTIONS_FILE
from nmt.errors import NmtError
from nmt.io import documents, files
from nmt.io.documents import DocumentFormat, FileFacts
from nmt.recipe.plugins import plugin_names
from nmt.runs.calibration import Calibration
from nmt.runs.checkpoint import (
    OPTIMIZER,
    VERSION,
    WEIGHTS,
    Base,
    Checkpoint,
    Tensors,
    checkpoints_in,
)
from nmt.runs.recipe import RECIPE, read_plugins, read_recipe, write_plugins, write_recipe
from nmt.subwords.subwords import Subwords

if TYPE_CHECKING:
    from nmt.data.shortlist import Shortlist

LOG = "log.jsonl"
SHORTLIST = "shortlist.safetensors"

REMEDY = "copy the run again from where it came from, or train it again"

LINKS = ("last", "best")
LINK_REMEDY = "give one of the run's checkpoints instead"


@dataclass(frozen=True, kw_only=True)
class _RunDescription:
    """The content of ``run.json``."""

    source_lang: str
    target_lang: str
    identity: str
    data: str
    files: dict[str, FileFacts]

    def __post_init__(self) -> None:
        documents.check_inside(self.files)


_FORMAT = DocumentFormat(kind=_RunDescription, name="nmt-run", version=VERSION, remedy=REMEDY)


@dataclass(frozen=True)
class Run:
    """A run directory."""

    path: Path
    source_lang: str
    target_lang: str
    identity: str
    """Unique id of the run."""
    data: str
    """Fingerprint of the training dataset."""
    recipe: dict[str, Any]
    files: dict[str, FileFacts]
    """Size and checksum of the files that never change."""

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target."""
        return self.source_lang, self.target_lang

    def check_languages(self, dataset: Path, languages: tuple[str, str]) -> None:
        """Check that a dataset has the languages of the run; a multilingual dataset may have more.

        Args:
            dataset: path of the dataset, for the message.
            languages: source and target language of the dataset.

        Raises:
            NmtError: the languages differ, or the run translates in the opposite direction.
        """
        if languages == self.languages or DIRECTIONS_FILE in self.files:
            return
        here, there = (" to ".join(pair) for pair in (self.languages, languages))
        raise NmtError(
            f"{dataset}: is {there}, but {self.path} is {here}; give the dataset of the run"
        )

    @classmethod
    def exists(cls, path: Path) -> bool:
        """Whether there is a run in the directory."""
        return (path / "run.json").exists()

    @classmethod
    def open(cls, path: Path) -> Run:
        """Open the run in a directory.

        Raises:
            NmtError: the run is missing, or of another version.
        """
        try:
            description = _FORMAT.read(path / "run.json")
        except (FileNotFoundError, NotADirectoryError):
            raise NmtError(
                f"{path / 'run.json'}: missing: {path} is not a run; give a run that `nmt train` "
                "has made"
            ) from None
        return cls(path=path, recipe=read_recipe(path), **vars(description))

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
        """Create a run without checkpoints.

        The files are the subwords, the recipe, and copies of the sources of the recipe's plugins.
        `run.json` is written last, so an interrupted creation leaves no run.

        Args:
            path: directory of the run, created if missing.
            languages: source and target language.
            identity: unique id of the run.
            data: fingerprint of the training dataset.
            recipe: resolved recipe: plain values.
            subwords: subword models.
            plugins: sources of the plugins by relative path.

        Raises:
            NmtError: the directory cannot be created.
        """
        make_directory(path)
        # Removed first and written last: its presence says that the run is complete.
        (path / "run.json").unlink(missing_ok=True)
        with files.named(path):
            written = subwords.save(path)
        write_recipe(path, recipe)
        write_plugins(path, plugins or {})
        description = _RunDescription(
            source_lang=languages[0],
            target_lang=languages[1],
            identity=identity,
            data=data,
            files={file.name: FileFacts.from_file(file) for file in written},
        )
        with files.whole_file(path / "run.json") as unfinished:
            unfinished.write_text(_FORMAT.text(description), encoding="utf-8")
        return cls.open(path)

    def with_recipe(self, recipe: dict[str, Any]) -> Run:
        """Replace the recipe, on disk too, and return the changed run."""
        write_recipe(self.path, recipe)
        return replace(self, recipe=recipe)

    def section(self, name: str) -> dict[str, Any]:
        """Return a section of the recipe.

        Raises:
            NmtError: the recipe has no such section.
        """
        if name not in self.recipe:
            raise NmtError(f"{self.path / RECIPE}: the section {name!r} is missing; restore it")
        section: dict[str, Any] = self.recipe[name]
        return section

    @property
    def plugins(self) -> tuple[str, ...]:
        """Modules that the recipe names as plugins.

        Raises:
            NmtError: the recipe has values that are not names of modules.
        """
        return plugin_names(self.recipe.get("plugins"), str(self.path / RECIPE))

    @property
    def subwords(self) -> Subwords:
        """Subword models of the run.

        Raises:
            NmtError: the subword models are missing or damaged.
        """
        return Subwords.load_checked(self.path, self.files, REMEDY)

    @property
    def has_shortlist(self) -> bool:
        """Whether the run has a shortlist."""
        return (self.path / SHORTLIST).exists()

    @property
    def shortlist(self) -> Shortlist:
        """Shortlist of the run.

        Raises:
            NmtError: the shortlist is missing, damaged, of another version, or made for other
                subwords.
        """
        if not self.has_shortlist:
            raise NmtError(
                f"{self.path}: the run has no shortlist; make one with "
                f"`nmt shortlist --model {self.path}`"
            )
        from nmt.data.shortlist import Shortlist

        shortlist, subwords = Shortlist.load(self.path / SHORTLIST), self.subwords
        # Ids of another vocabulary would silently stand for other words.
        if not shortlist.is_of(subwords.fingerprint, subwords.source_size, subwords.target_size):
            raise NmtError(
                f"{self.path / SHORTLIST}: made for other subwords than the run's; make it again "
                f"with `nmt shortlist --model {self.path}`"
            )
        return shortlist

    def give_shortlist(self, shortlist: Shortlist) -> Path:
        """Write a shortlist into the run, replacing an older shortlist, and return its path."""
        shortlist.save(self.path / SHORTLIST)
        return self.path / SHORTLIST

    def checkpoint_paths(self) -> list[Path]:
        """Return the paths of all checkpoints; see :func:`checkpoints_in`."""
        return checkpoints_in(self.path)

    def examined(self) -> Iterator[tuple[Path, Checkpoint | NmtError]]:
        """Yield each checkpoint or the error of reading the checkpoint, oldest first.

        A checkpoint that training removes meanwhile is left out.
        """
        for path in self.checkpoint_paths():
            try:
                yield path, Checkpoint.open(path)
            except NmtError as error:
                # Training may remove old checkpoints while they are listed.
                if path.exists():
                    yield path, error

    def checkpoints(self) -> list[Checkpoint]:
        """Return the checkpoints, oldest first.

        Raises:
            NmtError: the description of a checkpoint is damaged.
        """
        checkpoints = []
        for _, checkpoint in self.examined():
            if isinstance(checkpoint, NmtError):
                raise checkpoint
            checkpoints.append(checkpoint)
        return checkpoints

    def target(self, name: str) -> Path | None:
        """Return the target of a link ("best" or "last"), None without the link."""
        link = self.path / name
        # lexists, because a link to a removed checkpoint is an error and not the absence of a link.
        return Path(os.path.realpath(link)) if os.path.lexists(link) else None

    def checkpoint(self, name: str) -> Checkpoint | None:
        """Return the checkpoint that a link ("best" or "last") points to, None without the link.

        Raises:
            NmtError: the link points outside the run or to a missing path, or the checkpoint is
                damaged.
        """
        link = self.path / name
        while (path := self.target(name)) is not None:
            # A link in a run from elsewhere must not lead to other files of this machine.
            if path.parent != self.path.resolve():
                raise NmtError(f"{link}: leads out of the run, to {path}; {LINK_REMEDY}")
            try:
                return Checkpoint.open(path)
            except NmtError:
                if path.exists():
                    raise
            if self.target(name) == path:  # otherwise training has moved the link
                raise NmtError(f"{link}: leads to {path.name}, which is missing; {LINK_REMEDY}")
        return None

    def problems(self) -> Iterator[str]:
        """Yield one line for each missing or damaged file; reads every file."""
        checks: list[tuple[Path, Callable[[], object]]] = [
            (self.path, partial(documents.check, self.path / name, facts, REMEDY))
            for name, facts in self.files.items()
        ]
        checks.append((self.path, lambda: self.subwords))
        checks.append((self.path, partial(read_plugins, self.path)))
        if self.has_shortlist:
            checks.append((self.path, lambda: self.shortlist))
        checks.append((self.path, partial(Calibration.load, self.path)))
        checks.append((self.path, partial(_verify_base, self.path)))
        checks += [(path, partial(_verify, path)) for path in self.checkpoint_paths()]
        checks += [(self.path, partial(self.checkpoint, name)) for name in LINKS]
        # Two links may lead to the same damaged checkpoint.
        reported = set()
        for place, check in checks:
            # One damaged file must not hide the next.
            try:
                check()
            except (NmtError, OSError) as error:
                # Training has removed a path that no longer exists.
                if place.exists() and str(error) not in reported:
                    reported.add(str(error))
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
        """Write a checkpoint, then point the link "last" and, if `best`, "best" to the checkpoint.

        Args:
            update: number of optimizer updates.
            weights: weights of the model by name.
            optimizer: state of the optimizer; None to leave it out.
            trainer_state: state of the trainer, such as counters.
            scores: scores of the validation at this update, by name.
            best: whether the checkpoint is the best of the run.
        """
        path = self.path / f"update_{update:07d}"
        tensors = (
            {WEIGHTS: weights} if optimizer is None else {WEIGHTS: weights, OPTIMIZER: optimizer}
        )
        with files.whole_directory(path) as unfinished:
            Checkpoint.write(unfinished, update, tensors, trainer_state, scores)
        # Links move only when the checkpoint is complete, so "last" never names a partial
        # checkpoint.
        saved = Checkpoint.open(path)
        self.link(saved, best)
        return saved

    def amend(
        self, update: int, trainer_state: dict[str, Any], scores: dict[str, float], best: bool
    ) -> Checkpoint:
        """Give the checkpoint of an update another state of the trainer and other scores.

        Its tensors are not written again, so the checkpoint is there at any time. Arguments are as
        in :meth:`save`.
        """
        saved = Checkpoint.open(self.path / f"update_{update:07d}")
        amended = replace(saved, trainer_state=trainer_state, scores=scores)
        amended.describe()
        self.link(amended, best)
        return amended

    def link(self, newest: Checkpoint, best: bool) -> None:
        """Point the link "last" and, if `best`, "best" to the newest checkpoint."""
        # "last" first: after a kill between the two, training resumes from the newest checkpoint.
        for name in LINKS if best else LINKS[:1]:
            if self.target(name) != newest.path.resolve():
                # Relative, so that the run can be moved.
                files.point(self.path / name, newest.path.name)

    def prune(self, keep_last: int) -> None:
        """Remove all checkpoints except the newest `keep_last` and the best.

        Only the newest two keep the optimizer's state, which is two thirds of a checkpoint's size:
        the last to resume from, and the previous in case the last is damaged.
        """
        kept = {self.target(name) for name in LINKS}
        # Damaged checkpoints take no place among the newest, and are left for the user to inspect.
        sound = [
            checkpoint for _, checkpoint in self.examined() if isinstance(checkpoint, Checkpoint)
        ]
        newest_first = sound[::-1]
        for rank, checkpoint in enumerate(newest_first):
            if rank >= keep_last and checkpoint.path.resolve() not in kept:
                files.remove_directory(checkpoint.path)
            elif rank >= 2:
                (checkpoint.path / OPTIMIZER).unlink(missing_ok=True)


def _verify_base(path: Path) -> None:
    if (base := Base.load(path)) is not None:
        base.open(path).verify()


def _verify(path: Path) -> None:
    Checkpoint.open(path).verify()


def make_directory(path: Path) -> None:
    """Create a directory if it is missing.

    Raises:
        NmtError: it cannot be created.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror
        # Otherwise the system's reason would be that the file exists.
        if path.is_symlink() and not path.exists():
            reason = f"it is a link to {os.readlink(path)}, which does not exist"
        raise NmtError(
            f"{path}: no directory can be made there: {reason}; choose another directory"
        ) from None
