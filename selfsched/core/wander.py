"""Where the cost of a step goes from here: a Gaussian process over the blocks measured so far.

What a forecast needs is the mean cycle over the steps *to come*, and how far that may lie
from the mean so far. The mean cost of a step is taken as

    y(u) = level + slope (u - 1/2) + x(u) + a shift at each change of level + noise

with u the position in units of what was watched, so that the newest step lies at u = 1. `x`
is an Ornstein-Uhlenbeck process: it returns to the level after a time tau (a neighbour that
comes and goes), or wanders (large tau). Noise of a block of n steps is that of a step by the
square root of n, taken from the differences of consecutive steps, which a change of the level
does not touch. tau, the size of x and whether there is a slope are not known: some forty
combinations are all kept, weighted by how well they explain the blocks (Rasmussen & Williams,
"Gaussian Processes for Machine Learning", 2006, sections 2.2 and 5.2). Everything is relative
to the mean cycle and linear in it, since it is a sum that is to be forecast.

A slope is not believed for ever: it goes on for as long as twice what was watched.

A *change of level* (throttling, a slower disk, a neighbour that stays) is sought as the split
of the blocks whose two means differ by more than chance, by more than 5 %, and explain the
blocks better than a straight line does. Steps before it then say nothing of the level after
it. From the third change on they are a habit, which `x` describes better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

TAUS = (0.03, 0.1, 0.3, 1.0, 4.0)
TAU_WEIGHTS = (0.15, 0.15, 0.15, 0.25, 0.3)
SIZES = (0.01, 0.03, 0.1, 0.3)
SIZE_WEIGHTS = (0.5, 0.28, 0.17, 0.05)
"""Prior of the size of x: most jobs on a quiet machine wander by few per cent."""
SLOPE_SIGMA = 0.15
"""A job that has a slope changes by so much over what was watched."""
SLOPE_WEIGHT = 0.12
LEVEL_SIGMA = 1.0
SHIFT_SIGMA = 1.0
RESCALE_SIGMA = 0.3
"""What a step of another batch may be off, when it is rescaled by samples."""
SLOPE_LASTS = 2.0
"""A slope fades after so many times what was watched."""
FARTHEST = 1e3
"""What was watched says no more of what lies farther than so many times its length."""
SLOPE_DOUBT = 0.5
"""... and how long it lasts is not known better than by such a part of what it adds."""
MAX_FITTED = 32
"""Blocks that are fitted; more are merged in pairs first."""
LEAST_SHIFT = 0.05
LEAST_EVIDENCE = 16.0
"""Squared standard errors between the means on both sides of a change of level."""
BETTER_THAN_LINE = 0.4
SIDE_BLOCKS = 3
"""Blocks that each side of a change must have."""
HABIT_SHIFTS = 3


@dataclass(frozen=True, kw_only=True)
class Shift:
    """The level changed."""

    after_steps: int
    """Steady steps before it."""
    before_seconds: float
    after_seconds: float


@dataclass(frozen=True, kw_only=True)
class Ahead:
    """The mean cycle over steps to come."""

    seconds: float
    sigma_log: float


class Wander:
    """What blocks of consecutive steps say of those to come. Immutable once made.

    Args:
        blocks: (steps, mean cycle in seconds), oldest first, at least one.
        step_sigma: independent noise of one cycle, relative to the mean.
        rescaled_after: so many of the steps were made with another batch, and are a guess.
    """

    def __init__(
        self, blocks: Sequence[tuple[int, float]], step_sigma: float, *, rescaled_after: int = 0
    ) -> None:
        steps, means = _merged(blocks)
        self.steps = float(steps.sum())
        self.mean_seconds = float((steps * means).sum() / self.steps)
        y = means / self.mean_seconds
        noise = np.maximum(step_sigma, 1e-3) ** 2 / steps
        ends = np.cumsum(steps)
        found = _shifts(steps, y, noise)
        self.shifts = tuple(self._shift(ends, steps, y, found, i) for i in range(len(found)))
        used = found if len(found) < HABIT_SHIFTS else []
        self._u = (ends - steps / 2.0) / self.steps
        cuts = [(float(ends[k - 1]) / self.steps, SHIFT_SIGMA) for k in used]
        if rescaled_after:
            cuts.append((rescaled_after / self.steps, RESCALE_SIGMA))
        self._fit(y, noise, cuts)

    def ahead(self, steps: float) -> Ahead:
        """The mean cycle of the next `steps` steps, noise of single steps left out."""
        h = min(max(steps / self.steps, 1e-3), FARTHEST)
        tau, size2, slope2 = self._tau, self._size2, self._slope2
        lasting = SLOPE_LASTS * (1.0 - SLOPE_LASTS / h * (1.0 - math.exp(-h / SLOPE_LASTS)))
        middle = 0.5 + lasting  # of u - 1/2 over the steps to come
        near = np.exp(-(1.0 - self._u)[None, :] / tau[:, None])
        x = near * (size2 * tau / h * -np.expm1(-h / tau))[:, None]
        covariance = LEVEL_SIGMA**2 + slope2[:, None] * middle * (self._u - 0.5)[None, :] + x
        own = 2.0 * (tau / h) ** 2 * (h / tau + np.expm1(-h / tau))
        prior = LEVEL_SIGMA**2 + slope2 * middle**2 + size2 * own
        means = 1.0 + np.einsum("mi,mi->m", covariance, self._alpha)
        slopes = slope2 * (self._alpha @ (self._u - 0.5))
        known = np.einsum("mi,mij,mj->m", covariance, self._inverse, covariance)
        variances = (SLOPE_DOUBT * slopes * lasting) ** 2 + prior - known
        mean = float(self._weights @ means)
        variance = float(self._weights @ (np.maximum(variances, 0.0) + (means - mean) ** 2))
        mean = min(max(mean, 0.1), 10.0)
        sigma = math.sqrt(math.log1p(max(variance, 0.0) / mean**2))
        return Ahead(seconds=mean * self.mean_seconds, sigma_log=min(sigma, 3.0))

    # --- inside ------------------------------------------------------------------------

    def _fit(self, y: Array, noise: Array, cuts: Sequence[tuple[float, float]]) -> None:
        tau, size2, slope2, prior = _MEMBERS
        self._tau, self._size2, self._slope2 = tau, size2, slope2
        u = self._u
        gap = np.abs(u[:, None] - u[None, :])
        kernel = size2[:, None, None] * np.exp(-gap[None] / tau[:, None, None])
        kernel += slope2[:, None, None] * ((u - 0.5)[:, None] * (u - 0.5)[None, :])[None]
        shared = np.full_like(gap, LEVEL_SIGMA**2) + np.diag(noise)
        for cut, sigma in cuts:
            before = (u < cut).astype(float)
            shared += sigma**2 * before[:, None] * before[None, :]
        kernel += shared[None]
        self._inverse = np.linalg.inv(kernel)
        self._alpha = self._inverse @ (y - 1.0)
        determinants = np.linalg.slogdet(kernel)[1]
        evidence = -0.5 * (self._alpha @ (y - 1.0) + determinants) + np.log(prior)
        weights = np.exp(evidence - evidence.max())
        self._weights = weights / weights.sum()

    def _shift(self, ends: Array, steps: Array, y: Array, found: Sequence[int], index: int) -> Shift:
        begin = found[index - 1] if index else 0
        end = found[index + 1] if index + 1 < len(found) else len(y)
        k = found[index]
        before = float(np.average(y[begin:k], weights=steps[begin:k]))
        after = float(np.average(y[k:end], weights=steps[k:end]))
        return Shift(
            after_steps=int(ends[k - 1]),
            before_seconds=before * self.mean_seconds,
            after_seconds=after * self.mean_seconds,
        )


def _members() -> tuple[Array, Array, Array, Array]:
    """(tau, size squared, slope variance, prior weight) of every combination."""
    rows = [
        (tau, size**2, slope, share * weight * tau_weight)
        for tau, tau_weight in zip(TAUS, TAU_WEIGHTS, strict=True)
        for size, weight in zip(SIZES, SIZE_WEIGHTS, strict=True)
        for slope, share in ((0.0, 1.0 - SLOPE_WEIGHT), (SLOPE_SIGMA**2, SLOPE_WEIGHT))
    ]
    tau, size2, slope2, prior = np.array(rows).T
    return tau, size2, slope2, prior


_MEMBERS = _members()


def _merged(blocks: Sequence[tuple[int, float]]) -> tuple[Array, Array]:
    steps = np.array([n for n, _ in blocks], dtype=float)
    means = np.array([mean for _, mean in blocks], dtype=float)
    while len(steps) > MAX_FITTED:
        if len(steps) % 2:  # the newest stays alone
            tail = (steps[-1:], means[-1:])
            steps, means = _pairs(steps[:-1], means[:-1])
            steps, means = np.append(steps, tail[0]), np.append(means, tail[1])
        else:
            steps, means = _pairs(steps, means)
    return steps, means


def _pairs(steps: Array, means: Array) -> tuple[Array, Array]:
    total = steps[::2] + steps[1::2]
    return total, (steps[::2] * means[::2] + steps[1::2] * means[1::2]) / total


def _shifts(steps: Array, y: Array, noise: Array) -> list[int]:
    """Indices of the first blocks after a change of level, by binary segmentation."""
    found: list[int] = []
    parts = [(0, len(y))]
    while parts and len(found) <= 2 * HABIT_SHIFTS:
        begin, end = parts.pop()
        k = _shift_in(steps[begin:end], y[begin:end], noise[begin:end])
        if k is not None:
            found.append(begin + k)
            parts += [(begin, begin + k), (begin + k, end)]
    return sorted(found)


def _shift_in(steps: Array, y: Array, noise: Array) -> int | None:
    """The split that divides blocks into two levels, if there is one."""
    n = len(y)
    if n < 2 * SIDE_BLOCKS:
        return None
    total, sums, squares = np.cumsum(steps), np.cumsum(steps * y), np.cumsum(steps * y * y)
    at = np.arange(SIDE_BLOCKS, n - SIDE_BLOCKS + 1) - 1
    left, right = total[at], total[-1] - total[at]
    left_mean, right_mean = sums[at] / left, (sums[-1] - sums[at]) / right
    split = squares[-1] - left * left_mean**2 - right * right_mean**2
    best = int(np.argmin(split))
    gap = abs(right_mean[best] - left_mean[best])
    expected = float((noise * steps).mean())  # of a step
    seen = max(0.0, float(split[best])) / max(1, n - 2)
    error2 = max(expected, seen) * (1.0 / left[best] + 1.0 / right[best])
    if gap < LEAST_SHIFT or gap**2 < (LEAST_EVIDENCE + 2.0 * math.log(n)) * error2:
        return None
    if split[best] > BETTER_THAN_LINE * _off_line(steps, y) and split[best] > expected * n:
        return None
    return int(at[best]) + 1


def _off_line(steps: Array, y: Array) -> float:
    """Weighted squares of the blocks off their straight line."""
    position = np.cumsum(steps) - steps / 2.0
    weight = steps.sum()
    dx = position - (steps * position).sum() / weight
    dy = y - (steps * y).sum() / weight
    slope = (steps * dx * dy).sum() / max(float((steps * dx * dx).sum()), 1e-12)
    return float((steps * (dy - slope * dx) ** 2).sum())
