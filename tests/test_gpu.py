"""Tests for a GPU: training, search and kernels give what they give on a CPU.

With the parameter "cuda" a test is marked `gpu`, and skipped where torch finds no GPU; with "cpu"
the same lines run everywhere.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import interpreted_loss
import interpreted_sublayers
import numpy as np
import pytest
import torch
from flash_stand_in import flash_attention_on_cpus
from for_each import for_each
from tiny_models import PLAIN, VOCABULARY, some_sources, tiny
from torch import Tensor
from torch import distributed as dist
from trained_runs import assert_same_checkpoint

from nmt.data.dataset import Dataset
from nmt.data.packing import Packing
from nmt.data.vocabulary import EOS
from nmt.inference.ensembles import compile_steps
from nmt.inference.fast.recorded_search import RecordedSearch
from nmt.models import Model, architectures
from nmt.models.kernels import packs as packed_attention
from nmt.models.kernels.packs import PackKernel
from nmt.models.transformer.model import TransformerConfig
from nmt.runtime.distributed import World
from nmt.runtime.own_kernels import OPTIONAL
from nmt.runtime.precision import InferencePrecision, autocast
from nmt.search import Beam, Greedy, Strategy
from nmt.training import kernel_trial
from nmt.training.config import TrainConfig
from nmt.training.fp8 import BACKWARD, FORWARD
from nmt.training.parallel import cuda_graphs
from nmt.training.parallel.processes import DataParallel, FullyShardedDataParallel
from nmt.training.trainer import Trainer

CPU = torch.device("cpu")
on_each_device = pytest.mark.parametrize(
    "device", [CPU, pytest.param(torch.device("cuda"), marks=pytest.mark.gpu)], ids=["cpu", "cuda"]
)


@pytest.fixture(autouse=True)
def _without_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions and recurrent layers compute in fp32, as on a CPU; cuDNN would round to TF32."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


# Models


LENGTHS = [[150, 1, 70, 3, 9], [130, 2, 64, 4, 1]]
LONG = [[150, 200, 300], [290, 160, 250]]


def some_packs(
    device: torch.device, lengths: list[list[int]] = LENGTHS
) -> tuple[Tensor, Tensor, Packing]:
    """Sources, targets and packing of sentences of these lengths."""
    sizes = np.array(lengths)
    generator = torch.Generator().manual_seed(1)
    source, target = (
        torch.randint(EOS + 1, VOCABULARY, (int(side.sum()),), generator=generator).to(device)
        for side in sizes
    )
    return source, target, Packing.from_lengths(*sizes).to(device)


def gradients(model: Model, output: Tensor) -> dict[str, Tensor]:
    """Gradients of a fixed function of a decoder output, by the names of the weights."""
    towards = torch.linspace(-1, 1, output.numel(), device=output.device).view_as(output)
    model.zero_grad()
    (output.float() * towards).sum().backward()
    named = model.named_parameters()
    return {name: weight.grad.cpu() for name, weight in named if weight.grad is not None}


def assert_near(values: dict[str, Tensor], expected: dict[str, Tensor], error: float) -> None:
    """Each tensor is near the expected one, relative to its norm."""
    assert values.keys() == expected.keys()
    largest = max(float(value.norm()) for value in expected.values())
    for name, value in expected.items():
        # The gradient of a bias of keys is rounding alone.
        difference = (values[name].float() - value.float()).norm()
        assert difference <= error * max(float(value.float().norm()), 0.05 * largest), name


@on_each_device
@for_each("name", PLAIN)
def test_packs_are_padded_sentences(name: str, device: torch.device) -> None:
    torch.manual_seed(1)
    config = tiny(name)
    none = {field.name: 0.0 for field in fields(config) if "dropout" in field.name}
    model = replace(config, **none).build(VOCABULARY, VOCABULARY, True).to(device)
    packs = some_packs(device)
    outputs = model.decode_packs(*packs), Model.decode_packs(model, *packs)
    torch.testing.assert_close(*outputs, atol=1e-4, rtol=1e-4)
    assert_near(*(gradients(model, output) for output in outputs), 1e-3)


@on_each_device
@pytest.mark.parametrize("name", ["gnmt_small", "rnnsearch_small"])
def test_small_gradients_of_recurrent_layers_in_bf16_do_not_become_zero(
    name: str, device: torch.device
) -> None:
    """In fp16, which autocast would take on a GPU, nothing is between 0 and 6e-8."""
    torch.manual_seed(1)
    config = replace(tiny(name), dropout=0.0)  # type: ignore[call-arg]
    model = config.build(VOCABULARY, VOCABULARY, True).to(device)
    source = some_sources().to(device)

    def unscaled(scale: float) -> dict[str, Tensor]:
        model.zero_grad()
        with autocast("bf16", device):
            loss = -model(source, source).float().log_softmax(-1)[..., 4].sum()
        (scale * loss).backward()
        weights = model.named_parameters()
        return {name: it.grad / scale for name, it in weights if it.grad is not None}

    assert_near(unscaled(2**-24), unscaled(1.0), 1e-3)


@contextmanager
def gpu_attention(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within the context packs use the attention of a GPU, on a CPU without its kernels."""
    if device.type == "cuda":
        yield
        return

    def fits(
        device: torch.device, dtype: torch.dtype, widths: tuple[int, int], dropout: float
    ) -> bool:
        is_fit = widths[0] == widths[1] and widths[0] % 8 == 0 and not dropout
        return is_fit and dtype in (torch.bfloat16, torch.float16)

    monkeypatch.setattr(packed_attention, "has_flash", fits)
    with flash_attention_on_cpus():
        yield


