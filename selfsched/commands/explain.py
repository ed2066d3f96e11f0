"""`explain`: the broker's reasons, and the job's own knowledge of itself, side by side."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from selfsched import settings
from selfsched.commands.connection import connect, find_job
from selfsched.commands.picture import check_picture, draw
from selfsched.commands.printing import console, plain, print_json, print_table
from selfsched.commands.runs import find_run
from selfsched.commands.words import expected_start, forecast_words
from selfsched.core.bidding import Explanation, duration_words
from selfsched.core.history import ForecastMade, JobHistory
from selfsched.core.run_ends import job_state_words
from selfsched.elastic.found_runs import FoundRun, find_runs, runs_of
from selfsched.errors import BrokerError, Refused
from selfsched.job_record import read_history, read_model
from selfsched.protocol import JobState, JobView


def show_explanation(
    broker: str | None, wanted: str | None, *, as_json: bool, picture: Path | None = None
) -> None:
    """Print all that is known of a job, and draw its scaling where a file is named for it.

    Args:
        broker: its address; None: the one in use.
        wanted: name or id of a job, or the directory of a run; None: the newest run of this notebook, else
            my newest job, those that have not ended first, else the newest run on this machine.
        as_json: print one JSON object.
        picture: file to draw to.

    Raises:
        Refused: neither the broker nor this machine knows it, or the picture cannot be drawn.
    """
    check_picture(picture)
    wanted = wanted or _newest(broker)
    view, trouble = _view(broker, wanted)
    run = find_run(view.job if view else wanted) or find_run(wanted)
    if view is None and run is None:
        raise Refused(f"no run named {wanted[:80]!r} on this machine, and {trouble}")
    history = read_history(run) if run else None
    model = read_model(run, history) if run else None
    told = model.explanation() if model else None
    if picture is not None:
        if told is None or not told.curve:
            raise Refused(f"no step of {wanted[:80]} was measured here so far: nothing to draw yet")
        draw(told, picture)
    if as_json:
        print_json(_json(view, run, history, told))
        return
    if view is not None:
        _print_view(view)
    if history is not None:
        _print_history(history)
    if told is not None:
        print_model(told)
    if history is not None:
        console().print(plain(f"Figures of the hardware: {figures_words(history)}."))


def _newest(broker: str | None) -> str:
    """The job, or the run, that is meant where none is named."""
    runs = find_runs(runs_of(settings.load()))
    notebook = os.environ.get("JPY_SESSION_NAME")
    here = [run for run in runs if notebook and run.job.notebook == notebook]
    if here:
        return _called(here[0])
    try:
        with connect(broker) as client:
            jobs = client.jobs()
    except (Refused, BrokerError):
        jobs = ()
    if jobs:
        return min(jobs, key=lambda job: (job.state is JobState.ENDED, job.age_seconds)).job
    if runs:
        return _called(runs[0])
    raise Refused("you have no job, and no run on this machine: nothing to explain")


def _called(run: FoundRun) -> str:
    """By the broker's id, where it has one."""
    history = run.history()
    return (history.job if history is not None else None) or run.name


def _view(broker: str | None, wanted: str) -> tuple[JobView | None, str]:
    """(the broker's view, why there is none)."""
    try:
        with connect(broker) as client:
            return find_job(client, Path(wanted).name), ""
    except (Refused, BrokerError) as error:
        return None, str(error)


def _json(
    view: JobView | None, run: Path | None, history: JobHistory | None, told: Explanation | None
) -> dict[str, Any]:
    return {
        "job": view.model_dump(mode="json") if view else None,
        "run": str(run) if run else None,
        "history": history.model_dump(mode="json") if history else None,
        "model": told.as_json() if told else None,
        "figures": figures_words(history) if history else None,
    }


def figures_words(history: JobHistory) -> str:
    """Where the figures are from by which a run predicted what it had not measured."""
    return history.figures.words if history.figures is not None else "documented ones; no broker told any"


def _print_view(view: JobView) -> None:
    shown = console()
    rho = "" if view.rho is None else f", rho {view.rho:.2f}"
    shown.print(plain(f"{view.name} ({view.job}): {job_state_words(view)}, share {view.share:.2f}{rho}"))
    if view.outcome is None:
        if soon := expected_start(view):
            shown.print(plain(soon))
        shown.print(plain(f"finished in {forecast_words(view.ends or view.forecast)}"))
    for reason in view.reasons:
        shown.print(plain(f"  because {reason}"))


def _print_history(history: JobHistory) -> None:
    rows = [
        (f"{span.start_s:.0f} to {'now' if span.end_s is None else f'{span.end_s:.0f} s'}",
         len(span.devices), span.steps or "", span.why)
        for span in history.segments
    ]  # fmt: skip
    print_table("Segments, seconds since it registered", ("when", "devices", "steps", "why"), rows)
    if history.forecasts:
        columns = ("made at", "on", "assuming", "predicted finish", "came", "error")
        print_table("Forecasts", columns, map(_forecast_row, history.forecasts))


def _forecast_row(made: ForecastMade) -> tuple[object, ...]:
    came = "" if made.actual_finish_s is None else f"{made.actual_finish_s:.0f} s"
    return (
        f"{made.at:.0%} ({made.made_at_s:.0f} s)",
        made.devices,
        made.assumption.replace("_", " "),
        f"{made.predicted_finish_s:.0f} s ({made.low_s:.0f} to {made.high_s:.0f})",
        came,
        "" if made.error is None else f"{made.error:.0%}",
    )


def print_model(told: Explanation) -> None:
    """Print what a job knows of its own steps: parts, the scaling curve, words."""
    parts = sorted(told.parts.items(), key=lambda part: -part[1])
    print_table(
        f"A step on {told.devices} device" + ("s" if told.devices != 1 else ""), ("part", "mean"),
        [(name, duration_words(seconds)) for name, seconds in parts],
    )  # fmt: skip
    rows = [
        (step.devices, duration_words(step.seconds),
         f"{duration_words(step.quantile(-1.28))} to {duration_words(step.quantile(1.28))}",
         f"{told.steps.get(step.devices, 0)} steps" if step.measured else "predicted")
        for step in told.curve
    ]  # fmt: skip
    print_table("Scaling", ("devices", "a step", "range", "from"), rows)
    for words in told.words:
        console().print(plain(words))
