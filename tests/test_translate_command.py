"""The command ``nmt translate``, whole, with a small untrained model."""

from __future__ import annotations

import io
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from conftest import Command
from typer.testing import CliRunner

from nmt.cli.translate.command import translate
from nmt.cli.translate.io import translate_stream
from nmt.errors import NmtError
from nmt.inference import SearchConfig, Translator
from nmt.inference.request import Counts
from nmt.io.lines import Lines
from nmt.models.base import ModelConfig
from nmt.recipe.config import build, dump
from nmt.runs import Run, load_model, weights_of
from nmt.runtime import precision as precisions
from nmt.runtime.distributed import World
from nmt.subwords.learning import SubwordTraining, train_subwords
from nmt.subwords.subwords import Subwords

OUTPUTS = (Path(__file__).parents[1] / "docs/outputs.md").read_text(encoding="utf-8")
LINES = ["the cat sat", "", "on a mat", "\u2028", "a dog\u2028and a\rcat", "the dog sat on the cat"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with one checkpoint, whose search section is not the default."""
    path = tmp_path_factory.mktemp("model") / "checkpoints"
    training = SubwordTraining(vocab_size=40, byte_fallback=False)
    subwords = Subwords(train_subwords(["the cat sat on a mat and a dog"] * 9, training))
    arch = {"arch": "transformer_tiny", "d_model": 16, "d_ff": 16}
    config = build(ModelConfig, arch, "model")  # type: ignore[type-abstract]
    torch.manual_seed(1)
    model = config.build(subwords.source_size, subwords.target_size, subwords.shared)
    search = dump(build(SearchConfig, {"max_length_offset": 7}, "search"))
    Run.create(
        path,
        languages=("en", "xx"),
        identity="1",
        data="1",
        recipe={"model": dump(config), "search": search},
        subwords=subwords,
    ).save(1, weights_of(model), None, {}, {}, True)
    return path


def expected(run: Path, lines: Sequence[str], **keys: object) -> bytes:
    """What the package's own road gives, with a section of only these keys."""
    loaded = load_model(run)
    config = build(SearchConfig, {"max_length_offset": 7, **keys}, "search")
    translator = Translator(loaded.model, loaded.subwords, config)
    return b"".join(text.encode() + b"\n" for text in translator.translate(lines))


def invoke(run: Path, tmp_path: Path, text: bytes, *flags: str) -> bytes:
    app = typer.Typer()
    app.command()(translate)
    (tmp_path / "in.txt").write_bytes(text)
    arguments = [tmp_path / "in.txt", "--model", run, "--device", "cpu", "--engine", "nmt"]
    arguments += ["--output", tmp_path / "out.txt", *flags]
    result = CliRunner().invoke(app, list(map(str, arguments)))
    if result.exception:
        raise result.exception
    return (tmp_path / "out.txt").read_bytes()


def test_a_file_is_translated_line_by_line_with_the_models_own_settings(
    run: Path, tmp_path: Path
) -> None:
    text = "\n".join(LINES).encode()  # and no line feed after the last
    out = invoke(run, tmp_path, text)
    assert out == expected(run, LINES)
    assert out.count(b"\n") == 6
    assert out.split(b"\n")[1] == out.split(b"\n")[3] == b""
    assert out != expected(run, LINES, max_length_offset=50)


def test_stdin_is_translated_to_stdout_and_talk_goes_to_stderr(run: Path, tmp_path: Path) -> None:
    program = "import typer; from nmt.cli.translate.command import translate; typer.run(translate)"
    environment = os.environ | {"NMT_MODEL": str(run), "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(
        [sys.executable, "-c", program, "--device", "cpu", "--engine", "nmt"],
        input="".join(f"{line}\n" for line in LINES).encode(),
        capture_output=True,
        cwd=tmp_path,
        env=environment,
        check=True,
    )
    assert done.stdout == expected(run, LINES)
    report = r"translated 6 lines in [\d.]+ s: [\d.]+ sentences/s, [\d.]+ target tokens/s\n"
    assert re.fullmatch(f"{report}nmt: warning: translations with flags,.*\n", done.stderr.decode())


def test_empty_input_gives_empty_output(run: Path, tmp_path: Path) -> None:
    assert invoke(run, tmp_path, b"") == b""


def test_a_carriage_return_before_the_line_feed_is_dropped(run: Path, tmp_path: Path) -> None:
    assert invoke(run, tmp_path, b"the cat\r\n\r\na mat\r") == expected(
        run, ["the cat", "", "a mat"]
    )


@pytest.mark.parametrize(
    ("flags", "keys"),
    [
        (["--strategy", "greedy"], {"strategy": "greedy"}),
        (["--beam", "2"], {"strategy": {"name": "beam", "beam": 2}}),
        (
            ["--length-penalty", "power", "--alpha", "2"],
            {"strategy": {"name": "beam", "length_penalty": {"name": "power", "alpha": 2}}},
        ),
        (
            ["--length-penalty", "none"],
            {"strategy": {"name": "beam", "length_penalty": "none"}},
        ),
        (["--max-length-offset", "1"], {"max_length_offset": 1}),
        (["--set", "search.max_source_length=3"], {"max_source_length": 3}),
        (
            ["--set", "search.max_source_length=3", "--on-long-line", "split"],
            {"max_source_length": 3, "on_long_line": "split"},
        ),
        (["--batch-tokens", "1", "--window", "1"], {}),
    ],
)
def test_flags_override_the_models_settings(
    run: Path, tmp_path: Path, flags: list[str], keys: dict[str, object]
) -> None:
    text = "\n".join(LINES).encode()
    assert invoke(run, tmp_path, text, *flags) == expected(run, LINES, **keys)


def test_sentences_are_split_on_request_and_the_lines_stay_as_many(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentences = ["the cat sat.", "A dog sat!", "On a mat."]
    text = "\n".join(["the cat", "", " ".join(sentences), "the cat sat. A dog sat!"]).encode()
    one, two, three = expected(run, sentences).decode().splitlines()
    lines = [
        expected(run, ["the cat"]).decode().strip(),
        "",
        f"{one} {two} {three}",
        f"{one} {two}",
    ]
    wanted = "".join(f"{line}\n" for line in lines).encode()
    assert invoke(run, tmp_path, text, "--split-sentences") == wanted
    # Otherwise nothing of the package that splits is imported.
    monkeypatch.setitem(sys.modules, "sentencex", None)
    assert invoke(run, tmp_path, text).count(b"\n") == 4


def test_a_line_of_more_sentences_than_in_training_is_reported_with_the_option(
    tmp_path: Path, nmt: Command
) -> None:
    lines = [f"{word} a cat sat on the mat." for word in ("one", "two", "three")] * 20
    for suffix in ("en", "de"):
        (tmp_path / f"text.{suffix}").write_text("".join(f"{line}\n" for line in lines))
    text, data, run = tmp_path / "text", tmp_path / "data", tmp_path / "run"
    flags = f"-s en -t de --train {text} --valid {text} --vocab-size 30 --output-dir {data}"
    assert nmt("preprocess", "--no-byte-fallback", *flags.split()).status == 0
    settings = "model.d_model=16 model.d_ff=16 train.max_updates=1 train.tokens_per_update=200"
    assigned = [word for setting in settings.split() for word in ("--set", setting)]
    flags = f"--data {data} --save-dir {run} --arch transformer_tiny"
    done = nmt("train", *flags.split(), *assigned)
    assert done.status == 0, done.err
    longest = json.loads((run / "extremes.json").read_bytes())
    assert longest["max_sentence_ends"] == 1
    subwords = Run.open(run).subwords
    assert longest["max_tokens"] == max(map(len, subwords.encode_source(lines))) + 1
    export = tmp_path / "export"
    assert nmt("export", "--model", run, "--format", "ctranslate2", "--output", export).status == 0
    (tmp_path / "in").write_text(f"{lines[0]}\n{lines[0]} {lines[1]}\n")
    for model, engine in ((run, "nmt"), (export, "ctranslate2")):
        command = ("translate", tmp_path / "in", "--model", model, "--engine", engine)
        warning = (
            "lines much longer than every training sentence, or of more sentences: 1; "
            "use --split-sentences"
        )
        assert warning in nmt(*command).err
        done = nmt(*command, "--split-sentences")
        assert "--split-sentences" not in done.err
        one, *others = done.out.splitlines()
        assert len(others) == 1
        assert others[0].startswith(f"{one} ")


BEAMS = "beam, diverse_beam and lexical_beam have it: use --strategy beam"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--top-k 5", "beam has no key 'top_k'; sample has it: use --strategy sample"),
        ("--top-p 0.5", "beam has no key 'top_p'; sample has it: use --strategy sample"),
        ("--temperature 2", "beam has no key 'temperature'; sample has it: use --strategy sample"),
        ("--seed 2", "beam has no key 'seed'; sample has it: use --strategy sample"),
        ("--strategy greedy --beam 2", f"greedy has no key 'beam'; {BEAMS}"),
        ("--strategy sample --stop first_beam", f"sample has no key 'stop'; {BEAMS}"),
        ("--strategy greedy --alpha 1", f"greedy has no key 'length_penalty'; {BEAMS}"),
        ("--strategy sample --length-penalty none", f"sample has no key 'length_penalty'; {BEAMS}"),
        (
            "--length-penalty none --alpha 1",
            "none has no key 'alpha'; gnmt and power have it: use --length-penalty gnmt",
        ),
        (
            "--set search.strategy.groups=2",
            "beam has no key 'groups'; diverse_beam has it: use --strategy diverse_beam",
        ),
    ],
)
def test_a_flag_of_another_strategy_is_answered_with_that_strategy(
    flags: str, message: str, run: Path, tmp_path: Path
) -> None:
    with pytest.raises(NmtError) as error:
        invoke(run, tmp_path, b"a", *flags.split())
    where = "search.strategy.length_penalty" if "'alpha'" in message else "search.strategy"
    assert str(error.value) == f"{where}: {message}, or leave the key out"


