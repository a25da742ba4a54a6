#!/usr/bin/env bash
# The quickstart: English to German, from text to BLEU, with three minutes of training.
# Arguments go to nmt train. An interrupted run is resumed.
set -euo pipefail
cd "$(dirname "$0")"
if [[ -s work/scores.txt ]]; then rm -rf work; fi # a finished run starts anew

if [[ ! work/data-bin/manifest.json -nt nmt.yaml ]]; then # there is none, or of an older recipe
  nmt preprocess
fi
nmt train "$@"
nmt translate test.en.xz --output work/test.hyp.de
nmt translate own.en --output work/own.de
nmt score --reference test.de.xz work/test.hyp.de > work/scores.txt

echo
cat work/scores.txt
echo
paste -d '\n' own.en work/own.de /dev/null
echo "Translate sentences of your own, one a line:"
printf '%q translate --model %q\n' "$(command -v nmt)" "$PWD/work/run"
