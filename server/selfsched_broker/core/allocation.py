"""The best division of indivisible devices: one choice for each job, the largest sum of gains.

A *choice* draws whole devices from nodes: `draws[n]` of node n. Each job takes exactly one of
its choices (one of them draws nothing), the draws fit what the nodes offer, groups of jobs
stay within their limit (quotas), choices that want the very same device exclude each other.
Placements are written out as choices, one for each node (or set of nodes) they can lie on,
so that gangs, allowed counts, packing and tables of any shape are all one problem: a
multiple-choice knapsack with one capacity for each node.

Two exact ways, the first wherever it fits:

* **By counts.** Dynamic programming over the vector of free devices of the nodes,
  V_j[c] = max over choices of gain + V_{j-1}[c - draws]. One pass forward and one backward
  give the optimum and, at the meeting of the two, the optimum without each single job, which
  payments need. One server of 32 GPUs has 33 states, four of eight have 6,561.
* **By MILP.** HiGHS through scipy with `mip_rel_gap=0` (its default stops early) under a
  limit of nodes and of seconds; the best solution found and its proved bound are returned.

Gains carry their tie-breaking with them (see `auction`), so the optimum is unique and the
answer depends neither on the order of the jobs nor on a random number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_matrix

# Work of one pass: states x choices. 3e7 additions of numpy take about 0.1 s.
MOST_WORK = 30_000_000
MOST_CELLS = 6_000_000  # states x jobs kept for payments, 48 MB
MILP_SECONDS = 5.0
MILP_NODES = 200_000
# HiGHS stops within 1e-6 of its objective; gains differ by tie-breakers far below that.
_SCALE = 1e4
# Winners x choices: solving again without each winner takes a second or two at this size; above
# it payments are left out rather than everybody's decision held up.
MOST_RESOLVED = 20_000

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Choice:
    """One thing a job may get."""

    job: str
    devices: int
    """In all, those it keeps anyway included."""
    draws: Mapping[str, int]
    """Seats taken, by node."""
    gain: float
    """What is summed and maximised: welfare, entitlements, tie-breakers."""
    welfare: float
    """weight x log value alone."""
    exactly: frozenset[str] = frozenset()
    """The very devices it takes, where it matters; empty: any on those nodes."""
    stays: bool = False
    """Nothing changes for the job."""

    @property
    def taken(self) -> int:
        return sum(self.draws.values())


@dataclass(frozen=True, slots=True)
class Question:
    """Seats by node, the choices of each job, and groups of jobs that share a limit of devices."""

    seats: Mapping[str, int]
    choices: Mapping[str, Sequence[Choice]]
    limits: Sequence[tuple[frozenset[str], int]] = ()


@dataclass(frozen=True, slots=True)
class Division:
    """The answer: a choice for each job."""

    chosen: Mapping[str, Choice]
    gain: float
    bound: float
    """No division has a larger gain; equal to `gain` where the optimum is proved."""
    without: Mapping[str, Mapping[str, Choice]] = field(default_factory=dict)
    """For each job that draws seats: what the others would choose if it wanted nothing."""
    method: str = "counts"
    harm: Mapping[str, float] = field(default_factory=dict)
    """Where `without` is not known: what each winner costs the others, in weight x log value."""
    settle: Callable[[], Iterator[tuple[str, float]]] | None = field(default=None, compare=False)
    """(job, `harm`) exactly, by dividing again without each winner: takes its time."""


def divide(question: Question, *, method: Literal["counts", "milp"] | None = None) -> Division:
    """Find the best division, exactly where the size allows it.

    Args:
        question: what is divided.
        method: None: by counts where that is possible, else by MILP.

    Returns:
        The division; `bound - gain` is the proved gap (0 by dynamic programming).
    """
    if not question.choices:
        return Division({}, 0.0, 0.0)
    if not question.seats:
        question = Question({"": 0}, question.choices, question.limits)
    if method == "counts" or (method is None and fits_counts(question)):
        return _by_counts(question)
    return _by_milp(question)


def fits_counts(question: Question) -> bool:
    """Whether dynamic programming over the free devices of the nodes is quick enough, and allowed."""
    if _binding_limits(question) or _conflicts(question):
        return False
    states = math.prod(n + 1 for n in question.seats.values())
    alternatives = sum(len(choices) for choices in question.choices.values())
    return states * alternatives <= MOST_WORK and states * len(question.choices) <= MOST_CELLS


# --- by counts ---------------------------------------------------------------------------


def _by_counts(question: Question) -> Division:
    nodes = sorted(question.seats)
    room = tuple(question.seats[node] for node in nodes)
    jobs = sorted(question.choices)
    tables = [_drawn(question.choices[job], nodes) for job in jobs]
    forward = _passes(tables, room)
    backward = _passes(tables[::-1], room)[::-1]
    picks = _trace(tables, forward, room)
    chosen = {job: question.choices[job][pick] for job, pick in zip(jobs, picks, strict=True)}
    without = {}
    for at, job in enumerate(jobs):
        if chosen[job].taken:
            without[job] = _without(question, jobs, tables, (forward, backward), at, room)
    gain = float(forward[-1][room])
    return Division(chosen, gain, gain, without)


_Table = list[tuple[float, tuple[int, ...]]]


def _drawn(choices: Sequence[Choice], nodes: Sequence[str]) -> _Table:
    return [(choice.gain, tuple(choice.draws.get(node, 0) for node in nodes)) for choice in choices]


def _passes(tables: Sequence[_Table], room: tuple[int, ...]) -> list[Floats]:
    """V_0 ... V_J: best gain of the first j jobs for every vector of seats."""
    value: Floats = np.zeros(tuple(n + 1 for n in room))
    values = [value]
    for table in tables:
        following = np.full_like(value, -np.inf)
        for gain, draws in table:
            if any(d > n for d, n in zip(draws, room, strict=True)):
                continue
            left = following[tuple(slice(d, None) for d in draws)]
            taken = value[tuple(slice(None, n + 1 - d) for d, n in zip(draws, room, strict=True))]
            np.maximum(left, taken + gain, out=left)
        value = following
        values.append(value)
    return values


def _trace(tables: Sequence[_Table], values: Sequence[Floats], seats: tuple[int, ...]) -> list[int]:
    """The choices behind V_J at `seats`, first job first."""
    picks: list[int] = []
    for table, before in zip(tables[::-1], values[-2::-1], strict=True):
        best, pick, left = -math.inf, 0, seats
        for at, (gain, draws) in enumerate(table):
            rest = tuple(n - d for n, d in zip(seats, draws, strict=True))
            if min(rest, default=0) >= 0 and gain + before[rest] > best:
                best, pick, left = gain + float(before[rest]), at, rest
        picks.append(pick)
        seats = left
    return picks[::-1]


def _without(
    question: Question,
    jobs: Sequence[str],
    tables: Sequence[_Table],
    passes: tuple[Sequence[Floats], Sequence[Floats]],
    at: int,
    room: tuple[int, ...],
) -> dict[str, Choice]:
    """The others' best division: seats c to those before `at`, the rest to those after."""
    forward, backward = passes
    before, after = forward[at], backward[at + 1]
    meeting = before + after[tuple(slice(None, None, -1) for _ in room)]
    split = tuple(int(n) for n in np.unravel_index(int(np.argmax(meeting)), meeting.shape))
    rest = tuple(n - s for n, s in zip(room, split, strict=True))
    first = _trace(tables[:at], forward[: at + 1], split)
    last = _trace(tables[:at:-1], backward[:at:-1], rest)[::-1]
    others = [job for job in jobs if job != jobs[at]]
    return {job: question.choices[job][pick] for job, pick in zip(others, first + last, strict=True)}


