#!/usr/bin/env bash
# Letters to phones in ten languages, from words to error rates: run.sh DATA
#
# DATA is the directory of LANG_train.tsv, LANG_dev.tsv and LANG_test.tsv. Three seeds are trained.
# A step whose result is in work/ is not done again, and an interrupted training goes on.
set -euo pipefail
data=$(cd "${1:?usage: $0 DATA}" && pwd)
cd "$(dirname "$0")"
languages=(arm bul fre geo gre hin hun ice kor lit)
systems=(seed.1 seed.2 seed.3 ensemble)

if [[ ! -f work/data-bin/manifest.json ]]; then
  python prepare.py "$data" work/corpus
  nmt preprocess
fi
for seed in 1 2 3; do
  nmt train --seed "$seed" --save-dir "work/seed.$seed"
done

for system in "${systems[@]}"; do
  models=(--model "work/$system")
  if [[ $system == ensemble ]]; then
    models=(--model work/seed.1 --model work/seed.2 --model work/seed.3)
  fi
  mkdir -p "work/test.$system"
  for language in "${languages[@]}"; do
    output=work/test.$system/$language
    [[ -f $output ]] || nmt translate "${models[@]}" -t "${language}_ipa" --output "$output" \
      "work/corpus/test.$language"
  done
done
for language in "${languages[@]}"; do
  echo "$language"
  nmt score --reference "work/corpus/test.${language}_ipa" work/test.*/"$language"
done
