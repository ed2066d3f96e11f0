"""What an account has claimed, held against what its jobs then took: a few numbers that outlive jobs.

**Of one job**, a `Tally`. The first time it claims for each placement, in seconds of the whole run, is
kept. Every second that it then runs there uses up 1 / (claimed seconds) of what it said it would need,
and by its reports it gets a fraction of its work done. With true claims the two grow alike. When it ends,
for each placement it ran on,

    x = log(used / done)

is by how much it took longer than it had said: 0.7 twice as long, -0.7 half as long. Later claims cannot
mend it, and where a job has finished neither can progress that was told too early: its whole work is
done, and the time was the broker's.

**Of an account**, a `TrackRecord`: a line through the x of its jobs, x = level + slope z, with z the
logarithm of the devices over the smallest count the job bid for. The level is by how much its jobs take
longer in all, the slope by how much worse they scale than it says. Each x weighs s / (s + 300) for s
seconds seen; half a job's weight of belief in claims (level, slope 0; spread 0.1) is there from the
start. What is old is forgotten: half of it over 30 days, and what lies some 20 observations back.

**What follows.** All times that an account claims are multiplied with e^(level + slope z), at most 8 and
at least 1/2, and are as sure as the spread says. From a job's first steps on, its own pace corrects this
(`metering`). An account without a record is believed. Jobs whose end is unknown claim nothing, and
leave no trace here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from selfsched.protocol import BidRow, JobState, Placement, StandingBid

PRIOR_WEIGHT = 0.5
"""So many jobs' worth of belief in claims."""
PRIOR_SPREAD = 0.1
SEEN_SECONDS = 300.0
"""A job seen for so long counts half."""
FORGOTTEN_SECONDS = 30 * 86_400.0
"""After so long half of a record is left."""
FORGOTTEN_JOBS = 20.0
MOST_FACTOR, LEAST_FACTOR = 8.0, 0.5
MOST_LOG = math.log(50.0)
"""No job counts for more than that it was wrong by a factor of 50."""
LEAST_SECONDS, LEAST_DONE = 20.0, 0.02
"""Jobs of which less was seen tell nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What became of a job's claim for one placement."""

    placement: Placement
    claimed_seconds: float
    """Of the whole run there, as claimed first."""
    used: float = 0.0
    """How much of that time it has run there."""
    done: float = 0.0
    """The fraction of its work done meanwhile."""
    seconds: float = 0.0

    @property
    def log_ratio(self) -> float | None:
        """x; None where too little was seen."""
        if self.seconds < LEAST_SECONDS or self.done < LEAST_DONE or self.used <= 0:
            return None
        return min(max(math.log(self.used / self.done), -MOST_LOG), MOST_LOG)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tally:
    """What one job claimed first, and what became of it."""

    runs: tuple[Run, ...] = ()

    def heard(self, bid: StandingBid | None, fraction: float) -> Tally:
        """With a bid's rows for placements that had none."""
        if bid is None or bid.end_is_unknown or fraction >= 1 or len(bid.rows) <= len(self.runs):
            return self
        known = {run.placement for run in self.runs}
        new = tuple(
            Run(placement=row.placement, claimed_seconds=row.remaining_seconds / (1 - fraction))
            for row in bid.rows
            if row.remaining_seconds and row.placement not in known
        )
        return replace(self, runs=self.runs + new) if new else self

    def ran(self, here: Placement | None, seconds: float, done: float) -> Tally:
        """After further seconds on a placement in which a fraction got done."""
        if here is None or seconds <= 0:
            return self
        fitting = [at for at, run in enumerate(self.runs) if _is_for(run.placement, here)]
        if not fitting:
            return self
        at = min(fitting, key=lambda at: abs(self.runs[at].placement.nodes - here.nodes))
        run = self.runs[at]
        told = replace(
            run,
            used=run.used + seconds / run.claimed_seconds,
            done=run.done + done,
            seconds=run.seconds + seconds,
        )
        return replace(self, runs=(*self.runs[:at], told, *self.runs[at + 1 :]))

    def observations(self) -> list[tuple[float, float, float]]:
        """(weight, x, z) of each placement of which enough was seen."""
        least = min((run.placement.devices for run in self.runs), default=1)
        found = ((run.seconds, run.log_ratio, run.placement.devices / least) for run in self.runs)
        return [(s / (s + SEEN_SECONDS), x, math.log(wider)) for s, x, wider in found if x is not None]


