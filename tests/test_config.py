from __future__ import annotations

import time
from abc import ABC
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

import pytest
import yaml
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st

from nmt.errors import NmtError
from nmt.recipe.config import (
    MayChange,
    build,
    changeable,
    dump,
    flatten,
    json_values,
    parse_assignment,
    parse_yaml,
    set_path,
)
from nmt.recipe.registry import Registry


@dataclass(frozen=True, kw_only=True)
class Schedule(ABC):
    registry: ClassVar[Registry[Schedule]]
    name: str = ""


schedules: Registry[Schedule] = Registry("schedule")
Schedule.registry = schedules


@schedules.register("constant")
@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    rate: float = 0.5


@schedules.register("warmup")
@dataclass(frozen=True, kw_only=True)
class Warmup(Schedule):
    updates: int = 4000

    def __post_init__(self) -> None:
        if self.updates < 1:
            raise ValueError(f"updates must be at least 1, not {self.updates}")


schedules.add("long_warmup", Warmup(updates=9000))


@dataclass(frozen=True, kw_only=True)
class Clip:
    norm: float = 0.0
    kind: Literal["norm", "value"] = "norm"


@dataclass(frozen=True, kw_only=True)
class Train:
    updates: int = 100
    rate: float = 1.0
    label: str = "run"
    fast: bool = False
    betas: tuple[float, float] = (0.9, 0.98)
    devices: tuple[int, ...] = (0,)
    patience: int | None = None
    size: int | Literal["auto"] = "auto"
    precision: Literal["fp32", "bf16"] = "fp32"
    clip: Clip = field(default_factory=lambda: Clip(norm=2.0))
    schedule: Schedule = schedules["warmup"]
    stages: tuple[Schedule, ...] = ()
    extra: Schedule | None = None


def test_what_is_not_given_keeps_its_default():
    assert build(Train, {}, "train") == Train()
    assert build(Train, None, "train") == Train()


@for_each(
    ("key", "text", "value"),
    [
        ("updates", "7", 7),
        ("updates", "1e5", 100_000),
        ("updates", "2.0", 2),
        ("rate", "3", 3.0),
        ("rate", "1e-4", 0.0001),
        ("rate", "1.e-4", 0.0001),
        ("label", "big", "big"),
        ("label", "17", "17"),
        ("label", "1.5", "1.5"),
        ("fast", "true", True),
        ("betas", "[0.9, 1]", (0.9, 1.0)),
        ("devices", "[2, 3]", (2, 3)),
        ("devices", "[]", ()),
        ("devices", "5", (5,)),
        ("patience", "3", 3),
        ("patience", "null", None),
        ("size", "auto", "auto"),
        ("size", "12", 12),
        ("precision", "bf16", "bf16"),
        ("clip", "{norm: 1}", Clip(norm=1.0)),
        ("clip", "null", Clip(norm=2.0)),
        ("schedule", "constant", schedules["constant"]),
        ("extra", "constant", schedules["constant"]),
        ("extra", "null", None),
    ],
)
def test_a_yaml_value_becomes_the_type_of_its_field(key: str, text: str, value: object):
    made = getattr(build(Train, parse_yaml(f"{key}: {text}", "file"), "train"), key)
    assert made == value
    assert type(made) is type(value)


