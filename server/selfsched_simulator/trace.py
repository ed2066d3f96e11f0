"""Traces: CSV files of jobs that arrive.

Rigid traces have the columns `arrival_s` (seconds, from any origin), `gpus` (the gang the job
asks for) and `exclusive_s` (seconds it takes alone on its gang); `job` (a name, by default the
number of the row) is optional, further columns are ignored.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from selfsched.errors import Refused
from selfsched.protocol import Resume

RIGID_COLUMNS = ("arrival_s", "gpus", "exclusive_s")
_ELASTIC_COLUMN = "requested_replicas"
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
_LONGEST_SECONDS = 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceJob:
    """A job as it will arrive. Its speed is hidden from the policy until it is reported or bid."""

    name: str
    arrival_seconds: float
    run_seconds: Mapping[int, float]
    """Time of the whole run by device count; it runs on these counts only."""
    account: str | None = None
    """Owner; None: an account of its own."""
    resume: Resume = Resume.SAME_SIZE
    knows_its_speed: bool = True
    """Bids from its registration on; otherwise it must have measured itself on a first visit."""

    @property
    def gpus(self) -> int:
        """Devices it asks for: the largest count."""
        return max(self.run_seconds)

    @property
    def exclusive_seconds(self) -> float:
        """Time it takes alone on what it asks for."""
        return self.run_seconds[self.gpus]


def read_trace(path: Path, *, gpus: int) -> tuple[TraceJob, ...]:
    """Read a rigid trace and check it against a cluster.

    Args:
        path: the CSV file.
        gpus: devices of the cluster.

    Returns:
        The jobs by arrival, then by row.

    Raises:
        Refused: the file cannot be read, or a row is wrong; the message names line and column.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns, rows = reader.fieldnames or (), list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise Refused(f"cannot read the trace {path}: {error}") from None
    _check_columns(path, columns)
    if not rows:
        raise Refused(f"the trace {path} has no jobs: it needs a line for each below the header")
    jobs = [_read_row(row, line, gpus) for line, row in enumerate(rows, start=2)]
    seen: dict[str, int] = {}
    for line, job in enumerate(jobs, start=2):
        if job.name in seen:
            raise Refused(f"line {line}: the job {job.name!r} is there already, in line {seen[job.name]}")
        seen[job.name] = line
    return tuple(sorted(jobs, key=lambda job: job.arrival_seconds))


def _check_columns(path: Path, columns: Sequence[str]) -> None:
    missing = [name for name in RIGID_COLUMNS if name not in columns]
    if not missing:
        return
    if _ELASTIC_COLUMN in columns:
        raise Refused(f"{path} is a trace of elastic jobs ({_ELASTIC_COLUMN}), which is not supported yet")
    raise Refused(
        f"the trace {path} lacks the columns {', '.join(missing)}; it has {', '.join(columns) or 'none'}"
    )


def _read_row(row: Mapping[str, str | None], line: int, gpus: int) -> TraceJob:
    name = (row.get("job") or "").strip() or str(line - 2)
    if not _NAME.match(name):
        raise Refused(f"line {line}: the job's name {name[:80]!r} has other than letters, digits, . _ -")
    arrival = _number(row, "arrival_s", line)
    if arrival < 0:
        raise Refused(f"line {line}: arrival_s is {arrival:g}, it must not be negative")
    wanted = _number(row, "gpus", line)
    if wanted != int(wanted) or wanted < 1:
        raise Refused(f"line {line}: gpus is {wanted:g}, it must be a whole number of at least 1")
    if wanted > gpus:
        raise Refused(f"line {line}: the job {name!r} needs {int(wanted)} GPUs, the cluster has {gpus}")
    seconds = _number(row, "exclusive_s", line)
    if seconds <= 0:
        raise Refused(f"line {line}: exclusive_s is {seconds:g}, it must be above 0")
    return TraceJob(name=name, arrival_seconds=arrival, run_seconds={int(wanted): seconds})


def _number(row: Mapping[str, str | None], column: str, line: int) -> float:
    text = row.get(column)
    try:
        value = float(text or "")
    except ValueError:
        raise Refused(f"line {line}: {column} is {(text or '')[:40]!r}, not a number") from None
    if not math.isfinite(value) or abs(value) > _LONGEST_SECONDS:
        raise Refused(f"line {line}: {column} is {(text or '')[:40]!r}, out of range")
    return value
