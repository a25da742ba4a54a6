#!/usr/bin/env bash
# Classical to modern Chinese, from text to scores: run.sh CORPUS [options of nmt train]
#
# CORPUS is the directory that prepare.py makes. An interrupted training goes on.
set -euo pipefail
corpus=$(cd "${1:?usage: $0 CORPUS [options of nmt train]}" && pwd)
shift
cd "$(dirname "$0")"

if [[ ! -f work/data-bin/manifest.json ]]; then
  nmt preprocess --train "$corpus/train" --valid "$corpus/dev" --test "$corpus/test"
fi
nmt train "$@"
nmt translate work/data-bin/test.lzh --output work/test.hyp.zh
nmt score --data work/data-bin work/test.hyp.zh
