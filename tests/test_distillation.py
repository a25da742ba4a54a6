"""Word-level distillation: what it costs, what it changes, and that teachers stay as they are."""

from __future__ import annotations

import copy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Command
from tiny_models import VOCABULARY, tiny
from torch import Tensor, nn
from torch.nn import functional as F
from trained_runs import assert_resumes_as_if_it_never_stopped, records

from nmt.data.batches import Batch
from nmt.data.packing import Packing
from nmt.data.vocabulary import EOS, PAD
from nmt.errors import NmtError
from nmt.models import Model
from nmt.runs import Run
from nmt.runs.recipe import write_plugins
from nmt.training.losses.distillation import DistillationCriterion, WordDistillation
from nmt.training.losses.output_layer import SLICE_ELEMENTS
from nmt.training.losses.token import losses

LOSS: Any = losses["word_distillation"]


def layer(width: int, bias: bool = True) -> nn.Linear:
    return nn.Linear(width, 23, bias=bias)


def plain(
    loss: WordDistillation, logits: Tensor, labels: Tensor, teachers: list[Tensor], weights: Tensor
) -> Tensor:
    """The same loss written out over whole tables, from the logits of the teachers."""
    log_p = logits.log_softmax(1)
    label, other, pad = loss.target_distribution(logits.shape[1])
    target = torch.full_like(logits, other)
    target[:, PAD] = pad
    target.scatter_(1, labels[:, None], label)
    of_labels = -(target * log_p).sum(1) - loss.constant(logits.shape[1])
    q = torch.stack([table.softmax(1) for table in teachers]).mean(0)
    of_teachers = (q * (q.log() - log_p)).sum(1)
    share = loss.teacher_weight
    return (weights * ((1 - share) * of_labels + share * of_teachers)).sum()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("definition", ["tensor2tensor", "annotated"])
@pytest.mark.parametrize("share", [0.3, 1.0])
def test_the_loss_and_its_gradients_are_those_of_the_plain_one(
    share: float, definition: Any, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SLICE_ELEMENTS, "cpu", 4 * 23 * 4)  # slices of 4 of 11 tokens
    torch.manual_seed(4)
    loss = replace(LOSS, teacher_weight=share, definition=definition)
    output, one, two = layer(8), layer(8, bias=False), layer(5)
    hidden = torch.randn(11, 8, requires_grad=True)
    outputs = torch.randn(11, 8), torch.randn(11, 5)
    labels = torch.randint(1, 23, (11,))
    weights = torch.rand(11) if weighted else torch.ones(11)
    teachers = [(outputs[0], one), (outputs[1], two)]
    logits = [one(outputs[0]).detach(), two(outputs[1]).detach()]

    expected = plain(loss, output(hidden), labels, logits, weights)
    own, nll = loss(hidden, output, labels, weights if weighted else None, teachers)

    torch.testing.assert_close(own, expected)
    torch.testing.assert_close(nll, F.cross_entropy(output(hidden), labels, reduction="sum"))
    trained = [hidden, *output.parameters()]
    expected_gradients = torch.autograd.grad(3.0 * expected, trained)
    for mine, theirs in zip(
        torch.autograd.grad(3.0 * own, trained), expected_gradients, strict=True
    ):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)


def test_under_autocast_the_loss_comes_near_the_exact_one() -> None:
    torch.manual_seed(4)
    output, hidden, labels = layer(8), torch.randn(11, 8), torch.randint(1, 23, (11,))
    teachers = [(torch.randn(11, 8), layer(8))]
    exact, _ = LOSS(hidden, output, labels, None, teachers)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low, _ = LOSS(hidden.bfloat16().requires_grad_(), output, labels, None, teachers)
    low.backward()
    assert low.item() == pytest.approx(exact.item(), rel=1e-2)
    assert output.weight.grad is not None
    assert output.weight.grad.dtype == torch.float32


def test_no_tokens_cost_nothing() -> None:
    output = layer(8)
    nothing = torch.zeros(0, dtype=torch.int64)
    teachers = [(torch.randn(0, 8), layer(8))]
    loss, nll = LOSS(torch.randn(0, 8), output, nothing, None, teachers)
    loss.backward()
    assert (loss.item(), nll.item()) == (0.0, 0.0)
    assert output.weight.grad is not None
    assert not output.weight.grad.any()


def build(seed: int, dropout: float, **values: Any) -> Model:
    torch.manual_seed(seed)
    config = replace(tiny("transformer_tiny"), dropout=dropout, **values)
    return config.build(VOCABULARY, VOCABULARY, True)


def some_batch() -> Batch:
    torch.manual_seed(2)
    lengths = np.array([[5, 2, 9, 3], [7, 2, 4, 4]])
    source, target = (torch.randint(EOS + 1, VOCABULARY, (int(side.sum()),)) for side in lengths)
    return Batch(source, target, target, Packing.from_lengths(*lengths))


def test_a_student_that_is_its_teacher_costs_nothing_and_learns_nothing() -> None:
    student = build(1, dropout=0.0)
    teacher = copy.deepcopy(student).eval()
    loss = replace(LOSS, teacher_weight=1.0)
    measured = DistillationCriterion(student, loss, [teacher])(some_batch())
    measured["loss"].backward()
    assert measured["loss"].item() == pytest.approx(0.0, abs=1e-4)
    assert measured["nll"].item() > 1.0
    assert all(
        weight.grad is None or weight.grad.abs().max() < 1e-5 for weight in student.parameters()
    )


