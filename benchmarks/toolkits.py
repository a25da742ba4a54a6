"""Toolkits that benchmarks/interchange.py compares with nmt.

    PYTHON benchmarks/toolkits.py NAME JOB RESULT

loads a model, translates lines and scores pairs of lines. JOB and RESULT are JSON files. This file
imports nothing of nmt, so that PYTHON may be that of an environment in which only the toolkit is
installed.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

BATCH = 32
"""Sentences of a batch."""

Translate = Callable[[list[str]], list[str]]
Score = Callable[[list[str], list[str]], list[float]]
"""Lines and their translations to the log-probability of each translation, with its EOS."""


def huggingface(model: Path, beam: int, threads: int) -> tuple[Translate, Score]:
    """Load a model with transformers."""
    import torch
    import transformers

    torch.set_num_threads(threads)
    network = transformers.MarianMTModel.from_pretrained(model).eval()
    tokenizer = transformers.MarianTokenizer.from_pretrained(model)
    padding = network.config.pad_token_id

    def batches(lines: list[str]) -> Iterator[list[int]]:
        by_length = sorted(range(len(lines)), key=lambda at: len(lines[at].split()))
        for start in range(0, len(lines), BATCH):
            yield by_length[start : start + BATCH]

    def translate(lines: list[str]) -> list[str]:
        texts = [""] * len(lines)
        rules = {"length_penalty": 1.0, "early_stopping": False, "no_repeat_ngram_size": 0}
        for batch in batches(lines):
            inputs = tokenizer([lines[at] for at in batch], return_tensors="pt", padding=True)
            outputs = network.generate(**inputs, num_beams=beam, max_length=256, **rules)
            decoded = tokenizer.batch_decode(outputs, skip_special_tokens=True)
            for at, text in zip(batch, decoded, strict=True):
                texts[at] = text
        return texts

    def score(lines: list[str], targets: list[str]) -> list[float]:
        scores = [0.0] * len(lines)
        for batch in batches(targets):
            pair = {"text": [lines[at] for at in batch]}
            pair["text_target"] = [targets[at] for at in batch]
            inputs = tokenizer(**pair, return_tensors="pt", padding=True)
            labels = inputs.labels[..., None]
            with torch.no_grad():
                log_probs = network(**inputs).logits.log_softmax(-1).gather(-1, labels)
            sums = log_probs.masked_fill(labels == padding, 0.0).sum((1, 2))
            for at, value in zip(batch, sums.tolist(), strict=True):
                scores[at] = value
        return scores

    return translate, score


def marian(model: Path, beam: int, threads: int) -> tuple[Translate, Score]:
    """Load a model with pymarian, which scores with a program of its own that reads files."""
    import _pymarian
    import yaml

    [settings] = model.glob("*decoder.yml")
    names = yaml.safe_load(settings.read_text(encoding="utf-8"))
    [network] = names["models"]
    vocabularies = [str(model / name) for name in names["vocabs"]]
    shared = ["--vocabs", *vocabularies, "--cpu-threads", str(threads), "--quiet"]
    shared += ["--mini-batch", str(BATCH), "--workspace", "1000"]
    searched = [f"--models {model / network}", f"--beam-size {beam}", "--normalize 1"]
    searched += ["--max-length-factor 3", "--quiet-translation", *shared]
    searched += ["--allow-unk"] if names.get("allow-unk") else []
    decoder = _pymarian.Translator(" ".join(searched))

    def translate(lines: list[str]) -> list[str]:
        translated = decoder.translate("\n".join(lines))
        texts: list[str] = translated.split("\n") if isinstance(translated, str) else translated
        return texts

    def score(lines: list[str], targets: list[str]) -> list[float]:
        with tempfile.TemporaryDirectory() as scratch:
            files = [Path(scratch) / name for name in ("source", "target", "scores")]
            for file, texts in zip(files, (lines, targets), strict=False):
                file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
            flags = ["--model", str(model / network), "--train-sets", *map(str, files[:2])]
            _pymarian.main(["score", *flags, "--output", str(files[2]), *shared])
            return [float(line) for line in files[2].read_text(encoding="utf-8").splitlines()]

    return translate, score


TOOLKITS = {"huggingface": huggingface, "marian": marian}


def main() -> None:
    """Do the job of one file, and write the result to another."""
    name, job, result = sys.argv[1:]
    work = json.loads(Path(job).read_text(encoding="utf-8"))
    times = [time.perf_counter()]
    translate, score = TOOLKITS[name](Path(work["model"]), work["beam"], work["threads"])
    times.append(time.perf_counter())
    texts = translate(work["lines"])
    times.append(time.perf_counter())
    scores = score(work["lines"], work["targets"])
    found = {"load_seconds": times[1] - times[0], "seconds": times[2] - times[1]}
    text = json.dumps({**found, "texts": texts, "scores": scores})
    Path(result).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
