"""Quantisation-aware training: what is rounded, what gradients see, and that only training does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import VOCABULARY, some_sources, tiny
from torch import Tensor, nn
from trained_runs import assert_same_checkpoint, records

from nmt.errors import NmtError
from nmt.models import Model
from nmt.models.adaptation import adaptations
from nmt.training.model_options import RoundedLinear, round_linear_layers


def layer() -> nn.Linear:
    """A layer whose weights have scales of 1 and 0.5."""
    linear = nn.Linear(3, 2)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[127.0, 1.4, -0.6], [-63.5, 0.3, 0.2]]))
        linear.bias.copy_(torch.tensor([10.0, 20.0]))
    linear.__class__ = RoundedLinear
    return linear


INPUTS = torch.tensor([[250.0, 1.4, 2.6], [-5.0, 0.2, 7.7]])  # a range of 255, so a scale of 1
ROUNDED_INPUTS = torch.tensor([[250.0, 1.0, 3.0], [-5.0, 0.0, 8.0]])
ROUNDED_WEIGHTS = torch.tensor([[127.0, 1.0, -1.0], [-63.5, 0.5, 0.0]])


def test_weights_and_inputs_are_rounded_to_multiples_of_their_scales() -> None:
    expected = ROUNDED_INPUTS @ ROUNDED_WEIGHTS.T + torch.tensor([10.0, 20.0])
    torch.testing.assert_close(layer()(INPUTS), expected)


def test_gradients_pass_through_the_rounding() -> None:
    linear, inputs = layer(), INPUTS.clone().requires_grad_()
    linear(inputs).sum().backward()
    ones = torch.ones(2, 2)
    torch.testing.assert_close(linear.weight.grad, ones.T @ ROUNDED_INPUTS)
    torch.testing.assert_close(inputs.grad, ones @ ROUNDED_WEIGHTS)


@pytest.mark.parametrize("inputs", [torch.zeros(2, 3), torch.zeros(0, 3)])
def test_inputs_without_a_range_give_the_bias(inputs: Tensor) -> None:
    torch.testing.assert_close(layer()(inputs), torch.tensor([[10.0, 20.0]]).expand(len(inputs), 2))


@pytest.mark.parametrize("architecture", ["student_tiny_ssru", "conv_s2s"])
def test_only_training_rounds(architecture: str) -> None:
    def built() -> Model:
        torch.manual_seed(1)
        return tiny(architecture).build(VOCABULARY, VOCABULARY, True)

    model, sources = built(), some_sources()
    round_linear_layers(model)
    assert not torch.equal(model(sources, sources), built()(sources, sources))
    assert torch.equal(model.eval()(sources, sources), built().eval()(sources, sources))


def test_the_normalised_weights_of_convolutions_are_rounded_and_learn() -> None:
    model, sources = tiny("conv_s2s").build(VOCABULARY, VOCABULARY, True), some_sources()
    names = model.state_dict().keys()
    round_linear_layers(model)
    rounded = [module for module in model.modules() if isinstance(module, RoundedLinear)]
    assert len(rounded) == sum(isinstance(module, nn.Linear) for module in model.modules())
    model(sources, sources).sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())
    assert model.state_dict().keys() == names


def test_layers_with_low_rank_parts_are_refused() -> None:
    model = tiny("student_tiny_ssru").build(VOCABULARY, VOCABULARY, True)
    adaptations["lora"].put_on(model)
    with pytest.raises(NmtError, match="rounds no layer with a part of lora"):
        round_linear_layers(model)


def test_a_rounded_run_resumes_with_the_same_bits(
    train: Any, trained: Path, tmp_path: Path
) -> None:
    options = ("--set", "train.quantization=int8", "--init-from", trained)
    assert train(tmp_path / "whole", *options).status == 0
    for updates in (2, 6):
        assert train(tmp_path / "parts", *options, "--max-updates", updates).status == 0
    assert records(tmp_path / "parts") == records(tmp_path / "whole")
    assert_same_checkpoint(tmp_path / "parts" / "last", tmp_path / "whole" / "last")
    assert train(tmp_path / "plain", "--init-from", trained).status == 0
    assert records(tmp_path / "plain") != records(tmp_path / "whole")
