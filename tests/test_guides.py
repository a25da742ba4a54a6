"""The commands of the tutorial and the guides run as they are printed there, at a small size."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from foreign_models import marian_model
from trained_runs import turn

import nmt as package
from nmt.data.dataset import Dataset

pytestmark = pytest.mark.full

DOCS = Path(__file__).parents[1] / "docs"

LINE = "one two three"
"""What the snippets of Python translate."""
# torchrun as one process: what it starts is tested in tests/system.
TORCHRUN = '#!/bin/sh\nwhile [ "$1" != -m ]; do shift; done\nshift 2\nexec nmt "$@"\n'
TINY = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "d_ff": 32, "heads": 2}
SMALL = {
    "preprocess": {"vocab_size": 60, "byte_fallback": False},
    "model": TINY,
    "train": {
        "tokens_per_update": 150,
        "max_tokens": 400,
        "max_updates": 6,
        "save_every": 1,
        "valid_every": 6,
        "best_metric": "loss",
        "valid_metrics": [],
        "precision": "fp32",
        "device": "cpu",
    },
    "search": {"strategy": "beam", "max_length_offset": 5},
    "score": {"metrics": ["bleu"]},
}


def blocks(page: str, *languages: str) -> list[tuple[str, str]]:
    """The blocks of a page in these languages, with their language, in order."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```({'|'.join(languages)})\n(.*?)^```", text, re.M | re.S)


def small(recipe: dict[str, Any]) -> dict[str, Any]:
    """A recipe with the sizes of a test."""
    sections = {*recipe, *SMALL}
    return {name: {**(recipe.get(name) or {}), **SMALL.get(name, {})} for name in sections}


class Workplace:
    """A directory with what the guides take as given, and programs that run quickly."""

    def __init__(self, path: Path, programs: Path) -> None:
        self.path, tools = path / "work", path / "bin"
        self.path.mkdir()
        tools.mkdir()
        python = f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n'
        for name, text in (("python", python), ("torchrun", TORCHRUN)):
            (tools / name).write_text(text)
            (tools / name).chmod(0o755)
        self.environment = os.environ | {
            "PATH": f"{programs}:{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(Path(package.__file__).parents[1]),
        }

    def start(self, script: str) -> subprocess.CompletedProcess[str]:
        """Run a script of bash."""
        return subprocess.run(
            ["bash", "-c", f"set -euo pipefail\n{script}"],
            cwd=self.path,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )

    def run(self, script: str) -> str:
        """Run a script of bash that has to succeed, and return its output."""
        done = self.start(script)
        assert done.returncode == 0, f"{script}\n{done.stderr}"
        return done.stdout

    def lines(self, name: str) -> list[str]:
        """The lines of a file."""
        return (self.path / name).read_text(encoding="utf-8").splitlines()

    def dataset(self, name: str) -> Any:
        """The training split of a dataset."""
        return Dataset.open(self.path / name).manifest.splits["train"]


@pytest.fixture
def empty(tmp_path: Path, programs: Path) -> Workplace:
    """A workplace without any text."""
    return Workplace(tmp_path, programs)


@pytest.fixture
def place(
    empty: Workplace,
    corpus: Path,
    dataset: Path,
    trained: Path,
    recipe: Path,
    write_numbers: Callable[..., None],
) -> Workplace:
    """A workplace with a corpus, its dataset, a recipe and runs."""
    here = empty.path
    shutil.copytree(corpus, here / "corpus")
    shutil.copytree(dataset, here / "data-bin")
    for name in ("checkpoints", "first", "second", "forward", "reverse"):
        shutil.copytree(trained, here / name, symlinks=True)
    for seed, (name, pairs) in enumerate({"": 40, "-valid": 5, "-test": 8}.items(), 7):
        write_numbers(here / "corpus" / f"domain{name}", pairs, seed)
    values = yaml.safe_load(recipe.read_text())
    values["preprocess"] |= {"train": ["corpus/train"], "valid": "corpus/valid"}
    values["preprocess"] |= {"test": "corpus/test"}
    values |= {name: SMALL[name] for name in ("search", "score")}
    (here / "nmt.yaml").write_text(yaml.safe_dump(values))
    text = (corpus / "test.de").read_text()
    (here / "mono.de").write_text(text)
    rows = "".join(f"{line}\t{line}!\n" for line in text.splitlines())
    (here / "crawl.tsv.gz").write_bytes(gzip.compress(f"no tab\n{rows}".encode()))
    return empty


