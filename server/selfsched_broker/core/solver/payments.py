"""What the others would make of everything without one winner, by solving again.

Begun at the prices and at the division with the winner, and finished to the proved optimum.
Worth its time in a small cluster, where one winner is a large part of everything; in a large
one `dual.harm` tells it from the prices, for all winners at once.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from selfsched_broker.core.solver.dual import price
from selfsched_broker.core.solver.exact import Effort, finish
from selfsched_broker.core.solver.packing import board_of
from selfsched_broker.core.solver.problem import Ints, Problem, Solution
from selfsched_broker.core.solver.search import fill, improve
from selfsched_broker.core.solver.solve import solve


def solve_without(problem: Problem, solution: Solution, job: int, effort: Effort) -> tuple[Ints, Solution]:
    """The division of everything among the others.

    Returns:
        (option of `problem` by job, the one left out has -1; the solution of the rest, in options of
        the smaller question).
    """
    if problem.jobs == 1:
        return np.array([-1]), solve(_without(problem, job)[0], effort)
    rest, kept = _without(problem, job)
    start = np.delete(solution.chosen, job)
    start = np.searchsorted(kept, start)
    prices = price(rest, solution.prices.values)
    board = board_of(rest, start.tolist())
    improve(board, prices)
    fill(board)
    chosen = np.array(board.chosen)
    gain = float(rest.gain[chosen].sum())
    found = finish(rest, Solution(chosen, gain, prices.bound, prices), effort)
    return np.insert(kept[found.chosen], job, -1), found


def _without(problem: Problem, job: int) -> tuple[Problem, Ints]:
    """The question without a job, and which options are left."""
    kept = np.flatnonzero(problem.job != job)
    sizes = np.delete(np.diff(problem.first), job)
    rest = replace(
        problem,
        first=np.concatenate([[0], np.cumsum(sizes)]),
        gain=problem.gain[kept],
        bundle=problem.bundle[kept],
        loose=problem.loose[kept],
        anchor=problem.anchor[kept],
        devices=problem.devices[kept],
        group=np.delete(problem.group, job) if len(problem.group) else problem.group,
    )
    return rest, kept
