"""Word-level knowledge distillation: a student learns what its teachers predict at every token.

Kim and Rush 2016 (*Sequence-Level Knowledge Distillation*) mix these predictions with the label.
Their other kind of distillation, training on the teachers' translations, needs no loss of its own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from nmt.data.batches import Batch
from nmt.errors import NmtError
from nmt.inference.ensembles import load_members
from nmt.models import Model
from nmt.recipe.config import MayChange
from nmt.runs import Checkpoint, Run, find_checkpoint
from nmt.runs.recipe import import_plugins_of_run
from nmt.training.losses.criterion import Criterion
from nmt.training.losses.output_layer import (
    Cost,
    TargetDistribution,
    distillation,
    in_autocast_dtype,
    sliced_loss,
)
from nmt.training.losses.token import LabelSmoothedCrossEntropy, TokenCriterion, losses


@losses.register("word_distillation")
@dataclass(frozen=True, kw_only=True)
class WordDistillation(LabelSmoothedCrossEntropy):
    """Word-level knowledge distillation (Kim and Rush 2016): learn what trained models predict.

    The loss is `teacher_weight` times KL(teachers || model), plus the rest of 1 times
    label-smoothed cross-entropy. Several teachers count as an ensemble: the mean of their
    probabilities. They read the same batch without dropout; on a CPU an update with two teachers
    of the model's size takes about twice as long.
    """

    teachers: MayChange[tuple[str, ...]] = ()
    """Runs or checkpoints with the subwords of the dataset; needed while training lasts. A run
    means the best checkpoint that it has when training begins."""
    teacher_digests: tuple[str, ...] = ()
    """SHA-256 of each teacher's weights, which a run stores: a resumed run may name other places of
    the teachers, but no other teachers."""
    teacher_weight: float = 0.5
    """Weight of the divergence from the teachers, at most 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.teacher_weight <= 1.0:
            raise ValueError(f"teacher_weight lies in (0, 1], not {self.teacher_weight}")

    def pinned(self, trust_plugins: bool = False) -> WordDistillation:
        """Return the loss with checkpoints as teachers, and their digests.

        Args:
            trust_plugins: whether plugins of the teachers may be imported.

        Raises:
            NmtError: a teacher is missing, or has plugins that are not trusted; or its digest is
                not the given one.
        """
        checkpoints = [_checkpoint_of(teacher, trust_plugins) for teacher in self.teachers]
        digests = tuple(checkpoint.digest for checkpoint in checkpoints)
        # A resumed run must learn from the same weights, wherever they lie now.
        if self.teacher_digests not in ((), digests):
            raise NmtError(
                "train.loss.teacher_digests are not those of the teachers: give the teachers whose "
                "weights these are, or leave teacher_digests out"
            )
        places = tuple(map(_place, self.teachers, checkpoints))
        return replace(self, teachers=places, teacher_digests=digests)

    def criterion(self, model: Model, run: Run, compile: bool = False) -> Criterion:
        """Return a criterion that asks the teachers.

        Raises:
            NmtError: there is no teacher, it cannot be loaded, or has other subwords than the run.
        """
        device = next(model.parameters()).device
        return DistillationCriterion(
            model, self, load_teachers(self.teachers, run, device), compile
        )

    def __call__(
        self,
        decoder_output: Tensor,
        output: nn.Linear,
        labels: Tensor,
        weights: Tensor | None = None,
        teachers: Sequence[tuple[Tensor, nn.Linear]] = (),
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and the negative log-likelihood, both summed over tokens, in nats.

        Args:
            decoder_output: decoder output [P, D] at the positions of the labels.
            output: the model's output layer [V, D].
            labels: [P] int64, the tokens to predict, without padding.
            weights: [P] float32, factors of the tokens' losses; None if all are 1.
            teachers: decoder output [P, D'] and output layer [V, D'] of each teacher; without any,
                the label alone counts.
        """
        if not teachers:
            return super().__call__(decoder_output, output, labels, weights)
        share, vocabulary = 1 - self.teacher_weight, output.out_features
        of_labels = self.target_distribution(vocabulary)
        target = TargetDistribution(*(share * probability for probability in of_labels))
        tops = [in_autocast_dtype(rows, layer.weight, layer.bias) for rows, layer in teachers]
        cost = Cost(partial(distillation, target, self.teacher_weight, tops))
        loss, nll = sliced_loss(decoder_output[None], output, labels, weights, cost)
        total = len(labels) if weights is None else weights.sum()
        # Less the entropy of the label's share, so that a perfect student has loss 0.
        return loss - share * self.constant(vocabulary) * total, nll[0]


class DistillationCriterion(TokenCriterion):
    """Teacher forcing of a student and of its teachers with the same batch."""

    loss: WordDistillation

    def __init__(
        self,
        model: Model,
        loss: WordDistillation,
        teachers: Sequence[Model],
        compile: bool = False,
    ) -> None:
        """Combine a model, its teachers and their loss.

        Args:
            model: the student to train.
            loss: compares its predictions with the teachers' predictions.
            teachers: on the model's device, for evaluation; they are not trained.
            compile: whether the student is compiled with ``torch.compile``, layer by layer.
        """
        super().__init__(model, loss, compile)
        self.teachers = tuple(teachers)  # no modules of this one, which is trained

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return "loss" and "nll", summed over the batch's target tokens."""
        labels, sentences = batch.target_output, (batch.source, batch.target_input, batch.packing)
        decoder_output = self.passes(batch)
        # Decoder outputs only: probabilities of the whole vocabulary exist a slice at a time.
        with torch.no_grad():
            teachers = [
                (teacher.decode_packs(*sentences), teacher.output) for teacher in self.teachers
            ]
        loss, nll = self.loss(decoder_output, self.model.output, labels, batch.weights, teachers)
        return {"loss": loss, "nll": nll}


def load_teachers(paths: Sequence[str], run: Run, device: torch.device) -> list[Model]:
    """Load the models that teach, for evaluation.

    Args:
        paths: runs or checkpoints.
        run: the student's.
        device: of the student.

    Raises:
        NmtError: there is none, one cannot be loaded, or its text is not that of the run: in other
            subwords, another order, or with another context.
    """
    if not paths:
        raise NmtError(
            "loss word_distillation has no teachers; name their runs with "
            "--set 'train.loss.teachers=[RUN]'"
        )
    members = load_members([Path(path) for path in paths], device)
    for name in ("target_order", "context"):
        if getattr(members[0].subwords, name) != getattr(run.subwords, name):
            raise NmtError(
                f"{paths[0]}: its {name} is not that of the dataset, as a teacher's must be"
            )
    if not members[0].subwords.is_same_as(run.subwords):
        raise NmtError(
            f"{paths[0]}: its subwords are not those of the dataset, as a teacher's must be; "
            f"preprocess the text again with --subword-model {paths[0]}"
        )
    return [member.model.requires_grad_(False) for member in members]


def _checkpoint_of(teacher: str, trust_plugins: bool) -> Checkpoint:
    """Return the checkpoint that a path means, and import the plugins of its run."""
    run, checkpoint = find_checkpoint(Path(teacher))
    import_plugins_of_run(run.path, run.plugins, trust_plugins)
    return checkpoint


def _place(teacher: str, checkpoint: Checkpoint) -> str:
    """Return the path of a teacher's checkpoint; relative if the teacher's is."""
    path = checkpoint.path
    return str(path) if Path(teacher).is_absolute() else os.path.relpath(path)
