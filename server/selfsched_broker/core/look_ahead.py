"""When jobs will start and be done, given what is known to be coming: the broker's look-ahead.

A job forecasts its end on the devices it has. The broker also knows the others, who waits, and the
rule by which it divides. So it plays all jobs forward from the books (`ahead`): in K worlds, each with
its own draw of how much later or earlier than said every job is, with its own policy in a
reduced form at every end and tick. The 10, 50 and 90 % quantiles of what comes out are the forecast.
What nobody can know beforehand, who will come, is drawn from who came of late (`ahead.newcomers`).

A what-if is the same play with other players: the job in question on so many devices, some other
jobs gone. All variants of one question are played in the same worlds, so they differ by what was
asked only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from selfsched.protocol import MAX_SECONDS, Forecast
from selfsched_broker.core.ahead.cast import NEVER, Flags, Floats, Integers, make_cast
from selfsched_broker.core.ahead.draws import deviations, factors, quantiles
from selfsched_broker.core.ahead.newcomers import draw_newcomers
from selfsched_broker.core.ahead.play import Stage, play
from selfsched_broker.core.ahead.player import Player
from selfsched_broker.core.ahead.rules import rule_named
from selfsched_broker.core.ahead.scene import Scene

WORLDS, FEW_WORLDS, FEWEST_WORLDS = 25, 15, 5
"""For a forecast of all jobs; for each variant of a what-if; with more than `MANY_JOBS`."""
MANY_JOBS = 256
_LEANINGS = 2**32
"""Added to a job's number: what is not known of its single counts is drawn apart."""

