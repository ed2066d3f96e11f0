"""What a job writes down of itself, event by event, without threads."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
from negotiator.scripted_broker import device

from selfsched import job_record
from selfsched.core.events import FitFinished, FitStarted, StepsTimed, StepTiming
from selfsched.elastic.job import JobDescription
from selfsched.elastic.segment import boottime
from selfsched.job_record import LEAVING_SECONDS, MODEL_FILE, JobRecord, read_history, read_model
from selfsched.protocol import (
    Forecast,
    ForecastScores,
    Instructions,
    JobState,
    LeasedDevice,
    LeaseInstruction,
    Outcome,
)

NOW = boottime()


@pytest.fixture
def record(tmp_path: Path) -> JobRecord:
    job = JobDescription(
        run_directory=tmp_path, program="command", working_directory=tmp_path, max_devices=2
    )
    record = JobRecord(job, "run")
    record.registered("job-1", NOW)
    record.segment_started(0, (device("a"),), "alone", NOW)
    record.event(
        FitStarted(
            fit=1, package="none", global_batch=8, reference_devices=1, step=0, planned_steps=200,
            allowed_devices=(1, 2), at=NOW,
        ),
        NOW,
    )  # fmt: skip
    return record


def steps(record: JobRecord, first: int, last: int, *, at: float) -> None:
    timings = tuple(
        StepTiming(step=step, seconds=0.1, local_samples=8) for step in range(first + 1, last + 1)
    )
    record.event(StepsTimed(timings=timings), at)


def told(forecast: Forecast | None, *, rho: float | None = None) -> Instructions:
    return Instructions(
        job="job-1", incarnation=1, version=1, state=JobState.RUNNING, forecast=forecast, rho=rho
    )


def test_a_look_ahead_that_came_a_while_ago_counts_from_then(record: JobRecord) -> None:
    steps(record, 0, 60, at=NOW + 6)
    ahead = Forecast(p10_seconds=10, p50_seconds=40, p90_seconds=80, assumption="look_ahead")
    record.instructed(told(ahead, rho=1.2), NOW + 6)
    record.facts(NOW + 21)
    made = {forecast.assumption: forecast for forecast in record.history.forecasts}
    assert made["look_ahead"].made_at_s == pytest.approx(21)
    assert made["look_ahead"].predicted_finish_s == pytest.approx(46)
    assert made["look_ahead"].low_s == pytest.approx(21)  # not before it was made
    assert made["as_now"].devices == 1
    assert record.history.rho == 1.2


def test_a_segment_that_began_as_a_visit_says_why_it_goes_on(record: JobRecord) -> None:
    """A lone job keeps its devices after its visit: no new segment begins, and the row is the whole run's."""
    record.segment_started(1, (device("a"), device("b")), "first visit on 2 devices", NOW)

    def hear(why: str, *devices: str, visit: bool) -> str:
        lease = LeaseInstruction(
            lease="lease-1", fence=1, ttl_seconds=30, term_seconds=300,
            devices=tuple(leased(name) for name in devices),
        )  # fmt: skip
        news = told(None).model_copy(update={"leases": (lease,), "visit": visit, "reasons": (why,)})
        record.instructed(news, NOW + 1)
        return record.history.segments[-1].why

    assert hear("first visit on 2 devices", "a", "b", visit=True) == "first visit on 2 devices"
    said = hear("2 of 2 devices: nobody else wants them", "a", "b", visit=False)
    assert said == "first visit on 2 devices; then 2 of 2 devices: nobody else wants them"
    assert hear("another word", "a", "b", visit=False) == said
    assert hear("first visit", "a", "b", visit=True) == said
    assert hear("shrinks to 1 of 2", "a", visit=False) == said, "that ends the segment, and is the next one's"


def leased(name: str) -> LeasedDevice:
    found = device(name)
    return LeasedDevice(id=found.id, node=found.node, index=found.index, model=found.model, kind=found.kind)


