"""`nmt init`: a recipe for a corpus and a machine."""

from __future__ import annotations

import itertools
import os
import random
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import yaml
from for_each import for_each

from nmt.advice import advise
from nmt.advice import facts as held_out
from nmt.advice.facts import (
    Pair,
    Sketch,
    compatibility_characters,
    lines_that_occur_once,
    survey,
)
from nmt.advice.machine import Machine
from nmt.advice.rules import (
    SIZES,
    CorpusFacts,
    RecipeValue,
    as_text,
    candidates,
    choices,
    plan,
    subword_sampling,
)
from nmt.data.dataset import Dataset
from nmt.errors import NmtError
from nmt.evaluation import ScoreConfig
from nmt.inference import SearchConfig
from nmt.models import ModelConfig
from nmt.preprocess.config import PreprocessConfig
from nmt.preprocess.corpus import Bitext
from nmt.recipe.config import build
from nmt.subwords.learning import vocab_size_for
from nmt.training.augmentation import SampledSplit
from nmt.training.config import TrainConfig

LANGUAGES = ("en", "de")
SECTIONS = {
    "preprocess": PreprocessConfig,
    "model": ModelConfig,
    "train": TrainConfig,
    "search": SearchConfig,
    "score": ScoreConfig,
}
PAIRS = (1_000, 5_000, 29_000, 160_000, 900_000, 4_500_000, 40_000_000)
MINUTES = (None, 0.1, 3, 10, 60, 600, 10_000)
SPEEDS = {
    "cpu": {"tiny": 9000.0, "small": 4500.0, "medium": 900.0, "base": 400.0, "big": 100.0},
    "cuda": {"tiny": 1e6, "small": 8e5, "medium": 5e5, "base": 4e5, "big": 2e5},
}


def facts(pairs: int) -> CorpusFacts:
    """A corpus without repeated pairs."""
    return CorpusFacts(
        source_lang="en",
        target_lang="de",
        train=("corpus/train",),
        valid="corpus/valid",
        test="corpus/test",
        pairs=pairs,
        distinct=pairs,
        target_tokens=20.0,
        valid_pairs=1000,
        vocab_size=vocab_size_for(pairs),
        byte_fallback=True,
    )


def decide(pairs: int, device: str, minutes: float | None) -> list[RecipeValue]:
    """The recipe for a corpus on a machine."""
    chosen = plan(facts(pairs), SPEEDS[device], device, minutes)
    return list(choices(facts(pairs), chosen, device))


def sections_of(values: list[RecipeValue]) -> Any:
    """The sections of the recipe, as its text gives them."""
    return yaml.safe_load(as_text(values, ["head"]))


every_case = for_each(
    ("pairs", "device", "minutes"), list(itertools.product(PAIRS, SPEEDS, MINUTES))
)


@every_case
def test_a_recipe_loads_and_fits_together(pairs: int, device: str, minutes: float | None) -> None:
    values = decide(pairs, device, minutes)
    loaded = sections_of(values)
    for choice in values:
        shown: Any = loaded
        for key in choice.key.split("."):
            shown = shown[int(key) if key.isdecimal() else key]
        assert shown == choice.value
    sections = {name: build(kind, loaded[name], name) for name, kind in SECTIONS.items()}
    assert set(loaded) == set(SECTIONS)
    train: Any = sections["train"]
    assert 0 < train.schedule.warmup_updates < train.max_updates
    assert train.valid_every <= train.max_updates
    assert train.log_every <= train.valid_every
    assert train.max_minutes == (minutes and 2 * minutes)
    # Without a limit of time, training may go on.
    assert train.schedule.depends_on_max_updates == (minutes is not None)


