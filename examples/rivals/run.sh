#!/usr/bin/env bash
# Systems beside each other on Multi30k English-German: run.sh MINUTES [SYSTEM[=UPDATES] ...]
#
# Every system has the same subwords and the same minutes of training, or, where a number is given,
# that many updates (speeds.sh finds how many equal minutes make). Without names the Transformer and
# its rivals take part; what has been changed about the Transformer since has names, too, in
# systems.bash. Every number of minutes has its own table. Give MULTI30K=DIR where the raw files are (train.en.gz, val.en.gz,
# test_2016_flickr.en.gz, ...). A step whose result is in work/ is not done again, and training that
# was interrupted goes on.
set -euo pipefail

source "$(dirname "$0")/systems.bash"
minutes=${1:?usage: run.sh MINUTES [SYSTEM[=UPDATES] ...]}
shift
systems=("$@")
if [[ $# == 0 ]]; then
  systems=(transformer rnnsearch gnmt conv_s2s bytenet)
fi
check_systems "${systems[@]}"
corpus=$(cd "${MULTI30K:?say where the raw files of Multi30k are: MULTI30K=DIR}" && pwd)
cd "$(dirname "$0")"
work=work/multi30k
results=$work/$minutes-minutes

if [[ ! -f $work/data-bin/manifest.json ]]; then
  nmt preprocess --config multi30k.yaml --train "$corpus/train" --valid "$corpus/val" \
    --test "$corpus/test_2016_flickr"
fi

for system in "${systems[@]}"; do
  name=${system%%=*}
  here=$results/$name
  mkdir -p "$here"
  budget=train.max_minutes=$minutes
  if [[ $system == *=* ]]; then
    budget="train.max_minutes=null train.max_updates=${system#*=}"
  fi
  changes=()
  for setting in ${settings[$name]} $budget; do
    changes+=(--set "$setting")
  done
  if [[ ! -e $here/averaged/best ]]; then
    nmt train --config multi30k.yaml --save-dir "$here/run" "${changes[@]}"
    saved=("$here"/run/update_*)  # fewer than five where updates are slow and minutes few
    last=$((${#saved[@]} < 5 ? ${#saved[@]} : 5))
    nmt average-checkpoints --run "$here/run" --last "$last" --output "$here/averaged"
  fi
  if [[ ! -f $here/scores.jsonl ]]; then
    nmt translate "$work/data-bin/test.en" --model "$here/averaged" \
      --output "$here/test.hyp.de" 2> >(tee "$here/translate.log" >&2)
    nmt score --config multi30k.yaml --data "$work/data-bin" --json "$here/test.hyp.de" \
      > "$here/scores.jsonl"
  fi
done

python table.py "$results" "${!settings[@]}"
