"""The confidence in translations: its fit, and its way from ``nmt calibrate`` to the user."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest
from conftest import Command
from test_report import page_data

from nmt.inference.confidence import fitted
from nmt.runs.calibration import Calibration
from nmt.runs.confidence import Features, features_of


def drawn(count: int) -> tuple[list[Features], list[float]]:
    """Features, and a chrF that is above 50 with a probability that the features tell."""
    draw, features, chrf = random.Random(1), [], []
    for _ in range(count):
        mean = draw.gauss(-1.0, 0.5)
        features.append((mean, mean - draw.random(), draw.uniform(1, 3), draw.gauss(0, 0.2)))
        is_good = draw.random() < 1 / (1 + math.exp(-4 * (mean + 1)))
        chrf.append(draw.uniform(51, 90) if is_good else draw.uniform(10, 49))
    return features, chrf


def test_the_confidence_is_the_probability_that_a_line_is_good() -> None:
    confidence = fitted(*drawn(4000))
    assert confidence.calibration_error < 0.03
    assert confidence.median_chrf == pytest.approx(50, abs=2)
    assert sum(one.lines for one in confidence.bins) == 4000
    for one in confidence.bins:
        assert one.good == pytest.approx(one.confidence, abs=4 * math.sqrt(0.25 / one.lines))
    # As the law above says, whatever the features that tell nothing are.
    for mean in (-2.0, -1.0, -0.4):
        found = confidence.of([mean] * 5, "a line", "ein Satz")
        assert found == pytest.approx(1 / (1 + math.exp(-4 * (mean + 1))), abs=0.06)


def test_lines_that_are_all_alike_have_a_finite_confidence() -> None:
    confidence = fitted([(-1.0, -1.0, 1.0, 0.0)] * 10, [7.0] * 10)
    assert 0 < confidence.of([-1.0], "a", "b") < 0.5
    separable = fitted([(-float(at), -1.0, 1.0, 0.0) for at in range(10)], [*map(float, range(10))])
    assert separable.of([-9.0], "a", "b") > 0.7 > 0.3 > separable.of([0.0], "a", "b")


def test_a_calibrated_run_tells_its_confidence(
    run: Path, dataset: Path, corpus: Path, tmp_path: Path, nmt: Command
) -> None:
    text = tmp_path / "text"
    text.write_text("one two\n\nthree. four\n")
    translate = ("translate", "--model", run, "--json", "--split-sentences", text)
    assert '"confidence"' not in nmt(*translate).out
    done = nmt("calibrate", "--data", dataset, "--model", run)
    assert done.status == 0, done.err
    assert "confidence: expected calibration error 0." in done.err
    calibration = Calibration.load(run)
    assert calibration is not None
    confidence = calibration.confidence
    assert confidence is not None
    assert sum(one.lines for one in confidence.bins) == 20
    for line in map(json.loads, nmt(*translate).out.splitlines()):
        source = text.read_text().splitlines()[line["id"]]
        wanted = confidence.of(line["token_log_probabilities"], source, line["text"])
        assert line["confidence"] == wanted
        assert 0 <= wanted <= 1
    [about] = json.loads(nmt("report", run, "--json").out)["runs"]
    assert about["confidence"]["bins"] == [vars(one) for one in confidence.bins]
    page = nmt("report", run).out
    page_data(page)
    assert "expected calibration error 0." in page
    # Other weights have another confidence.
    (run / "best").unlink()
    (run / "best").symlink_to("update_0000002")
    assert '"confidence"' not in nmt(*translate).out


def test_features_are_of_tokens_and_lengths() -> None:
    assert features_of([-1.0, -3.0], "abc", "abcdefg") == (
        -2.0, -3.0, pytest.approx(math.log(2)), pytest.approx(math.log(2)),
    )  # fmt: skip


def test_a_run_is_shown_with_its_shortlist_and_calibration(
    run: Path, dataset: Path, nmt: Command
) -> None:
    assert nmt("shortlist", "--data", dataset, "--model", run).status == 0
    done = nmt("calibrate", "--data", dataset, "--model", run, "--sentences", 12)
    assert (done.status, done.out) == (0, f"{run / 'calibration.json'}\n"), done.err
    best = (run / "best").resolve().name
    *_, shortlist, calibration = nmt("inspect", run).out.splitlines()
    assert shortlist == "shortlist: yes, for `nmt translate --shortlist`"
    assert calibration == f"calibration: of {best}, for `nmt translate --json`"
    Calibration(weights="0" * 64, ranges={}).save(run)
    assert "calibration: for a checkpoint that the run no longer has" in nmt("inspect", run).out
    for name in ("calibration.json", "shortlist.safetensors"):
        (run / name).unlink()
    out = nmt("inspect", run).out
    assert "calibration" not in out
    assert "shortlist" not in out


def test_a_damaged_calibration_is_told(run: Path, corpus: Path, nmt: Command) -> None:
    Calibration(weights="0" * 64, ranges={}).save(run)
    file = run / "calibration.json"
    file.write_text(file.read_text().replace("0000", "1111", 1))
    for status, command in (
        (0, ("translate", "--model", run, corpus / "test.en")),  # needs no confidence
        (1, ("inspect", run, "--verify")),
    ):
        done = nmt(*command)
        assert done.status == status
        assert "calibration.json: damaged: its checksum does not match; make it again" in done.err
    assert "calibration.json: damaged" in nmt("inspect", run).out
