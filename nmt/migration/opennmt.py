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

WITHOUT = {
    "--config": "convert the file itself: nmt recipe --from opennmt FILE",
    "--encoder-type": "nmt's recipe names an architecture: model.arch",
    "--decoder-type": "nmt's recipe names an architecture: model.arch",
    "--position-encoding": "sinusoids are the default",
    "--src-vocab": "the dataset holds the subwords",
    "--tgt-vocab": "the dataset holds the subwords",
    "--src-subword-model": "give the model as preprocess.subword_model",
    "--tgt-subword-model": "give the model as preprocess.subword_model",
    "--save-data": "nmt preprocess writes preprocess.output_dir",
    "--overwrite": "nmt preprocess replaces an older dataset",
    "--n-sample": "preprocess.subword_sample",
    "--batch-type": "nmt counts tokens",
    "--normalization": "the loss of an update is divided by its tokens",
    "--max-generator-batches": "no batch stores all its logits",
    "--bucket-size": "updates hold random sentences of the corpus",
    "--num-workers": "nmt reads the dataset without workers",
    "--param-init": "weights are initialised as in the paper",
    "--param-init-glorot": "weights are initialised as in the paper",
    "--valid-batch-size": "validation finds its batches",
    "--word-vec-size": "model.d_model is the width of embeddings, too",
}
"""Why other options set nothing."""


def convert(options: Options, draft: Draft) -> None:
    """Set what takes more than one option, or a value of its own."""
    options.values = {_with_two_dashes(name): options.values[name] for name in options.values}
    draft.note("most options that are not given keep nmt's defaults, which are not OpenNMT's")
    if options.command == "translate":
        _search(options, draft)
        return
    draft.set(model__arch="transformer_base", model__sinusoids="concatenated")
    draft.set(model__residual="pre_norm")  # that of every Transformer of OpenNMT-py
    kinds = {options.text(f"--{stack}-type") for stack in ("encoder", "decoder")}
    if others := kinds - {"", "transformer"}:
        draft.note(f"encoder_type, decoder_type {', '.join(sorted(others))}: no counterpart")
    _corpora(options, draft)
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


def _with_two_dashes(name: str) -> str:
    """Return the name of an option; OpenNMT-py also takes long ones with a single dash."""
    return f"-{name}" if re.match("-[a-z][a-z-]", name) else name


def _corpora(options: Options, draft: Draft) -> None:
    """Set the corpora of ``data``, each with ``path_src``, ``path_tgt`` and perhaps a weight."""
    data = options.take("--data")
    if not data or not isinstance(data[0], dict):
        return
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
