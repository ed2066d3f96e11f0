"""Whether pieces fit the nodes, kept up to date while options are taken and given back.

Two tests. A quick one, linear and necessary: for every size s, pieces hold floor(piece / s)
blocks of s and slots offer floor(slot / s); what is asked must not exceed what is offered.
(floor(x / s) is superadditive, so a slot never offers less than what is cut from it.) And
best-fit decreasing on counts, which is sufficient: it says where every piece goes. Between
the two lie packings that exist and are not found, few of them, more where leases leave nodes
ragged. For what integer programming found, `pack` searches on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from selfsched_broker.core.solver.problem import Floats, Ints, Problem

PACK_BUDGET = 20_000
MOST_PACKED = 500
"""Pieces beyond which nothing but best fit is tried: the more there are the less it misses."""


def fits(pieces: Sequence[int], slots: Sequence[int]) -> bool:
    """Best-fit decreasing for one model.

    Args:
        pieces: how many of each size, from 0.
        slots: nodes by free devices, from 0.
    """
    room = list(slots)
    largest = len(room) - 1
    if sum(size * (room[size] - pieces[size]) for size in range(1, largest + 1)) < 0:
        return False
    for size in range(largest, 1, -1):
        left = pieces[size]
        for slot in range(size, largest + 1):
            if left <= 0:
                break
            have = room[slot]
            if have <= 0:
                continue
            each = slot // size
            whole = min(have, left // each)
            if whole:
                room[slot] -= whole
                room[slot - each * size] += whole
                left -= whole * each
            if left and whole < have:
                room[slot] -= 1
                room[slot - left * size] += 1
                left = 0
        if left > 0:
            return False
    return True


def pack(
    pieces: Sequence[int], slots: Sequence[int], budget: int = PACK_BUDGET
) -> list[tuple[int, int]] | None:
    """A way to pack one model, searched in the order of best fit decreasing with second thoughts.

    Args:
        pieces: how many of each size, from 0.
        slots: nodes by free devices, from 0.
        budget: steps after which it is given up.

    Returns:
        (size, free devices of the node it goes to) of each piece in the order to place them.
    """
    left, room, plan = list(pieces), list(slots), []
    if sum(pieces) > MOST_PACKED:
        return None
    steps = 0
    seen: set[tuple[int, ...]] = set()

    def go(size: int) -> bool:
        nonlocal steps
        while size and not left[size]:
            size -= 1
        state = (*left, *room)
        steps += 1
        if not size:
            return True
        if steps > budget or state in seen:
            return False
        for free in range(size, len(room)):
            if room[free]:
                _put(left, room, size, free, 1)
                plan.append((size, free))
                if go(size):
                    return True
                plan.pop()
                _put(left, room, size, free, -1)
        seen.add(state)
        return False

    return plan if go(len(left) - 1) else None


def _put(left: list[int], room: list[int], size: int, free: int, sign: int) -> None:
    left[size] -= sign
    room[free] -= sign
    room[free - size] += sign


def blocks(width: int) -> Ints:
    """(width + 1, width): how many blocks of each size from 1 a piece or slot of x devices holds."""
    return np.arange(width + 1)[:, None] // np.arange(1, width + 1)[None, :]


class Board:
    """The options taken so far. `take` and `drop` are exact; `fits` tells whether all of it lies."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.chosen = [-1] * problem.jobs
        self._left = problem.node_free.tolist()
        self._model_of = problem.node_model.tolist()
        self.slots: list[list[int]] = problem.supply().tolist()
        self.pieces: list[list[int]] = np.zeros_like(problem.supply()).tolist()
        self._over: set[int] = set()
        self._room = problem.limits.tolist()
        self._group = problem.group.tolist()
        self._devices = problem.devices
        self._owners: dict[str, int] = {}
        self._clashes = 0
        self._bags = bags(problem)
        self._loose = problem.loose.tolist()
        self._anchor = problem.anchor.tolist()
        self._dirty: set[int] = set()

    def take(self, job: int, option: int) -> None:
        """Give a job, which has none, an option."""
        self.chosen[job] = option
        self._count(option, 1)

    def drop(self, job: int) -> int:
        """Take a job's option back; returns it."""
        option = self.chosen[job]
        self.chosen[job] = -1
        if option >= 0:
            self._count(option, -1)
        return option

    def swap(self, job: int, option: int) -> int:
        """`drop` and `take`; returns what the job had."""
        before = self.drop(job)
        if option >= 0:
            self.take(job, option)
        return before

    def fits(self, *, thorough: bool = False) -> bool:
        """Whether everything taken lies; looks only at models that changed since it last did.

        Args:
            thorough: search on where best fit finds no way.
        """
        if self._over or self._clashes or any(room < 0 for room in self._room):
            return False
        for model in list(self._dirty):
            pieces, slots = self.pieces[model], self.slots[model]
            if not fits(pieces, slots) and not (thorough and pack(pieces, slots) is not None):
                return False
            self._dirty.discard(model)
        return True

    def try_swap(self, job: int, option: int) -> bool:
        """Swap if it fits; else nothing changes."""
        before = self.swap(job, option)
        if self.fits():
            return True
        self.swap(job, before)
        return False

    def try_two(self, first: tuple[int, int], second: tuple[int, int]) -> bool:
        """Both (job, option) swaps if together they fit; else nothing changes."""
        before = self.swap(*first), self.swap(*second)
        if self.fits():
            return True
        self.swap(first[0], before[0])
        self.swap(second[0], before[1])
        return False

    def _count(self, option: int, sign: int) -> None:
        for model, size, count in self._bags[self._loose[option]]:
            self.pieces[model][size] += sign * count
            self._dirty.add(model)
        if self._room:
            group = self._group[int(np.searchsorted(self.problem.first, option, "right")) - 1]
            if group >= 0:
                self._room[group] -= sign * int(self._devices[option])
        if self._anchor[option] >= 0:
            self._count_anchor(option, sign)

    def _count_anchor(self, option: int, sign: int) -> None:
        anchor = self.problem.anchors[self._anchor[option]]
        for node, count in anchor.draws:
            model, before = self._model_of[node], self._left[node]
            after = before - sign * count
            self._left[node] = after
            if before > 0:
                self.slots[model][before] -= 1
            if after > 0:
                self.slots[model][after] += 1
            (self._over.add if after < 0 else self._over.discard)(node)
            self._dirty.add(model)
        for device in anchor.exactly:
            owners = self._owners.get(device, 0)
            self._owners[device] = owners + sign
            self._clashes += sign if (owners if sign > 0 else owners - 1) else 0

    def slack(self) -> Ints:
        """(models x width): blocks offered less blocks asked, the quick test."""
        size = blocks(self.problem.width)
        return np.asarray((np.array(self.slots) - np.array(self.pieces)) @ size).ravel()

    def gain(self) -> float:
        """The sum over what is taken."""
        return float(self.problem.gain[np.array(self.chosen)].sum()) if self.chosen else 0.0


def board_of(problem: Problem, options: Iterable[int]) -> Board:
    """A board with an option for each job, whether or not they fit."""
    board = Board(problem)
    for job, option in enumerate(options):
        board.take(job, int(option))
    return board


def bags(problem: Problem) -> list[tuple[tuple[int, int, int], ...]]:
    """By bundle: (model, size, count) of each kind of piece."""
    listed: list[list[tuple[int, int, int]]] = [[] for _ in range(len(problem.bundles))]
    for row, column in zip(*np.nonzero(problem.bundles), strict=True):
        model, size = divmod(int(column), problem.width)
        listed[row].append((model, size + 1, int(problem.bundles[row, column])))
    return [tuple(bag) for bag in listed]


def block_use(problem: Problem) -> Floats:
    """(bundles, models x width): blocks of every size that a bag asks for."""
    size = blocks(problem.width)[1:].astype(float)
    use = np.zeros(problem.bundles.shape)
    for model in range(problem.models):
        at = slice(model * problem.width, (model + 1) * problem.width)
        use[:, at] = problem.bundles[:, at] @ size
    return use