def test_without_a_look_ahead_only_the_jobs_own_forecast_is_noted(record: JobRecord) -> None:
    steps(record, 0, 60, at=NOW + 6)
    record.instructed(told(None), NOW + 6)
    record.facts(NOW + 6)
    assert [forecast.assumption for forecast in record.history.forecasts] == ["as_now"]


def test_a_job_asks_for_time_to_leave_beyond_what_it_measured(record: JobRecord) -> None:
    assert record.facts(NOW).notice_seconds >= LEAVING_SECONDS
    steps(record, 0, 60, at=NOW + 6)
    assert 3600 >= record.facts(NOW + 6).notice_seconds >= LEAVING_SECONDS + 0.1


def test_the_finish_is_when_the_fit_ended_not_when_the_run_was_cleared_away(
    record: JobRecord, tmp_path: Path
) -> None:
    steps(record, 0, 200, at=NOW + 20)
    record.event(FitFinished(fit=1, step=200, epoch=1, metrics={}), NOW + 20)
    record.finish("finished", NOW + 25)
    assert json.loads((tmp_path / "history.json").read_text())["finish_s"] == pytest.approx(20)


def test_the_status_says_what_is_left_and_on_how_many_devices(record: JobRecord) -> None:
    assert record.status_line() is None
    steps(record, 0, 60, at=NOW + 6)
    record.facts(NOW + 6)
    line = record.status_line()
    assert line is not None
    assert line.endswith("on 1 device")
    assert " left (" in line


def test_files_are_private_and_replaced_in_one_step(record: JobRecord, tmp_path: Path) -> None:
    record.save_history()
    record.save_model()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["history.json", "model.json"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())


def test_the_last_word_has_the_steps_and_since_when_the_training_was_over(record: JobRecord) -> None:
    steps(record, 0, 60, at=NOW + 6)
    told = record.last_word(Outcome.CANCELLED, "r" * 3000, NOW + 10)
    assert (told.finished_ago_seconds, len(told.reason)) == (0.0, 2000)
    assert [entry.log_step.count for entry in told.statistics] == [60]
    record.event(FitFinished(fit=1, step=60, epoch=1, metrics={}), NOW + 20)
    assert record.last_word(Outcome.FINISHED, "", NOW + 21).finished_ago_seconds == pytest.approx(1.0)


def test_scores_of_other_jobs_widen_the_forecast_and_its_width_is_told(record: JobRecord) -> None:
    steps(record, 0, 60, at=NOW + 6)
    before = record.facts(NOW + 6)
    record.told_scores(ForecastScores(made=40, held=8, jobs=20, runs=((4.0, -5.0),) * 20))
    after = record.facts(NOW + 8)
    assert after.forecast_width > 1.5 * before.forecast_width
    record.told_scores(ForecastScores(made=2, held=2, jobs=1, runs=((0.1,),)))
    assert record.facts(NOW + 10).forecast_width > 1.5 * before.forecast_width  # fewer runs say less


def test_what_a_running_job_has_learned_can_be_read_beside_it(record: JobRecord, tmp_path: Path) -> None:
    steps(record, 0, 40, at=NOW + 4.0)
    record.save_model()
    model = read_model(tmp_path)
    assert model is not None
    told = model.explanation()
    assert told.steps[1] > 0
    assert [step.devices for step in told.curve if step.measured] == [1]
    written = (tmp_path / MODEL_FILE).stat().st_mtime_ns
    record.save_model()
    assert (tmp_path / MODEL_FILE).stat().st_mtime_ns == written, "nothing new, nothing written"


def test_a_full_disk_loses_what_is_written_down_until_there_is_room_and_ends_nothing(
    record: JobRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps(record, 0, 60, at=NOW + 6)
    full = OSError("No space left on device")
    with monkeypatch.context() as patched:
        patched.setattr(job_record, "_write", Mock(side_effect=full))
        record.finish("finished", NOW + 25)
    assert read_history(tmp_path) is None
    record.save_history()
    record.save_model()
    history = read_history(tmp_path)
    assert history is not None
    assert history.outcome == "finished"
    assert (tmp_path / MODEL_FILE).exists()
