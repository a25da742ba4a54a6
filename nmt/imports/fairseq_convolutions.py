"""ConvS2S of fairseq, ``fconv``: expressions of layers, and weights with weight normalisation."""

from __future__ import annotations

import re
from itertools import groupby

from torch import Tensor

from nmt.errors import NmtError
from nmt.imports.fairseq_settings import Settings
from nmt.imports.fairseq_weights import EMBEDDINGS, CheckpointWeights
from nmt.imports.vocabularies import ReorderedVocabulary
from nmt.models.base import architectures
from nmt.models.conv_s2s import ConvS2SConfig, Shape, layer_sizes

MAX_EXPRESSION = 1000
"""Characters of the longest expression of layers."""

TERM = re.compile(r"\[((?:\(\d{1,5},\d{1,5}(?:,1)?\),?)+)\](?:\*(\d{1,3}))?", re.ASCII)
"""A list of layers and how often it comes. A layer is its width, its kernel, and how many layers
back the residual connection begins."""

LAYER = re.compile(r"\((\d+),(\d+)", re.ASCII)


class ConvolutionWeights(CheckpointWeights):
    """The weights of ConvS2S; fairseq's gains and directions are kept apart."""

    def config(self) -> ConvS2SConfig:
        """Return the recipe's section ``model``, before the weights are taken."""
        settings = self.settings
        try:
            return ConvS2SConfig(
                arch=architectures["conv_s2s"].arch,
                encoder=_layers(settings, "encoder_layers"),
                decoder=_layers(settings, "decoder_layers"),
                embedding_width=settings.width,
                output_width=settings.size("decoder_out_embed_dim"),
                max_positions=self.count_positions(),
                dropout=float(settings.value("dropout", 0.1)),
            )
        except ValueError as error:
            raise NmtError(f"{self.path}: {error}") from None

    def take_all(
        self, source: ReorderedVocabulary, target: ReorderedVocabulary
    ) -> dict[str, Tensor]:
        """Take the weights that the model has, and return them by this toolkit's names."""
        config, (_, vocabulary) = self.config(), self.sizes()
        self.tensors.pop("decoder.version", None)
        weights = {}
        sides = zip(
            ("source", "target"), (source, target), EMBEDDINGS, self.take_positions(), strict=True
        )
        for side, order, name, positions in sides:
            weights[f"{side}_embedding.words.weight"] = order.reorder(self.take(name))
            weights[f"{side}_embedding.positions.table.weight"] = positions
        embedding = config.embedding_width
        for stack, shapes in (("encoder", config.encoder), ("decoder", config.decoder)):
            weights |= self._linear(f"{stack}_input", f"{stack}.fc1", embedding, shapes[0][1])
            for number, (inputs, outputs, kernel) in enumerate(layer_sizes(shapes)):
                ours, bypass = f"{stack}.{number}", f"{stack}.projections.{number}"
                convolution = f"{stack}.convolutions.{number}"
                weights |= self._convolution(
                    f"{ours}.convolution", convolution, inputs, outputs, kernel
                )
                if inputs != outputs:
                    weights |= self._linear(f"{ours}.bypass", bypass, inputs, outputs)
                if stack == "decoder":
                    attention = f"decoder.attention.{number}"
                    weights |= self._linear(
                        f"{ours}.ask", f"{attention}.in_projection", outputs, embedding
                    )
                    weights |= self._linear(
                        f"{ours}.answer", f"{attention}.out_projection", embedding, outputs
                    )
        width, output = config.encoder[-1][1], config.output_width
        weights |= self._linear("encoder_output", "encoder.fc2", width, embedding)
        weights |= self._linear("decoder_output", "decoder.fc2", config.decoder[-1][1], output)
        last = self._linear("output", "decoder.fc3", output, vocabulary)
        for name, tensor in last.items():
            is_bias = name.endswith("bias")
            weights[name] = target.reorder_bias(tensor) if is_bias else target.reorder(tensor)
        return weights

    def _linear(self, name: str, theirs: str, inputs: int, outputs: int) -> dict[str, Tensor]:
        """Take a layer with a gain for every output."""
        return _named(
            name,
            self.take(f"{theirs}.weight_g", outputs, 1),
            self.take(f"{theirs}.weight_v", outputs, inputs),
            self.take(f"{theirs}.bias", outputs),
        )

    def _convolution(
        self, name: str, theirs: str, inputs: int, outputs: int, kernel: int
    ) -> dict[str, Tensor]:
        """Take a convolution for a gated linear unit; its outputs are the last axis."""
        gain = self.take(f"{theirs}.weight_g", 1, 1, 2 * outputs)
        direction = self.take(f"{theirs}.weight_v", kernel, inputs, 2 * outputs)
        bias = self.take(f"{theirs}.bias", 2 * outputs)
        return _named(name, gain.view(-1, 1), direction.flatten(0, 1).t().contiguous(), bias)


def _named(name: str, gain: Tensor, direction: Tensor, bias: Tensor) -> dict[str, Tensor]:
    """Return the weights of a layer by the names of its parametrisation."""
    weight = f"{name}.parametrizations.weight.original"
    return {f"{weight}0": gain, f"{weight}1": direction, f"{name}.bias": bias}


def _layers(settings: Settings, key: str) -> tuple[Shape, ...]:
    """Return the layers of an expression such as ``[(512, 3)] * 9 + [(1024, 3)] * 4``.

    Raises:
        NmtError: it is no such expression, or has layers that this toolkit lacks.
    """
    shown, expression = settings.value(key, ""), str(settings.values.get(key))
    if len(expression) > MAX_EXPRESSION:
        raise NmtError(f"{settings.path}: {key} is longer than {MAX_EXPRESSION} characters")
    sizes: list[tuple[int, int]] = []
    for text in "".join(expression.split()).split("+"):
        if (term := TERM.fullmatch(text)) is None:
            raise NmtError(
                f"{settings.path}: nmt has no counterpart of {key}: {shown!r}; of layers such as "
                "[(512, 3)] * 20, each with a residual connection"
            )
        layers = [(int(width), int(kernel)) for width, kernel in LAYER.findall(term[1])]
        sizes += layers * int(term[2] or 1)
    return tuple((len([*same]), *size) for size, same in groupby(sizes))
