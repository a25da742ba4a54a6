"""The training of fairseq-train and of its configurations of Hydra, as a recipe."""

from __future__ import annotations

import json
import re
from itertools import chain
from typing import Any

from nmt.errors import NmtError
from nmt.migration import fairseq_search
from nmt.migration.options import Draft, Options, number_of
from nmt.recipe.registry import nearest

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
    "transformer_align": {"arch": "transformer_base"},
    "transformer_wmt_en_de_big_align": {"arch": "transformer_big", "attention_dropout": 0.1},
    "fconv_iwslt_de_en": {"arch": "conv_s2s_small", "dropout": 0.1},
    "fconv_wmt_en_de": {"arch": "conv_s2s_wmt_en_de_fairseq"},
    "fconv_wmt_en_fr": {"arch": "conv_s2s_wmt_en_fr_fairseq"},
}
"""The section ``model`` of fairseq's architectures; all but `fconv` are Transformers."""

HYDRA = re.compile(r"[+~]*[a-z_]+(?:\.[a-z_]+)+=|--config-name$")
"""A setting of Hydra on the command line, or the option for its configuration."""

UNTRAINED = ("--generation", "--interactive", "--eval-lm", "--common-eval")
"""Sections of a configuration that fairseq-train does not read."""

SWITCHES: dict[str, dict[str, Any]] = {
    "--bf16": {"train__precision": "bf16"},
    "--fp16": {"train__precision": "fp16"},
    "--memory-efficient-bf16": {"train__precision": "bf16"},
    "--memory-efficient-fp16": {"train__precision": "fp16"},
    "--checkpoint-activations": {"train__checkpoint_activations": "layers"},
    "--tensorboard-logdir": {"train__tensorboard": True},
}
"""What switches set; a directory of TensorBoard is within that of the run here."""

TIED = {
    "--share-all-embeddings": "all",
    "--share-decoder-input-output-embed": "decoder",
}


def convert(options: Options, draft: Draft) -> None:
    """Set the sections ``model`` and ``train``, and what fairseq-train knows of the others."""
    _settings_of_hydra(options)
    _model(options, draft)
    tokens, update_freq = options.number("--max-tokens"), _first(options, draft, "--update-freq")
    devices = options.number("--distributed-world-size", default=options.devices)
    sentences = options.number("--batch-size", "--max-sentences")
    draft.set_batch(tokens, sentences, update_freq, devices)
    if not tokens and not sentences:
        draft.note(
            "tokens_per_update: assumed 25000, the default, without --max-tokens and --batch-size"
        )
    draft.set(train__max_tokens=tokens)
    _optimizer(options, draft)
    _schedule(options, draft)
    _loss(options, draft)
    _validation(options, draft)
    hours = options.number("--stop-time-hours")
    draft.set(train__max_minutes=60.0 * hours if hours else None)
    epochs, updates = options.number("--max-epoch"), options.number("--max-update")
    if not updates:
        updates = 1_000_000 if epochs else None
        end = f"max_epochs {epochs}" if epochs else "100000, the default of max_updates"
        draft.note(f"end of training: fairseq has no limit of updates here; nmt ends after {end}")
    draft.set(train__max_epochs=epochs or None, train__max_updates=updates)
    if "--keep-last-epochs" in options:
        draft.note("keep_last counts checkpoints, one each train.save_every updates, not epochs")
    for name, values in SWITCHES.items():
        if options.switch(name):
            draft.set(**values)


def _settings_of_hydra(options: Options) -> None:
    """Replace the sections of a configuration of Hydra by the options of fairseq-train.

    Raises:
        NmtError: settings are on the command line, without their configuration.
    """
    words = (*options.values, *options.positional, *chain(*options.values.values()))
    settings = [word for word in words if HYDRA.match(str(word))]
    if settings:
        raise NmtError(
            f"{settings[0]}: Hydra's settings are not converted from a command line; give the YAML "
            "of the whole configuration, .hydra/config.yaml of a training"
        )
    options.take(*UNTRAINED)
    for section in list(options.values):
        if options.values[section] and isinstance(options.values[section][0], dict):
            [values] = options.take(section) or []
            options.values |= Options.of_configuration(_options_of(section, values)).values


