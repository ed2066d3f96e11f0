"""A broker's own history as a log: its books, read without touching them.

What a job's run takes is told by what it held: with w_n the seconds it held n devices and s_n its speed on n
relative to the count it held longest, its work is the sum of w_n s_n, and on n devices it would have
taken that / s_n. The relative speeds are those of its last standing bid; a count that it never bid
for it is not replayed on.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

from selfsched.errors import Refused
from selfsched_broker.core.books import Holding, Job, Lease
from selfsched_broker.store.tables import from_body
from selfsched_simulator.logs import BOOKS_FILE, Log, LoggedJob


def read_history(path: Path) -> Log:
    """Read the jobs that have ended from a broker's books, also while it runs.

    Args:
        path: `books.sqlite`, or the state directory that has it.

    Raises:
        Refused: they cannot be read.
    """
    file = path / BOOKS_FILE if path.is_dir() else path
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as books:
            jobs: list[Job] = _records(books, "jobs", Job)
            leases: list[Lease] = _records(books, "leases", Lease)
            holdings: list[Holding] = _records(books, "holdings", Holding)
    except (sqlite3.Error, ValueError) as error:
        raise Refused(f"cannot read the books {file}: {str(error).splitlines()[0]}") from None
    job_of = {lease.id: lease.job for lease in leases}
    granted = {lease.id: lease.granted_at for lease in leases}
    held: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for holding in holdings:
        if holding.left_at is not None:
            held[job_of[holding.lease]].append((granted[holding.lease], holding.left_at))
    log = Log()
    for job in sorted(jobs, key=lambda job: job.number):
        _take(log, job, held[job.id])
    return log


def _records(books: sqlite3.Connection, table: str, kind: type[Any]) -> list[Any]:
    rows = books.execute(f"select body from {table}")  # a name of ours
    return [from_body(kind, body) for (body,) in rows]


def _take(log: Log, job: Job, spans: list[tuple[float, float]]) -> None:
    held = seconds_by_count(spans)
    if job.live:
        log.left_out["jobs that have not ended"] += 1
    elif not held:
        log.left_out["jobs that never had a device"] += 1
    else:
        longest = max(held, key=lambda count: (held[count], count))
        speeds = _relative_speeds(job, longest)
        work = sum(seconds * speeds.get(count, count / longest) for count, seconds in held.items())
        log.jobs.append(
            LoggedJob(
                name=job.id,
                account=job.account,
                submitted_seconds=job.registered_at,
                gpus=max(speeds),
                seconds={count: work / speed for count, speed in speeds.items()},
                resume=job.resume,
            )
        )


def _relative_speeds(job: Job, longest: int) -> dict[int, float]:
    """Speed on each count it could run on, relative to the one it held longest."""
    rows = job.bid.rows if job.bid else ()
    left = {
        row.placement.devices: row.remaining_seconds
        for row in rows
        if row.placement.nodes == 1 and row.remaining_seconds
    }
    if longest not in left:
        return {longest: 1.0}
    return {count: left[longest] / seconds for count, seconds in left.items()}


def seconds_by_count(spans: list[tuple[float, float]]) -> dict[int, float]:
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
