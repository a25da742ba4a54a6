"""Recipes from the commands and configurations of other toolkits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nmt.cli.recipe import load
from nmt.migration import TOOLKITS, recipe_of
from nmt.migration.habits import HABITS
from nmt.migration.options import Options
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

SOCKEYE = """
torchrun --no_python --nproc_per_node 2 sockeye-train -d prepared -vs valid.en -vt valid.de
 --shared-vocab --num-layers 6:2 --decoder ssru_transformer --transformer-model-size 512:512
 --batch-type max-word --batch-size 4096 --update-interval 4 --checkpoint-interval 500
 --optimizer-betas 0.9:0.98 --initial-learning-rate 0.06325 --learning-rate-warmup 4000
 --learning-rate-scheduler-type inv-sqrt-decay --label-smoothing 0.1 --seed 2 -o model
"""

OPENNMT = """
data:
  corpus_1: {path_src: corpus/train.en, path_tgt: corpus/train.de, transforms: [sentencepiece]}
  back: {path_src: corpus/back.en, path_tgt: corpus/back.de, weight: 2}
  valid: {path_src: corpus/valid.en, path_tgt: corpus/valid.de}
share_vocab: true
share_embeddings: true
encoder_type: transformer
decoder_type: transformer
layers: 6
heads: 8
hidden_size: 512
transformer_ff: 2048
dropout: [0.1]
batch_type: tokens
batch_size: 4096
accum_count: [4]
world_size: 2
gpu_ranks: [0, 1]
optim: adam
adam_beta2: 0.998
decay_method: noam
learning_rate: 2
warmup_steps: 8000
label_smoothing: 0.1
train_steps: 100000
save_model: model
"""


IWSLT14_SCRIPT = rf"""#!/usr/bin/env bash
TEXT=examples/translation/iwslt14.tokenized.de-en BEAM=${{1:-5}}
export DATA="data-bin/iwslt14"
fairseq-preprocess --source-lang de --target-lang en --joined-dictionary --nwordssrc 10000 \
    --trainpref $TEXT/train --validpref "$TEXT/valid" --testpref ${{TEXT}}/test --destdir $DATA
{IWSLT14.strip().replace("data-bin/iwslt14.tokenized.de-en", "$DATA --save-dir $RUNS/iwslt14")}
fairseq-generate $DATA --path checkpoints/checkpoint_best.pt --beam $BEAM --remove-bpe > valid.out
fairseq-generate $DATA --path checkpoints/checkpoint_best.pt --gen-subset test
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


def of_command(text: str, toolkit: str) -> Options:
    """Return the options of the only command of a text."""
    [options] = Options.of_script(text, toolkit)
    return options


@pytest.fixture
def converted(nmt: Any, tmp_path: Path) -> Any:
    def convert(toolkit: str, text: str, *arguments: object) -> tuple[dict[str, Any], list[str]]:
        is_command = text.strip().startswith(
            ("fairseq", "CUDA", "marian", "sockeye", "torchrun", "onmt")
        )
        path = tmp_path / ("script.sh" if text.startswith("#!") else "config.yml")
        path.write_text(text, encoding="utf-8")
        what = text if is_command else path
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


def test_a_whole_script_of_fairseq_is_one_recipe(converted: Any) -> None:
    built, notes = converted("fairseq", IWSLT14_SCRIPT)
    data = built["preprocess"]
    assert (data.train, data.valid) == (
        ("examples/translation/iwslt14.tokenized.de-en/train",),
        "examples/translation/iwslt14.tokenized.de-en/valid",
    )
    assert (data.vocab_size, data.output_dir) == (10000, "data-bin/iwslt14")
    assert not data.separate_vocabularies  # though the decoder's weights alone are tied
    assert (built["model"].tied_embeddings, built["train"].tokens_per_update) == ("decoder", 4096)
    assert built["search"].max_length_offset == 201  # fairseq-generate's, not that of validation
    assert built["search"].strategy.beam == 5
    assert built["train"].save_dir == "$RUNS/iwslt14"
    assert notes[-1] == (
        "train.save_dir $RUNS/iwslt14: replace it; the script does not tell all of its parts"
    )
    assert "fairseq-generate: not the first one; convert it alone" in notes
    assert not [line for line in notes if ": unknown" in line or "--data DIR" in line]
    assert all(line.startswith("fairseq-") for line in notes[:-1])


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("A='1 2'\nfairseq-train d --x $A --y \"$A\" --z 'a$A'", ["1", "2", "1 2", "a$A"]),
        ('fairseq-train --x ${A:-3} ${B-4}5 a\\$A "a\\$A"', ["3", "45", "a$A", "a$A"]),
        ("A=1 B=$A; fairseq-train --x $B ${C:-$A}", ["1", "1"]),
        ("A=; fairseq-train --x ${A:-5} ${A-6}7", ["5", "7"]),
        ("local A=5; declare -i B=6\nfairseq-train --x $A $B", ["5", "6"]),
        ("if x; then A=1; else A=2; fi; fairseq-train --x $A", ["2"]),
        ("A=1; A+=2; fairseq-train --x $A", ["12"]),
        ('A=(--x 1\n  2)\nfairseq-train d --y ${A[*]} "${A[@]}"', ["1", "2"]),
        ("A=(--x)\nA+=('1 2' 3)\nfairseq-train \"${A[@]}\"", ["1 2", "3"]),
        ("A=1 echo; A=2 B=3; fairseq-train --x $A$B a${A}b", ["23", "a2b"]),
        ('A=; fairseq-train --x $A "$A" 5', ["", "5"]),
        (
            "cat <<E\nfairseq-train don't\nE\nif (( $# < 1 )); then x; fi\nfairseq-train --x 1",
            ["1"],
        ),
    ],
)
def test_variables_have_the_values_of_earlier_commands(lines: str, words: list[str]) -> None:
    values = of_command(lines, "fairseq").values.values()
    assert [word for listed in values for word in listed] == words


def test_the_first_round_of_a_loop_is_taken(converted: Any) -> None:
    script = """#!/bin/sh
for seed in 3 4; do for i in $(seq 9); do
fairseq-train d --seed $seed --patience $i --save-dir run$seed; done; done"""
    built, notes = converted("fairseq", script)
    train = built["train"]
    assert (train.seed, train.patience, train.save_dir) == (3, None, "run3")
    said = "for seed in 3 4: the first value is taken; use --set for the others"
    assert said in notes
    assert not [line for line in notes if line.startswith("for i")]
    script = "#!/bin/sh\nfor x in a b; do echo $x; done\nfairseq-train d"
    assert not [line for line in converted("fairseq", script)[1] if line.startswith("for x")]


def test_a_value_of_opennmt_that_a_shell_alone_knows_is_left_out(converted: Any) -> None:
    assert converted("opennmt", "onmt_train -seed $SEED")[0]["train"].seed == 1


@pytest.mark.parametrize("word", ["$A", "'$@'", "${A%.x}", "$(date +%s)", "`date`", "$A$B"])
def test_words_that_a_shell_alone_replaces_are_left_out(converted: Any, word: str) -> None:
    line = f"fairseq-train d --seed {word} --lr {word} --fp16 {word} --save-dir {word}"
    built, notes = converted("fairseq", line)
    train, shown = built["train"], word.strip("'")
    assert (train.seed, train.precision, train.save_dir) == (1, "fp16", "checkpoints")
    assert train.schedule.lr == 0.25  # fairseq's default
    assert f"--seed {shown}: left out; the script does not tell its value" in notes
    built, notes = converted("fairseq", f"fairseq-train {word}")
    assert f"{shown}: left out; the script does not tell its value" in notes


