"""`selfsched`: short jobs first, nobody beyond its fair time, nothing on the critical path late.

All seats are divided so that the sum of what they are worth is largest. To a job that runs on n
devices and needs at least m, they are worth

    weight  m  [ (short + late) U(x) + critical min(x, 1) ],    x = rate(n) / rate(m),
    U(x) = x below 1, 1 + ln x above

and to one that may have several counts

    weight  m  [ (max(short, place) + critical) min(x, 1) + place (x^0.9 - 1) + late U(x) ]

    short     median remaining time of all / its remaining time, over m
    place     2 (k / middle)^0.9, k its place from who has most work (device-seconds) left, middle
              that of the median job
    late      (rho / 1.3)^6
    critical  30, if its remaining time comes within a term, and within a fifth, of the least time
              in which all work could be done; else 0 (on several models within a term)

so that, counted by the device,

* the least remaining work comes first while nothing else is pressing, which has the least mean
  completion (Smith 1956: in the order of weight over work);
* a job that waits longer than its fair time gains on all others without limit, so none starves;
* the jobs that will decide when all is done are never made to wait: the least time is
  max(sum of work / devices, longest remaining time), Graham's bound (1969); it is for running at
  all: how many devices they get is not decided by it;
* further devices go where they bring the sum of all completion times down most. That sum, seen from
  now and with all jobs played to their ends, grows with the work of a job by what its place says, not
  by how short it is: where all speed up as n^p, the k-th from the longest counts
  (k^q - (k - 1)^q)^(1/q), q = 1 / (1 - p), about k^p (Berg, Vesilo, Harchol-Balter, heSRPT,
  Performance Evaluation 2020). That is what jobs are worth by their rate; a little less than the
  whole of it (0.9), since those who will come want devices too.

Where there are several models, a second on a placement is worth critical x devices x pace besides,
pace being the part of a second by which it brings the end of all work nearer (`matching`): jobs
go where they lose least against other models, and the bound of the critical path is the programme's.

rho here is T_shared / T_fair, T_fair = the whole run on the larger of its share and m, times jobs
per device (1 / share, at least 1) over its life as it was and, until its end, as it is: finish-time
fairness with the crowd of today going on. With fewer jobs than devices gangs may exclude each other all
the same: then it is the devices asked for by device that count, for a gang up to its own size. On
several models the run is taken in turns on all of them, each for its part of the devices. Remaining times
are what the job bids, corrected by the progress seen (`metering`). Where the job has to move, all but
critical counts with h / (h + 1.2 restart), h being how long that will be of use: for a job that waits a
term, for who would oust it for as little again, or until the move is repaid, where it can be resized;
for one that changes its devices until its end, but no longer than a term and twenty restarts. As a move
is weighed so, who can be resized may be moved again after steps for two restarts, where other policies
wait for ten (`market.repay_factor`).

A placement that was never measured counts as quicker by what measuring it is expected to save
(`information_seconds` of the bid): a doubtful one is tried where that is cheap.

Everybody is considered and nobody pays: it is no auction, and a job that claims less than it
needs runs earlier until the broker has seen its pace.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Literal

import numpy as np

from selfsched_broker.core.auction import Rule, hold_auction
from selfsched_broker.core.choices import Standing, Valuation, Worth
from selfsched_broker.core.fairness import Row, rate, restart_cost
from selfsched_broker.core.market import FairnessOptions, Market, Ruling
from selfsched_broker.core.merit import Merit
from selfsched_broker.core.policies.matching import Matching, match

LATEST = 100.0
MOST_LATE = 1e6
"""What lateness may weigh: beside more, the worths of others would be rounding errors and devices idle."""
DOUBT = 1.28
"""Standard deviations by which a remaining time may well be longer (90 %)."""
LASTING = 20.0
"""Restarts for which a placement is expected to last: ten times what repays a change of size."""
REPAID_WITHIN = 2.0
"""Restarts' worth of steps that a job which can be resized makes between two moves, at least."""
BEYOND = 2.0
"""What work beyond the smallest count is worth to the median job, where its shortness counts 1."""
DIVIDED = 0.9
"""Exponent of a job's place, and of its speed-up, where devices beyond the smallest count are divided."""
SHORTEST = 1e3
"""At most so many times the median job's urgency has a short one, and a long one at least that part."""
MOST_LEARNED = 0.5
"""Of a remaining time, what a visit may be expected to save."""
_LEAST_SECONDS = 1e-3
_LEAST_SHARE = 1e-9


