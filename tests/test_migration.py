"""Recipes from commands of fairseq, and from commands and configurations of Marian."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from nmt.advice.migration import fairseq
from nmt.advice.migration.options import Options
from nmt.cli.recipe import load
from nmt.models import ModelConfig
from nmt.preprocess.config import PreprocessConfig
from nmt.recipe.config import build
from nmt.search.config import SearchConfig
from nmt.training.config import TrainConfig

WMT16_BIG = r"""
fairseq-train \
    data-bin/wmt16_en_de_bpe32k \
    --arch transformer_vaswani_wmt_en_de_big --share-all-embeddings \
    --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 0.0 \
    --lr 0.0005 --lr-scheduler inverse_sqrt --warmup-updates 4000 --warmup-init-lr 1e-07 \
    --dropout 0.3 --weight-decay 0.0 \
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \
    --max-tokens 3584 --update-freq 16 \
    --fp16
"""

IWSLT14 = r"""
CUDA_VISIBLE_DEVICES=0 fairseq-train \
    data-bin/iwslt14.tokenized.de-en \
    --arch transformer_iwslt_de_en --share-decoder-input-output-embed \
    --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 0.0 \
    --lr 5e-4 --lr-scheduler inverse_sqrt --warmup-updates 4000 \
    --dropout 0.3 --weight-decay 0.0001 \
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \
    --max-tokens 4096 \
    --eval-bleu --eval-bleu-args '{"beam": 5, "max_len_a": 1.2, "max_len_b": 10}' \
    --eval-bleu-detok moses --eval-bleu-remove-bpe --eval-bleu-print-samples \
    --best-checkpoint-metric bleu --maximize-best-checkpoint-metric