def count_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that gets an entry for each call of a GPU's attention."""
    called: list[str] = []

    def counted(kernel: PackKernel, *arguments: Any) -> Tensor:
        called.append("called")
        return kernel(*arguments)

    for name in ("own_attention", "flash_attention"):
        kernel = partial(counted, getattr(packed_attention, name))
        monkeypatch.setattr(packed_attention, name, kernel)
    return called


@on_each_device
@pytest.mark.parametrize(
    ("lengths", "shared", "precision"),
    [(LENGTHS, False, "bf16"), (LENGTHS, True, "fp16"), (LONG, False, "fp16")],
    ids=["short-heads-bf16", "short-shared-keys-fp16", "long-heads-fp16"],
)
@for_each("width", [8, 16, 32, 64, 96])
def test_the_kernels_for_packs_are_attention_within_each_sentence(
    width: int,
    lengths: list[list[int]],
    shared: bool,
    precision: InferencePrecision,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(1)
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 2 * width, "d_ff": 32, "heads": 2}
    sizes["key_value_heads"] = 1 if shared else 2
    config = replace(architectures["transformer_tiny"], **sizes, dropout=0.0)
    assert isinstance(config, TransformerConfig)
    model = config.build(VOCABULARY, VOCABULARY, True).to(device)
    source, target, packing = some_packs(device, lengths)
    expected = Model.decode_packs(model, source, target, packing)
    expected_gradients = gradients(model, expected)
    called = count_calls(monkeypatch)
    fits, own = packed_attention.fits_own_kernels, []
    monkeypatch.setattr(
        packed_attention,
        "fits_own_kernels",
        lambda *arguments: own.append(fits(*arguments)) or own[-1],
    )
    with gpu_attention(device, monkeypatch), autocast(precision, device):
        output = model.decode_packs(source, target, packing)
        assert len(called) == 3  # two of self-attention, one of the target to the source
        is_own = device.type == "cuda" and lengths is LENGTHS and width in (16, 32, 64)
        assert own == 3 * [is_own]
        found = gradients(model, output)
    error = (output.float() - expected).norm() / expected.norm()
    assert error < 0.02
    assert_near(found, expected_gradients, 0.05)


@on_each_device
@for_each("name", PLAIN)
def test_a_search_finds_what_it_finds_on_a_cpu(name: str, device: torch.device) -> None:
    torch.manual_seed(1)
    model = tiny(name).build(VOCABULARY, VOCABULARY, True).eval()
    assert search(model, CPU) == search(model, device)


