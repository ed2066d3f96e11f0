"""Prices, rounding, search, and integer programming where the question is small enough."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from selfsched_broker.core.solver.dual import price
from selfsched_broker.core.solver.exact import Effort, finish
from selfsched_broker.core.solver.packing import Board, board_of
from selfsched_broker.core.solver.problem import Floats, Prices, Problem, Solution
from selfsched_broker.core.solver.rounding import round_up
from selfsched_broker.core.solver.search import fill, improve


def solve(
    problem: Problem,
    effort: Effort | None = None,
    *,
    incumbent: Sequence[int] | None = None,
    start: Floats | None = None,
) -> Solution:
    """The best division found, and the bound that no division exceeds.

    Args:
        problem: the question.
        effort: limits of the exact finish; None: the default ones.
        incumbent: an option for each job, how things are now: bettered, it is what the division
            has to beat, so that an unchanged question moves nobody for the sake of rounding.
        start: prices of a similar question.

    Raises:
        ValueError: the question cannot be answered (see `Problem.check`).
    """
    effort = effort or Effort()
    problem.check()
    if not problem.jobs:
        none = np.zeros(0)
        return Solution(np.zeros(0, np.int64), 0.0, 0.0, Prices(none, none, none, none, 0.0))
    prices = price(problem, start)
    board = round_up(problem, prices)
    _better(board, prices)
    if incumbent is not None:
        rival = board_of(problem, incumbent)
        doubt = max(prices.bound - board.gain(), 1e-9)
        if rival.gain() >= board.gain() - doubt and rival.fits(thorough=True):
            _better(rival, prices)
            board = rival if rival.gain() >= board.gain() - 1e-9 else board
    chosen = np.array(board.chosen)
    solution = Solution(chosen, float(problem.gain[chosen].sum()), prices.bound, prices)
    return finish(problem, solution, effort)


def _better(board: Board, prices: Prices) -> None:
    improve(board, prices)
    fill(board)
