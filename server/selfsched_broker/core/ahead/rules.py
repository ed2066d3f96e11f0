"""How the policies divide, in a form that divides a thousand worlds at once.

Every policy is a density: what the next devices of a job are worth, by the device. Seats go to
the densest first, which is the best division where worths are concave in devices and gangs are small
(Dantzig 1957), and an approximation elsewhere; the policies themselves solve it exactly. The
worths are the policies' own (`policies`, `auction`) with these simplifications: all devices are alike
and everything fits on its node; everybody is considered; quotas, charged payments, wanted devices and
reservations are not played. `maxmin` is played as `themis`, `goodput` by speed-up alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from selfsched_broker.core.ahead.cast import NEVER, Cast, Flags, Floats, Integers
from selfsched_broker.core.market import FairnessOptions
from selfsched_broker.core.policies.queues import LAS_THRESHOLD_DEVICE_SECONDS
from selfsched_broker.core.policies.selfsched import (
    BEYOND,
    DIVIDED,
    DOUBT,
    LASTING,
    LATEST,
    MOST_LATE,
    REPAID_WITHIN,
    SHORTEST,
    Weights,
)

MOVE_GAIN = FairnessOptions().move_gain
_REPAY_MIN_SECONDS = FairnessOptions().repay_min_seconds
_WEIGHTS = Weights()
_ENTITLED = 1e6
_MOST_PASSED = 20.0
_LEAST = 1e-9


@dataclass(slots=True, kw_only=True)
class Worlds:
    """What a rule sees of all worlds at one event of each."""

    cast: Cast
    live: Flags  # (R, J)
    ages: Floats  # (R, J) seconds since each was registered
    left: Floats  # (R, J) of what is left now
    held: Integers  # (R, J) index of the count it has, -1 for none
    waited: Floats  # (R, J) terms that it has been passed over
    owed: Floats  # (R, J) devices
    devices: int
    term: float

    @property
    def remaining(self) -> Floats:
        """(R, J, C) median seconds to the end on each count."""
        return np.minimum(self.left[:, :, None] * self.cast.seconds, NEVER)

    def moves(self) -> Flags:
        """(R, J, C) whether a count is another than what it has."""
        found: Flags = np.arange(self.cast.counts.shape[1]) != self.held[:, :, None]
        return found


@dataclass(frozen=True, slots=True)
class PlayedRule:
    """One policy as it is played."""

    worth: Callable[[Worlds], Floats]
    """(R, J, C) of each count, from nothing."""
    gangs: bool = False
    skips: bool = True
    """Whether those behind pass one that does not fit."""
    preempts: bool = True
    """Whether a tick takes devices away."""
    yields: bool = True
    """Whether one that comes gets what holders have beyond their share."""
    resize_repay_factor: float = math.inf
    """Restarts' worth of steps that at most repay a move of a job that can be resized."""


def owed_devices(cast: Cast, live: Flags, devices: int) -> Floats:
    """Each job's share among those that live in its world, (R, J)."""
    groups = np.eye(int(cast.accounts.max()) + 1)[cast.accounts]
    priorities = live * cast.priorities
    by_account = priorities @ groups
    weight_of = np.zeros(groups.shape[1])
    weight_of[cast.accounts] = cast.weights
    total = np.maximum((by_account > 0) @ weight_of, _LEAST)
    part = priorities / np.maximum((by_account @ groups.T), _LEAST)
    owed: Floats = devices * part * cast.weights / total[:, None]
    # Sums over more or fewer columns differ in the last digits: nobody shall come first by these.
    return np.round(owed, 9)


def _selfsched(worlds: Worlds) -> Floats:
    cast, live, remaining = worlds.cast, worlds.live, worlds.remaining
    smallest = cast.counts[:, 0]
    gain = cast.seconds[:, :1] / cast.seconds
    useful = np.where(gain < 1, gain, 1 + np.log(np.maximum(gain, 1.0)))
    weight = worlds.owed * live.sum(axis=1)[:, None] / max(worlds.devices, 1)
    on_fair = np.maximum(worlds.left * _seconds_on(cast, worlds.owed), 1e-3)
    short = np.clip(_medians(on_fair, live)[:, None] / on_fair, 1 / SHORTEST, SHORTEST) / smallest
    late = np.clip(_lateness(worlds, on_fair, weight) / _WEIGHTS.late_from, 0.0, LATEST)
    late = np.minimum(late**_WEIGHTS.late_power, MOST_LATE)
    restart = cast.restarts[:, None]
    horizon = np.where(
        worlds.held[:, :, None] >= 0,
        np.minimum(remaining, worlds.term + LASTING * restart),
        _waits_for(worlds)[:, None],
    )
    horizon = np.maximum(horizon, 1e-3)
    lasting = np.where(worlds.moves(), horizon / (horizon + MOVE_GAIN * restart), 1.0)
    further = _places_in_work(worlds)
    runs = np.minimum(gain, 1.0)
    sized = np.maximum(short, further)[:, :, None] * runs
    sized = sized + further[:, :, None] * np.maximum(gain**DIVIDED - 1, 0.0)
    wanted = np.where(cast.resizable[:, None], sized, short[:, :, None] * useful)
    wanted = wanted + late[:, :, None] * useful
    worth: Floats = (weight * smallest)[:, :, None] * (
        wanted * lasting + _critical(worlds)[:, :, None] * runs
    )
    return worth


