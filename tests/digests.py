"""Prints what the program computes, as digests: the same code prints the same lines, bit by bit.

python tests/digests.py [--only PATTERN] [--output FILE] [--compare FILE]

Run it before and after a change that should change nothing. Everything is made by the command line
and by nmt.Translator, from a made-up corpus, in a temporary directory, on one thread of a CPU:

    data/NAME/FILE      each file of a dataset
    runs/NAME/FILE      after 12 updates: weights, state of the optimizer, log without times
    exports/NAME/FILE   each file of an export
    CASE                what a command, or the Python interface, prints

A line is a name and a SHA-256. A command that fails gives the line "NAME FAILED: message" and, at
the end, the exit status 1. One that needs a missing package gives "NAME SKIPPED: message".
Names of architectures, losses and so on are those that the messages of the program list.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import io
import json
import os
import random
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from unittest import mock

os.environ |= {"OMP_NUM_THREADS": "1", "COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}
os.environ |= {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from safetensors.torch import load_file

import nmt
from nmt.__main__ import main as program

RECIPE = """
preprocess: {source_lang: en, target_lang: de, train: [train], valid: valid, test: test,
             vocab_size: 90, byte_fallback: false, workers: 1}
train: {data: data/plain, tokens_per_update: 150, max_tokens: 100, max_updates: 12,
        precision: fp32, device: cpu, schedule: {lr: 0.01, warmup_updates: 4}, log_every: 4,
        valid_every: 6, save_every: 12, valid_metrics: [], best_metric: loss}