@dataclass(frozen=True, slots=True)
class Weights:
    """How much what counts counts. The broker uses the defaults; a bench varies them."""

    late_from: float = 1.3
    """A rho at which lateness weighs as much as an average job's shortness."""
    late_power: float = 6.0
    critical: float = 30.0
    """What keeping the end of all work from moving weighs beside it."""
    near: float = 0.2
    """It counts for who may wait for less than a term, and for less than this part of the least time."""


class Selfsched:
    """Least mean completion within fairness and the critical path; the default."""

    name = "selfsched"
    resize_repay_factor = REPAID_WITHIN

    def __init__(self, weights: Weights = Weights()) -> None:
        self._rule = Rule(
            worths=partial(worths, weights=weights), considers_all=True, entitles=False, pays=False
        )

    def rule(self, market: Market, rng: np.random.Generator) -> Ruling:
        """Divide the seats. The generator is not drawn from."""
        return hold_auction(market, self._rule)


@dataclass(frozen=True, slots=True)
class _Outlook:
    """One job as the policy sees it; times in seconds."""

    remaining: float
    """On its share of devices, or its smallest count where that is more."""
    least_remaining: float
    """On the best placement it bids for."""
    late_remaining: float
    """There, if it is as late as it may well be."""
    work: float
    """Device-seconds that it needs at least."""
    rho: float


def worths(
    standings: Mapping[str, Standing],
    market: Market,
    weights: Weights = Weights(),
) -> dict[str, Valuation]:
    """What placements are worth to each job of a market."""
    models = Counter(seat.model for seat in (*market.seats, *market.kept_seats))
    gang = _usual_gang(standings.values())
    outlooks = {job: _outlook(standing, models, gang) for job, standing in standings.items()}
    if not outlooks:
        return {}
    every = outlooks.values()
    term = market.options.term_seconds
    matching = None
    if len(models) > 1:
        matching = match({job: standing.rows for job, standing in standings.items()}, models, term)
    usual = median(outlook.remaining for outlook in every)
    soonest = max(
        sum(outlook.work for outlook in every) / max(market.total_devices, 1),
        max(outlook.least_remaining for outlook in every),
        matching.soonest if matching else 0.0,
    )
    places_in_work = _places_in_work({job: outlook.work for job, outlook in outlooks.items()})
    places = {job: at for at, job in enumerate(sorted(outlooks, key=lambda job: outlooks[job].remaining), 1)}
    # While all is done within some terms everybody's end lies within a term of that of all.
    slack = term if matching else min(term, weights.near * soonest)
    found = {}
    for job, standing in standings.items():
        outlook = outlooks[job]
        short = min(max(usual / outlook.remaining, 1 / SHORTEST), SHORTEST) / standing.allowed[0]
        late = min(max(outlook.rho, 0.0) / weights.late_from, LATEST) ** weights.late_power
        late = min(late, MOST_LATE)
        critical = weights.critical if soonest - outlook.late_remaining <= slack else 0.0
        pace = partial(_pace, matching, job, weights.critical * market.total_devices) if matching else None
        merit = Merit(
            kind=_weightiest(short, late, critical),
            remaining_seconds=outlook.remaining,
            place=places[job],
            jobs=len(places),
            lateness=outlook.rho,
            late_from=weights.late_from,
        )
        further = places_in_work[job] if len(standing.allowed) > 1 else None
        urgency = _Urgency(short, late, critical, further)
        found[job] = Valuation(_worth(standing, urgency, pace, market), merit)
    return found


def _places_in_work(work: Mapping[str, float]) -> dict[str, float]:
    """What the work of each job is worth beyond its smallest count.

    The k-th of jobs from the one with most work on, over the middle, to the power of `DIVIDED`. Of
    those that have the same each has the mean of their places.
    """
    ordered = sorted(work.values(), reverse=True)
    first: dict[float, int] = {}
    last: dict[float, int] = {}
    for at, amount in enumerate(ordered, start=1):
        first.setdefault(amount, at)
        last[amount] = at
    middle = (len(ordered) + 1) / 2
    return {job: BEYOND * ((first[w] + last[w]) / 2 / middle) ** DIVIDED for job, w in work.items()}


def _weightiest(short: float, late: float, critical: float) -> Literal["short", "late", "critical"]:
    if critical > max(short, late):
        return "critical"
    return "late" if late > short else "short"


def _pace(matching: Matching, job: str, scale: float, remaining_seconds: float) -> float:
    return scale * matching.pace(job, remaining_seconds)


