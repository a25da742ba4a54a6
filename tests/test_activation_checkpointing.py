"""Activations computed again for the gradient: the same bits, less memory, in training alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import PLAIN, VOCABULARY, tiny
from torch import Tensor
from trained_runs import assert_same_checkpoint, records

from nmt.data.packing import Packing
from nmt.data.vocabulary import EOS
from nmt.errors import NmtError
from nmt.models import Model, architectures
from nmt.models.layers.sentences import Padded
from nmt.models.transformer.model import Transformer
from nmt.runs import weights_of
from nmt.training.config import TrainConfig
from nmt.training.model_options import CheckpointedPart, checkpoint_activations

LENGTHS = np.array([[5, 1, 9, 3], [7, 2, 4, 4]])
TRANSFORMERS = [
    name for name in PLAIN if name.startswith("transformer") or name not in architectures
]


def build(name: str, part: CheckpointedPart) -> Model:
    torch.manual_seed(1)
    model = tiny(name).build(VOCABULARY, VOCABULARY, True)
    checkpoint_activations(model, part)
    return model


def trained_once(model: Model, precision: torch.dtype) -> tuple[list[Tensor], int]:
    """Output and gradients of a pass, and the bytes kept for the gradient."""
    packing = Packing.from_lengths(*LENGTHS)
    torch.manual_seed(2)
    source, target = (torch.randint(EOS + 1, VOCABULARY, (int(side.sum()),)) for side in LENGTHS)
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    low = precision != torch.float32
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=low),
    ):
        output = model.decode_packs(source, target, packing)
    output.float().square().sum().backward()
    gradients = [
        torch.zeros(()) if weight.grad is None else weight.grad for weight in model.parameters()
    ]
    return [output, *gradients], sum(kept.values())


@pytest.mark.full
@pytest.mark.parametrize("name", ["positions rotary", "positions alibi"])
def test_a_compiled_layer_is_one_graph(name: str) -> None:
    model = build(name, "attention")
    assert isinstance(model, Transformer)
    x = torch.randn(2, 5, tiny(name).d_model, requires_grad=True)  # type: ignore[attr-defined]
    torch._dynamo.reset()
    layer, sentences = model.encoder[0], Padded(torch.ones(2, 1, 1, 5, dtype=torch.bool))
    torch.compile(layer.forward, backend="eager", fullgraph=True)(x, sentences)


@pytest.mark.parametrize(
    ("part", "precision"),
    [("layers", torch.bfloat16), ("attention", torch.float32), ("attention", torch.bfloat16)],
)
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_outputs_and_gradients_are_the_same_bits_and_less_is_kept(
    name: str, part: CheckpointedPart, precision: torch.dtype
) -> None:
    expected, usual = trained_once(build(name, "none"), precision)
    tensors, kept = trained_once(build(name, part), precision)
    assert all(map(torch.equal, tensors, expected))
    assert kept < usual


def test_only_training_recomputes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(
        "nmt.models.layers.basic.checkpoint",
        lambda forward, *arguments, use_reentrant: calls.append(1) or forward(*arguments),
    )
    model, source = build("transformer_tiny", "layers"), torch.tensor([[5, EOS]])
    with torch.no_grad():
        model(source, source)
    model.eval()(source, source)
    assert not calls
    model.train()(source, source)
    assert len(calls) == 4  # two layers on each side


def test_names_of_weights_stay() -> None:
    names = list(weights_of(build("transformer_tiny", "none")))
    assert list(weights_of(build("transformer_tiny", "layers"))) == names


def test_a_run_is_the_same_with_and_without_and_may_change_between_them(
    train: Any, tmp_path: Path
) -> None:
    options = ("--set", "train.loss.name=r_drop", "--set", "model.attention_dropout=0.2")
    assert train(tmp_path / "whole", *options).status == 0
    for updates, part in ((2, "layers"), (4, "none"), (6, "attention")):
        chosen = ("--set", f"train.checkpoint_activations={part}", "--max-updates", updates)
        assert train(tmp_path / "parts", *options, *chosen).status == 0
    assert records(tmp_path / "parts") == records(tmp_path / "whole")
    assert_same_checkpoint(tmp_path / "parts" / "last", tmp_path / "whole" / "last")


@pytest.mark.parametrize("part", ["layers", "attention"])
def test_a_model_that_cannot_recompute_is_refused(part: CheckpointedPart) -> None:
    with pytest.raises(NmtError) as error:
        build("rnnsearch", part)
    assert str(error.value) == (
        f"train.checkpoint_activations: RNNsearch cannot recompute its {part}; take none, and a "
        "lower train.max_tokens for less memory"
    )


def test_a_compiled_model_is_refused() -> None:
    with pytest.raises(
        ValueError, match="checkpoint_activations is for models that are not compiled"
    ):
        TrainConfig(checkpoint_activations="layers", compile=True)