@pytest.mark.parametrize("flags", [["--workers", "1"], ["--workers", "3"]], ids=str)
def test_any_number_of_workers_gives_the_same(run: Path, tmp_path: Path, flags: list[str]) -> None:
    text = "\n".join(LINES * 3).encode()
    assert invoke(run, tmp_path, text, *flags) == expected(run, LINES * 3)


@pytest.mark.parametrize(
    ("flags", "workers", "threads"),
    [
        ((), 5, 1),
        (("--workers", "1"), 1, 1),
        (("--workers", "3"), 3, 1),
        (("--threads", "3"), 1, 3),
    ],
)
def test_a_worker_has_one_thread_and_threads_belong_to_one_process(
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: tuple[str, ...],
    workers: int,
    threads: int,
) -> None:
    monkeypatch.setattr("nmt.runtime.processes.available_cores", lambda: 5)
    counts = []
    search = Translator._search_batch

    def note(self: Translator, batch: Any) -> Any:
        counts.append((self._workers.count, torch.get_num_threads()))
        return search(self, batch)

    monkeypatch.setattr(Translator, "_search_batch", note)
    before = torch.get_num_threads()
    try:
        assert invoke(run, tmp_path, b"the cat", *flags) == expected(run, ["the cat"])
    finally:
        torch.set_num_threads(before)
    assert counts[0] == (workers, threads)


