"""Options of other toolkits, and what replaces them in ``nmt``.

``docs/other_toolkits.md`` shows the same tables, with differences in meaning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Habit:
    """Options with the same meaning in several toolkits, separated by spaces."""

    remedy: str
    """Replacement in ``nmt``, as the end of a sentence."""
    fairseq: str = ""
    marian: str = ""
    sockeye: str = ""
    opennmt: str = ""
    transformers: str = ""
    sacrebleu: str = ""

    def toolkits(self) -> Iterator[tuple[str, list[str]]]:
        """Yield the name and the options of each toolkit that has such options."""
        for field in fields(self)[1:]:
            if options := getattr(self, field.name).split():
                yield NAMES[field.name], options

    def key(self, flags: Mapping[str, str]) -> str | None:
        """Return the key of the recipe that the replacement sets to one value, if it does.

        Args:
            flags: dotted keys by the names of our options.
        """
        if match := re.match(r"use --set ([\w.]+)=[A-Z]+\b", self.remedy):
            return match[1]
        match = re.match(r"use (--[\w-]+)(?: [A-Z]+)?(?:,|$)", self.remedy)
        return flags.get(match[1]) if match else None


NAMES = {
    "fairseq": "fairseq",
    "marian": "Marian",
    "sockeye": "Sockeye",
    "opennmt": "OpenNMT",
    "transformers": "transformers",
    "sacrebleu": "sacreBLEU",
}

COMMANDS = {
    "preprocess": (
        "binarize bpe build-vocab prepare prepare-data spm-encode spm-train tokenize vocab"
    ),
    "translate": "decode decoder generate infer interactive predict",
    "average-checkpoints": "average average-models avg",
    "score": "eval evaluate sacrebleu scorer validate",
    "rescore": "rerank",
    "serve": "server",
    "shortlist": "lexicon",
    "export": "convert quantize release-model",
    "inspect": "info show",
    "report": "plot watch",
    "align": "fast-align",
}
"""For each command, the names that other tools have for it, without that of a toolkit."""

CLEAN_TEXT = "leave it out: text goes in and text comes out"

HABITS = {
    "preprocess": [
        Habit("use --train PREFIX", "--trainpref", "--train-sets", "--source"),
        Habit("use --valid PREFIX", "--validpref", "--valid-sets"),
        Habit("use --test PREFIX", "--testpref"),
        Habit("use --output-dir DIR", "--destdir", "", "--output -o", "--save_data"),
        Habit(
            "use --vocab-size PIECES",
            "--nwordssrc --nwordstgt",
            "--dim-vocabs",
            "--num-words",
            "--src_vocab_size",
        ),
        Habit("use --subword-model PATH", "--srcdict --tgtdict", "--vocabs -v", "--source-vocab"),
        Habit(
            "leave it out: one vocabulary for both is the default", "--joined-dictionary", "",
            "--shared-vocab", "--share_vocab",
        ),
        Habit(
            "use --set preprocess.max_tokens_per_sentence=N", "", "--max-length", "--max-seq-len"
        ),
    ],
    "train": [
        Habit("use --arch NAME", "", "--task --type"),
        Habit(
            "use --tokens-per-update N, the target tokens of one update over all devices",
            "--update-freq --batch-size --max-sentences",
            "--optimizer-delay --mini-batch-words --mini-batch --mini-batch-fit",
            "--batch-size -b --update-interval",
            "--batch_size --accum_count",
            "--per_device_train_batch_size --gradient_accumulation_steps",
        ),
        Habit("use --max-tokens N, which bounds the memory of a micro-batch", "", "--workspace -w"),
        Habit(
            "use --max-updates N", "--max-update", "--after --after-batches", "", "--train_steps",
            "--max_steps",
        ),
        Habit(
            "use --max-epochs N", "--max-epoch", "--after-epochs", "--max-num-epochs", "",
            "--num_train_epochs",
        ),
        Habit(
            "use --lr", "", "--learn-rate", "--initial-learning-rate", "--learning_rate",
            "--learning_rate",
        ),
        Habit(
            "use --warmup-updates N", "", "--lr-warmup", "--learning-rate-warmup", "--warmup_steps",
            "--warmup_steps",
        ),
        Habit(
            "use --set train.schedule=NAME",
            "--lr-scheduler",
            "--lr-decay-inv-sqrt --lr-decay",
            "--learning-rate-scheduler-type",
            "--decay_method",
            "--lr_scheduler_type",
        ),
        Habit(
            "use --set train.optimizer=NAME", "--optimizer", "--optimizer", "--optimizer",
            "--optim", "--optim",
        ),
        Habit(
            "use --set train.optimizer.betas=[B1,B2]", "--adam-betas", "--optimizer-params",
            "--optimizer-betas", "--adam_beta1 --adam_beta2", "--adam_beta1 --adam_beta2",
        ),
        Habit(
            "use --set train.optimizer.eps=EPS", "--adam-eps", "", "--optimizer-epsilon", "",
            "--adam_epsilon",
        ),
        Habit(
            "use --set train.optimizer=adamw --set train.optimizer.weight_decay=W",
            "--weight-decay --wd", transformers="--weight_decay",
        ),
        Habit(
            "use --set train.optimizer=sgd --set train.optimizer.momentum=M", "--momentum", "",
            "--momentum",
        ),
        Habit(
            "use --set train.schedule=plateau --set train.schedule.shrink=FACTOR", "--lr-shrink",
            "", "--learning-rate-reduce-factor",
        ),
        Habit("use --set train.loss=NAME", "--criterion", "--cost-type"),
        Habit("use --label-smoothing", transformers="--label_smoothing_factor"),
        Habit(
            "use --set train.clip_norm=NORM", "--clip-norm", "--clip-norm",
            "--gradient-clipping-threshold", "--max_grad_norm", "--max_grad_norm",
        ),
        Habit(
            "use --save-every N", "--save-interval-updates", "--save-freq", "--checkpoint-interval",
            "--save_checkpoint_steps", "--save_steps",
        ),
        Habit(
            "use --keep-last N", "--keep-interval-updates", "", "--keep-last-params",
            "--keep_checkpoint", "--save_total_limit",
        ),
        Habit(
            "use --valid-every N", "--validate-interval-updates", "--valid-freq", "",
            "--valid_steps", "--eval_steps",
        ),
        Habit("use --max-minutes M", "--stop-time-hours"),
        Habit(
            "use --patience N, in validations", "", "--early-stopping",
            "--max-num-checkpoint-not-improved", "--early_stopping",
        ),
        Habit("use --set train.valid_metrics=[NAME]", "--eval-bleu", "--valid-metrics"),
        Habit(
            "use --set search.strategy.beam=N and other keys of search", "--eval-bleu-args"
        ),
        Habit(
            "use --set train.best_metric=NAME", "--best-checkpoint-metric", "--keep-best",
            "--optimized-metric", "", "--metric_for_best_model",
        ),
        Habit("use --set train.ema_decay=DECAY", "", "--exponential-smoothing"),
        Habit(
            "use --set train.guided_alignment=WEIGHT", "--alignment-lambda",
            "--guided-alignment-weight --guided-alignment", "", "--lambda_align",
        ),
        Habit(
            "use --init-from RUN", "--finetune-from-model", "--pretrained-model", "--params",
            "--train_from",
        ),
        Habit(
            "give the same --save-dir: the run there is resumed", "--restore-file", "", "", "",
            "--resume_from_checkpoint",
        ),
        Habit(
            "use --save-dir DIR", "", "--model -m", "--output -o", "--save_model", "--output_dir"
        ),
        Habit("use --data DIR, a dataset of nmt preprocess", "", "--train-sets", "--prepared-data"),
        Habit(
            "use --set model.tied_embeddings=all, the default of the paper's models",
            "--share-all-embeddings", "--tied-embeddings-all", "--weight-tying-type",
            "--share_embeddings",
        ),
        Habit(
            "use --set model.tied_embeddings=decoder", "--share-decoder-input-output-embed",
            "--tied-embeddings", "", "--share_decoder_embeddings",
        ),
        Habit(
            "use --set model.residual=pre_norm",
            "--encoder-normalize-before --decoder-normalize-before",
        ),
        Habit(
            "use --set model.residual=NAME, pre_norm for a norm (n) before the sublayer",
            "", "--transformer-preprocess --transformer-postprocess",
            "--transformer-preprocess --transformer-postprocess",
        ),
        Habit(
            "use --set model.feed_forward=NAME", "--activation-fn", "--transformer-ffn-activation",
            "--transformer-activation-type", "--pos_ffn_activation_fn",
        ),
        Habit(
            "use --set model.positions=learned", "--encoder-learned-pos --decoder-learned-pos",
            "--transformer-train-position-embeddings",
        ),
        Habit(
            "use --set model.encoder_layers=N and --set model.decoder_layers=N", "", "",
            "--num-layers", "--layers",
        ),
        Habit(
            "use --set model.d_model=N", "--encoder-embed-dim", "--dim-emb",
            "--transformer-model-size", "--hidden_size",
        ),
        Habit(
            "use --precision fp16 or bf16", "--fp16 --bf16 --amp", "--fp16", "--amp", "",
            "--fp16 --bf16",
        ),
        Habit("use --sharding full", transformers="--fsdp"),
        Habit(
            "leave it out: DDP is the default, --sharding full is fully_sharded", "--ddp-backend"
        ),
        Habit(
            "use --set train.log_every=N, in updates", "--log-interval", "--disp-freq", "",
            "--report_every", "--logging_steps",
        ),
        Habit(
            "use torchrun --nproc-per-node N -m nmt train", "--distributed-world-size",
            "--devices -d", "", "--gpu_ranks --world_size",
        ),
        Habit("leave it out: the dataset knows its languages", "--source-lang -s --target-lang -t"),
        Habit("use --set train.tensorboard=true", "--tensorboard-logdir", "", "", "--tensorboard"),
        Habit("use --set train.wandb=true", "--wandb-project"),
    ],
    "translate": [
        Habit("use --model RUN, once for each model", "--path", "--models", "--models"),
        Habit("use --beam N", transformers="--num_beams"),
        Habit(
            "use --length-penalty power --alpha A", "--lenpen", "--normalize -n",
            "--length-penalty-alpha",
        ),
        Habit("use --n-best K", "--nbest", "", "--nbest-size", "", "--num_return_sequences"),
        Habit("use --max-length-offset N", "--max-len-b"),
        Habit("use --set search.max_length_ratio=A", "--max-len-a", "--max-length-factor"),
        Habit(
            "use --set 'search.constraints=[{name: max_length, length: N}]'", "", "",
            "--max-output-length", "--max_length", "--max_length --max_new_tokens",
        ),
        Habit(
            "use --set 'search.constraints=[{name: min_length, length: N}]'", "--min-len", "", "",
            "--min_length", "--min_length",
        ),
        Habit(
            "use --set 'search.constraints=[{name: no_repeat_ngram, size: N}]'",
            "--no-repeat-ngram-size", "", "", "--block_ngram_repeat", "--no_repeat_ngram_size",
        ),
        Habit("use --set search.constraints=[forbidden]", "--unkpen", "--allow-unk"),
        Habit(
            "use --strategy sample", "--sampling", "--output-sampling", "--sample", "",
            "--do_sample",
        ),
        Habit(
            "use --strategy sample --top-k K", "--sampling-topk", "", "", "--random_sampling_topk"
        ),
        Habit(
            "use --strategy sample --top-p P", "--sampling-topp", "", "", "--random_sampling_topp"
        ),
        Habit(
            "use --strategy diverse_beam --set search.strategy.groups=G", "--diverse-beam-groups",
            "", "", "", "--num_beam_groups",
        ),
        Habit("use --prefix FILE", "--prefix-size", "--force-decode", "", "--tgt_file_prefix"),
        Habit("use --require FILE --strategy lexical_beam", "--constraints"),
        Habit(
            "use --json --alignments", "--print-alignment", "--alignment", "", "--report_align"
        ),
        Habit("use nmt score --model RUN", "--score-reference"),
        Habit("use --batch-tokens N", "--max-tokens", "--mini-batch-words"),
        Habit(
            "use --batch-tokens N, which counts tokens of sources, not sentences",
            "--batch-size --max-sentences", "--mini-batch", "--batch-size", "--batch_size",
        ),
        Habit("use --window LINES", "--buffer-size", "--maxi-batch", "--chunk-size"),
        Habit(CLEAN_TEXT, "--remove-bpe --post-process --bpe --tokenizer --moses-source-lang"),
        Habit("use --precision fp16, bf16 or int8", "--fp16 --bf16", "--fp16", "--dtype", "--fp16"),
        Habit("use --device cpu", "--cpu", "", "--use-cpu"),
        Habit("use --device cuda:N", "", "--devices -d", "", "--gpu"),
        Habit("use --workers N", "--num-workers", "--cpu-threads"),
        Habit("leave it out: the run holds its vocabulary", "", "--vocabs -v"),
        Habit("name a file of text", "--gen-subset", "", "", "--src"),
    ],
    "score": [
        Habit(
            "name the file of translations, and the reference by --reference FILE", "--sys",
            sacrebleu="--input -i",
        ),
        Habit("use --reference FILE", "--ref"),
        Habit("use --testset NAME", sacrebleu="--test-set"),
        Habit("use --metric NAME, once for each metric", sacrebleu="--metrics"),
        Habit("use --metric chrf++, with a word order of 2", sacrebleu="--chrf-word-order -cw"),
        Habit(
            "use --set 'score.metrics=[{name: bleu, tokenize: NAME}]'; by default the target "
            "language decides",
            sacrebleu="--tokenize -tok",
        ),
        Habit(
            "use --set 'score.metrics=[{name: bleu, lowercase: true}]'", "--ignore-case",
            sacrebleu="--lowercase -lc",
        ),
        Habit(
            "use --set 'score.metrics=[{name: bleu, smoothing: NAME}]'", sacrebleu="--smooth-method"
        ),
        Habit("use --sentence-level", sacrebleu="-sl"),
        Habit("leave it out: signatures have one form", sacrebleu="--short -sh"),
        Habit("use --confidence", sacrebleu="-ci"),
        Habit("use --paired bs", sacrebleu="--paired-bs -pbs"),
        Habit("use --paired ar", sacrebleu="--paired-ar -par"),
        Habit(
            "use --samples N",
            sacrebleu="--confidence-n -cin --paired-bs-n -pbsn --paired-ar-n -parn",
        ),
        Habit("use --json, which rounds no value", sacrebleu="--width -w"),
        Habit("use --json, and read the field value", sacrebleu="--score-only -b"),
        Habit("use --json or --table FORM", sacrebleu="--format -f"),
        Habit("leave it out: text is UTF-8", sacrebleu="--encoding -e"),
        Habit("leave it out: nothing else is printed", sacrebleu="--quiet -q"),
        Habit("leave it out: each sentence has one reference", sacrebleu="--num-refs -nr"),
    ],
    "average-checkpoints": [
        Habit("name the checkpoints, or use --run RUN --last N", "--inputs"),
        Habit(
            "use --run RUN --last N", "--num-update-checkpoints --num-epoch-checkpoints", "", "-n"
        ),
    ],
}  # fmt: skip
"""For each command, the options of other toolkits; without names that ``nmt`` has, too."""

SHARED = {
    "translate": [
        Habit("use --model RUN, once for each model", "", "--model -m", "-m", "--model"),
        Habit("use --n-best K", "", "--n-best", "", "--n_best"),
        Habit("name a file of text", "--input", "--input -i", "--input -i"),
        Habit("use --output FILE", "", "--output -o", "--output -o", "--output"),
        Habit("use --batch-tokens N, which bounds the memory", "", "--workspace -w"),
    ],
    "score": [
        Habit("use --model RUN", "", "--model -m", "--model -m"),
        Habit(
            "use --source FILE, and name the file of translations",
            marian="--train-sets -t",
            sockeye="--source -s --target -t",
        ),
        Habit("leave it out: the run holds its vocabulary", marian="--vocabs -v"),
    ],
}
"""Further options of each command, for ``nmt recipe`` alone: `nmt` has most of these names, too."""
