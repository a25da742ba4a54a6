"""Recipes from commands of Sockeye."""

from __future__ import annotations

from typing import Any

from nmt.migration.options import Draft, Options, number_of, parallel
from nmt.recipe.config import set_path

KEYS = {
    "--transformer-dropout-prepost": "model.dropout",
    "--transformer-dropout-attention": "model.attention_dropout",
    "--transformer-dropout-act": "model.activation_dropout",
    "--transformer-feed-forward-num-hidden": "model.d_ff",
    "--transformer-attention-heads": "model.heads",
    "--transformer-model-size": "model.d_model",
    "--checkpoint-interval": "train.valid_every",
    "--max-updates": "train.max_updates",
    "--seed": "train.seed",
    "--beam-size": "search.strategy.beam",
}
"""Keys for options that have the same name here, or are not answered one by one."""

REASONS = {
    "give the dataset of nmt preprocess as train.data": "-d --prepared-data",
    "preprocess.max_tokens_per_sentence limits the training pairs": "--max-seq-len",
    "validation translates the whole validation set": "--decode-and-evaluate "
    "--decode-and-evaluate-device-id",
    "model.dropout holds for embeddings, too": "--embed-dropout",
    "model.d_model is the width of embeddings, too": "--num-embed",
    "nmt's recipe names an architecture: model.arch": "--encoder",
    "give another --save-dir, or remove the old run": "--overwrite-output",
    "updates hold random sentences of the corpus": "--no-bucketing --bucket-width "
    "--no-bucket-scaling --bucket-scaling --round-batch-sizes-to-multiple-of",
    "train.schedule.plateau counts validations": "--learning-rate-reduce-num-not-improved",
    "train.schedule counts updates": "--learning-rate-t-scale",
    "nmt average-checkpoints --best K averages the best": "--cache-last-best-params "
    "--cache-metric --cache-strategy",
    "training ends by train.max_updates, max_epochs, max_minutes or patience": "--max-checkpoints "
    "--min-samples --max-samples --min-updates --min-num-epochs --checkpoint-improvement-threshold",
    "weights are initialised as in the paper": "--weight-init --embed-weight-init "
    "--weight-init-scale --weight-init-xavier-factor-type --weight-init-xavier-rand-type",
    "nmt learns subwords itself, preprocess.vocab_size of them": "--word-min-count "
    "--source-vocab --target-vocab --pad-vocab-to-multiple-of",
    "the loss is the cross-entropy": "--loss --loss-type",
    "weights are always float32": "--dtype --clamp-to-dtype",
    "torchrun starts the processes": "--device-id --device-ids --local-rank --horovod --dist",
    "the run has log.jsonl": "--quiet --quiet-secondary-workers --loglevel --no-logfile",
    "nmt translate --json has tokens, scores and alignments": "--output-type "
    "--sure-align-threshold",
    "a model has checkpoints: --model RUN/update_N": "--checkpoints",
    "search.ensemble says how models are combined": "--ensemble-mode",
    "nmt translate --json-input reads requests": "--json-input --json-encoding --avoid-list",
    "nmt shortlist stores the list in the run": "--restrict-lexicon --restrict-lexicon-topk",
    "search.max_source_length limits a source": "--max-input-length",
    "search.max_length_ratio limits a translation": "--max-output-length-num-stds",
    "use --set train.device=cpu": "--use-cpu",
    "use --set search.constraints=[forbidden]": "--prevent-unk",
    "use --precision int8": "--int8",
    "nmt preprocess needs no shards": "--num-samples-per-shard --min-num-shards --max-processes",
    "train.loss.definition has the formulas": "--label-smoothing-impl",
    "the schedule has no counterpart": "--learning-rate-half-life "
    "--learning-rate-decay-optimizer-states-reset --learning-rate-decay-param-reset",
    "of recurrent models, which nmt does not convert": "--rnn-num-hidden --rnn-cell-type "
    "--rnn-attention-type --rnn-attention-num-hidden --rnn-num-layers --rnn-dropout-inputs "
    "--rnn-dropout-states --rnn-decoder-state-init --rnn-attention-in-upper-layers",
    "no counterpart; the model differs": "--source-factors --source-factors-num "
    "--source-factors-combine --source-factor-vocabs --source-factors-num-embed --target-factors "
    "--target-factors-num --target-factors-combine --target-factors-num-embed --length-task "
    "--length-task-weight --decoder-attention-type --validation-source-factors "
    "--validation-target-factors --target-factor-vocabs --source-factors-share-embedding "
    "--target-factors-weight --input-factors --lhuc --neural-vocab-selection "
    "--neural-vocab-selection-block-loss --transformer-feed-forward-use-glu",
    "no counterpart": "--weight-decay --fixed-param-names --fixed-param-strategy "
    "--keep-initializations --allow-missing-params --ignore-extra-params --monitor-pattern --env "
    "--stop-training-on-decoder-failure --brevity-penalty-type --brevity-penalty-weight "
    "--brevity-penalty-constant-length-ratio --length-penalty-beta --strip-unknown-words "
    "--skip-topk --beam-search-stop --knn-index --knn-lambda",
}
"""Why other options set nothing, and their names."""

