"""One self-contained HTML page of a simulation: its table and its pictures, policies side by side.

Pictures are drawn by matplotlib (in the extra `demo`) as SVG inside the page: nothing is loaded from
elsewhere, and the page can be sent by mail.
"""

from __future__ import annotations

import html
import io
import warnings
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from selfsched.errors import Refused
from selfsched_simulator.metrics import UNFAIR_ABOVE, Finished, Scale, rhos_static, rhos_themis
from selfsched_simulator.output import table_cells
from selfsched_simulator.runs import Run
from selfsched_simulator.scenario import Scenario

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A bar for each job is a picture up to here; of more only the sums are shown.
_MOST_BARS = 400
_BINS = 300
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem;
  color: #1b1f24; background: #fff; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid #d8dee4;
  font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; }
figure { margin: 1.5rem 0; } figcaption { color: #57606a; } svg { max-width: 100%; height: auto; }
.note { color: #57606a; } .partial { color: #b42318; }
"""


def write_page(path: Path, scenario: Scenario, runs: Sequence[Run], scale: Scale) -> None:
    """Write the page of several runs over one trace.

    Raises:
        Refused: matplotlib is not installed, or the file cannot be written.
    """
    try:
        path.write_text(render_page(scenario, runs, scale), encoding="utf-8")
    except OSError as error:
        raise Refused(f"cannot write {path}: {error}") from None


def render_page(scenario: Scenario, runs: Sequence[Run], scale: Scale) -> str:
    """The page as text. Of several seeds the pictures show the first.

    Raises:
        Refused: matplotlib is not installed.
    """
    shown = [(run.figures.policy, run.ended[0][1]) for run in runs if run.ended and run.ended[0][1]]
    title = f"{scale.jobs} jobs on {scale.devices} devices"
    pictures = _pictures(shown, scale) if shown else []
    body = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p class=note>{html.escape(_conditions(scenario, scale))}</p>",
        _table(runs),
        *(f"<p class=partial>{html.escape(words)}</p>" for words in _cut_short(runs)),
        *(f"<p class=note>{html.escape(note)}</p>" for note in scenario.trace.notes),
        *(f"<figure>{svg}<figcaption>{html.escape(words)}</figcaption></figure>" for svg, words in pictures),
    ]
    return (
        f"<!doctype html>\n<html lang=en><head><meta charset=utf-8><title>{html.escape(title)}</title>"
        f"<style>{_STYLE}</style></head>\n<body>\n{chr(10).join(body)}\n</body></html>\n"
    )


def _conditions(scenario: Scenario, scale: Scale) -> str:
    options = scenario.options
    habits = options.habits
    clock = (
        f"rounds of {options.round_seconds:g} s"
        if options.round_seconds is not None
        else f"the broker's own clock, terms of {options.term_seconds:g} s"
    )
    seeds = f", {scenario.seeds} seeds from {habits.seed}" if scenario.seeds > 1 else f", seed {habits.seed}"
    return (
        f"A {scale.kind} trace; {clock}; a start costs {habits.restart_seconds:g} s; claims wrong by"
        f" {habits.noise:g} (log-standard deviation){seeds}. Completion counts from arrival; rho: against the"
        f" time alone x {scale.crowd:.3g}; unfair: above {UNFAIR_ABOVE}."
    )


def _cut_short(runs: Sequence[Run]) -> list[str]:
    return [
        f"{run.figures.policy}: {run.partial or 'jobs were lost'}; {run.unfinished} jobs have not ended"
        for run in runs
        if run.partial or run.unfinished
    ]


def _table(runs: Sequence[Run]) -> str:
    rows = [table_cells(run) for run in runs]
    heads = "".join(f"<th>{html.escape(name)}</th>" for name in (rows[0] if rows else ()))
    lines = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row.values()) for row in rows)
    return f"<table><tr>{heads}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


# --- pictures ----------------------------------------------------------------------------


def _pictures(shown: Sequence[tuple[str, Sequence[Finished]]], scale: Scale) -> list[tuple[str, str]]:
    pictures = [
        (_svg(_distributions(shown, scale)), "Parts of the jobs below a completion time, and below a rho."),
        (_svg(_over_time(shown, scale)), "Devices held, as part of all, and jobs that wait, over time."),
    ]
    for policy, jobs in shown:
        if len(jobs) <= _MOST_BARS:
            words = f"{policy}: when each job had devices, in order of arrival; the darker, the more of them."
            pictures.append((_svg(_bars(policy, jobs)), words))
    return pictures


def _new_figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise Refused("--html needs matplotlib: pip install 'selfsched[demo]'") from None
    return Figure(figsize=(width, height), layout="constrained")


def _distributions(shown: Sequence[tuple[str, Sequence[Finished]]], scale: Scale) -> Figure:
    figure = _new_figure(11, 3.6)
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    left, middle, right = figure.subplots(1, 3)
    for policy, jobs in shown:
        _cumulate(left, policy, [job.completion_seconds / 3600 for job in jobs])
        _cumulate(middle, policy, rhos_static(jobs, scale))
        _cumulate(right, policy, rhos_themis(jobs, scale))
    for axes, words in ((left, "completion, hours"), (middle, "rho, static"), (right, "rho, live jobs")):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel(words)
        axes.grid(alpha=0.3)
    middle.axvline(UNFAIR_ABOVE, color="grey", linestyle=":")
    left.set_ylabel("part of the jobs")
    left.legend()
    return figure


def _cumulate(axes: Any, label: str, values: Sequence[float]) -> None:
    if values:
        ordered = np.maximum(np.sort(np.asarray(values)), 1e-6)
        axes.plot(ordered, np.arange(1, len(ordered) + 1) / len(ordered), label=label, drawstyle="steps-post")


def _over_time(shown: Sequence[tuple[str, Sequence[Finished]]], scale: Scale) -> Figure:
    figure = _new_figure(11, 5)
    upper, lower = figure.subplots(2, 1, sharex=True)
    until = max(job.end_seconds for _, jobs in shown for job in jobs)
    grid = np.linspace(0, until, _BINS + 1)
    for policy, jobs in shown:
        held, waiting = _steps(jobs, lambda n: n), _steps(jobs, lambda n: float(n == 0))
        upper.stairs(_binned(held, grid) / scale.devices, grid / 3600, label=policy)
        lower.stairs(_binned(waiting, grid), grid / 3600, label=policy)
    upper.set_ylabel("devices held, of all")
    upper.set_ylim(0, 1.05)
    lower.set_ylabel("jobs that wait")
    lower.set_xlabel("hours")
    for axes in (upper, lower):
        axes.grid(alpha=0.3)
    upper.legend(loc="lower left")
    return figure


def _steps(jobs: Sequence[Finished], worth: Any) -> list[tuple[float, float]]:
    """(when, by how much) the sum over live jobs of a function of their devices changes."""
    changes: list[tuple[float, float]] = []
    for job in jobs:
        now = 0.0
        for at, devices in ((job.arrival_seconds, 0), *job.history):
            changes.append((at, worth(devices) - now))
            now = worth(devices)
        changes.append((job.end_seconds, -now))
    return sorted(changes)


def _binned(changes: Sequence[tuple[float, float]], grid: Any) -> Any:
    """Mean of the sum within each bin of the grid."""
    at = np.array([when for when, _ in changes])
    level = np.cumsum([by for _, by in changes])
    integral = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(at))])
    return np.diff(np.interp(grid, at, integral, left=0.0)) / np.diff(grid)


def _bars(policy: str, jobs: Sequence[Finished]) -> Figure:
    figure = _new_figure(11, max(2.0, min(9.0, 0.06 * len(jobs) + 1)))
    axes = figure.subplots()
    widest = max((devices for job in jobs for _, devices in job.history), default=1)
    for row, job in enumerate(sorted(jobs, key=lambda job: job.arrival_seconds)):
        marks = [*job.history, (job.end_seconds, 0)]
        axes.plot(
            [job.arrival_seconds / 3600, job.end_seconds / 3600], [row, row], color="0.85", linewidth=0.6
        )
        for (since, devices), (before, _) in pairwise(marks):
            if devices:
                shade = 0.35 + 0.65 * devices / widest
                axes.broken_barh(
                    [(since / 3600, (before - since) / 3600)], (row - 0.4, 0.8), alpha=shade, color="C0"
                )
    axes.set_xlabel("hours")
    axes.set_ylabel("job")
    axes.set_title(policy, loc="left", fontsize=10)
    axes.margins(x=0.01, y=0.01)
    return figure


def _svg(figure: Figure) -> str:
    import matplotlib

    text = io.StringIO()
    with (
        matplotlib.rc_context({"svg.hashsalt": "selfsched", "svg.fonttype": "none"}),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    whole = text.getvalue()
    return whole[whole.index("<svg") :]
