#!/usr/bin/env bash
# Multi30k English-German, from text to scores: run.sh [tiny|tiny_teacher|small]
#
# Give MULTI30K=DIR where the files are there already (train.en.gz, train.lc.norm.tok.en.gz, ...);
# without it they are fetched. A step whose result is in work/ is not done again, and training that
# was interrupted goes on.
set -euo pipefail

case ${1:-tiny} in
  tiny) recipe=tiny kind=.lc.norm.tok model=averaged ;;
  tiny_teacher) recipe=tiny_teacher kind=.lc.norm.tok model=run/last ;;
  small) recipe=small kind='' model=run ;; # its checkpoints are averages already
  *) echo "usage: $0 [tiny|tiny_teacher|small]" >&2 && exit 2 ;;
esac
corpus=${MULTI30K:+$(cd "$MULTI30K" && pwd)}
cd "$(dirname "$0")"
commit=a3d2e0d26b56f3846f66a952536ffed4e401d05a
origin=https://raw.githubusercontent.com/multi30k/dataset/$commit/data/task1
work=work/$recipe

sha256() {
  if command -v sha256sum > /dev/null; then sha256sum; else shasum -a 256; fi | cut -c 1-64
}

# Prints a file of the corpus. The tokenised ones are plain in the repository, the raw ones are not.
download() {
  if [[ $kind ]]; then
    curl --fail --silent --show-error --location --retry 3 "$origin/tok/$1"
  else
    curl --fail --silent --show-error --location --retry 3 "$origin/raw/$1.gz" | gunzip
  fi
}

fetch() {
  local name
  mkdir -p "$1"
  for name in {train,val,test_2016_flickr}"$kind".{en,de}; do
    [[ -f $1/$name ]] && continue
    download "$name" > "$1/$name.partial"
    if ! grep -qx "$(sha256 < "$1/$name.partial")  $name" SHA256SUMS; then
      echo "$origin: $name is not the file it should be; try again" >&2
      return 1
    fi
    mv "$1/$name.partial" "$1/$name"
  done
}

if [[ ! -f $work/data-bin/manifest.json ]]; then
  if [[ ! $corpus ]]; then
    corpus=work/corpus
    fetch "$corpus"
  fi
  nmt preprocess --config "$recipe.yaml" --train "$corpus/train$kind" \
    --valid "$corpus/val$kind" --test "$corpus/test_2016_flickr$kind"
fi

if [[ ! -f $work/test.hyp.de ]]; then
  nmt train --config "$recipe.yaml"
  if [[ $model == averaged ]]; then
    nmt average-checkpoints --run "$work/run" --last 10 --output "$work/averaged"
  fi
  nmt translate "$work/data-bin/test.en" --model "$work/$model" --output "$work/test.hyp.de"
fi

nmt score --config "$recipe.yaml" --data "$work/data-bin" "$work/test.hyp.de"
