"""Figures of a finished simulation.

Completion counts from arrival. With T the time alone (rigid: `exclusive_s`), N the GPUs:

* rho_static = completion / (T max(1, jobs of the trace / N)); unfair above 1.05 (Shockwave,
  NSDI 2023);
* rho_themis = completion / (T max(1, mean number of live jobs over the job's own life / N));
* utilisation = work done (T x gang, summed) / (N x makespan): restarts and idle seats lower it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from selfsched_simulator.job import SimulatedJob

UNFAIR_ABOVE = 1.05


@dataclass(frozen=True, slots=True)
class Finished:
    """What the figures need of one job."""

    arrival_seconds: float
    end_seconds: float
    alone_seconds: float
    gpus: int
    starts: int = 1

    @property
    def completion_seconds(self) -> float:
        return self.end_seconds - self.arrival_seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """The contract of `simulate --json`; None: does not apply."""

    policy: str
    jobs: int
    makespan_s: float
    mean_completion_s: float
    median_completion_s: float
    worst_rho_static: float | None
    unfair_fraction: float | None
    worst_rho_themis: float | None
    utilisation: float | None
    restarts_per_job: float
    wall_s: float


def finished(job: SimulatedJob) -> Finished:
    """A simulated job that has ended, as a row of the figures."""
    assert job.finished_at is not None, f"{job.row.name} has not ended"
    row = job.row
    return Finished(row.arrival_seconds, job.finished_at, row.exclusive_seconds, row.gpus, job.starts)


def summarise(jobs: Sequence[Finished], *, policy: str, gpus: int, wall_seconds: float) -> Figures:
    """The figures of one run; at least one job."""
    crowd = max(1.0, len(jobs) / gpus)
    static = [job.completion_seconds / (job.alone_seconds * crowd) for job in jobs]
    completions = [job.completion_seconds for job in jobs]
    makespan = max(job.end_seconds for job in jobs) - min(job.arrival_seconds for job in jobs)
    work = sum(job.alone_seconds * job.gpus for job in jobs)
    return Figures(
        policy=policy,
        jobs=len(jobs),
        makespan_s=makespan,
        mean_completion_s=statistics.fmean(completions),
        median_completion_s=statistics.median(completions),
        worst_rho_static=max(static),
        unfair_fraction=sum(rho > UNFAIR_ABOVE for rho in static) / len(jobs),
        worst_rho_themis=max(_rho_themis(job, jobs, gpus) for job in jobs),
        utilisation=work / (gpus * makespan),
        restarts_per_job=sum(max(0, job.starts - 1) for job in jobs) / len(jobs),
        wall_s=wall_seconds,
    )


def _rho_themis(job: Finished, jobs: Sequence[Finished], gpus: int) -> float:
    begin, end = job.arrival_seconds, job.end_seconds
    lived = sum(max(0.0, min(end, o.end_seconds) - max(begin, o.arrival_seconds)) for o in jobs)
    crowd = max(1.0, lived / (end - begin) / gpus)
    return (end - begin) / (job.alone_seconds * crowd)
