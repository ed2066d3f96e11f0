"""A run's own history, as `history.json` keeps it."""

from __future__ import annotations

import pytest

from selfsched.core import history
from selfsched.core.history import JobHistory
from selfsched.protocol import Forecast


def forecast(seconds: float, assumption: str = "as_now") -> Forecast:
    return Forecast(
        p10_seconds=seconds / 2, p50_seconds=seconds, p90_seconds=seconds * 2, assumption=assumption  # type: ignore[arg-type]
    )  # fmt: skip


def two_segments() -> JobHistory:
    run = JobHistory(name="run")
    run = history.segment_started(run, 0, ("a", "b"), now_s=1.0, step=0, why="alone")
    both = (forecast(30.0), forecast(40.0, "look_ahead"))
    run = history.forecast_made(run, 0.25, 2, now_s=10.0, forecasts=both)
    run = history.segment_ended(run, 0, now_s=20.0, step=50, ended_by="yielded")
    run = history.segment_started(run, 1, ("a",), now_s=21.0, step=50, why="shared")
    run = history.forecast_made(run, 0.5, 1, now_s=22.0, forecasts=(forecast(40.0),))
    return history.segment_ended(run, 1, now_s=60.0, step=100, ended_by="finished")


def test_segments_carry_their_steps_times_and_reasons() -> None:
    run = two_segments()
    assert [(s.devices, s.start_s, s.end_s, s.steps, s.why) for s in run.segments] == [
        (("a", "b"), 1.0, 20.0, 50, "alone"), (("a",), 21.0, 60.0, 50, "shared")
    ]  # fmt: skip


def test_at_the_end_forecasts_learn_what_came_and_whether_the_allocation_held() -> None:
    run = history.finished(two_segments(), finish_s=60.0, outcome="finished")
    told = [(f.at, f.assumption, f.predicted_finish_s, f.allocation_held, f.error) for f in run.forecasts]
    assert told == [
        (0.25, "as_now", 40.0, False, pytest.approx(20 / 50)),
        (0.25, "look_ahead", 50.0, False, pytest.approx(10 / 50)),
        (0.5, "as_now", 62.0, True, pytest.approx(2 / 38)),
    ]
    assert (run.finish_s, run.outcome) == (60.0, "finished")


def test_a_run_that_did_not_come_to_its_end_scores_no_forecast() -> None:
    run = history.finished(two_segments(), finish_s=60.0, outcome="cancelled")
    assert [f.error for f in run.forecasts] == [None, None, None]


def test_only_the_end_of_a_segment_that_began_is_noted() -> None:
    run = JobHistory(name="run")
    assert history.segment_ended(run, 3, now_s=1.0, step=1, ended_by="failed") == run


def test_milestones_are_passed_once_and_those_jumped_over_are_left_out() -> None:
    run = JobHistory(name="run")
    assert history.milestone_passed(run, 0.09) is None
    assert history.milestone_passed(run, 0.10) == 0.10
    assert history.milestone_passed(run, 0.60) == 0.50
    run = history.forecast_made(run, 0.5, 1, now_s=1.0, forecasts=(forecast(1.0),))
    assert history.milestone_passed(run, 0.60) is None
    assert history.milestone_passed(run, 1.0) == 0.75


def test_the_same_devices_again_are_no_change() -> None:
    run = history.allocated(JobHistory(name="run"), (), now_s=0.0, why="waiting")
    run = history.allocated(run, ("a",), now_s=1.0, why="free")
    run = history.allocated(run, ("a",), now_s=2.0, why="renewed")
    run = history.allocated(run, (), now_s=3.0, why="taken")
    changes = [(change.at_s, change.devices, change.why) for change in run.allocations]
    assert changes == [(1.0, ("a",), "free"), (3.0, (), "taken")]


def test_it_survives_being_written_and_read() -> None:
    run = history.finished(two_segments(), finish_s=60.0, outcome="finished")
    assert JobHistory.model_validate_json(run.model_dump_json()) == run
