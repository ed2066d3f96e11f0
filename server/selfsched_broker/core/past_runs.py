"""What a job's whole run takes, told by what it held.

With w_n the seconds it held n devices and s_n its speed on n relative to the count it held longest, its work
is the sum of w_n s_n, and on n devices it would have taken that / s_n. The relative speeds are those of its
last standing bid, between its rows as everywhere (`fairness.rate`). A job without a bid is known on the
count it held longest alone; what it had on others counts by the device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from selfsched.protocol import Outcome
from selfsched_broker.core.books import Books, Job
from selfsched_broker.core.fairness import Row, rate


def run_seconds(job: Job, spans: Sequence[tuple[float, float]]) -> dict[int, float]:
    """Seconds of the whole run on each count that the job bid for or held; empty: it held nothing.

    Args:
        job: one that has ended.
        spans: (from, to) of each device that it held.
    """
    held = seconds_by_count(spans)
    if not held:
        return {}
    longest = max(held, key=lambda count: (held[count], count))
    speeds = _relative_speeds(job, longest, held)
    work = sum(seconds * speeds.get(count, count / longest) for count, seconds in held.items())
    return {count: work / speed for count, speed in speeds.items()}


def held_spans(books: Books, job: str) -> list[tuple[float, float]]:
    """(from, to) of each device that a job has held and left."""
    return [
        (lease.granted_at, holding.left_at)
        for lease in books.all_leases_of(job)
        for holding in books.all_holdings_of(lease.id)
        if holding.left_at is not None
    ]


def last_finished(books: Books, most: int) -> list[Job]:
    """The jobs that finished last, newest first."""
    finished = [job for job in books.jobs.values() if job.outcome is Outcome.FINISHED]
    return sorted(finished, key=lambda job: -(job.ended_at or 0.0))[:most]


def seconds_by_count(spans: Sequence[tuple[float, float]]) -> dict[int, float]:
    """How long how many devices were held at once.

    Args:
        spans: (from, to) of each device.
    """
    changes = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    found: dict[int, float] = defaultdict(float)
    count, since = 0, 0.0
    for at, by in changes:
        if count and at > since:
            found[count] += at - since
        count, since = count + by, at
    return dict(found)


def _relative_speeds(job: Job, longest: int, held: Iterable[int]) -> dict[int, float]:
    """Speed on each count that it bid for or held, relative to the one it held longest."""
    rows = [
        Row(row.placement.devices, row.placement.nodes, None, row.remaining_seconds, row.restart_seconds)
        for row in (job.bid.rows if job.bid else ())
        if row.remaining_seconds  # at its very end nothing remains anywhere: that tells no speeds
    ]
    if not rows:
        return {longest: 1.0}
    counts = sorted({row.devices for row in rows} | set(held))
    unit = rate(rows, 0.0, longest)
    return {count: rate(rows, 0.0, count) / unit for count in counts}
