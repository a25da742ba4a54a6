"""Parts put on a trained model: no effect at first, small checkpoints, merged for translation."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from for_each import for_each
from tiny_models import ADAPTED, VOCABULARY, some_sources, tiny, tiny_model
from torch import nn
from trained_runs import assert_same_checkpoint

from nmt.errors import NmtError
from nmt.models import ModelConfig, architectures
from nmt.models.adaptation import Adapters, LoRA, adaptation_weights
from nmt.recipe.config import build, dump
from nmt.runs import Checkpoint, Run, load_model, weights_of

SETTINGS = {
    "lora": "model.adaptation={name: lora, rank: 2}",
    "adapters": "model.adaptation={name: adapters, d_bottleneck: 4}",
}


@pytest.fixture(scope="module")
def adapt(train: Any, trained: Path) -> Callable[..., Any]:
    """Runs ``nmt train`` with an adaptation, from the trained run."""

    def run(save_dir: Path, name: str, *arguments: object) -> Any:
        return train(save_dir, "--init-from", trained, "--set", SETTINGS[name], *arguments)

    return run


@pytest.fixture(scope="module", params=["lora", "adapters"])
def adapted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, adapt: Any
) -> Path:
    """A run with an adaptation, and an average of the weights; not to be written to."""
    run = tmp_path_factory.mktemp("adapted") / str(request.param)
    done = adapt(run, request.param, "--set", "train.ema_decay=0.9")
    assert done.status == 0, done.err
    return run


def translated(nmt: Any, run: Path, corpus: Path, *arguments: object) -> str:
    done = nmt("translate", "--model", run, *arguments, stdin=corpus / "test.en")
    assert done.status == 0, done.err
    return str(done.out)


@pytest.mark.parametrize("name", list(ADAPTED))
@torch.no_grad()
def test_parts_have_no_effect_before_the_first_update(name: str) -> None:
    models = []
    for part in ("build", "build_adapted"):
        torch.manual_seed(1)
        models.append(getattr(tiny(name), part)(VOCABULARY, VOCABULARY, True).eval())
    plain, adapted = models
    source = some_sources()
    assert torch.equal(adapted(source, source), plain(source, source))
    parts = adaptation_weights(adapted)
    assert weights_of(adapted).keys() == {*weights_of(plain), *parts}
    assert parts
    assert not adaptation_weights(plain)


@pytest.mark.parametrize("name", [name for name in ADAPTED if "lora" in name])
@torch.no_grad()
def test_lora_merges_into_the_weights_of_a_plain_model(name: str) -> None:
    model, source = tiny_model(name), some_sources()
    expected, before = model(source, source), weights_of(model)
    adaptation = tiny(name).adaptation
    assert adaptation is not None
    assert adaptation.merge_into(model) is None
    torch.testing.assert_close(model(source, source), expected, atol=1e-5, rtol=1e-5)
    plain = tiny(name).build(VOCABULARY, VOCABULARY, True)
    assert weights_of(model).keys() == weights_of(plain).keys()
    types = [type(module).__name__ for module in model.modules()]
    assert types == [type(module).__name__ for module in plain.modules()]
    assert before.keys() > weights_of(model).keys()


@torch.no_grad()
def test_the_product_is_scaled_by_alpha_over_rank() -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    matrix = model[0].weight.clone()
    LoRA(rank=4, alpha=2.0).put_on(model)
    model[0].part.up.fill_(1.0)
    model[0].part.down.copy_(torch.arange(12.0).view(4, 3))
    LoRA().merge_into(model)
    torch.testing.assert_close(model[0].weight - matrix, torch.tensor([[9.0, 11.0, 13.0]] * 2))


def test_lora_adapts_the_layers_of_its_targets() -> None:
    model = tiny("transformer_base").build(VOCABULARY, VOCABULARY, True)
    LoRA(rank=1, targets=("decoder.*.cross.*", "encoder.1.feed_forward.inner")).put_on(model)
    layers = {name.rpartition(".part.")[0] for name in adaptation_weights(model)}
    cross = [f"decoder.{layer}.cross" for layer in range(2)]
    parts = ("project_query", "project_memory", "output")
    expected = {f"{layer}.{part}" for layer in cross for part in parts}
    assert layers == {*expected, "encoder.1.feed_forward.inner"}


def test_no_adaptation_touches_the_output_layer() -> None:
    model = tiny("transformer_base").build(VOCABULARY, VOCABULARY, True)
    LoRA().put_on(model)
    assert type(model.output) is nn.Linear


def test_what_cannot_be_adapted_is_refused() -> None:
    model = tiny("rnnsearch").build(VOCABULARY, VOCABULARY, True)
    with pytest.raises(NmtError) as error:
        Adapters().put_on(model)
    assert str(error.value) == (
        "model.adaptation: adapters follow the layers of a Transformer, and RNNsearch has "
        "none; take lora"
    )
    with pytest.raises(NmtError, match=r"targets: no linear layer matches 'initia'; .*'initial'"):
        LoRA(targets=("initia",)).put_on(model)
    for values in ({"name": "lora", "rank": 0}, {"name": "adapters", "d_bottleneck": 0}):
        with pytest.raises(NmtError, match="must be at least 1, not 0"):
            build(
                type(architectures["rnnsearch"]),
                {"adaptation": values},
                "model",
                architectures["rnnsearch"],
            )


@for_each(
    ("values", "message"),
    [
        ({"targets": []}, "targets must have a pattern, or nothing is trained"),
        ({"alpha": "inf"}, "alpha must be finite and not 0, is inf"),
        ({"alpha": 0}, "alpha must be finite and not 0, is 0.0"),
    ],
)
def test_settings_that_train_nothing_are_refused(values: dict[str, Any], message: str) -> None:
    adaptation = {"name": "lora", **values}
    with pytest.raises(NmtError, match=f"model.adaptation: {message}"):
        build(ModelConfig, {"arch": "transformer_tiny", "adaptation": adaptation}, "model")


def test_checkpoints_hold_the_parts_alone(adapted: Path, trained: Path) -> None:
    checkpoint, base = Checkpoint.open(adapted / "last"), Checkpoint.open(trained / "best")
    weights, optimizer = checkpoint.weights(), checkpoint.optimizer()
    assert all(".part." in name or ".adapter." in name for name in weights)
    assert {name.rpartition("/")[0] for name in optimizer} == weights.keys()
    assert any(weight.any() for name, weight in weights.items() if ".up" in name or "outer" in name)
    assert not weights.keys() & base.weights().keys()
    description = json.loads((adapted / "base.json").read_text())
    assert description["weights"] == base.files["model.safetensors"].sha256
    assert (adapted / description["checkpoint"]).resolve() == base.path.resolve()


def test_a_resumed_adaptation_ends_in_the_same_bits(
    adapted: Path, adapt: Any, train: Any, tmp_path: Path
) -> None:
    settings = ("--set", "train.ema_decay=0.9")
    assert adapt(tmp_path / "run", adapted.name, *settings, "--max-updates", 3).status == 0
    # Not asked for any more: the run knows its base.
    done = train(tmp_path / "run", "--set", SETTINGS[adapted.name], *settings)
    assert done.status == 0, done.err
    assert "resumed after update 3" in done.err
    assert_same_checkpoint(tmp_path / "run" / "last", adapted / "last")


def test_an_adapted_run_validates_what_it_translates_with(adapted: Path, trained: Path) -> None:
    base, loaded = load_model(trained), load_model(adapted)
    source = some_sources()
    with torch.no_grad():
        assert not torch.equal(loaded.model(source, source), base.model(source, source))
    is_lora = adapted.name == "lora"
    assert (loaded.recipe["model"]["adaptation"] is None) == is_lora
    assert (weights_of(loaded.model).keys() == weights_of(base.model).keys()) == is_lora


def test_translations_are_those_of_the_base_before_anything_is_learned(
    adapt: Any, nmt: Any, trained: Path, corpus: Path, tmp_path: Path
) -> None:
    assert adapt(tmp_path / "run", "lora", "--max-updates", 1, "--lr", 1e-30).status == 0
    assert translated(nmt, tmp_path / "run", corpus) == translated(nmt, trained, corpus)


def test_average_checkpoints_makes_a_complete_run(
    adapted: Path, nmt: Any, corpus: Path, tmp_path: Path
) -> None:
    merged = tmp_path / "merged"
    done = nmt("average-checkpoints", adapted / "best", "--output", merged)
    assert (done.status, done.out) == (0, f"{merged}\n"), done.err
    run = Run.open(merged)
    remaining = None if adapted.name == "lora" else dump(Adapters(name="adapters", d_bottleneck=4))
    assert run.recipe["model"]["adaptation"] == remaining
    assert not (merged / "base.json").exists()
    assert list(run.problems()) == []
    assert translated(nmt, merged, corpus) == translated(nmt, adapted, corpus)


def test_adaptations_are_merged_before_they_are_averaged(
    adapted: Path, adapt: Any, nmt: Any, tmp_path: Path
) -> None:
    other, output = tmp_path / "other", tmp_path / "averaged"
    assert adapt(other, adapted.name, "--set", "train.seed=7").status == 0
    done = nmt("average-checkpoints", adapted / "last", other / "last", "--output", output)
    assert (done.status, done.err) == (
        1,
        f"nmt: error: {adapted} and {other}: an adaptation is averaged with its own run alone; "
        "merge each with `nmt average-checkpoints`, and average the merged runs\n",
    )
    merged = []
    for run in (adapted, other):
        merged.append(f"--run={tmp_path / 'merged' / run.name}")
        made = nmt("average-checkpoints", run / "last", "--output", merged[-1].split("=")[1])
        assert made.status == 0, made.err
    done = nmt("average-checkpoints", *merged, "--last", 1, "--output", output)
    assert done.status == 0, done.err


def test_a_merged_run_can_be_adapted_further(
    adapted: Path, nmt: Any, train: Any, tmp_path: Path
) -> None:
    done = train(tmp_path / "run", "--init-from", adapted, "--set", SETTINGS[adapted.name])
    best = (adapted / "best").resolve()
    merge = f"nmt average-checkpoints {best} --output merged"
    assert (done.status, done.err) == (
        1,
        f"nmt: error: --init-from {adapted}: an adaptation itself; merge it with `{merge}`, and "
        "adapt that run\n",
    )
    assert nmt(*merge.split()[1:-1], tmp_path / "merged").status == 0
    again = ("--init-from", tmp_path / "merged", "--set", SETTINGS[adapted.name])
    assert train(tmp_path / "run", *again, "--max-updates", 1, "--lr", 1e-30).status == 0
    weights, merged = (weights_of(load_model(tmp_path / it).model) for it in ("run", "merged"))
    for name, weight in merged.items():
        torch.testing.assert_close(weights[name], weight)


@pytest.mark.parametrize(
    "other", [SETTINGS["lora"], "model.adaptation={name: adapters, d_bottleneck: 5}"]
)
def test_a_run_with_adapters_takes_no_other_adaptation(
    adapt: Any, nmt: Any, train: Any, tmp_path: Path, other: str
) -> None:
    few = ("--max-updates", 1, "--warmup-updates", 1)
    assert adapt(tmp_path / "first", "adapters", *few).status == 0
    merged = tmp_path / "merged"
    merge = ("--run", tmp_path / "first", "--last", 1, "--output", merged)
    assert nmt("average-checkpoints", *merge).status == 0
    done = train(tmp_path / "run", "--init-from", merged, "--set", other, *few)
    assert (done.status, done.err) == (
        1,
        f"nmt: error: --init-from {merged}: it has adapters already; leave model.adaptation out to "
        "train them further, or begin with the run that they were put on\n",
    )
    assert train(tmp_path / "run", "--init-from", merged, *few).status == 0


def test_the_base_must_be_there_and_the_same(
    adapted: Path, nmt: Any, train: Any, trained: Path, corpus: Path, tmp_path: Path
) -> None:
    run, name = tmp_path / "runs" / "run", json.loads((adapted / "base.json").read_text())
    shutil.copytree(adapted, run, symlinks=True)
    base = run / name["checkpoint"]
    missing = (
        f"{base}: missing, but {run} adapts this checkpoint; "
        f"put the base run of {run} there, or a link to it"
    )
    shutil.rmtree(run / "exports", ignore_errors=True)  # an export needs no base
    done = nmt("translate", "--model", run, "--engine", "nmt", stdin=corpus / "test.en")
    assert (done.status, done.err) == (1, f"nmt: error: {missing}\n")
    done = train(run, "--set", SETTINGS[adapted.name], "--set", "train.ema_decay=0.9")
    assert (done.status, done.err) == (1, f"nmt: error: {missing}\n")
    assert missing in list(Run.open(run).problems())
    base.parent.parent.mkdir(parents=True, exist_ok=True)
    base.parent.symlink_to(trained.resolve())
    assert translated(nmt, run, corpus) == translated(nmt, adapted, corpus)
    base.parent.unlink()
    base.parent.mkdir()
    base.symlink_to((trained / "update_0000002").resolve())
    done = nmt("translate", "--model", run, "--engine", "nmt", stdin=corpus / "test.en")
    assert done.status == 1
    assert f"{base}: not the checkpoint that {run} adapts" in done.err


def test_an_adaptation_needs_a_trained_model_of_the_same_vocabulary(
    train: Any, nmt: Any, trained: Path, recipe: Path, corpus: Path, tmp_path: Path
) -> None:
    done = train(tmp_path / "run", "--set", SETTINGS["lora"])
    assert (done.status, done.err) == (
        1,
        "nmt: error: model.adaptation adapts a trained model: give it with --init-from\n",
    )
    prefixes = [f"--{split}={corpus / split}" for split in ("train", "valid")]
    other = ("--output-dir", tmp_path / "other", "--vocab-size", 40)
    assert nmt("preprocess", "--config", recipe, *prefixes, *other).status == 0
    given = ("--data", tmp_path / "other", "--init-from", trained)
    done = train(tmp_path / "run", *given, "--set", SETTINGS["lora"])
    assert (done.status, done.err) == (
        1,
        f"nmt: error: --init-from {trained}: its vocabulary differs from the dataset's, but an "
        f"adaptation needs the same; preprocess the text again with --subword-model {trained}\n",
    )
    deeper = ("--init-from", trained, "--set", SETTINGS["lora"], "--set", "model.encoder_layers=2")
    done = train(tmp_path / "run", *deeper)
    assert done.status == 1
    assert done.err.endswith("; give the model section of its recipe.yaml\n")
    # The next training there needs no base.
    assert train(tmp_path / "run", "--max-updates", 1, "--warmup-updates", 1).status == 0
    assert not (tmp_path / "run" / "base.json").exists()


def test_a_run_whose_base_is_not_known_is_not_resumed(
    adapted: Path, train: Any, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(adapted, tmp_path / "run", symlinks=True))
    (run / "base.json").unlink()
    done = train(run, "--set", SETTINGS[adapted.name], "--set", "train.ema_decay=0.9")
    assert (done.status, done.err) == (1, f"nmt: error: {run / 'base.json'}: missing; restore it\n")


@pytest.mark.full
def test_exports_take_merged_weights_and_refuse_adapters(
    adapted: Path, nmt: Any, tmp_path: Path
) -> None:
    done = nmt("export", "--model", adapted, "--format", "onnx", "--output", tmp_path / "export")
    if adapted.name == "lora":
        assert done.status == 0, done.err
    else:
        assert (done.status, done.err) == (
            1,
            f"nmt: error: {adapted}: no other engine has adapters; translate with nmt itself, or "
            "train with lora, which an export merges into the weights\n",
        )


def test_inspect_names_the_base(adapted: Path, nmt: Any) -> None:
    done = nmt("inspect", adapted)
    path = json.loads((adapted / "base.json").read_text())["checkpoint"]
    assert f"{adapted.name} put on {path}" in done.out.splitlines()
    assert json.loads(nmt("inspect", adapted, "--json").out)["recipe"]["model"]["adaptation"]
