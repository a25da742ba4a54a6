import dataclasses
import math
from typing import Any

import pytest
import torch
from for_each import for_each

from nmt.errors import NmtError
from nmt.inference.fast.kernels import convert
from nmt.models import ModelConfig, architectures
from nmt.models.layers import attention
from nmt.models.layers.attention import AttentionConfig, AttentionInput, FullAttention
from nmt.models.layers.basic import Dropout
from nmt.models.layers.feed_forward import FeedForward
from nmt.models.layers.sentences import Padded
from nmt.models.transformer.model import Transformer, TransformerConfig
from nmt.models.transformer.multi_head import CrossAttention, SelfAttention
from nmt.models.transformer.positions import SinusoidalPositions, sinusoids
from nmt.recipe.config import build, dump


def parameters(config: ModelConfig, vocabulary: int, shared: bool = True) -> int:
    with torch.device("meta"):
        return config.build(vocabulary, vocabulary, shared).num_parameters()


def both_layers(layers: int) -> dict[str, Any]:
    return {"encoder_layers": layers, "decoder_layers": layers}


@for_each(
    ("change", "millions"),
    [
        ({}, 65),
        ({"d_k": 16}, 58),
        ({"d_k": 32}, 60),
        (both_layers(2), 36),
        (both_layers(4), 50),
        (both_layers(8), 80),
        ({"d_model": 256, "d_k": 32, "d_v": 32}, 28),
        ({"d_model": 1024, "d_k": 128, "d_v": 128}, 168),
        ({"d_ff": 1024}, 53),
        ({"d_ff": 4096}, 90),
    ],
)
def test_the_rows_of_table_3_have_the_printed_numbers_of_parameters(
    change: dict[str, Any], millions: int
) -> None:
    # tensor2tensor padded the vocabulary of 37,000 to 40,960 when the paper was run.
    config = dataclasses.replace(architectures["transformer_base"], **change)
    assert round(parameters(config, 40960) / 1e6) == millions


@for_each(
    ("name", "bias", "expected"),
    [
        ("transformer_base", False, 63_045_632),
        ("transformer_base", True, 63_082_496),
        ("transformer_big", False, 214_171_648),
        ("transformer_big", True, 214_245_376),
    ],
)
def test_parameters_with_a_vocabulary_of_37000(name: str, bias: bool, expected: int) -> None:
    config = dataclasses.replace(architectures[name], attention_bias=bias)
    assert parameters(config, 37000) == expected


def test_the_iwslt_architecture_has_the_parameters_that_fairseq_logs() -> None:
    with torch.device("meta"):
        model = architectures["transformer_iwslt_de_en"].build(8848, 6632, False)
    assert model.num_parameters() == 39_469_056


def test_one_attention_and_one_feed_forward_have_the_known_numbers_of_parameters() -> None:
    config = AttentionConfig(d_model=512, heads=8, d_k=64, d_v=64, bias=False, dropout=0.0)
    attention = SelfAttention(config)
    assert sum(weight.numel() for weight in attention.parameters()) == 1_048_576
    feed_forward = FeedForward(512, 2048, dropout=0.0)
    assert sum(weight.numel() for weight in feed_forward.parameters()) == 2_099_712


def attend(queries: Any, keys: Any, values: Any) -> torch.Tensor:
    """Attention of one head of the given rows."""
    rows = [torch.tensor(rows, dtype=torch.float32)[None, None] for rows in (queries, keys, values)]
    attended: torch.Tensor = FullAttention()(AttentionInput(*rows))
    return attended[0, 0]


def test_attention_of_a_worked_example() -> None:
    # Scores [2, 0, 2] / sqrt(2); e^1.4142 = 4.11325, their sum 9.226501.
    attended = attend([[2, 0]], [[1, 0], [0, 1], [1, 1]], [[10, 0], [0, 20], [5, 5]])
    torch.testing.assert_close(attended, torch.tensor([[6.687124, 4.396710]]))


def test_a_large_score_takes_nearly_all_the_attention() -> None:
    weights = attend([[6.3]], [[1.0], *[[0.0]] * 9], torch.eye(10).tolist())[0]
    torch.testing.assert_close(weights[0], torch.tensor(0.9837), atol=1e-4, rtol=0)
    torch.testing.assert_close(weights[1:], torch.full((9,), 0.0018), atol=1e-4, rtol=0)


