"""`srtf` and `las`: preemptive queues of gangs at the size they asked for; rivals to compare with.

At a tick all jobs are put in order, and each in turn gets its gang (`max_devices`, the largest
allowed count) where it fits; who does not fit is passed by those behind it. Between ticks nothing
is taken away: what is free goes out in the same order. Nothing is resized or paid for. A job that
has never run has neither a remaining time nor attained service, and so is first in both.

* **srtf**: the shortest remaining time first, as the job bids it, corrected by the progress seen. The
  least mean completion on one device (Schrage 1968). Promises nothing to a long job.
* **las**: least attained service first (Gu et al., Tiresias, NSDI 2019, section 3.2, discretised
  two-dimensional LAS): two queues by device-seconds attained, the first before the second, by
  arrival in each. Knows nothing of remaining times. A long job waits for all short ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from selfsched_broker.core.fairness import measured_rows, rate
from selfsched_broker.core.market import Award, Contender, Market, Ruling, Seat

LAS_THRESHOLD_DEVICE_SECONDS = 57_600.0
"""Sixteen device-hours, as in Pollux's artifact (OSDI 2021), which compares with Tiresias."""


class Queue:
    """Gangs in an order, the first that fit."""

    name = "queue"

    def place(self, contender: Contender) -> float:
        """Where a job stands: the lowest comes first, then arrival."""
        raise NotImplementedError

    def places(self, market: Market) -> Mapping[str, float]:
        """`place` of every contender."""
        return {contender.job: self.place(contender) for contender in market.contenders}

    def turns(self, ordered: Sequence[Contender], market: Market) -> Iterable[tuple[Contender, str | None]]:
        """Whose turn it is, and on which model; None: on any. Who has been served is passed."""
        return [(contender, None) for contender in ordered]

    def rule(self, market: Market, rng: np.random.Generator) -> Ruling:
        """Serve the queue."""
        bound = {c.job for c in market.contenders if _is_bound(c, market)}
        floor = [seat for seat in market.seats if seat.holder not in bound]
        places = self.places(market)
        ordered = sorted(market.contenders, key=lambda c: (places[c.job], c.number))
        quota = {c.account: c.quota_left for c in market.contenders if c.quota_left is not None}
        for contender in market.contenders:
            if contender.job not in bound and contender.account in quota:
                quota[contender.account] = (quota[contender.account] or 0) + len(contender.at_stake)
        chosen: dict[str, str | None] = {}
        room = Counter(seat.model for seat in floor)
        for contender, only in self.turns(ordered, market):
            if contender.job in bound or contender.job in chosen:
                continue
            there = room if only is None else {only: room[only]}
            model = _fitting(contender, floor, there, quota.get(contender.account))
            if model is None:
                continue
            chosen[contender.job] = model
            room[model] -= gang_size(contender)
            if contender.account in quota:
                quota[contender.account] = (quota[contender.account] or 0) - gang_size(contender)
        devices = _seated([c for c in ordered if c.job in chosen], chosen, floor)
        awards = {
            contender.job: self._award(contender, devices.get(contender.job), at, len(ordered), bound)
            for at, contender in enumerate(ordered, start=1)
        }
        return Ruling(awards=awards, reason=f"served in the order of {self.name}")

    def _award(
        self, contender: Contender, devices: tuple[str, ...] | None, at: int, of: int, bound: set[str]
    ) -> Award:
        if contender.job in bound:
            held = tuple(sorted((*contender.kept, *contender.at_stake)))
            words = f"keeps its {len(held)} devices until the next tick or its last move is repaid"
            return Award(job=contender.job, devices=held, reason=words)
        verb = f"runs on {len(devices)} devices" if devices else f"waits for {gang_size(contender)} devices"
        words = f"{verb}: {at} of {of} in the queue ({self.name})"
        return Award(job=contender.job, devices=devices or (), reason=words)


