from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from for_each import for_each

from nmt.cli.recipe import Recipe, load, read
from nmt.errors import NmtError


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    return tmp_path


def write(text: str, name: str = "nmt.yaml") -> Path:
    path = Path(name)
    path.write_text(text, encoding="utf-8")
    return path


def message(*arguments: object) -> str:
    with pytest.raises(NmtError) as error:
        load(*arguments)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
    return str(error.value)


def test_without_a_recipe_everything_is_silent():
    recipe = load(None, None, {})
    assert recipe == Recipe({})
    assert recipe.section("train") == {}


def test_the_recipe_of_the_current_directory_is_read_unless_another_is_named():
    write("search: {window: 4}")
    other = write("search: {window: 8}", "other.yaml")
    assert load(None, None, {}).section("search") == {"window": 4}
    assert load(other, None, {}).section("search") == {"window": 8}


def test_flags_win_over_assignments_over_the_file_over_the_base():
    write("train: {data: file, device: file, save_dir: file}")
    base = {"train": dict.fromkeys(("init_from", "data", "device", "save_dir"), "base")}
    recipe = load(
        None, ["train.device=set", "train.save_dir=set"], {"train.save_dir": "flag"}, base
    )
    assert recipe.section("train") == {
        "init_from": "base", "data": "file", "device": "set", "save_dir": "flag",
    }  # fmt: skip


def test_a_flag_that_is_not_given_changes_nothing():
    write("train: {seed: 3}")
    recipe = load(None, None, {"train.seed": None, "train.updates": None})
    assert recipe.section("train") == {"seed": 3}


def test_a_flag_that_is_false_or_zero_is_given():
    write("train: {seed: 3, compile: true}")
    recipe = load(None, None, {"train.seed": 0, "train.compile": False})
    assert recipe.section("train") == {"seed": 0, "compile": False}


def test_the_last_assignment_of_a_key_wins():
    assert load(None, ["train.seed=1", "train.seed=2"], {}).section("train") == {"seed": 2}


def test_the_base_is_not_changed():
    base = {"train": {"loss": {"name": "nll"}}}
    load(None, ["train.loss.smoothing=0.1"], {"train.seed": 1}, base)
    assert base == {"train": {"loss": {"name": "nll"}}}


def test_keys_of_the_same_choice_are_merged():
    write("train: {schedule: {warmup: 9}}")
    base = {"train": {"schedule": {"name": "cosine", "warmup": 4, "end": 100}}}
    assert load(None, None, {}, base).section("train") == {
        "schedule": {"name": "cosine", "warmup": 9, "end": 100}
    }


@pytest.mark.parametrize("strategy", ["beam", "{name: beam}"])
def test_a_recipe_that_names_the_same_choice_keeps_its_keys(strategy: str):
    write(f"search: {{strategy: {strategy}}}")
    base = {"search": {"strategy": {"name": "beam", "beam": 6}}}
    assert load(None, None, {}, base).section("search") == base["search"]


def test_a_recipe_that_names_another_choice_keeps_none_of_its_keys():
    write("search: {strategy: greedy}")
    base = {"search": {"strategy": {"name": "beam", "beam": 6}}}
    assert load(None, None, {}, base).section("search") == {"strategy": "greedy"}


def test_a_flag_that_names_the_same_choice_keeps_its_keys():
    base = {"search": {"strategy": {"name": "beam", "beam": 6}}}
    recipe = load(None, None, {"search.strategy": "beam", "search.strategy.beam": None}, base)
    assert recipe.section("search") == {"strategy": {"name": "beam", "beam": 6}}


def test_an_assignment_of_a_name_alone_keeps_the_keys_before():
    base = {"train": {"schedule": {"name": "inverse_sqrt", "lr": 0.1}}}
    recipe = load(None, ["train.schedule.name=constant"], {}, base)
    assert recipe.section("train") == {"schedule": {"name": "constant", "lr": 0.1}}


def test_a_flag_that_chooses_a_part_and_keys_of_it_go_together():
    base = {"search": {"strategy": {"name": "sample", "top_k": 6}}}
    flags = {"search.strategy.beam": 8, "search.strategy": "beam"}
    recipe = load(None, ["search.strategy.stop=bound"], flags, base)
    assert recipe.section("search") == {"strategy": {"name": "beam", "stop": "bound", "beam": 8}}


@pytest.mark.parametrize("key", ["name", "arch"])
def test_another_choice_leaves_nothing_of_the_one_before(key: str):
    write(f"train: {{schedule: {{{key}: constant, rate: 1}}}}")
    base = {"train": {"seed": 1, "schedule": {key: "cosine", "warmup": 4}}}
    assert load(None, None, {}, base).section("train") == {
        "seed": 1,
        "schedule": {key: "constant", "rate": 1},
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("preprocess: {vocab_siez: 8}", "preprocess: unknown key 'vocab_siez'; did you mean "),
        ("train: {}\nscore: {metric: bleu}", "score: unknown key 'metric'; did you mean 'metrics'"),
    ],
)
def test_each_command_refuses_keys_that_no_section_has(text: str, expected: str):
    write(text)
    assert message(None, None, {}).startswith(f"nmt.yaml: {expected}")
    assert message(Path(os.devnull), [f"{text.split(':')[0]}.seeed=1"], {}).startswith(
        f"{text.split(':')[0]}: unknown key 'seeed'"
    )


