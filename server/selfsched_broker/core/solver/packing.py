"""Whether pieces fit the nodes, kept up to date while options are taken and given back.

Two tests. A quick one, linear and necessary: for every size s, pieces hold floor(piece / s)
blocks of s and slots offer floor(slot / s); what is asked must not exceed what is offered.
(floor(x / s) is superadditive, so a slot never offers less than what is cut from it.) And
best-fit decreasing on counts, which is sufficient: it says where every piece goes. Between
the two lie packings that exist and are not found, one in some thousand.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from selfsched_broker.core.solver.problem import Floats, Ints, Problem


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

    def fits(self) -> bool:
        """Whether everything taken lies; looks only at models that changed since it last did."""
        if self._over or self._clashes or any(room < 0 for room in self._room):
            return False
        for model in list(self._dirty):
            if not fits(self.pieces[model], self.slots[model]):
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


def place(
    problem: Problem,
    chosen: Sequence[int],
    homes: Sequence[Iterable[int]],
    avoided: Collection[int] = (),
) -> list[dict[int, int]]:
    """Devices drawn from each node, by job: anchored ones first, the rest best fit decreasing.

    Args:
        problem: the question.
        chosen: an option for each job; together they fit.
        homes: by job, nodes that it likes better where the fit is the same.
        avoided: nodes that are left for others with as much room, where there are any.

    Raises:
        ValueError: it does not fit.
    """
    left = problem.node_free.tolist()
    anchored: list[dict[int, int]] = [{} for _ in chosen]
    draws: list[dict[int, int]] = [{} for _ in chosen]
    wanting: dict[tuple[int, int], list[int]] = {}
    listed = bags(problem)
    for job, option in enumerate(chosen):
        if problem.anchor[option] >= 0:
            for node, count in problem.anchors[problem.anchor[option]].draws:
                left[node] -= count
                anchored[job][node] = count
        for model, size, count in listed[problem.loose[option]]:
            wanting.setdefault((model, size), []).extend([job] * count)
    rooms: list[dict[int, dict[int, None]]] = [{} for _ in range(problem.models)]
    for node in sorted(range(len(left)), key=lambda node: (node in avoided, node)):
        rooms[problem.node_model[node]].setdefault(left[node], {})[node] = None
    for model, size in sorted(wanting, key=lambda kind: (kind[0], -kind[1])):
        _place_size(size, wanting[model, size], rooms[model], draws, homes)
    for node in sorted(avoided):
        _move_away(node, rooms[problem.node_model[node]], draws, avoided)
    return [
        {node: fixed.get(node, 0) + loose.get(node, 0) for node in (*fixed, *loose)}
        for fixed, loose in zip(anchored, draws, strict=True)
    ]


def _move_away(
    node: int, room: dict[int, dict[int, None]], draws: list[dict[int, int]], avoided: Collection[int]
) -> None:
    """Lay everything on the tightest other node that has room for all of it."""
    guests = [job for job, drawn in enumerate(draws) if node in drawn]
    total = sum(draws[job][node] for job in guests)
    others = [
        (free, other)
        for free, nodes in room.items()
        for other in nodes
        if free >= total and other not in avoided and not any(other in draws[job] for job in guests)
    ]
    if not guests or not others:
        return
    free, other = min(others)
    for job in guests:
        draws[job][other] = draws[job].pop(node)
    del room[free][other]
    room.setdefault(free - total, {})[other] = None


def _place_size(
    size: int,
    wanting: list[int],
    room: dict[int, dict[int, None]],
    draws: list[dict[int, int]],
    homes: Sequence[Iterable[int]],
) -> None:
    """Pieces of one size: the tightest nodes first; among equals those where somebody is at home."""
    waiting = dict.fromkeys(wanting, 0)
    for job in wanting:
        waiting[job] += 1
    at_home: dict[int, list[int]] = {}
    for job in waiting:
        for node in homes[job]:
            at_home.setdefault(node, []).append(job)
    for free in sorted(f for f in room if f >= size):
        nodes = room[free]
        for node in [*(n for n in at_home if n in nodes), *(n for n in nodes if n not in at_home)]:
            if not waiting:
                break
            guests = _guests(free // size, waiting, at_home.get(node, ()))
            for job in guests:
                draws[job][node] = draws[job].get(node, 0) + size
            del nodes[node]
            room.setdefault(free - size * len(guests), {})[node] = None
    if waiting:
        raise ValueError(f"{sum(waiting.values())} pieces of {size} devices do not fit")


def _guests(places: int, waiting: dict[int, int], at_home: Iterable[int]) -> list[int]:
    """Who gets the places of one node: those at home there, then others; a job twice only at need."""
    guests: list[int] = []
    while len(guests) < places and waiting:
        before = len(guests)
        for job in [*at_home, *itertools.islice(waiting, places + 1)]:
            if len(guests) < places and waiting.get(job) and job not in guests[before:]:
                guests.append(job)
                waiting[job] -= 1
                if not waiting[job]:
                    del waiting[job]
    return guests
