"""Options of Marian: what ``--task`` stands for, keys of the recipe, and why others set nothing."""

from __future__ import annotations

from typing import Any

_TASK: dict[str, list[Any]] = {
    "--type": ["transformer"],
    "--enc-depth": [6],
    "--dec-depth": [6],
    "--tied-embeddings-all": [],
    "--transformer-postprocess": ["dan"],
    "--transformer-preprocess": [""],
    "--transformer-ffn-activation": ["relu"],
    "--transformer-dropout": [0.1],
    "--label-smoothing": [0.1],
    "--clip-norm": [0],
    "--max-length": [100],
    "--exponential-smoothing": [1e-4],
    "--mini-batch-fit": [],
    "--beam-size": [8],
    "--normalize": [1.0],
}
_BASE: dict[str, list[Any]] = {
    "--dim-emb": [512],
    "--transformer-dim-ffn": [2048],
    "--transformer-heads": [8],
    "--learn-rate": [3e-4],
    "--lr-warmup": ["16000"],
    "--lr-decay-inv-sqrt": ["16000"],
    "--workspace": [9500],
    "--optimizer-params": [0.9, 0.98, 1e-9],
}
_BIG: dict[str, list[Any]] = {
    "--dim-emb": [1024],
    "--transformer-dim-ffn": [4096],
    "--transformer-heads": [16],
    "--learn-rate": [2e-4],
    "--lr-warmup": ["8000"],
    "--lr-decay-inv-sqrt": ["8000"],
    "--workspace": [13000],
    "--optimizer-params": [0.9, 0.998, 1e-9],
}
_PRENORM: dict[str, list[Any]] = {
    "--transformer-preprocess": ["n"],
    "--transformer-postprocess": ["da"],
}
TASKS = {
    "transformer-base": _TASK | _BASE,
    "transformer-big": _TASK | _BIG,
    "transformer-base-prenorm": _TASK | _BASE | _PRENORM,
    "transformer-big-prenorm": _TASK | _BIG | _PRENORM,
}
"""Options that ``--task`` stands for."""

KEYS = {
    "--enc-depth": "model.encoder_layers",
    "--dec-depth": "model.decoder_layers",
    "--transformer-heads": "model.heads",
    "--transformer-dim-ffn": "model.d_ff",
    "--transformer-dropout": "model.dropout",
    "--transformer-dropout-attention": "model.attention_dropout",
    "--transformer-dropout-ffn": "model.activation_dropout",
    "--seed": "train.seed",
}
"""Keys for options that have the same name here, or are not answered one by one."""

