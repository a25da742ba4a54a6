#!/usr/bin/env bash
# How many updates minutes of this machine make: speeds.sh MINUTES [SYSTEM ...]
#
# Trains every system for three quarters of a minute, which the machine should have for itself, and
# prints SYSTEM=UPDATES, as run.sh takes them: so systems have equal time, whatever else the machine
# does while they train. The logs stay in work/, and the tables show their speeds.
set -euo pipefail

source "$(dirname "$0")/systems.bash"
minutes=${1:?usage: speeds.sh MINUTES [SYSTEM ...]}
shift
systems=("$@")
if [[ $# == 0 ]]; then
  systems=(transformer rnnsearch gnmt conv_s2s bytenet)
fi
check_systems "${systems[@]}"
cd "$(dirname "$0")"
work=work/multi30k
if [[ ! -f $work/data-bin/manifest.json ]]; then
  echo "speeds.sh: no $work/data-bin; run.sh makes it before it trains" >&2
  exit 1
fi

for system in "${systems[@]}"; do
  here=$work/speeds/$system
  rm -rf "$here"
  mkdir -p "$here"
  changes=()
  for setting in ${settings[$system]}; do
    changes+=(--set "$setting")
  done
  nmt train --config multi30k.yaml --save-dir "$here/run" --max-minutes 0.75 \
    --set train.log_every=5 "${changes[@]}" 2> "$here/log" || { cat "$here/log" >&2; exit 1; }
  python table.py --updates "$minutes" "$work/speeds" "$system"
done
