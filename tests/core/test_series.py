"""Steps of one device count: accidents are forgotten, drift is followed, memory is bounded."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfsched.core.series import FIRST_BLOCK_STEPS, MAX_BLOCKS, Series

positive = st.floats(1e-6, 1e6)


def filled(cycles: list[float]) -> Series:
    series = Series()
    for cycle in cycles:
        series.update(cycle)
    return series


def test_before_the_first_step_there_is_no_level() -> None:
    assert Series().level() is None
    assert Series().quantile(0.95) is None


def test_warm_up_alone_gives_a_wide_level() -> None:
    series = Series()
    series.warmed_up(1.0)
    level = series.level()
    assert level is not None
    assert level.count == 0
    assert 0 < level.seconds <= 1.0
    assert level.sigma_log >= 0.5
    assert series.quantile(0.5) == 1.0


def test_one_enormous_first_step_does_not_speak_for_the_others() -> None:
    series = Series()
    for cycle in [5.0] + [0.1] * 9:
        series.warmed_up(cycle)
    level = series.level()
    assert level is not None
    assert level.seconds < 0.15


def test_the_level_is_the_mean_with_its_heavy_tail_and_not_the_median() -> None:
    rng = np.random.default_rng(1)
    cycles = np.where(rng.random(4000) < 0.05, 1.0, 0.1) * np.exp(0.1 * rng.standard_normal(4000))
    level = filled(list(cycles)).level()
    assert level is not None
    assert level.seconds == pytest.approx(float(cycles.mean()), rel=0.1)
    assert level.seconds > 1.3 * float(np.median(cycles))


def test_the_mean_is_known_better_the_more_steps_there_are() -> None:
    rng = np.random.default_rng(2)
    cycles = list(0.1 * np.exp(0.2 * rng.standard_normal(2000)))
    sigmas = [filled(cycles[:n]).level().sigma_log for n in (4, 30, 300, 2000)]  # type: ignore[union-attr]
    assert sigmas == sorted(sigmas, reverse=True)


def test_a_stopped_minute_is_an_accident() -> None:
    quiet = filled([0.1] * 200).level()
    series = filled([0.1] * 100)
    assert not series.update(60.0)
    for _ in range(100):
        series.update(0.1)
    level = series.level()
    assert level is not None
    assert quiet is not None
    assert level.seconds == pytest.approx(quiet.seconds)
    assert series.interruptions == 1
    assert series.interrupted_seconds == 60.0


def test_a_minute_stopped_among_the_very_first_steps_is_an_accident_too() -> None:
    series = filled([0.1, 0.1, 60.0] + [0.1] * 30)
    level = series.level()
    assert level is not None
    assert level.seconds == pytest.approx(0.1)
    assert series.interruptions == 1


def test_interruptions_that_come_again_and_again_belong_to_the_job() -> None:
    cycles = ([0.1] * 99 + [10.0]) * 5
    level = filled(cycles).level()
    assert level is not None
    assert level.seconds == pytest.approx(np.mean(cycles), rel=0.02)


def test_a_job_that_stays_slow_is_slow_and_not_interrupted_for_ever() -> None:
    series = filled([0.1] * 100 + [10.0] * 40)
    level = series.level()
    assert level is not None
    assert level.seconds == pytest.approx(10.0, rel=0.05)
    assert series.interruptions == 0


def test_after_a_drift_the_newest_steps_count() -> None:
    rng = np.random.default_rng(3)
    noise = np.exp(0.05 * rng.standard_normal(1200))
    cycles = list(0.1 * noise[:900]) + list(0.2 * noise[900:])
    level = filled(cycles).level()
    assert level is not None
    assert level.drifted
    assert level.seconds == pytest.approx(0.2, rel=0.15)


def test_a_steady_job_has_not_drifted() -> None:
    rng = np.random.default_rng(4)
    drifted = 0
    for _ in range(50):
        level = filled(list(0.1 * np.exp(0.3 * rng.standard_normal(300)))).level()
        assert level is not None
        drifted += level.drifted
    assert drifted <= 4


def test_a_run_of_any_length_takes_the_same_memory() -> None:
    series = filled([0.01] * (FIRST_BLOCK_STEPS * MAX_BLOCKS * 9))
    assert len(series.blocks) < MAX_BLOCKS
    assert sum(steps for steps, _ in series.blocks) + series._open[0] == series.steady
    level = series.level()
    assert level is not None
    assert level.seconds == pytest.approx(0.01)


def test_parts_are_counted_on_their_own() -> None:
    series = Series()
    series.part("data", [0.25, None, math.nan, 0.75])
    series.part("forward", [-1.0, math.inf])
    assert series.part_means() == {"data": 0.5}


@given(st.lists(positive, max_size=300))
def test_whatever_comes_a_series_stays_finite_and_survives_json(cycles: list[float]) -> None:
    series = filled(cycles)
    again = Series.from_state(json.loads(json.dumps(series.to_state())))
    assert again == series
    level = again.level()
    if level is None:
        assert not cycles
        return
    assert 0 < level.seconds < 1e8
    assert 0 <= level.sigma_log <= 3
    assert 0 <= level.step_sigma <= 30
    assert series.steady + series.interruptions >= len(cycles)


def test_a_batch_that_grows_for_good_takes_what_was_learned_along() -> None:
    series = Series()
    for samples, cycle in [(32, 0.1)] * 200 + [(64, 0.2)] * 10:
        series.update(cycle * series.sized(samples))
    level = series.level()
    assert level is not None
    assert level.seconds == pytest.approx(0.2, rel=0.05)
    assert level.sigma_log < 0.1
    assert series.quantile(0.5) == pytest.approx(0.2, rel=0.05)
    assert Series.from_state(json.loads(json.dumps(series.to_state()))) == series


def test_a_ragged_batch_at_the_end_of_an_epoch_changes_nothing() -> None:
    series = Series()
    for index in range(400):
        ragged = index % 20 == 19
        series.update((0.03 if ragged else 0.1) * series.sized(7 if ragged else 32))
    level = series.level()
    assert level is not None
    assert level.seconds == pytest.approx(0.1 - 0.07 / 20, rel=0.03)


@given(st.lists(st.tuples(positive, st.integers(0, 10**9)), max_size=60))
def test_whatever_the_batches_a_series_stays_finite(steps: list[tuple[float, int]]) -> None:
    series = Series()
    for cycle, samples in steps:
        series.update(cycle * series.sized(samples))
    level = series.level()
    assert level is None or (0 < level.seconds < 1e10 and 0 <= level.sigma_log <= 3)
    factor, wander = series.ahead(1e6)
    assert 0 < factor < 1e3
    assert 0 <= wander <= 3


def test_a_drift_has_its_reason() -> None:
    series = Series()
    for index in range(400):
        data = 0.01 if index < 300 else 0.06
        series.update(0.1 + data)
        series.parts_of({"data": data, "forward": 0.05, "backward": 0.05}, 1)
    drift = series.drift()
    assert drift is not None
    assert drift.part == "data"
    assert 80 <= drift.steps_ago <= 120
    assert filled([0.1] * 300).drift() is None
    assert Series().drift() is None