@pytest.mark.parametrize(
    ("toolkit", "script"),
    [
        ("fairseq", "fairseq-train d -s en -t de\nfairseq-generate d -s de -t en --seed 3"),
        ("marian", "marian --type transformer -t a.en a.de\nmarian-decoder --allow-unk --seed 3"),
        ("sockeye", "sockeye-train -s a.en -t a.de\nsockeye-translate --seed 3"),
    ],
)
def test_a_translation_decides_on_the_search_alone(
    converted: Any, toolkit: str, script: str
) -> None:
    built, notes = converted(toolkit, script)
    data = built["preprocess"]
    assert (data.source_lang, data.target_lang, built["train"].seed) == ("en", "de", 1)
    assert not [part for part in built["search"].constraints if part.name == "forbidden"]
    assert [line for line in notes if "--seed 3: nmt translate does not set train.seed" in line]


def test_a_whole_script_of_sockeye_is_one_recipe(converted: Any) -> None:
    prepare = "sockeye-prepare-data -s train.en -t train.de --shared-vocab -o prepared\n"
    options = " --max-seconds 7200 --gradient-clipping-type norm --gradient-clipping-threshold 2\n"
    script = prepare + SOCKEYE.strip() + options + "sockeye-translate -m model --beam-size 7"
    built, notes = converted("sockeye", script)
    data, train = built["preprocess"], built["train"]
    assert (data.train, data.valid, data.output_dir) == (("train",), "valid", "prepared")
    assert (train.save_dir, train.max_minutes, train.clip_norm) == ("model", 120, 2)
    assert built["search"].strategy.beam == 7
    assert not [line for line in notes if ": unknown" in line or "train.data" in line]


@pytest.mark.parametrize(("kind", "clip"), [("", 0), ("--gradient-clipping-type none", 0)])
def test_sockeye_clips_only_by_a_type(converted: Any, kind: str, clip: float) -> None:
    line = f"sockeye-train --gradient-clipping-threshold 2 {kind}"
    assert converted("sockeye", line)[0]["train"].clip_norm == clip


def test_a_model_of_marian_from_right_to_left(converted: Any) -> None:
    built, _ = converted("marian", MARIAN_BASE + "right-left: true\n")
    assert built["preprocess"].target_order == "right_to_left"
    built, _ = converted("marian", MARIAN_BASE + "right-left: false\n")
    assert built["preprocess"].target_order == "left_to_right"


def test_a_model_of_opennmt_3(converted: Any) -> None:
    more = """
max_relative_positions: -1
layer_norm: rms
norm_eps: 1e-5
multiquery: true
use_ckpting: [ffn, mha]
average_decay: 0.0005
src_seq_length: 150
tgt_seq_length: 120
valid_metrics: [BLEU]
early_stopping_criteria: ppl
"""
    built, notes = converted("opennmt", OPENNMT + more)
    model, train = built["model"], built["train"]
    assert (model.positions.name, model.norm, model.norm_epsilon) == ("rotary", "rms_norm", 1e-5)
    assert (model.key_value_heads, train.checkpoint_activations) == (1, "layers")
    assert (train.ema_decay, train.best_metric) == (0.9995, "perplexity")
    assert built["preprocess"].max_tokens_per_sentence == 150
    assert not [line for line in notes if ": unknown" in line]
    built, _ = converted("opennmt", "onmt_train -max_relative_positions 8")
    assert (built["model"].positions.name, built["model"].positions.clip) == ("relative", 8)
    built, _ = converted("opennmt", "onmt_translate -coverage_penalty wu -beta 0.2")
    assert built["search"].coverage_penalty == 0.2


def test_a_vocabulary_that_sockeye_prepares_is_shared(converted: Any) -> None:
    script = "sockeye-prepare-data -s a.en -t a.de --shared-vocab -o d\n"
    script += "sockeye-train -d d --weight-tying-type none"
    assert not converted("sockeye", script)[0]["preprocess"].separate_vocabularies


def test_the_first_of_several_held_out_sets_of_fairseq_is_taken(converted: Any) -> None:
    line = "fairseq-preprocess -s en -t de --trainpref a --validpref b,c,d --testpref e"
    built, notes = converted("fairseq", line)
    assert (built["preprocess"].valid, built["preprocess"].test) == ("b", "e")
    assert "--validpref c,d: preprocess.valid is one set, the first one" in notes


@pytest.mark.parametrize(
    ("toolkit", "line", "other"),
    [
        ("fairseq", "marian --task transformer-base", "marian"),
        ("marian", "onmt_train --batch_size 9", "opennmt"),
        ("opennmt", "python -m sockeye.train -s a", "sockeye"),
        ("sockeye", "fairseq-train bin", "fairseq"),
        ("fairseq", "cat a | ./build/marian-decoder -m b", "marian"),
    ],
)
def test_a_command_of_another_toolkit_is_named(
    nmt: Any, toolkit: str, line: str, other: str
) -> None:
    done = nmt("recipe", "--from", toolkit, line)
    assert (done.status, done.out) == (1, "")
    assert done.err.endswith(f" is a program of {other}; use --from {other}\n")


def test_activations_and_limits_of_fairseq(converted: Any) -> None:
    line = "fairseq-train bin --arch transformer --activation-fn gelu_fast"
    built, _ = converted("fairseq", f"{line} --eval-bleu --eval-bleu-args '{{\"beam\": 5}}'")
    assert built["model"].feed_forward.name == "gelu_tanh"
    search = built["search"]
    assert (search.max_length_ratio, search.max_length_offset) == (0.0, 201)
    constraints = {constraint.name: constraint.length for constraint in search.constraints}
    assert constraints == {"min_length": 1, "max_length": 200}


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
    assert "--model model.npz: use --save-dir DIR" in notes
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
    ("options", "update", "unit"),
    [
        ("--mini-batch 1024 --optimizer-delay 2", 25600, "1024 sentences of 25"),
        ("--mini-batch-words 8000", 8000, "8000 tokens"),
    ],
)
def test_devices_of_marian_divide_a_batch(
    converted: Any, options: str, update: int, unit: str
) -> None:
    line = f"marian --type transformer --devices 0 1 2 3 {options}"
    built, notes = converted("marian", line)
    assert built["train"].tokens_per_update == update
    assert (
        f"tokens_per_update {update}: {unit}, which Marian divides among the devices and batches "
        "of an update; nmt counts target tokens without padding" in notes
    )
    assert not [note for note in notes if note.startswith("--optimizer-delay")]
    assert "--devices 0 1 2 3: use torchrun --nproc-per-node N -m nmt train" in notes


def test_sentences_do_not_take_the_place_of_words(converted: Any) -> None:
    line = "marian --type transformer --mini-batch-words 8000 --mini-batch 64"
    assert converted("marian", line)[0]["train"].tokens_per_update == 8000


def test_alignments_of_fairseq_guide_the_attention(converted: Any) -> None:
    text = (
        "fairseq-train data --arch transformer_wmt_en_de_big_align --load-alignments "
        "--criterion label_smoothed_cross_entropy_with_alignment --alignment-lambda 0.1"
    )
    for options, chosen in (("", (5, 1)), (" --alignment-heads 2 --alignment-layer 3", (4, None))):
        built, _ = converted("fairseq", text + options)
        assert built["train"].guided_alignment == 0.1
        model = built["model"]
        assert (model.d_model, model.alignment_layer, model.alignment_head) == (1024, *chosen)


def test_alignments_of_marian_guide_the_attention(converted: Any) -> None:
    built, notes = converted("marian", "marian --type transformer --guided-alignment c.align")
    assert built["train"].guided_alignment == 0.1
    assert built["preprocess"].alignments is True
    assert (built["model"].alignment_layer, built["model"].alignment_head) == (1, 1)
    deep = "marian --type transformer --guided-alignment c.align --dec-depth 6"
    for option, layer in (("", 6), (" --transformer-guided-alignment-layer 5", 5)):
        built, _ = converted("marian", deep + option)
        assert (built["model"].alignment_layer, built["model"].alignment_head) == (layer, 1)
    assert "--guided-alignment c.align: nmt preprocess reads PREFIX.align; rename" in notes
    assert built["preprocess"].max_tokens_per_sentence == 50
    assert "max_tokens_per_sentence 50: the default of --max-length" in notes


