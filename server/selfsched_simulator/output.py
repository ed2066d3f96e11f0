"""What a simulation prints: a table, one JSON object, a CSV file of its jobs."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.table import Table

from selfsched.errors import Refused
from selfsched_simulator.metrics import Figures, Finished, Scale, rhos_static, rhos_themis
from selfsched_simulator.runs import Run

_JOB_COLUMNS = (
    "policy", "seed", "job", "account", "gpus", "arrival_s", "start_s", "end_s", "completion_s", "alone_s",
    "rho_static", "rho_themis", "starts", "busy_device_s",
)  # fmt: skip


def as_json(run: Run) -> dict[str, object]:
    """The contract of `--json`, and what else is to be said: seeds and their spread, a partial result."""
    row: dict[str, object] = dataclasses.asdict(run.figures)
    if len(run.ended) > 1:
        row |= {"seeds": len(run.ended), "spread": run.spread}
    if run.partial or run.unfinished:
        row |= {"partial": run.partial or "jobs were lost", "unfinished": run.unfinished}
    return row


def as_table(runs: Sequence[Run], jobs: int) -> Table:
    """A line for each policy; over several seeds mean ± standard deviation."""
    caption = "times in s; completion from arrival; rho: worst static, rho*: worst by live jobs"
    table = Table(title=f"{jobs} jobs", caption=caption)
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name == "policy" else "right")
    for run in runs:
        table.add_row(*table_cells(run).values())
    return table


def table_cells(run: Run) -> dict[str, str]:
    """A run's line of the table, by heading."""
    return {name: _cell(run, field, show) for name, (field, show) in _COLUMNS.items()}


def _whole(value: float) -> str:
    return f"{value:,.0f}"


_COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "policy": ("policy", str),
    "ended": ("jobs", str),
    "makespan": ("makespan_s", _whole),
    "mean": ("mean_completion_s", _whole),
    "median": ("median_completion_s", _whole),
    "rho": ("worst_rho_static", "{:.2f}".format),
    "unfair": ("unfair_fraction", "{:.1%}".format),
    "rho*": ("worst_rho_themis", "{:.2f}".format),
    "used": ("utilisation", "{:.0%}".format),
    "restarts": ("restarts_per_job", "{:.1f}".format),
    "took": ("wall_s", "{:.1f}".format),
}


def _cell(run: Run, field: str, show: Callable[[float], str]) -> str:
    value = getattr(run.figures, field)
    if value is None:
        return "-"
    words = show(value)
    return f"{words} ±{show(run.spread[field])}" if field in run.spread and field != "wall_s" else words


def write_jobs(path: Path, runs: Sequence[Run], scale: Scale) -> None:
    """A CSV file with a line for each job that has ended.

    Raises:
        Refused: it cannot be written.
    """
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(_JOB_COLUMNS)
            for run in runs:
                for seed, jobs in run.ended:
                    writer.writerows(_job_rows(run.figures, seed, jobs, scale))
    except OSError as error:
        raise Refused(f"cannot write {path}: {error}") from None


def _job_rows(figures: Figures, seed: int, jobs: Sequence[Finished], scale: Scale) -> list[list[object]]:
    static = rhos_static(jobs, scale)
    themis: Sequence[float | None] = rhos_themis(jobs, scale) or [None] * len(jobs)
    return [
        [
            figures.policy, seed, job.name, job.account, job.gpus, _short(job.arrival_seconds),
            _short(job.started_seconds), _short(job.end_seconds), _short(job.completion_seconds),
            _short(job.alone_seconds), _short(rho), _short(rho_themis), job.starts,
            _short(job.busy_device_seconds),
        ]
        for job, rho, rho_themis in zip(jobs, static, themis, strict=True)
    ]  # fmt: skip


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}" if abs(value) < 1000 else f"{value:.3f}"
