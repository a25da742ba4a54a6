"""Exports, and their translation by the engines that they are for."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fuzz.seals import seal

from nmt.data.vocabulary import BOS, EOS, PAD
from nmt.errors import NmtError
from nmt.formats import export_formats, export_run
from nmt.inference import Execution, Request, SearchConfig, Translator
from nmt.inference.ctranslate2 import CTranslate2Translator, check_execution, search_options
from nmt.inference.engines import load_translator
from nmt.inference.request import Sentence
from nmt.models import ModelConfig, architectures
from nmt.models.transformer.model import TransformerConfig
from nmt.recipe.config import build
from nmt.runs import Run, load_model, weights_of
from nmt.runs.exports import Export
from nmt.search import Greedy, Hypothesis
from nmt.subwords.subwords import Subwords

needs_ctranslate2 = pytest.mark.skipif(
    find_spec("ctranslate2") is None, reason="CTranslate2 is not installed"
)
USE_NMT = "use --engine nmt (in Python engine='nmt')"
SMALL = {
    "arch": "transformer_tiny",
    "encoder_layers": 2,
    "decoder_layers": 2,
    "d_model": 16,
    "d_ff": 32,
    "heads": 4,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "fused sinusoids": {"sinusoids": "concatenated"},
    "pre_norm": {"residual": "pre_norm"},
    "deep_norm": {"residual": "deep_norm", "decoder_layers": 3},
    "rms_norm": {"norm": "rms_norm"},
    "pre_norm with rms_norm": {"residual": "pre_norm", "norm": "rms_norm"},
    "gelu": {"feed_forward": "gelu"},
    "gelu by tanh": {"feed_forward": "gelu_tanh"},
    "swish": {"feed_forward": "swish"},
    "as in Marian": {"output_bias": True, "scale_embeddings": False, "norm_epsilon": 1e-5},
    "swiglu": {"feed_forward": "swiglu"},
    "learned": {"positions": {"name": "learned", "max_positions": 6}},
    "separate": {"positions": {"name": "learned", "max_positions": 60, "separate": True}},
    "from 2": {"positions": {"name": "sinusoidal", "offset": 2}},
    "rotary": {"positions": {"name": "rotary", "base": 500.0}},
    "relative": {"positions": {"name": "relative", "clip": 3}},
    "no positions": {"positions": "none"},
    "no biases": {"attention_bias": False},
    "multi-query": {"key_value_heads": 1},
    "grouped queries, relative": {"key_value_heads": 2, "positions": "relative"},
    "narrow heads": {"d_k": 3, "d_v": 3},
    "untied": {"tied_embeddings": "none"},
}


def random_run(path: Path, subwords: Subwords, end: float | None = None, **changes: Any) -> Path:
    """A run with random weights, sharp enough that no two outputs are as good as each other.

    Padding and the beginning of a sentence, which only nmt forbids, are never likely. With `end`,
    that is about the logit of the end of every sentence, and of others the likeliest is about 7.
    """
    recipe = {"model": {**SMALL, **changes}}
    config = build(ModelConfig, recipe["model"], "model")  # type: ignore[type-abstract]
    torch.manual_seed(1)
    model = config.build(subwords.source_size, subwords.target_size, subwords.shared)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.1 * torch.randn_like(weight)
        model.output.weight *= 3
        if model.output.bias is not None:
            model.output.bias[[PAD, BOS]] = 0.0
        model.output.weight[[PAD, BOS]] = 0.0
        if end is not None:
            model.output.weight -= model.output.weight.mean(dim=1, keepdim=True)
            model.output.weight[EOS] = end / SMALL["d_model"]
            model.decoder[-1].feed_forward_norm.bias.fill_(1.0)
    run = Run.create(
        path, languages=("en", "de"), identity="1", data="", recipe=recipe, subwords=subwords
    )
    run.save(1, weights_of(model), None, {}, {}, best=True)
    return path


def searched(**strategy: Any) -> SearchConfig:
    values = {"name": "beam", "stop": "first_beam", **strategy}
    return build(SearchConfig, {"strategy": values, "max_length_offset": 8}, "search")


def sentences(count: int) -> dict[int, Sentence]:
    draw = random.Random(1)
    rows = [draw.choices(range(4, 30), k=draw.randint(1, 9)) for _ in range(count)]
    return {at: Sentence([*row, EOS], [], []) for at, row in enumerate(rows)}


def both(path: Path, run: Path, config: SearchConfig) -> tuple[Translator, CTranslate2Translator]:
    """The engines for a run: this one, and the export's."""
    loaded = load_model(run)
    exported = export_run(run, export_formats["ctranslate2"], "fp32", path)
    native = Translator(loaded.model, loaded.subwords, config, languages=loaded.run.languages)
    return native, CTranslate2Translator(exported, config)


