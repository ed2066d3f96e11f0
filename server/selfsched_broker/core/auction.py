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
6. Payment (charged or only recorded: `charging`): with W = sum over the others of weight x log value,
   -log c_i = (W without i - W with i) / weight_i. For equal weights this is Themis's hidden
   payment, the product of the others' values with i over that without i. Each c_i comes from
   an exact division without i.

Sources: Mahajan et al., Themis, NSDI 2020, sections 4-5 (auction, worst 1 - f, leftovers); Cole,
Gkatzelis, Goel, Mechanism design for fair division, EC 2013, section 3 (the partial
allocation mechanism, weights b_i as exponents).
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from selfsched_broker.core.allocation import MOST_WORK, Division, Question, divide, fits_counts
from selfsched_broker.core.choices import (
    Ground,
    Standing,
    Valuation,
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
    part_of_term,
    shared_seconds,
    weight_parts,
)
from selfsched_broker.core.market import Award, Contender, Market, Ruling
from selfsched_broker.core.options import WIDEST_NODE, write_options
from selfsched_broker.core.partition import divide_options
from selfsched_broker.core.placement import assign_devices
from selfsched_broker.core.reasons import Crowd, Outcome, explain, sum_up
from selfsched_broker.core.reservation import Reservation, reserve_seats
from selfsched_broker.core.visits import Visit, serve_visits

FEWEST_CONSIDERED = 10
_LEAST_PAYMENT = 1e-300
# States of free counts up to which choices are written for every node.
_MOST_STATES = 20_000
# Rows of bids up to which that is the quicker way.
_MOST_ROWS = 3_000
# Choices up to which quotas and devices that two insist on are left to integer programming by node.
_FEW_CHOICES = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """What a policy does otherwise than Themis, in the same auction."""

    worths: Callable[[Mapping[str, Standing], Market], Mapping[str, Valuation]] | None = None
    """What placements are worth to each job; None: the logarithm of 1 / rho."""
    considers_all: bool = False
    entitles: bool = True
    pays: bool = True


THEMIS = Rule()


@dataclass(slots=True)
class _Sitting:
    """One auction while it is held: what is known, and what has been decided so far."""

    market: Market
    owed: Mapping[str, float]
    """Each contender's share right now, in devices."""
    ground: Ground
    reservation: Reservation
    visits: Mapping[str, Visit]
    standings: Mapping[str, Standing]
    rule: Rule = THEMIS
    devices: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Seats and kept devices of everybody who is settled."""
    considered: set[str] = field(default_factory=set)
    alone: dict[str, float] = field(default_factory=dict)
    """T_alone of who was asked for it."""
    payments: dict[str, float] = field(default_factory=dict)
    gap: float = 0.0
    settle: Callable[[], Iterator[tuple[str, float]]] | None = None


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """An auction makes some hundred thousand objects and no cycles: looking for those costs a quarter."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@_nothing_collected()
def hold_auction(market: Market, rule: Rule = THEMIS) -> Ruling:
    """Divide the seats of a market among its contenders, by Themis's rule or another's.

    Returns:
        An award with its reason for every contender; `gap` is the proved distance from the
        largest welfare in mean log value per considered job, 0 where the optimum is proved.
    """
    owed = {job: part * market.total_devices for job, part in weight_parts(market.contenders).items()}
    reservation = reserve_seats(market)
    visits, lost = serve_visits(market, owed, reservation)
    if reservation.job in visits:  # from devices that others held: what was kept for it is free again
        reservation = replace(reservation, withheld=frozenset())
    standings = standings_of(market, owed, lost)
    if rule.worths is not None:
        worths = rule.worths(standings, market)
        standings = {
            job: replace(standing, worth=worths[job].worth, merit=worths[job].merit)
            for job, standing in standings.items()
        }
    sitting = _Sitting(market, owed, survey(market.seats, market), reservation, visits, standings, rule)
    sitting.devices = {visit.job: visit.devices for visit in visits.values()}
    _settle_the_bound(sitting)
    first, rest = _consider(sitting)
    sitting.considered = {s.job for s in first} | sitting.devices.keys()
    _divide_among(first, sitting, pays=rule.pays)
    _divide_among(rest, sitting, pays=False)
    return _conclude(sitting)


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


