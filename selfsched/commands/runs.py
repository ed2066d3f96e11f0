"""Runs of this user on this machine: found by their names, listed, followed again, stopped.

No broker is asked: what is known stands in the runs' own directories, and a Stop goes to the
supervisor itself.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from selfsched import settings
from selfsched.commands.printing import console, print_json, print_table
from selfsched.core.history import FILE_NAME
from selfsched.core.run_ends import run_end_words
from selfsched.elastic import channel
from selfsched.elastic.channel import Channel
from selfsched.elastic.found_runs import FoundRun, find_runs, newest_detached, run_named, runs_of, started
from selfsched.elastic.run_directory import RunOutcome
from selfsched.errors import EXIT_FINE, Refused
from selfsched.job_record import read_history

LISTED = 20
_TAIL_BYTES = 256 * 1024
_LOOK_SECONDS = 0.1


def find_run(wanted: str) -> Path | None:
    """The directory of the run of that name or broker's id, or that directory itself."""
    if (Path(wanted) / FILE_NAME).is_file():
        return Path(wanted)
    parent = runs_of(settings.load())
    newest_first = sorted(parent.glob(f"*/{FILE_NAME}"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in newest_first:
        history = read_history(path.parent)
        if history is not None and wanted in (path.parent.name, history.name, history.job):
            return path.parent
    return None


def show_runs(*, everything: bool, as_json: bool) -> None:
    """List the runs, newest first; the newest twenty unless everything is asked for."""
    parent = runs_of(settings.load())
    runs = find_runs(parent)
    shown = runs if everything else runs[:LISTED]
    if as_json:
        print_json([_plain(run) for run in shown])
        return
    if not runs:
        console().print(f"There are no runs in {parent}.")
        return
    columns = ("run", "state", "started", "step", "detached", "notebook")
    print_table("Runs on this machine", columns, map(_row, shown), names=("run", "notebook"))
    if len(shown) < len(runs):
        console().print(f"{len(runs) - len(shown)} older ones: selfsched runs --all")


def _plain(run: FoundRun) -> dict[str, Any]:
    step, planned = _position(run)
    return {
        "name": run.name, "job_name": run.job.name, "state": run.state, "detached": run.job.detached,
        "started_at_unix": run.started_at_unix, "step": step, "planned_steps": planned,
        "notebook": run.job.notebook, "directory": str(run.directory.path),
        "message": "" if run.outcome is None else run.outcome.message,
    }  # fmt: skip


def _row(run: FoundRun) -> Sequence[object]:
    step, planned = _position(run)
    position = "" if step is None else f"{step}/{planned}" if planned else f"{step}"
    notebook = Path(run.job.notebook).name if run.job.notebook else ""
    return run.name, _state_words(run), started(run), position, "yes" if run.job.detached else "", notebook


def _state_words(run: FoundRun) -> str:
    return run.state if run.outcome is None else run_end_words(run.outcome.outcome, run.outcome.message)


def _position(run: FoundRun) -> tuple[int | None, int | None]:
    """(global step reached, steps planned), as far as they are known."""
    history = run.history()
    planned = history.planned_steps if history is not None else None
    step = run.outcome.step if run.outcome is not None else None
    for event in _newest_events(run.directory.path / "events.jsonl"):
        if event.get("kind") == "fit_started":
            planned = event.get("planned_steps")
            step = event.get("step") if run.outcome is None else step
        elif event.get("kind") == "progressed" and run.outcome is None:
            step = event.get("step")
    return step, planned


def _newest_events(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return []
    wanted = (b'"kind":"fit_started"', b'"kind":"progressed"')
    found = []
    for line in lines:
        if line.endswith(b"}") and any(kind in line for kind in wanted):
            try:
                found.append(json.loads(line))
            except ValueError:
                continue  # the first one is cut
    return [event for event in found if isinstance(event, dict)]


# --- following and stopping ------------------------------------------------------------------


def follow_run(name: str | None) -> int:
    """Show a run again, in this terminal, to its end; the exit code that the run itself ended with.

    Args:
        name: of the run; None: the newest detached one.

    Raises:
        Detached: Ctrl-C; the run goes on.
        Refused: there is no such run.
    """
    from selfsched.elastic.following import FollowedRun
    from selfsched.elastic.views import TerminalView

    run = _chosen(name)
    print(f"selfsched: run {run.name}, started {started(run)}, {_state_words(run)}", file=sys.stderr)
    outcome = FollowedRun(run.job).follow(TerminalView())
    if outcome.traceback:
        sys.stderr.write(outcome.traceback.rstrip("\n") + "\n")
    print(f"selfsched: {ended_words(outcome)}", file=sys.stderr)
    return outcome.exit_code


def _chosen(name: str | None) -> FoundRun:
    parent = runs_of(settings.load())
    return newest_detached(parent) if name is None else run_named(name, parent)


def stop_run(name: str, *, at_once: bool) -> int:
    """Have a run checkpoint and end, and wait for that. Ctrl-C leaves the waiting, not the Stop.

    Args:
        name: of the run.
        at_once: without a checkpoint, as a second Stop does.

    Raises:
        Refused: there is no such run, or it does not run.
    """
    run = _chosen(name)
    if run.state != "running":
        raise Refused(f"the run {run.name} does not run: it is {_state_words(run)}")
    path = run.directory.live_supervisor_socket()
    connection = None if path is None else channel.connect(path)
    if connection is None:
        raise Refused(f"the supervisor of the run {run.name} does not answer: it starts or ends just now")
    link = Channel(connection)
    for _ in range(2 if at_once else 1):
        link.send(channel.StopRequested())
    how = "at once" if at_once else "with a checkpoint"
    print(f"selfsched: run {run.name} is told to end {how}", file=sys.stderr)
    # The line stays open meanwhile: what is sent into a closed one is not read any more.
    while run.directory.is_held:
        if link.is_open:
            link.receive()
        time.sleep(_LOOK_SECONDS)
    if link.is_open:
        link.close()
    outcome = run.directory.read_outcome()
    if outcome is not None:
        print(f"selfsched: {ended_words(outcome)}", file=sys.stderr)
    return EXIT_FINE


def ended_words(outcome: RunOutcome) -> str:
    """How a run ended, in a line."""
    words = outcome.message or run_end_words(outcome.outcome, outcome.message)
    if outcome.outcome == "finished":
        return f"{words} at step {outcome.step}"
    return f"{words}; checkpoint at step {outcome.step}" if outcome.step else f"{words}; no checkpoint"
