"""One auction: who is considered, what maximises the product of the values, what it costs.

1. Seats are kept for a wide job that was passed over (`reservation`).
2. First visits are served (`visits`).
3. Who may not move keeps what it has. Of the others the max(10, ceil((1 - f) J)) worst by rho
   are *considered*; between ticks also everybody whose devices are among the seats.
4. Their choices (`choices`) are divided so that the product of the values, each to the power
   of its job's part of the weight, is the largest (`allocation`): Nash welfare, which is
   Pareto-efficient and does not change when one job measures its time in another unit.
5. What is left goes to those not considered, by the same rule; a holder among them whose term
   ended keeps its place there, and counts with its v0 as long as it wins nothing.
6. Payment (recorded, not charged): with W = sum over the others of weight x log value,
   -log c_i = (W without i - W with i) / weight_i. For equal weights this is Themis's hidden
   payment, the product of the others' values with i over that without i. Each c_i comes from
   an exact division without i.

Sources: Mahajan et al., Themis, NSDI 2020, sections 4-5 (auction, worst 1 - f, leftovers); Cole,
Gkatzelis, Goel, Mechanism design for fair division, EC 2013, section 3 (the partial
allocation mechanism, weights b_i as exponents).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from selfsched_broker.core.allocation import Division, Question, divide
from selfsched_broker.core.choices import (
    Ground,
    Standing,
    rank_ties,
    row_for,
    survey,
    write_choices,
)
from selfsched_broker.core.fairness import (
    Row,
    alone_seconds,
    is_measured,
    measured_rows,
    shared_seconds,
    weight_parts,
)
from selfsched_broker.core.market import Award, Contender, Market, Ruling
from selfsched_broker.core.placement import assign_devices
from selfsched_broker.core.reasons import Outcome, explain
from selfsched_broker.core.reservation import Reservation, reserve_seats
from selfsched_broker.core.visits import Visit, serve_visits

FEWEST_CONSIDERED = 10


@dataclass(slots=True)
class _Result:
    """What has been decided so far."""

    devices: dict[str, tuple[str, ...]] = field(default_factory=dict)
    considered: set[str] = field(default_factory=set)
    payments: dict[str, float] = field(default_factory=dict)
    gap: float = 0.0


def hold_auction(market: Market) -> Ruling:
    """Divide the seats of a market among its contenders.

    Returns:
        An award with its reason for every contender; `gap` is the proved distance from the
        largest welfare in mean log value per considered job, 0 where the optimum is proved.
    """
    parts = weight_parts(market.contenders)
    owed = {job: part * market.total_devices for job, part in parts.items()}
    reservation = reserve_seats(market)
    visits, lost = serve_visits(market, owed, reservation)
    standings = standings_of(market, owed, lost)
    result = _Result()
    for visit in visits.values():
        result.devices[visit.job] = visit.devices
    bound = _keep_the_bound(market, standings, result)
    movable = [standing for job, standing in standings.items() if job not in bound]
    ground = survey(market.seats, market)
    ranked = sorted(movable, key=lambda s: (-_rho_now(s, market, ground), s.contender.number))
    count = max(FEWEST_CONSIDERED, math.ceil((1 - market.options.fairness_knob) * len(market.contenders)))
    first = [s for at, s in enumerate(ranked) if at < count or _sells(s, market)]
    rest = [s for at, s in enumerate(ranked) if at >= count and not _sells(s, market)]
    result.considered = {s.job for s in first} | bound | set(visits)
    _divide_among(first, market, reservation, result, pays=True)
    _divide_among(rest, market, reservation, result, pays=False)
    return _conclude(market, standings, visits, reservation, result)


def standings_of(
    market: Market, owed: Mapping[str, float], lost: Mapping[str, tuple[str, ...]]
) -> dict[str, Standing]:
    """The contenders that can bid, as the auction sees them, by job in order of registration.

    Args:
        market: the question.
        owed: each one's share right now, in devices.
        lost: devices they gave to first visits.
    """
    ties = rank_ties(market.number, market.contenders)
    standings = {}
    for contender in sorted(market.contenders, key=lambda c: c.number):
        rows = measured_rows(contender)
        if not rows:
            continue
        given_up = set(lost.get(contender.job, ()))
        standings[contender.job] = Standing(
            contender=contender,
            rows=rows,
            weight=owed[contender.job] / market.total_devices * len(market.contenders),
            owed=owed[contender.job],
            at_stake=tuple(d for d in contender.at_stake if d not in given_up),
            retains=0 if given_up else _retains(contender, owed[contender.job], market),
            tie=ties[contender.job],
        )
    return standings


def _retains(contender: Contender, owed: float, market: Market) -> int:
    """Between ticks nobody falls below its share, and in a visit's auction nobody falls at all."""
    held = len(contender.kept) + len(contender.at_stake)
    if market.trigger == "tick" or not contender.at_stake:
        return 0
    if market.trigger != "arrival":
        return held
    return min((n for n in contender.allowed_devices if owed <= n <= held), default=held)


def _keep_the_bound(market: Market, standings: Mapping[str, Standing], result: _Result) -> set[str]:
    """Those whose devices are settled already.

    They keep what they have: not repaid, not movable, still visiting, or unable to run on what
    they keep anyway, so that nothing of the rest can be taken. If one of the last has given to
    a visit, it goes on with what is left to it.
    """
    bound = set()
    for contender in market.contenders:
        left: tuple[str, ...] = (*contender.kept, *contender.at_stake)
        standing = standings.get(contender.job)
        if not left:
            continue
        if contender.may_move and standing is not None:
            if not contender.kept or not standing.at_stake or len(contender.kept) in standing.allowed:
                continue
            left = (*contender.kept, *standing.at_stake)
            if not standing.has_all:
                left = left[: max((n for n in standing.allowed if n <= len(left)), default=len(left))]
        result.devices[contender.job] = tuple(sorted(left))
        bound.add(contender.job)
    return bound


