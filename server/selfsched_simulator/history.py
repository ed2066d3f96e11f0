"""A broker's own history as a log: its books, read without touching them.

What a job's run takes is told by what it held (`core.past_runs`).
"""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from selfsched.errors import Refused
from selfsched.protocol import Resume
from selfsched_broker.core.books import Device, Holding, Job, Lease
from selfsched_broker.core.past_runs import run_seconds
from selfsched_broker.store.tables import from_body
from selfsched_simulator.cluster import ONE_MODEL, Cluster, NodeSpec
from selfsched_simulator.logs import BOOKS_FILE, Log, LoggedJob


def read_history(path: Path) -> Log:
    """Read the jobs that have ended from a broker's books, also while it runs.

    Args:
        path: `books.sqlite`, or the state directory that has it.

    Raises:
        Refused: they cannot be read.
    """
    with _open_books(path) as books:
        jobs: list[Job] = _records(books, "jobs", Job)
        leases: list[Lease] = _records(books, "leases", Lease)
        holdings: list[Holding] = _records(books, "holdings", Holding)
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


def read_devices(path: Path) -> Cluster:
    """The cluster that a broker's books know: its nodes with the devices that are not drained.

    Devices of several models are taken as one, since jobs of the books are: what a run would have taken
    on another model is told nowhere.

    Raises:
        Refused: they cannot be read, or know no device.
    """
    with _open_books(path) as books:
        devices: list[Device] = _records(books, "devices", Device)
    counts = Counter(device.node for device in devices if not device.drained)
    if not counts:
        raise Refused(f"the books {path} know no device: say how many there are with --gpus or --cluster")
    models = {device.model for device in devices}
    model = models.pop() if len(models) == 1 else ONE_MODEL
    return Cluster(tuple(NodeSpec(node, model, counts[node]) for node in sorted(counts)))


@contextmanager
def _open_books(path: Path) -> Iterator[sqlite3.Connection]:
    file = path / BOOKS_FILE if path.is_dir() else path
    if not file.is_file():
        raise Refused(f"there are no books {file}: name a broker's state directory, or its {BOOKS_FILE}")
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as books:
            yield books
    except (sqlite3.Error, ValueError) as error:
        raise Refused(f"cannot read the books {file}: {str(error).splitlines()[0]}") from None


def _records(books: sqlite3.Connection, table: str, kind: type[Any]) -> list[Any]:
    rows = books.execute(f"select body from {table}")  # a name of ours
    return [from_body(kind, body) for (body,) in rows]


def _take(log: Log, job: Job, spans: list[tuple[float, float]]) -> None:
    seconds = run_seconds(job, spans)
    if job.live:
        log.left_out["jobs that have not ended"] += 1
    elif not seconds:
        log.left_out["jobs that never had a device"] += 1
    else:
        log.jobs.append(
            LoggedJob(
                name=job.id,
                account=job.account,
                submitted_seconds=job.registered_at,
                gpus=max(seconds),
                seconds=seconds,
                # A program that cannot resume states its time, which no trace knows.
                resume=Resume.SAME_SIZE if job.resume is Resume.NEVER else job.resume,
            )
        )
