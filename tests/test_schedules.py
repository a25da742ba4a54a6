from dataclasses import replace

import pytest
from for_each import for_each

from nmt.training.optim.schedules import Schedule, schedules

PAPER = schedules["inverse_sqrt"]


@for_each(
    ("update", "base", "big"),
    [
        (1, 1.746928e-7, 1.235265e-7),
        (4000, 6.987712e-4, 4.941059e-4),
        (8000, 4.941059e-4, 3.493856e-4),
        (100_000, 1.397542e-4, 9.882118e-5),
        (300_000, 8.068715e-5, 5.705443e-5),
    ],
)
def test_the_paper_s_formula_at_known_updates(update: int, base: float, big: float) -> None:
    assert PAPER.rate(update, 512, 300_000) == pytest.approx(base, rel=1e-6)
    assert PAPER.rate(update, 1024, 300_000) == pytest.approx(big, rel=1e-6)


def test_the_factor_of_tensor2tensor_s_third_version() -> None:
    schedule = replace(PAPER, factor=2.0, warmup_updates=8000)
    assert schedule.rate(8000, 512, 1) == pytest.approx(9.88e-4, rel=1e-3)


def test_fairseq_s_peak_is_reached_at_the_end_of_the_warm_up() -> None:
    schedule = replace(PAPER, lr=5e-4, warmup_updates=4000)
    assert schedule.rate(2000, 512, 1) == pytest.approx(2.5e-4)
    assert schedule.rate(4000, 512, 1) == pytest.approx(5e-4)
    assert schedule.rate(16000, 512, 1) == pytest.approx(2.5e-4)
    same = replace(PAPER, factor=0.7155)
    assert same.rate(9999, 512, 1) == pytest.approx(schedule.rate(9999, 512, 1), rel=1e-3)


def test_linear_and_cosine_end_where_they_should() -> None:
    linear = replace(schedules["linear"], lr=1.0, warmup_updates=10)
    assert [linear.rate(update, 1, 110) for update in (10, 60, 110)] == [1.0, 0.5, 0.0]
    cosine = replace(schedules["cosine"], lr=1.0, warmup_updates=10, final_share=0.1)
    assert cosine.rate(60, 1, 110) == pytest.approx(0.55)
    assert cosine.rate(110, 1, 110) == pytest.approx(0.1)
    assert replace(schedules["constant"], lr=0.3).rate(9999, 1, 1) == 0.3
    # Behind the last update, and where training ends with the warm-up.
    assert (linear.rate(200, 1, 110), linear.rate(10, 1, 10)) == (0.0, 0.0)
    assert (cosine.rate(200, 1, 110), cosine.rate(10, 1, 10)) == pytest.approx((0.1, 0.1))


@for_each("name", ["constant", "linear", "cosine"])
def test_a_schedule_without_a_formula_needs_a_learning_rate(name: str) -> None:
    with pytest.raises(ValueError, match=f"the {name} schedule needs lr"):
        schedules[name].rate(9999, 512, 10)


@for_each(
    ("schedule", "values", "message"),
    [
        (PAPER, {"lr": 1e-3, "factor": 2.0}, "give one"),
        (PAPER, {"warmup_updates": 0}, "at least one of warmup_updates"),
        (schedules["constant"], {"lr": 0.0}, "lr must be positive, is 0.0"),
        (schedules["constant"], {"warmup_updates": -1}, "warmup_updates must not be negative"),
    ],
)
def test_values_that_make_no_sense_are_refused(
    schedule: Schedule, values: dict[str, float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        replace(schedule, **values)


def test_a_plateau_lowers_the_rate_after_every_so_many_validations_without_a_better_one() -> None:
    schedule = replace(schedules["plateau"], lr=1.0, warmup_updates=10, plateau=2, shrink=0.5)
    assert [schedule.is_plateau(stale) for stale in range(5)] == [False, False, True, False, True]
    assert [schedule.rate(99, 1, 1, plateaus) for plateaus in range(3)] == [1.0, 0.5, 0.25]
    assert replace(schedule, final_share=0.4).rate(99, 1, 1, plateaus=2) == 0.4
    assert schedule.rate(5, 1, 1, plateaus=1) == 0.25


def test_only_schedules_that_depend_on_the_last_update_change_with_it() -> None:
    for name in schedules:
        schedule = replace(schedules[name], lr=1.0, warmup_updates=10)
        changes = schedule.rate(50, 512, 100) != schedule.rate(50, 512, 200)
        assert changes == schedule.depends_on_max_updates, name
