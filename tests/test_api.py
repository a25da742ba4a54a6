"""What Python programs import."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nmt as package
from nmt.errors import NmtError
from nmt.evaluation.metrics import metrics
from nmt.inference import Execution, engines
from nmt.inference.markup.lines import translate_markup
from nmt.inference.request import Request
from nmt.runtime import precision


def test_the_translator_gives_what_the_command_gives(
    trained: Path, corpus: Path, nmt: Callable[..., Any]
) -> None:
    lines = (corpus / "test.en").read_text().splitlines()
    given = nmt("translate", corpus / "test.en", "--model", trained).out.splitlines()
    assert list(package.Translator(trained, device="cpu").translate(lines)) == given
    flags = ("--strategy", "beam", "--beam", 2)
    given = nmt("translate", corpus / "test.en", "--model", trained, *flags).out.splitlines()
    translator = package.Translator(trained, trained, strategy={"name": "beam", "beam": 2})
    assert list(translator.translate(lines)) == given


def test_the_translator_of_an_export_gives_what_the_command_gives(
    trained: Path, corpus: Path, tmp_path: Path, nmt: Callable[..., Any]
) -> None:
    pytest.importorskip("ctranslate2")
    assert nmt("export", "--model", trained, "--output", tmp_path / "exported").status == 0
    lines = (corpus / "test.en").read_text().splitlines()
    done = nmt("translate", corpus / "test.en", "--model", tmp_path / "exported", "--workers", 1)
    assert done.status == 0, done.err
    translator = package.Translator(tmp_path / "exported")
    assert type(translator).__name__ == "CTranslate2Translator"
    assert list(translator.translate(lines)) == done.out.splitlines()
    with pytest.raises(NmtError, match="exported: an export, not a run; translate it alone and"):
        package.Translator(trained, tmp_path / "exported")
    with pytest.raises(NmtError, match=r"^unknown engine 'ctranslate'; did you mean 'ctranslate2'"):
        package.Translator(trained, engine="ctranslate")


def test_one_string_in_the_place_of_lines_is_refused_at_once(trained: Path) -> None:
    translator, metric = package.Translator(trained, device="cpu"), metrics["bleu"]
    for call, name in (
        (lambda: translator.translate("one two"), "lines"),
        (lambda: translator.translations("one two"), "lines"),
        (lambda: translator.search("one two"), "lines"),
        (lambda: translator.score("one", ["eins"]), "sources"),
        (lambda: translator.score(["one"], "eins"), "targets"),
        (lambda: translator.translate(b"one two"), "lines"),
        (lambda: metric.score("a", ["a"]), "hypotheses"),
        (lambda: metric.score(["a"], "a"), "references"),
        (lambda: metric.score(["a"], ["a"], "a"), "sources"),
    ):
        with pytest.raises(TypeError) as error:
            call()
        assert str(error.value) == (
            f"{name}: expected a list of lines, not one string; "
            'give [text], or text.split("\\n") where it holds several lines'
        )


def test_translations_of_other_lines_are_refused(trained: Path) -> None:
    translator = package.Translator(trained, device="cpu")
    for call in (translator.score, translator.align):
        with pytest.raises(ValueError, match="2 sources, but 1 targets"):
            call(["one", "two"], ["eins"])


def test_a_mistaken_key_is_one_line(trained: Path) -> None:
    with pytest.raises(NmtError) as error:
        package.Translator(trained, windw=3)
    assert str(error.value) == "search: unknown key 'windw'; did you mean 'window'?"


@pytest.mark.parametrize(
    ("settings", "strategy"),
    [
        ({"beam": 5}, {"name": "beam", "beam": 5}),
        ({"temperature": 0.5}, {"name": "sample", "temperature": 0.5}),
        ({"strategy": "diverse_beam", "beam": 4}, {"name": "diverse_beam", "beam": 4}),
        ({"strategy": "greedy", "beam": 4}, {"name": "beam", "beam": 4}),
        (
            {"strategy": "sample", "top_k": 3, "temperature": 0.5},
            {"name": "sample", "top_k": 3, "temperature": 0.5},
        ),
        (
            {"strategy": {"name": "beam", "beam": 4}, "length_penalty": "none"},
            {"name": "beam", "beam": 4, "length_penalty": "none"},
        ),
    ],
    ids=str,
)
def test_a_key_of_the_strategy_is_told_with_its_place(
    trained: Path, settings: dict[str, Any], strategy: dict[str, Any]
) -> None:
    with pytest.raises(NmtError) as error:
        package.Translator(trained, **settings)
    message = f" is a key of the strategy; give strategy={strategy}"
    assert str(error.value) in [f"{key!r}{message}" for key in settings]
    assert package.Translator(trained, strategy=strategy).config.strategy.name == strategy["name"]


def test_a_remedy_is_told_for_python_and_the_command_line(trained: Path) -> None:
    translator = package.Translator(trained, strategy="greedy")
    with pytest.raises(NmtError, match=r"use --strategy beam --beam 2 \(in Python strategy="):
        translator.translations(["one"], 2)
    with pytest.raises(NmtError, match=r"not 2; use --engine nmt \(in Python engine='nmt'\)$"):
        package.Translator(trained, trained, engine="ctranslate2")


@pytest.mark.parametrize("model", [["first", "second"], None, 5], ids=str)
def test_what_is_no_path_of_a_model_is_refused(trained: Path, model: Any) -> None:
    for load in (
        package.Translator,
        package.Translator.from_pretrained,
        lambda model: package.Translator(trained, model),
    ):
        with pytest.raises(TypeError) as error:
            load(model)
        assert str(error.value) == (
            f"model: expected a path, not {type(model).__name__}; give each model of an ensemble "
            "as an argument of its own, nmt.Translator(first, second)"
        )


@pytest.mark.parametrize("unit", ["word", "token", "", True], ids=repr)
def test_an_unknown_unit_to_align_is_refused_at_once(trained: Path, unit: Any) -> None:
    translator = package.Translator(trained, device="cpu")
    [translation] = next(translator.translations(["one two"], scored=True))
    for call in (
        lambda: translator.translations(["one two"], aligned=unit),
        lambda: translator.fields(translation, unit),
    ):
        with pytest.raises(NmtError) as error:
            call()
        assert str(error.value) == (
            f"aligned: unknown unit {unit!r}; choose words, tokens, pieces or None"
        )


def test_the_fields_of_aligned_tokens_keep_the_subwords(trained: Path) -> None:
    translator = package.Translator(trained, device="cpu")
    of_words, of_tokens = (
        translator.fields(translation, unit)
        for unit in ("words", "tokens")
        for [translation] in translator.translations(["one two"], scored=True, aligned=unit)
    )
    assert of_words == of_tokens
    assert len(of_tokens["tokens"]) == len(of_tokens["token_log_probabilities"])


def test_an_unknown_precision_or_dialect_is_refused(trained: Path) -> None:
    with pytest.raises(NmtError, match=r"^unknown precision 'fp8'; known: auto, bf16, fp16, fp32"):
        Execution(precision="fp8")  # type: ignore[arg-type]
    translator = package.Translator(trained, device="cpu")
    with pytest.raises(NmtError, match=r"^unknown dialect 'xml'; known: html, xliff$"):
        list(translate_markup(translator, ["<b>one</b>"], "xml"))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="lines: expected a list of lines, not one string"):
        list(translate_markup(translator, "<b>one</b>"))


def test_a_mistaken_setting_of_the_execution_is_one_line(trained: Path) -> None:
    for setting, message in (
        ({"precision": "float16"}, "execution.precision: unknown value 'float16'; known: "),
        ({"workers": 2.5}, "execution.workers: expected a whole number, not 2.5"),
    ):
        with pytest.raises(NmtError) as error:
            package.Translator(trained, **setting)
        assert str(error.value).startswith(message)


def test_workers_that_a_device_does_not_take_are_refused_as_by_the_command(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for count in (0, -1):
        with pytest.raises(NmtError, match=f"^workers {count}: must be at least 1$"):
            package.Translator(trained, workers=count, device="cpu")
    monkeypatch.setattr(engines, "pick_device", str)
    refusal = "^workers 2: several processes on one GPU; use torchrun$"
    with pytest.raises(NmtError, match=refusal):
        package.Translator(trained, workers=2, device="cuda")
    with pytest.raises(NmtError, match=refusal):
        Execution(workers=2, device="cuda")
    several = r"^workers 2, threads 2: each of several workers has one thread; set either workers "
    with pytest.raises(NmtError, match=several):
        package.Translator(trained, workers=2, threads=2, device="cpu")
    with pytest.raises(NmtError, match=r"^threads 0: must be at least 1$"):
        package.Translator(trained, threads=0, device="cpu")


def test_a_precision_that_is_slow_here_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "_is_fast_on_cpu", lambda precision: False)
    with (
        pytest.warns(UserWarning, match="bf16 is slower than fp32 on this processor"),
        pytest.raises(NmtError, match="not a trained model"),
    ):
        package.Translator(tmp_path, precision="bf16", device="cpu", engine="nmt")


def test_int8_is_refused_where_ctranslate2_does_not_search(trained: Path) -> None:
    with pytest.raises(NmtError, match="precision int8 is for CTranslate2; use the engine"):
        package.Translator(trained, precision="int8", device="cpu", engine="nmt")
    message = (
        "precision int8 needs CTranslate2, which cannot be used: an ensemble; use precision auto "
        "or fp32"
    )
    with pytest.raises(NmtError, match=f"^{message}$"):
        package.Translator(trained, trained, precision="int8", device="cpu")


def test_lines_that_need_torch_are_searched_in_its_precision(trained: Path) -> None:
    pytest.importorskip("ctranslate2")
    translator = package.Translator(trained, precision="int8", device="cpu")
    assert translator.engine.startswith("ctranslate2")
    [[usual]] = translator.translations([Request("one two")])
    word = usual.text.split()[0]
    [[other]] = translator.translations([Request("one two", avoid=(word,))])
    assert word not in other.text.split()


def test_importing_the_package_does_not_import_torch() -> None:
    program = "import nmt, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_what_the_package_lacks_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'nmt' has no attribute 'Transltor'"):
        package.Transltor  # noqa: B018
