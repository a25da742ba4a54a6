"""Recipes from commands of fairseq."""

from __future__ import annotations

from nmt.migration import fairseq_search, fairseq_training
from nmt.migration.options import Draft, Options

KEYS = {
    "--dropout": "model.dropout",
    "--attention-dropout": "model.attention_dropout",
    "--activation-dropout": "model.activation_dropout",
    "--relu-dropout": "model.activation_dropout",
    "--encoder-layers": "model.encoder_layers",
    "--decoder-layers": "model.decoder_layers",
    "--encoder-ffn-embed-dim": "model.d_ff",
    "--decoder-ffn-embed-dim": "model.d_ff",
    "--encoder-attention-heads": "model.heads",
    "--decoder-attention-heads": "model.heads",
    "--decoder-embed-dim": "model.d_model",
    "--encoder-layerdrop": "train.layer_dropout",
    "--patience": "train.patience",
    "--seed": "train.seed",
    "--save-dir": "train.save_dir",
    "--keep-last-epochs": "train.keep_last",
    "--beam": "search.strategy.beam",
    "--source-lang": "preprocess.source_lang",
    "-s": "preprocess.source_lang",
    "--target-lang": "preprocess.target_lang",
    "-t": "preprocess.target_lang",
}
"""Keys for options that have the same name here, or are not answered one by one."""

REASONS = {
    "nmt has translation alone": "--task",
    "nmt scores the untouched text": "--eval-bleu-detok --eval-bleu-detok-args "
    "--eval-bleu-remove-bpe --eval-tokenized-bleu",
    "nmt score has the metrics": "--scoring --sacrebleu --sacrebleu-tokenizer "
    "--sacrebleu-lowercase",
    "docs/guides/languages.md makes models of several languages": "--lang-pairs --langs "
    "--lang-dict --encoder-langtok --decoder-langtok --sampling-method --sampling-temperature "
    "--share-encoders --share-decoders --share-encoder-embeddings --share-decoder-embeddings",
    "train.ema_decay keeps an average, with which validation translates": "--store-ema "
    "--ema-decay --ema-start-update --ema-update-freq --ema-seed-model --ema-fp32",
    "use --set train.device=cpu": "--cpu",
    "use --sharding full": "--zero-sharding --no-reshard-after-forward --fp32-reduce-scatter "
    "--cpu-offload --use-sharded-state",
    "nmt explain shows translations": "--eval-bleu-print-samples --print-step",
    "the metric says which way is better": "--maximize-best-checkpoint-metric",
    "validation reports loss, perplexity and train.valid_metrics": "--report-accuracy",
    "nmt prints a line for each report": "--no-progress-bar --quiet",
    "log.jsonl has the reports as JSON": "--log-format --log-file",
    "nmt reads the dataset without workers": "--num-workers",
    "it does not change the data; give --workers N to nmt preprocess": "--workers",
    "checkpoints are counted in updates: train.save_every, keep_last": "--no-epoch-checkpoints "
    "--save-interval --no-save --no-last-checkpoints",
    "resuming needs it": "--no-save-optimizer-state",
    "nmt keeps one best checkpoint, and the last ones": "--keep-best-checkpoints",
    "validations are counted in updates: train.valid_every": "--validate-interval "
    "--disable-validation --validate-after-updates",
    "validation finds its batches, and takes the whole set": "--max-tokens-valid "
    "--batch-size-valid --max-sentences-valid --max-valid-steps --fixed-validation-seed",
    "warm-up begins at 0": "--warmup-init-lr",
    "half a cosine ends at train.max_updates": "--lr-period-updates --t-mult",
    "a line has power 1 and ends at 0": "--power --end-learning-rate",
    "the line ends at train.max_updates": "--total-num-update",
    "the peak is train.schedule.lr": "--max-lr",
    "the schedule has no least rate": "--min-lr --stop-min-lr --shrink-min",
    "a plateau is a validation without a new best score": "--lr-threshold",
    "the schedule has no counterpart": "--warmup-steps --hold-steps --decay-steps --phase-ratio "
    "--init-lr-scale --final-lr-scale --lr-decay-period --lr-deacy-period --lr-decay --epoch2lr "
    "--update2lr",
    "nmt train --init-from RUN takes the weights alone": "--reset-optimizer --reset-lr-scheduler "
    "--reset-dataloader --reset-meters",
    "preprocess.alignments makes nmt preprocess read PREFIX.align": "--load-alignments "
    "--alignfile --align-suffix",
    "text goes in and text comes out": "--bpe --bpe-codes --tokenizer --sentencepiece-model "
    "--post-process --remove-bpe --moses-target-lang --moses-no-dash-splits --moses-no-escape "
    "--subword-nmt-codes --bpe-separator",
    "nmt learns subwords itself, preprocess.vocab_size of them": "--thresholdsrc --thresholdtgt "
    "--padding-factor --dict-only",
    "subwords leave no word unknown": "--replace-unk",
    "the scale of an fp16 loss adapts itself": "--fp16-init-scale --fp16-scale-window "
    "--fp16-scale-tolerance --min-loss-scale --threshold-loss-scale --amp-init-scale "
    "--amp-scale-window --amp-batch-retries",
    "weights and the optimizer's state are always float32": "--fp16-adam-stats "
    "--fp16-no-flatten-grads",
    "nmt has one format of datasets": "--dataset-impl --raw-text --lazy-load",
    "a dataset has one training set and one validation set": "--train-subset --valid-subset "
    "--combine-val",
    "nmt train reads the dataset of nmt preprocess": "--data",
    "preprocess.max_tokens_per_sentence limits the training pairs": "--max-source-positions "
    "--max-target-positions --truncate-source",
    "nmt translates every line": "--skip-invalid-size-inputs-valid-test",
    "nmt computes without padding": "--left-pad-source --left-pad-target --batch-by-size "
    "--required-batch-size-multiple --num-batch-buckets",
    "the loss of an update is divided by its tokens": "--sentence-avg",
    "updates hold random sentences from the first epoch on": "--curriculum --shuffle-instance",
    "a corpus of preprocess.train may have a weight": "--upsample-primary",
    "torchrun starts the processes": "--distributed-port --distributed-no-spawn "
    "--distributed-backend --distributed-init-method --distributed-rank --nprocs-per-node "
    "--device-id --local-rank --find-unused-parameters --bucket-cap-mb --all-gather-list-size",
    "train.max_tokens auto, the default, fits the memory": "--empty-cache-freq "
    "--offload-activations --update-epoch-batch-itr",
    "train.layer_dropout holds for both stacks": "--decoder-layerdrop",
    "a run has the settings of its model": "--model-overrides --optimizer-overrides",
    "a language model is one more --model; see docs/guides/rescoring.md": "--lm-path --lm-weight",
    "use --output FILE": "--results-path",
    "no counterpart; the model differs": "--layernorm-embedding --no-scale-embedding "
    "--no-cross-attention --cross-self-attention --adaptive-input --adaptive-softmax-cutoff "
    "--decoder-input-dim --decoder-output-dim --encoder-embed-path --decoder-embed-path "
    "--encoder-layers-to-keep --decoder-layers-to-keep --quant-noise-pq --char-inputs "
    "--adaptive-softmax-dropout --adaptive-softmax-factor --tie-adaptive-weights "
    "--tie-adaptive-proj --quant-noise-pq-block-size --quant-noise-scalar "
    "--no-decoder-final-norm --encoder-kernel-size-list --decoder-kernel-size-list "
    "--encoder-conv-dim --decoder-conv-dim --encoder-conv-type --decoder-conv-type "
    "--weight-softmax --weight-dropout --encoder-glu --decoder-glu",
    "no counterpart": "--match-source-len --no-early-stop --retain-dropout --shard-id --num-shards "
    "--prefix-allowed-tokens-fn --temperature --diverse-beam-strength --diversity-rate "
    "--ignore-prefix-size --model-parallel-size --use-old-adam --suppress-crashes --profile "
    "--no-beamable-mm --iter-decode-eos-penalty --iter-decode-max-iter "
    "--iter-decode-force-max-iter --iter-decode-with-beam --retain-iter-history",
    "code of fairseq does not run here; see docs/guides/extending.md": "--user-dir",
}
"""Why other options set nothing, and their names."""