def assert_same(found: list[Hypothesis], theirs: list[Hypothesis]) -> None:
    assert (found[0].tokens, found[0].finished) == (theirs[0].tokens, theirs[0].finished)
    assert found[0].score == pytest.approx(theirs[0].score, abs=1e-3)
    assert found[0].log_probability == pytest.approx(theirs[0].log_probability, abs=1e-3)


@needs_ctranslate2
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_an_export_translates_as_the_model_does(
    changes: dict[str, Any], trained: Path, tmp_path: Path
) -> None:
    run = random_run(tmp_path / "run", Subwords.load(trained), **changes)
    native, exported = both(tmp_path / "exported", run, searched())
    given = sentences(20)
    ours, theirs = dict(native.find(given)), dict(exported.find(given))
    assert ours.keys() == theirs.keys()
    for at in given:
        assert_same(ours[at], theirs[at])


@needs_ctranslate2
@pytest.mark.parametrize(
    "penalty",
    [{"name": "none"}, {"name": "power", "alpha": 1.0}, {"name": "gnmt", "alpha": 0.6}],
    ids=lambda penalty: penalty["name"],
)
def test_all_hypotheses_are_ranked_as_the_recipe_says(
    penalty: dict[str, Any], trained: Path, tmp_path: Path
) -> None:
    run = random_run(tmp_path / "run", Subwords.load(trained), end=6.0)
    search = searched(beam=3, length_penalty=penalty)
    native, exported = both(tmp_path / "exported", run, search)
    alpha = search_options(search)["length_penalty"]
    assert alpha == pytest.approx(penalty.get("alpha", 0.0), abs=2e-6)
    assert alpha  # with 0 CTranslate2 would stop earlier
    given = sentences(20)
    ours, theirs = dict(native.find(given)), dict(exported.find(given))
    compared = [at for at in given if all(it.finished for it in ours[at])]
    assert len(compared) > 5
    for at in compared:
        assert [it.tokens for it in ours[at]] == [it.tokens for it in theirs[at]]
        for mine, other in zip(ours[at], theirs[at], strict=True):
            assert mine.score == pytest.approx(other.score, abs=1e-3)


