"""What runs left in their directories: histories and models, read back."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from selfsched import settings
from selfsched.core.history import FILE_NAME, JobHistory
from selfsched.core.job_model import JobModel
from selfsched.elastic.run_directory import runs_parent
from selfsched.job_record import MODEL_FILE


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


def read_history(run: Path) -> JobHistory | None:
    """The history in a run's directory; None where there is none that can be read."""
    try:
        return JobHistory.model_validate_json((run / FILE_NAME).read_text())
    except (OSError, ValidationError):
        return None


def read_model(run: Path, history: JobHistory | None = None) -> JobModel | None:
    """What a run learned of itself; None where there is nothing that can be read.

    Args:
        run: its directory.
        history: the run's, which has the figures of the hardware that it was told.
    """
    try:
        state = json.loads((run / MODEL_FILE).read_text())
    except (OSError, ValueError):
        return None
    allowed = state["allowed_devices"]
    figures = history.figures if history is not None else None
    is_told = figures is not None and figures.hardware == state["hardware"]
    return JobModel.from_state(
        state, hardware=state["hardware"], min_devices=min(allowed), max_devices=max(allowed),
        prior=figures.prior if figures is not None and is_told else None,
    )  # fmt: skip
