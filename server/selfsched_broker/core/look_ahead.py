"""When a job will be done, given what is known to be coming: the broker's look-ahead.

A job forecasts its end on the devices it has. The broker also knows when the others expect to
end, and who waits. So it plays the others' ends in their order: what each leaves goes first to
jobs that wait, the rest in equal parts to those that could use more, each at its next allowed
count. What nobody can know beforehand, an arrival, is not in it, nor what an auction at a tick
may change; the assumption is named with the forecast.

The job's own forecast gives the time on its present devices and its spread, its standing bid
the ratios of other counts to that. A quantile of the result is played with the same quantile
of every job: neighbours on one machine are late together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from selfsched.protocol import Forecast, JobState
from selfsched_broker.core.books import Books, Job

Quantile = Literal["p10_seconds", "p50_seconds", "p90_seconds"]


@dataclass(frozen=True, slots=True)
class _Future:
    """One job as it is played."""

    devices: int
    times: Mapping[int, float]
    """Seconds from now to its end on each count that it can bid for."""
    restarts: Mapping[int, float]


def look_ahead(books: Books, now: float, job_id: str) -> Forecast | None:
    """The forecast of a job that runs and has made one of its own; None for others."""
    pulse = books.job_pulses.get(job_id)
    if pulse is None or pulse.forecast is None:
        return None
    quantiles: tuple[Quantile, ...] = ("p10_seconds", "p50_seconds", "p90_seconds")
    found = [_played(books, now, job_id, quantile) for quantile in quantiles]
    if any(seconds is None for seconds in found):
        return None
    low, middle, high = sorted(seconds for seconds in found if seconds is not None)
    return Forecast(p10_seconds=low, p50_seconds=middle, p90_seconds=high, assumption="look_ahead")


def _played(books: Books, now: float, job_id: str, quantile: Quantile) -> float | None:
    own = _future(books, now, books.jobs[job_id], quantile)
    if own is None:
        return None
    others = [job for job in books.live_jobs() if job.id != job_id]
    waiting = sum(job.min_devices for job in others if job.state is JobState.WAITING)
    others_futures = [future for job in others if (future := _future(books, now, job, quantile))]
    ends = sorted((f.times[f.devices], f.devices, max(f.times) > f.devices) for f in others_futures)
    hungry = 1 + sum(is_hungry for _, _, is_hungry in ends)
    return _finish(own, offers(ends, waiting, hungry))


def offers(ends: list[tuple[float, int, bool]], waiting: int, hungry: int) -> Iterator[tuple[float, int]]:
    """What comes to the job in question as the others end.

    Args:
        ends: (seconds from now, devices left, whether it could have used more) of the others, in order.
        waiting: devices that jobs without any wait for; they come first.
        hungry: jobs that could use more, the one in question included.

    Yields:
        (seconds from now, further devices by then).
    """
    pool = 0
    for at, devices, was_hungry in ends:
        pool += max(0, devices - waiting)
        waiting = max(0, waiting - devices)
        hungry -= was_hungry
        yield at, pool // hungry


def _finish(own: _Future, coming: Iterator[tuple[float, int]]) -> float:
    """Seconds from now to the end of a job that takes what it is offered."""
    at, left, devices = 0.0, 1.0, own.devices
    for offered_at, extra in coming:
        size = max((n for n in own.times if n <= own.devices + extra), default=devices)
        if size <= devices or own.times[size] >= own.times[devices]:
            continue
        done = max(0.0, offered_at - at) / own.times[devices]
        # A move that the rest of the work does not repay is not made.
        if left - done <= 0 or (left - done) * (own.times[devices] - own.times[size]) <= own.restarts[size]:
            break
        left -= done
        at, devices = max(at, offered_at) + own.restarts[size], size
    return at + left * own.times[devices]


def _future(books: Books, now: float, job: Job, quantile: Quantile) -> _Future | None:
    """A running job's own view, moved from its last report to now."""
    pulse = books.job_pulses.get(job.id)
    leaving = {h.device for h in books.active_of(job.id) if h.state == "yielding"}
    devices = len([device for device in books.devices_of(job.id) if device not in leaving])
    if pulse is None or pulse.forecast is None or job.bid is None or devices == 0:
        return None
    rows = {
        row.placement.devices: row
        for row in job.bid.rows
        if row.placement.nodes == 1 and row.remaining_seconds
    }
    measured = rows.get(len(pulse.devices_in_use) or devices)
    if measured is None or devices not in rows:
        return None
    stated = max(0.0, float(getattr(pulse.forecast, quantile)) - (now - pulse.reported_at))
    here = measured.remaining_seconds or 0.0
    return _Future(
        devices=devices,
        times={n: stated * (row.remaining_seconds or 0.0) / here for n, row in rows.items()
               if n == devices or _may_run_on(job, n)},
        restarts={n: row.restart_seconds for n, row in rows.items()},
    )  # fmt: skip


def _may_run_on(job: Job, count: int) -> bool:
    within = job.min_devices <= count <= job.max_devices
    return within and (not job.allowed_devices or count in job.allowed_devices)
