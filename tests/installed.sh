#!/usr/bin/env bash
# Try an installed nmt by its commands, on sentences made here: installed.sh NMT
set -euo pipefail
export OMP_NUM_THREADS=1
nmt=$(realpath --no-symlinks "$1")
cd "$(mktemp --directory)"
for side in en de; do
    for number in $(seq 400); do
        words=(one two three four five six)
        [ $side = de ] && words=(eins zwei drei vier fünf sechs)
        echo "${words[number % 6]} ${words[number / 6 % 6]} ${words[number / 36 % 6]}"
    done >train.$side
    head -n 40 train.$side >valid.$side
done
cat >nmt.yaml <<END
preprocess: {source_lang: en, target_lang: de, train: [train], valid: valid, vocab_size: 300}
model: {arch: transformer_tiny, d_model: 32, d_ff: 64, heads: 2}
train: {tokens_per_update: 500, max_updates: 40, save_every: 20, valid_every: 40, device: cpu}
END
"$nmt" --version
"$nmt" preprocess
"$nmt" train
"$nmt" average-checkpoints --last 2 --output averaged
"$nmt" translate --model averaged <valid.en >valid.hyp
test "$(wc -l <valid.hyp)" -eq 40
"$nmt" score valid.hyp --reference valid.de