WITHOUT = {name: reason for reason, names in REASONS.items() for name in names.split()}
"""Why an option sets nothing."""


def convert(options: Options, draft: Draft) -> None:
    """Set what takes more than one option, or a value of its own."""
    kind = options.command
    if kind in ("preprocess", "train"):
        _texts(options, draft, "train", ("--source", "-s"), ("--target", "-t"))
        validation = ("--validation-source", "-vs"), ("--validation-target", "-vt")
        _texts(options, draft, "valid", *validation)
        tied = options.text("--weight-tying-type", default="src_trg_softmax")
        is_tied = kind == "train" and tied.startswith("src_trg")  # which entails one vocabulary
        is_shared = options.switch("--shared-vocab") or is_tied or "preprocess" in options.beside
        if not is_shared:
            draft.set(preprocess__separate_vocabularies=True)
        if lengths := options.take("--max-seq-len"):
            longest = max(sides := _pair("--max-seq-len", lengths))
            draft.set(preprocess__max_tokens_per_sentence=longest)
            if min(sides) < longest:
                draft.note(f"max_tokens_per_sentence {longest}: both sides have one limit")
        if words := options.take("--num-words"):
            draft.set_vocabulary(*_pair("--num-words", words))
    if kind == "preprocess":
        draft.set(preprocess__output_dir=options.text("--output", "-o") or None)
    if kind == "train":
        if "preprocess" in options.beside:  # whose dataset it is
            options.take("-d", "--prepared-data")
        _train(options, draft, tied)
    if kind == "translate":
        _search(options, draft)


def _search(options: Options, draft: Draft) -> None:
    """Set the section ``search``; the length penalty is ((beta + length) / (beta + 1))^alpha."""
    assumed = None if options.switch("--greedy") else 5
    alpha = float(options.number("--length-penalty-alpha", assumed=1.0))
    beta = options.number("--length-penalty-beta", default=0)
    if beta not in (0, 5):
        draft.note(f"--length-penalty-beta {beta}: no counterpart; 0 is taken")
    draft.set(
        search__strategy={
            "name": "beam",
            "beam": options.number("--beam-size", "-b", default=1, assumed=assumed),
            "length_penalty": {"name": "gnmt" if beta == 5 else "power", "alpha": alpha},
        }
    )


def _texts(
    options: Options, draft: Draft, key: str, source: tuple[str, str], target: tuple[str, str]
) -> None:
    """Set the training or the validation text, and its languages."""
    paths = options.text(*source), options.text(*target)
    pair = parallel(*paths)
    if pair is not None:
        prefix, source_lang, target_lang = pair
        draft.set(**{f"preprocess__{key}": [prefix] if key == "train" else prefix})
        draft.set(preprocess__source_lang=source_lang, preprocess__target_lang=target_lang)
    elif any(paths):
        draft.note(
            f"{source[0]} {paths[0]}, {target[0]} {paths[1]}: expected PREFIX.SOURCE and "
            "PREFIX.TARGET; rename"
        )


def _pair(name: str, values: list[Any]) -> tuple[Any, Any]:
    """Return both numbers of ``6:6``, or the only one twice."""
    numbers = [number_of(name, part) for value in values for part in str(value).split(":")]
    return numbers[0], numbers[-1]


