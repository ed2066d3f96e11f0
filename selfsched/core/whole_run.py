"""How long a run that has not begun may take on each device count, from what a person can say of it.

Who asks "when would it be done, if I started it now" knows at most how long such a run takes on some
devices, or a job that was like it. From the first, times on other counts follow by a power of the devices:
speed goes with devices^0.85, between a run that does not scale (0) and one that scales perfectly (1); how
far that may be off grows with the logarithm of the devices. From the second, its own standing bid says
what is left on each count: over the part that is left, it is the whole run. Of one that has ended little or
nothing is left: then the time that it held devices is its run, and the bid tells by how much each count is
faster than another.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from selfsched.core.bidding import duration_words
from selfsched.errors import Refused
from selfsched.protocol import MAX_SECONDS, JobState, JobView

SPEED_EXPONENT = 0.85
EXPONENT_SIGMA = 0.3
"""Standard deviation of the exponent from one program to the next (docs/look-ahead.md)."""
MOST_COUNTS = 8
"""Device counts of one question (`protocol.WhatIf`)."""
LEAST_LEFT = 0.02
"""With less of a run left, what is left says nothing of the whole."""
MOST_DOUBT = 4.0
LEAST_DONE = 0.05
"""Of a run that ended with less of it done, what was done says nothing of the whole."""
_ADVICE = "say how many hours it takes"

Times = tuple[tuple[int, float], ...]
"""Seconds of a whole run on each device count, ascending."""
Doubts = tuple[tuple[int, float], ...]
"""For each device count, the standard deviation of the logarithm of what is not known of it alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeRun:
    """A run that has not begun, as `protocol.WhatIf` has it."""

    times: Times
    doubts: Doubts
    """Of the same counts."""

    def possible(self, asked: Sequence[int]) -> tuple[int, ...]:
        """Those of some counts that it may have, each once."""
        known = dict(self.times)
        return tuple(n for n in dict.fromkeys(asked) if n in known)

    def counts_words(self) -> str:
        """Why others than those are not asked about."""
        known = ", ".join(str(n) for n, _ in self.times)
        return f"such a job may have these device counts only: {known}"


def run_by_hours(hours: float, on: int, most: int, asked: Sequence[int] = ()) -> WholeRun:
    """A run that takes so long on some devices: see `times_by_hours`.

    Raises:
        Refused: not a length, or fewer devices than it was said for.
    """
    times = times_by_hours(hours, on, most, asked)
    return WholeRun(times=times, doubts=doubts_by_hours(times, on))


def run_like(job: JobView) -> WholeRun:
    """A run like this one: see `times_like`.

    Raises:
        Refused: nothing tells how long its run takes.
    """
    times = times_like(job)
    return WholeRun(times=times, doubts=doubts_like(job, times))


def times_by_hours(hours: float, on: int, most: int, asked: Sequence[int] = ()) -> Times:
    """Of a run that takes so long on some devices, by the usual scaling.

    Args:
        hours: it takes.
        on: devices on which it does.
        most: it may have, at least `on`.
        asked: counts up to `most` that must be among them, as far as there is room.

    Raises:
        Refused: not a length, or fewer devices than it was said for.
    """
    if not 0 < hours <= MAX_SECONDS / 3600:
        raise Refused(f"a run takes more than 0 and at most {MAX_SECONDS / 3600:.0f} hours, not {hours:g}")
    if most < on:
        raise Refused(f"a most of {most} devices is fewer than the {on} that its hours are for")
    first = [on, *(n for n in asked if n <= most), *_spread(most)]
    counts = sorted(list(dict.fromkeys(first))[:MOST_COUNTS])
    return tuple((n, min(hours * 3600 * (on / n) ** SPEED_EXPONENT, MAX_SECONDS)) for n in counts)


def _spread(most: int) -> Sequence[int]:
    if most < MOST_COUNTS:
        return range(1, most + 1)
    # One is left for the count that the hours are for.
    return [round(1 + at * (most - 1) / (MOST_COUNTS - 2)) for at in range(MOST_COUNTS - 1)]


def doubts_by_hours(times: Times, on: int) -> Doubts:
    """How far each time of `times_by_hours` may be off because nobody knows how the run scales.

    Args:
        times: of each device count.
        on: devices for which the hours were said; there nothing is in doubt.
    """
    return tuple((n, EXPONENT_SIGMA * abs(math.log(n / on))) for n, _ in times)


