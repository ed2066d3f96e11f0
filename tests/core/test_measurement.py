"""Statistics of steps: merge exactly, forget accidents, follow drift, never turn into nonsense."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfsched.core.measurement import (
    FIRST_BLOCK_STEPS,
    MAX_BLOCKS,
    Running,
    Series,
    Sketch,
    Spans,
    usable_seconds,
)

positive = st.floats(1e-6, 1e6)


def filled(cycles: list[float]) -> Series:
    series = Series()
    for cycle in cycles:
        series.update(cycle)
    return series


@pytest.mark.parametrize("nonsense", [None, math.nan, math.inf, -math.inf, 0.0, -1.0])
def test_a_duration_that_cannot_be_is_not_counted(nonsense: float | None) -> None:
    assert usable_seconds(nonsense) is None


def test_a_duration_is_clipped_to_a_sane_range() -> None:
    assert usable_seconds(1e-12) == 1e-7
    assert usable_seconds(1e300) == 1e8


@given(st.lists(positive), st.lists(positive))
def test_merged_moments_equal_those_of_the_joined_stream(a: list[float], b: list[float]) -> None:
    left, right, whole = Running(), Running(), Running()
    for value in a:
        left.update(value)
        whole.update(value)
    for value in b:
        right.update(value)
        whole.update(value)
    left.merge(right)
    assert left.count == whole.count == len(a) + len(b)
    assert left.mean == pytest.approx(whole.mean)
    assert left.m2 == pytest.approx(whole.m2, rel=1e-6, abs=1e-6)


def test_no_value_is_no_variance_and_a_count_of_zero() -> None:
    assert Running().variance is None
    assert Running().moments().count == 0
    running = Running()
    for value in (1.0, 3.0):
        running.update(value)
    assert running.variance == pytest.approx(2.0)
    assert running.moments().mean == pytest.approx(2.0)


@given(st.lists(positive, min_size=1, max_size=200), st.floats(0.01, 0.99))
def test_a_quantile_of_the_sketch_is_right_to_its_bin(values: list[float], fraction: float) -> None:
    sketch = Sketch()
    for value in values:
        sketch.update(value)
    exact = float(np.quantile(values, fraction, method="inverted_cdf"))
    assert sketch.quantile(fraction) == pytest.approx(exact, rel=0.03)


def test_sketches_merge_exactly_and_an_empty_one_knows_nothing() -> None:
    a, b, whole = Sketch(), Sketch(), Sketch()
    for value in (0.1, 0.2, 5.0):
        a.update(value)
        whole.update(value)
    for value in (0.1, 7.0):
        b.update(value)
        whole.update(value)
    a.merge(b)
    assert a == whole
    assert Sketch().quantile(0.5) is None


def test_spans_are_drawn_to_their_prior_and_drop_nonsense() -> None:
    spans = Spans()
    assert spans.mean() == 0.0
    assert spans.mean(prior_seconds=2.0, prior_count=1.0) == 2.0
    for seconds in (4.0, math.nan, -1.0, math.inf):
        spans.update(seconds)
    assert spans.count == 1
    assert spans.mean(prior_seconds=2.0, prior_count=1.0) == pytest.approx(3.0)
    assert Spans.from_state(json.loads(json.dumps(spans.to_state()))) == spans


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
