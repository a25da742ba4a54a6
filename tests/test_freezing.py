from pathlib import Path
from typing import Any

import pytest
import torch
from for_each import for_each
from torch import nn

from nmt.errors import NmtError
from nmt.runs import Checkpoint
from nmt.training.model_options import freeze


def model() -> nn.Module:
    layers = nn.ModuleDict({"inner": nn.Linear(2, 2), "outer": nn.Linear(2, 2)})
    return nn.ModuleDict({"encoder": layers, "output": nn.Linear(2, 2)})


@for_each(
    ("patterns", "trained"),
    [
        ([], 6),
        (["encoder.*"], 2),
        (["*.bias"], 3),
        (["encoder.outer.weight", "output.*"], 3),
    ],
)
def test_weights_are_frozen_by_the_patterns_of_their_names(
    patterns: list[str], trained: int
) -> None:
    it = model()
    freeze(it, patterns)
    assert sum(weight.requires_grad for weight in it.parameters()) == trained


@for_each(
    ("pattern", "nearest"),
    [
        ("encodr.*", "encoder.*"),
        ("encoder.iner.*", "encoder.inner.*"),
        ("output.wight", "output.weight"),
    ],
)
def test_a_pattern_that_matches_nothing_is_refused_with_the_nearest(
    pattern: str, nearest: str
) -> None:
    with pytest.raises(NmtError, match="no weight matches") as error:
        freeze(model(), [pattern])
    assert str(error.value).endswith(f"did you mean {nearest!r}?")


def test_a_pattern_like_no_name_is_answered_with_where_the_names_are() -> None:
    with pytest.raises(NmtError) as error:
        freeze(model(), ["embeddings"])
    assert str(error.value) == (
        "train.freeze: no weight matches 'embeddings'; the names are those in model.safetensors"
    )


def test_something_must_be_left_to_train() -> None:
    with pytest.raises(NmtError, match=r"encoder\.\*, output\.\* leave nothing to train"):
        freeze(model(), ["encoder.*", "output.*"])


def test_frozen_weights_stay_and_the_others_move_also_after_a_resume(
    train: Any, tmp_path: Path
) -> None:
    frozen = ("--set", "train.freeze=[encoder.*]", "--save-every", 1)
    for updates in (1, 3):
        done = train(tmp_path / "run", *frozen, "--max-updates", updates)
        assert done.status == 0, done.err
    first, last = (
        Checkpoint.open(tmp_path / "run" / f"update_000000{number}").weights() for number in (1, 3)
    )
    moved = {name for name in first if not torch.equal(first[name], last[name])}
    assert moved == {name for name in first if not name.startswith("encoder.")}
    done = train(tmp_path / "other", "--set", "train.freeze=[encodr.*]")
    assert (done.status, done.err) == (
        1,
        "nmt: error: train.freeze: no weight matches 'encodr.*'; did you mean 'encoder.*'?\n",
    )