@needs_ctranslate2
def test_batches_have_bounded_rows_and_the_longest_sources_first(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, exported = both(tmp_path / "exported", trained, replace(searched(beam=3), batch_tokens=100))
    engine, calls = exported._model.translator, list[list[int]]()

    def noted(batch: list[list[str]], **options: Any) -> Any:
        calls.append([len(source) + 1 for source in batch])  # and EOS
        return engine.translate_batch(batch, **options)

    double = SimpleNamespace(translate_batch=noted)
    monkeypatch.setattr(exported._model, "_of_process", (os.getpid(), double))
    lines = ["one two three four five six", "one", "one two three"]
    lines += [f"{first} {second}" for first in ("two", "three", "four") for second in lines]
    assert len(list(exported.translate(lines))) == len(lines)
    lengths = [length for call in calls for length in call]
    assert lengths == sorted(lengths, reverse=True)
    assert len(calls) > 1
    assert all(len(call) * call[0] <= 100 // 3 for call in calls)


@needs_ctranslate2
def test_the_threads_of_torch_stay_as_they_were(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = torch.get_num_threads()
    monkeypatch.setattr("nmt.inference.ctranslate2.available_cores", lambda: before + 1)
    run = random_run(tmp_path / "run", Subwords.load(trained))
    _, exported = both(tmp_path / "exported", run, searched())
    assert exported._model.translator is not None
    assert torch.get_num_threads() == before


@needs_ctranslate2
@pytest.mark.parametrize(
    "aligned",
    [{}, {"alignment_layer": 1}, {"alignment_layer": 2, "alignment_head": 3}],
    ids=["mean", "first layer", "one head"],
)
def test_attention_is_of_the_layer_and_head_of_the_recipe(
    aligned: dict[str, int], trained: Path, tmp_path: Path
) -> None:
    run = random_run(tmp_path / "run", Subwords.load(trained), **aligned)
    native, exported = both(tmp_path / "exported", run, searched())
    given = sentences(12)
    found = dict(native.find(given))
    rows = [it.source for it in given.values()], [found[at][0].output for at in given]
    for mine, other in zip(native.attention(*rows), exported.attention(*rows), strict=True):
        assert mine.shape == other.shape
        assert other[:, :-1] == pytest.approx(mine[:, :-1], abs=1e-4)
    blank = ["", "one two", ""], ["", "eins", "eins"]
    assert exported.align(*blank) == native.align(*blank)


@needs_ctranslate2
def test_lines_that_ctranslate2_cannot_search_alike_are_searched_in_torch(
    trained: Path, tmp_path: Path
) -> None:
    run = random_run(tmp_path / "run", Subwords.load(trained), end=6.0)
    native, exported = both(tmp_path / "exported", run, searched())
    mixed = CTranslate2Translator(exported._export, searched(), load_in_torch=lambda: native)
    given = sentences(12)
    given[0] = replace(given[0], prefix=[5])
    given[1] = replace(given[1], avoided=[[5], [6]])
    given[2] = replace(given[2], strategy=searched(stop="all_finished").strategy)
    given[3] = replace(given[3], strategy=searched(beam=2).strategy)
    asked: list[int] = []
    find = native.find
    native.find = lambda rest, count=1: (asked.extend(rest), find(rest, count))[1]  # type: ignore
    theirs = dict(mixed.find(given))
    assert sorted(asked) == [0, 1, 2]
    for at, ours in find(given):
        assert_same(ours, theirs[at])


@needs_ctranslate2
def test_windows_are_searched_ahead_and_come_in_order(trained: Path, tmp_path: Path) -> None:
    run = random_run(tmp_path / "run", Subwords.load(trained), end=6.0)
    _, exported = both(tmp_path / "exported", run, searched())
    exported.config = replace(exported.config, window=2)
    begun: list[int] = []
    find = exported.find
    exported.find = lambda some, count=1: (begun.append(len(some)), find(some, count))[1]  # type: ignore
    lines = ["a dog", "a man", "two dogs", "the man", "a", "", "dogs", "the", "a cat"]
    translations = exported.translate(lines)
    first = next(translations)
    assert begun == [2, 2]
    assert [first, *translations] == [*map(exported.translate_text, lines)]


@needs_ctranslate2
def test_greedy_search_and_scores_of_given_targets_agree(trained: Path, tmp_path: Path) -> None:
    run = random_run(tmp_path / "run", Subwords.load(trained), end=6.0)
    config = build(SearchConfig, {"strategy": "greedy", "max_length_offset": 8}, "search")
    native, exported = both(tmp_path / "exported", run, config)
    given = sentences(20)
    ours, theirs = dict(native.find(given)), dict(exported.find(given))
    assert {it[0].finished for it in ours.values()} == {True, False}
    for at in given:
        assert_same(ours[at], theirs[at])
    rows = [it.source for it in given.values()], [ours[at][0].output for at in given]
    for mine, other in zip(
        native.log_probabilities(*rows), exported.log_probabilities(*rows), strict=True
    ):
        assert mine == pytest.approx(other, abs=1e-3)


@needs_ctranslate2
def test_each_side_may_have_its_own_vocabulary(trained: Path, tmp_path: Path) -> None:
    model = (trained / "subwords.model").read_bytes()
    run = random_run(tmp_path / "run", Subwords(model, model), tied_embeddings="decoder")
    native, exported = both(tmp_path / "exported", run, searched())
    theirs = dict(exported.find(sentences(5)))
    for at, hypotheses in native.find(sentences(5)):
        assert_same(hypotheses, theirs[at])


@needs_ctranslate2
def test_weights_may_be_stored_in_fewer_bits(trained: Path, tmp_path: Path) -> None:
    kind, sizes = export_formats["ctranslate2"], []
    for stored in ("fp32", "bf16", "int8"):
        path = export_run(trained, kind, stored, tmp_path / stored).path
        sizes.append((path / "model.bin").stat().st_size)
        description = json.loads((path / "export.json").read_text())
        assert (description["stored"], description["target_lang"]) == (stored, "de")
    assert max(sizes[1:]) < sizes[0]


@needs_ctranslate2
def test_the_commands(trained: Path, corpus: Path, tmp_path: Path, nmt: Callable[..., Any]) -> None:
    path = tmp_path / "exported"
    done = nmt("export", "--format", "ctranslate2", "--model", trained, "--output", path)
    assert (done.status, done.out) == (0, f"{path}\n")
    assert done.err == f"exported {trained} to ctranslate2\n"
    beam = ("--strategy", "beam")
    for flags in ((), beam, (*beam, "--n-best", 2)):
        native = nmt(
            *("translate", corpus / "test.en", "--model", trained, *flags), *("--engine", "nmt")
        )
        theirs = nmt(
            *("translate", corpus / "test.en", "--model", path, *flags),
            *("--engine", "ctranslate2"),
        )
        assert theirs.status == 0, theirs.err
        texts = [
            [line.split(" ||| ")[:2] for line in done.out.splitlines()] for done in (native, theirs)
        ]
        assert texts[0] == texts[1]


@needs_ctranslate2
def test_what_only_the_own_engine_has_is_refused(
    trained: Path, corpus: Path, tmp_path: Path, nmt: Callable[..., Any]
) -> None:
    path = tmp_path / "exported"
    nmt("export", "--model", trained, "--output", path)
    flags = ("--engine", "ctranslate2", "--compile", "--model", path)
    done = nmt("translate", corpus / "test.en", *flags)
    assert (done.status, done.out) == (1, "")
    assert done.err == f"nmt: error: compile: an export does not run in torch; {USE_NMT}\n"
    with pytest.raises(NmtError, match="shortlist: for CTranslate2 on a CPU alone; use --engine"):
        check_execution(Execution(device="cuda", shortlist=True))


def test_an_export_stops_as_its_engine_does_without_being_asked() -> None:
    beam = {"name": "beam", "beam": 7, "stop": "optimistic"}
    for name, stop in (("ctranslate2", "first_beam"), ("onnx", "optimistic")):
        begins = export_formats[name].search({"strategy": beam, "max_source_length": 50})
        assert begins == {"strategy": {**beam, "stop": stop}, "max_source_length": 50}
    for search in ({}, {"strategy": {"name": "greedy"}}):
        assert export_formats["ctranslate2"].search(search) == search


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"arch": "rnnsearch_small"}, "arch rnnsearch_small"),
    ({"arch": "conv_s2s_small"}, "arch conv_s2s_small"),
    ({**SMALL, "positions": "alibi"}, "positions alibi"),
    ({**SMALL, "decoder_attention": "neighbourhood"}, "decoder_attention neighbourhood"),
    ({**SMALL, "d_k": 2, "d_v": 3}, "d_k other than d_v"),
]


