"""Recipes from commands of fairseq."""

from __future__ import annotations

import json
from typing import Any

from nmt.advice.migration.options import Draft, Options, number_of, scalar
from nmt.errors import NmtError
from nmt.recipe.config import set_path
from nmt.recipe.registry import nearest

PROGRAMS = {
    "fairseq-train": "train",
    "fairseq-preprocess": "preprocess",
    "fairseq-generate": "translate",
    "fairseq-interactive": "translate",
}
"""The command of nmt for each program."""

KEYS = {
    "--dropout": "model.dropout",
    "--attention-dropout": "model.attention_dropout",
    "--activation-dropout": "model.activation_dropout",
    "--relu-dropout": "model.activation_dropout",
    "--encoder-layers": "model.encoder_layers",
    "--decoder-layers": "model.decoder_layers",
    "--patience": "train.patience",
    "--clip-norm": "train.clip_norm",
    "--save-interval-updates": "train.save_every",
    "--validate-interval-updates": "train.valid_every",
    "--keep-interval-updates": "train.keep_last",
    "--log-interval": "train.log_every",
    "--seed": "train.seed",
    "--save-dir": "train.save_dir",
    "--keep-last-epochs": "train.keep_last",
    "--source-lang": "preprocess.source_lang",
    "-s": "preprocess.source_lang",
    "--target-lang": "preprocess.target_lang",
    "-t": "preprocess.target_lang",
}
"""The recipe key of an option with one value."""

REASONS = {
    "--task": "nmt has translation alone",
    "--keep-best-checkpoints": "nmt keeps one best checkpoint, and the last ones",
    "--maximize-best-checkpoint-metric": "the metric says which way is better",
    "--no-epoch-checkpoints": "checkpoints are counted in updates: train.save_every, keep_last",
    "--store-ema": "train.ema_decay keeps an average, with which validation translates",
    "--warmup-init-lr": "warm-up begins at 0",
    "--power": "a line has power 1 and ends at 0",
    "--end-learning-rate": "a line has power 1 and ends at 0",
}
"""Why the recipe does not hold an option."""

ACTIVATIONS = {name: name for name in ("relu", "gelu", "swish")} | dict.fromkeys(
    ("gelu_accurate", "gelu_fast"), "gelu_tanh"
)
"""Values of ``--activation-fn``, and the feed-forward layers with these activations."""

ARCHES: dict[str, dict[str, Any]] = {
    "transformer": {"arch": "transformer_base"},
    "transformer_wmt_en_de": {"arch": "transformer_base"},
    "transformer_iwslt_de_en": {"arch": "transformer_iwslt_de_en", "dropout": 0.1},
    "transformer_vaswani_wmt_en_de_big": {"arch": "transformer_big"},
    "transformer_vaswani_wmt_en_fr_big": {"arch": "transformer_big_en_fr"},
    "transformer_wmt_en_de_big": {"arch": "transformer_big", "attention_dropout": 0.1},
    "transformer_wmt_en_de_big_t2t": {
        "arch": "transformer_big",
        "residual": "pre_norm",
        "attention_dropout": 0.1,
        "activation_dropout": 0.1,
    },
    "fconv_iwslt_de_en": {"arch": "conv_s2s_small", "dropout": 0.1},
    "fconv_wmt_en_de": {"arch": "conv_s2s_wmt_en_de_fairseq"},
    "fconv_wmt_en_fr": {"arch": "conv_s2s_wmt_en_fr_fairseq"},
}
"""The section ``model`` of fairseq's architectures; all but `fconv` are Transformers."""

SWITCHES: dict[str, dict[str, Any]] = {
    "--bf16": {"train__precision": "bf16"},
    "--fp16": {"train__precision": "fp16"},
    "--memory-efficient-bf16": {"train__precision": "bf16"},
    "--memory-efficient-fp16": {"train__precision": "fp16"},
    "--checkpoint-activations": {"train__checkpoint_activations": "layers"},
    "--tensorboard-logdir": {"train__tensorboard": True},
}
"""Values that switches set; here the directory of TensorBoard is in the directory of the run."""

TIED = {
    "--share-all-embeddings": "all",
    "--share-decoder-input-output-embed": "decoder",
}


def convert(options: Options, draft: Draft) -> None:
    """Set the keys that need several options, or another value than the option's."""
    parts = {"preprocess": _preprocess, "train": _training, "translate": _search}
    parts[options.command](options, draft)
    draft.finish(options, "fairseq", KEYS, REASONS)