def test_what_fits_the_workspace_of_marian_is_not_known(converted: Any) -> None:
    built, notes = converted(
        "marian", "marian --task transformer-big-prenorm --after-batches 500000000t -d 0 1"
    )
    assert built["train"].tokens_per_update == 25000
    assert built["train"].max_updates == 500_000_000 // 25000
    assert built["model"].residual == "pre_norm"
    assert any(line.startswith("tokens_per_update: assumed 25000") for line in notes)


def test_lengths_and_megabytes_of_marian_are_not_tokens_of_a_batch(converted: Any) -> None:
    built, notes = converted(
        "marian",
        "marian --type transformer -t corpus.en corpus.de --mini-batch-fit -w 7000 "
        "--max-length 100 --max-length-crop --transformer-postprocess-emb d --normalize 0.6",
    )
    assert built["preprocess"].max_tokens_per_sentence == 100
    assert built["train"].max_tokens == "auto"  # the default
    assert built["search"].strategy.stop == "shrinking_beam"
    assert [line for line in notes if line.startswith("--workspace 7000: megabytes")]
    assert not [line for line in notes if "unknown" in line]


@pytest.mark.parametrize(
    ("after", "updates", "epochs"),
    [
        ("--after 100Ku", 100_000, None),
        ("--after 1,000,000u", 1_000_000, None),
        ("-a 2.5k", 2500, None),
        ("--after 10Gt", 10_000_000_000 // 8000, None),
        ("--after-batches 1M", 1_000_000, None),
        ("-a 20e", 1_000_000, 20),
        ("--after 0e", 1_000_000, None),
    ],
)
def test_numbers_of_marian_have_factors_and_units(
    converted: Any, after: str, updates: int, epochs: int | None
) -> None:
    line = f"marian --type transformer --mini-batch-words 8000 {after} --valid-freq 5Ku"
    train = converted("marian", line)[0]["train"]
    assert (train.max_updates, train.max_epochs, train.valid_every) == (updates, epochs, 5000)


@pytest.mark.parametrize(
    ("options", "name", "warmup"),
    [
        ("--lr-warmup 4Ku --lr-decay-inv-sqrt 16000 0", "inverse_sqrt", 4000),
        ("--lr-decay-inv-sqrt 32000000t", "inverse_sqrt", 4000),
        ("--lr-decay-inv-sqrt 2e", "inverse_sqrt", 4000),
        ("--lr-warmup 100 --lr-decay-inv-sqrt 2e", "inverse_sqrt", 100),
        ("--lr-decay-inv-sqrt 0", "constant", 0),
    ],
)
def test_decay_of_marian_may_count_target_tokens(
    converted: Any, options: str, name: str, warmup: int
) -> None:
    line = f"marian --type transformer --mini-batch-words 8000 {options}"
    built, notes = converted("marian", line)
    schedule = built["train"].schedule
    assert (schedule.name, schedule.warmup_updates) == (name, warmup)
    assert not [line for line in notes if "unknown" in line]


def test_a_command_of_sockeye(converted: Any) -> None:
    built, notes = converted("sockeye", SOCKEYE)
    model, train = built["model"], built["train"]
    assert (model.encoder_layers, model.decoder_layers) == (6, 2)
    assert model.decoder_attention.name == "ssru"
    assert (train.tokens_per_update, train.seed) == (4096 * 4 * 2, 2)
    assert (train.schedule.name, train.schedule.warmup_updates) == ("inverse_sqrt", 4000)
    # Sockeye's rate is 0.06325 / sqrt(max(update, 4000)).
    for update in (4000, 16000):
        assert train.schedule.rate(update, 512, 1) == pytest.approx(0.06325 / update**0.5, rel=1e-5)
    assert (
        "lr 0.00100007: --initial-learning-rate 0.06325, divided by the square root of "
        "warmup_updates 4000, is the peak" in notes
    )
    assert (train.valid_every, train.save_every) == (500, 500)
    assert built["preprocess"].valid == "valid"
    assert "--prepared-data" not in str(built)
    assert not [line for line in notes if "unknown" in line]


@pytest.mark.parametrize("end", ["", ".gz"])
def test_texts_of_sockeye_are_a_prefix_and_languages(converted: Any, end: str) -> None:
    texts = f"-s data/train.en{end} -t data/train.de{end} -vs dev.en -vt dev.de"
    built, notes = converted("sockeye", f"torchrun sockeye-train {texts} -o m")
    preprocess = built["preprocess"]
    assert (preprocess.source_lang, preprocess.target_lang) == ("en", "de")
    assert (preprocess.train, preprocess.valid) == (("data/train",), "dev")
    _, notes = converted("sockeye", "torchrun sockeye-train -s a.src -t b.trg -o m")
    assert (
        "--source a.src, --target b.trg: expected PREFIX.SOURCE and PREFIX.TARGET; rename" in notes
    )


@pytest.mark.parametrize(
    ("program", "options", "is_separate", "tied"),
    [
        ("train", "", False, "all"),
        ("train", "--weight-tying-type trg_softmax", True, "decoder"),
        ("train", "--weight-tying-type trg_softmax --shared-vocab", False, "decoder"),
        ("train", "--weight-tying-type src_trg", False, "none"),
        ("train", "--weight-tying-type none", True, "none"),
        ("prepare-data", "", True, "all"),
        ("prepare-data", "--shared-vocab", False, "all"),
    ],
)
def test_tied_weights_of_sockeye_share_a_vocabulary(
    converted: Any, program: str, options: str, is_separate: bool, tied: str
) -> None:
    line = f"torchrun sockeye-{program} -s a.en -t a.de {options} -o m"
    built, notes = converted("sockeye", line)
    assert built["preprocess"].separate_vocabularies is is_separate
    assert built["model"].tied_embeddings == tied
    assert any(line.startswith("--weight-tying-type") for line in notes) is ("src_trg" in options)


def test_a_configuration_of_opennmt(converted: Any) -> None:
    built, notes = converted("opennmt", OPENNMT)
    preprocess, train = built["preprocess"], built["train"]
    assert [corpus.path for corpus in preprocess.corpora] == ["corpus/train", "corpus/back"]
    assert (preprocess.corpora[1].weight, preprocess.valid) == (2, "corpus/valid")
    assert (built["model"].tied_embeddings, built["model"].d_ff) == ("all", 2048)
    assert (train.tokens_per_update, train.max_updates) == (4096 * 4 * 2, 100000)
    assert (train.schedule.factor, train.schedule.warmup_updates) == (2.0, 8000)
    assert train.optimizer.betas == (0.9, 0.998)
    assert any(line.startswith("data.corpus_1.transforms: ") for line in notes)
    assert not [line for line in notes if "unknown" in line]


def test_options_of_opennmt_may_have_one_dash(converted: Any) -> None:
    line = "onmt_train -batch_size 2048 -batch_type tokens -world_size 2 -accum_count 3 -layers 4"
    built, notes = converted("opennmt", line)
    assert (built["train"].tokens_per_update, built["model"].decoder_layers) == (2048 * 2 * 3, 4)
    assert not [line for line in notes if "unknown" in line]


def test_the_inverse_square_root_of_opennmt_is_that_of_the_update(converted: Any) -> None:
    line = "onmt_train -decay_method rsqrt -learning_rate 2 -warmup_steps 10000 -optim adam"
    built, notes = converted("opennmt", line)
    assert built["train"].schedule.rate(10000, 512, 1) == pytest.approx(2 / 10000**0.5)
    assert built["train"].schedule.rate(40000, 512, 1) == pytest.approx(2 / 40000**0.5)
    assert "--decay_method rsqrt: nmt warms up, where OpenNMT's rate is constant" in notes


@pytest.mark.parametrize(
    ("launcher", "gpus"),
    [
        ("torchrun --nproc-per-node=4 --nnodes 2", 8),
        ("torchrun --nproc-per-node 4 --nnodes 1:2", 4),
        ("python -m torch.distributed.launch --nproc_per_node=8 --use_env", 8),
        ("python -u -m torch.distributed.run --nproc_per_node 2", 2),
        ("env CUDA_VISIBLE_DEVICES=0,1,2 nohup python", 3),
    ],
)
@pytest.mark.parametrize("program", ["fairseq-train", "$(which fairseq-train)"])
def test_launchers_name_the_number_of_gpus(launcher: str, gpus: int, program: str) -> None:
    options = of_command(f"{launcher} {program} data-bin --max-tokens 1000", "fairseq")
    assert (options.command, options.devices) == ("train", gpus)
    assert (options.positional, options.values) == (["data-bin"], {"--max-tokens": ["1000"]})


@pytest.mark.parametrize(
    "end",
    [
        "> log 2>&1 &",
        "2>&1 | tee log",
        "&> log",
        ">>log",
        "< in.txt >out.txt",
        "; exit",
        "|& tee log",
    ],
)
def test_redirections_and_pipes_are_no_values(end: str) -> None:
    line = f"fairseq-train d --dropout 0.3 --unk '<unk>' --arch \"a > b\" --seed 2 {end}"
    options = of_command(line, "fairseq")
    assert options.values == {
        "--dropout": ["0.3"],
        "--unk": ["<unk>"],
        "--arch": ["a > b"],
        "--seed": ["2"],
    }


@pytest.mark.parametrize(
    ("toolkit", "line", "command", "values"),
    [
        ("fairseq", "cat a.txt | fairseq-interactive d --beam 3", "translate", {"--beam": ["3"]}),
        ("fairseq", "cd x && fairseq-generate d --beam 7", "translate", {"--beam": ["7"]}),
        ("fairseq", "T=a; fairseq-preprocess --trainpref $T/b", "preprocess",
         {"--trainpref": ["a/b"]}),
        ("fairseq", "# a\nset -e\nfairseq-train d --seed 1 # b\n --fp16\necho c", "train",
         {"--seed": ["1"], "--fp16": []}),
        ("fairseq", "for s in 1 2; do python fairseq/train.py d --seed $s; done", "train",
         {"--seed": ["1"]}),
        ("fairseq", "python -m fairseq_cli.generate d", "translate", {}),
        ("fairseq", "fairseq-train d --bpe ';' --task \"a '&' b\" --fp16 \\", "train",
         {"--bpe": [";"], "--task": ["a '&' b"], "--fp16": []}),
        ("marian", "M=build/marian; cat a | ./build/marian-decoder -b 6 | tee b", "translate",
         {"-b": ["6"]}),
        ("marian", "marian -t <(zcat a.en.gz) <(zcat a.de.gz)", "train",
         {"-t": ["<(zcat a.en.gz)", "<(zcat a.de.gz)"]}),
        ("sockeye", "sockeye-average -o a; python3 -m sockeye.prepare_data -o b", "preprocess",
         {"-o": ["b"]}),
        ("opennmt", "onmt_build_vocab -config a && python -m onmt.bin.train -seed 2", "train",
         {"-seed": ["2"]}),
        ("opennmt", "python translate.py -beam_size 2", "translate", {"-beam-size": ["2"]}),
    ],
)  # fmt: skip
def test_the_command_of_the_toolkit_is_read(
    toolkit: str, line: str, command: str, values: dict[str, list[str]]
) -> None:
    options = of_command(line, toolkit)
    assert (options.command, options.values) == (command, values)


@pytest.mark.parametrize(
    ("lines", "gpus"),
    [
        ("export CUDA_VISIBLE_DEVICES=0,1\nfairseq-train d", 2),
        ("CUDA_VISIBLE_DEVICES=0,1,2; export SEED=1\nfairseq-train d", 3),
        ("export CUDA_VISIBLE_DEVICES=0,1; torchrun --nnodes 3 $(which fairseq-train) d", 6),
        ("export CUDA_VISIBLE_DEVICES=0,1; torchrun --nproc-per-node 1 fairseq-train d", 1),
        ("export CUDA_VISIBLE_DEVICES=$GPUS; fairseq-train d", None),
        ("CUDA_VISIBLE_DEVICES=0,1 echo a; fairseq-train d", None),
    ],
)
def test_variables_of_earlier_commands_name_the_number_of_gpus(
    lines: str, gpus: int | None
) -> None:
    assert of_command(lines, "fairseq").devices == gpus


@pytest.mark.parametrize(
    ("listed", "first"), [("4,2", "--update-freq 4,2"), ("[16]", None), ("[4, 2]", "--update-freq")]
)
def test_the_first_number_of_a_list_for_epochs_is_taken(
    converted: Any, listed: str, first: str | None
) -> None:
    line = f"fairseq-train d --max-tokens 100 --lr 0.1,0.2 --update-freq '{listed}'"
    built, notes = converted("fairseq", line)
    assert built["train"].tokens_per_update == (1600 if first is None else 400)
    told = [note for note in notes if note.endswith("for each epoch; the first one is taken")]
    assert [note.split()[0] for note in told] == ["--update-freq"] * bool(first) + ["--lr"]


HYDRA = """
common: {_name: null, fp16: true, seed: 3}
task: {_name: translation, data: data-bin, source_lang: de, target_lang: en}
dataset: {max_tokens: 4096, batch_size: null}
distributed_training: {distributed_world_size: 2}
criterion: {_name: label_smoothed_cross_entropy, label_smoothing: 0.1}
optimization: {max_update: 50000, lr: [0.0005], update_freq: [4], stop_time_hours: 0.0}
optimizer: {_name: adam, adam_betas: "(0.9, 0.98)"}
lr_scheduler: {_name: inverse_sqrt, warmup_updates: 2000}
model: {_name: transformer_wmt_en_de_big, encoder: {layers: 3, embed_dim: 256}}
generation: {_name: null, beam: 9}
"""


def test_a_configuration_of_hydra(converted: Any) -> None:
    built, notes = converted("fairseq", HYDRA)
    model, train = built["model"], built["train"]
    assert (model.heads, model.encoder_layers, model.d_model) == (16, 3, 256)
    assert (train.tokens_per_update, train.max_updates, train.max_minutes) == (32768, 50000, None)
    assert (train.schedule.lr, train.schedule.warmup_updates) == (0.0005, 2000)
    assert (train.loss.smoothing, train.optimizer.betas) == (0.1, (0.9, 0.98))
    assert (train.precision, train.seed, built["search"].strategy.beam) == ("fp16", 3, 4)
    assert not [line for line in notes if "unknown" in line]


@pytest.mark.parametrize(
    ("toolkit", "line", "defaults"),
    [
        ("fairseq", "fairseq-train d --lr-scheduler inverse_sqrt --lr 5e-4",
         "fairseq's defaults: --adam-betas (0.9, 0.999), --adam-eps 1e-08, --criterion "
         "cross_entropy, --best-checkpoint-metric loss"),
        ("fairseq", "fairseq-train d --optimizer sgd --criterion label_smoothed_cross_entropy "
         "--best-checkpoint-metric ppl", "fairseq's defaults: --lr-scheduler fixed, --lr 0.25, "
         "--warmup-updates 0, --label-smoothing 0"),
        ("fairseq", "fairseq-train d --optimizer sgd --lr 1 --warmup-updates 9 --criterion "
         "cross_entropy --lr-scheduler reduce_lr_on_plateau --best-checkpoint-metric ppl "
         "--eval-bleu", "fairseq's defaults: --lr-shrink 0.1, --beam 5, --lenpen 1, --max-len-a 0, "
         "--max-len-b 200, --min-len 1"),
        ("marian", "marian-decoder -m m.npz -n 0.6", "Marian's defaults: --beam-size 12, "
         "--max-length-factor 3"),
        ("marian", "marian --task transformer-base --valid-metrics bleu", "Marian's defaults: "
         "--early-stopping 10, --valid-freq 10000, --save-freq 10000, --disp-freq 1000, "
         "--max-length-factor 3"),
        ("sockeye", "sockeye-translate -m m", "Sockeye's defaults: --length-penalty-alpha 1, "
         "--beam-size 5"),
        ("opennmt", "onmt_train -batch_size 9", "OpenNMT's defaults: --optim sgd, "
         "--learning-rate 1"),
    ],
)  # fmt: skip
def test_defaults_of_the_toolkit_are_listed(
    converted: Any, toolkit: str, line: str, defaults: str
) -> None:
    assert f"not given, so {defaults}" in converted(toolkit, line)[1]


def test_norms_stand_before_the_sublayers_of_sockeye_and_opennmt(converted: Any) -> None:
    for toolkit, line, residual in (
        ("sockeye", "sockeye-train -d p", "pre_norm"),
        ("sockeye", "sockeye-train --transformer-preprocess '' --transformer-postprocess drn",
         "post_norm"),
        ("sockeye", "sockeye-train --transformer-preprocess n:n --transformer-postprocess dr:dr",
         "pre_norm"),
        ("opennmt", "onmt_train -optim adam", "pre_norm"),
    ):  # fmt: skip
        assert converted(toolkit, line)[0]["model"].residual == residual


def test_optimizers_and_pairs_of_sockeye(converted: Any) -> None:
    line = "sockeye-train -d p --transformer-dropout-attention 0.2:0.2 --optimizer"
    built, _ = converted("sockeye", f"{line} sgd --momentum 0.9 --optimizer-betas 0.9:0.98")
    assert (built["train"].optimizer.name, built["train"].optimizer.momentum) == ("sgd", 0.9)
    assert built["model"].attention_dropout == 0.2
    built, notes = converted("sockeye", f"{line} bertadam")
    assert built["train"].optimizer.name == "adam"
    assert "--optimizer bertadam: no counterpart; adam is taken" in notes


def test_the_output_bias_and_the_positions_of_marian(converted: Any) -> None:
    line = "marian --task transformer-base"
    built, _ = converted(
        "marian", f"{line} --output-omit-bias --transformer-train-position-embeddings"
    )
    assert (built["model"].output_bias, built["model"].positions.name) == (False, "learned")
    built, _ = converted("marian", f"{line} --devices 0")
    assert (built["model"].output_bias, built["model"].positions.name) == (True, "sinusoidal")


def test_the_small_convs2s_of_fairseq_is_ours_with_its_dropout(converted: Any) -> None:
    built, _ = converted("fairseq", "fairseq-train d --arch fconv_iwslt_de_en --lr 1")
    assert (built["model"].arch, built["model"].dropout) == ("conv_s2s_small", 0.1)


def test_a_misspelt_architecture_is_answered_with_the_nearest(converted: Any) -> None:
    _, notes = converted("fairseq", "fairseq-train d --arch transfomer --lr 1")
    assert any("no counterpart; did you mean transformer?" in note for note in notes)


def test_sampling_and_plateaus_of_fairseq(converted: Any) -> None:
    built, _ = converted("fairseq", "fairseq-generate d --sampling --beam 3 --sampling-topk 9")
    strategy = built["search"].strategy
    assert (strategy.name, strategy.samples, strategy.top_k) == ("sample", 3, 9)
    line = "fairseq-train --lr 1 --lr-scheduler reduce_lr_on_plateau --lr-patience 3 --seed 7 data"
    built, notes = converted("fairseq", line)
    assert (built["train"].schedule.plateau, built["train"].seed) == (4, 7)
    assert "--seed 7 data: train.seed has one value; the first one is taken" in notes
    built, _ = converted("fairseq", "fairseq-train d --arch fconv_wmt_en_de --lr 1")
    assert built["preprocess"].separate_vocabularies is True


def test_a_program_without_options_is_a_command(nmt: Any) -> None:
    assert nmt("recipe", "--from", "fairseq", "fairseq-train").status == 0
    done = nmt("recipe", "--from", "marian", "marian")
    assert done.err.startswith("nmt: error: no --type and no --task: Marian's default, amun, is")


@pytest.mark.parametrize("toolkit", TOOLKITS)
def test_the_tables_name_keys_that_the_conversion_sets(toolkit: str) -> None:
    program = {"fairseq": "fairseq-train d", "marian": "marian --type transformer",
               "sockeye": "sockeye-train", "opennmt": "onmt_train"}[toolkit]  # fmt: skip
    for name, key in TOOLKITS[toolkit].KEYS.items():
        if key.startswith(("model.", "train.")):
            options = Options.of_script(f"{program} {name} 7", toolkit)
            draft = recipe_of(toolkit, options, {})
            section, _, field = key.partition(".")
            assert draft.recipe[section][field] == 7, name


@pytest.mark.parametrize(
    ("toolkit", "line", "note"),
    [
        ("fairseq", "fairseq-train d --lr 1", "tokens_per_update: assumed 25000, the default, "
         "without --max-tokens and --batch-size"),
        ("fairseq", "fairseq-train d --lr 1", "tied_embeddings none: fairseq's default, without "
         "--share-all-embeddings and --share-decoder-input-output-embed"),
        ("fairseq", "fairseq-preprocess --trainpref a", "vocab_size: fairseq takes every subword "
         "of the text, nmt its default of 32000"),
        ("marian", "marian --type transformer", "tied_embeddings none: Marian's default, without "
         "--tied-embeddings-all"),
        ("marian", "marian --type transformer -v a.yml b.yml", "--vocabs a.yml b.yml: nmt learns "
         "subwords itself, 32000 by default; give the text without BPE"),
        ("marian", "marian --type transformer -v a.spm a.spm --dim-vocabs 9 9", "--vocabs a.spm "
         "a.spm: nmt learns subwords itself"),
        ("opennmt", "onmt_train -seed 1", "tied_embeddings none: OpenNMT's default, without "
         "share_embeddings and share_decoder_embeddings"),
        ("opennmt", "onmt_train -dropout 0.1 0.2", "--dropout 0.1 0.2: model.dropout has one "
         "value; the first one is taken"),
        ("fairseq", "fairseq-train d --dropuot 0.1", "--dropuot 0.1: unknown, not carried over; "
         "did you mean --dropout?"),
        ("fairseq", "fairseq-train d --qqq 1", "--qqq 1: unknown, not carried over"),
        ("fairseq", "fairseq-train d --arch lstm", "--arch lstm: no counterpart; transformer_base "
         "is taken"),
        ("fairseq", "fairseq-train d --batch-size 80 --update-freq 2", "tokens_per_update 4000: 80 "
         "sentences of 25 x 2 batches x 1 GPU, as assumed without --gpus N; nmt counts target "
         "tokens without padding"),
        ("fairseq", "fairseq-train d --patience -1 --keep-interval-updates -1", "--patience -1: no "
         "limit there; the default of train.patience is taken"),
        ("fairseq", "fairseq-train d --save-interval-updates 0", "--save-interval-updates 0: no "
         "limit there; the default of train.save_every is taken"),
        ("opennmt", "onmt_train -config train.yaml", "--config train.yaml: convert the file "
         "itself: nmt recipe --from opennmt FILE"),
        ("marian", "marian --type transformer -c config.yml", "-c config.yml: convert the file "
         "itself: nmt recipe --from marian FILE"),
        ("sockeye", "torchrun sockeye-train --keep-last-params -1", "--keep-last-params -1: no "
         "limit there; the default of train.keep_last is taken"),
        ("fairseq", "fairseq-train d --lr-scheduler tri_stage", "warmup_updates: 4000 is assumed, "
         "as inverse_sqrt needs a warm-up"),
        ("fairseq", "fairseq-train d --lr-scheduler inverse_sqrt --warmup-updates 0",
         "warmup_updates: 4000 is assumed, as inverse_sqrt needs a warm-up"),
        ("fairseq", "fairseq-train d --restore-file x.pt", "--restore-file x.pt: give the same "
         "--save-dir: the run there is resumed"),
        ("fairseq", "fairseq-generate d --num-workers 4", "--num-workers 4: use --workers N"),
        ("marian", "marian-decoder --mini-batch 30 --maxi-batch 10", "--mini-batch 30: use "
         "--batch-tokens N, which counts tokens of sources, not sentences"),
        ("fairseq", "fairseq-generate d --path m.pt", "--path m.pt: use --model RUN, once for each "
         "model"),
        ("marian", "marian-decoder -m model.npz --word-penalty 0.2", "--word-penalty 0.2: no "
         "counterpart"),
        ("fairseq", "fairseq-generate d --temperature 0.7", "--temperature 0.7: no "
         "counterpart"),
        ("opennmt", "onmt_translate -length_penalty x", "--length-penalty x: no counterpart"),
        ("marian", "marian-decoder -m a.npz", "-m a.npz: use --model RUN, once for each model"),
        ("marian", "marian-decoder -w 5000", "-w 5000: use --batch-tokens N, which bounds the "
         "memory"),
        ("marian", "marian-decoder -i a --n-best", "-i a: name a file of text"),
        ("marian", "marian-decoder --n-best", "--n-best: use --n-best K"),
        ("marian", "marian-scorer -m a.npz", "-m a.npz: use --model RUN"),
        ("sockeye", "sockeye-translate -m a -o b", "-o b: use --output FILE"),
        ("opennmt", "onmt_translate -model a", "--model a: use --model RUN, once for each model"),
        ("opennmt", "onmt_translate -n_best 3", "--n-best 3: use --n-best K"),
        ("fairseq", "fairseq-generate d", "d: not carried over; nmt translate reads a run and a "
         "file of text"),
        ("fairseq", "fairseq-train d", "d: not carried over; give the dataset of nmt preprocess as "
         "--data DIR"),
        ("opennmt", "onmt_translate -alpha 0.9", "--alpha 0.9: the length penalty wu has it"),
    ],
)  # fmt: skip
def test_what_is_not_carried_over_is_told(
    converted: Any, toolkit: str, line: str, note: str
) -> None:
    _, notes = converted(toolkit, line)
    assert note in notes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fairseq", "fairseq-train d --max-tokens many"), "--max-tokens: expected a number, not "
         "'many'"),
        (("fairseq", "fairseq-train d --max-tokens inf"), "--max-tokens: expected a number"),
        (("fairseq", "fairseq-train d --max-tokens nan"), "--max-tokens: expected a number"),
        (("fairseq", f"fairseq-train d --max-tokens {'1' * 999}"), "--max-tokens: expected"),
        (("fairseq", "fairseq-train d --lr []"), "--lr: expected a number, not ''"),
        (("marian", "marian --type transformer --after te"), "--after: expected a number"),
        (("sockeye", "sockeye-train --optimizer-betas 0.9:x"), "--optimizer-betas: expected"),
        (("fairseq", "fairseq-train 'd"), "the command line cannot be read: No closing quotation; "
         "mend its quotes"),
        (("fairseq", "fairseq-train d --adam-betas=(0.9, 0.98) --lr 1"), "the command line cannot "
         "be read: ( behind --adam-betas=; give the commands alone, with their parentheses"),
        (("fairseq", "fairseq-train d --adam-betas (0.9, 0.98)"), "the command line cannot be "
         "read: ( behind --adam-betas; give the commands alone, with their parentheses in quotes"),
        (("sockeye", "sockeye-average a -o b"), "no program of sockeye to convert; give a command "
         "line of one of sockeye-train, sockeye-prepare-data, "),
        (("fairseq", "fairseq-hydra-train --config-dir a optimization.max_update=1"),
         "optimization.max_update=1: Hydra's settings are not converted from a command line; give "
         "the YAML of the whole configuration, .hydra/config.yaml of a training"),
        (("fairseq", "fairseq-hydra-train --config-name a"), "--config-name: Hydra's settings"),
        (("fairseq", "fairseq-train d --eval-bleu-args '[1'"), "--eval-bleu-args: expected JSON"),
        (("marian", "missing.yml"), "missing.yml: no such file"),
        (("marian", "marian --type s2s"), "--type s2s: nmt's recurrent models differ"),
        (("marian", "marian --foo"), "no --type and no --task: Marian's default, amun, is rec"),
        (("marian", "marian -c a.yml"), "--config a.yml: convert the file itself"),
        (("marian", "marian --task x"), "--task: 'x' is not one of transformer-base"),
        (("marian", "marian --type transformer --lr-warmup soon"), "--lr-warmup: expected a number "
         "of updates"),
        (("marian", "marian --type transformer -n much"), "--normalize: expected a number"),
        (("marian", "marian --type transformer --guided-alignment c --dec-depth x"),
         "--dec-depth: expected a number"),
        (("marian", "marian --type transformer --guided-alignment c "
          "--transformer-guided-alignment-layer x"),
         "--transformer-guided-alignment-layer: expected a number"),
        (("opennmt", "onmt_train --accum_count [4]"), "--accum-count: expected a number"),
        (("sockeye", "sockeye-train --num-layers six:6"), "--num-layers: expected a number"),
        (("moses", "moses -f moses.ini"), "--from: unknown toolkit 'moses'"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(nmt: Any, arguments: tuple[str, str], message: str) -> None:
    done = nmt("recipe", "--from", *arguments)
    assert (done.status, done.out, done.err.count("\n")) == (1, "", 1)
    assert done.err.startswith(f"nmt: error: {message}")


@pytest.mark.parametrize(
    "line",
    [
        "uv run fairseq-train d --arch a --patience 3",
        "$ fairseq-train <data> --arch a --patience 3 > log",
        "> timeout 9 fairseq-train d --arch a --patience 3",
        "{ sudo fairseq-train d --arch a --patience 3; }",
        "srun --job-name marian fairseq-train d --arch a --patience 3",
        "E=.exe\nif [ ! -e fairseq-train$E ]; then x; fi\nfairseq-train$E d --arch a --patience 3",
    ],
)
def test_what_stands_around_a_command_does_not_hide_its_options(line: str) -> None:
    options = of_command(line, "fairseq")
    assert (options.values["--arch"], options.values["--patience"]) == (["a"], ["3"])


def test_a_translation_sets_the_search_alone(converted: Any, tmp_path: Path) -> None:
    converted("fairseq", "fairseq-generate d --num-workers 4 --beam 3 --max-tokens 1000")
    assert [*load(tmp_path / "nmt.yaml", None, {}, {}).sections] == ["search"]


@pytest.mark.parametrize(
    ("toolkit", "line", "strategy"),
    [
        ("fairseq", "fairseq-generate d --lenpen 2 --unnormalized", ("power", 0.0)),
        ("fairseq", "fairseq-generate d --sampling --temperature 0.7", 0.7),
        ("opennmt", "onmt_translate -beam_size 4 -length_penalty wu -alpha 0.9", ("gnmt", 0.9)),
        ("opennmt", "onmt_translate -length_penalty avg", ("power", 1.0)),
        ("opennmt", "onmt_translate -length_penalty none", ("power", 0.0)),
    ],
)
def test_the_score_of_a_search_is_carried_over(
    converted: Any, toolkit: str, line: str, strategy: object
) -> None:
    built, notes = converted(toolkit, line)
    made = built["search"].strategy
    penalty = getattr(made, "length_penalty", None)
    assert ((penalty.name, penalty.alpha) if penalty else made.temperature) == strategy
    assert not [line for line in notes if "unknown" in line]


@pytest.mark.parametrize(
    ("options", "tied"),
    [
        ("--tied-embeddings-src", "none"),
        ("--tied-embeddings", "decoder"),
        ("--tied-embeddings-src --tied-embeddings", "all"),
        ("--tied-embeddings-all", "all"),
    ],
)
def test_tied_embeddings_of_marian(converted: Any, options: str, tied: str) -> None:
    line = f"marian --type transformer --mini-batch-words 8000 {options}"
    built, notes = converted("marian", line)
    assert built["model"].tied_embeddings == tied
    assert ("--tied-embeddings-src alone: no counterpart; none are tied" in notes) is (
        options == "--tied-embeddings-src"
    )


def test_a_note_is_one_line(nmt: Any) -> None:
    done = nmt("recipe", "--from", "fairseq", "fairseq-train --arch lstm --qqq 'a\n\x1b[2Jb'")
    assert (done.status, done.err.count("--qqq")) == (0, 1)
    assert "--qqq a\\n\\x1b[2Jb: unknown, not carried over\n" in done.err


@pytest.mark.parametrize("toolkit", TOOLKITS)
def test_no_option_of_the_tables_is_unknown(toolkit: str) -> None:
    rules = TOOLKITS[toolkit]
    known = {*rules.KEYS, *rules.WITHOUT}
    for command in ("preprocess", "train"):
        for habit in HABITS[command]:
            known |= {name.replace("_", "-") for name in getattr(habit, toolkit).split()}
    needed = {"--type": ["transformer"]} if toolkit == "marian" else {}
    for name in sorted(known - {"--type", "--task", "--eval-bleu-args"}):
        draft = recipe_of(toolkit, [Options("train", {**needed, name: ["1"]})], {})
        assert not [line for line in draft.notes if ": unknown" in line]


@pytest.mark.parametrize(
    ("options", "updates", "note"),
    [
        ("--total-num-update 30000 --max-epoch 10", 30000, "--total-num-update 30000: the line "
         "ends at update 30000, and so does training (max_updates)"),
        ("--total-num-update 30000 --max-update 20000", 20000, "--total-num-update 30000: the "
         "line ends at update 30000, in nmt at train.max_updates 20000"),
        ("--total-num-update 30000 --max-update 30000", 30000, None),
        ("--max-update 30000 --power 1.0 --end-learning-rate 0.0", 30000, None),
        ("--max-update 30000 --power 2", 30000, "--power 2: a line has power 1 and ends at 0"),
        ("--max-update 30000 --end-learning-rate 1e-7", 30000, "--end-learning-rate 1e-7: a line "
         "has power 1 and ends at 0"),
    ],
)  # fmt: skip
def test_the_line_of_fairseq_ends_where_its_options_say(
    converted: Any, options: str, updates: int, note: str | None
) -> None:
    line = f"fairseq-train d --lr 3e-5 --lr-scheduler polynomial_decay {options}"
    built, notes = converted("fairseq", line)
    train = built["train"]
    assert (train.max_updates, train.schedule.name) == (updates, "linear")
    words = ("--total-num", "--power", "--end-learning", "end of training")
    assert [line for line in notes if line.startswith(words)] == ([note] if note else [])


@pytest.mark.parametrize(
    ("options", "peak", "final_share", "updates", "note"),
    [
        ("--lr 1e-7 --max-lr 1e-3 --lr-shrink 1 --t-mult 1 --max-update 30000", 1e-3, 1e-4, 30000,
         None),
        ("--lr 1e-3 --min-lr 1e-7 --max-update 30000", 1e-3, 1e-4, 30000, None),
        ("--lr 1e-3 --min-lr 1e-7 --max-epoch 9", 1e-3, 1e-4, 30000, "--lr-period-updates 20000: "
         "the first half cosine ends at update 30000, and so does training (max_updates)"),
        ("--lr 1e-3 --max-update 50000", 1e-3, 0.0, 50000, "--lr-period-updates 20000: the first "
         "half cosine ends at update 30000, in nmt at train.max_updates 50000"),
    ],
)  # fmt: skip
def test_the_cosine_of_fairseq(
    converted: Any, options: str, peak: float, final_share: float, updates: int, note: str | None
) -> None:
    line = "fairseq-train d --lr-scheduler cosine --warmup-updates 10000 --lr-period-updates 20000"
    built, notes = converted("fairseq", f"{line} {options}")
    train, schedule = built["train"], built["train"].schedule
    assert (schedule.name, schedule.lr, schedule.final_share) == ("cosine", peak, final_share)
    assert train.max_updates == updates
    words = ("--lr-", "--max-lr", "--min-lr", "--t-mult", "end of training")
    assert [line for line in notes if line.startswith(words)] == ([note] if note else [])


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ("--encoder-normalize-before", "--encoder-normalize-before alone: model.residual is the "
         "same for both stacks; pre_norm is taken"),
        ("--encoder-normalize-before --decoder-normalize-before", None),
        ("--arch transformer_wmt_en_de_big_t2t --encoder-normalize-before", None),
        ("--decoder-learned-pos", "--decoder-learned-pos alone: model.positions is the same for "
         "both stacks; learned is taken"),
        ("--encoder-learned-pos --decoder-learned-pos", None),
        ("--encoder-layerdrop 0.2", "--encoder-layerdrop 0.2 alone: train.layer_dropout is the "
         "same for both stacks"),
        ("--encoder-layerdrop 0.2 --decoder-layerdrop 0", "--encoder-layerdrop 0.2 alone: "
         "train.layer_dropout is the same for both stacks"),
        ("--encoder-layerdrop 0.2 --decoder-layerdrop 0.1", "--decoder-layerdrop 0.1: "
         "train.layer_dropout is the same for both stacks; 0.2 is taken"),
        ("--encoder-layerdrop 0.2 --decoder-layerdrop 0.2", None),
        ("--decoder-layerdrop 0.1", "--decoder-layerdrop 0.1 alone: train.layer_dropout is the "
         "same for both stacks"),
        ("--encoder-attention-heads 4", "--encoder-attention-heads 4 alone: model.heads is the "
         "same for both stacks"),
        ("--encoder-ffn-embed-dim 512", None),  # the decoder follows
        ("--decoder-ffn-embed-dim 512", "--decoder-ffn-embed-dim 512 alone: model.d_ff is the "
         "same for both stacks"),
        ("--arch transformer_iwslt_de_en --encoder-ffn-embed-dim 512", "--encoder-ffn-embed-dim "
         "512 alone: model.d_ff is the same for both stacks"),
    ],
)  # fmt: skip
def test_options_of_one_stack_of_fairseq_are_told(
    converted: Any, options: str, note: str | None
) -> None:
    built, notes = converted("fairseq", f"fairseq-train d {options}")
    assert [line for line in notes if "both stacks" in line] == ([note] if note else [])
    if "normalize" in options:
        assert built["model"].residual == "pre_norm"
    if "learned" in options:
        assert built["model"].positions.name == "learned"
    if "layerdrop" in options:
        assert built["train"].layer_dropout == (0.2 if "encoder" in options else 0.1)


