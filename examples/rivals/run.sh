#!/usr/bin/env bash
# Systems beside each other on Multi30k English-German: run.sh MINUTES [SYSTEM ...]
#
# Every system has the same subwords and the same minutes of training. Without names the Transformer
# and its rivals take part; what has been changed about the Transformer since has names, too, below.
# Give MULTI30K=DIR where the raw files are (train.en.gz, val.en.gz, test_2016_flickr.en.gz, ...).
# A step whose result is in work/ is not done again, and training that was interrupted goes on.
set -euo pipefail

plain="model.arch=transformer_base model.encoder_layers=3 model.decoder_layers=3
  model.d_model=256 model.d_ff=1024 model.heads=4"
declare -A settings=(
  [transformer]=$plain
  [rnnsearch]="model.arch=rnnsearch_small train.optimizer.betas=[0.9,0.999]"
  [gnmt]="model.arch=gnmt_small train.optimizer.betas=[0.9,0.999]"
  [conv_s2s]="model.arch=conv_s2s_small"
  [bytenet]="model.arch=bytenet_small"
  [pre_norm]="$plain model.residual=pre_norm"
  [deep_norm]="$plain model.residual=deep_norm"
  [rms_norm]="$plain model.norm=rms_norm"
  [gelu]="$plain model.feed_forward=gelu"
  [swiglu]="$plain model.feed_forward=swiglu model.d_ff=683"
  [mixture_of_experts]="$plain model.feed_forward=mixture_of_experts"
  [rotary]="$plain model.positions=rotary"
  [alibi]="$plain model.positions=alibi"
  [relative]="$plain model.positions=relative"
  [learned]="$plain model.positions=learned"
  [no_positions]="$plain model.positions=none"
  [multi_query]="$plain model.key_value_heads=1"
  [neighbourhood]="$plain model.encoder_attention=neighbourhood model.encoder_attention.radius=8"
  [performer]="$plain model.encoder_attention=performer"
  [linformer]="$plain model.encoder_attention=linformer"
  [deep_shallow]="$plain model.encoder_layers=6 model.decoder_layers=1"
)
minutes=${1:?usage: run.sh MINUTES [SYSTEM ...]}
shift
systems=("$@")
if [[ $# == 0 ]]; then
  systems=(transformer rnnsearch gnmt conv_s2s bytenet)
fi
for system in "${systems[@]}"; do
  if [[ ! ${settings[$system]:-} ]]; then
    echo "run.sh: no settings for '$system'; known: ${!settings[*]}" >&2
    exit 2
  fi
done
corpus=$(cd "${MULTI30K:?say where the raw files of Multi30k are: MULTI30K=DIR}" && pwd)
cd "$(dirname "$0")"
work=work/multi30k

if [[ ! -f $work/data-bin/manifest.json ]]; then
  nmt preprocess --config multi30k.yaml --train "$corpus/train" --valid "$corpus/val" \
    --test "$corpus/test_2016_flickr"
fi

for system in "${systems[@]}"; do
  here=$work/$system
  mkdir -p "$here"
  changes=()
  for setting in ${settings[$system]}; do
    changes+=(--set "$setting")
  done
  if [[ ! -e $here/averaged/best ]]; then
    nmt train --config multi30k.yaml --save-dir "$here/run" --set "train.max_minutes=$minutes" \
      "${changes[@]}"
    nmt average-checkpoints --run "$here/run" --last 5 --output "$here/averaged"
  fi
  if [[ ! -f $here/scores.jsonl ]]; then
    nmt translate "$work/data-bin/test.en" --model "$here/averaged" \
      --output "$here/test.hyp.de" 2> >(tee "$here/translate.log" >&2)
    nmt score --config multi30k.yaml --data "$work/data-bin" --json "$here/test.hyp.de" \
      > "$here/scores.jsonl"
  fi
done

python table.py "$work"