@dataclass(frozen=True, slots=True)
class _Urgency:
    """What counts for a job, by the device of its smallest count."""

    short: float
    late: float
    critical: float
    further: float | None
    """What its work beyond that count is worth; None: it runs on one count only."""

    def worth(self, gain: float, lasting: float) -> float:
        """Of going so many times as fast as on the smallest count."""
        runs, useful = min(gain, 1.0), gain if gain < 1 else 1 + math.log(gain)
        wanted = self.short * useful
        if self.further is not None:
            wanted = max(self.short, self.further) * runs + self.further * max(gain**DIVIDED - 1, 0.0)
        return (wanted + self.late * useful) * lasting + self.critical * runs


def _worth(
    standing: Standing, urgency: _Urgency, pace: Callable[[float], float] | None, market: Market
) -> Worth:
    smallest = standing.allowed[0]
    undone = max(1.0 - standing.contender.fraction_done, 1e-9)
    reference = rate(standing.rows, standing.contender.fraction_done, smallest)
    options = market.options

    def worth(placement: Row | None, moves: bool) -> float:
        if placement is None:
            return 0.0
        remaining = placement.remaining_seconds
        if moves and placement.devices != standing.held:
            remaining -= min(placement.information_seconds, MOST_LEARNED * remaining)
        gain = undone / max(remaining, _LEAST_SECONDS) / reference
        lasting = _lasting(standing, placement, options) if moves else 1.0
        worth = smallest * urgency.worth(gain, lasting)
        if pace is not None:
            worth += pace(placement.remaining_seconds) * lasting
        return standing.weight * worth

    return worth


def _lasting(standing: Standing, placement: Row, options: FairnessOptions) -> float:
    """What is left of a placement's use after the move to it."""
    restart = restart_cost(standing.rows, placement)
    horizon = options.term_seconds
    if standing.held:
        horizon = min(placement.remaining_seconds, horizon + LASTING * restart)
    elif len(standing.allowed) > 1:
        horizon = max(horizon, restart + max(REPAID_WITHIN * restart, options.repay_min_seconds))
    horizon = max(horizon, _LEAST_SECONDS)
    return horizon / (horizon + options.move_gain * restart)


def _usual_gang(standings: Iterable[Standing]) -> float:
    """The mean of the smallest counts, by weight."""
    known = [(standing.weight, standing.allowed[0]) for standing in standings]
    return sum(weight * count for weight, count in known) / max(sum(weight for weight, _ in known), 1e-9)


def _outlook(standing: Standing, models: Mapping[str, int], gang: float) -> _Outlook:
    contender, rows = standing.contender, standing.rows
    undone = max(1.0 - contender.fraction_done, 1e-9)
    smallest, largest = standing.allowed[0], standing.allowed[-1]
    fair_devices = max(smallest, min(standing.owed, largest))
    remaining = max(undone / rate(rows, contender.fraction_done, fair_devices), _LEAST_SECONDS)
    best = min(rows, key=lambda row: row.remaining_seconds)
    crowd = _jobs_per_device(standing, remaining)
    if crowd < 1:
        crowd = max(1.0, crowd * min(gang, smallest))
    whole = 1.0 / max(_rate_in_turns(standing, models, fair_devices), 1e-12)
    return _Outlook(
        remaining=remaining,
        least_remaining=best.remaining_seconds,
        late_remaining=best.remaining_seconds * math.exp(min(DOUBT * best.sigma_log, 3.0)),
        work=min(row.devices * row.remaining_seconds for row in rows),
        rho=(contender.age_seconds + whole * undone) / (whole * crowd),
    )


def _rate_in_turns(standing: Standing, models: Mapping[str, int], devices: float) -> float:
    """Whole runs per second on so many devices of each model, each for its part of the time."""
    rows, done = standing.rows, standing.contender.fraction_done
    if len(models) < 2:
        return rate(rows, done, devices)
    pace = 0.0
    for model, count in models.items():
        fitting = [row for row in rows if row.model in (None, model)]
        if fitting:
            pace += count / sum(models.values()) * rate(fitting, done, devices)
    return pace


def _jobs_per_device(standing: Standing, remaining: float) -> float:
    """1 / share: as it was over the job's life, and as it is now for the time that remains."""
    contender = standing.contender
    lived = contender.age_seconds / max(contender.share, _LEAST_SHARE)
    ahead = remaining / max(standing.owed, _LEAST_SHARE)
    return (lived + ahead) / (contender.age_seconds + remaining)
