import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch

from nmt.data.columns import RaggedArray
from nmt.data.dataset import Dataset, Split
from nmt.data.writer import DatasetWriter, staging
from nmt.errors import NmtError
from nmt.models import Model, architectures
from nmt.report.log import read_log
from nmt.runtime.distributed import World
from nmt.training.config import TrainConfig
from nmt.training.divergence import FiniteWatch, FirstNonFinite
from nmt.training.loop import TrainingLoop
from nmt.training.optim.schedules import schedules
from nmt.training.reporting.report import TrainingReport
from nmt.training.trainer import LossScale, Trainer


@pytest.fixture
def split(tmp_path: Path) -> Split:
    generator = torch.Generator().manual_seed(1)
    lines = torch.randint(4, 20, (40, 5), generator=generator).tolist()
    with staging(tmp_path / "data") as directory:
        writer = DatasetWriter(directory, languages=("en", "de"), vocabularies=(20, 20))
        with writer.split("train") as out:
            out.append(RaggedArray.from_sentences(lines), RaggedArray.from_sentences(lines))
        writer.finish(shared_vocabulary=True, recipe={})
    return Dataset.open(tmp_path / "data").split("train")


@pytest.fixture
def trainer(split: Split, tmp_path: Path) -> Trainer:
    torch.manual_seed(1)
    config = TrainConfig(tokens_per_update=60, precision="fp32", device="cpu", max_skipped=2)
    tiny = dataclasses.replace(
        architectures["transformer_tiny"], d_model=8, d_ff=8, heads=2, encoder_layers=2
    )
    run = type("Run", (), {"path": tmp_path})()
    return Trainer(run, config, tiny.build(20, 20, True).train(), split, World())


def spoil(model: Model, updates: set[int], trainer: Trainer) -> None:
    """Makes the first encoder layer's feed-forward give NaN in some updates."""

    def hook(module: object, inputs: object, output: torch.Tensor) -> torch.Tensor:
        bad = trainer.state.update + 1 in updates or trainer.state.update in updates
        return output * float("nan") if bad else output

    model.encoder[0].feed_forward.inner.register_forward_hook(hook)


def loop(trainer: Trainer, report: TrainingReport) -> TrainingLoop:
    return TrainingLoop(trainer, validation=None, report=report)  # type: ignore[arg-type]


def weights(model: Model) -> list[torch.Tensor]:
    return [weight.detach().clone() for weight in model.parameters()]


