"""The division of a large cluster: options solved as pieces, placed on nodes, and what each costs.

`allocation` writes a choice for every node and is exact; this writes one for every bag of
pieces (`options`), so that ten thousand devices are as quick as ten were, and proves how far
from the best the division can be. Where it is small enough it is the best, and proved.

Entitlements weigh more than what many jobs could gain by anything else. Where not all of them
can be kept, those that were not are left out and the rest is divided again: the bound is then
over all divisions that keep what this one keeps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from selfsched_broker.core.allocation import Choice, Division
from selfsched_broker.core.options import Options
from selfsched_broker.core.solver.dual import harm
from selfsched_broker.core.solver.exact import Effort
from selfsched_broker.core.solver.laying import place
from selfsched_broker.core.solver.payments import solve_without
from selfsched_broker.core.solver.problem import Floats, Ints, Problem, Solution
from selfsched_broker.core.solver.solve import solve

EXACT_PAYMENTS = 64
"""Devices up to which payments are worth solving again for each winner."""
_ROUNDS = 3


def divide_options(options: Options, *, effort: Effort | None = None, pays: bool = True) -> Division:
    """The best division of a large cluster, or one with its proved gap.

    Args:
        options: the question.
        effort: limits of the exact finish.
        pays: whether anybody will ask what it costs the others.
    """
    problem, solution = solve_options(options, effort or Effort())
    drawn = place(problem, solution.chosen.tolist(), options.homes, options.avoided, options.others)
    chosen = {}
    for job, standing in enumerate(options.standings):
        option = int(solution.chosen[job])
        draws = {options.nodes[node]: count for node, count in sorted(drawn[job].items())}
        chosen[standing.job] = _choice(options, option, standing.job, draws)
    return Division(
        chosen,
        solution.gain,
        solution.bound,
        method="pieces",
        harm=_harm(options, problem, solution) if pays else {},
        settle=(lambda: settle(options, problem, solution)) if pays and _is_small(problem) else None,
    )


def solve_options(options: Options, effort: Effort) -> tuple[Problem, Solution]:
    """The question as it was answered, and the answer.

    Entitlements that cannot be kept are given up one round after the other.
    """
    problem, urgency = options.problem, options.urgency.copy()
    start: Floats | None = None
    for _ in range(_ROUNDS):
        urgent = replace(problem, gain=problem.gain + np.where(options.enough, urgency[problem.job], 0.0))
        solution = solve(urgent, effort, incumbent=options.incumbent.tolist(), start=start)
        given_up = (urgency > 0) & ~options.enough[solution.chosen]
        if not np.any(given_up) or solution.gap <= effort.tolerance(problem.jobs):
            break
        urgency[given_up] = 0.0
        start = solution.prices.values
    return urgent, solution


def _choice(options: Options, option: int, job: str, draws: Mapping[str, int]) -> Choice:
    problem = options.problem
    anchor = int(problem.anchor[option])
    return Choice(
        job,
        int(problem.devices[option]),
        draws,
        float(problem.gain[option]),
        float(options.welfare[option]),
        problem.anchors[anchor].exactly if anchor >= 0 else frozenset(),
        bool(options.stays[option]),
    )


def _winners(problem: Problem, chosen: Ints) -> Ints:
    return np.flatnonzero(problem.bundles.sum(axis=1)[problem.bundle[chosen]] > 0)


def _harm(options: Options, problem: Problem, solution: Solution) -> dict[str, float]:
    """What each winner costs the others, in weight x log value, from the prices."""
    cost = harm(problem, solution.prices, solution.chosen)
    return {options.standings[j].job: float(cost[j]) for j in _winners(problem, solution.chosen)}


def _is_small(problem: Problem) -> bool:
    return int(problem.node_free.sum()) <= EXACT_PAYMENTS


def settle(options: Options, problem: Problem, solution: Solution) -> Iterator[tuple[str, float]]:
    """What each winner costs the others, by dividing again without it: a second for 64 devices."""
    for job in _winners(problem, solution.chosen).tolist():
        without, _ = solve_without(problem, solution, job, Effort())
        others = np.arange(problem.jobs) != job
        with_it = options.welfare[solution.chosen[others]].sum()
        yield options.standings[job].job, float(options.welfare[without[others]].sum() - with_it)
