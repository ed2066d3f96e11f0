"""A whole job's knowledge of itself, driven by simulated truth and by nasty streams."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from selfsched.core.events import (
    Checked,
    CheckpointSaved,
    DeviceObserved,
    DevicesObserved,
    FitFinished,
    FitStarted,
    Progressed,
    RankStarted,
    StepsTimed,
    StepTiming,
    StoppingRule,
    StretchTimed,
)
from selfsched.core.job_model import JobModel
from selfsched.protocol import StandingBid

STEP_SECONDS = {1: 0.10, 2: 0.06}


class SimulatedFit:
    """A training run with known truth that tells its model what a real one would."""

    def __init__(self, model: JobModel, *, steps: int = 1000, seed: int = 0, **facts: Any) -> None:
        self.model, self.steps, self.now, self.step, self.devices = model, steps, 1000.0, 0, 0
        self.facts: dict[str, Any] = {
            "planned_steps": steps, "steps_per_epoch": 100, "max_epochs": steps // 100,
            "validations": steps // 100, "allowed_devices": (1, 2), "gradient_bytes": 4_000_000,
        } | facts  # fmt: skip
        self._rng = np.random.default_rng(seed)

    def start(self, devices: int, *, restart_seconds: float = 0.5) -> None:
        self.devices = devices
        self.model.segment_started(devices, self.now)
        self.now += restart_seconds
        self.model.observe(
            FitStarted(
                fit=1, package="lightning", global_batch=64, reference_devices=1, step=self.step,
                at=self.now, **self.facts,
            ),
            self.now,
        )  # fmt: skip
        self._started_from = self.step

    def leave(self) -> None:
        self.now += 0.2
        self.model.observe(
            CheckpointSaved(fit=1, step=self.step, path="/c", size_bytes=10**6, seconds=0.2), self.now
        )
        self.model.segment_ended(self.now)

    def run(self, steps: int) -> None:
        """Train so many steps, told in batches of five."""
        end = self.step + steps
        while self.step < end:
            timings = tuple(self._step() for _ in range(min(5, end - self.step)))
            self.model.observe(StepsTimed(timings=timings), self.now)
            epoch, rest = divmod(self.step, 100)
            self.model.observe(
                Progressed(fit=1, step=self.step, epoch=epoch, samples=64 * self.step, at=self.now), self.now
            )
            if rest == 0:
                self.now += 0.5
                self.model.observe(StretchTimed(stretch="validation", seconds=0.5, step=self.step), self.now)

    def finish(self) -> None:
        self.run(self.steps - self.step)
        self.model.observe(FitFinished(fit=1, step=self.step, epoch=self.steps // 100, metrics={}), self.now)

    def _step(self) -> StepTiming:
        cycle = STEP_SECONDS[self.devices] * float(np.exp(0.2 * self._rng.standard_normal()))
        self.now += cycle
        self.step += 1
        return StepTiming(
            step=self.step, seconds=0.9 * cycle, data_seconds=0.05 * cycle, cycle_seconds=cycle,
            local_samples=64 // self.devices, warm_up=self.step - self._started_from <= 10,
        )  # fmt: skip


def new_model(state: Mapping[str, Any] | None = None) -> JobModel:
    return JobModel(hardware="cpu", min_devices=1, max_devices=2, state=state)


def rows(bid: StandingBid) -> dict[int, float | None]:
    return {row.placement.devices: row.remaining_seconds for row in bid.rows}


def test_before_any_evidence_nothing_is_claimed() -> None:
    model = new_model()
    assert model.forecast(1, 0.0) is None
    assert rows(model.standing_bid(0, 0.0)) == {1: None, 2: None}
    assert model.step_time(1) is None
    assert model.statistics() == ()
    assert model.explanation().words == ("No step has been measured yet.",)
    assert model.notice_seconds() > 0
    assert model.idle_seconds(1e9) == 0.0


def test_a_segment_needs_a_device() -> None:
    with pytest.raises(ValueError, match="at least one device"):
        new_model().segment_started(0, 0.0)


def test_after_thirty_steady_steps_the_job_is_able_to_bid() -> None:
    fit = SimulatedFit(new_model())
    fit.start(1)
    fit.run(35)
    assert rows(fit.model.standing_bid(1, fit.now)) == {1: None, 2: None}
    assert fit.model.forecast(1, fit.now) is not None
    fit.run(10)
    assert fit.model.progress().steady_steps == 35
    bid = rows(fit.model.standing_bid(1, fit.now))
    assert bid[1] is not None
    assert bid[2] is not None
    assert bid[2] < bid[1]
    assert not any("epoch is unknown" in words for words in fit.model.explanation(fit.now).words)


def test_a_job_of_minute_long_steps_is_able_to_bid_after_a_minute() -> None:
    model = new_model()
    model.segment_started(1, 0.0)
    model.observe(
        FitStarted(fit=1, package="l", global_batch=1, reference_devices=1, step=0, planned_steps=50), 0.0
    )
    model.observe(StepsTimed(timings=(StepTiming(step=1, seconds=70.0, warm_up=True),)), 70.0)
    bid = model.standing_bid(1, 70.0)
    assert all(row.remaining_seconds for row in bid.rows)
    assert bid.rows[0].sigma_log > 0.4


@pytest.mark.parametrize("devices", [1, 2])
def test_at_a_quarter_of_the_work_the_finish_is_right_to_a_tenth(devices: int) -> None:
    fit = SimulatedFit(new_model(), seed=devices)
    fit.start(devices)
    fit.run(250)
    forecast, made_at = fit.model.forecast(devices, fit.now), fit.now
    fit.finish()
    assert forecast is not None
    assert forecast.p50_seconds == pytest.approx(fit.now - made_at, rel=0.1)
    assert forecast.p10_seconds <= fit.now - made_at <= forecast.p90_seconds


def test_both_visited_counts_are_bid_for_from_their_own_steps() -> None:
    fit = SimulatedFit(new_model())
    fit.start(2)
    fit.run(150)
    fit.leave()
    fit.start(1)
    fit.run(150)
    bid = rows(fit.model.standing_bid(1, fit.now))
    assert bid[1] == pytest.approx(700 * 0.1 * 1.02 + 7 * 0.5, rel=0.1)
    assert bid[2] == pytest.approx(700 * 0.06 * 1.02 + 7 * 0.5, rel=0.1)


def test_a_restart_costs_what_it_was_seen_to_cost() -> None:
    fit = SimulatedFit(new_model())
    for devices in (2, 1, 2, 1):
        fit.start(devices, restart_seconds=4.0)
        fit.run(60)
        fit.leave()
    moved = {row.placement.devices: row.restart_seconds for row in fit.model.standing_bid(1, fit.now).rows}
    assert moved[1] == 0.0
    assert moved[2] == pytest.approx(4.0 + 0.2, abs=0.8)


def test_while_it_restarts_the_rest_of_the_restart_is_in_the_forecast() -> None:
    fit = SimulatedFit(new_model())
    fit.start(2)
    fit.run(500)
    fit.leave()
    fit.model.segment_started(2, fit.now)
    early, late = fit.model.forecast(2, fit.now), fit.model.forecast(2, fit.now + 0.3)
    assert early is not None
    assert late is not None
    assert late.p50_seconds < early.p50_seconds


def test_a_move_is_in_the_forecast_with_its_cost() -> None:
    fit = SimulatedFit(new_model())
    fit.start(1)
    fit.run(300)
    moved = fit.model.forecast(2, fit.now)
    row = fit.model.standing_bid(1, fit.now).rows[1]
    assert moved is not None
    assert row.remaining_seconds is not None
    assert moved.p50_seconds == pytest.approx(row.remaining_seconds + row.restart_seconds, rel=0.02)


def test_between_two_events_the_forecast_runs_down_but_not_for_ever() -> None:
    fit = SimulatedFit(new_model())
    fit.start(1)
    fit.run(300)
    now, soon, stuck = (fit.model.forecast(1, fit.now + wait) for wait in (0.0, 0.2, 600.0))
    assert now is not None
    assert soon is not None
    assert stuck is not None
    assert soon.p50_seconds < now.p50_seconds
    assert stuck.p50_seconds > now.p50_seconds - 2.0


def test_a_stopped_minute_does_not_change_the_forecast() -> None:
    calm, stopped = (SimulatedFit(new_model()) for _ in range(2))
    for fit in (calm, stopped):
        fit.start(1)
        fit.run(200)
    stopped.now += 60.0
    stopped.model.observe(
        StepsTimed(timings=(StepTiming(step=201, seconds=60.1, cycle_seconds=60.1),)), stopped.now
    )
    stopped.step += 1
    calm.run(101)
    stopped.run(100)
    quiet, after = calm.model.forecast(1, calm.now), stopped.model.forecast(1, stopped.now)
    assert quiet is not None
    assert after is not None
    assert after.p50_seconds == pytest.approx(quiet.p50_seconds, rel=0.05)


def test_only_counts_that_keep_the_global_batch_are_bid_for() -> None:
    model = JobModel(hardware="cpu", min_devices=1, max_devices=4)
    assert model.allowed_devices == (1, 2, 3, 4)
    fit = SimulatedFit(model, allowed_devices=(1, 2, 4, 8))
    fit.start(1)
    fit.run(60)
    assert model.allowed_devices == (1, 2, 4)
    assert set(rows(model.standing_bid(1, fit.now))) == {1, 2, 4}


def test_the_present_count_has_a_row_even_where_it_is_no_longer_allowed() -> None:
    fit = SimulatedFit(new_model(), allowed_devices=(1,))
    fit.start(2)
    fit.run(60)
    assert set(rows(fit.model.standing_bid(2, fit.now))) == {1, 2}


# --- T14, T15, T16 --------------------------------------------------------------------------


def test_over_several_segments_progress_is_one_row_of_steps() -> None:
    fit = SimulatedFit(new_model())
    shares = []
    for devices in (2, 1, 2):
        fit.start(devices)
        fit.run(100)
        shares.append(fit.model.progress().fraction_done)
        fit.leave()
    assert shares == pytest.approx([0.1, 0.2, 0.3])
    assert fit.model.progress().planned_steps == 1000


def test_max_steps_with_an_iterable_dataset_has_a_forecast_for_its_steps() -> None:
    fit = SimulatedFit(new_model(), steps_per_epoch=None, max_epochs=None, validations=0)
    fit.start(1)
    fit.run(90)
    forecast = fit.model.forecast(1, fit.now)
    assert forecast is not None
    assert forecast.p50_seconds == pytest.approx(910 * 0.1, rel=0.15)


def test_an_epoch_of_unknown_length_is_unknown_then_learned() -> None:
    fit = SimulatedFit(
        new_model(), planned_steps=None, steps_per_epoch=None, max_epochs=10, validations=None
    )
    fit.start(1)
    fit.run(95)
    assert fit.model.progress().planned_steps is None
    assert fit.model.progress().end_is_unknown
    assert fit.model.forecast(1, fit.now) is None
    bid = fit.model.standing_bid(1, fit.now)
    assert bid.end_is_unknown
    assert rows(bid)[1] == pytest.approx(4 * 3600, rel=0.01)
    assert "unknown" in fit.model.explanation(fit.now).words[-1]
    fit.run(10)
    assert fit.model.progress().planned_steps == 1000
    assert fit.model.forecast(1, fit.now) is not None


def test_a_limit_of_time_is_the_end_and_other_devices_do_the_same_work_sooner() -> None:
    fit = SimulatedFit(
        new_model(), planned_steps=None, steps_per_epoch=None, max_epochs=None, max_seconds=100.0
    )
    fit.start(1)
    fit.run(60)
    forecast = fit.model.forecast(1, fit.now)
    bid = rows(fit.model.standing_bid(1, fit.now))
    assert forecast is not None
    assert forecast.p50_seconds == pytest.approx(100 - 60 * 0.1, rel=0.05)
    assert bid[1] is not None
    assert bid[2] is not None
    assert bid[2] < bid[1]


def test_early_stopping_marks_the_bid_and_keeps_the_limit() -> None:
    fit = SimulatedFit(new_model(), early_stopping=True)
    fit.start(1)
    fit.run(100)
    bid = fit.model.standing_bid(1, fit.now)
    assert bid.end_is_unknown
    assert rows(bid)[1] == pytest.approx(900 * 0.1, rel=0.2)
    assert "Early stopping" in fit.model.explanation(fit.now).words[-1]


RULE = StoppingRule(monitor="val", patience=3)


def stopping_fit(values: list[float], **facts: Any) -> SimulatedFit:
    """Trained for as many epochs of a hundred steps as there are values of what is watched."""
    fit = SimulatedFit(new_model(), steps=20_000, early_stopping=True, stopping=(RULE,), **facts)
    fit.start(1)
    for value in values:
        fit.run(100)
        fit.model.observe(Checked(step=fit.step, values={"val": value}), fit.now)
    return fit


def test_a_curve_that_says_too_little_is_unknown() -> None:
    fit = stopping_fit([1.0])
    assert fit.model.progress().end_is_unknown
    assert fit.model.forecast(1, fit.now) is None
    assert fit.model.forecast_over(((2, 300),), fit.now) is None


def test_a_flat_curve_ends_long_before_its_limit_and_the_bid_takes_the_median() -> None:
    fit = stopping_fit([2.0, 1.5, 1.25, 1.12, 1.06, 1.03, 1.02, 1.021, 1.019, 1.02, 1.021])
    forecast = fit.model.forecast(1, fit.now)
    assert forecast is not None
    assert not fit.model.progress().end_is_unknown
    assert 5.0 < forecast.p50_seconds < 200.0  # 19,000 steps would take 1,900
    bid = fit.model.standing_bid(1, fit.now)
    assert not bid.end_is_unknown
    assert rows(bid)[1] == pytest.approx(forecast.p50_seconds, rel=0.1)
    assert "expected to end the run" in fit.model.explanation(fit.now).words[-1]
    over = fit.model.forecast_over(((2, fit.step + 50),), fit.now)
    assert over is not None
    assert over.p50_seconds < 200.0


def test_a_rule_that_has_spoken_is_held_back_by_the_minimum() -> None:
    free, held = stopping_fit([1.0, 2.0, 2.0, 2.0]), stopping_fit([1.0, 2.0, 2.0, 2.0], min_epochs=10)
    soon, later = free.model.forecast(1, free.now), held.model.forecast(1, held.now)
    assert soon is not None
    assert later is not None
    assert soon.p50_seconds == 0.0
    assert later.p50_seconds == pytest.approx(600 * 0.1, rel=0.2)


def test_a_curve_that_is_no_number_ends_the_fit() -> None:
    fit = stopping_fit([1.0, math.nan])
    forecast = fit.model.forecast(1, fit.now)
    assert forecast is not None
    assert forecast.p90_seconds == 0.0


def test_the_end_of_a_fit_teaches_the_width_of_the_next_ones() -> None:
    fit = SimulatedFit(new_model())
    fit.start(1)
    for _ in range(40):
        fit.run(25)
        fit.model.forecast(1, fit.now)
    assert fit.model.calibration.runs == []
    fit.finish()
    assert len(fit.model.calibration.runs) == 1
    state = json.loads(json.dumps(fit.model.to_state()))
    assert new_model(state).calibration == fit.model.calibration


def test_a_step_that_became_slower_is_said_with_its_reason() -> None:
    fit = SimulatedFit(new_model(), steps=2000)
    fit.start(1)
    fit.run(400)
    try:
        STEP_SECONDS[1] = 0.2
        fit.run(300)
    finally:
        STEP_SECONDS[1] = 0.1
    held = DeviceObserved(device="GPU-1", looks=9, held_back={"heat": 1.0}, clock_ratio=0.6)
    fit.model.observe(DevicesObserved(devices=(held,), seconds=5.0), fit.now)
    (said,) = [words for words in fit.model.explanation(fit.now).words if words.startswith("For the last")]
    assert "longer" in said


# --- U2 ----------------------------------------------------------------------------------------


def test_idleness_is_measured_by_steps_validations_and_checkpoints() -> None:
    fit = SimulatedFit(new_model())
    fit.start(1)
    fit.run(50)
    assert fit.model.idle_seconds(fit.now + 700.0) == pytest.approx(700.0)
    for event in (
        StretchTimed(stretch="validation", seconds=5.0, step=50),
        CheckpointSaved(fit=1, step=50, path="/c", size_bytes=1, seconds=1.0),
    ):
        fit.now += 700.0
        fit.model.observe(event, fit.now)
        assert fit.model.idle_seconds(fit.now + 3.0) == pytest.approx(3.0)
    fit.now += 700.0
    fit.model.observe(Progressed(fit=1, step=50, epoch=0, samples=0, at=fit.now), fit.now)
    assert fit.model.idle_seconds(fit.now) == pytest.approx(700.0)


def test_a_job_that_never_makes_its_first_step_is_idle_since_its_start() -> None:
    model = new_model()
    model.segment_started(1, 100.0)
    model.observe(RankStarted(rank=0, pid=1), 200.0)
    assert model.idle_seconds(1000.0) == 900.0


# --- what else the supervisor and the reader ask for -----------------------------------------------


def test_the_notice_covers_the_longest_stretch_that_cannot_be_broken() -> None:
    fit = SimulatedFit(new_model())
    fit.start(1)
    fit.run(50)
    before = fit.model.notice_seconds()
    for _ in range(5):
        fit.model.observe(StretchTimed(stretch="validation", seconds=40.0, step=50), fit.now)
    assert before < 2.0
    assert 39.0 < fit.model.notice_seconds() < 44.0


def test_statistics_carry_the_logs_of_steps_for_the_hardwares_prior() -> None:
    fit = SimulatedFit(new_model())
    for devices in (2, 1):
        fit.start(devices)
        fit.run(60)
        fit.leave()
    one, two = fit.model.statistics()
    assert (one.placement.devices, two.placement.devices) == (1, 2)
    assert (one.local_samples, two.local_samples) == (64, 32)
    assert one.gradient_bytes == 4_000_000
    assert math.exp(one.log_step.mean) == pytest.approx(0.09, rel=0.1)


def test_the_explanation_has_parts_points_curve_and_words() -> None:
    fit = SimulatedFit(new_model())
    fit.start(1)
    fit.run(200)
    explained = fit.model.explanation(fit.now)
    assert explained.parts["data"] == pytest.approx(0.005, rel=0.2)
    assert [step.devices for step in explained.measured] == [1]
    assert [step.devices for step in explained.curve] == [1, 2]
    assert not any(words.startswith("Waiting for data") for words in explained.words)  # 5 % of a step
    assert explained.words[-1].startswith("2 devices would save ")
    fit.finish()
    assert "2 devices would have saved " in fit.model.explanation(fit.now).words[-1]
    assert json.loads(json.dumps(explained.as_json()))["curve"][1]["measured"] is False


def test_forecasts_are_kept_with_their_inputs_and_can_be_scored() -> None:
    fit = SimulatedFit(new_model())
    fit.start(1)
    for _ in range(10):
        fit.run(100)
        fit.model.forecast(1, fit.now)
        fit.model.forecast(2, fit.now)
    entries = fit.model.log.entries
    assert [entry.step for entry in entries] == list(range(100, 1001, 100))
    scores = fit.model.log.score(fit.now, last_segment=1)
    assert all(score.allocation_held for score in scores)
    assert max(score.error for score in scores[:8]) < 0.15


def test_a_resubmitted_job_keeps_its_knowledge() -> None:
    fit = SimulatedFit(new_model())
    fit.start(2)
    fit.run(150)
    fit.leave()
    state = json.loads(json.dumps(fit.model.to_state()))
    again = JobModel.from_state(state, hardware="cpu", min_devices=1, max_devices=2)
    assert again.to_state() == state
    assert rows(again.standing_bid(0, fit.now)) == rows(fit.model.standing_bid(0, fit.now))
    assert again.progress() == new_model(state).progress()


def test_on_other_hardware_times_are_forgotten_and_the_position_is_not() -> None:
    fit = SimulatedFit(new_model())
    fit.start(2)
    fit.run(150)
    fit.leave()
    moved = JobModel(hardware="Tesla-T4", min_devices=1, max_devices=2, state=fit.model.to_state())
    assert moved.progress().step == 150
    assert moved.step_time(2) is None


def test_a_state_of_another_version_is_no_knowledge() -> None:
    assert new_model({"version": 99}).progress().step == 0


# --- nasty streams --------------------------------------------------------------------------------

UNLIMITED: dict[str, Any] = {
    "fit": 1, "package": "l", "global_batch": None, "reference_devices": None,
    "step": 0, "planned_steps": None,
}  # fmt: skip
nasty = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, -1.0, 1e-9, 0.01, 60.0, 3600.0, 1e12]),
)
timings = st.builds(
    StepTiming,
    step=st.integers(-10, 2000),
    seconds=nasty,
    data_seconds=nasty,
    cycle_seconds=st.none() | nasty,
    forward_seconds=st.none() | nasty,
    communication_seconds=st.none() | nasty,
    local_samples=st.integers(-1, 64),
    warm_up=st.booleans(),
)
events = st.one_of(
    st.builds(StepsTimed, timings=st.lists(timings, max_size=40).map(tuple)),
    st.builds(
        FitStarted,
        fit=st.integers(1, 2),
        package=st.just("lightning"),
        global_batch=st.none(),
        reference_devices=st.none(),
        step=st.integers(0, 1000),
        planned_steps=st.none() | st.integers(-1, 2000),
        steps_per_epoch=st.none() | st.integers(-1, 3),
        max_epochs=st.none() | st.integers(-1, 50),
        max_seconds=st.none() | nasty,
        min_steps=st.none() | st.integers(-1, 3000),
        min_epochs=st.none() | st.integers(-1, 60),
        early_stopping=st.booleans(),
        stopping=st.sampled_from(
            [(), (StoppingRule(monitor="val"),), (StoppingRule(monitor="val", target=0.1, finite=False),)]
        ),
        validation_batches=st.none() | st.integers(-1, 10**6),
        checkpoints_per_epoch=st.none() | st.floats(0, 100),
        elapsed_seconds=st.floats(-1, 1e5),
        validations=st.none() | st.integers(-1, 5),
        allowed_devices=st.lists(st.integers(-1, 9), max_size=4).map(tuple),
        gradient_bytes=st.integers(-1, 10**11),
        at=st.floats(0, 1e6),
    ),
    st.builds(
        Progressed,
        fit=st.just(1),
        step=st.integers(-1, 2000),
        epoch=st.integers(-1, 50),
        samples=st.integers(-1, 10**6),
        metrics=st.just({"loss": math.nan}),
        peak_bytes=st.none() | st.integers(-1, 10**10),
        resident_bytes=st.none() | st.integers(-1, 10**10),
        device_bytes=st.none() | st.integers(-1, 10**10),
    ),
    st.builds(Checked, step=st.integers(-1, 2000), values=st.fixed_dictionaries({"val": nasty})),
    st.builds(
        StretchTimed,
        stretch=st.sampled_from(["validation", "checkpoint_save", "checkpoint_load", "epoch_end", "start"]),
        seconds=nasty,
        step=st.integers(0, 2000),
        size_bytes=st.none() | st.integers(0, 10**10),
    ),
    st.builds(
        CheckpointSaved, fit=st.just(1), step=st.integers(0, 2000), path=st.just("/c"),
        size_bytes=st.integers(0, 10**10), seconds=nasty,
    ),
    st.integers(0, 4),  # the segment ends; another begins on so many devices
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@example([(FitStarted(**UNLIMITED, max_seconds=1e153), 0.0)])
@example([(FitStarted(**UNLIMITED, max_seconds=2.2250738585072014e-308, at=1002.0), 0.0)])
@given(st.lists(st.tuples(events, st.floats(-100, 1e4)), max_size=25))
def test_whatever_comes_the_model_says_only_what_the_protocol_allows(
    stream: list[tuple[Any, float]],
) -> None:
    model = JobModel(hardware="cpu", min_devices=1, max_devices=4)
    fit = SimulatedFit(model)
    fit.start(1)
    fit.run(12)
    now = fit.now
    for event, passed in stream:
        now += passed
        if not isinstance(event, int):
            model.observe(event, now)
        else:
            model.segment_ended(now)
            if event:
                model.segment_started(event, now)
        for devices in (1, 2, 4):
            model.forecast(devices, now)  # validates its quantiles
        model.standing_bid(model.devices, now)  # validates every row
        assert 0 < model.notice_seconds() < math.inf
        assert 0 <= model.idle_seconds(now) < math.inf
        assert 0 <= model.progress(now).fraction_done <= 1
        model.statistics()
        json.dumps(model.explanation(now).as_json(), allow_nan=False)
    state = json.loads(json.dumps(model.to_state(), allow_nan=False))
    assert new_model(state).to_state()["steps"] == state["steps"]


def test_t19_no_bid_for_a_count_on_which_it_would_run_out_of_memory() -> None:
    model = JobModel(hardware="A100", min_devices=1, max_devices=4)
    model.segment_started(4, 0.0)
    model.observe(FitStarted(**UNLIMITED, allowed_devices=(1, 2, 4)), 0.0)
    reading = {"peak_bytes": 30 * 10**9, "resident_bytes": 10 * 10**9, "device_bytes": 80 * 10**9}
    model.observe(Progressed(fit=1, step=1, epoch=0, samples=8, **reading), 1.0)
    assert model.allowed_devices == (2, 4)
    rows = model.standing_bid(4, 1.0).rows
    assert [row.placement.devices for row in rows] == [2, 4]
    assert [row.peak_bytes_per_device for row in rows] == [50 * 10**9, 30 * 10**9]
    model.ran_out_of_memory(2)
    restored = JobModel.from_state(model.to_state(), hardware="A100", min_devices=1, max_devices=4)
    assert restored.allowed_devices == (4,)
    assert JobModel.from_state(
        model.to_state(), hardware="H100", min_devices=1, max_devices=4
    ).allowed_devices == (1, 2, 4)  # fmt: skip
