from __future__ import annotations

from dataclasses import KW_ONLY, FrozenInstanceError, dataclass
from typing import ClassVar

import pytest
from for_each import for_each

from nmt.errors import NmtError
from nmt.recipe.registry import Registry, nearest, unknown


@dataclass(frozen=True, kw_only=True)
class Dish:
    name: str = ""
    price: int = 5


@pytest.fixture
def dishes() -> Registry[Dish]:
    return Registry("dish")


def test_a_class_is_registered_with_its_default_values_and_its_name(dishes: Registry[Dish]):
    decorated = dishes.register("soup")(Dish)
    assert decorated is Dish
    assert dishes["soup"] == Dish(name="soup", price=5)


def test_fields_of_a_class_that_is_no_dataclass_are_not_lost(dishes: Registry[Dish]):
    class Menu(Dish):
        courses: int = 3

    class Cheap(Dish):
        starters: ClassVar[int] = 0

    with pytest.raises(TypeError, match="Menu is not a dataclass, so courses would not be"):
        dishes.register("menu")(Menu)
    dishes.register("cheap")(Cheap)

    @dataclass(frozen=True)
    class Feast(Dish):
        _: KW_ONLY
        guests: int = 10

    dishes.register("feast")(Feast)
    assert dishes["cheap"] == Cheap(name="cheap")


def test_one_class_may_have_several_entries(dishes: Registry[Dish]):
    dishes.add("soup", Dish())
    feast = dishes.add("feast", Dish(price=50))
    assert feast == Dish(name="feast", price=50)
    assert dishes["feast"] is feast
    assert dishes["soup"].price == 5


def test_an_entry_cannot_be_changed(dishes: Registry[Dish]):
    dishes.add("soup", Dish())
    with pytest.raises(FrozenInstanceError):
        dishes["soup"].price = 1  # type: ignore[misc]


def test_names_are_walked_in_alphabetical_order(dishes: Registry[Dish]):
    for name in ("soup", "feast", "stew"):
        dishes.add(name, Dish())
    assert list(dishes) == ["feast", "soup", "stew"]
    assert len(dishes) == 3
    assert "soup" in dishes
    assert "pie" not in dishes


def test_a_taken_name_raises_and_leaves_the_first_entry(dishes: Registry[Dish]):
    dishes.add("soup", Dish())
    with pytest.raises(ValueError, match=r"^a dish 'soup' already exists: choose another"):
        dishes.add("soup", Dish(price=9))
    assert dishes["soup"].price == 5


def test_the_name_is_kept_in_the_field_that_the_registry_says():
    @dataclass(frozen=True, kw_only=True)
    class Model:
        arch: str = ""

    models: Registry[Model] = Registry("architecture", key="arch")
    assert models.add("base", Model()).arch == "base"


def test_an_unknown_name_is_answered_with_the_nearest(dishes: Registry[Dish]):
    dishes.add("soup", Dish())
    dishes.add("stew", Dish())
    with pytest.raises(NmtError, match=r"^unknown dish 'soop'; did you mean 'soup'\?$"):
        dishes["soop"]


def test_a_name_like_no_other_is_answered_with_all():
    assert unknown("dish", "xyz", ["stew", "soup"]) == "unknown dish 'xyz'; known: soup, stew"


def test_the_beginning_of_some_names_is_answered_with_these():
    known = ["stew_long", "stew_thin", "soup"]
    assert unknown("dish", "stew", known) == (
        "unknown dish 'stew'; names that begin like this: stew_long, stew_thin"
    )
    assert unknown("dish", "", known).startswith("unknown dish ''; known: soup, ")


ARCHITECTURES = (
    "bytenet conv_s2s conv_s2s_wmt_en_de gnmt gnmt_small gnmt_v2 rnnsearch transformer_base "
    "transformer_big transformer_big_en_fr transformer_iwslt_de_en transformer_tiny"
)
METRICS = "bleu chrf chrf++ comet paper_bleu ter tokenized_bleu"
PRECISIONS = "auto bf16 fp16 fp32 int8"
SCHEDULES = "constant cosine inverse_sqrt linear plateau"