@for_each(
    ("key", "text", "message"),
    [
        ("updates", "2.5", "train.updates: expected a whole number, not 2.5"),
        ("updates", "true", "train.updates: expected a whole number, not True"),
        ("updates", "many", "train.updates: expected a whole number, not 'many'"),
        ("updates", ".inf", "train.updates: expected a whole number, not inf"),
        ("updates", ".nan", "train.updates: expected a whole number, not nan"),
        ("updates", "null", "train.updates: expected a whole number, not nothing"),
        ("updates", "[1]", "train.updates: expected a whole number, not [1]"),
        ("updates", "1e30", "train.updates: expected a whole number, not '1e30'"),
        (
            "updates",
            "9223372036854775808",
            "train.updates: expected a whole number below 2^63, not 9223372036854775808",
        ),
        ("updates", "0.5", "train.updates: expected a whole number, not 0.5"),
        ("rate", "fast", "train.rate: expected a number, not 'fast'"),
        ("rate", ".nan", "train.rate: expected a number, not nan"),
        ("rate", "false", "train.rate: expected a number, not False"),
        ("label", "no", "train.label: expected text, not False; put it in quotes"),
        ("label", "{a: 1}", "train.label: expected text, not {'a': 1}"),
        ("fast", "1", "train.fast: expected true or false, not 1"),
        ("fast", "maybe", "train.fast: expected true or false, not 'maybe'"),
        ("betas", "[1, 2, 3]", "train.betas: expected 2 values, not 3"),
        ("betas", "[1, b]", "train.betas: expected a number, not 'b'"),
        ("devices", "[x]", "train.devices: expected a whole number, not 'x'"),
        ("patience", "soon", "train.patience: expected a whole number, not 'soon'"),
        ("size", "atuo", "train.size: unknown value 'atuo'; did you mean 'auto'?"),
        ("precision", "fp16", "train.precision: unknown value 'fp16'; known: bf16, fp32"),
        ("precision", "8", "train.precision: unknown value '8'; known: bf16, fp32"),
        ("clip", "3", "train.clip: expected keys and values, not 3"),
        ("clip", "{nrom: 1}", "train.clip: unknown key 'nrom'; did you mean 'norm'?"),
        ("clip", "{kind: vlaue}", "train.clip.kind: unknown value 'vlaue'; did you mean 'value'?"),
        ("updatse", "3", "train: unknown key 'updatse'; did you mean 'updates'?"),
        ("3", "3", "train: unknown key '3'; known: betas, clip, devices, extra, fast, label, "),
        ("schedule", "warm", "train.schedule: unknown schedule 'warm'; did you mean 'warmup'?"),
        ("schedule", "{name: cosine}", "train.schedule: unknown schedule 'cosine'; known: constan"),
        ("schedule", "7", "train.schedule: expected keys and values, not 7"),
        ("schedule", "{rate: 3}", "train.schedule: warmup has no key 'rate'; constant has it: set"),
        ("schedule", "{updates: 0}", "train.schedule: updates must be at least 1, not 0"),
        ("schedule", "{updates: x}", "train.schedule.updates: expected a whole number, not 'x'"),
        ("extra", "{rate: 3}", "train.extra: say which schedule: constant, long_warmup, warmup"),
        ("stages", "[constant, wramup]", "train.stages: unknown schedule 'wramup'; did you mean"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_place(key: str, text: str, message: str):
    with pytest.raises(NmtError) as error:
        build(Train, parse_yaml(f"{key}: {text}", "file"), "train")
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_the_cases_above_refuse_a_value_for_every_field():
    cases = test_a_value_that_does_not_fit_is_refused_with_its_place.cases
    assert {case["key"] for case in cases} >= {each.name for each in fields(Train)}


def test_a_number_that_no_float_holds_is_refused():
    with pytest.raises(NmtError, match=r"^train.rate: expected a number, not 1000"):
        build(Train, {"rate": 10**400}, "train")


def test_a_section_must_be_keys_and_values():
    with pytest.raises(NmtError, match=r"^train: expected keys and values, not \['updates'\]$"):
        build(Train, ["updates"], "train")


def test_a_field_without_a_default_must_be_given():
    @dataclass(frozen=True, kw_only=True)
    class Corpus:
        source: str
        target: str
        limit: int = 10

    assert build(Corpus, {"source": "a", "target": "b"}, "data").limit == 10
    with pytest.raises(NmtError, match=r"^data: source, target must be given$"):
        build(Corpus, {"limit": 3}, "data")
    assert build(Corpus, {"limit": 3}, "data", Corpus(source="a", target="b")).source == "a"


def test_a_field_of_a_type_that_no_recipe_can_hold_is_a_mistake_of_the_programmer():
    @dataclass(frozen=True, kw_only=True)
    class Wrong:
        values: set[int] = field(default_factory=set)

    with pytest.raises(TypeError, match=r"^wrong.values: a field of a recipe cannot be a set"):
        build(Wrong, {"values": [1]}, "wrong")


@dataclass(frozen=True, kw_only=True)
class Named:
    clips: dict[str, Clip] = field(default_factory=dict)
    anything: dict[str, Any] = field(default_factory=dict)


def test_keys_may_be_chosen_freely_while_their_values_have_a_type():
    values = {"clips": {"a": {"norm": 1}}, "anything": {"b": [1, "2"]}}
    named = Named(clips={"a": Clip(norm=1.0)}, anything={"b": [1, "2"]})
    assert build(Named, values, "named") == named
    assert build(Named, dump(named), "named") == named
    with pytest.raises(NmtError, match=r"^named.clips.a: unknown key 'nrm'; did you mean 'norm'"):
        build(Named, {"clips": {"a": {"nrm": 1}}}, "named")
    with pytest.raises(NmtError, match=r"^named.clips: expected keys and values, not \[1\]$"):
        build(Named, {"clips": [1]}, "named")


def test_values_override_a_base_and_leave_the_rest_of_it():
    base = Train(updates=5, clip=Clip(norm=7.0), schedule=Constant(name="constant", rate=0.1))
    made = build(Train, {"rate": 2, "clip": {"kind": "value"}}, "train", base)
    assert made == Train(
        updates=5,
        rate=2.0,
        clip=Clip(norm=7.0, kind="value"),
        schedule=Constant(name="constant", rate=0.1),
    )
    assert build(Train, {"schedule": {"rate": 3}}, "train", base).schedule == Constant(
        name="constant", rate=3.0
    )


def test_a_mapping_without_a_name_overrides_the_default_choice():
    assert build(Train, {"schedule": {"updates": 7}}, "train").schedule == Warmup(
        name="warmup", updates=7
    )


def test_a_mapping_with_a_name_overrides_that_entry():
    values = {"schedule": {"name": "constant", "rate": 2}}
    assert build(Train, values, "train").schedule == Constant(name="constant", rate=2.0)
    assert build(Train, {"schedule": "long_warmup"}, "train").schedule == Warmup(
        name="long_warmup", updates=9000
    )


def test_a_section_may_itself_be_a_choice():
    assert build(Schedule, "constant", "schedule") == schedules["constant"]
    assert build(Schedule, {"updates": 3}, "schedule", Warmup(name="warmup")).updates == 3
    with pytest.raises(NmtError, match=r"^schedule: say which schedule: constant, long_warmup, "):
        build(Schedule, None, "schedule")


def test_a_tuple_of_choices_takes_names_and_mappings():
    values = {"stages": ["constant", {"name": "warmup", "updates": 3}]}
    assert build(Train, values, "train").stages == (
        schedules["constant"],
        Warmup(name="warmup", updates=3),
    )


whole = st.integers(-(2**63) + 1, 2**63 - 1)
stages = st.one_of(
    st.builds(Constant, name=st.just("constant"), rate=st.floats(allow_nan=False)),
    st.builds(Warmup, name=st.just("warmup"), updates=st.integers(1, 2**63 - 1)),
)
trains = st.builds(
    Train,
    updates=whole,
    rate=st.floats(allow_nan=False),
    label=st.text(st.characters(codec="ascii")),
    fast=st.booleans(),
    betas=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    devices=st.lists(whole).map(tuple),
    patience=st.none() | whole,
    size=st.just("auto") | whole,
    precision=st.sampled_from(["fp32", "bf16"]),
    clip=st.builds(Clip, norm=st.floats(0, 10), kind=st.sampled_from(["norm", "value"])),
    schedule=stages,
    stages=st.lists(stages, max_size=3).map(tuple),
    extra=st.none() | stages,
)


@given(trains)
def test_dumped_values_build_the_same_again_also_by_way_of_a_file(train: Train):
    assert build(Train, dump(train), "train") == train
    text = yaml.safe_dump(dump(train))
    assert build(Train, parse_yaml(text, "file"), "train") == train


def test_dump_gives_plain_values():
    assert dump(Train(schedule=schedules["constant"], stages=(schedules["constant"],))) == {
        "updates": 100,
        "rate": 1.0,
        "label": "run",
        "fast": False,
        "betas": [0.9, 0.98],
        "devices": [0],
        "patience": None,
        "size": "auto",
        "precision": "fp32",
        "clip": {"norm": 2.0, "kind": "norm"},
        "schedule": {"name": "constant", "rate": 0.5},
        "stages": [{"name": "constant", "rate": 0.5}],
        "extra": None,
    }


@for_each(
    ("before", "path", "after"),
    [
        ({}, "a", {"a": 1}),
        ({}, "a.b.c", {"a": {"b": {"c": 1}}}),
        ({"a": {"b": 0, "c": 2}}, "a.b", {"a": {"b": 1, "c": 2}}),
        ({"a": None}, "a.b", {"a": {"b": 1}}),
        ({"loss": "nll"}, "loss.smoothing", {"loss": {"name": "nll", "smoothing": 1}}),
        ({"loss": "nll"}, "loss", {"loss": 1}),
    ],
)
def test_a_value_is_put_at_its_path(before: dict[str, Any], path: str, after: dict[str, Any]):
    set_path(before, path, 1)
    assert before == after


def test_a_path_through_a_plain_value_is_refused():
    with pytest.raises(NmtError, match=r"^train.updates.max: 'updates' has no keys of its own$"):
        set_path({"train": {"updates": 3}}, "train.updates.max", 4)


def test_an_assignment_is_a_path_and_a_yaml_value():
    assert parse_assignment("train.updates=3") == ("train.updates", 3)
    assert parse_assignment("score.metrics=[bleu, ter]") == ("score.metrics", ["bleu", "ter"])
    assert parse_assignment("a.b=x=y") == ("a.b", "x=y")
    assert parse_assignment("a.b =") == ("a.b", None)


@for_each("text", ["train.updates", "=3", ""])
def test_an_assignment_needs_a_path_and_an_equals_sign(text: str):
    with pytest.raises(NmtError) as error:
        parse_assignment(text)
    assert str(error.value) == f"--set {text}: expected section.key=value"


@for_each(
    ("text", "message"),
    [
        ("a: 1\nb: [1", "file: line 2: not valid YAML: expected ',' or ']', but got"),
        ("a: !!python/object:os.system x", "file: line 1: not valid YAML: could not determine"),
        ("a:\n  b: 1\n  c: 2\n  b: 3", "file: line 4: not valid YAML: key 'b' is given twice"),
        ("[1]: 2", "file: line 1: not valid YAML: found unhashable key"),
        ("a: \x00", "file: not valid YAML: special characters are not allowed"),
    ],
)
def test_text_that_is_not_yaml_costs_one_line_with_its_place(text: str, message: str):
    with pytest.raises(NmtError) as error:
        parse_yaml(text, "file")
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def _bomb(opening: str, item: str, closing: str) -> str:
    """Ten lines, each of which stands for ten times the values of the line before."""
    lines = ["a0: &a0 {x: 1}"]
    for level in range(1, 10):
        items = ", ".join([item.format(level - 1)] * 10)
        lines.append(f"a{level}: &a{level} {opening}{items}{closing}")
    return "\n".join(lines)


LISTS, MERGES = _bomb("[", "*a{}", "]"), _bomb("{<<: [", "*a{}", "]}")


@for_each(
    ("text", "message"),
    [
        (LISTS, "file: line 5: not valid YAML: more than 20,000 values, aliases counted"),
        (MERGES, "file: line 5: not valid YAML: more than 20,000 values, aliases counted"),
        ("[" + 30_000 * "1," + "]", "file: line 1: not valid YAML: more than 20,000 values"),
        ("a: &a [*a]", "file: line 1: not valid YAML: alias 'a' is inside its own value"),
        (100_000 * "[", "file: line 1: not valid YAML: more than 40 levels of nested values"),
        (100_000 * "{a: ", "file: line 1: not valid YAML: more than 40 levels of nested values"),
        (100_000 * "- ", "file: line 1: not valid YAML: more than 40 levels of nested values"),
        ("a: " + 5000 * "9", "file: line 1: not valid YAML: a number of 5,000 characters"),
        ("a: 0x" + 5000 * "f", "file: line 1: not valid YAML: a number of 5,002 characters"),
        ("a: 1" + 50_000 * ":1", "file: line 1: not valid YAML: a number of 100,001 characters"),
        ("a: 2024-13-45", "file: line 1: not valid YAML: '2024-13-45' is not a value of type time"),
        ("a: !!bool x", "file: line 1: not valid YAML: 'x' is not a value of type bool"),
        ("a: !!int ''", "file: line 1: not valid YAML: '' is not a value of type int"),
        ("a: !!timestamp x", "file: line 1: not valid YAML: 'x' is not a value of type timestamp"),
    ],
)
def test_yaml_that_stands_for_too_much_costs_one_line_at_once(text: str, message: str):
    began = time.process_time()
    with pytest.raises(NmtError) as error:
        parse_yaml(text, "file")
    assert time.process_time() - began < 5
    assert str(error.value).startswith(message)


def test_as_many_values_as_a_recipe_needs_are_read():
    text = "[" + 19_000 * "1," + "]"
    assert parse_yaml(text, "file") == 19_000 * [1]


def test_yaml_anchors_may_be_merged_and_overridden():
    text = "base: &base {a: 1, b: 2}\nnext: {<<: *base, b: 3}"
    assert parse_yaml(text, "file")["next"] == {"a": 1, "b": 3}


def test_nested_keys_are_flattened_to_dotted_paths():
    assert flatten({"a": {"b": 1, "c": {"d": [2]}}, "e": None}) == {
        "a.b": 1,
        "a.c.d": [2],
        "e": None,
    }


def test_infinite_numbers_are_text_in_json_and_are_read_again() -> None:
    values = {"name": "constant", "rate": float("inf")}
    assert json_values([values, {"a": [float("-inf"), 1, None]}]) == [
        {"name": "constant", "rate": "inf"},
        {"a": ["-inf", 1, None]},
    ]
    assert build(Schedule, json_values(values), "schedule") == Constant(**values)  # type: ignore[type-abstract]


def test_a_key_of_an_inner_part_is_answered_with_its_path() -> None:
    from nmt.training.config import TrainConfig

    with pytest.raises(
        NmtError, match=r"'warmup_updates'; did you mean 'schedule.warmup_updates'\?$"
    ):
        build(TrainConfig, {"warmup_updates": 5}, "train")


def test_a_key_of_another_choice_is_answered_with_that_choice() -> None:
    from nmt.training.config import TrainConfig

    for values, message in (
        (
            {"schedule": {"name": "linear", "lr": 1, "shrink": 0.5}},
            "train.schedule: linear has no key 'shrink'; plateau has it: set train.schedule to "
            "plateau, or leave the key out",
        ),
        (
            {"schedule": {"name": "linear", "lr": 1, "final_share": 0.5}},
            "train.schedule: linear has no key 'final_share'; cosine and plateau have it: set "
            "train.schedule to cosine, or leave the key out",
        ),
    ):
        with pytest.raises(NmtError) as error:
            build(TrainConfig, values, "train")
        assert str(error.value) == message


@dataclass(frozen=True)
class Limits:
    size: int = 1
    steps: MayChange[int | None] = None


def test_fields_that_a_resumed_run_may_change_are_marked_by_their_type() -> None:
    assert changeable(Limits) == ["steps"]
    assert build(Limits, {"steps": "3"}, "limits") == Limits(steps=3)