def _train(options: Options, draft: Draft, tied: str) -> None:
    draft.note("most options that are not given keep nmt's defaults, which are not Sockeye's")
    draft.set(model__arch="transformer_base", model__sinusoids="concatenated")
    if layers := options.take("--num-layers"):
        encoder, decoder = _pair("--num-layers", layers)
        draft.set(model__encoder_layers=encoder, model__decoder_layers=decoder)
    for name, key in KEYS.items():
        if key.startswith("model.") and (values := options.take(name)):
            encoder, decoder = _pair(name, values)
            set_path(draft.recipe, key, encoder)
            if encoder != decoder:
                draft.note(f"{name}: {key} is the same for both stacks; {encoder} is taken")
    _residual(options, draft)
    if tied == "src_trg":
        draft.note("--weight-tying-type src_trg: no counterpart; nothing is tied")
    draft.set(
        model__tied_embeddings={"src_trg_softmax": "all", "trg_softmax": "decoder"}.get(
            tied, "none"
        )
    )
    _kind(options, draft)
    batch = options.number("--batch-size", "-b", assumed=4096)
    in_words = options.text("--batch-type", default="max-word") != "sentence"
    interval = options.number("--update-interval", default=1)
    words, sentences = (batch, None) if in_words else (None, batch)
    draft.set_batch(words, sentences, interval, options.devices)
    smoothing = options.number("--label-smoothing", default=0.1)
    loss = {"name": "label_smoothed_cross_entropy", "smoothing": smoothing}
    if options.values.get("--label-smoothing-impl") == ["torch"]:
        options.take("--label-smoothing-impl")
        loss["definition"] = "uniform"
    draft.set(train__loss=loss)
    texts = options.text("--optimizer-betas").split(":")
    betas = [number_of("--optimizer-betas", part) for part in texts if part]
    eps = options.number("--optimizer-epsilon")
    name = options.text("--optimizer", default="adam")
    if name not in ("adam", "sgd"):
        draft.note(f"--optimizer {name}: no counterpart; adam is taken")
    optimizer = {"name": "adam", "betas": betas, "eps": eps}
    momentum = options.number("--momentum")
    if name == "sgd":
        optimizer = {"name": "sgd", "momentum": momentum}
    draft.set(train__optimizer={key: value for key, value in optimizer.items() if value})
    _schedule(options, draft)
    draft.set(train__save_every=options.number("--checkpoint-interval"))
    draft.set(train__valid_every=draft.recipe["train"].get("save_every"))
    best = options.text("--optimized-metric", assumed="perplexity")
    draft.set(train__best_metric=best if best in ("perplexity", "bleu", "chrf") else "loss")
    draft.set(train__valid_metrics=[best] if best in ("bleu", "chrf") else [])
    if any([options.switch("--amp"), options.switch("--apex-amp")]):
        draft.set(train__precision="fp16")
    clipping = options.text("--gradient-clipping-type", default="none")
    norm = options.number("--gradient-clipping-threshold", default=1.0)
    if clipping == "norm":
        draft.set(train__clip_norm=norm)
    elif clipping != "none":
        draft.note(f"--gradient-clipping-type {clipping}: nmt clips by the norm alone")
    seconds = options.number("--max-seconds")
    draft.set(train__max_minutes=seconds / 60 if seconds else None)
    draft.set(train__save_dir=options.text("--output", "-o") or None)


def _kind(options: Options, draft: Draft) -> None:
    """Set what the names of the encoder and the decoder, and the kind of positions, say."""
    decoder = options.text("--decoder", default="transformer")
    for name, kind in (("--encoder", options.text("--encoder")), ("--decoder", decoder)):
        if kind not in ("", "transformer", "ssru_transformer"):
            draft.note(f"{name} {kind}: no counterpart; transformer is taken")
    if decoder == "ssru_transformer":
        draft.set(model__decoder_attention="ssru")
    positions = options.text("--transformer-positional-embedding-type", default="fixed")
    if positions in ("learned", "none"):
        draft.set(model__positions=positions)
    elif positions != "fixed":
        draft.note(f"--transformer-positional-embedding-type {positions}: fixed is taken")


def _residual(options: Options, draft: Draft) -> None:
    """Set the place of the norms, which is before the sublayers by default."""
    before = options.text("--transformer-preprocess", assumed="n").partition(":")[0]
    after = options.text("--transformer-postprocess", assumed="dr").partition(":")[0]
    residual = {("n", "dr"): "pre_norm", ("", "drn"): "post_norm"}.get((before, after))
    if residual is None:
        draft.note(
            f"--transformer-preprocess {before!r} and -postprocess {after!r}: no counterpart; "
            "norms before the sublayers are taken"
        )
    draft.set(model__residual=residual or "pre_norm")


def _schedule(options: Options, draft: Draft) -> None:
    theirs = options.text("--learning-rate-scheduler-type", assumed="plateau-reduce")
    names = {
        "plateau-reduce": "plateau",
        "inv-sqrt-decay": "inverse_sqrt",
        "linear-decay": "linear",
        "none": "constant",
    }
    if theirs not in names:
        draft.note(
            f"--learning-rate-scheduler-type {theirs}: no counterpart; inverse_sqrt is taken"
        )
    values: dict[str, Any] = {
        "name": names.get(theirs, "inverse_sqrt"),
        "lr": options.number("--initial-learning-rate", assumed=0.0002),
        "warmup_updates": options.number("--learning-rate-warmup", assumed=0),
    }
    if values["name"] == "plateau":
        values["shrink"] = options.number("--learning-rate-reduce-factor", assumed=0.9)
        values["plateau"] = options.number("--learning-rate-reduce-num-not-improved", assumed=8)
    if values["name"] == "inverse_sqrt" and not values["warmup_updates"]:
        draft.note("warmup_updates: 4000 is assumed, as inverse_sqrt needs a warm-up")
        values["warmup_updates"] = 4000
    if theirs == "inv-sqrt-decay":
        values["lr"] = draft.peak("--initial-learning-rate", values["lr"], values["warmup_updates"])
    draft.set(train__schedule=values)
