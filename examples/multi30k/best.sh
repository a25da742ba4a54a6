#!/usr/bin/env bash
# Multi30k English-German by five models: best.sh
#
# Two Transformers and a ConvS2S translate together. A ConvS2S that writes from right to left, and
# one from German to English, score the translations that they list, and weights of the scores are
# tuned on the validation set. MULTI30K=DIR is a directory that has the files, as for run.sh. A step
# whose result is in work/ is not done again, and training that was interrupted goes on.
set -euo pipefail
MULTI30K=${MULTI30K:+$(cd "$MULTI30K" && pwd)}
export MULTI30K # apart, because export hides a failure of cd
cd "$(dirname "$0")"

bash run.sh small
corpus=${MULTI30K:-work/corpus} small=work/small work=work/best
data=$small/data-bin

prepare() { # DIRECTORY OPTION...: a dataset with the subwords of the first
  [[ -f $1/manifest.json ]] || nmt preprocess --config small.yaml --train "$corpus/train" \
    --valid "$corpus/val" --subword-model $data --output-dir "$@"
}

list() { # SPLIT: translations with all scores
  nmt translate $data/"$1".en --model $small/run --model $work/second \
    --model $work/convolution --beam 16 --n-best 16 |
    nmt rescore --model $work/right --source $data/"$1".en --feature RightToLeft |
    nmt rescore --model $work/reverse --source $data/"$1".en --reverse > $work/"$1".partial
  mv $work/"$1".partial $work/"$1".list
}

prepare $work/right-bin --set preprocess.target_order=right_to_left
prepare $work/reverse-bin --source-lang de --target-lang en
nmt train --config small.yaml --save-dir $work/second --set train.seed=2
nmt train --config small_conv.yaml --save-dir $work/convolution
nmt train --config small_conv.yaml --save-dir $work/right --data $work/right-bin
nmt train --config small_conv.yaml --save-dir $work/reverse --data $work/reverse-bin

for split in valid test; do
  [[ -f $work/$split.list ]] || list $split
done
nmt tune --reference $data/valid.de $work/valid.list > $work/weights.yaml
nmt rescore --weights $work/weights.yaml --best $work/test.list > $work/test.hyp.de
nmt score --config small.yaml --data $data $work/test.hyp.de
