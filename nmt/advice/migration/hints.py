"""The commonest options and commands of other toolkits, and what replaces them in ``nmt``.

docs/migrating.md shows the same options, by toolkit.
"""

from __future__ import annotations

_COMMANDS = {
    "preprocess": "fairseq-preprocess sockeye-prepare-data onmt-build-vocab spm-train",
    "train": "fairseq-train marian sockeye-train onmt-train",
    "train --set train.init_from=RUN": "finetune fine-tune adapt",
    "translate": "fairseq-generate fairseq-interactive marian-decoder sockeye-translate "
    "onmt-translate generate decode infer predict interactive",
    "translate, and nmt score": "test",
    "average-checkpoints": "sockeye-average average",
    "score": "fairseq-score marian-scorer sockeye-evaluate sacrebleu evaluate",
    "serve": "marian-server",
    "export": "convert quantize",
}
COMMANDS = {theirs: ours for ours, names in _COMMANDS.items() for theirs in names.split()}
"""The command of ``nmt`` for each command of another toolkit, with dashes for underscores."""

_THREADS = {"set OMP_NUM_THREADS=N in the environment": "--cpu-threads"}

_OPTIONS = {
    "preprocess": {
        "use --train PREFIX": "--trainpref --train-sets",
        "use --valid PREFIX": "--validpref --valid-sets",
        "use --output-dir DIR": "--destdir",
        "use --vocab-size PIECES": "--nwordssrc --dim-vocabs --num-words",
        "leave it out: one vocabulary for both languages is the default": "--joined-dictionary "
        "--shared-vocab --share-vocab",
    },
    "train": {
        "use --tokens-per-update N, the target tokens of one update over all devices": ""
        "--update-freq --batch-size --mini-batch --optimizer-delay --update-interval "
        "--accum-count --per-device-train-batch-size --gradient-accumulation-steps",
        "use --max-updates N": "--max-update --after-batches --train-steps --max-steps",
        "use --max-epochs N": "--max-epoch --after-epochs --max-num-epochs --num-train-epochs",
        "use --lr": "--learn-rate --initial-learning-rate --learning-rate",
        "use --warmup-updates N": "--lr-warmup --learning-rate-warmup --warmup-steps",
        "use --set train.schedule=NAME": "--lr-scheduler --lr-scheduler-type --decay-method",
        "use --set train.optimizer=NAME": "--optimizer --optim",
        "use --set train.clip_norm=NORM": "--clip-norm --max-grad-norm",
        "use --patience N, in validations": "--early-stopping",
        "use --valid-every N": "--validate-interval-updates --valid-freq --eval-steps",
        "use --save-every N": "--save-interval-updates --save-freq --checkpoint-interval "
        "--save-steps",
        "use --keep-last N": "--keep-interval-updates --keep-last-params --save-total-limit",
        "use --precision fp16 or bf16": "--fp16 --bf16 --amp",
        "use torchrun --nproc-per-node N -m nmt train": "--distributed-world-size --devices "
        "--world-size",
        "use --set model.tied_embeddings=all": "--share-all-embeddings --tied-embeddings-all",
        "use --save-dir DIR": "--output-dir --save-model",
        "give the same --save-dir: the run there is resumed": "--restore-file "
        "--resume-from-checkpoint --resume",
        **_THREADS,
    },
    "translate": {
        "use --model RUN, once for each model": "--path --models",
        "use --beam N": "--num-beams",
        "use --length-penalty power --alpha A": "--lenpen --normalize --length-penalty-alpha",
        "use --n-best K": "--nbest --nbest-size --num-return-sequences",
        "use --max-length-offset N": "--max-len-b",
        "use --set 'search.constraints=[{name: max_length, length: N}]'": "--max-output-length "
        "--max-length --max-new-tokens",
        "use --batch-tokens N, which counts source tokens": "--mini-batch --batch-size",
        "use --strategy sample": "--sampling --do-sample",
        "leave it out: text goes in and text comes out": "--remove-bpe",
        **_THREADS,
    },
    "score": {
        "use --reference FILE": "--ref",
        "use --testset NAME": "--test-set",
        "use --metric NAME, once for each metric": "--metrics",
        **_THREADS,
    },
    "serve": _THREADS,
}
HINTS = {
    command: {option: hint for hint, names in hints.items() for option in names.split()}
    for command, hints in _OPTIONS.items()
}
"""For each command of ``nmt``, what to do without an option, with dashes for underscores."""
