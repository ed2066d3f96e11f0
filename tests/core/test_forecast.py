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
    ForecastLog,
    LoggedForecast,
    Remaining,
    StepCost,
    remaining_time,
    step_cost,
)
from selfsched.core.measurement import Spans
from selfsched.core.performance import StepTime
from selfsched.core.progress import RemainingWork
from selfsched.core.series import Series


def cost(seconds: float = 0.1, sigma: float = 0.02, watched: float = 100.0) -> StepCost:
    return StepCost(seconds=seconds, sigma_log=sigma, step_sigma=0.2, watched_seconds=watched)


def spans(seconds: float, count: int = 5) -> Spans:
    measured = Spans()
    for _ in range(count):
        measured.update(seconds)
    return measured


def test_steps_validations_checkpoints_epochs_and_a_restart_add_up() -> None:
    work = RemainingWork(steps=100, validations=3, checkpoints=2, epoch_ends=1)
    measured = {"validation": spans(5.0), "checkpoint_save": spans(2.0), "epoch_end": spans(1.0)}
    left = remaining_time(work, cost(), measured, restart_seconds=4.0, elapsed_seconds=1.0)
    assert left.median_seconds == pytest.approx(10 + 15 + 4 + 1 + 4 - 1)


def test_nothing_left_takes_no_time() -> None:
    left = remaining_time(RemainingWork(steps=0), cost(), {})
    assert left.forecast().p90_seconds == 0.0


def test_validations_that_were_never_measured_are_not_invented() -> None:
    left = remaining_time(RemainingWork(steps=10, validations=3), cost(), {})
    assert left.median_seconds == pytest.approx(1.0)


def test_a_limit_of_time_ends_the_run_where_the_steps_would_take_longer() -> None:
    capped = remaining_time(RemainingWork(steps=1000, cap_seconds=30.0), cost(), {})
    free = remaining_time(RemainingWork(steps=100, cap_seconds=30.0), cost(), {})
    endless = remaining_time(RemainingWork(steps=math.inf, cap_seconds=30.0), cost(), {})
    assert capped.median_seconds == endless.median_seconds == pytest.approx(30.0)
    assert capped.sigma_log < 0.05
    assert free.median_seconds == pytest.approx(10.0)


def test_early_in_a_run_the_interval_is_wider_than_late() -> None:
    early = remaining_time(RemainingWork(steps=10_000), cost(watched=3.0), {})
    late = remaining_time(RemainingWork(steps=10_000), cost(watched=3000.0), {})
    assert early.sigma_log > 1.5 * late.sigma_log


def test_noise_of_single_steps_averages_out_but_doubt_about_the_mean_does_not() -> None:
    noisy = StepCost(seconds=0.1, sigma_log=0.0, step_sigma=1.0, watched_seconds=1e9, drift_log=0.0)
    doubtful = StepCost(seconds=0.1, sigma_log=0.3, step_sigma=0.0, watched_seconds=1e9, drift_log=0.0)
    work = RemainingWork(steps=10_000)
    assert remaining_time(work, noisy, {}).sigma_log == pytest.approx(0.01, rel=0.1)
    assert remaining_time(work, doubtful, {}).sigma_log == pytest.approx(0.3, rel=0.1)


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
        step = StepTime(devices=1, seconds=measured.seconds, sigma_log=measured.sigma_log, measured=True)
        left = remaining_time(
            RemainingWork(steps=750), step_cost(step, measured, series.steady_seconds), {}
        ).forecast()
        actual = float(cycles[250:].sum())
        covered.append(left.p10_seconds <= actual <= left.p90_seconds)
    assert 0.70 <= np.mean(covered) <= 0.95


def test_a_step_never_measured_there_has_the_models_doubt() -> None:
    step = StepTime(devices=4, seconds=0.05, sigma_log=0.4, measured=False)
    joined = step_cost(step, None, 10.0)
    assert (joined.seconds, joined.sigma_log) == (0.05, 0.4)


@given(
    st.floats(0, 1e12),
    st.floats(1e-7, 1e8),
    st.floats(0, 3),
    st.floats(0, 1e9),
    st.floats(0, 1e9),
    st.none() | st.floats(0, 1e9),
)
def test_whatever_is_left_the_quantiles_are_ordered_and_finite(
    steps: float, seconds: float, sigma: float, watched: float, elapsed: float, cap: float | None
) -> None:
    left = remaining_time(
        RemainingWork(steps=steps, validations=2, cap_seconds=cap),
        cost(seconds, sigma, watched),
        {"validation": spans(3.0)},
        elapsed_seconds=elapsed,
    )
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