search: {constraints: [{name: min_length, length: 6}]}
"""
WORDS = {
    "en": "one two three four five six Seven eight nine ten Eleven twelve",
    "de": "eins zwei drei vier fünf sechs Sieben acht neun zehn Elf zwölf",
    "fr": "un deux trois quatre cinq six Sept huit neuf dix Onze douze",
}
DIRTY = """\
a\u200bb  c\ta “b” c…
one two 31\teins zwei 32
same\tsame
один два три\teins zwei drei
cafe\u0301 ﬁve\tCafe\u0301 fünf
This is a long sentence in English.\tThis is a long sentence in English!
"""

# Settings of preprocess, train and export, by the names of what they make.
DATA = {
    "plain": "",
    "links": "alignments=true",
    "weights": "sentence_weights=true",
    "separate": "separate_vocabularies=true",
    "unigram": "model_type=unigram; vocab_size=50",
    "bytes": "byte_fallback=true; vocab_size=340; normalization=nfkc_cf",
    "casing": "casing=inline",
    "right_to_left": "target_order=right_to_left; subword_model=data/plain",
    "context": "train=[documents]; documents={context: 2, max_tokens: 60}",
    "context_of_source": "train=[documents]; documents={context: 1, sides: source}",
    "whole": "train=[documents]; documents={whole: true, max_tokens: 60}",
    "document_ids": "documents={}; document_ids=true",
    "corpora": "train=[{path: train, name: a, max_pairs: 90}, {path: dirty.tsv, name: b, tag: t}]",
    "reverse": "source_lang=de; target_lang=en; subword_model=data/plain",
    **{
        f"directions_{side}": "source_lang=''; target_lang=''; "
        "train=[{path: train, source_lang: en, target_lang: de}, "
        "{path: train, source_lang: de, target_lang: en, max_pairs: 100}, "
        f"{{path: train, source_lang: en, target_lang: fr}}]; tags={side}"
        for side in ("source", "target")
    },
    "extended": "extend_vocabulary=data/plain; new_pieces=pieces",
}
SIZES = {  # by the beginning of the architecture's name
    "bytenet": "model.width=16; model.sets=2; model.dilations=[1, 2]",
    "conv_s2s": "model.encoder=[[1, 12, 3], [2, 16, 5]]; model.decoder=[[1, 12, 3], [1, 16, 2]]; "
    "model.embedding_width=12; model.output_width=8",
    "gnmt": "model.width=16; model.encoder_layers=2; model.decoder_layers=2",
    "rnnsearch": "model.embedding_width=12; model.hidden_width=16; model.attention_width=8; "
    "model.maxout_width=8",
    "transformer_lm": "model.decoder_layers=2; model.d_model=16; model.d_ff=24; model.heads=4",
    "": "model.encoder_layers=2; model.decoder_layers=2; model.d_model=16; model.d_ff=24; "
    "model.heads=4",
}
FEW = ("context", "whole", "right_to_left", "reverse")
LONGER = (
    "model.dropout=0; train.schedule.name=constant; train.max_updates={0}; train.valid_every={0}"
)
GOOD = f"train.data=data/links; train.guided_alignment=0.5; {LONGER.format(200)}"
RUNS = {
    "good": f"{GOOD}; train.save_every=50",
    "other": "train.init_from=runs/good; train.seed=2",
    **{name: f"train.data=data/{name}; {LONGER.format(60)}" for name in FEW},
    "marian": "model.sinusoids=concatenated",
    **{f"data_{name}": f"train.data=data/{name}" for name in DATA if name not in FEW},
    "data_separate": "train.data=data/separate; model.tied_embeddings=decoder",
    "stages": "train.data=data/corpora; "
    "train.stages=[{until: 6, mix: {a: 0.7, b: 0.3}}, {mix: {a: 1}}]",
    "temperature": "train.data=data/directions_source; train.direction_temperature=5",
    "guided_alignment": "train.data=data/links; train.guided_alignment=0.5",
    "guided_head": "train.data=data/links; train.guided_alignment=0.5; model.alignment_head=2; "
    "model.alignment_layer=1",
    "metrics": "train.valid_metrics=[bleu, chrf]; train.best_metric=chrf",
    "bucketed": "train.batching=bucketed",
    "ema": "train.ema_decay=0.9",
    "freeze": 'train.freeze=["encoder.*"]',
    "token_dropout": "train.token_dropout=0.2",
    "layer_dropout": "train.layer_dropout=0.3",
    "other_dropouts": "model.attention_dropout=0.2; model.activation_dropout=0.2",
    "subword_sampling": "train.subword_sampling=0.2",
    "subword_sampling_unigram": "train.data=data/unigram; train.subword_sampling=0.2",
    "quantization": "train.init_from=runs/good; train.quantization=int8",
    "bf16": "train.precision=bf16",
    "clip_norm": "train.clip_norm=0.1",
    "checkpoint_layers": "train.checkpoint_activations=layers",
    "checkpoint_attention": "train.checkpoint_activations=attention",
    "init_from": "train.init_from=runs/good; train.data=data/extended",
    "tied_decoder": "model.tied_embeddings=decoder; model.output_bias=true",
    "pre_norm": "model.residual=pre_norm; model.norm=rms_norm",
    "deep_norm": "model.residual=deep_norm; model.attention_bias=false",
    "multi_query": "model.key_value_heads=1; model.d_k=6; model.d_v=5",
    "no_feed_forward": "model.decoder_attention=ssru; model.decoder_feed_forward=false",
    "recurrent_muon": "model.arch=gnmt_small; train.optimizer=muon",
}
CHOICES = {  # settings of a run for each name that may stand at {}
    "arch": "model.arch={}",
    "positions": "model.positions={}",
    "feed_forward": "model.feed_forward={}",
    "encoder": "model.encoder_attention={}",
    "decoder": "model.decoder_attention={}",
    "adaptation": "model.adaptation={}; train.init_from=runs/good",
    "loss": "train.loss={}",
    "definition": "train.loss.definition={}",
    "reward": "train.loss={{name: minimum_risk, samples: 3, reward: {}}}; "
    "train.init_from=runs/good",
    "optimizer": "train.optimizer={}",
    "schedule": "train.schedule={{name: {}, lr: 0.01, warmup_updates: 4}}",
    "augmentation": "train.augmentation=[{{name: {}, share: 0.5}}]",
}
SPECIAL = {  # runs of choices that need more settings; none for those that are refused
    "loss_word_distillation": "train.loss={name: word_distillation, "
    "teachers: [runs/good, runs/other]}",
    "loss_expected_reward": "train.loss={name: expected_reward, samples: 3}; "
    "train.init_from=runs/good",
    "loss_minimum_risk": "train.loss={name: minimum_risk, samples: 3}; train.init_from=runs/good",
    **dict.fromkeys(("encoder_average", "encoder_ssru"), ""),
}
JSON = "--n-best 3 --json --alignments --workers 1 test.en"
CASES = {
    "translate/weights": f"translate -m runs/good -m runs/other --set search.weights=[1,3] {JSON}",
    "translate/ensemble": f"translate -m runs/good -m runs/other {JSON}",
    "translate/log_ensemble": "translate -m runs/good -m runs/other "
    f"--set search.ensemble=log_probability {JSON}",
    "translate/int8": f"translate -m runs/good --precision int8 {JSON}",
    "translate/calibrated": f"translate -m runs/calibrate {JSON}",
    "translate/bf16": f"translate -m runs/good --precision bf16 {JSON}",
    "translate/shortlist": f"translate -m runs/shortlist --shortlist {JSON}",
    "translate/exported": "translate -m exports/ctranslate2 --set search.constraints=[] test.en",
    "translate/two_workers": "translate -m runs/good --workers 2 --set search.window=8 test.en",
    "translate/mbr": f"translate -m runs/good --strategy sample --set search.strategy.samples=8 "
    f"--mbr chrf --set search.mbr_pruning=3 {JSON}",
    "translate/coverage": f"translate -m runs/good --set search.coverage_penalty=0.3 {JSON}",
    "translate/pruning": "translate -m runs/good --set search.strategy.pruning=3 "
    f"--set search.strategy.pruning_tokens=3 --set search.strategy.pruning_finished=1 {JSON}",
    "translate/top": "translate -m runs/good --strategy sample --temperature 0.7 --top-k 5 "
    "--top-p 0.9 --json --workers 1 test.en",
    "translate/long_lines": "translate -m runs/good --set search.max_source_length=6 "
    "--on-long-line split --json --workers 1 test.en",
    "translate/pieces": f"translate -m runs/good --alignment-unit pieces {JSON}",
    "translate/n_best": "translate -m runs/good --n-best 4 --workers 1 test.en",
    "translate/html": "translate -m runs/good --markup html --workers 1 test.html",
    "translate/xliff": "translate -m runs/good --markup xliff --workers 1 test.xliff",
    "translate/prefix": f"translate -m runs/good --prefix test.prefix {JSON}",
    "translate/avoid": f"translate -m runs/good --avoid test.phrases {JSON}",
    "translate/require": "translate -m runs/good --strategy lexical_beam --beam 6 "
    f"--require test.phrases {JSON}",
    "translate/requests": "translate -m runs/good --json-input --json --workers 1 requests.jsonl",
    "translate/context": "translate -m runs/context --workers 1 documents.en",
    "translate/whole": "translate -m runs/whole --workers 1 documents.en",
    "translate/right_to_left": "translate -m runs/right_to_left --json --n-best 3 --workers 1 "
    "test.en",
    "translate/to_french": "translate -m runs/data_directions_source -t fr --json --workers 1 "
    "test.en",
    "translate/to_english": "translate -m runs/data_directions_target -t en --json --workers 1 "
    "test.de",
    "score/by_model": "score --model runs/good --source test.en --json test.de",
    "score/by_right_to_left": "score --model runs/right_to_left --source test.en test.de",
    "score/by_document": "score -r documents.de --by-document documents.de2",
    "score/sentence_level": "score -r test.de -m bleu -m chrf --sentence-level test.de2",
    "score/paired": "score -r test.de --paired bs --samples 100 --json test.de2 test.de3",
    "score/alignments": "score --alignments train.align train.align2",
    "rescore/model": "rescore -m runs/other --source test.en list",
    "rescore/reverse": "rescore -m runs/reverse --reverse --source test.en list",
    "rescore/reference": "rescore --reference test.de --metric chrf --weights chrf=1 --best list",
    "tune": "tune -r test.de --restarts 3 list",
    "filter": "filter train --forward runs/good --reverse runs/reverse --keep 0.5 --device cpu",
    "align/learned": "align --source train.en --target train.de",
    "align/model": "align -m runs/good --source test.en --target test.de",
    "explain": "explain -m runs/good --compare runs/other --json --device cpu test.prefix",
    "explain/page": "explain -m runs/good --device cpu test.prefix",
    "inspect": "inspect --verify --json data/links",
    "recipe/fairseq": "recipe --from fairseq 'fairseq-train d --arch transformer --dropout 0.2'",
    "recipe/marian": "recipe --from marian 'marian --type transformer --enc-depth 3 -t a b'",
}


class FailedError(Exception):
    """A command ended with another status than 0; the message is its own."""


def run(line: str, but: str = "") -> str:
    """Return what a command prints, after making what it names: datasets, runs and exports.

    Args:
        line: the command line, without `nmt`.
        but: path of the dataset, run or export that the command makes itself.
    """
    for path in re.findall(r"\b(?:data|runs|exports)/\w+", line):
        if path != but:
            make(path)
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with (
        open(os.devnull) as nothing,
        mock.patch.object(sys, "argv", ["nmt", *shlex.split(line)]),
        mock.patch.object(sys, "stdin", nothing),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            program()
            status = 0
        except SystemExit as end:
            status = int(end.code or 0)
    printed, said = (stream.buffer.getvalue().decode() for stream in (out, err))  # type: ignore[attr-defined]
    if status:
        raise FailedError((said.strip().splitlines() or ["no message"])[-1])
    return str(printed)


@functools.cache
def names(line: str) -> list[str]:
    """Return the names that may stand at {}; the message for an unknown name lists them."""
    try:
        run(line.format("zzz"))
    except FailedError as error:
        if known := str(error).partition("; known: ")[2]:
            return known.split(", ")
        raise
    raise FailedError(f"no message lists the names of: {line}")


def settings(text: str, section: str = "") -> str:
    """Return `key=value; key=value` as options."""
    return " ".join(f"--set {shlex.quote(section + one)}" for one in text.split("; ") if one)


@functools.cache
def recipes() -> dict[str, list[str]]:
    """Return the commands that make each dataset, run and export, by its path."""
    datasets, runs = dict(DATA), dict(RUNS)
    made: dict[str, list[str]] = {}
    for step in names("preprocess --set preprocess.clean=[{}]"):
        datasets[f"clean_{step}"] = f"train=[train, dirty.tsv]; clean=[{step}]"
    for name, text in datasets.items():
        keys = settings(text, "preprocess.")
        made[f"data/{name}"] = [f"preprocess --output-dir data/{name} {keys}"]
    for kind, text in CHOICES.items():
        for name in names(f"train {settings(text.partition('; ')[0])}"):
            runs[f"{kind}_{name}"] = SPECIAL.get(f"{kind}_{name}", text.format(name))
    for name, text in runs.items():
        if not text:  # a choice that is refused
            continue
        arch = re.search(r"model\.arch=(\w+)", text)
        size = next(
            size for start, size in SIZES.items() if (arch[1] if arch else "").startswith(start)
        )
        made[f"runs/{name}"] = [
            f"train --save-dir runs/{name} {settings(f'train.data=data/plain; {size}; {text}')}"
        ]
    average = "average-checkpoints --run runs/good --last {} --output runs/{}"
    made["runs/averaged"] = [average.format(3, "averaged")]
    for command, options in {"shortlist": "--first 8 --best 3", "calibrate": ""}.items():
        line = f"{command} --data data/links -m runs/{command} {options}"
        made[f"runs/{command}"] = [average.format(1, command), line]
    for name in names("export --format {} --model runs --output none"):
        model = "runs/marian" if name == "marian" else "runs/good"
        made[f"exports/{name}"] = [f"export --format {name} -m {model} --output exports/{name}"]
    made["exports/int8"] = ["export --precision int8 -m runs/good --output exports/int8"]
    for name in ("huggingface", "marian"):
        line = f"import exports/{name} -s en -t de --output runs/of_{name}"
        made[f"runs/of_{name}"] = [line]
    return made


@functools.cache
def make(path: str) -> Path:
    """Run the commands that make a dataset, a run or an export; return its directory."""
    for line in recipes()[path]:
        run(line, but=path)
    return Path(path)


def cases() -> dict[str, Callable[[], str]]:
    """Return what is digested as the output of a command or function, by name."""
    lines = dict(CASES)
    for name in names("train --set search.strategy={}"):
        more = {"sample": "--set search.strategy.samples=3", "greedy": "--n-best 1"}.get(name, "")
        lines[f"translate/{name}"] = f"translate -m runs/good --strategy {name} {JSON} {more}"
    for key in ("stop", "length_penalty"):
        for name in names(f"train --set search.strategy.{key}={{}}"):
            setting = f"--set search.strategy.{key}={name}"
            lines[f"translate/{key}_{name}"] = f"translate -m runs/good {setting} {JSON}"
    for name in names("train --set search.constraints=[{}]"):
        setting = f"--set search.constraints=[{name}]"
        lines[f"translate/{name}"] = f"translate -m runs/good {setting} {JSON}"
    for name in names("score -r test.de -m {} test.de"):
        lines[f"score/{name}"] = f"score -r test.de -m {name} --json test.de2"
    for path in recipes():
        kind, name = path.split("/")
        if kind == "runs" and name.startswith(("arch", "positions", "encoder", "decoder")):
            lines[f"translate/{name}"] = (
                f"translate -m {path} --n-best 2 --json --workers 1 test.en"
            )
            lines[f"score/{name}"] = f"score --model {path} --source test.en test.de"
    listed = run("--help").partition("Commands:\n")[2]
    for name in re.findall(r"^  ([a-z][\w-]*)", listed, re.M):
        lines[f"help/{name}"] = f"{name} --help"
    lines["help"] = "--help"
    outputs = {name: functools.partial(run, line) for name, line in lines.items()}
    return {**outputs, "python/translator": python_interface}


def python_interface() -> str:
    """Return what nmt.Translator says of the test set."""
    one, two = (
        nmt.Translator(make("runs/good")),
        nmt.Translator(make("runs/good"), strategy="greedy"),
    )
    sources, targets = (Path(f"test.{side}").read_text().splitlines() for side in ("en", "de"))
    found = [
        [(each.text, each.hypothesis.log_probability) for each in of]
        for of in one.translations(sources, 3)
    ]
    return repr(
        (
            found,
            list(two.translate(sources)),
            one.score(sources, targets),
            one.align(sources, targets),
        )
    )


def files(directory: Path) -> dict[str, Path]:
    """Return the files of a dataset, run or export whose bytes depend on nothing else."""
    found = {str(path.relative_to(directory)): path for path in sorted(directory.rglob("*"))}
    if directory.parts[0] == "runs":
        *_, newest = (name for name in found if re.fullmatch(r"update_\d+", name))
        kept = (
            rf"{newest}/\w+\.safetensors|validation/.*|log.jsonl|\w+\.safetensors|calibration.json"
        )
        found = {name: path for name, path in found.items() if re.fullmatch(kept, name)}
    return {name: path for name, path in found.items() if path.is_file()}


def content(path: Path) -> bytes:
    """Return the tensors of a file, a log without times, or else the bytes."""
    if path.suffix == ".safetensors":  # whatever the tensors are called
        parts = (
            f"{one.dtype} {[*one.shape]}".encode()
            + one.reshape(-1).view(torch.uint8).numpy().tobytes()
            for one in load_file(path).values()
        )
        return b"".join(sorted(hashlib.sha256(part).digest() for part in parts))
    if path.suffix == ".jsonl":
        times = {"time", "seconds", "target_tokens_per_second", "memory_mb"}
        records = map(json.loads, path.read_text().splitlines())
        return repr([{key: one[key] for key in sorted({*one} - times)} for one in records]).encode()
    return path.read_bytes()


def lines(pattern: str) -> Iterator[str]:
    """Yield the lines of all cases whose names match a pattern."""
    for name, result in {**{path: None for path in recipes()}, **cases()}.items():
        if not fnmatch(name, pattern):
            continue
        try:
            parts = (
                {name: result().encode()}
                if result
                else {f"{name}/{at}": content(path) for at, path in files(make(name)).items()}
            )
        except Exception as error:
            missing = isinstance(error, ImportError) or "pip install" in str(error)
            yield f"{name} {'SKIPPED' if missing else 'FAILED'}: {error}"
        else:
            for part, data in parts.items():
                yield f"{part} {hashlib.sha256(data).hexdigest()}"


def write_corpus() -> None:
    """Write the texts that the cases read into the current directory."""
    draw = random.Random(1)

    def write(name: str, texts: list[str]) -> None:
        Path(name).write_text("".join(f"{text}\n" for text in texts))

    for name, size in {"train": 400, "valid": 30, "test": 20, "documents": 120}.items():
        rows = [draw.choices(range(12), k=draw.randint(2, 9)) for _ in range(size)]
        for language, words in WORDS.items():
            texts = [" ".join(words.split()[word] for word in row) for row in rows]
            if name == "documents":
                texts = ["" if at % 5 == 4 else text for at, text in enumerate(texts)]
            write(f"{name}.{language}", texts)
            write(f"{name}.{language}2", [text.replace("ie", "ei") for text in texts])
            write(f"{name}.{language}3", [text.replace("f", "F") for text in texts])
        for end, link in {"align": "{0}-{0}", "align2": "{0}-0"}.items():
            write(f"{name}.{end}", [" ".join(map(link.format, range(len(row)))) for row in rows])
        write(f"{name}.weights", [str(len(row) / 4) for row in rows])
        write(f"{name}.docid", [str(at // 6) for at in range(size)])
    Path("dirty.tsv").write_text(DIRTY * 2)
    write(
        "test.html", ["<p>one <b>two</b> three</p> four <i>five {name}</i>", "six &amp; <br>nine"]
    )
    write("test.xliff", ['one <g id="1">two</g> three <x id="2"/>'])
    write("test.prefix", ["eins", "", "zwei drei", *[""] * 17])
    write("test.phrases", ["acht", "", "zehn\tneun", *[""] * 17])
    requests = [{"text": "one two"}, {"text": "one two", "terminology": {"two": "acht"}}]
    requests += [{"text": "ten nine", "phrases": ["vier"], "n_best": 2}]
    strategy = {"strategy": {"name": "lexical_beam", "beam": 5}}
    write("requests.jsonl", [json.dumps(request | strategy) for request in requests])
    texts = [
        (at, f"{text} {end}")
        for at, text in enumerate(Path("test.de").read_text().splitlines())
        for end in ("eins", "zwei drei")
    ]
    write(
        "list",
        [
            f"{at} ||| {text} ||| LogProbability= {-len(text) / 7} Length= {len(text)} ||| -1"
            for at, text in texts
        ],
    )
    write("pieces", ["ten", "vier"])
    Path("nmt.yaml").write_text(RECIPE)


def differences(lines: list[str], earlier: list[str], pattern: str) -> Iterator[str]:
    """Yield what became of each name whose line is not the earlier one."""
    now, before = (dict(line.split(" ", 1) for line in each) for each in (lines, earlier))
    for name in [*now, *(name for name in before if name not in now and fnmatch(name, pattern))]:
        if now.get(name) != before.get(name):
            what = "missing" if name not in now else "differs" if name in before else "new"
            yield f"{what}: {name}"


def main() -> int:
    """Print the lines, or the names of those that differ from earlier ones; return the status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", metavar="PATTERN", default="*", help="names, such as runs/loss_*")
    parser.add_argument(
        "--output", metavar="FILE", type=Path, help="write the lines to a file, too"
    )
    parser.add_argument("--compare", metavar="FILE", type=Path, help="print only names that differ")
    options = parser.parse_args()
    earlier = options.compare.read_text().splitlines() if options.compare else None
    torch.set_num_threads(1)
    done = []
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        write_corpus()
        for line in lines(options.only):
            done.append(line)
            if earlier is None or " FAILED: " in line:
                print(line, flush=True)
        os.chdir(before)
    if options.output:
        options.output.write_text("".join(f"{line}\n" for line in done))
    different = [] if earlier is None else list(differences(done, earlier, options.only))
    for line in different:
        print(line)
    return int(bool(different) or any(" FAILED: " in line for line in done))


if __name__ == "__main__":
    sys.exit(main())
