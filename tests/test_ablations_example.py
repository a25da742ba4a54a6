import importlib.util
import sys
from pathlib import Path

import pytest

from nmt.cli.recipe import load
from nmt.config import build
from nmt.models import ModelConfig
from nmt.training.trainer import TrainConfig

DIRECTORY = Path(__file__).parents[1] / "examples/ablations"
spec = importlib.util.spec_from_file_location("table3", DIRECTORY / "table3.py")
table3 = importlib.util.module_from_spec(spec)
sys.modules["table3"] = table3
spec.loader.exec_module(table3)


def resolved(row: str) -> tuple[object, object]:
    recipe = load(DIRECTORY / "small.yaml", table3.ROWS[row][0].split(), {})
    return tuple(
        build(kind, recipe.section(name), name)
        for name, kind in (("model", ModelConfig), ("train", TrainConfig))
    )


@pytest.mark.parametrize("row", [row for row in table3.ROWS if row != "base"])
def test_every_row_can_be_built_and_differs_from_the_first(row: str) -> None:
    assert resolved(row) != resolved("base")


def test_changes_have_the_standard_error_of_a_difference_of_means() -> None:
    lines = table3.table({"base": [30.0, 32.0], "D: dropout 0": [28.0, 28.0]}).splitlines()
    assert lines[2] == "| base | 31.00 |  |  |  |"
    assert lines[3] == "| D: dropout 0 | 28.00 | -3.00 | 1.00 | -1.2 |"
