"""Which model suits which job: the linear programme of the least time for all work.

    minimise    T
    such that   sum over k of  x[j, k] / t[j, k]  =  1          the work of each job is done
                sum over k of  x[j, k]  <=  T                   on one model at a time
                sum over j of  n[j, k] x[j, k]  <=  N[k] T      with the devices that there are

x is the time a job spends on a model, t its remaining time there, n its devices, N the devices
of the model (minimum makespan as in Gavel: Narayanan et al., OSDI 2020, section 4.2; without
gangs and rounds it is exact: Lawler and Labetoulle, J. ACM 25, 1978). Its dual prices the work of
each job: on the model that suits it, given what all others need, work is worth what its
devices cost; anywhere else it is worth less than that.

Many jobs have the same worth at such prices, and whoever is then left waiting may become the one
on which the end depends. So the prices are a mean: those of now, and those after a term in which
whoever is worth most at the mean so far has run, a few times over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_matrix, csr_matrix

from selfsched_broker.core.fairness import Row

LOOKS = 8
"""Terms that are tried out."""
MOST_LOOKED_AT = 256
"""With more jobs than these the prices of now are taken: no single job weighs much there."""

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Matching:
    """The answer. Times in seconds."""

    soonest: float
    """T: no division of the devices is done with everything earlier."""
    prices: Mapping[str, float]
    """What the work that remains of a job is worth, in seconds of T; their sum is T."""

    def pace(self, job: str, remaining_seconds: float) -> float:
        """How many seconds of T a job works off in a second on a placement; all devices together
        work off one, if they are used as well as can be."""
        return self.prices[job] / max(remaining_seconds, 1e-3)


def match(
    rows: Mapping[str, Sequence[Row]], devices: Mapping[str, int], term_seconds: float
) -> Matching | None:
    """Solve it for jobs with their rows; on each model the row of least device-seconds counts.

    Args:
        rows: What each job bids.
        devices: How many of each model there are.
        term_seconds: How long a division lasts.

    Returns:
        None where a job fits on no model, or no finite answer was found.
    """
    jobs, models = sorted(rows), sorted(devices)
    found = [
        (j, k, row.remaining_seconds, row.devices)
        for j, job in enumerate(jobs)
        for k, model in enumerate(models)
        if (row := _cheapest(rows[job], model, devices[model])) is not None
    ]
    if len({j for j, *_ in found}) < len(jobs):
        return None
    cells = _Cells(
        jobs=len(jobs),
        supply=np.array([float(devices[model]) for model in models]),
        job=np.array([j for j, *_ in found]),
        kind=np.array([k for _, k, *_ in found]),
        seconds=np.maximum([seconds for *_, seconds, _ in found], 1e-3),
        size=np.array([float(size) for *_, size in found]),
    )
    answer = cells.solve(np.ones(len(jobs)))
    if answer is None:
        return None
    soonest, prices = answer
    total, looks = prices.copy(), 1
    for _ in range(LOOKS if len(jobs) <= MOST_LOOKED_AT else 0):
        after = cells.solve(cells.left_after(term_seconds, total / looks))
        if after is None:
            break
        total, looks = total + after[1], looks + 1
    return Matching(soonest, dict(zip(jobs, map(float, total / looks), strict=True)))


def _cheapest(rows: Sequence[Row], model: str, devices: int) -> Row | None:
    fitting = [row for row in rows if row.model in (None, model) and row.devices <= devices]
    return min(fitting, key=lambda row: (row.devices * row.remaining_seconds, row.devices), default=None)


@dataclass(slots=True, kw_only=True)
class _Cells:
    """Jobs on models, those that can be: one entry of each array for each."""

    jobs: int
    supply: Floats
    """Devices, by model."""
    job: Integers
    kind: Integers
    seconds: Floats
    """What the whole remaining work takes there."""
    size: Floats
    unit: float = field(init=False)
    """Seconds that the programme counts in."""
    matrix: csr_matrix = field(init=False)

    def __post_init__(self) -> None:
        self.unit = float(self.seconds.max())
        self.matrix = self._matrix()

    def _matrix(self) -> csr_matrix:
        """The constraints: work of each job, time of each job, devices of each model; T comes last."""
        jobs, kinds, cells = self.jobs, len(self.supply), len(self.job)
        of_time = np.arange(jobs + kinds)
        lines = np.concatenate([self.job, jobs + self.job, 2 * jobs + self.kind, jobs + of_time])
        columns = np.concatenate([np.tile(np.arange(cells), 3), np.full(jobs + kinds, cells)])
        values = np.concatenate(
            [-self.unit / self.seconds, np.ones(cells), self.size, -np.ones(jobs), -self.supply]
        )
        return coo_matrix((values, (lines, columns)), shape=(2 * jobs + kinds, cells + 1)).tocsr()

    def solve(self, left: Floats) -> tuple[float, Floats] | None:
        """T and the prices of the whole remaining work of each job, if these parts of it are left."""
        goal = np.zeros(len(self.job) + 1)
        goal[-1] = 1.0
        limits = np.concatenate([-left, np.zeros(self.jobs + len(self.supply))])
        answer = linprog(goal, A_ub=self.matrix, b_ub=limits, method="highs")
        if answer.x is None:
            return None
        prices = np.maximum(-np.asarray(answer.ineqlin.marginals)[: self.jobs], 0.0)
        return float(answer.x[-1]) * self.unit, prices * self.unit

    def left_after(self, seconds: float, prices: Floats) -> Floats:
        """The part of each job's work that is left when those of most worth a device have run."""
        free, left = self.supply.copy(), np.ones(self.jobs)
        waits = np.ones(self.jobs, dtype=bool)
        for cell in np.argsort(-prices[self.job] / self.seconds / self.size, kind="stable"):
            job, kind = self.job[cell], self.kind[cell]
            if waits[job] and free[kind] >= self.size[cell]:
                waits[job] = False
                free[kind] -= self.size[cell]
                left[job] = max(0.0, 1.0 - seconds / self.seconds[cell])
        return left
