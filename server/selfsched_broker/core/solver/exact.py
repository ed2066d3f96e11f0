"""The rest of the way by integer programming, over the options that can still matter.

An option whose regret is not less than bound - gain cannot be part of a better division
(reduced-cost fixing), so at most a few hundred columns are left of a small question. Nodes
that an anchored option draws from are modelled one by one, each as one slot of what is left
on it, all others by counts with cuts of a slot of s into a and s - a. HiGHS solves it with
`mip_rel_gap = 0` (its default stops early) under a limit of nodes, so that the same question
has the same answer, and of seconds, so that there is an answer at all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix

from selfsched_broker.core.solver.packing import bags, board_of
from selfsched_broker.core.solver.problem import Bools, Ints, Problem, Solution

# HiGHS stops within 1e-6 of its objective and gains differ by tie-breakers far below that.
_SCALE = 1e4
_NEVER_BETTER = 1e-9


@dataclass(frozen=True, slots=True)
class Effort:
    """How far to go. Nodes decide; seconds are there for machines that stall."""

    milp_seconds: float = 2.0
    milp_nodes: int = 20_000
    most_columns: int = 20_000
    """Options beyond which integer programming is not tried."""
    most_columns_of_many: int = 6_000
    """The same where there are more jobs than few: a large cluster is asked often."""
    few_jobs: int = 300
    """So many jobs are always taken to the proved optimum, if the limits allow it."""
    enough: float = 1e-4
    """With more jobs, a proved gap in gain per job at which the division is good enough."""

    def tolerance(self, jobs: int) -> float:
        """A proved gap in gain at which no more is done."""
        return self.enough * jobs if jobs > self.few_jobs else _NEVER_BETTER


def finish(problem: Problem, solution: Solution, effort: Effort) -> Solution:
    """The proved optimum, or what was found in the limits with the better bound."""
    if solution.gap <= effort.tolerance(problem.jobs):
        return solution
    regret = solution.prices.regret
    kept = regret < solution.gap + 1e-9
    kept[solution.chosen] = True
    few = problem.jobs <= effort.few_jobs
    if int(kept.sum()) > (
        effort.most_columns if few else min(effort.most_columns, effort.most_columns_of_many)
    ):
        return solution
    chosen, bound = solve_milp(problem, kept, effort)
    bound = min(solution.bound, max(bound, solution.gain))
    gain = -np.inf if chosen is None else float(problem.gain[chosen].sum())
    # A packing that is not found could not be placed either.
    if chosen is None or gain <= solution.gain or not board_of(problem, chosen).fits(thorough=True):
        return replace(solution, bound=bound)
    return replace(solution, chosen=chosen, gain=gain, bound=max(bound, gain))


def solve_milp(problem: Problem, kept: Bools, effort: Effort) -> tuple[Ints | None, float]:
    """The best division that uses kept options only.

    Returns:
        (option by job, or None if none was found; a bound over the kept options).
    """
    columns = np.flatnonzero(kept)
    best = np.maximum.reduceat(np.where(kept, problem.gain, -np.inf), problem.first[:-1])
    loss = best[problem.job[columns]] - problem.gain[columns]
    model = _Model(problem, columns)
    answer = milp(
        np.concatenate([_SCALE * loss, np.zeros(model.width - len(columns))]),
        constraints=LinearConstraint(model.matrix(), model.lower, model.upper),
        bounds=Bounds(0, np.concatenate([np.ones(len(columns)), model.most])),
        integrality=np.ones(model.width),
        options={
            "mip_rel_gap": 0.0,
            "time_limit": effort.milp_seconds,
            "node_limit": effort.milp_nodes,
        },
    )
    least = 0.0 if answer.mip_dual_bound is None else float(answer.mip_dual_bound) / _SCALE
    bound = float(best.sum()) - (least if np.isfinite(least) else 0.0)
    if answer.x is None:
        return None, bound
    chosen = np.full(problem.jobs, -1)
    taken = columns[answer.x[: len(columns)] > 0.5]
    chosen[problem.job[taken]] = taken
    return chosen, float(problem.gain[chosen].sum()) if answer.status == 0 else bound


class _Model:
    """Rows and columns of the integer programme."""

    def __init__(self, problem: Problem, columns: Ints) -> None:
        self._problem, self._columns = problem, columns
        self._entries: list[tuple[ArrayLike, ArrayLike, ArrayLike]] = []
        self.lower: list[float] = []
        self.upper: list[float] = []
        self.width = len(columns)
        self.most: list[float] = []
        self._one_each()
        supply = self._nodes_apart(problem.supply())
        self._pieces(supply)
        self._limits()
        self._exclusions()

    def matrix(self) -> csr_matrix:
        rows = np.concatenate([np.asarray(entry[0]) for entry in self._entries])
        cols = np.concatenate([np.asarray(entry[1]) for entry in self._entries])
        values = np.concatenate([np.asarray(entry[2], float) for entry in self._entries])
        return csr_matrix((values, (rows, cols)), shape=(len(self.lower), self.width))

    def _row(self, lower: float, upper: float) -> int:
        self.lower.append(lower)
        self.upper.append(upper)
        return len(self.lower) - 1

    def _column(self, most: float) -> int:
        self.most.append(most)
        self.width += 1
        return self.width - 1

    def _one_each(self) -> None:
        job = self._problem.job[self._columns]
        self._entries.append((job, np.arange(len(job)), np.ones(len(job))))
        self.lower += [1.0] * self._problem.jobs
        self.upper += [1.0] * self._problem.jobs

    def _nodes_apart(self, supply: Ints) -> Ints:
        """A row and slot columns for each node that an anchored option draws from."""
        problem = self._problem
        self._slot_columns: dict[tuple[int, int], list[int]] = {}
        drawn: dict[int, list[tuple[int, int]]] = {}
        for at, option in enumerate(self._columns.tolist()):
            if problem.anchor[option] >= 0:
                for node, count in problem.anchors[problem.anchor[option]].draws:
                    drawn.setdefault(node, []).append((at, count))
        for node, draws in sorted(drawn.items()):
            model, free = int(problem.node_model[node]), int(problem.node_free[node])
            if free:
                supply[model, free] -= 1
            room, one = self._row(-np.inf, float(free)), self._row(-np.inf, 1.0)
            for at, count in draws:
                self._entries.append(([room], [at], [float(count)]))
            for size in range(1, free + 1):
                column = self._column(1.0)
                self._entries.append(([room, one], [column, column], [float(size), 1.0]))
                self._slot_columns.setdefault((model, size), []).append(column)
        return supply

    def _pieces(self, supply: Ints) -> None:
        """For each model and size: pieces asked, less slots there are and slots made by cuts."""
        problem, width = self._problem, self._problem.width
        start = len(self.lower)
        for model in range(problem.models):
            for size in range(1, width + 1):
                row = self._row(-np.inf, float(supply[model, size]))
                slots = self._slot_columns.get((model, size), [])
                self._entries.append(([row] * len(slots), slots, [-1.0] * len(slots)))
        listed = bags(problem)
        for at, option in enumerate(self._columns.tolist()):
            for model, size, count in listed[problem.loose[option]]:
                self._entries.append(([start + model * width + size - 1], [at], [float(count)]))
        most = float(problem.node_free.sum())
        for model in range(problem.models):
            row = start + model * width - 1
            for size in range(2, width + 1):
                for part in range(1, size // 2 + 1):
                    column = self._column(most)
                    rows = [row + size, row + part, row + size - part]
                    self._entries.append((rows, [column] * 3, [1.0, -1.0, -1.0]))

    def _limits(self) -> None:
        problem = self._problem
        if not len(problem.limits):
            return
        group = problem.group[problem.job[self._columns]]
        start = len(self.lower)
        for limit in problem.limits.tolist():
            self._row(-np.inf, float(limit))
        held = np.flatnonzero(group >= 0)
        self._entries.append((start + group[held], held, problem.devices[self._columns[held]]))

    def _exclusions(self) -> None:
        """Very devices that options of two jobs insist on."""
        problem = self._problem
        wanting: dict[str, list[int]] = {}
        for at, option in enumerate(self._columns.tolist()):
            if problem.anchor[option] >= 0:
                for device in problem.anchors[problem.anchor[option]].exactly:
                    wanting.setdefault(device, []).append(at)
        for _, found in sorted(wanting.items()):
            if len({int(problem.job[self._columns[at]]) for at in found}) > 1:
                self._entries.append(([self._row(-np.inf, 1.0)] * len(found), found, [1.0] * len(found)))
