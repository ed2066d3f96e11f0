"""Moves of one and of two jobs, until none helps.

A better division can only use options of regret below the proved gap. Those, without the
ones already chosen, are the candidates; all pairs of them are weighed at once: what both
gain, and by the quick test of `packing` whether both could lie. The survivors are tried in
the order of their gain.
"""

from __future__ import annotations

import numpy as np

from selfsched_broker.core.solver.packing import Board, block_use
from selfsched_broker.core.solver.problem import Floats, Ints, Prices, Problem

_MOST_CANDIDATES = 400
_MOST_TRIALS = 2_000
_LEAST = 1e-12


def improve(board: Board, prices: Prices, rounds: int = 12) -> None:
    """Better the division on the board by moves of one and two jobs."""
    problem = board.problem
    use = block_use(problem)
    for _ in range(rounds):
        chosen = np.array(board.chosen)
        gap = prices.bound - float(problem.gain[chosen].sum())
        if gap <= 1e-9:
            return
        candidates = _candidates(problem, prices, chosen, gap)
        if not len(candidates) or not _one_round(board, use, chosen, candidates):
            return


def fill(board: Board) -> None:
    """Leave nothing idle that somebody would gain from: single moves, the largest gain first."""
    problem = board.problem
    use = block_use(problem)
    while True:
        chosen = np.array(board.chosen)
        gain = problem.gain - problem.gain[chosen][problem.job]
        options = np.flatnonzero(gain > _LEAST)
        room = board.slack() + 0.5
        change = use[problem.bundle[options]] - use[problem.bundle[chosen]][problem.job[options]]
        options = options[np.all(change <= room, axis=1)]
        moved = False
        done: set[int] = set()
        for option in options[np.argsort(-gain[options], kind="stable")][:_MOST_TRIALS].tolist():
            job = int(problem.job_of(option))
            if job not in done and board.try_swap(job, option):
                done.add(job)
                moved = True
        if not moved:
            return


def _candidates(problem: Problem, prices: Prices, chosen: Ints, gap: float) -> Ints:
    own = np.zeros(len(problem.gain), bool)
    own[chosen] = True
    options = np.flatnonzero((prices.regret < gap) & ~own)
    ranked = options[np.argsort(prices.regret[options], kind="stable")]
    return ranked[:_MOST_CANDIDATES]


def _one_round(board: Board, use: Floats, chosen: Ints, candidates: Ints) -> bool:
    """Try the best pairs; whether anything moved."""
    problem = board.problem
    jobs = problem.job[candidates]
    gain = problem.gain[candidates] - problem.gain[chosen[jobs]]
    change = use[problem.bundle[candidates]] - use[problem.bundle[chosen[jobs]]]
    # One more candidate that changes nothing: pairs with it are single moves.
    jobs = np.append(jobs, -1)
    gain, change = np.append(gain, 0.0), np.vstack([change, np.zeros(change.shape[1])])
    first, second = np.nonzero(np.triu(gain[:, None] + gain[None, :] > _LEAST, 1))
    apart = jobs[first] != jobs[second]
    first, second = first[apart], second[apart]
    room = board.slack().astype(float)
    for column in np.argsort(room, kind="stable"):
        fitting = change[first, column] + change[second, column] <= room[column]
        first, second = first[fitting], second[fitting]
    order = np.argsort(-(gain[first] + gain[second]), kind="stable")[:_MOST_TRIALS]
    return _try(board, jobs, candidates, first[order], second[order])


def _try(board: Board, jobs: Ints, candidates: Ints, first: Ints, second: Ints) -> bool:
    moved: set[int] = set()
    for a, b in zip(first.tolist(), second.tolist(), strict=True):
        one, other = int(jobs[a]), int(jobs[b])
        if one in moved or other in moved:
            continue
        if other < 0:
            done = board.try_swap(one, int(candidates[a]))
        else:
            done = board.try_two((one, int(candidates[a])), (other, int(candidates[b])))
        if done:
            moved |= {one, other} - {-1}
    return bool(moved)
