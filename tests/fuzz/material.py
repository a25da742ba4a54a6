"""A small dataset, run, export, n-best list and recipe: what is damaged."""

from __future__ import annotations

import gzip
import lzma
import random
import shutil
import sys
from functools import partial
from pathlib import Path

from fuzz import child
from nmt.cli.app import main
from nmt.io.lines import zstd

RECIPE = """\
preprocess:
  source_lang: en
  target_lang: de
  train: [text/train]
  valid: text/valid
  test: text/test
  output_dir: data-bin
  vocab_size: 60
  byte_fallback: false
  workers: 1
  clean: [unicode, {name: length, max: 50, max_ratio: 9}, duplicates]
model:
  arch: transformer_tiny
  encoder_layers: 1
  decoder_layers: 1
  d_model: 16
  d_ff: 32
  heads: 2
  dropout: 0.1
train:
  data: data-bin
  save_dir: run
  tokens_per_update: 150
  max_tokens: 100
  max_updates: 60
  schedule: {name: inverse_sqrt, lr: 0.02, warmup_updates: 20}
  precision: fp32
  device: cpu
  valid_every: 20
  valid_metrics: [bleu]
  best_metric: loss
  save_every: 20
  log_every: 20
search:
  strategy: {name: beam, beam: 2, stop: first_beam}
score:
  metrics: [bleu, chrf]
"""

COMMANDS = (
    "preprocess",
    "preprocess --shard 1/2 --output-dir sharded",
    "preprocess --shard 2/2 --output-dir sharded",
    "train",
    "train --save-dir plugged --plugin extra --max-updates 2",
    "shortlist --model run",
    "export --model run --output exported",
    "export --format huggingface --model run --output foreign",
    "translate --model run --n-best 2 --workers 1 --output list.txt text/test.en",
)

ENGLISH = ["one", "two", "three", "four", "five", "six"]
GERMAN = ["eins", "zwei", "drei", "vier", "fünf", "sechs"]


def run(arguments: str, directory: Path, **limits: float) -> child.Done:
    """``nmt ARGUMENTS`` in a directory; the arguments are divided by spaces."""
    return child.run(partial(_nmt, arguments.split()), directory, **limits)  # type: ignore[arg-type]


def _nmt(arguments: list[str]) -> None:
    sys.argv = ["nmt", *arguments]
    main()


def make(directory: Path) -> None:
    """Fills an empty directory.

    Raises:
        RuntimeError: a command failed that should not.
    """
    (directory / "text").mkdir()
    for seed, (split, pairs) in enumerate({"train": 100, "valid": 10, "test": 8}.items()):
        _write_numbers(directory / "text" / split, pairs, seed)
    text = (directory / "text" / "test.en").read_bytes()
    with_checksum = {zstd.CompressionParameter.checksum_flag: 1}  # as the program zstd writes
    compressed = {
        "gz": gzip.compress(text),
        "xz": lzma.compress(text),
        "zst": zstd.compress(text, options=with_checksum),
    }
    for suffix, content in compressed.items():
        (directory / "text" / f"test.en.{suffix}").write_bytes(content)
    fairseq = shutil.copytree(Path(__file__).parents[1] / "fairseq" / "post", directory / "fairseq")
    packed = fairseq / "model.pt.gz"
    (fairseq / "model.pt").write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
    (fairseq / "expected.tsv").unlink()
    (directory / "nmt.yaml").write_text(RECIPE)
    (directory / "extra.py").write_text('"""A plugin that registers nothing."""\n')
    for command in COMMANDS:
        done = run(command, directory, seconds=300)
        if done.status != 0:
            raise RuntimeError(f"nmt {command}: {done.err}")
    shutil.copy(directory / "run" / "subwords.model", directory / "subwords.model")
    for folder, model in (("marian", "student.npz"), ("binary", "student.bin")):
        (directory / folder).mkdir()
        for name in (model, "vocab.spm"):
            shutil.copy(Path(__file__).parents[1] / "marian" / name, directory / folder)


def _write_numbers(prefix: Path, pairs: int, seed: int) -> None:
    draw = random.Random(seed)
    sentences = [draw.choices(range(6), k=draw.randint(1, 9)) for _ in range(pairs)]
    for suffix, words in ((".en", ENGLISH), (".de", GERMAN)):
        lines = (" ".join(words[number] for number in sentence) for sentence in sentences)
        prefix.with_suffix(suffix).write_text("".join(f"{line}\n" for line in lines))
