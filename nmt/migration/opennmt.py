"""Recipes from configurations and commands of OpenNMT-py."""

from __future__ import annotations

import re
from typing import Any

from nmt.migration.options import Draft, Options, parallel

KEYS = {
    "--layers": "model.encoder_layers",
    "--enc-layers": "model.encoder_layers",
    "--dec-layers": "model.decoder_layers",
    "--heads": "model.heads",
    "--transformer-ff": "model.d_ff",
    "--seed": "train.seed",
    "--dropout": "model.dropout",
    "--attention-dropout": "model.attention_dropout",
    "--beam-size": "search.strategy.beam",
}
"""Keys for options that have the same name here, or are not answered one by one."""

REASONS = {
    "convert the file itself: nmt recipe --from opennmt FILE": "--config",
    "nmt's recipe names an architecture: model.arch": "--encoder-type --decoder-type --model-type",
    "sinusoids are the default": "--position-encoding",
    "give the dataset of nmt preprocess as train.data": "--data",
    "the dataset holds the subwords": "--src-vocab --tgt-vocab",
    "nmt learns subwords itself": "--src-words-min-frequency --tgt-words-min-frequency "
    "--vocab-size-multiple --src-subword-vocab --tgt-subword-vocab --src-vocab-threshold "
    "--tgt-vocab-threshold",
    "longer training pairs are dropped, not cut": "--src-seq-length-trunc --tgt-seq-length-trunc",
    "the length penalty wu has it": "--alpha",
    "give the model as preprocess.subword_model": "--src-subword-model --tgt-subword-model",
    "nmt preprocess writes preprocess.output_dir": "--save-data",
    "nmt preprocess replaces an older dataset": "--overwrite",
    "preprocess.subword_sample": "--n-sample",
    "nmt has preprocess.clean, train.subword_sampling": "--transforms --src-subword-type "
    "--tgt-subword-type --src-onmttok-kwargs --tgt-onmttok-kwargs --src-subword-nbest "
    "--tgt-subword-nbest --src-subword-alpha --tgt-subword-alpha",
    "lines without text are dropped": "--skip-empty-level",
    "train.augmentation lists changes of the text": "--switchout-temperature "
    "--tokendrop-temperature --tokenmask-temperature",
    "nmt counts tokens": "--batch-type",
    "the loss of an update is divided by its tokens": "--normalization",
    "no batch stores all its logits": "--max-generator-batches",
    "updates hold random sentences of the corpus": "--bucket-size --bucket-size-init "
    "--bucket-size-increment --prefetch-factor --queue-size --pool-factor",
    "nmt computes without padding": "--batch-size-multiple --left-pad",
    "nmt reads the dataset without workers": "--num-workers",
    "weights are initialised as in the paper": "--param-init --param-init-glorot",
    "validation finds its batches": "--valid-batch-size",
    "model.d_model is the width of embeddings, too": "--word-vec-size --src-word-vec-size "
    "--tgt-word-vec-size",
    "torchrun starts the processes": "--gpu-backend --gpu-verbose-level --master-ip --master-port",
    "the run has log.jsonl": "--log-file --log-file-level --exp --exp-host --save-config "
    "--tensorboard-log-dir --report-time --verbose",
    "nmt train --init-from RUN takes the weights alone": "--reset-optim --update-vocab",
    "the moving average is taken after each update": "--average-every",
    "the size of an update stays": "--accum-steps",
    "dropout stays": "--dropout-steps",
    "the scale of an fp16 loss adapts itself": "--loss-scale",
    "model.adaptation has LoRA": "--lora-layers --lora-rank --lora-alpha --lora-dropout",
    "subwords leave no word unknown": "--replace-unk --ban-unk-token --phrase-table",
    "nmt explain shows how a model translates": "--attn-debug --align-debug --dump-beam",
    "nmt translate --json has the scores": "--with-score",
    "an ensemble has probabilities, or search.ensemble=log_probability": "--avg-raw-probs",
    "nmt score --model scores given translations": "--tgt --gold-align",
    "use --strategy sample --temperature T": "--random-sampling-temp",
    "use --precision": "--fp32 --int8",
    "no counterpart; the model differs": "--add-qkvbias --add-ffnbias --parallel-residual "
    "--shared-layer-norm --copy-attn --reuse-copy-attn --global-attention --input-feed --bridge "
    "--generator-function --src-embeddings --tgt-embeddings --both-embeddings --embeddings-type "
    "--src-feats-vocab --n-src-feats --src-feats-defaults --feat-merge --feat-vec-size "
    "--feat-vec-exponent --sliding-window --relative-positions-buckets --global-attention-function "
    "--context-gate --coverage-attn --copy-attn-type --copy-attn-force --copy-loss-by-seqlength "
    "--enc-hid-size --dec-hid-size --pre-word-vecs-enc --pre-word-vecs-dec "
    "--aan-useffn --rnn-type --enc-rnn-size --dec-rnn-size --cnn-kernel-width --self-attn-type",
    "no counterpart": "--truncated-decoder --lambda-coverage --freeze-encoder --freeze-decoder "
    "--start-decay-steps --learning-rate-decay --decay-steps --train-eval-steps --single-pass "
    "--zero-out-prob-loss --quant-layers --dump-transforms --apex-opt-level --stepwise-penalty "
    "--ignore-when-blocking --shard-size --dynamic-dict --data-type --max-length-ratio "
    "--tgt-prefix",
}
"""Why other options set nothing, and their names."""

