"""The law of models, for every registered architecture at tiny size.

Stepping through a target gives the logits of ``forward``, before and after any ``select``; a later
target token never moves an earlier logit; padding never moves anything, and sentences packed
without padding give the same outputs and gradients.
"""

import numpy as np
import pytest
import torch
from tiny_models import ADAPTED, PARTS, PLAIN, VOCABULARY, some_sources, tiny, tiny_model
from torch import Tensor

from nmt.data.packing import Packing
from nmt.data.vocabulary import BOS, EOS, PAD
from nmt.errors import NmtError
from nmt.models import Model, ModelConfig, architectures
from nmt.models.layers.attention import MultiHeadAttention
from nmt.models.rivals.bytenet import ByteNet
from nmt.models.transformer.language_model import TransformerLM
from nmt.models.transformer.model import Transformer
from nmt.recipe.config import build, dump
from nmt.runs import set_weights, weights_of
from nmt.runs.building import build_with
from nmt.training.losses.token import losses


@pytest.fixture(params=[*PLAIN, *ADAPTED])
def model(request: pytest.FixtureRequest) -> Model:
    return tiny_model(request.param)


def some_targets(rows: int = 3, length: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    target = torch.randint(EOS + 1, VOCABULARY, (rows, length), generator=generator)
    target[:, 0] = BOS
    return target


def stepped(model: Model, state: object, targets: Tensor, first: int = 0) -> Tensor:
    """Logits [B, K, T', V] of feeding ``targets[:, :, first:]`` one token at a time."""
    steps = [model.step(tokens, state) for tokens in targets[:, :, first:].unbind(-1)]
    return torch.stack(steps, dim=2)


@torch.no_grad()
def test_stepping_gives_the_logits_of_forward(model: Model) -> None:
    source, target = some_sources(), some_targets()
    state = model.start(source)
    logits = stepped(model, state, target[:, None])[:, 0]
    torch.testing.assert_close(logits, model(source, target), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_stepping_goes_on_after_rows_are_repeated_permuted_and_dropped(model: Model) -> None:
    source, target = some_sources(), some_targets()
    state = model.start(source)
    stepped(model, state, target[:, None, :2])
    state.select(torch.tensor([[0, 0], [1, 1], [2, 2]]))  # open a beam of two
    other = some_targets(6).view(3, 2, -1).flip(0)
    beams = torch.stack((target, torch.cat((target[:, :2], other[:, 1, 2:]), dim=1)), dim=1)
    stepped(model, state, beams[:, :, 2:4])
    state.select(torch.tensor([[1, 0], [3, 3], [4, 5]]))  # swap, repeat, keep
    beams = torch.stack((beams[0].flip(0), beams[1, [1, 1]], beams[2]))
    logits = stepped(model, state, beams[..., :5], first=4)
    for row in range(2):
        expected = model(source, beams[:, row, :5])[:, 4:]
        torch.testing.assert_close(logits[:, row], expected, atol=1e-5, rtol=1e-5)
    state.select(torch.tensor([[1, 1], [5, 4]]))  # repeat, drop the middle sentence, swap
    kept = torch.tensor([0, 2])
    beams = torch.stack((beams[0, [1, 1]], beams[2].flip(0)))
    logits = stepped(model, state, beams, first=5)
    for row in range(2):
        expected = model(source[kept], beams[:, row])[:, 5:]
        torch.testing.assert_close(logits[:, row], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("lengths", "filled"),
    [
        (torch.randint(1, 30, (2, 12), generator=torch.Generator().manual_seed(2)).numpy(), True),
        (np.array([[40, 24], [30, 5]]), False),  # whole grains of 64 tokens
        (np.array([[30, 5], [40, 24]]), True),
    ],
    ids=["ordinary and filled", "source of 64", "target of 64 and filled"],
)
def test_packs_have_the_outputs_and_gradients_of_padded_sentences(
    model: Model, lengths: np.ndarray, filled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmt.models.kernels.packs.shapes_are_costly", lambda _: filled)
    packing = Packing.from_lengths(*lengths)
    source, target = (
        torch.randint(EOS + 1, VOCABULARY, (int(side.sum()),)).masked_fill(side_ends(side), EOS)
        for side in lengths
    )
    packed = model.decode_packs(source, target, packing)
    padded = packing.target.unpad(
        model.decode(packing.source.pad(source), packing.target.pad(target))
    )
    torch.testing.assert_close(packed, padded, atol=1e-5, rtol=1e-5)
    weights = [weight for weight in model.parameters() if weight is not model.output.weight]
    towards = torch.randn_like(packed)
    for gradient, expected in zip(
        *(
            torch.autograd.grad((output * towards).sum(), weights, allow_unused=True)
            for output in (packed, padded)
        ),
        strict=True,
    ):
        if expected is not None and expected.norm() > 1e-4:  # of a bias of keys it is rounding
            assert gradient is not None
            assert (gradient - expected).norm() <= 1e-5 * expected.norm()


def test_a_pack_without_targets_has_a_gradient_of_zero(model: Model) -> None:
    model.train()
    packing = Packing.from_lengths(np.array([1]), np.array([0]))
    output = model.decode_packs(torch.tensor([EOS]), torch.tensor([], dtype=torch.int64), packing)
    assert len(output) == 0
    output.sum().backward()
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    assert all((gradient == 0).all() for gradient in gradients)


def side_ends(lengths: np.ndarray) -> Tensor:
    """True at the last token of each sentence of a pack."""
    ends = torch.zeros(int(lengths.sum()), dtype=torch.bool)
    ends[torch.from_numpy(lengths.cumsum()) - 1] = True
    return ends


@torch.no_grad()
def test_a_later_target_token_never_moves_an_earlier_logit(model: Model) -> None:
    source, target = some_sources(), some_targets()
    changed = target.clone()
    changed[:, 4] = (changed[:, 4] - EOS) % (VOCABULARY - EOS - 1) + EOS + 1
    before, after = model(source, target), model(source, changed)
    # Not to the bit: products may be rounded by their number of rows.
    torch.testing.assert_close(after[:, :4], before[:, :4], atol=1e-6, rtol=0.0)
    assert not torch.equal(after[:, 4:], before[:, 4:])


@torch.no_grad()
def test_a_source_token_moves_every_logit(model: Model) -> None:
    source, target = some_sources(), some_targets()
    changed = source.clone()
    changed[:, 0] = (changed[:, 0] - EOS) % (VOCABULARY - EOS - 1) + EOS + 1
    moved = (model(source, target) - model(changed, target)).abs().amax(dim=-1)
    assert (moved > 0).all() if model.reads_source else not moved.any()


@torch.no_grad()
def test_attention_is_shared_out_among_the_tokens_of_the_source(model: Model) -> None:
    if isinstance(model, (ByteNet, TransformerLM)):
        with pytest.raises(NmtError, match="has no attention, which word alignments and"):
            model.source_attention(some_sources(), some_targets())
        return
    source, target = some_sources(), some_targets()
    weights = model.source_attention(source, target)
    assert weights.shape == (3, 6, 7)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 6))
    assert (weights >= 0).all()
    assert not weights.masked_select((source == PAD)[:, None]).any()
    for row, length in enumerate((7, 4, 2)):
        alone = model.source_attention(source[row : row + 1, :length], target[row : row + 1, :4])
        torch.testing.assert_close(alone[0], weights[row, :4, :length], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_attention_maps_share_every_head_out_among_the_tokens(model: Model) -> None:
    source, target = some_sources(), some_targets()
    target[1, 4:] = PAD
    maps = model.attention_maps(source, target)
    assert (maps == []) == isinstance(model, ByteNet)
    names = [(layer.kind, layer.layer) for layer in maps]
    assert names == sorted(names, key=lambda name: ("encoder decoder cross".index(name[0]), name))
    assert len({*names}) == len(names)
    for layer in maps:
        queries = source if layer.kind == "encoder" else target
        keys = target if layer.kind == "decoder" else source
        assert layer.weights.shape[::2] == (3, queries.shape[1])
        assert layer.weights.shape[3] == keys.shape[1]
        rows = layer.weights.transpose(1, 2)[queries != PAD]  # [tokens, H, S]
        torch.testing.assert_close(rows.sum(-1), torch.ones(rows.shape[:2]))
        assert (rows > -1e-6).all()
        hidden = (keys == PAD)[:, None].expand(-1, queries.shape[1], -1)
        if layer.kind == "decoder":
            hidden = hidden | torch.ones(6, 6, dtype=torch.bool).triu(1)
        hidden = hidden[queries != PAD][:, None].expand_as(rows)
        assert rows[hidden].abs().max() < 1e-6 if hidden.any() else True


@torch.no_grad()
def test_source_attention_is_a_head_or_the_mean_of_attention_maps(model: Model) -> None:
    maps = model.attention_maps(some_sources(), some_targets())
    cross = [layer for layer in maps if layer.kind == "cross"]
    if isinstance(model, Transformer):
        cross = [layer for layer in cross if layer.layer == model.alignment_layer]
    if cross:
        heads = torch.cat([layer.weights for layer in cross], dim=1)
        head = model.alignment_head if isinstance(model, Transformer) else None
        expected = heads.mean(1) if head is None else heads[:, head - 1]
        found = model.source_attention(some_sources(), some_targets())
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_attention_maps_do_not_depend_on_padding(model: Model) -> None:
    source, target = some_sources(), some_targets()
    together = model.attention_maps(source, target)
    alone = model.attention_maps(source[1:2, :4], target[1:2])
    for batch, sentence in zip(together, alone, strict=True):
        queries, keys = sentence.weights.shape[2:]
        for one, other in ((batch.weights, sentence.weights), (batch.scores, sentence.scores)):
            if one is not None and other is not None:
                part = one[1:2, :, :queries, :keys]
                torch.testing.assert_close(part, other, atol=1e-5, rtol=1e-4)


def test_attention_maps_are_the_weights_of_training(model: Model) -> None:
    """Mixing the values by them gives the output of each attention of a forward pass."""
    if not isinstance(model, Transformer):
        return
    calls = {}
    attentions = [part for part in model.modules() if isinstance(part, MultiHeadAttention)]
    functions = {attention.attention_fn for attention in attentions}
    hooks = [
        function.register_forward_hook(lambda *call: calls.update({call[0]: call[1:]}))
        for function in functions
    ]
    source, target = some_sources()[:1], some_targets()[:1]
    model(source, target)  # with gradients, as in training
    for hook in hooks:
        hook.remove()
    maps = model.attention_maps(source, target)
    stacks = {"encoder": model.encoder, "decoder": model.decoder, "cross": model.decoder}
    for layer in maps:
        part = stacks[layer.kind][layer.layer - 1]
        attention = part.cross if layer.kind == "cross" else part.attention
        function = attention.attention_fn
        (inputs,), output = calls[function]
        queries, values = inputs.queries, inputs.values
        added = function(inputs._replace(values=torch.zeros_like(values)))  # relative positions
        values = values.repeat_interleave(queries.shape[1] // values.shape[1], dim=1)
        torch.testing.assert_close(layer.weights @ values + added, output, atol=1e-5, rtol=1e-4)
        if layer.scores is not None and layer.key_width is not None:
            scaled = layer.scores / layer.key_width**0.5
            if layer.kind == "decoder":
                scaled = scaled.masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf)
            torch.testing.assert_close(scaled.softmax(-1), layer.weights, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_the_attention_of_links_is_that_of_whole_sentences(model: Model) -> None:
    if isinstance(model, (ByteNet, TransformerLM)):
        return
    source, target = some_sources(), some_targets()
    target[1, 4:] = PAD
    lengths = [(side != PAD).sum(1).numpy() for side in (source, target)]
    packing = Packing.from_lengths(*lengths)
    links = torch.tensor([[0, 6, 8, 11, 12], [0, 5, 9, 10, 15]])
    packs = source[source != PAD], target[target != PAD]
    output, weights = model.decode_links(*packs, packing, links)
    torch.testing.assert_close(output, model.decode_packs(*packs, packing))
    whole = model.source_attention(source, target)
    expected = whole[[0, 0, 1, 2, 2], [0, 5, 3, 0, 5], [0, 6, 1, 0, 1]]
    torch.testing.assert_close(weights, expected, atol=1e-5, rtol=1e-4)
    _, none = model.decode_links(*packs, packing, links[:, :0])
    assert none.shape == (0,)


def test_only_a_transformer_has_a_choice_of_layers_to_align_words_by() -> None:
    for name in PLAIN:
        model = tiny_model(name)
        if isinstance(model, Transformer):
            model.align_by(1)
        else:
            with pytest.raises(NmtError, match="has no decoder layers to choose from for align"):
                model.align_by(1)


@torch.no_grad()
def test_padding_moves_nothing(model: Model) -> None:
    source, target = some_sources(), some_targets()
    together = model(source, target)
    for row, length in enumerate((7, 4, 2)):
        alone = model(source[row : row + 1, :length], target[row : row + 1])
        torch.testing.assert_close(together[row : row + 1], alone, atol=1e-5, rtol=1e-5)
    wider = torch.nn.functional.pad(source, (0, 3), value=PAD)
    longer = torch.nn.functional.pad(target, (0, 2), value=PAD)
    torch.testing.assert_close(model(wider, longer)[:, :6], together, atol=1e-5, rtol=1e-5)


def test_the_first_loss_is_near_that_of_guessing(model: Model) -> None:
    source, target = some_sources(), some_targets(length=7)
    with torch.no_grad():
        decoder_output = model.decode(source, target[:, :-1]).flatten(0, 1)
        _, nll = losses["cross_entropy"](decoder_output, model.output, target[:, 1:].flatten())
    guessing = torch.log(torch.tensor(float(VOCABULARY)))
    assert abs(nll / 18 - guessing) < 1.0


def test_every_weight_gets_a_gradient(model: Model) -> None:
    model.train()
    with torch.no_grad():  # a weight that begins as zero may hide those before it
        for weight in model.parameters():
            weight.add_(0.01 * torch.randn_like(weight))
    model(some_sources(), some_targets()).square().sum().backward()
    silent = [
        name
        for name, weight in model.named_parameters()
        if weight.grad is None or not weight.grad.any()
    ]
    assert silent == []


@torch.no_grad()
def test_a_model_is_told_by_its_weights(model: Model, request: pytest.FixtureRequest) -> None:
    source, target = some_sources(), some_targets()
    config = tiny(request.node.callspec.params["model"])
    other = config.build_adapted(VOCABULARY, VOCABULARY, True).eval()
    assert not torch.equal(other(source, target), model(source, target))
    set_weights(other, weights_of(model))
    assert torch.equal(other(source, target), model(source, target))


@torch.no_grad()
def test_a_model_is_built_anew_for_its_weights(
    model: Model, request: pytest.FixtureRequest
) -> None:
    config = tiny(request.node.callspec.params["model"])
    other = build_with(
        lambda: config.build_adapted(VOCABULARY, VOCABULARY, True), weights_of(model)
    )
    source, target = some_sources(), some_targets()
    torch.testing.assert_close(other.eval()(source, target), model(source, target))


def test_two_forwards_differ_while_training_and_agree_otherwise(model: Model) -> None:
    source, target = some_sources(), some_targets()
    assert torch.equal(model(source, target), model(source, target))
    model.train()
    assert not torch.equal(model(source, target), model(source, target))


def test_a_config_survives_being_written_as_plain_values() -> None:
    for name in (*architectures, *PARTS, *ADAPTED):
        config = tiny(name)
        assert build(ModelConfig, dump(config), "model") == config
