"""First visits: the short first run by which a job becomes able to bid.

A job without a measured row cannot be judged, so it is served before the auction: its
smallest placement, from free devices, else from the holder furthest above its share. In the
order of accounts by what they hold of their share, the emptiest first, within an account the
oldest job first; a job that is alone visits on all it can use. A visit counts as repaid and
costs nothing; the arbiter ends it after `visit_steps` steady steps or `visit_seconds` of them,
and the job bids like any other.

A holder above its share may lose its last device to a visit, for the sake of a bound on how
long a newcomer can be kept out; one whose last move is not repaid, or that cannot be moved
at all, loses nothing.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from selfsched.protocol import Resume
from selfsched_broker.core.fairness import is_measured
from selfsched_broker.core.market import Contender, Market, Seat
from selfsched_broker.core.reservation import Reservation

# Shares are fractions of devices: a holder is above its share by more than rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Visit:
    """Devices for one first visit, and who gives which of them up."""

    job: str
    devices: tuple[str, ...]
    given_by: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class _Floor:
    """What is free and who holds what while visits are being served."""

    free: dict[str, list[Seat]]
    stakes: dict[str, list[str]]
    """Devices each holder could still lose."""
    held: dict[str, int]
    lost: dict[str, list[str]]
    on_node: dict[str, dict[str, None]]
    """The jobs with stakes on a node."""

    def has_any(self) -> bool:
        """Whether there is anything to give at all."""
        return any(self.free.values()) or any(self.stakes.values())


def wants_visit(contender: Contender) -> bool:
    """Holds nothing and has never measured itself."""
    return not is_measured(contender.bid) and not contender.kept and not contender.at_stake


def serve_visits(
    market: Market, owed: Mapping[str, float], reservation: Reservation
) -> tuple[dict[str, Visit], dict[str, tuple[str, ...]]]:
    """Give each job that needs one its first visit, as far as the seats go.

    Args:
        market: the question.
        owed: each contender's share right now, in devices.
        reservation: seats that are kept for a wide job; it alone may have them.

    Returns:
        The visits by job, and the devices each holder loses by them (those beyond what the
        visit needs are free for the auction).
    """
    floor = _open(market)
    by_job = {c.job: c for c in market.contenders}
    seat_of = {seat.device: seat for seat in market.seats}
    queue = _Queue(market, owed, reservation, floor)
    visits: dict[str, Visit] = {}
    quota = {c.account: c.quota_left for c in market.contenders}
    kept_away = False
    # Devices that are not to be had for one are not to be had for the next, until something changes.
    hopeless = math.inf
    while floor.has_any() and (visitor := queue.pop()) is not None:
        if visitor.job != reservation.job and not kept_away:
            _keep_away(floor, reservation.withheld)
            kept_away, hopeless = True, math.inf
        left, need = quota[visitor.account], visitor.allowed_devices[0]
        if (left is not None and left < need) or need >= hopeless:
            continue
        visit = _serve(visitor, floor, by_job, owed, seat_of)
        if visit is None:
            hopeless = hopeless if visitor.wanted_devices else need
            continue
        hopeless = math.inf
        visits[visitor.job] = visit
        floor.held[visitor.job] = len(visit.devices)
        queue.recount({visitor.account, *(by_job[job].account for job in visit.given_by)})
        if left is not None:
            quota[visitor.account] = left - len(visit.devices)
    if len(by_job) == 1:
        visits = {job: _widened(visit, by_job[job], floor, seat_of) for job, visit in visits.items()}
    return visits, {job: tuple(devices) for job, devices in floor.lost.items()}


def _widened(visit: Visit, visitor: Contender, floor: _Floor, seat_of: Mapping[str, Seat]) -> Visit:
    """With nobody else there, a visitor has what it could use of the node it is on.

    What would lie idle measures as well, and the job is spared a restart after its visit.
    """
    if visitor.wanted_devices:
        return visit
    beside = sorted(seat.device for seat in floor.free[seat_of[visit.devices[0]].node])
    most = len(visit.devices) + len(beside)
    if visitor.quota_left is not None:
        most = min(most, visitor.quota_left)
    size = max((n for n in visitor.allowed_devices if n <= most), default=len(visit.devices))
    return Visit(visit.job, tuple(sorted((*visit.devices, *beside[: size - len(visit.devices)]))))


def _keep_away(floor: _Floor, withheld: frozenset[str]) -> None:
    for node, seats in floor.free.items():
        floor.free[node] = [seat for seat in seats if seat.device not in withheld]


def _open(market: Market) -> _Floor:
    free: dict[str, list[Seat]] = defaultdict(list)
    for seat in market.seats:
        if seat.holder is None:
            free[seat.node].append(seat)
        else:
            free.setdefault(seat.node, [])
    movable = [c for c in market.contenders if c.may_move and is_measured(c.bid)]
    node_of = {seat.device: seat.node for seat in market.seats}
    on_node: dict[str, dict[str, None]] = {}
    for contender in movable:
        for device in contender.at_stake:
            on_node.setdefault(node_of[device], {})[contender.job] = None
    return _Floor(
        free=dict(free),
        stakes={c.job: sorted(c.at_stake) for c in movable if c.at_stake},
        held={c.job: len(c.kept) + len(c.at_stake) for c in market.contenders},
        lost={},
        on_node=on_node,
    )


class _Queue:
    """Who waits for a first visit: accounts by what they hold of what they are owed, the emptiest
    first, within an account the oldest job; before all the job that seats are kept for."""

    def __init__(
        self, market: Market, owed: Mapping[str, float], reservation: Reservation, floor: _Floor
    ) -> None:
        self._floor = floor
        self._jobs: defaultdict[str, list[str]] = defaultdict(list)
        self._owed: defaultdict[str, float] = defaultdict(float)
        self._waiting: defaultdict[str, list[Contender]] = defaultdict(list)
        self._first: Contender | None = None
        for contender in sorted(market.contenders, key=lambda c: -c.number):
            self._jobs[contender.account].append(contender.job)
            self._owed[contender.account] += owed[contender.job]
            if wants_visit(contender):
                if contender.job == reservation.job:
                    self._first = contender
                else:
                    self._waiting[contender.account].append(contender)
        self._fill: dict[str, float] = {}
        self._heap: list[tuple[float, int, str]] = []
        self.recount(list(self._waiting))

    def pop(self) -> Contender | None:
        """The next one; None: nobody waits."""
        if self._first is not None:
            first, self._first = self._first, None
            return first
        while self._heap:
            fill, number, account = heapq.heappop(self._heap)
            waiting = self._waiting[account]
            # What has changed since it was put there has a newer entry.
            if not waiting or number != waiting[-1].number or fill != self._fill[account]:
                continue
            contender = waiting.pop()
            self._push(account)
            return contender
        return None

    def recount(self, accounts: Iterable[str]) -> None:
        """What these accounts hold has changed."""
        for account in accounts:
            held = sum(self._floor.held[job] for job in self._jobs[account])
            self._fill[account] = held / max(self._owed[account], _ROUNDING)
            self._push(account)

    def _push(self, account: str) -> None:
        if self._waiting[account]:
            entry = (self._fill[account], self._waiting[account][-1].number, account)
            heapq.heappush(self._heap, entry)


def _serve(
    visitor: Contender,
    floor: _Floor,
    by_job: Mapping[str, Contender],
    owed: Mapping[str, float],
    seat_of: Mapping[str, Seat],
) -> Visit | None:
    need = visitor.allowed_devices[0]
    if visitor.wanted_devices:
        return _serve_exactly(visitor, floor)
    fitting = [node for node, seats in floor.free.items() if len(seats) >= need]
    if fitting:
        last = set(visitor.last_devices)
        node = min(
            fitting, key=lambda n: (-sum(s.device in last for s in floor.free[n]), len(floor.free[n]), n)
        )
        return Visit(visitor.job, _take(visitor, floor, node, need))
    plans = [plan for node in sorted(floor.free) if (plan := _plan(node, need, floor, by_job, owed, seat_of))]
    if not plans:
        return None
    node, given = min(plans, key=lambda plan: (sum(map(len, plan[1].values())), plan[0]))
    for holder, devices in given.items():
        floor.lost.setdefault(holder, []).extend(devices)
        floor.stakes[holder] = [d for d in floor.stakes[holder] if d not in devices]
        floor.held[holder] -= len(devices)
        for device in devices:
            floor.free[seat_of[device].node].append(seat_of[device])
    taken = _take(visitor, floor, node, need)
    givers = {holder: tuple(d for d in devices if d in taken) for holder, devices in given.items()}
    return Visit(visitor.job, taken, givers)


def _plan(
    node: str,
    need: int,
    floor: _Floor,
    by_job: Mapping[str, Contender],
    owed: Mapping[str, float],
    seat_of: Mapping[str, Seat],
) -> tuple[str, dict[str, list[str]]] | None:
    """Whom to take devices from so that `need` of them are on one node; None: not to be had."""
    have = len(floor.free[node])
    given: dict[str, list[str]] = {}
    while have < need:
        above = {
            job: floor.held[job] - owed[job]
            for job in floor.on_node.get(node, ())
            if job not in given and any(seat_of[d].node == node for d in floor.stakes[job])
        }
        above = {job: surplus for job, surplus in above.items() if surplus > _ROUNDING}
        if not above:
            return None
        holder = max(above, key=lambda job: (above[job], by_job[job].number))
        stakes = sorted(floor.stakes[holder], key=lambda d: (seat_of[d].node != node, d))
        gives = _gives(by_job[holder], floor.held[holder], len(stakes), need - have)
        if gives == 0:
            return None
        given[holder] = stakes[:gives]
        have += sum(seat_of[d].node == node for d in given[holder])
    return node, given


def _gives(holder: Contender, held: int, at_stake: int, wanted: int) -> int:
    """How many devices a holder gives: at least one, as few as its allowed counts permit."""
    sizes = holder.allowed_devices if holder.resume is Resume.ELASTIC else ()
    goals = [n for n in (0, *sizes) if held - at_stake <= n < held]
    enough = [n for n in goals if n <= held - wanted]
    if enough:
        return held - max(enough)
    return held - min(goals) if goals else 0


def _take(visitor: Contender, floor: _Floor, node: str, need: int) -> tuple[str, ...]:
    seats = sorted(floor.free[node], key=lambda s: (s.device not in visitor.last_devices, s.device))
    floor.free[node] = seats[need:]
    return tuple(sorted(seat.device for seat in seats[:need]))


def _serve_exactly(visitor: Contender, floor: _Floor) -> Visit | None:
    wanted = set(visitor.wanted_devices)
    free = {seat.device for seats in floor.free.values() for seat in seats}
    if not wanted <= free:
        return None
    for node, seats in floor.free.items():
        floor.free[node] = [seat for seat in seats if seat.device not in wanted]
    return Visit(visitor.job, tuple(sorted(wanted)))