@needs_ctranslate2
@pytest.mark.parametrize(("model", "what"), REFUSED, ids=[what for _, what in REFUSED])
def test_what_ctranslate2_cannot_run_is_refused_by_name(
    model: dict[str, Any], what: str, trained: Path, tmp_path: Path
) -> None:
    config = build(ModelConfig, model, "model")  # type: ignore[type-abstract]
    loaded = replace(load_model(trained), recipe={"model": model}, model=config.build(60, 60, True))
    with pytest.raises(NmtError) as error:
        export_formats["ctranslate2"].write(loaded, "fp32", tmp_path)
    assert str(error.value) == (
        f"{trained}: CTranslate2 cannot run a model with {what}; translate with nmt itself"
    )
    assert list(tmp_path.iterdir()) == []


@needs_ctranslate2
def test_a_transformer_that_a_plugin_changes_is_refused(trained: Path, tmp_path: Path) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Changed(TransformerConfig):
        pass

    loaded = load_model(trained)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(architectures, "_entries", {"changed": Changed(arch="changed")})
        changed = replace(loaded, recipe={"model": {"arch": "changed"}})
        with pytest.raises(NmtError, match="cannot run a model with arch changed; translate with"):
            export_formats["ctranslate2"].write(changed, "fp32", tmp_path)
    assert list(tmp_path.iterdir()) == []


