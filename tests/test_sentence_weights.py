"""Weights of training pairs in the loss: the column of the dataset, the batches, the loss."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from for_each import for_each
from torch import Tensor, nn
from trained_runs import assert_same_checkpoint, records

from nmt.data.batches import make_batch
from nmt.data.dataset import Dataset
from nmt.data.manifest import Manifest, fingerprint_of
from nmt.data.vocabulary import PAD
from nmt.errors import NmtError
from nmt.io.documents import FileFacts
from nmt.preprocess.annotations import WEIGHTS
from nmt.preprocess.corpus import Chunk
from nmt.preprocess.links import read_weights
from nmt.subwords.subwords import Subwords
from nmt.training.losses.token import TokenLoss, losses

Command = Callable[..., Any]

TOKEN_LOSSES = [name for name in losses if isinstance(losses[name], TokenLoss)]


@for_each("name", TOKEN_LOSSES)
def test_a_weight_multiplies_the_loss_of_its_token(name: str) -> None:
    loss = losses[name]
    assert isinstance(loss, TokenLoss)
    torch.manual_seed(1)
    output, labels = nn.Linear(6, 11), torch.tensor([3, 5, 9, 4])
    states = torch.randn(loss.passes, 4, 6)
    weights = torch.tensor([0.5, 0.0, 3.0, 1.0])

    def cost(tokens: list[int], of_tokens: Tensor | None) -> list[Tensor]:
        rows = states.clone().requires_grad_()
        output.zero_grad()
        total, nll = loss(rows[:, tokens].flatten(0, 1), output, labels[tokens], of_tokens)
        total.backward()
        assert isinstance(rows.grad, Tensor)
        return [total.detach(), rows.grad, *(weight.grad for weight in output.parameters()), nll]

    together = cost([0, 1, 2, 3], weights)
    apart = [[float(w) * part for part in cost([n], None)] for n, w in enumerate(weights)]
    for whole, *parts in zip(together[:-1], *(part[:-1] for part in apart), strict=True):
        assert torch.allclose(whole, torch.stack(parts).sum(0), atol=1e-5)
    assert torch.equal(together[-1], cost([0, 1, 2, 3], None)[-1])  # the likelihood has no weights


@pytest.fixture(scope="module")
def weighed(
    tmp_path_factory: pytest.TempPathFactory, nmt: Command, recipe: Path, corpus: Path
) -> Path:
    """A dataset of a bitext beside its weights, and of a file with columns."""
    here = tmp_path_factory.mktemp("weighed")
    sides = [(corpus / f"train.{language}").read_text().splitlines() for language in ("en", "de")]
    for language, side in zip(("en", "de"), sides, strict=True):
        (here / f"first.{language}").write_text("".join(f"{line}\n" for line in side[:100]))
    (here / "first.weights").write_text("".join(f"{n / 4}\n" for n in range(100)))
    rows = zip(*(side[100:] for side in sides), strict=True)
    columns = (f"{one}\t{two}\t{n}\n" for n, (one, two) in enumerate(rows))
    (here / "second.tsv").write_text("".join(columns))
    done = preprocess(nmt, recipe, corpus, here, f"[{here}/first, {here}/second.tsv]", "data")
    assert done.status == 0, done.err
    return here


def preprocess(
    nmt: Command, recipe: Path, corpus: Path, here: Path, train: str, name: str, *more: object
) -> Any:
    keys = ("--set", f"preprocess.train={train}", "--set", "preprocess.sentence_weights=true")
    places = (f"--valid={corpus / 'valid'}", "--output-dir", here / name)
    return nmt("preprocess", "--config", recipe, *keys, *places, *more)


def test_every_pair_keeps_its_weight(
    weighed: Path, nmt: Command, recipe: Path, corpus: Path
) -> None:
    split = Dataset.open(weighed / "data").split("train")
    expected = [n / 4 for n in range(100)] + [*map(float, range(100))]
    assert split.weights is not None
    assert split.weights.tolist() == expected
    assert Dataset.open(weighed / "data").split("valid").weights is None
    train = f"[{{path: {weighed}/first, weight: 2}}, {{path: {weighed}/second.tsv, max_pairs: 40}}]"
    for shard in (1, 2):
        more = ("--shard", f"{shard}/2", "--clean", "duplicates")
        done = preprocess(nmt, recipe, corpus, weighed, train, "sampled", *more)
        assert done.status == 0, done.err
    dataset = Dataset.open(weighed / "sampled")
    subwords, split = Subwords.from_dataset(dataset), dataset.split("train")
    before = Subwords.from_dataset(Dataset.open(weighed / "data"))
    whole = Dataset.open(weighed / "data").split("train")
    known: dict[str, set[float]] = {}
    for index, weight in enumerate(expected):
        [text] = before.decode_source([whole.source(index).tolist()])
        known.setdefault(text, set()).add(weight)
    assert split.weights is not None
    for index, weight in enumerate(split.weights.tolist()):
        assert weight in known[subwords.decode_source([split.source(index).tolist()])[0]]


def test_the_tokens_of_a_batch_have_the_weights_of_their_pairs(weighed: Path) -> None:
    split = Dataset.open(weighed / "data").split("train")
    indices = np.array([7, 101, 4, 130])
    batch = make_batch(split, indices, weights=split.weights)
    assert batch.weights is not None
    target = split.padded("target", indices)
    expected = np.broadcast_to(np.array([[1.75], [1.0], [1.0], [30.0]]), target.shape)
    assert batch.weights.tolist() == expected[target != PAD].tolist()
    assert batch.repeated(2).weights is batch.weights
    assert batch.to(torch.device("meta")).weights.device.type == "meta"  # type: ignore[union-attr]
    assert make_batch(split, np.array([101, 4]), weights=split.weights).weights is None


def test_weights_of_one_train_the_same_bits_and_others_do_not(
    tmp_path: Path, nmt: Command, recipe: Path, corpus: Path
) -> None:
    names = {"plain": None, "ones": "1\n" * 200, "others": "1\n0.1\n" * 100}
    for name, weights in names.items():
        for language in ("en", "de"):
            text = (corpus / f"train.{language}").read_text()
            (tmp_path / f"{name}.{language}").write_text(text)
        if weights is None:
            places = (f"--train={corpus / 'train'}", f"--valid={corpus / 'valid'}")
            done = nmt("preprocess", "--config", recipe, *places, "--output-dir", tmp_path / "p")
        else:
            (tmp_path / f"{name}.weights").write_text(weights)
            train = f"[{tmp_path / name}]"
            done = preprocess(nmt, recipe, corpus, tmp_path, train, name[0])
        assert done.status == 0, done.err
        places = ("--data", tmp_path / name[0], "--save-dir", tmp_path / f"run-{name}")
        assert nmt("train", "--config", recipe, *places).status == 0
    assert_same_checkpoint(tmp_path / "run-ones" / "last", tmp_path / "run-plain" / "last")
    plain, ones, others = (records(tmp_path / f"run-{name}") for name in names)
    assert ones == plain != others
    assert (
        "sentence_weights" not in json.loads((tmp_path / "p/manifest.json").read_text())["recipe"]
    )


def test_weights_are_numbers_from_zero_to_a_million() -> None:
    def read(*weights: str) -> list[float]:
        lines = ["x"] * len(weights)
        chunk = Chunk(lines, lines, 7, "", {WEIGHTS: [*weights]}, {WEIGHTS: "a.weights"})
        return list(read_weights(chunk).tolist())

    assert read("0", " 0.5 ", "1e6") == [0.0, 0.5, 1e6]
    for wrong in ("1000001", "inf", "-1", ""):
        with pytest.raises(
            NmtError, match=f"a.weights: line 8: '{wrong}' is not a weight; write a"
        ):
            read("1", wrong, "nan")


@pytest.mark.parametrize(
    ("weights", "problem"),
    [
        ("1\n" * 3, "first.weights has 3; line n must hold the weight of pair n"),
        ("1\n" * 50 + "much\n" + "1\n" * 49, "first.weights: line 51: 'much' is not a weight"),
        ("1\n" * 50 + "-1\n" + "1\n" * 49, "line 51: '-1' is not a weight; write a number from 0"),
        ("nan\n" * 100, "line 1: 'nan' is not a weight"),
        (None, "preprocess.sentence_weights: no such file: "),
    ],
)
def test_a_mistake_costs_one_line(
    weights: str | None,
    problem: str,
    weighed: Path,
    tmp_path: Path,
    nmt: Command,
    recipe: Path,
    corpus: Path,
) -> None:
    for language in ("en", "de"):
        text = (weighed / f"first.{language}").read_text()
        (tmp_path / f"first.{language}").write_text(text)
    if weights is not None:
        (tmp_path / "first.weights").write_text(weights)
    done = preprocess(nmt, recipe, corpus, tmp_path, f"[{tmp_path}/first]", "data")
    assert done.status == 1
    assert problem in done.err.splitlines()[-1]


def test_a_damaged_weight_is_refused(weighed: Path) -> None:
    path, text = weighed / "data" / "train.weights", (weighed / "data" / "manifest.json")
    whole, written = path.read_bytes(), text.read_text()
    path.write_bytes(np.full(200, -1, "<f4").tobytes())
    try:
        manifest = Manifest.read(weighed / "data")
        facts = {**manifest.files, "train.weights": FileFacts.from_file(path)}
        changed = replace(manifest, files=facts, fingerprint=fingerprint_of(facts))
        split = Dataset(weighed / "data", changed, {weighed / "data": changed}).split("train")
        with pytest.raises(NmtError, match="a weight is negative or not finite"):
            split.check()
    finally:
        path.write_bytes(whole)
    assert text.read_text() == written


def test_a_loss_of_translations_takes_no_weights(
    weighed: Path, nmt: Command, recipe: Path, trained: Path, tmp_path: Path
) -> None:
    places = ("--data", weighed / "data", "--save-dir", tmp_path / "run", "--init-from", trained)
    done = nmt("train", "--config", recipe, *places, "--set", "train.loss=minimum_risk")
    assert done.status == 1
    assert "the dataset has weights of pairs, which are for losses of tokens" in done.err