def test_workers_and_threads_are_not_given_together(run: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        invoke(run, tmp_path, b"a", "--workers", "1", "--threads", "2")


@pytest.mark.parametrize("count", [150, pytest.param(1000, marks=pytest.mark.full)])
def test_many_lines_give_what_each_of_them_gives_alone(run: Path, count: int) -> None:
    draw = random.Random(5)
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "dog", "\u2028", "?!"]
    lines = [" ".join(draw.choices(words, k=draw.choice([0, 1, 3, 8]))) for _ in range(count)]
    loaded = load_model(run)
    config = SearchConfig(max_length_offset=4)
    translator = Translator(loaded.model, loaded.subwords, config)
    together, alone = io.BytesIO(), io.BytesIO()
    whole = io.BytesIO("".join(f"{line}\n" for line in lines).encode())
    translate_stream(translator, Everything(whole, "in"), together, World())
    one_by_one = Translator(loaded.model, loaded.subwords, config)
    for line in lines:
        single = Everything(io.BytesIO(f"{line}\n".encode()), "in")
        translate_stream(one_by_one, single, alone, World())
    assert together.getvalue() == alone.getvalue()
    assert together.getvalue().count(b"\n") == count


class Everything(Lines):
    """Lines of which all have arrived, as those of a file have."""

    def arriving(self, most: int) -> Iterator[list[str]]:
        return self.blocks(most)