def _waits_for(worlds: Worlds) -> Floats:
    """(J,) seconds for which a placement is of use to a job that waits."""
    restarts = worlds.cast.restarts
    repaid = restarts + np.maximum(REPAID_WITHIN * restarts, _REPAY_MIN_SECONDS)
    return np.where(worlds.cast.resizable, np.maximum(worlds.term, repaid), worlds.term)


def _places_in_work(worlds: Worlds) -> Floats:
    """(R, J) what a job's work beyond its smallest count is worth, by its place from who has most."""
    cast, live = worlds.cast, worlds.live
    work = worlds.left * (cast.seconds * np.maximum(cast.counts, 1)).min(axis=1)
    work = np.where(live, work, -1.0)
    order = np.argsort(-work, axis=1, kind="stable")
    ordered = np.take_along_axis(work, order, axis=1)
    at = np.broadcast_to(np.arange(1, work.shape[1] + 1), work.shape)
    differs = np.ones(work.shape, dtype=bool)
    differs[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    ends = np.ones(work.shape, dtype=bool)
    ends[:, :-1] = differs[:, 1:]
    first = np.maximum.accumulate(np.where(differs, at, 0), axis=1)
    last = np.minimum.accumulate(np.where(ends, at, work.shape[1])[:, ::-1], axis=1)[:, ::-1]
    places = np.empty(work.shape)
    np.put_along_axis(places, order, (first + last) / 2, axis=1)
    found: Floats = BEYOND * (places / ((live.sum(axis=1) + 1) / 2)[:, None]) ** DIVIDED
    return found


def _seconds_on(cast: Cast, devices: Floats) -> Floats:
    """(R, J) median time of all that was left, on a number of devices that may be a fraction, not less
    than its smallest count: between counts the rate is linear (`fairness.rate`)."""
    jobs = np.arange(len(cast.counts))
    last = (cast.counts > 0).sum(axis=1) - 1
    below = ((cast.counts <= devices[:, :, None]) & (cast.counts > 0)).sum(axis=2) - 1
    below = np.clip(below, 0, last)
    above = np.minimum(below + 1, last)
    apart = np.maximum(cast.counts[jobs, above] - cast.counts[jobs, below], 1)
    along = np.clip((devices - cast.counts[jobs, below]) / apart, 0.0, 1.0)
    rates = (1 - along) / cast.seconds[jobs, below] + along / cast.seconds[jobs, above]
    found: Floats = 1 / rates
    return found


def _lateness(worlds: Worlds, on_fair: Floats, weight: Floats) -> Floats:
    """(R, J) rho: the time a job will have taken over its fair time."""
    cast, live = worlds.cast, worlds.live
    smallest = cast.counts[:, 0]
    age, owed = worlds.ages, np.maximum(worlds.owed, _LEAST)
    crowd = (cast.ages / cast.shares + (age - cast.ages + on_fair) / owed) / (age + on_fair)
    parts = np.where(live, weight, 0.0)
    usual_gang = (parts * smallest).sum(axis=1) / np.maximum(parts.sum(axis=1), _LEAST)
    by_devices = np.maximum(crowd * np.minimum(usual_gang[:, None], smallest), 1.0)
    crowd = np.where(crowd < 1, by_devices, crowd)
    whole = on_fair / np.maximum(worlds.left * (1 - cast.done), _LEAST)
    late: Floats = (age + on_fair) / (whole * crowd)
    return late


def _critical(worlds: Worlds) -> Floats:
    """(R, J) what speaks for jobs that decide when all is done."""
    cast, live = worlds.cast, worlds.live
    best = np.where(live, worlds.left * cast.seconds.min(axis=1), 0.0)
    work = np.where(live, worlds.left * (cast.seconds * np.maximum(cast.counts, 1)).min(axis=1), 0.0)
    soonest = np.maximum(work.sum(axis=1) / max(worlds.devices, 1), best.max(axis=1))[:, None]
    likely_late = best * np.exp(np.minimum(DOUBT * cast.sigmas, 3.0))
    near = soonest - likely_late <= np.minimum(worlds.term, _WEIGHTS.near * soonest)
    found: Floats = np.where(near, _WEIGHTS.critical, 0.0)
    return found


def _medians(values: Floats, live: Flags) -> Floats:
    ordered = np.sort(np.where(live, values, np.inf), axis=1)
    middle = np.maximum(live.sum(axis=1) - 1, 0)
    rows = np.arange(len(values))
    found: Floats = (ordered[rows, middle // 2] + ordered[rows, (middle + 1) // 2]) / 2
    return np.where(np.isfinite(found), found, 1.0)


def _themis(worlds: Worlds) -> Floats:
    cast, remaining = worlds.cast, worlds.remaining
    age = worlds.ages[:, :, None]
    restart = cast.restarts[:, None]
    shared = age + np.where(worlds.moves(), MOVE_GAIN * restart, 0.0) + remaining
    nothing = age + worlds.term + restart + remaining[:, :, :1]
    weight = worlds.owed * worlds.live.sum(axis=1)[:, None] / max(worlds.devices, 1)
    worth = weight[:, :, None] * np.log(nothing / np.maximum(shared, _LEAST))
    passed, smallest = worlds.waited[:, :, None], cast.counts[:, :1]
    due = (cast.counts > 0) & (cast.counts <= worlds.owed[:, :, None] + _LEAST)
    # Where its share is less than its smallest count: that, once it was passed over often enough.
    late = (passed * worlds.owed[:, :, None] >= smallest - _LEAST) | ((smallest > 1) & (passed >= 1))
    due |= (cast.counts == smallest) & late & (worlds.held < 0)[:, :, None]
    due &= worth >= np.maximum.accumulate(worth, axis=2)  # nobody is entitled to what does not pay
    urgency = _ENTITLED * (1 + np.minimum(passed, _MOST_PASSED))
    bonus = urgency * np.where(due, cast.counts, 0)
    found: Floats = worth + np.maximum.accumulate(bonus, axis=2)
    return found


def _fifo(worlds: Worlds) -> Floats:
    return _ranked(worlds, -worlds.cast.numbers[None, :])


def _srtf(worlds: Worlds) -> Floats:
    return _ranked(worlds, -worlds.remaining[:, :, 0])


def _las(worlds: Worlds) -> Floats:
    cast = worlds.cast
    undone = worlds.left * (1 - cast.done)
    whole = cast.seconds[:, 0] / np.maximum(1 - cast.done, _LEAST)
    served = (1 - undone) * whole * cast.counts[:, 0] > LAS_THRESHOLD_DEVICE_SECONDS
    return _ranked(worlds, -(served * 1e9 + cast.numbers))


def _ranked(worlds: Worlds, place: Floats) -> Floats:
    """Worths whose densities are in the order of `place` (R, J), the largest first."""
    order = np.argsort(np.argsort(np.where(worlds.live, place, -np.inf), axis=1), axis=1) + 1.0
    return np.asarray(order[:, :, None] * worlds.cast.counts, dtype=np.float64)


def _goodput(worlds: Worlds) -> Floats:
    cast = worlds.cast
    gain = cast.seconds[:, :1] / cast.seconds
    restart = cast.restarts[:, None]
    lasting = np.where(worlds.moves(), worlds.term / (worlds.term + restart), 1.0)
    worth: Floats = gain * lasting * cast.counts[:, :1] * worlds.owed[:, :, None]
    return worth


RULES: dict[str, PlayedRule] = {
    "selfsched": PlayedRule(_selfsched, resize_repay_factor=REPAID_WITHIN),
    "themis": PlayedRule(_themis),
    "maxmin": PlayedRule(_themis),
    "goodput": PlayedRule(_goodput),
    "fifo": PlayedRule(_fifo, gangs=True, skips=False, preempts=False, yields=False),
    "srtf": PlayedRule(_srtf, gangs=True, yields=False),
    "las": PlayedRule(_las, gangs=True, yields=False),
}


def rule_named(policy: str) -> PlayedRule:
    """How a policy is played; one that is not known as ours."""
    return RULES.get(policy, RULES["selfsched"])
