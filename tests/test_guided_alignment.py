"""Guided alignment: which tokens a link joins, what it costs, and what training makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Command
from for_each import for_each
from tiny_models import VOCABULARY, tiny
from torch import Tensor
from trained_runs import assert_same_checkpoint, records

from nmt.data.batches import Batch, TokenLinks, make_batch
from nmt.data.columns import RaggedArray
from nmt.data.dataset import Dataset
from nmt.data.packing import Packing
from nmt.data.vocabulary import EOS, PAD
from nmt.errors import NmtError
from nmt.evaluation.alignments import AlignmentErrorRate
from nmt.models import Model
from nmt.subwords.subwords import Subwords
from nmt.training.augmentation import SampledSplit
from nmt.training.config import TrainConfig
from nmt.training.losses.guided_alignment import GuidedCriterion, WordLinks
from nmt.training.losses.token import TokenCriterion, losses
from nmt.training.model_options import checkpoint_activations, drop_layers

LENGTHS = np.array([[5, 2, 9, 3], [7, 2, 4, 4]])
"""Source and target tokens of some pairs."""


def some_batch() -> Batch:
    """Pairs of random tokens, with random links."""
    torch.manual_seed(2)
    packing = Packing.from_lengths(*LENGTHS)
    source, target = (torch.randint(EOS + 1, VOCABULARY, (int(side.sum()),)) for side in LENGTHS)
    starts = np.cumsum(LENGTHS, 1) - LENGTHS
    links = [
        (starts[0, at] + s, starts[1, at] + t) for at in (0, 2, 3) for s, t in ((0, 1), (2, 1))
    ]
    tokens = torch.tensor(np.array(links).T)
    return Batch(source, target, target, packing, TokenLinks(tokens, torch.full((6,), 0.5)))


def build(name: str = "transformer_tiny", dropout: float = 0.0, **values: Any) -> Model:
    torch.manual_seed(1)
    rate = {} if name == "conv_s2s" else {"dropout": dropout}
    return replace(tiny(name), **rate, **values).build(VOCABULARY, VOCABULARY, True)


def guided(model: Model, weight: float = 1.0, loss: str = "cross_entropy") -> GuidedCriterion:
    chosen: Any = losses[loss]
    return GuidedCriterion(TokenCriterion(model, chosen), weight)


def gradients(model: Model, loss: Tensor) -> list[Tensor]:
    for weight in model.parameters():
        weight.grad = None
    loss.backward()
    return [weight.grad for weight in model.parameters() if weight.grad is not None]


@for_each("name", ["transformer_tiny", "rnnsearch", "gnmt", "multi-query"])
def test_the_cost_is_the_cross_entropy_of_links_and_attention(name: str) -> None:
    model, batch = build(name), some_batch()
    if name == "gnmt":
        model.eval()
    plain = TokenCriterion(model, losses["cross_entropy"])(batch)
    sums = guided(model, 0.25)(batch)
    pad = batch.packing.source.pad(batch.source), batch.packing.target.pad(batch.target_input)
    attention = model.source_attention(*pad)
    rows, cost = (0, 0, 2, 2, 3, 3), 0.0
    for row, column in zip(rows, (0, 2) * 3, strict=True):
        cost -= 0.5 * attention[row, 1, column].log().item()
    assert sums["alignment"].item() == pytest.approx(cost, rel=1e-5)
    assert sums["linked_tokens"].item() == 3
    assert sums["nll"].item() == pytest.approx(plain["nll"].item(), rel=1e-6)
    assert (sums["loss"] - plain["loss"]).item() == pytest.approx(0.25 * cost, rel=1e-4)
    before = gradients(model, plain["loss"])
    after = gradients(model, sums["loss"])
    assert any(not torch.allclose(one, two) for one, two in zip(before, after, strict=True))


def test_the_weight_of_a_pair_weighs_its_links() -> None:
    model, batch = build(), some_batch()
    links = batch.links
    assert links is not None
    of_pair = torch.from_numpy(np.repeat([1.0, 5.0, 0.0, 0.0], LENGTHS[1]))
    weighted = replace(batch, weights=of_pair.float())
    kept = of_pair[links.tokens[1]] == 1
    first = replace(weighted, links=TokenLinks(links.tokens[:, kept], links.shares[kept]))
    assert 0 < kept.sum() < len(kept)
    sums = guided(model, 0.25)(weighted)
    assert sums["loss"].item() == pytest.approx(guided(model, 0.25)(first)["loss"].item())
    assert sums["linked_tokens"].item() == 3


def test_one_head_alone_is_guided() -> None:
    batch = some_batch()
    costs = []
    for head in (None, 1, 2, 3, 4):
        model = build(alignment_head=head)
        sums = guided(model)(batch)
        pad = batch.packing.source.pad(batch.source), batch.packing.target.pad(batch.target_input)
        weights = model.source_attention(*pad)[[0, 0, 2, 2, 3, 3], 1, [0, 2] * 3]
        costs.append(sums["alignment"].item())
        assert costs[-1] == pytest.approx(-0.5 * weights.log().sum().item(), rel=1e-5)
    assert len({round(cost, 4) for cost in costs}) == 5
    cost = guided(build(alignment_head=2))
    cost(batch)["loss"].backward()
    with pytest.raises(ValueError, match="alignment_head must be from 1 to 4, the heads, not 5"):
        build(alignment_head=5)


@pytest.mark.parametrize("part", ["layers", "attention"])
def test_activations_computed_twice_change_no_gradient(part: Any) -> None:
    batch, model = some_batch(), build(dropout=0.3)
    torch.manual_seed(5)
    before = gradients(model, guided(model)(batch)["loss"])
    checkpoint_activations(model, part)
    torch.manual_seed(5)
    after = gradients(model, guided(model)(batch)["loss"])
    assert all(torch.equal(one, two) for one, two in zip(before, after, strict=True))


def test_a_layer_that_is_left_out_has_no_cost_and_no_links() -> None:
    model = build()
    drop_layers(model, 0.999)
    sums = guided(model)(replace(some_batch(), weights=torch.ones(sum(LENGTHS[1]))))
    assert sums["alignment"].item() == 0
    assert sums["linked_tokens"].item() == 0  # or the reported mean would be too low
    sums["loss"].backward()
    assert all(weight.grad is not None for weight in model.parameters())


@pytest.mark.parametrize(("loss", "dropout"), [("r_drop", 0.0), ("simcut", 0.3)])
def test_of_several_passes_the_first_is_guided(loss: str, dropout: float) -> None:
    model, batch = build(dropout=dropout), some_batch()
    chosen: Any = losses[loss]
    torch.manual_seed(3)
    sums = GuidedCriterion(chosen.criterion(model, None), 1.0)(batch)
    torch.manual_seed(3)
    expected = guided(model)(batch)["alignment"].item()
    assert sums["alignment"].item() == pytest.approx(expected, rel=1e-5)


def test_without_links_nothing_is_added() -> None:
    model, batch = build(), replace(some_batch(), links=None)
    nothing = Batch(
        torch.tensor([EOS]), *torch.empty(2, 0).long(), Packing.from_lengths(*np.array([[1], [0]]))
    )
    for each in (batch, nothing):
        sums, plain = guided(model)(each), TokenCriterion(model, losses["cross_entropy"])(each)
        assert torch.equal(sums["loss"], plain["loss"])
        assert sums["alignment"].item() == sums["linked_tokens"].item() == 0
        sums["loss"].backward()


def test_a_model_without_attention_is_refused() -> None:
    with pytest.raises(NmtError, match="ByteNet has no attention, which word alignments"):
        guided(build("bytenet"))(some_batch())


@pytest.fixture(params=["stored", "sampled"])
def segmented(request: pytest.FixtureRequest, linked_dataset: Path) -> Any:
    """A dataset's subwords and its split, as stored or sampled anew."""
    dataset = Dataset.open(linked_dataset)
    split, subwords = dataset.split("train"), Subwords.from_dataset(dataset)
    if request.param == "stored":
        return subwords, split, split
    return subwords, split, SampledSplit(split=split, subwords=subwords, alpha=0.5, seed=1)


