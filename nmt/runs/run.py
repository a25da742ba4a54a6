"""A run: a directory with a recipe, subwords, and checkpoints."""

from __future__ import annotations

import fcntl
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from nmt import files
from nmt.data.shortlist import Shortlist
from nmt.errors import NmtError
from nmt.preprocess.subwords import Subwords
from nmt.runs.checkpoint import VERSION, Checkpoint, checksum, read_json
from nmt.runs.weights import Tensors, write_tensors

RECIPE = "recipe.yaml"
SHORTLIST = "shortlist.safetensors"


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
        values = read_json(path / "run.json", "nmt-run")
        try:
            recipe = yaml.safe_load((path / RECIPE).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError):
            recipe = None
        if not isinstance(recipe, dict):
            raise NmtError(f"{path / 'recipe.yaml'}: missing or damaged")
        keys = ("source_lang", "target_lang", "identity", "data")
        try:
            return cls(path=path, recipe=recipe, **{key: values[key] for key in keys})
        except KeyError as error:
            raise NmtError(f"{path / 'run.json'}: damaged: {error} is missing") from None

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
    ) -> Run:
        """A new run without checkpoints; `run.json` comes last, so a half-made one is none.

        Raises:
            NmtError: there can be no directory at `path`.
        """
        _make_directory(path)
        subwords.save(path)
        _write_recipe(path, recipe)
        values = {
            "format": "nmt-run",
            "version": VERSION,
            "source_lang": languages[0],
            "target_lang": languages[1],
            "identity": identity,
            "data": data,
        }
        with files.whole_file(path / "run.json") as partial:
            partial.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
        return cls.open(path)

    def with_recipe(self, recipe: dict[str, Any]) -> Run:
        """The run with another recipe, on disk too."""
        _write_recipe(self.path, recipe)
        return replace(self, recipe=recipe)

    @property
    def subwords(self) -> Subwords:
        """The subword models the run was trained with."""
        return Subwords.load(self.path)

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
        found = Shortlist.load(self.path / SHORTLIST)
        if found.origin.subwords != self.subwords.fingerprint:
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

    def checkpoints(self) -> list[Checkpoint]:
        """The checkpoints whose descriptions are sound, oldest first."""
        found = []
        for path in self.checkpoint_paths():
            try:
                found.append(Checkpoint.open(path))
            except NmtError:
                continue
        return found

    def checkpoint(self, name: str) -> Checkpoint | None:
        """The one that a link ("best" or "last") points to, if there is one."""
        path = self.path / name
        return Checkpoint.open(path.resolve()) if path.exists() else None

    def save(
        self,
        update: int,
        weights: Tensors,
        optimizer: Tensors | None,
        progress: dict[str, Any],
        scores: dict[str, float],
        best: bool,
    ) -> Checkpoint:
        """Writes a checkpoint, then points "last", and "best" if it is the best, to it."""
        path = self.path / f"update_{update:07d}"
        with files.whole_directory(path) as partial:
            described = {}
            named = {"model.safetensors": weights, "optimizer.safetensors": optimizer}
            for name, tensors in named.items():
                if tensors is not None:
                    described[name] = write_tensors(partial / name, tensors)
            values = {"update": update, "scores": scores, "progress": progress, "files": described}
            header = {"format": "nmt-checkpoint", "version": VERSION}
            text = json.dumps({**header, **values, "checksum": checksum(values)}, indent=1)
            (partial / "checkpoint.json").write_text(text + "\n", encoding="utf-8")
        saved = Checkpoint.open(path)
        self.link(saved, best)
        return saved

    def link(self, newest: Checkpoint, best: bool) -> None:
        """Points "last" to the newest checkpoint, and "best", too, where it is the best."""
        for name in ("last", "best") if best or not (self.path / "best").exists() else ("last",):
            if (self.path / name).resolve() != newest.path.resolve():
                files.point(self.path / name, newest.path.name)

    def prune(self, keep_last: int) -> None:
        """Removes all but the newest checkpoints and the best.

        Only the newest two keep their optimizer's state, two thirds of a checkpoint's size: the
        last to resume from, and the one before it in case the last is damaged.
        """
        links = [self.path / "last", self.path / "best"]
        kept = {link.resolve() for link in links if link.exists()}
        newest_first = self.checkpoints()[::-1]
        for rank, checkpoint in enumerate(newest_first):
            if rank >= keep_last and checkpoint.path.resolve() not in kept:
                files.remove_directory(checkpoint.path)
            elif rank >= 2:
                (checkpoint.path / "optimizer.safetensors").unlink(missing_ok=True)


def _write_recipe(path: Path, recipe: dict[str, Any]) -> None:
    with files.whole_file(path / RECIPE) as partial:
        partial.write_text(yaml.safe_dump(recipe, sort_keys=False), encoding="utf-8")


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NmtError(
            f"{path}: no directory can be made there: {error.strerror}; choose another one"
        ) from None
