"""Runs of this user on this machine, as their directories tell of them.

A run outlives its tab, and where it was asked to its kernel: what it is doing, which notebook
it belongs to and what it has printed stands in its directory (`selfsched.elastic.run_directory`).
Everything is read as data from files of this user; nothing is taken from another's directory,
through a link, or without a bound. Reading takes no lock that a starting run could trip over
for longer than a moment.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from selfsched import settings
from selfsched.core import history
from selfsched.elastic import job as description
from selfsched.elastic.found_runs import runs_of

MOST_RUNS = 50
PAGE_BYTES = 64 * 1024
OUTPUT = "output.log"
_MOST_RECORD_BYTES = 4 * 1024 * 1024
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_OFFSET_BITS = 32
_FILE_BITS = 20
"""A position is (file, offset) in one whole number that JavaScript holds exactly."""
_LONGEST_LETTER_BYTES = 4
_LONGEST_TEXT = 4096
"""As long as a path may be."""
_LARGEST_WHOLE = 2**53
"""Up to here JavaScript holds each whole number exactly."""
_LAST_INSTANT = 253_402_300_799.0
"""The end of the year 9999."""


class RunView(BaseModel):
    """One run."""

    model_config = ConfigDict(frozen=True)

    name: str
    """Of its directory: what `runs/{name}/output` is asked with."""
    job: str | None
    """The broker's id of it."""
    job_name: str
    run_directory: str
    notebook: str | None
    """Path of the notebook that started it, from the server's root where it lies below it; None: no
    notebook did, or it is not known."""
    kernel_id: str | None
    detached: bool
    """It goes on without its kernel."""
    state: str
    """`running`; how it ended (`finished`, `failed`, `refused`, `yielded`, `stopped`); or `lost`: killed."""
    started_at: float
    """When it was started last, in seconds since 1970."""
    ended_at: float | None
    step: int | None
    """Reached when it ended; None while it runs."""
    planned_steps: int | None
    message: str
    """What it said at its end."""


class OutputPage(BaseModel):
    """A part of what a run has printed."""

    model_config = ConfigDict(frozen=True)

    text: str
    next: int
    """Where to go on from."""
    complete: bool
    """The run is over, and this was the rest."""
    skipped: bool
    """Older output between this page and the one before was not kept."""


class NoSuchRun(Exception):
    """There is no run of that name that is this user's."""


def parent_directory() -> Path:
    """Where this user's runs lie.

    Raises:
        InvalidSettings: what is set cannot be read.
    """
    return runs_of(settings.load(unknown="ignore"))


def list_runs(parent: Path, *, root: Path | None = None, most: int = MOST_RUNS) -> tuple[RunView, ...]:
    """The runs in a directory, newest first.

    Args:
        parent: the directory.
        root: where the server's own paths of notebooks begin.
        most: at most so many.
    """
    try:
        entries = [
            path for path in parent.iterdir() if _NAME.fullmatch(path.name) and _is_own_directory(path)
        ]
    except OSError:
        return ()
    dated = sorted(((_started_at(path), path) for path in entries), key=lambda pair: pair[0], reverse=True)
    views = (_view(path, started_at, root) for started_at, path in dated[:most] if started_at > 0)
    return tuple(view for view in views if view is not None)


def read_output(parent: Path, name: str, position: int, *, page_bytes: int = PAGE_BYTES) -> OutputPage:
    """What a run printed from a position on.

    Args:
        parent: the directory of the runs.
        name: of the run's directory.
        position: 0, or `next` of the page before.
        page_bytes: at most so much.

    Raises:
        NoSuchRun: there is none of that name.
    """
    path = parent / name
    if not _NAME.fullmatch(name) or not _is_own_directory(path):
        raise NoSuchRun(name)
    is_over = _state(path)[0] != "running"  # before reading: what comes later is on a later page
    with _log_files(path) as files:
        if not files:
            return OutputPage(text="", next=position, complete=is_over, skipped=False)
        which, offset, skipped = _place(files, position)
        return _page(files[which:], offset, skipped, is_over, page_bytes)


# --- output ----------------------------------------------------------------------------------


@contextmanager
def _log_files(path: Path) -> Iterator[list[int]]:
    """Descriptors of the output's files, older first. The newer is opened first: one that is put
    aside in between is then there twice, and not missing."""
    found: list[int] = []
    try:
        for name in (OUTPUT, f"{OUTPUT}.1"):
            with suppress(OSError):
                found.insert(0, _open(path / name))
        if len(found) == 2 and os.fstat(found[0]).st_ino == os.fstat(found[1]).st_ino:
            os.close(found.pop())
        yield found
    finally:
        for descriptor in found:
            os.close(descriptor)


def _place(files: list[int], position: int) -> tuple[int, int, bool]:
    """(which file, offset in it, whether something between was not kept)."""
    mark, offset = position >> _OFFSET_BITS, position & ((1 << _OFFSET_BITS) - 1)
    for which, descriptor in enumerate(files):
        if _mark(descriptor) == mark and offset <= os.fstat(descriptor).st_size:
            return which, offset, False
    return 0, 0, position > 0