def _options_of(section: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a section, such as ``encoder_layers`` for `layers` in `encoder`."""
    named: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            named |= {f"{key}_{name}": inner for name, inner in value.items()}
        elif key == "_name":
            named["arch" if section == "--model" else section.lstrip("-")] = value
        else:
            named[key] = value
    return named


def _first(options: Options, draft: Draft, name: str) -> Any:
    """Return the first number of a list for epochs, such as ``4,2`` or ``[4,2]``, or 1."""
    values = options.take(name) or [1]
    numbers = ",".join(map(str, values)).strip("[]").split(",")
    if len(numbers) > 1:
        draft.note(f"{name} {','.join(numbers)}: a number for each epoch; the first one is taken")
    return number_of(name, numbers[0])


def _model(options: Options, draft: Draft) -> None:
    arch = options.text("--arch", "-a", default="transformer")
    if arch not in ARCHES:
        near = f"; did you mean {nearest(arch, ARCHES)}?" if nearest(arch, ARCHES) else ""
        draft.note(f"--arch {arch}: no counterpart{near}; transformer_base is taken")
    values = ARCHES.get(arch, ARCHES["transformer"])
    draft.set(**{f"model__{key}": value for key, value in values.items()})
    if arch.startswith("fconv"):
        _separate(options, draft)
        return
    tied = [value for name, value in TIED.items() if options.switch(name)]
    draft.set(model__tied_embeddings=tied[0] if tied else "none")
    if not tied:
        draft.note(f"tied_embeddings none: fairseq's default, without {' and '.join(TIED)}")
    if "all" not in tied:
        _separate(options, draft)
    draft.set(model__sinusoids="concatenated", model__norm_epsilon=1e-5)
    before = [options.switch(f"--{stack}-normalize-before") for stack in ("encoder", "decoder")]
    if any(before):
        draft.set(model__residual="pre_norm")
    learned = [options.switch(f"--{stack}-learned-pos") for stack in ("encoder", "decoder")]
    if any(learned):
        draft.set(model__positions="learned")
    if options.switch("--no-token-positional-embeddings"):
        draft.set(model__positions="none")
    activation = options.text("--activation-fn", default="relu")
    if activation in ACTIVATIONS:
        draft.set(model__feed_forward=ACTIVATIONS[activation])
    else:
        draft.note(f"--activation-fn {activation}: no counterpart; relu is taken")
    for ours, theirs in (("d_ff", "ffn-embed-dim"), ("heads", "attention-heads")):
        encoder, decoder = (f"--{stack}-{theirs}" for stack in ("encoder", "decoder"))
        _only_one(options, draft, f"model.{ours}", encoder, decoder)
    _only_one(options, draft, "model.d_model", "--encoder-embed-dim", "--decoder-embed-dim")


def _separate(options: Options, draft: Draft) -> None:
    """Assume that each language has its own vocabulary, where fairseq-preprocess does not say."""
    if "preprocess" in options.beside:
        return
    draft.set(preprocess__separate_vocabularies=True)
    draft.note(
        "separate_vocabularies: assumed, as fairseq-preprocess makes them without "
        "--joined-dictionary"
    )


def _only_one(options: Options, draft: Draft, key: str, encoder: str, decoder: str) -> None:
    """Set a key that holds for both stacks."""
    sizes = [options.number(name) for name in (encoder, decoder)]
    if sizes[0] and sizes[1] and sizes[0] != sizes[1]:
        draft.note(f"{decoder} {sizes[1]}: {key} is the same for both stacks; {sizes[0]} is taken")
    draft.set(**{key.replace(".", "__"): sizes[0] or sizes[1]})


def _optimizer(options: Options, draft: Draft) -> None:
    name = options.text("--optimizer", default="adam")
    is_adam = name in ("adam", "adamw")
    decay = options.number("--weight-decay", "--wd", default=0.0)
    momentum = options.number("--momentum")
    betas = options.text("--adam-betas", assumed="(0.9, 0.999)" if is_adam else None)
    eps = options.number("--adam-eps", assumed=1e-8 if is_adam else None)
    values: dict[str, Any] = {"name": name}
    if is_adam:
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


def _schedule(options: Options, draft: Draft) -> None:
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
        values["plateau"] = options.number("--lr-patience", default=0) + 1
    if force := options.number("--force-anneal", "--fa"):
        draft.note(f"--force-anneal {force}: no counterpart; train.schedule=plateau is near")
    if theirs == "polynomial_decay" and (total := options.number("--total-num-update")):
        draft.note(f"--total-num-update {total}: the line ends at train.max_updates")
    draft.set(train__schedule=values)


def _loss(options: Options, draft: Draft) -> None:
    criterion = options.text("--criterion", assumed="cross_entropy")
    smoothed = "label_smoothed_cross_entropy"
    is_smoothed = criterion.startswith(smoothed)
    smoothing = options.number("--label-smoothing", assumed=0.0 if is_smoothed else None)
    loss = {"name": smoothed, "smoothing": smoothing, "definition": "fairseq"}
    draft.set(train__loss=loss if is_smoothed else "cross_entropy")
    if criterion.endswith("with_alignment"):
        weight = options.number("--alignment-lambda", default=0.05)
        draft.set(train__guided_alignment=weight, preprocess__alignments=True)
        layer = options.number("--alignment-layer", default=4)  # from 0
        draft.set(model__alignment_layer=layer + 1)
        if options.number("--alignment-heads", default=1) == 1:
            draft.set(model__alignment_head=1)
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
    if "--validate-interval-updates" not in options:
        draft.note("validation: fairseq validates after each epoch, nmt each train.valid_every")
    text = options.text("--eval-bleu-args", default="{}")
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise NmtError(f"--eval-bleu-args: expected JSON, not {text!r}")
    if with_bleu and "translate" in options.beside:
        draft.note("--eval-bleu-args: validation searches as translation does, by section search")
    elif with_bleu:
        of_generator = {f"--{key.replace('_', '-')}": [value] for key, value in values.items()}
        generator = Options("translate", of_generator)
        fairseq_search.convert(generator, draft)
        options.assumed |= generator.assumed
        for name, value in generator.rest():
            draft.note(f"--eval-bleu-args {name} {value[0]}: not carried over")
