"""Random markets for `bench.auction`: gangs, odd tables, several models, devices held already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from selfsched.protocol import BidRow, Placement, Resume, StandingBid
from selfsched_broker.core.auction import standings_of
from selfsched_broker.core.choices import survey
from selfsched_broker.core.fairness import weight_parts
from selfsched_broker.core.market import Contender, FairnessOptions, Market, Seat
from selfsched_broker.core.options import Options, write_options

COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32)
SPEEDS = (1.0, 0.6, 0.35, 0.25)


@dataclass(frozen=True, slots=True)
class Size:
    """A cluster and how many jobs contend for it."""

    gpus: int
    nodes: int
    models: int
    jobs: int


def random_market(rng: np.random.Generator, size: Size, *, held: float = 0.4) -> Market:
    """A tick of a busy cluster: everybody is considered, so it is the largest question there is.

    A third of the jobs are gangs of 2 to 8. A table has a row for each allowed count on as few
    nodes as it needs, some on one more, for each model the job runs on (nine of ten); speed-up is
    concave but for counts that are no powers of two, which lose up to 40 %. `held` of the jobs
    hold their smallest count already, and staying costs them no restart.
    """
    nodes = [f"n{node:05}" for node in range(size.nodes)]
    seats = [
        Seat(device=f"{name}/{i}", node=name, model=f"m{at % size.models}", holder=None)
        for at, name in enumerate(nodes)
        for i in range(size.gpus // size.nodes + (at < size.gpus % size.nodes))
    ]
    free: dict[str, list[str]] = {name: [] for name in nodes}
    for seat in seats:
        free[seat.node].append(seat.device)
    width = max(map(len, free.values()))
    contenders = [_contender(rng, number, size, width) for number in range(size.jobs)]
    holder: dict[str, str] = {}
    for at, contender in enumerate(contenders):
        node = int(rng.integers(size.nodes))
        need = contender.allowed_devices[0]
        local = free[nodes[node]]
        models = {row.placement.model for row in contender.bid.rows} if contender.bid else set()
        if rng.random() < held and len(local) >= need and f"m{node % size.models}" in models:
            mine, free[nodes[node]] = tuple(local[:need]), local[need:]
            holder |= dict.fromkeys(mine, contender.job)
            contenders[at] = replace(contender, at_stake=mine, waiting_seconds=0.0)
    return Market(
        number=int(rng.integers(1, 10**6)),
        trigger="tick",
        seats=tuple(replace(seat, holder=holder.get(seat.device)) for seat in seats),
        contenders=tuple(contenders),
        total_devices=size.gpus,
        options=FairnessOptions(fairness_knob=0.0),
    )


def _contender(rng: np.random.Generator, number: int, size: Size, width: int) -> Contender:
    smallest = int(rng.choice([1, 1, 1, 2, 4, 8]))
    largest = max(smallest, int(rng.choice([1, 2, 4, 8, 8, 16, 32])))
    counts = [n for n in COUNTS if smallest <= n <= min(largest, size.gpus)] or [1]
    return Contender(
        job=f"j{number:05}",
        number=number,
        account=f"u{number % 97}",
        account_weight=1.0,
        priority=float(rng.choice([1.0, 1.0, 2.0])),
        min_devices=counts[0],
        max_devices=counts[-1],
        allowed_devices=tuple(counts),
        resume=Resume.ELASTIC,
        bid=StandingBid(rows=_rows(rng, size, counts, width)),
        age_seconds=float(rng.uniform(0, 20_000)),
        fraction_done=float(rng.uniform(0, 0.9)),
        share=size.gpus / size.jobs,
        waiting_seconds=float(rng.uniform(0, 600)),
    )


def _rows(rng: np.random.Generator, size: Size, counts: Sequence[int], width: int) -> tuple[BidRow, ...]:
    work, restart = rng.lognormal(8, 1), float(rng.uniform(10, 60))
    serial, network = rng.choice([0.01, 0.05, 0.15, 0.6]), rng.uniform(0.02, 0.4)
    odd = {n: 1.0 if n & (n - 1) == 0 else rng.uniform(0.6, 1.0) for n in counts}
    rows = []
    for model in [m for m in range(size.models) if rng.random() > 0.1] or [0]:
        speed = SPEEDS[model % len(SPEEDS)] * rng.uniform(0.6, 1.4)
        for n in counts:
            fewest = -(-n // width)
            for nodes in {fewest, fewest + (n > fewest and rng.random() < 0.3)}:
                slower = 1 + serial * (n - 1) + network * np.log2(nodes)
                row = BidRow(
                    placement=Placement(devices=n, nodes=nodes, model=f"m{model}"),
                    remaining_seconds=float(work / (speed * odd[n] * n / slower)),
                    restart_seconds=restart,
                )
                rows.append(row)
    return tuple(rows)


def options_of(market: Market) -> Options:
    """What is divided when everybody is considered."""
    owed = {job: part * market.total_devices for job, part in weight_parts(market.contenders).items()}
    standings = list(standings_of(market, owed, {}).values())
    return write_options(standings, survey(market.seats, market), market)
