#!/usr/bin/env bash
# translate_part.sh I/N INPUT DIRECTORY [FLAGS]: the I-th of N parts of INPUT, translated to DIRECTORY/I-of-N
#
# The parts are of about equal size in bytes and end at ends of lines. The translation appears when it is
# whole; a part that is there already, as after a requeue, is not translated again.
set -euo pipefail

part=$1 input=$2 directory=$3
shift 3
output=$directory/${part%/*}-of-${part#*/}
if [[ -e $output ]]; then
  echo "$output: there already" >&2
  exit
fi
mkdir -p "$directory"
split --number "l/$part" "$input" | nmt translate --output "$output" "$@"
