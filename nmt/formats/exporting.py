"""The contract of an export format, and the export of a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

from nmt.data.vocabulary import EOS
from nmt.errors import NmtError
from nmt.formats.model_card import MODEL_CARD, model_card
from nmt.io import files
from nmt.models import ModelConfig
from nmt.models.transformer.model import Transformer, TransformerConfig
from nmt.recipe.config import build
from nmt.recipe.registry import Registry
from nmt.runs import LoadedModel, load_model
from nmt.runs.exports import Export, Stored
from nmt.runs.recipe import write_recipe
from nmt.search import Constraint
from nmt.search.constraints import Forbidden, NoRepeatNgram
from nmt.subwords.casing import CasedSegmenter


@dataclass(frozen=True, kw_only=True)
class ExportFormat(ABC):
    """A format of models for another engine."""

    registry: ClassVar[Registry[ExportFormat]]
    spells_text: ClassVar[bool] = True
    """Whether the engine makes text of tokens itself, always from left to right."""
    stored: ClassVar[Stored] = "fp32"
    """Default data type of the stored weights."""
    metadata: ClassVar[Mapping[str, str]] = {}
    """Keys of the model card for hubs."""

    name: str = ""
    """Name of the format."""

    def use(self, loaded: LoadedModel) -> str:
        """Return Markdown that says how to translate with an export, for its model card."""
        return "See the documentation of the engine.\n"

    def card(self, loaded: LoadedModel, stored: Stored) -> str:
        """Return the model card."""
        return model_card(loaded, self.name, stored, self.use(loaded), self.metadata)

    def search(self, search: dict[str, Any]) -> dict[str, Any]:
        """Return the default search settings of an export; formats may change the run's."""
        return search

    @abstractmethod
    def check(self, loaded: LoadedModel, stored: Stored) -> None:
        """Check that the engine can run a model.

        Raises:
            NmtError: the engine cannot run the model.
        """

    @abstractmethod
    def write(self, loaded: LoadedModel, stored: Stored, directory: Path) -> None:
        """Write the model into an existing directory.

        Args:
            loaded: model to export.
            stored: data type of the stored weights.
            directory: existing directory.

        Raises:
            NmtError: the engine cannot run the model, or the package that writes the format is not
                installed.
        """


export_formats: Registry[ExportFormat] = Registry("export format")

ExportFormat.registry = export_formats


def export_run(
    model: Path, format_: ExportFormat, stored: Stored, output: Path, trust_plugins: bool = False
) -> Export:
    """Export a run or checkpoint, replacing an older export.

    The export appears whole or not at all.

    Args:
        model: a run or checkpoint.
        format_: format of the export.
        stored: data type of the stored weights.
        output: directory of the export.
        trust_plugins: whether to import the Python modules that the run names as plugins.

    Raises:
        NmtError: the model is missing or cannot be exported, or `output` holds something other
            than an export.
    """
    # An export is replaced by removal: never a directory with other things.
    if output.exists() and not Export.exists(output) and not _is_empty(output):
        raise NmtError(f"{output}: holds something other than an export; choose another --output")
    loaded = load_exportable(model, format_, stored, trust_plugins)
    with files.whole_directory(output.resolve()) as partial:
        format_.write(loaded, stored, partial)
        (partial / MODEL_CARD).write_text(format_.card(loaded, stored), encoding="utf-8")
        loaded.subwords.save(partial)
        recipe = loaded.recipe
        write_recipe(partial, {**recipe, "search": format_.search(recipe.get("search") or {})})
        Export.describe(partial, format_.name, loaded.run.languages, stored)
    return Export.open(output, format_.name)


def load_exportable(
    model: Path, format_: ExportFormat, stored: Stored, trust_plugins: bool = False
) -> LoadedModel:
    """Load a run or checkpoint that can be exported, with the arguments of :func:`export_run`.

    Raises:
        NmtError: the model is missing, or cannot be exported.
    """
    loaded = load_model(model, trust_plugins=trust_plugins)
    if (adaptation := loaded.recipe["model"].get("adaptation")) is not None:
        raise NmtError(
            f"{model}: no other engine has {adaptation['name']}; translate with nmt itself, or "
            "train with lora, which an export merges into the weights"
        )
    if format_.spells_text and loaded.subwords.target_order == "right_to_left":
        raise NmtError(
            f"{model}: writes from right to left, which no engine but ctranslate2 and nmt turns "
            "round; train with preprocess.target_order left_to_right"
        )
    if loaded.subwords.context and format_.name != "ctranslate2":
        raise NmtError(
            f"{model}: translates sentences in their context, which the programs that read "
            f"{format_.name} do not join; export it as ctranslate2"
        )
    format_.check(loaded, stored)
    return loaded


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


