import json
import math
import re
import shutil

import pytest
import torch
from html_checker import Checker
from test_export import random_run

from nmt.preprocess.binarize import preprocess
from nmt.preprocess.config import PreprocessConfig
from nmt.recipe.config import json_values
from nmt.runs import Run
from nmt.runs.recipe import write_recipe
from nmt.subwords.subwords import Subwords


def write(directory, name, pairs):
    for number, side in enumerate(("en", "de")):
        text = "".join(f"{pair[number]}\n" for pair in pairs)
        (directory / f"{name}.{side}").write_text(text, encoding="utf-8")


def test_a_dataset_is_shown_with_what_became_of_its_text(tmp_path, monkeypatch, nmt):
    monkeypatch.chdir(tmp_path)
    pairs = [("one  two", "eins zwei"), ("same", "same"), *[("one", "eins")] * 3]
    write(tmp_path, "train", pairs)
    write(tmp_path, "valid", [("two", "zwei")])
    preprocess(
        PreprocessConfig(
            source_lang="en",
            target_lang="de",
            train=("train",),
            valid="valid",
            vocab_size=19,
            byte_fallback=False,
            workers=1,
        )
    )
    done = nmt("preprocess", "-s", "en", "-t", "de", "--train", "train", "--valid", "valid",
               "--subword-model", "data-bin", "--output-dir", "clean", "--workers", 1,
               "--set", "preprocess.max_length_ratio=.inf",
               *("--clean", "spaces", "--clean", "identical", "--clean", "duplicates"))  # fmt: skip
    assert done.status == 0, done.err
    assert "lines rewritten: 1 by spaces\n" in done.err
    shown = nmt("inspect", "clean", "--examples", 1, "--verify")
    assert (shown.status, shown.err) == (0, "")
    lines = shown.out.splitlines()
    assert lines[0] == "dataset of format 3, en to de"
    assert "dropped from train: 1 identical, 2 duplicates" in lines
    assert "spaces: 'one  two' | 'one two'" in lines
    assert "identical: 'same' | 'same'" in lines
    assert lines.count("duplicates: 'one' | 'eins'") == 2
    assert any(line.startswith("train en tokens a sentence: mean ") for line in lines)
    (pair,) = [line for line in lines if line.startswith("pair ")]
    assert re.fullmatch(r"pair 0: ▁.* </s> \| ▁.* </s>", pair)
    manifest = json.loads((tmp_path / "clean" / "manifest.json").read_bytes())
    assert lines[-2:] == [f"fingerprint: {manifest['fingerprint']}", "checksums: as written"]
    described = json.loads(nmt("inspect", "clean", "--json").out, parse_constant=pytest.fail)
    assert described == json_values(manifest)


def test_what_cleaning_dropped_is_shown_as_a_page(tmp_path, monkeypatch, nmt):
    monkeypatch.chdir(tmp_path)
    hostile = "</script><script>alert(1)</script> & <b>one</b>"
    write(tmp_path, "train", [(hostile, hostile), ("one  two", "eins"), *[("one", "eins")] * 12])
    write(tmp_path, "valid", [("two", "zwei")])
    done = nmt("preprocess", "-s", "en", "-t", "de", "--train", "train", "--valid", "valid",
               "--vocab-size", 280, "--workers", 1,
               *("--clean", "identical", "--clean", "spaces", "--clean", "duplicates"))  # fmt: skip
    assert done.status == 0, done.err
    done = nmt("inspect", "data-bin", "--html", "page.html")
    assert (done.status, done.out, done.err) == (0, "", "")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    page = Checker(text)
    assert (page.open, page.referred, page.scripts[1:]) == ([], [], ["\n\n"])
    assert set(page.labelled) <= set(page.ids)
    page.assert_outline()
    assert 'dir="auto">&lt;/script&gt;&lt;script&gt;alert(1)' in text
    document = json.loads(page.scripts[0])
    assert document["dropped"] == {"identical": 1, "duplicates": 11}
    assert document["rewritten"] == {"spaces": 1}
    assert len(document["examples"]["duplicates"]) == 10
    assert text.count('<td dir="auto">one</td>') == 10
    assert "prefers-color-scheme: dark" in text
    shown = nmt("inspect", "data-bin").out.splitlines()
    assert shown.count("duplicates: 'one' | 'eins'") == 3


def test_a_page_is_for_a_dataset(run, dataset, nmt):
    done = nmt("inspect", run, "--html", run / "page.html")
    assert (done.status, "a run, but --html is for a dataset" in done.err) == (1, True)
    assert not (run / "page.html").exists()
    assert nmt("inspect", dataset, "--html", "page.html", "--json").status == 2


def test_a_dataset_in_shards_is_shown_as_one(tmp_path, recipe, corpus, nmt):
    prefixes = [f"--{split}={corpus / split}" for split in ("train", "valid", "test")]
    for shard in ("1/2", "2/2"):
        places = ("--output-dir", tmp_path / "shards", "--shard", shard)
        assert nmt("preprocess", "--config", recipe, *prefixes, *places).status == 0
    done = nmt("inspect", tmp_path / "shards", "--verify")
    assert done.status == 0, done.err
    assert re.search(r"^train +200 ", done.out, re.M)
    assert done.out.endswith("checksums: as written\n")


def test_damage_is_found_when_it_is_looked_for(tmp_path, dataset, nmt):
    copy = shutil.copytree(dataset, tmp_path / "copy")
    content = bytearray((copy / "train.de.tokens").read_bytes())
    content[4] ^= 1
    (copy / "train.de.tokens").write_bytes(content)
    assert nmt("inspect", copy).status == 0
    done = nmt("inspect", copy, "--verify")
    assert done.status == 1
    assert "train.de.tokens: the content has changed since it was written" in done.err