def _sells(standing: Standing, market: Market) -> bool:
    return market.trigger != "tick" and bool(standing.at_stake)


def _rho_now(standing: Standing, market: Market, ground: Ground) -> float:
    """rho if nothing changes: on what it holds, or with nothing for one term."""
    held = (*standing.contender.kept, *standing.contender.at_stake)
    return _rho(standing, row_for(standing, held, ground) if held else None, False, market)


def _rho(standing: Standing, row: Row | None, moves: bool, market: Market) -> float:
    shared = shared_seconds(
        standing.contender, standing.rows, row, moves=moves, term_seconds=market.options.term_seconds
    )
    return shared / alone_seconds(standing.contender, standing.rows)


# --- dividing ----------------------------------------------------------------------------


def _divide_among(
    standings: Sequence[Standing], market: Market, reservation: Reservation, result: _Result, *, pays: bool
) -> None:
    if not standings:
        return
    gone = {device for devices in result.devices.values() for device in devices}
    gone |= reservation.withheld
    seats = [seat for seat in market.seats if seat.device not in gone]
    ground = survey(seats, market)
    choices = write_choices(standings, ground, market)
    division = divide(Question(ground.seats, choices, _limits(standings, market, result)))
    chosen = [division.chosen[s.job] for s in sorted(standings, key=lambda s: s.contender.number)]
    given = assign_devices(chosen, seats, {s.job: s.contender for s in standings})
    for standing in standings:
        choice = division.chosen[standing.job]
        kept = standing.contender.kept[: choice.devices - choice.taken]
        result.devices[standing.job] = tuple(sorted((*kept, *given[standing.job])))
    if pays:
        result.payments = _payments(standings, division)
        result.gap = max(0.0, division.bound - division.gain) / len(standings)


def _limits(
    standings: Sequence[Standing], market: Market, result: _Result
) -> list[tuple[frozenset[str], int]]:
    """What each account with a quota may hold, less what its other jobs have or were given."""
    members = {s.job for s in standings}
    limits = []
    for account in sorted({s.contender.account for s in standings}):
        own = [c for c in market.contenders if c.account == account]
        left = min((c.quota_left for c in own if c.quota_left is not None), default=None)
        if left is None:
            continue
        held = {c.job: len(c.kept) + len(c.at_stake) for c in own}
        elsewhere = sum(
            len(result.devices.get(c.job, ())) if c.job in result.devices else held[c.job]
            for c in own
            if c.job not in members
        )
        group = frozenset(c.job for c in own if c.job in members)
        limits.append((group, left + sum(held.values()) - elsewhere))
    return limits


def _payments(standings: Iterable[Standing], division: Division) -> dict[str, float]:
    """c of every winner, from the others' welfare with and without it."""
    payments = {}
    for standing in standings:
        without = division.without.get(standing.job)
        if without is None:
            continue
        harm = sum(choice.welfare - division.chosen[job].welfare for job, choice in without.items())
        payments[standing.job] = math.exp(-max(0.0, harm) / standing.weight)
    return payments


# --- the ruling --------------------------------------------------------------------------


def _conclude(
    market: Market,
    standings: Mapping[str, Standing],
    visits: Mapping[str, Visit],
    reservation: Reservation,
    result: _Result,
) -> Ruling:
    owed = {job: part * market.total_devices for job, part in weight_parts(market.contenders).items()}
    outcomes = [_outcome(c, market, standings, visits, result, owed) for c in market.contenders]
    awards = {
        o.contender.job: Award(
            job=o.contender.job,
            devices=result.devices.get(o.contender.job, ()),
            considered=o.contender.job in result.considered,
            visit=o.visit,
            rho_before=o.rho_before,
            rho_after=o.rho_after,
            payment=result.payments.get(o.contender.job),
            reason=explain(o, outcomes, market),
        )
        for o in outcomes
    }
    reserve = {}
    if reservation.job is not None and not awards[reservation.job].devices:
        reserve[reservation.job] = reservation.devices
    given = sum(o.got - len(o.contender.kept) for o in outcomes)
    reason = f"{len(market.seats)} seats, {max(0, given)} given to {sum(o.got > 0 for o in outcomes)} jobs"
    return Ruling(awards=awards, gap=result.gap, reserve=reserve, reason=reason)


def _outcome(
    contender: Contender,
    market: Market,
    standings: Mapping[str, Standing],
    visits: Mapping[str, Visit],
    result: _Result,
    owed: Mapping[str, float],
) -> Outcome:
    ground = survey(market.seats, market)
    devices = result.devices.get(contender.job, ())
    held = {*contender.kept, *contender.at_stake}
    standing = standings.get(contender.job)
    before = after = None
    if standing is not None:
        before = _rho_now(standing, market, ground)
        row = row_for(standing, devices, ground) if devices else None
        after = _rho(standing, row, set(devices) != held, market)
    return Outcome(
        contender=contender,
        held=len(held),
        got=len(devices),
        owed=owed[contender.job],
        moved=set(devices) != held,
        visit=contender.job in visits,
        visitor=next((v.job for v in visits.values() if contender.job in v.given_by), None),
        considered=contender.job in result.considered,
        measured=is_measured(contender.bid),
        rho_before=before,
        rho_after=after,
        rows=standing.rows if standing else (),
    )
