from typing import Any

import pytest
import torch
from for_each import for_each

from nmt.errors import NmtError
from nmt.runtime.distributed import World
from nmt.training.trainer import INTERVAL, LossScale, is_fp16

FINE, OVERFLOW = torch.tensor(True), torch.tensor(False)


def scale(wanted: bool = True) -> LossScale:
    return LossScale(wanted, torch.device("cpu"))


def test_an_overflow_halves_the_scale_and_is_no_failure() -> None:
    it = scale()
    first = float(it.value)
    assert bool(it.is_overflow(OVERFLOW))
    assert not bool(it.is_overflow(FINE))
    it.update(OVERFLOW)
    assert float(it.value) == first / 2


def test_many_updates_without_an_overflow_double_it() -> None:
    it = scale()
    first = float(it.value)
    for _ in range(INTERVAL):
        assert float(it.value) == first
        it.update(FINE)
    assert float(it.value) == 2 * first
    it.update(FINE)
    assert float(it.value) == 2 * first


def test_at_its_least_a_gradient_that_is_not_finite_is_a_failure() -> None:
    it = scale()
    for _ in range(40):
        it.update(OVERFLOW)
    assert float(it.value) == 1.0
    assert not bool(it.is_overflow(OVERFLOW))


def test_unwanted_it_is_one_and_every_bad_gradient_is_a_failure() -> None:
    it = scale(wanted=False)
    it.update(OVERFLOW)
    assert float(it.value) == 1.0
    assert not bool(it.is_overflow(OVERFLOW))


def test_it_goes_on_where_it_was() -> None:
    it, other = scale(), scale()
    for is_finite in (OVERFLOW, FINE, FINE):
        it.update(is_finite)
    other.restore(it.state())
    assert other.state() == it.state() == [2.0**15, 2.0]
    other.restore([])  # of a run that was not in fp16
    assert other.state() == it.state()


@for_each(("others", "expected"), [((), True), (("fp16",), True), (("bf16", "fp16"), None)])
def test_all_processes_scale_the_loss_or_none(others: tuple[str, ...], expected: Any) -> None:
    class Among(World):
        def gather(self, value: Any) -> list[Any]:
            return [value, *others]

    assert not is_fp16("bf16", World())
    if expected is None:
        with pytest.raises(NmtError, match="auto chooses bf16 and fp16 on different devices"):
            is_fp16("fp16", Among())
    else:
        assert is_fp16("fp16", Among()) is expected
