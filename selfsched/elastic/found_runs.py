"""This user's runs on this machine, found again by what stands in their directories.

What cannot be read (another version wrote it, or it is damaged) is passed over where runs are
listed, and said where it is asked for by its name.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from selfsched.core.history import JobHistory
from selfsched.elastic import job as descriptions
from selfsched.elastic.job import JobDescription
from selfsched.elastic.run_directory import RunDirectory, RunOutcome, runs_parent
from selfsched.errors import Refused
from selfsched.job_record import read_history
from selfsched.settings import Settings

RunState = Literal["running", "finished", "failed", "refused", "yielded", "stopped", "lost"]
"""`lost`: it was killed, and left no word of how it ended."""
_MOST_NAMED = 8


@dataclass(frozen=True)
class FoundRun:
    """One run, as it stood when it was looked at."""

    directory: RunDirectory
    job: JobDescription
    state: RunState
    outcome: RunOutcome | None
    """How it ended; None while it runs, and when it was killed."""
    started_at_unix: float
    """When it was started last."""

    @property
    def name(self) -> str:
        """Of its directory, which no other run has."""
        return self.directory.path.name

    def history(self) -> JobHistory | None:
        """What it wrote down of itself; None: no broker was asked, or it cannot be read."""
        return read_history(self.directory.path)


def runs_of(settings: Settings) -> Path:
    """The directory in which this user's runs lie."""
    return settings.runs_dir or runs_parent()


def find_runs(parent: Path) -> tuple[FoundRun, ...]:
    """The runs in a directory that can be read, the one that was started last first."""
    try:
        paths = list(parent.iterdir())
    except OSError:
        return ()
    found = [run for run in map(_read, paths) if run is not None]
    return tuple(sorted(found, key=lambda run: run.started_at_unix, reverse=True))


def _read(path: Path) -> FoundRun | None:
    try:
        file = (path / descriptions.FILE_NAME).lstat()
        if not _is_own_directory(path) or not stat.S_ISREG(file.st_mode):
            return None
        # The directory may have been moved or mounted elsewhere since.
        job = JobDescription.read(path).model_copy(update={"run_directory": path.absolute()})
    except (OSError, ValueError, Refused):
        return None
    directory = RunDirectory(path.absolute())
    if directory.is_held:
        return FoundRun(directory, job, "running", None, job.started_at_unix or file.st_mtime)
    outcome = directory.read_outcome()
    state: RunState = "lost" if outcome is None else outcome.outcome
    return FoundRun(directory, job, state, outcome, job.started_at_unix or file.st_mtime)


def _is_own_directory(path: Path) -> bool:
    found = path.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def run_named(wanted: str, parent: Path) -> FoundRun:
    """The run of that name: its directory's, its job's, the broker's id, or how the first one begins.

    Raises:
        Refused: there is none, there are several, or another version of selfsched wrote it.
    """
    if os.sep in wanted:
        parent, wanted = Path(wanted).absolute().parent, Path(wanted).name
    path = parent / wanted
    if wanted not in ("", ".", "..") and path.is_dir():
        run = _read(path)
        if run is None:
            raise Refused(
                f"{path} holds no run that can be read: its {descriptions.FILE_NAME} is missing, damaged, "
                "another user's, or of another version of selfsched"
            )
        return run
    runs = find_runs(parent)
    for fits in (_is_called, _begins_with):
        matching = [run for run in runs if fits(run, wanted)]
        if len(matching) == 1:
            return matching[0]
        if matching:
            raise Refused(f"{len(matching)} runs are meant by {wanted!r}: {_listed(matching)}")
    known = f"; there are {_listed(runs)}" if runs else ""
    raise Refused(f"there is no run {wanted!r} in {parent}{known}")


def _is_called(run: FoundRun, wanted: str) -> bool:
    history = run.history()
    return wanted == run.job.name or (history is not None and wanted in (history.name, history.job))


def _begins_with(run: FoundRun, wanted: str) -> bool:
    return bool(wanted) and run.name.startswith(wanted)


def newest_detached(parent: Path, *, notebook: str | None = None, with_module: bool = False) -> FoundRun:
    """The detached run that was started last: of this notebook, else of any.

    Args:
        parent: where the runs lie.
        notebook: path of the notebook that asks, as its server names it; None: it is none.
        with_module: of those that `selfsched.Trainer` started alone.

    Raises:
        Refused: there is none.
    """
    runs = [run for run in find_runs(parent) if run.job.detached]
    if with_module:
        runs = [run for run in runs if run.job.program == "payload"]
    of_notebook = [run for run in runs if notebook is not None and run.job.notebook == notebook]
    if not runs:
        raise Refused(
            f"there is no detached run in {parent}: start one with trainer.fit(..., detach=True), or give "
            "the name of another run; `selfsched runs` lists them"
        )
    return (of_notebook or runs)[0]


def going_on_of(notebook: str | None, parent: Path) -> tuple[str, ...]:
    """Names of the detached runs of a notebook that go on, of an earlier kernel maybe; newest first."""
    if notebook is None:
        return ()
    runs = (run for run in find_runs(parent) if run.state == "running" and run.job.detached)
    return tuple(run.name for run in runs if run.job.notebook == notebook)


def _listed(runs: Sequence[FoundRun]) -> str:
    shown = ", ".join(f"{run.name} ({run.state}, started {started(run)})" for run in runs[:_MOST_NAMED])
    return shown + (f" and {len(runs) - _MOST_NAMED} more" if len(runs) > _MOST_NAMED else "")


def started(run: FoundRun) -> str:
    """When a run was started last, in this machine's time."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(run.started_at_unix))
