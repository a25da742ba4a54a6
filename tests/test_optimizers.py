from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from for_each import for_each
from tiny_models import VOCABULARY, tiny
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from trained_runs import records

from nmt.errors import NmtError
from nmt.models.layers.attention import AttentionConfig
from nmt.models.layers.feed_forward import GatedFeedForward
from nmt.models.transformer.multi_head import SelfAttention
from nmt.models.transformer.recurrences import SSRU, AverageAttention
from nmt.training.config import TrainConfig
from nmt.training.optim.muon import hidden_matrices, orthogonalize, side_by_side
from nmt.training.optim.optimizers import optimizers


def test_adam_has_the_paper_s_values() -> None:
    defaults = optimizers["adam"].build(nn.Linear(1, 1)).defaults
    assert (defaults["betas"], defaults["eps"]) == ((0.9, 0.98), 1e-9)
    assert defaults["weight_decay"] == 0


def test_adamw_takes_its_decay_off_the_weight_itself() -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer = replace(optimizers["adamw"], weight_decay=0.1).build(nn.ParameterList([weight]))
    optimizer.param_groups[0]["lr"] = 0.5
    weight.grad = torch.zeros(1)
    optimizer.step()
    assert weight.item() == pytest.approx(0.95)


@pytest.mark.parametrize("eps", [1e-30, 1e-10])
def test_adafactor_follows_gradients_whose_squares_are_above_its_first_epsilon(eps: float) -> None:
    config = optimizers["adafactor"]
    assert config.eps == 1e-30  # type: ignore[attr-defined]
    weight = nn.Parameter(torch.zeros(2, 3))
    optimizer = replace(config, eps=eps).build(nn.ParameterList([weight]))  # type: ignore[call-arg]
    optimizer.param_groups[0]["lr"] = 0.01
    # Squares of rank one, which rows and columns give exactly: every step is as large, and of an
    # unused column nothing, not a division of nothing by nothing.
    weight.grad = torch.tensor([[1.0], [2.0]]) @ torch.tensor([[1.0, 2.0, 0.0]]) * 1e-6
    optimizer.step()
    used = weight.detach()[:, :2] / (-0.01 * 1e-3)
    if eps == 1e-30:
        assert torch.allclose(used, torch.ones(2, 2), rtol=1e-3)
    else:
        assert torch.allclose(used, weight.grad[:, :2] * 1e5, rtol=1e-3)
    assert weight[:, 2].tolist() == [0.0, 0.0]


def test_adafactor_clips_a_weight_whose_steps_are_longer() -> None:
    def steps(clip: float) -> Tensor:
        weight = nn.Parameter(torch.ones(4))
        config = replace(optimizers["adafactor"], clip=clip)  # type: ignore[call-arg]
        optimizer = config.build(nn.ParameterList([weight]))
        optimizer.param_groups[0]["lr"] = 0.1
        for size in (1.0, 100.0):  # the second step is longer than 1 before it is clipped
            before = weight.detach().clone()
            weight.grad = torch.full((4,), size)
            optimizer.step()
        return (before - weight.detach()) / before

    assert steps(1.0).tolist() == pytest.approx([0.1] * 4, rel=1e-4)
    assert steps(1.2).tolist() == pytest.approx([0.12] * 4, rel=1e-4)


@for_each("clip", [0.5, 0.0, -1.0])
def test_adafactor_refuses_a_clip_below_one(clip: float) -> None:
    with pytest.raises(ValueError, match=f"clip must be at least 1, not {clip:g}"):
        replace(optimizers["adafactor"], clip=clip)  # type: ignore[call-arg]


def test_adafactor_takes_its_decay_off_the_weight_itself() -> None:
    weight = nn.Parameter(torch.ones(4))
    config = replace(optimizers["adafactor"], weight_decay=0.5)
    optimizer = config.build(nn.ParameterList([weight]))
    optimizer.param_groups[0]["lr"] = 0.1
    weight.grad = torch.zeros(4)
    optimizer.step()
    assert weight.tolist() == pytest.approx([0.95] * 4)