@every_case
def test_training_ends_in_time_at_the_measured_speed(
    pairs: int, device: str, minutes: float | None
) -> None:
    chosen = plan(facts(pairs), SPEEDS[device], device, minutes)
    seconds = chosen.seconds(chosen.updates)
    assert seconds == pytest.approx(
        chosen.updates * chosen.tokens_per_update / SPEEDS[device][chosen.size.name]
    )
    assert chosen.warmup_updates <= max(1, chosen.updates // 4)
    assert 0.9 <= chosen.ema_decay < 1
    if minutes is not None:
        assert seconds <= 60 * minutes
        assert chosen.size is SIZES[0] or 60 * minutes * chosen.speed >= chosen.size.needs


@every_case
def test_a_kill_costs_a_tenth_of_the_training_or_half_an_hour(
    pairs: int, device: str, minutes: float | None
) -> None:
    chosen = plan(facts(pairs), SPEEDS[device], device, minutes)
    train = sections_of(decide(pairs, device, minutes))["train"]
    end, lost = chosen.seconds(chosen.updates), chosen.seconds(train["save_every"])
    assert lost <= max(1.05 * min(end / 10, 1800), chosen.seconds(1))
    assert lost >= min(end / 50, 1700)  # else training would do little but save


def test_more_text_or_more_time_never_takes_a_smaller_model() -> None:
    names = [size.name for size in SIZES]
    for device in SPEEDS:
        by_time = [
            [names.index(plan(facts(n), SPEEDS[device], device, m).size.name) for m in MINUTES[1:]]
            for n in PAIRS
        ]
        for row in (*by_time, *zip(*by_time, strict=True)):
            assert list(row) == sorted(row)


def test_a_model_that_was_not_timed_is_not_chosen() -> None:
    chosen = plan(facts(29_000), {"tiny": 1e6}, "cpu", 60)
    assert chosen.size.name == "tiny"


def test_without_a_limit_of_time_the_corpus_decides() -> None:
    sizes = [plan(facts(n), SPEEDS["cpu"], "cpu", None).size.name for n in PAIRS]
    assert sizes == ["small"] * 3 + ["medium"] * 2 + ["base", "big"]
    paper = plan(facts(4_500_000), SPEEDS["cuda"], "cuda", None)
    assert (paper.tokens_per_update, paper.warmup_updates) == (25_000, 4000)


def test_small_models_have_the_positions_that_learn_sooner() -> None:
    found = [sections_of(decide(n, "cpu", None))["model"].get("positions") for n in PAIRS]
    assert found == ["rotary"] * 3 + [None] * 4


def test_a_text_that_is_seen_often_gets_more_dropout() -> None:
    rates = [sections_of(decide(5_000, "cuda", m))["model"]["dropout"] for m in (0.01, 1, 60)]
    assert rates == sorted(rates)
    assert rates[0] < rates[-1]


def test_a_short_training_ends_with_a_rate_of_zero_and_is_searched_for_long_translations() -> None:
    for minutes, schedule, penalty in ((10, "linear", "power"), (None, "inverse_sqrt", "gnmt")):
        sections = sections_of(decide(160_000, "cpu", minutes))
        assert sections["train"]["schedule"]["name"] == schedule
        assert sections["search"]["strategy"]["length_penalty"]["name"] == penalty
    assert sections_of(decide(900_000, "cpu", 3))["model"]["dropout"] == 0  # seen less than once


def test_reasons_stand_beside_the_values() -> None:
    text = as_text(
        [RecipeValue("train.max_updates", 300, "enough"), RecipeValue("train.seed", 1, "")], ["a"]
    )
    assert text == f"# a\n\ntrain:\n{'  max_updates: 300':<34}  # enough\n  seed: 1\n"
    few = replace(facts(1_000), valid_pairs=25, vocab_size=400, byte_fallback=False)
    values = choices(few, plan(few, SPEEDS["cpu"], "cpu", 1), "cpu")
    reasons = {choice.key: choice.reason for choice in values}
    assert reasons["preprocess.vocab_size"] == "the text is too small for 2,000"
    assert reasons["train.best_metric"] == "BLEU of 25 pairs is mostly chance"
    assert "preprocess.byte_fallback" in reasons
    assert "too little text in 0:01:00" in reasons["model.arch"]


def test_characters_that_nfkc_replaces_are_kept_where_a_text_has_many() -> None:
    assert (
        compatibility_characters(["\uff0c\u4eba\u3002\u4eba", "abc\u00a0\u00e9 e\u0301"]) == 1 / 9
    )
    assert compatibility_characters([]) == 0
    for share, kept in ((0.005, None), (0.06, "identity")):
        chinese = replace(facts(1_000), compatibility=share)
        values = choices(chinese, plan(chinese, SPEEDS["cpu"], "cpu", 1), "cpu")
        assert sections_of([*values])["preprocess"].get("normalization") == kept


def test_a_limit_of_time_says_how_many_updates_it_holds() -> None:
    reasons = {choice.key: choice.reason for choice in decide(29_000, "cpu", 2)}
    assert reasons["train.max_updates"] == "0:02:00 at 9,000 target tokens/s; the text 1.9 times"


def test_candidates_begin_with_the_largest_model() -> None:
    assert [size.name for size in candidates(900_000)] == ["medium", "small", "tiny"]


def sketch(pairs: list[tuple[str, str]], size: int) -> Sketch:
    """A sketch of pairs."""
    filled = Sketch(size)
    for source, target in pairs:
        filled.add(source, target)
    return filled


def test_a_sample_has_each_repeated_pair_once_in_any_order() -> None:
    pairs = [(f"s{n}", f"t{n}") for n in range(300)] + [("s7", "t7")] * 4
    turned = random.Random(1).sample(pairs, len(pairs))
    for size in (10, 1000):
        one, other = sketch(pairs, size).survey(), sketch(turned, size).survey()
        assert one == other
        assert one.pairs == 304
        assert len(one.sample) == min(size, 300)
    assert one.distinct == 300
    assert one.is_whole
    assert {(pair.source, pair.target) for pair in one.sample} == set(pairs)


def test_tabs_within_sides_make_no_pairs_equal() -> None:
    assert sketch([("a\tb", "c"), ("a", "b\tc")], 10).survey().distinct == 2


def test_repeated_pairs_are_counted_in_a_corpus_beyond_the_sample() -> None:
    pairs = [(f"s{n}", f"t{n}") for n in range(300)]
    seen = sketch([*pairs, *pairs[:3]], 20).survey()
    assert (seen.distinct, seen.is_counted, seen.is_whole) == (300, True, False)
    counted = replace(facts(303), distinct=300)
    assert (counted.distinct_pairs, counted.repeated) == ("300 distinct pairs", "3 (1.0%)")
    estimated = replace(counted, pairs=12_543_000, distinct=12_345_678, is_counted=False)
    assert estimated.distinct_pairs == "about 12,000,000 distinct pairs"
    assert estimated.repeated == "about 1.6%"


def test_distinct_pairs_are_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.advice.facts.COUNTED", 30_000)
    pairs = [(f"s{n % 20_000}", "t") for n in range(50_000)]
    seen = sketch(pairs, 2000).survey()
    assert not seen.is_whole
    assert not seen.is_counted
    assert seen.distinct == pytest.approx(20_000, rel=0.08)


@pytest.mark.parametrize(
    ("train", "files", "valid"),
    [
        ("corpus/train", ["corpus/val.en", "corpus/val.de"], "corpus/val"),
        ("corpus/train", ["corpus/dev.en.gz", "corpus/dev.de"], "corpus/dev"),
        ("corpus/train.tok", ["corpus/valid.tok.en", "corpus/valid.tok.de"], "corpus/valid.tok"),
        ("mine", ["validation.en", "validation.de"], "validation"),
        ("train.tsv", ["valid.tsv"], "valid.tsv"),
        ("train.tsv.gz", ["valid.tsv"], "valid.tsv"),
        ("train.tsv.gz", ["valid.tsv.zst"], "valid.tsv"),
        ("crawl.tsv", ["dev.tsv"], "dev.tsv"),
        ("crawl.tsv", ["dev.en", "dev.de"], "dev"),
        ("corpus/train", ["corpus/val.en"], None),
        ("corpus/train", [], None),
    ],
)
def test_held_out_sets_are_found_by_their_usual_names(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    train: str,
    files: list[str],
    valid: str | None,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in files:
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
    assert held_out.find("valid", [train], [], LANGUAGES) == valid
    assert held_out.find("test", [train], [], LANGUAGES) is None


def test_a_held_out_set_without_one_side_is_passed_over_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("val.en.gz", "dev.en", "dev.de"):
        Path(name).touch()
    assert held_out.find("valid", ["train"], [], LANGUAGES) == "dev"
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "val is not taken as the valid set: no such file: val.de" in said
    assert held_out.find("test", ["train"], [], LANGUAGES) is None
    assert not capsys.readouterr().err


def test_training_text_is_no_held_out_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bitexts = write("dev", [("a", "b")])
    assert held_out.find("valid", ["dev"], bitexts, LANGUAGES) is None
    assert held_out.find("valid", ["other"], bitexts, LANGUAGES) is None
    write("val", [("c", "d")])
    assert held_out.find("valid", ["dev"], bitexts, LANGUAGES) == "val"
    assert held_out.find("valid", ["web/all", "dev"], bitexts, LANGUAGES) == "val"


def write(prefix: str, pairs: list[tuple[str, str]]) -> list[Bitext]:
    """A corpus of these pairs."""
    for side, language in enumerate(LANGUAGES):
        text = "".join(f"{pair[side]}\n" for pair in pairs)
        Path(f"{prefix}.{language}").write_text(text, encoding="utf-8")
    return [Bitext.find(prefix, *LANGUAGES)]


def test_new_sets_have_pairs_that_training_does_not_repeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pairs = [(f"source {n}", f"target {n % 300}") for n in range(400)] + [("", "x"), ("y", " ")]
    bitexts = write("train", pairs)
    seen = survey(bitexts)
    sets = held_out.choose(seen, bitexts, ["valid", "test"])
    assert {split: len(chosen) for split, chosen in sets.items()} == {"valid": 10, "test": 10}
    chosen = [*sets["valid"], *sets["test"]]
    targets = [target for _, target in pairs]
    assert [targets.count(pair.target) for pair in chosen] == [1] * 20
    assert len({pair.source for pair in chosen}) == 20
    assert held_out.choose(seen, bitexts, ["valid", "test"]) == sets
    with held_out.written(sets, LANGUAGES) as files:
        assert [path.name for path in files] == ["valid.en", "valid.de", "test.en", "test.de"]
    (read,) = Bitext.find("held-out/valid", *LANGUAGES).chunks()
    assert read.source == [pair.source for pair in sets["valid"]]


def test_new_sets_have_only_pairs_that_the_cleaning_of_the_recipe_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pairs = [(f"source  {n}", f"target {n}") for n in range(40)]
    blank = [(f"blank {n}", "\u200b \u00a0") for n in range(120)]
    long = [("long " * 720 + f"{n}", f"lang {n}") for n in range(120)]
    unequal = [("one " * 30 + f"{n}", f"{n}") for n in range(120)]
    bitexts = write("train", pairs + blank + long + unequal)
    sets = held_out.choose(survey(bitexts), bitexts, ["valid", "test"])
    chosen = [(pair.source, pair.target) for pair in [*sets["valid"], *sets["test"]]]
    assert len(chosen) == 20
    assert set(chosen) <= set(pairs)


def test_sets_are_found_again_by_the_corpus_that_they_were_set_aside_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pairs = [(f"source {n}", f"target {n}") for n in range(400)]
    bitexts, other = write("train", pairs), write("other", [("one", "eins"), pairs[0]])
    with held_out.written({"valid": [Pair(*pair) for pair in pairs[:10]]}, LANGUAGES):
        pass
    assert held_out.find("valid", ["train"], bitexts, LANGUAGES) == "held-out/valid"
    cleaned = write("train", pairs[5:])
    assert held_out.find("valid", ["train"], cleaned, LANGUAGES) == "held-out/valid"
    assert held_out.find("valid", ["other"], other, LANGUAGES) is None
    write("dev", [("two", "zwei")])
    assert held_out.find("valid", ["other"], other, LANGUAGES) == "dev"


def test_no_set_is_left_where_the_recipe_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    advice = advise.Advice(
        values=[], head=[], languages=LANGUAGES, new_sets={"valid": [Pair("a", "b")]}
    )
    with pytest.raises(OSError, match="File name too long"):
        advice.write(Path("x" * 300))
    assert list(tmp_path.iterdir()) == []


def test_repeated_lines_are_set_aside_where_there_are_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bitexts = write("train", [(f"s{n // 2}", f"t{n}") for n in range(80)])
    chosen = held_out.choose(survey(bitexts), bitexts, ["valid"])["valid"]
    assert len({pair.source for pair in chosen}) == len(chosen) == 2
    assert lines_that_occur_once(bitexts, [Pair("s1", "t1")]) == {"t1"}


def test_a_corpus_of_a_few_pairs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bitexts = write("train", [("s", "t")])
    with pytest.raises(NmtError, match=r"^too few distinct pairs to set some aside for valid: 1;"):
        held_out.choose(survey(bitexts), bitexts, ["valid"])


def test_a_corpus_of_few_different_targets_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bitexts = write("train", [(f"s{n}", f"label {n % 2}") for n in range(400)])
    with pytest.raises(NmtError, match=r"^too many pairs share a source or a target, or are dr"):
        held_out.choose(survey(bitexts), bitexts, ["valid", "test"])


def test_a_smaller_set_is_made_where_cleaning_drops_most_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kept = [(f"source {n}", f"target {n}") for n in range(150)]
    dropped = [(f"word {n}", f"word {n} " * 40) for n in range(7850)]
    bitexts = write("train", kept + dropped)
    chosen = held_out.choose(survey(bitexts), bitexts, ["valid"])["valid"]
    assert held_out.size(8000) == 200
    assert len(chosen) == 150
    assert all(pair.source.startswith("source") for pair in chosen)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The empty directory as the current one, and short measurements."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nmt.advice.machine.SECONDS", 0.1)


@pytest.mark.full
def test_after_init_the_other_commands_need_no_option(
    quick: None, nmt: Any, write_numbers: Callable[..., None]
) -> None:
    write_numbers(Path("numbers"), 400, seed=3)
    before = {path: path.read_bytes() for path in Path().iterdir()}
    written = nmt("init", "numbers", "-s", "en", "-t", "de", "--minutes", 0.02)
    assert written.status == 0, written.err
    sets = [f"held-out/{split}.{side}" for split in ("valid", "test") for side in LANGUAGES]
    assert written.out.split() == [*sets, "nmt.yaml"]
    assert "train: 400 pairs, 65 (16.2%) of them repeated\n" in written.err
    assert "\nLittle text: from 5,000 pairs of Multi30k a model learned to BLEU 18." in written.err
    assert "the tiny model trains on " in written.err
    second = r"0:00:\d\d"  # a busy machine is slow
    expected = rf"\nExpect: warm-up ends after {second}, training after {second}, "
    assert re.search(expected, written.err)
    assert written.err.endswith("next: nmt preprocess && nmt train\n")
    assert {path: path.read_bytes() for path in before} == before
    assert nmt("preprocess").status == 0
    trained = nmt("train")
    assert trained.status == 0, trained.err
    manifest = Dataset.open(Path("data-bin")).manifest
    assert manifest.splits["train"].dropped["held_out"] >= 2 * manifest.splits["valid"].pairs
    translated = nmt("translate", "held-out/test.en")
    assert translated.out.count("\n") == len(Path("held-out/test.de").read_text().splitlines())


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
)
def test_a_model_that_does_not_fit_gives_way_to_a_smaller_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def speed(trial: object, model: dict[str, Any], *_: object) -> float:
        if model["arch"] != fitting:
            raise error
        return 5000.0

    monkeypatch.setattr(advise, "target_tokens_per_second", speed)
    lines: list[str] = []
    fitting = "transformer_tiny"
    _, speeds = advise._measure(tmp_path, cast("Any", None), facts(29_000), None, lines.append)
    assert speeds == {"tiny": 5000.0}
    assert lines[1] == f"the small model does not fit: {error}"
    fitting = "none"
    with pytest.raises(NmtError, match="no model fits into the memory of this machine"):
        advise._measure(tmp_path, cast("Any", None), facts(29_000), None, lines.append)