REASONS = {
    "convert the file itself: nmt recipe --from marian FILE": "--config -c",
    "updates are always synchronous": "--sync-sgd --sync-freq",
    "mini-batch-fit or mini-batch-words decides the size": "--mini-batch",
    "the size of an update stays": "--mini-batch-warmup --mini-batch-track-lr "
    "--mini-batch-words-ref --mini-batch-round-up",
    "longer training pairs are dropped, not cut": "--max-length-crop",
    "updates hold sentences of the whole corpus": "--maxi-batch --shuffle --no-shuffle",
    "sentences of a micro-batch are sorted as the model needs it": "--maxi-batch-sort",
    "the loss is the mean of the tokens of an update, as ce-mean-words": "--cost-type "
    "--multi-loss-type --normalize-gradient",
    "validation finds its batches": "--valid-mini-batch",
    "nmt translate writes translations": "--valid-translation-output",
    "nmt score has the metrics": "--valid-script-path --valid-script-args",
    "validation takes every pair": "--valid-max-length",
    "train.patience counts validations by train.best_metric": "--early-stopping-epsilon "
    "--early-stopping-on --valid-reset-stalled --valid-reset-all",
    "checkpoints are kept by train.keep_last": "--overwrite --overwrite-checkpoint",
    "the same command resumes; give another --save-dir to begin anew": "--no-reload",
    "the best checkpoint is always kept": "--keep-best",
    "the run has log.jsonl": "--log --valid-log --log-level --log-time-zone --disp-first "
    "--disp-label-counts --dump-config --authors --cite --build-info --stat-freq",
    "nmt prints a line for each report": "--quiet --quiet-translation",
    "nmt needs none": "--tempdir --data-threads",
    "the dataset is mapped from the disk": "--shuffle-in-ram --sqlite --sqlite-drop --model-mmap",
    "each report has the learning rate": "--lr-report",
    "a resumed run continues in the middle of an epoch": "--no-restore-corpus --logical-epoch",
    "SIGTERM saves and ends": "--sigterm",
    "paths are those of the current directory": "--relative-paths --interpolate-env-vars",
    "a run has the settings of its model": "--ignore-model-config",
    "preprocess.train takes a corpus with tabs, name.tsv": "--tsv --tsv-fields",
    "nmt learns subwords itself": "--sentencepiece-alphas --sentencepiece-options "
    "--sentencepiece-max-lines --no-spm-encode --no-spm-decode",
    "train.augmentation lists changes of the text": "--all-caps-every --english-title-case-every",
    "train.max_tokens auto, the default, fits the memory": "--mini-batch-fit-step",
    "use nmt serve": "--port",
    "of Marian alone": "--version",
    "docs/guides/data-mixing.md has weights of pairs": "--data-weighting --data-weighting-type",
    "torchrun starts the processes": "--num-devices --no-nccl",
    "use nmt train --sharding full": "--sharding",
    "warm-up begins at 0, once": "--lr-warmup-start-rate --lr-warmup-cycle --lr-warmup-at-reload",
    "train.schedule=plateau is near": "--lr-decay-strategy --lr-decay-start --lr-decay-freq "
    "--lr-decay-reset-optimizer --lr-decay-repeat-warmup",
    "the scale of an fp16 loss adapts itself": "--cost-scaling --dynamic-gradient-scaling "
    "--gradient-norm-average-window",
    "updates without finite gradients are skipped, train.max_skipped of them": "--check-nan "
    "--check-gradient-nan --throw-on-divergence --custom-fallbacks",
    "the cost is the cross-entropy": "--guided-alignment-cost",
    "without guided alignment no layer has it": "--transformer-guided-alignment-layer",
    "of recurrent models, which nmt does not convert": "--dim-rnn --enc-type --enc-cell "
    "--enc-cell-depth --dec-cell --dec-cell-base-depth --dec-cell-high-depth --skip "
    "--layer-normalization --dropout-rnn --transformer-rnn-projection --best-deep "
    "--char-stride --char-highway --char-conv-filters-num --char-conv-filters-widths",
    "nmt's model has it by its name: model.decoder_attention": "--transformer-dim-aan "
    "--transformer-aan-depth --transformer-aan-activation --transformer-aan-nogate",
    "nmt translate --json has the scores": "--word-scores",
    "nmt shortlist stores the list in the run": "--shortlist",
    "use --precision": "--precision",
    "search.max_source_length limits a source": "--max-length",
    "search.weights are those of an ensemble": "--weights",
    "no counterpart; the model differs": "--factors-dim-emb --factors-combine --factor-weight "
    "--lemma-dependency --lemma-dim-emb --input-types --transformer-no-projection "
    "--transformer-pool --transformer-decoder-dim-ffn --transformer-ffn-depth "
    "--transformer-decoder-ffn-depth --transformer-tied-layers --transformer-depth-scaling "
    "--transformer-no-bias --transformer-no-affine --dropout-src --dropout-trg "
    "--embedding-vectors --embedding-normalization --embedding-fix-src --embedding-fix-trg",
    "no counterpart": "--bert-mask-symbol --unlikelihood-loss --ulr --train-embedder-rank "
    "--exponential-smoothing-replace-freq --quantize-bits --quantize-optimization-steps "
    "--quantize-log-based --quantize-biases --cpu-threads --skip-cost --output-approx-knn "
    "--optimize --gemm-type --quantize-range --n-best-feature --allow-special "
    "--bert-sep-symbol --bert-class-symbol --bert-masking-fraction --bert-train-type-embeddings "
    "--bert-type-vocab-size --ulr-query-vectors --ulr-keys-vectors --ulr-dim-emb --ulr-dropout "
    "--ulr-trainable-transformation --ulr-softmax-temperature",
}
"""Why other options set nothing, and their names."""

WITHOUT = {name: reason for reason, names in REASONS.items() for name in names.split()}
"""Why an option sets nothing."""
