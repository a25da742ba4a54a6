"""The training of fairseq-train and of its configurations of Hydra, as a recipe."""

from __future__ import annotations

import json
import re
from itertools import chain
from typing import Any

from nmt.errors import NmtError
from nmt.migration import fairseq_search
from nmt.migration.options import Draft, Options, number_of, scalar
from nmt.recipe.config import set_path
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

INTERPOLATION = re.compile(r"\$\{(\w+)\.(\w+)\}")
"""A value of Hydra that is that of another section, ``${section.key}``."""

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
    last = _schedule(options, draft)
    _loss(options, draft)
    _validation(options, draft)
    _end(options, draft, last)
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
    sections = {
        name.lstrip("-").replace("-", "_"): listed[0]
        for name, listed in options.values.items()
        if listed and isinstance(listed[0], dict)
    }
    for section, values in sections.items():
        options.take(f"--{section.replace('_', '-')}")
        known = {key: _interpolated(value, sections) for key, value in values.items()}
        options.values |= Options.of_configuration(_options_of(section, known)).values


def _interpolated(value: Any, sections: dict[str, dict[str, Any]]) -> Any:
    """Return a value, or that of another section if it names one."""
    named = INTERPOLATION.fullmatch(str(value))
    return sections.get(named[1], {}).get(named[2]) if named else value


def _options_of(section: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a section, such as ``encoder_layers`` for `layers` in `encoder`."""
    named: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            named |= {f"{key}_{name}": inner for name, inner in value.items()}
        elif key == "_name":
            named["arch" if section == "model" else section] = value
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
    _switch_of_both(options, draft, "model.residual", "normalize-before", "pre_norm")
    _switch_of_both(options, draft, "model.positions", "learned-pos", "learned")
    if options.switch("--no-token-positional-embeddings"):
        draft.set(model__positions="none")
    activation = options.text("--activation-fn", default="relu")
    if activation in ACTIVATIONS:
        draft.set(model__feed_forward=ACTIVATIONS[activation])
    else:
        draft.note(f"--activation-fn {activation}: no counterpart; relu is taken")
    is_base = values["arch"] == "transformer_base"  # whose decoder is as wide as the encoder
    _number_of_both(options, draft, "model.d_model", "embed-dim", decoder_follows=is_base)
    _number_of_both(options, draft, "model.d_ff", "ffn-embed-dim", decoder_follows=is_base)
    _number_of_both(options, draft, "model.heads", "attention-heads")
    _number_of_both(options, draft, "train.layer_dropout", "layerdrop")


def _separate(options: Options, draft: Draft) -> None:
    """Assume that each language has its own vocabulary, where fairseq-preprocess does not say."""
    if "preprocess" in options.beside:
        return
    draft.set(preprocess__separate_vocabularies=True)
    draft.note(
        "separate_vocabularies: assumed, as fairseq-preprocess makes them without "
        "--joined-dictionary"
    )


def _switch_of_both(options: Options, draft: Draft, key: str, name: str, value: str) -> None:
    """Set a key that holds for both stacks to a value if the switch of either one is on."""
    names = (f"--encoder-{name}", f"--decoder-{name}")
    on = [switch for switch in names if options.switch(switch)]
    section, _, field = key.partition(".")
    if len(on) == 1 and draft.recipe[section].get(field) != value:
        draft.note(f"{on[0]} alone: {key} is the same for both stacks; {value} is taken")
    if on:
        set_path(draft.recipe, key, value)


def _number_of_both(
    options: Options, draft: Draft, key: str, name: str, *, decoder_follows: bool = False
) -> None:
    """Set a key that holds for both stacks.

    Args:
        options: those of fairseq-train.
        draft: the recipe.
        key: dotted key.
        name: the options' name behind ``--encoder-`` and ``--decoder-``.
        decoder_follows: whether the decoder has the encoder's number by default.
    """
    encoder, decoder = (options.number(f"--{stack}-{name}") for stack in ("encoder", "decoder"))
    if encoder and decoder and encoder != decoder:
        draft.note(
            f"--decoder-{name} {decoder}: {key} is the same for both stacks; {encoder} is taken"
        )
    elif encoder and not decoder and not decoder_follows:
        draft.note(f"--encoder-{name} {encoder} alone: {key} is the same for both stacks")
    elif decoder and not encoder:
        draft.note(f"--decoder-{name} {decoder} alone: {key} is the same for both stacks")
    if encoder or decoder:
        set_path(draft.recipe, key, encoder or decoder)


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


def _schedule(options: Options, draft: Draft) -> tuple[str, Any] | None:
    """Set the schedule; return the remark of an option that names its last update, and this."""
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
    if theirs == "cosine":
        values["lr"], values["final_share"] = _rates_of_cosine(options, lr)
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


def _rates_of_cosine(options: Options, lr: float) -> tuple[float, float]:
    """Return the highest rate of a cosine, and the share of it that is left at the end."""
    if highest := options.number("--max-lr"):  # of old versions, where --lr is the least rate
        peak, least = max(highest, lr), min(highest, lr)
    else:
        peak, least = lr, min(lr, max(0, options.number("--min-lr", default=0)))
    options.take("--lr-shrink")  # of later periods, as is the next one
    options.take("--t-mult")
    return peak, float(f"{least / peak:.6g}") if least else 0.0


def _end(options: Options, draft: Draft, last: tuple[str, Any] | None) -> None:
    """Set when training ends.

    Args:
        options: those of fairseq-train.
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
    if with_bleu and "translate" in options.beside:
        draft.note("--eval-bleu-args: validation searches as translation does, by section search")
    elif with_bleu:
        of_generator = {f"--{key.replace('_', '-')}": [value] for key, value in values.items()}
        generator = Options("translate", of_generator)
        fairseq_search.convert(generator, draft)
        options.assumed |= generator.assumed
        for name, value in generator.rest():
            draft.note(f"--eval-bleu-args {name} {value[0]}: not carried over")
