#!/usr/bin/env bash
# Fine-tunes a model of OPUS-MT on your own text, and compares it with the original on a test set.
# Arguments: the model, the directory of the text, options of nmt train. An interrupted run resumes.
set -euo pipefail
model=${1:?a model, such as Helsinki-NLP/opus-mt-en-de, or its directory}
corpus=$(realpath "${2:?a directory with train, valid and test in both languages}")
if [[ -d $model ]]; then model=$(realpath "$model"); fi
shift 2
source=${SOURCE:-en} target=${TARGET:-de}
cd "$(dirname "$0")"

if [[ ! -e work/imported/run.json ]]; then
  nmt import "$model" --output work/imported -s "$source" -t "$target"
fi
if [[ ! -e work/data-bin/manifest.json ]]; then
  nmt preprocess -s "$source" -t "$target" \
    --train "$corpus/train" --valid "$corpus/valid" --test "$corpus/test"
fi
nmt train "$@"
for run in imported fine-tuned; do
  nmt translate --model "work/$run" "$corpus/test.$source" --output "work/$run.$target"
done
nmt score --data work/data-bin --paired bs "work/imported.$target" "work/fine-tuned.$target"

echo
echo "Serve the model, and open http://localhost:5000 in a browser:"
printf '%q serve --model %q\n' "$(command -v nmt)" "$PWD/work/fine-tuned"
