"""Jobs played to their ends, in all worlds at once.

Each world has its own time. A step takes every world to its next event: the end of a job, or a tick.
Then all devices are divided anew (`rules`):

========== =============================================================================
event      what may be taken from who holds it
========== =============================================================================
end        nothing; what is free goes to who waits or can use more
tick       everything, where the policy takes things away at all; a move costs its restart
arrival    of a newcomer, or at the start, where a new job is asked about: what holders have
           beyond their share
========== =============================================================================

At the start nobody who holds devices gets more, unless others are taken to be gone: what is free then is so
because the policy has left it free. Who has not repaid its last move stays as it is.

The first ticks are played one by one. Later ones are left out the more, the later it is: after n
of them the next comes n / `EXACT_TICKS` terms later. So what is still to come is always known to some
hundredths of its own time, and jobs of a second beside jobs of a year take some hundred steps. A world sees
nothing of any other, so that what comes out does not depend on what else was asked.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from selfsched_broker.core.ahead.cast import NEVER, Cast, Flags, Floats, Integers
from selfsched_broker.core.ahead.draws import MOST_LOG
from selfsched_broker.core.ahead.rules import PlayedRule, Worlds, owed_devices

EXACT_TICKS = 24
MOST_TICKS = 1000
"""In one world; enough for 10^15 terms."""
MOST_IDLE_TICKS = 64
"""After so many at which nobody could be given anything, nobody ever will be."""
_FOR_SURE = 1e30
_COMPACTED_EVERY = 6
_AT_ONCE = 1e-7
_MOST_PASSES = 64


@dataclass(frozen=True, slots=True)
class Stage:
    """What is played. R worlds, J jobs."""

    cast: Cast
    rule: PlayedRule
    devices: int
    term: float
    tick: float
    """Seconds until the first tick."""
    factors: Floats
    """(R, J) true time over median time."""
    leanings: Floats
    """(R, J) standard normal deviations, for what is not known of single counts."""
    held: Integers
    """(R, J) index of the count each job has now, -1 for none."""
    starting: Floats
    """(R, J) seconds until its first step there."""
    live: Flags
    """(R, J) who is there, or will come."""
    came_at: Floats
    """(R, J) when a newcomer comes; 0: it is there; infinite: it does not come in this world."""
    concerned: Flags
    """(R, J) whose ends are asked for; a world is over with the last of them."""
    arrivals: Flags
    """(R,) worlds that begin with an arrival."""
    departures: Flags
    """(R,) worlds that begin with the end of others."""
    repay_factor: float
    repay_min_seconds: float
    """A move is repaid after so many restarts, and at least so long."""


_BY_JOB = (
    "factors", "leanings", "left", "held", "overhead", "live", "waited", "repaid_at", "came_at", "awaited",
    "concerned",
)  # fmt: skip
_BY_WORLD = (*_BY_JOB, "at", "tick_at", "ticks", "idle", "rows", "arrivals", "departures")


@dataclass(slots=True)
class _Play:
    stage: Stage
    cast: Cast
    columns: Integers
    """Jobs of the stage that are still played."""
    rows: Integers
    """Worlds of the stage that are still played."""
    arrivals: Flags
    departures: Flags
    came_at: Floats
    awaited: Flags
    """Newcomers that have not come yet."""
    concerned: Flags
    factors: Floats
    leanings: Floats
    left: Floats
    held: Integers
    overhead: Floats
    live: Flags
    waited: Floats
    """Terms that each has been passed over."""
    repaid_at: Floats
    """When each may be moved again."""
    at: Floats
    tick_at: Floats
    ticks: Integers
    """How many there were."""
    idle: Integers
    """How many, one after the other, left all devices unused."""
    starts: Floats = field(init=False)
    ends: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.starts = np.full(self.stage.live.shape, NEVER)
        self.ends = np.full(self.stage.live.shape, NEVER)
        self.starts[self.stage.held >= 0] = 0.0


def play(stage: Stage) -> tuple[Floats, Floats]:
    """Play it.

    Returns:
        When each job starts and ends, in seconds from now, (R, J); `NEVER` for what does not come.
    """
    shown = _open(stage)
    _divide(shown, np.zeros(len(stage.live), dtype=bool), opening=True)
    for turn in range(2 * stage.live.shape[1] + MOST_TICKS + 1):
        is_tick = _move_on(shown)
        if is_tick is None:
            break
        _divide(shown, is_tick)
        if turn % _COMPACTED_EVERY == _COMPACTED_EVERY - 1:
            _compact(shown)
    return shown.starts, shown.ends


def _open(stage: Stage) -> _Play:
    worlds, jobs = stage.live.shape
    waited = np.where(stage.held < 0, np.broadcast_to(stage.cast.waited, stage.live.shape), 0.0)
    live = stage.live & (stage.came_at <= 0)
    return _Play(
        stage=stage, cast=stage.cast, columns=np.arange(jobs), rows=np.arange(worlds),
        arrivals=stage.arrivals, departures=stage.departures, factors=stage.factors,
        came_at=np.where(stage.live, stage.came_at, np.inf),
        awaited=stage.live & (stage.came_at > 0), concerned=stage.concerned,
        leanings=stage.leanings, left=np.where(stage.live, 1.0, 0.0),
        held=np.where(live, stage.held, -1), overhead=stage.starting.copy(), live=live,
        waited=waited, repaid_at=np.tile(stage.cast.unrepaid, (worlds, 1)), at=np.zeros(worlds),
        tick_at=np.full(worlds, stage.tick), ticks=np.zeros(worlds, dtype=np.int64),
        idle=np.zeros(worlds, dtype=np.int64),
    )  # fmt: skip


def _move_on(shown: _Play) -> Flags | None:
    """Take each world to its next event; returns in which it is a tick, None when all is over."""
    held, runs = shown.held, shown.held >= 0
    here = _seconds_here(shown)
    to_end = np.where(runs & shown.live, shown.overhead + shown.left * here, np.inf)
    first = to_end.min(axis=1, initial=np.inf)
    first = np.minimum(first, _to_arrival(shown))
    to_tick = _to_tick(shown)
    lapse = np.minimum(first, to_tick)
    active = np.isfinite(lapse) & (shown.live & shown.concerned).any(axis=1) & (shown.at < NEVER / 10)
    active &= shown.idle < MOST_IDLE_TICKS
    if not active.any():
        return None
    lapse = np.where(active, lapse, 0.0)
    is_tick: Flags = active & (to_tick <= first)
    worked = np.maximum(lapse[:, None] - shown.overhead, 0.0)
    shown.overhead = np.where(runs, np.maximum(shown.overhead - lapse[:, None], 0.0), 0.0)
    shown.left = np.where(runs, np.maximum(shown.left - worked / np.maximum(here, 1e-9), 0.0), shown.left)
    ended = active[:, None] & shown.live & runs & (to_end <= (lapse * (1 + 1e-12) + _AT_ONCE)[:, None])
    shown.at = shown.at + lapse
    _count_tick(shown, is_tick)
    rows, jobs = np.nonzero(ended)
    shown.ends[shown.rows[rows], shown.columns[jobs]] = shown.at[rows]
    shown.live = shown.live & ~ended
    shown.held = np.where(ended, -1, held)
    comes = active[:, None] & shown.awaited & (shown.came_at <= (shown.at * (1 + 1e-12) + _AT_ONCE)[:, None])
    shown.arrivals = comes.any(axis=1)
    goes_on: Flags = np.asarray((shown.live & shown.concerned).any(axis=1))
    shown.live = (shown.live | comes) & goes_on[:, None]
    shown.awaited = shown.awaited & ~comes & goes_on[:, None]
    return is_tick


def _to_arrival(shown: _Play) -> Floats:
    """Seconds until the next newcomer, infinite where there is none."""
    due = np.where(shown.awaited, shown.came_at, np.inf).min(axis=1, initial=np.inf)
    found: Floats = np.maximum(due - shown.at, 0.0)
    return found


def _seconds_here(shown: _Play) -> Floats:
    """(R, J) true time of all that was left at the start, on what each has."""
    cast, jobs, place = shown.cast, np.arange(shown.held.shape[1]), np.maximum(shown.held, 0)
    here: Floats = cast.seconds[jobs, place] * shown.factors
    if cast.doubts.any():
        log = shown.leanings * cast.doubts[jobs, place]
        here = here * np.exp(np.clip(log, -MOST_LOG, MOST_LOG))
    return here


def _to_tick(shown: _Play) -> Floats:
    """Seconds to the next tick, infinite where it would change nothing."""
    if not shown.stage.rule.preempts:
        return np.full(len(shown.at), np.inf)
    top = np.maximum((shown.cast.counts > 0).sum(axis=1) - 1, 0)
    hungry = (shown.live & (shown.held < top)).any(axis=1) & (shown.ticks < MOST_TICKS)
    return np.where(hungry, np.maximum(shown.tick_at - shown.at, 0.0), np.inf)


def _count_tick(shown: _Play, is_tick: Flags) -> None:
    term = shown.stage.term
    # Ticks that nobody waited for have passed all the same.
    behind = np.maximum(np.floor((shown.at - shown.tick_at) / term), 0.0) + 1
    apart = np.maximum(np.floor(shown.at / term / EXACT_TICKS), 1.0)
    passed = np.where(is_tick, apart, np.where(shown.at > shown.tick_at, behind, 0.0))
    shown.tick_at = shown.tick_at + passed * term
    shown.ticks = shown.ticks + is_tick
    waits = shown.live & (shown.held < 0)
    shown.waited = np.where(shown.held >= 0, 0.0, shown.waited + waits * passed[:, None])
    nobody = ~(shown.held >= 0).any(axis=1)
    shown.idle = np.where(is_tick & nobody, shown.idle + 1, np.where(nobody, shown.idle, 0))


def _divide(shown: _Play, is_tick: Flags, *, opening: bool = False) -> None:
    cast, stage, old = shown.cast, shown.stage, shown.held
    worlds = Worlds(
        cast=cast, live=shown.live, ages=_ages(shown), left=shown.left, held=old, waited=shown.waited,
        owed=owed_devices(cast, shown.live, stage.devices), devices=stage.devices, term=stage.term,
    )  # fmt: skip
    places = np.arange(cast.counts.shape[1])
    bound = (old >= 0) & (shown.repaid_at > shown.at[:, None])
    if opening:
        bound |= (old >= 0) & ~(shown.arrivals | shown.departures)[:, None]
    kept = np.where(bound, old, _kept(worlds, stage.rule, is_tick, shown.arrivals))
    density = np.where(places <= kept[:, :, None], _FOR_SURE, _densities(worlds, stage.rule))
    able = shown.live[:, :, None] & (cast.steps > 0) & (density > 0)
    able &= ~bound[:, :, None] | (places <= old[:, :, None])
    new = _dense_first(np.where(able, density, -np.inf), cast, stage.devices, skips=stage.rule.skips) - 1
    new = np.where(shown.live, new, -1)
    moved = (new != old) & (new >= 0)
    restarts = np.broadcast_to(cast.restarts, new.shape)
    shown.overhead = np.where(moved, restarts, shown.overhead)
    factor = np.where(cast.resizable, stage.rule.resize_repay_factor, np.inf)
    factor = np.minimum(factor, stage.repay_factor)
    repaid = shown.at[:, None] + restarts + np.maximum(factor * restarts, stage.repay_min_seconds)
    shown.repaid_at = np.where(moved, repaid, shown.repaid_at)
    rows, jobs = np.nonzero(moved & (old < 0))
    places_of = shown.rows[rows], shown.columns[jobs]
    shown.starts[places_of] = np.minimum(shown.starts[places_of], shown.at[rows])
    shown.held = new


def _ages(shown: _Play) -> Floats:
    """(R, J) seconds since each was registered."""
    since = np.where(np.isfinite(shown.came_at), shown.at[:, None] - shown.came_at, 0.0)
    return shown.cast.ages + np.maximum(since, 0.0)


def _densities(worlds: Worlds, rule: PlayedRule) -> Floats:
    """What each step up is worth by the device; no step is worth more than the one before."""
    cast = worlds.cast
    worth = rule.worth(worlds)
    sizes = np.maximum(cast.steps, 1)
    density = np.diff(worth, axis=2, prepend=0.0) / sizes
    held = np.maximum(worlds.held, 0)[:, :, None]
    count = cast.counts[np.arange(len(cast.counts))[:, None], held[:, :, 0].T].T[:, :, None]
    as_is = np.take_along_axis(worth, held, axis=2) / np.maximum(count, 1)
    # What it has is one piece: its parts would be moves.
    has = np.arange(cast.counts.shape[1]) <= worlds.held[:, :, None]
    density = np.where(has, np.maximum(density, as_is), density)
    found: Floats = np.minimum.accumulate(density, axis=2)
    return found


def _kept(worlds: Worlds, rule: PlayedRule, is_tick: Flags, arrives: Flags) -> Integers:
    """(R, J) index of the count that nobody takes from a job now, -1 for none."""
    held, cast = worlds.held, worlds.cast
    taken = is_tick[:, None] & cast.stoppable & rule.preempts
    kept = np.where(taken, -1, held)
    if rule.yields and arrives.any():
        short = (cast.counts < worlds.owed[:, :, None] - 1e-9) & (cast.counts > 0)
        enough = np.minimum(short.sum(axis=2), held)
        kept = np.where(arrives[:, None] & cast.movable, enough, kept)
    return kept


def _dense_first(density: Floats, cast: Cast, devices: int, *, skips: bool) -> Integers:
    """(R, J) how many steps each job is given, the densest first."""
    rows, jobs, width = density.shape
    flat = (density * (1 - 1e-9 * np.arange(width))).reshape(rows, -1)
    order = np.argsort(-flat, axis=1, kind="stable")
    valid = np.take_along_axis(flat, order, axis=1) > 0
    most = int(valid.sum(axis=1).max(initial=0))
    order, valid = order[:, :most], valid[:, :most]
    size = np.where(valid, cast.steps.reshape(-1)[order], 0)
    taken = valid & (np.cumsum(size, axis=1) <= devices)
    if skips:
        _fill(taken, valid, size, order // width, devices, jobs)
    given = np.zeros((rows, jobs * width), dtype=bool)
    np.put_along_axis(given, order, taken, axis=1)
    found: Integers = given.reshape(rows, jobs, width).sum(axis=2)
    return found


def _fill(taken: Flags, valid: Flags, size: Integers, job: Integers, devices: int, jobs: int) -> None:
    """Let those behind pass what does not fit, until nothing fits any more."""
    blocked = np.zeros((len(taken), jobs), dtype=bool)
    for _ in range(_MOST_PASSES):
        room = devices - np.where(taken, size, 0).sum(axis=1)
        rest = valid & ~taken
        wide = rest & (size > room[:, None])
        rows, items = np.nonzero(wide)
        blocked[rows, job[rows, items]] = True
        rest &= ~np.take_along_axis(blocked, job, axis=1)
        if not rest.any():
            return
        taken |= rest & (np.cumsum(np.where(rest, size, 0), axis=1) <= room[:, None])


def _compact(shown: _Play) -> None:
    """Play on without the jobs that have ended everywhere, and the worlds that are over."""
    kept: Flags = np.asarray((shown.live | shown.awaited).any(axis=0))
    if kept.any() and kept.sum() <= 0.8 * len(kept):
        shown.cast, shown.columns = shown.cast.only(kept), shown.columns[kept]
        for name in _BY_JOB:
            setattr(shown, name, getattr(shown, name)[:, kept])
    goes_on: Flags = np.asarray(shown.live.any(axis=1))
    if goes_on.any() and goes_on.sum() <= 0.8 * len(goes_on):
        for name in _BY_WORLD:
            setattr(shown, name, getattr(shown, name)[goes_on])
