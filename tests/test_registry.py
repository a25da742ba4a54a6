from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass

import pytest

from nmt.errors import NmtError
from nmt.registry import Registry, unknown


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
    with pytest.raises(ValueError, match=r"^dish 'soup' is registered twice$"):
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
