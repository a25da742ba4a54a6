"""Recipes from configurations and commands of Marian."""

from __future__ import annotations

import re
from typing import Any

from nmt.advice.migration.options import Draft, Options, number_of
from nmt.errors import NmtError
from nmt.recipe.config import set_path

PROGRAMS = {"marian": "train", "marian-decoder": "translate"}
"""The command of nmt for each program."""

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
}
"""The recipe key of an option with one value."""

REASONS = {
    "--config": "convert the file itself: nmt recipe --from marian FILE",
    "-c": "convert the file itself: nmt recipe --from marian FILE",
    "--devices": "use torchrun --nproc-per-node N -m nmt train",
    "-d": "use torchrun --nproc-per-node N -m nmt train",
    "--max-length": "search.max_source_length limits a source",
    "--max-length-crop": "longer training pairs are dropped, not cut",
    "--model": "nmt train --save-dir DIR, and nmt translate --model RUN",
    "-m": "nmt train --save-dir DIR, and nmt translate --model RUN",
    "--overwrite": "checkpoints are kept by train.keep_last",
    "--keep-best": "the best checkpoint is always kept",
    "--shortlist": "nmt shortlist stores the list in the run",
    "--lr-decay-strategy": "train.schedule=plateau is near",
    "--n-best": "use nmt translate --n-best K",
}
"""Why the recipe does not hold an option."""

PERIOD = re.compile(r"(\d[\d,]*(?:\.\d+)?)([kKMGT]?)([ute]?)", re.ASCII)
"""A number, a factor such as K for a thousand, and a unit: updates, target tokens or epochs."""

FACTORS = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def convert(options: Options, draft: Draft) -> None:
    """Set the keys that need several options, or another value than the option's."""
    if options.command == "translate":
        _search(options, draft)
    elif options.command == "train":
        if task := options.text("--task"):
            if task not in TASKS:
                raise NmtError(f"--task: {task!r} is not one of {', '.join(TASKS)}")
            options.values = {**TASKS[task], **options.values}
        _corpora(options, draft)
        _model(options, draft)
        _batch(options, draft)
        _optimizer(options, draft)
        _end(options, draft)
        _validation(options, draft)
        draft.set(train__seed=options.number("--seed") or None)  # 0 is no fixed seed
    draft.finish(options, "Marian", KEYS, REASONS)


def _corpora(options: Options, draft: Draft) -> None:
    for name, key in (("--train-sets", "train"), ("--valid-sets", "valid")):
        paths = list(map(str, options.take(name, "-t" if key == "train" else name) or []))
        if not paths:
            continue
        pair = _parallel(*paths) if len(paths) == 2 else None
        if pair is None:
            draft.note(
                f"{name} {' '.join(paths)}: expected PREFIX.SOURCE and PREFIX.TARGET; rename"
            )
            continue
        prefix, source_lang, target_lang = pair
        draft.set(preprocess__source_lang=source_lang, preprocess__target_lang=target_lang)
        draft.set(**{f"preprocess__{key}": [prefix] if key == "train" else prefix})
    vocabularies = options.take("--vocabs", "-v") or []
    # A file that is given for both sides is a shared vocabulary.
    if len(set(map(str, vocabularies))) > 1:
        draft.set(preprocess__separate_vocabularies=True)
    if options.switch("--right-left"):
        draft.set(preprocess__target_order="right_to_left")
    sizes = options.numbers("--dim-vocabs")
    draft.set_vocabulary(*sizes)
    if "--max-length" not in options:
        draft.note("max_tokens_per_sentence 50: the default of --max-length")
    draft.set(preprocess__max_tokens_per_sentence=options.number("--max-length", default=50))
    if vocabularies:
        is_text = all(str(path).endswith(".spm") for path in vocabularies)
        advice = "" if is_text else "; give the text without BPE"
        size = "" if any(sizes) else ", as many as suit the text"
        draft.note(
            f"--vocabs {' '.join(map(str, vocabularies))}: nmt learns subwords itself{size}{advice}"
        )


def _parallel(source: object, target: object) -> tuple[str, str, str] | None:
    """Return the prefix and the endings of two files of parallel text, perhaps compressed.

    Returns:
        Prefix, source language and target language; None if the files have other names.
    """
    names = [re.sub(r"\.(gz|xz|zst)$", "", str(path)) for path in (source, target)]
    matches = [re.fullmatch(r"(.*)\.([^./]+)", name) for name in names]
    if not all(matches):
        return None
    (one, source_lang), (other, target_lang) = (match.groups() for match in matches if match)
    is_pair = one == other and source_lang != target_lang
    return (one, source_lang, target_lang) if is_pair else None


