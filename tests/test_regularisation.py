"""Token dropout, layer dropout and SimCut: what they draw, and that only training draws."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from for_each import for_each
from tiny_models import KINDS, VOCABULARY, some_sources, tiny
from torch import Tensor, nn
from trained_runs import assert_same_checkpoint, records

from nmt.data.batches import Batch
from nmt.data.packing import Packing
from nmt.data.vocabulary import EOS
from nmt.errors import NmtError
from nmt.models import Model
from nmt.models.layers.basic import TokenEmbedding, cutoff_of, set_cutoff
from nmt.runs import Run
from nmt.training.config import TrainConfig
from nmt.training.losses.token import RDrop, SimCut, losses
from nmt.training.model_options import drop_layers

LENGTHS = np.array([[5, 1, 9, 3], [7, 2, 4, 4]])


def build(name: str = "transformer_tiny") -> Model:
    torch.manual_seed(1)
    return tiny(name).build(VOCABULARY, VOCABULARY, True)


def decoded(model: Model, seed: int = 2) -> Tensor:
    packing = Packing.from_lengths(*LENGTHS)
    torch.manual_seed(seed)
    source, target = (torch.randint(EOS + 1, VOCABULARY, (int(side.sum()),)) for side in LENGTHS)
    return model.decode_packs(source, target, packing)


def test_the_share_of_tokens_without_embedding_is_that_of_the_cutoff() -> None:
    table = TokenEmbedding(50, 4)
    table.cutoff = 0.3
    tokens = torch.randint(50, (100, 100))
    vectors = table(tokens)
    is_zero = (vectors == 0).all(-1)
    assert is_zero.float().mean().item() == pytest.approx(0.3, abs=0.02)
    assert torch.equal(vectors[~is_zero], nn.functional.embedding(tokens, table.weight)[~is_zero])
    assert torch.equal(table.eval()(tokens), nn.functional.embedding(tokens, table.weight))


@for_each("name", KINDS)
def test_every_architecture_can_cut_off_tokens_in_training_alone(name: str) -> None:
    model, sources = build(name).eval(), some_sources()
    expected = model(sources, sources)
    before = [module.cutoff for module in model.modules() if isinstance(module, TokenEmbedding)]
    with cutoff_of(model, 0.9):
        assert torch.equal(model(sources, sources), expected)
        model.train()
        set_cutoff(model, 0.0)
        torch.manual_seed(3)
        plain = model(sources, sources)
        set_cutoff(model, 0.9)
        torch.manual_seed(3)
        assert not torch.equal(model(sources, sources), plain)
    assert before == [
        module.cutoff for module in model.modules() if isinstance(module, TokenEmbedding)
    ]


def test_a_model_with_other_embeddings_is_refused() -> None:
    with pytest.raises(
        NmtError, match=r"^Linear has no nmt\.models\.layers\.basic\.TokenEmbedding"
    ):
        set_cutoff(nn.Linear(2, 2), 0.1)


def test_the_second_pass_of_simcut_alone_is_cut_off() -> None:
    model = build()
    for module in model.modules():
        if hasattr(module, "rate") and module.__class__.__name__ == "Dropout":
            module.rate = 0.0
    seen: list[Tensor] = []

    class Seen(SimCut):
        def __call__(self, outputs: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
            seen.append(outputs)
            return outputs.sum(), outputs.sum()

    packing = Packing.from_lengths(*LENGTHS)
    source, target = (torch.randint(4, VOCABULARY, (int(side.sum()),)) for side in LENGTHS)
    batch = Batch(source, target, target, packing)
    for cutoff, differs in ((0.0, False), (0.5, True)):
        Seen(cutoff=cutoff).criterion(model, cast(Run, None))(batch)
        first, second = seen.pop().chunk(2)
        assert torch.equal(first, model.decode_packs(source, target, packing))
        assert torch.equal(first, second) is not differs


def test_simcut_without_divergence_is_the_cross_entropy() -> None:
    torch.manual_seed(1)
    output, hidden = nn.Linear(4, 7), torch.randn(3, 4)
    labels = torch.tensor([1, 5, 2])
    expected = losses["label_smoothed_cross_entropy"](hidden, output, labels)
    torch.testing.assert_close(losses["simcut"](hidden.repeat(2, 1), output, labels), expected)


def test_the_divergences_of_simcut_and_r_drop_have_their_directions() -> None:
    passes = torch.tensor([[0.7, 0.2, 0.1], [0.2, 0.3, 0.5]])
    p, q = passes.tolist()
    forward = sum(x * math.log(x / y) for x, y in zip(p, q, strict=True))  # KL(p || q)
    backward = sum(y * math.log(y / x) for x, y in zip(p, q, strict=True))
    output = nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        output.weight.copy_(torch.eye(3))
    label = torch.tensor([2])
    for loss, divergence, cross_entropy in (
        (SimCut(smoothing=0.0, alpha=3.0), forward, -math.log(0.1)),
        (RDrop(smoothing=0.0, alpha=3.0), (forward + backward) / 2, -math.log(0.1 * 0.5)),
    ):
        total, _ = loss(passes.log(), output, label)
        assert float(total) == pytest.approx(cross_entropy + 3.0 * divergence, rel=1e-5)


def left_out(model: Model, seed: int) -> list[bool]:
    """Whether each layer was left out of a pass."""
    ran: list[nn.Module] = []
    layers = list(model.residual_modules("layers"))
    hooks = [
        layer.feed_forward.register_forward_hook(lambda module, *_: ran.append(module))
        for layer in layers
    ]
    decoded(model, seed)
    for hook in hooks:
        hook.remove()
    return [layer.feed_forward not in ran for layer in layers]


def test_layers_are_left_out_with_their_probability_and_in_training_alone() -> None:
    model = build()
    drop_layers(model, 0.25)
    drawn = np.array([left_out(model, seed) for seed in range(400)])
    assert drawn.mean() == pytest.approx(0.25, abs=0.05)
    assert left_out(model, 7) == left_out(model, 7)
    model.eval()
    assert not any(any(left_out(model, seed)) for seed in range(20))
    assert torch.equal(decoded(model), decoded(build().eval()))


@for_each("name", ["transformer_tiny", "positions rotary", "pre-norm"])
def test_every_weight_has_a_gradient_where_all_layers_are_left_out(name: str) -> None:
    model = build(name)
    drop_layers(model, 0.999)
    decoded(model).sum().backward()
    for weight_name, weight in model.named_parameters():
        assert weight.grad is not None or weight is model.output.weight, weight_name
    inside = [weight for layer in model.residual_modules("layers") for weight in layer.parameters()]
    assert not any(weight.grad.any() for weight in inside if weight.grad is not None)


def test_models_whose_layers_cannot_be_left_out_are_refused() -> None:
    with pytest.raises(NmtError, match=r"layer_dropout: RNNsearch has no layers that can be left"):
        drop_layers(build("rnnsearch"), 0.1)


@for_each(
    ("values", "message"),
    [
        ({"token_dropout": 1.0}, r"token_dropout lies in \[0, 1\), not 1.0"),
        ({"layer_dropout": -0.1}, r"layer_dropout lies in \[0, 1\), not -0.1"),
        ({"layer_dropout": 0.1, "sharding": "full"}, "sharding needs every layer"),
        ({"layer_dropout": 0.1, "compile": True}, "layer_dropout is for models that are not comp"),
    ],
)
def test_settings_that_do_not_fit_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainConfig(**values)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_regularised_run_resumes_with_the_same_bits(
    train: Any, tmp_path: Path, dropout: float
) -> None:
    options = [
        *("--set", f"train.token_dropout={dropout}", "--set", f"train.layer_dropout={dropout}"),
        *("--set", "train.loss.name=simcut", "--set", "train.checkpoint_activations=layers"),
    ]
    assert train(tmp_path / "whole", *options).status == 0
    for updates in (2, 6):
        assert train(tmp_path / "parts", *options, "--max-updates", updates).status == 0
    assert records(tmp_path / "parts") == records(tmp_path / "whole")
    assert_same_checkpoint(tmp_path / "parts" / "last", tmp_path / "whole" / "last")


def test_without_dropout_of_tokens_and_layers_nothing_changes(
    train: Any, trained: Path, tmp_path: Path
) -> None:
    options = ("--set", "train.token_dropout=0", "--set", "train.layer_dropout=0")
    assert train(tmp_path / "run", *options).status == 0
    assert records(tmp_path / "run") == records(trained)
    assert_same_checkpoint(tmp_path / "run" / "last", trained / "last")