def search(model: Model, device: torch.device) -> list[list[list[int]]]:
    """The hypotheses of some sentences, searched for on a device."""
    limits = torch.tensor([12, 9, 7], device=device)
    with torch.inference_mode():
        found = Beam().search(model.to(device), some_sources().to(device), limits)
    return [[list(map(int, it.tokens)) for it in hypotheses] for hypotheses in found]


@pytest.mark.gpu  # tests/test_compiled_step.py is for CPUs
@pytest.mark.parametrize("name", ["transformer_base", "today's"])
def test_a_compiled_step_finds_the_same(name: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(1)
    model = tiny(name).build(VOCABULARY, VOCABULARY, True).eval()
    expected = search(model, CPU)
    compile_steps(model)
    assert search(model, torch.device("cuda")) == expected


@pytest.mark.gpu  # tests/test_recorded_search.py is for CPUs
@pytest.mark.parametrize("strategy", [Greedy(), Beam()], ids=["greedy", "beam"])
def test_recorded_steps_find_the_same(strategy: Strategy) -> None:
    torch.manual_seed(1)
    model = tiny("transformer_base").build(VOCABULARY, VOCABULARY, True).eval().cuda()
    recorded = RecordedSearch(model)
    limits = torch.tensor([50, 9, 7], device="cuda")
    with torch.inference_mode():
        expected = strategy.search(model, some_sources().cuda(), limits)
        for _ in range(2):
            found = recorded.search(strategy, some_sources().cuda(), limits)
            assert [[it.tokens for it in list_] for list_ in found] == [
                [it.tokens for it in list_] for list_ in expected
            ]


# Training


SMALL = {
    **{"encoder_layers": 1, "decoder_layers": 1, "d_model": 32, "d_ff": 64, "heads": 2},
    "dropout": 0.0,
}


def trainer_of(dataset: Path, device: torch.device, **settings: Any) -> Trainer:
    """A trainer of a small Transformer, always with the same first weights."""
    torch.manual_seed(1)
    split = Dataset.open(dataset).split("train")
    config = TrainConfig(**{"tokens_per_update": 150, "precision": "fp32", **settings})
    model = replace(architectures["transformer_tiny"], **SMALL).build(60, 60, True)
    trainer = Trainer(None, config, model.to(device), split, World(place=str(device)))  # type: ignore[arg-type]
    trainer.model.train()
    return trainer


def trained(trainer: Trainer, updates: int = 4) -> dict[str, Tensor]:
    """The weights after some updates; "loss" is that of all target tokens, summed."""
    for update in islice(trainer.loader.updates(1), updates):
        trainer.step(update, 1e-3)
    assert trainer.watch.rest() == []
    weights, _ = trainer.snapshot()
    [sums] = trainer.state.running_stats
    assert sums["updates"] == updates
    return {**weights, "loss": torch.tensor(sums["loss"])}


@on_each_device
def test_training_in_fp32_is_that_of_a_cpu(device: torch.device, dataset: Path) -> None:
    assert_near(trained(trainer_of(dataset, device)), trained(trainer_of(dataset, CPU)), 1e-3)


@pytest.mark.gpu  # tests/test_own_kernels.py interprets the kernel
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_kernel_of_the_loss_computes_what_operators_of_torch_do(
    dtype: torch.dtype, weighted: bool
) -> None:
    most = 1e-6 if dtype == torch.float32 else 0.005
    assert max(interpreted_loss.errors(dtype, weighted, "cuda")) < most


@pytest.mark.gpu  # tests/test_own_kernels.py interprets the kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernels_between_products_compute_what_float64_does(dtype: torch.dtype) -> None:
    most = 1e-5 if dtype == torch.float32 else 0.01
    for width, dropout in ((512, 0.1), (1024, 0.3), (48, 0.0)):
        *errors, share = interpreted_sublayers.add_norm_errors(dtype, width, dropout, "cuda")
        assert max(errors) < most
        assert share < 0.02
    # Without TF32, which cuBLAS takes for products of float32 only if it may.
    assert max(interpreted_sublayers.linear_relu_errors(dtype, 200, "cuda")) < most
    for fp8 in (FORWARD, BACKWARD):
        assert max(interpreted_sublayers.fp8_differences(fp8, "cuda")) == 0.0


@pytest.mark.gpu
def test_a_trial_finds_the_optional_kernels_right(
    dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter(range(100, 0, -1))  # each kernel seems faster
    monkeypatch.setattr(kernel_trial, "time_ordinary_batches", lambda _: float(next(seconds)))
    trainer = trainer_of(dataset, torch.device("cuda"), precision="bf16")
    assert trainer.needs_kernel_trial
    assert kernel_trial.choose_own_kernels(trainer) == [*OPTIONAL]
    found = trained(trainer)
    assert_near(found, trained(trainer_of(dataset, CPU)), 0.05)


@pytest.mark.gpu  # tests/test_fp8.py is for CPUs
@pytest.mark.parametrize("graphs", [False, True])
def test_training_in_fp8_is_that_of_a_cpu(graphs: bool, dataset: Path) -> None:
    settings = {"precision": "fp8", "max_tokens": 120}
    expected = trained(trainer_of(dataset, CPU, **settings), 12)
    found = trained(trainer_of(dataset, torch.device("cuda"), **settings, cuda_graphs=graphs), 12)
    assert_near(found, expected, 0.1)
    assert float(found["loss"]) == pytest.approx(float(expected["loss"]), rel=0.02)


@on_each_device
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_training_in_half_precision_is_near_that_in_fp32(
    precision: str, device: torch.device, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = trained(trainer_of(dataset, CPU))
    called = count_calls(monkeypatch)
    with gpu_attention(device, monkeypatch):
        found = trained(trainer_of(dataset, device, precision=precision))
    assert called
    assert_near(found, expected, 0.05)
    assert float(found["loss"]) == pytest.approx(float(expected["loss"]), rel=0.01)


@pytest.mark.full
@on_each_device
def test_compiled_training_is_that_without_compiling(
    device: torch.device, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch._dynamo.reset()
    if device.type == "cpu":  # run the graphs as they are, which needs no compiler
        monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    expected = trained(trainer_of(dataset, device), 2)
    assert_near(trained(trainer_of(dataset, device, compile=True), 2), expected, 1e-3)


@pytest.mark.full
def test_validation_compiles_nothing(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    trainer = trainer_of(dataset, CPU, compile=True)
    trained(trainer, 3)
    graphs = counters["stats"]["unique_graphs"]
    assert graphs
    batches = [batch for update in islice(trainer.loader.updates(2), 3) for batch in update.batches]
    with trainer.evaluating(), torch.no_grad():
        for batch in batches:
            trainer.model.eval()
            trainer.criterion(batch)
            trainer.model.start(batch.packing.source.pad(batch.source))
    assert counters["stats"]["unique_graphs"] == graphs


@pytest.mark.full
@on_each_device
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_compiled_training_in_half_precision_computes_no_padding(
    precision: str, device: torch.device, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    if device.type == "cpu":
        monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    with gpu_attention(device, monkeypatch):
        expected = trained(trainer_of(dataset, device, precision=precision), 12)
        trainer = trainer_of(dataset, device, precision=precision, compile=True)
        assert trainer.loader.packs
        found = trained(trainer, 12)
    assert_near(found, expected, 0.01)
    assert not counters["graph_break"]
    # Of 12 updates of different shapes; in fp8 the first update has graphs of its own.
    assert counters["stats"]["unique_graphs"] <= (4 if precision == "bf16" else 8)


def record_on_a_cpu(
    run: Callable[[], dict[str, Tensor]], _: object
) -> tuple[Any, dict[str, Tensor]]:
    """In place of a CUDA graph: run the function again, on the same tensors."""
    measured: dict[str, Tensor] = {}
    return lambda: measured.update(run()), measured


@pytest.mark.full
@on_each_device
@pytest.mark.parametrize("compile", [False, True])
def test_recorded_micro_batches_train_as_others_do(
    compile: bool, device: torch.device, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch._dynamo.reset()
    if device.type == "cpu":
        monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
        monkeypatch.setattr(cuda_graphs, "graph_pool", object)
        monkeypatch.setattr(cuda_graphs, "record", record_on_a_cpu)
        monkeypatch.setattr("nmt.training.trainer.check_recordable", lambda *_: None)
    settings = {"precision": "bf16", "max_tokens": 120, "compile": compile}
    with gpu_attention(device, monkeypatch):
        expected = trained(trainer_of(dataset, device, **settings), 12)
        trainer = trainer_of(dataset, device, **settings, cuda_graphs=True)
        found = trained(trainer, 12)
    assert len(trainer.parallel._recordings) in (1, 2, 3)
    assert_near(found, expected, 0.01)
    assert float(found["loss"]) == pytest.approx(float(expected["loss"]), rel=1e-3)


_KEPT: list[object] = []
"""Trainers whose process group has ended: torch deletes it while it holds the GIL, and waits for a
thread of Gloo, which may still need the GIL."""


@contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """A process group of one process, by NCCL on a GPU."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


@on_each_device
@pytest.mark.parametrize("sharding", ["none", "full"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_process_group_of_one_trains_as_a_single_process(
    precision: str, sharding: str, device: torch.device, dataset: Path
) -> None:
    expected = trained(trainer_of(dataset, device, precision=precision))
    with process_group(device):
        trainer = trainer_of(dataset, device, precision=precision)
        if sharding == "full":
            separate, world = trainer.model.fsdp_modules(), World(place=str(device))
            trainer.parallel = FullyShardedDataParallel(trainer.criterion, separate, world)
            trainer.weights = dict(trainer.model.named_parameters())  # the shards
        else:
            trainer.parallel = DataParallel(trainer.criterion)
        trainer.optimizer = trainer.config.optimizer.build(trainer.model)
        _KEPT.append(trainer)
        found = trained(trainer)
    assert_near(found, expected, 1e-3)


@on_each_device
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_resumed_training_has_the_bits_of_one_that_was_never_stopped(
    precision: str, device: torch.device, train: Any, tmp_path: Path
) -> None:
    options = ("--device", device.type, "--precision", precision, "--save-every", 2)
    for name, steps in (("whole", (6,)), ("parts", (2, 4, 6))):
        for updates in steps:
            done = train(tmp_path / name, *options, "--max-updates", updates)
            assert done.status == 0, done.err
    assert_same_checkpoint(tmp_path / "parts/last", tmp_path / "whole/last")


@pytest.mark.gpu
def test_a_resumed_training_with_recorded_micro_batches_has_the_same_bits(
    train: Any, tmp_path: Path
) -> None:
    options = ("--device", "cuda", "--precision", "bf16", "--save-every", 2)
    options += ("--set", "train.cuda_graphs=true")
    for name, steps in (("whole", (8,)), ("parts", (2, 4, 8))):
        for updates in steps:
            done = train(tmp_path / name, *options, "--max-updates", updates)
            assert done.status == 0, done.err
    assert_same_checkpoint(tmp_path / "parts/last", tmp_path / "whole/last")


@on_each_device
def test_a_trained_model_translates_as_on_a_cpu(
    device: torch.device, trained: Path, corpus: Path, nmt: Callable[..., Any]
) -> None:
    texts = []
    for place in ("cpu", device.type):
        flags = ("--model", trained, "--device", place, "--precision", "fp32", "--strategy", "beam")
        done = nmt("translate", corpus / "test.en", *flags)
        assert done.status == 0, done.err
        texts.append(done.out)
    assert texts[0] == texts[1]


@pytest.mark.gpu
def test_torchrun_trains_with_one_process_on_a_gpu(
    recipe: Path, dataset: Path, tmp_path: Path
) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    places = [f"--config={recipe}", f"--data={dataset}", f"--save-dir={tmp_path / 'run'}"]
    command = [*launcher, "-m", "nmt", "train", *places, "--device=cuda"]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
