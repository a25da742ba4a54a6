"""The recipe, the commands and the model of the README and its guides work as printed there."""

from __future__ import annotations

import importlib
import json
import math
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.nn import functional as F

from nmt.data.dataset import Dataset
from nmt.data.vocabulary import BOS, EOS, PAD
from nmt.evaluation.metrics import metrics
from nmt.io.lines import zstd
from nmt.models import ModelConfig, architectures
from nmt.models.layers.attention import AttentionInput
from nmt.models.transformer.patterns import patterns
from nmt.recipe.config import build
from nmt.search import strategies
from nmt.training.losses.token import losses
from nmt.training.optim.optimizers import optimizers
from nmt.training.optim.schedules import schedules

ROOT = Path(__file__).parents[1]
Command = Callable[..., Any]


def blocks(language: str, document: str = "README.md") -> list[str]:
    """The blocks of a document in a language, in order."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


(RECIPE,) = blocks("yaml")
(LARGE_RECIPE,) = blocks("yaml", "docs/guides/large-corpora.md")
PLUGIN_RECIPES = {
    values["plugins"][0]: values
    for values in map(yaml.safe_load, blocks("yaml", "docs/guides/extending.md"))
}
PLUGINS = dict(
    zip(
        (
            *("mymodel", "rezero", "myattention", "myloss", "myoptimizer", "myschedule"),
            *("mymetric", "mysearch"),
        ),
        blocks("python", "docs/guides/extending.md"),
        strict=True,
    )
)
EXAMPLE, MISTAKE = blocks("console")


def nmt_commands(console: str) -> list[str]:
    """What is typed at the prompts of a console."""
    return re.findall(r"^\$ nmt (.*)$", console, re.M)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, write_numbers: Callable[..., None]) -> Path:
    """A directory with a small corpus, the README's model, and its recipe cut short."""
    path = tmp_path_factory.mktemp("readme")
    for seed, (split, pairs) in enumerate({"train": 200, "dev": 8, "valid": 8, "test": 8}.items()):
        write_numbers(path / "corpus" / split, pairs, seed)
    recipe = yaml.safe_load(RECIPE)
    recipe["preprocess"].update(vocab_size=60, byte_fallback=False)
    recipe["train"].update(tokens_per_update=150, max_updates=6, valid_every=6, save_every=1)
    (path / "nmt.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    for module, code in PLUGINS.items():
        (path / f"{module}.py").write_text(code, encoding="utf-8")
    for module, values in PLUGIN_RECIPES.items():
        train = {**recipe["train"], "schedule": {"lr": 0.006, "warmup_updates": 200}}  # may go on
        train |= {**values.get("train", {}), "save_dir": f"runs/{module}"}
        tiny = {"arch": "transformer_tiny"}
        changed = yaml.safe_dump({**recipe, "model": tiny, **values, "train": train})
        (path / f"{module}.yaml").write_text(changed, encoding="utf-8")
    return path


@pytest.fixture
def here(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory, as the current one; what the plugins register is forgotten after."""
    monkeypatch.chdir(directory)
    monkeypatch.syspath_prepend(str(directory))
    registries = (architectures, patterns, losses, optimizers, schedules, metrics, strategies)
    for registry in registries:
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    for module in PLUGINS:
        monkeypatch.delitem(sys.modules, module, raising=False)
    return directory


def run(line: str, nmt: Command) -> str:
    """What a command line gives on stdout, with ``<`` and ``>`` as a shell has them."""
    words = shlex.split(line)
    places = {sign: words[words.index(sign) + 1] for sign in "<>" if sign in words}
    words = [word for word in words if word not in {*places, *places.values()}]
    stdin = Path(places["<"]) if "<" in places else None
    done = nmt(*words, stdin=stdin)
    assert done.status == 0, done.err
    if ">" in places:
        Path(places[">"]).write_text(done.out, encoding="utf-8")
    return str(done.out)


def test_the_five_commands_run_and_print_what_is_shown(here: Path, nmt: Command) -> None:
    lines = nmt_commands(EXAMPLE)
    names = ["preprocess", "train", "average-checkpoints", "translate", "score"]
    assert [line.split()[0] for line in lines] == names
    preprocessed, trained, averaged, translated, scored = [run(line, nmt) for line in lines]
    assert preprocessed == "data-bin\n"
    assert trained == "checkpoints\n"
    assert averaged == "averaged\n"
    assert translated.count("\n") == 8
    assert re.fullmatch(r"bleu = \d.*\|version:\S+\nchrf = \d.*\|version:\S+\n", scored, re.S)
    for shown in (preprocessed, trained, averaged):
        assert f"\n{shown}" in EXAMPLE


def test_the_recipe_for_large_corpora_runs(here: Path, nmt: Command, write_numbers: Any) -> None:
    write_numbers(here / "crawl", 50, seed=7)
    sides = [Path(f"corpus/train.{side}").read_text().splitlines() for side in ("en", "de")]
    rows = "".join(f"{s}\t{t}\n" for s, t in zip(*sides, strict=True))
    Path("europarl.tsv.zst").write_bytes(zstd.compress(rows.encode()))
    large = yaml.safe_load(LARGE_RECIPE)["preprocess"]
    recipe = yaml.safe_load(Path("nmt.yaml").read_text(encoding="utf-8"))
    Path("large.yaml").write_text(yaml.safe_dump({"preprocess": recipe["preprocess"] | large}))
    for shard in ("1/2", "2/2"):
        run(f"preprocess --config large.yaml --output-dir large --shard {shard}", nmt)
    train = Dataset.open(Path("large")).manifest.splits["train"]
    assert 100 < train.pairs < 230
    assert {"held_out", "duplicates", "not_sampled"} <= {*train.dropped}


def test_the_mistake_that_is_shown_costs_the_line_that_is_shown(here: Path, nmt: Command) -> None:
    (line,) = nmt_commands(MISTAKE)
    done = nmt(*shlex.split(line))
    assert done.status == 1
    assert f"$ nmt {line}\n{done.err}" == MISTAKE


@pytest.mark.parametrize("module", PLUGIN_RECIPES)
def test_what_a_plugin_trains_resumes_is_averaged_and_translates(
    here: Path, nmt: Command, module: str
) -> None:
    if not Path("data-bin").exists():
        run("preprocess", nmt)
    trained = f"runs/{module}"
    run(f"train --config {module}.yaml --max-updates 3", nmt)
    run(f"train --config {module}.yaml", nmt)
    run(f"train --config {module}.yaml --save-dir {trained}.whole", nmt)
    resumed, whole = (
        Path(path, "last/model.safetensors").read_bytes() for path in (trained, f"{trained}.whole")
    )
    assert resumed == whole
    run(f"average-checkpoints --run {trained} --last 3", nmt)
    for consent in (f"--plugin {module} --strategy beam", "--trust-plugins --strategy greedy"):
        line = f"translate {consent} --model {trained}/averaged corpus/test.en"
        assert run(line, nmt).count("\n") == 8


@pytest.mark.parametrize("module", ["mymodel", "rezero", "myattention"])
def test_the_model_keeps_the_law_of_models(here: Path, module: str) -> None:
    importlib.import_module(module)
    torch.manual_seed(1)
    config = build(ModelConfig, PLUGIN_RECIPES[module]["model"], "model")  # type: ignore[type-abstract]
    model = config.build(23, 23, True).eval()
    for weight_name, weight in model.named_parameters():
        if weight_name.endswith(".alpha"):
            torch.nn.init.constant_(weight, 0.1)  # so that sublayers count
    source = torch.tensor([[5, 6, 7, EOS], [8, EOS, PAD, PAD]])
    target = torch.tensor([[BOS, 9, 10, 11], [BOS, 12, 13, 14]])
    expected = model(source, target)
    state = model.start(source)
    torch.testing.assert_close(model.step(target[:, :1], state)[:, 0], expected[:, 0])
    state.select(torch.tensor([[0, 0], [1, 1]]))  # two rows each
    torch.testing.assert_close(
        model.step(target[:, 1:2].expand(2, 2), state), expected[:, None, 1].expand(2, 2, 23)
    )
    state.select(torch.tensor([[3, 2]]))  # of the second sentence, swapped
    for at in (2, 3):
        logits = model.step(target[1:, at : at + 1].expand(1, 2), state)
        torch.testing.assert_close(logits, expected[1:, None, at].expand(1, 2, 23))
    torch.testing.assert_close(model(source[1:, :2], target[1:]), expected[1:])


def test_each_residual_of_the_transformer_is_replaced(here: Path) -> None:
    importlib.import_module("rezero")
    model = architectures["rezero"].build(23, 23, True)
    alphas = [name for name, _ in model.named_parameters() if name.endswith(".alpha")]
    assert len(alphas) == 6 * 2 + 6 * 3
    assert not any(isinstance(part, torch.nn.LayerNorm) for part in model.modules())


def test_the_attention_is_a_softmax_of_scaled_cosines(here: Path) -> None:
    attend = importlib.import_module("myattention").CosineAttention()
    torch.manual_seed(1)
    queries, keys, values = torch.randn(3, 1, 2, 4, 5)
    found = attend(AttentionInput(queries, keys, values, causal=True))
    for head, row in product(range(2), range(4)):
        near = [
            math.exp(10 * F.cosine_similarity(queries[0, head, row], keys[0, head, column], 0))
            for column in range(row + 1)
        ]
        mixed = sum(
            weight / sum(near) * value
            for weight, value in zip(near, values[0, head, : row + 1], strict=True)
        )
        torch.testing.assert_close(found[0, head, row], mixed)


def test_the_optimizer_steps_by_the_signs_of_the_momentum(here: Path) -> None:
    importlib.import_module("myoptimizer")
    layer = torch.nn.Linear(1, 1, bias=False)
    optimizer = optimizers["lion"].build(layer)
    weight, momentum = layer.weight.item(), 0.0
    optimizer.param_groups[0]["lr"] = 0.1
    for gradient, skipped in ((2.0, 0.0), (-0.5, 0.0), (math.nan, 1.0), (-30.0, 0.0)):
        layer.weight.grad = torch.tensor([[gradient]])
        optimizer.found_inf = torch.tensor(skipped)
        optimizer.step()
        if not skipped:
            weight -= math.copysign(0.1, 0.9 * momentum + 0.1 * gradient)
            momentum = 0.99 * momentum + 0.01 * gradient
        assert layer.weight.item() == pytest.approx(weight)


def test_the_loss_is_the_penalised_cross_entropy_of_each_token(here: Path) -> None:
    importlib.import_module("myloss")
    loss = replace(losses["confidence_penalty"], beta=0.25)
    torch.manual_seed(1)
    decoder_output, output = torch.randn(4, 8, requires_grad=True), torch.nn.Linear(8, 11)
    labels, weights = torch.tensor([4, 9, 5, PAD]), torch.tensor([1.0, 0.5, 2.0, 0.0])
    probabilities = output(decoder_output).softmax(-1).tolist()
    costs = [-math.log(row[label]) for row, label in zip(probabilities, labels, strict=True)]
    entropies = [-sum(p * math.log(p) for p in row) for row in probabilities]
    total, nll = loss(decoder_output, output, labels, weights)
    expected = sum(
        weight * (cost - 0.25 * entropy)
        for weight, cost, entropy in zip(weights.tolist(), costs, entropies, strict=True)
    )
    assert total.item() == pytest.approx(expected, rel=1e-5)
    assert nll.item() == pytest.approx(sum(costs[:3]), rel=1e-5)
    assert (total.requires_grad, nll.requires_grad) == (True, False)
    plain, nll = replace(loss, beta=0.0)(decoder_output[:3], output, labels[:3])
    assert plain.item() == nll.item() == pytest.approx(sum(costs[:3]), rel=1e-5)
    (by_mine,) = torch.autograd.grad(plain, decoder_output)
    cross_entropy, _ = losses["cross_entropy"](decoder_output[:3], output, labels[:3])
    (by_ours,) = torch.autograd.grad(cross_entropy, decoder_output)
    torch.testing.assert_close(by_mine, by_ours)


def test_the_schedule_goes_down_and_up(here: Path) -> None:
    importlib.import_module("myschedule")
    schedule = replace(schedules["triangular"], lr=1.0, warmup_updates=10, cycle_updates=20)
    rates = [schedule.rate(update, 512, 100) for update in (5, 10, 15, 20, 25, 30, 40)]
    assert rates == pytest.approx([0.5, 1.0, 0.55, 0.1, 0.55, 1.0, 0.1])


def test_the_metric_scores_and_resamples(here: Path, nmt: Command) -> None:
    lines = Path("corpus/test.de").read_text(encoding="utf-8").splitlines()
    Path("output.de").write_text("".join(f"{line}\n" for line in [*lines[:-2], "", ""]))
    scored = "score --plugin mymetric --metric exact --reference corpus/test.de output.de"
    assert run(scored, nmt) == "exact = 75.00 (6 of 8 lines) version:1\n"
    assert "75.00" in run(f"{scored} corpus/test.de --paired bs --seed 1 --samples 100", nmt)


def test_the_search_strategy_searches(here: Path, nmt: Command) -> None:
    if not Path("checkpoints").exists():
        run("preprocess", nmt)
        run("train", nmt)
    searched = "translate --plugin mysearch --strategy no_repeat --json corpus/test.en"
    for line in run(searched, nmt).splitlines():
        best = json.loads(line)
        tokens = best["tokens"]
        assert tokens
        assert all(one != other for one, other in pairwise(tokens))
        total = sum(best["token_log_probabilities"])
        assert best["log_probability"] == pytest.approx(total, rel=1e-3)
