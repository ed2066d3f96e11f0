"""From forecast and restart cost to the standing bid, and the reasons in words.

The bid says in time what each placement would bring: the broker turns times into value and
drops what does not pay for its move. A job that has not measured anything says so with
empty rows and gets a visit; it claims nothing without evidence.

What a move costs is the business of `restart_cost`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from selfsched.core.forecast import Remaining
from selfsched.core.performance import StepTime
from selfsched.protocol import MAX_SECONDS, BidRow, Placement, StandingBid

UNKNOWN_END_SECONDS = 14_400.0
"""What stands in for the remaining time of a run without any limit, on its reference count."""
MAX_DOUBT = 3.0
"""Beyond it a log-normal's mean says nothing of it any more."""
LIMITING_SHARE = 0.1
"""A part of a step that is worth a word."""


def standing_bid(
    counts: Sequence[int],
    *,
    remaining: Callable[[int], Remaining | None],
    restart_seconds: Callable[[int], float],
    peak_bytes: Callable[[int], int | None],
    end_is_unknown: bool,
    doubt: Callable[[int], float] = lambda count: 0.0,
) -> StandingBid:
    """The table of what each device count would bring.

    Args:
        counts: allowed device counts, at least one.
        remaining: time to the end on a count, without the restart; None: not measured yet.
        restart_seconds: cost of moving to a count.
        peak_bytes: memory that a device needs on a count, as far as is known.
        end_is_unknown: the limit is an upper bound, or there is none.
        doubt: standard deviation (log) of what a visit to a count would make known of its steps.
    """
    chosen = sorted(set(counts))[:256]
    lefts = {count: remaining(count) for count in chosen}
    costs = {
        count: left.median_seconds + restart_seconds(count)
        for count, left in lefts.items()
        if left is not None
    }
    rows = []
    for count in chosen:
        left = lefts[count]
        others = [cost for other, cost in costs.items() if other != count]
        rows.append(
            BidRow(
                placement=Placement(devices=count, nodes=1),
                remaining_seconds=None if left is None else left.quantile(0.0),
                sigma_log=0.0 if left is None else min(left.sigma_log, 20.0),
                restart_seconds=restart_seconds(count),
                peak_bytes_per_device=peak_bytes(count),
                information_seconds=visit_worth(costs.get(count), doubt(count), min(others, default=None)),
            )
        )
    return StandingBid(rows=tuple(rows), end_is_unknown=end_is_unknown)


def visit_worth(there: float | None, doubt: float, best: float | None) -> float:
    """What it is worth to measure a placement before choosing one, in seconds.

    The expected value of perfect information (Howard, "Information value theory", 1966): after a
    visit the job takes the better of X, what it saw there, and `best`; without one it takes
    what is better on average. With X log-normal:

        E[(best - X)+] - (best - E[X])+
        E[(best - X)+] = best F(d) - E[X] F(d - doubt),  d = (ln best - ln there) / doubt

    F the standard normal distribution. It is largest where the two are thought about equal.

    Args:
        there: median seconds to the end with that placement, its restart included; None: unknown.
        doubt: standard deviation of the logarithm that a visit would take away.
        best: seconds to the end with the best of the other placements; None: there is no other.
    """
    if there is None or best is None or doubt <= 0 or there <= 0 or best <= 0:
        return 0.0
    doubt = min(doubt, MAX_DOUBT)
    mean = there * math.exp(0.5 * doubt**2)
    level = (math.log(best) - math.log(there)) / doubt
    gain = best * _normal(level) - mean * _normal(level - doubt)
    return min(max(0.0, gain - max(0.0, best - mean)), MAX_SECONDS)