def test_another_precision_gives_a_line_for_every_line(run: Path, tmp_path: Path) -> None:
    out = invoke(run, tmp_path, "\n".join(LINES).encode(), "--precision", "bf16")
    assert out.count(b"\n") == 6
    assert out.split(b"\n")[1] == out.split(b"\n")[3] == b""


def test_a_precision_that_is_slow_here_is_said_before_a_model_is_loaded(
    tmp_path: Path, nmt: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precisions, "_is_fast_on_cpu", lambda precision: False)
    (tmp_path / "in.txt").write_text("a\n")
    options = ("--model", tmp_path / "none", "--precision", "bf16", "--device", "cpu")
    options += ("--engine", "nmt")
    warning, error = nmt("translate", tmp_path / "in.txt", *options).err.splitlines()
    assert warning.startswith(
        "nmt: warning: --precision bf16 is slower than fp32 on this processor"
    )
    assert "not a trained model" in error


def test_n_best_lists_have_the_form_of_moses(run: Path, tmp_path: Path) -> None:
    out = invoke(run, tmp_path, b"the cat sat\n\na dog\n", "--n-best", "2").decode()
    best = expected(run, ["the cat sat", "", "a dog"]).decode().split("\n")
    rows = [line.split(" ||| ") for line in out.splitlines()]
    assert [row[0] for row in rows] == ["0", "0", "1", "2", "2"]
    assert [rows[at][1] for at in (0, 2, 3)] == best[:3]
    assert " ||| ".join(rows[2]) == "1 |||  ||| LogProbability= 0.000000 Length= 1 ||| 0.000000"
    for _, _, features, score in rows:
        assert re.fullmatch(r"LogProbability= -?\d+\.\d{6} Length= \d+", features)
        assert float(score) >= float(features.split()[1])  # for it is divided by 1 or more
    assert float(rows[0][3]) >= float(rows[1][3])


@pytest.mark.parametrize(
    "flags",
    [
        *(["--stop", stop] for stop in ("optimistic", "all_finished", "first_beam")),
        ["--strategy", "diverse_beam"],
        ["--strategy", "lexical_beam"],
        ["--strategy", "sample", "--set", "search.strategy.samples=4"],
    ],
    ids=str,
)
def test_a_list_has_as_many_different_translations_as_are_asked_for(
    run: Path, tmp_path: Path, flags: list[str]
) -> None:
    lines = b"the cat sat\na dog\nthe dog sat\n"
    out = invoke(run, tmp_path, lines, "--n-best", "4", *flags).decode()
    rows = [line.split(" ||| ")[:2] for line in out.splitlines()]
    assert [number for number, _ in rows] == ["0"] * 4 + ["1"] * 4 + ["2"] * 4
    assert len({tuple(row) for row in rows}) == 12


@pytest.mark.parametrize("is_json", [False, True])
def test_more_translations_than_the_search_finds_are_refused_before_a_line_is_read(
    run: Path, tmp_path: Path, is_json: bool
) -> None:
    flags = ["--n-best", "9", *(["--json"] if is_json else [])]
    with pytest.raises(NmtError) as error:
        invoke(run, tmp_path, b"\xff\n", *flags)
    assert str(error.value) == (
        "9 translations of a line: beam finds at most 4; ask for fewer, or raise "
        "search.strategy.beam to at least 9"
    )
    assert not (tmp_path / "out.txt").exists()
    wide = invoke(run, tmp_path, b"the cat sat\n", *flags, "--set", "search.strategy.beam=9")
    found = len(json.loads(wide)["others"]) + 1 if is_json else wide.count(b"\n")
    assert found == 9


