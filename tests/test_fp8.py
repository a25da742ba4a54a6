"""Training in fp8, whose numbers a CPU computes in float32; tests/test_gpu.py multiplies in fp8."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from trained_runs import assert_same_checkpoint

from nmt.data.dataset import Dataset
from nmt.errors import NmtError
from nmt.models import architectures
from nmt.runtime.distributed import World
from nmt.runtime.precision import check_precision
from nmt.training.config import TrainConfig
from nmt.training.fp8 import (
    BACKWARD,
    FORWARD,
    HISTORY,
    Fp8Linear,
    Fp8Logits,
    Fp8Output,
    Fp8State,
    Slot,
    Slots,
    use_fp8,
)
from nmt.training.trainer import Trainer

CPU = torch.device("cpu")


def error(found: Tensor, expected: Tensor) -> float:
    found, expected = found.detach().double(), expected.detach()
    return float((found - expected).norm() / expected.norm())


def fp8_linear(inputs: int, outputs: int) -> tuple[Fp8Linear, Fp8State]:
    layer = Fp8Linear(inputs, outputs)
    state = Fp8State(3, CPU)
    layer.slots = Slots(*(Slot(state, part) for part in range(3)))
    return layer, state


def test_a_layer_and_its_gradients_are_near_those_of_float64() -> None:
    torch.manual_seed(1)
    layer, state = fp8_linear(64, 48)
    exact = nn.Linear(64, 48).double()
    exact.load_state_dict(layer.state_dict())
    for magnitude in (1.0, 1e-4):  # of the loss; scales follow
        state.begin()
        x = torch.randn(300, 64)
        d_output = torch.randn(300, 48) * magnitude
        inputs = [x.clone().requires_grad_(), x.double().requires_grad_()]
        outputs = [layer(inputs[0]), exact(inputs[1])]
        layer.zero_grad()
        exact.zero_grad()
        for output in outputs:
            output.backward(d_output.to(output.dtype))
        state.end()
        state.is_new = True
        # e4m3 rounds a number by at most 1/16 of itself, e5m2 by at most 1/8.
        assert error(outputs[0], outputs[1]) < 0.04
        assert 0.001 < error(inputs[0].grad, inputs[1].grad) < 0.08
        assert error(layer.weight.grad, exact.weight.grad) < 1e-5
        assert error(layer.bias.grad, exact.bias.grad) < 1e-5


def test_a_scale_is_that_of_the_updates_before() -> None:
    state = Fp8State(1, CPU)
    slot, limit = Slot(state, 0), torch.finfo(FORWARD).max
    state.begin()
    values, inverse = slot.round(torch.tensor([1.0, -4.0]), FORWARD)
    assert (values.float() * inverse).tolist() == [1.0, -4.0]
    assert float(inverse) == pytest.approx(4.0 / limit)
    state.end()
    state.begin()
    # 8 is more than was expected, and becomes the largest number that there is.
    values, inverse = slot.round(torch.tensor([2.0, 8.0]), FORWARD)
    assert (values.float() * inverse).tolist() == [2.0, 4.0]
    state.end()
    for _ in range(HISTORY):
        inverse = slot.round(torch.tensor([1.0]), FORWARD).inverse
        assert float(inverse) == pytest.approx(8.0 / limit)
        state.begin()
        state.largest.fill_(1.0)
        state.end()
    inverse = slot.round(torch.tensor([1.0]), FORWARD).inverse
    assert float(inverse) == pytest.approx(1.0 / limit)


def test_numbers_that_are_not_finite_stay_so_and_leave_no_scale() -> None:
    state = Fp8State(1, CPU)
    slot = Slot(state, 0)
    slot.round(torch.tensor([2.0]), BACKWARD)
    state.end()
    before = state.expected.clone()
    for number in (float("nan"), float("inf")):
        for dtype in (FORWARD, BACKWARD):
            assert not slot.round(torch.tensor([number, 1.0]), dtype).values.float()[0].isfinite()
        state.end()
        assert torch.equal(state.expected, before)


def test_a_tensor_of_zeros_can_be_scaled() -> None:
    state = Fp8State(1, CPU)
    for _ in range(2):
        values, inverse = Slot(state, 0).round(torch.zeros(4), FORWARD)
        assert not (values.float() * inverse).any()
        state.end()


def test_logits_of_any_vocabulary_are_near_those_of_float64() -> None:
    torch.manual_seed(1)
    inputs, weight, state = torch.randn(40, 32), torch.randn(61, 32), Fp8State(3, CPU)
    slots = Slots(*(Slot(state, part) for part in range(3)))
    logits = Fp8Logits(inputs, weight, slots).of(slice(10, 30), torch.float32)
    assert logits.shape == (20, 61)
    assert 0.001 < error(logits, F.linear(inputs[10:30].double(), weight.double())) < 0.04


SIZES = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 32, "d_ff": 64, "heads": 2}


def trainer_of(dataset: Path, precision: str, **settings: Any) -> Trainer:
    torch.manual_seed(1)
    split = Dataset.open(dataset).split("train")
    config = TrainConfig(tokens_per_update=400, precision=precision, **settings)  # type: ignore[arg-type]
    model = replace(architectures["transformer_tiny"], **SIZES, dropout=0.0).build(60, 60, True)
    return Trainer(None, config, model.train(), split, World())  # type: ignore[arg-type]


def losses(trainer: Trainer, updates: int) -> list[float]:
    """The loss per target token of each update."""
    found = []
    for update in islice(trainer.loader.updates(1), updates):
        trainer.step(update, 3e-3)
        [sums] = trainer.world.gather(trainer.running_stats.sums())
        found.append(sums["loss"])
    sums_before = [0.0, *found[:-1]]
    return [after - before for after, before in zip(found, sums_before, strict=True)]


def test_the_layers_that_compute_in_fp8_are_those_of_the_feed_forward_layers_and_the_output(
    dataset: Path,
) -> None:
    model = trainer_of(dataset, "fp8").model
    kinds = {name: type(module) for name, module in model.named_modules()}
    names = {name for name, kind in kinds.items() if kind is Fp8Linear}
    assert names == {
        f"{stack}.0.feed_forward.{part}"
        for stack in ("encoder", "decoder")
        for part in ("inner", "outer")
    }
    assert kinds["output"] is Fp8Output
    narrow = replace(architectures["transformer_tiny"], **{**SIZES, "d_ff": 24}).build(60, 60, True)
    use_fp8(narrow, CPU)
    assert Fp8Linear not in map(type, narrow.modules())


@pytest.mark.full
def test_losses_in_fp8_fall_as_those_in_bf16_and_fp32(dataset: Path) -> None:
    curves = {
        precision: losses(trainer_of(dataset, precision), 40)
        for precision in ("fp32", "bf16", "fp8")
    }
    for curve in curves.values():
        assert sum(curve[-5:]) < 0.8 * sum(curve[:5])
    for at in range(0, 40, 5):
        fp32, bf16, fp8 = (sum(curve[at : at + 5]) for curve in curves.values())
        assert bf16 == pytest.approx(fp32, rel=0.01)
        assert fp8 == pytest.approx(fp32, rel=0.03)
    assert curves["fp8"] != curves["bf16"]


def test_validation_computes_in_bf16(dataset: Path) -> None:
    trainer = trainer_of(dataset, "fp8")
    batch = trainer.loader.update(1).batches[0]
    plain = trainer_of(dataset, "bf16")
    outcomes = []
    for each in (trainer, plain):
        with each.evaluating(), torch.no_grad(), each._autocast():
            each.model.eval()
            outcomes.append(float(each.criterion(batch)["loss"]))
    assert outcomes[0] == outcomes[1]


def test_a_resumed_training_has_the_bits_of_one_that_was_never_stopped(
    train: Any, tmp_path: Path
) -> None:
    options = ("--precision", "fp8", "--save-every", 2)
    for name, steps in (("whole", (6,)), ("parts", (2, 6))):
        for updates in steps:
            done = train(tmp_path / name, *options, "--max-updates", updates)
            assert done.status == 0, done.err
            assert "fp8 is slower than fp32 on this processor" in done.err
    assert_same_checkpoint(tmp_path / "parts/last", tmp_path / "whole/last")


def test_a_gpu_without_fp8_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for capability, is_refused in (((8, 0), True), ((8, 9), False), ((9, 0), False)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda value=capability: value)
        if is_refused:
            with pytest.raises(NmtError, match="precision fp8 needs compute capability"):
                check_precision("fp8", "cuda")
        else:
            assert check_precision("fp8", "cuda") is None


@pytest.mark.parametrize("setting", [{"quantization": "int8"}, {"sharding": "full"}])
def test_what_does_not_go_together_is_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="precision fp8 rounds whole weights itself; take quant"):
        TrainConfig(precision="fp8", **setting)
