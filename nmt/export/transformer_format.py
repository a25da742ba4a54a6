"""Formats that hold Transformers alone, and the parts of these that their engines lack."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

from nmt.data.vocabulary import EOS
from nmt.errors import NmtError
from nmt.export.base import ExportFormat, Stored
from nmt.models import ModelConfig
from nmt.models.transformer import Transformer, TransformerConfig
from nmt.preprocess.casing import CasedSegmenter
from nmt.recipe.config import build
from nmt.runs import LoadedModel
from nmt.search import Constraint
from nmt.search.constraints import Forbidden, NoRepeatNgram

MOST_EPSILON = 1e-4
"""Greatest `norm_epsilon` of formats that set their own, which is smaller and changes little."""


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
        """Yield what keeps a model from being exported, by the names of the recipe."""
        if self.spells_text and isinstance(loaded.subwords.source, CasedSegmenter):
            yield "preprocess.casing inline"
        if self.spells_text and loaded.subwords.has_codes:
            yield self.codes
        directions = loaded.subwords.directions
        if directions and (directions.tags == "target" or not self.reads_tags):
            yield f"preprocess.tags {directions.tags}"
        if stored not in self.precisions:
            yield f"--precision {stored}"
        # A plugin's subclass may compute something else.
        if type(config) is TransformerConfig and type(loaded.model) is Transformer:
            yield from self.missing_parts(config, loaded.model)
        else:
            yield f"arch {config.arch}"


def distinct(pieces: Sequence[str], ids: Sequence[int]) -> tuple[str, ...]:
    """Return pieces with other names for ordinary ones that have the name of a special one.

    Args:
        pieces: names, as of an imported vocabulary with an ordinary piece ``<s>``.
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
    """Yield the settings with other values, or names of parts, than the known ones."""
    for key, values in known.items():
        setting = getattr(config, key)
        value = getattr(setting, "name", setting)
        if value not in values:
            yield f"{key} {value if isinstance(value, str) else str(value).lower()}"


def unsupported_widths(config: TransformerConfig) -> Iterator[str]:
    """Yield the widths of heads, if these do not divide the width of the model."""
    heads = config.attention
    if {heads.key_width * heads.count, heads.value_width * heads.count} != {config.d_model}:
        yield "d_k or d_v other than d_model / heads"


def large_epsilon(config: TransformerConfig) -> Iterator[str]:
    """Yield the epsilon of the norms, if it is above `MOST_EPSILON`."""
    if config.norm_epsilon > MOST_EPSILON:
        yield f"norm_epsilon {config.norm_epsilon:g}"