def run_page(place: Workplace, page: str) -> list[str]:
    """Run the commands of a page; the page's own recipe, if any, made small."""
    outputs = []
    for language, block in blocks(page, "sh", "yaml"):
        if language == "sh":
            outputs.append(place.run(block))
        elif "model" in (recipe := yaml.safe_load(block)):
            (place.path / "nmt.yaml").write_text(yaml.safe_dump(small(recipe)))
            shutil.rmtree(place.path / "checkpoints", ignore_errors=True)
    return outputs


def test_getting_started(empty: Workplace, write_numbers: Callable[..., None]) -> None:
    for seed, (split, pairs) in enumerate({"train": 200, "dev": 8, "test": 8}.items()):
        write_numbers(empty.path / "corpus" / split, pairs, seed)
    preprocessed, trained, averaged, translated, scored = run_page(empty, "getting-started.md")
    assert preprocessed.startswith("data-bin\n")
    assert trained.endswith("checkpoints\n")
    assert (averaged, translated) == ("averaged\n", "")
    assert re.match(r"bleu = \d", scored)
    assert len(empty.lines("test.de")) == 8


def test_the_tutorial(empty: Workplace, write_numbers: Callable[..., None]) -> None:
    write_numbers(empty.path / "mine", 1300, seed=1)
    outputs = run_page(empty, "tutorial.md")
    assert outputs[0].split()[:4] == ["1300", "mine.en", "1300", "mine.de"]
    assert outputs[2].startswith("data-bin\n")
    assert len(empty.lines("test.hyp.de")) == len(empty.lines("valid.en")) == 500
    split = empty.dataset("data-bin")
    assert split.pairs + sum(split.dropped.values()) == 300
    assert {"held_out", "duplicates"} <= {*split.dropped}
    assert re.match(r"averaged\nbleu = \d.* ± ", outputs[5])
    assert re.fullmatch(r"references -\d+.*\ntranslations -\d+.*\n", outputs[7])


def test_back_translation(place: Workplace) -> None:
    assert run_page(place, "guides/back-translation.md") == ["back-bin\n", "sampled-bin\n"]
    back, sampled = place.dataset("back-bin"), place.dataset("sampled-bin")
    assert back.pairs + sum(back.dropped.values()) == 210
    kept = 200 + 10 - sum(sampled.dropped.values())
    assert kept <= sampled.pairs <= 2 * kept  # real pairs have weight 2
    assert sampled.dropped["held_out"] > 0
    assert len(list(place.path.glob("part.?.en"))) == 4


def test_languages(place: Workplace) -> None:
    outputs = run_page(place, "guides/languages.md")
    assert outputs[0].startswith("data-bin\ndataset of format 3, en+de to de+en\n")
    assert outputs[0].count("bleu = ") == 1
    assert outputs[2] == "domain-bin\nadapted\n"
    assert len(place.lines("test.de")) == len(place.lines("test.en")) == 10


def test_data_mixing(place: Workplace) -> None:
    turn(place.path / "reverse")
    assert run_page(place, "guides/data-mixing.md") == ["data-bin\ncheckpoints\n", "weighed-bin\n"]
    assert place.dataset("data-bin").pairs == 240


def test_documents(place: Workplace) -> None:
    for path in (place.path / "corpus").glob("*.??"):
        lines = path.read_text().splitlines()
        path.write_text(
            "".join(f"{line}\n" + "\n" * (at % 5 == 4) for at, line in enumerate(lines))
        )
        ids = (f"{at // 3}\n" for at in range(len(path.read_text().splitlines())))
        path.with_suffix(".docid").write_text("".join(ids))
    outputs = run_page(place, "guides/documents.md")
    assert outputs[0].startswith("data-bin\ncheckpoints\nbleu = ")
    lines = place.lines("corpus/test.en")
    assert len(place.lines("test.de")) == len(lines) == 12
    assert not place.lines("test.de")[5]
    assert outputs[1].startswith("by-ids\nbleu = ")
    assert len(place.lines("divided.de")) == 12 + 3
    assert outputs[2].startswith("bleu = ")
    assert len(outputs[2].splitlines()) == 1 + 2


