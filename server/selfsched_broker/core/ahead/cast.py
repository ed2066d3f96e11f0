"""The players of a scene as arrays: one column a job, one row a world.

Symbols of the shapes: R rows (worlds, of all variants), J jobs, C device counts of a job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from selfsched_broker.core.ahead.player import Player

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
NEVER = 1e15


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """What does not change while it is played."""

    numbers: Floats  # (J,)
    accounts: Integers  # (J,)
    weights: Floats  # (J,) of the accounts
    priorities: Floats  # (J,)
    counts: Integers  # (J, C); 0 where a job has fewer
    steps: Integers  # (J, C) devices from one count to the next; 0 where there is none
    seconds: Floats  # (J, C) median time of all that is left now; NEVER where there is none
    restarts: Floats  # (J,)
    ages: Floats  # (J,)
    done: Floats  # (J,)
    shares: Floats  # (J,)
    sigmas: Floats  # (J,)
    waited: Floats  # (J,) terms that it has been passed over
    unrepaid: Floats  # (J,) seconds until it may be moved
    doubts: Floats  # (J, C) sigma of what is not known of that count alone
    movable: Flags  # (J,)
    stoppable: Flags  # (J,)

    @property
    def resizable(self) -> Flags:
        """(J,) who may run on several counts."""
        found: Flags = (self.counts > 0).sum(axis=1) > 1
        return found

    def only(self, kept: Flags) -> Cast:
        """Those columns only."""
        names = Cast.__dataclass_fields__
        return replace(self, **{name: getattr(self, name)[kept] for name in names})


def make_cast(players: Sequence[Player], devices: int, *, gangs: bool) -> Cast:
    """Arrays of players.

    Args:
        players: at least one.
        devices: of the cluster; larger counts are left out, apart from the smallest and what is held.
        gangs: each runs on its largest count or on what it holds.
    """
    counts = [_playable(player, devices, gangs=gangs) for player in players]
    width = max(map(len, counts))
    table = np.zeros((len(players), width), dtype=np.int64)
    seconds = np.full((len(players), width), NEVER)
    doubts = np.zeros((len(players), width))
    for j, (player, known) in enumerate(zip(players, counts, strict=True)):
        table[j, : len(known)] = known
        by_count = dict(zip(player.counts, player.seconds, strict=True))
        seconds[j, : len(known)] = [by_count[n] for n in known]
        if player.doubts:
            doubt_of = dict(zip(player.counts, player.doubts, strict=True))
            doubts[j, : len(known)] = [doubt_of[n] for n in known]
    steps = np.where(table > 0, np.diff(table, axis=1, prepend=0), 0)
    names = {name: at for at, name in enumerate(sorted({player.account for player in players}))}
    return Cast(
        numbers=np.array([float(p.number) for p in players]),
        accounts=np.array([names[p.account] for p in players], dtype=np.int64),
        weights=np.array([p.weight for p in players]),
        priorities=np.array([p.priority for p in players]),
        counts=table,
        steps=steps,
        seconds=seconds,
        restarts=np.array([p.restart_seconds for p in players]),
        ages=np.array([p.age_seconds for p in players]),
        done=np.array([p.fraction_done for p in players]),
        shares=np.array([max(p.share, 1e-3) for p in players]),
        sigmas=np.array([p.sigma_log for p in players]),
        waited=np.array([float(p.passed_over) for p in players]),
        unrepaid=np.array([p.unrepaid_seconds for p in players]),
        doubts=doubts,
        movable=np.array([p.movable for p in players]),
        stoppable=np.array([p.stoppable for p in players]),
    )


def _playable(player: Player, devices: int, *, gangs: bool) -> tuple[int, ...]:
    fitting = [n for n in player.counts if n <= devices or n == player.held] or [player.counts[0]]
    if player.held and (gangs or not player.movable):
        return (player.held,)
    if gangs:
        return (fitting[-1],)
    return tuple(fitting)