@pytest.mark.parametrize(
    ("toolkit", "line", "is_fixed"),
    [
        ("opennmt", "onmt_train -seed -1", False),
        ("opennmt", "onmt_train -seed 0", False),
        ("opennmt", "onmt_train -seed 3", True),
        ("marian", "marian --type transformer --seed 0", False),
        ("marian", "marian --type transformer --seed 3", True),
        ("fairseq", "fairseq-train d --seed -1", False),
        ("fairseq", "fairseq-train d --seed 0", True),
        ("sockeye", "sockeye-train -d p --seed 0", True),
    ],
)
def test_a_seed_that_is_drawn_is_left_out(
    converted: Any, toolkit: str, line: str, is_fixed: bool
) -> None:
    built, notes = converted(toolkit, line)
    seed = line.split()[-1]
    assert built["train"].seed == (int(seed) if is_fixed else 1)
    said = f"--seed {seed}: no fixed seed there; the default of train.seed is taken"
    assert (said in notes) is not is_fixed


@pytest.mark.parametrize(
    ("toolkit", "line", "beam", "alpha"),
    [
        ("marian", "marian-decoder -m m.npz -v v.yml v.yml -b 8 -n1.0", 8, 1.0),
        ("marian", "marian-decoder -m m.npz -b8 -n.6 -d0 1", 8, 0.6),
        ("sockeye", "sockeye-translate -m m -b8", 8, 1.0),
    ],
)
def test_a_short_option_may_be_joined_to_its_number(
    converted: Any, toolkit: str, line: str, beam: int, alpha: float
) -> None:
    built, notes = converted(toolkit, line)
    strategy = built["search"].strategy
    assert (strategy.beam, strategy.length_penalty.alpha) == (beam, alpha)
    assert not [line for line in notes if "unknown" in line or "--normalize" in line]


