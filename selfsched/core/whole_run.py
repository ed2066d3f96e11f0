"""How long a run that has not begun may take on each device count, from what a person can say of it.

Who asks "when would it be done, if I started it now" knows at most how long such a run takes on some
devices, or a job that was like it. From the first, times on other counts follow by a power of the devices:
speed goes with devices^0.85, between a run that does not scale (0) and one that scales perfectly (1). From
the second, its own standing bid says what is left on each count: over the part that is left, it is the
whole run.
"""

from __future__ import annotations

from collections.abc import Sequence

from selfsched.core.bidding import duration_words
from selfsched.errors import Refused
from selfsched.protocol import MAX_SECONDS, JobView

SPEED_EXPONENT = 0.85
MOST_COUNTS = 8
"""Device counts of one question (`protocol.WhatIf`)."""
LEAST_LEFT = 0.02
"""With less of a run left, what is left says nothing of the whole."""

Times = tuple[tuple[int, float], ...]
"""Seconds of a whole run on each device count, ascending."""


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
        raise Refused(f"--hours {hours:g}: hours are more than 0 and at most {MAX_SECONDS / 3600:.0f}")
    if most < on:
        raise Refused(f"--most {most} is fewer than --on {on}: it must be allowed what its hours are for")
    first = [on, *(n for n in asked if n <= most), *_spread(most)]
    counts = sorted(list(dict.fromkeys(first))[:MOST_COUNTS])
    return tuple((n, min(hours * 3600 * (on / n) ** SPEED_EXPONENT, MAX_SECONDS)) for n in counts)


def _spread(most: int) -> Sequence[int]:
    if most < MOST_COUNTS:
        return range(1, most + 1)
    # One is left for the count that the hours are for.
    return [round(1 + at * (most - 1) / (MOST_COUNTS - 2)) for at in range(MOST_COUNTS - 1)]


def times_like(job: JobView) -> Times:
    """Of a run like this one, from its bid: what is left on each count over the part that is left.

    Raises:
        Refused: it has bid for nothing that it measured, or is as good as done.
    """
    left = 1.0 - job.fraction_done
    if left < LEAST_LEFT:
        raise Refused(
            f"{job.name} is {job.fraction_done:.0%} done: what is left of it does not say how long its whole "
            "run takes; say it with --hours"
        )
    best: dict[int, float] = {}
    for row in job.bid.rows if job.bid else ():
        if row.remaining_seconds is not None:
            n = row.placement.devices
            best[n] = min(best.get(n, MAX_SECONDS), row.remaining_seconds / left)
    if not best:
        raise Refused(f"{job.name} has not measured itself: how long its run takes is not known; use --hours")
    counts = sorted(best)
    if len(counts) > MOST_COUNTS:
        counts = [counts[round(at * (len(counts) - 1) / (MOST_COUNTS - 1))] for at in range(MOST_COUNTS)]
    return tuple((n, best[n]) for n in counts)


def times_words(times: Times) -> str:
    """`2 h 00 min on 1 device, 20 min 29 s on 8`: the first, and the last where there are several."""
    (first, seconds), (last, fewest_seconds) = times[0], times[-1]
    told = f"{duration_words(seconds)} on {first} {'device' if first == 1 else 'devices'}"
    return told if first == last else f"{told}, {duration_words(fewest_seconds)} on {last}"