def test_large_corpora(place: Workplace) -> None:
    turn(place.path / "reverse")
    outputs = run_page(place, "guides/large-corpora.md")
    assert outputs[0] == "crawl-bin\n"
    assert place.dataset("crawl-bin").pairs == 10
    assert outputs[2].startswith("parts\nparts\ndataset of ")
    assert len(place.lines("filtered.tsv")) == 5
    assert len(place.lines("crawl.scores")) == 10


def test_several_machines(place: Workplace) -> None:
    assert run_page(place, "guides/several-machines.md")[0] == "checkpoints\n"
    assert len(place.lines("test.de")) == 10


def test_small_data(place: Workplace) -> None:
    outputs = run_page(place, "guides/small-data.md")
    assert outputs[0] == "data-bin\ncheckpoints\naveraged\n"
    assert outputs[1] == "child-bin\nchild\n"
    assert outputs[2] == "both-bin\nboth\nforward-bin\nfine-tuned\n"
    assert (place.dataset("both-bin").pairs, place.dataset("forward-bin").pairs) == (400, 200)
    assert outputs[3].startswith("bleu = ")


def test_domain_adaptation(place: Workplace) -> None:
    outputs = run_page(place, "guides/domain-adaptation.md")
    assert outputs[0] == "domain-bin\nadapted\n"
    mixed = place.dataset("mixed-bin")
    assert mixed.pairs + sum(mixed.dropped.values()) == 4 * 40 + 200
    assert outputs[1] == "small\nmerged\n"
    assert outputs[3].count("adapted.domain.de") == outputs[3].count("mixed.general.de") == 1
    assert outputs[4:] == ["extended-bin\nextended\n", "risk\n"]


def test_word_alignments(place: Workplace) -> None:
    shutil.rmtree(place.path / "checkpoints")
    assert run_page(place, "guides/word-alignments.md") == ["aligned\nguided\n", ""]
    assert all("alignment" in json.loads(line) for line in place.lines("test.jsonl"))
    for name, text in (("test.align", "corpus/test.de"), ("corpus/train.align", "corpus/train.de")):
        assert len(place.lines(name)) == len(place.lines(text))


