"""Why a job got what it got, in numbers and in the words of somebody with a notebook.

One sentence for each award, and one for the whole auction. They name other accounts, their share
and their rho, which are public, and never their bids.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from selfsched_broker.core.fairness import Row, held_row
from selfsched_broker.core.market import Award, Contender, Market
from selfsched_broker.core.merit import Merit, against, because


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What an auction did to one contender."""

    contender: Contender
    held: int
    got: int
    owed: float
    """Its share right now, in devices."""
    moved: bool
    visit: bool
    visitor: str | None
    """The job for whose first visit it gave a device."""
    considered: bool
    measured: bool
    rho_before: float | None
    rho_after: float | None
    rows: tuple[Row, ...]
    merit: Merit | None = None
    """What the policy goes by, where it says so."""


class Crowd:
    """All outcomes of an auction, with what the sentences need of them counted once."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self._by_job = {outcome.contender.job: outcome for outcome in outcomes}
        self._wanting = sum(_wanted_more(outcome) for outcome in outcomes)
        self.given = sum(outcome.got for outcome in outcomes)
        served = [outcome for outcome in outcomes if outcome.got]
        self._first = heapq.nlargest(2, served, key=lambda o: (o.got - o.held, o.got, -o.contender.number))

    def of(self, job: str) -> Outcome:
        return self._by_job[job]

    def others_want_more(self, outcome: Outcome) -> bool:
        return self._wanting > _wanted_more(outcome)

    def rival(self, outcome: Outcome) -> Outcome | None:
        """Who has what this job does not: the one that gained most, else the one that holds most."""
        return next((other for other in self._first if other is not outcome), None)


def sum_up(market: Market, awards: Collection[Award]) -> str:
    """One auction in a sentence: what was at stake in it, then what all jobs have of the cluster.

    The two differ: most devices are not in an auction between ticks.
    """
    seats = {seat.device for seat in market.seats}
    held = sum(seat.holder is not None for seat in market.seats)
    given = sum(len(seats.intersection(award.devices)) for award in awards)
    counts = [len(award.devices) for award in awards if award.devices]
    return (
        f"{_devices(len(seats))} at stake ({len(seats) - held} free, {held} held): {given} given; then"
        f" {len(counts)} of {len(awards)} jobs have {sum(counts)} of the cluster's"
        f" {_devices(market.total_devices)}"
    )


def explain(outcome: Outcome, crowd: Crowd, market: Market) -> str:
    """The reason of one award.

    Args:
        outcome: what happened to the job.
        crowd: what happened to all, itself included.
        market: the question.
    """
    if outcome.visit:
        return (
            f"first visit on {_devices(outcome.got)}: {market.options.visit_steps} steady steps, at most"
            f" {_seconds(market.options.visit_seconds)}, to measure your speed; it costs nothing"
        )
    if outcome.got > outcome.held:
        return _more(outcome, crowd, market)
    if outcome.got < outcome.held:
        return _less(outcome, crowd, market)
    if outcome.got:
        return _same(outcome, crowd, market)
    return _waits(outcome, crowd, market)


def _alone(outcome: Outcome) -> str:
    """Why a job has fewer devices though nobody else wants them."""
    there = min((r for r in outcome.rows if r.devices == outcome.got), key=_time, default=None)
    here = min((r for r in outcome.rows if r.devices == outcome.held), key=_time, default=None)
    if there is None or here is None:
        return "what is left would not run on more, or not for longer than a restart costs"
    saved = _time(here) - _time(there) - there.restart_seconds
    if saved > 0:
        return f"by its own figures it runs faster there, and is done {_seconds(saved)} sooner"
    if there.information_seconds > 0:
        return f"to measure it there, which is expected to save {_seconds(there.information_seconds)}"
    return "what is left would not run on more, or not for longer than a restart costs"


def _time(row: Row) -> float:
    return row.remaining_seconds


def _more(outcome: Outcome, crowd: Crowd, market: Market) -> str:
    verb = "grows to" if outcome.held else "gets"
    head = f"{verb} {outcome.got} of {_devices(market.total_devices)}"
    if not crowd.others_want_more(outcome):
        return f"{head}: nobody else wants them"
    share = f"your share is {_number(outcome.owed)}"
    rest = _who_has_the_rest(outcome, crowd, market)
    if outcome.merit is not None:
        return f"{head}: {because(outcome.merit)}; {share}{rest}"
    return f"{head}: {share}{_rho_words(outcome)}{rest}"


def _who_has_the_rest(outcome: Outcome, crowd: Crowd, market: Market) -> str:
    """Of one that could use more than it has: who has most of it."""
    rival = crowd.rival(outcome)
    if rival is None or outcome.got >= min(outcome.contender.max_devices, market.total_devices):
        return ""
    return f"; {_who(rival, outcome)} has {rival.got}"


def _less(outcome: Outcome, crowd: Crowd, market: Market) -> str:
    head = (
        f"shrinks to {outcome.got} of {outcome.held}" if outcome.got else f"gives up {_devices(outcome.held)}"
    )
    if outcome.visitor is not None:
        visitor = crowd.of(outcome.visitor)
        return (
            f"{head}: {_who(visitor, outcome)} makes a first visit, and you hold more than your share of"
            f" {_number(outcome.owed)}"
        )
    rival = crowd.rival(outcome)
    if rival is None:
        return f"{head}: {_alone(outcome)}"
    return f"{head}: {_against(rival, outcome)}"


def _same(outcome: Outcome, crowd: Crowd, market: Market) -> str:
    head = f"{outcome.got} of {_devices(market.total_devices)}"
    if not outcome.measured:
        return f"{head}: measuring your speed"
    if outcome.moved:
        return f"{head}, other ones than before: it suits all jobs together better"
    if not outcome.contender.may_move:
        return f"{head}: your last move is not repaid yet, or you cannot be moved"
    if outcome.got >= outcome.contender.allowed_devices[-1]:
        if not crowd.others_want_more(outcome):
            return f"{head}: nobody else wants them"
        return f"{head}: all you can use"
    if crowd.given < market.total_devices:
        return f"{head}: {_not_worth(outcome, market)}"
    rival = crowd.rival(outcome)
    return f"{head}: {_against(rival, outcome)}" if rival else f"{head}: as before"


def _waits(outcome: Outcome, crowd: Crowd, market: Market) -> str:
    need = outcome.contender.allowed_devices[0]
    if outcome.contender.quota_left is not None and outcome.contender.quota_left < need:
        return f"waits: your account may hold {_devices(outcome.contender.quota_left)} more, you need {need}"
    if need > market.total_devices:
        return f"waits: you need {_devices(need)}, there are {market.total_devices}"
    if not outcome.measured:
        return "waits for its first visit: nobody has a device to spare that has repaid its last move"
    if not outcome.considered and outcome.rho_before is not None:
        return f"waits: your rho is {outcome.rho_before:.2f}; jobs with a worse one come first"
    if need > 1 and outcome.contender.passed_over >= 1:
        return f"waits: devices that become free are kept for you until there are {need}"
    rival = crowd.rival(outcome)
    if rival is None:
        return f"waits: no {_devices(need)} free for you now"
    return f"waits for {_devices(need)}: {_against(rival, outcome)}"


def _against(rival: Outcome, outcome: Outcome) -> str:
    if rival.merit is not None and outcome.merit is not None:
        return against(outcome.merit, rival.merit, _who(rival, outcome))
    within = "its share" if rival.got <= rival.owed + 1e-9 else f"{_devices(rival.got)}, its share is"
    words = (
        f"{_who(rival, outcome)} holds {within} {'of ' if within == 'its share' else ''}{_number(rival.owed)}"
    )
    if rival.got <= rival.held or rival.rho_before is None or outcome.rho_before is None:
        return words
    theirs, ours = rival.rho_before, outcome.rho_before
    compared = "worse than" if theirs > ours else "better than" if theirs < ours else "the same as"
    return f"{words}, and its rho {theirs:.2f} is {compared} yours, {ours:.2f}"


def _not_worth(outcome: Outcome, market: Market) -> str:
    """Why a further device that nobody has would not be taken."""
    now = held_row(outcome.rows, outcome.got, 1, None)
    more = [row for row in outcome.rows if row.devices > outcome.got]
    best = min(more, key=lambda row: row.remaining_seconds + row.restart_seconds, default=None)
    if now is None or best is None:
        return "more would not fit it"
    saved = now.remaining_seconds - best.remaining_seconds
    if saved > market.options.move_gain * best.restart_seconds:
        return "no further devices fit it where they are"
    return (
        f"{best.devices} would save {_seconds(max(saved, 0.0))}, less than {market.options.move_gain:g} times"
        f" the {_seconds(best.restart_seconds)} the move costs"
    )


def _who(other: Outcome, outcome: Outcome) -> str:
    if other.contender.account == outcome.contender.account:
        return "another job of yours"
    return other.contender.account


def _wanted_more(outcome: Outcome) -> bool:
    return outcome.got == 0 or outcome.got < outcome.held or (outcome.got < outcome.contender.max_devices)


def _rho_words(outcome: Outcome) -> str:
    return "" if outcome.rho_before is None else f", your rho {outcome.rho_before:.2f}"


def _devices(count: int) -> str:
    return f"{count} device" if count == 1 else f"{count} devices"


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"