def test_words_of_a_shell_may_be_joined_to_a_short_option(converted: Any) -> None:
    _, notes = converted("marian", "marian-decoder -m m.npz -b$BEAM")
    assert "-b $BEAM: left out; the script does not tell its value" in notes


@pytest.mark.parametrize(
    ("toolkit", "line"),
    [
        ("fairseq", "fairseq-preprocess --nwordssrc 8000 --nwordstgt 10000"),
        ("marian", "marian --type transformer --dim-vocabs 8000 10000"),
        ("sockeye", "sockeye-prepare-data -s a.en -t a.de --num-words 8000:10000"),
        ("opennmt", "onmt_train -src_vocab_size 8000 -tgt_vocab_size 10000"),
    ],
)
def test_both_vocabularies_have_the_larger_size(converted: Any, toolkit: str, line: str) -> None:
    built, notes = converted(toolkit, line)
    assert built["preprocess"].vocab_size == 10000
    said = "vocab_size 10000: both vocabularies have one size, the larger one"
    assert said in notes
    _, notes = converted(toolkit, line.replace("8000", "10000"))
    assert said not in notes


def test_fairseq_validates_where_it_saves(converted: Any) -> None:
    line = "fairseq-train d --patience 3 --save-interval-updates 5000"
    built, notes = converted("fairseq", line)
    said = (
        "valid_every 5000: fairseq validates with each --save-interval-updates, and after each "
        "epoch"
    )
    assert (built["train"].valid_every, built["train"].save_every) == (5000, 5000)
    assert said in notes
    assert converted("fairseq", f"{line} --validate-interval-updates 0")[0][
        "train"
    ].valid_every == (5000)
    built, notes = converted("fairseq", f"{line} --validate-interval-updates 700")
    assert built["train"].valid_every == 700
    assert said not in notes