def test_keys_of_a_model_depend_on_its_architecture():
    write("model: {arch: of_a_plugin, its_own_key: 3}")
    assert load(None, None, {}).section("model") == {"arch": "of_a_plugin", "its_own_key": 3}


def test_training_takes_the_dataset_that_the_recipe_makes_unless_it_names_another():
    write("preprocess: {output_dir: made}\ntrain: {seed: 1}")
    assert load(None, None, {}).section("train") == {"data": "made", "seed": 1}
    assert load(None, ["train.data=other"], {}).section("train")["data"] == "other"
    assert "data" not in load(None, None, {}).section("search")


@for_each("text", ["", "# nothing\n", "train:\n", "train: {}\n"])
def test_a_recipe_or_a_section_may_be_empty(text: str):
    write(text)
    assert load(None, None, {}).section("train") == {}


def test_plugins_are_imported_from_beside_the_recipe_and_are_no_section(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.delitem(sys.modules, "my_plugin", raising=False)
    write("imported = True", "my_plugin.py")
    given = write("plugins: [my_plugin]\ntrain: {seed: 1}")
    assert load(given, None, {}) == Recipe({"train": {"seed": 1}}, plugins=("my_plugin",))
    assert sys.modules["my_plugin"].imported
    del sys.modules["my_plugin"]


def test_a_plugin_that_cannot_be_imported_is_named():
    assert message(write("plugins: [no_such_plugin]"), None, {}) == (
        "nmt.yaml: cannot import the plugin 'no_such_plugin': No module named 'no_such_plugin'; "
        f"looked in {Path.cwd()} and where Python looks"
    )


@for_each(
    ("text", "expected"),
    [
        ("trian: {}", "nmt.yaml: unknown section 'trian'; did you mean 'train'?"),
        (
            "1: {}",
            "nmt.yaml: unknown section '1'; known: model, preprocess, score, search, train; "
            "`nmt recipe` converts configurations of other toolkits",
        ),
        (
            "max_updates: 3",
            "nmt.yaml: max_updates: a key without its section; did you mean 'train.max_updates'?",
        ),
        ("- train", "nmt.yaml: expected sections (preprocess, model, train, search, score)"),
        ("train", "nmt.yaml: expected sections (preprocess, model, train, search, score)"),
        ("train: 3", "nmt.yaml: train: expected keys and values"),
        ("train: [seed]", "nmt.yaml: train: expected keys and values"),
        ("train:\n  seed: [1", "nmt.yaml: line 2: not valid YAML: expected ',' or ']', but got "),
        ("train:\n  seed: 1\n  seed: 2", "nmt.yaml: line 3: not valid YAML: key 'seed' is given"),
    ],
)
def test_a_file_that_is_no_recipe_costs_one_line_with_its_place(text: str, expected: str):
    write(text)
    assert message(None, None, {}).startswith(expected)


def test_a_recipe_that_is_asked_for_must_exist():
    expected = (
        "other.yaml: cannot read the recipe: No such file or directory; "
        "check the path, or write one with `nmt init`"
    )
    assert message(Path("other.yaml"), None, {}) == expected
    with pytest.raises(NmtError, match="cannot read the recipe"):
        read(Path("other.yaml"))


def test_a_recipe_must_be_utf8():
    Path("nmt.yaml").write_bytes(b"train: {name: m\xfcde}")
    assert message(None, None, {}) == "nmt.yaml: cannot read the recipe: not UTF-8"


@pytest.mark.parametrize("name", [None, "other.yaml"])
def test_a_file_too_large_for_a_recipe_is_not_read(name: str | None):
    config = Path(name) if name else None
    path = config or Path("nmt.yaml")
    expected = f"{path}: cannot read the recipe: larger than 1,048,576 bytes"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    assert message(config, None, {}) == expected
    assert message(Path("/dev/zero"), None, {}) == expected.replace(str(path), "/dev/zero")


def test_a_pipe_that_is_found_is_not_waited_for():
    os.mkfifo("nmt.yaml")
    assert message(None, None, {}).startswith("nmt.yaml: not a regular file")


def test_a_recipe_that_is_asked_for_may_come_from_a_pipe():
    read_end, write_end = os.pipe()
    os.write(write_end, b"train: {seed: 7}")
    os.close(write_end)
    try:
        assert read(Path(f"/dev/fd/{read_end}")) == {"train": {"seed": 7}}
    finally:
        os.close(read_end)


@for_each(
    ("assignment", "expected"),
    [
        ("trian.seed=1", "--set trian.seed: unknown section 'trian'; did you mean 'train'?"),
        (
            "max_updates=3",
            "--set max_updates: a key without its section; did you mean 'train.max_updates'?",
        ),
        ("lr=3", "--set lr: a key without its section; did you mean 'train.schedule.lr'?"),
        ("beam=3", "--set beam: a key without its section; did you mean 'search.strategy.beam'?"),
        ("train=1", "--set train: expected section.key=value"),
        ("train.seed", "--set train.seed: expected section.key=value"),
        ("train.seed=[", "--set train.seed: line 1: not valid YAML: "),
        ("train.seed.x=1", "train.seed.x: 'seed' has no keys of its own"),
    ],
)
def test_an_assignment_that_cannot_be_made_costs_one_line(assignment: str, expected: str):
    write("train: {seed: 3}")
    assert message(None, [assignment], {}).startswith(expected)
