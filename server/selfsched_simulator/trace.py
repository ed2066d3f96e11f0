"""Traces: CSV files of jobs that arrive, and the jobs that come of them.

The kind of a trace is told by its columns:

* rigid: `arrival_s` (seconds, from any origin), `gpus` (the gang the job asks for) and
  `exclusive_s` (seconds it takes alone on its gang);
* elastic: `arrival_s`, `application`, `requested_replicas`, `global_batch` (see `elastic`);
* mixed: `arrival_s`, `model`, `batch_size`, `num_gpus`, `total_steps` (see `mixed`).

Optional in each: `job` (a name, by default the number of the row), `account` (by default the job is
an account of its own) and `restart_s` (what a start costs it). Further columns are ignored; the order
of the rows does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from selfsched.errors import Refused
from selfsched.protocol import Resume
from selfsched_simulator.cluster import Cluster
from selfsched_simulator.speeds import Speed, by_count
from selfsched_simulator.tables import Row, number, positive, read_any, read_rows, whole

Kind = Literal["rigid", "elastic", "mixed"]
RIGID_COLUMNS = ("arrival_s", "gpus", "exclusive_s")
_MARKS: dict[str, Kind] = {"exclusive_s": "rigid", "requested_replicas": "elastic", "total_steps": "mixed"}
_LOG_MARK = "submit_s"
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
_LONGEST_RESTART_SECONDS = 1e6


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceJob:
    """A job as it will arrive. Its speed is hidden from the policy until it is reported or bid."""

    name: str
    arrival_seconds: float
    speed: Speed
    gpus: int
    """Devices it asks for."""
    alone_seconds: float
    """T_alone: what its completion is held against."""
    account: str | None = None
    """Owner; None: an account of its own."""
    resume: Resume = Resume.SAME_SIZE
    knows_its_speed: bool = True
    """Bids from its registration on; otherwise it must have measured itself on a first visit."""
    restart_seconds: float | None = None
    """What a start costs it; None: what the simulation says."""
    ready_seconds: float = 0.0
    """Instant before which it makes no step, whatever it holds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """All jobs, by arrival."""

    kind: Kind
    jobs: tuple[TraceJob, ...]
    notes: tuple[str, ...] = ()
    """What was changed or left out of the file, for people."""


def rigid_job(name: str, arrival_seconds: float, gpus: int, seconds: float, **fields: object) -> TraceJob:
    """A gang of fixed size, on one node."""
    return TraceJob(
        name=name,
        arrival_seconds=arrival_seconds,
        speed=by_count({gpus: seconds}),
        gpus=gpus,
        alone_seconds=seconds,
        **fields,  # type: ignore[arg-type]
    )


def kind_of(path: Path) -> Kind:
    """What kind of trace a file is, by its columns.

    Raises:
        Refused: it cannot be read, or is none.
    """
    header, _ = read_any(path, "the trace")
    for column, kind in _MARKS.items():
        if column in header:
            return kind
    if _LOG_MARK in header:
        raise Refused(f"{path} is a log of jobs that have run ({_LOG_MARK}): use selfsched-broker replay")
    missing = [name for name in RIGID_COLUMNS if name not in header]
    raise Refused(
        f"the trace {path} lacks the columns {', '.join(missing)}; it has {', '.join(header)[:200] or 'none'}"
    )


def read_rigid(path: Path, cluster: Cluster) -> Trace:
    """Read a rigid trace and check it against a cluster.

    Raises:
        Refused: the file cannot be read, or a row is wrong; the message names line and column.
    """
    jobs = []
    for line, row in enumerate(read_rows(path, RIGID_COLUMNS, "the trace"), start=2):
        common = read_common(row, line)
        gpus = whole(row, "gpus", line)
        refuse_wider(common.name, gpus, cluster, line)
        seconds = positive(row, "exclusive_s", line)
        jobs.append(
            TraceJob(
                name=common.name,
                arrival_seconds=common.arrival_seconds,
                account=common.account,
                restart_seconds=common.restart_seconds,
                speed=by_count({gpus: seconds}, cluster),
                gpus=gpus,
                alone_seconds=seconds,
            )
        )
    return Trace(kind="rigid", jobs=in_order(jobs))


@dataclass(frozen=True, slots=True)
class Common:
    """What a row of any trace says."""

    name: str
    arrival_seconds: float
    account: str | None
    restart_seconds: float | None


def read_common(row: Row, line: int, *, name_column: str = "job") -> Common:
    """Name, arrival, account and restart of a row.

    Raises:
        Refused: one of them is wrong.
    """
    name = (row.get(name_column) or "").strip() or str(line - 2)
    account = (row.get("account") or "").strip() or None
    for what, value in (("job's", name), ("account's", account)):
        if value is not None and not _NAME.match(value):
            raise Refused(
                f"line {line}: the {what} name {value[:80]!r} has other than letters, digits, . _ -"
            )
    arrival = number(row, "arrival_s", line)
    if arrival < 0:
        raise Refused(f"line {line}: arrival_s is {arrival:g}, it must not be negative")
    restart = None
    if (row.get("restart_s") or "").strip():
        restart = number(row, "restart_s", line)
        if not 0 <= restart <= _LONGEST_RESTART_SECONDS:
            raise Refused(f"line {line}: restart_s is {restart:g}, it must be between 0 and 1000000")
    return Common(name, arrival, account, restart)


def refuse_wider(name: str, devices: int, cluster: Cluster, line: int) -> None:
    """Refuse a job that no allocation of the cluster could serve."""
    if devices > cluster.devices:
        raise Refused(
            f"line {line}: the job {name!r} needs {devices} GPUs, the cluster has {cluster.devices}"
        )


def in_order(jobs: Sequence[TraceJob]) -> tuple[TraceJob, ...]:
    """Jobs by arrival, then by row.

    Raises:
        Refused: two have the same name.
    """
    seen: dict[str, int] = {}
    for line, job in enumerate(jobs, start=2):
        if job.name in seen:
            raise Refused(f"line {line}: the job {job.name!r} is there already, in line {seen[job.name]}")
        seen[job.name] = line
    return tuple(sorted(jobs, key=lambda job: job.arrival_seconds))


def count_names(names: Iterable[str], most: int = 5) -> str:
    """The first names of a list, in words."""
    listed = list(names)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")
