"""What the step-time model is held against: the published form and two simple rules.

The published form is that of Pollux (Qiao et al., OSDI'21, section 3.2, equations 8 to 11):

    T_step = (T_grad^g + T_sync^g)^(1/g),  T_grad = a_c + b_c m,
    T_sync = 0 for one replica, a_l + b_l (K - 2) on one node, a_n + b_n (K - 2) on several,

fitted as its authors do (section 4.1): the root mean squared error of the logarithms of T_grad
(the step without its synchronisation) and of T_step together, by L-BFGS-B from one start, with
non-negative parameters and g in [1, 10]; a parameter that nothing seen so far can tell is held
at almost nothing, so that unvisited placements look like perfect scaling. With one local batch
at a time a_c + b_c m is one number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize

Array = np.ndarray[Any, np.dtype[np.float64]]
TINY = 1e-8


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One measured placement of a job at one local batch."""

    per_node: tuple[int, ...]
    step_s: float
    sync_s: float

    @property
    def replicas(self) -> int:
        return sum(self.per_node)

    @property
    def nodes(self) -> int:
        return len(self.per_node)


def _sync(parameters: Array, replicas: Array, nodes: Array) -> Array:
    local = parameters[1] + parameters[2] * np.maximum(replicas - 2, 0)
    wide = parameters[3] + parameters[4] * np.maximum(replicas - 2, 0)
    chosen: Array = np.where(replicas == 1, TINY, np.where(nodes == 1, local, wide))
    return chosen


def _step(parameters: Array, replicas: Array, nodes: Array) -> Array:
    grad, overlap = parameters[0], parameters[5]
    # Divided by the larger of the two, so that the power cannot overflow.
    sync = _sync(parameters, replicas, nodes)
    larger = np.maximum(grad, sync)
    step: Array = larger * ((grad / larger) ** overlap + (sync / larger) ** overlap) ** (1 / overlap)
    return step


def published(seen: Sequence[Point], targets: Sequence[Point]) -> Array:
    """Step seconds of `targets` by the published form, fitted to `seen`."""
    replicas = np.array([p.replicas for p in seen], dtype=float)
    nodes = np.array([p.nodes for p in seen], dtype=float)
    log_step = np.log([p.step_s for p in seen])
    log_grad = np.log([max(p.step_s - p.sync_s, 1e-3 * p.step_s) for p in seen])

    def loss(parameters: Array) -> float:
        of_step = np.log(_step(parameters, replicas, nodes)) - log_step
        of_grad = math.log(parameters[0]) - log_grad
        return math.sqrt(float(np.mean(of_step**2))) + math.sqrt(float(np.mean(of_grad**2)))

    free = (
        True,
        bool(np.any((nodes == 1) & (replicas > 1))), bool(np.any((nodes == 1) & (replicas > 2))),
        bool(np.any(nodes > 1)), bool(np.any((nodes > 1) & (replicas > 2))),
        bool(np.any(replicas > 1)),
    )  # fmt: skip
    guess = (0.1, 0.1, 0.01, 0.1, 0.01, 1.001)
    limits = ((TINY, None),) * 5 + ((1.0, 10.0),)
    start = [value if is_free else low for value, is_free, (low, _) in zip(guess, free, limits, strict=True)]
    bounds = [limit if is_free else (limit[0], limit[0]) for limit, is_free in zip(limits, free, strict=True)]
    found = minimize(loss, start, method="L-BFGS-B", bounds=bounds)
    fitted = np.array(found.x)
    # Synchronising over nodes is never taken to be cheaper than on one.
    fitted[3], fitted[4] = max(fitted[3], 1.1 * fitted[1]), max(fitted[4], 1.1 * fitted[2])
    return _step(
        fitted,
        np.array([p.replicas for p in targets], dtype=float),
        np.array([p.nodes for p in targets], dtype=float),
    )


def nearest(seen: Sequence[Point], targets: Sequence[Point]) -> Array:
    """Step seconds of the visited placement that is nearest in devices and nodes (doublings)."""

    def apart(a: Point, b: Point) -> float:
        return abs(math.log2(a.replicas / b.replicas)) + abs(math.log2(a.nodes / b.nodes))

    return np.array([min(seen, key=lambda s: apart(s, target)).step_s for target in targets])


def perfect(seen: Sequence[Point], targets: Sequence[Point]) -> Array:
    """Every device added is free: the step of the smallest visited placement."""
    smallest = min(seen, key=lambda s: s.replicas)
    return np.full(len(targets), smallest.step_s)
