"""The numbers of parameters in docs/systems.md are those of the models."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import torch
from for_each import for_each

from nmt.models import architectures
from nmt.models.layers.basic import Norm, Placement
from nmt.models.layers.feed_forward import feed_forwards
from nmt.models.transformer.patterns import patterns
from nmt.models.transformer.positions import position_parts

DOCUMENT = (Path(__file__).parents[1] / "docs/systems.md").read_text(encoding="utf-8")
COUNTS = DOCUMENT.split("\n## Numbers of parameters\n")[1].split("\n## ")[0]
ROWS = re.findall(
    r"^\| `(\w+)` \| ([\d,]+)(?: \+ ([\d,]+))? \| ([\d,]+) \| (.*?) ?\|$", COUNTS, re.M
)


def number(text: str) -> int:
    return int(text.replace(",", ""))


@for_each(
    ("name", "source", "target", "count", "printed"),
    ROWS,
)
def test_every_model_has_its_documented_number_of_parameters(
    name: str, source: str, target: str, count: str, printed: str
) -> None:
    with torch.device("meta"):
        model = architectures[name].build(number(source), number(target or source), not target)
    assert model.num_parameters() == number(count)


@for_each(("count", "printed"), [(row[3], row[4]) for row in ROWS if row[4]])
def test_documented_numbers_are_the_printed_ones(count: str, printed: str) -> None:
    if "(6)" in printed:  # GNMT's, of which it is not said what was counted
        assert round(number(count) / 1e6) == 281
    elif exact := re.fullmatch(r"([\d,]+) \(\d\)", printed):
        assert count == exact[1]
    else:
        decimals = len(printed.split()[0].partition(".")[2])
        assert f"{number(count) / 1e6:.{decimals}f} million" == printed.partition(" (")[0]


def test_every_architecture_and_every_part_is_documented() -> None:
    assert {row[0] for row in ROWS} == set(architectures)
    parts = [*position_parts, *feed_forwards, *patterns, *get_args(Placement), *get_args(Norm)]
    assert [name for name in parts if f"| `{name}` |" not in DOCUMENT] == []