WITHOUT = {name: reason for reason, names in REASONS.items() for name in names.split()}
"""Why an option sets nothing."""


def convert(options: Options, draft: Draft) -> None:
    """Set what takes more than one option, or a value of its own."""
    options.values = {_with_two_dashes(name): options.values[name] for name in options.values}
    options.unknown = [(_with_two_dashes(name), word) for name, word in options.unknown]
    draft.note("most options that are not given keep nmt's defaults, which are not OpenNMT's")
    if options.command == "translate":
        _search(options, draft)
        return
    draft.set(model__arch="transformer_base", model__sinusoids="concatenated")
    draft.set(model__residual="pre_norm")  # that of every Transformer of OpenNMT-py
    for name in ("--encoder-type", "--decoder-type"):
        if (kind := options.text(name, default="rnn")) != "transformer":
            shown = name.lstrip("-").replace("-", "_")
            draft.note(f"{shown} {kind}: no counterpart; transformer is taken")
    _corpora(options, draft)
    _model(options, draft)
    _validation(options, draft)
    if layers := options.number("--layers"):
        draft.set(model__encoder_layers=layers, model__decoder_layers=layers)
    draft.set(model__d_model=options.number("--hidden-size", "--rnn-size", "--word-vec-size"))
    decoder = options.switch("--share-decoder-embeddings")
    tied = "all" if options.switch("--share-embeddings") else "decoder" if decoder else "none"
    draft.set(model__tied_embeddings=tied)
    if tied == "none":
        draft.note(
            "tied_embeddings none: OpenNMT's default, without share_embeddings and "
            "share_decoder_embeddings"
        )
    is_shared = options.switch("--share-vocab") or tied == "all"
    draft.set(preprocess__separate_vocabularies=None if is_shared else True)
    _batch(options, draft)
    name = options.text("--optim", assumed="sgd")
    is_adam = "adam" in name
    betas = [
        options.number("--adam-beta1", default=0.9),
        options.number("--adam-beta2", assumed=0.999 if is_adam else None),
    ]
    if name in ("adam", "sgd", "adafactor", "adadelta"):
        draft.set(train__optimizer={"name": name} | ({"betas": betas} if name == "adam" else {}))
    elif name == "fusedadam":
        draft.set(train__optimizer={"name": "adam", "betas": betas})
    else:
        draft.note(f"--optim {name}: no counterpart; adam is taken")
    _schedule(options, draft)
    if (smoothing := options.number("--label-smoothing")) is not None:
        draft.set(train__loss={"name": "label_smoothed_cross_entropy", "smoothing": smoothing})
    if options.text("--model-dtype") == "fp16":
        draft.set(train__precision="fp16")


def _model(options: Options, draft: Draft) -> None:
    """Set what OpenNMT-py 3 has beside the paper's model."""
    distance = options.number("--max-relative-positions", default=0)
    if distance == -1:
        draft.set(model__positions="rotary")
    elif distance > 0:
        draft.set(model__positions={"name": "relative", "clip": distance})
    if options.text("--layer-norm") == "rms":
        draft.set(model__norm="rms_norm")
    draft.set(model__norm_epsilon=options.number("--norm-eps"))
    shared = 1 if options.switch("--multiquery") else options.number("--num-kv")
    draft.set(model__key_value_heads=shared or None)
    if options.take("--use-ckpting"):
        draft.set(train__checkpoint_activations="layers")
    if decay := options.number("--average-decay"):
        draft.set(train__ema_decay=1 - decay)