SEARCHES: list[tuple[dict[str, Any], str]] = [
    (
        {"strategy": {"name": "beam", "stop": "optimistic"}},
        "search.strategy.stop optimistic: CTranslate2 stops as first_beam does; "
        f"set search.strategy.stop to first_beam, or {USE_NMT}",
    ),
    (
        {"strategy": {"name": "beam", "stop": "first_beam", "pruning": 3.0}},
        f"search.strategy.pruning: CTranslate2 has nothing like it; {USE_NMT}",
    ),
    (
        {"strategy": "sample"},
        f"search.strategy sample: CTranslate2 has beam and greedy search alone; {USE_NMT}",
    ),
    (
        {"strategy": "greedy", "constraints": ["forbidden"]},
        "search.constraints: CTranslate2 lets the remaining tokens share the probability; "
        + USE_NMT,
    ),
    (
        {"strategy": "greedy", "coverage_penalty": 0.2},
        f"search.coverage_penalty: CTranslate2 computes it otherwise; {USE_NMT}",
    ),
    (
        {"strategy": "greedy", "max_source_length": 3000},
        "search: translations of up to 3050 pieces, but CTranslate2 has 2048 positions; "
        "lower search.max_source_length",
    ),
]


@pytest.mark.parametrize(("search", "message"), SEARCHES, ids=[it[1][:30] for it in SEARCHES])
def test_a_search_that_ctranslate2_does_otherwise_is_refused(
    search: dict[str, Any], message: str
) -> None:
    with pytest.raises(NmtError) as error:
        search_options(build(SearchConfig, search, "search"))
    assert str(error.value) == message


def test_a_strategy_of_a_plugin_is_not_greedy_search() -> None:
    class Mine(Greedy):
        """Another search."""

    with pytest.raises(NmtError, match=r"^search\.strategy mine: CTranslate2 has beam and greedy"):
        search_options(SearchConfig(strategy=Mine(name="mine")))


@needs_ctranslate2
def test_what_is_asked_of_single_lines_is_refused(trained: Path, tmp_path: Path) -> None:
    exported = export_run(trained, export_formats["ctranslate2"], "fp32", tmp_path / "exported")
    translator = CTranslate2Translator(
        exported, build(SearchConfig, {"strategy": "greedy"}, "search")
    )
    with pytest.raises(
        NmtError, match="CTranslate2 has no such requirements on single lines; use --engine"
    ):
        list(translator.translations([Request("one", avoid=("eins",))]))


@needs_ctranslate2
def test_a_precision_that_ctranslate2_has_not_here_is_refused(
    trained: Path, tmp_path: Path
) -> None:
    exported = export_run(trained, export_formats["ctranslate2"], "fp32", tmp_path / "exported")
    config = build(SearchConfig, {"strategy": "greedy"}, "search")
    with pytest.raises(NmtError, match="precision fp16: CTranslate2 cannot compute in it on this"):
        CTranslate2Translator(exported, config, Execution(precision="fp16"))


@needs_ctranslate2
def test_decoders_of_ctranslate2_have_one_thread_each_and_threads_belong_to_one_decoder(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported = export_run(trained, export_formats["ctranslate2"], "fp32", tmp_path / "exported")
    config = build(SearchConfig, {"strategy": "greedy"}, "search")
    monkeypatch.setattr("nmt.inference.ctranslate2.available_cores", lambda: 5)
    asked: list[tuple[int, int]] = []

    def note(*_: object, inter_threads: int, intra_threads: int, **__: object) -> None:
        asked.append((inter_threads, intra_threads))

    monkeypatch.setattr("ctranslate2.Translator", note)
    for execution in (
        Execution(workers=3, threads=1),
        Execution(workers=1, threads=1),
        Execution(threads=2),
        Execution(workers=3),
        Execution(),
    ):
        assert CTranslate2Translator(exported, config, execution)._model.translator is None
    assert asked == [(3, 1), (1, 1), (1, 2), (3, 1), (1, 5)]


def test_without_ctranslate2_the_remedy_is_named(
    trained: Path, tmp_path: Path, nmt: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "exported"
    path.mkdir()
    for module in ("ctranslate2", "ctranslate2.specs"):
        monkeypatch.setitem(sys.modules, module, None)
    done = nmt("export", "--model", trained, "--output", path)
    assert (done.status, done.err) == (
        1,
        "nmt: error: exporting to ctranslate2 needs CTranslate2; pip install ctranslate2\n",
    )
    assert list(tmp_path.rglob("*")) == [path]
    with pytest.raises(NmtError, match=r"^engine ctranslate2 needs CTranslate2; pip install"):
        CTranslate2Translator(
            Export(path, "ctranslate2", Subwords.load(trained), ("en", "de"), {}),
            build(SearchConfig, {"strategy": "greedy"}, "search"),
        )


FACTS = {"bytes": 1, "sha256": 64 * "0"}


def written(directory: Path, **changes: Any) -> Path:
    """A directory with the description of an export, whose checksum fits it."""
    values = {"format": "nmt-export", "version": 3, "engine": "ctranslate2", "stored": "fp32"}
    values |= {"source_lang": "en", "target_lang": "de", "files": {}, **changes}
    (directory / "export.json").write_text(json.dumps(values))
    seal(directory / "export.json")
    return directory


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "/export.json: damaged: not a document of format nmt-export; make"),
        ({"version": 1}, "/export.json: format version 1, but this nmt reads version 3; make it"),
        ({"engine": "other"}, ": an export for other, not for ctranslate2; give the run as"),
        ({"stored": "fp64"}, "/export.json: damaged: values.stored: unknown value 'fp64'"),
        ({"files": {"/dev/zero": FACTS}}, "/export.json: damaged: values: '/dev/zero' is not the"),
        ({"files": {"../a": FACTS}}, "/export.json: damaged: values: '../a' is not the name of a"),
        ({}, "/subwords.model: no such subword model; make it again with nmt export"),
    ],
)
def test_an_export_of_another_kind_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(NmtError) as error:
        Export.open(written(tmp_path, **changes), "ctranslate2")
    assert str(error.value).startswith(f"{tmp_path}{message}")