def test_a_value_of_hydra_may_be_that_of_another_section(converted: Any) -> None:
    text = HYDRA.replace(
        "_name: inverse_sqrt, warmup_updates: 2000",
        '_name: polynomial_decay, total_num_update: "${optimization.max_update}", '
        'lr: "${optimization.lr}", warmup_updates: "${optimization.none}"',
    )
    built, notes = converted("fairseq", text)
    schedule = built["train"].schedule
    assert (schedule.name, schedule.lr, schedule.warmup_updates) == ("linear", 0.0005, 0)
    assert built["train"].max_updates == 50000
    assert not [line for line in notes if "$" in line or "total" in line]


@pytest.mark.parametrize(
    ("toolkit", "line", "expected"),
    [
        ("opennmt", "onmt_train -data d", ["encoder_type rnn", "decoder_type rnn"]),
        ("opennmt", "onmt_train -encoder_type transformer -decoder_type transformer", []),
        ("opennmt", "onmt_train -encoder_type brnn -decoder_type transformer", ["encoder_type "
         "brnn"]),
        ("sockeye", "sockeye-train -d d --encoder rnn --decoder rnn", ["--encoder rnn", "--decoder "
         "rnn"]),
        ("sockeye", "sockeye-train -d d --encoder transformer --decoder ssru_transformer", []),
    ],
)  # fmt: skip
def test_recurrent_models_are_told(
    converted: Any, toolkit: str, line: str, expected: list[str]
) -> None:
    _, notes = converted(toolkit, line)
    told = [line for line in notes if line.endswith(": no counterpart; transformer is taken")]
    assert [line.partition(":")[0] for line in told] == expected


