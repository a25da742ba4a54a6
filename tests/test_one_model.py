"""Commands that work with one model refuse a second, which would be an ensemble elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nmt.cli.one_model import model_or_default, only_model


@pytest.mark.parametrize(
    "command",
    [
        ("align", "--source", "a", "--target", "b"),
        ("calibrate",),
        ("export", "--output", "exported"),
        ("rescore", "--source", "a"),
        ("score", "a", "--source", "b"),
        ("shortlist",),
    ],
    ids=lambda command: command[0],
)
def test_a_second_model_is_refused(command: tuple[str, ...], nmt: Callable[..., Any]) -> None:
    done = nmt(*command, "--model", "one", "--model", "two")
    assert (done.status, done.out) == (2, "")
    assert "--model is one model here; run the command once for each" in done.err


def test_no_model_is_the_usual_run() -> None:
    assert only_model(None) is only_model([]) is None
    assert model_or_default([]) == Path("checkpoints")
    assert model_or_default([Path("run")]) == only_model([Path("run")]) == Path("run")