def test_markup(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_page(place, "guides/markup.md")
    (first, second) = place.lines("page.de.html")
    assert first.count('<a href="/two">') == first.count("</a>") == 1
    assert all(
        part in second
        for part in ("<code>f(x)</code>", '<span translate="no">New York</span>', "{name}<br>")
    )
    monkeypatch.chdir(place.path)
    ((_, program),) = blocks("guides/markup.md", "python")
    exec(compile(program, "guides/markup.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert (len(lines), lines[0].count("<b>"), lines[0].count("</b>")) == (2, 1, 1)


def test_explain(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_page(place, "guides/explain.md")
    for name in ("page.html", "references.html"):
        assert "".join(place.lines(name)).count('"source":{"text":') == 3
    assert place.lines("figure.svg")[-1] == "</svg>"
    monkeypatch.chdir(place.path)
    ((_, program),) = blocks("guides/explain.md", "python")
    exec(compile(program, "explain.md", "exec"), {})
    assert capsys.readouterr().out == "encoder 1 2 heads\ndecoder 1 2 heads\ncross 1 2 heads\n"


def test_report(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_page(place, "guides/report.md")
    assert "".join(place.lines("report.html")).count("<figure>") == 7
    monkeypatch.chdir(place.path)
    for _, program in blocks("guides/report.md", "python"):
        exec(compile(program, "report.md", "exec"), {})
    assert capsys.readouterr().out.startswith("after update 6 loss ")
    assert place.lines("loss.svg")[-1] == "</svg>"


def test_evaluation(place: Workplace) -> None:
    kept = place.path / "sacrebleu"
    place.environment["SACREBLEU"] = str(kept)
    (kept / "wmt14/full").mkdir(parents=True)  # as after a download
    for field in ("src", "ref", "docid", "genre", "origlang"):
        text = (place.path / f"corpus/test.{'de' if field == 'ref' else 'en'}").read_text()
        (kept / f"wmt14/full/wmt14_full.en-de.{field}").write_text(text)
    table, scored, worst = run_page(place, "guides/evaluation.md")
    assert scored.startswith("bleu = ")
    assert table.startswith("| system    | bleu |  mean ± 95% |       p | ")
    assert "paired bootstrap resampling against first.de, bs:1000|seed:12345" in table
    assert worst.count("\n") == 5


def test_rescoring(place: Workplace) -> None:
    recipe = yaml.safe_load((place.path / "nmt.yaml").read_text())
    sizes = {"decoder_layers": 1, "d_model": 16, "d_ff": 32, "heads": 2}
    language_model = {"model": {"arch": "transformer_lm", **sizes}, "train": recipe["train"]}
    (place.path / "lm.yaml").write_text(yaml.safe_dump(language_model))
    run_page(place, "guides/rescoring.md")
    candidates = [line.split(" ||| ") for line in place.lines("both.txt")]
    numbers, texts, features, _ = zip(*candidates, strict=True)
    assert 10 < len(candidates) <= 4 * 10
    assert all(" Second= -" in feature for feature in features)
    rescored = place.lines("rescored.de")
    pairs = {*zip(numbers, texts, strict=True)}
    assert all((str(at), text) in pairs for at, text in enumerate(rescored))
    assert all(" RightToLeft= -" in line for line in place.lines("right.txt"))
    assert all(" RightToLeft= -" in line for line in place.lines("test.list"))
    fluencies = [line.split(" LanguageModel= ")[1] for line in place.lines("fluent.txt")]
    assert len(fluencies) == len(candidates)
    names = ["LogProbability", "Length", "RightToLeft", "Reverse"]
    assert [line.split(":")[0] for line in place.lines("weights.yaml")] == names
    for name in ("ensemble.de", "right.de", "fused.de", "mbr.de", "pruned.de", "test.de"):
        assert len(place.lines(name)) == 10


def test_students(place: Workplace) -> None:
    recipe = yaml.safe_load((place.path / "nmt.yaml").read_text())
    recipe["preprocess"]["vocab_size"] = 34  # as many pieces as a unigram model finds
    (place.path / "nmt.yaml").write_text(yaml.safe_dump(recipe))
    run_page(place, "guides/students.md")
    assert len(place.lines("distilled.de")) == len(place.lines("distilled.align")) == 400
    assert len(place.lines("student.de")) == 10
    assert (place.path / "package/shortlist.safetensors").exists()


def test_deployment(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = pytest.importorskip("ctranslate2").Translator
    run_page(place, "guides/deployment.md")
    assert len(place.lines("test.de")) == len(place.lines("exported.de")) == 10
    monkeypatch.chdir(place.path)
    assert json.loads((place.path / "exported/config.json").read_text())["add_source_eos"]
    given, translate_batch = [], engine.translate_batch

    def record(self: Any, sources: list[list[str]], **options: Any) -> Any:
        given.append(sources)
        return translate_batch(self, sources, **options)

    monkeypatch.setattr(engine, "translate_batch", record)
    (_, direct), (_, program) = blocks("guides/deployment.md", "python")
    exec(compile(direct, "deployment.md", "exec"), {})
    # CTranslate2's own settings: score / length, at most 256 tokens.
    strategy = {"name": "beam", "beam": 4, "stop": "first_beam", "length_penalty": "power"}
    same = {"strategy": strategy, "max_length_ratio": 0.0, "max_length_offset": 256}
    [text] = package.Translator("exported", engine="ctranslate2", **same).translate([LINE])
    assert capsys.readouterr().out == f"{text}\n"
    assert given[0] == given[1]
    exec(compile(program, "deployment.md", "exec"), {})
    assert capsys.readouterr().out.count("\n") >= 1


def test_python(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place.path)
    (_, translating), (_, looking) = blocks("api.md", "python")
    exec(compile(translating, "api.md", "exec"), {})
    assert capsys.readouterr().out.count("\n") >= 3
    exec(compile(looking, "api.md", "exec"), {})
    *attention, embeddings, encoded = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in attention] == ["encoder", "decoder", "cross"]
    assert embeddings.startswith("['▁one'")
    assert re.fullmatch(r"torch.Size\(\[2, \d+, 16\]\) torch.Size\(\[60, 16\]\)", encoded)


def test_models_of_other_toolkits(place: Workplace) -> None:
    pytest.importorskip("transformers")
    marian_model(place.path / "hub")
    downloads = place.path.parent / "bin" / "hf"
    downloads.write_text('#!/bin/sh\nexec cp -r hub "$4"\n')
    downloads.chmod(0o755)
    recipe = yaml.safe_load((place.path / "nmt.yaml").read_text())
    del recipe["model"]
    (place.path / "nmt.yaml").write_text(yaml.safe_dump(recipe))
    imported, tuned, exported = run_page(place, "guides/other-models.md")
    assert exported == "exported\n"
    assert imported.startswith(
        "imported\nrun, en to de, transformer_base\nimported from opus-mt-en-de"
    )
    assert len(place.lines("test.de")) == 10
    assert tuned == "domain-bin\nadapted\n"
    assert "import MarianMTModel" in (place.path / "exported" / "README.md").read_text()


def test_migrating(place: Workplace) -> None:
    """What stands in the last column; trainings are tried, not run."""
    text = (DOCS / "migrating.md").read_text(encoding="utf-8")
    columns = [line.split("|")[-2] for line in text.splitlines() if line.startswith("| ")]
    commands = [call for cell in columns for call in re.findall("`([^`]+)`", cell)]
    others = r"nmt (?!import|serve)[a-z]|torchrun"  # their own tests have models and clients
    commands = [call for call in commands if re.match(others, call) and " -" in call]
    assert len(commands) >= 8
    for corpus in place.path.glob("corpus/*.*"):
        shutil.copy(corpus, place.path)
    place.run("nmt average-checkpoints --last 2 --output averaged; cp test.de test.hyp")
    sizes = " ".join(f"--set model.{key}={value}" for key, value in TINY.items())
    for number, call in enumerate(commands):
        extra = {"nmt train": f" --dry-run --save-dir try-{number} {sizes}"}
        extra["nmt average-checkpoints"] = f" --output average-{number}"
        name = " ".join(call.split()[:2])
        call = re.sub(r"--(last|best) \d", r"--\1 2", call)
        call = call.replace("--output averaged", "").replace("32000", "60")
        place.run(call + extra.get(name, "") if "torchrun" not in call else call)


def write_mistakes(place: Workplace, write_numbers: Callable[..., None]) -> None:
    """The damaged and missing things that the page of messages begins with."""
    here = place.path
    (here / "unequal.en").write_text("one\n")
    (here / "unequal.de").write_text("eins\nzwei\n")
    (here / "latin1.en").write_text("five\n")
    (here / "latin1.de").write_bytes("fünf\n".encode("latin-1"))
    (here / "utf16.en").write_text("five\n")
    (here / "utf16.de").write_text("fünf\n", encoding="utf-16")
    (here / "returns.en").write_text("five\nsix\n")
    (here / "returns.de").write_bytes("fünf\rsechs\r".encode())
    for side in ("en", "de"):
        (here / f"blank.{side}").write_text("\n\n")
    (here / "columns.tsv").write_text("one\teins\tone\n")
    (here / "short.de").write_text("eins\n")
    (here / "found").mkdir()
    (here / "found/nmt.yaml").write_text("plugins: [mymodel]\n")
    write_numbers(here / "more/train", 100, seed=9)
    place.run("nmt preprocess --train more/train --output-dir other-bin")


def test_troubleshooting(place: Workplace, write_numbers: Callable[..., None]) -> None:
    write_mistakes(place, write_numbers)
    shown = blocks("troubleshooting.md", "console")
    assert len(shown) > 15
    for _, block in shown:
        command, _, message = block.removeprefix("$ ").partition("\n")
        done = place.start(command)
        assert done.returncode in (1, 2)
        said = done.stderr.replace(f"{place.path}/", "").splitlines()[-1]
        assert said == message.rstrip("\n")
