"""A run is a directory: everything that ``translate`` needs, and it can be moved or copied.

    run.json            format, version, languages, identity of the run and of its data
    recipe.yaml         the resolved recipe
    subwords.model      (or subwords.source.model and subwords.target.model)
    log.jsonl           one record per report
    update_0001000/     a checkpoint: model.safetensors, optimizer.safetensors, checkpoint.json
    last, best          links to checkpoints
    shortlist.safetensors   which target tokens translate which source tokens, if it was made

A checkpoint appears whole or not at all, and every one of its files has a checksum. This is the
only module that knows these bytes; nothing is ever unpickled.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from nmt import files
from nmt.config import build, import_plugins
from nmt.data.shortlist import Shortlist
from nmt.errors import NmtError
from nmt.models import Model, ModelConfig
from nmt.preprocess.subwords import Subwords

SHORTLIST = "shortlist.safetensors"

VERSION = 1
"""Of the run directory and its checkpoints; another version is refused."""

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Checkpoint:
    """One saved moment of a run."""

    path: Path
    update: int
    """Optimizer updates done."""
    scores: dict[str, float]
    """What validation measured at this update, by name; empty where it did not."""
    progress: dict[str, Any]
    """What the trainer counts across resumes."""
    files: dict[str, dict[str, Any]]
    """Size and checksum of each file."""

    @classmethod
    def open(cls, path: Path) -> Checkpoint:
        """Reads a checkpoint's description, and nothing heavier.

        Raises:
            NmtError: it is missing, damaged, or of another version.
        """
        values = _read_json(path / "checkpoint.json", "nmt-checkpoint")
        named: dict[str, Any] = {
            key: values.get(key) for key in ("update", "scores", "progress", "files")
        }
        if values.get("checksum") != _checksum(named):
            raise NmtError(
                f"{path / 'checkpoint.json'}: damaged: its checksum does not match; "
                "use another checkpoint of the run"
            )
        return cls(path, **named)

    def weights(self) -> dict[str, Tensor]:
        """The model's weights, checked."""
        return self._tensors("model.safetensors")

    def optimizer(self) -> dict[str, Tensor]:
        """The optimizer's state, checked."""
        return self._tensors("optimizer.safetensors")

    def verify(self) -> None:
        """Reads every file that is kept; one that is missing or damaged is an `NmtError`."""
        for name in self.files:
            if name == "model.safetensors" or (self.path / name).exists():
                self._checked(name)

    def _tensors(self, name: str) -> dict[str, Tensor]:
        path = self._checked(name)
        try:
            return load_file(path)
        except SafetensorError as error:
            raise NmtError(f"{path}: not a safetensors file: {error}") from None

    def _checked(self, name: str) -> Path:
        path = self.path / name
        if not path.exists():
            raise NmtError(f"{path}: missing; use another checkpoint of the run")
        if name not in self.files or files.sha256(path) != self.files[name]["sha256"]:
            raise NmtError(
                f"{path}: damaged: {path.stat().st_size} bytes that do not match the checksum "
                "in checkpoint.json; use another checkpoint of the run"
            )
        return path


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
        values = _read_json(path / "run.json", "nmt-run")
        try:
            recipe = yaml.safe_load((path / "recipe.yaml").read_text(encoding="utf-8"))
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
                    described[name] = _write_tensors(partial / name, tensors)
            values = {"update": update, "scores": scores, "progress": progress, "files": described}
            header = {"format": "nmt-checkpoint", "version": VERSION}
            text = json.dumps({**header, **values, "checksum": _checksum(values)}, indent=1)
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


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to translate, and what it came with."""

    model: Model
    subwords: Subwords
    recipe: dict[str, Any]
    """The resolved recipe of its run: plain values."""
    run: Run
    checkpoint: Checkpoint


def _write_recipe(path: Path, recipe: dict[str, Any]) -> None:
    with files.whole_file(path / "recipe.yaml") as partial:
        partial.write_text(yaml.safe_dump(recipe, sort_keys=False), encoding="utf-8")


def load_model(path: Path, device: torch.device | None = None) -> LoadedModel:
    """The model of a run (its best checkpoint, else its last) or of one checkpoint.

    Raises:
        NmtError: there is no such model, or it is damaged or of another version.
    """
    if Run.exists(path):
        run = Run.open(path)
        checkpoint = run.checkpoint("best") or run.checkpoint("last")
        if checkpoint is None:
            raise NmtError(f"{path}: the run has no checkpoint yet")
    elif (path / "checkpoint.json").exists():
        checkpoint = Checkpoint.open(path.resolve())
        run = Run.open(checkpoint.path.parent)
    else:
        what = "has no run.json" if path.is_dir() else "is a file"
        raise NmtError(
            f"{path}: not a trained model: it {what if path.exists() else 'does not exist'}; give "
            "a run directory that `nmt train` has made, or one of its checkpoints"
        )
    import_plugins(run.recipe.get("plugins", []), Path())
    subwords = run.subwords
    config: ModelConfig = build(ModelConfig, run.recipe["model"], "model")  # type: ignore[type-abstract]
    model = config.build(subwords.source_size, subwords.target_size, subwords.shared)
    set_weights(model, checkpoint.weights())
    model.to(device or torch.device("cpu")).eval()
    return LoadedModel(model, subwords, run.recipe, run, checkpoint)


def weights_of(model: torch.nn.Module) -> dict[str, Tensor]:
    """The weights by name, tied ones once."""
    return {name: weight.detach() for name, weight in model.named_parameters()}


def set_weights(model: torch.nn.Module, weights: Tensors) -> None:
    """Copies weights into a model.

    Raises:
        NmtError: names or shapes differ.
    """
    own = weights_of(model)
    check_same_shapes({"the model": own, "the checkpoint": weights})
    with torch.no_grad():
        for name, weight in own.items():
            weight.copy_(weights[name])


def check_same_shapes(named: Mapping[str, Tensors]) -> None:
    """Raises an NmtError that names the first weight in which the two sets of weights differ."""
    for name in sorted({name for weights in named.values() for name in weights}):
        shapes = {
            owner: str(list(weights[name].shape)) if name in weights else "missing"
            for owner, weights in named.items()
        }
        if len(set(shapes.values())) > 1:
            said = " and ".join(f"{shape} in {owner}" for owner, shape in shapes.items())
            raise NmtError(f"different shapes: {name} is {said}")


def average(checkpoints: Sequence[Checkpoint]) -> dict[str, Tensor]:
    """The mean of the checkpoints' weights, taken in float32; tied weights are stored once.

    Holds two sets of weights at a time, however many there are to average.
    """
    total: dict[str, Tensor] = {}
    for checkpoint in checkpoints:
        weights = checkpoint.weights()
        if total:
            check_same_shapes({str(checkpoints[0].path): total, str(checkpoint.path): weights})
        for name, weight in weights.items():
            total[name] = total[name] + weight.float() if name in total else weight.float()
    return {name: weight / len(checkpoints) for name, weight in total.items()}


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NmtError(
            f"{path}: no directory can be made there: {error.strerror}; choose another one"
        ) from None


def _write_tensors(path: Path, tensors: Tensors) -> dict[str, Any]:
    """Writes a file of tensors, and gives its size and checksum."""
    try:
        save_file({key: value.contiguous().cpu() for key, value in tensors.items()}, path)
    except SafetensorError as error:  # which is no OSError, also where the disk is full
        raise NmtError(f"{path}: cannot be written: {error}") from None
    path.chmod(0o644)  # safetensors lets nobody else read it
    return {"bytes": path.stat().st_size, "sha256": files.sha256(path)}


def _read_json(path: Path, expected: str) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        kind = expected.removeprefix("nmt-")
        raise NmtError(
            f"{path}: missing: {path.parent} is no {kind}; give one that `nmt train` has made"
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise NmtError(f"{path}: damaged: not JSON") from None
    if not isinstance(values, dict) or values.get("format") != expected:
        raise NmtError(f"{path}: not a file of format {expected}")
    if values.get("version") != VERSION:
        raise NmtError(
            f"{path}: format version {values.get('version')}, but this nmt reads {VERSION}"
        )
    return values


def _checksum(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
