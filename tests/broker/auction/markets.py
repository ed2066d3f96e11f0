"""Small markets for the tests of policies: one line for a job, one for a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from selfsched.protocol import BidRow, Placement, Resume, StandingBid
from selfsched_broker.core.market import Contender, FairnessOptions, Market, Policy, Ruling, Seat, Trigger

RNG = np.random.default_rng(0)


def bid(
    remaining: Mapping[int, float | None],
    *,
    restart: float = 0.0,
    running_on: int = 0,
    spread: Mapping[tuple[int, int], float] | None = None,
    unknown: bool = False,
    model: str | None = None,
) -> StandingBid:
    """Seconds remaining by device count; `spread` by (devices, nodes)."""
    rows = [
        BidRow(
            placement=Placement(devices=n, model=model),
            remaining_seconds=None if seconds is None else float(seconds),
            restart_seconds=0.0 if n == running_on else restart,
        )
        for n, seconds in remaining.items()
    ]
    for (n, nodes), seconds in (spread or {}).items():
        rows.append(
            BidRow(
                placement=Placement(devices=n, nodes=nodes, model=model),
                remaining_seconds=seconds,
                restart_seconds=restart,
            )
        )
    return StandingBid(rows=tuple(rows), end_is_unknown=unknown)


def job(name: str, table: StandingBid | None, number: int = 0, **fields: Any) -> Contender:
    """A contender; its allowed counts are those of its bid unless they are given."""
    counts = sorted({row.placement.devices for row in table.rows}) if table else [1]
    allowed = tuple(fields.pop("allowed_devices", counts))
    defaults: dict[str, Any] = {
        "account": name,
        "account_weight": 1.0,
        "priority": 1.0,
        "resume": Resume.ELASTIC,
        "age_seconds": 0.0,
        "fraction_done": 0.0,
        "share": 1.0,
    }
    return Contender(
        job=name,
        number=number,
        min_devices=allowed[0],
        max_devices=allowed[-1],
        allowed_devices=allowed,
        bid=table,
        **(defaults | fields),
    )


def market(
    contenders: Sequence[Contender],
    nodes: Mapping[str, int] | int,
    *,
    trigger: Trigger = "tick",
    total: int | None = None,
    number: int = 1,
    models: Mapping[str, str] | None = None,
    options: FairnessOptions | None = None,
    reserved_for: Mapping[str, int] | None = None,
) -> Market:
    """Devices `n/0`, `n/1`... of each node; those that contenders keep are no seats."""
    layout = {"n": nodes} if isinstance(nodes, int) else nodes
    holder = {device: c.job for c in contenders for device in c.at_stake}
    kept = {device for c in contenders for device in c.kept}
    seats = [
        Seat(
            device=f"{node}/{i}",
            node=node,
            model=(models or {}).get(node, "cpu"),
            holder=holder.get(f"{node}/{i}"),
        )
        for node, count in layout.items()
        for i in range(count)
    ]
    return Market(
        number=number,
        trigger=trigger,
        seats=tuple(s for s in seats if s.device not in kept),
        contenders=tuple(contenders),
        total_devices=len(seats) if total is None else total,
        kept_seats=tuple(s for s in seats if s.device in kept),
        options=options or FairnessOptions(),
        reserved_for=reserved_for or {},
    )


def rule(policy: Policy, question: Market) -> Ruling:
    """Ask a policy and hold it to its contract."""
    ruling = policy.rule(question, RNG)
    check_contract(question, ruling)
    return ruling


def check_contract(question: Market, ruling: Ruling) -> None:
    """What `market.Policy` promises."""
    assert set(ruling.awards) == {c.job for c in question.contenders}
    seats = {seat.device for seat in question.seats}
    given = [device for award in ruling.awards.values() for device in award.devices]
    assert len(given) == len(set(given)), "a device was awarded twice"
    for contender in question.contenders:
        award = ruling.awards[contender.job]
        assert award.reason, "an award without a reason"
        assert set(award.devices) <= seats | set(contender.kept)
        assert set(award.devices) >= set(contender.kept)
        unchanged = set(award.devices) == {*contender.kept, *contender.at_stake}
        assert unchanged or len(award.devices) in (0, *contender.allowed_devices)
        if not contender.may_move:
            assert set(award.devices) >= {*contender.kept, *contender.at_stake}
        if award.payment is not None:
            assert 0 < award.payment <= 1


def counts(ruling: Ruling) -> dict[str, int]:
    """Devices by job."""
    return {name: len(award.devices) for name, award in sorted(ruling.awards.items())}
