"""Logs of jobs that have run, as traces: what would our policies have done with them?

* Philly-style CSV: `submit_s`, `duration_s`, `num_gpus`, and `vc` or `user` (the account).
* Slurm: the output of `sacct --parsable2` with at least JobID, Submit, one of ElapsedRaw, Elapsed or
  Start and End, and one of AllocTRES, ReqTRES, AllocGRES or ReqGRES; User or Account is the account.
  Steps (`123.batch`), jobs without a GPU and jobs that never ran are left out, counted.
* Our own: the books of a broker (`books.sqlite`, or the state directory that has it). A job's speed
  comes from how long it held how many devices, and for other counts from its last standing bid.

Instants are counted from the first submission. A job is taken to need what it had used, whether it
finished, failed or was cancelled. One that is wider than the cluster runs on the most devices that it is
known on; where it is known on none it is capped (as if it scaled linearly). Or it is left out. All of it
is said in the trace's notes.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Literal

from selfsched.errors import Refused
from selfsched.protocol import Resume
from selfsched_simulator.cluster import Cluster
from selfsched_simulator.speeds import by_count
from selfsched_simulator.tables import Row, number, read_rows, whole
from selfsched_simulator.trace import Trace, TraceJob, count_names

Format = Literal["philly", "slurm", "own"]
Wider = Literal["cap", "leave-out"]
_PHILLY_COLUMNS = ("submit_s", "duration_s", "num_gpus")
_SQLITE_MAGIC = b"SQLite format 3\x00"
BOOKS_FILE = "books.sqlite"
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME = 64
_DURATION = re.compile(
    r"^(?:(?P<days>\d+)-)?(?:(?P<hours>\d+):)?(?P<minutes>\d+):(?P<seconds>\d+(?:\.\d+)?)$"
)
_GPUS = re.compile(r"(?:^|,)(?:gres/)?gpu(?P<typed>:[A-Za-z][^=:,]*)?[=:](?P<count>\d+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedJob:
    """A job as a log tells of it."""

    name: str
    account: str | None
    submitted_seconds: float
    """From any origin."""
    gpus: int
    """Devices it asked for, or had."""
    seconds: Mapping[int, float]
    """Seconds of the whole run by device count, `gpus` among them."""
    resume: Resume = Resume.SAME_SIZE


@dataclass(slots=True)
class Log:
    """The jobs of a log, and what was left out of it."""

    jobs: list[LoggedJob] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    """How many rows by reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogOptions:
    """What is made of a log."""

    wider: Wider = "cap"
    first: int | None = None
    """Only so many jobs, the first to be submitted."""
    elastic: float | None = None
    """Jobs may run on fewer devices, too, as if they scaled with this exponent; None: at their size."""


def format_of(path: Path) -> Format:
    """Which kind of log a file is, by its first bytes.

    Raises:
        Refused: it cannot be read, or is none that is known.
    """
    if path.is_dir():
        if (path / BOOKS_FILE).exists():
            return "own"
        raise Refused(
            f"{path} is a directory without {BOOKS_FILE}: name a log, or a broker's state directory"
        )
    start = _beginning(path)
    if start.startswith(_SQLITE_MAGIC):
        return "own"
    header = start.split(b"\n", 1)[0].decode("utf-8", "replace")
    if "|" in header and "JobID" in header:
        return "slurm"
    if all(column in header for column in _PHILLY_COLUMNS):
        return "philly"
    raise Refused(
        f"{path} is no log that is known: it must have the columns {', '.join(_PHILLY_COLUMNS)}, or be the"
        " output of sacct --parsable2, or a broker's books.sqlite"
    )


