"""U16: a forecast that nobody acts on is soon removed. Here bids, what-if and its own score come of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from broker.live_broker import StandInAgent
from negotiator.scripted_broker import device

from selfsched.core.events import FitStarted, StepsTimed, StepTiming
from selfsched.core.reporting import JobFacts
from selfsched.elastic.job import JobDescription
from selfsched.elastic.segment import boottime
from selfsched.job_record import JobRecord
from selfsched.protocol import (
    EndJob,
    JobRegistered,
    JobReport,
    JobState,
    Outcome,
    RegisterJob,
    WhatIf,
)
from selfsched_broker.core import arbiter
from selfsched_broker.core.leases import LeaseOptions
from selfsched_broker.core.policies import policy_named
from selfsched_broker.desk import Desk
from selfsched_broker.identity import Caller
from selfsched_broker.service import Rules, Service
from selfsched_broker.store.memory import MemoryStore

ADA = Caller(account="ada")
PLANNED_STEPS = 1000


def trained(directory: Path, step_seconds: float) -> JobFacts:
    """What a job knows after two hundred steps on one device."""
    job = JobDescription(
        run_directory=directory, program="command", working_directory=directory, max_devices=2
    )
    record, now = JobRecord(job, "train"), boottime()
    record.segment_started(0, (device("a"),), "alone", now)
    record.event(
        FitStarted(
            fit=1, package="none", global_batch=8, reference_devices=1, step=0, planned_steps=PLANNED_STEPS,
            allowed_devices=(1, 2), at=now,
        ),
        now,
    )  # fmt: skip
    for step in range(1, 201):
        timing = StepTiming(
            step=step, seconds=step_seconds * (1 + 0.02 * (step % 3)), local_samples=8, warm_up=step <= 3
        )
        record.event(StepsTimed(timings=(timing,)), now + step_seconds * step)
    return record.facts(now + step_seconds * 200)


def reported(facts: JobFacts, sequence: int = 1) -> JobReport:
    return JobReport(
        incarnation=1, sequence=sequence, state=JobState.WAITING, step=facts.step,
        planned_steps=facts.planned_steps, fraction_done=facts.fraction_done, bid=facts.bid,
        forecast=facts.forecast, statistics=facts.statistics,
    )  # fmt: skip


@pytest.fixture
def desk() -> Desk:
    service = Service(MemoryStore(), Rules(policy=policy_named("themis"), lease=LeaseOptions()))
    service.perform(arbiter.node_report, "here", StandInAgent().report())
    return Desk(service)


def job_of(desk: Desk) -> str:
    answer = desk.register(ADA, RegisterJob(name="train", max_devices=2), key="k")
    assert isinstance(answer, JobRegistered)
    return answer.job


@pytest.mark.parametrize("step_seconds", [0.1, 0.4])
def test_u16_bids_what_if_and_the_published_score_come_from_the_jobs_forecast(
    desk: Desk, tmp_path: Path, step_seconds: float
) -> None:
    facts = trained(tmp_path, step_seconds)
    assert facts.forecast is not None
    assert facts.forecast.p50_seconds == pytest.approx(800 * 1.02 * step_seconds, rel=0.1)

    # The bid is the forecast, on each placement.
    assert facts.bid is not None
    rows = {row.placement.devices: row for row in facts.bid.rows}
    assert rows[1].remaining_seconds == pytest.approx(facts.forecast.p50_seconds, rel=0.05)
    assert rows[2].remaining_seconds is not None

    # What-if answers from the bid, as the owner asks.
    job = job_of(desk)
    desk.report(ADA, job, reported(facts))
    answer = dict(desk.what_if(ADA, WhatIf(devices=(1, 2))).forecasts)
    for count, row in rows.items():
        assert row.remaining_seconds is not None
        expected = row.remaining_seconds + row.restart_seconds
        assert answer[count].p50_seconds == pytest.approx(expected, rel=0.01)

    # The auction decides by it, and people see it.
    while desk.service.advance() < 0.02:
        pass
    view = desk.job(ADA, job)
    assert view.bid == facts.bid
    assert view.rho is not None
    (award,) = desk.auctions(ADA, 1)[0].awards
    assert award.considered
    assert award.rho_after == pytest.approx(view.rho, rel=0.05)

    # Its score is published, to the owner and to the account's next job.
    desk.end(ADA, job, EndJob(outcome=Outcome.FINISHED), key=None)
    (score,) = desk.scores(ADA)
    assert score.forecast == facts.forecast
    assert score.actual_seconds is not None
    told = desk.account(ADA).forecast_scores
    assert told is not None
    assert (told.made, told.held) == (1, int(bool(score.covered)))
    following = desk.register(ADA, RegisterJob(name="next"), key="n")
    assert isinstance(following, JobRegistered)
    assert following.forecast_scores is not None
    assert following.forecast_scores.made == 1
