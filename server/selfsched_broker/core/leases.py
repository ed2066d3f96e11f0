"""The two clocks of a lease and the state machines of holdings, jobs and claims, as data.

A lease is no mutual exclusion. What the broker promises is: it never *grants* a device to two
leases at once, and never grants it again before the device's node, in a report newer than the
end of its use, has said that it is empty. Three things together carry that promise: one live
holding per device (a constraint of the tables as well), a fence that every call carries, and
the node's proof of emptiness, for which a device waits in `quarantined`.

ttl: liveness. Every report renews it; the job stops by its own earlier deadline
(`client_margin_seconds` before); the broker quarantines at ttl + grace. After a restart of the
broker every lease gets a full ttl.
term: the auction's. No report renews it; terms end on a tick; a holder that wins its devices
again is renewed: its term end moves, no new fence, no restart.

A state machine is a table of (state, event) -> state. `step` is its one door: an event that
the table lacks raises IllegalEvent and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeVar

from selfsched.protocol import JobState, ProblemCode


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseOptions:
    """The broker's times. All in seconds."""

    report_seconds: float = 10.0
    """How often a job reports."""
    ttl_seconds: float = 30.0
    client_margin_seconds: float = 5.0
    """How much earlier than the ttl the job stops by itself."""
    grace_seconds: float = 15.0
    restart_window_seconds: float = 45.0
    """After a restart with leases in the books: no auction for so long (ttl + grace)."""
    term_seconds: float = 300.0
    min_auction_seconds: float = 10.0
    """Between two auctions, ticks apart, that may take devices from holders."""
    max_notice_seconds: float = 120.0
    idle_warned_seconds: float = 600.0
    idle_lost_seconds: float = 900.0
    max_stated_seconds: float = 14_400.0
    """Cap of the time that a job which cannot resume may keep its devices unasked."""
    end_warned_seconds: tuple[float, ...] = (600.0, 60.0)
    silent_job_seconds: float = 600.0
    """A job without devices that has not reported for so long is lost."""
    node_report_seconds: float = 5.0
    node_hurried_report_seconds: float = 1.0
    """While a device of the node waits to be proven empty."""
    node_silent_seconds: float = 30.0
    sick_recovery_seconds: float = 60.0
    """A device that was sick is offered again after it was healthy for so long."""
    visit_start_seconds: float = 300.0
    """A first visit that has not made a step by then is over."""
    progress_seconds: float = 30.0
    """A running job's step is made durable so often; in memory it is always the newest."""
    rounds_only: bool = False
    """Auctions at ticks only: what becomes free inside a term stays idle (simulation by rounds)."""
    kept_ended_jobs: int = 500
    kept_auctions: int = 500
    kept_audits: int = 2000
    kept_answer_seconds: float = 86_400.0


class Refusal(Exception):
    """The broker says no, and nothing has changed. `code` becomes the problem code."""

    def __init__(self, code: ProblemCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class IllegalEvent(Exception):
    """An event that cannot happen in this state: our own mistake, nothing was changed."""


HoldingState = Literal["held", "yielding", "quarantined", "ended"]
ClaimState = Literal["open", "granted", "dead"]


class HoldingEvent(StrEnum):
    ORDERED = "ordered"
    """The job was told to leave."""
    RELEASED = "released"
    """The job said that it has left."""
    LOST = "lost"
    """The job's right is over without its word: expired, overdue, forced, or the device is sick."""
    PROVEN_EMPTY = "proven_empty"
    """The device's node reported it empty after it was left."""


class JobEvent(StrEnum):
    GRANTED = "granted"
    STARTED = "started"
    """It reports that it runs."""
    RESTARTED = "restarted"
    """It reports that it is between two segments."""
    ORDERED = "ordered"
    """It was told to leave some of its devices."""
    SETTLED = "settled"
    """It has left what it was told to leave, and still holds some."""
    EMPTIED = "emptied"
    """It holds nothing any more."""
    PARKED = "parked"
    """It holds nothing and was told to pause."""
    RESUMED = "resumed"
    ENDED = "ended"


class ClaimEvent(StrEnum):
    GRANTED = "granted"
    DIED = "died"


HOLDING_TABLE: Mapping[tuple[HoldingState, HoldingEvent], HoldingState] = {
    ("held", HoldingEvent.ORDERED): "yielding",
    ("held", HoldingEvent.RELEASED): "quarantined",
    ("held", HoldingEvent.LOST): "quarantined",
    ("yielding", HoldingEvent.RELEASED): "quarantined",
    ("yielding", HoldingEvent.LOST): "quarantined",
    ("quarantined", HoldingEvent.PROVEN_EMPTY): "ended",
}

JOB_TABLE: Mapping[tuple[JobState, JobEvent], JobState] = {
    (JobState.WAITING, JobEvent.GRANTED): JobState.STARTING,
    (JobState.WAITING, JobEvent.PARKED): JobState.PAUSED,
    (JobState.WAITING, JobEvent.ENDED): JobState.ENDED,
    (JobState.STARTING, JobEvent.GRANTED): JobState.STARTING,
    (JobState.STARTING, JobEvent.STARTED): JobState.RUNNING,
    (JobState.STARTING, JobEvent.ORDERED): JobState.YIELDING,
    (JobState.STARTING, JobEvent.EMPTIED): JobState.WAITING,
    (JobState.STARTING, JobEvent.PARKED): JobState.PAUSED,
    (JobState.STARTING, JobEvent.ENDED): JobState.ENDED,
    (JobState.RUNNING, JobEvent.GRANTED): JobState.RUNNING,
    (JobState.RUNNING, JobEvent.RESTARTED): JobState.STARTING,
    (JobState.RUNNING, JobEvent.ORDERED): JobState.YIELDING,
    (JobState.RUNNING, JobEvent.EMPTIED): JobState.WAITING,
    (JobState.RUNNING, JobEvent.PARKED): JobState.PAUSED,
    (JobState.RUNNING, JobEvent.ENDED): JobState.ENDED,
    (JobState.YIELDING, JobEvent.GRANTED): JobState.YIELDING,
    (JobState.YIELDING, JobEvent.ORDERED): JobState.YIELDING,
    (JobState.YIELDING, JobEvent.SETTLED): JobState.STARTING,
    (JobState.YIELDING, JobEvent.EMPTIED): JobState.WAITING,
    (JobState.YIELDING, JobEvent.PARKED): JobState.PAUSED,
    (JobState.YIELDING, JobEvent.ENDED): JobState.ENDED,
    (JobState.PAUSED, JobEvent.RESUMED): JobState.WAITING,
    (JobState.PAUSED, JobEvent.ENDED): JobState.ENDED,
}

CLAIM_TABLE: Mapping[tuple[ClaimState, ClaimEvent], ClaimState] = {
    ("open", ClaimEvent.GRANTED): "granted",
    ("open", ClaimEvent.DIED): "dead",
}

S = TypeVar("S", bound=str)
E = TypeVar("E", bound=StrEnum)


def step(table: Mapping[tuple[S, E], S], state: S, event: E) -> S:
    """The state after an event.

    Raises:
        IllegalEvent: the table has no such transition.
    """
    try:
        return table[state, event]
    except KeyError:
        raise IllegalEvent(f"{event.value} cannot happen to what is {str(state)!r}") from None
