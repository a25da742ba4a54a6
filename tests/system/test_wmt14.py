"""The WMT14 example, whole, on a small replica of its archives that is served on this machine."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import random
import re
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

import nmt as package

pytestmark = pytest.mark.full

EXAMPLE = Path(__file__).parents[2] / "examples" / "wmt14"
WORDS = {
    "en": ["one", "two", "three", "four", "five", "six"],
    "de": ["eins", "zwei", "drei", "vier", "fünf", "sechs"],
    "fr": ["un", "deux", "trois", "quatre", "cinq", "six"],
}
CORPORA = {  # archive to the corpora in it, as the official ones are laid out
    "wmt13/training-parallel-europarl-v7.tgz": ["training/europarl-v7.{}-en"],
    "wmt13/training-parallel-commoncrawl.tgz": ["commoncrawl.{}-en"],
    "wmt13/training-parallel-un.tgz": ["un/undoc.2000.{}-en"],
    "wmt14/training-parallel-nc-v9.tgz": ["training/news-commentary-v9.{}-en"],
}


def lines(language: str, seed: int, pairs: int = 60) -> list[str]:
    draw = random.Random(seed)
    sentences = [draw.choices(range(6), k=draw.randint(2, 9)) for _ in range(pairs)]
    return [" ".join(WORDS[language][word] for word in it) for it in sentences]


def text(language: str, seed: int) -> bytes:
    return "".join(f"{line}\n" for line in lines(language, seed)).encode()


def sgml(language: str, seed: int) -> bytes:
    rows = [
        f'<seg id="{n}"> {line} &amp; &quot;so&quot; </seg>'
        for n, line in enumerate(lines(language, seed, 5), 1)
    ]
    return "\n".join(['<doc docid="a">', "<p>", *rows, "</p>", "</doc>", ""]).encode()


def pack(path: Path, members: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz" if path.suffix == ".tgz" else "w") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Archives with the names and the layout of the official ones."""
    root = tmp_path_factory.mktemp("mirror")
    for seed, (path, corpora) in enumerate(CORPORA.items()):
        others = ["fr"] if "-un" in path else ["de", "fr"]
        pack(
            root / path,
            {
                f"{corpus.format(other)}.{language}": text(language, seed)
                for corpus in corpora
                for other in others
                for language in (other, "en")
            },
        )
    giga = {
        f"giga-fren.release2.fixed.{language}.gz": gzip.compress(text(language, 8))
        for language in ("en", "fr")
    }
    pack(root / "wmt10/training-giga-fren.tar", giga)
    dev = {f"dev/newstest2013.{language}": text(language, 9) for language in WORDS}
    pack(root / "wmt19/translation-task/dev.tgz", dev)
    test = {
        f"test-full/newstest2014-{other}en-{kind}.{language}.sgm": sgml(language, 10)
        for other in ("de", "fr")
        for kind, language in (("src", "en"), ("ref", other), ("src", other), ("ref", "en"))
    }
    pack(root / "wmt14/test-full.tgz", test)
    return root


class Ranges(SimpleHTTPRequestHandler):
    """A server that continues downloads, as the official one does."""

    requests: ClassVar[list[tuple[str, int]]] = []

    def do_GET(self) -> None:
        content = Path(self.translate_path(self.path)).read_bytes()
        match = re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(match[1]) if match else 0
        self.requests.append((self.path, start))
        self.send_response(206 if match else 200)
        if match:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start:])

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(mirror: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Ranges, directory=str(mirror)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()


@pytest.fixture
def example(tmp_path: Path, mirror: Path, programs: Path) -> Path:
    """A copy of the example: its scripts as they are, the recipes and checksums of the replica."""
    copy = Path(shutil.copytree(EXAMPLE, tmp_path / "wmt14", ignore=shutil.ignore_patterns("work")))
    rows = []
    for row in (copy / "ARCHIVES").read_text().splitlines():
        if not row.startswith("#"):
            pair, path, algorithm, _ = row.split()
            digest = hashlib.new(algorithm, (mirror / path).read_bytes()).hexdigest()
            row = f"{pair} {path} {algorithm} {digest}"
        rows.append(f"{row}\n")
    (copy / "ARCHIVES").write_text("".join(rows))
    for path in copy.glob("*.yaml"):
        recipe = yaml.safe_load(path.read_text())
        recipe["preprocess"] |= {"vocab_size": 60, "byte_fallback": False, "workers": 1}
        recipe["model"] |= {"d_model": 16, "d_ff": 32, "heads": 2}
        recipe["model"] |= {"encoder_layers": 1, "decoder_layers": 1}
        recipe["train"] |= {"tokens_per_update": 300, "save_every": 1, "device": "cpu"}
        recipe["train"] |= {"max_updates": recipe["train"]["keep_last"]}
        path.write_text(yaml.safe_dump(recipe))
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "nmt").symlink_to(programs / "nmt")
    torchrun = bin_ / "torchrun"
    torchrun.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m torch.distributed.run "$@"\n')
    torchrun.chmod(0o755)
    return copy