def test_with_phrases_the_beam_that_holds_them_is_what_to_raise(run: Path, tmp_path: Path) -> None:
    (tmp_path / "phrases.txt").write_text("dog\n")
    flags = ["--n-best", "5", "--strategy", "lexical_beam"]
    flags += ["--require", str(tmp_path / "phrases.txt")]
    with pytest.raises(NmtError) as error:
        invoke(run, tmp_path, b"the cat sat\n", *flags)
    assert str(error.value) == (
        "5 translations of a line: lexical_beam finds at most 4; ask for fewer, or raise "
        "search.strategy.beam to at least 5"
    )
    flags += ["--set", "search.strategy.beam=5"]
    lines = invoke(run, tmp_path, b"the cat sat\n", *flags).splitlines()
    assert lines
    assert all(b"dog" in line for line in lines)


@pytest.mark.parametrize("flags", [[], ["--n-best", "2"]], ids=str)
def test_json_has_an_object_for_every_line(run: Path, tmp_path: Path, flags: list[str]) -> None:
    lines = [
        json.loads(line)
        for line in invoke(run, tmp_path, b"the cat sat\n\na dog\n", "--json", *flags).splitlines()
    ]
    best = expected(run, ["the cat sat", "", "a dog"]).decode().split("\n")
    assert [(line["id"], line["text"]) for line in lines] == list(enumerate(best[:3]))
    assert all(f"`{field}`" in OUTPUTS for field in lines[0])
    for line in lines:
        assert ("others" in line) == bool(flags)
        for each in (line, *line.get("others", [])):
            if line["id"] != 1:
                assert len(each["tokens"]) == len(each["token_log_probabilities"])
            summed = sum(each["token_log_probabilities"])
            assert summed == pytest.approx(each["log_probability"], abs=1e-4)


def test_the_text_is_given_once(run: Path, tmp_path: Path, nmt: Callable[..., Any]) -> None:
    (tmp_path / "in.txt").write_text("a cat\n")
    text = tmp_path / "in.txt"
    given = [nmt("translate", *way, "--model", run).out for way in ([text], ["--input", text])]
    assert given[0] == given[1] != ""
    done = nmt("translate", text, "--input", text)
    assert (done.status, done.out) == (2, "")
    assert "give either TEXT or --input" in done.err
    done = nmt("translate", "--model", run, run)  # meant as an ensemble
    assert done.status == 2
    assert (
        f"{run} is a directory; give one file of text, and each model its own --model" in done.err
    )
    done = nmt("translate", "--model", f"{run},{run}", text)
    assert (done.status, done.out) == (2, "")
    assert f"{run},{run} does not exist; give each model its own --model" in done.err


def test_an_unknown_precision_is_an_error(run: Path, tmp_path: Path) -> None:
    with pytest.raises(NmtError) as error:
        invoke(run, tmp_path, b"a", "--precision", "bp16")
    assert str(error.value) == "--precision: unknown value 'bp16'; did you mean 'bf16'?"


