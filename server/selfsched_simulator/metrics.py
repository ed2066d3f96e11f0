"""Figures of a finished simulation.

Completion counts from arrival. With T the time alone (rigid: `exclusive_s`; elastic: on the replicas it
requests; mixed: on 1/n of the devices of each model), N the devices:

* rho_static = completion / (T max(1, k)), k = jobs of the trace / N for rigid and elastic traces, 1
  for mixed ones; unfair above 1.05 (Shockwave, NSDI 2023);
* rho_themis = completion / (T max(1, mean number of live jobs over the job's own life / N)); it does not
  apply to mixed models;
* utilisation = devices x seconds in which they made steps that counted / (N x makespan): restarts,
  idle seats and lost work lower it.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from selfsched_simulator.job import SimulatedJob
from selfsched_simulator.trace import Kind

UNFAIR_ABOVE = 1.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """What the figures need of one job."""

    name: str = ""
    account: str = ""
    arrival_seconds: float
    end_seconds: float
    alone_seconds: float
    gpus: int
    starts: int = 1
    started_seconds: float | None = None
    busy_device_seconds: float
    history: tuple[tuple[float, int], ...] = ()
    """(since when, how many devices)."""

    @property
    def completion_seconds(self) -> float:
        return self.end_seconds - self.arrival_seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """The contract of `simulate --json`; None: does not apply."""

    policy: str
    jobs: int
    makespan_s: float | None
    mean_completion_s: float | None
    median_completion_s: float | None
    worst_rho_static: float | None
    unfair_fraction: float | None
    worst_rho_themis: float | None
    utilisation: float | None
    restarts_per_job: float | None
    wall_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """By what the figures are measured."""

    kind: Kind
    devices: int
    jobs: int
    """In the trace, whether they have ended or not."""

    @property
    def crowd(self) -> float:
        """max(1, k) of rho_static."""
        return 1.0 if self.kind == "mixed" else max(1.0, self.jobs / self.devices)


def finished(jobs: Sequence[SimulatedJob]) -> list[Finished]:
    """The simulated jobs that have ended, as rows of the figures."""
    return [
        Finished(
            name=job.row.name,
            account=job.row.account or job.row.name,
            arrival_seconds=job.row.arrival_seconds,
            end_seconds=job.finished_at,
            alone_seconds=job.row.alone_seconds,
            gpus=job.row.gpus,
            starts=job.starts,
            started_seconds=job.started_at,
            busy_device_seconds=job.busy_device_seconds,
            history=tuple(job.history),
        )
        for job in jobs
        if job.finished_at is not None
    ]


def summarise(jobs: Sequence[Finished], scale: Scale, *, policy: str, wall_seconds: float) -> Figures:
    """The figures of one run; without a job those that need one are None."""
    if not jobs:
        nothing = {field.name: None for field in dataclasses.fields(Figures)}
        return Figures(**(nothing | {"policy": policy, "jobs": 0, "wall_s": wall_seconds}))  # type: ignore[arg-type]
    static = rhos_static(jobs, scale)
    themis = rhos_themis(jobs, scale)
    completions = [job.completion_seconds for job in jobs]
    makespan = max(job.end_seconds for job in jobs) - min(job.arrival_seconds for job in jobs)
    return Figures(
        policy=policy,
        jobs=len(jobs),
        makespan_s=makespan,
        mean_completion_s=statistics.fmean(completions),
        median_completion_s=statistics.median(completions),
        worst_rho_static=max(static),
        unfair_fraction=sum(rho > UNFAIR_ABOVE for rho in static) / len(jobs),
        worst_rho_themis=max(themis) if themis else None,
        utilisation=sum(job.busy_device_seconds for job in jobs) / (scale.devices * makespan),
        restarts_per_job=sum(max(0, job.starts - 1) for job in jobs) / len(jobs),
        wall_s=wall_seconds,
    )


def rhos_static(jobs: Sequence[Finished], scale: Scale) -> list[float]:
    """rho_static of each job."""
    return [job.completion_seconds / (job.alone_seconds * scale.crowd) for job in jobs]


def rhos_themis(jobs: Sequence[Finished], scale: Scale) -> list[float]:
    """rho_themis of each job; none where it does not apply.

    The mean number of live jobs comes from the integral of their number over time, which is linear
    between arrivals and ends.
    """
    if scale.kind == "mixed":
        return []
    begins = np.array([job.arrival_seconds for job in jobs])
    ends = np.array([job.end_seconds for job in jobs])
    instants = np.unique(np.concatenate([begins, ends]))
    live = np.searchsorted(np.sort(begins), instants, "right") - np.searchsorted(
        np.sort(ends), instants, "right"
    )
    lived = np.concatenate([[0.0], np.cumsum(live[:-1] * np.diff(instants))])
    around = np.interp(ends, instants, lived) - np.interp(begins, instants, lived)
    rhos = []
    for job, seconds in zip(jobs, around, strict=True):
        crowd = max(1.0, float(seconds) / job.completion_seconds / scale.devices)
        rhos.append(job.completion_seconds / (job.alone_seconds * crowd))
    return rhos


def average(runs: Sequence[Figures]) -> tuple[Figures, dict[str, float]]:
    """Mean and standard deviation of the figures over several seeds; a figure that lacks is left out."""
    means: dict[str, float | str | int | None] = {"policy": runs[0].policy, "jobs": runs[0].jobs}
    spread: dict[str, float] = {}
    for field in dataclasses.fields(Figures):
        if field.name in means:
            continue
        values = [value for run in runs if (value := getattr(run, field.name)) is not None]
        means[field.name] = statistics.fmean(values) if values else None
        if len(values) > 1:
            spread[field.name] = statistics.stdev(values)
    return Figures(**means), spread  # type: ignore[arg-type]


def is_defined(value: float | None) -> bool:
    """Whether a figure is a number."""
    return value is not None and math.isfinite(value)