def test_a_run_is_shown_with_its_checkpoints(run, dataset, nmt):
    done = nmt("inspect", run, "--verify")
    assert done.status == 0, done.err
    head, data, *checkpoints, engine, verified = done.out.splitlines()
    assert head == "run, en to de, transformer_tiny"
    fingerprint = json.loads((dataset / "manifest.json").read_bytes())["fingerprint"]
    assert data == f"trained on the dataset with fingerprint {fingerprint}"
    assert [line.split(":")[0] for line in checkpoints] == [
        "update_0000002",
        "update_0000004",
        "update_0000006",
    ]
    assert " | loss " in checkpoints[2]
    assert " | last" in checkpoints[2]
    assert engine == "engine on a CPU: ctranslate2, after an export at the first translation"
    assert verified == "checksums: as written"
    described = json.loads(nmt("inspect", run, "--json").out)
    assert [it["update"] for it in described["checkpoints"]] == [2, 4, 6]
    weights = run / "update_0000004" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    damaged = nmt("inspect", run, "--verify")
    assert damaged.status == 1
    assert "update_0000004/model.safetensors: " in damaged.err


def test_the_engine_of_a_run_is_the_one_that_translates_it(run, corpus, nmt):
    recipe = Run.open(run).recipe
    write_recipe(run, {**recipe, "search": {"strategy": "greedy"}})
    said = "engine on a CPU: ctranslate2"
    assert f"\n{said}, after an export at the first translation\n" in nmt("inspect", run).out
    assert not (run / "exports").exists()
    done = nmt("translate", corpus / "test.en", "--model", run)
    [export] = (run / "exports").iterdir()
    assert done.err.startswith(f"engine ctranslate2: {export}\n")
    assert f"\n{said}: {export}\n" in nmt("inspect", run).out


def test_the_engine_is_nmt_where_ctranslate2_cannot_run_the_model(tmp_path, trained, corpus, nmt):
    run = random_run(tmp_path / "run", Subwords.load(trained), decoder_attention="ssru")
    write_recipe(run, {**Run.open(run).recipe, "search": {"strategy": "greedy"}})
    done = nmt("translate", corpus / "test.en", "--model", run)
    engine = f"nmt: {run}: CTranslate2 cannot run a model with decoder_attention ssru; "
    assert f"\nengine {engine}" in f"\n{done.err}"
    assert f"\nengine on a CPU: {engine}" in nmt("inspect", run).out
    beam = {"name": "beam", "stop": "optimistic"}
    write_recipe(run, {**Run.open(run).recipe, "search": {"strategy": beam}})
    assert "\nengine on a CPU: nmt: search.strategy.stop optimistic: " in nmt("inspect", run).out


def test_the_json_of_a_run_holds_no_number_that_json_lacks(run, nmt):
    opened = Run.open(run)
    train = {**opened.recipe["train"], "clip_norm": math.inf}
    write_recipe(run, {**opened.recipe, "train": train})
    scores = {"loss": 800.0, "perplexity": math.inf, "bleu": math.nan}
    opened.save(8, {"a": torch.zeros(1)}, None, {}, scores, best=False)
    described = json.loads(nmt("inspect", run, "--json").out, parse_constant=pytest.fail)
    assert described["recipe"]["train"]["clip_norm"] == "inf"
    newest = described["checkpoints"][-1]["scores"]
    assert newest == {"loss": 800.0, "perplexity": None, "bleu": None}


@pytest.mark.parametrize(
    "name",
    [
        "run.json",
        "recipe.yaml",
        "subwords.model",
        "shortlist.safetensors",
        "update_0000004/checkpoint.json",
        "update_0000004/model.safetensors",
        "update_0000006/optimizer.safetensors",
    ],
)
def test_damage_to_any_file_of_a_run_is_named(name, run, dataset, nmt):
    if name == "shortlist.safetensors":
        assert nmt("shortlist", "--data", dataset, "--model", run).status == 0
    assert nmt("inspect", run, "--verify").status == 0
    content = bytearray((run / name).read_bytes())
    content[-5] ^= 1
    (run / name).write_bytes(content)
    done = nmt("inspect", run, "--verify")
    assert (done.status, done.err.count("\n")) == (1, 1)
    assert done.err.startswith(f"nmt: error: {run / name}: ")
    assert "checksums" not in done.out


def test_all_damaged_checkpoints_are_named(run, nmt):
    paths = sorted(run.glob("update_*/checkpoint.json"))
    for path in paths:
        path.write_text("{}")
    done = nmt("inspect", run, "--verify")
    assert done.status == 1
    assert all(f"{path.parent.name}: {path}: damaged: " in done.out for path in paths)
    assert all(f"\n{path}: damaged: " in done.out for path in paths)
    assert done.err.startswith(f"nmt: error: {paths[0]}: damaged: ")
    assert done.err.endswith(" (and 2 more)\n")
    assert nmt("inspect", run).status == 0


def test_a_link_to_nothing_is_damage(run, nmt):
    shutil.rmtree(run / "update_0000006")
    done = nmt("inspect", run, "--verify")
    assert done.status == 1
    assert f"{run / 'last'}: leads to update_0000006, which is missing" in done.err


def test_a_run_that_was_not_validated_says_so(run, nmt):
    assert "no best checkpoint yet" not in nmt("inspect", run).out
    (run / "best").unlink()
    done = nmt("inspect", run, "--verify")
    assert done.status == 0, done.err
    assert "no best checkpoint yet: validation has measured none\n" in done.out


def test_what_is_neither_is_refused(tmp_path, nmt):
    done = nmt("inspect", tmp_path)
    assert (done.status, done.out) == (1, "")
    assert done.err.endswith(
        ": made neither by `nmt preprocess` nor by `nmt train`; give a dataset or a run\n"
    )