def test_old_data_of_opennmt_are_told(converted: Any) -> None:
    _, notes = converted("opennmt", "onmt_train -data data/demo")
    assert "--data data/demo: give the dataset of nmt preprocess as train.data" in notes


@pytest.mark.parametrize(
    ("options", "beam", "penalty"),
    [
        ("--length-penalty-alpha 0.6 --length-penalty-beta 5.0", 5, "gnmt"),
        ("--length-penalty-alpha 0.6 --length-penalty-beta 0.0", 5, "power"),
        ("--length-penalty-alpha 0.6 --greedy", 1, "power"),
    ],
)
def test_the_search_of_sockeye(converted: Any, options: str, beam: int, penalty: str) -> None:
    built, notes = converted("sockeye", f"sockeye-translate -m m {options}")
    strategy = built["search"].strategy
    assert (strategy.beam, strategy.length_penalty.name) == (beam, penalty)
    assert strategy.length_penalty.alpha == 0.6
    assert not [line for line in notes if "beta" in line or "greedy" in line]


def test_another_length_penalty_of_sockeye_is_told(converted: Any) -> None:
    _, notes = converted("sockeye", "sockeye-translate -m m --length-penalty-beta 2")
    assert "--length-penalty-beta 2: no counterpart; 0 is taken" in notes