def _preprocess(options: Options, draft: Draft) -> None:
    if not options.switch("--joined-dictionary"):
        draft.set(preprocess__separate_vocabularies=True)
    sizes = [options.number(name, default=-1) for name in ("--nwordssrc", "--nwordstgt")]
    draft.set_vocabulary(*(size for size in sizes if size > 0))
    if max(sizes) <= 0:
        draft.note("vocab_size: fairseq takes every subword of the text, nmt as many as suit it")
    draft.set(preprocess__output_dir=options.text("--destdir") or None)
    for name, key in (("--validpref", "valid"), ("--testpref", "test")):
        prefix, *others = options.text(name).split(",")
        draft.set(**{f"preprocess__{key}": prefix or None})
        if others:
            draft.note(f"{name} {','.join(others)}: preprocess.{key} takes one set, the first")
    if prefix := options.text("--trainpref"):
        draft.set(preprocess__train=[prefix])
    draft.note(
        "preprocess.train, valid and test: fairseq binarizes subwords, nmt learns them itself: "
        "give the text before tokenization and BPE"
    )


def _training(options: Options, draft: Draft) -> None:
    """Set the sections ``model`` and ``train``, and other keys that fairseq-train sets."""
    _model(options, draft)
    tokens, update_freq = options.number("--max-tokens"), _first(options, draft, "--update-freq")
    devices = options.number("--distributed-world-size", default=options.devices)
    sentences = options.number("--batch-size", "--max-sentences")
    gpus = f"{devices or 1} GPU{'s' if (devices or 1) > 1 else ''}"
    without = "" if devices else ", as assumed without --gpus N"
    batches = f" x {update_freq:g} batch{'es' if update_freq > 1 else ''}"
    factor = update_freq * (devices or 1)
    draft.set_update(tokens, sentences, factor, f"{batches} x {gpus}{without}")
    if not tokens and not sentences:
        draft.note(
            "tokens_per_update: assumed 25000, the default, without --max-tokens and --batch-size"
        )
    draft.set(train__max_tokens=tokens)
    _optimizer(options, draft)
    last = _schedule(options, draft)
    _loss(options, draft)
    _validation(options, draft)
    _end(options, draft, last)
    for name, values in SWITCHES.items():
        if options.switch(name):
            draft.set(**values)


def _first(options: Options, draft: Draft, name: str) -> Any:
    """Return the first number of a list for epochs, such as ``4,2`` or ``[4,2]``, or 1."""
    values = options.take(name) or [1]
    numbers = ",".join(map(str, values)).strip("[]").split(",")
    if len(numbers) > 1:
        draft.note(f"{name} {','.join(numbers)}: a number for each epoch; the first is taken")
    return number_of(name, numbers[0])


def _model(options: Options, draft: Draft) -> None:
    arch = options.text("--arch", "-a", default="transformer")
    if arch not in ARCHES:
        near = f"; did you mean {nearest(arch, ARCHES)}?" if nearest(arch, ARCHES) else ""
        draft.note(f"--arch {arch}: no counterpart{near}; transformer_base is taken")
    values = ARCHES.get(arch, ARCHES["transformer"])
    draft.set(**{f"model__{key}": value for key, value in values.items()})
    tied = [value for name, value in TIED.items() if options.switch(name)]
    # Only shared embeddings prove a joined dictionary; fairseq-train does not name it.
    if "all" not in tied:
        draft.set(preprocess__separate_vocabularies=True)
        draft.note("separate_vocabularies: assumed, as without fairseq's --joined-dictionary")
    if arch.startswith("fconv"):
        return
    draft.set(model__tied_embeddings=tied[0] if tied else "none")
    if not tied:
        draft.note(f"tied_embeddings none: fairseq's default, without {' and '.join(TIED)}")
    # fairseq concatenates sines and cosines, and keeps torch's epsilon of LayerNorm.
    draft.set(model__sinusoids="concatenated", model__norm_epsilon=1e-5)
    for key, name, value in (
        ("model.residual", "normalize-before", "pre_norm"),
        ("model.positions", "learned-pos", "learned"),
    ):
        switches = [f"--{stack}-{name}" for stack in ("encoder", "decoder")]
        _both(draft, key, {switch: options.switch(switch) and value for switch in switches})
    if options.switch("--no-token-positional-embeddings"):
        draft.set(model__positions="none")
    activation = options.text("--activation-fn", default="relu")
    if activation in ACTIVATIONS:
        draft.set(model__feed_forward=ACTIVATIONS[activation])
    else:
        draft.note(f"--activation-fn {activation}: no counterpart; relu is taken")
    for key, name in (
        ("model.d_model", "embed-dim"),
        ("model.d_ff", "ffn-embed-dim"),
        ("model.heads", "attention-heads"),
        ("train.layer_dropout", "layerdrop"),
    ):
        names = [f"--{stack}-{name}" for stack in ("encoder", "decoder")]
        _both(draft, key, {option: options.number(option) for option in names})


