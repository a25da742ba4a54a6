"""What many tests share: commands run whole, a small language, and a run trained on it."""

from __future__ import annotations

import gc
import io
import os
import random
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from warm_nmt import warm_nmt

from nmt.cli.app import main

# Before torch is imported: the threads of tiny products would mostly wait for each other, and on a
# busy machine that takes many times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# On a busy machine an example may take any time.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

ENGLISH = ["one", "two", "three", "four", "five", "six"]
GERMAN = ["eins", "zwei", "drei", "vier", "fünf", "sechs"]

RECIPE = """
preprocess:
  source_lang: en
  target_lang: de
  vocab_size: 60
  byte_fallback: false
model:
  arch: transformer_tiny
  encoder_layers: 1
  decoder_layers: 1
  d_model: 16
  d_ff: 32
  heads: 2
train:
  tokens_per_update: 150
  max_tokens: 100
  max_updates: 6
  schedule: {name: inverse_sqrt, lr: 0.01, warmup_updates: 4}
  precision: fp32
  device: cpu
  valid_every: 2
  valid_metrics: []
  best_metric: loss
  save_every: 2
  log_every: 2
search:
  strategy: greedy
"""


def pytest_collection_finish() -> None:
    """Exempts modules and collected tests, which live until the end, from garbage collection.

    pytest collects garbage once more at the end of each worker of xdist, and execnet interrupts a
    worker whose end takes more than 5 seconds: too few on a machine that has swapped them out.
    """
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips the tests marked `gpu` where torch finds no GPU."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """How long the tests of killed trainings take."""
    parser.addoption("--kills", type=int, default=10, help="SIGKILLs per training [10]")


@pytest.fixture(autouse=True)
def one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands fork no workers unless asked: earlier tests may have left CTranslate2 threads."""
    monkeypatch.setattr("nmt.runtime.processes.available_cores", lambda: 1)


@pytest.fixture(scope="session")
def kills(request: pytest.FixtureRequest) -> int:
    """How many times a training is killed."""
    return int(request.config.getoption("--kills"))


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    status: int
    out: str
    err: str


Command = Callable[..., Done]


@pytest.fixture(scope="session")
def nmt() -> Command:
    """Runs ``nmt ARGUMENTS`` in this process, from the parsing to the exit status.

    An exception that a user would see as a traceback reaches the test.
    """

    def run(*arguments: object, stdin: Path | None = None) -> Done:
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(sys, "argv", ["nmt", *map(str, arguments)]))
            if stdin is not None:
                lines = stack.enter_context(stdin.open(encoding="utf-8"))
                stack.enter_context(mock.patch.object(sys, "stdin", lines))
            stack.enter_context(redirect_stdout(out))
            stack.enter_context(redirect_stderr(err))
            exit_ = stack.enter_context(pytest.raises(SystemExit))
            main()
        assert isinstance(exit_.value.code, int)
        return Done(exit_.value.code, text(out), text(err))

    def text(stream: io.TextIOWrapper) -> str:
        buffer = stream.buffer
        assert isinstance(buffer, io.BytesIO)
        return buffer.getvalue().decode("utf-8")

    return run


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """What a full disk does, without one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture(scope="session")
def write_numbers() -> Callable[..., None]:
    """Writes a bitext of numbers in English and German, word for word, or in reverse order."""

    def write(prefix: Path, pairs: int, seed: int, reverse: bool = False) -> None:
        draw = random.Random(seed)
        sentences = [draw.choices(range(6), k=draw.randint(1, 9)) for _ in range(pairs)]
        prefix.parent.mkdir(parents=True, exist_ok=True)
        for suffix, words in ((".en", ENGLISH), (".de", GERMAN)):
            turned = reverse and suffix == ".de"
            lines = [" ".join(words[n] for n in it[:: -1 if turned else 1]) for it in sentences]
            Path(f"{prefix}{suffix}").write_text("".join(f"{line}\n" for line in lines))

    return write


@pytest.fixture(scope="session")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe of a model that trains in a second."""
    path = tmp_path_factory.mktemp("recipe") / "tiny.yaml"
    path.write_text(RECIPE)
    return path


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory, write_numbers: Callable[..., None]) -> Path:
    """A directory with train, valid and test in English and German."""
    directory = tmp_path_factory.mktemp("corpus")
    for seed, (split, pairs) in enumerate({"train": 200, "valid": 20, "test": 10}.items()):
        write_numbers(directory / split, pairs, seed)
    return directory


@pytest.fixture(scope="session")
def dataset(
    tmp_path_factory: pytest.TempPathFactory, corpus: Path, recipe: Path, nmt: Command
) -> Path:
    """The corpus, preprocessed."""
    directory = tmp_path_factory.mktemp("dataset") / "data-bin"
    prefixes = [f"--{split}={corpus / split}" for split in ("train", "valid", "test")]
    done = nmt("preprocess", "--config", recipe, *prefixes, "--output-dir", directory)
    assert done.status == 0, done.err
    return directory


@pytest.fixture(scope="session")
def linked_dataset(
    tmp_path_factory: pytest.TempPathFactory,
    recipe: Path,
    nmt: Command,
    write_numbers: Callable[..., None],
) -> Path:
    """A corpus of numbers in reverse order, with word alignments, preprocessed beside it."""
    directory = tmp_path_factory.mktemp("linked")
    for seed, (split, pairs) in enumerate({"train": 200, "valid": 20, "test": 10}.items()):
        write_numbers(directory / split, pairs, seed, reverse=True)
        lengths = [len(line.split()) for line in (directory / f"{split}.en").open()]
        links = (" ".join(f"{at}-{n - 1 - at}" for at in range(n)) for n in lengths)
        (directory / f"{split}.align").write_text("".join(f"{line}\n" for line in links))
    prefixes = [f"--{split}={directory / split}" for split in ("train", "valid")]
    path = directory / "data-bin"
    done = nmt("preprocess", "--config", recipe, *prefixes, "--alignments", "--output-dir", path)
    assert done.status == 0, done.err
    return path


@pytest.fixture(scope="session")
def train(recipe: Path, dataset: Path, nmt: Command) -> Command:
    """Runs ``nmt train`` with the tiny recipe and the dataset."""

    def run(save_dir: Path, *arguments: object) -> Done:
        places = ("--data", dataset, "--save-dir", save_dir)
        return nmt("train", "--config", recipe, *places, *arguments)

    return run


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, train: Command) -> Path:
    """A run with checkpoints of updates 2, 4 and 6; not to be written to."""
    directory = tmp_path_factory.mktemp("trained") / "checkpoints"
    done = train(directory)
    assert done.status == 0, done.err
    return directory


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory for PATH, with the program ``nmt``."""
    with warm_nmt(tmp_path_factory.mktemp("bin")) as directory:
        yield directory


@pytest.fixture
def run(tmp_path: Path, trained: Path) -> Path:
    """A copy of the trained run without the exports that other tests made, to be written to."""
    exports = shutil.ignore_patterns("exports")
    return Path(shutil.copytree(trained, tmp_path / "run", symlinks=True, ignore=exports))