def _beginning(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(4096)
    except OSError as error:
        raise Refused(f"cannot read the log {path}: {error.strerror or error}") from None


def refuse_other_format(path: Path, kind: Format) -> None:
    """Refuse a file that is plainly not what `--format` says.

    Raises:
        Refused: books that are called a text, or a directory or text that is called books.
    """
    is_own = format_of(path) == "own" if path.is_dir() else _beginning(path).startswith(_SQLITE_MAGIC)
    if is_own and kind != "own":
        raise Refused(
            f"{path} is a broker's books, not a {kind} log: leave --format out, or say --format own"
        )
    if not is_own and kind == "own":
        raise Refused(f"{path} is no broker's books (SQLite): leave --format out, or say philly or slurm")


def read_log(path: Path, cluster: Cluster, options: LogOptions, kind: Format | None = None) -> Trace:
    """Read a log as a trace for a cluster.

    Raises:
        Refused: it cannot be read, or nothing of it can be replayed.
    """
    if kind is not None:
        refuse_other_format(path, kind)
    from selfsched_simulator.history import read_history

    readers: dict[Format, Callable[[Path], Log]] = {
        "philly": read_philly,
        "slurm": read_slurm,
        "own": read_history,
    }
    log = readers[kind or format_of(path)](path)
    return to_trace(log, path, cluster, options)


def to_trace(log: Log, path: Path, cluster: Cluster, options: LogOptions) -> Trace:
    """The jobs of a log, as they arrive at a cluster."""
    ordered = sorted(log.jobs, key=lambda job: job.submitted_seconds)[: options.first]
    wide = [job for job in ordered if min(job.seconds) > cluster.devices or job.gpus > cluster.devices]
    if options.wider == "leave-out":
        names = {job.name for job in wide}
        ordered = [job for job in ordered if job.name not in names]
    if not ordered:
        reasons = [f"{count} {why}" for why, count in log.left_out.items()]
        reasons += [f"{len(wide)} are wider"] if wide else []
        words = ", ".join(reasons) or "it is empty"
        raise Refused(f"nothing of {path} can be replayed on {cluster.devices} devices: {words}")
    origin = ordered[0].submitted_seconds
    seen: Counter[str] = Counter()
    jobs = []
    for job in ordered:
        seen[job.name] += 1
        again = (
            f"{job.name[: _LONGEST_NAME - 8]}-{seen[job.name]}"  # a job that was requeued has several rows
        )
        named = job if seen[job.name] == 1 else replace(job, name=again)
        jobs.append(_trace_job(named, origin, cluster, options))
    notes = [f"{count} rows left out: {why}" for why, count in log.left_out.items()]
    notes += _notes_on_wide(wide, cluster, options)
    return Trace(kind="rigid", jobs=tuple(jobs), notes=tuple(notes))


def _notes_on_wide(wide: Sequence[LoggedJob], cluster: Cluster, options: LogOptions) -> Iterator[str]:
    known = [job for job in wide if min(job.seconds) <= cluster.devices]
    guessed = [job for job in wide if min(job.seconds) > cluster.devices]
    groups: list[tuple[Sequence[LoggedJob], str]] = [
        (known, "run on fewer at the speed they bid for"),
        (guessed, "capped to it, as if they scaled linearly"),
    ]
    if options.wider == "leave-out":
        groups = [(wide, "left out")]
    for jobs, done in groups:
        if jobs:
            listed = count_names(f"{job.name} ({job.gpus})" for job in jobs)
            yield f"{len(jobs)} jobs are wider than the {cluster.devices} devices, and {done}: {listed}"


def _trace_job(job: LoggedJob, origin: float, cluster: Cluster, options: LogOptions) -> TraceJob:
    fitting = {count: value for count, value in job.seconds.items() if count <= cluster.devices}
    if not fitting:
        narrowest = min(job.seconds)
        fitting = {cluster.devices: job.seconds[narrowest] * narrowest / cluster.devices}
    gpus = max(fitting)
    resume = job.resume
    if options.elastic is not None and len(fitting) == 1:
        counts = {2**power for power in range(gpus.bit_length()) if 2**power <= gpus}
        fitting |= {n: fitting[gpus] * (gpus / n) ** options.elastic for n in counts if n != gpus}
        resume = Resume.ELASTIC if len(fitting) > 1 else resume
    return TraceJob(
        name=job.name,
        arrival_seconds=job.submitted_seconds - origin,
        account=job.account,
        speed=by_count(fitting, cluster),
        gpus=gpus,
        alone_seconds=fitting[gpus],
        resume=resume,
    )


def plain_name(text: str, otherwise: str) -> str:
    """A name without what no name of ours may have."""
    cleaned = _NOT_A_NAME.sub("-", text.strip()).strip("-._")[:_LONGEST_NAME]
    return cleaned or otherwise


# --- Philly ------------------------------------------------------------------------------


def read_philly(path: Path) -> Log:
    """Read a Philly-style CSV file.

    Raises:
        Refused: it cannot be read; the message names line and column.
    """
    log = Log()
    for line, row in enumerate(read_rows(path, _PHILLY_COLUMNS, "the log"), start=2):
        submitted, gpus = number(row, "submit_s", line), whole(row, "num_gpus", line, least=0)
        seconds = number(row, "duration_s", line)
        if gpus == 0:
            log.left_out["jobs without a GPU"] += 1
        elif seconds <= 0:
            log.left_out["jobs that ran for no time"] += 1
        else:
            account = row.get("vc") or row.get("user")
            log.jobs.append(
                LoggedJob(
                    name=plain_name(row.get("job") or "", str(line - 2)),
                    account=plain_name(account, "unknown") if account else None,
                    submitted_seconds=submitted,
                    gpus=gpus,
                    seconds={gpus: seconds},
                )
            )
    return log


# --- Slurm -------------------------------------------------------------------------------


def read_slurm(path: Path) -> Log:
    """Read the output of `sacct --parsable2` (or `--parsable`), its header included.

    Raises:
        Refused: it cannot be read, or lacks what is needed.
    """
    try:
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            reader = csv.DictReader(file, delimiter="|", quoting=csv.QUOTE_NONE)
            header, rows = set(reader.fieldnames or ()), list(reader)
    except (OSError, csv.Error) as error:
        raise Refused(f"cannot read the log {path}: {error}") from None
    _check_slurm(path, header)
    log = Log()
    for line, row in enumerate(rows, start=2):
        if "." in (row.get("JobID") or ""):
            continue  # a step of a job that has a line of its own
        try:
            _take_slurm_row(log, row)
        except ValueError as error:
            raise Refused(f"line {line} of {path}: {error}") from None
    return log


def _check_slurm(path: Path, header: Iterable[str]) -> None:
    has = set(header)
    wanted: list[tuple[str, bool]] = [
        ("JobID", "JobID" in has),
        ("Submit", "Submit" in has),
        (
            "ElapsedRaw (or Elapsed, or Start and End)",
            bool({"ElapsedRaw", "Elapsed"} & has) or {"Start", "End"} <= has,
        ),
        ("AllocTRES (or ReqTRES, AllocGRES, ReqGRES)", bool(set(_TRES) & has)),
    ]
    missing = [words for words, there in wanted if not there]
    if missing:
        raise Refused(
            f"the log {path} lacks {', '.join(missing)}: sacct -a -X --parsable2 --starttime ..."
            " --format=JobID,User,Submit,ElapsedRaw,AllocTRES,State"
        )


_TRES = ("AllocTRES", "AllocGRES", "ReqTRES", "ReqGRES")


def _take_slurm_row(log: Log, row: Row) -> None:
    gpus = next((n for column in _TRES if (n := count_gpus(row.get(column) or ""))), 0)
    state = (row.get("State") or "").split(" ")[0].upper()
    seconds = _elapsed_seconds(row)
    if not gpus:
        log.left_out["jobs without a GPU"] += 1
    elif state in ("RUNNING", "PENDING", "SUSPENDED"):
        log.left_out["jobs that have not ended"] += 1
    elif seconds <= 0:
        log.left_out["jobs that ran for no time"] += 1
    else:
        job_id = row.get("JobID") or ""
        owner = row.get("User") or row.get("Account") or ""
        log.jobs.append(
            LoggedJob(
                name=plain_name(job_id, f"row-{len(log.jobs)}"),
                account=plain_name(owner, "unknown"),
                submitted_seconds=_instant(row.get("Submit") or ""),
                gpus=gpus,
                seconds={gpus: seconds},
            )
        )


def count_gpus(text: str) -> int:
    """GPUs in a TRES or GRES string, as `billing=8,cpu=8,gres/gpu=2,gres/gpu:a100=2` or `gpu:a100:2`."""
    plain = typed = 0
    for found in _GPUS.finditer(re.sub(r"\([^)]*\)", "", text)):
        if found["typed"]:
            typed += int(found["count"])
        else:
            plain += int(found["count"])
    return plain or typed


def _elapsed_seconds(row: Row) -> float:
    raw = (row.get("ElapsedRaw") or "").strip()
    if raw:
        return float(raw)
    text = (row.get("Elapsed") or "").strip()
    if text:
        found = _DURATION.match(text)
        if found is None:
            raise ValueError(f"Elapsed is {text[:40]!r}, it must be as 1-02:03:04")
        parts = {name: float(value or 0) for name, value in found.groupdict().items()}
        return ((parts["days"] * 24 + parts["hours"]) * 60 + parts["minutes"]) * 60 + parts["seconds"]
    start, end = (row.get("Start") or "").strip(), (row.get("End") or "").strip()
    if "Unknown" in (start, end) or not start or not end:
        return 0.0
    return _instant(end) - _instant(start)


def _instant(text: str) -> float:
    """Seconds from any origin; a time without a zone is taken as it stands."""
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"{text[:40]!r} is no time as 2026-05-01T10:11:12") from None
    origin = datetime(2000, 1, 1, tzinfo=at.tzinfo)
    return (at - origin).total_seconds()
