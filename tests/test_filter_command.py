import fcntl
import gzip
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import numpy as np
import pytest
from trained_runs import turn

from nmt.cli.score.by_model import load_in_torch
from nmt.errors import NmtError
from nmt.inference import SearchConfig, filtering
from nmt.inference.execution import ON_CPU
from nmt.inference.filtering import CHARACTERS, Cut, dual_scorer, score_corpus, write_kept
from nmt.preprocess.corpus import Bitext
from nmt.runtime.distributed import World

Command = Callable[..., Any]


class Fake:
    """A translator whose log-probabilities are the numbers in the target, and 0 for its end."""

    def score(self, sources: list[str], targets: list[str]) -> list[list[float]]:
        numbers = [[float(number) for number in target.split()] for target in targets]
        return [[-number * (len(row) + 1) / len(row) for number in row] + [0.0] for row in numbers]


def test_a_pair_with_a_blank_side_has_the_score_0() -> None:
    score = dual_scorer(Fake(), Fake())  # type: ignore[arg-type]
    assert score(["", "\u3000", "0", "0"], [" ", "0", "", "0"]).tolist() == [0, 0, 0, 1]


def test_a_score_is_high_if_both_models_agree_on_a_high_probability() -> None:
    score = dual_scorer(Fake(), Fake())  # type: ignore[arg-type]
    sources, targets = ["0", "1 3", "0", "1", "nan", "0"], ["0", "2", "2", "1", "1", "1"]
    targets[-1] *= CHARACTERS + 1
    expected = [1, np.exp(-2), np.exp(-(2 + 1)), np.exp(-1), 0, 0]
    assert score(sources, targets) == pytest.approx(expected)
    assert score([], []).shape == (0,)
    assert score(["0"], ["0" * CHARACTERS]).tolist() == [1]


def test_each_model_scores_the_side_that_it_writes() -> None:
    calls = []

    class Noting(Fake):
        def score(self, sources: list[str], targets: list[str]) -> list[list[float]]:
            calls.append((sources, targets))
            return super().score(sources, targets)

    dual_scorer(Noting(), Noting())(["1"], ["2"])  # type: ignore[arg-type]
    assert calls == [(["1"], ["2"]), (["2"], ["1"])]


@pytest.mark.parametrize("size", [1, 5, 3000])
@pytest.mark.parametrize("keep", [0, 0.1, 0.5, 0.777, 1])
@pytest.mark.parametrize("tied", [False, True])
def test_the_best_pairs_are_kept_and_of_equal_ones_the_first(tmp_path, size, keep, tied) -> None:
    random = np.random.default_rng(1)
    scores = (random.integers(0, 5, size) / 7 if tied else random.random(size)).astype("<f4")
    scores.tofile(tmp_path / "scores")
    masks = [kept for _, kept in Cut(tmp_path / "scores", keep, None).masks()]
    best = np.argsort(-scores, kind="stable")[: round(keep * size)]
    assert np.flatnonzero(np.concatenate(masks)).tolist() == sorted(best.tolist())
    above = [kept for _, kept in Cut(tmp_path / "scores", None, 0.5).masks()]
    assert np.array_equal(np.concatenate(above), scores >= 0.5)


def test_scoring_resumes_behind_the_last_whole_score(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("".join(f"{n}\tx\n" for n in range(2000)))
    bitext, path, seen = Bitext(tmp_path / "a.tsv", None), tmp_path / "scores", []

    def score(sources, targets):
        seen.extend(sources)
        return np.array([int(source) / 4000 for source in sources], np.float32)

    score_corpus(bitext, score, path, World())
    whole = path.read_bytes()
    assert len(seen) == 2000
    path.write_bytes(whole[:-31])
    score_corpus(bitext, score, path, World())
    assert (path.read_bytes(), len(seen)) == (whole, 2008)
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(NmtError, match="another process is writing it"):
            score_corpus(bitext, score, path, World())


def test_scores_do_not_depend_on_the_number_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filtering, "BLOCK", 4)
    (tmp_path / "a.tsv").write_text("".join(f"{n}\tx\n" for n in range(27)))
    meeting, values, seen = Barrier(2, timeout=60), [None, None], [0, 0]

    class Two(World):
        def gather(self, value: Any) -> list[Any]:
            values[self.rank] = value
            meeting.wait()
            gathered = [*values]
            meeting.wait()
            return gathered

    def run(world: World) -> None:
        def score(sources: Any, _: Any) -> Any:
            seen[world.rank] += len(sources)
            return np.array([int(source) / 32 for source in sources], np.float32)

        score_corpus(Bitext(tmp_path / "a.tsv", None), score, tmp_path / "scores", world)

    other = Thread(target=run, args=(Two(rank=1, size=2),))
    other.start()
    run(Two(rank=0, size=2))
    other.join()
    assert np.fromfile(tmp_path / "scores", "<f4").tolist() == [n / 32 for n in range(27)]
    assert seen == [14, 13]