def _validation(options: Options, draft: Draft) -> None:
    """Set the limit of lengths, the size of the vocabulary, and the metrics of the validation."""
    draft.set_vocabulary(*(options.number(f"--{side}-vocab-size") for side in ("src", "tgt")))
    lengths = [options.number(f"--{side}-seq-length") for side in ("src", "tgt")]
    draft.set(preprocess__max_tokens_per_sentence=max(filter(None, lengths), default=None))
    metrics = [str(name).lower() for name in options.take("--valid-metrics") or []]
    draft.set(train__valid_metrics=[name for name in metrics if name in ("bleu", "ter")] or None)
    criteria = [str(name) for name in options.take("--early-stopping-criteria") or []]
    if criteria == ["ppl"]:
        draft.set(train__best_metric="perplexity")
    elif criteria:
        draft.note(f"--early_stopping_criteria {' '.join(criteria)}: train.best_metric is one")


def _search(options: Options, draft: Draft) -> None:
    """Set the length penalty of onmt_translate; its average of log-probabilities has no alpha."""
    name = options.text("--length-penalty")
    if name == "wu":
        alpha = float(options.number("--alpha", default=0.0))
        draft.set(search__strategy__length_penalty={"name": "gnmt", "alpha": alpha})
    elif name in ("none", "avg"):
        alpha = 1.0 if name == "avg" else 0.0
        draft.set(search__strategy__length_penalty={"name": "power", "alpha": alpha})
    elif name:
        draft.note(f"--length-penalty {name}: no counterpart")
    coverage, beta = options.text("--coverage-penalty"), options.number("--beta", default=0.0)
    if coverage == "wu":
        draft.set(search__coverage_penalty=float(beta))
    elif coverage not in ("", "none"):
        draft.note(f"--coverage-penalty {coverage}: no counterpart")


def _with_two_dashes(name: str) -> str:
    """Return the name of an option; OpenNMT-py also takes long ones with a single dash."""
    return f"-{name}" if re.match("-[a-z][a-z-]", name) else name


def _corpora(options: Options, draft: Draft) -> None:
    """Set the corpora of ``data``, each with ``path_src``, ``path_tgt`` and perhaps a weight."""
    data = options.values.get("--data")
    if not data or not isinstance(data[0], dict):
        return
    options.take("--data")
    train: list[Any] = []
    for name, corpus in data[0].items():
        values = corpus if isinstance(corpus, dict) else {}
        pair = parallel(values.get("path_src", ""), values.get("path_tgt", ""))
        if pair is None:
            draft.note(f"data.{name}: expected PREFIX.SOURCE and PREFIX.TARGET; rename its files")
            continue
        prefix, source_lang, target_lang = pair
        draft.set(preprocess__source_lang=source_lang, preprocess__target_lang=target_lang)
        if values.get("transforms"):
            draft.note(f"data.{name}.transforms: nmt has preprocess.clean, train.subword_sampling")
        if name == "valid":
            draft.set(preprocess__valid=prefix)
        else:
            weight = values.get("weight", 1)
            train.append(prefix if weight == 1 else {"path": prefix, "weight": weight})
    if any(isinstance(corpus, dict) for corpus in train):
        draft.note("weights: OpenNMT's are shares of a batch, nmt's say how often a pair is taken")
    if train:
        draft.set(preprocess__train=train)


def _batch(options: Options, draft: Draft) -> None:
    size = options.number("--batch-size", assumed=64)
    accumulated = options.numbers("--accum-count") or [1]
    if len(accumulated) > 1:
        draft.note(f"--accum_count {accumulated}: the size of an update stays; the last is taken")
    world = options.number("--world-size")
    ranks = options.take("--gpu-ranks")
    devices = world or (len(ranks) if ranks else options.devices)
    is_tokens = options.text("--batch-type", default="sents") == "tokens"
    tokens, sentences = (size, None) if is_tokens else (None, size)
    draft.set_batch(tokens, sentences, accumulated[-1], devices)


def _schedule(options: Options, draft: Draft) -> None:
    lr = options.number("--learning-rate", assumed=1.0)
    warmup = max(1, options.number("--warmup-steps", default=4000))
    method = options.text("--decay-method", default="none")
    if method in ("noam", "noamwd"):
        schedule = {"name": "inverse_sqrt", "factor": float(lr), "warmup_updates": warmup}
    elif method == "rsqrt":
        peak = draft.peak("--learning_rate", lr, warmup)
        schedule = {"name": "inverse_sqrt", "lr": peak, "warmup_updates": warmup}
        draft.note("--decay_method rsqrt: nmt warms up, where OpenNMT's rate is constant")
    else:
        schedule = {"name": "constant", "lr": lr, "warmup_updates": 0}
        draft.note(f"--decay_method {method}: a constant learning rate is taken")
    draft.set(train__schedule=schedule)
