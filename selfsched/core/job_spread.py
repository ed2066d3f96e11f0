"""How far jobs lie from the means of their hardware: expectation maximisation over all of them.

In turn, each job's own parameters are found by a Gaussian approximation around its mode, under the
spread so far, and the spread anew from them all. Jobs unlike the others are given a wider spread of
their own (Student-t), and the middle of what three groups of owners say is taken (`owner_parts`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from selfsched.core.owner_parts import groups_of, jobs_of_owners, middle
from selfsched.core.performance import FORM_SIGMA, NOISE_SIGMA, form_covariance
from selfsched.core.step_form import HIGH, INDEX, JOB_SIGMA, LOW, NAMES, Array, Spots, log_step
from selfsched.core.visited import Visited, weights_by_job

SPREAD_DEGREES = 4.0
"""How many jobs the built-in spread between jobs weighs; also of the tails of that spread."""
SPREAD_SWEEPS = 6
FREE_SIGMA = 4.0
"""Of a job's own c (log)."""


@dataclass
class _JobFit:
    """A job's own parameters and log c, as the sweeps go on."""

    entry: Visited
    spots: Spots
    y: Array
    weight: float
    own: Array
    loose: Array
    """Factor on the spread where this job is unlike the others."""
    variance: Array

    def relinearise(self, means: Array, spread: Array, rounds: int) -> None:
        """Gauss-Newton to the mode of its own parameters under the spread."""
        centre = np.append(means, self.y[0])
        prior = np.diag(np.append((spread * self.loose) ** 2, FREE_SIGMA**2))
        log_bytes = np.full(1, math.log(self.entry.gradient_bytes))
        form = form_covariance(self.spots)
        for _ in range(rounds):
            points = self.own + np.vstack([1e-4 * np.eye(len(centre)), np.zeros(len(centre))])
            logs = log_step(points[:, :-1], points[:, -1:], self.spots, log_bytes)[0]
            jacobian, misfit = ((logs[:-1] - logs[-1]) / 1e-4).T, self.y - logs[-1]
            heavy = (misfit**2 / (NOISE_SIGMA**2 + FORM_SIGMA**2) + 4) / 5
            system = jacobian @ prior @ jacobian.T + form + np.diag(NOISE_SIGMA**2 * np.maximum(1, heavy))
            residual = misfit + jacobian @ (self.own - centre)
            solved = np.linalg.solve(system, np.column_stack([residual, jacobian @ prior]))
            target = centre + prior @ jacobian.T @ solved[:, 0]
            self.own = self.own + np.clip(target - self.own, -0.7, 0.7)
            self.own[:-1] = np.clip(self.own[:-1], LOW, HIGH)
        self.variance = np.diag(prior - prior @ jacobian.T @ solved[:, 1:])[:-1]

    def squares(self, means: Array) -> Array:
        """How far it is expected to be from the means, squared."""
        return np.asarray((self.own[:-1] - means) ** 2 + np.maximum(self.variance, 0.0))

    def loosen(self, means: Array, spread: Array, rounds: int) -> None:
        """Its parameters under the spread, and how unlike the others it is."""
        self.relinearise(means, spread, rounds)
        self.loose = np.sqrt((self.squares(means) / spread**2 + SPREAD_DEGREES) / (1 + SPREAD_DEGREES))


class _Variance:
    """Of a group's jobs around the means, drawn to the built-in one, of which it has its share."""

    def __init__(self, groups: int) -> None:
        self._count = SPREAD_DEGREES / groups
        self._total = self._count * JOB_SIGMA**2

    def add(self, fit: _JobFit, means: Array) -> None:
        self._total = self._total + fit.weight * fit.squares(means) / fit.loose**2
        self._count += fit.weight

    @property
    def value(self) -> Array:
        return self._total / self._count


def spread_between(visited: Sequence[Visited], means: Mapping[str, Array]) -> Array:
    """Standard deviation of the parameters between jobs.

    Args:
        visited: a few entries of each job.
        means: the parameters' means by hardware.
    """
    of_job = Counter((entry.job, entry.hardware) for entry in visited)
    weights = weights_by_job(visited)
    group_of = groups_of(jobs_of_owners((entry.owner, entry.job) for entry in visited))
    fits = []
    for entry in visited:
        own = np.append(means[entry.hardware], entry.steps[0][1])
        # The form is flat where there is no contention: begin where there is some.
        own[INDEX["contention"]] = max(own[INDEX["contention"]], math.log(0.15))
        spots = Spots.of([spot for spot, _ in entry.steps])
        y, ones = np.array([y for _, y in entry.steps]), np.ones(len(NAMES))
        weight = weights[entry.job] / of_job[entry.job, entry.hardware]
        fits.append(_JobFit(entry, spots, y, weight, own, ones, ones))
    spread = JOB_SIGMA.copy()
    for sweep in range(SPREAD_SWEEPS):
        found = {group: _Variance(len(set(group_of.values()))) for group in group_of.values()}
        for fit in fits:
            fit.loosen(means[fit.entry.hardware], spread, 4 if sweep == 0 else 2)
            found[group_of[fit.entry.owner]].add(fit, means[fit.entry.hardware])
        spread = np.sqrt(middle([one.value for one in found.values()], JOB_SIGMA**2))
    return spread