def test_two_files_become_columns(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_bytes(b"one\r\ntwo\ttwo\nthree\xe2\x80\xa8\nfour")
    (tmp_path / "a.de").write_bytes(b"eins\nzwei\ndrei\nvier\n")
    np.array([1, 1, 1, 0.5], "<f4").tofile(tmp_path / "scores")
    cut = Cut(tmp_path / "scores", None, 0.5)
    with (tmp_path / "out").open("wb") as output:
        assert write_kept(Bitext.find(str(tmp_path / "a"), "en", "de"), cut, output) == 4
    expected = b"one\teins\ntwo two\tzwei\nthree\xe2\x80\xa8\tdrei\nfour\tvier\n"
    assert (tmp_path / "out").read_bytes() == expected


@pytest.fixture
def reverse(tmp_path: Path, trained: Path) -> Path:
    """A run in the other direction."""
    path = Path(shutil.copytree(trained, tmp_path / "reverse", symlinks=True))
    turn(path)
    return path


def test_the_better_half_of_a_corpus_is_kept(
    tmp_path: Path, trained: Path, reverse: Path, corpus: Path, nmt: Command, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    sides = [(corpus / f"test.{language}").read_text().splitlines() for language in ("en", "de")]
    rows = ["\t".join(pair) for pair in zip(*sides, strict=True)]
    rows += [f"{row}\r" for row in rows[:3]]
    text = "".join(f"{row}\n" for row in rows)
    (tmp_path / "crawl.tsv.gz").write_bytes(gzip.compress(text.encode()))
    models = ("--forward", trained, "--reverse", reverse)
    flags = (*models, "--keep", 0.5, "-o", "best.tsv", "--scores", "scores")
    done = nmt("filter", "crawl.tsv.gz", *flags)
    assert (done.status, done.out) == (0, ""), done.err
    kept = (tmp_path / "best.tsv").read_bytes().decode().split("\n")[:-1]
    scores = np.loadtxt(tmp_path / "scores")
    assert len(scores) == len(rows)
    best = np.argsort(-scores, kind="stable")[: round(len(rows) / 2)]
    assert kept == [rows[at] for at in sorted(best)]
    assert f"kept {len(kept)} of {len(rows)} pairs" in done.err
    assert "the first column was taken as en, the second as de\n" in done.err
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]
    none = nmt("filter", "crawl.tsv.gz", *models, "--keep", 0)
    assert (none.out, none.err.splitlines()[-1]) == ("", f"kept 0 of {len(rows)} pairs"), none.err
    (tmp_path / "crawl.tsv").write_text(text, newline="")
    again = nmt("filter", "-", *models, "--keep", 0.5, stdin=tmp_path / "crawl.tsv")
    assert again.out.splitlines() == [row.removesuffix("\r") for row in kept]


def test_ctranslate2_gives_the_scores_of_torch(
    tmp_path: Path, trained: Path, reverse: Path, corpus: Path, nmt: Command
) -> None:
    flags = ("--forward", trained, "--reverse", reverse, "--keep", 1, "--scores", tmp_path / "all")
    done = nmt("filter", corpus / "test", *flags)
    engines = [line for line in done.err.splitlines() if line.startswith("engine ")]
    assert [line.partition("exports")[0] for line in engines] == [
        f"engine ctranslate2: {run}/" for run in (trained, reverse)
    ]
    score = dual_scorer(
        *(load_in_torch([run], SearchConfig(), ON_CPU) for run in (trained, reverse))
    )
    sides = [(corpus / f"test.{language}").read_text().splitlines() for language in ("en", "de")]
    assert np.loadtxt(tmp_path / "all") == pytest.approx(score(*sides), abs=1e-5)


def test_mistakes_are_answered(
    tmp_path: Path, trained: Path, reverse: Path, nmt: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.tsv").write_text("one\n")
    same = ("--forward", trained, "--reverse", trained)
    models = ("--forward", trained, "--reverse", reverse)
    done = nmt("filter", tmp_path / "a.tsv", *models)
    assert (done.status, "give either --keep or --threshold" in done.err) == (2, True)
    one_file = ("--keep", 1, "-o", tmp_path / "b", "--scores", tmp_path / "." / "b")
    done = nmt("filter", tmp_path / "a.tsv", *models, *one_file)
    assert (done.status, "--output and --scores are the same file" in done.err) == (2, True)
    done = nmt("filter", tmp_path / "a.tsv", *same, "--keep", 1)
    assert "--forward translates en to de, but --reverse en to de; give models of" in done.err
    done = nmt("filter", tmp_path / "a.tsv", *models, "--keep", 1, "-o", tmp_path / "b")
    assert (done.status, "line 1 has 1 column instead of 2" in done.err) == (1, True)
    assert not [*tmp_path.glob("*b*scores*"), *tmp_path.glob(".b*"), *tmp_path.glob("b")]
    done = nmt("filter", tmp_path / "a.tsv", *models, "--keep", 1, "-o", tmp_path / "a.tsv")
    assert f"--output {tmp_path}/a.tsv: is one of the inputs" in done.err
    done = nmt("filter", tmp_path / "a.tsv", *models, "--keep", 1, "--scores", tmp_path / "a.tsv")
    assert f"--scores {tmp_path}/a.tsv: is one of the inputs" in done.err
    for flag in ("-o", "--scores"):
        done = nmt("filter", tmp_path / "a.tsv", *models, "--keep", 1, flag, tmp_path / "no" / "b")
        assert done.err == f"nmt: error: {tmp_path}/no: No such file or directory; check the path\n"
    monkeypatch.setattr("sys.stdin", None)
    done = nmt("filter", "-", *models, "--keep", 1)
    assert (done.status, done.err) == (1, "nmt: error: stdin is closed; name a file to read\n")