def _settle_the_bound(sitting: _Sitting) -> None:
    """Settle those who keep what they have.

    Their move is not repaid, they cannot be moved, are still visiting, or cannot run on what
    they keep anyway, so that nothing of the rest can be taken. If one of the last has given to
    a visit, it goes on with what is left to it.
    """
    for contender in sitting.market.contenders:
        left: tuple[str, ...] = (*contender.kept, *contender.at_stake)
        standing = sitting.standings.get(contender.job)
        if not left:
            continue
        if contender.may_move and standing is not None:
            if not contender.kept or not standing.at_stake or len(contender.kept) in standing.allowed:
                continue
            left = (*contender.kept, *standing.at_stake)
            if not standing.has_all:
                left = left[: max((n for n in standing.allowed if n <= len(left)), default=len(left))]
        sitting.devices[contender.job] = tuple(sorted(left))


def _consider(sitting: _Sitting) -> tuple[list[Standing], list[Standing]]:
    """Those whose bids are considered, and the rest: by rho, the worst first."""
    market = sitting.market
    movable = [s for job, s in sitting.standings.items() if job not in sitting.devices]
    ranked = sorted(movable, key=lambda s: (-_rho_now(s, sitting), s.contender.number))
    if sitting.rule.considers_all:
        return ranked, []
    count = max(FEWEST_CONSIDERED, math.ceil((1 - market.options.fairness_knob) * len(market.contenders)))
    # A wide job whose turn has come is not kept out by those that wait behind it.
    always = {s.job for s in ranked if market.trigger != "tick" and s.at_stake}
    always.add(sitting.reservation.job or "")
    first = [s for at, s in enumerate(ranked) if at < count or s.job in always]
    return first, [s for at, s in enumerate(ranked) if at >= count and s.job not in always]


def _rho_now(standing: Standing, sitting: _Sitting) -> float:
    """rho if nothing changes: on what it holds, or with nothing for one term."""
    held = (*standing.contender.kept, *standing.contender.at_stake)
    return _rho(standing, row_for(standing, held, sitting.ground) if held else None, False, sitting)


def _rho(standing: Standing, row: Row | None, moves: bool, sitting: _Sitting) -> float:
    alone = sitting.alone.get(standing.job)
    if alone is None:
        alone = sitting.alone[standing.job] = alone_seconds(standing.contender, standing.rows)
    term = sitting.market.options.term_seconds
    shared = shared_seconds(standing.contender, standing.rows, row, moves=moves, term_seconds=term)
    return shared / alone


# --- dividing ----------------------------------------------------------------------------


def _divide_among(standings: Sequence[Standing], sitting: _Sitting, *, pays: bool) -> None:
    if not standings:
        return
    gone = {device for devices in sitting.devices.values() for device in devices}
    gone |= sitting.reservation.withheld
    seats = [seat for seat in sitting.market.seats if seat.device not in gone]
    ground = survey(seats, sitting.market)
    division = _division(standings, ground, sitting, pays=pays)
    chosen = [division.chosen[s.job] for s in sorted(standings, key=lambda s: s.contender.number)]
    given = assign_devices(chosen, seats, {s.job: s.contender for s in standings})
    for standing in standings:
        sitting.devices[standing.job] = tuple(sorted((*standing.contender.kept, *given[standing.job])))
    if pays:
        sitting.payments = _payments(standings, division)
        sitting.gap = max(0.0, division.bound - division.gain) / len(standings)
        if division.settle is not None:
            sitting.settle = _Settlement(division.settle, {s.job: s.weight for s in standings})


@dataclass(frozen=True, slots=True)
class _Settlement:
    """Exact payments, when they are asked for."""

    harm: Callable[[], Iterator[tuple[str, float]]]
    weights: Mapping[str, float]

    def __call__(self) -> Iterator[tuple[str, float]]:
        return ((job, _payment(harm, self.weights[job])) for job, harm in self.harm())


def _division(standings: Sequence[Standing], ground: Ground, sitting: _Sitting, *, pays: bool) -> Division:
    """By choices for every node where these are few, else by pieces."""
    market, entitles = sitting.market, sitting.rule.entitles
    limits = _limits(standings, sitting)
    too_wide = max(ground.seats.values(), default=0) > WIDEST_NODE
    if too_wide or _is_lab(standings, ground):
        question = Question(ground.seats, write_choices(standings, ground, market, entitles=entitles), limits)
        few = sum(map(len, question.choices.values())) <= _FEW_CHOICES
        if too_wide or few or fits_counts(question):
            return divide(question)
    return divide_options(write_options(standings, ground, market, limits, entitles=entitles), pays=pays)


