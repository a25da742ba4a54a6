"""The scripts of docs/pipelines.md do what they say, one after the other, at a small size."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import nmt as package
from nmt.data.dataset import Dataset

DOCUMENT = Path(__file__).parents[1] / "docs" / "pipelines.md"


def test_the_pipelines_run_as_they_are_printed(
    tmp_path: Path, corpus: Path, dataset: Path, trained: Path, programs: Path
) -> None:
    here, interpreter = tmp_path / "here", tmp_path / "bin" / "python"
    here.mkdir()
    interpreter.parent.mkdir()
    interpreter.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    interpreter.chmod(0o755)
    for link, place in (
        ("corpus", corpus),
        ("data-bin", dataset),
        ("reverse", trained),
        ("first", trained),
        ("second", trained),
        ("forward", trained),
    ):
        (here / link).symlink_to(place)
    text = (corpus / "test.de").read_text()
    (here / "mono.de").write_text(text)
    rows = "".join(f"{line}\t{line}!\n" for line in text.splitlines())
    (here / "crawl.tsv.gz").write_bytes(gzip.compress(f"no tab\n{rows}".encode()))
    environment = os.environ | {
        "PATH": f"{programs}:{interpreter.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(package.__file__).parents[1]),
    }
    outputs = []
    for block in re.findall(r"^```sh\n(.*?)^```", DOCUMENT.read_text(), re.M | re.S):
        done = subprocess.run(
            ["bash", "-c", f"set -euo pipefail\n{block}"],
            cwd=here,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs[:3] == ["back-bin\n", "sampled-bin\n", "crawl-bin\n"]
    assert outputs[4].startswith("| system    | bleu |  mean ± 95% |       p | ")
    assert "| second.de |" in outputs[4]
    assert "paired bootstrap resampling against first.de, bs:1000|seed:12345" in outputs[4]
    back = Dataset.open(here / "back-bin").manifest.splits["train"]
    assert back.pairs + sum(back.dropped.values()) == 210
    assert Dataset.open(here / "crawl-bin").manifest.splits["train"].pairs == 10
    assert f"{back.dropped['duplicates']}\tduplicates\n" in outputs[3]
    sampled = Dataset.open(here / "sampled-bin").manifest.splits["train"]
    assert sampled.pairs + sum(sampled.dropped.values()) == 2 * 200 + 10
    assert len(list(here.glob("part.?.en"))) == 4
    sources = (corpus / "test.en").read_text().splitlines()
    candidates = [line.split(" ||| ") for line in (here / "both.txt").read_text().splitlines()]
    numbers, texts, features, _ = zip(*candidates, strict=True)
    assert len(sources) < len(candidates) <= 4 * len(sources)
    gains = package.Translator(trained).score([sources[int(at)] for at in numbers], texts)
    for words, expected in zip(map(str.split, features), gains, strict=True):
        assert words[-2] == "Second="
        assert float(words[-1]) == pytest.approx(sum(expected), abs=1e-3)
    assert len((here / "rescored.de").read_text().splitlines()) == len(text.splitlines())
    crawl = (here / "crawl.tsv").read_text().splitlines()
    entropies = [
        [float(it) for it in (here / f"{name}.entropy").read_text().split()]
        for name in ("forward", "reverse")
    ]
    costs = [abs(f - r) + (f + r) / 2 for f, r in zip(*entropies, strict=True)]
    best = sorted(range(len(crawl)), key=costs.__getitem__)[: len(crawl) // 2]
    filtered = (here / "filtered.tsv").read_text().splitlines()
    assert sorted(filtered) == sorted(crawl[it] for it in best)
