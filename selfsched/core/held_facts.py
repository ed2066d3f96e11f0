"""What a job that is not under a supervisor tells the broker of itself."""

from __future__ import annotations

import math

from selfsched.core.job_model import JobModel
from selfsched.core.reporting import JobFacts
from selfsched.protocol import Forecast, StandingBid

_NOTICE_FACTOR = 1.5
"""The model's notice is a 95 % quantile of what it saw; a machine may be busier than that."""
_STOPPING_SECONDS = 5.0
"""For the ranks to agree on a step, and for the fit to end after its checkpoint."""
_LONGEST_NOTICE_SECONDS = 3600.0


def facts_of(model: JobModel, forecast: Forecast | None, now: float) -> JobFacts:
    """What the broker should know at this moment of a training that stays as it is.

    Its bid has one row: the devices that it sits on.

    Args:
        model: of the job.
        forecast: its own, as made last.
        now: CLOCK_BOOTTIME seconds.
    """
    progress, devices = model.progress(now), model.devices
    notice = _NOTICE_FACTOR * model.notice_seconds() + _STOPPING_SECONDS
    return JobFacts(
        step=progress.step,
        planned_steps=progress.planned_steps,
        fraction_done=min(1.0, max(0.0, progress.fraction_done)),
        steady_steps=progress.steady_steps,
        is_stepping=True,
        notice_seconds=min(notice, _LONGEST_NOTICE_SECONDS)
        if math.isfinite(notice)
        else _LONGEST_NOTICE_SECONDS,
        idle_seconds=model.idle_seconds(now),
        bid=_present_row(model.standing_bid(devices, now), devices),
        forecast=forecast,
        statistics=model.statistics(),
    )


def _present_row(bid: StandingBid, devices: int) -> StandingBid | None:
    rows = tuple(row for row in bid.rows if row.placement.devices == devices)
    return StandingBid(rows=rows, end_is_unknown=bid.end_is_unknown) if rows else None