WITHOUT = {name: reason for reason, names in REASONS.items() for name in names.split()}
"""Why an option sets nothing."""


def convert(options: Options, draft: Draft) -> None:
    """Set what takes more than one option, or a value of its own."""
    parts = {
        "preprocess": _preprocess,
        "train": fairseq_training.convert,
        "translate": fairseq_search.convert,
    }
    if part := parts.get(options.command):
        part(options, draft)


def _preprocess(options: Options, draft: Draft) -> None:
    if not options.switch("--joined-dictionary"):
        draft.set(preprocess__separate_vocabularies=True)
    sizes = [options.number(name, default=-1) for name in ("--nwordssrc", "--nwordstgt")]
    draft.set_vocabulary(*(size for size in sizes if size > 0))
    if max(sizes) <= 0:
        draft.note("vocab_size: fairseq takes every subword of the text, nmt its default of 32000")
    draft.set(preprocess__output_dir=options.text("--destdir") or None)
    for name, key in (("--validpref", "valid"), ("--testpref", "test")):
        prefix, *others = options.text(name).split(",")
        draft.set(**{f"preprocess__{key}": prefix or None})
        if others:
            draft.note(f"{name} {','.join(others)}: preprocess.{key} is one set, the first one")
    if prefix := options.text("--trainpref"):
        draft.set(preprocess__train=[prefix])
    draft.note(
        "preprocess.train, valid and test: fairseq binarizes subwords, nmt learns them itself: "
        "name the text as it was before tokenization and BPE"
    )