def test_an_update_that_is_not_finite_is_skipped_and_its_first_module_named(
    trainer: Trainer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(trainer.model, {2}, trainer)
    updates = trainer.loader.updates(1)
    assert trainer.step(next(updates), 0.1) == []
    before = weights(trainer.model)
    second = next(updates)
    assert trainer.step(second, 0.1) == [second]
    assert all(torch.equal(a, b) for a, b in zip(before, weights(trainer.model), strict=True))
    with TrainingReport(tmp_path / "log.jsonl", 10, 0) as report:
        loop(trainer, report)._note_failure(second)
    said = capsys.readouterr().err
    assert "skipped | update 2" in said
    assert "first in encoder.0.feed_forward.inner" in said
    assert '"record": "skipped", "update": 2' in (tmp_path / "log.jsonl").read_text()
    assert trainer.running_stats.sums()["updates"] == 1
    assert torch.tensor(list(trainer.running_stats.sums().values())).isfinite().all()
    trainer.state.update = 10
    assert trainer.step(next(updates), 0.1) == []
    assert not torch.equal(before[0], weights(trainer.model)[0])


@pytest.mark.parametrize("share", [math.nan, math.inf, -1.0])
def test_a_learning_rate_that_is_no_number_or_negative_ends_training(
    share: float, trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constant = dataclasses.replace(schedules["constant"], lr=0.5, warmup_updates=0)
    monkeypatch.setattr(type(constant), "decay", lambda *given: share)
    trainer.config = dataclasses.replace(trainer.config, schedule=constant)
    before = weights(trainer.model)
    said = f"update 1: the schedule constant gives a learning rate of {share / 2}; correct"
    with (
        TrainingReport(tmp_path / "log.jsonl", 10, 0) as report,
        pytest.raises(NmtError, match=said),
    ):
        loop(trainer, report)._run_update(trainer.loader.update(1))
    assert all(torch.equal(a, b) for a, b in zip(before, weights(trainer.model), strict=True))


def test_a_report_without_updates_is_not_written(trainer: Trainer, tmp_path: Path) -> None:
    trainer.config = dataclasses.replace(trainer.config, log_every=1)
    spoil(trainer.model, {1}, trainer)
    updates = trainer.loader.updates(1)
    with TrainingReport(tmp_path / "log.jsonl", 10, 0) as report:
        training = loop(trainer, report)
        for _ in range(3):
            training._run_update(next(updates))
    log = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    assert [(line["record"], line["update"]) for line in log] == [
        ("skipped", 1),
        ("skipped", 2),
        ("train", 3),
    ]


def test_numbers_that_json_lacks_are_null_in_the_log(tmp_path: Path) -> None:
    with TrainingReport(tmp_path / "log.jsonl", 10, 0, quiet=False) as report:
        scores = {"loss": math.nan, "perplexity": math.inf, "bleu": 0.0}
        report.validation(1, scores, best=False)
    [line] = (tmp_path / "log.jsonl").read_text().splitlines()
    assert '"loss": null, "perplexity": null, "bleu": 0.0, "best": false' in line
    log = read_log(tmp_path / "log.jsonl")
    assert log.curve("validation", "loss").values == []
    assert log.curve("validation", "bleu").values == [0.0]


def test_too_many_skipped_updates_end_training_and_name_the_last_checkpoint(
    trainer: Trainer, tmp_path: Path
) -> None:
    spoil(trainer.model, {1, 2, 3}, trainer)
    with TrainingReport(tmp_path / "log.jsonl", 10, 0) as report:
        training = loop(trainer, report)
        updates = trainer.loader.updates(1)
        for _ in range(2):
            (failed,) = trainer.step(next(updates), 0.1)
            training._note_failure(failed)
        (failed,) = trainer.step(next(updates), 0.1)
        with pytest.raises(NmtError, match=r"update 3: training diverged: 3 updates .* last check"):
            training._note_failure(failed)


def test_a_gradient_that_overflows_in_the_backward_pass_is_skipped_too(trainer: Trainer) -> None:
    updates = trainer.loader.updates(1)
    weight = next(trainer.model.parameters())
    weight.register_hook(lambda gradient: gradient * float("inf"))
    update = next(updates)
    before = weights(trainer.model)
    assert trainer.step(update, 0.1) == [update]
    assert all(torch.equal(a, b) for a, b in zip(before, weights(trainer.model), strict=True))


def test_in_fp16_an_overflow_lowers_the_scale_of_the_loss_and_is_no_failure(
    trainer: Trainer,
) -> None:
    trainer.scale = LossScale(True, torch.device("cpu"))
    scale = float(trainer.scale.value)
    next(trainer.model.parameters()).register_hook(lambda gradient: gradient * float("inf"))
    assert trainer.step(next(trainer.loader.updates(1)), 0.1) == []
    assert float(trainer.scale.value) == scale / 2


def test_a_scaled_loss_gives_the_gradients_of_the_loss(trainer: Trainer) -> None:
    update, found = next(trainer.loader.updates(1)), []
    trainer.config = dataclasses.replace(trainer.config, clip_norm=0.0)
    for wanted in (False, True):
        trainer.scale = LossScale(wanted, torch.device("cpu"))
        trainer._seed(update)
        trainer._accumulate(update)
        norm = trainer._scale_gradients()
        gradients = [weight.grad for weight in trainer.weights.values()]
        found.append([norm, *(each.clone() for each in gradients if each is not None)])
        trainer.parallel.clear(trainer.optimizer)
    for plain, scaled in zip(*found, strict=True):
        torch.testing.assert_close(scaled, plain)


def test_training_resumes_with_the_scale_of_its_loss(trainer: Trainer) -> None:
    trainer.scale = LossScale(True, torch.device("cpu"))
    trainer.scale.update(torch.tensor(False))
    trainer.step(next(trainer.loader.updates(1)), 0.1)
    content, scale = trainer.snapshot(), trainer.scale.state()
    trainer.scale = LossScale(True, torch.device("cpu"))
    trainer.restore(*content, trainer.state)
    assert trainer.scale.state() == scale


def test_a_loss_that_is_not_finite_is_named_where_every_module_s_output_is(
    trainer: Trainer,
) -> None:
    update = next(trainer.loader.updates(1))
    with torch.no_grad():
        trainer.model.output.weight[1] = float("nan")  # of a token that is in no sentence
    assert trainer.origin(update) == "first in the logits or the loss"


def test_the_process_is_named_on_which_a_value_first_was_not_finite(trainer: Trainer) -> None:
    class Second(World):
        """The second of two processes; the first one's values were all finite."""

        def gather(self, value: object) -> list[object]:
            return [None, value]

    spoil(trainer.model, {1}, trainer)
    update = next(trainer.loader.updates(1))
    trainer.world = Second(rank=1, size=2)
    assert trainer.origin(update) == "first in encoder.0.feed_forward.inner on rank 1"


def test_a_gradient_is_scaled_down_only_where_it_is_greater_than_allowed(trainer: Trainer) -> None:
    for limit, expected in ((0.0, 5.0), (9.0, 5.0), (1.0, 1.0)):
        trainer.config = dataclasses.replace(trainer.config, clip_norm=limit)
        for number, weight in enumerate(trainer.model.parameters()):
            weight.grad = torch.zeros_like(weight)
            weight.grad.view(-1)[0] = {0: 3.0, 1: 4.0}.get(number, 0.0)
        assert trainer._scale_gradients().item() == 5.0
        gradients = [weight.grad for weight in trainer.model.parameters()]
        assert torch.nn.utils.get_total_norm(gradients).item() == pytest.approx(expected, 1e-4)


def test_allocated_state_is_that_of_no_step(trainer: Trainer) -> None:
    before = weights(trainer.model)
    trainer.allocate()
    assert all(torch.equal(a, b) for a, b in zip(before, weights(trainer.model), strict=True))
    state = trainer._optimizer_state()
    assert state
    assert not any(value.any() for value in state.values())


def test_processes_draw_dropout_apart_and_samples_together(trainer: Trainer) -> None:
    updates, dropout, sampling = trainer.loader.updates(1), [], []
    for update in (next(updates), next(updates)):
        for rank in (0, 1):
            trainer.world = World(rank=rank, size=2)
            trainer._seed(update)
            dropout.append(torch.initial_seed())
            sampling.append(trainer.criterion.sampling_seed)
    assert len(set(dropout)) == 4
    first, _, second, _ = sampling
    assert sampling == [first, first, second, second]
    assert first != second


def test_a_rate_is_lowered_by_the_plateaus_that_were_counted(
    trainer: Trainer, tmp_path: Path
) -> None:
    schedule = dataclasses.replace(schedules["plateau"], lr=0.5, warmup_updates=0, shrink=0.1)
    trainer.config = dataclasses.replace(trainer.config, schedule=schedule, log_every=99)
    with TrainingReport(tmp_path / "log.jsonl", 10, 0, quiet=True) as report:
        training = loop(trainer, report)
        for plateaus, rate in ((0, 0.5), (2, 0.005)):
            trainer.state.plateaus = plateaus
            training._run_update(next(trainer.loader.updates(trainer.state.update + 1)))
            assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(rate)


def test_what_the_host_does_not_know_yet_is_found_before_a_checkpoint() -> None:
    watch: FiniteWatch[int] = FiniteWatch()
    watch._pending.append((7, torch.tensor(False), None))  # as a GPU leaves it
    assert watch.rest() == [7]
    assert watch.rest() == []


def test_the_watch_finds_each_work_that_failed_once() -> None:
    watch: FiniteWatch[int] = FiniteWatch()
    found = [watch.after(number, torch.tensor(number not in (2, 3))) for number in range(1, 6)]
    assert found == [[], [2], [3], [], []]


def test_the_hooks_are_gone_after_the_search_for_the_first_module() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    with FirstNonFinite(model) as first:
        model(torch.tensor([[float("inf"), -float("inf")]]))
    assert first.name == "0"
    assert not any(module._forward_hooks for module in model)