def _is_lab(standings: Sequence[Standing], ground: Ground) -> bool:
    """Whether choices can be written for every node, and counts of free devices be gone through."""
    states = math.prod(seats + 1 for seats in ground.seats.values())
    rows = sum(len(standing.rows) for standing in standings)
    few = states <= _MOST_STATES and rows <= _MOST_ROWS
    return few and states * rows * len(ground.seats) <= MOST_WORK


def _limits(standings: Sequence[Standing], sitting: _Sitting) -> list[tuple[frozenset[str], int]]:
    """What each account with a quota may hold, less what its other jobs have or were given."""
    members = {s.job for s in standings}
    limited = {c.account for c in sitting.market.contenders if c.quota_left is not None}
    jobs: dict[str, list[Contender]] = {account: [] for account in sorted(limited)}
    for contender in sitting.market.contenders:
        if contender.account in limited:
            jobs[contender.account].append(contender)
    limits = []
    for own in jobs.values():
        group = frozenset(c.job for c in own if c.job in members)
        if not group:
            continue
        left = min(c.quota_left for c in own if c.quota_left is not None)
        held = {c.job: len(c.kept) + len(c.at_stake) for c in own}
        others = [c.job for c in own if c.job not in members]
        elsewhere = sum(len(sitting.devices[j]) if j in sitting.devices else held[j] for j in others)
        limits.append((group, left + sum(held.values()) - elsewhere))
    return limits


def _payments(standings: Iterable[Standing], division: Division) -> dict[str, float]:
    """c of every winner, from the others' welfare with and without it."""
    payments = {}
    for standing in standings:
        without = division.without.get(standing.job)
        harm = division.harm.get(standing.job)
        if without is not None:
            harm = sum(choice.welfare - division.chosen[job].welfare for job, choice in without.items())
        if harm is not None:
            payments[standing.job] = _payment(harm, standing.weight)
    return payments


def _payment(harm: float, weight: float) -> float:
    """Tiny weights would underflow: c is above 0 however small."""
    return max(math.exp(-max(0.0, harm) / weight), _LEAST_PAYMENT)


# --- the ruling --------------------------------------------------------------------------


def _conclude(sitting: _Sitting) -> Ruling:
    market = sitting.market
    outcomes = [_outcome(contender, sitting) for contender in market.contenders]
    crowd = Crowd(outcomes)
    awards = {}
    for outcome in outcomes:
        job = outcome.contender.job
        awards[job] = Award(
            job=job,
            devices=sitting.devices.get(job, ()),
            considered=outcome.considered,
            visit=outcome.visit,
            rho_before=outcome.rho_before,
            rho_after=outcome.rho_after,
            payment=sitting.payments.get(job),
            term_part=_term_part(outcome, sitting),
            reason=explain(outcome, crowd, market),
        )
    first = sitting.reservation.job
    reserve = {first: sitting.reservation.devices} if first and not awards[first].devices else {}
    reason = sum_up(market, awards.values())
    return Ruling(awards=awards, gap=sitting.gap, reserve=reserve, reason=reason, settle=sitting.settle)


def _term_part(outcome: Outcome, sitting: _Sitting) -> float | None:
    """f of a winner: against what it keeps if it wins nothing here."""
    contender, job = outcome.contender, outcome.contender.job
    payment, standing = sitting.payments.get(job), sitting.standings.get(job)
    if payment is None or standing is None or outcome.rho_after is None:
        return None
    if outcome.got <= len(contender.kept):
        return None
    kept = row_for(standing, contender.kept, sitting.ground) if contender.kept else None
    moves = bool(kept) and bool(contender.at_stake)
    return part_of_term(payment, _rho(standing, kept, moves, sitting), outcome.rho_after)


def _outcome(contender: Contender, sitting: _Sitting) -> Outcome:
    devices = sitting.devices.get(contender.job, ())
    held = {*contender.kept, *contender.at_stake}
    standing = sitting.standings.get(contender.job)
    before = after = None
    if standing is not None:
        before = _rho_now(standing, sitting)
        row = row_for(standing, devices, sitting.ground) if devices else None
        after = _rho(standing, row, set(devices) != held, sitting)
    return Outcome(
        contender=contender,
        held=len(held),
        got=len(devices),
        owed=sitting.owed[contender.job],
        moved=set(devices) != held,
        visit=contender.job in sitting.visits,
        visitor=next((v.job for v in sitting.visits.values() if contender.job in v.given_by), None),
        considered=contender.job in sitting.considered,
        measured=is_measured(contender.bid),
        rho_before=before,
        rho_after=after,
        rows=standing.rows if standing else (),
        merit=standing.merit if standing else None,
    )
