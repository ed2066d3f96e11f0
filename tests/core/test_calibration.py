"""Past scores make intervals wider or narrower: towards what would have held, slowly, bounded."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfsched.core.calibration import NARROWEST, USUAL, WIDEST, Z80, Calibration, place, quantile, surprise
from selfsched.core.forecast import LoggedForecast, Remaining


def ran(calibration: Calibration, sigma: float, runs: int, seed: int = 0) -> Calibration:
    """Runs whose forecasts are off by `sigma` of their own standard deviations."""
    rng = np.random.default_rng(seed)
    for _ in range(runs):
        calibration.ended([(done, float(sigma * rng.standard_normal())) for done in (0.1, 0.25, 0.5, 0.75)])
    return calibration


def made(at: float, *, left: float, sigma: float = 0.05) -> LoggedForecast:
    return LoggedForecast(
        made_at=at, devices=1, segment=1, step=1, fraction_done=0.1, step_seconds=0.1, sigma_log=sigma,
        p10_seconds=left * math.exp(-Z80 * sigma), p50_seconds=left, p90_seconds=left * math.exp(Z80 * sigma),
    )  # fmt: skip


def test_before_any_run_was_over_nothing_changes() -> None:
    assert Calibration().width == USUAL
    empty = Calibration()
    empty.ended([])
    assert empty.width == USUAL


@pytest.mark.parametrize("sigma", [0.6, 1.0, 2.0])
def test_after_many_runs_the_width_is_what_would_have_held(sigma: float) -> None:
    calibration = ran(Calibration(), sigma, 200)
    assert calibration.width == pytest.approx(sigma, rel=0.25)
    assert len(calibration.runs) <= 40


def test_one_run_moves_it_little() -> None:
    calibration = Calibration()
    calibration.ended([(0.5, 4.0)])
    assert USUAL < calibration.width < 1.4 * USUAL


def test_a_width_is_bounded_whatever_was_seen() -> None:
    assert ran(Calibration(), 1000.0, 60).width == WIDEST
    assert ran(Calibration(), 0.0, 60).width == NARROWEST


def test_a_long_run_says_no_more_than_a_short_one() -> None:
    calibration = Calibration()
    calibration.ended([(i / 1000, 0.1) for i in range(1000)])
    assert len(calibration.runs[0]) == 4


def test_it_survives_a_restart() -> None:
    calibration = ran(Calibration(), 1.5, 5)
    assert Calibration.from_state(json.loads(json.dumps(calibration.to_state()))) == calibration


def test_the_place_of_what_came_is_in_standard_deviations() -> None:
    low, middle, high = (10.0 * math.exp(0.1 * z) for z in (-Z80, 0.0, Z80))
    assert place(low, middle, high, 10.0) == pytest.approx(0.0)
    assert place(low, middle, high, 10.0 * math.exp(0.2)) == pytest.approx(2.0)
    assert place(low, middle, high, 10.0 * math.exp(-0.1)) == pytest.approx(-1.0)
    assert place(low, middle, high, 0.0) is None
    assert place(low, middle, high, math.inf) is None


def test_a_forecast_that_keeps_moving_doubts_itself() -> None:
    left = Remaining(median_seconds=100.0, sigma_log=0.05)
    firm = [made(at, left=200.0 - at) for at in range(0, 100, 5)]
    moving = [made(at, left=120.0 - at) for at in range(0, 100, 5)]
    assert surprise(firm, left, 100.0) < 1.0
    assert surprise(moving, left, 100.0) > 1.5
    assert surprise([], left, 100.0) == 1.0


def test_quantiles_go_by_weight() -> None:
    assert quantile([(1.0, 0.1), (2.0, 0.8), (3.0, 0.1)], 0.5) == 2.0
    assert quantile([(1.0, 0.1), (2.0, 0.1)], 1.0) == 2.0


@given(
    st.lists(st.tuples(st.floats(0, 1e9), st.floats(1e-9, 3e9), st.floats(0, 3)), max_size=20),
    st.floats(0, 3e9), st.floats(0, 3), st.floats(0, 1e9),
)  # fmt: skip
def test_whatever_was_said_the_width_is_bounded(
    said: list[tuple[float, float, float]], median: float, sigma: float, now: float
) -> None:
    entries = [made(at, left=left, sigma=spread) for at, left, spread in sorted(said)]
    width = surprise(entries, Remaining(median_seconds=median, sigma_log=sigma), now)
    assert NARROWEST <= width <= WIDEST
    calibration = Calibration()
    places = [place(e.p10_seconds, e.p50_seconds, e.p90_seconds, now) for e in entries]
    calibration.ended([(0.5, z) for z in places if z is not None])
    assert NARROWEST <= calibration.width <= WIDEST