def run(example: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = {
        "PATH": f"{example.parent / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(package.__file__).parents[1]),
    }
    return subprocess.run(
        ["bash", example / "run.sh", *arguments],
        env=os.environ | path | {"GPUS": "1"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def commands(done: Any) -> list[str]:
    return [line.split()[1] for line in done.stderr.splitlines() if line.startswith("+ ")]


def test_from_nothing_to_scores_by_one_command_which_goes_on(example: Path, address: str) -> None:
    dry = run(example, "base", "--dry-run", MIRROR=address)
    assert (dry.returncode, dry.stdout) == (0, "")
    assert commands(dry) == [*["fetch", "mkdir", "extract", "touch"] * 5, *["segments"] * 2,
                             *["nmt"] * 5]  # fmt: skip
    assert not (example / "work").exists()

    archives = example / "work" / "archives"
    archives.mkdir(parents=True)
    name = "training-parallel-nc-v9.tgz"
    (archives / f"{name}.partial").write_bytes(b"no archive")
    refused = run(example, "base", MIRROR=address)
    assert refused.returncode == 1
    complaint = f"wmt14/{name} is not the file it should be; try again, or another MIRROR"
    assert refused.stderr.endswith(f"{complaint}\n")
    assert sorted(path.name for path in archives.iterdir()) == [
        "training-parallel-commoncrawl.tgz",
        "training-parallel-europarl-v7.tgz",
    ]

    done = run(example, "base", MIRROR=address)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"bleu = .*\npaper_bleu = .*\n", done.stdout)
    texts = example / "work" / "en-de" / "text"
    assert len((texts / "newstest2014.en").read_text().splitlines()) == 5
    assert all(
        line.endswith(' & "so"') for line in (texts / "newstest2014.de").read_text().splitlines()
    )
    again = run(example, "base", "--dry-run", MIRROR=address)
    assert (again.returncode, commands(again)) == (0, ["nmt"])  # but the scoring, all is done


def test_a_download_goes_on_where_it_was(example: Path, mirror: Path, address: str) -> None:
    path = "wmt13/training-parallel-europarl-v7.tgz"
    archives = example / "work" / "archives"
    archives.mkdir(parents=True)
    half = (mirror / path).read_bytes()[:100]
    (archives / f"{Path(path).name}.partial").write_bytes(half)
    (example / "big.yaml").unlink()  # so that it stops when the archives are there
    assert run(example, "big", MIRROR=address).returncode == 1
    assert (f"/{path}", 100) in Ranges.requests
    assert (archives / Path(path).name).read_bytes() == (mirror / path).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["big", "large_batch", "deep_shallow", "r_drop"])
def test_every_other_recipe_goes_from_nothing_to_scores(
    example: Path, address: str, recipe: str
) -> None:
    done = run(example, recipe, MIRROR=address)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"bleu = .*\npaper_bleu = .*\n", done.stdout)


@pytest.mark.slow
def test_french_is_trained_by_two_processes(example: Path, address: str) -> None:
    done = run(example, "big_en_fr", MIRROR=address, GPUS="2")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"bleu = .*\npaper_bleu = .*\n", done.stdout)
    assert "torchrun" in commands(done)


def test_an_unknown_recipe_is_refused(example: Path) -> None:
    done = run(example, "huge")
    assert done.returncode == 2
    assert done.stderr.endswith(
        "run.sh base|big|large_batch|deep_shallow|r_drop|big_en_fr [--dry-run]\n"
    )
