"""Something is learned: to turn sentences round, and to look at the sentence before."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pronouns
import pytest

pytestmark = pytest.mark.full

RECIPE = """
preprocess:
  source_lang: up
  target_lang: down
  train: train
  valid: valid
  vocab_size: 37  # the special ids, the word boundary, and every letter with and without it
  byte_fallback: false
model:
  encoder_layers: 1
  decoder_layers: 1
  d_model: 64
  d_ff: 128
  heads: 4
  dropout: 0
train:
  tokens_per_update: 400
  max_updates: 500
  schedule: {name: inverse_sqrt, lr: 0.005, warmup_updates: 50}
  precision: fp32
  device: cpu
  valid_every: 250
  save_every: 100
  log_every: 250
"""


def write_backwards(prefix: str, pairs: int, seed: int) -> None:
    draw = random.Random(seed)
    sentences = [" ".join(draw.choices("abcdefgh", k=draw.randint(1, 8))) for _ in range(pairs)]
    Path(f"{prefix}.up").write_text("".join(f"{it}\n" for it in sentences))
    Path(f"{prefix}.down").write_text("".join(f"{it[::-1].upper()}\n" for it in sentences))


def test_a_transformer_learns_to_turn_sentences_round(
    nmt: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for seed, (split, pairs) in enumerate({"train": 2000, "valid": 50, "test": 100}.items(), 1):
        write_backwards(split, pairs, seed)
    Path("nmt.yaml").write_text(RECIPE)
    assert nmt("preprocess").status == 0
    assert nmt("train", "--arch", "transformer_tiny").status == 0

    def bleu(split: str, model: str) -> float:
        translated = nmt("translate", "--model", model, stdin=Path(f"{split}.up"))
        Path("output.txt").write_text(translated.out)
        scored = nmt("score", "--reference", f"{split}.down", "--json", "--metric", "bleu",
                     "output.txt")  # fmt: skip
        return float(json.loads(scored.out)["value"])

    best = bleu("test", "checkpoints")
    assert best > 80  # chance is below 1
    # One road to BLEU: validation measured what the commands measure.
    log = [json.loads(line) for line in Path("checkpoints/log.jsonl").read_text().splitlines()]
    [last] = [line for line in log if line["record"] == "validation" and line["update"] == 500]
    assert bleu("valid", "checkpoints/update_0000500") == last["bleu"]
    # And the mean of what was learned last is no worse than half as good.
    assert nmt("average-checkpoints", "--last", 2).status == 0
    assert bleu("test", "checkpoints/averaged") > best / 2


def test_only_a_model_with_context_learns_the_gender_of_a_pronoun(
    nmt: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pronouns.main(["--output-dir", "."])
    recipe = RECIPE.replace(": up", ": en").replace(": down", ": de")
    recipe = recipe.replace("vocab_size: 37", "vocab_size: 160")
    Path("nmt.yaml").write_text(recipe.replace("max_updates: 500", "max_updates: 150"))

    def correct(context: str) -> float:
        documents = f"preprocess.documents={context}"
        assert nmt("preprocess", "--set", documents, "--output-dir", f"{context}-bin").status == 0
        assert nmt("train", "--data", f"{context}-bin", "--save-dir", context).status == 0
        translated = nmt("translate", "--model", context, "test.en").out.splitlines()
        lines = zip(Path("test.de").read_text().splitlines(), translated, strict=True)
        words = [(line.split()[0], answer.split()[0]) for line, answer in lines if " war " in line]
        assert len(words) == 195
        return sum(word == answer for word, answer in words) / len(words)

    assert 0.4 < correct("null") < 0.6
    assert correct("{context: 1}") > 0.95