def test_nag_takes_the_steps_of_nesterov() -> None:
    ours, theirs = (nn.Parameter(torch.ones(3)) for _ in range(2))
    optimizer = optimizers["nag"].build(nn.ParameterList([ours]))
    optimizer.param_groups[0]["lr"] = 0.1
    other = torch.optim.SGD([theirs], lr=0.1, momentum=0.99, nesterov=True)
    for step in range(3):
        ours.grad = torch.tensor([1.0, -2.0, step])
        theirs.grad = ours.grad.clone()
        optimizer.step()
        other.step()
    assert torch.allclose(ours, theirs)


def test_nesterov_without_momentum_is_refused() -> None:
    with pytest.raises(ValueError, match="nesterov needs a momentum"):
        replace(optimizers["sgd"], nesterov=True)


def test_an_optimizer_that_needs_whole_weights_is_not_sharded() -> None:
    with pytest.raises(ValueError, match="adafactor cannot be split; take adam, or sharding none"):
        TrainConfig(optimizer=optimizers["adafactor"], sharding="full")
    with pytest.raises(ValueError, match="muon cannot be split; take adam, or sharding none"):
        TrainConfig(optimizer=optimizers["muon"], sharding="full")
    TrainConfig(optimizer=optimizers["adam"], sharding="full")


def named_hidden_matrices(name: str) -> tuple[set[str], nn.Module]:
    model = tiny(name).build(VOCABULARY, VOCABULARY, True)
    found = set(map(id, hidden_matrices(model)))
    return {key for key, weight in model.named_parameters() if id(weight) in found}, model


def test_muon_gets_the_matrices_of_hidden_layers_and_no_tied_or_output_layer() -> None:
    names, model = named_hidden_matrices("transformer_base")  # tied embeddings
    assert {name.rpartition(".")[2] for name in names} == {"weight"}
    every = {name for name, weight in model.named_parameters() if weight.ndim == 2}
    (embedding,) = every - names
    assert model.get_parameter(embedding) is model.output.weight
    names, model = named_hidden_matrices("gnmt")
    every = {name for name, weight in model.named_parameters() if weight.ndim == 2}
    assert {name for name in every - names if "embedding" not in name} == {"output.weight"}
    assert any("weight_hh" in name for name in names)


def test_muon_leaves_frozen_matrices_alone() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    (matrix,) = hidden_matrices(model)
    assert matrix is model[1].weight


def test_muon_refuses_a_model_without_hidden_matrices() -> None:
    model = tiny("conv_s2s").build(VOCABULARY, VOCABULARY, True)
    with pytest.raises(NmtError, match=r"the model has none: take train\.optimizer=adamw"):
        optimizers["muon"].build(model)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (9, 4)])