def test_fused_projections_begin_within_the_glorot_bound_of_tensor2tensor() -> None:
    config = AttentionConfig(d_model=512, heads=8, d_k=64, d_v=64, bias=True, dropout=0.0)
    bounds = {
        0.05413: SelfAttention(config).project_in,
        0.0625: CrossAttention(config).project_memory,
        0.0765: CrossAttention(config).project_query,
    }
    for bound, layer in bounds.items():
        largest = layer.weight.abs().max().item()
        assert bound * 0.99 < largest <= bound + 1e-4
        assert not layer.bias.any()


def test_the_first_loss_of_a_tied_model_is_near_ln_v() -> None:
    torch.manual_seed(0)
    model = architectures["transformer_base"].build(2000, 2000, True).eval()
    source, target = torch.randint(4, 2000, (2, 8, 12)).unbind()
    with torch.no_grad():
        logits = model(source, target[:, :-1])
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())
    assert math.log(2000) < loss < math.log(2000) + 1.0


def test_positions_of_a_worked_example_in_both_layouts() -> None:
    expected = torch.tensor([0.141120, -0.989992, 0.029996, 0.999550])
    torch.testing.assert_close(sinusoids(4, 4)[3], expected, atol=1e-6, rtol=0)
    expected = torch.tensor([0.141120, 0.000300, -0.989992, 1.000000])
    torch.testing.assert_close(sinusoids(4, 4, "concatenated")[3], expected, atol=1e-6, rtol=0)
    expected = torch.tensor([0.141120, 0.029996, -0.989992, 0.999550])
    torch.testing.assert_close(sinusoids(4, 4, "halves")[3], expected, atol=1e-6, rtol=0)


def test_what_other_toolkits_do_differently_is_a_field_of_the_recipe() -> None:
    changes: dict[str, Any] = {"scale_embeddings": False, "output_bias": True, "norm_epsilon": 1e-5}
    config = TransformerConfig(d_model=8, d_ff=16, heads=2, encoder_layers=1, **changes)
    model = config.build(20, 20, True).eval()
    assert isinstance(model, Transformer)
    tokens = torch.tensor([[4, 5, 6, 3]])
    first = model._embed(model.target_embedding, model.positions, tokens, Padded())
    expected = model.target_embedding(tokens) + sinusoids(4, 8)
    torch.testing.assert_close(first, expected)
    before = model(tokens, tokens)
    with torch.no_grad():
        model.output.bias[7] += 2.5
    difference = model(tokens, tokens) - before
    torch.testing.assert_close(difference[..., 7], torch.full((1, 4), 2.5))
    assert not difference[..., :7].any()
    norms = [module for module in model.modules() if isinstance(module, torch.nn.LayerNorm)]
    assert {norm.eps for norm in norms} == {1e-5}


def test_the_product_of_two_positions_depends_on_their_distance_alone() -> None:
    table = sinusoids(60, 4)
    products = (table[:-2] * table[2:]).sum(-1)
    torch.testing.assert_close(products, torch.full((58,), 0.583653), atol=1e-5, rtol=0)


def test_positions_beyond_the_table_are_those_of_a_longer_table() -> None:
    positions = SinusoidalPositions(8)
    device = torch.device("cpu")
    torch.testing.assert_close(positions(1000, 5, device), sinusoids(1005, 8)[1000:])
    later = SinusoidalPositions(8, offset=2)
    torch.testing.assert_close(later(254, 5, device), sinusoids(261, 8)[256:])


@for_each("rate", [0.1, 0.3, 0.5])
@for_each("dtype", [torch.float32, torch.bfloat16])
def test_dropout_zeroes_the_stated_share_and_keeps_the_mean(
    rate: float, dtype: torch.dtype
) -> None:
    torch.manual_seed(5)
    dropped = Dropout(rate)(torch.ones(1000, 1001, dtype=dtype)).float()
    # Of a million draws the share is within 5 standard deviations, 0.0025 at most.
    assert abs((dropped == 0).float().mean().item() - rate) < 0.0025
    torch.testing.assert_close(dropped.max(), torch.tensor(1 / (1 - rate)), rtol=1e-2, atol=0)


def test_dropout_passes_gradient_only_where_it_passed_values() -> None:
    x = torch.ones(1000, requires_grad=True)
    dropped = Dropout(0.5)(x)
    dropped.sum().backward()
    assert torch.equal(x.grad, dropped.detach())


