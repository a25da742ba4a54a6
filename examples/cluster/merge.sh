#!/usr/bin/env bash
# merge.sh N INPUT DIRECTORY OUTPUT: the translations of the N parts of INPUT as one file
#
# OUTPUT appears only if each part is there and has as many lines as its part of INPUT. So a line of OUTPUT
# is the translation of the same line of INPUT.
set -euo pipefail

count=$1 input=$2 directory=$3 output=$4

fail() {
  echo "$1" >&2
  rm -f "$output.partial"
  exit 1
}

for ((number = 1; number <= count; number++)); do
  part=$directory/$number-of-$count
  [[ -e $part ]] || fail "$part is missing; run task $number again"
  lines=$(wc -l < "$part")
  expected=$(split --number "l/$number/$count" "$input" | awk 'END { print NR }')
  ((lines == expected)) || fail "$part: $lines lines for $expected; remove it, and run task $number again"
  cat "$part"
done > "$output.partial"
mv "$output.partial" "$output"