def test_tokens_are_linked_where_their_words_are(segmented: Any) -> None:
    subwords, split, sentences = segmented
    indices = np.array([3, 0, 150, 77, 12])
    batch = make_batch(sentences, indices, WordLinks(split, subwords))
    assert batch.links is not None
    found = set(zip(*batch.links.tokens.tolist(), strict=True))
    wanted, shares, start = set(), {}, np.array([0, 0])
    sides = (batch.packing.source, batch.source), (batch.packing.target, batch.target_output)
    for row in range(len(indices)):
        words = []
        for (pack, tokens), pieces in zip(
            sides, (subwords.source_pieces, subwords.target_pieces), strict=True
        ):
            ids = pack.pad(tokens)[row][: pack.lengths[row]].tolist()
            begins = [piece.startswith("▁") for piece in pieces(ids[:-1])]
            words.append((np.cumsum(begins) - 1).tolist())
        last = words[0][-1]
        assert words[1][-1] == last
        for t, target in enumerate(words[1]):
            linked = [s for s, source in enumerate(words[0]) if source == last - target]
            wanted |= {(start[0] + s, start[1] + t) for s in linked}
            shares[start[1] + t] = 1 / len(linked)
        start = start + [pack.lengths[row] for pack, _ in sides]
    assert found == wanted
    assert batch.links.tokens.shape[1] == len(wanted)
    for token, share in zip(batch.links.tokens[1].tolist(), batch.links.shares, strict=True):
        assert share.item() == pytest.approx(shares[token])