def test_lengths_positions_and_smoothing_of_sockeye(converted: Any) -> None:
    line = "sockeye-train -d p --label-smoothing-impl"
    options = "--max-seq-len 95:80 --transformer-positional-embedding-type learned"
    built, notes = converted("sockeye", f"{line} torch {options}")
    assert built["preprocess"].max_tokens_per_sentence == 95
    assert "max_tokens_per_sentence 95: both sides have one limit" in notes
    assert built["model"].positions.name == "learned"
    assert built["train"].loss.definition == "uniform"
    built, notes = converted("sockeye", f"{line} mxnet --max-seq-len 95:95")
    assert built["preprocess"].max_tokens_per_sentence == 95
    assert built["train"].loss.definition == "tensor2tensor"
    assert not [line for line in notes if "one limit" in line]
    _, notes = converted("sockeye", "sockeye-train --transformer-positional-embedding-type a")
    assert "--transformer-positional-embedding-type a: fixed is taken" in notes


def test_a_schedule_of_sockeye_without_a_counterpart_is_told(converted: Any) -> None:
    line = "sockeye-train -d p --learning-rate-scheduler-type"
    for name, schedule, is_told in (
        ("fixed-rate-inv-t", "inverse_sqrt", True),
        ("inv-sqrt-decay", "inverse_sqrt", False),
        ("linear-decay", "linear", False),
    ):
        built, notes = converted("sockeye", f"{line} {name}")
        assert built["train"].schedule.name == schedule
        said = f"--learning-rate-scheduler-type {name}: no counterpart; inverse_sqrt is taken"
        assert (said in notes) is is_told


def test_marian_computes_activations_again(converted: Any) -> None:
    line = "marian --type transformer"
    built, _ = converted("marian", f"{line} --gradient-checkpointing")
    assert built["train"].checkpoint_activations == "layers"
    assert converted("marian", line)[0]["train"].checkpoint_activations == "none"


@pytest.mark.parametrize(
    ("toolkit", "line"),
    [
        ("fairseq", "fairseq-train d --lr-scheduler tri_stage --warmup-steps 9 --hold-steps 9 "
         "--decay-steps 9 --phase-ratio '[0.1,0.4,0.5]' --init-lr-scale 1 --final-lr-scale 1"),
        ("fairseq", "fairseq-train d --lr-scheduler triangular --max-lr 1 --lr-period-updates 9 "
         "--shrink-min --lr-shrink 0.1"),
        ("fairseq", "fairseq-train d --lr-scheduler reduce_lr_on_plateau --lr-threshold 1e-4"),
        ("fairseq", "fairseq-train d --lr-scheduler manual --epoch2lr '{}' --update2lr '{}'"),
        ("fairseq", "fairseq-train d --lang-pairs a-b --store-ema --ema-decay 0.9 --cpu"),
        ("marian", "marian --type transformer --mini-batch-fit-step 10 --all-caps-every 0 "
         "--transformer-guided-alignment-layer last --bert-sep-symbol a --ulr-dim-emb 0"),
        ("opennmt", "onmt_train -start_decay_steps 9 -decay_steps 9 -learning_rate_decay 0.5"),
    ],
)  # fmt: skip
def test_real_options_have_a_reason(converted: Any, toolkit: str, line: str) -> None:
    _, notes = converted(toolkit, line)
    assert not [line for line in notes if "unknown" in line]
