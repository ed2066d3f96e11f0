"""Runs of this user, found by their names."""

from __future__ import annotations

from pathlib import Path

from selfsched import settings
from selfsched.core.history import FILE_NAME
from selfsched.elastic.run_directory import runs_parent
from selfsched.job_record import read_history


def find_run(wanted: str) -> Path | None:
    """The directory of the run of that name or broker's id, or that directory itself."""
    if (Path(wanted) / FILE_NAME).is_file():
        return Path(wanted)
    parent = settings.load().runs_dir or runs_parent()
    newest_first = sorted(parent.glob(f"*/{FILE_NAME}"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in newest_first:
        history = read_history(path.parent)
        if history is not None and wanted in (path.parent.name, history.name, history.job):
            return path.parent
    return None
