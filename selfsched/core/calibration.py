"""Scores of past forecasts make later intervals wider or narrower.

A forecast that is over has a place in its own interval: `z`, how many of its standard
deviations (of the logarithm, from its 10 and 90 % points) what came lay off its median. If
intervals are right, 80 % of them lie within 1.28. The width that would have made it so on the
past runs is what the next interval is multiplied by: split conformal prediction (Vovk,
Gammerman, Shafer, "Algorithmic Learning in a Random World", 2005), drawn to `USUAL` while few
runs speak, since those of one run are of a kind, and never below `NARROWEST` or above `WIDEST`.

Each run speaks by a few forecasts spread over its work, so that a long one has no more to
say than a short one; the newest `KEPT_RUNS` are kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from selfsched.core.forecast import LoggedForecast, Remaining

Z80 = 1.2815515655446004
"""80 % of a normal distribution lie within so many standard deviations."""
USUAL = 0.88
"""The width that made 80 % of the intervals hold on replayed runs (`bench.forecast`, seeds from 1000)."""
NARROWEST = 0.5
WIDEST = 3.0
KEPT_RUNS = 40
SPEAKING = (0.1, 0.25, 0.5, 0.75)
"""A run speaks by its forecasts nearest to these parts of its work."""
DOUBTING_RUNS = 6.0
"""The built-in width weighs as many runs."""
LOOKED_BACK = (0.1, 0.3, 1.0)
"""This run's forecasts of so long ago, in units of what is left, are held against the newest."""
DOUBT = 3.0
"""The built-in width weighs as many of them."""
LEAST_SIGMA = 0.003
"""An interval is taken to be at least so wide (log)."""


def place(p10_seconds: float, p50_seconds: float, p90_seconds: float, actual_seconds: float) -> float | None:
    """Where what came lies in the interval, in standard deviations; None where that says nothing."""
    if min(p50_seconds, actual_seconds) <= 0 or not math.isfinite(actual_seconds):
        return None
    off = math.log(actual_seconds) - math.log(p50_seconds)
    far, near = (p90_seconds, p50_seconds) if off > 0 else (p50_seconds, p10_seconds)
    sigma = (math.log(max(far, 1e-9)) - math.log(max(near, 1e-9))) / Z80
    return off / max(sigma, LEAST_SIGMA)


@dataclass
class Calibration:
    """What past runs teach about the width of intervals."""

    runs: list[list[float]] = field(default_factory=list)
    """Of each run: |z| of the forecasts by which it speaks, made with a width of 1."""

    def ended(self, forecasts: Iterable[tuple[float, float]]) -> None:
        """A run is over.

        Args:
            forecasts: (part of the work done, z) of its forecasts, made with a width of 1.
        """
        made = [(done, abs(z)) for done, z in forecasts if math.isfinite(z)]
        if not made:
            return
        nearest = [min(made, key=lambda one: abs(one[0] - at)) for at in SPEAKING]
        self.runs = [*self.runs[1 - KEPT_RUNS :], list(dict(nearest).values())]

    @property
    def width(self) -> float:
        """What an interval is to be multiplied by (log); `USUAL` before any run was over."""
        if not self.runs:
            return USUAL
        seen = quantile([(z, 1.0 / len(run)) for run in self.runs for z in run], 0.8) / Z80
        trust = len(self.runs) / (len(self.runs) + DOUBTING_RUNS)
        log = trust * math.log(max(seen, 1e-3)) + (1.0 - trust) * math.log(USUAL)
        return min(max(math.exp(log), NARROWEST), WIDEST)

    def to_state(self) -> list[list[float]]:
        return self.runs

    @classmethod
    def from_state(cls, state: Any) -> Calibration:
        """What `to_state` gave.

        Raises:
            ValueError, TypeError: it is no scores.
        """
        runs = [[abs(float(z)) for z in run] for run in state]
        if not all(math.isfinite(z) for run in runs for z in run):
            raise ValueError("a score that is no number")
        return cls(runs=[run for run in runs if run][-KEPT_RUNS:])


def surprise(entries: Sequence[LoggedForecast], left: Remaining, now: float) -> float:
    """How much wider or narrower an interval should be, by what this run's earlier forecasts expected.

    Each forecast is a guess of the same end: if intervals are right, it moves from then to now
    by no more than the doubt that went in between.

    Args:
        entries: earlier forecasts of this run on these devices, oldest first.
        left: the present one, of width 1.
        now: on the clock of the entries.
    """
    squares, count = 0.0, 0
    for back in LOOKED_BACK:
        at = now - back * left.median_seconds
        old = [entry for entry in entries if entry.made_at <= at]
        if not old:
            break
        entry = old[-1]
        passed = now - entry.made_at
        then = entry.sigma_log / (entry.width * entry.surprise)
        still = left.sigma_log * left.median_seconds / max(passed + left.median_seconds, 1e-9)
        moved = math.log(max(passed + left.median_seconds, 1e-9) / max(entry.p50_seconds, 1e-9))
        squares += moved**2 / max(then**2 - still**2, (0.3 * then) ** 2, LEAST_SIGMA**2)
        count += 1
    return min(max(NARROWEST, math.sqrt((squares + DOUBT) / (count + DOUBT))), WIDEST)


def quantile(weighted: Sequence[tuple[float, float]], fraction: float) -> float:
    """The value below which such a part of the weight lies."""
    ordered = sorted(weighted)
    goal = fraction * math.fsum(weight for _, weight in ordered)
    below = 0.0
    for value, weight in ordered:
        below += weight
        if below >= goal:
            return value
    return ordered[-1][0]
