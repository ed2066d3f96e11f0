"""The finish time: right on known truth, calibrated, never negative, kept and scored."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfsched.core.forecast import (
    KEPT_FORECASTS,
    Z90,
    Beside,
    ForecastLog,
    LoggedForecast,
    Remaining,
    StepCost,
    joined,
    mixed,
    remaining_time,
)
from selfsched.core.measurement import Spans
from selfsched.core.progress import RemainingWork
from selfsched.core.series import Series


def cost(seconds: float = 0.1, sigma: float = 0.02) -> StepCost:
    return StepCost(seconds=seconds, sigma_log=sigma, step_sigma=0.2)


def spans(seconds: float, count: int = 5) -> Spans:
    measured = Spans()
    for _ in range(count):
        measured.update(seconds)
    return measured


def test_steps_validations_checkpoints_epochs_and_a_restart_add_up() -> None:
    work = RemainingWork(steps=100, validations=3, checkpoints=2, epoch_ends=1)
    measured = {"validation": spans(5.0), "checkpoint_save": spans(2.0), "epoch_end": spans(1.0)}
    left = remaining_time(
        work, cost(), Beside(spans=measured, restart_seconds=4.0, elapsed_seconds=1.0)
    )
    assert left.median_seconds == pytest.approx(10 + 15 + 4 + 1 + 4 - 1)


def test_nothing_left_takes_no_time() -> None:
    left = remaining_time(RemainingWork(steps=0), cost(), Beside())
    assert left.forecast().p90_seconds == 0.0


def test_validations_that_were_never_measured_cost_what_is_expected_of_them() -> None:
    work = RemainingWork(steps=10, validations=3)
    unknown = remaining_time(work, cost(), Beside())
    expected = remaining_time(work, cost(), Beside(expected={"validation": (2.0, 0.5)}))
    seen = Beside(spans={"validation": spans(4.0)}, expected={"validation": (2.0, 0.5)})
    assert unknown.median_seconds == pytest.approx(1.0)
    assert expected.median_seconds == pytest.approx(7.0)
    assert expected.sigma_log > 0.3
    assert remaining_time(work, cost(), seen).median_seconds == pytest.approx(13.0)


def test_a_limit_of_time_ends_the_run_where_the_steps_would_take_longer() -> None:
    capped = remaining_time(RemainingWork(steps=1000, cap_seconds=30.0), cost(), Beside())
    free = remaining_time(RemainingWork(steps=100, cap_seconds=30.0), cost(), Beside())
    endless = remaining_time(RemainingWork(steps=math.inf, cap_seconds=30.0), cost(), Beside())
    assert capped.median_seconds == endless.median_seconds == pytest.approx(30.0)
    assert capped.sigma_log < 0.05
    assert free.median_seconds == pytest.approx(10.0)


def test_noise_of_single_steps_averages_out_but_doubt_about_the_mean_does_not() -> None:
    noisy = StepCost(seconds=0.1, sigma_log=0.0, step_sigma=1.0)
    doubtful = StepCost(seconds=0.1, sigma_log=0.3, step_sigma=0.0)
    work = RemainingWork(steps=10_000)
    assert remaining_time(work, noisy, Beside()).sigma_log == pytest.approx(0.01, rel=0.1)
    assert remaining_time(work, doubtful, Beside()).sigma_log == pytest.approx(0.3, rel=0.1)


def test_some_eight_of_ten_intervals_hold_when_the_mean_wanders() -> None:
    """Runs whose mean cycle has a slow random walk, as neighbours make it; seed fixed."""
    rng = np.random.default_rng(7)
    covered = []
    for run in range(200):
        walk = 0.01 if run % 2 else 0.02
        level = 0.1 * np.exp(np.cumsum(walk * rng.standard_normal(40))).repeat(25)
        cycles = level * np.exp(0.2 * rng.standard_normal(len(level)))
        series = Series()
        for cycle in cycles[:250]:
            series.update(float(cycle))
        measured = series.level()
        assert measured is not None
        factor, beyond = series.ahead(750)
        ahead = StepCost(
            seconds=measured.seconds * factor,
            sigma_log=math.hypot(measured.sigma_log, beyond),
            step_sigma=measured.step_sigma,
        )
        left = remaining_time(RemainingWork(steps=750), ahead, Beside()).forecast()
        actual = float(cycles[250:].sum())
        covered.append(left.p10_seconds <= actual <= left.p90_seconds)
    assert 0.70 <= np.mean(covered) <= 0.95


def test_a_minimum_of_steps_holds_a_limit_of_time_back() -> None:
    held = remaining_time(RemainingWork(steps=1000, cap_seconds=30.0, least_steps=500), cost(), Beside())
    endless = RemainingWork(steps=math.inf, cap_seconds=30.0, least_steps=500)
    assert held.median_seconds == pytest.approx(50.0)
    assert remaining_time(endless, cost(), Beside()).median_seconds == pytest.approx(50.0)


def test_several_possible_ends_are_a_mixture_and_not_their_mean() -> None:
    work = RemainingWork(steps=1000, validations=100, stops=((100, 0.5), (1000, 0.5)))
    beside = Beside(spans={"validation": spans(1.0)})
    left = remaining_time(work, cost(), beside)
    assert left.quantile(-Z90) == pytest.approx(20.0, rel=0.1)
    assert left.quantile(Z90) == pytest.approx(200.0, rel=0.1)
    sure = remaining_time(RemainingWork(steps=1000, validations=100, stops=((100, 1.0),)), cost(), beside)
    assert sure.median_seconds == pytest.approx(20.0)


def test_a_mixture_of_one_thing_has_its_quantiles() -> None:
    one = Remaining(median_seconds=10.0, sigma_log=0.3)
    twice = mixed([(0.3, one), (0.7, one)])
    for z in (-Z90, -0.5, 0.0, 0.5, Z90):
        assert twice.quantile(z) == pytest.approx(one.quantile(z), rel=0.05)
    assert twice.sigma_log == pytest.approx(0.3, rel=0.1)


def test_a_wider_interval_has_the_same_middle() -> None:
    simple = Remaining(median_seconds=10.0, sigma_log=0.1)
    mixture = mixed([(0.5, simple), (0.5, Remaining(median_seconds=20.0, sigma_log=0.1))])
    for left in (simple, mixture):
        wide = left.scaled(2.0)
        assert wide.quantile(0.0) == pytest.approx(left.quantile(0.0), rel=0.05)
        assert math.log(wide.quantile(Z90) / wide.quantile(-Z90)) == pytest.approx(
            2.0 * math.log(left.quantile(Z90) / left.quantile(-Z90)), rel=0.05
        )
        assert left.scaled(1.0) is left


def test_stretches_one_after_the_other_add_up() -> None:
    first, then = Remaining(median_seconds=10.0, sigma_log=0.1), Remaining(median_seconds=30.0, sigma_log=0.2)
    left = joined([first, then])
    assert left.median_seconds == 40.0
    assert 0.1 < left.sigma_log < 0.2
    assert joined([]).median_seconds == 0.0


@given(
    st.floats(0, 1e12),
    st.floats(1e-7, 1e8),
    st.floats(0, 3),
    st.floats(0, 1e9),
    st.none() | st.floats(0, 1e9),
    st.lists(st.tuples(st.floats(0, 1), st.floats(0.01, 1)), max_size=5),
    st.floats(0.5, 3),
)
def test_whatever_is_left_the_quantiles_are_ordered_and_finite(
    steps: float,
    seconds: float,
    sigma: float,
    elapsed: float,
    cap: float | None,
    stops: list[tuple[float, float]],
    width: float,
) -> None:
    work = RemainingWork(
        steps=steps, validations=2, cap_seconds=cap, least_steps=0.1 * steps,
        stops=tuple((share * steps, weight) for share, weight in stops),
    )  # fmt: skip
    beside = Beside(spans={"validation": spans(3.0)}, elapsed_seconds=elapsed)
    left = remaining_time(work, cost(seconds, sigma), beside).scaled(width)
    forecast = left.forecast()  # validates order, range and finiteness
    assert forecast.assumption == "as_now"
    assert 0 <= left.sigma_log <= 3


def entry(made_at: float, *, segment: int = 1, predicted: float = 10.0) -> LoggedForecast:
    return LoggedForecast(
        made_at=made_at, devices=1, segment=segment, step=1, fraction_done=0.1, step_seconds=0.1,
        sigma_log=0.1, p10_seconds=predicted * 0.9, p50_seconds=predicted, p90_seconds=predicted * 1.1,
    )  # fmt: skip


def test_a_past_forecast_is_scored_against_what_came() -> None:
    log = ForecastLog(entries=[entry(0.0, segment=1), entry(10.0, segment=2), entry(99.0)])
    first, second = log.score(finished_at=20.0, last_segment=2)
    assert (first.error, first.covered80, first.allocation_held) == (0.5, False, False)
    assert (second.error, second.covered80, second.allocation_held) == (0.0, True, True)


def test_the_log_is_bounded_and_keeps_its_beginning_and_its_end() -> None:
    log = ForecastLog()
    for second in range(5 * KEPT_FORECASTS):
        log.add(entry(float(second)))
    assert len(log.entries) <= KEPT_FORECASTS
    assert log.entries[0].made_at == 0.0
    assert log.entries[-1].made_at == 5 * KEPT_FORECASTS - 1
    assert ForecastLog.from_state(json.loads(json.dumps(log.to_state()))) == log


def test_a_quantile_stays_within_the_protocol() -> None:
    assert Remaining(median_seconds=3e9, sigma_log=3.0).forecast().p90_seconds == 3.2e9


def test_no_width_puts_an_end_behind_the_limit_of_the_run() -> None:
    work = RemainingWork(steps=100.0, stops=((10.0, 0.6), (20.0, 0.2), (100.0, 0.2)))
    cost = StepCost(seconds=0.02, sigma_log=0.01, step_sigma=0.01)
    wide = remaining_time(work, cost, Beside()).scaled(6.0)
    assert wide.quantile(1.2815515655446004) <= 2.0 * 1.2
    assert wide.quantile(-1.2815515655446004) < 0.2


def test_a_limit_of_time_that_waits_for_the_end_of_an_epoch_holds_there() -> None:
    cost = StepCost(seconds=0.02, sigma_log=0.01, step_sigma=0.01)
    for steps in (3850.0, math.inf):
        for cap, expected in ((0.0, 5.0), (4.0, 5.0), (6.0, 13.0)):
            work = RemainingWork(steps=steps, cap_seconds=cap, cap_steps=(250.0, 400.0))
            assert remaining_time(work, cost, Beside()).median_seconds == pytest.approx(expected)
