"""Prices, rounding, search, and integer programming where the question is small enough."""

from __future__ import annotations

import numpy as np

from selfsched_broker.core.solver.dual import price
from selfsched_broker.core.solver.exact import Effort, finish
from selfsched_broker.core.solver.problem import Prices, Problem, Solution
from selfsched_broker.core.solver.rounding import round_up
from selfsched_broker.core.solver.search import fill, improve


def solve(problem: Problem, effort: Effort | None = None) -> Solution:
    """The best division found, and the bound that no division exceeds.

    Args:
        problem: the question.
        effort: limits of the exact finish; None: the default ones.

    Raises:
        ValueError: the question cannot be answered (see `Problem.check`).
    """
    effort = effort or Effort()
    problem.check()
    if not problem.jobs:
        none = np.zeros(0)
        return Solution(np.zeros(0, np.int64), 0.0, 0.0, Prices(none, none, none, none, 0.0))
    prices = price(problem)
    board = round_up(problem, prices)
    improve(board, prices)
    fill(board)
    chosen = np.array(board.chosen)
    solution = Solution(chosen, float(problem.gain[chosen].sum()), prices.bound, prices)
    return finish(problem, solution, effort)
