#!/usr/bin/env bash
# WMT14 from nothing to BLEU on newstest2014: run.sh RECIPE [--dry-run]
#
# RECIPE is base, big, large_batch, deep_shallow or r_drop (en-de), or big_en_fr. A step whose result is in work/ is not
# done again, a download or a training that was interrupted goes on; so the same command may be given
# until it is done. --dry-run prints the commands and does nothing. The scores alone go to stdout.
#
# MIRROR   where the archives are, by the same paths [https://www.statmt.org]
# GPUS     processes to train with [the GPUs that nvidia-smi lists, at least 1]; the updates, and so
#          the result, are the same for any number
set -euo pipefail

usage() {
  echo "usage: $0 base|big|large_batch|deep_shallow|r_drop|big_en_fr [--dry-run]" >&2
  exit 2
}

case ${1:-} in
  base) pair=en-de average=5 ;;
  big) pair=en-de average=20 ;;
  large_batch | r_drop) pair=en-de average=10 ;;
  deep_shallow) pair=en-de average=5 ;;
  big_en_fr) pair=en-fr average=20 ;;
  *) usage ;;
esac
[[ ${2:---dry-run} == --dry-run && $# -le 2 ]] || usage
recipe=$1 source=${pair%-*} target=${pair#*-}
dry_run=${2:-}
mirror=${MIRROR:-https://www.statmt.org}
gpus=${GPUS:-$(nvidia-smi --list-gpus 2> /dev/null | grep --count '^GPU ' || true)}
exec 3>&1 1>&2
cd "$(dirname "$0")"
archives=work/archives text=work/$pair/text run=work/$pair/$recipe
hypotheses=work/$pair/$recipe.$target

# Does a command, or says what it would be.
step() {
  echo "+ $*" >&2
  if [[ $dry_run != --dry-run ]]; then "$@"; fi
}

checksum() { # ALGORITHM FILE
  if command -v "${1}sum" > /dev/null; then "${1}sum" "$2"; else openssl dgst -r "-$1" "$2"; fi |
    cut -d ' ' -f 1
}

fetch() { # PATH ALGORITHM CHECKSUM
  local file=$archives/${1##*/}
  mkdir -p "$archives"
  curl --fail --silent --show-error --location --retry 5 --continue-at - \
    --output "$file.partial" "$mirror/$1"
  if [[ $(checksum "$2" "$file.partial") != "$3" ]]; then
    rm "$file.partial"
    echo "$mirror/$1 is not the file it should be; try again, or another MIRROR" >&2
    return 1
  fi
  mv "$file.partial" "$file"
}

extract() { # ARCHIVE: what is of this pair of languages, and the validation and test sets
  LC_ALL=C tar --extract --file "$archives/$1" --directory "$text" --wildcards --no-anchored \
    "*.$target-en.$source" "*.$target-en.$target" "*.release2.fixed.*.gz" \
    "newstest2013.$source" "newstest2013.$target" "newstest2014-$target""en-*.sgm" \
    2> "$text/tar.log" ||
    ! grep --invert-match "Not found in archive\|Exiting with failure status" "$text/tar.log" >&2
}

segments() { # SIDE LANGUAGE: the sentences of the test set, which is SGML
  sed -n 's/^ *<seg[^>]*> *\(.*[^ ]\) *<\/seg>.*/\1/p' "$text/test-full/newstest2014-${target}en-$1.$2.sgm" |
    sed "s/&lt;/</g; s/&gt;/>/g; s/&quot;/\"/g; s/&apos;/'/g; s/&amp;/\&/g" > "$text/newstest2014.$2"
}

while read -r of path algorithm sum; do
  [[ $of == "$pair" ]] || continue
  archive=${path##*/}
  [[ -f $archives/$archive || -f $text/$archive.extracted ]] ||
    step fetch "$path" "$algorithm" "$sum"
  if [[ ! -f $text/$archive.extracted ]]; then
    step mkdir -p "$text"
    step extract "$archive"
    step touch "$text/$archive.extracted"
  fi
done < ARCHIVES
[[ -s $text/newstest2014.$source ]] || step segments src "$source"
[[ -s $text/newstest2014.$target ]] || step segments ref "$target"

[[ -f work/$pair/data-bin/manifest.json ]] || step nmt preprocess --config "$recipe.yaml"

if [[ ! -e $run-averaged/best ]]; then
  if ((gpus > 1)); then
    step torchrun --standalone --nproc-per-node "$gpus" -m nmt train --config "$recipe.yaml"
  else
    step nmt train --config "$recipe.yaml"
  fi
  step nmt average-checkpoints --run "$run" --last "$average" --output "$run-averaged"
fi

[[ -f $hypotheses ]] || step nmt translate --config "$recipe.yaml" --model "$run-averaged" \
  --input "$text/newstest2014.$source" --output "$hypotheses"
step nmt score --config "$recipe.yaml" --reference "$text/newstest2014.$target" "$hypotheses" >&3
