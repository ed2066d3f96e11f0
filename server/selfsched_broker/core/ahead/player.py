"""A job as the look-ahead plays it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from selfsched_broker.core.ahead.draws import Z90


@dataclass(frozen=True, kw_only=True, slots=True)
class Player:
    """One job as it is played. Seconds."""

    job: str
    number: int
    account: str
    weight: float
    """Of its account."""
    priority: float = 1.0
    counts: tuple[int, ...]
    """Device counts, ascending."""
    seconds: tuple[float, ...]
    """Median time to its end on each, from now."""
    low: float = 1.0
    """10 % quantile over the median."""
    high: float = 1.0
    """90 % quantile over the median."""
    held: int = 0
    """One of the counts, or 0."""
    restart_seconds: float = 0.0
    starting_seconds: float = 0.0
    """Until its first step on what it holds."""
    age_seconds: float = 0.0
    fraction_done: float = 0.0
    share: float = 0.0
    """Over its life, in devices."""
    movable: bool = True
    """False: it goes on at its size."""
    stoppable: bool = True
    """False: keeps what it has to its end."""
    passed_over: int = 0
    """Ticks at which it wanted devices and got none."""
    unrepaid_seconds: float = 0.0
    """Until its last move is repaid, and it may be moved again."""
    doubts: tuple[float, ...] = ()
    """For each count, the standard deviation of the logarithm of what is not known of that count
    alone. Empty: nothing."""
    known: bool = True
    """False: it has not measured itself; its times are a guess."""
    is_stand_in: bool = False
    """Nothing is known at all: its times only keep the place of some, and its end is not told."""

    @property
    def sigma_log(self) -> float:
        return math.log(max(self.high, 1.0)) / Z90


def time_on(times: Mapping[int, float], count: int) -> float:
    """Time on a count; on one that was not bid for as on the nearest below, or in proportion."""
    below = [n for n in times if n <= count]
    return times[max(below)] if below else times[min(times)] * min(times) / count


def doubt_on(player: Player, count: int) -> float:
    """What is not known of a count by itself; of one that was not bid for, as of the nearest."""
    nearest = min(range(len(player.counts)), key=lambda at: abs(player.counts[at] - count))
    return player.doubts[nearest]
