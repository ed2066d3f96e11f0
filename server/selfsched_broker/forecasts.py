"""Forecasts after the fact, and forecasts of what has not been tried.

A job's own forecasts are kept, at most one a minute and a bounded number, until its end shows
what they were worth. They are kept in memory: a restart of the broker forgets them.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from selfsched.protocol import (
    BidRow,
    Forecast,
    ForecastScore,
    JobReport,
    JobState,
    Outcome,
    ProblemCode,
    WhatIf,
    WhatIfAnswer,
)
from selfsched_broker.core.books import Books, Job
from selfsched_broker.core.leases import Refusal

_EVERY_SECONDS = 60.0
_KEPT = 2000
_Z90 = 1.2815515594
"""90th percentile of the standard normal distribution."""
_MOST_SECONDS = 3.2e9


@dataclass(frozen=True, kw_only=True, slots=True)
class _Made:
    job: str
    account: str
    at: float
    forecast: Forecast
    devices: tuple[str, ...]


class ForecastLog:
    """Forecasts as they were made. Called one at a time, under the service's lock."""

    def __init__(self) -> None:
        self._made: deque[_Made] = deque(maxlen=_KEPT)
        self._last: dict[str, float] = {}

    def note(self, books: Books, now: float, job_id: str, report: JobReport) -> None:
        """Keep the forecast of a report, unless one was kept a moment ago."""
        job = books.jobs.get(job_id)
        if job is None or report.forecast is None or now - self._last.get(job_id, -math.inf) < _EVERY_SECONDS:
            return
        self._last[job_id] = now
        devices = tuple(books.devices_of(job_id))
        self._made.append(
            _Made(job=job_id, account=job.account, at=now, forecast=report.forecast, devices=devices)
        )
        if len(self._last) > _KEPT:
            self._last = {j: at for j, at in self._last.items() if j in books.jobs and books.jobs[j].live}

    def scores(self, books: Books, now: float, account: str) -> tuple[ForecastScore, ...]:
        """An account's forecasts, oldest first, and what came where that is known."""
        return tuple(_score(books, now, made) for made in self._made if made.account == account)


def _score(books: Books, now: float, made: _Made) -> ForecastScore:
    job = books.jobs.get(made.job)
    # One that was stopped or failed had no finish to be held against.
    finished = job is not None and job.outcome is Outcome.FINISHED
    ended = job.ended_at if job is not None and finished else None
    return ForecastScore(
        job=made.job,
        made_ago_seconds=max(0.0, now - made.at),
        forecast=made.forecast,
        actual_seconds=None if ended is None else max(0.0, ended - made.at),
        held=None if job is None or ended is None else _held(books, job, made),
    )


def _held(books: Books, job: Job, made: _Made) -> bool:
    """Whether the job kept exactly the devices it had from then on."""
    later = [lease for lease in books.all_leases_of(job.id) if lease.granted_at > made.at]
    return not later and tuple(job.last_devices) == made.devices


def what_if(books: Books, now: float, account: str, question: WhatIf) -> WhatIfAnswer:
    """When a job would end on other device counts, from the rows of its standing bid.

    Args:
        books: as they are.
        now: broker time.
        account: whose newest live job is meant where the question names none.
        question: the job and the device counts; no counts: all that it has bid for.

    Raises:
        Refusal: NOT_FOUND, or IMPOSSIBLE where the job has not bid for that.
    """
    job = _asked_job(books, account, question)
    rows = {} if job.bid is None else {r.placement.devices: r for r in job.bid.rows if r.placement.nodes == 1}
    measured = {n: row for n, row in sorted(rows.items()) if row.remaining_seconds is not None}
    wanted = question.devices or tuple(measured)
    missing = [n for n in wanted if n not in measured]
    if missing or not measured:
        known = ", ".join(map(str, measured)) or "none yet"
        raise Refusal(ProblemCode.IMPOSSIBLE, f"the job has bid for these device counts only: {known}")
    since = now - job.bid_at if job.state is JobState.RUNNING else 0.0
    forecasts = tuple((n, _forecast(measured[n], since)) for n in wanted)
    return WhatIfAnswer(forecasts=forecasts, reason=f"from the bid of {now - job.bid_at:.0f} s ago")


def _asked_job(books: Books, account: str, question: WhatIf) -> Job:
    if question.job is not None:
        return books.jobs[question.job]
    live = books.live_jobs_of(account)
    if not live:
        raise Refusal(ProblemCode.NOT_FOUND, "you have no live job")
    return live[-1]


def _forecast(row: BidRow, since_seconds: float) -> Forecast:
    assert row.remaining_seconds is not None
    median = max(0.0, row.remaining_seconds - since_seconds)
    spread = math.exp(min(row.sigma_log * _Z90, 20.0))
    return Forecast(
        p10_seconds=min(row.restart_seconds + median / spread, _MOST_SECONDS),
        p50_seconds=min(row.restart_seconds + median, _MOST_SECONDS),
        p90_seconds=min(row.restart_seconds + median * spread, _MOST_SECONDS),
        assumption="as_now",
    )
