"""The scripts of docs/pipelines.md do what they say, one after the other, at a small size."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
from pathlib import Path

import nmt as package
from nmt.data.format import Dataset

DOCUMENT = Path(__file__).parents[1] / "docs" / "pipelines.md"


def test_the_pipelines_run_as_they_are_printed(
    tmp_path: Path, corpus: Path, dataset: Path, trained: Path
) -> None:
    here, programs = tmp_path / "here", tmp_path / "bin"
    here.mkdir()
    programs.mkdir()
    for name, program in (("nmt", "-m nmt"), ("python", "")):
        path = programs / name
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" {program} "$@"\n')
        path.chmod(0o755)
    for link, place in (
        ("corpus", corpus),
        ("data-bin", dataset),
        ("reverse", trained),
        ("first", trained),
        ("second", trained),
    ):
        (here / link).symlink_to(place)
    text = (corpus / "test.de").read_text()
    (here / "mono.de").write_text(text)
    rows = "".join(f"{line}\t{line}!\n" for line in text.splitlines())
    (here / "crawl.tsv.gz").write_bytes(gzip.compress(f"no tab\n{rows}".encode()))
    environment = os.environ | {
        "PATH": f"{programs}:{os.environ['PATH']}",
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
    assert outputs[:2] == ["back-bin\n", "crawl-bin\n"]
    assert outputs[3].startswith("| system    | bleu |  mean ± 95% |       p | ")
    assert "| second.de |" in outputs[3]
    assert "paired bootstrap resampling against first.de, bs:1000|seed:12345" in outputs[3]
    back = Dataset.open(here / "back-bin").manifest.splits["train"]
    assert back.pairs + sum(back.dropped.values()) == 210
    assert Dataset.open(here / "crawl-bin").manifest.splits["train"].pairs == 10
    assert f"{back.dropped['duplicates']}\tduplicates\n" in outputs[2]