def test_a_line_that_is_not_utf_8_is_an_error_with_its_number(run: Path, tmp_path: Path) -> None:
    with pytest.raises(NmtError) as error:
        invoke(run, tmp_path, b"a\nb\n\xe9t\xe9\n", "--window", "1")
    assert str(error.value) == (
        f"{tmp_path}/in.txt:3: byte 0xe9 is not UTF-8; convert it with iconv, "
        "or give --on-invalid-utf8 replace"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt"]  # no half an output


def test_the_lines_before_one_that_cannot_be_read_are_translated(
    run: Path, tmp_path: Path, nmt: Callable[..., Any]
) -> None:
    text, objects = tmp_path / "text", tmp_path / "objects"
    text.write_bytes(b"one\n\ntwo\n\xe9\nthree\n")
    objects.write_text('{"text": "one"}\n\n{"text": "two"}\n{"txt": "three"}\n')
    whole = nmt("translate", "--model", run, text, "--on-invalid-utf8", "replace").out
    before = "".join(whole.splitlines(keepends=True)[:3])
    for path, flags, problem in (
        (text, (), "text:4: byte 0xe9 is not UTF-8"),
        (objects, ("--json-input",), "objects, line 4: expected an object with"),
    ):
        done = nmt("translate", "--model", run, path, *flags)
        assert (done.status, done.out) == (1, before)
        assert problem in done.err


def test_an_input_is_not_replaced_by_the_output(
    run: Path, tmp_path: Path, nmt: Callable[..., Any]
) -> None:
    text, same, other = (tmp_path / name for name in ("in.txt", "same.txt", "other.txt"))
    text.write_text("a cat\n")
    other.write_text("a dog\n")
    same.symlink_to(text)
    inputs: list[dict[str, Any]] = [
        {"flags": [text]},
        {"flags": ["--input", text]},
        {"flags": [], "stdin": text},
        {"flags": [other, "--prefix", text]},
        {"flags": [other, "--require", text]},
    ]
    for given in inputs:
        command = ("translate", *given["flags"], "--model", run, "--output", same)
        done = nmt(*command, stdin=given.get("stdin"))
        assert (done.status, done.out, done.err) == (
            1,
            "",
            f"nmt: error: --output {same}: is one of the inputs; choose another file\n",
        )
        assert text.read_text() == "a cat\n"
    assert nmt("translate", text, "--model", run, "--output", other).status == 0
    assert other.read_text() != "a dog\n"


def test_output_may_be_a_device(run: Path, tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(translate)
    (tmp_path / "in.txt").write_bytes(b"a cat\n")
    flags = [str(tmp_path / "in.txt"), "--model", str(run), "--output", os.devnull]
    assert CliRunner().invoke(app, flags).exit_code == 0
    assert Path(os.devnull).is_char_device()


class Upper:
    """A translator to upper case that may lose the first line of each block."""

    windows_ahead = 0

    def __init__(self, losing: bool = False) -> None:
        self.config = SearchConfig(window=2)
        self.counts = Counts()
        self.losing = losing
        self.on_sentence: Callable[[], object] | None = None

    def in_documents(self, blocks: Iterable[list[str]]) -> Iterable[list[str]]:
        return blocks

    def translate(self, lines: list[str]) -> Iterator[str]:
        for line in lines[self.losing :]:
            if self.on_sentence:
                self.on_sentence()
            yield line.upper()


def stream(text: bytes) -> Lines:
    """The lines of a pipe."""
    reading, writing = os.pipe()
    threading.Thread(target=lambda: (os.write(writing, text), os.close(writing))).start()
    return Lines(os.fdopen(reading, "rb"), "pipe")


def test_a_line_that_is_lost_is_an_error() -> None:
    with pytest.raises(NmtError) as error:
        translate_stream(Upper(losing=True), stream(b"a\n"), io.BytesIO(), World())  # type: ignore[arg-type]
    assert str(error.value) == (
        "pipe: 1 lines gave 0 translations; do not use them, and report this"
    )


def test_lines_that_were_cut_split_or_lost_their_text_are_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    upper = Upper()
    upper.counts = Counts(0, 5, 2, 3, 4, 6, 7)
    translate_stream(upper, stream(b"a\n"), io.BytesIO(), World())  # type: ignore[arg-type]
    assert capsys.readouterr().err.splitlines()[1:] == [
        "nmt: warning: lines cut to 1024 pieces: 1; "
        "use --on-long-line split, or raise search.max_source_length",
        "nmt: warning: lines cut to 1024 pieces: 4, each with a prefix, phrases or terminology, "
        "which no line that is split can have; give a line for each sentence, or raise "
        "search.max_source_length",
        "nmt: warning: lines much longer than every training sentence, or of more sentences: 6; "
        "use --split-sentences",
        "nmt: warning: lines split into parts of at most 1024 pieces: 2",
        "nmt: warning: empty translations of lines that are not blank: 3; "
        "train longer, or raise --alpha",
        "nmt: warning: translations with flags, such as a repetition or an unusual length: 7; "
        "--json names the flags, and --retry searches again",
    ]


def test_who_types_is_told_when_to_begin_and_typing_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keyboard, screen = os.openpty()
    terminal, target = Terminal(), io.BytesIO()
    monkeypatch.setattr("sys.stderr", terminal)

    def type_slowly() -> None:
        for keys in (b"a\n", b"b\n", b"\x04"):
            time.sleep(0.2)
            os.write(keyboard, keys)

    threading.Thread(target=type_slowly).start()
    typed = Lines(os.fdopen(screen, "rb"), "stdin")
    start = time.monotonic()
    translate_stream(Upper(), typed, target, World())  # type: ignore[arg-type]
    elapsed = time.monotonic() - start
    assert elapsed > 0.5
    assert target.getvalue() == b"A\nB\n"
    ready, report = terminal.getvalue().splitlines()
    assert ready == "ready; type a line to translate, and Ctrl-D at the end"
    (seconds,) = re.findall(r"^translated 2 lines in (\d\.\d) s: ", report)
    assert float(seconds) < elapsed - 0.1  # the machine may make a pause, but not while it waits


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Shown(io.BytesIO):
    """A terminal that results are written to."""

    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal_that_results_are_not_written_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = []
    for terminal, target in (
        (Terminal(), io.BytesIO()),
        (Terminal(), Shown()),
        (io.StringIO(), io.BytesIO()),
    ):
        monkeypatch.setattr("sys.stderr", terminal)
        translate_stream(Upper(), stream(b"a\nb\nc\n"), target, World())  # type: ignore[arg-type]
        said.append(terminal.getvalue())
    assert "lines/s" in said[0]
    assert ["lines/s" in it for it in said] == [True, False, False]
    assert all("translated 3 lines in" in it for it in said)


def test_progress_moves_with_every_line_to_the_number_of_lines_of_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "text").write_text("a\nb\nc\nd\ne\n")
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)
    monkeypatch.setattr("tqdm.std.time", partial(next, itertools.count()))  # a second a call
    upper = Upper()
    upper.config = SearchConfig(window=4)
    translate_stream(upper, Lines.open(tmp_path / "text"), io.BytesIO(), World())  # type: ignore[arg-type]
    shown = re.findall(r"\d/5", terminal.getvalue())
    assert [*dict.fromkeys(shown)] == ["0/5", "1/5", "2/5", "3/5", "4/5", "5/5"]


