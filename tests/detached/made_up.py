"""Directories of runs, written as a supervisor writes them, with no process behind them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from selfsched.core.events import FitStarted, Progressed
from selfsched.elastic import channel
from selfsched.elastic.job import JobDescription
from selfsched.elastic.journal import Journal
from selfsched.elastic.manifest import FILES
from selfsched.elastic.private_files import make_private
from selfsched.elastic.run_directory import RunDirectory, RunOutcome, open_run

FINISHED = RunOutcome("finished", 0, step=40)


def leave_checkpoint(run: Path, step: int, *, fit: int = 1, whole: bool = True) -> Path:
    """A checkpoint in a run's directory as its manifest describes it; what is in it is nonsense."""
    path = run / "fits" / str(fit) / f"step-{step:012d}"
    make_private(path)
    for name in FILES:
        (path / name).write_bytes(b"x")
    sizes = dict.fromkeys(FILES, 1 if whole else 2)
    (path / "manifest.json").write_text(json.dumps({"step": step, "finished": False, "sizes": sizes}))
    return path


class MadeUpRun:
    """One run of whom a test is the supervisor: it is alive until `end` or `die`."""

    def __init__(self, parent: Path, run: str | None = "night", **of_the_job: Any) -> None:
        self.directory: RunDirectory
        self.directory, self._lock = open_run(run, parent=parent)
        values: dict[str, Any] = {
            "run_directory": self.directory.path, "name": run, "program": "payload", "detached": True,
            "working_directory": parent, "max_devices": 2, "plan": "1@0", "started_at_unix": 1000.0,
        }  # fmt: skip
        self.job = JobDescription(**(values | of_the_job))
        self.job.write()
        self.journal = Journal(self.directory)

    @property
    def name(self) -> str:
        return self.directory.path.name

    def lives(self, *, at: float, unix: float) -> None:
        """Its supervisor starts, at an instant of its boot."""
        self.journal.say("supervisor_started", pid=1, warden_pid=2, unix=unix, at=at)

    def trains(self, *, at: float, step: int, planned: int = 40) -> None:
        """A segment on one device, up to a step."""
        self.journal.message(
            channel.SegmentBegan(ordinal=0, devices=("cpu0",), reason="as planned", at=at)
        )
        self.journal.event(
            FitStarted(
                fit=1, package="none", global_batch=8, reference_devices=1, step=0,
                planned_steps=planned, at=at,
            )
        )  # fmt: skip
        self.journal.event(Progressed(fit=1, step=step, epoch=0, samples=8 * step, at=at + step))

    def end(self, outcome: RunOutcome = FINISHED) -> None:
        """Leave word of how it ended, and be gone."""
        self.directory.write_outcome(outcome)
        self.die()

    def die(self) -> None:
        """Be gone without a word."""
        self.journal.close()
        os.close(self._lock)
