"""What ``nmt report`` says of trainings: equal to their logs, in a whole page, in time."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from html_checker import Checker

from nmt.evaluation.groups import welch_test
from nmt.report.charts import COLOURS, Chart, Line, picture
from nmt.report.log import Curve, read_log
from nmt.runs import Run
from nmt.runs.recipe import write_recipe

Command = Callable[..., Any]

SVG = "{http://www.w3.org/2000/svg}"

RECORDS: list[dict[str, Any]] = [
    {"record": "train", "update": 2, "loss": 5.0, "lr": 0.1, "seconds": 60.0},
    {"record": "validation", "update": 2, "loss": 6.0, "perplexity": 9.0, "bleu": 1, "best": True},
    {"record": "train", "update": 4, "loss": 4.0, "lr": 0.2, "seconds": 180.0},
    {"record": "skipped", "update": 5, "where": "first in encoder.0", "sentences": 9},
    {"record": "train", "update": 6, "loss": 3.9, "lr": 0.3, "seconds": 240.0},
    {"record": "resumed", "update": 3, "processes": 1},
    {"record": "train", "update": 4, "loss": 4.5, "lr": 0.2, "reward": 0.5, "seconds": 120.0},
    {"record": "skipped", "update": 6, "where": "the loss", "sentences": 3},
    {"record": "train", "update": 6, "loss": float("nan"), "lr": 0.3, "seconds": 200.0},
    {"record": "validation", "update": 8, "loss": 3.0, "perplexity": 5.0, "bleu": 2, "best": True},
]


def write(path: Path, records: list[dict[str, Any]], end: str = "") -> Path:
    lines = (json.dumps({**record, "time": "2026-11-22T05:00:00+00:00"}) for record in records)
    path.write_text("".join(f"{line}\n" for line in lines) + end, encoding="utf-8")
    return path


def page_data(text: str) -> dict[str, Any]:
    read = Checker(text)
    assert (read.open, read.referred) == ([], [])
    assert len(read.ids) == len({*read.ids})
    assert {*read.labelled} <= {*read.ids}
    read.assert_outline()
    assert not re.search(r"https?://(?!www\.w3\.org/)|@import|url\((?!#)", text)
    data: dict[str, Any] = json.loads(read.scripts[0])
    return data


def test_a_log_without_what_a_resumed_training_repeated(tmp_path: Path) -> None:
    log = read_log(write(tmp_path / "log.jsonl", RECORDS, end='{"record": "train", "upd'))
    assert list(log.train) == [2, 4, 6]
    assert log.curve("train", "loss") == Curve([2, 4], [1.0, 2.0], [5.0, 4.5])
    assert log.curve("train", "lr").values == [0.1, 0.2, 0.3]
    assert log.curve("train", "reward").updates == [4]
    assert log.curve("validation", "bleu").values == [1, 2]
    assert (log.resumed, log.skipped) == ([3], {6: "the loss"})
    assert (log.last, log.best) == (8, 8)
    # Two updates beyond the last report, which took 40 seconds each.
    assert log.minutes([0, 3, 8]) == pytest.approx([0.0, 1.5, 280 / 60])


@pytest.mark.parametrize(
    "line",
    [
        "\0",
        "5",
        "[" * 50_000,
        '{"record": "train", "update": 2, "loss": "low", "lr": 0.1}',
        '{"record": "train", "update": 2, "loss": 1.0}',
        '{"record": "train", "update": 0, "loss": 1.0, "lr": 0.1}',
        '{"record": "train", "update": 2, "loss": 1' + "0" * 999 + ', "lr": 0.1}',
        '{"record": "resumed"}',
        '{"record": "resumed", "update": 1' + "0" * 30 + "}",
        '{"record": ["train"], "update": 2}',
        '{"record": "train", "update": 2, "loss": 1.0, "lr": 0.1, "seconds": NaN}',
        '{"record": "train", "update": 2, "loss": 1.0, "lr": [], "seconds": 1.0}',
    ],
)
def test_a_damaged_line_costs_a_line(nmt: Command, run: Path, line: str) -> None:
    write(run / "log.jsonl", RECORDS, end=f"{line}\n")
    done = nmt("report", run)
    assert (done.status, done.out) == (1, "")
    where = f"{run}/log.jsonl:{len(RECORDS) + 1}"
    assert done.err == f"nmt: error: {where}: damaged: not a record of training; remove the line\n"


def test_other_mistakes_cost_a_line(
    nmt: Command, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    averaged = tmp_path / "averaged"
    done = nmt("average-checkpoints", "--run", run, "--last", 1, "--output", averaged)
    assert done.status == 0, done.err
    for arguments, status, message in (
        ([tmp_path], 1, f"{tmp_path} is not a run; give a run that `nmt train` has made"),
        ([averaged], 1, f"{averaged}: is an average or an import, which has no log; give a run"),
        ([run, "--svg", "los"], 1, "--svg: unknown panel 'los'; did you mean 'loss'?"),
        ([run, "--svg", "loss", "--json"], 2, "give either --svg or --json"),
        ([run], 1, "charts need Matplotlib; pip install 'nmt-toolkit[report]', or"),
    ):
        page = tmp_path / ("page.svg" if "--svg" in arguments else "page.html")
        done = nmt("report", *arguments, "--output", page)
        assert (done.status, done.out, page.exists()) == (status, "", False)
        assert message in done.err
        assert done.err.count("\n") == 1
    (run / "log.jsonl").write_text('{"record": "tr')
    done = nmt("report", run)
    message = "log.jsonl: no report yet; train for at least train.log_every updates\n"
    assert done.err == f"nmt: error: {run}/{message}"


def test_values_that_cannot_be_drawn_are_left_out(nmt: Command, run: Path) -> None:
    loss = {"record": "train", "update": 8, "lr": 0.1, "seconds": 300}
    extremes = [float("inf"), float("nan"), 1e308, -1e308, 10**300, 1e-300, 1e99]
    records = [{**loss, "update": 8 + at, "loss": extreme} for at, extreme in enumerate(extremes)]
    write(run / "log.jsonl", [*RECORDS, *records])
    assert nmt("report", run).status == 0
    curve = json.loads(nmt("report", run, "--json").out)["curves"]["loss"]["train"]["run"]
    assert curve["values"] == [5.0, 4.5, 1e-300, 1e99]


@pytest.mark.parametrize("value", ["inf", "-inf", "nan"])
def test_json_and_page_hold_no_number_that_json_lacks(nmt: Command, run: Path, value: str) -> None:
    diverged = {"record": "validation", "update": 9, "loss": 800.0, "perplexity": float(value)}
    write(run / "log.jsonl", [*RECORDS, {**diverged, "best": True}])
    written = nmt("report", run, "--json").out
    [about] = json.loads(written, parse_constant=pytest.fail)["runs"]
    assert about["best"] == about["last"] == {"update": 9, "loss": 800.0, "perplexity": None}
    [data, _] = Checker(nmt("report", run).out).scripts
    assert json.loads(data, parse_constant=pytest.fail)["runs"][0]["best"] == about["best"]


def test_an_infinite_number_of_a_recipe_is_text(nmt: Command, run: Path, tmp_path: Path) -> None:
    other = shutil.copytree(run, tmp_path / "other", symlinks=True)
    recipe = Run.open(other).recipe
    write_recipe(other, {**recipe, "train": {**recipe["train"], "clip_norm": math.inf}})
    written = nmt("report", run, other, "--json").out
    document = json.loads(written, parse_constant=pytest.fail)
    assert document["runs"][1]["recipe"]["train"]["clip_norm"] == "inf"
    assert document["differences"] == {"train.clip_norm": [0.0, "inf"]}
    [data, _] = Checker(nmt("report", run, other).out).scripts
    assert json.loads(data, parse_constant=pytest.fail)["runs"] == document["runs"]


def test_runs_and_datasets_are_shown_whose_names_are_not_utf8(
    nmt: Command, run: Path, dataset: Path, tmp_path: Path
) -> None:
    places = [tmp_path / os.fsdecode(name) for name in (b"r\xe4n", b"d\xe4ta")]
    for directory, place in zip((run, dataset), places, strict=True):
        shutil.copytree(directory, place, symlinks=True)
    document, out, drawn = (tmp_path / name for name in ("out.json", "out.html", "out.svg"))
    assert nmt("report", places[0], "--json", "--output", document).status == 0
    about = json.loads(document.read_bytes())["runs"]
    assert [one["name"] for one in about] == [places[0].name]
    for command in (("report", places[0], "--output"), ("inspect", places[1], "--html")):
        assert nmt(*command, out).status == 0
        page_data(out.read_text(encoding="utf-8"))
    assert nmt("report", places[0], run, "--svg", "loss", "--output", drawn).status == 0
    texts = [element.text for element in ElementTree.parse(drawn).iter(f"{SVG}text")]
    assert r"r\udce4n training" in texts


def test_a_file_that_holds_something_else_is_not_overwritten(
    nmt: Command, run: Path, dataset: Path, tmp_path: Path
) -> None:
    corpus = tmp_path / "train.en"
    for command in (("report", run, "--output"), ("inspect", dataset, "--html")):
        corpus.write_text("a line\n")
        done = nmt(*command, corpus)
        assert (done.status, corpus.read_text()) == (1, "a line\n")
        assert done.err == (
            f"nmt: error: {corpus}: exists and holds something else; remove it, or choose another "
            "file\n"
        )
        for text in ("", "<!doctype html>old"):
            corpus.write_text(text)
            assert nmt(*command, corpus).status == 0
            page_data(corpus.read_text(encoding="utf-8"))


def test_a_name_that_ends_as_another_kind_of_document_is_refused(
    nmt: Command, run: Path, dataset: Path, tmp_path: Path
) -> None:
    for command, name, kind in (
        (("report", run, "--svg", "loss", "--output"), "x.png", "svg"),
        (("report", run, "--svg", "loss", "--output"), "x.PDF", "svg"),
        (("report", run, "--json", "--output"), "x.html", "json"),
        (("report", run, "--output"), "x.svg", "html"),
        (("inspect", dataset, "--html"), "x.json", "html"),
        (("explain", "--model", run, "one", "--svg", "cross:1", "-o"), "x.png", "svg"),
        (("explain", "--model", run, "one", "--output"), "x.png", "html"),
    ):
        path = tmp_path / name
        done = nmt(*command, path)
        told = f"{path}: the document is {kind.upper()}; give a name that ends in .{kind}"
        assert (done.status, done.out, done.err) == (1, "", f"nmt: error: {told}\n")
        assert not path.exists()


def test_the_best_validation_of_a_lost_training_does_not_count(tmp_path: Path) -> None:
    best = {"record": "validation", "loss": 1.0, "best": True}
    records = [{**best, "update": 2}, {**best, "update": 6}, {"record": "resumed", "update": 3}]
    assert read_log(write(tmp_path / "log.jsonl", records)).best == 2


def test_the_page_has_the_numbers_of_the_log(nmt: Command, trained: Path, tmp_path: Path) -> None:
    written = tmp_path / "page.html"
    done = nmt("report", trained, "--output", written)
    assert (done.status, done.out) == (0, "")
    data = page_data(written.read_text(encoding="utf-8"))
    as_json = json.loads(nmt("report", trained, "--json").out)
    assert data["curves"] == as_json["curves"]
    records = [json.loads(line) for line in (trained / "log.jsonl").open(encoding="utf-8")]
    for kind in ("train", "validation"):
        lines = [record for record in records if record["record"] == kind]
        shown = {name: kinds[kind] for name, kinds in data["curves"].items() if kind in kinds}
        hidden = {"record", "time", "update", "best", "epoch", "seconds"}
        assert {*shown} == {*lines[0]} - hidden
        for name, runs in shown.items():
            curve = runs["checkpoints"]
            assert curve["update"] == [line["update"] for line in lines]
            assert curve["values"] == [line[name] for line in lines]
            if kind == "train":
                assert curve["minutes"] == [line["seconds"] / 60 for line in lines]
    (facts,) = data["runs"]
    best = min(
        (line for line in records if line["record"] == "validation"), key=lambda it: it["loss"]
    )
    assert facts["best"]["update"] == best["update"]
    assert facts["best"]["loss"] == best["loss"]
    assert facts["memory_mb"] == max(line.get("memory_mb", 0) for line in records)


def test_several_runs_stand_in_one_page(
    nmt: Command, train: Command, trained: Path, run: Path, tmp_path: Path
) -> None:
    """One of them resumed, one is being written to."""
    resumed = tmp_path / "resumed <2>"
    for updates in (4, 8):
        flags = ("--max-updates", updates, "--set", "train.clip_norm=2")
        assert train(resumed, *flags).status == 0
    with (run / "log.jsonl").open("a", encoding="utf-8") as log:
        log.write('{"record": "train", "update": 8, "lo')
    done = nmt("report", trained, resumed, run)
    data = page_data(done.out)
    assert [facts["name"] for facts in data["runs"]] == ["checkpoints", "resumed <2>", "run"]
    assert [facts["updates"] for facts in data["runs"]] == [6, 8, 6]
    assert [facts["resumed"] for facts in data["runs"]] == [[], [4], []]
    assert data["differences"] == {
        "train.max_updates": [6, 8, 6],
        "train.clip_norm": [0.0, 2.0, 0.0],
    }
    assert done.out.count('-resumed.0"') == 2 * len(data["curves"])  # a mark in each chart
    for number in range(3):
        assert f'id="run-{number}" checked' in done.out
        assert f'id="update0-run{number}.validation"' in done.out


def test_the_runs_of_a_recipe_form_a_group(nmt: Command, train: Command, tmp_path: Path) -> None:
    runs = [tmp_path / name for name in ("base1", "wide1", "base2", "base3", "wide2")]
    for seed, path in enumerate(runs):
        wide = ("--set", "model.d_ff=48") if path.name.startswith("wide") else ()
        assert train(path, "--set", f"train.seed={seed + 1}", *wide).status == 0
    document = json.loads(nmt("report", *runs, "--group", "--json").out)
    base, wide = document["groups"]
    assert (base["name"], wide["name"]) == ("base1, base2, base3", "wide1, wide2")
    assert base["runs"] == ["base1", "base2", "base3"]
    best = {facts["name"]: facts["best"] for facts in document["runs"]}
    assert {*base["best"]} == {"update", "loss", "perplexity"}
    losses = [best[name]["loss"] for name in base["runs"]]
    loss = base["best"]["loss"]
    assert (loss["values"], loss["mean"]) == (losses, statistics.fmean(losses))
    assert loss["standard_deviation"] == pytest.approx(statistics.stdev(losses))
    assert loss["standard_error"] == pytest.approx(statistics.stdev(losses) / math.sqrt(3))
    assert loss["p_value"] is None
    others = [best[name]["loss"] for name in wide["runs"]]
    assert wide["best"]["loss"]["p_value"] == welch_test(losses, others)
    page = nmt("report", *runs, "--group").out
    assert page_data(page)["groups"] == document["groups"]
    assert "<caption>best loss</caption>" in page
    for group in (base, wide):
        shown = [group["best"]["loss"][key] for key in ("mean", "standard_deviation")]
        cells = "".join(f'<td class="number">{value:.3f}</td>' for value in shown)
        runs_of_group = f'<td class="number">{len(group["runs"])}</td>'
        assert f'<th scope="row">{group["name"]}</th>{runs_of_group}{cells}' in page
    assert "groups" not in json.loads(nmt("report", *runs, "--json").out)
    refused = nmt("report", *runs, "--group", "--svg", "loss")
    assert (refused.status, refused.out) == (2, "")
    assert "--group goes with no --svg: it adds a table" in refused.err


def test_every_resume_and_skipped_update_is_marked(nmt: Command, run: Path) -> None:
    again = [{"record": "resumed", "update": 7, "processes": 1}]
    write(run / "log.jsonl", [*RECORDS, *again, {**RECORDS[3], "update": 9}, RECORDS[-1]])
    done = nmt("report", run)
    data = page_data(done.out)
    assert data["runs"][0]["resumed"] == [3, 7]
    assert [skipped["update"] for skipped in data["runs"][0]["skipped"]] == [6, 9]
    for mark in ("resumed.0", "resumed.1", "skipped.0", "skipped.1"):
        assert done.out.count(f'-{mark}"') == 2 * len(data["curves"])


def test_runs_of_the_same_name_are_told_apart(nmt: Command, trained: Path, tmp_path: Path) -> None:
    for place in ("a", "b"):
        shutil.copytree(trained, tmp_path / place / "checkpoints", symlinks=True)
    runs = [tmp_path / place / "checkpoints" for place in ("a", "b")]
    data = json.loads(nmt("report", *runs, "--json").out)
    assert [facts["name"] for facts in data["runs"]] == ["a", "b"]
    shutil.copytree(trained, tmp_path / "c" / "base", symlinks=True)
    data = json.loads(nmt("report", *runs, tmp_path / "c" / "base", "--json").out)
    assert [facts["name"] for facts in data["runs"]] == ["a", "b", "base"]
    runs.append(tmp_path / "c" / "a" / "checkpoints")
    shutil.copytree(trained, runs[-1], symlinks=True)
    done = nmt("report", *runs, runs[0], "--json")
    assert [facts["name"] for facts in json.loads(done.out)["runs"]] == [str(run) for run in runs]
    assert done.err.startswith("reported 3 runs in ")


def test_a_thinned_curve_keeps_its_extremes() -> None:
    draw = np.random.default_rng(1)
    values = draw.normal(size=100_000)
    updates = list(range(1, 100_001))
    curve = Curve(updates, updates, values.tolist())
    thin = curve.thinned()
    assert 300 < len(thin) <= 602
    assert {min(curve.values), max(curve.values), curve.values[0], curve.values[-1]} <= {
        *thin.values
    }
    assert all(curve.values[update - 1] == value for update, value in points(thin))
    for start in range(0, 100_000, 10_000):  # of each part, too
        part = values[start : start + 10_000]
        kept = [value for update, value in points(thin) if start < update <= start + 10_000]
        assert (min(kept), max(kept)) == (part.min(), part.max())
    assert Curve([1], [1], [2.0]).thinned() == Curve([1], [1], [2.0])


def points(curve: Curve) -> list[tuple[float, float]]:
    return list(zip(curve.updates, curve.values, strict=True))


def test_a_run_without_a_report_has_no_training_time(nmt: Command, run: Path) -> None:
    write(run / "log.jsonl", [RECORDS[1]])
    document = json.loads(nmt("report", run, "--json").out)
    assert document["runs"][0]["minutes"] is None
    assert document["curves"]["loss"]["validation"]["run"]["minutes"] == [None]
    page = nmt("report", run).out
    assert page_data(page)["curves"] == document["curves"]
    assert "0:00:00" not in page


def test_a_chart_draws_its_lines_where_their_values_are() -> None:
    lines = [Line("small & fast", [0, 1, 2], [1.0, 2.0, 3.0]), Line("other", [1], [2.0], colour=9)]
    marked = Chart(lines, "hours", marks={"resumed": [1.0]}).svg()
    root = ElementTree.fromstring(marked[marked.index("<svg") :])
    texts = [element.text for element in root.iter(f"{SVG}text")]
    assert {"small & fast", "other", "hours"} <= {*texts}
    path, *_ = (  # the next is in the legend
        element.get("d", "")
        for element in root.iter(f"{SVG}path")
        if COLOURS[0] in element.get("style", "") and element.get("d", "").count("L") == 2
    )
    points = [tuple(map(float, pair.split())) for pair in re.split("[ML]", path)[1:]]
    assert points[1] == pytest.approx(np.mean([points[0], points[2]], axis=0), abs=0.02)
    assert points[0][1] > points[2][1]


def test_names_in_a_chart_stand_as_they_are() -> None:
    names = ["_base", "$x$", r"$\frac$", "a$b"]
    chart = Chart([Line(name, [0, 1], [1.0, 2.0]) for name in names], "update")
    drawn = picture({r"$\frac$ of a_b": chart})
    texts = [element.text for element in ElementTree.fromstring(drawn.encode()).iter(f"{SVG}text")]
    assert [text for text in texts if text in names] == names
    assert r"$\frac$ of a_b" in texts


def test_the_labels_of_an_axis_are_its_values() -> None:
    drawn = Chart([Line("learning rate", [0, 40_000], [0.0, 0.00175])], "update").svg()
    texts = [element.text for element in ElementTree.fromstring(drawn.encode()).iter(f"{SVG}text")]
    assert {"10,000", "40,000", "0.00025", "0.00175"} <= {*texts}


def test_svg_of_one_panel(nmt: Command, trained: Path, tmp_path: Path) -> None:
    for name in ("base-1", "base-2"):
        shutil.copytree(trained, tmp_path / name, symlinks=True)
    runs = [tmp_path / "base-1", tmp_path / "base-2"]
    done = nmt("report", *runs, "--svg", "validation.loss", "--by", "minutes")
    texts = [
        element.text for element in ElementTree.fromstring(done.out.encode()).iter(f"{SVG}text")
    ]
    assert {"minutes of training", "base-1", "base-2"} <= {*texts}
    assert all(colour in done.out for colour in COLOURS[:2])
    assert COLOURS[2] not in done.out


@pytest.mark.parametrize("paper", ["#ffffff", "#12161d"])
def test_the_colours_are_seen_on_light_and_dark_pages(paper: str) -> None:
    def luminance(colour: str) -> float:
        shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
        return (
            math.sumprod((0.2126, 0.7152, 0.0722), linear)
            if sys.version_info >= (3, 12)
            else sum(
                weight * value
                for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True)
            )
        )

    for colour in COLOURS:
        low, high = sorted([luminance(colour), luminance(paper)])
        assert (high + 0.05) / (low + 0.05) >= 3, colour


def test_a_browser_shows_the_values_of_the_log(
    nmt: Command, run: Path, trained: Path, tmp_path: Path
) -> None:
    """Opens a log of 100,000 updates quickly, and reads values by keyboard."""
    playwright = pytest.importorskip("playwright.sync_api")
    records = [
        {"record": "train", "update": update, "loss": 9 - math.log(update) / 2, "lr": 0.1}
        | {"perplexity": 5.0, "grad_norm": 1 + update % 97, "seconds": 0.5 * update}
        for update in range(1, 100_001)
    ]
    write(run / "log.jsonl", records)
    written = tmp_path / "page.html"
    assert nmt("report", run, trained, "--output", written).status == 0
    assert written.stat().st_size < 2e6
    path = shutil.which("chromium")
    with playwright.sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=path, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 390, "height": 844})
        wrong: list[str] = []
        opened.on("pageerror", lambda error: wrong.append(str(error)))
        opened.on("console", lambda message: wrong.append(message.text))
        opened.on("request", lambda request: wrong.append(request.url))
        opened.goto(written.as_uri())
        assert opened.evaluate("document.documentElement.scrollWidth") == 390
        opened.focus(".chart.update[data-panel=grad_norm]")
        opened.keyboard.press("Home")
        said = "figure:has([data-panel=grad_norm]) output"
        assert "run 2 (update 1); checkpoints " in opened.inner_text(said)
        opened.uncheck("#run-1")
        opened.keyboard.press("Tab")
        opened.check("#by-minutes")
        assert not opened.is_visible(".chart.update[data-panel=grad_norm]")
        opened.focus(".chart.minutes[data-panel=grad_norm]")
        opened.keyboard.press("End")
        text = opened.inner_text(said)
        assert text.startswith("833.3 minutes: run ")
        assert "checkpoints" not in text
        assert f"{1 + 100_000 % 97} (update 100,000)" in text
        assert wrong == [written.as_uri()]
        browser.close()
