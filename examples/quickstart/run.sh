#!/usr/bin/env bash
# The quickstart: from text to BLEU with the five commands, in about two minutes on two cores.
set -euo pipefail
cd "$(dirname "$0")"
if [[ -s work/scores.jsonl ]]; then rm -rf work; fi # a whole run; an interrupted one is resumed

if [[ ! work/data-bin/manifest.json -nt nmt.yaml ]]; then # there is none, or of an older recipe
  python corpus.py --output-dir work/corpus
  nmt preprocess
fi
nmt train
nmt average-checkpoints --run work/run --last 5 --output work/averaged
nmt translate --model work/averaged < work/corpus/test.en > work/test.hyp.de
nmt score --reference work/corpus/test.de --json work/test.hyp.de > work/scores.jsonl
python results.py work