def test_beginnings_and_phrases_come_from_files_line_by_line(
    run: Path, tmp_path: Path, nmt: Callable[..., Any]
) -> None:
    for name, lines in {
        "in.txt": ["the cat sat", "", "on a mat", "a dog"],
        "prefixes.txt": ["a dog", "a", "", "the c"],
        "phrases.txt": ["", "", "cat\tdog and", "mat"],
    }.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    flags = ("translate", tmp_path / "in.txt", "--model", run, "--device", "cpu")
    files = ("--prefix", tmp_path / "prefixes.txt", "--require", tmp_path / "phrases.txt")
    done = nmt(*flags, *files, "--strategy", "lexical_beam", "--beam", "9", "--window", "3")
    assert done.status == 0, done.err
    first, blank, third, last = done.out.splitlines()
    assert (first[:5], blank, last[:5]) == ("a dog", "", "the c")
    assert "cat" in third
    assert "dog and" in third
    assert "mat" in last
    done = nmt(*flags, *files, "--engine", "nmt")
    assert (done.status, done.out) == (1, "")
    assert done.err == (
        "nmt: error: search.strategy: beam cannot place phrases that must appear; "
        "use lexical_beam (line 'on a mat')\n"
    )


@pytest.mark.parametrize("given", ["", "a\nb\n"])
def test_a_file_of_beginnings_has_as_many_lines_as_the_text(
    run: Path, tmp_path: Path, given: str, nmt: Callable[..., Any]
) -> None:
    (tmp_path / "in.txt").write_text("a cat\n")
    (tmp_path / "prefixes.txt").write_text(given)
    text, prefixes = tmp_path / "in.txt", tmp_path / "prefixes.txt"
    done = nmt("translate", text, "--model", run, "--prefix", prefixes, "--engine", "nmt")
    assert done.status == 1
    assert done.err == (
        f"nmt: error: {text} and {prefixes} differ in their number of lines; "
        "line n of one must belong to line n of the other\n"
    )