# --- by MILP -----------------------------------------------------------------------------


def _by_milp(question: Question) -> Division:
    chosen, gain, bound = solve_milp(question)
    without = {}
    winners = [job for job in sorted(chosen) if chosen[job].taken]
    if len(winners) * sum(len(choices) for choices in question.choices.values()) <= MOST_RESOLVED:
        for winner in winners:
            others = {job: choices for job, choices in question.choices.items() if job != winner}
            without[winner] = solve_milp(Question(question.seats, others, question.limits))[0]
    return Division(chosen, gain, bound, without, method="milp")


def solve_milp(question: Question) -> tuple[dict[str, Choice], float, float]:
    """The best division without payments: (choice by job, its gain, proved bound)."""
    jobs = sorted(question.choices)
    flat = [choice for job in jobs for choice in question.choices[job]]
    if not flat:
        return {}, 0.0, 0.0
    matrix, lower, upper = _constraints(question, jobs, flat)
    gains = np.array([choice.gain for choice in flat])
    answer = milp(
        -_SCALE * gains,
        constraints=LinearConstraint(matrix, lower, upper),
        bounds=Bounds(0, 1),
        integrality=np.ones(len(flat)),
        options={"mip_rel_gap": 0.0, "time_limit": MILP_SECONDS, "node_limit": MILP_NODES},
    )
    if answer.x is None:
        return _as_it_is(question, jobs)
    chosen = {flat[k].job: flat[k] for k in np.flatnonzero(answer.x > 0.5)}
    gain = sum(choice.gain for choice in chosen.values())
    bound = gain if answer.status == 0 else max(gain, -float(answer.mip_dual_bound) / _SCALE)
    return chosen, gain, bound


