"""Devices kept for a wide job, so that a stream of narrow ones cannot starve it.

A gang that was passed over at a tick is *entitled* to its smallest placement from the second
tick on (`choices.entitlement`): where enough can be had it wins them. Where not enough can be
had at once, because terms still run, whatever becomes free on the roomiest node stays free
for it until there is enough. So it waits for the longest running term and a notice, no longer.
One job at a time, the one passed over most often: what is kept earns nothing meanwhile.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from selfsched_broker.core.market import Contender, Market


@dataclass(frozen=True, slots=True)
class Reservation:
    """The wide job that comes next, and the seats nobody else may have meanwhile."""

    job: str | None = None
    devices: int = 0
    withheld: frozenset[str] = frozenset()


def reserve_seats(market: Market) -> Reservation:
    """Decide for which wide job seats are kept, and which."""
    wide = [c for c in market.contenders if _is_passed_over(c, market)]
    if not wide:
        return Reservation()
    first = min(wide, key=lambda c: (-c.passed_over, -c.waiting_seconds, c.number))
    need = first.allowed_devices[0]
    free = Counter(seat.node for seat in market.seats if seat.holder is None)
    obtainable = Counter(free)
    if market.trigger == "tick":
        movable = {c.job for c in market.contenders if c.may_move}
        obtainable.update(seat.node for seat in market.seats if seat.holder in movable)
    enough = obtainable.total() if _may_spread(first, need) else max(obtainable.values(), default=0)
    if enough >= need or not free:
        return Reservation(first.job, need)
    node = min(free, key=lambda n: (-free[n], n))
    kept = sorted(seat.device for seat in market.seats if seat.holder is None and seat.node == node)
    return Reservation(first.job, need, frozenset(kept[:need]))


def _is_passed_over(contender: Contender, market: Market) -> bool:
    wide = contender.allowed_devices[0] > 1
    waits = not contender.kept and not contender.at_stake
    return wide and waits and (contender.passed_over >= 1 or contender.job in market.reserved_for)


def _may_spread(contender: Contender, need: int) -> bool:
    rows = contender.bid.rows if contender.bid is not None else ()
    return any(row.placement.devices == need and row.placement.nodes > 1 for row in rows)
