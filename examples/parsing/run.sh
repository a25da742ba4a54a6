#!/usr/bin/env bash
# Constituency parsing, from trees to F1: run.sh TREEBANK, the directory of wsj_0001.mrg and others.
#
# A step whose result is in work/ is not done again, and an interrupted training resumes.
set -euo pipefail

treebank=$(cd "${1:?usage: run.sh TREEBANK}" && pwd)
cd "$(dirname "$0")"
work=work/sample

if [[ ! -f $work/data-bin/manifest.json ]]; then
  python trees.py split --leaves words "$treebank" "$work/corpus"
  nmt preprocess --config sample.yaml
fi
nmt train --config sample.yaml
if [[ ! -f $work/test.hyp.tree ]]; then
  nmt translate --config sample.yaml --model "$work/run" --input "$work/corpus/test.word" \
    --output "$work/test.hyp.tree"
fi
python trees.py score "$work/corpus/test.trees" "$work/test.hyp.tree"
