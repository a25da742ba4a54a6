#!/usr/bin/env bash
# Multi30k English-German, lowercased and tokenised, by students of tiny models: distil.sh
#
# Three models of tiny_teacher.yaml translate the training text as an ensemble. Of five translations
# of each sentence the one nearest to its reference joins the text, and each model trains on with both.
# MULTI30K=DIR is a directory that has the files, as for run.sh. A step whose result is in work/ is
# not done again, and training that was interrupted goes on.
set -euo pipefail
MULTI30K=${MULTI30K:+$(cd "$MULTI30K" && pwd)}
export MULTI30K # apart, because export hides a failure of cd
cd "$(dirname "$0")"

bash run.sh tiny_teacher
corpus=${MULTI30K:-work/corpus} kind=.lc.norm.tok teachers=work/tiny_teacher work=work/distil
mkdir -p $work
schedule='{name: linear, lr: 0.002, warmup_updates: 200}'

side() { # LANGUAGE: the training text
  cat "$corpus/train$kind.$1" 2> /dev/null || gunzip --stdout "$corpus/train$kind.$1.gz"
}

nmt train --config tiny_teacher.yaml --save-dir $teachers/run2 --set train.seed=2
nmt train --config tiny_teacher.yaml --save-dir $teachers/run3 --set train.seed=3
if [[ ! -f $work/candidates.txt ]]; then
  side en > $work/source.en
  nmt translate $work/source.en --model $teachers/run/last --model $teachers/run2/last \
    --model $teachers/run3/last --n-best 5 --output $work/candidates.txt
fi
if [[ ! -f $work/data-bin/manifest.json ]]; then
  side de > $work/reference.de
  nmt rescore --reference $work/reference.de --metric chrf --weights chrf=1 --best \
    $work/candidates.txt > $work/nearest.de
  cat $work/source.en $work/source.en > $work/train.en
  cat $work/nearest.de $work/reference.de > $work/train.de
  nmt preprocess --config tiny_teacher.yaml --train $work/train --valid "$corpus/val$kind" \
    --test "$corpus/test_2016_flickr$kind" --subword-model $teachers/run --output-dir $work/data-bin
fi

for seed in '' 2 3; do
  student=$work/run$seed output=$work/test$seed.hyp.de
  nmt train --config tiny_teacher.yaml --data $work/data-bin --init-from $teachers/run$seed/last \
    --save-dir $student --set train.seed=${seed:-1} --set "train.schedule=$schedule" \
    --max-updates 2000
  if [[ ! -f $output ]]; then
    nmt translate $work/data-bin/test.en --model $student/last --output $output
  fi
  nmt score --config tiny_teacher.yaml --data $work/data-bin $output
done