UNPLAYED_LOG = 0.2
"""By how much (log, to the 10 and to the 90 % point) a play of several jobs is off even where all its
worlds agree: others that come later, and what the policy does that its reduced form does not
(`bench.look_ahead`, docs/look-ahead.md)."""
MOST_OFF = 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreseen:
    """What is expected of one job, in seconds from when it was made."""

    start: Forecast | None
    """When it has devices; all 0 where it has; None: not with the devices that there are."""
    finish: Forecast | None
    """None also where nothing at all is known of how long it takes."""
    known: bool = True
    """Whether it has measured itself; else the finish is a guess."""

    def later(self, seconds: float) -> Foreseen:
        """The same, seen so much later."""
        return Foreseen(start=_later(self.start, seconds), finish=_later(self.finish, seconds),
                        known=self.known)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way it could be."""

    asker: Player
    """The job that is asked about; it takes the place of the one of its id."""
    without: frozenset[str] = frozenset()
    """Jobs that have ended."""
    arrives: bool = False
    """Whether the asker comes anew, and gets what others have beyond their share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What is expected of all jobs, as it was foreseen at one moment."""

    made_at: float
    """Broker time."""
    jobs: Mapping[str, Foreseen]
    held: Mapping[str, int]
    """Devices that each had then."""
    newcomers_per_hour: float = 0.0
    """Who else is expected to come; 0: nobody is."""

    @classmethod
    def of_scene(cls, scene: Scene) -> Outlook:
        """Play a scene."""
        held = {player.job: player.held for player in scene.players}
        per_hour = scene.record.per_hour
        return cls(made_at=scene.made_at, jobs=foresee(scene), held=held, newcomers_per_hour=per_hour)

    def of(self, job_id: str, now: float, held: int) -> Foreseen | None:
        """Of one job, seen from now.

        None: it came later, is paused or told to leave, or has another number of devices by now.
        """
        found = self.jobs.get(job_id)
        if found is None or self.held[job_id] != held:
            return None
        return found.later(max(0.0, now - self.made_at))


def foresee(scene: Scene) -> dict[str, Foreseen]:
    """What is expected of every job of a scene."""
    players = scene.players
    if not players or scene.devices < 1:
        return {}
    worlds = WORLDS if len(players) <= MANY_JOBS else FEWEST_WORLDS
    there = np.ones((worlds, len(players)), dtype=bool)
    nothing = np.zeros(worlds, dtype=bool)
    begun, over = play(_stage(scene, _Asked(players, worlds, there, there, nothing, nothing)))
    starts, ends = quantiles(begun), quantiles(over)
    off = UNPLAYED_LOG if len(players) > 1 else 0.0
    return {
        player.job: Foreseen(
            start=_forecast(starts[:, j], off),
            finish=None if player.is_stand_in else _forecast(ends[:, j], off),
            known=player.known,
        )
        for j, player in enumerate(players)
    }


def foresee_variants(scene: Scene, variants: Sequence[Variant]) -> list[Foreseen]:
    """What is expected of the asker in each variant, all played in the same worlds."""
    if not variants or scene.devices < 1:
        return [Foreseen(start=None, finish=None) for _ in variants]
    askers = {variant.asker.job for variant in variants}
    others = [player for player in scene.players if player.job not in askers]
    players = (*others, *(variant.asker for variant in variants))
    worlds = FEW_WORLDS if len(others) < MANY_JOBS else FEWEST_WORLDS
    live = np.zeros((worlds * len(variants), len(players)), dtype=bool)
    concerned = np.zeros_like(live)
    for at, variant in enumerate(variants):
        rows = slice(at * worlds, (at + 1) * worlds)
        live[rows, : len(others)] = [player.job not in variant.without for player in others]
        live[rows, len(others) + at] = concerned[rows, len(others) + at] = True
    arrivals = np.repeat([variant.arrives for variant in variants], worlds)
    departures = np.repeat([_frees(scene, variant) for variant in variants], worlds)
    starts, ends = play(_stage(scene, _Asked(players, worlds, live, concerned, arrivals, departures)))
    found = []
    for at, variant in enumerate(variants):
        rows, column = slice(at * worlds, (at + 1) * worlds), len(others) + at
        start, end = quantiles(starts[rows, column]), quantiles(ends[rows, column])
        known, off = variant.asker.known, UNPLAYED_LOG if live[rows.start].sum() > 1 else 0.0
        finish = None if variant.asker.is_stand_in else _forecast(end, off)
        found.append(Foreseen(start=_forecast(start, off), finish=finish, known=known))
    return found


def _frees(scene: Scene, variant: Variant) -> bool:
    """Whether devices are free in it that are held now."""
    held = {player.job: player.held for player in scene.players}
    gone = any(held.get(job) for job in variant.without - {variant.asker.job})
    return gone or held.get(variant.asker.job, 0) != variant.asker.held


@dataclass(frozen=True, slots=True)
class _Asked:
    """R worlds, J players."""

    players: Sequence[Player]
    worlds: int
    """Of each variant."""
    live: Flags
    """(R, J) who is there."""
    concerned: Flags
    """(R, J) whose ends are asked for."""
    arrivals: Flags
    """(R,)"""
    departures: Flags
    """(R,)"""


def _stage(scene: Scene, asked: _Asked) -> Stage:
    rule, worlds, rows = rule_named(scene.policy), asked.worlds, len(asked.live)
    first = 1 + max((player.number for player in asked.players), default=0)
    newcomers = draw_newcomers(scene.record, worlds, first)
    players, new = (*asked.players, *newcomers.players), len(newcomers.players)
    came_at = np.tile(newcomers.came_at, (rows // worlds, 1))
    cast = make_cast(players, scene.devices, gangs=rule.gangs)
    held = np.array([_index(cast.counts[j], player.held) for j, player in enumerate(players)])
    drawn = np.stack([factors(p.low, p.high, deviations(p.number, worlds)) for p in players], axis=1)
    leant = np.stack([deviations(p.number + _LEANINGS, worlds) for p in players], axis=1)
    repeats = rows // worlds
    return Stage(
        cast=cast, rule=rule, devices=scene.devices, term=scene.term_seconds, tick=scene.tick_seconds,
        factors=np.tile(drawn, (repeats, 1)), leanings=np.tile(leant, (repeats, 1)),
        held=np.tile(held, (rows, 1)),
        starting=np.tile([player.starting_seconds for player in players], (rows, 1)),
        live=np.hstack([asked.live, np.isfinite(came_at)]),
        came_at=np.hstack([np.zeros(asked.live.shape), came_at]),
        concerned=np.hstack([asked.concerned, np.zeros((rows, new), dtype=bool)]),
        arrivals=asked.arrivals, departures=asked.departures,
        repay_factor=scene.repay_factor, repay_min_seconds=scene.repay_min_seconds,
    )  # fmt: skip


def _index(counts: Integers, held: int) -> int:
    found = np.flatnonzero(counts == held)
    return int(found[0]) if held and found.size else -1


def _forecast(seconds: Floats, off: float) -> Forecast | None:
    low, middle, high = seconds.tolist()
    if middle >= NEVER / 100:
        return None
    if middle > 0:
        below, above = math.log(middle / max(low, middle / MOST_OFF)), math.log(max(high, middle) / middle)
        low = middle * math.exp(-math.hypot(below, off))
        high = middle * math.exp(math.hypot(above, off))
    return Forecast(
        p10_seconds=min(low, MAX_SECONDS),
        p50_seconds=min(middle, MAX_SECONDS),
        p90_seconds=min(high, MAX_SECONDS),
        assumption="look_ahead",
    )


def _later(forecast: Forecast | None, seconds: float) -> Forecast | None:
    if forecast is None or seconds <= 0:
        return forecast
    return Forecast(
        p10_seconds=max(0.0, forecast.p10_seconds - seconds),
        p50_seconds=max(0.0, forecast.p50_seconds - seconds),
        p90_seconds=max(0.0, forecast.p90_seconds - seconds),
        assumption=forecast.assumption,
    )