"""

MARIAN_BASE = """
task: transformer-base
train-sets: [corpus/train.en, corpus/train.de]
valid-sets: [corpus/valid.en, corpus/valid.de]
vocabs: [vocab.spm, vocab.spm]
dim-vocabs: [32000, 32000]
model: model.npz
devices: [0, 1, 2, 3]
mini-batch-fit: false
mini-batch-words: 8000
optimizer-delay: 2
valid-freq: 5000
valid-metrics: [bleu-detok, ce-mean-words]
early-stopping: 20
after: 40e
"""


def accepted(recipe: Path) -> dict[str, Any]:
    """Build each section of a recipe as the commands do."""
    read = load(recipe, None, {}, {"model": {"arch": "transformer_base"}})
    kinds = {
        "preprocess": PreprocessConfig,
        "model": ModelConfig,
        "train": TrainConfig,
        "search": SearchConfig,
    }
    return {name: build(kind, read.section(name), name) for name, kind in kinds.items()}


@pytest.fixture
def converted(nmt: Any, tmp_path: Path) -> Any:
    def convert(toolkit: str, text: str, *arguments: object) -> tuple[dict[str, Any], list[str]]:
        is_command = text.strip().startswith(("fairseq", "CUDA", "marian"))
        (tmp_path / "config.yml").write_text(text, encoding="utf-8")
        what = text if is_command else tmp_path / "config.yml"
        done = nmt("recipe", "--from", toolkit, *arguments, what)
        assert done.status == 0, done.err
        (tmp_path / "nmt.yaml").write_text(done.out, encoding="utf-8")
        return accepted(tmp_path / "nmt.yaml"), done.err.splitlines()

    return convert


def test_the_big_model_of_fairseq(converted: Any) -> None:
    built, notes = converted("fairseq", WMT16_BIG, "--gpus", 8)
    model, train = built["model"], built["train"]
    assert (model.d_model, model.d_ff, model.heads, model.dropout) == (1024, 4096, 16, 0.3)
    assert (model.tied_embeddings, model.sinusoids) == ("all", "concatenated")
    assert (train.tokens_per_update, train.max_tokens) == (3584 * 16 * 8, 3584)
    assert (train.schedule.name, train.schedule.lr, train.schedule.warmup_updates) == (
        "inverse_sqrt",
        0.0005,
        4000,
    )
    assert (train.optimizer.name, train.optimizer.betas) == ("adam", (0.9, 0.98))
    assert (train.loss.smoothing, train.loss.definition) == (0.1, "fairseq")
    assert (train.precision, train.clip_norm, train.best_metric) == ("fp16", 0.0, "loss")
    assert built["preprocess"].separate_vocabularies is False
    assert (
        "tokens_per_update 458752: 3584 tokens x 16 batches x 8 GPUs; nmt counts target tokens "
        "without padding" in notes
    )
    assert "--warmup-init-lr 1e-07: warm-up begins at 0" in notes
    assert not [line for line in notes if "unknown" in line]


def test_the_model_of_fairseq_for_iwslt(converted: Any) -> None:
    built, notes = converted("fairseq", IWSLT14)
    model, train, search = built["model"], built["train"], built["search"]
    assert (model.d_ff, model.heads, model.dropout, model.tied_embeddings) == (
        1024,
        4,
        0.3,
        "decoder",
    )
    assert (train.optimizer.name, train.optimizer.weight_decay) == ("adamw", 0.0001)
    assert (train.tokens_per_update, train.best_metric) == (4096, "bleu")
    assert (search.strategy.beam, search.strategy.stop) == (5, "first_beam")
    assert (search.max_length_ratio, search.max_length_offset) == (1.2, 11)  # with EOS
    assert built["preprocess"].separate_vocabularies is True
    assert any(line.startswith("separate_vocabularies: assumed") for line in notes)
    assert not [line for line in notes if "unknown" in line]


def test_a_configuration_of_marian(converted: Any) -> None:
    built, notes = converted("marian", MARIAN_BASE)
    preprocess, model, train = built["preprocess"], built["model"], built["train"]
    assert (preprocess.source_lang, preprocess.target_lang) == ("en", "de")
    assert (preprocess.train, preprocess.valid) == (("corpus/train",), "corpus/valid")
    assert (preprocess.vocab_size, preprocess.separate_vocabularies) == (32000, False)
    assert preprocess.max_tokens_per_sentence == 100
    assert (model.encoder_layers, model.d_model, model.d_ff, model.heads) == (6, 512, 2048, 8)
    assert (model.tied_embeddings, model.output_bias, model.residual) == ("all", True, "post_norm")
    assert train.tokens_per_update == 8000  # over all devices and batches
    assert (train.schedule.lr, train.schedule.warmup_updates) == (0.0003, 16000)
    assert (train.optimizer.betas, train.optimizer.eps) == ((0.9, 0.98), 1e-9)
    assert (train.ema_decay, train.loss.definition) == (0.9999, "uniform")
    assert (train.max_epochs, train.patience, train.valid_every, train.save_every) == (
        40,
        20,
        5000,
        10000,
    )
    assert (train.best_metric, [metric.name for metric in train.valid_metrics]) == (
        "bleu",
        ["bleu"],
    )
    strategy = built["search"].strategy
    assert (strategy.beam, strategy.length_penalty.alpha) == (8, 1.0)
    assert "--model model.npz: nmt train --save-dir DIR, and nmt translate --model RUN" in notes
    assert not [line for line in notes if "unknown" in line]


def test_options_that_marian_writes_with_their_defaults_set_nothing(converted: Any) -> None:
    written = """
    type: transformer
    mini-batch: 1000
    mini-batch-fit: true
    mini-batch-words: 0
    learn-rate: 0.0003
    lr-decay: 0
    lr-warmup: 16000
    lr-decay-inv-sqrt: [16000]
    guided-alignment: none
    guided-alignment-weight: 0.1
    """
    train = converted("marian", written)[0]["train"]
    assert (train.tokens_per_update, train.guided_alignment) == (25000, 0)
    assert (train.schedule.name, train.schedule.warmup_updates) == ("inverse_sqrt", 16000)


@pytest.mark.parametrize(
    "text",
    [
        "# train\nset -e\nfairseq-train d --seed 1 \\\n  --fp16\necho c",
        "torchrun --nproc-per-node 2 $(which fairseq-train) d --seed 1\n  --fp16",
        "cat a | python -m x; ./bin/fairseq-train d --seed 1 --fp16 > log 2>&1 &",
        "fairseq-train d --seed=1 --fp16|tee log",
    ],
)
def test_one_command_is_read_from_a_text(text: str) -> None:
    options = Options.of_command_line(text, fairseq.PROGRAMS)
    assert (options.command, options.positional) == ("train", ["d"])
    assert options.values == {"--seed": ["1"], "--fp16": []}


def test_a_command_line_is_read_from_a_file(nmt: Any, tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(WMT16_BIG, encoding="utf-8")
    from_file = nmt("recipe", "--from", "fairseq", tmp_path / "train.sh")
    assert from_file.status == 0
    assert from_file == nmt("recipe", "--from", "fairseq", WMT16_BIG)


def test_a_translation_sets_the_search_alone(converted: Any, tmp_path: Path) -> None:
    _, notes = converted("fairseq", "fairseq-generate d --seed 3 --beam 3 --max-tokens 1000")
    assert [*load(tmp_path / "nmt.yaml", None, {}, {}).sections] == ["search"]
    assert "--seed 3: nmt translate does not set train.seed" in notes


@pytest.mark.parametrize(
    ("toolkit", "line", "expected"),
    [
        ("fairseq", "fairseq-train d --lr 0.1,0.2 --max-tokens 100 --update-freq '[16]'",
         {"train.tokens_per_update": 1600, "train.schedule.lr": 0.1}),
        ("fairseq", "fairseq-train d --arch fconv_iwslt_de_en",
         {"model.arch": "conv_s2s_small", "model.dropout": 0.1}),
        ("fairseq", "fairseq-train d --lr-scheduler reduce_lr_on_plateau --lr-patience 3",
         {"train.schedule.name": "plateau", "train.schedule.plateau": 4}),
        ("fairseq", "fairseq-train d --lr-scheduler cosine --lr 1e-3 --min-lr 1e-7 "
         "--warmup-updates 10000 --lr-period-updates 20000",
         {"train.schedule.final_share": 1e-4, "train.max_updates": 30000}),
        ("fairseq", "fairseq-train d --adam-betas=(0.9, 0.98)",
         {"train.optimizer.betas": (0.9, 0.98)}),
        ("fairseq", "fairseq-train d --encoder-embed-dim 256 --decoder-embed-dim 256 "
         "--encoder-normalize-before", {"model.d_model": 256, "model.residual": "pre_norm"}),
        ("fairseq", "fairseq-train d --save-interval-updates 5000 --validate-interval-updates 0",
         {"train.valid_every": 5000, "train.save_every": 5000}),
        ("fairseq", "fairseq-train d --save-interval-updates 5000 --validate-interval-updates 700",
         {"train.valid_every": 700}),
        ("fairseq", "fairseq-preprocess --nwordssrc 8000 --nwordstgt 10000 --joined-dictionary",
         {"preprocess.vocab_size": 10000, "preprocess.separate_vocabularies": False}),
        ("fairseq", "fairseq-generate d --sampling --beam 3 --sampling-topk 9 --temperature 0.7",
         {"search.strategy.samples": 3, "search.strategy.top_k": 9,
          "search.strategy.temperature": 0.7}),
        ("fairseq", "fairseq-generate d --lenpen 2 --unnormalized",
         {"search.strategy.length_penalty.alpha": 0}),
        ("fairseq", "fairseq-preprocess -s en -t de --trainpref a --validpref b,c",
         {"preprocess.train": ("a",), "preprocess.valid": "b"}),
        ("fairseq", "fairseq-train d --activation-fn gelu_fast --eval-bleu",
         {"model.feed_forward.name": "gelu_tanh", "search.max_length_offset": 201}),
        ("fairseq", "fairseq-train d --lr-scheduler polynomial_decay --total-num-update 30000 "
         "--max-epoch 10", {"train.schedule.name": "linear", "train.max_updates": 30000}),
        ("marian", "marian --type transformer -d 0 1 --mini-batch 1024 --optimizer-delay 2",
         {"train.tokens_per_update": 25600}),
        ("marian", "marian --task transformer-big-prenorm --after-batches 500000000t",
         {"train.tokens_per_update": 25000, "train.max_updates": 20000,
          "model.residual": "pre_norm"}),
        ("marian", "marian --type transformer --after 1,000,000u --valid-freq 5Ku",
         {"train.max_updates": 1_000_000, "train.valid_every": 5000}),
        ("marian", "marian --type transformer --mini-batch-words 8000 -a 10Gt",
         {"train.max_updates": 1_250_000}),
        ("marian", "marian --type transformer -a 20e",
         {"train.max_updates": 1_000_000, "train.max_epochs": 20}),
        ("marian", "marian --type transformer --lr-warmup 4Ku --lr-decay-inv-sqrt 16000 0",
         {"train.schedule.name": "inverse_sqrt", "train.schedule.warmup_updates": 4000}),
        ("marian", "marian --type transformer --lr-decay-inv-sqrt 2e",
         {"train.schedule.name": "inverse_sqrt", "train.schedule.warmup_updates": 4000}),
        ("marian", "marian --type transformer --lr-decay-inv-sqrt 0",
         {"train.schedule.name": "constant"}),
        ("marian", "marian --type transformer --tied-embeddings-src",
         {"model.tied_embeddings": "none"}),
        ("marian", "marian --type transformer --tied-embeddings-src --tied-embeddings",
         {"model.tied_embeddings": "all"}),
        ("marian", "marian --type transformer --output-omit-bias "
         "--transformer-train-position-embeddings",
         {"model.output_bias": False, "model.positions.name": "learned"}),
        ("marian", "marian --type transformer --dim-vocabs 8000 10000 --seed 0",
         {"preprocess.vocab_size": 10000, "train.seed": 1}),
        ("marian", "marian-decoder -m m.npz -b8 -n.6",
         {"search.strategy.beam": 8, "search.strategy.length_penalty.alpha": 0.6}),
    ],
)  # fmt: skip
def test_a_recipe_has_the_values_of_the_options(
    converted: Any, toolkit: str, line: str, expected: dict[str, Any]
) -> None:
    built, _ = converted(toolkit, line)
    for path, value in expected.items():
        section, _, key = path.partition(".")
        assert attrgetter(key)(built[section]) == value, path


@pytest.mark.parametrize(
    ("toolkit", "line", "note"),
    [
        ("fairseq", "fairseq-train d --lr-scheduler inverse_sqrt --lr 5e-4", "not given, so "
         "fairseq's defaults: --adam-betas (0.9, 0.999), --adam-eps 1e-08, --criterion "
         "cross_entropy, --best-checkpoint-metric loss"),
        ("marian", "marian-decoder -n 0.6", "not given, so Marian's defaults: --beam-size 12, "
         "--max-length-factor 3"),
        ("fairseq", "fairseq-train d", "tokens_per_update: assumed 25000, the default, without "
         "--max-tokens and --batch-size"),
        ("fairseq", "fairseq-train d", "d: not carried over; nmt reads a dataset (--data), a run "
         "or a file"),
        ("fairseq", "fairseq-train d", "tied_embeddings none: fairseq's default, without "
         "--share-all-embeddings and --share-decoder-input-output-embed"),
        ("fairseq", "fairseq-train d --update-freq 4,2", "--update-freq 4,2: a number for each "
         "epoch; the first is taken"),
        ("fairseq", "fairseq-train d --batch-size 80 --update-freq 2", "tokens_per_update 4000: 80 "
         "sentences of 25 x 2 batches x 1 GPU, as assumed without --gpus N; nmt counts target "
         "tokens without padding"),
        ("fairseq", "fairseq-train d --encoder-layerdrop 0.2", "--encoder-layerdrop 0.2: "
         "train.layer_dropout 0.2 is taken for both stacks"),
        ("fairseq", "fairseq-train d --arch transfomer", "--arch transfomer: no counterpart; did "
         "you mean transformer?; transformer_base is taken"),
        ("fairseq", "fairseq-train d --dropuot 0.1", "--dropuot 0.1: unknown, not carried over; "
         "did you mean --dropout?"),
        ("fairseq", "fairseq-train d --qqq 'a\x1b[2Jb' --zzz", "not carried over; leave out, or "
         "set what docs/recipe.md has: --qqq a\\x1b[2Jb, --zzz"),
        ("fairseq", "fairseq-train d --patience -1", "--patience -1: no limit or seed there; the "
         "default of train.patience is taken"),
        ("fairseq", "fairseq-train d --seed 7 8", "--seed 7 8: train.seed has one value; the first "
         "is taken"),
        ("fairseq", "fairseq-train d --restore-file x.pt", "--restore-file x.pt: give the same "
         "--save-dir: the run there is resumed"),
        ("fairseq", "fairseq-generate d --path m.pt", "--path m.pt: use --model RUN, once for each "
         "model"),
        ("marian", "marian --type transformer -v a.yml b.yml", "--vocabs a.yml b.yml: nmt learns "
         "subwords itself, as many as suit the text; give the text without BPE"),
        ("fairseq", "fairseq-train d --lr-scheduler polynomial_decay --total-num-update 30000 "
         "--max-update 20000", "--total-num-update 30000: the line ends at update 30000, in nmt at "
         "train.max_updates 20000"),
        ("fairseq", "fairseq-train d --power 2", "--power 2: a line has power 1 and ends at 0"),
        ("marian", "marian --type transformer --mini-batch-words 8000", "tokens_per_update 8000: "
         "8000 tokens, which Marian divides among the devices and batches of an update; nmt counts "
         "target tokens without padding"),
        ("marian", "marian --type transformer -c a.yml", "-c a.yml: convert the file itself: nmt "
         "recipe --from marian FILE"),
        ("marian", "marian --type transformer --guided-alignment c", "--guided-alignment c: name "
         "it PREFIX.align; set preprocess.alignments, train.guided_alignment"),
    ],
)  # fmt: skip
def test_what_is_assumed_or_not_carried_over_is_told(
    converted: Any, toolkit: str, line: str, note: str
) -> None:
    assert note in converted(toolkit, line)[1]


@pytest.mark.parametrize(
    ("toolkit", "what", "message"),
    [
        ("fairseq", "fairseq-train d --max-tokens many", "--max-tokens: expected a number, not "
         "'many'"),
        ("fairseq", "fairseq-train d --max-tokens nan", "--max-tokens: expected a number"),
        ("fairseq", "fairseq-train 'd", "the command line cannot be read: No closing quotation"),
        ("fairseq", "fairseq-train d --lr $LR", "$LR: the shell replaces it; write its value"),
        ("fairseq", "fairseq-preprocess a && fairseq-train d", "several commands: "
         "fairseq-preprocess, fairseq-train; give one command at a time"),
        ("fairseq", "marian --task transformer-base", "no command to convert; give a command line "
         "of one of fairseq-train, fairseq-preprocess, "),
        ("fairseq", "fairseq-train d --eval-bleu-args '[1'", "--eval-bleu-args: expected JSON"),
        ("marian", "missing.yml", "missing.yml: no such file"),
        ("marian", "marian", "no --type and no --task: Marian's default, amun, is recurrent"),
        ("marian", "marian --type s2s", "--type s2s: nmt's recurrent models differ"),
        ("marian", "marian -c a.yml", "--config a.yml: convert the file itself"),
        ("marian", "marian --task x", "--task: 'x' is not one of transformer-base"),
        ("marian", "marian --type transformer --after te", "--after: expected a number of updates"),
        ("moses", "moses -f moses.ini", "--from: unknown toolkit 'moses'"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(nmt: Any, toolkit: str, what: str, message: str) -> None:
    done = nmt("recipe", "--from", toolkit, what)
    assert (done.status, done.out, done.err.count("\n")) == (1, "", 1)
    assert done.err.startswith(f"nmt: error: {message}")


def test_a_configuration_of_fairseq_is_refused(nmt: Any, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("a: 1\n")
    done = nmt("recipe", "--from", "fairseq", tmp_path / "config.yaml")
    assert done.status == 1
    assert done.err.endswith(": only Marian's configurations are read; give a command line\n")
