"""Scenarios: by how much each job is later or earlier than it says, in K worlds at once.

Each job's K numbers are the K stratified quantiles of the standard normal distribution, in an
order that is its own: so that each alone comes out exactly as it was forecast. With K = 5 modulo 10 the
10, 50 and 90 % points are among them. The orders of all jobs lean on a common one, for
neighbours on one machine are late together; they depend on the job's number alone, so the
same worlds are drawn at every call and two questions differ by what was asked only.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

Floats = NDArray[np.float64]

COMMON = 0.5
"""Part of the variance that neighbours have in common."""
Z90 = 1.2815515655
_SEED = 4711
MOST_LOG = 6.0
"""No job takes more than e^6 times, or less than e^-6 of, what it says."""


@lru_cache(maxsize=4096)
def deviations(number: int, worlds: int) -> Floats:
    """Standard normal deviations of one job, one for each world.

    Args:
        number: of the job; the same number has the same deviations.
        worlds: how many, 5 modulo 10.
    """
    common = np.random.default_rng(_SEED).standard_normal(worlds)
    own = np.random.default_rng([_SEED, number]).standard_normal(worlds)
    ranks = np.argsort(np.argsort(np.sqrt(COMMON) * common + np.sqrt(1 - COMMON) * own))
    found: Floats = ndtri((ranks + 0.5) / worlds)
    found.flags.writeable = False
    return found


def factors(low: float, high: float, z: Floats) -> Floats:
    """True time over median time, in each world.

    Args:
        low: 10 % quantile over the median, at most 1.
        high: 90 % quantile over the median, at least 1.
        z: deviations. Between the quantiles and beyond, the logarithm is linear in them, each side its own.
    """
    below, above = np.log(max(min(low, 1.0), 1e-9)) / Z90, np.log(max(high, 1.0)) / Z90
    told: Floats = np.exp(np.clip(np.where(z < 0, -z * below, z * above), -MOST_LOG, MOST_LOG))
    return told


def quantiles(seconds: Floats) -> Floats:
    """10, 50 and 90 % over the worlds, the first axis; exact for what is stratified."""
    found: Floats = np.quantile(seconds, (0.1, 0.5, 0.9), axis=0, method="hazen")
    return found