def _model(options: Options, draft: Draft) -> None:
    kind = options.text("--type")
    if not kind and (config := options.text("--config", "-c")):
        raise NmtError(f"--config {config}: {REASONS['--config']}")
    if not kind:
        raise NmtError(
            "no --type and no --task: Marian's default, amun, is recurrent, and nmt's recurrent "
            "models differ; give --type transformer, or use nmt train --arch rnnsearch"
        )
    if kind != "transformer":
        raise NmtError(
            f"--type {kind}: nmt's recurrent models differ; use nmt train --arch rnnsearch"
        )
    if (embedded := options.text("--transformer-postprocess-emb", default="d")) != "d":
        draft.note(f"--transformer-postprocess-emb {embedded!r}: no counterpart; assumed 'd'")
    draft.set(model__arch="transformer_base", model__d_model=options.number("--dim-emb"))
    defaults = {"--enc-depth": 1, "--dec-depth": 1, "--transformer-dropout": 0.0}
    for name, value in defaults.items():
        set_path(draft.recipe, KEYS[name], options.number(name, assumed=value))
    both, output, every = (
        options.switch(f"--tied-embeddings{kind}") for kind in ("-src", "", "-all")
    )
    tied = "all" if every or (both and output) else "decoder" if output else "none"
    if both and tied == "none":
        draft.note("--tied-embeddings-src alone: no counterpart; none are tied")
    if tied == "none":
        draft.note("tied_embeddings none: Marian's default, without --tied-embeddings-all")
    has_bias = not options.switch("--output-omit-bias")
    draft.set(model__tied_embeddings=tied, model__output_bias=has_bias)
    if options.switch("--transformer-train-position-embeddings"):
        draft.set(model__positions="learned")
    else:
        # Marian's sinusoids are not interleaved as in the paper.
        draft.set(model__sinusoids="concatenated")
    activation = options.text("--transformer-ffn-activation", assumed="swish")
    if activation in ("relu", "gelu", "swish"):
        draft.set(model__feed_forward=activation)
    else:
        draft.note(f"--transformer-ffn-activation {activation}: no counterpart; relu is taken")
    steps = options.text("--transformer-preprocess"), options.text("--transformer-postprocess")
    # "dan" is the default of Marian itself.
    steps = steps[0], steps[1] or "dan"
    residual = {("", "dan"): "post_norm", ("n", "da"): "pre_norm"}.get(steps)
    options.take("--transformer-postprocess-top")
    if residual is None:
        draft.note(
            f"--transformer-preprocess {steps[0]!r} and -postprocess {steps[1]!r}: no counterpart; "
            "norms after the addition are taken"
        )
    draft.set(model__residual=residual)
    decoder = options.text("--transformer-decoder-autoreg", default="self-attention")
    patterns = {"self-attention": "full", "average-attention": "average", "rnn": "ssru"}
    if decoder not in patterns:
        draft.note(f"--transformer-decoder-autoreg {decoder}: no counterpart; full is taken")
    if decoder != "self-attention":
        draft.set(model__decoder_attention=patterns.get(decoder))


def _batch(options: Options, draft: Draft) -> None:
    options.take("--optimizer-delay")
    remark = ", which Marian divides among the devices and batches of an update"
    words, is_fit = options.number("--mini-batch-words"), options.switch("--mini-batch-fit")
    if workspace := options.number("--workspace", "-w"):
        draft.note(
            f"--workspace {workspace}: megabytes; train.max_tokens bounds the memory by tokens"
        )
    if words:
        draft.set_update(words, None, 1, remark)
    elif reference := options.number("--mini-batch-words-ref"):
        draft.set(train__tokens_per_update=reference)
        draft.note(f"tokens_per_update {reference}: --mini-batch-words-ref, assumed to be the size")
    elif is_fit:
        draft.note(
            "tokens_per_update: assumed 25000, the default: mini-batch-fit takes what fits the "
            "workspace, times devices and optimizer-delay; Marian's log has the words of an update"
        )
    else:
        draft.set_update(None, options.number("--mini-batch", assumed=64), 1, remark)


def _optimizer(options: Options, draft: Draft) -> None:
    parameters = options.numbers("--optimizer-params")
    name = options.text("--optimizer", "-o", default="adam")
    if name != "adam":
        draft.note(f"--optimizer {name}: its parameters are not carried over")
    elif not parameters:
        options.assume("--optimizer-params", "0.9 0.999 1e-08")
        parameters = [0.9, 0.999, 1e-8]
    values: dict[str, Any] = {"name": name if name in ("adam", "sgd") else "adam"}
    if values["name"] == "adam":
        values |= dict(zip(("betas", "eps"), (parameters[:2], *parameters[2:3]), strict=False))
    draft.set(train__optimizer=values)
    _schedule(options, draft)
    path = options.text("--guided-alignment", default="none")
    options.take("--guided-alignment-weight", "--transformer-guided-alignment-layer")
    if path != "none":
        draft.note(
            f"--guided-alignment {path}: name it PREFIX.align; set preprocess.alignments, "
            "train.guided_alignment"
        )
    if smoothing := options.number("--label-smoothing", assumed=0.0):
        loss = {"name": "label_smoothed_cross_entropy", "smoothing": smoothing}
        draft.set(train__loss={**loss, "definition": "uniform"})
    else:
        draft.set(train__loss="cross_entropy")
    draft.set(train__clip_norm=float(options.number("--clip-norm", assumed=1.0)))
    if "--exponential-smoothing" in options:
        rate = options.number("--exponential-smoothing", default=1e-4)
        draft.set(train__ema_decay=round(1 - rate, 8) if rate else None)
    if options.switch("--gradient-checkpointing"):
        draft.set(train__checkpoint_activations="layers")
    if options.switch("--fp16") or "float16" in map(str, options.take("--precision") or []):
        draft.set(train__precision="fp16")