@pytest.mark.parametrize(
    ("is_busy", "speed", "minutes", "said"),
    [
        (False, 9000.0, 2, []),
        (True, 9000.0, None, []),
        (True, 9000.0, 2, ["other programs have used the cores in the last minute, so the speed"]),
        (False, 37.0, 5, ["in 0:05:00 the tiny model sees only 1.9% of the training text; give"]),
        (
            True,
            37.0,
            5,
            ["OMP_NUM_THREADS=1, on the one core that is free\n", "text; give more --minutes\n"],
        ),
        (False, 90.0, 1000, ["training text; give more --minutes or choose a smaller model\n"]),
    ],
)
def test_a_busy_machine_and_text_that_is_not_seen_are_warned_of(
    capsys: pytest.CaptureFixture[str],
    is_busy: bool,
    speed: float,
    minutes: float | None,
    said: list[str],
) -> None:
    text = facts(29_000 if minutes != 1000 else 600_000)
    machine = Machine(device="cpu", name="2 cores", memory=1, precision="fp32", is_busy=is_busy)
    speeds = {size.name: speed for size in candidates(text.distinct)}
    assert advise._plan(text, machine, speeds, minutes) == plan(text, speeds, "cpu", minutes)
    lines = capsys.readouterr().err.splitlines(keepends=True)
    assert len(lines) == len(said)
    assert all(words in line for words, line in zip(said, lines, strict=True))