@pytest.mark.parametrize("shared", [True, False])
def test_each_token_of_a_word_that_is_copied_is_linked_to_its_copy(shared: bool) -> None:
    begins = np.array([False] * 4 + [True, False] * 4)  # ids 4, 6, 8 and 10 begin words
    split = SimpleNamespace(has_links=True, links=lambda _: RaggedArray.from_lists([[0, 1, 1, 0]]))
    subwords = SimpleNamespace(shared=shared, begins_word=(begins, begins))
    source = np.array([[4, 5, 6, 7, 7, EOS]])  # two words, in the other order than
    target = np.array([[6, 7, 9, 4, 5, EOS, PAD]])
    links = WordLinks(split, subwords)(np.array([0]), source, target)  # type: ignore[arg-type]
    found = sorted(zip(*links.tokens.tolist(), strict=True))
    copies = [(0, 3), (1, 4)] if shared else [(0, 3), (0, 4), (1, 3), (1, 4)]
    assert found == [*copies, *((s, t) for s in (2, 3, 4) for t in (0, 1, 2))]  # 7 is not 9
    assert sum(links.shares.tolist()) == pytest.approx(5)


def test_a_link_to_a_word_beyond_the_sentence_is_left_out() -> None:
    begins = np.array([False] * 4 + [True] * 4)
    split = SimpleNamespace(
        has_links=True, links=lambda _: RaggedArray.from_lists([[0, 0, 1, 1, 2, 5]])
    )
    subwords = SimpleNamespace(shared=False, begins_word=(begins, begins))
    source, target = np.array([[4, 5, 6, EOS]]), np.array([[4, 5, EOS]])
    links = WordLinks(split, subwords)(np.array([0]), source, target)  # type: ignore[arg-type]
    assert links.tokens.T.tolist() == [[0, 0], [1, 1]]


def test_a_dataset_without_alignments_is_refused(train: Command, tmp_path: Path) -> None:
    done = train(tmp_path / "run", "--set", "train.guided_alignment=0.1")
    assert (done.status, done.err.count("\n")) == (1, 1)
    assert "train.guided_alignment: the dataset has no word alignments; write them" in done.err


@for_each(
    ("values", "message"),
    [
        ({"guided_alignment": -0.1}, "guided_alignment must not be negative, is -0.1"),
        ({"guided_alignment": 0.1, "compile": True}, "guided_alignment is for models that are not"),
        (
            {"guided_alignment": 0.1, "loss": losses["minimum_risk"], "init_from": "run"},
            "guided_alignment is for models that are not compiled and for losses of the",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainConfig(**values)


GUIDED = ("--set", "train.guided_alignment=0.3", "--set", "model.alignment_head=1")


@pytest.mark.full
@pytest.mark.parametrize("options", [(), ("--subword-sampling", 0.2, "--set", "train.loss=r_drop")])
def test_a_guided_run_resumes_with_the_same_bits(
    train: Command, linked_dataset: Path, tmp_path: Path, options: tuple[Any, ...]
) -> None:
    flags = (*GUIDED, *options, "--data", linked_dataset, "--set", "train.log_every=4")
    assert train(tmp_path / "whole", *flags, "--max-updates", 8).status == 0
    for updates in (6, 8):  # the stop is in the middle of a report
        assert train(tmp_path / "parts", *flags, "--max-updates", updates).status == 0
    assert records(tmp_path / "parts") == records(tmp_path / "whole")
    assert_same_checkpoint(tmp_path / "parts" / "last", tmp_path / "whole" / "last")
    other = train(tmp_path / "parts", *flags, "--set", "model.alignment_head=2")
    assert "begun with another recipe: model.alignment_head was 1, is 2" in other.err
    assert other.status == 1


def test_micro_batches_together_cost_what_one_does(
    train: Command, linked_dataset: Path, tmp_path: Path
) -> None:
    flags = (*GUIDED, "--data", linked_dataset, "--dropout", 0)
    for name, size in (("one", 1000), ("many", 40)):
        assert train(tmp_path / name, *flags, "--set", f"train.max_tokens={size}").status == 0
    pairs = zip(records(tmp_path / "one"), records(tmp_path / "many"), strict=True)
    for one, many in pairs:
        for key in one.keys() & {"loss", "alignment", "grad_norm"}:
            assert one[key] == pytest.approx(many[key], rel=1e-4)


@pytest.mark.full
def test_guidance_makes_better_alignments(
    train: Command, nmt: Command, linked_dataset: Path, tmp_path: Path
) -> None:
    often = ("--max-updates", 250, "--valid-every", 250, "--save-every", 250)
    flags = ("--data", linked_dataset, "--dropout", 0, *often)
    rates, gold = {}, (linked_dataset.parent / "test.align").read_text().splitlines()
    for name, options in (
        ("plain", ()),
        ("guided", (*GUIDED, "--set", "train.guided_alignment=2")),
    ):
        assert train(tmp_path / name, *flags, *options).status == 0
        found = nmt(
            *("align", "--model", tmp_path / name),
            *("--source", linked_dataset.parent / "test.en"),
            *("--target", linked_dataset.parent / "test.de"),
        ).out.splitlines()
        counts = AlignmentErrorRate().counts(found, gold, gold)
        rates[name] = AlignmentErrorRate().compute(counts)[0]
    assert rates["guided"] < 0.5 * rates["plain"], rates
    logged = [record for record in records(tmp_path / "guided") if record["record"] == "train"]
    assert logged[-1]["alignment"] < 0.7 * logged[0]["alignment"]
    assert all("alignment" not in record for record in records(tmp_path / "plain"))