class Srtf(Queue):
    """Shortest remaining time first."""

    name = "srtf"

    def place(self, contender: Contender) -> float:
        """Remaining seconds on the gang."""
        rows = measured_rows(contender)
        if not rows:
            return -1.0
        undone = max(1.0 - contender.fraction_done, 1e-9)
        return undone / rate(rows, contender.fraction_done, gang_size(contender))


class Las(Queue):
    """Least attained service first, in two queues."""

    name = "las"

    def place(self, contender: Contender) -> float:
        """Which queue: 0 or 1."""
        return float(_attained(contender) > LAS_THRESHOLD_DEVICE_SECONDS)


def _attained(contender: Contender) -> float:
    """Device-seconds had, from the work done and the pace on the gang."""
    rows, size = measured_rows(contender), gang_size(contender)
    if not rows:
        return 0.0
    return contender.fraction_done / rate(rows, contender.fraction_done, size) * size


def gang_size(contender: Contender) -> int:
    """The gang: what it goes on with, where it cannot be resized, else the largest allowed count."""
    return len(contender.wanted_devices) or contender.allowed_devices[-1]


def _is_bound(contender: Contender, market: Market) -> bool:
    """Whether it keeps what it has in this auction, whatever the order."""
    if not contender.kept and not contender.at_stake:
        return False
    return market.trigger != "tick" or not contender.may_move or bool(contender.kept)


def _fitting(
    contender: Contender, floor: Sequence[Seat], room: Mapping[str, int], quota_left: int | None
) -> str | None:
    """The model on which its gang fits and is fastest; None: there is none."""
    need = gang_size(contender)
    if quota_left is not None and need > quota_left:
        return None
    if contender.wanted_devices:
        model_of = {seat.device: seat.model for seat in floor}
        models = {model_of.get(device) for device in contender.wanted_devices}
        model = models.pop() if len(models) == 1 else None
        return model if model in room else None
    rows = measured_rows(contender)
    named = {row.model for row in rows if row.devices == need} - {None}

    def remaining(model: str) -> float:
        fitting = [r.remaining_seconds for r in rows if r.devices == need and r.model in (None, model)]
        return min(fitting, default=0.0)

    able = [model for model in room if room[model] >= need and (not named or model in named)]
    return min(able, key=lambda model: (remaining(model), model), default=None)


def _seated(
    chosen: Sequence[Contender], models: Mapping[str, str | None], floor: Sequence[Seat]
) -> dict[str, tuple[str, ...]]:
    """The very devices of those that run: first who is where it may stay, then in order."""
    free = {seat.device: seat for seat in floor}
    found: dict[str, tuple[str, ...]] = {}

    def stays(contender: Contender) -> bool:
        own = [free[d] for d in contender.at_stake if d in free]
        return len(own) == gang_size(contender) and {seat.model for seat in own} == {models[contender.job]}

    for contender in sorted(chosen, key=lambda c: (not c.wanted_devices, not stays(c))):
        seats = [seat for seat in free.values() if seat.model == models[contender.job]]
        if contender.wanted_devices:
            seats = [seat for seat in seats if seat.device in contender.wanted_devices]
        taken = _nearest(contender, seats, gang_size(contender)) if len(seats) >= gang_size(contender) else []
        found[contender.job] = tuple(sorted(seat.device for seat in taken))
        for seat in taken:
            del free[seat.device]
    return found


def _nearest(contender: Contender, seats: Sequence[Seat], need: int) -> list[Seat]:
    """Where it is already, else where it was, else on the tightest node that has enough, else spread."""
    room = Counter(seat.node for seat in seats)
    own, last = set(contender.at_stake), set(contender.last_devices)
    if len(own & {seat.device for seat in seats}) >= need:
        return [seat for seat in seats if seat.device in own][:need]
    order = sorted(room, key=lambda n: (room[n] < need, room[n] if room[n] >= need else -room[n], n))
    rank = {node: at for at, node in enumerate(order)}
    return sorted(seats, key=lambda s: (rank[s.node], s.device not in own | last, s.device))[:need]