@pytest.mark.parametrize(
    ("load", "cores", "is_busy"),
    [(0.1, 2, False), (1.2, 2, False), (3.0, 2, True), (40.0, 64, False), (70.0, 64, True)],
)
def test_a_machine_is_busy_if_other_programs_use_its_cores(
    monkeypatch: pytest.MonkeyPatch, load: float, cores: int, is_busy: bool
) -> None:
    monkeypatch.setattr("nmt.advice.machine.available_cores", lambda: 2)
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    monkeypatch.setattr("os.getloadavg", lambda: (load, 9.0, 9.0))
    assert Machine.here(torch.device("cpu")).is_busy == is_busy


def test_speed_is_measured_with_the_subword_sampling_that_is_advised(
    quick: None, nmt: Any, write_numbers: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    sampled: list[float] = []
    padded = SampledSplit.padded

    def note(split: SampledSplit, *arguments: Any) -> Any:
        sampled.append(split.alpha)
        return padded(split, *arguments)

    monkeypatch.setattr(SampledSplit, "padded", note)
    write_numbers(Path("numbers"), 400, seed=3)
    shown = nmt("init", "numbers", "-s", "en", "-t", "de", "--dry-run")
    assert shown.status == 0, shown.err
    assert yaml.safe_load(shown.out)["train"]["subword_sampling"] == 0.1
    assert set(sampled) == {0.1}
    assert subword_sampling(99_999, 30) == 0.1
    assert subword_sampling(99_999, 29) is None
    assert subword_sampling(100_000) is None


def test_segmented_text_is_not_said_to_have_no_spaces(
    quick: None, nmt: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advise, "target_tokens_per_second", lambda *_: 5000.0)
    for is_segmented in (False, True):
        separator = " " if is_segmented else ""
        pairs = [(f"the cat no. {n}", separator.join(f"猫{n}が好きです。")) for n in range(400)]
        for language, side in zip(("en", "ja"), zip(*pairs, strict=True), strict=True):
            Path(f"train.{language}").write_text("\n".join([*side, ""]), encoding="utf-8")
        shown = nmt("init", "train", "-s", "en", "-t", "ja", "--dry-run").err
        assert ("subwords a sentence, Jpan, segmented\n" in shown) is is_segmented, shown
        assert ("no spaces between words" in shown) is not is_segmented
        assert shown.count("nmt: warning: ") == is_segmented
        assert ("nmt: warning: the ja text is segmented: a model of" in shown) is is_segmented


def test_a_text_of_many_characters_gets_a_vocabulary_for_them(
    quick: None, nmt: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advise, "target_tokens_per_second", lambda *_: 5000.0)
    for language, first in {"en": "cat", "zh": ""}.items():
        lines = [first or chr(0x4E00 + n) * 2 + chr(0x6E00 + n) for n in range(1500)]
        Path(f"train.{language}").write_text("\n".join([*lines, ""]), encoding="utf-8")
    for split in ("valid", "test"):
        for language in ("en", "zh"):
            Path(f"{split}.{language}").write_text("one\n", encoding="utf-8")
    shown = nmt("init", "train", "-s", "zh", "-t", "en", "--dry-run")
    assert shown.status == 0, shown.err
    assert yaml.safe_load(shown.out)["preprocess"]["vocab_size"] > 3000
    assert "the text has too many characters for 2,000" in shown.out


def test_sigterm_leaves_no_temporary_files(
    quick: None, nmt: Any, write_numbers: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = []

    def killed(path: Path, *_: object) -> None:
        scratch.append(path)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(advise, "_measure", killed)
    write_numbers(Path("corpus/train"), 200, seed=3)
    done = nmt("init", "corpus/train", "-s", "en", "-t", "de")
    assert (done.status, done.out) == (128 + signal.SIGTERM, "")
    assert [path.exists() for path in scratch] == [False]
    assert not Path("nmt.yaml").exists()
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.full
def test_a_recipe_is_not_overwritten(
    quick: None, nmt: Any, write_numbers: Callable[..., None]
) -> None:
    write_numbers(Path("corpus/train"), 200, seed=3)
    for split in ("val", "test"):
        write_numbers(Path("corpus") / split, 20, seed=4)
    Path("nmt.yaml").write_text("train: {seed: 2}\n")
    arguments = ("init", "corpus/train", "-s", "en", "-t", "de", "--minutes", 0.02)
    refused = nmt(*arguments)
    assert refused.status == 1
    assert refused.err == (
        "nmt: error: nmt.yaml: exists already; move it away, give another --output FILE, or print "
        "the recipe with --dry-run\n"
    )
    shown = nmt(*arguments, "--dry-run")
    assert shown.status == 0, shown.err
    assert yaml.safe_load(shown.out)["preprocess"]["valid"] == "corpus/val"
    assert Path("nmt.yaml").read_text() == "train: {seed: 2}\n"
    assert not Path("held-out").exists()
    other = nmt(*arguments, "--output", "new/my recipe.yaml")
    assert other.out == "new/my recipe.yaml\n"
    config = "--config 'new/my recipe.yaml'"  # to copy
    assert other.err.endswith(f"next: nmt preprocess {config} && nmt train {config}\n")


def test_named_sets_are_held_out_instead_of_pairs_of_the_corpus(
    quick: None, nmt: Any, write_numbers: Callable[..., None]
) -> None:
    for seed, name in enumerate(("numbers", "elsewhere", "last")):
        write_numbers(Path(name), 200 if name == "numbers" else 20, seed)
    arguments = "init", "numbers", "-s", "en", "-t", "de", "--minutes", 0.02
    refused = nmt(*arguments, "--valid", "elsewhere", "--test", "numbers")
    assert (refused.status, refused.out) == (1, "")
    assert refused.err == ("nmt: error: numbers.en: is training text; give a held-out set\n")
    refused = nmt(*arguments, "--valid", "elsewhere", "--test", "./elsewhere")
    assert refused.err == (
        "nmt: error: elsewhere.en: is given as --valid and --test; leave out one of them, and "
        "nmt init makes it\n"
    )
    missing = nmt(*arguments, "--valid", "nowhere")
    assert missing.err.startswith("nmt: error: no such file: nowhere.en")
    written = nmt(*arguments, "--valid", "elsewhere", "--test", "last")
    assert (written.status, written.out) == (0, "nmt.yaml\n"), written.err
    assert "elsewhere, named\n" in written.err
    assert not Path("held-out").exists()
    recipe = yaml.safe_load(Path("nmt.yaml").read_text())["preprocess"]
    assert (recipe["valid"], recipe["test"]) == ("elsewhere", "last")


def test_held_out_files_of_other_languages_are_not_overwritten(
    quick: None, nmt: Any, write_numbers: Callable[..., None]
) -> None:
    write_numbers(Path("numbers"), 200, seed=3)
    Path("held-out").mkdir()
    Path("held-out/test.en").write_text("of a test set in French\n")
    refused = nmt("init", "numbers", "-s", "en", "-t", "de", "--minutes", 0.02)
    assert refused.status == 1
    assert refused.err == (
        "nmt: error: held-out/test.en: exists already, but was not set aside from this corpus; "
        "call nmt init in another directory, or move held-out away\n"
    )
    assert [path.name for path in Path("held-out").iterdir()] == ["test.en"]
    assert not Path("nmt.yaml").exists()


@pytest.mark.parametrize("minutes", ["inf", "nan", "0"])
def test_minutes_without_an_end_are_refused(quick: None, nmt: Any, minutes: str) -> None:
    refused = nmt("init", "train", "-s", "en", "-t", "de", "--minutes", minutes)
    assert refused.status == 2
    assert refused.err == (
        f"nmt: error: Invalid value for '--minutes': {minutes} is not between 0.01 and 1,000,000; "
        "leave it out to choose the time by the size of the corpus (see nmt init --help)\n"
    )


@pytest.mark.parametrize("languages", [("-s", "en", "-t", ""), ("-s", "", "-t", "de")], ids=str)
def test_an_empty_language_is_refused(quick: None, nmt: Any, languages: tuple[str, ...]) -> None:
    refused = nmt("init", "train", *languages)
    assert (refused.status, refused.err) == (
        2,
        "nmt: error: a language is empty; give the ends of the files' names, for example -s en "
        "(see nmt init --help)\n",
    )


def test_a_recipe_that_cannot_be_written_is_refused_before_the_machine_is_measured(
    quick: None, nmt: Any, write_numbers: Callable[..., None]
) -> None:
    write_numbers(Path("numbers"), 400, seed=3)
    refused = nmt("init", "numbers", "-s", "en", "-t", "de", "--output", "numbers.en/nmt.yaml")
    assert refused.status == 1
    assert refused.err == "nmt: error: numbers.en: Not a directory; check the path\n"
    assert not Path("held-out").exists()


def test_a_directory_that_cannot_hold_sets_is_refused_before_the_machine_is_measured(
    quick: None, nmt: Any, write_numbers: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_numbers(Path("numbers"), 400, seed=3)
    here = Path.cwd()
    monkeypatch.chdir("/proc")
    refused = nmt("init", here / "numbers", "-s", "en", "-t", "de", "--output", here / "nmt.yaml")
    assert refused.status == 1
    assert refused.err.startswith("nmt: error: /proc: ")
    assert refused.err.count("\n") == 1


def test_a_corpus_that_cannot_be_read_costs_one_line(quick: None, nmt: Any) -> None:
    missing = nmt("init", "train", "-s", "en", "-t", "de")
    assert missing.err.startswith("nmt: error: no such file: train.en")
    Path("train.en").write_text("one\n")
    Path("train.de").write_text("eins\nzwei\n")
    unequal = nmt("init", "train", "-s", "en", "-t", "de")
    assert unequal.err.startswith("nmt: error: train.en has 1 lines, but train.de has 2;")
    Path("train.de").write_bytes("Tür\n".encode("latin-1"))
    latin = nmt("init", "train", "-s", "en", "-t", "de")
    assert latin.err == ("nmt: error: train.de:1: byte 0xfc is not UTF-8; convert it with iconv\n")
    same = nmt("init", "train", "-s", "en", "-t", "en")
    assert same.status == 1
    assert "source_lang and target_lang are both 'en'" in same.err
