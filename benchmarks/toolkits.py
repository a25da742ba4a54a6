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
from typing import Any

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

    def translate(lines: list[str]) -> list[str]:
        texts = [""] * len(lines)
        rules = {"length_penalty": 1.0, "early_stopping": False, "no_repeat_ngram_size": 0}
        for batch in _batches(lines):
            inputs = tokenizer([lines[at] for at in batch], return_tensors="pt", padding=True)
            outputs = network.generate(**inputs, num_beams=beam, max_length=256, **rules)
            decoded = tokenizer.batch_decode(outputs, skip_special_tokens=True)
            for at, text in zip(batch, decoded, strict=True):
                texts[at] = text
        return texts

    def score(lines: list[str], targets: list[str]) -> list[float]:
        scores = [0.0] * len(lines)
        for batch in _batches(targets):
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


def onnx(model: Path, beam: int, threads: int) -> tuple[Translate, Score]:
    """Load graphs with ONNX Runtime, and search greedily."""
    import numpy as np
    import onnxruntime
    import tokenizers

    if beam != 1:
        sys.exit("the search with ONNX Runtime is greedy; use --beam 1")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    encoder, decoder = (
        onnxruntime.InferenceSession(model / "onnx" / f"{name}.onnx", options)
        for name in ("encoder_model", "decoder_model_merged")
    )
    past = [part for part in decoder.get_inputs() if part.name.startswith("past_key_values")]
    tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    rules = json.loads((model / "generation_config.json").read_text(encoding="utf-8"))
    begin, end = rules["decoder_start_token_id"], rules["eos_token_id"]
    forbidden = [token for [token] in rules["bad_words_ids"]]

    def padded(lines: list[str]) -> tuple[Any, Any]:
        """Return the tokens [B, T] of lines and their mask."""
        rows = [encoding.ids for encoding in tokenizer.encode_batch(lines)]
        tokens = np.full((len(rows), max(map(len, rows))), rules["pad_token_id"])
        mask = np.zeros_like(tokens)
        for at, row in enumerate(rows):
            tokens[at, : len(row)], mask[at, : len(row)] = row, 1
        return tokens, mask

    def start(lines: list[str]) -> dict[str, Any]:
        """Return the inputs of the first step of the decoder."""
        tokens, mask = padded(lines)
        [encoded] = encoder.run(None, {"input_ids": tokens, "attention_mask": mask})
        inputs = {"encoder_hidden_states": encoded, "encoder_attention_mask": mask}
        inputs["input_ids"] = np.full((len(lines), 1), begin)
        for part in past:
            sizes = [len(lines), *(size if isinstance(size, int) else 0 for size in part.shape[1:])]
            inputs[part.name] = np.zeros(sizes, np.float32)
        return inputs

    def step(inputs: dict[str, Any]) -> Any:
        """Return the logits [B, V] of the next token; advances the past in the inputs."""
        logits, *present = decoder.run(None, inputs)
        inputs.update(zip((part.name for part in past), present, strict=True))
        return logits[:, 0]

    def greedy(lines: list[str]) -> list[str]:
        """Return the translations of a batch; finished sentences leave it."""
        inputs = start(lines)
        limits = inputs["encoder_attention_mask"].sum(1) + 50
        texts: list[list[int]] = [[] for _ in lines]
        unfinished = np.arange(len(lines))
        while len(unfinished):
            logits = step(inputs)
            logits[:, forbidden] = -np.inf
            tokens = logits.argmax(1)
            for at, token in zip(unfinished, tokens, strict=True):
                texts[at].append(int(token))
            lengths = np.array([len(texts[at]) for at in unfinished])
            stay = (tokens != end) & (lengths < limits[unfinished])
            unfinished, inputs["input_ids"] = unfinished[stay], tokens[:, None]
            if not stay.all():
                inputs = {name: array[stay] for name, array in inputs.items()}
        return tokenizer.decode_batch(texts)

    def translate(lines: list[str]) -> list[str]:
        texts = [""] * len(lines)
        for batch in _batches(lines):
            for at, text in zip(batch, greedy([lines[at] for at in batch]), strict=True):
                texts[at] = text
        return texts

    def score(lines: list[str], targets: list[str]) -> list[float]:
        scores = [0.0] * len(lines)
        for batch in _batches(targets):
            inputs = start([lines[at] for at in batch])
            labels, mask = padded([targets[at] for at in batch])
            for tokens, present in zip(labels.T, mask.T, strict=True):
                logits = step(inputs).astype(np.float64)
                sums = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1))
                chosen = logits[np.arange(len(batch)), tokens] - logits.max(1) - sums
                for at, log_prob in zip(batch, chosen * present, strict=True):
                    scores[at] += log_prob
                inputs["input_ids"] = tokens[:, None]
        return scores

    return translate, score


TOOLKITS = {"huggingface": huggingface, "marian": marian, "onnx": onnx}


def _batches(lines: list[str]) -> Iterator[list[int]]:
    """Yield the indices of lines of similar length."""
    by_length = sorted(range(len(lines)), key=lambda at: len(lines[at].split()))
    for start in range(0, len(lines), BATCH):
        yield by_length[start : start + BATCH]


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
