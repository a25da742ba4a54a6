import importlib.util
import sys
from pathlib import Path

import pytest

from nmt.cli.recipe import load
from nmt.models import ModelConfig
from nmt.recipe.config import build
from nmt.training.config import TrainConfig

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


def test_a_run_is_trained_translated_and_scored_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []

    def nmt(*arguments: str) -> str:
        calls.append(arguments)
        if arguments[0] == "train":
            (tmp_path / "work" / Path(arguments[2]).parent.name).mkdir(parents=True)
        return '{"metric": "bleu", "value": 12.5}\n'

    monkeypatch.setattr(table3, "nmt", nmt)
    monkeypatch.setattr(table3, "HERE", tmp_path)
    command = ["table3.py", "--seeds", "2", "--updates", "30", "--rows"]
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", [*command, "D: dropout 0"])
        table3.main()
        assert "| D: dropout 0 | 12.50 | +0.00 | 0.00 | -1.2 |" in capsys.readouterr().out
    assert [call[0] for call in calls] == 4 * ["train", "translate", "score"]
    trained = calls[6]
    assert trained[2].endswith("D__dropout_0-1/run")
    assert {"--set=model.dropout=0", "--set=train.seed=1"} <= {*trained}
    assert {"--set=train.max_minutes=null", "--set=train.max_updates=30"} <= {*trained}
