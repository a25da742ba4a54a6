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
if [[ ! -e $work/averaged/best ]]; then
  nmt train --config sample.yaml
  nmt average-checkpoints --run "$work/run" --last 5 --output "$work/averaged"
fi
if [[ ! -f $work/test.hyp.tree ]]; then
  nmt translate --model "$work/averaged" --input "$work/corpus/test.word" \
    --output "$work/test.hyp.tree"
fi
python trees.py score "$work/corpus/test.trees" "$work/test.hyp.tree"
