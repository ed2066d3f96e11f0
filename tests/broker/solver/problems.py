"""Random questions for the solver, and a check of its answers by counting devices on nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from selfsched_broker.core.solver.laying import place
from selfsched_broker.core.solver.problem import Anchor, Problem


def build(
    nodes: Sequence[tuple[int, int]],
    tables: Sequence[Sequence[tuple[float, dict[tuple[int, int], int], Anchor | None]]],
    *,
    models: int = 1,
    groups: Sequence[int] = (),
    limits: Sequence[int] = (),
) -> Problem:
    """A problem written out.

    Args:
        nodes: (model, free devices).
        tables: by job its options: gain, pieces {(model, size): count} that may lie anywhere, and
            what is drawn from named nodes.
        models: device models.
        groups: by job its limit's number, or -1.
        limits: devices by group.
    """
    width = max((free for _, free in nodes), default=1) or 1
    known: dict[tuple[int, ...], int] = {(0,) * (models * width): 0}
    gain, bundle, loose, anchor, devices, anchors = [], [], [], [], [], []
    for table in tables:
        for worth, pieces, fixed in table:
            free = np.zeros(models * width, int)
            for (model, size), count in pieces.items():
                free[model * width + size - 1] += count
            whole = free.copy()
            for node, count in fixed.draws if fixed else ():
                whole[nodes[node][0] * width + count - 1] += 1
            gain.append(worth)
            loose.append(known.setdefault(tuple(free.tolist()), len(known)))
            bundle.append(known.setdefault(tuple(whole.tolist()), len(known)))
            anchor.append(len(anchors) if fixed else -1)
            anchors += [fixed] if fixed else []
            devices.append(int((whole * np.tile(np.arange(1, width + 1), models)).sum()))
    return Problem(
        node_model=np.array([model for model, _ in nodes], np.int64),
        node_free=np.array([free for _, free in nodes], np.int64),
        first=np.concatenate([[0], np.cumsum([len(table) for table in tables])]).astype(np.int64),
        gain=np.array(gain, float),
        bundle=np.array(bundle, np.int64),
        loose=np.array(loose, np.int64),
        anchor=np.array(anchor, np.int64),
        bundles=np.array(list(known), np.int64),
        width=width,
        devices=np.array(devices, np.int64),
        anchors=anchors,
        group=np.array(groups, np.int64),
        limits=np.array(limits, np.int64),
    )


def random_problem(
    rng: np.random.Generator, *, nodes: int, models: int, jobs: int, width: int = 8, held: float = 0.0
) -> Problem:
    """Concave, odd and gang tables on several models; some jobs hold devices they may stay on."""
    layout = [(node % models, int(rng.integers(1, width + 1))) for node in range(nodes)]
    layout[0] = (0, width)
    left = [free for _, free in layout]
    tables = []
    for _ in range(jobs):
        smallest = int(rng.choice([1, 1, 1, 2, min(4, width)]))
        largest = max(smallest, int(rng.choice([1, 2, 4, 8, 12])))
        power, odd = rng.uniform(0.2, 1.0), rng.uniform(0.7, 1.0, 17)
        without = rng.uniform(0.02, 3.0)
        table: list[tuple[float, dict[tuple[int, int], int], Anchor | None]] = [(0.0, {}, None)]
        for model in range(models):
            speed = rng.uniform(0.3, 1.5)
            for n in range(smallest, largest + 1):
                worth = float(np.log1p(speed * n**power * odd[n] / without))
                if n <= width:
                    table.append((worth, {(model, n): 1}, None))
                if n > 1:
                    table.append((0.8 * worth, {(model, 1): n}, None))
                if width < n <= 2 * width:
                    table.append((0.9 * worth, {(model, width): 1, (model, n - width): 1}, None))
        node = int(rng.integers(nodes))
        if rng.random() < held and left[node] >= smallest:
            left[node] -= smallest
            fixed = Anchor(
                ((node, smallest),), frozenset(f"{node}/{left[node] + i}" for i in range(smallest))
            )
            table.append((float(rng.uniform(0.2, 2.0)), {}, fixed))
        tables.append(table)
    return build(layout, tables, models=models)


def check_division(problem: Problem, chosen: Sequence[int]) -> None:
    """Each job has one of its options, and its very pieces lie on nodes that have them."""
    for job, option in enumerate(chosen):
        assert problem.first[job] <= option < problem.first[job + 1]
    drawn = place(problem, chosen, [()] * problem.jobs)
    used = np.zeros(len(problem.node_free), int)
    for job, draws in enumerate(drawn):
        bundle = problem.bundles[problem.bundle[chosen[job]]]
        for model in range(problem.models):
            sizes = bundle[model * problem.width : (model + 1) * problem.width]
            wanted = int((sizes * np.arange(1, problem.width + 1)).sum())
            given = sum(n for node, n in draws.items() if problem.node_model[node] == model)
            assert given == wanted
        for node, count in draws.items():
            used[node] += count
    assert np.all(used <= problem.node_free)
    for group, limit in enumerate(problem.limits):
        members = [job for job in range(problem.jobs) if problem.group[job] == group]
        assert sum(problem.devices[chosen[job]] for job in members) <= limit