def _both(draft: Draft, key: str, given: dict[str, Any]) -> None:
    """Set a key that holds for both stacks, and note if fairseq has two values or one stack.

    Args:
        draft: the recipe.
        key: dotted key.
        given: the value for each stack's option; None or False where it is not given.
    """
    values = [value for value in given.values() if value]
    if values:
        set_path(draft.recipe, key, values[0])
    if len(values) == 1 or len(set(values)) > 1:
        shown = " ".join(f"{name} {value}" for name, value in given.items() if value)
        draft.note(f"{shown}: {key} {values[0]} is taken for both stacks")


def _optimizer(options: Options, draft: Draft) -> None:
    name = options.text("--optimizer", default="adam")
    is_adam = name in ("adam", "adamw")
    decay = options.number("--weight-decay", "--wd", default=0.0)
    momentum = options.number("--momentum")
    betas = " ".join(options.take("--adam-betas") or [])
    if is_adam and not betas:
        betas = options.assume("--adam-betas", "(0.9, 0.999)")
    eps = options.number("--adam-eps", assumed=1e-8 if is_adam else None)
    values: dict[str, Any] = {"name": name}
    if is_adam:
        # fairseq's adam decays weights apart from their gradients, as AdamW does.
        values = {"name": "adamw" if decay else "adam", "betas": _numbers(betas), "eps": eps}
        if decay:
            values["weight_decay"] = decay
    elif name in ("nag", "sgd"):
        values |= {} if momentum is None else {"momentum": momentum}
    elif name != "adafactor":
        draft.note(f"--optimizer {name}: no counterpart; adam is taken")
        values = {"name": "adam"}
    if decay and values["name"] != "adamw":
        draft.note(f"--weight-decay {decay}: {values['name']} has none here")
    draft.set(train__optimizer=values)


def _numbers(text: str) -> list[Any]:
    """Return the numbers of a tuple of Python, such as ``(0.9, 0.98)``."""
    parts = text.strip("()[] ").split(",")
    return [number_of("--adam-betas", part.strip()) for part in parts if part.strip()]


def _schedule(options: Options, draft: Draft) -> tuple[str, Any] | None:
    """Set the schedule; return its last update, with a remark on the option that names it."""
    theirs = options.text("--lr-scheduler", assumed="fixed")
    lr = _first(options, draft, "--lr") if "--lr" in options else options.assume("--lr", 0.25)
    is_sqrt = theirs == "inverse_sqrt"
    warmup = options.number("--warmup-updates", default=4000, assumed=None if is_sqrt else 0)
    names = {
        "inverse_sqrt": "inverse_sqrt",
        "fixed": "constant",
        "polynomial_decay": "linear",
        "cosine": "cosine",
        "reduce_lr_on_plateau": "plateau",
    }
    if theirs not in names:
        draft.note(f"--lr-scheduler {theirs}: no counterpart; inverse_sqrt is taken")
    values = {"name": names.get(theirs, "inverse_sqrt"), "lr": lr, "warmup_updates": warmup}
    if values["name"] == "inverse_sqrt" and not warmup:
        draft.note("warmup_updates: 4000 is assumed, as inverse_sqrt needs a warm-up")
        values["warmup_updates"] = 4000
    if theirs == "reduce_lr_on_plateau":
        values["shrink"] = options.number("--lr-shrink", assumed=0.1)
        # fairseq waits for one validation more than its patience.
        values["plateau"] = options.number("--lr-patience", default=0) + 1
    if theirs == "cosine":
        least = min(lr, max(0, options.number("--min-lr", default=0)))
        values["final_share"] = float(f"{least / lr:.6g}") if least else 0.0
        options.take("--lr-shrink", "--t-mult")  # they concern later periods
    draft.set(train__schedule=values)
    for name, usual in (("--power", 1), ("--end-learning-rate", 0)):
        if [scalar(value) for value in options.values.get(name, [])] == [usual]:
            options.take(name)
    if theirs == "polynomial_decay" and (total := options.number("--total-num-update")):
        return f"--total-num-update {total}: the line ends at update {total}", total
    period = options.number("--lr-period-updates") if theirs == "cosine" else None
    if period and period > 0:
        end = warmup + period
        return f"--lr-period-updates {period}: the first half cosine ends at update {end}", end
    return None


def _end(options: Options, draft: Draft, last: tuple[str, Any] | None) -> None:
    """Set when training ends.

    Args:
        options: options of fairseq-train.
        draft: the recipe.
        last: what :func:`_schedule` returns.
    """
    hours = options.number("--stop-time-hours")
    draft.set(train__max_minutes=60.0 * hours if hours else None)
    epochs, updates = options.number("--max-epoch"), options.number("--max-update")
    if last and updates and updates != last[1]:
        draft.note(f"{last[0]}, in nmt at train.max_updates {updates}")
    elif last and not updates:
        updates = last[1]
        draft.note(f"{last[0]}, and so does training (max_updates)")
    elif not updates:
        updates = 1_000_000 if epochs else None
        end = f"max_epochs {epochs}" if epochs else "100000, the default of max_updates"
        draft.note(f"end of training: fairseq has no limit of updates here; nmt ends after {end}")
    draft.set(train__max_epochs=epochs or None, train__max_updates=updates)
    if "--keep-last-epochs" in options:
        draft.note("keep_last counts checkpoints, one each train.save_every updates, not epochs")