@for_each(
    ("name", "known", "meant"),
    [
        ("transformer_wmt_en_de_big", ARCHITECTURES, "transformer_big"),
        ("transformer_vaswani_wmt_en_de_big", ARCHITECTURES, "transformer_big"),
        ("transformer_wmt_en_fr_big", ARCHITECTURES, "transformer_big_en_fr"),
        ("transformer_wmt_en_de", ARCHITECTURES, None),
        ("transformer", ARCHITECTURES, None),
        ("transformer_large", ARCHITECTURES, None),
        ("transformer-base", ARCHITECTURES, "transformer_base"),
        ("Transformer_Base", ARCHITECTURES, "transformer_base"),
        ("trasnformer_bse", ARCHITECTURES, "transformer_base"),
        ("transformer_base_v1", ARCHITECTURES, "transformer_base"),
        ("big", ARCHITECTURES, "transformer_big"),
        ("tiny", ARCHITECTURES, "transformer_tiny"),
        ("transformer_iwslt", ARCHITECTURES, "transformer_iwslt_de_en"),
        ("gnmt_v3", ARCHITECTURES, "gnmt_v2"),
        ("rnnsearch_large", ARCHITECTURES, "rnnsearch"),
        ("fconv_wmt_en_de", ARCHITECTURES, "conv_s2s_wmt_en_de"),
        ("convs2s", ARCHITECTURES, "conv_s2s"),
        ("lstm", ARCHITECTURES, None),
        ("bart", ARCHITECTURES, None),
        ("meteor", METRICS, None),
        ("bleurt", METRICS, None),
        ("bertscore", METRICS, None),
        ("wer", METRICS, None),
        ("hter", METRICS, None),
        ("rouge", METRICS, None),
        ("cometkiwi", METRICS, None),
        ("BLEU", METRICS, "bleu"),
        ("blue", METRICS, "bleu"),
        ("sacrebleu", METRICS, "bleu"),
        ("tre", METRICS, "ter"),
        ("chrF++", METRICS, "chrf++"),
        ("chrf2", METRICS, "chrf"),
        ("tokenised_bleu", METRICS, "tokenized_bleu"),
        ("token_bleu", METRICS, "tokenized_bleu"),
        ("comet-22", METRICS, "comet"),
        ("fp64", PRECISIONS, None),
        ("int4", PRECISIONS, None),
        ("int", PRECISIONS, "int8"),
        ("bp16", PRECISIONS, "bf16"),
        ("tf32", PRECISIONS, None),
        ("fp16", "auto bf16 fp32", None),
        ("cosine_annealing", SCHEDULES, "cosine"),
        ("reduce_lr_on_plateau", SCHEDULES, "plateau"),
        ("inverse_square_root", SCHEDULES, None),
        ("polynomial_decay", SCHEDULES, None),
        ("linear_warmup", SCHEDULES, "linear"),
        ("prenorm", "pre_norm post_norm", "pre_norm"),
        ("rmsnorm", "layer_norm rms_norm", "rms_norm"),
        ("norm", "pre_norm post_norm", None),
        ("cross_entropy", "smoothed_cross_entropy minimum_risk", "smoothed_cross_entropy"),
        ("sinusoid", "learned rotary sinusoidal", "sinusoidal"),
        ("beam_search", "beam diverse_beam greedy sample", "beam"),
        ("sampling", "beam diverse_beam greedy sample", "sample"),
        ("topk", "beam diverse_beam greedy sample", None),
        ("max_update", "max_minutes max_tokens max_updates", "max_updates"),
        ("max_steps", "max_minutes max_tokens max_updates", None),
        ("tokens_per_batch", "max_tokens tokens_per_update", "tokens_per_update"),
        ("beam_size", "beam pruning stop", "beam"),
        ("updates", "max_updates warmup_updates", None),
        ("training", "model search train", "train"),
        ("en-fr", "cs-en en-de", None),
        ("1", "11 2", None),
        ("", "beam greedy", None),
        ("anything", "", None),
    ],
)  # fmt: skip
def test_a_guess_is_right_or_none(name: str, known: str, meant: str | None):
    assert nearest(name, known.split()) == meant