def test_orthogonalized_matrices_keep_their_singular_vectors(
    shape: tuple[int, int], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmt.training.optim.muon.pick_precision", lambda *_: precision)
    generator = torch.Generator().manual_seed(3)
    left, _, right = torch.linalg.svd(torch.randn(shape, generator=generator), full_matrices=False)
    matrix = left @ torch.linspace(5.0, 0.5, min(shape)).diag() @ right
    rotated = left.T @ orthogonalize(matrix, 5) @ right.T
    assert ((rotated.diagonal() > 0.6) & (rotated.diagonal() < 1.3)).all()
    assert (rotated - rotated.diagonal().diag()).abs().max() < 0.05
    assert not orthogonalize(torch.zeros(shape), 5).any()


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has no Muon before 2.9")
def test_muon_takes_the_steps_of_torch_s_muon_and_adamw() -> None:
    torch.manual_seed(5)
    ours, theirs = nn.Linear(6, 4), nn.Linear(6, 4)
    theirs.load_state_dict(ours.state_dict())
    optimizer = replace(optimizers["muon"], weight_decay=0.3).build(ours)  # type: ignore[call-arg]
    muon = torch.optim.Muon(
        [theirs.weight], lr=0.02, weight_decay=0.3, adjust_lr_fn="match_rms_adamw"
    )
    adamw = torch.optim.AdamW([theirs.bias], lr=0.02, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0)
    for group in optimizer.param_groups:
        group["lr"] = 0.02
    for _ in range(5):
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            one.grad = torch.randn(one.shape)
            other.grad = one.grad.clone()
        for each in (optimizer, muon, adamw):
            each.step()
    torch.testing.assert_close(ours.weight, theirs.weight, atol=1e-3, rtol=0.0)  # of bfloat16
    torch.testing.assert_close(ours.bias, theirs.bias)


def test_muon_steps_queries_keys_and_values_apart() -> None:
    torch.manual_seed(5)
    config = AttentionConfig(d_model=6, heads=2, d_k=3, d_v=2, bias=False, dropout=0.0)
    together, gradient = SelfAttention(config), torch.randn(16, 6)
    apart = nn.ModuleList(nn.Linear(6, size, bias=False) for size in config.qkv_sizes)
    for linear, weight in zip(
        apart, together.project_in.weight.split(config.qkv_sizes), strict=True
    ):
        linear.weight.data.copy_(weight)
    together.project_in.weight.grad = gradient
    for linear, part in zip(apart, gradient.split(config.qkv_sizes), strict=True):
        linear.weight.grad = part
    for model in (together, apart):
        optimizer = optimizers["muon"].build(model)
        optimizer.param_groups[0]["lr"] = 0.1
        optimizer.step()
    assert torch.equal(together.project_in.weight, torch.cat([part.weight for part in apart]))


def test_gates_of_a_layer_are_matrices_of_their_own() -> None:
    model = nn.ModuleDict(
        {
            "swiglu": GatedFeedForward(4, 6, 0.0),
            "ssru": SSRU(4),
            "average": AverageAttention(4, 7, "relu"),
            "lstm": nn.LSTM(4, 5),
            "gru": nn.GRUCell(4, 5),
        }
    )
    names = {weight: name for name, weight in model.named_parameters()}
    rows = {names[weight]: list(rows) for weight, rows in side_by_side(model).items()}
    assert rows == {
        "swiglu.inner.weight": [6, 6],
        "ssru.project_in.weight": [4, 4],
        "average.gate.weight": [4, 4],
        "lstm.weight_ih_l0": [5, 5, 5, 5],
        "lstm.weight_hh_l0": [5, 5, 5, 5],
        "gru.weight_ih": [5, 5, 5],
        "gru.weight_hh": [5, 5, 5],
    }


def test_muon_decays_hidden_matrices_alone() -> None:
    model = nn.Linear(2, 2)
    before = [weight.detach().clone() for weight in model.parameters()]
    optimizer = replace(optimizers["muon"], weight_decay=0.1).build(model)  # type: ignore[call-arg]
    optimizer.param_groups[0]["lr"] = optimizer.param_groups[1]["lr"] = 0.5
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    torch.testing.assert_close(model.weight, 0.95 * before[0])
    assert torch.equal(model.bias, before[1])


def test_muon_learns_with_a_scaled_loss(train: Any, tmp_path: Path) -> None:
    options = ("--set", "train.optimizer=muon", "--precision", "fp16", "--max-updates", 20)
    assert train(tmp_path / "run", *options, "--valid-every", 5).status == 0
    losses = [line["loss"] for line in records(tmp_path / "run") if line["record"] == "validation"]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.8 * losses[0]


@for_each("name", optimizers)
def test_a_skipped_step_allocates_the_state_of_a_taken_one(name: str) -> None:
    shapes = []
    for found_inf in (1.0, 0.0):
        model = nn.Linear(2, 3)
        optimizer = optimizers[name].build(model)
        for weight in model.parameters():
            weight.grad = torch.ones_like(weight)
        before = model.weight.detach().clone()
        optimizer.found_inf = torch.tensor(found_inf)
        optimizer.step()
        assert torch.equal(model.weight, before)  # the learning rate is 0
        states = [optimizer.state[weight] for weight in model.parameters()]
        shapes.append([{key: value.shape for key, value in state.items()} for state in states])
    assert shapes[0] == shapes[1]


class HostReads(TorchDispatchMode):
    """Counts the tensors that the host reads; on a GPU it would wait for each of them."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@for_each("found_inf", [0.0, 1.0])
@for_each("name", ["adam", "adamw", "sgd", "muon", "schedule_free_adamw", "adadelta"])
def test_the_host_reads_no_tensor_to_skip_a_step(name: str, found_inf: float) -> None:
    model = nn.Linear(2, 2)
    optimizer = optimizers[name].build(model)
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    optimizer.found_inf = torch.tensor(found_inf)
    with HostReads() as reads:
        optimizer.step()
    assert (reads.count > 0) == (name == "adadelta")  # whose step torch cannot skip