def _normal(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The model of a run for a reader: parts, points, curve, words."""

    devices: int
    parts: Mapping[str, float]
    """Seconds of a step on the present devices, by part."""
    measured: tuple[StepTime, ...]
    curve: tuple[StepTime, ...]
    """Predicted step on each allowed count; the band is `quantile(-z)` to `quantile(z)`."""
    steps: Mapping[int, int]
    """Steady steps on each measured count."""
    restart_parts: Mapping[str, float]
    words: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain values for a report or a picture; the band is 10 to 90 %."""
        return {
            "devices": self.devices,
            "parts": dict(self.parts),
            "measured": [_point(step) | {"steps": self.steps.get(step.devices, 0)} for step in self.measured],
            "curve": [_point(step) for step in self.curve],
            "restart_parts": dict(self.restart_parts),
            "words": list(self.words),
        }


def _point(step: StepTime) -> dict[str, Any]:
    return {
        "devices": step.devices,
        "seconds": step.seconds,
        "low_seconds": step.quantile(-1.2815515655446004),
        "high_seconds": step.quantile(1.2815515655446004),
        "measured": step.measured,
    }


def duration_words(seconds: float) -> str:
    """A duration as people say it: `42 s`, `3 min 10 s`, `2 h 05 min`, `3 d 4 h`."""
    if seconds < 10:
        return f"{seconds:.2g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 172_800:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def limit_words(
    parts: Mapping[str, float], devices: int, cycle_seconds: float | None = None
) -> tuple[str, ...]:
    """What keeps a step from scaling, where it is a tenth of it or more.

    Args:
        parts: seconds of a step by part, as far as they are known.
        devices: on which they were measured.
        cycle_seconds: of the whole step, with what no part is known of (manual optimisation);
            None: the parts are all of it.
    """
    whole = cycle_seconds if cycle_seconds is not None else math.fsum(parts.values())
    if whole <= 0:
        return ()
    remedies = {
        "communication": ("Communication", "more devices add to it; a larger batch or accumulation helps"),
        "data": ("Waiting for data", "more loader workers may shorten it"),
        "other": ("What is outside forward and backward", "callbacks and logging, which do not scale"),
    }
    return _large_shares(remedies, parts, whole, f"a step on {devices_words(devices)}")


def aside_words(seconds: Mapping[str, float], whole_seconds: float) -> tuple[str, ...]:
    """What besides the steps takes a tenth of a run or more, and more devices do not shorten.

    Args:
        seconds: of all validations (`validation`) and checkpoints (`checkpoint_save`) so far.
        whole_seconds: of the training so far, these included.
    """
    if whole_seconds <= 0:
        return ()
    remedies = {
        "validation": ("Validation", "val_check_interval or limit_val_batches make it less"),
        "checkpoint_save": ("Saving checkpoints", "every_n_epochs makes them fewer"),
    }
    return _large_shares(remedies, seconds, whole_seconds, "the training so far")


def _large_shares(
    remedies: Mapping[str, tuple[str, str]], seconds: Mapping[str, float], whole_seconds: float, whole: str
) -> tuple[str, ...]:
    """The parts (name in words, remedy) that are a tenth of a whole or more, the largest first."""
    shares = {name: min(1.0, seconds.get(name, 0.0) / whole_seconds) for name in remedies}
    return tuple(
        f"{remedies[name][0]} is {share:.0%} of {whole}: {remedies[name][1]}."
        for name, share in sorted(shares.items(), key=lambda item: -item[1])
        if share >= LIMITING_SHARE
    )


def devices_words(count: int) -> str:
    """`1 device`, `4 devices`."""
    return "1 device" if count == 1 else f"{count} devices"


def saving_words(
    here: Remaining, others: Mapping[int, tuple[Remaining, float]], *, in_hindsight: bool = False
) -> tuple[str, ...]:
    """What other device counts would bring, or would have brought, in words.

    Args:
        here: time to the end as things are.
        others: for each other count, time to the end there and the restart before it.
        in_hindsight: the run is over; times are those of the whole run.
    """
    words = []
    taken = duration_words(here.median_seconds)
    whole = taken if in_hindsight else f"the {taken} that are left"
    for count in sorted(others):
        there, restart = others[count]
        saved = here.median_seconds - there.median_seconds - restart
        name = devices_words(count)
        doubt = ", with little certainty" if math.hypot(here.sigma_log, there.sigma_log) > 0.35 else ""
        amount = duration_words(abs(saved))
        if abs(saved) < 0.02 * here.median_seconds:
            change, tail = ("changed" if in_hindsight else "change"), " nothing"
        elif saved > 0:
            change = "saved" if in_hindsight else "save"
            tail = f" {amount} of {whole}"
        else:
            change, tail = "cost", f" {amount} on top of {whole}"
        have = "have " if in_hindsight else ""
        words.append(f"{name} would {have}{change}{tail}{doubt}.")
    return tuple(words)
