"""When a job reports, what it says, and how long it lets the broker hold the answer.

A report renews the leases and carries what changed; its answer is held back by the broker
until something changed (a long poll). So normally one report is open at any time. A second
one overtakes it when the job has news that should not wait: the broker answers the first at
once, because a newer sequence came.

How long a wait may be follows from the rest of the ttl: a third of it, so that an answer that
gets lost leaves time for two more tries. A broker that fails is asked again after growing
waits, each shortened by its own fraction, so that the jobs that a broker lost together do not
come back together. The fractions are the multiples of the golden ratio, which spread evenly
from any start (Knuth, TAOCP 3, 6.4, theorem S), and are the same in each replay.
"""

from __future__ import annotations

from dataclasses import dataclass

from selfsched.protocol import BidRow, Forecast, Placement, StandingBid, StepStatistics

LONGEST_WAIT_SECONDS = 10.0
LEAST_GAP_SECONDS = 0.25
"""Between two reports, whatever happens."""
NEWS_GAP_SECONDS = 3.0
"""Between two reports that were sent because the bid drifted."""
OVERDUE_SECONDS = 7.0
"""Beyond the wait: then an answer counts as lost. Longer than the client's own time-outs."""
STATISTICS_SECONDS = 60.0
LEAST_WIDTH, MOST_WIDTH = 0.01, 100.0
"""Of an interval's recalibration, as the protocol takes it."""
WORTH_SENDING = 0.02
"""Relative change of a bid below which it is not sent again ..."""
WORTH_INTERRUPTING = 0.10
"""... and above which it does not wait for the next report."""
SHORT_SECONDS = 10.0
"""Changes of times shorter than this are measured against this."""
_FIRST_RETRY_SECONDS = 0.5
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """What the job's own model says at this moment."""

    step: int = 0
    planned_steps: int | None = None
    fraction_done: float = 0.0
    steady_steps: int = 0
    is_stepping: bool = False
    """The running segment has made a step."""
    notice_seconds: float = 0.0
    idle_seconds: float = 0.0
    bid: StandingBid | None = None
    allowed_devices: tuple[int, ...] | None = None
    """None until the script's fit is known."""
    forecast: Forecast | None = None
    forecast_width: float = 1.0
    """By what past scores made its interval wider or narrower."""
    statistics: tuple[StepStatistics, ...] = ()


def bid_change(told: StandingBid | None, new: StandingBid | None, elapsed_seconds: float) -> float:
    """How much a bid differs from one told earlier, as a fraction.

    Args:
        told: what the broker knows; None: nothing.
        new: what the model says now; None: nothing to say.
        elapsed_seconds: since `told`; remaining times are expected to shrink by it.

    Returns:
        0 for what the broker would expect anyway, infinity for rows that are new or became
        known.
    """
    if new is None or new == told:
        return 0.0
    if told is None:
        return float("inf")
    known = {row.placement: row for row in told.rows}
    if known.keys() != {row.placement for row in new.rows} or told.end_is_unknown != new.end_is_unknown:
        return float("inf")
    return max(_row_change(known[row.placement], row, elapsed_seconds) for row in new.rows)


def _row_change(told: BidRow, new: BidRow, elapsed_seconds: float) -> float:
    if (told.remaining_seconds is None) != (new.remaining_seconds is None):
        return float("inf")
    if told.remaining_seconds is None or new.remaining_seconds is None:
        return 0.0
    expected = max(0.0, told.remaining_seconds - elapsed_seconds)
    scale = max(expected, SHORT_SECONDS)
    return max(
        abs(new.remaining_seconds - expected) / scale,
        abs(new.restart_seconds - told.restart_seconds) / scale,
        abs(new.sigma_log - told.sigma_log),
    )


def is_measured(bid: StandingBid | None) -> bool:
    """Whether a bid says of any placement how long the job would need."""
    return bid is not None and any(row.remaining_seconds is not None for row in bid.rows)


def unmeasured_bid(allowed: tuple[int, ...]) -> StandingBid:
    """The bid of a job that knows nothing of its speed yet."""
    rows = (BidRow(placement=Placement(devices=count), remaining_seconds=None) for count in allowed[:256])
    return StandingBid(rows=tuple(rows), end_is_unknown=False)


def wait_seconds(next_report_seconds: float, rest_of_ttl_seconds: float) -> float:
    """How long the broker may hold back its answer.

    Args:
        next_report_seconds: what it last asked for.
        rest_of_ttl_seconds: until the first lease of the job ends by its own count; infinite
            when it holds none.
    """
    return max(0.0, min(next_report_seconds, LONGEST_WAIT_SECONDS, rest_of_ttl_seconds / 3))


def retry_seconds(failures: int, *, longest_seconds: float, phase: float) -> float:
    """How long to wait after the n-th failure in a row.

    Args:
        failures: so many, at least 1.
        longest_seconds: never longer.
        phase: in [0, 1), different for each job.
    """
    grown = min(longest_seconds, _FIRST_RETRY_SECONDS * 2.0 ** min(failures - 1, 20))
    return grown * (0.5 + 0.5 * ((phase + failures * _GOLDEN) % 1.0))