def times_like(job: JobView) -> Times:
    """Of a run like this one: from what its bid says is left, or from what it held where it has ended.

    Raises:
        Refused: nothing tells how long its run takes.
    """
    left = 1.0 - job.fraction_done
    if left < LEAST_LEFT and job.state is not JobState.ENDED:
        raise Refused(
            f"{job.name} is {job.fraction_done:.0%} done: what is left of it does not say how long its whole "
            f"run takes; ask again when it has ended, or {_ADVICE}"
        )
    remaining = _remaining_seconds(job)
    if left >= LEAST_LEFT and remaining:
        return _some({n: seconds / left for n, seconds in remaining.items()})
    if job.state is not JobState.ENDED:
        raise Refused(f"{job.name} has not measured itself: how long its run takes is not known; {_ADVICE}")
    held = _held_seconds(job)
    if not held:
        raise Refused(f"{job.name} never had a device: how long its run takes is not known; {_ADVICE}")
    if job.fraction_done < LEAST_DONE:
        raise Refused(f"{job.name} did not get far enough to say how long its run takes; {_ADVICE}")
    return _some(_whole_seconds(held, remaining, job.fraction_done))


def doubts_like(job: JobView, times: Times) -> Doubts:
    """How far each time of `times_like` may be off besides what is not known of all: by its bid."""
    sigmas = {row.placement.devices: row.sigma_log for row in (job.bid.rows if job.bid else ())}
    least = min(sigmas.values(), default=0.0)
    alone = ((n, math.sqrt(sigmas.get(n, least) ** 2 - least**2)) for n, _ in times)
    return tuple((n, min(sigma, MOST_DOUBT)) for n, sigma in alone)


def _remaining_seconds(job: JobView) -> dict[int, float]:
    """What the job said is left on each count, on the best of its placements."""
    best: dict[int, float] = {}
    for row in job.bid.rows if job.bid else ():
        if row.remaining_seconds is not None:
            n = row.placement.devices
            best[n] = min(best.get(n, MAX_SECONDS), row.remaining_seconds)
    return best


def _held_seconds(job: JobView) -> dict[int, float]:
    """How long it had how many devices, without the start of each stretch."""
    restart = max((row.restart_seconds for row in (job.bid.rows if job.bid else ())), default=0.0)
    held: dict[int, float] = defaultdict(float)
    for span in job.history:
        if span.to_seconds is not None:
            seconds = span.to_seconds - span.from_seconds
            # A start is never taken for more than half of a stretch: the job did run there.
            held[len(span.devices)] += max(seconds - restart, seconds / 2)
    return {n: seconds for n, seconds in held.items() if seconds > 0}


def _whole_seconds(
    held: Mapping[int, float], remaining: Mapping[int, float], fraction_done: float
) -> dict[int, float]:
    """Of the whole run on each count that it bid for, or else had.

    Args:
        held: seconds that it ran on each count.
        remaining: what it last said is left on each; only their ratios matter.
        fraction_done: in all that time.
    """
    speeds = {n: 1 / seconds for n, seconds in remaining.items() if seconds > 0}
    if not speeds:
        speeds = {n: n**SPEED_EXPONENT for n in held}
    work = sum(seconds * _speed_on(speeds, n) for n, seconds in held.items()) / fraction_done
    return {n: work / speed for n, speed in speeds.items()}


def _speed_on(speeds: Mapping[int, float], devices: int) -> float:
    """As on the nearest count, and from there with the devices."""
    nearest = min(speeds, key=lambda n: abs(n - devices))
    wider: float = (devices / nearest) ** SPEED_EXPONENT
    return speeds[nearest] * wider


def _some(seconds: Mapping[int, float]) -> Times:
    """No more than can be asked in one question."""
    counts = sorted(seconds)
    if len(counts) > MOST_COUNTS:
        counts = [counts[round(at * (len(counts) - 1) / (MOST_COUNTS - 1))] for at in range(MOST_COUNTS)]
    return tuple((n, min(seconds[n], MAX_SECONDS)) for n in counts)


def times_words(times: Times) -> str:
    """`2 h 00 min on 1 device, 20 min 29 s on 8`: the first, and the last where there are several."""
    (first, seconds), (last, fewest_seconds) = times[0], times[-1]
    told = f"{duration_words(seconds)} on {first} {'device' if first == 1 else 'devices'}"
    return told if first == last else f"{told}, {duration_words(fewest_seconds)} on {last}"
