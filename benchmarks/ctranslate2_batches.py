"""CTranslate2's counterpart of translation_batches.py: target tokens a second by batch size.

    nmt export --model RUN --output exported
    python benchmarks/ctranslate2_batches.py --model exported --batches 1 64 512

Sources are random tokens of the model's vocabulary with lengths like those of WMT14, and every
output has --length tokens.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from translation_batches import sources

from nmt.data.vocabulary import EOS, PAD
from nmt.runs.exports import Export, vocabularies


def main() -> None:
    """Measures, and prints one JSON object for each size of a batch."""
    import ctranslate2

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, required=True, help="directory of nmt export")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compute-types", nargs="+", help="[float16 int8_float16 on a GPU]")
    parser.add_argument("--beam", type=int, default=4, help="1 for greedy search")
    parser.add_argument("--length", type=int, default=32, help="of every output")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64, 512])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    export = Export.open(arguments.model, "ctranslate2")
    on_gpu = arguments.device == "cuda"
    usual = ["float16", "int8_float16"] if on_gpu else ["float32", "int8"]
    tokens, _ = vocabularies(export.subwords)
    for compute_type in arguments.compute_types or usual:
        engine = ctranslate2.Translator(
            str(export.path), device=arguments.device, compute_type=compute_type
        )
        for size in arguments.batches:
            ids = sources(size, len(tokens), torch.device("cpu")).tolist()
            batch = [[tokens[id_] for id_ in row if id_ not in (PAD, EOS)] for row in ids]
            times = []
            for _ in range(arguments.rounds + 1):
                start = time.perf_counter()
                engine.translate_batch(
                    batch,
                    beam_size=arguments.beam,
                    max_batch_size=size,
                    min_decoding_length=arguments.length,
                    max_decoding_length=arguments.length,
                )
                times.append(time.perf_counter() - start)
            seconds = statistics.median(times[1:])
            row = {
                "engine": f"CTranslate2 {ctranslate2.__version__}",
                "precision": engine.compute_type,
                "beam": arguments.beam,
                "sentences": size,
                "milliseconds": round(1000 * seconds, 1),
                "target_tokens_per_second": round(size * arguments.length / seconds),
            }
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