MOST_EPSILON = 1e-4
"""Greatest `norm_epsilon` for formats with a fixed, smaller epsilon, which then changes little."""


@dataclass(frozen=True, kw_only=True)
class TransformerFormat(ExportFormat):
    """A format that holds Transformers, and refuses by name the parts that its engine lacks."""

    refusal: ClassVar[str]
    """Message about a model that cannot be exported; ``{}`` stands for the obstacles."""
    precisions: ClassVar[Collection[str]] = ("fp32",)
    """Data types in which the format stores weights."""
    codes: ClassVar[str] = "BPE codes, but of SentencePiece models alone"
    """Obstacle of a model whose subwords have BPE codes, if the engine makes text of tokens."""
    reads_tags: ClassVar[bool] = True
    """Whether the engine can be given the tag of a language before a source."""

    @abstractmethod
    def missing_parts(self, config: TransformerConfig, model: Transformer) -> Iterator[str]:
        """Yield the parts of a Transformer that the engine lacks, by the names of the recipe."""

    def check(self, loaded: LoadedModel, stored: Stored) -> None:
        """Check that the model has no part that the engine lacks."""
        self.checked(loaded, stored)

    def checked(self, loaded: LoadedModel, stored: Stored) -> tuple[TransformerConfig, Transformer]:
        """Return the sizes and parts of a model that can be exported, and the model.

        Raises:
            NmtError: the format cannot hold the model, or not in this data type.
        """
        config: ModelConfig = build(ModelConfig, loaded.recipe["model"], "model")  # type: ignore[type-abstract]
        if obstacles := ", ".join(self._obstacles(config, loaded, stored)):
            raise NmtError(
                f"{loaded.run.path}: {self.refusal.format(obstacles)}; translate with nmt itself"
            )
        assert isinstance(config, TransformerConfig)
        assert isinstance(loaded.model, Transformer)
        return config, loaded.model

    def _obstacles(self, config: ModelConfig, loaded: LoadedModel, stored: Stored) -> Iterator[str]:
        """Yield the obstacles to an export, by the names of the recipe."""
        if self.spells_text and isinstance(loaded.subwords.source, CasedSegmenter):
            yield "preprocess.casing inline"
        if self.spells_text and loaded.subwords.has_codes:
            yield self.codes
        directions = loaded.subwords.directions
        if directions and (directions.tags != "source" or not self.reads_tags):
            yield f"preprocess.tags {directions.tags}"
        if stored not in self.precisions:
            yield f"--precision {stored}"
        # A plugin's subclass may compute something else.
        if type(config) is TransformerConfig and type(loaded.model) is Transformer:
            yield from self.missing_parts(config, loaded.model)
        else:
            yield f"arch {config.arch}"


def distinct(pieces: Sequence[str], ids: Sequence[int]) -> tuple[str, ...]:
    """Return pieces, renaming ordinary pieces that have the name of a special piece.

    Args:
        pieces: names, perhaps of an imported vocabulary with an ordinary piece ``<s>``.
        ids: id of each piece.
    """
    special = {piece for piece, token in zip(pieces, ids, strict=True) if token <= EOS}
    return tuple(
        f"<{token}: {piece}>" if token > EOS and piece in special else piece
        for piece, token in zip(pieces, ids, strict=True)
    )


def constraints_of(search: Mapping[str, Any]) -> tuple[set[int], set[int]]:
    """Return the forbidden tokens of a section ``search``, and the n-grams not to repeat."""
    constraints = [build(Constraint, value, "") for value in search.get("constraints", ())]  # type: ignore[type-abstract]
    forbidden = (part.tokens for part in constraints if isinstance(part, Forbidden))
    repeated = {part.size for part in constraints if isinstance(part, NoRepeatNgram)}
    return set(chain.from_iterable(forbidden)), repeated


def unsupported(config: TransformerConfig, known: Mapping[str, Collection[Any]]) -> Iterator[str]:
    """Yield the settings whose values, or names of parts, are not known."""
    for key, values in known.items():
        setting = getattr(config, key)
        value = getattr(setting, "name", setting)
        if value not in values:
            yield f"{key} {value if isinstance(value, str) else str(value).lower()}"


def unsupported_widths(config: TransformerConfig) -> Iterator[str]:
    """Yield the widths of heads, if these do not divide the width of the model."""
    sizes = config.attention
    if {sizes.d_k * sizes.heads, sizes.d_v * sizes.heads} != {config.d_model}:
        yield "d_k or d_v other than d_model / heads"


def large_epsilon(config: TransformerConfig) -> Iterator[str]:
    """Yield the epsilon of the norms, if it is above `MOST_EPSILON`."""
    if config.norm_epsilon > MOST_EPSILON:
        yield f"norm_epsilon {config.norm_epsilon:g}"
