"""On which node every piece lies, once it is known that all of them fit.

Anchored options first. Then piece by size, best fit decreasing as in `packing`, which leaves
the largest slots whole; among nodes of the same room first those where somebody is at home.
Where best fit finds no way, the plan that `pack` found is followed.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence

from selfsched_broker.core.solver.packing import bags, fits, pack
from selfsched_broker.core.solver.problem import Problem


def place(
    problem: Problem,
    chosen: Sequence[int],
    homes: Sequence[Iterable[int]],
    avoided: Collection[int] = (),
    others: Mapping[int, int] | None = None,
) -> list[dict[int, int]]:
    """Devices drawn from each node, by job: anchored ones first, the rest best fit decreasing.

    Args:
        problem: the question.
        chosen: an option for each job; together they fit.
        homes: by job, nodes that it likes better where the fit is the same.
        avoided: nodes that are left for others with as much room, where there are any.
        others: by node, devices that others hold who take no part but would have to move.

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
    guests = others or {}
    for node in sorted(range(len(left)), key=lambda node: (node in avoided, guests.get(node, 0), node)):
        rooms[problem.node_model[node]].setdefault(left[node], {})[node] = None
    for model in sorted({model for model, _ in wanting}):
        own = {size: jobs for (of, size), jobs in wanting.items() if of == model}
        _place_model(own, rooms[model], draws, homes)
    for node in sorted(avoided):
        _move_away(node, rooms[problem.node_model[node]], draws, avoided)
    return [
        {node: fixed.get(node, 0) + loose.get(node, 0) for node in (*fixed, *loose)}
        for fixed, loose in zip(anchored, draws, strict=True)
    ]


def _place_model(
    wanting: dict[int, list[int]],
    room: dict[int, dict[int, None]],
    draws: list[dict[int, int]],
    homes: Sequence[Iterable[int]],
) -> None:
    largest = max(*room, *wanting)
    pieces = [len(wanting.get(size, ())) for size in range(largest + 1)]
    slots = [0, *(len(room.get(free, ())) for free in range(1, largest + 1))]
    if fits(pieces, slots):
        for size in sorted(wanting, reverse=True):
            _place_size(size, wanting[size], room, draws, homes)
        return
    plan = pack(pieces, slots)
    if plan is None:
        raise ValueError(f"{sum(pieces)} pieces do not fit")
    for size, free in plan:
        job = wanting[size].pop()
        node = next((n for n in room[free] if n not in draws[job]), next(iter(room[free])))
        draws[job][node] = draws[job].get(node, 0) + size
        del room[free][node]
        room.setdefault(free - size, {})[node] = None


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
                return
            guests = _guests(free // size, waiting, at_home.get(node, ()))
            for job in guests:
                draws[job][node] = draws[job].get(node, 0) + size
            del nodes[node]
            room.setdefault(free - size * len(guests), {})[node] = None


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