def _constraints(
    question: Question, jobs: Sequence[str], flat: Sequence[Choice]
) -> tuple[coo_matrix, Floats, Floats]:
    rows: list[tuple[dict[int, float], float, float]] = []
    of_job: dict[str, list[int]] = {job: [] for job in jobs}
    of_node: dict[str, dict[int, float]] = {node: {} for node in sorted(question.seats)}
    for k, choice in enumerate(flat):
        of_job[choice.job].append(k)
        for node, count in choice.draws.items():
            of_node[node][k] = float(count)
    rows += [(dict.fromkeys(ks, 1.0), 1.0, 1.0) for ks in of_job.values()]
    rows += [(draws, 0.0, float(question.seats[node])) for node, draws in of_node.items()]
    for members, limit in question.limits:
        held = {k: float(choice.devices) for k, choice in enumerate(flat) if choice.job in members}
        rows.append((held, 0.0, float(limit)))
    for wanting in _wanting(flat).values():
        rows.append((dict.fromkeys(wanting, 1.0), 0.0, 1.0))
    entries = [(r, k, a) for r, (row, _, _) in enumerate(rows) for k, a in row.items()]
    row_of, column_of, values = (list(part) for part in zip(*entries, strict=True))
    matrix = coo_matrix((values, (row_of, column_of)), shape=(len(rows), len(flat)))
    return matrix, np.array([row[1] for row in rows]), np.array([row[2] for row in rows])


def _as_it_is(question: Question, jobs: Sequence[str]) -> tuple[dict[str, Choice], float, float]:
    """Nothing found in time: everybody takes the choice that draws least, staying before moving."""
    chosen = {job: min(question.choices[job], key=lambda c: (c.taken, not c.stays, -c.gain)) for job in jobs}
    gain = sum(choice.gain for choice in chosen.values())
    return chosen, gain, sum(max(choice.gain for choice in question.choices[job]) for job in jobs)


def _wanting(flat: Sequence[Choice]) -> dict[str, list[int]]:
    """Devices that more than one choice insists on, with those choices."""
    wanting: dict[str, list[int]] = {}
    for k, choice in enumerate(flat):
        for device in choice.exactly:
            wanting.setdefault(device, []).append(k)
    return {device: ks for device, ks in wanting.items() if len({flat[k].job for k in ks}) > 1}


def _conflicts(question: Question) -> bool:
    return bool(_wanting([choice for choices in question.choices.values() for choice in choices]))


def _binding_limits(question: Question) -> bool:
    for members, limit in question.limits:
        most = sum(
            max(c.devices for c in question.choices[job]) for job in members if job in question.choices
        )
        if most > limit:
            return True
    return False