@needs_ctranslate2
def test_damage_to_any_file_of_an_export_is_named(
    trained: Path, corpus: Path, tmp_path: Path, nmt: Callable[..., Any]
) -> None:
    path = export_run(trained, export_formats["ctranslate2"], "fp32", tmp_path / "exported").path
    names = sorted(file.name for file in path.iterdir())
    assert {"export.json", "model.bin", "recipe.yaml", "subwords.model"} < {*names}
    for name in names:
        content = (path / name).read_bytes()
        for damaged in (content[:-9], content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]):
            (path / name).write_bytes(damaged)
            done = nmt("translate", corpus / "test.en", "--model", path)
            assert (done.status, done.out, done.err.count("\n")) == (1, "", 1)
            assert done.err.startswith(f"nmt: error: {path / name}: ")
        (path / name).write_bytes(content)
    (path / "model.bin").unlink()
    os.mkfifo(path / "model.bin")
    done = nmt("translate", corpus / "test.en", "--model", path)
    assert done.err.startswith(f"nmt: error: {path / 'model.bin'}: not a regular file")


@needs_ctranslate2
@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("model.bin", b"\6\0\0\0", "File model.bin is incomplete"),
        ("config.json", b"{}", "type must be string"),
        ("shared_vocabulary.json", b'["<s>"]', "does not hold the tokens of the subwords"),
    ],
)
def test_a_forged_export_costs_one_line(
    trained: Path, tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    path = export_run(trained, export_formats["ctranslate2"], "fp32", tmp_path / "exported").path
    (path / name).write_bytes(content)
    seal(path / name)
    config = build(SearchConfig, {"strategy": "greedy"}, "search")
    with pytest.raises(NmtError, match=f"^{path}: CTranslate2 cannot use it: .*{said}.*; make"):
        list(CTranslate2Translator(Export.open(path, "ctranslate2"), config).translations(["one"]))


def test_runs_and_exports_are_not_taken_for_each_other(
    trained: Path, corpus: Path, tmp_path: Path, nmt: Callable[..., Any]
) -> None:
    def refusal(*arguments: object) -> str:
        done = nmt("translate", corpus / "test.en", *arguments)
        assert (done.status, done.out) == (1, "")
        return str(done.err)

    exported, engine = written(tmp_path), ("--engine", "ctranslate2")
    for flags in (("--model", trained), ("--engine", "nmt")):
        assert refusal("--model", exported, *flags) == (
            f"nmt: error: {exported}: an export, not a run; translate it alone and "
            "use --engine ctranslate2 (in Python engine='ctranslate2'), or give the run that was "
            "exported\n"
        )
    assert refusal("--model", exported, "--model", exported, *engine) == (
        f"nmt: error: engine ctranslate2: one model, not 2; {USE_NMT}\n"
    )
    assert refusal("--engine", "ctranslate") == (
        "nmt: error: unknown engine 'ctranslate'; did you mean 'ctranslate2'?\n"
    )


def test_mistaken_exports_cost_one_line(
    trained: Path, tmp_path: Path, nmt: Callable[..., Any]
) -> None:
    (tmp_path / "mine").write_text("my own\n")
    done = nmt("export", "--model", trained, "--output", tmp_path)
    assert (done.status, done.err) == (
        1,
        f"nmt: error: {tmp_path}: holds something other than an export; choose another --output\n",
    )
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    done = nmt("export", "--model", trained, "--output", tmp_path / "x", "--precision", "int")
    assert done.err == "nmt: error: --precision: unknown value 'int'; did you mean 'int8'?\n"
    done = nmt("export", "--model", trained, "--output", tmp_path / "x", "--format", "tflite")
    assert done.err == (
        "nmt: error: unknown export format 'tflite'; known: argos, bergamot, ctranslate2, "
        "huggingface, marian, onnx\n"
    )


@needs_ctranslate2
def test_auto_exports_once_for_each_checkpoint(
    run: Path, corpus: Path, nmt: Callable[..., Any]
) -> None:
    command = ("translate", corpus / "test.en", "--model", run)
    native = nmt(*command, "--engine", "nmt")
    first = nmt(*command)
    [export] = (run / "exports").iterdir()
    assert first.err.startswith(f"engine ctranslate2: {export}\n")
    assert first.out == native.out
    made = (export / "model.bin").stat().st_mtime_ns
    again = nmt(*command, "--engine", "auto")
    assert again.out == native.out
    assert (export / "model.bin").stat().st_mtime_ns == made
    assert nmt("inspect", run, "--verify").status == 0
    other = nmt(*command[:3], run / "update_0000002", "--engine", "auto")
    assert other.status == 0
    both = {path.name.partition("-")[0] for path in (run / "exports").iterdir()}
    assert both == {export.name.partition("-")[0], "update_0000002"}


@needs_ctranslate2
def test_auto_takes_nmt_where_the_disk_is_full(
    run: Path, corpus: Path, nmt: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    shutil.rmtree(run / "exports", ignore_errors=True)
    monkeypatch.setattr("nmt.formats.export_run", full)
    command = ("translate", corpus / "test.en", "--model", run)
    done = nmt(*command, "--engine", "auto")
    place = run / "exports"
    assert done.err.startswith(f"engine nmt: {place}: cannot be written: No space left on device; ")
    assert done.out == nmt(*command, "--engine", "nmt").out


@needs_ctranslate2
def test_auto_removes_only_exports_of_checkpoints_that_are_gone(
    run: Path, corpus: Path, nmt: Callable[..., Any]
) -> None:
    shutil.rmtree(run / "exports", ignore_errors=True)
    digest = "0123456789ab"
    kept = {".update_0000002-0123456789ab.partial-1", "mine", f"update_0000002-{digest}"}
    for name in (*kept, f"update_0000001-{digest}", f"update_0000004-{digest}"):
        (run / "exports" / name).mkdir(parents=True)
    assert not (run / "update_0000001").exists()
    command = ("translate", corpus / "test.en", "--model", run / "update_0000004")
    assert nmt(*command, "--engine", "auto").status == 0
    names = {path.name for path in (run / "exports").iterdir()}
    assert names > kept
    [made] = names - kept
    assert made.startswith("update_0000004-")
    assert not made.endswith(digest)


@needs_ctranslate2
@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (
            ("--strategy", "beam", "--stop", "optimistic"),
            "search.strategy.stop optimistic: CTranslate2 stops as",
        ),
        (("--strategy", "sample"), "search.strategy sample: CTranslate2 has beam and greedy"),
    ],
    ids=["stop", "sample"],
)
def test_auto_takes_nmt_where_a_setting_means_something_else(
    flags: tuple[str, ...], reason: str, run: Path, corpus: Path, nmt: Any
) -> None:
    command = ("translate", corpus / "test.en", "--model", run, *flags)
    done = nmt(*command, "--engine", "auto")
    assert done.err.startswith(f"engine nmt: {reason}")
    assert done.out == nmt(*command, "--engine", "nmt").out


@needs_ctranslate2
def test_auto_takes_nmt_for_models_that_ctranslate2_has_not(trained: Path, tmp_path: Path) -> None:
    run = random_run(tmp_path / "run", Subwords.load(trained), decoder_attention="ssru")
    translator = load_translator(run, engine="auto", strategy="greedy")
    assert isinstance(translator, Translator)
    said = "CTranslate2 cannot run a model with decoder_attention ssru"
    assert said in translator.engine
    both = load_translator(run, run, engine="auto", strategy="greedy")
    assert both.engine == "nmt: an ensemble"