def test_dropout_does_nothing_outside_training() -> None:
    x = torch.randn(10)
    assert Dropout(0.5).eval()(x) is x


def test_dropout_is_a_function_of_the_seed() -> None:
    x = torch.ones(1003)
    first, again, other = ((torch.manual_seed(seed), Dropout(0.5)(x))[1] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_tying_all_needs_a_shared_vocabulary() -> None:
    with pytest.raises(NmtError, match="'all' needs a vocabulary shared by both languages"):
        architectures["transformer_base"].build(10, 10, False)


def test_tied_matrices_are_one_and_untied_ones_are_not() -> None:
    config = architectures["transformer_tiny"]
    tied = config.build(10, 10, True)
    assert tied.output.weight is tied.source_embedding.weight
    two = dataclasses.replace(config, tied_embeddings="decoder").build(10, 10, True)
    assert two.output.weight is two.target_embedding.weight
    assert two.output.weight is not two.source_embedding.weight
    none = dataclasses.replace(config, tied_embeddings="none").build(10, 10, True)
    assert none.output.weight is not none.target_embedding.weight


@for_each(
    ("values", "message"),
    [
        ({"d_model": 15, "heads": 3}, "sinusoidal positions need an even d_model, not 15"),
        ({"d_k": -8}, "d_k must be at least 1, not -8"),
        ({"d_model": 30, "heads": 4}, "d_model 30 is not divisible by 4 heads"),
        ({"encoder_layers": 0}, "encoder_layers must be at least 1"),
        ({"dropout": 1.5}, "dropout"),
        ({"positions": "rotary", "key_value_heads": 1, "d_v": 15}, "an even d_v, not 15"),
        ({"d_mdoel": 8}, "did you mean 'd_model'"),
    ],
)
def test_sizes_that_make_no_sense_are_refused_when_the_recipe_is_read(
    values: dict[str, Any], message: str
) -> None:
    with pytest.raises(NmtError, match=message):
        build(ModelConfig, {"arch": "transformer_tiny", **values}, "model")


def test_a_width_may_be_odd_without_sinusoids() -> None:
    values = {"arch": "transformer_tiny", "d_model": 15, "heads": 3, "positions": "learned"}
    config = build(ModelConfig, values, "model")  # type: ignore[type-abstract]
    logits = config.build(20, 20, True)(torch.tensor([[5, 3]]), torch.tensor([[2, 5]]))
    assert logits.shape == (1, 2, 20)


@pytest.mark.parametrize(("queries", "is_fused"), [(4, False), (512, False), (513, True)])
def test_few_queries_of_many_keys_are_products_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch, queries: int, is_fused: bool
) -> None:
    fused = torch.full((), 7.0)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", lambda *_, **__: fused)
    keys = torch.randn(1, 1, 512, 2)
    given = FullAttention()(AttentionInput(torch.randn(1, 1, queries, 2), keys, keys))
    assert (given is fused) == is_fused


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_attention_written_as_products_equals_the_fused_kernel(
    monkeypatch: pytest.MonkeyPatch, dropout: float
) -> None:
    queries, keys, values = torch.randn(3, 2, 4, 7, 8).unbind(0)
    mask = torch.arange(7)[None] < torch.tensor([[7], [3]])  # [B, S]
    for options in ({"mask": mask[:, None, None, :]}, {"causal": True}):
        inputs = AttentionInput(queries, keys, values, **options)
        by_products = FullAttention()(inputs)
        with monkeypatch.context() as patch:
            patch.setattr(attention, "LONG", 0)
            fused = FullAttention()(inputs)
        assert torch.allclose(by_products, fused, atol=1e-6)
    inputs = AttentionInput(queries, keys, torch.ones_like(values), dropout=dropout)
    dropped = FullAttention()(inputs)
    assert (dropped == dropped[..., :1]).all()  # a weight is dropped for the whole value
    assert torch.allclose(dropped, torch.ones(1)) == (dropout == 0.0)


def aligner(**values: Any) -> ModelConfig:
    sizes = {"d_model": 8, "heads": 2, "d_ff": 8, **both_layers(3)}
    return build(ModelConfig, {"arch": "transformer_base", **sizes, **values}, "model")  # type: ignore[type-abstract]


