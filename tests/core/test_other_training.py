"""Steps that were measured of another training, or in another life, do not speak for the new one."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from selfsched.core.events import FitStarted, StepsTimed, StepTiming
from selfsched.core.job_model import JobModel
from selfsched.core.series import Series

FACTS: dict[str, Any] = {"module": "mine.Net", "gradient_bytes": 4000, "global_batch": 8}


def new_model(state: Any = None) -> JobModel:
    return JobModel(hardware="cpu", min_devices=1, max_devices=1, state=state)


def train(
    model: JobModel,
    seconds: float,
    steps: int,
    *,
    fit: int = 1,
    step: int = 0,
    warm_up: int = 0,
    **facts: Any,
) -> None:
    """A fit, or what goes on of it, with steps of so many seconds."""
    model.segment_started(1, 0.0)
    begun = FitStarted(
        fit=fit, package="lightning", reference_devices=1, step=step, planned_steps=step + 1000, at=0.0,
        **(FACTS | facts),
    )  # fmt: skip
    model.observe(begun, 0.0)
    rng = np.random.default_rng(step)
    for index in range(steps):
        cycle = seconds * float(np.exp(0.1 * rng.standard_normal()))
        timing = StepTiming(
            step=step + index + 1, seconds=cycle, cycle_seconds=cycle, local_samples=8,
            warm_up=index < warm_up,
        )
        model.observe(StepsTimed(timings=(timing,)), seconds * (index + 1))


def seconds_of(model: JobModel) -> float:
    step = model.step_time(1)
    assert step is not None
    return step[0]


@pytest.mark.parametrize("other", [{"module": "mine.Bigger"}, {"gradient_bytes": 8000}, {"global_batch": 16}])
@pytest.mark.parametrize("resumed", [False, True])
def test_another_module_or_batch_is_measured_anew(other: dict[str, Any], resumed: bool) -> None:
    model = new_model()
    train(model, 0.01, 300)
    model.segment_ended(4.0)
    if resumed:
        model = new_model(json.loads(json.dumps(model.to_state())))
    train(model, 0.05, 3, fit=1 if resumed else 2, **other)
    assert seconds_of(model) == pytest.approx(0.05, rel=0.2)
    assert model.explanation(1.0).steps == {1: 3}


def test_the_same_training_keeps_what_was_measured_also_where_an_accumulation_changed_on_the_way() -> None:
    model = new_model()
    train(model, 0.01, 300)
    model.segment_ended(4.0)
    train(model, 0.01, 3, step=300, global_batch=16)
    assert model.explanation(1.0).steps == {1: 303}


@pytest.mark.parametrize("seconds", [0.1, 0.002])
def test_the_same_training_that_costs_something_else_is_doubted_at_once_and_then_believed(
    seconds: float,
) -> None:
    first = new_model()
    train(first, 0.01, 300)
    first.segment_ended(4.0)
    state = json.loads(json.dumps(first.to_state()))
    for steps in (1, 3, 7):
        model = new_model(state)
        train(model, seconds, steps, step=300)
        forecast = model.forecast(1, seconds * steps)
        assert forecast is not None
        assert forecast.p10_seconds < (1000 - steps) * seconds < forecast.p90_seconds
    model = new_model(state)
    train(model, seconds, 20, step=300)
    assert seconds_of(model) == pytest.approx(seconds, rel=0.15)


def test_a_warm_up_alone_contradicts_already() -> None:
    series = Series()
    for _ in range(100):
        series.update(0.01)
    series.went_on()
    for cycle in (0.5, 0.12, 0.11):
        series.warmed_up(cycle)
    level = series.level()
    assert level is not None
    assert level.sigma_log > 1.0


def test_steps_that_go_on_as_they_were_change_nothing() -> None:
    series, same = Series(), Series()
    for index in range(200):
        if index in (100, 150):
            series.went_on()
        for one in (series, same):
            one.update(0.01 + 0.001 * (index % 3))
    assert series == same
    assert series.level() == same.level()


# --- the first forecast ---------------------------------------------------------------------------


def first_steps(*timings: StepTiming) -> JobModel:
    model = new_model()
    train(model, 0.01, 0)
    for timing in timings:
        model.observe(StepsTimed(timings=(timing,)), 1.0)
    return model


FIRST = StepTiming(step=1, seconds=0.6, data_seconds=0.9, local_samples=8, warm_up=True)


def test_the_first_step_says_nothing_of_the_others() -> None:
    model = first_steps(FIRST)
    assert model.forecast(1, 1.0) is None
    assert model.step_time(1) is None


def test_the_second_step_gives_a_wide_forecast() -> None:
    model = first_steps(FIRST, StepTiming(step=2, seconds=0.02, cycle_seconds=0.02, warm_up=True))
    forecast = model.forecast(1, 1.0)
    assert forecast is not None
    assert forecast.p90_seconds / forecast.p10_seconds > 6
    assert forecast.p10_seconds < 1000 * 0.01 < forecast.p90_seconds


def test_a_first_step_of_minutes_speaks_without_its_wait_for_data() -> None:
    model = first_steps(StepTiming(step=1, seconds=60.0, data_seconds=500.0, warm_up=True))
    forecast = model.forecast(1, 1.0)
    assert forecast is not None
    assert forecast.p10_seconds < 1000 * 60.0 < forecast.p90_seconds
    assert forecast.p50_seconds < 1000 * 100.0