def test_words_are_aligned_in_json(run: Path, tmp_path: Path, nmt: Callable[..., Any]) -> None:
    out = invoke(run, tmp_path, b"the cat  sat\n\na dog\n", "--json", "--alignments")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [it["source_words"] for it in lines] == [["the", "cat", "sat"], [], ["a", "dog"]]
    for line in lines:
        assert all(f"`{field}`" in OUTPUTS for field in line)
        assert line["words"] == line["text"].split()
        assert [target for _, target in line["alignment"]] == list(range(len(line["words"])))
        assert all(source in range(len(line["source_words"])) for source, _ in line["alignment"])
    done = nmt("translate", "--alignments", "--model", run)
    assert (done.status, done.out) == (2, "")
    assert "--alignments needs --json, in which they are written" in done.err


def test_pieces_are_aligned_in_json_where_that_is_asked_for(
    run: Path, tmp_path: Path, nmt: Callable[..., Any]
) -> None:
    flags = ("--json", "--alignments", "--alignment-unit", "pieces")
    out = invoke(run, tmp_path, b"the cat  sat\n\na dog\n", *flags)
    lines = [json.loads(line) for line in out.splitlines()]
    assert ["".join(it["source_pieces"]) for it in lines] == ["the cat  sat", "", "a dog"]
    for line in lines:
        assert all(f"`{field}`" in OUTPUTS for field in line)
        assert "".join(line["pieces"]) == line["text"]
        assert [target for _, target in line["alignment"]] == list(range(len(line["pieces"])))
    assert lines[0]["source_pieces"] == ["the", " cat", "  sat"]
    done = nmt("translate", "--json", "--alignment-unit", "pieces", "--model", run)
    assert (done.status, done.out) == (2, "")
    assert "--alignment-unit needs --alignments" in done.err


def test_a_model_that_has_diverged_costs_one_line(
    run: Path, tmp_path: Path, nmt: Callable[..., Any]
) -> None:
    broken = shutil.copytree(run, tmp_path / "broken", symlinks=True)
    loaded = load_model(broken)
    weights = weights_of(loaded.model)
    weights["output.bias" if "output.bias" in weights else "target_embedding.weight"].fill_(
        float("nan")
    )
    loaded.run.save(2, weights, None, {}, {}, True)
    (tmp_path / "in.txt").write_text("a cat\n")
    model = broken / "update_0000002"
    done = nmt("translate", tmp_path / "in.txt", "--model", model, "--engine", "nmt")
    assert (done.status, done.out) == (1, "")
    assert done.err == (
        "nmt: error: step 1 of the search: the model's logits are not numbers; "
        "it has diverged: use another checkpoint\n"
    )


@pytest.mark.parametrize(
    ("closed", "message"),
    [
        (">&-", "stdout is closed; use > /dev/null where results are not wanted"),
        ("<&-", "stdin is closed; name a file to read"),
    ],
)
def test_a_stream_that_the_shell_closed_costs_one_line(
    run: Path, closed: str, message: str
) -> None:
    command = f"echo a cat | {sys.executable} -m nmt translate --model {run} {closed}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"nmt: error: {message}\n")


def test_a_line_in_a_pipe_is_answered_before_the_next_is_written() -> None:
    source_end, source = os.pipe()
    target_end, target = os.pipe()
    with (
        open(source_end, "rb") as lines,
        open(source, "wb", buffering=0) as typed,
        open(target_end, "rb") as answers,
        open(target, "wb") as shown,
    ):
        arguments = (Upper(), Lines(lines, "pipe"), shown, World())
        worker = threading.Thread(target=translate_stream, args=arguments)
        worker.start()
        for line in (b"one\n", b"two\n", b"three\n"):
            typed.write(line)
            assert answers.readline() == line.upper()
        typed.close()
        worker.join(timeout=10)
        assert not worker.is_alive()