@for_each("causal", [False, True])
@for_each("masks", [None, (2, 1, 1, 7), (2, 1, 5, 7), (2, 6, 1, 7)])
def test_groups_of_heads_attend_as_if_each_head_had_keys_of_its_own(
    masks: tuple[int, ...] | None, causal: bool
) -> None:
    torch.manual_seed(1)
    queries = torch.randn(2, 6, 7 if causal else 5, 4)
    keys, values = torch.randn(2, 2, 7, 4), torch.randn(2, 2, 7, 4)
    mask = None if masks is None or causal else torch.rand(masks) > 0.3
    if mask is not None:
        mask[..., 0] = True
    grouped = attention.GroupedAttention(3, attention.FullAttention())
    repeated = [x.repeat_interleave(3, dim=1) for x in (keys, values)]
    for is_trained in (True, False):
        with torch.set_grad_enabled(is_trained):
            expected = FullAttention()(AttentionInput(queries, *repeated, mask, causal))
            found = grouped(AttentionInput(queries, keys, values, mask, causal))
            torch.testing.assert_close(found, expected)


def test_keys_that_heads_share_are_read_once_after_conversion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = TransformerConfig(encoder_layers=1, decoder_layers=2, d_model=32, key_value_heads=2)
    model = config.build(20, 20, shared=True)
    heads = []
    usual = FullAttention.forward

    def attend(function: FullAttention, inputs: AttentionInput) -> torch.Tensor:
        heads.append((inputs.queries.shape[1], inputs.keys.shape[1]))
        attended = usual(function, inputs)
        return attended.transpose(1, 2).contiguous().transpose(1, 2)  # as a kernel may lay it out

    monkeypatch.setattr(FullAttention, "forward", attend)
    convert(model, "fp32", torch.device("cpu"))
    with torch.inference_mode():
        state = model.start(torch.randint(4, 20, (3, 5)))
        model.step(torch.full((3, 1), 2), state)
    assert heads == [(2, 2)] * 5


def test_words_are_aligned_by_the_last_layer_unless_the_recipe_names_another() -> None:
    source, target = torch.tensor([[4, 5, 6, 3]]), torch.tensor([[2, 7, 8]])
    model = aligner().build(9, 9, True).eval()
    given = []
    for layer in (1, 2, 3):
        torch.manual_seed(1)
        chosen = aligner(alignment_layer=layer).build(9, 9, True).eval()
        chosen.load_state_dict(model.state_dict())
        given.append(chosen.source_attention(source, target))
        model.align_by(layer)
        assert torch.equal(model.source_attention(source, target), given[-1])
    torch.manual_seed(1)
    last = aligner().build(9, 9, True).eval()
    last.load_state_dict(model.state_dict())
    assert torch.equal(last.source_attention(source, target), given[2])
    assert not torch.allclose(given[1], given[2])


def test_a_run_keeps_the_number_of_the_layer_that_words_are_aligned_by() -> None:
    usual = [dump(aligner(**both_layers(it)).resolved())["alignment_layer"] for it in range(1, 8)]
    assert usual == [1, 2, 3, 4, 5, 5, 6]
    assert dump(aligner(alignment_layer=1).resolved())["alignment_layer"] == 1


@pytest.mark.parametrize("layer", [0, 4])
def test_a_layer_to_align_words_by_that_is_not_there_is_refused(layer: int) -> None:
    with pytest.raises(NmtError) as error:
        aligner(alignment_layer=layer)
    assert str(error.value) == (
        f"model: alignment_layer must be from 1 to 3, the decoder layers, not {layer}"
    )
    with pytest.raises(NmtError, match=f"layer {layer}: the decoder has 3 layers"):
        aligner().build(9, 9, True).align_by(layer)


@pytest.mark.parametrize(("is_scaled", "factor"), [(True, 4.0), (False, 1.0)])
def test_embeddings_are_scaled_by_the_root_of_the_width(is_scaled: bool, factor: float) -> None:
    sizes = {"d_model": 16, "d_ff": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    values = {"arch": "transformer_base", "scale_embeddings": is_scaled, **sizes}
    model = build(ModelConfig, values, "model").build(9, 9, True).eval()  # type: ignore[type-abstract]
    assert isinstance(model, Transformer)
    inputs = []
    for layer in (model.encoder[0], model.decoder[0]):
        layer.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    tokens = torch.tensor([[5, 7, 4]])
    model(tokens, tokens)
    expected = factor * model.target_embedding(tokens) + sinusoids(3, 16)
    assert len(inputs) == 2
    for given in inputs:
        torch.testing.assert_close(given, expected)