def _loss(options: Options, draft: Draft) -> None:
    criterion = options.text("--criterion", assumed="cross_entropy")
    smoothed = "label_smoothed_cross_entropy"
    is_smoothed = criterion.startswith(smoothed)
    smoothing = options.number("--label-smoothing", assumed=0.0 if is_smoothed else None)
    loss = {"name": smoothed, "smoothing": smoothing, "definition": "fairseq"}
    draft.set(train__loss=loss if is_smoothed else "cross_entropy")
    if criterion.endswith("with_alignment"):
        draft.note(f"--criterion {criterion}: set train.guided_alignment, preprocess.alignments")
    elif criterion not in ("cross_entropy", "label_smoothed_cross_entropy"):
        draft.note(f"--criterion {criterion}: no counterpart")


def _validation(options: Options, draft: Draft) -> None:
    best = options.text("--best-checkpoint-metric", assumed="loss")
    with_bleu = options.switch("--eval-bleu") or best == "bleu"
    names = {"bleu": "bleu", "ppl": "perplexity", "loss": "loss", "nll_loss": "loss"}
    if best not in names:
        draft.note(f"--best-checkpoint-metric {best}: no counterpart; loss is taken")
    draft.set(train__valid_metrics=["bleu"] if with_bleu else [])
    draft.set(train__best_metric=names.get(best, "loss"))
    # Not taken, because `finish` sets the keys of both.
    valid_every, save_every = (
        number_of(name, (options.values.get(name) or [0])[0])
        for name in ("--validate-interval-updates", "--save-interval-updates")
    )
    if valid_every <= 0:
        options.take("--validate-interval-updates")
        if save_every > 0:
            draft.set(train__valid_every=save_every)
            draft.note(
                f"valid_every {save_every}: fairseq validates with each --save-interval-updates, "
                "and after each epoch"
            )
        else:
            draft.note("validation: fairseq validates after each epoch, nmt each train.valid_every")
    text = options.text("--eval-bleu-args", default="{}")
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise NmtError(f"--eval-bleu-args: expected JSON, not {text!r}")
    if with_bleu:
        # Named as fairseq-generate's options, with underscores and without dashes.
        of_generator = {f"--{key.replace('_', '-')}": [value] for key, value in values.items()}
        generator = Options("translate", of_generator)
        _search(generator, draft)
        options.assumed |= generator.assumed
        for name, value in generator.values.items():
            draft.note(f"--eval-bleu-args {name} {value[0]}: not carried over")


def _search(options: Options, draft: Draft) -> None:
    """Set the section ``search`` to what fairseq-generate does."""
    beam = options.number("--beam", assumed=5)
    is_sampling = options.switch("--sampling")
    is_unnormalized = options.switch("--unnormalized")
    is_plain = is_sampling or is_unnormalized
    alpha = options.number("--lenpen", default=0.0, assumed=None if is_plain else 1.0)
    strategy = {
        "name": "beam",
        "beam": beam,
        "length_penalty": {"name": "power", "alpha": 0.0 if is_unnormalized else float(alpha)},
        "stop": "first_beam",
    }
    if is_sampling:
        temperature = options.number("--temperature", default=1.0)
        strategy = {"name": "sample", "samples": beam, "temperature": float(temperature)}
        for key in ("k", "p"):
            if (value := options.number(f"--sampling-top{key}")) is not None and value > 0:
                strategy[f"top_{key}"] = value
    ratio = float(options.number("--max-len-a", assumed=0.0))
    longest = options.number("--max-len-b", assumed=200)  # without EOS
    draft.set(
        search__strategy=strategy,
        search__max_length_ratio=ratio,
        search__max_length_offset=longest + 1,
    )
    constraints: list[dict[str, Any]] = []
    if (shortest := options.number("--min-len", assumed=1)) > 0:
        constraints.append({"name": "min_length", "length": shortest})
    if ratio == 0.0 and longest > 0:  # fairseq then ends all hypotheses with EOS
        constraints.append({"name": "max_length", "length": longest})
    if size := options.number("--no-repeat-ngram-size"):
        constraints.append({"name": "no_repeat_ngram", "size": size})
    if constraints:
        draft.set(search__constraints=constraints)
        draft.note("search.constraints: fairseq's; leave them out for CTranslate2, which has none")
