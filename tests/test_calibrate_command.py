"""``nmt calibrate``, and translating in int8 with what it measured."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from conftest import Command

from nmt.inference import Execution, SearchConfig
from nmt.inference.ensembles import ensemble_of
from nmt.inference.fast.int8 import FewRowsLinear, ManyRowsLinear, has_fixed_kernels
from nmt.runs import load_model
from nmt.runs.calibration import Calibration

pytestmark = pytest.mark.skipif(
    not has_fixed_kernels(), reason="this torch has no products with a fixed quantisation"
)


@pytest.fixture
def calibrated(train: Command, dataset: Path, tmp_path: Path, nmt: Command) -> Path:
    """A run of a tiny student with a calibration and a shortlist."""
    run = tmp_path / "run"
    sizes = ("d_model=32", "d_ff=64", "encoder_layers=2", "decoder_layers=1", "heads=2")
    student = [f"--set=model.{size}" for size in (*sizes, "decoder_attention=ssru")]
    assert train(run, *student).status == 0
    assert nmt("shortlist", "--data", dataset, "--model", run).status == 0
    done = nmt("calibrate", "--data", dataset, "--model", run, "--sentences", 12)
    assert (done.status, done.out) == (0, f"{run / 'calibration.json'}\n"), done.err
    assert done.err.startswith("measured 15 layers of update_00000")
    return run


def test_lines_translate_alike_alone_and_in_any_batch(
    calibrated: Path, corpus: Path, tmp_path: Path, nmt: Command
) -> None:
    lines = [*(corpus / "train.en").read_text().splitlines(), "one " * 30]
    flags = ("--model", calibrated, "--precision", "int8", "--shortlist", "--workers", 1)
    found = []
    for seed in range(3):
        order = random.Random(seed).sample(range(len(lines)), len(lines))
        text = tmp_path / "text"
        text.write_text("".join(f"{lines[at]}\n" for at in order))
        size = ("--batch-tokens", (100, 1000, 16384)[seed], "--window", (7, 50, 4096)[seed])
        done = nmt("translate", *flags, *size, text)
        assert done.status == 0, done.err
        found.append(dict(zip(order, done.out.splitlines(), strict=True)))
    assert found[0] == found[1] == found[2]


def test_a_run_is_shown_with_its_shortlist_and_calibration(calibrated: Path, nmt: Command) -> None:
    best = (calibrated / "best").resolve().name
    *_, shortlist, calibration = nmt("inspect", calibrated).out.splitlines()
    assert shortlist == "shortlist: yes, for `nmt translate --shortlist`"
    assert calibration == f"calibration: of {best}, for `nmt translate --precision int8`"
    Calibration(weights="0" * 64, ranges={}).save(calibrated)
    assert "calibration: for a checkpoint that the run no longer has" in nmt(
        "inspect", calibrated
    ).out  # fmt: skip
    (calibrated / "calibration.json").write_text("{}", encoding="utf-8")
    damaged = nmt("inspect", calibrated)
    assert (damaged.status, "calibration.json: damaged" in damaged.out) == (0, True)
    for name in ("calibration.json", "shortlist.safetensors"):
        (calibrated / name).unlink()
    out = nmt("inspect", calibrated).out
    assert "calibration" not in out
    assert "shortlist" not in out


def test_a_calibration_of_other_weights_is_not_used(
    calibrated: Path, corpus: Path, nmt: Command
) -> None:
    flags = ("--model", calibrated, "--precision", "int8", corpus / "test.en")
    found = Calibration.load(calibrated)
    assert found is not None
    assert load_model(calibrated).calibration == found
    assert number_of_fixed_layers(calibrated) == len(found.ranges)
    Calibration(weights="0" * 64, ranges=found.ranges).save(calibrated)
    assert load_model(calibrated).calibration is None
    assert number_of_fixed_layers(calibrated) == 0
    done = nmt("translate", *flags)
    assert done.status == 0
    assert "calibration.json: measured for another checkpoint than update_" in done.err
    assert "make it again with `nmt calibrate`" in done.err
    (calibrated / "calibration.json").unlink()
    assert nmt("translate", *flags).out == done.out


def number_of_fixed_layers(run: Path) -> int:
    """Linear layers whose inputs are quantised by the calibration."""
    model, _ = ensemble_of([load_model(run)], SearchConfig(), Execution(precision="int8"))
    return sum(isinstance(part, (FewRowsLinear, ManyRowsLinear)) for part in model.modules())


def test_a_damaged_calibration_is_an_error(calibrated: Path, corpus: Path, nmt: Command) -> None:
    file = calibrated / "calibration.json"
    file.write_text(file.read_text().replace("decoder", "encoder", 1))
    for command in (
        ("translate", "--model", calibrated, "--precision", "int8", corpus / "test.en"),
        ("inspect", calibrated, "--verify"),
    ):
        done = nmt(*command)
        assert done.status == 1
        assert "calibration.json: damaged: its checksum does not match; make it again" in done.err


def test_layers_that_the_model_lacks_are_an_error(
    calibrated: Path, corpus: Path, nmt: Command
) -> None:
    found = Calibration.load(calibrated)
    assert found is not None
    Calibration(weights=found.weights, ranges={"other": (0.0, 1.0)}).save(calibrated)
    done = nmt("translate", "--model", calibrated, "--precision", "int8", corpus / "test.en")
    assert (done.status, done.out) == (1, "")
    assert done.err == (
        f"nmt: error: {calibrated}: its calibration is of another model; make it again with "
        "`nmt calibrate`\n"
    )