def _mark(descriptor: int) -> int:
    """What tells one file from the next."""
    return os.fstat(descriptor).st_ino & ((1 << _FILE_BITS) - 1)


def _page(files: list[int], offset: int, skipped: bool, is_over: bool, page_bytes: int) -> OutputPage:
    data = os.pread(files[0], page_bytes, offset)
    if not data and len(files) > 1:
        files, offset = files[1:], 0
        data = os.pread(files[0], page_bytes, 0)
    is_rest = is_over and len(files) == 1 and offset + len(data) >= os.fstat(files[0]).st_size
    if not is_rest:
        data = _whole_letters(data)
    following = (_mark(files[0]) << _OFFSET_BITS) | (offset + len(data))
    text = data.decode(errors="replace")
    return OutputPage(text=text, next=following, complete=is_rest, skipped=skipped)


def _whole_letters(data: bytes) -> bytes:
    """Without the beginning of a letter (UTF-8) whose rest is not there yet."""
    for back in range(1, min(_LONGEST_LETTER_BYTES, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:  # goes on with a letter that begins further in front
            continue
        wanted = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return data[:-back] if wanted > back else data
    return data


# --- one run ---------------------------------------------------------------------------------


def _view(path: Path, started_at: float, root: Path | None) -> RunView | None:
    job = _json(path / description.FILE_NAME)
    if job is None:
        return None
    told = _told(path / history.FILE_NAME)
    state, outcome = _state(path)
    return RunView(
        name=path.name,
        job=told.job,
        job_name=told.name or _text(job.get("name")) or path.name,
        run_directory=_sendable(str(path)),
        notebook=_from_root(_text(job.get("notebook")), root),
        kernel_id=_text(job.get("kernel_id")),
        detached=job.get("detached") is True,
        state=state,
        started_at=_instant(job.get("started_at_unix")) or started_at,
        ended_at=_modified_at(path / "outcome.json") if outcome else None,
        step=_whole(outcome.get("step")),
        planned_steps=told.planned_steps,
        message=(_text(outcome.get("message")) or "")[:2000],
    )


def _from_root(notebook: str | None, root: Path | None) -> str | None:
    """A kernel is told the whole path of its notebook; JupyterLab knows it from the server's root."""
    if notebook is None or root is None:
        return notebook
    for start in (root, root.resolve()):
        with suppress(ValueError):
            return Path(notebook).relative_to(start).as_posix()
    return notebook


@dataclass(frozen=True)
class _Told:
    """What is taken from a run's history."""

    job: str | None = None
    name: str | None = None
    planned_steps: int | None = None


def _told(path: Path) -> _Told:
    """From a file that may be large, and is mostly the one of the last look."""
    try:
        found = path.lstat()
    except OSError:
        return _Told()
    return _read_history(path, (found.st_mtime_ns, found.st_size, found.st_ino))


@lru_cache(maxsize=4 * MOST_RUNS)
def _read_history(path: Path, stamp: tuple[int, int, int]) -> _Told:
    told = _json(path) or {}
    return _Told(_text(told.get("job")), _text(told.get("name")), _whole(told.get("planned_steps")))


def _state(path: Path) -> tuple[str, dict[str, Any]]:
    """(its state, what it left at its end)."""
    if _is_held(path / "lock"):
        return "running", {}
    outcome = _json(path / "outcome.json") or {}
    return _text(outcome.get("outcome")) or "lost", outcome


def _is_held(lock: Path) -> bool:
    """Whether a supervisor is alive: it holds the lock as long as it lives."""
    try:
        descriptor = _open(lock)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)  # which gives our own hold back too
    return False


def _is_own_directory(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _started_at(path: Path) -> float:
    """When the run was started last; 0: it is none."""
    return _modified_at(path / description.FILE_NAME) or 0.0


def _modified_at(path: Path) -> float | None:
    try:
        return _instant(path.lstat().st_mtime)
    except OSError:
        return None


def _open(path: Path) -> int:
    """A descriptor of a plain file of this user.

    Raises:
        OSError: it is none.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
        os.close(descriptor)
        raise OSError(f"{path} is no plain file of yours")
    return descriptor


def _json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None: there is none that can be read."""
    try:
        with os.fdopen(_open(path), "rb") as file:
            found = json.loads(file.read(_MOST_RECORD_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _text(value: Any) -> str | None:
    return _sendable(value[:_LONGEST_TEXT]) if isinstance(value, str) and value else None


def _sendable(text: str) -> str:
    """Without what cannot be sent: half letters, as a file's name that is no UTF-8 leaves them."""
    return text.encode(errors="replace").decode()


def _instant(value: Any) -> float | None:
    """Seconds since 1970; None also for what is no day of the calendar, such as NaN."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 < value <= _LAST_INSTANT else None


def _whole(value: Any) -> int | None:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return value if is_whole and abs(value) <= _LARGEST_WHOLE else None
