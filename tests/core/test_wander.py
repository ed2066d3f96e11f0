"""Where the cost of a step goes: known truth recovered, intervals that hold, nothing infinite."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfsched.core.wander import HABIT_SHIFTS, Wander


def blocks(level: np.ndarray[tuple[int], np.dtype[np.float64]], steps: int = 8) -> list[tuple[int, float]]:
    whole = level[: len(level) // steps * steps].reshape(-1, steps)
    return [(steps, float(mean)) for mean in whole.mean(axis=1)]


def noisy(
    level: float, count: int, seed: int, sigma: float = 0.1
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return level * (1.0 + sigma * np.random.default_rng(seed).standard_normal(count))


def test_a_steady_job_goes_on_as_it_was() -> None:
    ahead = Wander(blocks(noisy(0.2, 400, 0)), 0.1).ahead(400)
    assert ahead.seconds == pytest.approx(0.2, rel=0.03)
    assert ahead.sigma_log < 0.06


def test_the_farther_the_less_is_known_and_the_longer_watched_the_more() -> None:
    short, long = Wander(blocks(noisy(0.2, 64, 1)), 0.1), Wander(blocks(noisy(0.2, 4096, 1)), 0.1)
    assert short.ahead(64).sigma_log < short.ahead(6400).sigma_log
    assert long.ahead(640).sigma_log < short.ahead(640).sigma_log


def test_a_slope_goes_on_for_a_while() -> None:
    rising = np.linspace(1.0, 1.4, 800) * noisy(0.1, 800, 2, 0.05)
    wander = Wander(blocks(rising, 16), 0.05)
    assert wander.ahead(400).seconds == pytest.approx(0.1 * 1.5, rel=0.04)
    far = wander.ahead(80_000)
    assert far.seconds < 0.1 * 2.2
    assert far.sigma_log > 0.1


@pytest.mark.parametrize("factor", [0.6, 1.5])
def test_after_a_change_of_level_only_what_came_since_counts(factor: float) -> None:
    level = np.concatenate([noisy(0.1, 600, 3), noisy(0.1 * factor, 200, 4)])
    wander = Wander(blocks(level, 16), 0.1)
    (shift,) = wander.shifts
    assert abs(shift.after_steps - 600) <= 32
    assert shift.before_seconds == pytest.approx(0.1, rel=0.05)
    assert shift.after_seconds == pytest.approx(0.1 * factor, rel=0.05)
    assert wander.ahead(400).seconds == pytest.approx(0.1 * factor, rel=0.07)


def test_a_neighbour_that_comes_and_goes_is_no_change_of_level() -> None:
    level = np.concatenate([noisy(0.1 * (1.0 if i % 2 else 1.6), 100, i) for i in range(8)])
    wander = Wander(blocks(level, 16), 0.1)
    assert len(wander.shifts) == 0 or len(wander.shifts) >= HABIT_SHIFTS
    assert wander.ahead(1600).seconds == pytest.approx(0.13, rel=0.12)


def test_noise_and_slopes_are_seldom_taken_for_a_change() -> None:
    taken = 0
    for seed in range(40):
        steady = noisy(0.1, 640, seed, 0.3)
        taken += bool(Wander(blocks(steady, 16), 0.3).shifts)
        taken += bool(Wander(blocks(steady * np.linspace(1, 1.5, 640), 16), 0.3).shifts)
    assert taken <= 6


def test_over_a_random_walk_most_intervals_hold() -> None:
    """Fewer than on quiet machines, which the prior is for: the run's own surprises then widen them."""
    rng = np.random.default_rng(5)
    held = []
    for _ in range(150):
        walk = np.exp(np.cumsum(0.1 / math.sqrt(800) * rng.standard_normal(1600)))
        level = 0.1 * walk * (1.0 + 0.1 * rng.standard_normal(1600))
        ahead = Wander(blocks(level[:800], 25), 0.1).ahead(800)
        held.append(abs(math.log(level[800:].mean() / ahead.seconds)) <= 1.2816 * ahead.sigma_log)
    assert 0.5 <= np.mean(held) <= 0.95


durations = st.floats(1e-7, 1e8)


@given(
    st.lists(st.tuples(st.integers(1, 10_000), durations), min_size=1, max_size=70),
    st.floats(0, 30),
    st.floats(0, 1e12) | st.just(math.inf),
)
def test_whatever_the_blocks_what_is_ahead_is_finite(
    measured: list[tuple[int, float]], step_sigma: float, steps: float
) -> None:
    ahead = Wander(measured, step_sigma).ahead(steps)
    assert 0 < ahead.seconds < 1e10
    assert 0 <= ahead.sigma_log <= 3