def _is_for(claimed: Placement, here: Placement) -> bool:
    return claimed.devices == here.devices and claimed.model in (None, here.model)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackRecord:
    """How an account's claims came out: sums over its observations, with their weights."""

    weight: float = 0.0
    """Of what is not forgotten; 0: nothing is known."""
    x: float = 0.0
    z: float = 0.0
    xx: float = 0.0
    xz: float = 0.0
    zz: float = 0.0
    jobs: int = 0
    """So many ever counted."""
    counted_at: float = 0.0

    def with_job(self, tally: Tally, now: float) -> TrackRecord:
        """After one more job has ended."""
        found = tally.observations()
        if not found:
            return self
        aged = 0.5 ** (max(0.0, now - self.counted_at) / FORGOTTEN_SECONDS)
        record = replace(self._kept(aged), jobs=self.jobs + 1, counted_at=now)
        for weight, x, z in found:
            record = record._kept(1 - weight / FORGOTTEN_JOBS)._with(weight, x, z)
        return record

    def _kept(self, part: float) -> TrackRecord:
        sums = {name: getattr(self, name) * part for name in _SUMS}
        return replace(self, **sums)

    def _with(self, weight: float, x: float, z: float) -> TrackRecord:
        new = dict(zip(_SUMS, (1.0, x, z, x * x, x * z, z * z), strict=True))
        return replace(self, **{name: getattr(self, name) + weight * value for name, value in new.items()})

    @property
    def line(self) -> tuple[float, float]:
        """(level, slope): ridge regression of x on z."""
        if not self.weight:
            return 0.0, 0.0
        one, two = self.weight + PRIOR_WEIGHT, self.zz + PRIOR_WEIGHT
        determinant = one * two - self.z**2
        level = (self.x * two - self.xz * self.z) / determinant
        slope = (self.xz * one - self.x * self.z) / determinant
        return level, slope

    @property
    def spread_log(self) -> float:
        """Standard deviation of x from the line."""
        level, slope = self.line
        around = self.xx - level * self.x - slope * self.xz
        return math.sqrt(max(0.0, around + PRIOR_WEIGHT * PRIOR_SPREAD**2) / (self.weight + PRIOR_WEIGHT))

    def factor(self, wider: float = 1.0) -> float:
        """What a claimed time is multiplied with.

        Args:
            wider: its devices over the smallest count that the job bids for.
        """
        level, slope = self.line
        logarithm = level + slope * math.log(wider)
        return math.exp(min(max(logarithm, math.log(LEAST_FACTOR)), math.log(MOST_FACTOR)))

    def factors(self, rows: Sequence[BidRow]) -> dict[int, float]:
        """`factor` of each device count of a bid's measured rows; empty: all claims are believed."""
        counts = {row.placement.devices for row in rows if row.remaining_seconds is not None}
        if not self.weight or not counts:
            return {}
        least = min(counts)
        return {count: self.factor(count / least) for count in counts}


_SUMS = ("weight", "x", "z", "xx", "xz", "zz")


def tallied(
    tally: Tally,
    bid: StandingBid | None,
    here: Placement | None,
    *,
    was: tuple[JobState, tuple[str, ...], float, float],
    now: tuple[JobState, tuple[str, ...], float, float],
) -> Tally:
    """The tally after a report.

    Args:
        tally: before.
        bid: of this report.
        here: how the devices it uses lie.
        was: state, devices, instant and fraction done of the report before.
        now: those of this report.
    """
    tally = tally.heard(bid, now[3])
    if was[0] is not JobState.RUNNING or was[1] != now[1] or now[0] not in (JobState.RUNNING, JobState.ENDED):
        return tally
    return tally.ran(here, now[2] - was[2], now[3] - was[3])
