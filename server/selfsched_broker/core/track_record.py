"""What an account has claimed, held against what its jobs then took: a few numbers that outlive jobs.

**Of one job**, a `Tally`. The first time it claims for each placement, in seconds of the whole run, is
kept. Every second that it then runs somewhere uses up 1 / (claimed seconds there) of what it said it
would need, and by its reports it gets a fraction of its work done. With true claims the two grow alike,
whatever it ran on and however often it moved. When it ends,

    x = log(used / done)

is by how much it took longer than it had said: 0.7 twice as long, -0.7 half as long. Later claims cannot
mend it, and of a job that has finished neither can progress that was told too early: its whole work is
done, and the time was the broker's.

**Of an account**, a `TrackRecord`: mean and spread of x over its jobs, each with the weight s / (s + 300)
for s seconds seen, together with half a job of the prior that claims hold as well as most (x = 0, spread
0.1). What is old is forgotten: half of it over 30 days, and what lies some 20 jobs back.

**What follows.** While nothing has been seen of a job's own pace, its times are multiplied with e^mean,
at most 8 and at least 1/2. They are as sure as the spread says. From its first steps on, its own pace
corrects this (`metering`). An account without a record is believed. Jobs whose end is unknown claim
nothing, and leave no trace here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from selfsched.protocol import BidRow, JobState, Placement, StandingBid
from selfsched_broker.core.metering import claim_for

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
class Tally:
    """What one job claimed first, and what became of it."""

    claimed: tuple[BidRow, ...] = ()
    """Its first measured row for each placement, with the seconds of the whole run in it."""
    used: float = 0.0
    """How much of the time it claimed it has run."""
    done: float = 0.0
    """The fraction it got done meanwhile."""
    seconds: float = 0.0

    def heard(self, bid: StandingBid | None, fraction: float) -> Tally:
        """With a bid's rows for placements that had none."""
        if bid is None or bid.end_is_unknown or fraction >= 1 or len(bid.rows) <= len(self.claimed):
            return self
        known = {row.placement for row in self.claimed}
        new = tuple(
            row.model_copy(update={"remaining_seconds": row.remaining_seconds / (1 - fraction)})
            for row in bid.rows
            if row.remaining_seconds and row.placement not in known
        )
        return replace(self, claimed=self.claimed + new) if new else self

    def ran(self, here: Placement | None, seconds: float, done: float) -> Tally:
        """After further seconds on a placement in which a fraction got done."""
        claim = claim_for(here, self.claimed) if here is not None and seconds > 0 else None
        if claim is None or not claim.remaining_seconds:
            return self
        return replace(
            self,
            used=self.used + seconds / claim.remaining_seconds,
            done=self.done + done,
            seconds=self.seconds + seconds,
        )

    @property
    def log_ratio(self) -> float | None:
        """x of the job, and None where too little was seen."""
        if self.seconds < LEAST_SECONDS or self.done < LEAST_DONE or self.used <= 0:
            return None
        return min(max(math.log(self.used / self.done), -MOST_LOG), MOST_LOG)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackRecord:
    """How an account's claims came out."""

    weight: float = 0.0
    """Of its jobs, forgotten ones no more; 0: nothing is known."""
    log_sum: float = 0.0
    square_sum: float = 0.0
    jobs: int = 0
    """So many ever counted."""
    counted_at: float = 0.0

    def with_job(self, tally: Tally, now: float) -> TrackRecord:
        """After one more job has ended."""
        found = tally.log_ratio
        if found is None:
            return self
        weight = tally.seconds / (tally.seconds + SEEN_SECONDS)
        aged = 0.5 ** (max(0.0, now - self.counted_at) / FORGOTTEN_SECONDS)
        kept = aged * (1 - weight / FORGOTTEN_JOBS)
        return TrackRecord(
            weight=kept * self.weight + weight,
            log_sum=kept * self.log_sum + weight * found,
            square_sum=kept * self.square_sum + weight * found**2,
            jobs=self.jobs + 1,
            counted_at=now,
        )

    @property
    def mean_log(self) -> float:
        """By how much its jobs take longer than it says (log), shrunk towards 0."""
        return self.log_sum / (self.weight + PRIOR_WEIGHT)

    @property
    def spread_log(self) -> float:
        """Standard deviation of that from job to job."""
        mean, whole = self.mean_log, self.weight + PRIOR_WEIGHT
        around = self.square_sum - 2 * mean * self.log_sum + mean**2 * self.weight
        return math.sqrt(max(0.0, around + PRIOR_WEIGHT * (PRIOR_SPREAD**2 + mean**2)) / whole)

    @property
    def factor(self) -> float:
        """What times without evidence of their own are multiplied with."""
        return min(max(math.exp(self.mean_log), LEAST_FACTOR), MOST_FACTOR)


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