def test_teachers_are_asked_without_dropout_and_are_not_trained() -> None:
    student, teacher = build(1, dropout=0.0), build(3, dropout=0.5).eval()
    criterion = DistillationCriterion(student, LOSS, [teacher.requires_grad_(False)])
    criterion.train()
    first, second = (criterion(some_batch())["loss"] for _ in range(2))
    assert torch.equal(first, second)
    assert list(criterion.parameters()) == list(student.parameters())
    first.backward()
    assert all(weight.grad is None for weight in teacher.parameters())


@pytest.mark.full
def test_a_student_of_two_teachers_resumes_with_the_same_bits(
    train: Any, trained: Path, tmp_path: Path
) -> None:
    assert train(tmp_path / "second", "--set", "train.seed=9").status == 0
    teachers = f"train.loss={{name: word_distillation, teachers: [{trained}, {tmp_path}/second]}}"
    assert_resumes_as_if_it_never_stopped(train, tmp_path, "--set", teachers)


def test_a_student_keeps_the_checkpoints_of_teachers_that_train_on(
    train: Any, run: Path, tmp_path: Path
) -> None:
    def student(teacher: Path, updates: int) -> Any:
        loss = f"train.loss={{name: word_distillation, teachers: [{teacher}]}}"
        return train(tmp_path / "student", "--set", loss, "--max-updates", updates)

    assert student(run, 2).status == 0
    assert student(run, 4).status == 0
    assert train(run, "--max-updates", 8).status == 0
    done = student(run, 6)
    assert done.status == 1
    assert "train.loss.teacher_digests was ['" in done.err
    before, after = run / "update_0000006", run / "update_0000008"
    assert f"train.loss.teachers was ['{before}'], is ['{after}']" in done.err
    moved = run.rename(tmp_path / "moved")
    assert student(moved / "update_0000006", 6).status == 0
    loss = Run.open(tmp_path / "student").recipe["train"]["loss"]
    assert loss["teachers"] == [str(moved / "update_0000006")]


def test_digests_that_are_not_those_of_the_teachers_are_refused(trained: Path) -> None:
    loss = replace(LOSS, teachers=(str(trained),), teacher_digests=("0",))
    with pytest.raises(NmtError, match="teacher_digests are not those of the teachers"):
        loss.pinned()
    pinned = replace(loss, teacher_digests=()).pinned()
    assert pinned.pinned() == pinned


def test_the_plugins_of_a_teacher_are_imported_if_they_are_trusted(
    train: Any, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "meta_path", sys.meta_path.copy())
    monkeypatch.setitem(sys.modules, "my_teacher", sys)  # so that it is removed afterwards
    del sys.modules["my_teacher"]
    teacher = Run.open(run)
    teacher.with_recipe({**teacher.recipe, "plugins": ["my_teacher"]})
    write_plugins(run, {"my_teacher.py": b""})
    loss = f"train.loss={{name: word_distillation, teachers: [{run}]}}"
    arguments = tmp_path / "student", "--set", loss, "--max-updates", 1
    assert "would import Python code: my_teacher" in train(*arguments).err
    assert train(*arguments, "--trust-plugins").status == 0


@pytest.mark.full
def test_a_student_comes_nearer_to_its_teacher_than_one_that_learns_alone(
    train: Any, trained: Path, tmp_path: Path
) -> None:
    """With all weight on the teacher, the loss is the divergence from it, which must fall."""
    loss = f"train.loss={{name: word_distillation, teachers: [{trained}], teacher_weight: 1.0}}"
    options = "--set", loss, "--set", "train.log_every=10", "--set", "train.seed=5"
    assert train(tmp_path / "student", *options, "--max-updates", 40).status == 0
    reports = [line for line in records(tmp_path / "student") if line["record"] == "train"]
    assert reports[-1]["loss"] < reports[0]["loss"] / 2


def test_teachers_that_cannot_teach_are_refused_with_one_line(
    train: Any, trained: Path, tmp_path: Path, nmt: Command, recipe: Path, write_numbers: Any
) -> None:
    def answer(*settings: str) -> str:
        done = train(tmp_path / "student", *settings)
        assert done.status == 1
        assert done.err.count("\n") == 1
        return str(done.err)

    name = "train.loss.name=word_distillation"
    assert "has no teachers; name their runs with --set" in answer("--set", name)
    missing = f"train.loss={{name: word_distillation, teachers: [{tmp_path}/none]}}"
    assert f"{tmp_path}/none: not a trained model" in answer("--set", missing)
    with pytest.raises(ValueError, match=r"teacher_weight lies in \(0, 1\], not 0"):
        replace(LOSS, teacher_weight=0.0)

    other, data = tmp_path / "other", tmp_path / "data-bin"
    write_numbers(other, 60, 3)
    text = "--config", recipe, "--train", other, "--valid", other, "--output-dir", data
    assert nmt("preprocess", *text).status == 0
    teacher = f"train.loss={{name: word_distillation, teachers: [{trained}]}}"
    said = answer("--data", str(data), "--set", teacher)
    assert "its subwords are not those of the dataset, as a teacher's must be" in said
    reverse = "--subword-model", trained, "--set", "preprocess.target_order=right_to_left"
    assert nmt("preprocess", *text[:-1], tmp_path / "reverse", *reverse).status == 0
    said = answer("--data", str(tmp_path / "reverse"), "--set", teacher)
    assert "its target_order is not that of the dataset, as a teacher's must be" in said
