"""From prices to a division: whoever is sure takes its best option, the others what still fits.

At the prices of the dual most jobs have one option without regret. They take it, the surest
first (surest: the largest regret of the second choice), as far as all of it can be packed:
that point is found by halving. The few that remain take, one after the other, the option of
least regret that fits. A job that must not end with nothing stands on its anchored option
until it can have a better one.
"""

from __future__ import annotations

import numpy as np

from selfsched_broker.core.solver.packing import Board
from selfsched_broker.core.solver.problem import Ints, Prices, Problem


def round_up(problem: Problem, prices: Prices) -> Board:
    """A division that fits, one option for each job."""
    board = Board(problem)
    ranked = _by_regret(problem, prices)
    fallback = fallbacks(problem)
    margin = _margins(problem, prices, ranked)
    best = ranked[problem.first[:-1]]
    order = np.argsort(-margin, kind="stable").tolist()
    for job in order:
        board.take(job, int(fallback[job]))
    sure = _surest(board, order, best)
    for job in order[sure:]:
        _take_least_regret(board, problem, prices, ranked, job)
    return board


def fallbacks(problem: Problem) -> Ints:
    """By job: the option that can always be had, nothing or else what it stands on."""
    draws = problem.bundles.sum(axis=1)[problem.bundle]
    # Nothing first, then anchored options, the most gain first.
    keys = (-problem.gain, (problem.anchor < 0) | (problem.loose_size > 0), draws > 0, problem.job)
    ranked = np.lexsort(keys)
    return np.asarray(ranked[problem.first[:-1]])


def _by_regret(problem: Problem, prices: Prices) -> Ints:
    return np.lexsort((-problem.gain, np.round(prices.regret, 12), problem.job))


def _margins(problem: Problem, prices: Prices, ranked: Ints) -> Ints:
    sizes = np.diff(problem.first)
    second = np.minimum(problem.first[:-1] + 1, len(ranked) - 1)
    return np.where(sizes > 1, prices.regret[ranked[second]], np.inf)


def _surest(board: Board, order: list[int], best: Ints) -> int:
    """Give as many of the surest as fit their best option; how many that are."""
    fallback = {job: board.chosen[job] for job in order}
    given, low, high = 0, 0, len(order)
    goal = high
    while True:
        for job in order[given:goal]:
            board.swap(job, int(best[job]))
        for job in order[goal:given]:
            board.swap(job, fallback[job])
        given = goal
        if board.fits():
            low = goal
        else:
            high = goal - 1
        if low >= high:
            break
        goal = (low + high + 1) // 2
    for job in order[low:given]:
        board.swap(job, fallback[job])
    board.fits()
    return low


def _take_least_regret(board: Board, problem: Problem, prices: Prices, ranked: Ints, job: int) -> None:
    now = board.chosen[job]
    for option in ranked[problem.first[job] : problem.first[job + 1]].tolist():
        if option == now or board.try_swap(job, option):
            return