def _schedule(options: Options, draft: Draft) -> None:
    warmup = _updates(options, draft, "--lr-warmup") or 0
    start, shown = 0, " ".join(map(str, options.values.get("--lr-decay-inv-sqrt", [])))
    if not shown:
        options.assume("--lr-decay-inv-sqrt", 0)
    elif _period("--lr-decay-inv-sqrt", shown.split()[0])[0]:
        # Not where the option is 0, which means no decay.
        start = _updates(options, draft, "--lr-decay-inv-sqrt") or warmup or 4000
    options.take("--lr-decay-inv-sqrt")
    draft.set(
        train__schedule={
            "name": "inverse_sqrt" if start else "constant",
            "lr": options.number("--learn-rate", "-l", assumed=1e-4),
            "warmup_updates": warmup or start,
        }
    )
    if start and start != warmup:
        draft.note(f"--lr-decay-inv-sqrt {shown}: the decay begins at the end of the warm-up")


def _period(name: str, value: object) -> tuple[float, str]:
    """Return the number of a period such as 16000, 100Ku or 10Gt, and its unit.

    Raises:
        NmtError: the value is not a period.
    """
    match = PERIOD.fullmatch(str(value))
    if match is None:
        raise NmtError(f"{name}: expected a number of updates, not {value!r}")
    return number_of(name, match[1].replace(",", "")) * FACTORS[match[2]], match[3]


def _updates(options: Options, draft: Draft, name: str, *aliases: str) -> int | None:
    """Return a number of updates; Marian may count target tokens (t) or epochs (e) instead."""
    values = options.take(name, *aliases)
    if not values:
        return None
    number, unit = _period(name, values[0])
    if unit == "t":
        tokens: int = draft.recipe.get("train", {}).get("tokens_per_update", 25000)
        draft.note(f"{name} {values[0]}: divided by {tokens} tokens of an update")
        return max(1, round(number / tokens))
    if unit == "e" and number:
        draft.note(f"{name} {values[0]}: nmt counts updates here; the default is taken")
        return None
    return round(number)


def _end(options: Options, draft: Draft) -> None:
    epochs, updates = options.number("--after-epochs", "-e"), None
    after = options.values.get("--after", options.values.get("-a", []))
    number, unit = _period("--after", after[0]) if after else (0, "")
    if unit == "e":
        epochs = round(number)
        options.take("--after", "-a")
    else:
        updates = _updates(options, draft, "--after", "-a")
    updates = _updates(options, draft, "--after-batches") or updates
    if not updates:
        draft.note("max_updates: 1000000, as Marian has no limit of updates here")
    draft.set(train__max_updates=updates or 1_000_000, train__max_epochs=epochs or None)
    patience = options.number("--early-stopping", assumed=10)
    draft.set(train__patience=patience or None)


def _validation(options: Options, draft: Draft) -> None:
    defaults = {"valid": 10000, "save": 10000, "disp": 1000}
    for name, default in defaults.items():
        key = "log_every" if name == "disp" else f"{name}_every"
        option = f"--{name}-freq"
        is_given = option in options
        number = _updates(options, draft, option) if is_given else options.assume(option, default)
        draft.set(**{f"train__{key}": number or None})
    given = options.take("--valid-metrics")
    listed = list(map(str, given or [options.assume("--valid-metrics", "cross-entropy")]))
    names: list[str] = []
    for metric in listed:
        kind = metric.partition("-")[0]
        if kind in ("bleu", "chrf") or kind == "perplexity":
            names.append(kind)
        elif kind in ("cross", "ce"):
            names.append("loss")
        else:
            draft.note(f"--valid-metrics {metric}: no counterpart")
    metrics = [name for name in dict.fromkeys(names) if name in ("bleu", "chrf")]
    # The first metric decides when Marian stops early, too.
    draft.set(train__valid_metrics=metrics, train__best_metric=names[0] if names else "loss")
    _search(options, draft)


def _search(options: Options, draft: Draft) -> None:
    """Set the section ``search`` to what marian-decoder does."""
    is_normalized = "--normalize" in options or "-n" in options
    assumed = None if is_normalized else 0.0
    alpha = float(options.number("--normalize", "-n", default=1.0, assumed=assumed))
    draft.set(
        search__strategy={
            "name": "beam",
            "beam": options.number("--beam-size", "-b", assumed=12),
            "length_penalty": {"name": "power", "alpha": alpha},
            "stop": "shrinking_beam",
        },
        search__max_length_ratio=float(options.number("--max-length-factor", assumed=3.0)),
        search__max_length_offset=1,
    )
    if not options.switch("--allow-unk"):
        draft.set(search__constraints=["forbidden"])
