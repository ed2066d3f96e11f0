"""Prices of pieces, and the bound they prove.

The linear relaxation of a division has the dual

    minimise  N p + sum_j max_k (g_k - a_k p)      p >= 0, p_s >= p_a + p_(s-a),

N the nodes by free devices, a_k the pieces of option k, p_s the price of a piece of s
devices of a model: a slot of s may be cut in two, so its price is at least that of the
halves. Any such p proves a bound. It is found by smoothing the maxima and the constraints,

    F_T(p) = N p + T sum_j log sum_k exp((g_k - a_k p) / T) - T sum log(slack),

which is smooth and convex, and Newton's method while T falls from 0.3 to 1e-4. F has a few
dozen variables however many jobs there are, and the sums over options are vectorised: bags
of pieces are few, so a_k p is computed once for each bag. At temperature T options whose
regret is many T weigh nothing and are left out; jobs that are left with one are constants.
The first temperatures need no more than a sample of the jobs. Neither touches the bound: it
is evaluated at the last prices over everything.

The optimum of the relaxation differs from that over whole options by no more than what a few
dozen jobs (as many as there are prices) could gain, so the bound is the tighter the more
jobs there are (Shapley, Folkman; Starr 1969). Soft maxima as a dual of entropy: Nesterov, Smooth
minimization of non-smooth functions, 2005.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.sparse import csr_matrix

from selfsched_broker.core.solver.problem import Bools, Floats, Ints, Prices, Problem

COLDEST = 1e-4
_COOLING = 0.25
_HOTTEST = 0.3
# Regrets of so many temperatures of the stage before (forty of this one) weigh nothing, also when
# prices move by some temperatures meanwhile.
_NEGLIGIBLE = 10.0
_MOST_STEPS = 30
# Prices change by about a thousandth when one of a few hundred jobs goes: smoother than that the
# second derivatives are another question's, less smooth they see one job at a time.
_PAYMENT_TEMPERATURE = 1e-3
_SAMPLE = 320
_SAMPLED_DOWN_TO = 0.02


@dataclass(frozen=True, slots=True)
class _Resources:
    """What options ask for: pieces, and devices of limited groups."""

    use: Floats
    """(rows, prices): distinct asks."""
    row: Ints
    """By option; its row of `use`."""
    supply: Floats
    slack: Floats
    """(constraints, prices): each product with the prices must not be negative."""


def price(problem: Problem, start: Floats | None = None, coldest: float = COLDEST) -> Prices:
    """Prices near the best bound.

    Args:
        problem: the question.
        start: prices of a similar question to begin with; None: none are known.
        coldest: the last temperature, in gain; the bound is within some dozens of it of the
            relaxation's optimum.
    """
    resources = _resources(problem)
    spread = _spread(problem)
    smooth = _Smooth(problem.gain, resources.row, problem.first, resources)
    values = _first_guess(problem, resources, spread)
    if start is None:
        hottest = _HOTTEST * max(1.0, spread)
        if problem.jobs > 2 * _SAMPLE:
            values = _cool(smooth.sample(_SAMPLE), values, hottest, max(_SAMPLED_DOWN_TO, coldest))
            hottest = _SAMPLED_DOWN_TO
    else:
        values, hottest = _inside(start, values, resources.slack), max(_SAMPLED_DOWN_TO, coldest)
    values = _cool(smooth, values, hottest, coldest)
    return evaluate(problem, np.maximum(values, 0.0), resources)


def evaluate(problem: Problem, values: Floats, resources: _Resources | None = None) -> Prices:
    """The bound and the regrets at given prices (which must keep the constraints)."""
    resources = resources or _resources(problem)
    cost = (resources.use @ values)[resources.row]
    net = problem.gain - cost
    surplus = np.maximum.reduceat(net, problem.first[:-1])
    regret = np.repeat(surplus, np.diff(problem.first)) - net
    bound = float(resources.supply @ values + surplus.sum())
    return Prices(values, cost, surplus, regret, bound)


def harm(problem: Problem, prices: Prices, chosen: Ints) -> Floats:
    """What the others could gain from what each job holds, to second order.

    The value of the devices to the others is concave, so the last of them are worth less than
    the first: with a what a job holds, p the prices and H the second derivatives of F_T,
    dp / dN = -H^-1, and the harm is a p - a H^-1 a / 2.

    Returns:
        By job, in gain; at least half of the first order.
    """
    resources = _resources(problem)
    smooth = _Smooth(problem.gain, resources.row, problem.first, resources)
    smooth = smooth.only(smooth.close(prices.values, 8 * _NEGLIGIBLE * _PAYMENT_TEMPERATURE))
    values = _descend(smooth, prices.values, _PAYMENT_TEMPERATURE, last=True)
    _, _, curve = smooth.derivatives(values, _PAYMENT_TEMPERATURE)
    held = resources.use[resources.row[chosen]]
    bent = 0.5 * np.einsum("ij,ji->i", held, _solve(curve, held.T))
    first = held @ values
    return np.asarray(np.maximum(first - np.minimum(bent, first / 2), 0.0))


def _spread(problem: Problem) -> float:
    """A typical largest gain of a job over its least, in units of 1: sets the first temperature."""
    highest = np.maximum.reduceat(problem.gain, problem.first[:-1])
    lowest = np.minimum.reduceat(problem.gain, problem.first[:-1])
    return float(max(np.quantile(highest - lowest, 0.9), 1e-3))


def _resources(problem: Problem) -> _Resources:
    pieces = problem.bundles.shape[1]
    slack = _superadditive(problem.models, problem.width, len(problem.limits))
    supply = problem.supply()[:, 1:].ravel().astype(float)
    if not len(problem.limits):
        return _Resources(problem.bundles.astype(float), problem.bundle, supply, slack)
    group = problem.group[problem.job]
    asked = np.stack([problem.bundle, group, np.where(group >= 0, problem.devices, 0)], axis=1)
    rows, row = np.unique(asked, axis=0, return_inverse=True)
    use = np.zeros((len(rows), pieces + len(problem.limits)))
    use[:, :pieces] = problem.bundles[rows[:, 0]]
    limited = np.flatnonzero(rows[:, 1] >= 0)
    use[limited, pieces + rows[limited, 1]] = rows[limited, 2]
    return _Resources(use, row.ravel(), np.concatenate([supply, problem.limits.astype(float)]), slack)


def _superadditive(models: int, width: int, limits: int) -> Floats:
    """p_1 >= 0 and p_s - p_a - p_(s-a) >= 0 for each model, and no negative price of a limit."""
    rows = []
    for size in range(1, width + 1):
        for part in range(1, size // 2 + 1):
            row = np.zeros(width)
            row[size - 1] += 1
            row[part - 1] -= 1
            row[size - part - 1] -= 1
            rows.append(row)
        if size == 1:
            rows.append(np.eye(width)[0])
    one = np.array(rows)
    total = models * width + limits
    every = np.zeros((models * len(one) + limits, total))
    for model in range(models):
        at = slice(model * len(one), (model + 1) * len(one))
        every[at, model * width : (model + 1) * width] = one
    every[models * len(one) :, models * width :] = np.eye(limits)
    return every


def _first_guess(problem: Problem, resources: _Resources, spread: float) -> Floats:
    size = np.arange(1, problem.width + 1)
    base = spread / 4 / min(problem.width, 8)
    slots = np.tile(base * (size + 0.05 * size * size), problem.models)
    return np.concatenate([slots, np.full(len(problem.limits), 0.1 * base)])


def _inside(values: Floats, guess: Floats, slack: Floats) -> Floats:
    """Prices as near to the given ones as it takes to keep the constraints, towards a guess that does."""
    have, there = slack @ values, slack @ guess
    least = 1e-3 * there
    short = have < least
    if not np.any(short):
        return values
    along = float(np.max((least - have)[short] / (there - have)[short]))
    return np.asarray(values + min(1.0, along) * (guess - values))


class _Smooth:
    """F_T over a set of jobs and options, and its Newton steps."""

    def __init__(self, gain: Floats, row: Ints, first: Ints, resources: _Resources) -> None:
        self._gain, self._row, self._first = gain, row, first
        self._use, self._supply, self._slack = resources.use, resources.supply, resources.slack
        self._resources = resources
        self._sizes = np.diff(first)

    def sample(self, jobs: int) -> _Smooth:
        """Every n-th job, for an n-th of the supply."""
        stride = max(1, (len(self._first) - 1) // jobs)
        kept = np.zeros(len(self._first) - 1, bool)
        kept[::stride] = True
        part = kept.sum() / len(kept)
        options = np.repeat(kept, self._sizes)
        first = np.concatenate([[0], np.cumsum(self._sizes[kept])])
        resources = _Resources(self._use, self._row[options], self._supply * part, self._slack)
        return _Smooth(self._gain[options], self._row[options], first, resources)

    def close(self, values: Floats, within: float) -> Bools:
        """Options of at most so much regret."""
        net = self._gain - (self._use @ values)[self._row]
        best = np.maximum.reduceat(net, self._first[:-1])
        return np.asarray(net >= np.repeat(best, self._sizes) - within)

    def only(self, options: Bools) -> _Smooth:
        """These options; jobs that have one left become part of the supply."""
        kept = options.copy()
        count = np.add.reduceat(kept, self._first[:-1])
        settled = kept & np.repeat(count == 1, self._sizes)
        taken = np.bincount(self._row[settled], minlength=len(self._use)) @ self._use
        kept &= ~settled
        first = np.concatenate([[0], np.cumsum(count[count > 1])])
        resources = _Resources(self._use, self._row[kept], self._supply - taken, self._slack)
        return _Smooth(self._gain[kept], self._row[kept], first, resources)

    def value(self, values: Floats, temperature: float) -> float:
        """F_T, less a constant that `near` leaves out; infinite outside the constraints."""
        slack = self._slack @ values
        if slack.min() <= 0:
            return np.inf
        total = float(self._supply @ values - temperature * np.log(slack).sum())
        if len(self._gain):
            best, _, norm = self._soft(values, temperature)
            total += float(best.sum() + temperature * np.log(norm).sum())
        return total

    def _soft(self, values: Floats, temperature: float) -> tuple[Floats, Floats, Floats]:
        net = self._gain - (self._use @ values)[self._row]
        best = np.maximum.reduceat(net, self._first[:-1])
        weight = np.exp((net - np.repeat(best, self._sizes)) / temperature)
        return best, weight, np.add.reduceat(weight, self._first[:-1])

    def step(self, values: Floats, temperature: float) -> tuple[float, Floats, float]:
        """(F_T, Newton direction, decrement squared)."""
        total, slope, curve = self.derivatives(values, temperature)
        direction = _solve(curve, slope)
        return total, direction, float(slope @ direction)

    def derivatives(self, values: Floats, temperature: float) -> tuple[float, Floats, Floats]:
        """(F_T, its gradient, its second derivatives)."""
        slack = self._slack @ values
        total = float(self._supply @ values - temperature * np.log(slack).sum())
        inverse = 1.0 / slack
        slope = self._supply - temperature * (inverse @ self._slack)
        scaled = self._slack * inverse[:, None]
        curve = temperature * (scaled.T @ scaled)
        if len(self._gain):
            best, weight, norm = self._soft(values, temperature)
            total += float(best.sum() + temperature * np.log(norm).sum())
            chance = weight / np.repeat(norm, self._sizes)
            by_row = np.bincount(self._row, weights=chance, minlength=len(self._use))
            shape = (len(self._sizes), len(self._use))
            mean = csr_matrix((chance, self._row, self._first), shape=shape) @ self._use
            slope -= by_row @ self._use
            curve += ((self._use * by_row[:, None]).T @ self._use - mean.T @ mean) / temperature
        return total, slope, curve


def _solve(curve: Floats, slope: Floats) -> Floats:
    size = np.diag(curve)
    try:
        return np.asarray(cho_solve(cho_factor(curve + np.diag(1e-10 * size + 1e-14)), slope))
    except LinAlgError:
        return np.asarray(np.linalg.lstsq(curve + np.diag(1e-6 * size + 1e-12), slope, rcond=None)[0])


def _cool(smooth: _Smooth, values: Floats, hottest: float, coldest: float) -> Floats:
    """Newton's method from temperature to temperature."""
    temperature, before = hottest, 2 * hottest
    while True:
        last = temperature <= coldest * 1.0001
        values = _stage(smooth, values, (before, temperature), last)
        if last:
            return values
        before, temperature = temperature, max(temperature * _COOLING, coldest)


def _stage(smooth: _Smooth, values: Floats, temperatures: tuple[float, float], last: bool) -> Floats:
    """One temperature, over the options that count in it; over more if prices brought others near."""
    before, temperature = temperatures
    for within in (_NEGLIGIBLE * before, 8 * _NEGLIGIBLE * before):
        options = smooth.close(values, within)
        found = _descend(smooth.only(options), values, temperature, last)
        if options[smooth.close(found, _NEGLIGIBLE * temperature)].all():
            return found
    return _descend(smooth, values, temperature, last)


def _descend(smooth: _Smooth, values: Floats, temperature: float, last: bool) -> Floats:
    """Steps until the decrement is small; roughly, unless this is the last temperature."""
    for _ in range(_MOST_STEPS):
        total, direction, decrement = smooth.step(values, temperature)
        if decrement < 1e-3 * temperature:
            break
        length = 1.0
        while smooth.value(values - length * direction, temperature) > total - 0.1 * length * decrement:
            length *= 0.5
            if length < 1e-9:
                return values
        values = values - length * direction
        if decrement < 0.3 * temperature and not last:
            break
    return values
