"""`fifo`: first come, first served, as plain queues do it; the baseline.

In order of registration each job gets its gang at the size it asked for (`max_devices`, the
largest allowed count) and keeps it until it ends. No backfilling: while the first of the
queue does not fit, nobody behind it starts. Nothing is ever taken away, resized or paid for,
and no job needs a first visit.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from selfsched_broker.core.market import Award, Contender, Market, Ruling, Seat


class Fifo:
    """Arrival order, gangs at the requested size, no backfilling, no preemption."""

    name = "fifo"

    def rule(self, market: Market, rng: np.random.Generator) -> Ruling:
        """Serve the queue from its head as long as the head fits."""
        free = [seat for seat in market.seats if seat.holder is None]
        quota = {c.account: c.quota_left for c in market.contenders if c.quota_left is not None}
        awards: dict[str, Award] = {}
        blocked: Contender | None = None
        for contender in sorted(market.contenders, key=lambda c: c.number):
            held = tuple(sorted((*contender.kept, *contender.at_stake)))
            if held:
                reason = f"keeps its {len(held)} devices until it ends (first come, first served)"
                awards[contender.job] = Award(job=contender.job, devices=held, reason=reason)
                continue
            need = contender.allowed_devices[-1]
            left = quota.get(contender.account)
            taken = None if blocked or (left is not None and left < need) else _seats(contender, free, need)
            if taken is None:
                reason = _waiting_reason(contender, blocked, len(free), left)
                awards[contender.job] = Award(job=contender.job, devices=(), reason=reason)
                blocked = blocked or (contender if left is None or left >= need else None)
                continue
            free = [seat for seat in free if seat.device not in taken]
            if left is not None:
                quota[contender.account] = left - len(taken)
            reason = f"starts on {len(taken)} devices: it is the first in the queue"
            awards[contender.job] = Award(job=contender.job, devices=taken, reason=reason)
        return Ruling(awards=awards, gap=None, reason="served in order of registration")


def _seats(contender: Contender, free: list[Seat], need: int) -> tuple[str, ...] | None:
    """`need` free seats, on one node if there is one that has them; None: there are not enough."""
    if contender.wanted_devices:
        wanted = set(contender.wanted_devices)
        return tuple(sorted(wanted)) if wanted <= {seat.device for seat in free} else None
    if len(free) < need:
        return None
    room = Counter(seat.node for seat in free)
    # The tightest node that has enough; where none has, the roomiest nodes one after the other.
    order = sorted(room, key=lambda n: (room[n] < need, room[n] if room[n] >= need else -room[n], n))
    rank = {node: at for at, node in enumerate(order)}
    last = set(contender.last_devices)
    seats = sorted(free, key=lambda s: (rank[s.node], s.device not in last, s.device))
    return tuple(sorted(seat.device for seat in seats[:need]))


def _waiting_reason(contender: Contender, blocked: Contender | None, free: int, left: int | None) -> str:
    need = contender.allowed_devices[-1]
    if left is not None and left < need:
        return f"waits: its account may hold {left} devices more, it asks for {need}"
    if blocked is None:
        return f"waits: it is the next, asks for {need} devices, {free} are free"
    return f"waits: jobs that came earlier are first; the next asks for {blocked.allowed_devices[-1]} devices"
